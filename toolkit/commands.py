"""The commands of ``python -m toolkit``; what they need is imported when one runs, so that ``--help`` is quick."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from toolkit.naming import shown_command, shown_flags
from toolkit.progress import show
from toolkit.studies.executors import ExecutorOptions

if TYPE_CHECKING:
    import pandas as pd

    from toolkit.reporting.page import Page
    from toolkit.reporting.topics.layers import Tables


def _check_out(out: Path | None) -> None:
    """ValueError, before anything is computed, where no report can go to the folder that was asked for."""
    from toolkit.reporting.folder import check_out

    if out is not None:
        check_out(out)


def _show_report(report: Path) -> None:
    """What a report answers, and where it lies."""
    from toolkit.reporting.render_markdown import read_answers

    for answer in read_answers(report.read_text(encoding="utf-8")):
        show(answer)
    show(f"Report: {report}\nOpen:   {report.with_name('index.html')}")


def _again(command: Any, name: str, places: Iterable[str | Path], *flags: str) -> str:
    """The words that make the report of a command again; none where it writes none."""
    if command.out is None:
        return ""
    return shown_command(name, places, command.out, command.title) + shown_flags(command, *flags)


def _show_page(page: "Page", out: Path | None, tables: "Mapping[str, pd.DataFrame]", *, is_result: bool = True) -> int:
    """Print a page, and write it beside its tables where a report is asked for; not ``is_result``: write it only."""
    from toolkit.reporting.folder import write_page
    from toolkit.reporting.render_terminal import print_page

    if is_result:
        print_page(page, has_charts=out is not None)
    if out is not None:
        show(f"Report: {write_page(page, out, tables)}", is_result=is_result)
    return 0


@dataclass(frozen=True, slots=True)
class ReportCommand:
    """Compare finished runs: scores, drift and verdicts in index.html and report.md, with figures and tables."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories. Unfinished ones and other folders that a glob (runs/*) brings along are left out and named."""
    out: Path | None = None
    """Folder for this report alone, made where it is missing; a report that is there is replaced. With --from,
    None: the report's own folder."""
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Folder of a report, which is made again from its evidence alone, without a run: pages, figures, tables, cards."""
    title: str | None = None
    """Title of the report; None: made from the runs."""
    question: str | None = None
    """Question that the report answers, printed under its title; None: no question."""
    margin_points: float = 1.0
    """Margin of equivalence in points (hundredths of the score): smaller differences do not matter."""
    score: str | None = None
    """Score that runs are judged by, such as r2 or macro_f1, where they have it; None: each task's own."""

    def run(self) -> int:
        from toolkit.progress import reporting_progress
        from toolkit.reporting.comparison_report import report_from, write_report
        from toolkit.reporting.folder import check_out
        from toolkit.reporting.sources import find_runs

        options = {name: getattr(self, name) for name in ("title", "question", "margin_points", "score")}
        if self.from_ is not None:
            if self.runs or options != {name: getattr(ReportCommand(), name) for name in options}:
                raise ValueError("--from makes a report again as its evidence has it: only --out goes with it")
            with reporting_progress() as hear:
                report = report_from(self.from_, self.out, on_progress=hear)
        else:
            if not self.runs:
                raise ValueError("report needs run directories and --out FOLDER, or --from with the folder of a report")
            if self.out is None:
                raise ValueError("report needs --out FOLDER, a new folder to write the report into")
            check_out(self.out)
            for line in find_runs(self.runs).left_out:
                show(line, is_result=False)
            with reporting_progress() as hear:
                report = write_report(self.runs, self.out, on_progress=hear, **options)
        _show_report(report)
        return 0


