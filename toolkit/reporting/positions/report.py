"""A trajectory in, the page on its positions out: report.md, figures as PNG and SVG, tables as CSV; or the terminal."""

from pathlib import Path

import pandas as pd

from toolkit.analysis.positions.position_statistics import STATISTICS
from toolkit.analysis.positions.resemblance import NUM_DRAWS
from toolkit.reporting import markdown
from toolkit.reporting.folder import report_folder, write_csvs, write_page
from toolkit.reporting.images import write_images
from toolkit.reporting.positions.answers import answers, caveats, standing_out
from toolkit.reporting.positions.figures import draw_positions
from toolkit.reporting.positions.tables import PositionTables, collect_positions
from toolkit.snapshots import files
from toolkit.snapshots.store import Source

CAPTIONS = {
    "waves": "The planes in which the table goes round, fastest wave first: both coordinates along the positions, and "
    "the course of all rows shown in the plane. The sinusoid's pairs are such circles, one per pair of columns.",
    "resemblance": "The two statistics that carry a verdict: this table between tables that have the waves, in noise, "
    "and smooth random curves, which have none.",
    "cosine_gram": "Cosine between all pairs of rows.",
    "cosine_by_lag": "Mean cosine of two rows by their distance; grey: 5 to 95 % of the learned pairs.",
    "norms_and_steps": "Norm of every row and distance to the next; circles stand out from their neighbours.",
    "dct_spectrum": "Spectrum along the positions (DCT-II, centred): peaks are waves.",
}


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
    """Write report.md, figures/ and tables/ on the positions of the last epoch into ``out``; the path of report.md.

    ``default_length``: the tokens that the model reads by default, when known; rows beyond it are named inherited.
    ``command`` is shown as what makes the report again. ValueError when the model has no position table,
    and as :func:`toolkit.write_report` where no report can go to ``out``.
    """
    if default_length is not None and default_length < 1:
        raise ValueError(f"the default length is a number of tokens, at least 1; got {default_length}")
    with report_folder(out) as folder:
        tables = collect_positions(source, default_length=default_length, seed=seed, num_draws=num_draws)
        drawn = draw_positions(tables)
        write_csvs(folder / "tables", csv_tables(tables))
        write_images(folder / "figures", drawn)
        write_page(folder, _parts(tables, list(drawn), title, command))
    return Path(out) / "report.md"


def csv_tables(tables: PositionTables) -> dict[str, pd.DataFrame]:
    """File name to table."""
    controls = [
        pd.DataFrame({"statistic": name, "control": control, "value": values})
        for name, verdict in tables.verdicts.items()
        for control, values in (("positive", verdict.positive), ("negative", verdict.negative))
    ]
    return {
        "position_statistics": tables.statistics,
        "waves": tables.waves,
        "cosine_by_lag": tables.by_lag,
        "norms_and_steps": tables.lengths,
        "standing_out": tables.outliers,
        "dct_spectrum": tables.spectra,
        "control_values": pd.concat(controls, ignore_index=True),
        "change": tables.change,
        "segments": tables.segments,
    }


