"""Tables of a group of arms in, figures out, and their PNG and SVG bytes: the only file that draws."""

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.measures import MEASURES
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.reporting.arms import Arm
from toolkit.reporting.tables import GroupTables, ordered_strata

# Okabe & Ito 2008, the colours that stay apart for colour-blind readers; their yellow is too pale for lines on white.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))

REFERENCE: dict[str, Any] = {"color": "0.45", "linewidth": 0.9, "linestyle": (0, (1, 1.5))}
"""How a line that is no run's is drawn."""

STYLE = {"font.size": 8, "axes.titlesize": 8, "svg.fonttype": "none", "svg.hashsalt": "toolkit", "axes.linewidth": 0.6}
WIDTH = 7.2
"""Inches: the text width of a paper in one column."""


def draw(tables: GroupTables) -> dict[str, tuple[bytes, bytes]]:
    """Every figure that applies to a group, by name, as the bytes of a PNG and an SVG; the same input gives the same bytes."""
    import matplotlib

    figures = {
        "scores_over_epochs": scores_over_epochs,
        "drift_over_epochs": drift_over_epochs,
        "word_drift_by_exposure": word_drift_by_exposure,
        "position_drift": position_drift,
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE, "backend": matplotlib.rcParams["backend"]}):
        drawn = {name: make(tables) for name, make in figures.items()}
        return {name: (_bytes(figure, "png"), _bytes(figure, "svg")) for name, figure in drawn.items() if figure}


def _bytes(figure: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


@dataclass(frozen=True)
class Panel:
    """A logarithmic axis and, beside it, a strip for what is exactly 0 and has no place on it (None without zeros)."""

    axes: Any
    strip: Any


def _panels(figure: Any, count: int, columns: int, num_zeros: int, *, is_sideways: bool = False) -> list[Panel]:
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


def _line_style(index: int) -> dict[str, Any]:
    style = {"color": COLOURS[index % 7], "marker": MARKERS[index % 8], "linestyle": LINES[index % 6]}
    return {**style, "linewidth": 1.2, "markersize": 4, "markerfacecolor": "white", "markeredgewidth": 1}


def _legend(figure: Any, arms: Sequence[Arm], extra: Iterable[Any] = (), columns: int = 3) -> None:
    """One legend below all panels, where no data can lie."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=_label(arm), **_line_style(i)) for i, arm in enumerate(arms)]
    figure.legend(handles=[*lines, *extra], loc="outside lower center", ncols=columns, frameon=False, handlelength=3.5)


def _label(arm: Arm) -> str:
    seeds = f" [{len(arm.runs)} seeds]" if len(arm.runs) > 1 else ""
    return textwrap.fill(_plain(arm.label) + seeds, 38)


def _plain(text: str) -> str:
    """Text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def _note(panel: Panel, text: str) -> None:
    panel.axes.text(0.5, 0.5, text, transform=panel.axes.transAxes, ha="center", va="center", color="0.35")
    for axes in (panel.axes, panel.strip):
        if axes:
            axes.set(xticks=[], yticks=[])


def _epoch_ticks(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("epoch")


def _over_seeds(axes: Any, table: pd.DataFrame, column: str, **style: Any) -> None:
    """Mean over seeds by epoch, with bars from the least to the greatest seed."""
    values = table.groupby("epoch")[column].agg(["mean", "min", "max"])
    errors = [values["mean"] - values["min"], values["max"] - values["mean"]] if table["run"].nunique() > 1 else None
    axes.errorbar(values.index, values["mean"], yerr=errors, capsize=2, elinewidth=0.7, **style)


def scores_over_epochs(tables: GroupTables) -> Any:
    """The headline score of every labelled split at every epoch, with the majority class."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    splits = list(dict.fromkeys(tables.baselines["split"]))
    score = tables.group.runs[0].score
    if not splits or score not in tables.scores:
        return None
    figure = Figure(figsize=(WIDTH, 2.6 * math.ceil(len(splits) / 3) + 0.6), layout="constrained")
    for split, panel in zip(splits, _panels(figure, len(splits), 3, 0), strict=True):
        for i, arm in enumerate(tables.group.arms):
            lines = tables.scores[tables.scores["run"].isin(arm.names) & (tables.scores["split"] == split)]
            _over_seeds(panel.axes, lines, score, **_line_style(i))
        rates = tables.baselines.loc[tables.baselines["split"] == split, "majority_rate"].dropna().unique()
        for rate in rates if score == "accuracy" else []:
            panel.axes.axhline(rate, **REFERENCE)
        panel.axes.set(title=_plain(str(split)), ylabel=score)
        _epoch_ticks(panel.axes)
    majority = Line2D([], [], label="majority class", **REFERENCE)
    _legend(figure, tables.group.arms, [majority] if score == "accuracy" else [])
    return figure


def drift_over_epochs(tables: GroupTables) -> Any:
    """Relative drift of each whole parameter after each epoch; exact zeros in a strip of their own."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    arms = tables.group.arms
    drawn = {name: [tables.whole(arm, name) for arm in arms] for name in EMBEDDING_PARAMETERS}
    yardsticks = {name: tables.whole(arms[0], name, statistic="reinitialised")["value"] for name in drawn}
    values = pd.concat([*(lines["value"] for parts in drawn.values() for lines in parts), *yardsticks.values()])
    if not len(values):
        return None
    num_zeros = max(sum(bool((lines["value"] == 0).any()) for lines in parts) for parts in drawn.values())
    figure = Figure(figsize=(WIDTH, 5.2 + 0.3 * num_zeros), layout="constrained")
    for place, (name, panel) in enumerate(zip(drawn, _panels(figure, 5, 3, num_zeros), strict=True)):
        panel.axes.set(title=name, ylabel="relative drift ‖Δ‖ / ‖E⁰‖" if place in (0, 3) else "")
        if all(lines.empty for lines in drawn[name]):
            _note(panel, "not applicable:\nthis model has none")
            continue
        is_proven = all(arm.is_proven_frozen(name) for arm, x in zip(arms, drawn[name], strict=True) if _has_zero(x))
        for i, lines in enumerate(drawn[name]):
            _over_seeds(panel.axes, lines[lines["value"] > 0], "value", **_line_style(i))
        _draw_zeros(panel, [lines.loc[lines["value"] == 0, "epoch"].unique() for lines in drawn[name]], is_proven)
        for yardstick in yardsticks[name].dropna().unique():
            panel.axes.axhline(yardstick, **REFERENCE)
        _log(panel.axes.yaxis, values)
        _epoch_ticks(panel.strip or panel.axes)
    _legend(figure, arms, [Line2D([], [], label="re-initialised (yardstick)", **REFERENCE)])
    return figure


def _has_zero(lines: pd.DataFrame) -> bool:
    return bool((lines["value"] == 0).any())


def _draw_zeros(panel: Panel, places: Sequence[Any], is_proven: bool) -> None:
    """Mark in the strip, one line per arm, where an arm is exactly 0."""
    if panel.strip is None:
        return
    with_zeros = [i for i, xs in enumerate(places) if len(xs)]
    for slot, i in enumerate(reversed(with_zeros)):
        is_long = len(places[i]) > 50
        panel.strip.plot(places[i], np.full(len(places[i]), slot), **_line_style(i) | ({"marker": ""} if is_long else {}))
    text = "exactly 0" + (": frozen, bit-identical" if is_proven else "") if with_zeros else "none is exactly 0"
    top = max(len(with_zeros), 1)
    panel.strip.text(0.5, top - 0.1, text, transform=panel.strip.get_yaxis_transform(), ha="center", va="center")
    panel.strip.set(ylim=(-0.6, top + 0.5), yticks=[], facecolor="0.95")


def _log(axis: Any, values: pd.Series) -> None:
    """A logarithmic axis that holds every value above 0, the same in all panels."""
    positive = values[values > 0]
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = (positive.min() / 1.6, positive.max() * 1.6) if len(positive) else (0.1, 10)
    axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})


