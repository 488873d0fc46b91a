"""Tables of a group of arms in, the figures of their report out."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pandas as pd

from toolkit.analysis.comparison.arms import Arm
from toolkit.analysis.rows.measures import MEASURES
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.reporting.comparison.arm_time import in_time, names_in_time, set_time
from toolkit.reporting.comparison.tables import GroupTables, ordered_strata
from toolkit.reporting.images import WIDTH, Images, render
from toolkit.reporting.panels import (
    MESSAGE,
    REFERENCE,
    draw_box,
    draw_over_seeds,
    draw_zeros,
    legend_below,
    line_style,
    note,
    panels_of,
    plain,
    set_log,
    wrap,
)


def draw(tables: GroupTables) -> Images:
    """Every figure that applies to a group, by name, as images; equal input, equal bytes."""
    figures = {
        "scores_over_epochs": scores_over_epochs,
        "drift_over_epochs": drift_over_epochs,
        "word_drift_by_exposure": word_drift_by_exposure,
        "position_drift": position_drift,
    }
    return render({name: partial(make, tables) for name, make in figures.items()})


def _legend(figure: Any, labels: Sequence[str], extra: Iterable[Any] = ()) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=label, **line_style(i)) for i, label in enumerate(labels)]
    legend_below(figure, [*lines, *extra], handlelength=3.5)


def _first_seed(arm: Arm, width: int) -> str:
    """The name of an arm with the seed whose rows are shown, where it has several."""
    return wrap(arm.label + (f", seed\u00a0{arm.runs[0].config.seed}" if len(arm.runs) > 1 else ""), width)


def scores_over_epochs(tables: GroupTables) -> Any:
    """The headline score of every labelled split at every epoch, with the majority class."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    splits = list(dict.fromkeys(tables.baselines["split"]))
    score = tables.group.runs[0].score
    if not splits or score not in tables.scores:
        return None
    figure = Figure(figsize=(WIDTH, 2.6 * math.ceil(len(splits) / 3) + 0.6), layout="constrained")
    limits = _limits(tables, splits, score)
    for split, panel in zip(splits, panels_of(figure, len(splits), 3, 0), strict=True):
        for i, arm in enumerate(tables.group.arms):
            lines = tables.scores[tables.scores["run"].isin(arm.names) & (tables.scores["split"] == split)]
            draw_over_seeds(panel.axes, in_time(tables, lines), score, **line_style(i))
        rates = tables.baselines.loc[tables.baselines["split"] == split, "majority_rate"].dropna().unique()
        for rate in rates if score == "accuracy" else []:
            panel.axes.axhline(rate, **REFERENCE)
        panel.axes.set(title=plain(str(split)), ylabel=score, ylim=limits)
        set_time(tables, panel.axes, tables.scores["epoch"])
    majority = Line2D([], [], label="majority class", **REFERENCE)
    _legend(figure, names_in_time(tables), [majority] if score == "accuracy" else [])
    return figure


def _limits(tables: GroupTables, splits: Sequence[str], score: str) -> tuple[float, float]:
    """The same limits for all panels, so that splits compare at a glance."""
    shown = tables.scores.loc[tables.scores["split"].isin(splits), score]
    if score == "accuracy":
        shown = pd.concat([shown, tables.baselines["majority_rate"]])
    low, high = (float(shown.min()), float(shown.max())) if shown.notna().any() else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


