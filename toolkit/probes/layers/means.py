"""Similarities of every seed in, means over seeds and differences of arms out, each with one kind of interval."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.comparison.intervals import is_constant, two_way_interval
from toolkit.probes.layers.similarities import Place, Similarity
from toolkit.schema import columns_of

BEFORE_AND_AFTER = "before and after"
SEED_AND_SEED = "seed and seed"

_PLACE = ["texts", "layer", "measure"]

OWN_SEEDS, SHUFFLED, OTHER_ARM = "its own seeds", "shuffled labels", "first arm"
"""What a condition is held against: the similarity of its own seeds to each other, or the similarity to before of a
condition with shuffled labels or of the group's first one."""

NO_SEED = "no seed in common"
PAIR = "pair of seeds"
STILL = "equal for all texts and seeds: no spread to make an interval from"

Found = Mapping[Place, Similarity]


@dataclass(frozen=True, eq=False)
class ArmSimilarities:
    """What was found of one arm: every seed against before, and every pair of seeds against each other."""

    group: str
    arm: str
    is_shuffled: bool
    size: int | None
    """Training examples asked for: only arms of one size are held against each other."""
    to_before: Mapping[int, Found]
    between: Mapping[tuple[int, int], Found]


def average(arms: Sequence[ArmSimilarities]) -> pd.DataFrame:
    """One line per condition, comparison and place: ``means`` of :func:`measure_layers`.

    ``low`` and ``high``: the 95 % interval of the mean over new seeds and new texts (of one seed or one pair, over new
    texts), see :func:`interval_of_tables`.
    """
    return pd.DataFrame([line for arm in arms for line in _means_of(arm)], columns=columns_of("measure_layers.means"))


def contrast(arms: Sequence[ArmSimilarities]) -> pd.DataFrame:
    """``contrasts`` of :func:`measure_layers`: texts and seeds are paired.

    ``value``: a condition's similarity to before (``similarity``) minus ``other_similarity``; below 0 it moved further.
    ``between_seeds`` is NaN beside its own seeds, and with one seed each.
    """
    lines: list[dict[str, Any]] = []
    for arm in arms:
        peers = [other for other in arms if (other.group, other.size) == (arm.group, arm.size) and other is not arm]
        lines += _against_own_seeds(arm)
        if not arm.is_shuffled:
            for other in peers:
                if other.is_shuffled:
                    lines += _against(arm, other, SHUFFLED)
            first = next((other for other in arms if other in (*peers, arm) and not other.is_shuffled), arm)
            lines += _against(arm, first, OTHER_ARM) if first is not arm else []
    return pd.DataFrame(lines, columns=columns_of("measure_layers.contrasts"))


def interval_of_tables(table: NDArray[np.float64], row: str = "seed") -> tuple[float, float, str]:
    """95 % interval of the mean of (seeds, groups of texts) pseudo-values, or of differences of such, and a note.

    ``row``: what a row of the table is, for the note where there is but one.

    :func:`toolkit.comparison.intervals.two_way_interval` with groups of texts as the items: Student's t over
    new seeds and new texts at once. (That pseudo-values may be treated as such is Tukey's idea for one sample; for two
    factors it is ours, and a test holds its coverage.)
    """
    if not table.size:
        return math.nan, math.nan, "too few texts for an interval"
    if is_constant(table, size=1.0):  # similarities are at most 1
        return math.nan, math.nan, STILL
    interval = two_way_interval(table)
    return interval.low, interval.high, interval.note.replace("items", "texts").replace("one seed:", f"one {row}:")


def pseudo_of_seeds(between: Mapping[tuple[int, int], Similarity], seeds: Sequence[int]) -> NDArray[np.float64]:
    """(seeds, groups) pseudo-values of the mean over pairs of seeds: K·mean - (K - 1)·mean of the pairs without a seed.

    Of two seeds there is one pair: (1, groups), as without a second pair nothing says how pairs differ.
    """
    every = np.mean([found.pseudo for found in between.values()], axis=0)
    if len(seeds) < 3:
        return np.asarray(every[None])
    without = [np.mean([found.pseudo for pair, found in between.items() if seed not in pair], axis=0) for seed in seeds]
    return np.asarray(len(seeds) * every - (len(seeds) - 1) * np.array(without))


