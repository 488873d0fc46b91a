"""Finished runs in, one line per group, split and pair of arms out: difference, intervals, tests and verdict."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.arms import Group, Labels, arrange
from toolkit.analysis.comparison.estimates import ESTIMATES, Settings, estimate_from_items, estimate_from_seeds
from toolkit.analysis.comparison.pairs import ArmPair, Pairs, check_pairs, noise_floor, pair_arms
from toolkit.analysis.comparison.reported import last_score
from toolkit.snapshots.store import Run

LEAD = (
    "group",
    "model",
    "task",
    "split",
    "is_reported_split",
    "first",
    "second",
    "num_train_examples",
    "score",
    "is_headline",
    "num_seeds",
    "num_items",
    "first_mean",
    "second_mean",
)
COLLAPSED = "every run of both arms is no better than the majority class: nothing was learned that could differ"

COLUMNS = (
    *LEAD,
    *ESTIMATES,
    "noise_floor_points",
    "q",
    "num_failed_first",
    "num_failed_second",
    "verdict",
    "reason",
    "note",
)


def compare(
    runs: Sequence[Run | str | Path],
    *,
    pairs: Pairs | None = None,
    margin_points: float = 1.0,
    level: float = 0.95,
    alpha: float = 0.05,
    labels: Labels | None = None,
    num_draws: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """One line per group, labelled split and pair of arms of one size, columns COLUMNS; points are hundredths.

    The difference is first minus second, on the same items, paired by seed, at the last epochs; ``first_mean`` and
    ``second_mean`` are shares over the paired seeds. Of an accuracy, ``low_points`` to ``high_points`` is the two-way
    interval over seeds and items at ``level``; of a score that is no mean over items (matthews, pearson) a t interval
    over seeds, and an accuracy line stands beside it in classification. ``p`` is the test of that interval.
    ``low90_points`` to ``high90_points`` is the 90 % interval that decides equivalence within ``margin_points``
    (``tost_p`` below .05); the bootstrap is secondary. ``detectable_gap_points``: the smallest difference that data of
    this spread show with 80 % power at ``alpha``; ``noise_floor_points``: what another seed does within the two arms.
    ``q``: Benjamini-Hochberg value of ``p`` over one family, all lines of headline scores of this call (the accuracy
    lines beside other headline scores are a family of their own). ``num_failed_...`` counts all runs of each arm.

    ``pairs``: labels (first, second); by default full fine-tuning against each other arm, or all pairs without it.
    ``labels``: run directory name to arm. One paired seed gives an interval over items and no p: McNemar's test is in
    :func:`toolkit.compare_seeds`. What cannot be compared is NaN with a ``note``. ValueError for an unknown
    label and for settings out of range.
    """
    settings = Settings(margin_points=margin_points, level=level, alpha=alpha, num_draws=num_draws, seed=seed)
    return compare_groups(arrange(runs, labels), pairs, settings)


def compare_groups(
    groups: Sequence[Group], pairs: Pairs | None = None, settings: Settings | None = None
) -> pd.DataFrame:
    """:func:`compare` of groups that are arranged already."""
    check_pairs(groups, pairs)
    chosen = settings or Settings()
    lines = [
        {"group": group.title} | line
        for group in groups
        for pair in pair_arms(group, pairs)
        for line in compare_pair(pair, chosen)
    ]
    table = pd.DataFrame(lines, columns=list(COLUMNS))
    return table.assign(q=false_discovery(table)) if len(table) else table


def false_discovery(table: pd.DataFrame) -> pd.Series:
    """q of each line's p, headline scores and the lines beside them as two families."""
    from toolkit.analysis.comparison.multiplicity import benjamini_hochberg

    p = table["p"].astype(float)
    return p.groupby(table["is_headline"].astype(bool)).transform(lambda own: benjamini_hochberg(own.to_numpy()))


def compare_pair(pair: ArmPair, settings: Settings) -> list[dict[str, Any]]:
    """The lines of one pair: each labelled split, the headline score and, where that is another, accuracy."""
    first = pair.first.runs[0]
    lead: dict[str, Any] = {
        "model": first.model,
        "task": first.task,
        "first": pair.first.label,
        "second": pair.second.label,
    }
    lead |= {"num_train_examples": pair.first.num_train_examples, "num_seeds": len(pair.seeds)}
    lead |= {"num_failed_first": pair.first.num_failed, "num_failed_second": pair.second.num_failed}
    scores = [first.score, *([] if first.is_regression or first.score == "accuracy" else ["accuracy"])]
    if not pair.seeds:
        lead |= {"split": first.reported_split, "is_reported_split": True, "score": scores[0], "is_headline": True}
        return [lead | {"num_items": 0, "note": "no seed in common", "verdict": ""}]
    lines = []
    for split in pair.splits:
        own = {"split": split, "is_reported_split": split == first.reported_split}
        own["num_items"] = len(pair.runs[0][0].answers[split])
        lines += [lead | own | {"is_headline": s == first.score} | _compared(pair, split, s, settings) for s in scores]
    if all(arm.num_failed == len(arm.runs) for arm in (pair.first, pair.second)):
        refusal = {"verdict": "not identifiable", "reason": COLLAPSED, "is_equivalent": False}
        lines = [line | refusal if line["verdict"] else line for line in lines]
    return lines


def _compared(pair: ArmPair, split: str, score: str, settings: Settings) -> dict[str, Any]:
    """One score of one split: its means, estimates and noise floor; a note alone where items differ."""
    line: dict[str, Any] = {"score": score, "note": pair.note_on_items(split), "verdict": ""}
    if line["note"]:
        return line
    for name, side in (("first_mean", 0), ("second_mean", 1)):
        line[name] = float(np.mean([last_score(runs[side], split, score) for runs in pair.runs]))
    line["noise_floor_points"] = 100 * noise_floor(pair, split, score)
    items = pair.differences_of_items(split) if score == "accuracy" else None
    if items is not None:
        return line | estimate_from_items(items, settings)
    is_mean = score == "accuracy"
    return line | estimate_from_seeds(pair.differences_of_scores(split, score), settings, is_mean_over_items=is_mean)
