"""Whether drift was worth its cost: drift beyond noise, gains and cost.

Drift is a multiple of what random gradient signs would have done (``times_noise``), by which tasks may be compared at
one learning rate only. Of a regime without one (another optimizer) it is the drift of the exposed rows, in per cent,
which depends on learning rate and length of training too.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from toolkit.comparison.cards import MARGIN
from toolkit.comparison.report_data import ReportData
from toolkit.reporting.cells import NOT_APPLICABLE, listing, mean_and_sd
from toolkit.reporting.charts import (
    REFERENCE,
    Chart,
    Charts,
    altair,
    colour,
    data_of,
    once,
    ordered,
    padded,
    panels,
    pick,
    regimes_of,
    shape,
    tips,
)
from toolkit.reporting.page import (
    Block,
    NoteBlock,
    Section,
    TextBlock,
    chart_blocks,
    folds,
    rows_block,
    table_block,
    varying,
)
from toolkit.reporting.topics.caveats import largest_size, task_names
from toolkit.schema import COLUMNS

COST = (
    "base num_train_examples score score_mean num_trainable num_trainable_ratio seconds seconds_ratio peak_memory_mib "
    "examples_per_second"
)


def cost_section(data: ReportData, charts: Charts) -> Section | None:
    """The section on what each condition cost beside what it scored."""
    if data.cost.empty or not any(run.part("cost") for run in data.runs):
        return None
    caption = "Score on the reported split against the seconds that each run took; one mark per run."
    figure = chart_blocks(charts, "cost_against_score", caption, "Cost against score")
    cost = data.cost.assign(num_trainable=data.cost["num_trainable"].round().astype("Int64"))
    bodies = [
        [table_block(varying(cost[cost["group"] == group.title]), COST, f"Cost of {group.title}, means over seeds")]
        for group in data.groups
    ]
    notes = [str(text) for text in dict.fromkeys([*data.cost["note"], *data.cost["reason"]]) if text]
    notes_blocks = (NoteBlock(text=f"{listing(notes).capitalize()}."),) if notes else ()
    lead = (
        "Seconds add up training, making features and the head's stage. They are wall-clock time: a run that shared "
        "its machine took longer, so compare by them only runs that had it to themselves. Memory is the peak of the "
        "process; runs that one process made share it."
    )
    blocks = (*figure, *folds([group.title for group in data.groups], bodies), *notes_blocks)
    return Section(id="cost", title="Cost beside score", lead=lead, blocks=blocks)


def drift_and_score_section(data: ReportData, charts: Charts) -> Section | None:
    """How far the embeddings moved beside what forbidding it cost."""
    table = data.joined[~data.joined["is_frozen"].astype(bool)] if len(data.joined) else data.joined
    table = largest_size(table)
    if table.empty:
        return None
    drift_and_gain = _drift_beside_score(table)
    caption = (
        "Drift of the word rows that training showed, in multiples of its sign-noise null, against the score minus "
        "that of the run of the same seed with its embeddings frozen. Shaded across: the margin on the score. Shaded "
        f"upright: drift within {MARGIN:g} of 1, which counts as equal to noise. Small marks are runs, large ones the "
        "mean of a task."
    )
    figure = chart_blocks(charts, "drift_against_gain", caption, "Drift against what forbidding it cost")
    lead = "The unit of any statement across tasks is a task, never an epoch or a seed: these are not independent."
    blocks = (*figure, drift_and_gain, *_refused_block(table), association_block(data.association))
    return Section(id="drift-and-score", title="Drift and score", lead=lead, blocks=blocks)


def _drift_beside_score(table: pd.DataFrame) -> Block:
    """A row per task and condition: drift of each parameter beside its noise, and the cost of forbidding it."""
    parameters = list(dict.fromkeys(table.loc[table["times_noise"].notna(), "parameter"]))
    rows = []
    for (group, condition), drift_and_gain in table.groupby(["group", "condition"], sort=False):
        runs = drift_and_gain.drop_duplicates("run")
        gains = runs["gain_points"].dropna()
        times_noise = dict(list(drift_and_gain.groupby("parameter", sort=False)["times_noise"]))
        cells = [mean_and_sd(times_noise[name]) if name in times_noise else NOT_APPLICABLE for name in parameters]
        rows.append([group, condition, len(runs), mean_and_sd(gains) if len(gains) else NOT_APPLICABLE, *cells])
    gain_heading = "score minus frozen (points)"
    noise_headings = [f"{name} (times its noise)" for name in parameters]
    header = ["model and task", "condition", "runs", gain_heading, *noise_headings]
    hows = dict.fromkeys(noise_headings, f"{COLUMNS['times_noise'].meaning} Mean ± sd over seeds.")
    hows[gain_heading] = (
        "Score minus that of the run of the same seed with its embeddings frozen: what the drift bought."
    )
    return rows_block(header, rows, "Drift of each parameter, and what forbidding all of it cost", hows)


def _refused_block(table: pd.DataFrame) -> tuple[Block, ...]:
    """Why parameters have no column, or conditions no value in it: no run had a noise to hold them against."""
    # ``count`` is of values that are no NaN.
    lacks_column = table.groupby("parameter")["times_noise"].transform("count") == 0
    refused = table[table.groupby(["condition", "parameter"])["times_noise"].transform("count") == 0]
    refused = refused.assign(
        name=refused["parameter"].where(lacks_column, refused["parameter"] + " under " + refused["condition"])
    )
    names_by_reason: dict[str, list[str]] = {}
    for record in refused.drop_duplicates("name").to_dict("records"):
        reason = str(record["reason"]).replace(str(record["run"]), "a run")
        names_by_reason.setdefault(reason, []).append(str(record["name"]))
    texts = [f"{listing(names)}: {reason}" for reason, names in names_by_reason.items()]
    return (TextBlock(text=f"Not compared with noise: {'; '.join(texts)}."),) if texts else ()


def association_block(table: pd.DataFrame) -> Block:
    """The rank correlation over tasks, or the reason why there is none."""
    if table.empty:
        return TextBlock(text="Not applicable: no condition trained its embeddings beside one that froze them.")
    if table["spearman"].isna().all():
        reasons = "; ".join(dict.fromkeys(map(str, table["reason"])))
        return TextBlock(text=f"Does drift predict gain across tasks? Not answered: {reasons}.")
    names = "model base parameter num_tasks num_runs spearman p q reason"
    return table_block(table, names, "Rank correlation of drift with gain, one point per task")


def drift_and_score_chart(
    joined: pd.DataFrame, parameter: str = "word_embeddings", *, margin_points: float = math.nan
) -> Chart | None:
    """The chart of :func:`toolkit.plot_drift_and_score` from its table, a panel per regime; None without a gain."""
    is_drawn = (joined["parameter"] == parameter) & joined["gain_points"].notna() & (joined["offset_free_drift"] > 0)
    table = largest_size(joined[is_drawn])
    if table.empty:
        return None
    table = table.assign(regime=regimes_of(table), task_name=task_names(table))
    regimes = ordered(table["regime"], None)
    tasks = list(dict.fromkeys(table["task_name"]))
    picker = pick("task_name", tasks, "task") if len(tasks) > 1 else None
    ends = [0.0, *table["gain_points"]] + ([] if math.isnan(margin_points) else [-margin_points, margin_points])
    scale = padded(ends, 0.12)
    columns = min(len(regimes), 2)
    size = {"width": 440 if columns == 1 else 280, "height": 190}
    charts = []
    for i, regime in enumerate(regimes):
        title = None if i % columns else ["score minus the run with", "embeddings frozen (points)"]
        y = altair.Y("gain_points:Q", scale=scale, title=title, axis=altair.Axis(format="+~f", grid=False))
        regime_points = table[table["regime"] == regime]
        panel = _panel(regime_points, y, tasks, margin_points, picker.opacity if picker else None)
        charts.append(panel.properties(title=regime, **size))
    return panels(charts, columns, picker)


def _panel(table: pd.DataFrame, y: Any, tasks: Sequence[str], margin_points: float, opacity: Any) -> Chart:
    """One regime's panel: a small mark per run, a large one per task; shaded the margin and what equals noise."""
    has_noise = table["times_noise"].notna().any()
    drift = table["times_noise"] if has_noise else 100 * table["offset_free_drift"]
    parameter = str(table["parameter"].iloc[0]).replace("_", " ")
    if has_noise:
        # Noise and what counts as equal to it are always in the picture: a difference of drifts is not to look large.
        scale = padded([*drift.dropna(), 1 - 2 * MARGIN, 1 + 2 * MARGIN])
        rates = "; learning rates differ" if table["learning_rate"].nunique() > 1 else ""
        title = f"drift of {parameter}, exposed rows (times its noise{rates})"
        drift_tip = "drift (times its noise)"
    else:
        scale = altair.Scale(domain=[0, 1.15 * float(drift.max())], nice=False)
        title = f"drift of {parameter}, exposed rows (%)"
        drift_tip = "drift (%)"
    # ``place`` is where a mark stands on the axis of drift.
    runs = table.assign(seed=table.get("seed", ""), place=drift)[["task_name", "seed", "place", "gain_points"]]
    runs_by_task = runs.groupby("task_name", sort=False)
    num_runs_texts = [f"mean of {num_runs}" for num_runs in runs_by_task.size()]
    means = runs_by_task[["place", "gain_points"]].mean().assign(runs=num_runs_texts)
    x = altair.X("place:Q", scale=scale, title=title, axis=altair.Axis(grid=False, format="~f", tickCount=6))
    look = {"color": colour("task_name", tasks), "shape": shape("task_name", tasks), "x": x, "y": y}
    if opacity is not None:
        look["opacity"] = opacity
    tip_fields = {"place": (drift_tip, ".3f"), "gain_points": ("score minus frozen (points)", "+.2f")}
    behind = _reference_marks({"scale": scale, "title": title} if has_noise else None, y, margin_points)
    small = altair.Chart(data_of(runs)).mark_point(size=18, strokeWidth=1)
    large = altair.Chart(data_of(means.reset_index())).mark_point(size=130, strokeWidth=2.2)
    return altair.layer(
        *behind,
        small.encode(tooltip=tips(task_name="task", seed="seed", **tip_fields), **look),
        large.encode(tooltip=tips(task_name="task", runs="runs", **tip_fields), **look),
    )


def _reference_marks(noise_axis: dict[str, Any] | None, y: Any, margin_points: float) -> list[Chart]:
    """What lies behind the runs: lines where drift equals its noise and gain is 0, shaded what counts as equal to them.

    ``noise_axis``: scale and title of drift in multiples of its noise; None where drift is in per cent.
    """
    band = once().mark_rect(color=REFERENCE, fillOpacity=0.16)
    line = once().mark_rule(color=REFERENCE, strokeDash=[2, 2])
    gain_axis = {"scale": y["scale"], "title": y["title"]}
    marks = [line.encode(y=altair.YDatum(0, **gain_axis))]
    if not math.isnan(margin_points):
        marks.insert(0, band.encode(y=altair.YDatum(-margin_points, **gain_axis), y2=altair.YDatum(margin_points)))
    if noise_axis is None:
        return marks
    noise_band = band.encode(x=altair.XDatum(1 - MARGIN, **noise_axis), x2=altair.XDatum(1 + MARGIN))
    return [noise_band, line.encode(x=altair.XDatum(1, **noise_axis)), *marks]
