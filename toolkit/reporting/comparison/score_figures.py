"""Tables of scores and comparisons over all tasks in, the figures of a paper out: differences, scores, sizes, cost."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.reported import reported_first
from toolkit.reporting.comparison.forest_figure import differences
from toolkit.reporting.comparison.gain_panels import draw_gain, gain_limits
from toolkit.reporting.comparison.selections import arm_names, largest_size, task_names
from toolkit.reporting.images import WIDTH, Images, render
from toolkit.reporting.panels import COLOURS, LINES, MARKERS, error_bars, legend_below, plain, wrap

SPLIT_MARKERS = ("o", "^", "s", "D", "v", "P")


def draw_scores(scores: pd.DataFrame, comparison: pd.DataFrame, joined: pd.DataFrame) -> Images:
    """Every figure that applies, by name, as images; equal input, equal bytes.

    ``scores``: one line per run and labelled split (``report_data.SCORES``); ``comparison``: ``toolkit.compare``;
    ``joined``: ``toolkit.join_drift``.
    """
    figures = {
        "differences": partial(differences, comparison),
        "scores_by_arm": partial(scores_by_arm, scores),
        "data_efficiency": partial(data_efficiency, scores),
        "cost_against_score": partial(cost_against_score, scores),
        "drift_against_gain": partial(drift_against_gain, joined, "word_embeddings", margin_of(comparison)),
    }
    return render(figures)


def scores_by_arm(scores: pd.DataFrame) -> Any:
    """A panel per task, a line per arm, a row of dots per split within it: every seed a dot, a bar at their mean."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.transforms import ScaledTranslation

    table = largest_size(scores)
    if table.empty:
        return None
    tasks, arms = list(dict.fromkeys(task_names(table))), arm_names(table)
    columns = min(len(tasks), 3)
    rows = math.ceil(len(tasks) / columns)
    most = max(own["split"].nunique() for _, own in table.groupby(task_names(table)))
    height = max((0.12 * most + 0.16) * len(arms), 0.6) + 1.0 + 0.13 * most
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for place, task in enumerate(tasks):
        own = table[task_names(table) == task]
        splits = _splits(own)
        for j, split in enumerate(splits):
            offset = (j - (len(splits) - 1) / 2) * 0.7 / max(len(splits), 2)
            _draw_dots(axes[place], own[own["split"] == split], arms, offset, j)
        for i in range(1, len(arms)):
            axes[place].axhline(i - 0.5, color="0.88", linewidth=0.5, zorder=0)
        axes[place].set(title=plain(task), xlabel=str(own["score"].iloc[0]))
        names = [f"{plain(split)}{_kind(own, split)}" for split in splits]
        handles = [Line2D([], [], linestyle="none", label=name, **_split_style(j)) for j, name in enumerate(names)]
        below = ScaledTranslation(0, -0.42, figure.dpi_scale_trans)  # inches: clear of the axis' name at any height
        axes[place].legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            bbox_transform=axes[place].transAxes + below,
            frameon=False,
            ncols=2,
            fontsize=7,
            handletextpad=0.1,
        )
    for spare in axes[len(tasks) :]:
        spare.set_visible(False)
    axes[0].set_yticks(range(len(arms)), [wrap(arm, 24) for arm in arms])
    axes[0].set_ylim(len(arms) - 0.45, -0.55)
    return figure


def _kind(table: pd.DataFrame, split: str) -> str:
    return " (reported)" if table.loc[table["split"] == split, "is_reported_split"].all() else ""


def _split_style(index: int) -> dict[str, Any]:
    colour = COLOURS[index % len(COLOURS)]
    return {"color": colour, "marker": SPLIT_MARKERS[index % len(SPLIT_MARKERS)], "markersize": 3.5}


def _draw_dots(axes: Any, table: pd.DataFrame, arms: Sequence[str], offset: float, index: int) -> None:
    style = _split_style(index)
    for y, arm in enumerate(arms):
        own = table[table["base"] == arm]
        for is_failed, fill in ((False, style["color"]), (True, "white")):
            part = own.loc[own["is_failed"] == is_failed, "value"]
            axes.plot(part, np.full(len(part), y + offset), linestyle="none", alpha=0.75, markerfacecolor=fill, **style)
        if own["value"].notna().sum() > 1:
            mean = own["value"].mean()
            axes.vlines(mean, y + offset - 0.1, y + offset + 0.1, color=style["color"], linewidth=1.4)


