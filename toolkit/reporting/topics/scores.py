"""Scores: by condition, over epochs, by number of examples, and by seconds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.conditions import Condition
from toolkit.comparison.intervals import seeds_interval
from toolkit.comparison.report_data import GroupTables, ReportData
from toolkit.comparison.runs import CORRELATIONS, last_score, reported_first, score_names
from toolkit.comparison.summaries import SCORES, check_table
from toolkit.reporting.cells import NOT_APPLICABLE, mean_and_sd, mean_text, number, points, span
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
FLOORS = "split base score mean majority bag_of_words untouched above_bag_of_words_points reason note"


def scores_section(data: ReportData, charts: Charts) -> Section:
    """In and out of distribution side by side."""
    bodies: list[Sequence[Block]] = []
    for group in data.groups:
        own = data.summary[data.summary["group"] == group.title]
        details = table_block(
            varying(own), SUMMARY, f"Every score of {group.title}, over all seeds and over those that did not fail"
        )
        bodies.append(
            [
                _sides(own, group.title, data.floors[data.floors["group"] == group.title]),
                *_floors(data, group.title),
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


def _sides(summary: pd.DataFrame, title: str, floors: pd.DataFrame) -> Block:
    """One line per condition, one column per split of the headline score, and a line for each floor that is known."""
    own = largest_size(summary[summary["is_headline"].astype(bool)])
    reported = set(own.loc[own["is_reported_split"].astype(bool), "split"])
    splits = reported_first(own["split"], reported)
    named = [f"{split} (reported)" if split in reported else split for split in splits]
    rows: list[list[object]] = []
    for condition, lines in own.groupby("base", sort=False):
        cells = {line["split"]: mean_text(line["mean"], line["sd"]) for line in lines.to_dict("records")}
        counts = [int(lines[name].iloc[0]) for name in ("num_seeds", "num_failed")]
        rows.append([condition, *counts, *(cells.get(split, NOT_APPLICABLE) for split in splits)])
    known = {"majority class": own.groupby("split")["majority_rate"].first()}
    if len(floors):
        anchors = largest_size(floors).groupby("split")
        known |= {"bag of words": anchors["bag_of_words"].first(), "untouched model": anchors["untouched"].first()}
    for words, values in known.items():
        if values.notna().any():
            rows.append([words, "", "", *(number(values.get(split)) for split in splits)])
    score = str(own["score"].iloc[0]) if len(own) else "score"
    hows = {"failed": COLUMNS["num_failed"].meaning}
    return rows_block(["condition", "seeds", "failed", *named], rows, f"{score} of {title} at the last epoch", hows)


def _floors(data: ReportData, title: str) -> tuple[Block, ...]:
    """What needs no fine-tuning beside each condition's score; nothing where no run recorded it."""
    own = data.floors[data.floors["group"] == title]
    if own.empty:
        return ()
    own = largest_size(own)
    own = own.assign(above_bag_of_words_points=own["above_bag_of_words_points"].map(points))
    own = own.drop(columns=[] if own["untouched"].notna().any() else "untouched")
    table = table_block(own, FLOORS, f"Floors and anchors of {title}: what needs no fine-tuning, beside each condition")
    return (FoldBlock(title=f"What needs no fine-tuning: {title}", blocks=(table,)),)


def training_block(tables: GroupTables) -> Block:
    """Rows: score of a split; columns: conditions, each as before training → at the last epoch."""
    conditions, baselines = tables.group.conditions, tables.baselines
    header = ["split", "score", "examples", *(condition.label for condition in conditions)]
    rows = []
    for split in reported_first(baselines["split"], [run.reported_split for run in tables.group.runs]):
        own = baselines[baselines["split"] == split]
        for score in (name for name in score_names(tables.group.runs) if name in tables.scores):
            rows.append(
                [
                    split,
                    score,
                    span(own["num_examples"]),
                    *[_before_and_after(condition, split, score) for condition in conditions],
                ]
            )
    return rows_block(header, rows, f"Every score of {tables.group.title}, before training → at the last epoch")


def _before_and_after(condition: Condition, split: str, score: str) -> str:
    values = (mean_and_sd(last_score(run, split, score, at=at) for run in condition.runs) for at in ("first", "last"))
    return " → ".join(values)


LEAST_SEEDS = 3
"""Seeds below which a mean has no interval: with two it has one degree of freedom and says nothing."""
LAST = ("group", "model", "split", "is_reported_split", "score", "value", "seed", "is_failed")
"""What must be there of the table of last scores."""


