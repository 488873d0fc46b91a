"""What needs no fine-tuning beside what each arm scored: the majority, a bag of words, the untouched checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Arm, Group, Labels, arrange
from toolkit.comparison.reported import ReportedRun, counted_score
from toolkit.comparison.summaries import lines_of_groups
from toolkit.snapshots.store import Run

FLOORS = {"majority": "majority", "bag_of_words": "bag of words", "untouched": "cosine of the untouched model"}
"""Name of a floor in a manifest to the words for it."""
OF_TOKENS = "bag of words: the most frequent tag of each word form"

LEAD = ("group", "model", "task", "arm", "base", "size", "num_train_examples", "split", "is_reported_split", "score")
COLUMNS = (*LEAD, "num_seeds", "mean", *FLOORS, "above_bag_of_words_points", "note")


def summarise_floors(runs: Sequence[Run | str | Path], labels: Labels | None = None) -> pd.DataFrame:
    """One line per group, labelled split and arm whose runs recorded floors, of the headline score.

    ``mean`` is the arm's at its last epoch (a correlation of one answer to every item counts as 0); ``majority`` that
    of always giving the most frequent training label (in regression the mean of the targets), ``bag_of_words`` that of
    TF-IDF of single words and a logistic or ridge regression, or in a token task of the most frequent tag of each word
    form, ``untouched`` that of the cosine of two texts by the checkpoint before training, in regressions on pairs. All
    are means over the ``num_seeds`` runs that recorded floors, fitted to the training examples of that run.
    ``above_bag_of_words_points`` = 100 x (mean - bag_of_words). NaN where a floor does not apply, is undefined or was
    not recorded: ``note`` says which, but for the cosine in a classification. Older runs and those with shuffled labels
    recorded none, and have no line.
    ``labels``: run directory name to arm.
    """
    return floors_of_groups(arrange(runs, labels))


def floors_of_groups(groups: Sequence[Group]) -> pd.DataFrame:
    """:func:`summarise_floors` of groups that are arranged already."""
    lines = lines_of_groups(groups, _lines)
    return pd.DataFrame(lines, columns=list(COLUMNS)).astype({"size": "Int64", "num_train_examples": "Int64"})


def floor_score(run: ReportedRun, floor: str, split: str) -> float:
    """The headline score of a floor that a run recorded, NaN without one."""
    value = ((run.floors.get(floor) or {}).get(split) or {}).get(run.score)
    return np.nan if value is None else float(value)


def _lines(arm: Arm, split: str) -> list[dict[str, Any]]:
    runs = [run for run in arm.runs if run.floors and split in run.answers]
    if not runs:
        return []
    first = runs[0]
    means = {floor: _mean([floor_score(run, floor, split) for run in runs]) for floor in FLOORS}
    mean = _mean([counted_score(run, split) for run in runs])
    line: dict[str, Any] = {"model": first.model, "task": first.task, "arm": arm.label, "base": arm.base}
    line |= {"size": arm.size, "num_train_examples": arm.num_train_examples, "split": split, "score": first.score}
    line |= {"is_reported_split": split == first.reported_split, "num_seeds": len(runs), "mean": mean}
    above = 100 * (mean - means["bag_of_words"])
    return [line | means | {"above_bag_of_words_points": above, "note": _note(first, means, split)}]


def _note(run: ReportedRun, means: dict[str, float], split: str) -> str:
    """Why a floor has no value, and which bag of words it is."""
    reasons = [OF_TOKENS] if run.is_token_task else []
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