def data_efficiency(scores: pd.DataFrame) -> Any:
    """A panel per task with several sizes: the score on the reported split against the examples trained on."""
    from matplotlib.figure import Figure

    table = scores[scores["is_reported_split"] & scores["num_train_examples"].notna()]
    # One place for all arms of a size: near-duplicates that were removed leave some of them an example short.
    asked = table.groupby(["group", "size"], dropna=False, sort=False)["num_train_examples"]
    table = table.assign(num_train_examples=asked.transform("max"))
    sizes = table.groupby(task_names(table))["num_train_examples"].nunique()
    tasks = [task for task in dict.fromkeys(task_names(table)) if sizes.get(task, 0) > 1]
    if not tasks:
        return None
    arms = arm_names(table)
    figure, axes = _grid(Figure, len(tasks), 2.3)
    for place, task in enumerate(tasks):
        own = table[task_names(table) == task]
        for i, arm in enumerate(arms):
            lines = own[own["base"] == arm].groupby("num_train_examples")["value"]
            values = lines.agg(["mean", "min", "max", "size"])
            if values.empty:
                continue
            spread = (values["size"] > 1).any()
            errors = error_bars(values) if spread else None
            axes[place].errorbar(values.index, values["mean"], yerr=errors, capsize=2, elinewidth=0.7, **_arm_style(i))
        axes[place].set(title=plain(task), xscale="log", xlabel="training examples")
        axes[place].set_ylabel(str(own["score"].iloc[0]))
        _name_sizes(axes[place], sorted(own["num_train_examples"].unique()))
    _arm_legend(figure, arms)
    return figure


def _name_sizes(axes: Any, sizes: Sequence[float]) -> None:
    axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
    axes.set_xticks([], minor=True)


def cost_against_score(scores: pd.DataFrame) -> Any:
    """A panel per task: the score on the reported split against the seconds that the run took, one dot per run."""
    from matplotlib.figure import Figure

    table = largest_size(scores[scores["is_reported_split"] & (scores["seconds"] > 0)])
    if table.empty:
        return None
    tasks, arms = list(dict.fromkeys(task_names(table))), arm_names(table)
    figure, axes = _grid(Figure, len(tasks), 2.3)
    for place, task in enumerate(tasks):
        own = table[task_names(table) == task]
        for i, arm in enumerate(arms):
            part = own[own["base"] == arm]
            axes[place].plot(part["seconds"], part["value"], alpha=0.8, **(_arm_style(i) | {"linestyle": "none"}))
        axes[place].set(title=plain(task), xscale="log", xlabel="seconds", ylabel=str(own["score"].iloc[0]))
        _plain_log(axes[place].xaxis, own["seconds"])
    _arm_legend(figure, arms, is_line=False)
    return figure


def _plain_log(axis: Any, values: pd.Series) -> None:
    """A handful of whole ticks on a logarithmic axis, without powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    decades = math.log10(values.max() / values.min()) if len(values) else 1
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if decades < 1.5 else (1, 3) if decades < 3 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"))
    axis.set_minor_formatter(NullFormatter())
    axis.axes.set_xlim(values.min() / 1.5, values.max() * 1.5)


def margin_of(comparison: pd.DataFrame) -> float:
    """The margin of a comparison in points; NaN where nothing was compared."""
    return float(pd.to_numeric(comparison["margin_points"]).max())


def drift_against_gain(
    joined: pd.DataFrame, parameter: str = "word_embeddings", margin_points: float = math.nan
) -> Any:
    """A panel per arm: drift beyond noise against what forbidding it cost (gain_panels.py)."""
    from matplotlib.figure import Figure

    own = (joined["parameter"] == parameter) & joined["gain_points"].notna() & (joined["drift"] > 0)
    table = largest_size(joined[own])
    if table.empty:
        return None
    arms, tasks = arm_names(table), list(dict.fromkeys(task_names(table)))
    styles = {task: _arm_style(i) | {"linestyle": "none"} for i, task in enumerate(tasks)}
    figure, axes = _grid(Figure, len(arms), 2.6)
    limits = gain_limits(table["gain_points"], margin_points)
    for place, arm in enumerate(arms):
        draw_gain(axes[place], table[table["base"] == arm], styles, margin_points)
        axes[place].set(title=wrap(arm, 34), ylim=limits)
    axes[0].set_ylabel("score minus the run with\nembeddings frozen (points)")
    _arm_legend(figure, tasks, is_line=False)
    return figure


def _splits(table: pd.DataFrame) -> list[str]:
    """The splits of a task, the reported one first."""
    return reported_first(table["split"], set(table.loc[table["is_reported_split"], "split"]))


def _arm_style(index: int) -> dict[str, Any]:
    style = {"color": COLOURS[index % 7], "marker": MARKERS[index % 8], "linestyle": LINES[index % 6]}
    return {**style, "linewidth": 1.2, "markersize": 4, "markerfacecolor": "white", "markeredgewidth": 1}


def _grid(make: Any, count: int, height: float) -> tuple[Any, Any]:
    columns = min(count, 3)
    rows = math.ceil(count / columns)
    figure = make(figsize=(WIDTH if count > 1 else 0.6 * WIDTH, height * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes


def _arm_legend(figure: Any, arms: Iterable[str], *, is_line: bool = True) -> None:
    from matplotlib.lines import Line2D

    styles = [_arm_style(i) | ({} if is_line else {"linestyle": "none"}) for i, _ in enumerate(arms)]
    handles = [Line2D([], [], label=wrap(arm, 40), **style) for arm, style in zip(arms, styles, strict=True)]
    legend_below(figure, handles, handlelength=3)
