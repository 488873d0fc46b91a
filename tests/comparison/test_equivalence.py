"""Equivalence: the 90 % interval holds its level, and finds planted equality."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from toolkit.comparison.influence import SCORES
from toolkit.comparison.intervals import (
    Interval,
    held_near_0,
    two_way_interval,
    weigh_items,
)

SHAPES = st.tuples(st.integers(1, 6), st.integers(2, 30))
TABLES = SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=st.sampled_from([-1.0, 0.0, 0.0, 0.0, 1.0])))


def _study(rng, mean, num_seeds=8, num_items=80, seed_sd=0.1):
    items = 0.4 * rng.normal(size=num_items)
    return mean + seed_sd * rng.normal(size=(num_seeds, 1)) + items + 0.2 * rng.normal(size=(num_seeds, num_items))


def is_equivalent(interval90: Interval, margin: float) -> bool:
    """The two one-sided tests at .05 (Schuirmann 1987), as rule 4 of the verdicts has them."""
    held = held_near_0(interval90)
    return -margin < held.low and held.high < margin


@given(TABLES)
def test_an_interval_is_held_on_the_side_of_its_mean_and_once(table):
    plain = two_way_interval(table, 0.9)
    held = held_near_0(plain)
    assert held.low <= plain.low <= plain.high <= held.high
    assert held.low == plain.low or plain.estimate <= 0
    assert held.high == plain.high or plain.estimate >= 0
    assert (held_near_0(held).low, held_near_0(held).high) == (held.low, held.high)


@pytest.mark.parametrize("side", [-1, 1])
def test_false_positives_at_the_margin_are_at_most_at_the_level(side):
    """The worst case: conditions that differ by just the margin are called equivalent in about 5 % of the studies."""
    rng = np.random.default_rng(1)
    for mean, number, (least, most) in ((side * 0.5, 1000, (0.03, 0.065)), (side * 0.8, 300, (0, 0))):
        called = [is_equivalent(two_way_interval(_study(rng, mean), 0.9), 0.5) for _ in range(number)]
        assert least <= np.mean(called) <= most


def test_planted_equality_is_found():
    rng = np.random.default_rng(2)
    assert np.mean([is_equivalent(two_way_interval(_study(rng, 0.0), 0.9), 0.5) for _ in range(200)]) > 0.98


def test_a_difference_that_excludes_0_may_be_equivalent():
    """Section 6: equivalent is asked before supported."""
    interval = two_way_interval(_study(np.random.default_rng(3), 0.2, num_items=2000, seed_sd=0.01), 0.9)
    assert interval.low > 0
    assert is_equivalent(interval, 0.5)


@pytest.mark.parametrize(("num_items", "inside"), [(408, True), (100, False)])
def test_without_discordance_the_items_decide(num_items, inside):
    """p = (1 - margin)^N, as all that differ may do so to one side: 408 equal items show equivalence, 100 do not."""
    interval = two_way_interval(np.zeros((5, num_items)), 0.9)
    assert is_equivalent(interval, 0.01) == (0.99**num_items < 0.05) == inside
    assert held_near_0(interval).high == pytest.approx(1 - 0.05 ** (1 / num_items))


def _near_ceiling(rng, shape, wrong, other, repeat):
    """Right answers of one condition less another's; ``repeat``: do seeds err on the same items, on some, on none."""
    conditions = []
    for share in (wrong, other):
        rates = rng.beta(share, 1 - share, shape[1]) if repeat == "some" and share else share
        drawn = rng.random(shape) >= rates
        conditions.append(np.broadcast_to(drawn[0], shape) if repeat == "same" else drawn)
    return conditions[0].astype(float) - conditions[1]


@pytest.mark.parametrize(("repeat", "of_t"), [("same", 0.09), ("some", 0.06), ("none", 0.03)])
@pytest.mark.parametrize("shape", [(3, 200), (3, 500), (5, 500)])
def test_near_the_ceiling_the_margin_is_held_too(shape, repeat, of_t):
    """1.000 against .985: t alone calls .05 to .21 of studies equivalent within 1.5 points, the bound .02 to .05."""
    rng = np.random.default_rng([len(repeat), *shape])
    studies = [two_way_interval(_near_ceiling(rng, shape, 0, 0.015, repeat), 0.9) for _ in range(600)]
    alone = [replace(own, num_effective=np.nan) for own in studies if own.variance > 0]
    assert np.mean([is_equivalent(own, 0.015) for own in studies]) <= 0.072  # .05 and two and a half standard errors
    by_t = sum(is_equivalent(own, 0.015) for own in alone) + (len(studies) - len(alone)) * (0.985 ** shape[1] < 0.1)
    assert by_t / len(studies) >= of_t


