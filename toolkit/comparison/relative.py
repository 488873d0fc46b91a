"""Relative quality: a condition's score as a share of a reference's, with its interval."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.comparison.arms import ArmPair, Group, Labels, arrange, check_pairs, led_by, pair_arms
from toolkit.comparison.intervals import NO_SEED, Interval, seeds_interval, two_way_interval
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run

NOT_POSITIVE = "the reference's score is not above 0: no share of it"
UNDEFINED = "{} score is undefined in every seed: no ratio"
NEVER_BOTH = "no seed in which both scores are defined: no ratio"
ITSELF = "the reference itself: 1 by definition, so without interval"


@with_columns
def relative_quality(
    runs: Sequence[Run | str | Path], reference: str, *, level: float = 0.95, labels: Labels | None = None
) -> pd.DataFrame:
    """One line per group, labelled split and condition: R = its mean score / the mean score of ``reference``.

    Same seeds and items for both. The reference has lines of its own: 1, without interval. The interval is R ± t·√V /
    reference's mean, with t and V those of :func:`toolkit.compare`'s interval of the linearised differences arm -
    R·reference, whose mean is 0: over seeds and items for an accuracy, over seeds for another score. (Taylor
    linearisation of a ratio of means, as in Cochran 1977, Sampling Techniques, chapter 6; with the two-way V it is
    ours.) The reference's own noise counts, other than in the difference divided by a fixed score.

    ``majority_quality``: R of always answering the commonest class, which no arm should be praised for (NaN in
    regression, and for a score that it has none of). ``num_failed``: runs of the arm at the majority class or below,
    which count in R. NaN with a ``reason`` where there is no ratio. ``labels``: run directory name to arm. ValueError
    for a reference that no group has.
    """
    groups = arrange(runs, labels)
    check_pairs(groups, [(reference, reference)])
    lines = [line for group in groups for line in _lines_of(group, reference, level)]
    table = pd.DataFrame(lines, columns=columns_of("relative_quality")).astype({"size": "Int64"})
    return table.fillna({"reason": "", "note": ""})


def _lines_of(group: Group, reference: str, level: float) -> Iterator[dict[str, Any]]:
    for arm in group.arms:
        is_reference = reference in (arm.label, arm.base)
        pairs = [ArmPair(arm, arm)] if is_reference else pair_arms(group, [(arm.label, reference)])
        for pair in pairs:
            run = arm.runs[0]
            lead = led_by(group, arm) | {"against": pair.second.label, "score": run.score, "num_seeds": len(pair.seeds)}
            lead |= {"num_failed": sum(one.is_failed for one, _ in pair.runs)}
            if not pair.splits:
                yield lead | {"reason": NO_SEED}
            for split in pair.splits:
                own = {"split": split, "is_reported_split": split == run.reported_split}
                yield lead | own | _ratio(pair, split, run.score, level)


def _ratio(pair: ArmPair, split: str, score: str, level: float) -> dict[str, Any]:
    """R of one split with its interval, and what majority answers would be."""
    reason = pair.note_on_items(split)
    if reason:
        return {"reason": reason}
    right = pair.right_answers(split) if score == "accuracy" else None
    values = _defined(pair.counted_scores(split, score)) if right is None else right
    if isinstance(values, str):
        return {"num_seeds": 0, "reason": values}
    first, second = (float(side.mean()) for side in values)
    found: dict[str, Any] = {"condition_mean": first, "reference_mean": second, "num_seeds": values.shape[1]}
    if not second > 0:
        return found | {"reason": NOT_POSITIVE}
    majority = float(pair.runs[0][0].answers[split]["label"].value_counts(normalize=True).max())
    found |= {"majority_quality": majority / second if score == "accuracy" else float("nan")}
    if pair.first is pair.second:
        return found | {"relative_quality": 1.0, "reason": ITSELF}
    interval = ratio_interval(values, level)
    told = "reason" if np.isnan(interval.low) else "note"
    return found | {
        "relative_quality": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        told: interval.note,
    }


def _defined(scores: NDArray[np.float64]) -> NDArray[np.float64] | str:
    """(2, seeds) scores of arm and reference where both are defined, or why there are none."""
    kept = scores[:, ~np.isnan(scores).any(axis=0)]
    if kept.size:
        return kept
    for side, name in ((1, "the reference's"), (0, "the condition's")):
        if np.isnan(scores[side]).all():
            return UNDEFINED.format(name)
    return NEVER_BOTH


def ratio_interval(values: NDArray[np.float64], level: float = 0.95) -> Interval:
    """Ratio of the means of (2, seeds, items) or (2, seeds) scores, the second's above 0, with its interval.

    The interval of first - ratio·second over seeds (and items), divided by the second's mean; ``variance`` likewise.
    """
    first, second = (float(side.mean()) for side in values)
    linear = values[0] - first / second * values[1]
    size = float(np.abs(values[0]).max())  # the differences themselves may be rounding alone
    own = (seeds_interval if linear.ndim == 1 else two_way_interval)(linear, level, size=size)
    low, high = ((edge - own.estimate + first) / second for edge in (own.low, own.high))
    return replace(own, estimate=first / second, low=low, high=high, variance=own.variance / second**2)
