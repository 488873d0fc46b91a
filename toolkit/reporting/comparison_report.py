"""The report that compares finished runs: its page, tables, cards and evidence."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from toolkit.comparison.cards import make_cards
from toolkit.comparison.conditions import Group
from toolkit.comparison.evidence import Evidence, check_evidence, making, read_evidence, save_evidence
from toolkit.comparison.measure import measure
from toolkit.comparison.parameter_noise import drift_table_of_groups
from toolkit.comparison.report_data import ReportData, strata_table
from toolkit.comparison.verdicts import REFUSALS, Card, save_cards
from toolkit.naming import command_path, command_place
from toolkit.progress import say, shows_progress
from toolkit.reporting import render_latex as latex
from toolkit.reporting.cells import Column, interval, text_of
from toolkit.reporting.folder import check_out, publish, report_folder
from toolkit.reporting.page import (
    CodeBlock,
    FoldBlock,
    Page,
    Report,
    Section,
    TableBlock,
    TextBlock,
    folds,
    shown,
    table_block,
)
from toolkit.reporting.render_html import start_library
from toolkit.reporting.render_latex import export_table
from toolkit.reporting.sources import find_runs
from toolkit.reporting.topics.caveats import claims_block, covered, decided, described, limits_section, verdicts_frame
from toolkit.reporting.topics.comparison import shown_comparison
from toolkit.reporting.topics.drift import ADAPTED, EXPOSED, drift_topics, exposure_block, words_lead
from toolkit.reporting.topics.drift_and_score import COST
from toolkit.reporting.topics.first_screen import answers_of, compared_of, picture_of, tiles_of
from toolkit.reporting.topics.new_tokens import cards_section
from toolkit.reporting.topics.recordings import notes_answer
from toolkit.reporting.topics.runs import (
    MANY_RUNS,
    data_section,
    definitions_section,
    run_section,
    runs_frame,
    study_sections,
    versions_section,
)
from toolkit.reporting.topics.scores import SUMMARY
from toolkit.reporting.topics.words import words_section
from toolkit.schema import columns_of
from toolkit.snapshots import files
from toolkit.snapshots.csv_tables import csv_of
from toolkit.snapshots.store import Run


def commands_of(
    runs: Sequence[Run | str | Path],
    groups: Sequence[Group],
    out: Path,
    settings: Mapping[str, object],
    *,
    is_arranged: bool,
) -> str:
    """The commands that make the runs and the report, below a line that says where; without absolute paths.

    ``is_arranged``: conditions or pairs were named in Python, for which there is no flag.
    """
    commands = [run.command for group in groups for run in group.runs if run.command]
    if len(commands) > MANY_RUNS:
        commands = [f"# the {len(commands)} commands of the runs are in tables/runs.csv"]
    if is_arranged:
        commands.append("# conditions or pairs were named in Python (toolkit.write_report); this command names its own")
    arguments = ["--out", command_path(out)]
    for name, value in settings.items():
        arguments += [f"--{name}", str(value)] if value is not None else []
    paths = [run.path if isinstance(run, Run) else Path(run) for run in runs]
    report = f"python -m toolkit report {' '.join(_shell_words(paths))} {shlex.join(arguments)}"
    return "\n".join([command_place(), *commands, report])


def _shell_words(paths: Sequence[Path]) -> list[str]:
    """Run directories as words for a shell; many as a pattern, where they are all that their folder holds."""
    parents = {path.resolve().parent for path in paths}
    if len(paths) > MANY_RUNS and len(parents) == 1:
        (parent,) = parents
        if [path.resolve() for path in paths] == sorted(parent.glob("[!.]*")):  # as a shell finds them
            return [f"{shlex.quote(command_path(parent))}/*"]
    return [shlex.quote(command_path(path)) for path in paths]


DRIFT_CAPTION = "Drift of the embedding parameters since the first snapshot, means ± standard deviations over seeds"
MOST_CSV_LINES = 20_000
"""Longer tables are Parquet only: as text they would be megabytes that nobody reads."""

PAPER_TABLES: Mapping[str, tuple[str, str]] = {
    "comparison": (
        "Differences between conditions on the same items, paired by seed",
        "group pair split difference interval verdict detectable_gap_points margin_points num_seeds num_items score",
    ),
    "tests": (
        "Tests of the differences between conditions",
        "group pair split p q sign_flip_p mcnemar noise_floor_points num_seeds score",
    ),
    "summary": ("Scores at the last epoch over seeds", f"group {SUMMARY}"),
    "cost": ("Cost beside score, means over seeds", f"group {COST}"),
    "association": (
        "Rank correlation over tasks of drift, as a multiple of its noise, with what it gained",
        "model base parameter num_tasks spearman p q reason",
    ),
    "tuning": ("Settings tried, with the score on the split held out of train, and those chosen", ""),
    "verdicts": ("Questions and answers", "question answer value unit interval"),
}
"""Tables that are also written as LaTeX: caption, and the columns that fit on a page; all where none are named."""


def report_tables(data: ReportData, cards: Sequence[Card]) -> dict[str, pd.DataFrame]:
    """File name to table, all groups together."""
    all_tables = {
        "verdicts": verdicts_frame(cards),
        "comparison": data.comparison,
        "comparison_by_seed": data.seeds,
        "summary": data.summary,
        "cost": data.cost,
        "drift_and_score": data.joined,
        "association": data.association,
        "shuffled_labels": data.labels,
        "floors": data.floors,
        "near_duplicates": data.duplicates,
        "tuning": data.tuning if data.tuning is not None else pd.DataFrame(),
        "runs": runs_frame(data.groups),
        "last_scores": data.scores,
        "scores": _joined([tables.scores for tables in data.details]),
        "baselines": _joined([tables.baselines for tables in data.details]),
        "drift": _joined([tables.drift for tables in data.details]),
        "drift_compact": drift_table_of_groups([tables.group for tables in data.details], data.evidence.drift),
        "strata": _joined([strata_table(tables.drift) for tables in data.details]),
        "positions": _joined([tables.positions for tables in data.details]),
        "tokens": _joined([tables.tokens for tables in data.details]),
    }
    return {name: table for name, table in all_tables.items() if len(table)}


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables of all groups one below the other; those without lines, whose columns may be other ones, left out."""
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else frames[0]


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame], title: str) -> None:
    """Write every table as Parquet, as CSV unless it is very long, and as LaTeX where PAPER_TABLES has it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if len(table) <= MOST_CSV_LINES:
            files.write_text(folder / f"{name}.csv", csv_of(table))
        files.write_with(folder / f"{name}.parquet", partial(_write_parquet, table))
    latex_tables = paper_tables(tables)
    if "drift_compact" in tables:
        latex_tables["drift_compact"] = export_table(
            tables["drift_compact"], caption=DRIFT_CAPTION, label="drift-compact"
        )
    for name, text in latex_tables.items():
        files.write_text(folder / f"{name}.tex", text)
    files.write_text(folder / "tables.tex", latex.document(latex_tables, title))


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet, a column of numbers and words as texts."""
    # One type per column: Parquet has no column of numbers and words, as a tuning table may have.
    mixed = [column for column in table if table[column].dtype == object and table[column].map(type).nunique() > 1]
    table.astype(dict.fromkeys(mixed, str)).to_parquet(path, index=False, compression="zstd")


