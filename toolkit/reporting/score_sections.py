"""The tables of a group in, the Markdown of the sections on scores and their comparison out."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.arms import Arm, differing_settings
from toolkit.analysis.comparison.seeds import last_score
from toolkit.reporting import markdown
from toolkit.reporting.markdown import NOT_APPLICABLE, mean_and_sd, span
from toolkit.reporting.tables import GroupTables

SCORES = ("accuracy", "macro_f1", "matthews", "pearson", "spearman", "loss")


def scores_table(tables: GroupTables) -> str:
    """Rows: score of a split; columns: arms, each as before training → at the last epoch, and which runs failed."""
    arms, baselines = tables.group.arms, tables.baselines
    header = ["split", "score", "examples", "majority class", *(arm.label for arm in arms)]
    rows = []
    for split in ordered_splits(tables):
        own = baselines[baselines["split"] == split]
        for score in (name for name in SCORES if name in tables.scores):
            rate = mean_and_sd(own["majority_rate"].unique()) if score == "accuracy" else NOT_APPLICABLE
            cells = [_score_cell(arm, split, score, own) for arm in arms]
            rows.append([split, score, span(own["num_examples"]), _applicable(rate), *cells])
    return markdown.table(header, rows)


def ordered_splits(tables: GroupTables) -> list[str]:
    """Labelled splits, the reported one first."""
    reported = {run.reported_split for run in tables.group.runs}
    return sorted(dict.fromkeys(tables.baselines["split"]), key=lambda split: split not in reported)


def _applicable(text: str) -> str:
    return NOT_APPLICABLE if text.startswith(markdown.UNDEFINED) else text


def _score_cell(arm: Arm, split: str, score: str, baselines: pd.DataFrame) -> str:
    first = mean_and_sd(last_score(run, split, score, at="first") for run in arm.runs)
    last = mean_and_sd(last_score(run, split, score) for run in arm.runs)
    failed = int(baselines.loc[baselines["run"].isin(arm.names), "is_failed"].sum())
    flag = f" (failed: {failed} of {len(arm.runs)})" if failed and score == "accuracy" else ""
    return f"{first} → {last}{flag}"


def ceiling_table(tables: GroupTables) -> str | None:
    """The best that any linear head could do on the frozen features, beside what was reached; None without one."""
    rows, labelled = [], set(tables.baselines["split"])
    for arm in tables.group.arms:
        ceilings: list[dict[str, dict[str, float]]] = [
            run.run.manifest["convex_ceiling"] for run in arm.runs if run.run.manifest.get("convex_ceiling")
        ]
        names = dict.fromkeys((split, score) for each in ceilings for split in each for score in each[split])
        for split, score in ((s, k) for s, k in names if s in labelled and k in SCORES and k != "loss"):
            values = _floats(each[split][score] for each in ceilings if score in each.get(split, {}))
            reached = mean_and_sd(last_score(run, split, score) for run in arm.runs)
            rows.append([arm.label, split, score, mean_and_sd(values), reached])
    return markdown.table(["regime", "split", "score", "convex ceiling", "reached"], rows) if rows else None


def _floats(values: Iterable[float | None]) -> list[float]:
    return [np.nan if value is None else float(value) for value in values]


def comparison_table(tables: GroupTables) -> str:
    """One line per pair, split and seed, and one for the mean over seeds."""
    score, is_regression = tables.group.runs[0].score, tables.group.runs[0].is_regression
    points = {} if score == "accuracy" else {"difference_points": f"difference in {score} (points)"}
    tested = {} if is_regression else {"accuracy_difference_points": "difference in accuracy (points)"}
    counts = {} if is_regression else {"num_only_first_right": "only the first right"}
    counts |= {} if is_regression else {"num_only_second_right": "only the other right"}
    header = ["full fine-tuning", "minus", "split", "seed", "items", *(points | tested | counts).values()]
    rows: list[list[object]] = []
    compared = tables.comparison[tables.comparison["split"] != ""]
    for (first, second, split), lines in compared.groupby(["first", "second", "split"], sort=False):
        for line in lines.to_dict("records"):
            cells = [_points([line[name]]) for name in points | tested] + [_count(line[name]) for name in counts]
            p = [] if is_regression else [_p(line["mcnemar_p"])]
            rows.append([first, second, split, str(line["seed"]), _count(line["num_items"]), *cells, *p, line["note"]])
        usable = lines[lines["note"] == ""]
        if len(usable) > 1:
            means = [_points(usable[name]) for name in points | tested]
            blank = [""] * (len(counts) + (not is_regression) + 1)
            rows.append([first, second, split, f"mean of {len(usable)}", "", *means, *blank])
    return markdown.table([*header, *([] if is_regression else ["exact McNemar p"]), "note"], rows)


def _p(value: float) -> str:
    return NOT_APPLICABLE if pd.isna(value) else markdown.p_value(value).removeprefix("p ").removeprefix("= ")


def caveats(tables: GroupTables) -> list[str]:
    """Sentences on pairs that differ in more than the regime, and on seeds that one side of a pair lacks."""
    arms = tables.group.arms
    pairs = [(a, b, differing_settings(a, b)) for a in arms if a.is_full for b in arms if not b.is_full]
    sentences = [
        f"{markdown.escape(a.label)} and {markdown.escape(b.label)} differ, besides the regime, in "
        f"{markdown.listing([name.replace('_', ' ') for name in names])}."
        for a, b, names in pairs
        if names
    ]
    unpaired = tables.comparison[tables.comparison["split"] == ""]
    return sentences + [
        f"Seed {line.seed} of {markdown.escape(line.first)} and {markdown.escape(line.second)} is not compared: "
        f"{markdown.escape(line.note)}."
        for line in unpaired.itertuples()
    ]


def _count(value: Any) -> str:
    return NOT_APPLICABLE if pd.isna(value) else f"{int(value):,}"


def _points(values: Iterable[Any]) -> str:
    numbers = pd.to_numeric(pd.Series(list(values)))
    if numbers.isna().all():
        return NOT_APPLICABLE
    spread = f" ± {numbers.std(ddof=1):.2f}" if len(numbers) > 1 else ""
    return f"{numbers.mean():+.2f}{spread}"
