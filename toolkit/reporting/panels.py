"""An empty figure in, panels out: logarithmic axes with a strip for exact zeros, and the marks that go on them."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.arms import Arm
from toolkit.reporting.images import STYLE, WIDTH

# Okabe & Ito 2008, the colours that stay apart for colour-blind readers; their yellow is too pale for lines on white.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))

FEW = 5
"""Rows below which each is drawn as a dot of its own."""

LEGEND = 0.6
"""Inches that the height of a figure has for its legend."""

REFERENCE: dict[str, Any] = {"color": "0.45", "linewidth": 0.9, "linestyle": (0, (1, 1.5))}
"""How a line that is no run's is drawn."""

MESSAGE: dict[str, Any] = {"ha": "center", "va": "center", "color": "0.35"}
"""How a panel says in words what it cannot draw."""


@dataclass(frozen=True)
class Panel:
    """A logarithmic axis and, beside it, a strip for what is exactly 0 and has no place on it (None without zeros)."""

    axes: Any
    strip: Any


def panels_of(figure: Any, count: int, columns: int, num_zeros: int, *, is_sideways: bool = False) -> list[Panel]:
    """``count`` panels; each has room for ``num_zeros`` lines of exact zeros below it, or left of it if sideways."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    if not num_zeros:
        grid = figure.add_gridspec(rows, columns)
        return [Panel(figure.add_subplot(grid[i // columns, i % columns]), None) for i in range(count)]
    # One flat grid: with nested ones the constrained layout gives panels of unequal size.
    ratios = (1, 18 / columns - 2) if is_sideways else (6, 0.55 * (num_zeros + 1))
    if is_sideways:
        grid = figure.add_gridspec(rows, 2 * columns, width_ratios=ratios * columns)
    else:
        grid = figure.add_gridspec(2 * rows, columns, height_ratios=ratios * rows)
    panels = []
    for row, column in (divmod(i, columns) for i in range(count)):
        if is_sideways:
            axes = figure.add_subplot(grid[row, 2 * column + 1])
            panels.append(Panel(axes, figure.add_subplot(grid[row, 2 * column], sharey=axes)))
        else:
            axes = figure.add_subplot(grid[2 * row, column])
            panels.append(Panel(axes, figure.add_subplot(grid[2 * row + 1, column], sharex=axes)))
            axes.tick_params(labelbottom=False)
    return panels


def line_style(index: int) -> dict[str, Any]:
    style = {"color": COLOURS[index % 7], "marker": MARKERS[index % 8], "linestyle": LINES[index % 6]}
    return {**style, "linewidth": 1.2, "markersize": 4, "markerfacecolor": "white", "markeredgewidth": 1}


def label_of(arm: Arm, width: int, fact: str = "") -> str:
    """The name of an arm, its number of seeds and perhaps a fact, in lines of at most ``width`` letters."""
    facts = [*([f"{len(arm.runs)}\u00a0seeds"] if len(arm.runs) > 1 else []), *([fact] if fact else [])]
    return wrap(arm.label + (f" [{', '.join(facts)}]" if facts else ""), width)


def wrap(text: str, width: int) -> str:
    """Text in lines of at most ``width`` letters, none of which matplotlib takes for a formula."""
    if len(text) > width and " (" in text:  # what is in brackets stays together
        before, after = text.split(" (", 1)
        return plain("\n".join([textwrap.fill(before, width), textwrap.fill(f"({after}", width)]))
    return plain(textwrap.fill(text, width))


def plain(text: str) -> str:
    """Text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def legend_below(figure: Any, handles: Sequence[Any], **style: Any) -> None:
    """One legend below all panels, where no data can lie: what is higher than a few lines makes the figure higher."""
    lines = [str(handle.get_label()).split("\n") for handle in handles]
    longest = max(len(line) for label in lines for line in label)
    is_wide = figure.get_figwidth() == WIDTH
    columns = (3 if longest <= 28 else 2) if is_wide else 2 if longest <= 30 else 1
    per_column = math.ceil(len(handles) / columns)
    heights = [
        sum(1.2 * len(label) + 0.5 for label in lines[i : i + per_column]) for i in range(0, len(lines), per_column)
    ]
    beyond = max(heights) * STYLE["font.size"] / 72 - LEGEND
    figure.set_figheight(figure.get_figheight() + max(0.0, beyond))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, **style)


def note(panel: Panel, text: str) -> None:
    panel.axes.text(0.5, 0.5, text, **MESSAGE, transform=panel.axes.transAxes)
    panel.axes.set(xticks=[], yticks=[])
    if panel.strip:
        panel.strip.set_visible(False)


