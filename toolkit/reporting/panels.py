"""An empty figure in, panels out: logarithmic axes with a strip for exact zeros, and the marks that go on them."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from toolkit.reporting.arms import Arm

# Okabe & Ito 2008, the colours that stay apart for colour-blind readers; their yellow is too pale for lines on white.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))

REFERENCE: dict[str, Any] = {"color": "0.45", "linewidth": 0.9, "linestyle": (0, (1, 1.5))}
"""How a line that is no run's is drawn."""


@dataclass(frozen=True)
class Panel:
    """A logarithmic axis and, beside it, a strip for what is exactly 0 and has no place on it (None without zeros)."""

    axes: Any
    strip: Any


def panels_of(figure: Any, count: int, columns: int, num_zeros: int, *, is_sideways: bool = False) -> list[Panel]:
    """``count`` panels; each has room for ``num_zeros`` lines of exact zeros below it, or left of it if sideways."""
    columns = min(columns, count)
    grid = figure.add_gridspec(math.ceil(count / columns), columns)
    panels = []
    for i in range(count):
        cell = grid[i // columns, i % columns]
        if not num_zeros:
            panels.append(Panel(figure.add_subplot(cell), None))
        elif is_sideways:
            inner = cell.subgridspec(1, 2, width_ratios=(1, 6), wspace=0)
            axes = figure.add_subplot(inner[1])
            panels.append(Panel(axes, figure.add_subplot(inner[0], sharey=axes)))
        else:
            inner = cell.subgridspec(2, 1, height_ratios=(6, 0.45 * (num_zeros + 1)), hspace=0.02)
            axes = figure.add_subplot(inner[0])
            panels.append(Panel(axes, figure.add_subplot(inner[1], sharex=axes)))
            axes.tick_params(labelbottom=False)
    return panels


def line_style(index: int) -> dict[str, Any]:
    style = {"color": COLOURS[index % 7], "marker": MARKERS[index % 8], "linestyle": LINES[index % 6]}
    return {**style, "linewidth": 1.2, "markersize": 4, "markerfacecolor": "white", "markeredgewidth": 1}


def label_of(arm: Arm) -> str:
    seeds = f" [{len(arm.runs)} seeds]" if len(arm.runs) > 1 else ""
    return textwrap.fill(plain(arm.label) + seeds, 38)


def plain(text: str) -> str:
    """Text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def note(panel: Panel, text: str) -> None:
    panel.axes.text(0.5, 0.5, text, transform=panel.axes.transAxes, ha="center", va="center", color="0.35")
    for axes in (panel.axes, panel.strip):
        if axes:
            axes.set(xticks=[], yticks=[])


def draw_over_seeds(axes: Any, table: pd.DataFrame, column: str, **style: Any) -> None:
    """Mean over seeds by epoch, with bars from the least to the greatest seed."""
    values = table.groupby("epoch")[column].agg(["mean", "min", "max"])
    errors = [values["mean"] - values["min"], values["max"] - values["mean"]] if table["run"].nunique() > 1 else None
    axes.errorbar(values.index, values["mean"], yerr=errors, capsize=2, elinewidth=0.7, **style)


def set_epochs(axes: Any, epochs: Iterable[float]) -> None:
    """The epochs on the horizontal axis, from 0: each of a few, else a handful of whole ones."""
    found = sorted({0.0, *epochs})
    if len(found) <= 7:
        axes.set_xticks(found, [f"{epoch:.3g}" for epoch in found])
    else:
        axes.locator_params(axis="x", integer=True, nbins=6)
    margin = 0.05 * (found[-1] or 1)
    axes.set(xlabel="epoch", xlim=(-margin, found[-1] + margin))


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
    panel.strip.text(0.5, top - 0.1, text, transform=panel.strip.get_yaxis_transform(), ha="center", va="center")
    panel.strip.set(ylim=(-0.6, top + 0.5), yticks=[], facecolor="0.95")


def set_log(axis: Any, values: pd.Series) -> None:
    """A logarithmic axis that holds every value above 0, the same in all panels."""
    positive = values[values > 0]
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = (positive.min() / 1.6, positive.max() * 1.6) if len(positive) else (0.1, 10)
    axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})


def draw_box(panel: Panel, y: int, values: Any) -> None:
    """Quartiles and 5 to 95 % of the rows that moved, the share that did not in the strip, the number at the right."""
    moved = values[values > 0]
    if len(moved):
        low, q1, median, q3, high = np.percentile(moved, (5, 25, 50, 75, 95))
        box = {"whislo": low, "q1": q1, "med": median, "q3": q3, "whishi": high}
        line = {"linewidth": 0.8}
        style = {"boxprops": line, "whiskerprops": line, "capprops": line, "medianprops": {"color": "#D55E00"}}
        panel.axes.bxp([box], positions=[y], widths=0.6, orientation="horizontal", showfliers=False, **style)
    if panel.strip and len(values):
        share = f"{100 * (1 - len(moved) / len(values)):.3g} %"
        panel.strip.text(0.5, y, share, ha="center", va="center", fontsize=6.5)
    at_right = {"xycoords": panel.axes.get_yaxis_transform(), "xytext": (3, 0), "textcoords": "offset points"}
    panel.axes.annotate(f"n={len(values):,}", (1, y), va="center", fontsize=6.5, **at_right)