def scores_chart(scores: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """The chart of :func:`toolkit.plot_scores` from its table, with a panel per task; None without a score."""
    check_table(scores, LAST, "last_scores")
    table = largest_size(scores)
    table = table[table["value"].notna()]
    if table.empty:
        return None
    table = table.assign(regime=regimes_of(table), panel=task_names(table))
    shown, picker, look = picked(table["regime"], regimes)
    tasks = list(dict.fromkeys(table["panel"]))
    columns = min(len(tasks), 2)
    parts = []
    for task in tasks:
        own = table[table["panel"] == task]
        score = str(own["score"].iloc[0])
        reported = set(own.loc[own["is_reported_split"].astype(bool), "split"])
        named = {name: f"{name} (reported)" if name in reported else name for name in own["split"]}
        own = own.assign(place=own["split"].map(named))
        places = [named[name] for name in reported_first(own["split"], reported)]
        means = _means(own)
        scale = padded([*own["value"], *means["low"], *means["high"]], 0.04)
        x = altair.X("mean:Q", scale=scale, title=title_of(score), axis=altair.Axis(tickCount=5, format="~f"))
        y = altair.Y("place:N", sort=places, title=None, axis=altair.Axis(domain=False, ticks=False, labelLimit=150))
        offset = altair.YOffset("regime:N", sort=shown, scale=altair.Scale(domain=shown, paddingOuter=0.35))
        told = {"regime": "regime", "place": "split"}
        said = tips(**told, mean=(f"mean {score}", ".4f"), interval="95 % interval", over="over")
        base = altair.Chart(data_of(means)).encode(y=y, yOffset=offset, tooltip=said)
        dots = altair.Chart(data_of(own, ["regime", "place", "seed", "value", "is_failed"]))
        layers = [
            base.mark_rule(strokeWidth=1.6).encode(x=along(x, "low"), x2=altair.X2("high:Q"), **look["bars"]),
            dots.mark_circle(size=26, strokeWidth=1).encode(
                x=along(x, "value"),
                y=y,
                yOffset=offset,
                fillOpacity=altair.when("datum.is_failed").then(altair.value(0)).otherwise(altair.value(0.75)),
                stroke=outline(look["bars"]["color"]),
                tooltip=tips(**told, seed="seed", value=(score, ".4f"), is_failed="failed"),
                **look["bars"],
            ),
            base.mark_point(size=60, filled=True).encode(x=x, **look["points"]),
        ]
        size = {"width": 480 if columns == 1 else 225, "height": len(places) * max(13 * len(shown) + 10, 24)}
        parts.append(altair.layer(*layers, **size))
    return panels(parts, columns, picker, tasks)


def _means(scores: pd.DataFrame) -> pd.DataFrame:
    """A line per split and regime: the mean over seeds, with an interval from three of them on."""
    lines = []
    for (place, regime), own in scores.groupby(["place", "regime"], sort=False):
        values = own["value"].to_numpy(dtype=np.float64)
        found = seeds_interval(values) if len(values) >= LEAST_SEEDS else None
        low, high = (found.low, found.high) if found else (math.nan, math.nan)
        text = f"{low:.4f} to {high:.4f}" if low == low else "none"
        over = "one seed" if len(values) == 1 else f"{len(values)} seeds"
        line = {"place": place, "regime": regime, "mean": float(values.mean()), "low": low, "high": high}
        lines.append(line | {"interval": text, "over": over})
    return pd.DataFrame(lines)


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
    lines = scores[scores[score].notna()]
    if lines["epoch"].nunique() < 2:
        return None
    lines = lines.assign(regime=regimes_of(lines), run=lines.get("run", ""), value=lines[score])
    lines, time, legend = in_time(lines)
    shown, picker, look = picked(lines["regime"], regimes, **legend)
    splits = list(dict.fromkeys(lines["split"]))
    floors = {split: rate for split, rate in (majority or {}).items() if split in splits and rate == rate}
    scale = padded([*lines["value"], *floors.values()])
    columns = min(len(splits), 3)
    parts = []
    for i, split in enumerate(splits):
        title = None if i % columns else title_of(score)
        axis = altair.Axis(tickCount=5, format="~f", labels=not i % columns)
        means = over_seeds(lines[lines["split"] == split], ["regime", "epoch", "time"], "value")
        y = altair.Y("mean:Q", scale=scale, title=title, axis=axis)
        base = altair.Chart().encode(
            x=time, tooltip=tips(regime="regime", epoch=("epoch", "~g"), mean=(score, ".4f"), spread="over seeds")
        )
        layers = []
        if split in floors:
            floor = altair.Chart(data_of(pd.DataFrame({"rate": [floors[split]]}))).encode(y=along(y, "rate"))
            rule = floor.mark_rule(color=REFERENCE, strokeDash=[2, 2])
            layers.append(rule.encode(tooltip=tips(rate=("majority class", ".4f"))))
            words = floor.mark_text(align="right", baseline="bottom", dx=-2, fontSize=10, text="majority class")
            layers.append(words.encode(x=altair.value("width")))
        layers += over_seeds_layers(base, y, look, strokeWidth=thickness("regime", shown))
        width = (620 - 24 * (columns - 1)) // max(columns, 2)
        parts.append(altair.layer(*layers, data=data_of(means), width=width, height=130, title=str(split)))
    return panels(parts, columns, picker)


def efficiency_chart(scores: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """The chart of :func:`toolkit.plot_data_efficiency` from its table, a panel per task; None for one size."""
    check_table(scores, (*LAST, "size", "num_train_examples"), "last_scores")
    table = scores[scores["is_reported_split"].astype(bool) & scores["num_train_examples"].notna()]
    # One place for all regimes of a size: near-duplicates that were removed leave some of them an example short.
    asked = table.groupby(["group", "size"], dropna=False, sort=False)["num_train_examples"]
    table = table.assign(examples=asked.transform("max"), panel=task_names(table), regime=regimes_of(table))
    sizes = table.groupby("panel")["examples"].nunique()
    tasks = [task for task in dict.fromkeys(table["panel"]) if sizes.get(task, 0) > 1]
    if not tasks:
        return None

    def draw(own: pd.DataFrame, score: str, look: Mapping[str, Any]) -> Chart:
        axis = altair.Axis(
            values=sorted(own["examples"].astype(float).unique()), format=",d", grid=False, labelOverlap="greedy"
        )
        places = altair.Scale(type="log", nice=False, padding=12)
        base = altair.Chart().encode(
            x=altair.X("examples:Q", scale=places, axis=axis, title="training examples"),
            tooltip=tips(
                regime="regime", examples=("training examples", ","), mean=(score, ".4f"), spread="over seeds"
            ),
        )
        axis = altair.Axis(tickCount=5, format="~f")
        y = altair.Y("mean:Q", scale=padded(own["value"]), title=title_of(score), axis=axis)
        means = over_seeds(own, ["regime", "examples"], "value")
        return altair.layer(*over_seeds_layers(base, y, look), data=data_of(means))

    return _of_tasks(table[table["panel"].isin(tasks)], draw, regimes)


def _of_tasks(
    table: pd.DataFrame, draw: Callable[[pd.DataFrame, str, Mapping[str, Any]], Chart], regimes: Iterable[str] | None
) -> Chart:
    """A panel for each task of a table, which ``draw`` makes of its lines, its score and the look of the regimes."""
    _, picker, look = picked(table["regime"], regimes)
    tasks = list(dict.fromkeys(table["panel"]))
    columns = min(len(tasks), 3)
    size = {"width": 440 if columns == 1 else 570 // columns - 30, "height": 150}
    owns = [table[table["panel"] == task] for task in tasks]
    return panels(
        [draw(own, str(own["score"].iloc[0]), look).properties(**size) for own in owns], columns, picker, tasks
    )


def cost_chart(scores: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """The chart of :func:`toolkit.plot_cost` from its table, with a panel per task; None without two runs."""
    check_table(scores, (*LAST, "run", "seconds"), "last_scores")
    table = largest_size(scores[scores["is_reported_split"].astype(bool) & (scores["seconds"] > 0)])
    table = table[table["value"].notna()]
    if len(table) < 2:
        return None
    table = table.assign(panel=task_names(table), regime=regimes_of(table))

    def draw(own: pd.DataFrame, score: str, look: Mapping[str, Any]) -> Chart:
        wide, tall = log_axis(own["seconds"]), padded(own["value"], most=math.inf if score == "loss" else 1.0)
        chart = altair.Chart(data_of(own, ["regime", "run", "seed", "seconds", "value"])).mark_point()
        return chart.encode(
            x=altair.X("seconds:Q", scale=wide.scale(), axis=wide.axis(grid=False), title="seconds of a run"),
            y=altair.Y("value:Q", scale=tall, axis=altair.Axis(tickCount=5, format="~f"), title=title_of(score)),
            tooltip=tips(regime="regime", seed="seed", value=(score, ".4f"), seconds=("seconds", ",.4r")),
            **look["points"],
        )

    return _of_tasks(table, draw, regimes)