def print_positions(
    source: Source, *, default_length: int | None = None, seed: int = 0, num_draws: int = NUM_DRAWS
) -> None:
    """The answer, the waves, every statistic beside its references, and the rows that stand out, on the terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    tables = collect_positions(source, default_length=default_length, seed=seed, num_draws=num_draws, is_brief=True)
    console = Console()
    for line in [*answers(tables), *standing_out(tables), *caveats(tables)]:
        console.print(f"- {escape(line)}", soft_wrap=True, highlight=False)
    for title, (header, rows) in {
        "Waves of the learned table": wave_rows(tables),
        f"Positions 0 to {tables.num_positions - 1}": _without_units(statistic_rows(tables.statistics)),
    }.items():
        shown = Table(title=title)
        for name in header:
            shown.add_column(escape(name), no_wrap=name == "statistic")
        for row in rows:
            shown.add_row(*(escape(cell if isinstance(cell, str) else markdown.number(cell, 2)) for cell in row))
        if rows:
            console.print(shown)


Rows = tuple[list[str], list[list[object]]]


def _without_units(rows: Rows) -> Rows:
    """For a terminal of 80 columns; the report has them."""
    header = ["statistic", "learned", "sinusoid", "Gaussian", "smooth", "shuffled"]
    return header, [row[:-1] for row in rows[1]]


def wave_rows(tables: PositionTables) -> Rows:
    """Header and rows of the table of waves, fastest first."""
    header = [
        "period (positions)",
        "in the first quarter",
        "in the last",
        "share of variance (%)",
        "roundness",
        "columns",
    ]
    lines = tables.waves[tables.waves["is_wave"]].sort_values("period").to_dict("records")
    names = ("period", "period_first", "period_last")
    return header, [
        [*(line[name] for name in names), 100 * line["share"], line["roundness"], line["num_columns"]] for line in lines
    ]


def statistic_rows(statistics: pd.DataFrame) -> Rows:
    """Header and rows of one window's statistics beside their references."""
    kinds = ("value", "sinusoid", "gaussian", "smooth", "shuffled")
    header = ["statistic", "learned", "sinusoid", "iid Gaussian", "smooth curves", "rows shuffled", "unit"]
    return header, [
        [line["statistic"], *(float(line[kind]) for kind in kinds), line["unit"]]
        for line in statistics.to_dict("records")
    ]


def _parts(tables: PositionTables, drawn: list[str], title: str | None, command: str | None) -> list[str]:
    name = tables.snapshot.name or f"epoch {tables.snapshot.epoch:g}"
    parts = [f"# {markdown.escape(title if title is not None else f'Learned positions: {name}')}", "## The answer"]
    parts += [markdown.bullets(answers(tables)), *_figures(drawn, "waves", "resemblance")]
    parts += markdown.made_by(command, markdown.RELATIVE_PATHS)
    parts += ["## Waves", markdown.table(*wave_rows(tables))]
    parts += ["## What the rows are like", *_figures(drawn, "cosine_gram", "cosine_by_lag", "dct_spectrum")]
    for window, lines in tables.statistics.groupby("window", sort=False):
        parts += [f"### Positions {window}", markdown.table(*statistic_rows(lines))]
        notes = [f"{line['statistic']}: {line['note']}" for line in lines.to_dict("records") if line["note"]]
        parts += [markdown.bullets(notes)] if notes else []
    parts += [
        "## Rows that stand out",
        *map(markdown.escape, standing_out(tables)),
        *_figures(drawn, "norms_and_steps"),
    ]
    if not tables.change.empty:
        header = ["statistic", "before training", "after", "unit"]
        cells = [
            [r["statistic"], float(r["before"]), float(r["after"]), r["unit"]] for r in tables.change.to_dict("records")
        ]
        parts += ["## What training changed", markdown.table(header, cells)]
    parts += ["## Segments", _segments(tables)]
    parts += ["## What this does not say", markdown.bullets(caveats(tables))]
    definitions = [[name, statistic.description] for name, statistic in STATISTICS.items()]
    return [*parts, "## Definitions", markdown.table(["statistic", "what it is"], definitions), _origin(tables)]


def _figures(drawn: list[str], *names: str) -> list[str]:
    return markdown.figures(CAPTIONS, [name for name in names if name in drawn])


def _segments(tables: PositionTables) -> str:
    if tables.segments.empty:
        return "Not applicable: this model has no token_type_embeddings."
    rows = [
        [line["of"], line["statistic"], float(line["value"]), line["unit"], line["note"]]
        for line in tables.segments.to_dict("records")
    ]
    return markdown.table(["of", "statistic", "value", "unit", "note"], rows)


def _origin(tables: PositionTables) -> str:
    from importlib.metadata import version

    digest = files.sha256_of_array(tables.snapshot.tensors["position_embeddings"])
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
    return f"sha256 of the position table (dtype, shape and values): `{digest}`. Computed with {versions}."