def paper_tables(tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Name to LaTeX of the tables that a paper prints."""
    texts = {}
    for name, (caption, columns) in PAPER_TABLES.items():
        source = "comparison" if name == "tests" else name
        if source not in tables:
            continue
        table = tables[source]
        headings = {}
        if source == "comparison":
            no_seeds = pd.DataFrame(columns=columns_of("compare_seeds"))
            table = shown_comparison(table, tables.get("comparison_by_seed", no_seeds))
        elif name == "verdicts":
            table = _printed_verdicts(table)
            headings = {"interval": Column(label="interval")}  # each in its own unit
        units = covered(table) if name == "comparison" else ""
        caption += f", with intervals over {units}" if units else ""
        present = [column for column in columns.split() or map(str, table) if column in table]
        shared_columns, caption_end = latex.shared(table, [column for column in SHARED if column in present])
        printed_columns = [column for column in present if column not in shared_columns]
        block = table_block(table, printed_columns, caption + caption_end, **headings)
        if isinstance(block, TableBlock):
            texts[name] = latex.booktabs(shown(block), name.replace("_", "-"))
    return texts


def _printed_verdicts(verdicts: pd.DataFrame) -> pd.DataFrame:
    """The table of verdicts with its numbers as texts; none of a claim that is refused, whose number is none of it."""
    is_known = ~verdicts["verdict"].isin(REFUSALS)
    texts = pd.DataFrame(
        {
            "value": list(map(text_of, verdicts["value"])),
            "unit": verdicts["unit"].tolist(),
            "interval": list(map(interval, verdicts["low"], verdicts["high"])),
        },
        index=verdicts.index,
    )
    return verdicts.assign(**{name: texts[name].where(is_known, "") for name in texts})


SHARED = ("group", "score", "num_seeds", "num_train_examples", "margin_points")
"""Columns that go into the caption where all lines have the same value: a page is narrow."""


@shows_progress("opening runs")
def write_report(
    runs: Sequence[Run | str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    question: str | None = None,
    expected: str | None = None,
    sources: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    tasks: Mapping[str, str] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    margin_points: float = 1.0,
    score: str | None = None,
    command: str | None = None,
    tuning: pd.DataFrame | None = None,
    base: str | Path | None = None,
) -> Report:
    """Compare runs and write a report into ``out``: index.html, report.md, tables/ and figures/; what it answers.

    Runs of one model and task are compared with each other; other models and tasks get parts of their own. ``labels``
    (run directory name to condition), ``pairs``, ``margin_points`` and ``score`` are those of :func:`toolkit.compare`;
    ``tasks`` is run directory name to what its task is called, by default what its data are called; ``question`` stands
    under the title, ``expected`` is what was expected before the runs; ``sources`` is data set to where it comes from
    and its licence; ``command`` is what makes runs and report again, if that is not ``report`` itself; ``tuning`` is
    what a study tried and chose; ``base`` is the checkpoint from which training in a Trainer's output folders started.
    What a glob brings along (an unfinished run, a folder that is none) is left out, and
    the report says so; so is a pair that names a condition of which every run diverged. Files of an earlier report in
    ``out`` are replaced or removed, others stay.
    ValueError when no run is left, as of :func:`toolkit.compare`, and, before anything is computed, where no report can
    go to ``out``: a file, a run directory, a folder that holds anything but no earlier report, or one in which a file
    of that report has changed since.
    """
    out = check_out(out)
    start_library()
    opened = find_runs(runs, base).note_lost(labels, tasks)
    if pairs is not None:
        pairs = [pair for pair in pairs if not opened.lost.intersection(pair)]
    evidence = measure(
        opened.runs,
        labels,
        pairs=pairs,
        margin_points=margin_points,
        score=score,
        tasks=tasks,
        tuning=tuning,
        words={
            "title": title,
            "question": question,
            "expected": expected,
            "sources": sources,
            "left_out": opened.left_out,
        },
    )
    if command is None:
        margin = None if margin_points == 1 else margin_points
        options: dict[str, object] = {"title": title, "question": question, "margin-points": margin, "score": score}
        options["base"] = command_path(base) if base is not None and Path(base).exists() else base
        command = commands_of(runs, evidence.groups, out, options, is_arranged=bool(labels or pairs or tasks))
    evidence = replace(evidence, page={**evidence.page, "command": command})
    return publish_evidence(evidence, out)


@shows_progress("reading evidence")
def report_from(folder: str | Path, out: str | Path | None = None) -> Report:
    """Make a report again from the evidence of ``folder`` alone, by today's rules; what it answers.

    Into ``out``, or in the place of the report itself. What the evidence did not keep is left out or named. ValueError
    where the evidence is not whole, or not as it was written, and as :func:`write_report` where no report can go to
    ``out``.
    """
    out = check_out(folder if out is None else out)
    check_evidence(folder)
    with making(folder):
        return publish_evidence(read_evidence(folder), out)


def publish_evidence(evidence: Evidence, out: Path) -> Report:
    """Everything that follows from evidence: tables, cards and page, in ``out``."""
    with report_folder(out) as folder:
        data = ReportData(save_evidence(evidence, folder))
        cards = make_cards(data)
        save_cards(cards, folder, data.evidence.hashes)
        say("drawing figures")
        page = make_page(data, cards)
        say("writing the pages")
        write_tables(folder / "tables", report_tables(data, cards), page.title)
        publish(page, folder, {name for group in data.groups for name in (group.title, group.runs[0].task)})
    return Report(out / "report.md", page.answers)


def _figure_prefixes(groups: Sequence[Group]) -> list[str]:
    """What the file names of each group's figures begin with: nothing for one group, else its number and title."""
    if len(groups) == 1:
        return [""]
    slugs = (re.sub(r"[^a-z0-9]+", "-", group.title.lower()).strip("-")[:60] for group in groups)
    return [f"{i}-{slug}_" for i, slug in enumerate(slugs, start=1)]


def make_page(data: ReportData, cards: Sequence[Card]) -> Page:
    """The page of a report, for report.md and index.html alike."""
    title = data.evidence.page.get("title")
    question = data.evidence.page.get("question")
    return Page(
        title=title if title is not None else "Embedding drift: " + ", ".join(group.title for group in data.groups),
        question=question or "What moves when the model is fine-tuned, and does it matter for its score?",
        lead=compared_of(data),
        tiles=tiles_of(data),
        answers=(*answers_of(data), *notes_answer(data)),
        picture=picture_of(data),
        sections=tuple(_sections(data, cards)),
    )


def _sections(data: ReportData, cards: Sequence[Card]) -> list[Section]:
    """Every part below the first screen, in the order in which a reader asks: what moved, why, whether it matters."""
    study_parts = {section.id: section for section in study_sections(data)}
    topics = drift_topics(data.details, _figure_prefixes(data.groups), described(cards))
    drift_parts = {section.id: section for section in topics}
    scores = study_parts["scores"]
    commands = data.evidence.page.get("command")
    repeat = CodeBlock(text=commands) if commands else TextBlock(text="Which command made it was not kept.")
    # One task is one point: beside its score there is no relation to be seen.
    main_ids = ["shuffled-labels", *(["drift-and-score"] if len(data.groups) > 1 else [])]
    sections = [
        words_section(data.words),
        replace(scores, blocks=(*scores.blocks, folded(drift_parts["training"]))),
        drift_parts["drift"],
        cards_section(data, cards),
        _why_section(data, drift_parts),
        *(study_parts.get(id) for id in main_ids),
        _sureness_section(
            data, cards, {id: part for id, part in study_parts.items() if id not in ("scores", *main_ids)}
        ),
        limits_section(data, cards),
        Section(id="again", title="How to repeat it", lead=REPEAT, blocks=(repeat,)),
        _details_section(data),
    ]
    return [section for section in sections if section is not None]


def _why_section(data: ReportData, drift_parts: Mapping[str, Section]) -> Section | None:
    """What training exposed, then how rows moved by it; None where nothing of single rows was kept."""
    row_folds = [folded(drift_parts[id]) for id in ("word-rows", "positions", "segments") if id in drift_parts]
    if not row_folds:
        return None
    titles = [tables.group.title for tables in data.details]
    exposure = folds(titles, [[exposure_block(tables)] for tables in data.details])
    is_adapted = any(condition.adapts_embeddings for group in data.groups for condition in group.conditions)
    lead = words_lead(EXPOSED, data.groups) + f" {ADAPTED}" * is_adapted
    return Section(id="why", title="Why rows moved: what training exposed", lead=lead, blocks=(*exposure, *row_folds))


def _sureness_section(data: ReportData, cards: Sequence[Card], study_parts: Mapping[str, Section]) -> Section:
    """The claims that are decided, then the comparison and whatever else of a study has no section of its own."""
    expected = data.evidence.page.get("expected")
    claims = claims_block(decided(cards), "Questions with an answer")
    comparison_first = sorted(study_parts, key=lambda id: id != "comparison")
    return Section(
        id="sure",
        title="How sure this is",
        lead=f"Expected before the runs: {expected}" if expected else SURE,
        blocks=(claims, *(folded(study_parts[id]) for id in comparison_first)),
    )


def _details_section(data: ReportData) -> Section:
    """Where the data come from, then runs, data, versions and definitions, a fold each."""
    sources = data.evidence.page.get("sources") or {}
    data_sources = [TextBlock(text=f"Data of {name}: {source}") for name, source in sources.items()]
    sections = (run_section(data), data_section(data), versions_section(data), definitions_section())
    return Section(
        id="details",
        title="Runs, data, versions, definitions",
        lead=ABOUT,
        blocks=(*data_sources, *map(folded, sections)),
    )


SURE = "The questions that these runs decide, then every comparison with its tests."
REPEAT = "python -m toolkit verify recomputes every answer of this report from its own evidence."
ABOUT = (
    "This report is about a model that changed in training, not about data that changed. Each run kept its embedding "
    "parameters at several moments; drift is how far they are from the first of these, which is epoch 0, before "
    "training, unless the first screen says otherwise. A condition is runs that differ in nothing but the seed."
)


def folded(section: Section) -> FoldBlock:
    """A section as a part of another one, closed."""
    lead = (TextBlock(text=section.lead),) if section.lead else ()
    return FoldBlock(title=section.title, blocks=(*lead, *section.blocks))
