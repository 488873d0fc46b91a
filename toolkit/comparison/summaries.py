"""Scores of arms over their seeds, beside floors, and by the number of training examples."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Arm, Group, Labels, Pairs, arrange, led_by
from toolkit.comparison.compare import compare_groups
from toolkit.comparison.cost import cost_of
from toolkit.comparison.estimates import Settings
from toolkit.comparison.runs import ReportedRun, count_at_chance, counted_score, last_score, reported_first
from toolkit.lookup import lookup
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.formats import SCORES as SCORES
from toolkit.snapshots.store import Run

STATISTICS = ("mean", "sd", "median", "min", "max")

INTEGERS = ("size", "num_at_chance")
"""Counts that may be missing (Int64, NA)."""


@with_columns
def summarise_scores(runs: Sequence[Run | str | Path], labels: Labels | None = None) -> pd.DataFrame:
    """One line per group, labelled split, condition and score: statistics over the seeds at their last epochs.

    ``sd`` is NaN for one seed, and ``..._not_failed`` where all failed. A score that is undefined because every item
    got one answer (a correlation) counts as 0 and is in no ``..._not_failed``, any other is in no statistic.
    ``labels``: run directory name to condition.
    """
    return summarise_groups(arrange(runs, labels))


def summarise_groups(groups: Sequence[Group]) -> pd.DataFrame:
    """:func:`summarise_scores` of groups that are arranged already."""
    lines = lines_of_groups(groups, _lines)
    return pd.DataFrame(lines, columns=columns_of("summarise_scores")).astype(dict.fromkeys(INTEGERS, "Int64"))


@with_columns
def last_scores(runs: Sequence[Run | str | Path], labels: Labels | None = None) -> pd.DataFrame:
    """One line per run and labelled split: the headline score at the last epoch and before training, and the cost.

    ``seconds`` are NaN where none were recorded. ``labels``: run directory name to condition.
    """
    return last_scores_of_groups(arrange(runs, labels))


def last_scores_of_groups(groups: Sequence[Group]) -> pd.DataFrame:
    """:func:`last_scores` of groups that are arranged already."""
    lines = [
        led_by(group, arm)
        | {
            "run": run.name,
            "seed": run.config.seed,
            "split": split,
            "is_reported_split": split == run.reported_split,
            "score": run.score,
            "value": last_score(run, split),
            "value_before": last_score(run, split, at="first"),
            "is_failed": run.is_failed,
            "seconds": cost_of(run)["seconds"],
        }
        for group in groups
        for arm in group.arms
        for run in arm.runs
        for split in run.answers
    ]
    return pd.DataFrame(lines, columns=columns_of("last_scores")).astype(
        {"size": "Int64", "num_train_examples": "Int64"}
    )


def lines_of_groups(
    groups: Sequence[Group], lines_of: Callable[[Arm, str], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """What ``lines_of`` says of every arm on every split of every group, each line led by both."""
    return [
        led_by(group, arm) | line
        for group in groups
        for split in splits_of(group)
        for arm in group.arms
        for line in lines_of(arm, split)
    ]


@with_columns
def side_by_side(summary: pd.DataFrame | Sequence[Run | str | Path], score: str | None = None) -> pd.DataFrame:
    """In and out of distribution beside each other: one line per condition, a mean and sd per split.

    ``summary``: the table of :func:`summarise_scores`, or the runs that it is made of. Of the headline score, or of
    ``score``; the reported split first. NaN: this task has no such split. ValueError for another table, or a
    score that it has not.
    """
    if not isinstance(summary, pd.DataFrame):
        summary = summarise_scores(summary)
    check_table(summary, columns_of("summarise_scores"), "summarise_scores (or runs)")
    if score is not None:
        lookup(dict.fromkeys(summary["score"]), score, "score")
    chosen = summary[summary["is_headline"] if score is None else summary["score"] == score]
    chosen = chosen.sort_values("is_reported_split", ascending=False, kind="stable")
    splits = list(dict.fromkeys(chosen["split"]))
    index = columns_of("side_by_side")[:-2]
    arms = summary[["group", "condition"]].drop_duplicates()
    lines: dict[tuple[str, str], dict[str, Any]] = {(str(a.group), str(a.condition)): {} for a in arms.itertuples()}
    for line in chosen.to_dict("records"):
        own = lines[line["group"], line["condition"]]
        lines[line["group"], line["condition"]] = {name: line[name] for name in index} | own
        lines[line["group"], line["condition"]] |= {f"{line['split']}_{name}": line[name] for name in ("mean", "sd")}
    columns = [*index, *(f"{split}_{name}" for split in splits for name in ("mean", "sd"))]
    table = pd.DataFrame([line for line in lines.values() if line], columns=columns)
    return table.astype(dict.fromkeys(INTEGERS, "Int64"))


def check_table(table: object, columns: Iterable[str], source: str) -> None:
    """ValueError unless ``table`` has the ``columns`` of the table that ``source`` makes."""
    if not isinstance(table, pd.DataFrame):
        raise ValueError(f"expected the table of {source}; got {type(table).__name__}")
    if missing := [name for name in columns if name not in table]:
        raise ValueError(f"expected the table of {source}; got one without {', '.join(missing)}")


def statistics(values: Iterable[float]) -> dict[str, float]:
    """STATISTICS of the values that are not NaN; all NaN without any, and sd NaN for one."""
    defined = np.array([value for value in values if value == value], dtype=float)
    if not len(defined):
        return dict.fromkeys(STATISTICS, np.nan)
    sd = float(defined.std(ddof=1)) if len(defined) > 1 else np.nan
    middle = {"mean": float(defined.mean()), "sd": sd, "median": float(np.median(defined))}
    return middle | {"min": float(defined.min()), "max": float(defined.max())}


def splits_of(group: Group) -> list[str]:
    """Labelled splits of any run, the reported ones first."""
    found = (split for run in group.runs for split in run.answers)
    return reported_first(found, {run.reported_split for run in group.runs})


def _lines(arm: Arm, split: str) -> list[dict[str, Any]]:
    runs = [run for run in arm.runs if split in run.answers]
    if not runs:
        return []
    first = runs[0]
    labels = first.answers[split]["label"]
    lead = {"split": split, "is_reported_split": split == first.reported_split, "num_at_chance": count_at_chance(runs)}
    lead |= {"num_seeds": len(runs), "num_failed": sum(run.is_failed for run in runs)}
    lines = []
    for score in (name for name in SCORES if any(name in run.scores for run in runs)):
        recorded = [last_score(run, split, score) for run in runs]
        kept = [value for run, value in zip(runs, recorded, strict=True) if not run.is_failed]
        of_kept = {f"{name}_not_failed": value for name, value in statistics(kept).items()}
        rate = float(labels.value_counts().max() / len(labels)) if score == "accuracy" else np.nan
        own = {"score": score, "is_headline": score == first.score, "majority_rate": rate}
        own["num_undefined"] = sum(value != value for value in recorded)
        lines.append(lead | own | statistics(counted_score(run, split, score) for run in runs) | of_kept)
    return lines


FLOORS = {"majority": "majority", "bag_of_words": "bag of words", "untouched": "cosine of the untouched model"}
"""Name of a floor in a manifest to the words for it."""
OF_TOKENS = "bag of words: the most frequent tag of each word form"


@with_columns
def summarise_floors(runs: Sequence[Run | str | Path], labels: Labels | None = None) -> pd.DataFrame:
    """One line per group, labelled split and condition whose runs recorded floors, of the headline score.

    All are means over the ``num_seeds`` runs that recorded floors, fitted to the training examples of that run; a
    correlation of one answer to every item counts as 0. NaN where a floor does not apply, is undefined or was not
    recorded: ``reason`` says which, but for the cosine in a classification. Older runs and those with shuffled labels
    recorded none, and have no line. ``labels``: run directory name to condition.
    """
    return floors_of_groups(arrange(runs, labels))


def floors_of_groups(groups: Sequence[Group]) -> pd.DataFrame:
    """:func:`summarise_floors` of groups that are arranged already."""
    lines = lines_of_groups(groups, _floor_lines)
    return pd.DataFrame(lines, columns=columns_of("summarise_floors")).astype(
        {"size": "Int64", "num_train_examples": "Int64"}
    )


def floor_score(run: ReportedRun, floor: str, split: str) -> float:
    """The headline score of a floor that a run recorded, NaN without one."""
    value = ((run.floors.get(floor) or {}).get(split) or {}).get(run.score)
    return np.nan if value is None else float(value)


def _floor_lines(arm: Arm, split: str) -> list[dict[str, Any]]:
    runs = [run for run in arm.runs if run.floors and split in run.answers]
    if not runs:
        return []
    first = runs[0]
    means = {floor: _mean([floor_score(run, floor, split) for run in runs]) for floor in FLOORS}
    mean = _mean([counted_score(run, split) for run in runs])
    line: dict[str, Any] = {"split": split, "score": first.score}
    line |= {"is_reported_split": split == first.reported_split, "num_seeds": len(runs), "mean": mean}
    above = 100 * (mean - means["bag_of_words"])
    told = {"reason": _reason(first, means, split), "note": OF_TOKENS if first.is_token_task else ""}
    return [line | means | {"above_bag_of_words_points": above} | told]


def _reason(run: ReportedRun, means: dict[str, float], split: str) -> str:
    """Why a floor has no value."""
    reasons = []
    for floor in (floor for floor, mean in means.items() if np.isnan(mean)):
        if split in (run.floors.get(floor) or {}):
            reasons.append(f"{FLOORS[floor]}: undefined")
        elif floor != "untouched":
            reasons.append(f"{FLOORS[floor]}: not recorded")
        elif run.is_regression:
            reasons.append(f"{FLOORS[floor]}: not applicable (no pairs), or the checkpoint was not at hand")
    return "; ".join(reasons)


def _mean(values: Sequence[float]) -> float:
    """The mean of what is there; NaN of nothing."""
    defined = [value for value in values if value == value]
    return float(np.mean(defined)) if defined else np.nan


DIFFERENCES = ("difference_points", "low_points", "high_points", "p", "q", "verdict", "reason", "note")


@with_columns
def data_efficiency(
    runs: Sequence[Run | str | Path],
    *,
    labels: Labels | None = None,
    pairs: Pairs | None = None,
    margin_points: float = 1.0,
    level: float = 0.95,
) -> pd.DataFrame:
    """One line per group, split, condition and, where it is the second of a pair, condition that it is set ``against``.

    The headline score at the last epochs: its statistics over seeds, then the difference *against minus this condition*
    at the same size, with interval, p and q as :func:`toolkit.compare` gives them of the same runs, NaN for a condition
    that nothing is set against. Groups whose runs were asked for one number of training examples only are
    left out, after q was worked out with them: no lines without two.
    """
    settings = Settings(margin_points=margin_points, level=level, num_draws=0)
    return efficiency_of_groups(arrange(runs, labels), pairs, settings)


def efficiency_of_groups(
    groups: Sequence[Group],
    pairs: Pairs | None = None,
    settings: Settings | None = None,
    *,
    comparison: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """:func:`data_efficiency` of groups that are arranged already.

    ``comparison``: what compare_groups gave of all of these groups, where that is known already.
    """
    several = [group for group in groups if len({arm.size for arm in group.arms}) > 1]
    if not several:
        return pd.DataFrame(columns=columns_of("data_efficiency"))
    compared = compare_groups(groups, pairs, settings) if comparison is None else comparison
    return curves(summarise_groups(several), compared)


def curves(summary: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    """The lines of :func:`data_efficiency` from its two tables; lines of ``compared`` on other groups are not used."""
    points = summary[summary["is_headline"]]
    differences = compared[compared["is_headline"].astype(bool)]
    names = {"second": "condition", "first": "against", "num_seeds": "num_paired_seeds"}
    differences = differences.rename(columns=names)[["group", "split", *names.values(), *DIFFERENCES]]
    table = points.merge(differences, on=["group", "split", "condition"], how="left", sort=False)
    table = table.assign(**{name: table[name].fillna("") for name in ("against", "verdict", "reason", "note")})
    table["num_paired_seeds"] = table["num_paired_seeds"].astype(float).replace(0, np.nan)
    return table[columns_of("data_efficiency")].reset_index(drop=True)
