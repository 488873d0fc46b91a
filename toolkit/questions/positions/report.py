"""The report of a position table, and the summary of it in a terminal."""

from pathlib import Path

import pandas as pd

from toolkit.questions.positions import page as topic
from toolkit.questions.positions.resemblance import NUM_DRAWS
from toolkit.questions.positions.tables import PositionTables, brief_of, collect_positions
from toolkit.reporting.folder import write_page
from toolkit.reporting.page import Page, Section, stated
from toolkit.reporting.render_terminal import print_page
from toolkit.snapshots import files
from toolkit.snapshots.store import Source


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

    With ``out`` all is measured once and written too: index.html, report.md, figures/ and tables/ on the last epoch's
    positions; the path of report.md. ``default_length``: the tokens that the model reads by default, when known; rows
    beyond it are named inherited. ``command`` is shown as what makes the report again. ValueError when the model has
    no position table, and as :func:`toolkit.write_report` where no report can go to ``out``.
    """
    is_brief = out is None
    tables = collect_positions(source, default_length=default_length, seed=seed, num_draws=num_draws, is_brief=is_brief)
    brief = brief_of(tables)
    print_page(_page(brief, topic.sections(brief, {})))
    if out is None:
        return None
    return write_page(position_page(tables, title=title, command=command or ""), out, csv_tables(tables))


def position_page(tables: PositionTables, *, title: str | None = None, command: str = "") -> Page:
    """The page of the computed tables: first the verdicts, then what they rest on."""
    drawn = topic.charts(tables)
    first_chart = next((name for name in ("resemblance", "cosine_by_lag", "norms_and_steps") if name in drawn), "")
    other_charts = {name: chart for name, chart in drawn.items() if name != first_chart}
    page = _page(tables, topic.sections(tables, other_charts), title, command)
    (picture,) = topic.chart_block(drawn, first_chart)
    return Page(**{**vars(page), "picture": picture, "footer": _origin(tables)})


def _page(tables: PositionTables, sections: tuple[Section, ...], title: str | None = None, command: str = "") -> Page:
    """The page of one snapshot's positions around some sections."""
    name = tables.snapshot.name or f"epoch {tables.snapshot.epoch:g}"
    return Page(
        title=title if title is not None else f"Learned positions: {name}",
        question="Does the learned position table resemble sine and cosine?",
        tiles=topic.tiles(tables),
        tiles_show="answer",
        answers=stated(topic.answers(tables)),
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
        "control_values": topic.control_values(tables.verdicts),
        "change": tables.change,
        "segments": tables.segments,
    }


def _origin(tables: PositionTables) -> str:
    """The footer: the hash of the table, and the versions that computed the page."""
    from importlib.metadata import version

    digest = files.sha256_of_array(tables.snapshot.tensors["position_embeddings"])
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
    return f"sha256 of the position table (dtype, shape and values): {digest}. Computed with {versions}."
