"""Two arms of one group in, their right answers and scores beside each other out: same items, paired by seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.comparison.arms import Arm, Group
from toolkit.comparison.reported import ReportedRun, counted_score, last_score, reported_first
from toolkit.lookup import unknown

Pairs = Sequence[tuple[str, str]]
"""Labels of the arms to be compared: the first minus the second."""

NOT_COMPARED = "not compared"
OTHER_ITEMS = f"{NOT_COMPARED}: other items or labels"
NO_SEED = f"{NOT_COMPARED}: no seed in common"
NO_SPLIT = f"{NOT_COMPARED}: no labelled split in common"


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
        return reported_first(common, [run.reported_split for run in runs[:1]])

    @property
    def is_failed(self) -> NDArray[np.bool_]:
        """(seeds,) whether either run of the pair failed."""
        return np.array([one.is_failed or other.is_failed for one, other in self.runs], dtype=bool)

    def note_on_items(self, split: str) -> str:
        """Empty when the runs of each seed have the same items with the same labels; else what is wrong."""
        is_same = all(have_same_items(one, other, split) for one, other in self.runs)
        return "" if is_same else OTHER_ITEMS

    def right_answers(self, split: str) -> NDArray[np.float64] | None:
        """(2, seeds, items) 1 where the answer of the first, or of the second, is right and 0 elsewhere.

        None when seeds have other items (a split that was drawn with the seed), so that items are no common factor, and
        in a token task: the words of a sentence are no independent items.
        """
        reference = self.runs[0][0]
        if reference.is_token_task or not all(have_same_items(reference, one, split) for one, _ in self.runs):
            return None
        ids = reference.answers[split].index
        return np.array([[right_of(runs[side], split, ids) for runs in self.runs] for side in (0, 1)])

    def scores(self, split: str, score: str) -> NDArray[np.float64]:
        """(2, seeds) score of the first and of the second at their last epochs, undefined as :func:`last_score` is."""
        return np.array([[last_score(runs[side], split, score) for runs in self.runs] for side in (0, 1)])

    def counted_scores(self, split: str, score: str) -> NDArray[np.float64]:
        """:meth:`scores`, in which one answer to every item counts as a correlation of 0."""
        return np.array([[counted_score(runs[side], split, score) for runs in self.runs] for side in (0, 1)])


def right_of(run: ReportedRun, split: str, ids: "pd.Index") -> NDArray[np.float64]:
    """(items,) 1 where the answer at the last epoch is right and 0 elsewhere, in the order of ``ids``."""
    own = run.answers[split].reindex(ids)
    right: NDArray[np.float64] = (own["label"] == own["prediction"]).fillna(False).to_numpy(dtype=float)
    return right


def have_same_items(one: ReportedRun, other: ReportedRun, split: str) -> bool:
    """Whether two runs answered the same items of a split: ids are unique, equal as sets, and carry the same labels.

    Rows of another file can have the same numbers and labels: where both hashes of it are known, they must be equal.
    """
    known = {run.data_sha256.get(split) for run in (one, other)} - {None}
    if len(known) > 1:
        return False
    first, second = one.answers[split], other.answers[split]
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
        values = [counted_score(run, split, score) for run in arm.runs]
        gaps += [abs(one - other) for one, other in combinations(values, 2)]
    return float(np.nanmean(gaps)) if not np.isnan(gaps).all() else np.nan
