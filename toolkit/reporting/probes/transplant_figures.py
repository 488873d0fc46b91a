"""The tables of transplants in, their figures out."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from toolkit.reporting.images import WIDTH, Images, render
from toolkit.reporting.panels import plain, wrap

PANEL = ["model", "task", "arm"]
LIKELIHOOD, ACCURACY = "log-likelihood", "accuracy"
TOTAL = "all"
AXES = {LIKELIHOOD: "log-likelihood per item (nats)", ACCURACY: "accuracy (points)"}
POSITIVE, NEGATIVE, SUM = "#0072B2", "#D55E00", "0.35"
RANDOM_CHANGES = {
    "random": (0.08, "s", "0.35", "random changes of its size, row by row: mean, all draws"),
    "rotated": (0.3, "D", "#E69F00", "its own change in rotated directions: mean, all draws"),
}
"""Kind of random change to where its mark stands, the mark, its colour and what the legend says."""


def draw_transplants(tables: Mapping[str, pd.DataFrame]) -> Images:
    """Every figure that applies, by name, as images; equal input, equal bytes."""
    shapley, singles, interactions = (tables[name] for name in ("shapley", "singles", "interactions"))
    makers: dict[str, Any] = {}
    for direction, suffix in (("forward", ""), ("reverse", "_reverse")):
        for value, name in ((LIKELIHOOD, "shapley"), (ACCURACY, "shapley_accuracy")):
            makers[name + suffix] = partial(shapley_bars, _select(shapley, direction, value), value)
        makers["random_changes" + suffix] = partial(random_changes, _select(singles, direction, LIKELIHOOD))
        makers["interactions" + suffix] = partial(interaction_maps, _select(interactions, direction, LIKELIHOOD))
    return render(makers)


def _select(table: pd.DataFrame, direction: str, value: str) -> pd.DataFrame:
    return table[(table["direction"] == direction) & (table["value"] == value)]


def _panels(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Title and lines of each panel: the task with its seeds, and what else tells the panels apart."""
    groups = list(table.groupby(PANEL, sort=False))
    others = [i for i, name in enumerate(PANEL) if name != "task" and len({key[i] for key, _ in groups}) > 1]
    panels = []
    for key, lines in groups:
        count = lines["num_seeds"].iloc[0]
        first = f"{plain(str(key[PANEL.index('task')]))} ({count} seed{'s' if count > 1 else ''})"
        panels.append(("\n".join([first, *(wrap(str(key[i]), 36) for i in others)]), lines))
    return panels


def _grid(count: int, height: float) -> tuple[Any, Any]:
    """Axes in two columns: with three, titles and labels would be wider than a panel."""
    from matplotlib.figure import Figure

    columns = min(count, 2)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH if count > 1 else 0.62 * WIDTH, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes


def shapley_bars(table: pd.DataFrame, value: str) -> Any:
    """A panel per task and arm: the Shapley value of each component with its interval, and their sum."""
    panels = _panels(table)
    if not panels:
        return None
    most = max(len(lines) for _, lines in panels)
    figure, axes = _grid(len(panels), 0.24 * most + 1.0)
    for place, (title, lines) in enumerate(panels):
        lines = pd.concat([lines[lines["component"] != TOTAL], lines[lines["component"] == TOTAL]])
        _draw_bars(axes[place], lines)
        axes[place].set_title(title)
        axes[place].set_xlabel(AXES[value])
    return figure


def _draw_bars(axes: Any, lines: pd.DataFrame) -> None:
    ys = np.arange(len(lines))
    names = ["sum: all - none" if name == TOTAL else name for name in lines["component"]]
    colours = [
        SUM if name == TOTAL else POSITIVE if value >= 0 else NEGATIVE
        for name, value in zip(lines["component"], lines["estimate"], strict=True)
    ]
    axes.barh(ys, lines["estimate"], height=0.62, color=colours, linewidth=0)
    has_ends = lines["low"].notna().to_numpy()
    axes.hlines(ys[has_ends], lines["low"][has_ends], lines["high"][has_ends], color="black", linewidth=1)
    for y, line in zip(ys, lines.to_dict("records"), strict=True):
        if line["estimate"] == line["low"] == line["high"] == 0:
            axes.annotate("exactly 0", (0, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=6)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.axhline(len(lines) - 1.5, color="0.7", linewidth=0.5)
    axes.set_yticks(ys, [plain(name) for name in names])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=4)