@dataclass(frozen=True, slots=True)
class DriftCommand:
    """How did embeddings change between checkpoints? In a run: how far, and why?"""

    places: tyro.conf.Positional[tuple[str, ...]]
    """Either two or more checkpoints in order (minilm, hub ids with @revision, folders, .safetensors files; adapters
    of peft after their base), or one run directory, optionally followed by runs of other seeds."""
    out: Path | None = None
    """Folder to write the full report into, which takes minutes; None: print a summary alone."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.reporting.run_reports import show_drift

        report = show_drift(self.places, self.out, title=self.title)
        if report is None:
            show("Why the rows moved, and which words: --out FOLDER writes that report.", is_result=False)
        else:
            show(f"Report: {report}")
        return 0


@dataclass(frozen=True, slots=True)
class FlowCommand:
    """Where does position go? Its share of each layer, how well it can be read off, what changes without it."""

    places: tyro.conf.Positional[tuple[str, ...]]
    """Checkpoints (minilm, folders, hub ids) and run directories made with --save-model; seeds are taken together."""
    texts: Path | None = None
    """Data file of the texts to read. None: the reported split of the runs' task; without runs, --task."""
    text_columns: tuple[str, ...] = ()
    """Names of the one or two text columns of --texts, by default text, or sentence; segments need two (pairs)."""
    task: str = "polarity"
    """Built-in task whose validation texts are read where only checkpoints are given; pair has two segments."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    positions: int = 32
    """Positions of the crossed design, and tokens of a block: every token of a block stands at each position once."""
    blocks: int = 16
    """Number of such blocks."""
    shift: int = 16
    """Rows by which positions are moved in the counterfactual `shifted`."""
    num_texts: int = 200
    """Texts on which the counterfactuals (positions shifted, permuted, replaced, taken away) are measured."""
    seed: int = 0
    """Seed of what is drawn: the blocks, the halves of the texts, the permutation and the bootstrap."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.probes.flow import FlowSettings, measure_flow
        from toolkit.reporting.topics.flow import flow_page, flow_tables

        _check_out(self.out)
        numbers = {"positions": self.positions, "blocks": self.blocks, "shift": self.shift, "num_texts": self.num_texts}
        for name, value in numbers.items():
            if value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1; got {value}")
        settings = FlowSettings(
            num_positions=self.positions,
            num_blocks=self.blocks,
            shift=self.shift,
            num_texts=self.num_texts,
            seed=self.seed,
        )
        tables = measure_flow(
            self.places,
            texts=self.texts,
            text_columns=self.text_columns,
            task=self.task,
            settings=settings,
            on_subject=lambda name: show(name, is_result=False),
        )
        command = _again(self, "flow", self.places, "texts", "text_columns", "task", *numbers, "seed")
        return _show_page(flow_page(tables, title=self.title, command=command), self.out, flow_tables(tables))


