"""The page of `drift`, of one run or of checkpoints in order: topics of the core, and what each question brings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from toolkit.naming import shown_command
from toolkit.progress import reporting_progress
from toolkit.questions import load_questions
from toolkit.reporting import render_latex as latex
from toolkit.reporting.cells import Column
from toolkit.reporting.folder import check_out, publish, report_folder, write_csvs
from toolkit.reporting.page import Block, NoteBlock, Page, Section, TableBlock, Tile, rows_block, shown, stated
from toolkit.reporting.render_terminal import print_page
from toolkit.reporting.sources import Computed, DriftPart, Opened, lines_of, open_sources, refused
from toolkit.reporting.topics import causes, movement, new_tokens, step_sizes
from toolkit.reporting.topics.words import words_section
from toolkit.snapshots import files

CORE = {
    "movement": movement.PART,
    "new_tokens": new_tokens.PART,
    "rows": movement.ROWS,
    "causes": causes.PART,
    "step_sizes": step_sizes.PART,
}
ORDER = ("changes", "movement", "exposure", "new_tokens", "rows", "causes", "step_sizes", "space")
"""Of the parts on the page; others come last."""

DEFINITIONS = {
    "row": "One vector of a table: a word, a position or a segment.",
    "drift, Δ": "How far the embedding parameters are from the first snapshot, E⁰: change of a model, not of data.",
    "relative drift": "‖Δ‖ / ‖E⁰‖: the length of the change divided by the length before.",
    "exposure": "The optimizer steps whose texts showed a row, and so gave it a gradient.",
    "null": "What a number would be by chance; each null is named where it is used.",
    "re-initialised": "Independent new values of the same spread: a yardstick of what forgetting all would read.",
    "sign noise": "The same steps and gradient sizes with random signs, through the same optimizer.",
    "gauge": "Freedom that no output shows: offsets moved between tables, LayerNorm, a common scale.",
}


def drift_parts() -> list[DriftPart]:
    """What the page is made of: topics of the core and what each question brings."""
    parts = CORE | {name: part for question in load_questions() for name, part in question.load_drift().items()}
    return [parts[name] for name in sorted(parts, key=lambda name: (*ORDER, name).index(name))]


def open_places(places: Sequence[str | Path], *, at_least: int = 1) -> Opened:
    """As :func:`open_sources`, with what the questions read off the places."""
    opened = open_sources(places, at_least=at_least)
    for part in drift_parts():
        opened = part.read(opened)
    return opened


def show_drift(places: Sequence[str | Path], out: str | Path | None = None, *, title: str | None = None) -> Path | None:
    """Print what kind of change each embedding parameter underwent; with ``out``, the report too, and its path.

    The report, index.html, report.md, figures/ and tables/ (CSV, and one for LaTeX), has all that the topics measure.
    ``places`` are checkpoints in order (what :func:`toolkit.import_checkpoints` takes, and ``minilm``), or one run
    directory followed by runs of other seeds. ValueError as :func:`open_sources`, and as
    :func:`toolkit.write_report` where no report can go to ``out``.
    """
    if out is not None:
        check_out(out)
    opened = open_places(places, at_least=2)
    computed, brief = Computed(opened), [part for part in drift_parts() if part.is_brief]
    for part in brief:
        computed.add(part.makers(opened))
    if not _tiles(computed, brief):  # no question says how far each parameter moved
        brief.insert(0, movement.PART)
        computed.add(movement.makers(opened))
    short = Page(
        title=title if title is not None else opened.title,
        tiles=_tiles(computed, brief),
        tiles_show="relative drift",
        answers=stated([*problems_of(opened), *filter(None, (part.answer(computed) for part in brief))]),
        sections=(*_sections(computed, brief), *_notes(opened)),
    )
    print_page(short, has_charts=out is not None)
    return None if out is None else _write(computed, places, Path(out), title)


def problems_of(opened: Opened) -> Iterator[str]:
    """What was not seen of the runs, or is not as it seems, which stands before any number."""
    yield from (f"{problem[:1].upper()}{problem[1:]}." for problem in opened.problems)
    for run, name in zip(opened.runs, opened.names, strict=True):
        who, manifest = f"{name}: " if len(opened.runs) > 1 else "", run.manifest if run.is_finished else {}
        if taken := manifest.get("begins_after_steps"):
            yield f"{who}drift is since step {taken}, where recording began: the first snapshot had been trained."
        yield from (f"{who}{problem}." for problem in manifest.get("problems", ()))


def _write(computed: Computed, places: Sequence[str | Path], out: Path, title: str | None) -> Path:
    with report_folder(out) as folder:
        with reporting_progress() as hear:
            for part in drift_parts():
                computed.add(part.makers(computed.opened), lambda name: hear(f"computing {name.replace('_', ' ')}"))
            hear("drawing figures")
            page = drift_page(computed, title=title, command=shown_command("drift", places, out, title))
            hear("writing the pages")
            publish(page, folder)
        write_csvs(folder / "tables", computed.frames)
        files.write_text(folder / "tables" / "drift.tex", latex.booktabs(shown(compact_table(computed)), "drift"))
    return out / "report.md"


def drift_page(computed: Computed, *, title: str | None = None, command: str = "") -> Page:
    """The page of the computed tables: first how far each parameter moved, then topic by topic."""
    opened, parts = computed.opened, drift_parts()
    sections = _sections(computed, parts)
    if words := words_section([(opened.title, opened.trajectory)]):
        sections.insert(1, words)
    answers = [movement.farthest(computed), causes.against_noise(computed), causes.unseen_decay(computed)] + [
        part.answer(computed) for part in parts
    ]
    said = [answer for answer in answers if answer] or [movement.none_moved(opened)]
    if len(said) < 3:
        said += [answer for part in parts if (answer := part.spare_answer(computed))]
    return Page(
        title=title if title is not None else f"Embedding drift: {opened.title}",
        question="How far did each embedding parameter move, which rows, and why?",
        tiles=_tiles(computed, parts),
        tiles_show="relative drift",
        answers=stated([*problems_of(opened), *said]),
        picture=movement.first_picture(computed),
        sections=(
            *sections,
            *_notes(opened),
            *_untold(computed),
            Section(
                id="definitions",
                title="Definitions",
                blocks=(rows_block(("word", "meaning"), DEFINITIONS.items(), ""),),
            ),
        ),
        commands=command,
        footer="Every table of this page is a CSV file in tables/; the compact one is drift.tex there, for a paper.",
    )


def _tiles(computed: Computed, parts: Sequence[DriftPart]) -> tuple[Tile, ...]:
    return tuple(tile for part in parts for tile in part.tiles(computed))


def _sections(computed: Computed, parts: Sequence[DriftPart]) -> list[Section]:
    """The sections that have something to show; those of one id become one, under the first's title and lead."""
    joined: dict[str, Section] = {}
    for section in (make(computed) for part in parts for make in part.sections):
        if section.blocks:
            first = joined.get(section.id)
            joined[section.id] = replace(first, blocks=(*first.blocks, *section.blocks)) if first else section
    return list(joined.values())


