"""Jackknifed similarities: the values are those of the analysis half, and the intervals cover what they should."""

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from toolkit.questions.layers.states import (
    CKA,
    MAX_GROUPS,
    MEASURES,
    NO_SPREAD,
    STANDARDISED,
    ConditionSimilarities,
    LayerSimilarity,
    compare,
    contrast,
    interval_of_tables,
    pseudo_of_seeds,
    text_groups,
)

HIDDEN = 8
SIZES = np.linspace(2, 0.3, HIDDEN)


def two_versions(num: int, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, HIDDEN)) * SIZES
    return x, x @ rng.normal(size=(HIDDEN, HIDDEN)) / 3 + noise * rng.normal(size=(num, HIDDEN))


def plain_hsic(x: np.ndarray, y: np.ndarray) -> float:
    """The U-statistic of Song et al. 2012 on linear kernels of centred rows, by sums over rows: quick of many."""
    num, lengths = len(x), [np.square(side).sum(1) for side in (x, y)]
    sums = [side @ side.sum(0) - own for side, own in zip((x, y), lengths, strict=True)]  # of a kernel without diagonal
    squares = np.square(x.T @ y).sum() - lengths[0] @ lengths[1]
    total = sums[0].sum() * sums[1].sum() / ((num - 1) * (num - 2))
    return float((squares + total - 2 / (num - 2) * sums[0] @ sums[1]) / (num * (num - 3)))


def plain_cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return plain_hsic(x, y) / math.sqrt(plain_hsic(x, x) * plain_hsic(y, y))


def by_hand(measure: str, x: np.ndarray, y: np.ndarray) -> float:
    return plain_cka(*((side / side.std(0) if measure == STANDARDISED else side) for side in (x, y)))


@pytest.mark.parametrize("measure", MEASURES)
def test_values_and_those_without_a_group_are_the_plain_ones(measure: str) -> None:
    x, y = two_versions(45)
    found, groups = compare(MEASURES[measure], x, y), text_groups(45)
    assert found.value == pytest.approx(by_hand(measure, x, y), abs=1e-9)
    assert found.pseudo.mean() == pytest.approx(found.value)
    expected = []
    for group in range(groups.max() + 1):
        kept, times = groups != group, 45 / (groups == group).sum()
        expected.append(times * found.value - (times - 1) * by_hand(measure, x[kept], y[kept]))
    assert np.diff(found.pseudo) == pytest.approx(np.diff(expected), abs=1e-8)


