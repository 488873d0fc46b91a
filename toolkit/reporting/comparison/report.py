"""Finished runs in, a report folder out: index.html, report.md, cards.json, evidence, figures and tables."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from toolkit.comparison.arms import Group
from toolkit.comparison.card import Card, save_cards
from toolkit.comparison.cards import make_cards
from toolkit.comparison.evidence import Evidence, check_evidence, read_evidence, save_evidence
from toolkit.comparison.measure import measure
from toolkit.comparison.report_data import ReportData
from toolkit.progress import say, shows_progress
from toolkit.reporting.comparison.again import commands_of
from toolkit.reporting.comparison.drift_sections import exposure_block
from toolkit.reporting.comparison.drift_topics import drift_topics
from toolkit.reporting.comparison.find import find_runs
from toolkit.reporting.comparison.run_sections import (
    data_section,
    definitions_section,
    run_section,
    versions_section,
)
from toolkit.reporting.comparison.study_sections import study_sections
from toolkit.reporting.comparison.written_tables import report_tables, write_tables
from toolkit.reporting.folder import check_out, publish, report_folder
from toolkit.reporting.page import CodeBlock, FoldBlock, Page, Section, TextBlock, folds
from toolkit.reporting.render_html import start_library
from toolkit.reporting.topics.claims import claims_block, decided, described, limits_section
from toolkit.reporting.topics.first_screen import answers_of, compared_of, picture_of, tiles_of
from toolkit.reporting.topics.words import words_section
from toolkit.snapshots.store import Run

Progress = Callable[[str], None]


@shows_progress("opening runs")
def write_report(
    runs: Sequence[Run | str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    question: str | None = None,
    expected: str | None = None,
    labels: Mapping[str, str] | None = None,
    tasks: Mapping[str, str] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    margin_points: float = 1.0,
    command: str | None = None,
    tuning: pd.DataFrame | None = None,
    on_progress: Progress = say,
) -> Path:
    """Compare runs and write a report into ``out``; the path of its report.md, beside which index.html lies.

    Runs of one model and task are compared with each other; other models and tasks get parts of their own. ``labels``
    (run directory name to arm), ``pairs`` and ``margin_points`` are those of :func:`toolkit.compare`; ``tasks`` is run
    directory name to what its task is called, by default what its data are called; ``question`` stands under the title,
    ``expected`` is what was expected before the runs;
    ``command`` is what makes runs and report again, if that is not ``report`` itself; ``tuning`` is what a study tried
    and chose. What a glob brings along (an unfinished run, a folder that is none) is left out, and the report says so;
    so is a pair that names an arm of which every run diverged. Files of an earlier report in ``out`` are replaced or
    removed, others stay.
    ValueError when no run is left, as of :func:`toolkit.compare`, and, before anything is computed, where no report can
    go to ``out``: a file, a run directory, a folder that holds anything but no earlier report, or one in which a file
    of that report has changed since.
    """
    out = check_out(out)
    start_library()
    sources = find_runs(runs).note_lost(labels, tasks)
    if pairs is not None:
        pairs = [pair for pair in pairs if not sources.lost.intersection(pair)]
    evidence = measure(
        sources.runs,
        labels,
        pairs=pairs,
        margin_points=margin_points,
        tasks=tasks,
        tuning=tuning,
        words={"title": title, "question": question, "expected": expected, "left_out": sources.left_out},
        on_progress=on_progress,
    )
    if command is None:
        known = {"title": title, "question": question, "margin-points": None if margin_points == 1 else margin_points}
        command = commands_of(runs, evidence.groups, out, known, is_arranged=bool(labels or pairs or tasks))
    evidence = replace(evidence, page={**evidence.page, "command": command})
    return publish_evidence(evidence, out, on_progress)


def report_from(folder: str | Path, out: str | Path | None = None, *, on_progress: Progress = lambda _: None) -> Path:
    """Make a report again from the evidence of ``folder`` alone, by today's rules; the path of its report.md.

    Into ``out``, or in the place of the report itself. What the evidence of an earlier version did not keep is left out
    or named. ValueError where the evidence is not whole, or not as it was written, and as :func:`write_report` where no
    report can go to ``out``.
    """
    out = check_out(folder if out is None else out)
    check_evidence(folder)
    return publish_evidence(read_evidence(folder), out, on_progress)


def publish_evidence(evidence: Evidence, out: Path, on_progress: Progress = lambda _: None) -> Path:
    """Everything that follows from evidence: tables, cards and page, in ``out``; the path of report.md."""
    with report_folder(out) as folder:
        data = ReportData(save_evidence(evidence, folder), on_progress=on_progress)
        cards = make_cards(data)
        save_cards(cards, folder, data.evidence.hashes)
        on_progress("drawing figures")
        page = make_page(data, cards)
        on_progress("writing the pages")
        _write(folder, page, data, cards)
    return out / "report.md"


def _write(out: Path, page: Page, data: ReportData, cards: Sequence[Card]) -> None:
    write_tables(out / "tables", report_tables(data, cards), page.title)
    tasks = {name for group in data.groups for name in (group.title, group.runs[0].task)}
    publish(page, out, tasks)


def _file_names(groups: Sequence[Group]) -> list[str]:
    """What the file names of each group's figures begin with: nothing for one group, else its number and title."""
    if len(groups) == 1:
        return [""]
    slugs = (re.sub(r"[^a-z0-9]+", "-", group.title.lower()).strip("-")[:60] for group in groups)
    return [f"{i}-{slug}_" for i, slug in enumerate(slugs, start=1)]


