"""The commands of ``python -m toolkit``; what they need is imported when one runs, so that ``--help`` is quick."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from toolkit.config import DataConfig, ModelConfig, RunConfig, TrainingConfig
from toolkit.naming import meant_by, refuse_first
from toolkit.progress import show
from toolkit.questions import load_questions
from toolkit.studies.executors import ExecutorOptions

if TYPE_CHECKING:
    from toolkit.reporting.page import Report


def _show_report(report: "Report") -> None:
    """What a report answers, and where it lies."""
    from toolkit.reporting.page import spoken

    for answer in (answer for answer in report.answers if answer.question):
        show(spoken(answer))
    show(f"Report: {report.path}\nOpen:   {report.path.with_name('index.html')}")


@dataclass(frozen=True, slots=True)
class ReportCommand:
    """Compare finished runs: scores, drift and verdicts in index.html and report.md, with figures and tables."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories, recordings, and output folders of a Trainer (which hold checkpoint-*). Unfinished ones and
    other folders that a glob (runs/*) brings along are left out and named."""
    out: Path | None = None
    """Folder for this report alone, made where it is missing; a report that is there is replaced. With --from,
    None: the report's own folder."""
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Folder of a report, which is made again from its evidence alone, without a run: pages, figures, tables, cards."""
    methods: Path | None = None
    """Folder of a report: print what a paper says of its methods, from its evidence alone, and make nothing."""
    latex: bool = False
    """With --methods: as LaTeX, escaped."""
    title: str | None = None
    """Title of the report; None: made from the runs."""
    question: str | None = None
    """Question that the report answers, printed under its title; None: no question."""
    margin_points: float = 1.0
    """Margin of equivalence in points (hundredths of the score): smaller differences do not matter."""
    score: str | None = None
    """Score that runs are judged by, such as r2 or macro_f1, where they have it; None: each task's own."""
    base: str | None = None
    """Checkpoint that training in output folders started from; None: their drift is since the first one kept."""

    def run(self) -> int:
        """Write a report, make one again, or print its methods; the exit code."""
        from toolkit.reporting.comparison_report import report_from, write_report
        from toolkit.reporting.folder import check_out
        from toolkit.reporting.sources import find_runs

        if self.methods is not None or self.latex:
            from toolkit.reporting.methods import methods_of

            if self.methods is None or self != ReportCommand(methods=self.methods, latex=self.latex):
                raise ValueError(
                    "--latex goes with --methods FOLDER, and nothing else does: it prints a text of that report"
                )
            show(methods_of(self.methods, latex=self.latex))
            return 0
        options = {name: getattr(self, name) for name in ("title", "question", "margin_points", "score", "base")}
        if self.from_ is not None:
            if self.runs or options != {name: getattr(ReportCommand(), name) for name in options}:
                raise ValueError("--from makes a report again as its evidence has it: only --out goes with it")
            report = report_from(self.from_, self.out)
        else:
            if not self.runs:
                raise ValueError("report needs run directories and --out FOLDER, or --from with the folder of a report")
            if self.out is None:
                raise ValueError("report needs --out FOLDER, a new folder to write the report into")
            check_out(self.out)
            for note in find_runs(self.runs, self.base).left_out:
                show(note, is_result=False)
            report = write_report(self.runs, self.out, **options)
        _show_report(report)
        return 0


@dataclass(frozen=True, slots=True)
class DriftCommand:
    """How did embeddings change between checkpoints? In a run: how far, and why?"""

    places: tyro.conf.Positional[tuple[str, ...]]
    """Either two or more checkpoints in order (minilm, hub ids with @revision, folders, .safetensors files; adapters
    of peft after their base), or one run directory, optionally followed by runs of other seeds."""
    out: Path | None = None
    """Folder to write the full report into, which takes minutes; None: print a summary alone, in seconds."""
    base: str | None = None
    """Checkpoint that training in an output folder started from; None: drift is since the first one kept there."""
    only: str = ""
    """Sections to make, which is quicker: words,why. Of: changes, words, kinds, exposure, new-tokens, rows, why,
    step-sizes, gauge, neighbours, space. Empty: all."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        """Print how embeddings changed, and write the report where a folder is named; the exit code."""
        from toolkit.questions.drift_report import show_drift

        only = tuple(filter(None, (name.strip() for name in self.only.split(","))))
        if self.only and not only:
            raise ValueError(f"--only names sections, such as words,why; got {self.only!r}: name one, or leave it out")
        report = show_drift(self.places, self.out, base=self.base, title=self.title, only=only)
        if report is not None:
            show(f"Report: {report}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Checkpoint(ModelConfig):
    """The flags of a model, which is named without one."""

    model: tyro.conf.Positional[str] = field()
    """A checkpoint: minilm (embedded, offline), a hub id (optionally id@revision) or a local folder."""
    freeze: str | None = None  # type: ignore[assignment]  # left out it is no regime of finetune.py
    """Regime, as of finetune.py. None: none (full fine-tuning) beside other flags; alone, what a Trainer trains."""


@dataclass(frozen=True, slots=True)
class TrainsCommand:
    """What of a model will train, at which rate and decay, and why not the rest? Nothing is trained.

    Takes the flags of finetune.py, and tells what that would train; without any, what transformers.Trainer would.
    """

    model: tyro.conf.OmitArgPrefixes[Checkpoint]
    training: tyro.conf.OmitArgPrefixes[TrainingConfig] = field(default_factory=TrainingConfig)
    data: tyro.conf.OmitArgPrefixes[DataConfig] = field(default_factory=DataConfig)

    def run(self) -> int:
        """Print what would train; the exit code."""
        from toolkit.pipeline import plan, plan_of_trainer
        from toolkit.reporting.run_screen import print_components

        parts = (self.model, self.training, self.data)
        values = {
            config_field.name: getattr(part, config_field.name) for part in parts for config_field in fields(part)
        }
        config = RunConfig(**values | {"freeze": self.model.freeze or "none"})
        is_plain = self.model.freeze is None and config == RunConfig(model=config.model)
        print_components(*(plan_of_trainer(config.model) if is_plain else plan(config)))
        if is_plain:
            show("What finetune.py would train: add its flags, such as --freeze none.", is_result=False)
        return 0


@dataclass(frozen=True, slots=True)
class StudyCommand:
    """Run a study (conditions x tasks x seeds) and write its report; runs that are finished are skipped."""

    file: tyro.conf.Positional[Path]
    """Python file that defines STUDY = toolkit.Study(...)."""
    out: Path | None = None
    """Folder to write the report into; None: reports/ and the name of the file without .py."""
    output_dir: Path = Path("runs")
    """Folder in which run directories are made and looked for."""
    dry_run: bool = False
    """Print the runs and the smallest difference that they could show; run nothing."""
    limit: int | None = None
    """Stop after this many runs; the same command continues later. None: no limit."""
    executor: Literal["local", "slurm"] = "local"
    """Where the runs are executed: on this machine, or by Slurm (extra of the package: slurm)."""
    options: Annotated[ExecutorOptions, tyro.conf.arg(name="")] = field(default_factory=ExecutorOptions)

    def run(self) -> int:
        """Run what is missing of a study, or only print its plan; the exit code."""
        from toolkit.studies.dry_run import dry_run
        from toolkit.studies.plan import left_to_do
        from toolkit.studies.progress import StudyProgress
        from toolkit.studies.runner import EXECUTORS, plan_study, run_study, study_command
        from toolkit.studies.study import load_study

        study, out = load_study(self.file), self.out or Path("reports") / self.file.stem
        # Built first: an extra that is missing shows before anything is planned.
        executor = EXECUTORS[self.executor](self.options)
        if self.dry_run:
            dry_run(study, limit=self.limit, output_dir=self.output_dir)
            return 0
        with StudyProgress() as progress:
            report = run_study(
                study,
                executor=executor,
                limit=self.limit,
                out=out,
                output_dir=self.output_dir,
                on_stage=progress.on_stage,
                on_event=progress.on_event,
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
class VerifyCommand:
    """Check that a run (all hashes) or a report (all hashes and verdicts) is as written; exit code 1 if not."""

    directory: tyro.conf.Positional[Path]
    """Run directory, or folder of a report."""
    more: tyro.conf.Positional[tuple[Path, ...]] = ()
    """More run directories or reports."""
    runs: Path | None = None
    """Folder in which a report's runs are looked for; None: runs/, beside the report, and in runs/ beside it."""

    def run(self) -> int:
        """Print what differs from what was written, of each directory; exit code 1 where anything does."""
        errors = []
        any_differs = False
        for directory in (self.directory, *self.more):
            try:
                lines, differs = self._verify(directory)
            except ValueError as error:  # one that cannot be verified does not keep the others from it
                errors.append(str(error))
                continue
            any_differs |= differs
            head = f"{directory}: " if self.more else ""
            text = "\n".join(line if line.startswith(head) else head + line for line in lines)
            show(text)
        if errors:
            raise ValueError("; ".join(errors))
        return 1 if any_differs else 0

    def _verify(self, directory: Path) -> tuple[list[str], bool]:
        """The lines to show of a run or a report, and whether it differs from what was written."""
        from toolkit.comparison.verify import describe, is_report

        if is_report(directory):
            return describe(directory, self.runs)
        from toolkit.snapshots.store import open_run, verify_run

        faults = {
            f"{directory} is a file, not a folder: pass a run directory or a report's folder": directory.is_file(),
            f"no run directory and no report at {directory}{meant_by(directory)}": not directory.exists(),
        }
        refuse_first(faults)
        try:
            open_run(directory)
        except ValueError:
            raise ValueError(f"{directory} is neither a run directory nor a report with cards") from None
        if self.runs is not None and not self.more:
            raise ValueError(f"{directory} is a run: --runs says where a report's runs are, leave it out")
        differences = verify_run(directory)
        return differences or [f"{directory}: every file is as the manifest says"], bool(differences)


COMMANDS: Mapping[str, type] = {
    "report": ReportCommand,
    "drift": DriftCommand,
    **{name: kind for question in load_questions() for name, kind in question.load_commands().items()},
    "trains": TrainsCommand,
    "study": StudyCommand,
    "verify": VerifyCommand,
}