@dataclass(frozen=True, slots=True)
class LayersCommand:
    """Which layers changed? States and weights, compared with before training, other seeds and shuffled labels."""

    places: tyro.conf.Positional[tuple[str, ...]]
    """Run directories made with --save-model; other seeds, and runs with --shuffle-labels, are the references. Or two
    checkpoints, before and after (minilm, hub ids with @revision, folders, .safetensors files): their weights only."""
    texts: tuple[str, ...] = ()
    """Texts to compare states on, NAME=PATH [NAME=PATH ...]: data files as finetune.py --test-file takes them.
    By default every scored split of the runs' task."""
    text_columns: tuple[str, ...] = ()
    """Names of the one or two text columns of these files; by default those of the runs."""
    max_texts: int = 300
    """Number of texts to read of each split or file, at most; drawn at random, the same for all models."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.reporting.topics.layers import layers_page
        from toolkit.snapshots.backbones import is_run

        if not self.places:
            raise ValueError("nothing to compare: pass at least one run directory, or two checkpoints")
        _check_out(self.out)
        tables = self._of_runs() if all(map(is_run, self.places)) else self._of_checkpoints()
        command = _again(self, "layers", self.places, "texts", "text_columns", "max_texts")
        return _show_page(layers_page(tables, title=self.title, command=command), self.out, tables)

    def _of_runs(self) -> "Tables":
        from toolkit.probes.embedding_layer import read_texts
        from toolkit.probes.forgetting import measure_forgetting
        from toolkit.probes.layer_drift import measure_layers
        from toolkit.progress import reporting_progress
        from toolkit.snapshots.store import open_run

        runs = [open_run(path) for path in self.places]
        texts = read_texts(self.texts, self.text_columns or runs[0].config.text_columns) if self.texts else None
        with reporting_progress() as hear:
            tables = measure_layers(runs, texts, max_texts=self.max_texts, on_progress=hear)
        forgotten = measure_forgetting(runs, texts, max_texts=self.max_texts)
        return tables | ({"forgetting": forgotten} if forgotten["value"].notna().any() else {})

    def _of_checkpoints(self) -> "Tables":
        from toolkit.comparison.layer_trend import weight_tables, weights_of_pair
        from toolkit.snapshots.backbones import is_run, open_backbones

        if len(self.places) != 2:
            other = next(place for place in self.places if not is_run(place))
            raise ValueError(
                f"{other} is not a run directory: pass run directories, or two checkpoints and nothing else"
            )
        if self.texts:
            raise ValueError(
                "--texts: states need runs made with --save-model; of two checkpoints weights are compared"
            )
        pair = open_backbones(*self.places)
        for note in pair.notes:
            show(note)
        return weight_tables([weights_of_pair(pair)])


@dataclass(frozen=True, slots=True)
class PositionsCommand:
    """Do a model's position embeddings resemble sine and cosine? Statistics and a verdict, beside control tables."""

    model: tyro.conf.Positional[str]
    """A checkpoint (hub id, folder, .safetensors file, minilm) or a run directory."""
    before: str | None = None
    """The checkpoint that the model was tuned from: positions that tuning exposed are then told apart from raw ones.
    None: only a run directory says which they are."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    default_length: int | None = None
    """Tokens that the model reads by default: rows beyond are called inherited. None: what its files say."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.naming import at_least
        from toolkit.reporting.run_reports import show_positions
        from toolkit.reporting.sources import open_sources

        length = None if self.default_length is None else at_least("--default-length", self.default_length, 1)
        _check_out(self.out)
        opened = open_sources((self.model,) if self.before is None else (self.before, self.model))
        length = length or opened.default_length
        command = _again(self, "positions", (self.model,), "before")
        options = {"title": self.title, "default_length": length, "command": command}
        if path := show_positions(opened.trajectory, self.out, **options):  # type: ignore[arg-type]
            show(f"Report: {path}")
        return 0


@dataclass(frozen=True, slots=True)
class AnatomyCommand:
    """Take a model's embedding layer apart on your own sentence: eight questions, answered by measurement."""

    model: tyro.conf.Positional[str]
    """A checkpoint (minilm, a folder, a hub id) or a run directory that was made with --save-model."""
    text: str
    """The sentence that the model reads."""
    pair: str | None = None
    """A second sentence, which the model reads together with the first; None: a single sentence."""
    is_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of text: the same numbers. Keys: toolkit/probes/anatomy.py."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the answers only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        import json

        from toolkit.naming import shorten
        from toolkit.probes.anatomy import as_document, take_apart
        from toolkit.probes.embedding_layer import open_model
        from toolkit.reporting.topics.anatomy import anatomy_page, anatomy_tables

        _check_out(self.out)
        anatomy = take_apart(open_model(self.model), self.text, self.pair, name=shorten(self.model))
        document = as_document(anatomy)
        if self.is_json:
            print(json.dumps(document, indent=2, allow_nan=False))
            if self.out is None:
                return 0
        page = anatomy_page(document, title=self.title, command=_again(self, "anatomy", (self.model,), "text", "pair"))
        return _show_page(page, self.out, anatomy_tables(document), is_result=not self.is_json)


