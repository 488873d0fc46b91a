"""Scores of conditions over their seeds: beside floors and costs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.conditions import Condition, Group, Labels, Runs, arrange, led_by
from toolkit.comparison.intervals import defined_mean, statistics
from toolkit.comparison.runs import (
    ReportedRun,
    count_at_chance,
    count_failed,
    counted_score,
    last_score,
    reported_first,
    score_names,
)
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.formats import SCORES as SCORES

Lines = Iterable[dict[str, Any]]


def _table(name: str, records: Lines, *counts: str) -> pd.DataFrame:
    """A table of the schema; ``counts``: columns of counts that may be missing (Int64, NA)."""
    return pd.DataFrame(list(records), columns=columns_of(name)).astype(dict.fromkeys(counts, "Int64"))


def _led_records(groups: Sequence[Group], records_of: Callable[[Condition, str], Lines]) -> Lines:
    """The records of ``records_of`` for every condition on every split, each led by the columns of its condition."""
    return (
        led_by(group, condition) | record
        for group in groups
        for split in splits_of(group)
        for condition in group.conditions
        for record in records_of(condition, split)
    )


@with_columns
def summarise_scores(runs: Runs, labels: Labels | None = None) -> pd.DataFrame:
    """One line per group, labelled split, condition and score: statistics over the seeds at their last epochs.

    ``sd`` is NaN for one seed, and ``..._not_failed`` where all failed. A score that is undefined because every item
    got one answer (a correlation) counts as 0 and is in no ``..._not_failed``, any other is in no statistic.
    ``labels``: run directory name to condition.

    Examples
    --------
    >>> toolkit.summarise_scores(runs)[["condition", "split", "num_seeds", "mean"]].head(1).to_string(header=False)
    '0  full fine-tuning  validation  3  0.793333'
    """
    return _table("summarise_scores", _led_records(arrange(runs, labels), _score_records), "size", "num_at_chance")


@with_columns
def last_scores(runs: Runs, labels: Labels | None = None) -> pd.DataFrame:
    """One line per run and labelled split: the headline score at the last epoch and before training, and the cost.

    ``seconds`` are NaN where none were recorded. ``labels``: run directory name to condition.
    """
    records = (
        led_by(group, condition)
        | {
            "run": run.name,
            "seed": run.seed,
            "num_train_examples": run.num_train_examples,
            "split": split,
            "is_reported_split": split == run.reported_split,
            "score": run.score,
            "value": last_score(run, split),
            "value_before": last_score(run, split, at="first"),
            "is_failed": run.is_failed,
            "seconds": cost_of(run)["seconds"],
        }
        for group in arrange(runs, labels)
        for condition in group.conditions
        for run in condition.runs
        for split in run.splits
    )
    return _table("last_scores", records, "size", "num_train_examples").astype({"is_failed": "boolean"})


def check_table(table: object, columns: Iterable[str], source: str) -> None:
    """ValueError unless ``table`` has the ``columns`` of the table that ``source`` makes."""
    if not isinstance(table, pd.DataFrame):
        raise ValueError(f"expected the table of {source}; got {type(table).__name__}")
    if missing := [name for name in columns if name not in table]:
        raise ValueError(f"expected the table of {source}; got one without {', '.join(missing)}")


def splits_of(group: Group) -> list[str]:
    """Labelled splits of any run, the reported ones first."""
    splits = (split for run in group.runs for split in run.splits)
    return reported_first(splits, {run.reported_split for run in group.runs})


def _score_records(condition: Condition, split: str) -> Lines:
    """A record per score of one condition on one split: statistics over the runs that have answers or scores there."""
    runs = [run for run in condition.runs if split in run.splits]
    if not runs:
        return []
    first = runs[0]
    key = {
        "split": split,
        "is_reported_split": split == first.reported_split,
        "num_at_chance": count_at_chance(runs),
        "num_seeds": len(runs),
        "num_failed": count_failed(runs),
    }
    records = []
    for score in score_names(runs):
        recorded = [last_score(run, split, score) for run in runs]
        not_failed = [value for run, value in zip(runs, recorded, strict=True) if not run.is_failed]
        without_failed = statistics(not_failed)
        rate = defined_mean(run.majority_rate(split) for run in runs) if score == "accuracy" else np.nan
        score_facts = {"score": score, "is_headline": score == first.score, "majority_rate": rate}
        score_facts["num_undefined"] = int(np.isnan(recorded).sum())
        records.append(
            key
            | score_facts
            | statistics(counted_score(run, split, score) for run in runs)
            | {f"{name}_not_failed": without_failed[name] for name in ("mean", "sd")}
        )
    return records


FLOORS = {"majority": "majority", "bag_of_words": "bag of words"}
"""Name of a floor in a manifest to the words for it."""
OF_TOKENS = "bag of words: the most frequent tag of each word form"


@with_columns
def summarise_floors(runs: Runs, labels: Labels | None = None) -> pd.DataFrame:
    """One line per group, labelled split and condition whose runs recorded floors, of the headline score.

    All are means over the ``num_seeds`` runs that recorded floors, fitted to the training examples of that run; a
    correlation of one answer to every item counts as 0. NaN where a floor does not apply, is undefined or was not
    recorded: ``reason`` says which. Older runs and those with shuffled labels
    recorded none, and have no line. ``labels``: run directory name to condition.
    """
    return _table("summarise_floors", _led_records(arrange(runs, labels), _floor_records), "size", "num_train_examples")


def _floor_records(condition: Condition, split: str) -> Lines:
    """The record of one condition's floors on one split, beside its mean score; none where no run recorded floors."""
    runs = [run for run in condition.runs if run.floors and split in run.answers]
    if not runs:
        return
    first = runs[0]
    means = {}
    for floor in FLOORS:
        recorded = [((run.floors.get(floor) or {}).get(split) or {}).get(run.score) for run in runs]
        means[floor] = defined_mean(float(value) for value in recorded if value is not None)
    mean = defined_mean(counted_score(run, split) for run in runs)
    yield means | {
        "split": split,
        "score": first.score,
        "is_reported_split": split == first.reported_split,
        "num_seeds": len(runs),
        "mean": mean,
        "above_bag_of_words_points": 100 * (mean - means["bag_of_words"]),
        "reason": _why_no_floor(first, means, split),
        "note": OF_TOKENS if first.is_token_task else "",
    }