def compact_table(computed: Computed) -> TableBlock:
    """Number of rows and median drift of each stratum of each table, for a paper."""
    columns: Mapping[str, Column] = {
        "parameter": Column(label="parameter"),
        "stratum": Column(label="rows"),
        "num_rows": Column(label="number"),
        "norm": Column(label="median ‖Δ‖"),
        "percent": Column(label="median relative drift", unit="%"),
    }
    strata = movement.strata_table(computed)
    if len(strata):
        strata = strata.assign(percent=100 * strata["relative"])
    whole = pd.DataFrame()
    if "drift" in computed.frames:
        whole = lines_of(movement.whole_lines(computed.frames["drift"]), epoch=computed.epoch)
        whole = whole.assign(stratum="whole parameter", num_rows="", norm="")
    table = pd.concat([part.astype(object) for part in (whole, strata)]).reindex(columns=list(columns))
    return TableBlock(table=table, caption=f"Embedding drift of {computed.opened.title}.", columns=columns)


def _notes(opened: Opened) -> tuple[Section, ...]:
    half = (
        "Some weights are stored in half precision, where small updates are rounded away: no drift is no verdict there."
    )
    notes = [*opened.notes, *([half] if opened.is_half else [])]
    blocks: tuple[Block, ...] = tuple(NoteBlock(text=note) for note in notes)
    return (Section(id="notes", title="Read with it", blocks=blocks),) if blocks else ()


def _untold(computed: Computed) -> tuple[Section, ...]:
    """What does not apply or was refused, once, with each analysis' own reason."""
    lines = [(name.replace("_", " "), reason) for name, reason in computed.missing.items()]
    lines += refused(computed.frames)
    opened = computed.opened
    if not opened.is_run:
        lines.append(("exposure, causes, sign noise, regression", "they need a run directory"))
    if len(opened.runs) < 2:
        lines.append(("agreement of seeds", "it needs runs of several seeds"))
    if "segments" in computed.frames and computed.frames["segments"].empty:
        lines.append(("segments", "the model has no token_type_embeddings"))
    table = rows_block(("what", "why not"), lines, "")
    return (Section(id="untold", title="What these data cannot tell", blocks=(table,)),) if lines else ()
