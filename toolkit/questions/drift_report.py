"""The page of `drift`, of one run or of checkpoints in order: topics of the core, and what each question brings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from toolkit.naming import select, shown_command
from toolkit.progress import say, show, shows_progress
from toolkit.questions import load_questions
from toolkit.reporting.folder import check_out, publish, report_folder, write_csvs
from toolkit.reporting.page import (
    NOTHING,
    Answer,
    Block,
    NoteBlock,
    Page,
    Section,
    Tile,
    rows_block,
    stated,
    texts_section,
)
from toolkit.reporting.render_terminal import print_page
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened, open_sources, refused
from toolkit.reporting.topics import causes, movement, new_tokens, step_sizes, words
from toolkit.reporting.topics.first_screen import OPEN, OPEN_OF_DATA

CORE = movement.PARTS | {
    "words": words.PART,
    "new-tokens": new_tokens.PART,
    "why": causes.PART,
    "step-sizes": step_sizes.PART,
}
ORDER = ("changes", "words", "kinds", "exposure", "new-tokens", "rows", "why", "step-sizes", "gauge", "neighbours")
"""Of the sections on the page; others come last."""

DEFINITIONS = {
    "row": "One vector of a table: a word, a position or a segment.",
    "drift, Δ": "How far the embedding parameters are from the first snapshot, E⁰: change of a model, not of data.",
    "% of norm": "100 · ‖Δ‖ / ‖E⁰‖: the length of the change in % of the length before.",
    "exposure": "The optimizer steps whose texts showed a row, and so gave it a gradient.",
    "null": "What a number would be by chance; each null is named where it is used.",
    "re-initialised": "Independent new values of the same spread: a yardstick of what forgetting all would read.",
    "sign noise": "The same steps and gradient sizes with random signs, through the same optimizer.",
    "gauge": "Freedom that no output shows: offsets moved between tables, LayerNorm, a common scale.",
}


def drift_parts() -> dict[str, DriftPart]:
    """The sections of the page by name: topics of the core and what each question brings."""
    parts = CORE | {name: part for question in load_questions() for name, part in question.load_drift().items()}
    return {name: parts[name] for name in sorted(parts, key=lambda name: (*ORDER, name).index(name))}


def makers_of(parts: Iterable[DriftPart], opened: Opened) -> Makers:
    """What makes the tables of some sections."""
    return {name: make for part in parts for name, make in part.makers(opened).items()}


def open_places(places: Sequence[str | Path], base: str | None = None, *, at_least: int = 1) -> Opened:
    """As :func:`open_sources`; then each question adds what it reads off the places."""
    opened = open_sources(places, base, at_least=at_least)
    for part in drift_parts().values():
        opened = part.read(opened)
    return opened


def show_drift(
    places: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    base: str | None = None,
    title: str | None = None,
    only: Sequence[str] = (),
) -> Path | None:
    """Print how far each embedding parameter moved, and the words that did; with ``out``, the report, and its path.

    The report, index.html, report.md, figures/ and tables/ (CSV), has all that the topics measure,
    or the sections named by ``only``, which then are what is printed, too. ``places`` are checkpoints in order (what
    :func:`toolkit.import_checkpoints` takes, and ``minilm``), of one training where its ``base`` is given, or one run
    directory followed by runs of other seeds.
    ValueError as :func:`open_sources`, for an unknown section, and as :func:`toolkit.write_report` where no report can
    go to ``out``.
    """
    if out is not None:
        check_out(out)
    parts = select(drift_parts(), only or drift_parts(), "section")
    with shows_progress("opening files"):
        opened = open_places(places, base, at_least=2)
        # Without a report, sections that were asked for by name are all printed.
        brief_parts = [part for part in parts.values() if part.is_brief(opened) or (only and out is None)]
        computed = Computed(opened).add(makers_of([movement.HEAD, *brief_parts], opened))
    screen = Page(
        title=title if title is not None else opened.title,
        tiles=_tiles(computed, brief_parts),
        tiles_show=TILES_SHOW,
        facts_show=FACTS_SHOW,
        answers=_answers(computed, brief_parts),
        sections=(
            *_sections(computed, brief_parts, is_screen=True),
            *_empty_sections(computed, parts, only),
            *_note_sections(opened),
        ),
    )
    print_page(screen, has_charts=out is not None)
    if out is None:
        why_hint = "Why the rows moved: --only why. " if opened.is_run and "why" not in only else ""
        show(f"{why_hint}All of it, as a page: --out FOLDER.", is_result=False)
        return None
    flags = ("--only", ",".join(only)) if only else ()
    shown_places = [*([] if base is None else [base]), *places]
    command = shown_command("drift", shown_places, out, title, *flags)
    return _write(computed, list(parts.values()), Path(out), title, command)


TILES_SHOW = "moved, in % of its norm"
FACTS_SHOW = "of which"
"""What the tiles and the facts below them are, as a page heads them."""


def problems_of(opened: Opened) -> Iterator[str]:
    """Each problem of the runs as a sentence: what was not seen or is not as it seems. They stand before any number."""
    yield from (f"{problem[:1].upper()}{problem[1:]}." for problem in opened.problems)
    for run, name in zip(opened.runs, opened.names, strict=True):
        prefix = f"{name}: " if len(opened.runs) > 1 else ""
        manifest = run.manifest if run.is_finished else {}
        if step := manifest.get("begins_after_steps"):
            yield f"{prefix}drift is since step {step}, where recording began: the first snapshot had been trained."
        yield from (f"{prefix}{problem}." for problem in manifest.get("problems", ()))


def _write(computed: Computed, parts: Sequence[DriftPart], out: Path, title: str | None, command: str) -> Path:
    """Compute the tables of these sections and write the page and the CSV files; the path of report.md."""
    with report_folder(out) as folder, shows_progress("computing tables"):
        computed.add(makers_of(parts, computed.opened))
        say("drawing figures")
        page = drift_page(computed, parts, title=title, command=command)
        say("writing the pages")
        publish(page, folder)
        write_csvs(folder / "tables", computed.frames)
    return out / "report.md"


def drift_page(
    computed: Computed, parts: Sequence[DriftPart] = (), *, title: str | None = None, command: str = ""
) -> Page:
    """The page of the computed tables, all sections or ``parts``: first how far each parameter moved."""
    opened = computed.opened
    parts = parts or list(drift_parts().values())
    return Page(
        title=title if title is not None else f"Embedding drift: {opened.title}",
        question="How far did each embedding parameter move, which rows, and why?",
        tiles=_tiles(computed, parts),
        tiles_show=TILES_SHOW,
        facts_show=FACTS_SHOW,
        answers=_answers(computed, parts),
        picture=movement.first_picture(computed),
        sections=(
            *_sections(computed, parts),
            *_note_sections(opened),
            *_undecided_sections(computed),
            Section(
                id="definitions",
                title="Definitions",
                blocks=(rows_block(("word", "meaning"), DEFINITIONS.items(), ""),),
            ),
        ),
        commands=command,
        footer="Every table of this page is a CSV file in tables/.",
    )


def _tiles(computed: Computed, parts: Sequence[DriftPart]) -> tuple[Tile, ...]:
    return tuple(tile for part in (movement.HEAD, *parts) for tile in part.tiles(computed))


def _answers(computed: Computed, parts: Sequence[DriftPart]) -> tuple[Answer, ...]:
    """The problems of the runs, which stand before any number, the answers of the sections, and what stays open."""
    answers = [part.answer(computed) for part in (movement.HEAD, *parts)]
    return (*stated(problems_of(computed.opened)), *filter(None, answers), _open_answer(computed.opened))


def _open_answer(opened: Opened) -> Answer:
    """The answer that says what these data cannot tell."""
    open_questions = ["Whether this holds for other models or tasks."]
    if not opened.is_run:
        open_questions.append(f"Why rows moved: {NEEDS_RUN}.")
    elif any(causes.could_have_control(run) for run in opened.runs):
        open_questions.append("How much of the movement is learning: no run had shuffled labels.")
    if len(opened.runs) == 1:
        open_questions.append("Whether another seed would move the same rows: this is one run.")
    return Answer(question=OPEN if opened.is_run else OPEN_OF_DATA, text=" ".join(open_questions))


def _sections(computed: Computed, parts: Sequence[DriftPart], *, is_screen: bool = False) -> list[Section]:
    """The sections that have something to show, on a page or in a terminal."""
    makers = [part.on_screen or part.section if is_screen else part.section for part in parts]
    sections = [make(computed) for make in makers]
    return [section for section in sections if section.blocks]


def _empty_sections(computed: Computed, parts: Mapping[str, DriftPart], only: Sequence[str]) -> list[Section]:
    """Why sections that were asked for have nothing to show."""
    texts = []
    tables_tried = computed.frames.keys() | computed.missing.keys()
    for name in only:
        part = parts[name]
        tables = part.makers(computed.opened).keys()
        make_section = part.on_screen or part.section
        if tables <= tables_tried and not make_section(computed).blocks:
            reasons = dict.fromkeys(computed.missing[table] for table in tables if table in computed.missing)
            texts.append(f"{name}: {'; '.join(reasons) or EMPTY.get(name, NOTHING)}")
    return [texts_section("empty", "What has nothing to show", texts)] if texts else []


NEEDS_RUN = "it needs a run directory, which logs every step"
EMPTY = {
    "words": "no word moved, or the model has none",
    "exposure": "it is of checkpoints alone: it infers from the weights what a run records",
    "new-tokens": "no token was added",
    "why": NEEDS_RUN,
    "step-sizes": NEEDS_RUN,
}
"""Why a section may be empty whose tables give no reason."""


def _note_sections(opened: Opened) -> tuple[Section, ...]:
    """The section of what to read the numbers with; none where there is nothing to say."""
    half_note = (
        "Some weights are stored in half precision, where small updates are rounded away: no drift is no verdict there."
    )
    notes = [*opened.notes, *([half_note] if opened.is_half else [])]
    blocks: tuple[Block, ...] = tuple(NoteBlock(text=note) for note in notes)
    return (Section(id="notes", title="Read with it", blocks=blocks),) if blocks else ()


def _undecided_sections(computed: Computed) -> tuple[Section, ...]:
    """The section of what does not apply or was refused, each with its reason; none where there is nothing."""
    rows = [(name.replace("_", " "), reason) for name, reason in computed.missing.items()]
    rows += refused(computed.frames)
    opened = computed.opened
    if not opened.is_run:
        rows.append(("exposure, causes, sign noise", "they need a run directory"))
    if len(opened.runs) < 2:
        rows.append(("agreement of seeds", "it needs runs of several seeds"))
    if "segments" in computed.frames and computed.frames["segments"].empty:
        rows.append(("segments", "the model has no token_type_embeddings"))
    table = rows_block(("what", "why not"), rows, "")
    return (Section(id="untold", title="What these data cannot tell", blocks=(table,)),) if rows else ()