def word_drift_by_exposure(tables: GroupTables) -> Any:
    """The distribution of the word rows' drift in each exposure stratum, one panel per arm, at the last epoch."""
    from matplotlib.figure import Figure

    words, arms = tables.words, tables.group.arms
    if words.empty:
        return None
    strata = ordered_strata(words["stratum"])[::-1]
    rows = math.ceil(len(arms) / 3)
    figure = Figure(figsize=(WIDTH, (0.7 + 0.22 * len(strata)) * rows + 0.4), layout="constrained")
    has_zeros = bool((words["norm"] == 0).any())
    for place, (arm, panel) in enumerate(zip(arms, _panels(figure, len(arms), 3, int(has_zeros), True), strict=True)):
        own = words[words["run"].isin(arm.names)]
        for y, stratum in enumerate(strata):
            _draw_box(panel, y, own.loc[own["stratum"] == stratum, "norm"].to_numpy())
        _log(panel.axes.xaxis, words["norm"])
        panel.axes.set(title=_label(arm), xlabel=f"‖Δ‖ ({MEASURES['norm'].unit})", ylim=(-0.6, len(strata) - 0.4))
        outer = panel.strip or panel.axes
        outer.set_yticks(range(len(strata)), strata if place % 3 == 0 else [""] * len(strata))
        if panel.strip:
            panel.axes.tick_params(left=False, labelleft=False)
            panel.strip.set(xticks=[0.5], xticklabels=["exactly\n0"], xlim=(0, 1), facecolor="0.95")
    return figure


def _draw_box(panel: Panel, y: int, values: Any) -> None:
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


def position_drift(tables: GroupTables) -> Any:
    """Drift of every position row at the last epoch, mean over seeds, with the longest text of the training data."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    positions, arms = tables.positions, tables.group.arms
    if positions.empty:
        return None
    drawn = [positions[positions["run"].isin(arm.names)].groupby("position")["norm"].mean() for arm in arms]
    num_zeros = sum(bool((values == 0).any()) for values in drawn)
    figure = Figure(figsize=(WIDTH, 3.2 + 0.2 * num_zeros), layout="constrained")
    (panel,) = _panels(figure, 1, 1, num_zeros)
    for i, values in enumerate(drawn):
        style = _line_style(i) | {"markevery": max(len(values) // 16, 1)}
        panel.axes.plot(values.index, values.where(values > 0), **style)
    _log(panel.axes.yaxis, positions["norm"])
    is_proven = all(arm.is_proven_frozen("position_embeddings") for arm, x in zip(arms, drawn, strict=True) if (x == 0).any())
    _draw_zeros(panel, [values.index[values == 0] for values in drawn], is_proven)
    panel.axes.set(ylabel=f"‖Δ‖ ({MEASURES['norm'].unit})")
    (panel.strip or panel.axes).set(xlabel="position")
    longest = positions["longest_length"].dropna()
    extra = []
    if len(longest):
        panel.axes.axvline(longest.max() - 0.5, **REFERENCE)
        extra = [Line2D([], [], label=f"end of the longest training text ({longest.max():.0f} tokens)", **REFERENCE)]
    _legend(figure, arms, extra, columns=2)
    return figure
