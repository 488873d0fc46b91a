"""Drift joined with score in, the chart of both out: drift beyond noise against what forbidding it cost.

Drift is a multiple of what random gradient signs would have done (``times_noise``), by which tasks may be compared at
one learning rate only. Of a regime without one (another optimizer) it is the drift of the exposed rows, in per cent,
which depends on learning rate and length of training too.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from toolkit.comparison.drift_cards import MARGIN
from toolkit.comparison.summaries import check_table
from toolkit.reporting.charts import (
    REFERENCE,
    Chart,
    colour,
    data_of,
    ordered,
    padded,
    panels,
    pick,
    regimes_of,
    shape,
    tips,
)
from toolkit.reporting.comparison.selections import largest_size, task_names


def plot_drift_and_score(
    joined: pd.DataFrame, parameter: str = "word_embeddings", *, margin_points: float = math.nan
) -> Chart | None:
    """Drift of a parameter against the score minus the frozen run's: a panel per regime, a mark per run and per task.

    ``joined`` is :func:`toolkit.join_drift`'s table. A small mark is a run, the large one of its colour the mean of
    the task. Shaded across: ``margin_points`` around no gain; shaded upright: the drift that counts as equal to noise.
    None where no run moved the parameter beside one that was frozen. ValueError for another table.
    """
    import altair

    check_table(joined, ("group", "parameter", "drift", "times_noise", "gain_points", "learning_rate"), "join_drift")
    own = (joined["parameter"] == parameter) & joined["gain_points"].notna() & (joined["drift"] > 0)
    table = largest_size(joined[own])
    if table.empty:
        return None
    table = table.assign(regime=regimes_of(table), task_name=task_names(table))
    regimes, tasks = ordered(table["regime"], None), list(dict.fromkeys(table["task_name"]))
    picker = pick("task_name", tasks, "task") if len(tasks) > 1 else None
    ends = [0.0, *table["gain_points"]] + ([] if math.isnan(margin_points) else [-margin_points, margin_points])
    scale = padded(ends, 0.12)
    columns = min(len(regimes), 2)
    parts = []
    for i, regime in enumerate(regimes):
        title = None if i % columns else ["score minus the run with", "embeddings frozen (points)"]
        y = altair.Y("gain_points:Q", scale=scale, title=title, axis=altair.Axis(format="+~g", grid=False))
        own = table["regime"] == regime
        panel = _panel(table[own], y, tasks, margin_points, picker.opacity if picker else None)
        panel = panel.properties(width=440 if columns == 1 else 280, height=190)
        parts.append(panel.properties(title=regime))
    return panels(parts, columns, picker)


def _panel(table: pd.DataFrame, y: Any, tasks: Sequence[str], margin_points: float, opacity: Any) -> Chart:
    import altair

    has_noise = table["times_noise"].notna().any()
    drift = table["times_noise"] if has_noise else 100 * table["drift"]
    name = str(table["parameter"].iloc[0]).replace("_", " ")
    once = altair.Chart(altair.Data(values=[{}]))
    behind = []
    if has_noise:
        # Noise and what counts as equal to it are always in the picture: a difference of drifts is not to look large.
        ends = [*drift.dropna(), 1 - 2 * MARGIN, 1 + 2 * MARGIN]
        scale = padded(ends)
        rates = ", unlike learning rates" if table["learning_rate"].nunique() > 1 else ""
        title = f"drift of {name}, exposed rows (times its noise{rates})"
        band = once.mark_rect(color=REFERENCE, fillOpacity=0.16)
        behind += [
            band.encode(x=altair.XDatum(1 - MARGIN, scale=scale, title=title), x2=altair.XDatum(1 + MARGIN)),
            once.mark_rule(color=REFERENCE, strokeDash=[2, 2]).encode(x=altair.XDatum(1, scale=scale, title=title)),
        ]
    else:
        scale = altair.Scale(domain=[0, 1.15 * float(drift.max())], nice=False)
        title = f"drift of {name}, exposed rows (%)"
    if not math.isnan(margin_points):
        ends_of_band = {"y": altair.YDatum(-margin_points, scale=y["scale"], title=y["title"])}
        band = once.mark_rect(color=REFERENCE, fillOpacity=0.16)
        behind.append(band.encode(**ends_of_band, y2=altair.YDatum(margin_points)))
    zero = altair.YDatum(0, scale=y["scale"], title=y["title"])
    behind.append(once.mark_rule(color=REFERENCE, strokeDash=[2, 2]).encode(y=zero))
    runs = pd.DataFrame(
        {
            "task_name": table["task_name"],
            "seed": table.get("seed", ""),
            "place": drift,
            "gain_points": table["gain_points"],
        }
    )
    means = runs.groupby("task_name", sort=False)[["place", "gain_points"]].mean().reset_index()
    means["runs"] = [f"mean of {n}" for n in runs.groupby("task_name", sort=False).size()]
    look = {"color": colour("task_name", tasks), "shape": shape("task_name", tasks)}
    look |= {} if opacity is None else {"opacity": opacity}
    x = altair.X("place:Q", scale=scale, title=title, axis=altair.Axis(grid=False, format="~g", tickCount=6))
    moved = ("drift (times its noise)" if has_noise else "drift (%)", ".3f")
    gained = ("score minus frozen (points)", "+.2f")
    small = (
        altair.Chart(data_of(runs))
        .mark_point(size=18, strokeWidth=1)
        .encode(x=x, y=y, tooltip=tips(task_name="task", seed="seed", place=moved, gain_points=gained), **look)
    )
    large = (
        altair.Chart(data_of(means))
        .mark_point(size=130, strokeWidth=2.2)
        .encode(x=x, y=y, tooltip=tips(task_name="task", runs="runs", place=moved, gain_points=gained), **look)
    )
    return altair.layer(*behind, small, large)