def make_page(data: ReportData, cards: Sequence[Card]) -> Page:
    """All that a report says, for report.md and index.html alike."""
    title = data.evidence.page.get("title")
    question = data.evidence.page.get("question")
    return Page(
        title=title if title is not None else "Embedding drift: " + ", ".join(group.title for group in data.groups),
        question=question or "What moves when the model is fine-tuned, and does it matter for its score?",
        lead=compared_of(data),
        tiles=tiles_of(data),
        answers=answers_of(data),
        picture=picture_of(data),
        sections=tuple(_sections(data, cards)),
    )


def _sections(data: ReportData, cards: Sequence[Card]) -> list[Section]:
    """Every part below the first screen, in the order in which a reader asks: what moved, why, whether it matters."""
    study = {section.id: section for section in study_sections(data)}
    moved = {s.id: s for s in drift_topics(data.details, _file_names(data.groups), described(cards))}
    commands, expected = (data.evidence.page.get(name) for name in ("command", "expected"))
    repeat = (CodeBlock(text=commands) if commands else TextBlock(text="Which command made it was not kept."),)
    scores, comparison = study["scores"], study.get("comparison")
    # One task is one point: beside its score there is no relation to be seen.
    main = [n for n in ("shuffled-labels", "drift-and-score", "data-efficiency") if n in study]
    main = [name for name in main if name != "drift-and-score" or len(data.groups) > 1]
    rest = [name for name in ("drift-and-score", "cost", "tuning") if name in study and name not in main]
    words = words_section(data.words)
    return [
        *([words] if words else []),
        replace(scores, blocks=(*scores.blocks, folded(moved["training"]))),
        moved["drift"],
        *([_why(data, moved)] if "word-rows" in moved else []),
        *(study[name] for name in main),
        Section(
            id="sure",
            title="How sure this is",
            lead=f"Expected before the runs: {expected}" if expected else SURE,
            blocks=(
                claims_block(decided(cards), "Questions with an answer"),
                *((folded(comparison),) if comparison else ()),
                *(folded(study[name]) for name in rest),
            ),
        ),
        limits_section(data, cards),
        Section(id="again", title="How to repeat it", lead=REPEAT, blocks=repeat),
        Section(
            id="details",
            title="Runs, data, versions, definitions",
            lead=ABOUT,
            blocks=tuple(
                folded(section)
                for section in (run_section(data), data_section(data), versions_section(data), definitions_section())
            ),
        ),
    ]


def _why(data: ReportData, moved: Mapping[str, Section]) -> Section:
    blocks = folds([tables.group.title for tables in data.details], [[exposure_block(t)] for t in data.details])
    parts = (folded(moved[name]) for name in ("word-rows", "positions", "segments", "tokens"))
    return Section(id="why", title="Why rows moved: what training exposed", lead=EXPOSED, blocks=(*blocks, *parts))


EXPOSED = (
    "A row that no batch held has no gradient, so that only weight decay can move it: where replaying the logged decay "
    "leaves nothing, decay is the whole cause."
)
SURE = "The questions that these runs decide, then every comparison with its tests."
REPEAT = "python -m toolkit verify recomputes every answer of this report from its own evidence."
ABOUT = (
    "This report is about a model that changed in training, not about data that changed. Each run kept its embedding "
    "parameters before training (epoch 0) and after every epoch; drift is how far they are from epoch 0. A condition "
    "is a set of runs that differ in nothing but the seed."
)


def folded(section: Section) -> FoldBlock:
    """A section as a part of another one, closed."""
    lead = (TextBlock(text=section.lead),) if section.lead else ()
    return FoldBlock(title=section.title, blocks=(*lead, *section.blocks))
