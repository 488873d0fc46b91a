"""Drift joined with score in, the panels of one figure filled: drift beyond noise against what forbidding it cost.

Drift is a multiple of what random gradient signs would have done (``times_noise``), by which tasks may be compared at
one learning rate only. Of an arm without one (another optimizer) it is the drift of the rows that training showed, in
per cent, which depends on learning rate and length of training too.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from toolkit.analysis.comparison.drift_cards import MARGIN
from toolkit.reporting.comparison.selections import task_names
from toolkit.reporting.panels import REFERENCE

BAND: Mapping[str, Any] = {"color": "0.93", "zorder": 0}
"""How the margins are drawn: around no gain, and around noise."""


def draw_gain(axes: Any, table: pd.DataFrame, styles: Mapping[str, Mapping[str, Any]], margin_points: float) -> None:
    """One arm: a small mark per run, a large one at the mean of each task, the bands of what counts as nothing."""
    axes.axhline(0, **REFERENCE)
    if not math.isnan(margin_points):
        axes.axhspan(-margin_points, margin_points, **BAND)
    drift = _name_drift(axes, table)
    for task in dict.fromkeys(task_names(table)):
        own = task_names(table) == task
        _draw_cloud(axes, drift[own], table.loc[own, "gain_points"], styles[task])


def gain_limits(gains: pd.Series, margin_points: float) -> tuple[float, float]:
    """Limits of an axis that hold 0, the margin where there is one, and every value."""
    ends = [0.0, *gains] + ([] if math.isnan(margin_points) else [-margin_points, margin_points])
    pad = 0.12 * (max(ends) - min(ends)) or 0.5
    return min(ends) - pad, max(ends) + pad


def _name_drift(axes: Any, table: pd.DataFrame) -> pd.Series:
    """Drift of each run of an arm as a multiple of its noise, or in per cent where none has one; names the axis."""
    name = str(table["parameter"].iloc[0]).replace("_", " ")
    if table["times_noise"].notna().any():
        # Noise and what counts as equal to it are always in the picture: a difference of drifts is not to look large.
        ends = [*table["times_noise"].dropna(), 1 - 2 * MARGIN, 1 + 2 * MARGIN]
        pad = 0.06 * (max(ends) - min(ends))
        rates = " at unlike learning rates" if table["learning_rate"].nunique() > 1 else ""
        axes.set(xlim=(min(ends) - pad, max(ends) + pad), xlabel=f"drift of {name}\n(shown rows; 1 = its noise{rates})")
        axes.axvspan(1 - MARGIN, 1 + MARGIN, **BAND)
        axes.axvline(1, **REFERENCE)
        return table["times_noise"]
    drift = 100 * table["drift"]
    axes.set(xlim=(0, 1.15 * drift.max()), xlabel=f"drift of {name}\n(shown rows, %)")
    return drift


def _draw_cloud(axes: Any, x: pd.Series, y: pd.Series, style: Mapping[str, Any]) -> None:
    if len(x) > 1:
        axes.plot(x, y, **{**style, "markersize": 3, "alpha": 0.55, "markeredgewidth": 0.7})
    axes.plot([x.mean()], [y.mean()], **{**style, "markersize": 7, "markerfacecolor": "none"})