def random_changes(table: pd.DataFrame) -> Any:
    """A panel per task and arm: each transplant alone beside random changes of its size."""
    from matplotlib.lines import Line2D

    panels = _panels(table)
    if not panels:
        return None
    most = max(lines["component"].nunique() for _, lines in panels)
    figure, axes = _grid(len(panels), 0.36 * most + 1.2)
    for place, (title, lines) in enumerate(panels):
        _draw_changes(axes[place], lines)
        axes[place].set_title(title)
        axes[place].set_xlabel("change of " + AXES[LIKELIHOOD].replace(" (", "\n("))
    label = "the tuned component, 95 % interval"
    handles = [Line2D([], [], marker="o", markersize=4, linewidth=1, color=POSITIVE, label=label)]
    for kind, (_, marker, colour, label) in RANDOM_CHANGES.items():
        if (table["kind"] == kind).any():
            handles.append(Line2D([], [], marker=marker, markersize=3.5, linewidth=2.4, color=colour, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=1, frameon=False)
    return figure


def _draw_changes(axes: Any, lines: pd.DataFrame) -> None:
    components = list(dict.fromkeys(lines["component"]))
    by_kind = {kind: own.set_index("component") for kind, own in lines.groupby("kind")}
    for y, name in enumerate(components):
        real = by_kind["transplant"].loc[name]
        axes.hlines(y - 0.16, real["low"], real["high"], color=POSITIVE, linewidth=1)
        axes.plot([real["estimate"]], [y - 0.16], marker="o", markersize=4, color=POSITIVE)
        for kind, (shift, marker, colour, _) in RANDOM_CHANGES.items():
            drawn = by_kind[kind].loc[name] if kind in by_kind else None
            if drawn is not None and pd.notna(drawn["estimate"]):
                axes.hlines(y + shift, drawn["least"], drawn["greatest"], color=colour, linewidth=2.4, alpha=0.6)
                axes.plot([drawn["estimate"]], [y + shift], marker=marker, markersize=3.5, color=colour)
    axes.axvline(0, color="black", linewidth=0.6)
    names = [f"{name} together" if name == TOTAL else name for name in components]
    axes.set_yticks(range(len(components)), [plain(name) for name in names])
    axes.set_ylim(len(components) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=4)


def interaction_maps(table: pd.DataFrame) -> Any:
    """A panel per task and arm: the interaction of every pair of components; below 0, they do the same thing."""
    panels = _panels(table)
    if not panels:
        return None
    names = [list(dict.fromkeys([*lines["first"], *lines["second"]])) for _, lines in panels]
    figure, axes = _grid(len(panels), 2.9)
    for place, (title, lines) in enumerate(panels):
        matrix = np.full((len(names[place]),) * 2, np.nan)
        for line in lines.to_dict("records"):
            i, j = names[place].index(line["first"]), names[place].index(line["second"])
            matrix[i, j] = matrix[j, i] = line["estimate"]
        reach = float(np.nanmax(np.abs(matrix))) or 1.0
        # In the unit of the cells: ticks of small numbers would need more room than a panel has.
        exponent = math.floor(math.log10(reach))
        unit, reach = 10.0**exponent, reach / 10.0**exponent
        image = axes[place].imshow(matrix / unit, cmap="RdBu", vmin=-reach, vmax=reach)
        _write_cells(axes[place], matrix / unit, lines, names[place], reach)
        axes[place].set_xlabel(f"cells: 10$^{{{exponent}}}$ nats; * interval excludes 0", fontsize=7)
        axes[place].set_title(title)
        figure.colorbar(image, ax=axes[place], shrink=0.8, label=f"10$^{{{exponent}}}$ nats per item")
    return figure


def _write_cells(axes: Any, matrix: Any, lines: pd.DataFrame, names: list[str], reach: float) -> None:
    """Values in the cells; a star where the interval excludes 0."""
    clear = {
        frozenset((line["first"], line["second"]))
        for line in lines.to_dict("records")
        if line["low"] > 0 or line["high"] < 0
    }
    for i, j in zip(*np.nonzero(~np.isnan(matrix)), strict=True):
        star = "*" if frozenset((names[i], names[j])) in clear else ""
        shown = f"{matrix[i, j]:.1f}".replace("-0.0", "0.0")
        text = "0" if matrix[i, j] == 0 else shown + star
        colour = "white" if abs(matrix[i, j]) > 0.65 * reach else "black"
        axes.text(j, i, text, ha="center", va="center", fontsize=6, color=colour)
    axes.set_xticks(range(len(names)), [plain(name) for name in names], rotation=40, ha="right")
    axes.set_yticks(range(len(names)), [plain(name) for name in names])
