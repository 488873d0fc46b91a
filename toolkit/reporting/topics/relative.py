"""Relative quality: the chart of its table, and the report on it."""

from collections.abc import Sequence

import pandas as pd

from toolkit.comparison.summaries import check_table
from toolkit.reporting.cells import Column
from toolkit.reporting.charts import (
    REFERENCE,
    Chart,
    along,
    altair,
    data_of,
    draw,
    look_of,
    once,
    padded,
    panels,
    pick,
    tips,
)
from toolkit.reporting.page import Block, Page, Section, chart_blocks, table_block, texts_section
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
    "split condition relative_quality interval beside_reference beside_majority condition_mean num_seeds num_failed "
    "majority_quality reason note"
)


def plot_relative_quality(table: pd.DataFrame) -> Chart | None:
    """Each arm's score as a share of the reference's, with its interval: a panel per task, a mark per arm and split.

    ``table`` is :func:`toolkit.relative_quality`'s; of validation and test the reported one is shown, and every other
    split. The dotted line is always answering the commonest class. None where there is no ratio of another arm.
    ValueError for another table.
    """
    check_table(table, columns_of("relative_quality"), "relative_quality")
    table = shown_splits(table)
    table = table[table["relative_quality"].notna()]
    if table.empty or (table["condition"] == table["against"]).all():
        return None
    table = table.assign(condition=table["condition"].astype(str))
    arms, splits, groups = (list(dict.fromkeys(table[name].astype(str))) for name in ("condition", "split", "group"))
    table = _with_texts(table)
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
    size = {"width": {1: 420, 2: 235, 3: 150}[columns], "height": len(arms) * max(11 * len(splits) + 6, 20)}
    x = altair.X(
        "relative_quality:Q", scale=scale, title="relative quality", axis=altair.Axis(tickCount=4, format="~f")
    )
    names = ["condition", "split", "relative_quality", "low", "high", "interval", "num_seeds", "num_failed"]
    parts = []
    for i, group in enumerate(groups):
        own = table[table["group"].astype(str) == group]
        labels = altair.Axis(domain=False, ticks=False, labels=not i % columns, labelLimit=190)
        y = altair.Y("condition:N", sort=arms, scale=altair.Scale(domain=arms), title=None, axis=labels)
        marks = altair.Chart(data_of(own, names)).encode(y=y, yOffset=offset, tooltip=said)
        floors = own.groupby("split", sort=False)["majority_quality"].mean().dropna().reset_index()
        layers = [once().mark_rule(color=REFERENCE).encode(x=altair.datum(1, scale=scale))]
        if len(floors):
            rule = altair.Chart(data_of(floors)).mark_rule(strokeDash=[2, 2])
            words = tips(split="split", majority_quality=("majority class", ".3f"))
            layers.append(rule.encode(x=along(x, "majority_quality"), tooltip=words, **look["bars"]))
        layers += [
            marks.mark_rule(strokeWidth=1.6).encode(x=along(x, "low"), x2=altair.X2("high:Q"), **look["bars"]),
            marks.mark_point(filled=True, size=50).encode(x=x, **look["points"]),
        ]
        parts.append(altair.layer(*layers, **size))
    return panels(parts, columns, picker, groups)


def shown_splits(table: pd.DataFrame) -> pd.DataFrame:
    """The lines that are drawn: of validation and test only the reported one, and the others."""
    return table[~table["split"].isin(["validation", "test"]) | table["is_reported_split"].eq(True)]


def relative_page(
    table: pd.DataFrame, *, title: str | None = None, command: str = "", caveats: Sequence[str] = ()
) -> Page:
    """What :func:`toolkit.relative_quality`'s table says; ``caveats``: what the runs do not, in sentences."""
    charts = draw({"relative_quality": lambda: plot_relative_quality(table)})
    blocks = [*chart_blocks(charts, "relative_quality", CAPTION, "Relative quality of each condition")]
    for group, own in table.groupby("group", sort=False):
        own = own.iloc[own["split"].map(list(own["split"].unique()).index).argsort(kind="stable")]
        blocks.append(relative_block(own, f"Relative quality on {group}"))
    sections = (
        Section(id="relative-quality", title="Relative quality", blocks=tuple(blocks)),
        texts_section("limits", "What this does not say", caveats),
        texts_section("definitions", "Definitions", DEFINITIONS),
    )
    shown = tuple(section for section in sections if section.blocks)
    return Page(title=title or "Relative quality", sections=shown, commands=command)


def relative_block(table: pd.DataFrame, caption: str) -> Block:
    """One group's arms and splits: the columns HEADER."""
    decimals = {
        name: ["undefined" if value != value else f"{value:.3f}" for value in table[name]]
        for name in ("relative_quality", "condition_mean", "majority_quality")
    }
    return table_block(
        _with_texts(table).assign(**decimals),
        HEADER,
        caption,
        interval=Column(label="95 % interval"),
        beside_reference="beside the reference",
        beside_majority="beside the majority class",
        condition_mean="mean score",
        majority_quality="majority class",
    )


def _with_texts(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its intervals as texts, and what each says of the arm beside the reference and the majority."""
    ends = list(zip(table["low"], table["high"], table["majority_quality"], strict=True))
    return table.assign(
        interval=["" if low != low or high != high else f"{low:.3f} to {high:.3f}" for low, high, _ in ends],
        beside_reference=[_beside(low, high, 1.0) for low, high, _ in ends],
        beside_majority=[_beside(*each) for each in ends],
    )


def _beside(low: float, high: float, other: float) -> str:
    """What an interval says of the arm beside another value; nothing without either."""
    if any(value != value for value in (low, high, other)):
        return ""
    return "below" if high < other else "above" if low > other else "not distinguishable"