def _why_no_floor(run: ReportedRun, means: dict[str, float], split: str) -> str:
    """Why floors have no value, each by its name; empty where all have one."""
    return "; ".join(
        f"{FLOORS[floor]}: {'undefined' if split in (run.floors.get(floor) or {}) else 'not recorded'}"
        for floor, mean in means.items()
        if np.isnan(mean)
    )


OTHER_DEVICES = "made on different devices: seconds, memory and speed are not comparable"
SEVERAL_FULL = (
    "no ratio: {} conditions of this size are full fine-tuning, which of them is meant is not known: pass one alone"
)

RATIOS = ("num_trainable", "seconds")
"""Costs that are also given as a multiple of full fine-tuning's, in columns ``..._ratio``."""


@with_columns
def measure_cost(runs: Runs, labels: Labels | None = None) -> pd.DataFrame:
    """One line per group and condition: costs means over the runs that recorded them, and the reported split's score.

    Runs which one process made share a peak of memory. The ratios divide by full fine-tuning of the same size and are
    NaN without it, and where several conditions of that size are full fine-tuning (at two learning rates, say):
    ``reason`` says so. ``note`` says where devices or the number of processes differ within a group: seconds and memory
    are then not comparable.
    """
    records = (record for group in arrange(runs, labels) for record in _cost_records(group))
    return _table("measure_cost", records, "size", "num_at_chance")


def _cost_records(group: Group) -> Lines:
    """A record per condition: mean costs, their ratios to full fine-tuning of the same size, and the reported score."""
    num_places = len({place_of(run) for run in group.runs})
    costs_of_runs = [[cost_of(run) for run in condition.runs] for condition in group.conditions]
    costs = [
        {name: defined_mean(run_cost[name] for run_cost in run_costs) for name in run_costs[0]}
        for run_costs in costs_of_runs
    ]
    for condition, condition_cost in zip(group.conditions, costs, strict=True):
        full_costs = [
            cost
            for other_condition, cost in zip(group.conditions, costs, strict=True)
            if other_condition.is_full and other_condition.size == condition.size
        ]
        full_cost = full_costs[0] if len(full_costs) == 1 else dict.fromkeys(RATIOS, np.nan)
        ratios = {
            f"{name}_ratio": condition_cost[name] / full_cost[name] if full_cost[name] > 0 else np.nan
            for name in RATIOS
        }
        first = condition.runs[0]
        yield (
            led_by(group, condition)
            | condition_cost
            | ratios
            | {
                "num_seeds": len(condition.runs),
                "num_failed": condition.num_failed,
                "num_at_chance": condition.num_at_chance,
                "split": first.reported_split,
                "score": first.score,
                "score_mean": defined_mean(counted_score(run, run.reported_split) for run in condition.runs),
                "devices": "; ".join(dict.fromkeys(place_of(run) for run in condition.runs)),
                "note": OTHER_DEVICES if num_places > 1 else "",
                "reason": SEVERAL_FULL.format(len(full_costs)) if len(full_costs) > 1 else "",
            }
        )


def cost_of(run: ReportedRun) -> dict[str, float]:
    """Parameters, seconds of all stages, memory and speed of one run; NaN for what its manifest does not hold."""
    cost, model = run.part("cost"), run.part("model")
    costs = {"seconds": run.seconds}
    counts = {name: model.get(name) for name in ("num_trainable", "num_parameters")} | {
        name: cost.get(name) for name in ("peak_memory_bytes", "examples_per_second")
    }
    costs |= {name: np.nan if value is None else float(value) for name, value in counts.items()}
    return costs | {"peak_memory_mib": costs.pop("peak_memory_bytes") / 2**20}


def place_of(run: ReportedRun) -> str:
    """The devices, number of processes and threads, and precision that a run was made with, as one text."""
    names = ("devices", "num_processes", "num_threads", "precision")
    return ", ".join(f"{name} {run.manifest[name]}" for name in names if name in run.manifest)