def error_bars(values: pd.DataFrame) -> list[pd.Series]:
    """Below and above of ``mean`` to ``min`` and ``max``; the mean of equal values can lie a rounding beside them."""
    return [(values["mean"] - values["min"]).clip(lower=0), (values["max"] - values["mean"]).clip(lower=0)]


def draw_over_seeds(axes: Any, table: pd.DataFrame, column: str, **style: Any) -> None:
    """Mean over seeds by epoch, with bars from the least to the greatest seed."""
    values = table.groupby("epoch")[column].agg(["mean", "min", "max"])
    errors = error_bars(values) if table["run"].nunique() > 1 else None
    axes.errorbar(values.index, values["mean"], yerr=errors, capsize=2, elinewidth=0.7, **style)


def set_epochs(axes: Any, epochs: Iterable[float], label: str = "epoch") -> None:
    """The epochs on the horizontal axis, from 0: each of them where their names have room, else a handful."""
    found = sorted({0.0, *epochs})
    if min(np.diff(found), default=1) >= 0.12 * found[-1]:
        axes.set_xticks(found, [f"{epoch:.3g}" for epoch in found])
    else:
        axes.locator_params(axis="x", integer=found[-1] >= 3, nbins=5)
    margin = 0.07 * (found[-1] or 1)
    axes.set(xlabel=label, xlim=(-margin, found[-1] + margin))


def draw_zeros(panel: Panel, places: Sequence[Any], is_proven: bool) -> None:
    """Mark in the strip, one line per arm, where an arm is exactly 0."""
    if panel.strip is None:
        return
    with_zeros = [i for i, xs in enumerate(places) if len(xs)]
    for slot, i in enumerate(reversed(with_zeros)):
        style = line_style(i) | {"markevery": max(len(places[i]) // 16, 1)}
        panel.strip.plot(places[i], np.full(len(places[i]), slot), **style)
    text = "exactly 0" + (": frozen, bit-identical" if is_proven else "") if with_zeros else "none is exactly 0"
    top = max(len(with_zeros), 1)
    panel.strip.text(0.5, top - 0.05, text, transform=panel.strip.get_yaxis_transform(), ha="center", va="center")
    panel.strip.set(ylim=(-0.6, top + 0.6), yticks=[], facecolor="0.95")


def set_log(axis: Any, values: pd.Series) -> None:
    """A logarithmic axis that holds every value above 0, the same in all panels."""
    positive = values[values > 0]
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = (positive.min() / 1.6, positive.max() * 1.6) if len(positive) else (0.1, 10)
    axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})


def draw_box(panel: Panel, y: int, values: Any) -> None:
    """Quartiles and 5 to 95 % of the rows that moved, the share that did not in the strip, the number at the right."""
    moved = values[values > 0]
    if 0 < len(moved) < FEW:  # quartiles of so few rows would be a picture of nothing
        panel.axes.plot(moved, [y] * len(moved), linestyle="none", marker="o", markersize=3, color="black")
    elif len(moved):
        low, q1, median, q3, high = np.percentile(moved, (5, 25, 50, 75, 95))
        # Not axes.bxp: it reads every rcParam and so loads pyplot and a window system.
        panel.axes.hlines([y, y], [low, q3], [q1, high], color="black", linewidth=0.8)
        panel.axes.vlines([low, high], y - 0.15, y + 0.15, color="black", linewidth=0.8)
        panel.axes.barh(y, q3 - q1, height=0.6, left=q1, color="white", edgecolor="black", linewidth=0.8)
        panel.axes.vlines(median, y - 0.3, y + 0.3, color="#D55E00", linewidth=1.2)
    if panel.strip and len(values):
        panel.strip.text(0.5, y, _share(len(values) - len(moved), len(values)), ha="center", va="center", fontsize=6)
    at_right = {"xycoords": panel.axes.get_yaxis_transform(), "xytext": (3, 0), "textcoords": "offset points"}
    panel.axes.annotate(f"n={len(values):,}", (1, y), va="center", fontsize=6, **at_right)


def _share(part: int, whole: int) -> str:
    """A percentage that reads 0 or 100 only when it is exactly that."""
    percent = 100 * part / whole
    if 0 < percent < 0.1 or 99.9 < percent < 100:
        return "<0.1" if percent < 50 else ">99.9"
    return f"{percent:.0f}" if percent in (0, 100) else f"{percent:.1f}"
