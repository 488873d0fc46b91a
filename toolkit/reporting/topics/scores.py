"""Scores: by condition, over epochs, by number of examples, and by seconds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.intervals import seeds_interval
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.runs import range_of, reported_first
from toolkit.comparison.summaries import SCORES, check_table
from toolkit.comparison.verdicts import LEAST_SEEDS
from toolkit.reporting.cells import NOT_APPLICABLE, mean_text, number
from toolkit.reporting.charts import (
    REFERENCE,
    Chart,
    Charts,
    along,
    altair,
    data_of,
    in_time,
    log_axis,
    outline,
    over_seeds,
    over_seeds_layers,
    padded,
    panels,
    picked,
    regimes_of,
    thickness,
    tips,
)
from toolkit.reporting.page import Block, FoldBlock, Section, chart_blocks, folds, rows_block, table_block, varying
from toolkit.reporting.topics.caveats import largest_size, task_names
from toolkit.schema import COLUMNS

SUMMARY = (
    "split base num_train_examples score num_seeds mean sd median min max num_failed mean_not_failed sd_not_failed"
)


def scores_section(data: ReportData, charts: Charts) -> Section:
    """The section on scores: the headline score of every split side by side, then all scores, a fold per group."""
    bodies: list[Sequence[Block]] = []
    for group in data.groups:
        summary = data.summary[data.summary["group"] == group.title]
        floors = data.floors[data.floors["group"] == group.title]
        # Not where it does not apply, but where no answers were kept that would show it.
        num_failed = summary["num_failed"].astype(object).where(summary["num_failed"].notna(), "not known")
        details = table_block(
            varying(summary).assign(num_failed=num_failed),
            SUMMARY,
            f"Every score of {group.title}, over all seeds and over those that did not fail",
        )
        fold = FoldBlock(title=f"All scores: {group.title}", blocks=(details,))
        bodies.append([_headline_block(summary, group.title, floors), fold])
    caption = (
        "Last score of every condition and split: every seed a dot (hollow: the run failed), a large mark at their "
        "mean, its 95 % interval from three seeds on."
    )
    figure = chart_blocks(charts, "scores_by_condition", caption, "Scores by condition")
    lead = (
        "Score at the last epoch, mean ± standard deviation over seeds. The reported split is in the distribution of "
        "the training data; the others are as their names say, tests of the same data or data from elsewhere."
    )
    blocks = (*figure, *folds([group.title for group in data.groups], bodies))
    return Section(id="scores", title="Scores, in and out of distribution", lead=lead, blocks=blocks)


def _headline_block(summary: pd.DataFrame, title: str, floors: pd.DataFrame) -> Block:
    """A line per condition and known floor (majority class, bag of words), a column per split of the headline score."""
    headlines = largest_size(summary[summary["is_headline"].astype(bool)])
    reported_splits = set(headlines.loc[headlines["is_reported_split"].astype(bool), "split"])
    splits = reported_first(headlines["split"], reported_splits)
    headings = [f"{split} (reported)" if split in reported_splits else split for split in splits]
    rows: list[list[object]] = []
    for condition, condition_scores in headlines.groupby("base", sort=False):
        cells = {
            record["split"]: mean_text(record["mean"], record["sd"]) for record in condition_scores.to_dict("records")
        }
        num_failed = condition_scores["num_failed"].iloc[0]
        counts = [int(condition_scores["num_seeds"].iloc[0]), "not known" if pd.isna(num_failed) else int(num_failed)]
        rows.append([condition, *counts, *(cells.get(split, NOT_APPLICABLE) for split in splits)])
    # Name of a floor to its score by split.
    known_floors = {"majority class": headlines.groupby("split")["majority_rate"].first()}
    if len(floors):
        known_floors["bag of words"] = largest_size(floors).groupby("split")["bag_of_words"].first()
    for name, scores in known_floors.items():
        if scores.notna().any():
            num_seeds = int(headlines["num_seeds"].max())  # of which it is the mean: each draws examples of its own
            rows.append([name, num_seeds, "", *(number(scores.get(split)) for split in splits)])
    score = str(headlines["score"].iloc[0]) if len(headlines) else "score"
    hows = {"failed": COLUMNS["num_failed"].meaning}
    return rows_block(["condition", "seeds", "failed", *headings], rows, f"{score} of {title} at the last epoch", hows)


def scores_chart(scores: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """The chart of :func:`toolkit.plot_scores` from its table, with a panel per task; None without a score."""
    table = largest_size(scores)
    table = table[table["value"].notna()]
    if table.empty:
        return None
    table = table.assign(regime=regimes_of(table), panel=task_names(table))
    series, picker, look = picked(table["regime"], regimes)
    tasks = list(dict.fromkeys(table["panel"]))
    columns = min(len(tasks), 2)
    width = 480 if columns == 1 else 225
    scores_of_tasks = [table[table["panel"] == task] for task in tasks]
    charts = [_task_panel(task_scores, series, look, width=width) for task_scores in scores_of_tasks]
    return panels(charts, columns, picker, tasks)


def _task_panel(scores: pd.DataFrame, series: Sequence[str], look: Mapping[str, Any], *, width: int) -> Chart:
    """The panel of one task: a line per split, in it a dot per seed and a large mark at their mean for each regime."""
    score = str(scores["score"].iloc[0])
    reported_splits = set(scores.loc[scores["is_reported_split"].astype(bool), "split"])
    label_by_split = {split: f"{split} (reported)" if split in reported_splits else split for split in scores["split"]}
    scores = scores.assign(place=scores["split"].map(label_by_split))  # what the axis calls a split
    split_labels = [label_by_split[split] for split in reported_first(scores["split"], reported_splits)]
    means = _means_over_seeds(scores, score)
    scale = padded([*scores["value"], *means["low"], *means["high"]], 0.04)
    x = altair.X("mean:Q", scale=scale, title=title_of(score), axis=altair.Axis(tickCount=5, format="~f"))
    y = altair.Y("place:N", sort=split_labels, title=None, axis=altair.Axis(domain=False, ticks=False, labelLimit=150))
    offset = altair.YOffset("regime:N", sort=series, scale=altair.Scale(domain=series, paddingOuter=0.35))
    shared_tips = {"regime": "regime", "place": "split"}
    mean_tips = tips(**shared_tips, mean=(f"mean {score}", ".4f"), interval="95 % interval", over="over")
    base = altair.Chart(data_of(means)).encode(y=y, yOffset=offset, tooltip=mean_tips)
    dots = altair.Chart(data_of(scores, ["regime", "place", "seed", "value", "is_failed"]))
    layers = [
        base.mark_rule(strokeWidth=1.6).encode(x=along(x, "low"), x2=altair.X2("high:Q"), **look["bars"]),
        dots.mark_circle(size=26, strokeWidth=1).encode(
            x=along(x, "value"),
            y=y,
            yOffset=offset,
            fillOpacity=altair.when("datum.is_failed").then(altair.value(0)).otherwise(altair.value(0.75)),
            stroke=outline(look["bars"]["color"]),
            tooltip=tips(**shared_tips, seed="seed", value=(score, ".4f"), is_failed="failed"),
            **look["bars"],
        ),
        base.mark_point(size=60, filled=True).encode(x=x, **look["points"]),
    ]
    # A regime has 13 pixels of its split's line.
    return altair.layer(*layers, width=width, height=len(split_labels) * max(13 * len(series) + 10, 24))


def _means_over_seeds(scores: pd.DataFrame, score: str) -> pd.DataFrame:
    """A record per split and regime: the mean over seeds, with an interval from three of them on, within the score's
    range."""
    records = []
    for (split_label, regime), regime_scores in scores.groupby(["place", "regime"], sort=False):
        values = regime_scores["value"].to_numpy(dtype=np.float64)
        interval = seeds_interval(values) if len(values) >= LEAST_SEEDS else None
        ends = (interval.low, interval.high) if interval else (math.nan, math.nan)
        low, high = np.clip(ends, *range_of(score))
        records.append(
            {
                "place": split_label,
                "regime": regime,
                "mean": float(values.mean()),
                "low": low,
                "high": high,
                "interval": f"{low:.4f} to {high:.4f}" if low == low else "none",
                "over": "one seed" if len(values) == 1 else f"{len(values)} seeds",
            }
        )
    return pd.DataFrame(records)


def title_of(score: str) -> str:
    """The name of a score with its unit or the range of its values, such as ``macro f1 (0 to 1)``."""
    low, high = range_of(score)
    known = f" ({low:g} to {high:g})" if math.isfinite(high - low) else ""
    return score.replace("_", " ") + {"loss": " (nats)", "r2": " (up to 1)"}.get(score, known)


def epochs_chart(
    scores: pd.DataFrame,
    score: str | None = None,
    *,
    majority: Mapping[str, float] | None = None,
    regimes: Iterable[str] | None = None,
) -> Chart | None:
    """The chart of :func:`toolkit.plot_scores_over_epochs` from its table, a panel per split; None for one epoch."""
    check_table(scores, ("epoch", "split"), "Run.scores")
    score = score or next((name for name in SCORES if name in scores), "")
    if score not in scores:
        raise ValueError(f"expected a score among the columns {', '.join(map(str, scores))}; got {score or 'none'!r}")
    scored = scores[scores[score].notna()]
    if scored["epoch"].nunique() < 2:
        return None
    scored = scored.assign(regime=regimes_of(scored), run=scored.get("run", ""), value=scored[score])
    scored, time = in_time(scored)
    series, picker, look = picked(scored["regime"], regimes)
    splits = list(dict.fromkeys(scored["split"]))
    rates = {split: rate for split, rate in (majority or {}).items() if split in splits and rate == rate}
    scale = padded([*scored["value"], *rates.values()])
    columns = min(len(splits), 3)
    charts = []
    for i, split in enumerate(splits):
        title = None if i % columns else title_of(score)
        axis = altair.Axis(tickCount=5, format="~f", labels=not i % columns)
        means = over_seeds(scored[scored["split"] == split], ["regime", "epoch", "time"], "value")
        y = altair.Y("mean:Q", scale=scale, title=title, axis=axis)
        base = altair.Chart().encode(
            x=time, tooltip=tips(regime="regime", epoch=("epoch", "~g"), mean=(score, ".4f"), spread="over seeds")
        )
        layers = []
        if split in rates:  # of the majority class
            at_rate = altair.Chart(data_of(pd.DataFrame({"rate": [rates[split]]}))).encode(y=along(y, "rate"))
            rule = at_rate.mark_rule(color=REFERENCE, strokeDash=[2, 2])
            layers.append(rule.encode(tooltip=tips(rate=("majority class", ".4f"))))
            label = at_rate.mark_text(align="right", baseline="bottom", dx=-2, fontSize=10, text="majority class")
            layers.append(label.encode(x=altair.value("width")))
        layers += over_seeds_layers(base, y, look, strokeWidth=thickness("regime", series))
        width = (620 - 24 * (columns - 1)) // max(columns, 2)
        charts.append(altair.layer(*layers, data=data_of(means), width=width, height=130, title=str(split)))
    return panels(charts, columns, picker)


def cost_chart(scores: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """The chart of :func:`toolkit.plot_cost` from its table, with a panel per task; None without two runs."""
    table = largest_size(scores[scores["is_reported_split"].astype(bool) & (scores["seconds"] > 0)])
    table = table[table["value"].notna()]
    if len(table) < 2:
        return None
    table = table.assign(panel=task_names(table), regime=regimes_of(table))
    _, picker, look = picked(table["regime"], regimes)
    tasks = list(dict.fromkeys(table["panel"]))
    columns = min(len(tasks), 3)
    size = {"width": 440 if columns == 1 else 570 // columns - 30, "height": 150}
    scores_of_tasks = [table[table["panel"] == task] for task in tasks]
    charts = [_cost_panel(task_scores, look).properties(**size) for task_scores in scores_of_tasks]
    return panels(charts, columns, picker, tasks)


def _cost_panel(scores: pd.DataFrame, look: Mapping[str, Any]) -> Chart:
    """One task's scores against the seconds that each run took."""
    score = str(scores["score"].iloc[0])
    seconds_axis = log_axis(scores["seconds"])
    score_scale = padded(scores["value"], most=math.inf if score == "loss" else 1.0)
    chart = altair.Chart(data_of(scores, ["regime", "run", "seed", "seconds", "value"])).mark_point()
    return chart.encode(
        x=altair.X(
            "seconds:Q", scale=seconds_axis.scale(), axis=seconds_axis.axis(grid=False), title="seconds of a run"
        ),
        y=altair.Y("value:Q", scale=score_scale, axis=altair.Axis(tickCount=5, format="~f"), title=title_of(score)),
        tooltip=tips(regime="regime", seed="seed", value=(score, ".4f"), seconds=("seconds", ",.4r")),
        **look["points"],
    )