@dataclass(frozen=True, slots=True)
class StudyCommand:
    """Run a study (arms x tasks x seeds) and write its report; runs that are finished are skipped."""

    file: tyro.conf.Positional[Path]
    """Python file that defines STUDY = toolkit.Study(...)."""
    out: Path | None = None
    """Folder to write the report into; None: reports/ and the name of the file without .py."""
    output_dir: Path = Path("runs")
    """Folder in which run directories are made and looked for."""
    dry_run: bool = False
    """Print the runs, an estimate of their time (from a few steps of each kind of run, which are not kept), and the
    smallest difference that they could show; run nothing else."""
    limit: int | None = None
    """Stop after this many runs; the same command continues later. None: no limit."""
    executor: Literal["local", "ray", "slurm"] = "local"
    """Where the runs are executed: on this machine, by Ray or by Slurm (extras of the package: ray, slurm)."""
    options: Annotated[ExecutorOptions, tyro.conf.arg(name="")] = field(default_factory=ExecutorOptions)

    def run(self) -> int:
        from toolkit.studies.plan import left_to_do
        from toolkit.studies.progress import StudyProgress
        from toolkit.studies.runner import EXECUTORS, plan_study, run_study, study_command
        from toolkit.studies.study import load_study
        from toolkit.studies.trial import dry_run

        study, out = load_study(self.file), self.out or Path("reports") / self.file.stem
        executor = EXECUTORS[self.executor](self.options)
        if self.dry_run:
            dry_run(study, executor=executor, limit=self.limit, output_dir=self.output_dir)
            return 0
        with StudyProgress(self.options.workers) as progress:
            report = run_study(
                study,
                executor=executor,
                limit=self.limit,
                out=out,
                output_dir=self.output_dir,
                on_stage=progress.on_stage,
                on_event=progress.on_event,
                on_progress=progress.on_progress,
                command=study_command(self.file, out, self.output_dir),
            )
        if report is None:
            show(
                f"{len(left_to_do(plan_study(study, self.output_dir).runs))} runs are left: the same command continues"
            )
        else:
            _show_report(report)
        return 0


