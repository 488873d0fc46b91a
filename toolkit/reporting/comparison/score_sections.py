"""The numbers of a report in, what it shows of scores out: by split side by side, over epochs, and the linear probe."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Arm
from toolkit.comparison.report_data import GroupTables, ReportData
from toolkit.comparison.reported import last_score, reported_first
from toolkit.comparison.summaries import SCORES
from toolkit.reporting.cells import NOT_APPLICABLE, mean_and_sd, mean_text, number, points, span
from toolkit.reporting.charts import Charts
from toolkit.reporting.comparison.selections import largest_size
from toolkit.reporting.page import Block, FoldBlock, Section, chart_blocks, folds, rows_block, table_block, varying
from toolkit.schema import COLUMNS

SUMMARY = (
    "split",
    "base",
    "num_train_examples",
    "score",
    "num_seeds",
    "mean",
    "sd",
    "median",
    "min",
    "max",
    "num_failed",
    "mean_not_failed",
    "sd_not_failed",
)

FLOORS = ("split", "base", "score", "mean", "majority", "bag_of_words", "untouched", "above_bag_of_words", "note")


def scores_section(data: ReportData, charts: Charts) -> Section:
    """In and out of distribution side by side."""
    bodies: list[Sequence[Block]] = []
    for group in data.groups:
        own = data.summary[data.summary["group"] == group.title]
        title = f"Every score of {group.title}, over all seeds and over those that did not fail"
        details = table_block(varying(own), SUMMARY, title)
        bodies.append(
            [
                _sides(own, group.title),
                *_floors(data, group.title),
                FoldBlock(title=f"All scores: {group.title}", blocks=(details,)),
            ]
        )
    text = (
        "every seed a dot (hollow: the run failed), a large mark at their mean, its 95 % interval from three seeds on"
    )
    figure = chart_blocks(
        charts, "scores_by_arm", f"Last score of every condition and split: {text}.", "Scores by condition"
    )
    lead = (
        "Score at the last epoch, mean ± standard deviation over seeds. The reported split is in the distribution of "
        "the training data; the others are as their names say, tests of the same data or data from elsewhere."
    )
    blocks = (*figure, *folds([group.title for group in data.groups], bodies))
    return Section(id="scores", title="Scores, in and out of distribution", lead=lead, blocks=blocks)


def _sides(summary: pd.DataFrame, title: str) -> Block:
    """One line per arm, one column per split of the headline score, and the majority class's line."""
    own = largest_size(summary[summary["is_headline"].astype(bool)])
    reported = set(own.loc[own["is_reported_split"].astype(bool), "split"])
    splits = reported_first(own["split"], reported)
    header = [
        "condition",
        "seeds",
        "failed",
        *(f"{split} (reported)" if split in reported else split for split in splits),
    ]
    rows: list[list[object]] = []
    for arm, lines in own.groupby("base", sort=False):
        cells: dict[str, str] = {}
        for line in lines.to_dict("records"):
            cells[line["split"]] = mean_text(line["mean"], line["sd"])
        counts = [int(lines[name].iloc[0]) for name in ("num_seeds", "num_failed")]
        rows.append([arm, *counts, *(cells.get(split, NOT_APPLICABLE) for split in splits)])
    rates = own.groupby("split")["majority_rate"].first()
    if rates.notna().any():
        rows.append(["majority class", "", "", *(number(rates.get(split)) for split in splits)])
    score = str(own["score"].iloc[0]) if len(own) else "score"
    hows = {"failed": COLUMNS["num_failed"].meaning}
    return rows_block(header, rows, f"{score} of {title} at the last epoch", hows)


def _floors(data: ReportData, title: str) -> tuple[Block, ...]:
    """What needs no fine-tuning beside each arm's score; nothing where no run recorded it."""
    own = data.floors[data.floors["group"] == title]
    if own.empty:
        return ()
    own = largest_size(own)
    own = own.assign(above_bag_of_words=[points(value) for value in own["above_bag_of_words_points"]])
    names = [name for name in FLOORS if name != "untouched" or own[name].notna().any()]
    table = table_block(own, names, f"Floors and anchors of {title}: what needs no fine-tuning, beside each condition")
    return (FoldBlock(title=f"What needs no fine-tuning: {title}", blocks=(table,)),)


def training_block(tables: GroupTables) -> Block:
    """Rows: score of a split; columns: arms, each as before training → at the last epoch."""
    arms, baselines = tables.group.arms, tables.baselines
    header = ["split", "score", "examples", *(arm.label for arm in arms)]
    rows = []
    for split in reported_first(baselines["split"], [run.reported_split for run in tables.group.runs]):
        own = baselines[baselines["split"] == split]
        for score in (name for name in SCORES if name in tables.scores):
            cells = [_before_and_after(arm, split, score) for arm in arms]
            rows.append([split, score, span(own["num_examples"]), *cells])
    return rows_block(header, rows, f"Every score of {tables.group.title}, before training → at the last epoch")


def _before_and_after(arm: Arm, split: str, score: str) -> str:
    values = (mean_and_sd(last_score(run, split, score, at=at) for run in arm.runs) for at in ("first", "last"))
    return " → ".join(values)


def probe_block(tables: GroupTables) -> Block | None:
    """The linear head that cross-validation finds on the frozen features, beside what was reached; None without one."""
    rows, labelled = [], set(tables.baselines["split"])
    for arm in tables.group.arms:
        probes = [run.linear_probe for run in arm.runs if run.linear_probe]
        names = dict.fromkeys((split, score) for each in probes for split in each for score in each[split])
        for split, score in ((s, k) for s, k in names if s in labelled and k in SCORES and k != "loss"):
            values = _floats(each[split][score] for each in probes if score in each.get(split, {}))
            reached = mean_and_sd(last_score(run, split, score) for run in arm.runs)
            rows.append([arm.label, split, score, mean_and_sd(values), reached])
    if not rows:
        return None
    caption = f"Linear probe of {tables.group.title}: the linear head that cross-validation finds"
    return rows_block(["condition", "split", "score", "linear probe", "reached"], rows, caption)


def _floats(values: Iterable[float | None]) -> list[float]:
    return [np.nan if value is None else float(value) for value in values]
