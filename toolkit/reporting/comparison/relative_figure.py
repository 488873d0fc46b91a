"""The table of relative quality in, its figure out."""

import math
from functools import partial
from typing import Any

import pandas as pd

from toolkit.reporting.images import WIDTH, Images, render
from toolkit.reporting.panels import REFERENCE, line_style, plain, wrap

COLUMNS = 3
"""Panels beside each other."""


def draw_relative(table: pd.DataFrame) -> Images:
    """``relative_quality`` of :func:`toolkit.relative_quality`'s table, as images; equal input, equal bytes."""
    return render({"relative_quality": partial(relative_quality, table)})


def shown_splits(table: pd.DataFrame) -> pd.DataFrame:
    """The lines that are drawn and put into words: of validation and test only the reported one, and the others."""
    return table[~table["split"].isin(["validation", "test"]) | table["is_reported_split"].eq(True)]


def relative_quality(table: pd.DataFrame) -> Any:
    """A panel per group, a line per split, an arm per place: relative quality with its interval, and the majority."""
    from matplotlib.figure import Figure

    table = shown_splits(table)
    groups, arms = list(table.groupby("group", sort=False)), list(dict.fromkeys(table["arm"]))
    columns = min(len(groups), COLUMNS)
    rows = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(WIDTH, 1.7 * rows + 1.4), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    splits = list(dict.fromkeys(table["split"]))
    handles: dict[str, Any] = {}
    for axes, (group, own) in zip(grid, groups, strict=False):
        axes.axhline(1, color="0.8", linewidth=0.6, zorder=0)
        for split, lines in own.groupby("split", sort=False):
            handles |= _draw_split(axes, lines.set_index("arm").reindex(arms), str(split), splits.index(split))
        axes.set_title(wrap(str(group), 30))
        axes.set_xticks(range(len(arms)), [plain(arm) for arm in arms], rotation=45, ha="right")
    for spare in grid[len(groups) :]:
        spare.set_visible(False)
    for axes in grid[::columns]:
        axes.set_ylabel("relative quality")
    figure.legend(handles.values(), map(plain, handles), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_split(axes: Any, lines: pd.DataFrame, split: str, place: int) -> dict[str, Any]:
    """One split's arms, in their order, with the line of always answering the commonest class; the handles of both."""
    style = line_style(place)
    xs = [i + 0.12 * place for i in range(len(lines))]
    has_interval = lines["low"].notna().to_numpy()
    ends = lines[has_interval]
    axes.vlines([x for x, has in zip(xs, has_interval, strict=True) if has], ends["low"], ends["high"], style["color"])
    handles = {split: axes.plot(xs, lines["relative_quality"], **style)[0]}
    majority = lines["majority_quality"].mean()
    if majority == majority:
        shown = REFERENCE | {"color": style["color"], "alpha": 0.7}
        handles[f"{split}: majority class"] = axes.axhline(majority, **shown)
    return handles