@pytest.mark.parametrize("num", [20, 29, 30, 31, 45, 59, 61, 300, 872])
def test_groups_are_of_one_size_but_for_one_text(num: int) -> None:
    sizes = np.bincount(text_groups(num, 3))
    assert sizes.sum() == num
    assert sizes.max() - sizes.min() <= max(1, math.ceil(num / MAX_GROUPS) // len(sizes) + 1)
    assert 10 <= len(sizes) <= MAX_GROUPS


def test_too_few_texts_and_texts_that_are_all_equal() -> None:
    x, y = two_versions(19)
    few = compare(MEASURES[CKA], x, y)
    assert few.pseudo.size == 0
    assert np.isfinite(few.value)
    assert np.isnan(interval_of_tables(few.pseudo[None])[:2]).all()
    for measure in MEASURES.values():
        alike = compare(measure, x, np.ones_like(x))
        assert np.isnan(alike.value)
        assert "undefined" in alike.reason


def test_what_cannot_vary_has_no_interval() -> None:
    x, _ = two_versions(60)
    low, high, note = interval_of_tables(np.stack([compare(MEASURES[CKA], x, 3 * x + 1).pseudo] * 3))
    assert np.isnan([low, high]).all()
    assert note == NO_SPREAD


MIX = np.random.default_rng(9).normal(size=(HIDDEN, HIDDEN)) / 3


def models(rng: np.random.Generator, x: np.ndarray, spread: float) -> list[np.ndarray]:
    """Three seeds' versions of the same texts: each has a mixing of its own and noise on every text."""
    mixings = [MIX + spread * rng.normal(size=MIX.shape) for _ in range(3)]
    return [x @ mixing + 0.7 * rng.normal(size=x.shape) for mixing in mixings]


def tables_of(rng: np.random.Generator, spread: float, num: int) -> tuple[np.ndarray, np.ndarray]:
    """(seeds, groups) pseudo-values of three seeds against before, and of the seeds against each other."""
    x = rng.normal(size=(num, HIDDEN)) * SIZES
    after = models(rng, x, spread)
    before = np.stack([compare(MEASURES[CKA], x, y).pseudo for y in after])
    pairs: dict[tuple[int, int], LayerSimilarity] = {
        (i, j): compare(MEASURES[CKA], after[i], after[j]) for i, j in combinations(range(3), 2)
    }
    assert pseudo_of_seeds(pairs, range(3)).mean() == pytest.approx(np.mean([one.value for one in pairs.values()]))
    return before, pseudo_of_seeds(pairs, range(3))


def values_of(rng: np.random.Generator, spread: float, num: int) -> list[float]:
    """Mean similarity to before and between the seeds, without pseudo-values."""
    x = rng.normal(size=(num, HIDDEN)) * SIZES
    after = models(rng, x, spread)
    pairs = [plain_cka(one, other) for one, other in combinations(after, 2)]
    return [float(np.mean([plain_cka(x, y) for y in after])), float(np.mean(pairs))]


@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_intervals_of_means_and_of_paired_differences_cover(spread: float) -> None:
    """New seeds and new texts in every draw; the truth is the mean of many draws with more texts."""
    many = np.mean([values_of(np.random.default_rng([1, i]), spread, 1000) for i in range(100)], axis=0)
    truths, hits, num = (*many, many[0] - many[1]), np.zeros(3), 100
    for i in range(num):
        before, between = tables_of(np.random.default_rng([2, i]), spread, 60)
        for k, table in enumerate((before, between, before - between)):
            low, high, _ = interval_of_tables(table)
            hits[k] += low <= truths[k] <= high
    assert (hits >= 0.88 * num).all(), hits / num  # fewer has a probability below .5 % if the level holds


def test_two_conditions_that_are_alike_are_told_apart_rarely() -> None:
    """The negative control; the positive one has a condition whose seeds keep less of the texts."""
    false, true, num = 0, 0, 100
    for i in range(num):
        rng = np.random.default_rng([3, i])
        x = rng.normal(size=(60, HIDDEN)) * SIZES
        one, other = models(rng, x, 0.1), models(rng, x, 0.1)
        far = [y + 1.5 * rng.normal(size=y.shape) for y in other]
        tables = [np.stack([compare(MEASURES[CKA], x, y).pseudo for y in condition]) for condition in (one, other, far)]
        low, high, _ = interval_of_tables(tables[0] - tables[1])
        false += not low <= 0 <= high
        true += interval_of_tables(tables[0] - tables[2])[0] > 0
    assert false <= 12
    assert true >= 90


def test_conditions_are_held_against_those_of_their_own_group_and_size_alone() -> None:
    """The lines of many conditions are those of each group and size by itself; the first of them need not have all."""
    rng, place = np.random.default_rng(4), ("validation", 1, CKA)

    def condition_of(group: str, name: str, size: int | None) -> ConditionSimilarities:
        found = [LayerSimilarity(value, value + rng.normal(0, 0.02, 30), 300) for value in rng.random(3)]
        return ConditionSimilarities(
            group, name, "shuffled" in name, size, {i: {place: f} for i, f in enumerate(found)}, {}
        )

    families = [
        [condition_of("one", "full", 100), condition_of("one", "embeddings", 100)],
        [condition_of("one", name, 800) for name in ("shuffled labels", "embeddings", "full")],
        [condition_of("one", "full", None), condition_of("one", "shuffled labels", None)],
        [condition_of("two", name, 800) for name in ("probe", "full")],
        [condition_of("two", "full", 100)],
    ]
    apart = pd.concat([contrast(family) for family in families], ignore_index=True)
    assert len(apart) == 1 + (2 + 1) + 1 + 1 + 0
    together = contrast([condition for family in families for condition in family])
    pd.testing.assert_frame_equal(together, apart, check_dtype=False)
    order = [families[i][j] for j in range(3) for i in range(5) if j < len(families[i])]
    keys = ["group", "condition", "against", "similarity"]
    mixed = contrast(order).sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(mixed, apart.sort_values(keys, ignore_index=True), check_dtype=False)
