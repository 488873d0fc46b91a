"""Relative quality: the chart of its table, and the report on it."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from toolkit.comparison.summaries import check_table
from toolkit.reporting.cells import UNDEFINED
from toolkit.reporting.charts import REFERENCE, Chart, data_of, draw, look_of, padded, panels, pick, tips
from toolkit.reporting.folder import publish, report_folder, write_csvs
from toolkit.reporting.page import Block, NoteBlock, Page, Section, TextBlock, chart_blocks, rows_block
from toolkit.schema import columns_of

CAPTION = (
    "Mean score of each condition as a share of the reference's, with its 95 % interval; dotted, in the colour of the "
    "split: always answering the commonest class."
)
DEFINITIONS = (
    "Relative quality: the condition's mean score over its seeds / the reference's, on the same seeds and items.",
    "Interval: 95 %, over new seeds and new items at once for an accuracy (two-way, Satterthwaite), over new seeds for "
    "another score; of the linearised ratio, so that the reference's own noise counts. It is of one condition and one "
    "split: none is adjusted for how many there are.",
    "A failed run is at the majority class or below on the reported split; it counts in the mean.",
)
HEADER = (
    "split",
    "condition",
    "relative quality",
    "95 % interval",
    "beside the reference",
    "beside the majority class",
    "mean score",
    "seeds",
    "failed",
    "majority class",
    "note",
)


def plot_relative_quality(table: pd.DataFrame) -> Chart | None:
    """Each arm's score as a share of the reference's, with its interval: a panel per task, a mark per arm and split.

    ``table`` is :func:`toolkit.relative_quality`'s; of validation and test the reported one is shown, and every other
    split. The dotted line is always answering the commonest class. None where there is no ratio of another arm.
    ValueError for another table.
    """
    import altair

    check_table(table, columns_of("relative_quality"), "relative_quality")
    table = shown_splits(table)
    table = table[table["relative_quality"].notna()]
    if table.empty or (table["condition"] == table["against"]).all():
        return None
    table = table.assign(condition=table["condition"].astype(str))
    arms, splits, groups = (list(dict.fromkeys(table[name].astype(str))) for name in ("condition", "split", "group"))
    table = table.assign(interval=[_interval(low, high) for low, high in zip(table["low"], table["high"], strict=True)])
    picker = pick("split", splits) if len(splits) > 1 else None
    look = look_of(splits, splits, picker, "split")
    columns = min(len(groups), 3)
    scale = padded([*table["relative_quality"], *table["low"], *table["high"], *table["majority_quality"], 1])
    offset = altair.YOffset("split:N", sort=splits, scale=altair.Scale(domain=splits, paddingOuter=0.5))
    said = tips(
        condition="condition",
        split="split",
        relative_quality=("relative quality", ".3f"),
        interval="95 % interval",
        num_seeds="seeds",
        num_failed="failed runs",
    )
    parts = []
    for i, group in enumerate(groups):
        own = table[table["group"].astype(str) == group]
        labels = altair.Axis(domain=False, ticks=False, labels=not i % columns, labelLimit=190)
        y = altair.Y("condition:N", sort=arms, scale=altair.Scale(domain=arms), title=None, axis=labels)
        ticks = altair.Axis(tickCount=4, format="~f")
        x, low, majority = (
            altair.X(f"{name}:Q", scale=scale, title="relative quality", axis=ticks)
            for name in ("relative_quality", "low", "majority_quality")
        )
        names = ["condition", "split", "relative_quality", "low", "high", "interval", "num_seeds", "num_failed"]
        marks = altair.Chart(data_of(own, names)).encode(y=y, yOffset=offset, tooltip=said)
        floors = own.groupby("split", sort=False)["majority_quality"].mean().dropna().reset_index()
        once = altair.Chart(altair.Data(values=[{}]))
        layers = [once.mark_rule(color=REFERENCE).encode(x=altair.datum(1, scale=scale))]
        if len(floors):
            rule = altair.Chart(data_of(floors)).mark_rule(strokeDash=[2, 2])
            words = tips(split="split", majority_quality=("majority class", ".3f"))
            layers.append(rule.encode(x=majority, tooltip=words, **look["bars"]))
        layers += [
            marks.mark_rule(strokeWidth=1.6).encode(x=low, x2="high:Q", **look["bars"]),
            marks.mark_point(filled=True, size=50).encode(x=x, **look["points"]),
        ]
        panel = altair.layer(*layers).properties(
            width={1: 420, 2: 235, 3: 150}[columns], height=len(arms) * max(11 * len(splits) + 6, 20)
        )
        parts.append(panel if len(groups) == 1 else panel.properties(title=group))
    return panels(parts, columns, picker)


def shown_splits(table: pd.DataFrame) -> pd.DataFrame:
    """The lines that are drawn: of validation and test only the reported one, and the others."""
    return table[~table["split"].isin(["validation", "test"]) | table["is_reported_split"].eq(True)]


def write_relative_report(
    table: pd.DataFrame,
    out: str | Path,
    *,
    title: str | None = None,
    command: str | None = None,
    caveats: Sequence[str] = (),
) -> Path:
    """Write the page, figures/ and tables/relative_quality.csv of :func:`toolkit.relative_quality`'s table.

    ``caveats``: what the runs do not say, in sentences. ``command`` is shown as what makes the report again. The path
    of report.md; ValueError as :func:`check_out`.
    """
    with report_folder(out) as folder:
        write_csvs(folder / "tables", {"relative_quality": table}, float_format="%.10g")
        publish(relative_page(table, title=title, command=command, caveats=caveats), folder)
    return Path(out) / "report.md"


def relative_page(
    table: pd.DataFrame, *, title: str | None = None, command: str | None = None, caveats: Sequence[str] = ()
) -> Page:
    """All that the report says."""
    charts = draw({"relative_quality": lambda: plot_relative_quality(table)})
    blocks: list[Block] = [*chart_blocks(charts, "relative_quality", CAPTION, "Relative quality of each condition")]
    for group, own in table.groupby("group", sort=False):
        blocks.append(rows_block(HEADER, relative_rows(own), f"Relative quality on {group}"))
    sections = [Section(id="relative-quality", title="Relative quality", blocks=tuple(blocks))]
    if caveats:
        notes = (NoteBlock(text="\n\n".join(caveats)),)
        sections.append(Section(id="limits", title="What this does not say", blocks=notes))
    words = (TextBlock(text="\n\n".join(DEFINITIONS)),)
    sections.append(Section(id="definitions", title="Definitions", blocks=words))
    return Page(title=title or "Relative quality", sections=tuple(sections), commands=command or "")


def relative_rows(table: pd.DataFrame) -> list[list[object]]:
    """Rows under HEADER of one group's arms and splits, split by split."""
    splits = list(dict.fromkeys(table["split"]))
    lines = sorted(table.to_dict("records"), key=lambda line: splits.index(line["split"]))
    return [
        [
            line["split"],
            line["condition"],
            _decimal(line["relative_quality"]),
            _interval(line["low"], line["high"]),
            _beside(line["low"], line["high"], 1.0),
            _beside(line["low"], line["high"], line["majority_quality"]),
            _decimal(line["condition_mean"]),
            str(line["num_seeds"]),
            str(line["num_failed"]),
            _decimal(line["majority_quality"]),
            "; ".join(filter(None, (line["reason"], line["note"]))),
        ]
        for line in lines
    ]


def _beside(low: float, high: float, other: float) -> str:
    """What an interval says of the arm beside another value; nothing without either."""
    if any(value != value for value in (low, high, other)):
        return ""
    return "below" if high < other else "above" if low > other else "not distinguishable"


def _interval(low: float, high: float) -> str:
    return "" if low != low or high != high else f"{low:.3f} to {high:.3f}"


def _decimal(value: float) -> str:
    return UNDEFINED if value != value else f"{value:.3f}"
