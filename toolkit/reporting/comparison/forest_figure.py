"""The table of comparisons in, a forest plot of the differences out: intervals, margin and verdict of each."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from toolkit.reporting.comparison.selections import headline, largest_size, reach_points, task_names
from toolkit.reporting.images import WIDTH
from toolkit.reporting.panels import plain, wrap

VERDICT_STYLES: Mapping[str, dict[str, Any]] = {
    "supported": {"marker": "o", "color": "#D55E00", "markerfacecolor": "#D55E00"},
    "equivalent": {"marker": "D", "color": "#009E73", "markerfacecolor": "#009E73"},
    "not supported": {"marker": "o", "color": "black", "markerfacecolor": "white"},
    "under-powered": {"marker": "s", "color": "0.55", "markerfacecolor": "white"},
    "not judged": {"marker": "^", "color": "0.55", "markerfacecolor": "white"},
    "not measurable here": {"marker": "X", "color": "0.55", "markerfacecolor": "0.55"},
}
"""A verdict is told by its mark as well as by its colour."""


def differences(comparison: pd.DataFrame) -> Any:
    """A panel per pair, a line per task and split: the difference with its intervals, the margin, and the verdict."""
    from matplotlib.figure import Figure

    table = largest_size(headline(comparison))
    table = table[table["difference_points"].notna()]
    if table.empty:
        return None
    pairs = list(dict.fromkeys(zip(table["first_base"], table["second_base"], strict=True)))
    places = list(dict.fromkeys(zip(task_names(table), table["split"], strict=True)))
    columns = min(len(pairs), 4 if len(pairs) in (4, 7, 8) else 3)
    rows = math.ceil(len(pairs) / columns)
    width = 20 if columns > 3 else 30  # letters that fit a panel
    titles = [f"{wrap(first, width)}\n{wrap(f'minus {second}', width)}" for first, second in pairs]
    above = 0.75 + 0.15 * max(0, max(title.count("\n") for title in titles) - 2)
    figure = Figure(figsize=(WIDTH, (above + 0.19 * max(3, len(places))) * rows + 0.45), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for i, (first, second) in enumerate(pairs):
        own = table[(table["first_base"] == first) & (table["second_base"] == second)]
        _draw_forest(axes[i], own, [places.index(place) for place in zip(task_names(own), own["split"], strict=True)])
        axes[i].set_title(titles[i])
        if i + columns >= len(pairs):
            axes[i].set_xlabel("difference (points)")
    for spare in axes[len(pairs) :]:
        spare.set_visible(False)
    _name_places(axes[0], places)
    _forest_legend(figure, table)
    return figure


def _draw_forest(axes: Any, table: pd.DataFrame, ys: Sequence[int]) -> None:
    margins = table["margin_points"].dropna().unique()
    if len(margins) == 1:
        axes.axvspan(-margins[0], margins[0], color="0.92", zorder=0, linewidth=0)
    axes.axvline(0, color="0.45", linewidth=0.7, zorder=1)
    for y, line in zip(ys, table.to_dict("records"), strict=True):
        style = VERDICT_STYLES.get(str(line.get("verdict")), VERDICT_STYLES["not supported"])
        # Over items alone, from one seed: a weaker claim, drawn as one.
        thin = {"color": style["color"], "linewidth": 0.9, "linestyle": "-" if line["num_seeds"] > 1 else ":"}
        axes.hlines(y, line["low_points"], line["high_points"], **thin)
        axes.hlines(y, line["low90_points"], line["high90_points"], color=style["color"], linewidth=2.4)
        axes.plot([line["difference_points"]], [y], markersize=4.5, markeredgewidth=1, linestyle="none", **style)
    _end_at_reach(axes, table, ys)


def _end_at_reach(axes: Any, table: pd.DataFrame, ys: Sequence[int]) -> None:
    """No axis beyond what the scores allow: a t interval of few seeds may pass it, and has an arrow at its end."""
    reach = max(map(reach_points, table["score"]))
    low, high = axes.get_xlim()
    axes.set_xlim(max(low, -1.03 * reach), min(high, 1.03 * reach))
    for column, sign, marker in (("low_points", -1, "<"), ("high_points", 1, ">")):
        beyond = [y for y, value in zip(ys, table[column], strict=True) if sign * value > reach]
        axes.plot([sign * reach] * len(beyond), beyond, marker, color="0.3", markersize=4)


def _name_places(axes: Any, places: Sequence[tuple[str, str]]) -> None:
    """Task and split of every line, the task only where it changes, with a rule between tasks."""
    tasks = [task for task, _ in places]
    is_first = [i == 0 or tasks[i - 1] != task for i, task in enumerate(tasks)]
    has_many = len(set(tasks)) > 1
    names = [
        f"{task}: {split}" if has_many and new else split for (task, split), new in zip(places, is_first, strict=True)
    ]
    axes.set_yticks(range(len(places)), [plain(name) for name in names])
    axes.set_ylim(len(places) - 0.4, -0.6)
    for i in range(1, len(places)):
        if tasks[i] != tasks[i - 1]:
            for each in axes.figure.axes:
                each.axhline(i - 0.5, color="0.8", linewidth=0.5)


def _forest_legend(figure: Any, table: pd.DataFrame) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found = [name for name in VERDICT_STYLES if name in set(table["verdict"])]
    handles: list[Any] = [Line2D([], [], linestyle="none", label=name, **VERDICT_STYLES[name]) for name in found]
    if (table["num_seeds"] > 1).any():
        handles += [Line2D([], [], color="black", linewidth=0.9, label="95 % interval")]
    if (table["num_seeds"] == 1).any():
        handles += [Line2D([], [], color="black", linewidth=0.9, linestyle=":", label="95 %, one seed: items only")]
    handles += [Line2D([], [], color="black", linewidth=2.4, label="90 % interval")]
    if table["margin_points"].notna().any():
        handles += [Patch(color="0.92", label="margin of equivalence")]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
