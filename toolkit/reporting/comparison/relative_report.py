"""The table of relative quality in, its page out: report.md, a figure and the table."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from toolkit.reporting import markdown
from toolkit.reporting.comparison.relative_figure import draw_relative, shown_splits
from toolkit.reporting.folder import report_folder, write_csvs, write_page
from toolkit.reporting.images import write_images
from toolkit.reporting.markdown import listing

CAPTION = (
    "Mean score of each arm as a share of the reference's, with its 95 % interval; dotted: always answering the "
    "commonest class."
)
DEFINITIONS = (
    "Relative quality: the arm's mean score over its seeds / the reference's, on the same seeds and items.",
    "Interval: 95 %, over new seeds and new items at once for an accuracy (two-way, Satterthwaite), over new seeds for "
    "another score; of the linearised ratio, so that the reference's own noise counts. It is of one arm and one split: "
    "none is adjusted for how many there are.",
    "A failed run is at the majority class or below on the reported split; it counts in the mean.",
)


def write_relative_report(
    table: pd.DataFrame,
    out: str | Path,
    *,
    title: str | None = None,
    command: str | None = None,
    caveats: Sequence[str] = (),
) -> Path:
    """Write report.md, figures/ and tables/relative_quality.csv of :func:`toolkit.relative_quality`'s table.

    ``caveats``: what the runs do not say, in sentences. ``command`` is shown as what makes the report again. The path
    of report.md; ValueError as :func:`check_out`.
    """
    with report_folder(out) as folder:
        write_csvs(folder / "tables", {"relative_quality": table}, float_format="%.10g")
        images = draw_relative(table)
        write_images(folder / "figures", images)
        parts = [
            f"# {markdown.escape(title or 'Relative quality')}",
            "## What was found",
            markdown.bullets(relative_findings(table)),
        ]
        parts += markdown.figures(dict.fromkeys(images, CAPTION), images) + markdown.made_by(command)
        parts += ["## What this does not say", markdown.bullets(caveats)] if caveats else []
        for group, own in table.groupby("group", sort=False):
            parts += [f"## {markdown.escape(group)}", markdown.table(*relative_rows(own))]
        parts += ["## Definitions", markdown.bullets(DEFINITIONS)]
        write_page(folder, parts)
    return Path(out) / "report.md"


def relative_rows(table: pd.DataFrame) -> tuple[list[str], list[list[object]]]:
    """Header and rows of one group's arms and splits."""
    header = ["split", "arm", "relative quality", "95 % interval", "mean score", "seeds", "failed", "majority", "note"]
    rows: list[list[object]] = []
    for line in table.to_dict("records"):
        values = [_decimal(line[name]) for name in ("relative_quality", "arm_mean", "majority_quality")]
        counts = [str(line["num_seeds"]), str(line["num_failed"])]
        rows.append(
            [line["split"], line["arm"], values[0], _interval(line), values[1], *counts, values[2], line["note"]]
        )
    rows.sort(key=lambda row: list(dict.fromkeys(table["split"])).index(row[0]))
    return header, rows


def relative_findings(table: pd.DataFrame) -> list[str]:
    """Per group and drawn split: which arms lose or gain quality, are not told apart, or are at the majority."""
    lines = []
    for (group, split), own in shown_splits(table).groupby(["group", "split"], sort=False):
        known = own[own["low"].notna()]
        lead = f"{group}, {split}, beside {own['reference'].iloc[0]} ({_decimal(own['reference_mean'].iloc[0])})"
        parts = [
            _part("below it", known[known["high"] < 1]),
            _part("above it", known[known["low"] > 1]),
            _part("not told apart from it", known[(known["low"] <= 1) & (known["high"] >= 1)]),
        ]
        failed = own[own["num_failed"] > 0]
        if len(failed):
            counts = [f"{line['num_failed']} of {line['num_seeds']} of {line['arm']}" for _, line in failed.iterrows()]
            parts.append(f"failed runs: {listing(counts)}")
        at_chance = known[known["low"] <= known["majority_quality"]]
        if len(at_chance):
            parts.append(f"not told apart from always answering the commonest class: {listing(list(at_chance['arm']))}")
        lines.append(f"{lead}: {'; '.join(part for part in parts if part) or 'nothing to compare'}.")
    return lines


def _part(words: str, lines: pd.DataFrame) -> str:
    shown = [f"{line['arm']} {_decimal(line['relative_quality'])} ({_interval(line)})" for _, line in lines.iterrows()]
    return f"{words} {listing(shown)}" if shown else ""


def _interval(line: "pd.Series | dict[str, object]") -> str:
    low, high = float(line["low"]), float(line["high"])  # type: ignore[arg-type]
    return "" if low != low or high != high else f"{low:.3f} to {high:.3f}"


def _decimal(value: float) -> str:
    return markdown.UNDEFINED if value != value else f"{value:.3f}"
