"""Two arms of one group in, their right answers and scores beside each other out: same items, paired by seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.comparison.arms import Arm, Group
from toolkit.analysis.comparison.reported import ReportedRun, last_score
from toolkit.lookup import unknown

Pairs = Sequence[tuple[str, str]]
"""Labels of the arms to be compared: the first minus the second."""

OTHER_ITEMS = "not comparable: other items or labels"


@dataclass(frozen=True)
class ArmPair:
    """Two arms of one group and size, first minus second."""

    first: Arm
    second: Arm

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds that both arms have, in order."""
        return sorted({run.config.seed for run in self.first.runs} & {run.config.seed for run in self.second.runs})

    @cached_property
    def runs(self) -> list[tuple[ReportedRun, ReportedRun]]:
        """The runs of :attr:`seeds`, side by side."""
        ours, theirs = ({run.config.seed: run for run in arm.runs} for arm in (self.first, self.second))
        return [(ours[seed], theirs[seed]) for seed in self.seeds]

    @property
    def splits(self) -> list[str]:
        """Labelled splits of every run, the reported one first."""
        runs = [run for pair in self.runs for run in pair]
        common = [name for name in runs[0].answers if all(name in run.answers for run in runs)] if runs else []
        return sorted(common, key=lambda name: name != runs[0].reported_split)

    def note_on_items(self, split: str) -> str:
        """Empty when the runs of each seed have the same items with the same labels; else what is wrong."""
        is_same = all(are_same_items(one.answers[split], other.answers[split]) for one, other in self.runs)
        return "" if is_same else OTHER_ITEMS

    def differences_of_items(self, split: str) -> NDArray[np.float64] | None:
        """(seeds, items) right answers of the first minus the second: -1, 0 or 1.

        None when seeds have other items (a split that was drawn with the seed), so that items are no common factor.
        """
        reference = self.runs[0][0].answers[split]
        rows = []
        for one, other in self.runs:
            if not are_same_items(reference, one.answers[split]):
                return None
            rows.append(right_of(one, split, reference.index) - right_of(other, split, reference.index))
        return np.array(rows, dtype=float)

    def differences_of_scores(self, split: str, score: str) -> NDArray[np.float64]:
        """(seeds,) score of the first minus the second at their last epochs."""
        return np.array([last_score(one, split, score) - last_score(other, split, score) for one, other in self.runs])


def right_of(run: ReportedRun, split: str, ids: "pd.Index") -> NDArray[np.float64]:
    """(items,) 1 where the answer at the last epoch is right and 0 elsewhere, in the order of ``ids``."""
    own = run.answers[split].reindex(ids)
    right: NDArray[np.float64] = (own["label"] == own["prediction"]).fillna(False).to_numpy(dtype=float)
    return right


def are_same_items(first: "pd.DataFrame", second: "pd.DataFrame") -> bool:
    """Whether ids are unique, equal as sets, and carry the same labels."""
    if not (first.index.is_unique and second.index.is_unique) or len(first) != len(second):
        return False
    if not first.index.isin(second.index).all():
        return False
    return bool((first["label"] == second.loc[first.index, "label"]).all())


def pair_arms(group: Group, pairs: Pairs | None = None) -> list[ArmPair]:
    """Pairs of arms of one size.

    ``pairs`` names labels, with or without the size; a pair of which the group lacks an arm is left out. By default
    full fine-tuning stands against each other arm; without it, or with nothing else, all pairs.
    """
    every = [ArmPair(one, other) for one, other in combinations(group.arms, 2) if one.size == other.size]
    if pairs is None:
        with_full = [pair for pair in every if pair.first.is_full != pair.second.is_full]
        return [pair if pair.first.is_full else ArmPair(pair.second, pair.first) for pair in with_full] or every
    both = [*every, *(ArmPair(pair.second, pair.first) for pair in every)]
    return [
        pair for one, other in pairs for pair in both if _is_named(pair.first, one) and _is_named(pair.second, other)
    ]


def _is_named(arm: Arm, label: str) -> bool:
    return label in (arm.label, arm.base)


def check_pairs(groups: Sequence[Group], pairs: Pairs | None) -> None:
    """ValueError for a label that no arm of any group has."""
    known = tuple(dict.fromkeys(name for group in groups for arm in group.arms for name in (arm.base, arm.label)))
    for label in (label for pair in pairs or () for label in pair):
        if label not in known:
            raise ValueError(unknown(label, "arm", known))


def noise_floor(pair: ArmPair, split: str, score: str) -> float:
    """Mean |difference| of a score between two seeds of one arm, over all pairs of seeds within each arm; a share.

    NaN when neither arm has two seeds. What a difference between arms must be compared with before anything else: it
    is what changing nothing but the seed does. Ours.
    """
    gaps = []
    for arm in (pair.first, pair.second):
        values = [last_score(run, split, score) for run in arm.runs]
        gaps += [abs(one - other) for one, other in combinations(values, 2)]
    return float(np.nanmean(gaps)) if not np.isnan(gaps).all() else np.nan
