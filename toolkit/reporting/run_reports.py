"""Reports of one run, of checkpoints in order, and of a position table."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from toolkit.analysis.resemblance import NUM_DRAWS
from toolkit.naming import shown_command
from toolkit.progress import reporting_progress
from toolkit.reporting import render_latex as latex
from toolkit.reporting.cells import Column
from toolkit.reporting.folder import check_out, publish, report_folder, write_csvs, write_page
from toolkit.reporting.page import Block, NoteBlock, Page, Section, TableBlock, rows_block, shown, stated
from toolkit.reporting.render_terminal import print_page
from toolkit.reporting.sources import Computed, Makers, Opened, lines_of, open_sources, refused
from toolkit.reporting.topics import causes, changes, inferred, new_tokens, positions, space, step_sizes
from toolkit.reporting.topics.position_tables import PositionTables, brief_of, collect_positions
from toolkit.reporting.topics.words import words_section
from toolkit.snapshots import files
from toolkit.snapshots.store import Source


def write_position_report(
    source: Source,
    out: str | Path,
    *,
    title: str | None = None,
    default_length: int | None = None,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
    command: str | None = None,
) -> Path:
    """Write index.html, report.md, figures/ and tables/ on the last epoch's positions; the path of report.md.

    ``default_length``: the tokens that the model reads by default, when known; rows beyond it are named inherited.
    ``command`` is shown as what makes the report again. ValueError when the model has no position table,
    and as :func:`toolkit.write_report` where no report can go to ``out``.
    """
    if default_length is not None and default_length < 1:
        raise ValueError(f"the default length is a number of tokens, at least 1; got {default_length}")
    check_out(out)
    tables = collect_positions(source, default_length=default_length, seed=seed, num_draws=num_draws)
    return write_page(position_page(tables, title=title, command=command or ""), out, csv_tables(tables))


def show_positions(
    source: Source,
    out: str | Path | None = None,
    *,
    title: str | None = None,
    default_length: int | None = None,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
    command: str | None = None,
) -> Path | None:
    """Print the verdicts, the waves, every statistic beside its references, and the rows that stand out.

    With ``out`` all is measured once and written too, as :func:`write_position_report` does.
    """
    is_brief = out is None
    tables = collect_positions(source, default_length=default_length, seed=seed, num_draws=num_draws, is_brief=is_brief)
    brief = brief_of(tables)
    print_page(_page(brief, positions.sections(brief, {})))
    if out is None:
        return None
    return write_page(position_page(tables, title=title, command=command or ""), out, csv_tables(tables))


def position_page(tables: PositionTables, *, title: str | None = None, command: str = "") -> Page:
    """The page of the computed tables: first the verdicts, then what they rest on."""
    drawn = positions.charts(tables)
    first = next((name for name in ("resemblance", "cosine_by_lag", "norms_and_steps") if name in drawn), "")
    rest = {name: chart for name, chart in drawn.items() if name != first}
    page = _page(tables, positions.sections(tables, rest), title, command)
    (picture,) = positions.chart_block(drawn, first)
    return Page(**{**vars(page), "picture": picture, "footer": _origin(tables)})


def _page(tables: PositionTables, sections: tuple[Section, ...], title: str | None = None, command: str = "") -> Page:
    name = tables.snapshot.name or f"epoch {tables.snapshot.epoch:g}"
    return Page(
        title=title if title is not None else f"Learned positions: {name}",
        question="Does the learned position table resemble sine and cosine?",
        tiles=positions.tiles(tables),
        tiles_show="answer",
        answers=stated(positions.answers(tables)),
        sections=sections,
        commands=command,
    )


def csv_tables(tables: PositionTables) -> dict[str, pd.DataFrame]:
    """File name to table."""
    return {
        "position_statistics": tables.statistics,
        "waves": tables.waves,
        "cosine_by_lag": tables.by_lag,
        "norms_and_steps": tables.lengths,
        "standing_out": tables.outliers,
        "dct_spectrum": tables.spectra,
        "control_values": positions.control_values(tables.verdicts),
        "change": tables.change,
        "segments": tables.segments,
    }


def _origin(tables: PositionTables) -> str:
    from importlib.metadata import version

    digest = files.sha256_of_array(tables.snapshot.tensors["position_embeddings"])
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
    return f"sha256 of the position table (dtype, shape and values): {digest}. Computed with {versions}."


MAKERS: Sequence[Callable[[Opened], Makers]] = (
    changes.makers,
    inferred.makers,
    new_tokens.makers,
    causes.makers,
    step_sizes.makers,
    space.makers,
)
"""What the report computes."""
SECTIONS: Sequence[Callable[[Computed], Section]] = (
    changes.changes_section,
    inferred.section,
    new_tokens.section,
    changes.rows_section,
    causes.section,
    step_sizes.section,
    space.gauge_section,
    space.neighbours_section,
    space.space_section,
)
"""What it is about, in the order of the page."""

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


def show_drift(places: Sequence[str | Path], out: str | Path | None = None, *, title: str | None = None) -> Path | None:
    """Print what kind of change each embedding parameter underwent; with ``out``, the report too, and its path.

    The arguments are those of :func:`write_drift_report`.
    """
    if out is not None:
        check_out(out)
    opened = open_sources(places, at_least=2)
    computed = Computed(opened).add(
        {"changes": changes.makers(opened)["changes"], **inferred.makers(opened), **new_tokens.makers(opened)}
    )
    short = Page(
        title=title if title is not None else opened.title,
        tiles=changes.tiles(computed.frames["changes"]),
        tiles_show="relative drift",
        answers=stated(filter(None, [inferred.answer(computed)])),
        sections=(
            changes.changes_section(computed),
            *_with_blocks(inferred.section(computed), new_tokens.section(computed)),
            *_notes(opened),
        ),
    )
    print_page(short, has_charts=out is not None)
    return None if out is None else _write(computed, places, Path(out), title)


def write_drift_report(places: Sequence[str | Path], out: str | Path, *, title: str | None = None) -> Path:
    """Write index.html, report.md, figures/ and tables/ (CSV, and one for LaTeX) into ``out``; the path of report.md.

    ``places`` are checkpoints in order (what :func:`toolkit.import_checkpoints` takes, and ``minilm``), or one run
    directory followed by runs of other seeds. ValueError as :func:`open_sources`, and as
    :func:`toolkit.write_report` where no report can go to ``out``.
    """
    check_out(out)
    return _write(Computed(open_sources(places, at_least=2)), places, Path(out), title)


def _write(computed: Computed, places: Sequence[str | Path], out: Path, title: str | None) -> Path:
    with report_folder(out) as folder:
        with reporting_progress() as hear:
            for makers in MAKERS:
                computed.add(makers(computed.opened), lambda name: hear(f"computing {name.replace('_', ' ')}"))
            hear("drawing figures")
            page = drift_page(computed, title=title, command=shown_command("drift", places, out, title))
            hear("writing the pages")
            publish(page, folder)
        write_csvs(folder / "tables", computed.frames)
        compact = shown(compact_table(computed))
        files.write_text(folder / "tables" / "drift.tex", latex.table(compact, "drift"))
    return out / "report.md"


def drift_page(computed: Computed, *, title: str | None = None, command: str = "") -> Page:
    """The page of the computed tables: first how far each parameter moved, then topic by topic."""
    opened = computed.opened
    sections = _with_blocks(*(section(computed) for section in SECTIONS))
    if words := words_section([(opened.title, opened.trajectory)]):
        sections.insert(1, words)
    answers = [changes.farthest(computed), causes.against_noise(computed), causes.unseen_decay(computed)]
    answers.append(inferred.answer(computed))
    said = [answer for answer in answers if answer] or ["No embedding parameter moved."]
    if len(said) < 3 and (output := space.output_change(computed)):
        said.append(output)
    return Page(
        title=title if title is not None else f"Embedding drift: {opened.title}",
        question="How far did each embedding parameter move, which rows, and why?",
        tiles=changes.tiles(computed.frames["changes"]),
        tiles_show="relative drift",
        answers=stated(said),
        picture=changes.first_picture(computed),
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


def _with_blocks(*sections: Section) -> list[Section]:
    return [section for section in sections if section.blocks]


def compact_table(computed: Computed) -> TableBlock:
    """Number of rows and median drift of each stratum of each table, for a paper."""
    columns: Mapping[str, Column] = {
        "parameter": Column(label="parameter"),
        "stratum": Column(label="rows"),
        "num_rows": Column(label="number"),
        "norm": Column(label="median ‖Δ‖"),
        "percent": Column(label="median relative drift", unit="%"),
    }
    strata = changes.strata_table(computed)
    if len(strata):
        strata = strata.assign(percent=100 * strata["relative"])
    whole = pd.DataFrame()
    if "drift" in computed.frames:
        whole = lines_of(changes.whole_lines(computed.frames["drift"]), epoch=computed.epoch)
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