@pytest.mark.parametrize(
    ("better", "shapes"),
    [(0, [(5, 100), (10, 100), (10, 200)]), (0.0025, [(3, 200), (3, 500)]), (0.005, [(3, 500), (5, 500), (10, 200)])],
)
def test_where_few_and_uneven_items_differ_the_margin_is_held_too(better, shapes):
    """Each rate of a Beta whose two parameters add up to 1; 1.5 points apart, as the margin is.

    Before, .06 to .08: a few that happened to lie apart counted as many items, and t took the variance that was seen.
    """
    rng = np.random.default_rng(11)
    called = [
        is_equivalent(two_way_interval(_near_ceiling(rng, shape, better, better + 0.015, "some"), 0.9), 0.015)
        for shape in shapes
        for _ in range(1500)
    ]
    assert np.mean(called) <= 0.055  # .05 and one and a half standard errors


def _tables_of(score, rng, *, share, missed, seeds=3, items=400, repeat=0.5):
    """Influence and right-or-wrong differences of a perfect condition and one that misses some positive items."""
    labels = (rng.random(items) < share).astype(float)
    same = rng.random(items) < missed
    others = [np.where(rng.random(items) < repeat, same, rng.random(items) < missed) for _ in range(seeds)]
    told = [np.where((labels == 1) & other, 0.0, labels) for other in others]
    (best, weights), scored = SCORES[score](labels, labels.copy()), [SCORES[score](labels, own) for own in told]
    table = np.array([best + weights - value - influence for value, influence in scored])
    return table, np.array([own != labels for own in told])


@pytest.mark.parametrize(("score", "true"), [("f1", 0.0101), ("macro_f1", 0.01), ("matthews", 0.0198)])
def test_near_the_ceiling_scores_that_are_no_mean_hold_the_margin_too(score, true):
    """Perfect against 2 % of the positives missed, the margin their true difference: t alone .09, the bound .05."""
    rng, found = np.random.default_rng(8), []
    for _ in range(400):
        table, is_other = _tables_of(score, rng, share=0.5, missed=0.02)
        if np.ptp(table) > 0:
            interval = two_way_interval(table, 0.9, size=1.0)
            bounds = interval, weigh_items(interval, table, is_other)
            found.append([is_equivalent(own, true) for own in bounds] + [is_equivalent(held_near_0(bounds[1]), true)])
    by_t, by_weight, held = np.sum(found, axis=0) / 400
    assert by_t >= 0.07
    assert by_weight == held <= 0.072


def _rare_misses(rng, items, seeds=3):
    """Three classes: a tenth of the items both conditions have wrong, some in two ways, and .4 % one condition alone.

    The influence and the right-or-wrong differences of macro-F1; seeds err alike.
    """
    labels, is_wrong = rng.integers(0, 3, items).astype(float), rng.random(items) < 0.1
    is_missed, is_swapped = rng.random(items) < 0.004, rng.random(items) < 0.1
    first = np.where(is_wrong, (labels + 1) % 3, labels)
    second = np.where(is_wrong, (labels + 1 + is_swapped) % 3, (labels + is_missed) % 3)
    (one, weights), (other, others) = (SCORES["macro_f1"](labels, told) for told in (first, second))
    table, right = one + weights - other - others, (first == labels) != (second == labels)
    return np.tile(table, (seeds, 1)), np.tile(right, (seeds, 1))


def test_two_wrong_answers_that_differ_are_no_proof_of_likeness():
    """Where no accuracy differs, light differences are all that t sees: it takes the heavy ones for impossible."""
    rng, found = np.random.default_rng(3), []
    true = abs(_rare_misses(rng, 400_000, 1)[0].mean())
    for _ in range(200):
        table, is_other = _rare_misses(rng, 300)
        if np.ptp(table) > 0:
            interval = two_way_interval(table, 0.9, size=1.0)
            found.append([is_equivalent(own, true) for own in (interval, weigh_items(interval, table, is_other))])
    by_t, by_weight = np.sum(found, axis=0) / 200
    assert by_t >= 0.2
    assert by_weight <= 0.05


@given(TABLES)
def test_an_item_of_an_accuracy_weighs_exactly_1(table):
    signs, plain = np.sign(np.round(table)), two_way_interval(np.sign(np.round(table)), 0.9)
    assert plain.item_weight == pytest.approx(1, abs=1e-12)
    if plain.variance > 0:
        twice = weigh_items(two_way_interval(2 * signs, 0.9), 2 * signs, signs != 0)
        held = held_near_0(plain)
        assert (held_near_0(twice).low, held_near_0(twice).high) == pytest.approx((2 * held.low, 2 * held.high))


@pytest.mark.parametrize("repeat", ["same", "some", "none"])
def test_where_more_items_differ_the_exact_bound_takes_no_power(repeat):
    rng = np.random.default_rng(5)
    studies = [two_way_interval(_near_ceiling(rng, (5, 872), 0.01, 0.01, repeat), 0.9) for _ in range(300)]
    found, by_score, by_t = (
        np.mean([is_equivalent(replace(own, num_effective=number or own.num_effective), 0.015) for own in studies])
        for number in (None, 1e9, np.nan)
    )
    assert found >= 0.78
    assert by_score - found <= 0.02
    assert by_t - by_score <= 0.07  # the price of .05 where t alone has .06


def test_what_is_refused_is_not_equivalent():
    refused = two_way_interval(np.full((3, 4), 0.001), 0.9)
    assert not is_equivalent(refused, 0.5)