@dataclass(frozen=True, slots=True)
class TransplantCommand:
    """Which component's drift does the tuned model need? Put embeddings from before back, one by one (Shapley)."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories made with --save-model; those that differ in nothing but the seed are taken together."""
    split: str | None = None
    """Split to score on; None: the one that the task reports."""
    max_examples: int | None = None
    """Score this many items of the split only, the same ones for every run; None: all."""
    reverse: bool = False
    """Also the reverse: tuned embeddings in the body from before training,
    under a logistic regression that is fitted again on train."""
    coordinates: Literal["fixed", "raw"] = "fixed"
    """fixed: without the offsets between tables, on which no output depends. raw: the tables as they are."""
    num_draws: int = 5
    """Random changes of the same size and of each kind beside each transplant; each costs one more pass."""
    num_reverse_draws: int = 1
    """The same for --reverse, where each also costs a pass over training items."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of weights and activations."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.probes.transplant_games import TransplantSettings
        from toolkit.probes.transplants import measure_transplants
        from toolkit.progress import counting_progress
        from toolkit.reporting.topics.transplants import transplants_page

        _check_out(self.out)
        settings = TransplantSettings(
            split=self.split,
            max_examples=self.max_examples,
            coordinates=self.coordinates,
            num_draws=self.num_draws,
            num_reverse_draws=self.num_reverse_draws,
            dtype=self.dtype,
        )
        with counting_progress("passes") as hear:
            tables = measure_transplants(self.runs, settings, reverse=self.reverse, on_progress=hear).tables
        command = _again(self, "transplant", self.runs, "reverse", *(each.name for each in fields(settings)))
        return _show_page(transplants_page(tables, title=self.title, command=command), self.out, tables)


@dataclass(frozen=True, slots=True)
class ReindexCommand:
    """Must I re-index? What searches by a tuned model find among vectors that were stored before, as is and mapped."""

    before: tyro.conf.Positional[str]
    """The model that made the stored vectors: a checkpoint (minilm, a folder, a hub id) or a run directory made with
    --save-model."""
    after: tyro.conf.Positional[str]
    """The tuned model, likewise; its tokenizer and width may differ."""
    texts: Path
    """Data file of the texts whose vectors are stored."""
    queries: Path | None = None
    """Data file of the texts that are searched for. None: a fifth of --texts, drawn and left out of the index."""
    text_columns: tuple[str, ...] = ()
    """Names of the one or two text columns of both files, by default text, or sentence."""
    k: int = 10
    """Texts that a search gives."""
    pooling: Literal["mean", "cls", "last"] = "mean"
    """What a text's vector is: the mean of its tokens, its first token, or its last; compared by cosine."""
    keep_at: float = 0.95
    """Least recall at which the index is kept as it is."""
    map_at: float = 0.95
    """Least recall at which a linear map of the stored vectors is enough."""
    seed: int = 0
    """Seed of what is drawn: the queries, the folds of the maps, the nulls and the bootstrap."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.probes.reindexing import measure_reindexing
        from toolkit.progress import reporting_progress
        from toolkit.reporting.topics.reindexing import reindex_page

        _check_out(self.out)
        options = ("queries", "text_columns", "k", "pooling", "keep_at", "map_at", "seed")
        chosen = {name: getattr(self, name) for name in options}
        with reporting_progress() as hear:
            tables = measure_reindexing(self.before, self.after, self.texts, **chosen, on_progress=hear)
        command = _again(self, "reindex", (self.before, self.after), "texts", *options)
        return _show_page(reindex_page(tables, title=self.title, command=command), self.out, tables)


@dataclass(frozen=True, slots=True)
class VerifyCommand:
    """Check that a run (all hashes) or a report (all hashes and verdicts) is as written; exit code 1 if not."""

    directory: tyro.conf.Positional[Path]
    """Run directory, or folder of a report."""
    more: tyro.conf.Positional[tuple[Path, ...]] = ()
    """More run directories or reports."""
    runs: Path | None = None
    """Folder in which a report's runs are looked for; None: runs/, beside the report, and in runs/ beside it."""

    def run(self) -> int:
        directories, errors, differ = (self.directory, *self.more), [], False
        for directory in directories:
            try:
                lines, differs = self._verify(directory)
            except ValueError as error:  # one that cannot be verified does not keep the others from it
                errors.append(str(error))
                continue
            differ |= differs
            head = f"{directory}: " if self.more else ""
            said = "\n".join(line if line.startswith(head) else head + line for line in lines)
            show(said)
        if errors:
            raise ValueError("; ".join(errors))
        return 1 if differ else 0

    def _verify(self, directory: Path) -> tuple[list[str], bool]:
        """What there is to say of a run or a report, and whether it differs from what was written."""
        from toolkit.comparison.verify import describe, is_report

        if is_report(directory):
            return describe(directory, self.runs)
        from toolkit.snapshots.store import open_run, verify_run

        if directory.is_file():
            raise ValueError(f"{directory} is a file, not a folder: pass a run directory or a report's folder")
        if not directory.exists():
            raise ValueError(f"no run directory and no report at {directory}")
        try:
            open_run(directory)
        except ValueError:
            raise ValueError(f"{directory} is neither a run directory nor a report with cards") from None
        if self.runs is not None and not self.more:
            raise ValueError(f"{directory} is a run: --runs says where a report's runs are, leave it out")
        differences = verify_run(directory)
        return differences or [f"{directory}: every file is as the manifest says"], bool(differences)


Command = (
    Annotated[ReportCommand, tyro.conf.subcommand("report")]
    | Annotated[DriftCommand, tyro.conf.subcommand("drift")]
    | Annotated[FlowCommand, tyro.conf.subcommand("flow")]
    | Annotated[LayersCommand, tyro.conf.subcommand("layers")]
    | Annotated[PositionsCommand, tyro.conf.subcommand("positions")]
    | Annotated[AnatomyCommand, tyro.conf.subcommand("anatomy")]
    | Annotated[StudyCommand, tyro.conf.subcommand("study")]
    | Annotated[TransplantCommand, tyro.conf.subcommand("transplant")]
    | Annotated[ReindexCommand, tyro.conf.subcommand("reindex")]
    | Annotated[VerifyCommand, tyro.conf.subcommand("verify")]
)
