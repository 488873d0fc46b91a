"""Scores: by condition, over epochs, by number of examples, and by seconds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.intervals import seeds_interval
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.runs import CORRELATIONS, reported_first
from toolkit.comparison.summaries import SCORES, check_table
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
    """In and out of distribution side by side."""
    bodies: list[Sequence[Block]] = []
    for group in data.groups:
        group_summary = data.summary[data.summary["group"] == group.title]
        details = table_block(
            varying(group_summary).assign(
                # Not where it does not apply, but where no answers were kept that would show it.
                num_failed=group_summary["num_failed"]
                .astype(object)
                .where(group_summary["num_failed"].notna(), "not known")
            ),
            SUMMARY,
            f"Every score of {group.title}, over all seeds and over those that did not fail",
        )
        bodies.append(
            [
                _sides_block(group_summary, group.title, data.floors[data.floors["group"] == group.title]),
                FoldBlock(title=f"All scores: {group.title}", blocks=(details,)),
            ]
        )
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


def _sides_block(summary: pd.DataFrame, title: str, floors: pd.DataFrame) -> Block:
    """A line per condition and known floor, a column per split of the headline score."""
    headlines = largest_size(summary[summary["is_headline"].astype(bool)])
    reported = set(headlines.loc[headlines["is_reported_split"].astype(bool), "split"])
    splits = reported_first(headlines["split"], reported)
    headings = [f"{split} (reported)" if split in reported else split for split in splits]
    rows: list[list[object]] = []
    for condition, condition_scores in headlines.groupby("base", sort=False):
        cells = {
            record["split"]: mean_text(record["mean"], record["sd"]) for record in condition_scores.to_dict("records")
        }
        num_failed = condition_scores["num_failed"].iloc[0]
        counts = [int(condition_scores["num_seeds"].iloc[0]), "not known" if pd.isna(num_failed) else int(num_failed)]
        rows.append([condition, *counts, *(cells.get(split, NOT_APPLICABLE) for split in splits)])
    anchor_by_label = {"majority class": headlines.groupby("split")["majority_rate"].first()}
    if len(floors):
        anchors = largest_size(floors).groupby("split")
        anchor_by_label |= {
            "bag of words": anchors["bag_of_words"].first(),
        }
    for label, values in anchor_by_label.items():
        if values.notna().any():
            rows.append([label, "", "", *(number(values.get(split)) for split in splits)])
    score = str(headlines["score"].iloc[0]) if len(headlines) else "score"
    hows = {"failed": COLUMNS["num_failed"].meaning}
    return rows_block(["condition", "seeds", "failed", *headings], rows, f"{score} of {title} at the last epoch", hows)


LEAST_SEEDS = 3
"""Seeds below which a mean has no interval: with two it has one degree of freedom and says nothing."""


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
    parts = []
    for task in tasks:
        task_scores = table[table["panel"] == task]
        score = str(task_scores["score"].iloc[0])
        reported = set(task_scores.loc[task_scores["is_reported_split"].astype(bool), "split"])
        place_names = {name: f"{name} (reported)" if name in reported else name for name in task_scores["split"]}
        task_scores = task_scores.assign(place=task_scores["split"].map(place_names))
        places = [place_names[name] for name in reported_first(task_scores["split"], reported)]
        means = _means_over_seeds(task_scores)
        scale = padded([*task_scores["value"], *means["low"], *means["high"]], 0.04)
        x = altair.X("mean:Q", scale=scale, title=title_of(score), axis=altair.Axis(tickCount=5, format="~f"))
        y = altair.Y("place:N", sort=places, title=None, axis=altair.Axis(domain=False, ticks=False, labelLimit=150))
        offset = altair.YOffset("regime:N", sort=series, scale=altair.Scale(domain=series, paddingOuter=0.35))
        shared_tips = {"regime": "regime", "place": "split"}
        mean_tips = tips(**shared_tips, mean=(f"mean {score}", ".4f"), interval="95 % interval", over="over")
        base = altair.Chart(data_of(means)).encode(y=y, yOffset=offset, tooltip=mean_tips)
        dots = altair.Chart(data_of(task_scores, ["regime", "place", "seed", "value", "is_failed"]))
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
        size = {"width": 480 if columns == 1 else 225, "height": len(places) * max(13 * len(series) + 10, 24)}
        parts.append(altair.layer(*layers, **size))
    return panels(parts, columns, picker, tasks)


def _means_over_seeds(scores: pd.DataFrame) -> pd.DataFrame:
    """A record per split and regime: the mean over seeds, with an interval from three of them on."""
    records = []
    for (place, regime), regime_scores in scores.groupby(["place", "regime"], sort=False):
        values = regime_scores["value"].to_numpy(dtype=np.float64)
        interval = seeds_interval(values) if len(values) >= LEAST_SEEDS else None
        low, high = (interval.low, interval.high) if interval else (math.nan, math.nan)
        text = f"{low:.4f} to {high:.4f}" if low == low else "none"
        over = "one seed" if len(values) == 1 else f"{len(values)} seeds"
        record = {"place": place, "regime": regime, "mean": float(values.mean()), "low": low, "high": high}
        records.append(record | {"interval": text, "over": over})
    return pd.DataFrame(records)


def title_of(score: str) -> str:
    """A score with what it can be."""
    ends = (
        "nats" if score == "loss" else "-1 to 1" if score in CORRELATIONS else "up to 1" if score == "r2" else "0 to 1"
    )
    return f"{score.replace('_', ' ')} ({ends})"


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
    parts = []
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
            chart = altair.Chart(data_of(pd.DataFrame({"rate": [rates[split]]}))).encode(y=along(y, "rate"))
            rule = chart.mark_rule(color=REFERENCE, strokeDash=[2, 2])
            layers.append(rule.encode(tooltip=tips(rate=("majority class", ".4f"))))
            label = chart.mark_text(align="right", baseline="bottom", dx=-2, fontSize=10, text="majority class")
            layers.append(label.encode(x=altair.value("width")))
        layers += over_seeds_layers(base, y, look, strokeWidth=thickness("regime", series))
        width = (620 - 24 * (columns - 1)) // max(columns, 2)
        parts.append(altair.layer(*layers, data=data_of(means), width=width, height=130, title=str(split)))
    return panels(parts, columns, picker)


def _task_panels(
    table: pd.DataFrame, draw: Callable[[pd.DataFrame, str, Mapping[str, Any]], Chart], regimes: Iterable[str] | None
) -> Chart:
    """A panel for each task of a table, which ``draw`` makes of its records, its score and the look of the regimes."""
    _, picker, look = picked(table["regime"], regimes)
    tasks = list(dict.fromkeys(table["panel"]))
    columns = min(len(tasks), 3)
    size = {"width": 440 if columns == 1 else 570 // columns - 30, "height": 150}
    parts = [table[table["panel"] == task] for task in tasks]
    return panels(
        [draw(part, str(part["score"].iloc[0]), look).properties(**size) for part in parts], columns, picker, tasks
    )


def cost_chart(scores: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """The chart of :func:`toolkit.plot_cost` from its table, with a panel per task; None without two runs."""
    table = largest_size(scores[scores["is_reported_split"].astype(bool) & (scores["seconds"] > 0)])
    table = table[table["value"].notna()]
    if len(table) < 2:
        return None
    table = table.assign(panel=task_names(table), regime=regimes_of(table))

    def draw(task_scores: pd.DataFrame, score: str, look: Mapping[str, Any]) -> Chart:
        wide, tall = (
            log_axis(task_scores["seconds"]),
            padded(task_scores["value"], most=math.inf if score == "loss" else 1.0),
        )
        chart = altair.Chart(data_of(task_scores, ["regime", "run", "seed", "seconds", "value"])).mark_point()
        return chart.encode(
            x=altair.X("seconds:Q", scale=wide.scale(), axis=wide.axis(grid=False), title="seconds of a run"),
            y=altair.Y("value:Q", scale=tall, axis=altair.Axis(tickCount=5, format="~f"), title=title_of(score)),
            tooltip=tips(regime="regime", seed="seed", value=(score, ".4f"), seconds=("seconds", ",.4r")),
            **look["points"],
        )

    return _task_panels(table, draw, regimes)