def _means_of(arm: ArmSimilarities) -> Iterator[dict[str, Any]]:
    lead = {"group": arm.group, "condition": arm.arm, "is_shuffled": arm.is_shuffled, "num_seeds": len(arm.to_before)}
    for place in next(iter(arm.to_before.values())):
        own = {seed: found[place] for seed, found in arm.to_before.items()}
        yield lead | {"comparison": BEFORE_AND_AFTER} | _mean(place, list(own.values()), partial(_before, own))
    seeds = list(arm.to_before)
    for place in next(iter(arm.between.values()), {}):
        pairs = {pair: found[place] for pair, found in arm.between.items()}
        table = partial(pseudo_of_seeds, pairs, seeds)
        yield lead | {"comparison": SEED_AND_SEED} | _mean(place, list(pairs.values()), table, PAIR)


def _mean(
    place: Place, own: Sequence[Similarity], table: Callable[[], NDArray[np.float64]], row: str = "seed"
) -> dict[str, Any]:
    """Mean and interval of one place; NaN with the reason where any of the values is refused."""
    line: dict[str, Any] = dict(zip(_PLACE, place, strict=True))
    line |= {"value": float(np.mean([one.value for one in own])), "num_texts": own[0].num_texts}
    reason = next((one.reason for one in own if one.reason), "")
    if reason:
        return line | {"reason": reason, "note": ""}
    low, high, note = interval_of_tables(table(), row)
    # No similarity is above 1, where Student's t, which is symmetric, may reach.
    return line | {"low": low, "high": min(high, 1.0) if high == high else high, "reason": "", "note": note}


def _before(own: Mapping[int, Similarity]) -> NDArray[np.float64]:
    return np.array([one.pseudo for one in own.values()])


def _against_own_seeds(arm: ArmSimilarities) -> Iterator[dict[str, Any]]:
    seeds = list(arm.to_before)
    for place in next(iter(arm.between.values()), {}):
        own = {seed: found[place] for seed, found in arm.to_before.items()}
        between = {pair: found[place] for pair, found in arm.between.items()}
        line = _line(arm, "its seeds with each other", OWN_SEEDS, place, own.values(), between.values())
        if not line["reason"]:
            tables = _before(own), pseudo_of_seeds(between, seeds)
            first = tables[0] if len(tables[1]) > 1 else tables[0].mean(axis=0, keepdims=True)
            line |= dict(zip(("low", "high", "note"), interval_of_tables(first - tables[1], PAIR), strict=True))
        yield line


def _against(arm: ArmSimilarities, other: ArmSimilarities, kind: str) -> Iterator[dict[str, Any]]:
    seeds = [seed for seed in arm.to_before if seed in other.to_before]
    for place in next(iter(arm.to_before.values())):
        own, theirs = ([side.to_before[seed][place] for seed in seeds] for side in (arm, other))
        line = _line(arm, other.arm, kind, place, own, theirs)
        if not line["reason"]:
            table = np.array([one.pseudo - two.pseudo for one, two in zip(own, theirs, strict=True)])
            line |= dict(zip(("low", "high", "note"), interval_of_tables(table), strict=True))
        yield line | {"between_seeds": _between_seeds((arm, other), place)}


def _line(arm: ArmSimilarities, against: str, kind: str, place: Place, own: Any, others: Any) -> dict[str, Any]:
    """A line without its interval; the reason says why there is no value."""
    first, second = list(own), list(others)
    reason = next((one.reason for one in (*first, *second) if one.reason), "" if first else NO_SEED)
    means = [float(np.mean([one.value for one in side])) if side else math.nan for side in (first, second)]
    return {"group": arm.group, "condition": arm.arm, "comparison": kind, "against": against} | {
        **dict(zip(_PLACE, place, strict=True)),
        "similarity": means[0],
        "other_similarity": means[1],
        "value": means[0] - means[1],
        "low": math.nan,
        "high": math.nan,
        "between_seeds": math.nan,
        "num_seeds": len(first),
        "num_texts": first[0].num_texts if first else 0,
        "reason": reason,
        "note": "",
    }


def _between_seeds(arms: Sequence[ArmSimilarities], place: Place) -> float:
    gaps = [
        abs(one - two)
        for arm in arms
        for one, two in combinations([found[place].value for found in arm.to_before.values()], 2)
    ]
    return float(np.mean(gaps)) if gaps else math.nan