def drift_over_epochs(tables: GroupTables) -> Any:
    """Relative drift of each whole parameter after each epoch; exact zeros in a strip of their own."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    arms = tables.group.arms
    drawn = {name: [in_time(tables, tables.whole(arm, name)) for arm in arms] for name in EMBEDDING_PARAMETERS}
    reinitialised = [
        {name: tables.whole(arm, name, statistic="reinitialised")["value"] for name in drawn} for arm in arms
    ]
    yardsticks = {name: pd.concat([values[name] for values in reinitialised]) for name in drawn}
    values = pd.concat([*(lines["value"] for parts in drawn.values() for lines in parts), *yardsticks.values()])
    if not len(values):
        return None
    # What stays 0 has no relative drift and is exactly 0 all the same: only the absolute change tells.
    still = {name: [_still(in_time(tables, tables.whole(arm, name, "norm"))) for arm in arms] for name in drawn}
    num_zeros = max(sum(bool(len(epochs)) for epochs in parts) for parts in still.values())
    figure = Figure(figsize=(WIDTH, 5.2 + 0.3 * num_zeros), layout="constrained")
    for place, (name, panel) in enumerate(zip(drawn, panels_of(figure, 5, 3, num_zeros), strict=True)):
        panel.axes.set(title=name, ylabel="relative drift ‖Δ‖ / ‖E⁰‖" if place in (0, 3) else "")
        if all(lines.empty for lines in drawn[name]):
            note(panel, "not applicable:\nthis model has none")
            continue
        is_proven = all(arm.is_proven_frozen(name) for arm, x in zip(arms, still[name], strict=True) if len(x))
        for i, lines in enumerate(drawn[name]):
            draw_over_seeds(panel.axes, lines[lines["value"] > 0], "value", **line_style(i))
        draw_zeros(panel, still[name], is_proven)
        pairs = zip(drawn[name], still[name], strict=True)
        undefined = [bool((x["value"].isna() & ~x["epoch"].isin(zeros)).any()) for x, zeros in pairs]
        if any(undefined):
            which = "" if all(undefined) else f" for {sum(undefined)} of {len(arms)} arms"
            panel.axes.text(0.5, 0.5, f"undefined{which}:\nit was 0 before", **MESSAGE, transform=panel.axes.transAxes)
        for yardstick in yardsticks[name].dropna().unique():
            panel.axes.axhline(yardstick, **REFERENCE)
        set_log(panel.axes.yaxis, values)
        set_time(tables, panel.strip or panel.axes, tables.drift["epoch"])
    _legend(figure, names_in_time(tables), [Line2D([], [], label="re-initialised (yardstick)", **REFERENCE)])
    return figure


def _still(norms: pd.DataFrame) -> Any:
    """The epochs at which a parameter is exactly what it was in some seed."""
    return norms.loc[norms["value"] == 0, "epoch"].unique()


def word_drift_by_exposure(tables: GroupTables) -> Any:
    """Drift of the word rows by exposure at the last epoch of the first seed, a panel per arm where any moved."""
    from matplotlib.figure import Figure

    words = tables.words
    arms = [arm for arm in tables.group.arms if tables.has_moved_rows(words, arm)]
    if not arms:
        return None
    words = words[words["run"].isin([name for arm in arms for name in arm.names])]
    strata = ordered_strata(words["stratum"])[::-1]
    rows = math.ceil(len(arms) / 3)
    figure = Figure(figsize=(WIDTH, (0.7 + 0.22 * len(strata)) * rows + 0.4), layout="constrained")
    has_zeros = bool((words["norm"] == 0).any())
    panels = panels_of(figure, len(arms), 3, int(has_zeros), is_sideways=True)
    for place, (arm, panel) in enumerate(zip(arms, panels, strict=True)):
        own = words[words["run"].isin(arm.names)]
        for y, stratum in enumerate(strata):
            draw_box(panel, y, own.loc[own["stratum"] == stratum, "norm"].to_numpy())
        set_log(panel.axes.xaxis, words["norm"])
        panel.axes.set(
            title=_first_seed(arm, 30), xlabel=f"‖Δ‖ ({MEASURES['norm'].unit})", ylim=(-0.6, len(strata) - 0.4)
        )
        (panel.strip or panel.axes).set_yticks(range(len(strata)), strata if place % 3 == 0 else [""] * len(strata))
        if panel.strip:
            panel.axes.tick_params(left=False, labelleft=False)
            panel.strip.set(xticks=[0.5], xticklabels=["exactly\n0 (%)"], xlim=(0, 1), facecolor="0.95")
    return figure


def position_drift(tables: GroupTables) -> Any:
    """Drift of every position row at the last epoch, of the first seed, with the longest text of the training data."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    positions, arms = tables.positions, tables.group.arms
    if not any(tables.has_moved_rows(positions, arm) for arm in arms):
        return None
    name = "position_embeddings"
    drawn = [positions[positions["run"].isin(arm.names)].groupby("position")["norm"].mean() for arm in arms]
    with_zeros = [arm for arm, values in zip(arms, drawn, strict=True) if (values == 0).any()]
    longest, last = positions["longest_length"].max(), positions["position"].max()
    ends = [longest * 1.25, last] if longest * 2 < last else [last]  # NaN compares as False: then all in one panel
    figure = Figure(figsize=(WIDTH, 3.2 + 0.2 * len(with_zeros)), layout="constrained")
    for end, panel in zip(ends, panels_of(figure, len(ends), 2, len(with_zeros)), strict=True):
        for i, values in enumerate(drawn):
            style = line_style(i) | {"markevery": max(round(end / 16), 1)}
            panel.axes.plot(values.index, values.where(values > 0), **style)
        set_log(panel.axes.yaxis, positions["norm"])
        is_proven = all(arm.is_proven_frozen(name) for arm in with_zeros)
        draw_zeros(panel, [values.index[(values == 0) & (values.index <= end)] for values in drawn], is_proven)
        panel.axes.set(ylabel=f"‖Δ‖ ({MEASURES['norm'].unit})" if panel.axes.get_subplotspec().is_first_col() else "")
        panel.axes.axvline(longest - 0.5, **REFERENCE)
        (panel.strip or panel.axes).set(xlabel="position", xlim=(-0.02 * end, 1.02 * end))
    label = f"end of the longest training text ({longest:.0f} tokens)"
    extra = [Line2D([], [], label=label, **REFERENCE)] if longest == longest else []
    _legend(figure, [_first_seed(arm, 46) for arm in arms], extra)
    return figure
