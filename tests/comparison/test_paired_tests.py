"""Exact tests of pairs: statsmodels and scipy as oracles, their level by enumeration, and what K seeds can reach."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from tests.refusals import check_refused
from toolkit.comparison.intervals import mcnemar, sign_flip, smallest_p

COUNTS = st.integers(0, 300)
DIFFERENCES = st.lists(st.integers(-50, 50).map(lambda i: i / 408), min_size=1, max_size=9)


@given(COUNTS, COUNTS)
def test_mcnemar_is_that_of_statsmodels(first, second):
    from statsmodels.stats.contingency_tables import mcnemar as oracle

    if first + second:
        assert mcnemar(first, second) == pytest.approx(
            min(1, oracle([[7, first], [second, 9]], exact=True).pvalue), rel=1e-9, abs=1e-300
        )
    assert mcnemar(first, second) == mcnemar(second, first)


@pytest.mark.parametrize("num_discordant", [1, 5, 6, 20, 61])
def test_mcnemar_is_conservative_at_every_level(num_discordant):
    """Exactly, by all tables: under the null a p at or below a level is never more likely than the level."""
    counts = np.arange(num_discordant + 1)
    p = np.array([mcnemar(count, num_discordant - count) for count in counts])
    chance = binom.pmf(counts, num_discordant, 0.5)
    for level in (*np.unique(p), 0.05, 0.01):
        assert chance[p <= level].sum() <= level + 1e-12


@pytest.mark.parametrize(
    ("counts", "p"), [((0, 0), 1), ((10, 10), 1), ((6, 0), 2 / 64), ((5, 40), 2 * binom.cdf(5, 45, 0.5))]
)
def test_mcnemar_finds_a_planted_difference(counts, p):
    assert mcnemar(*counts) == pytest.approx(p)


@settings(deadline=None)
@given(DIFFERENCES)
def test_sign_flip_is_enumeration_written_plainly(values):
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in product((1, -1), repeat=len(values))
    ]
    assert sign_flip(values) == pytest.approx(np.mean([total >= abs(sum(values)) - 1e-9 for total in sums]), abs=1e-12)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=7))
def test_sign_flip_holds_every_level_exactly(values):
    """Whatever the sizes of the differences: over all signs, p <= a comes up in at most a share a."""
    p = np.array([sign_flip(np.multiply(signs, values)) for signs in product((1, -1), repeat=len(values))])
    for level in np.unique(p):
        assert (p <= level).mean() <= level + 1e-12


@given(DIFFERENCES, st.floats(0.1, 100), st.randoms(use_true_random=False))
def test_sign_flip_knows_no_unit_side_or_order(values, scale, random):
    p = sign_flip(values)
    assert sign_flip(np.multiply(scale, random.sample(values, len(values)))) == sign_flip(np.negative(values)) == p
    assert p >= smallest_p(len(values))


@pytest.mark.parametrize(("num_seeds", "smallest"), [(1, 1.0), (5, 0.0625), (6, 0.03125), (8, 0.0078125), (16, 2**-15)])
def test_the_smallest_p_is_reached_by_seeds_that_agree(num_seeds, smallest):
    values = np.random.default_rng(num_seeds).uniform(0.1, 2, num_seeds)
    assert smallest_p(num_seeds) == smallest
    assert sign_flip(values) == sign_flip(-values) == smallest
    values[0] *= -1e-3
    assert num_seeds == 1 or sign_flip(values) > smallest


def test_random_flips_come_near_the_exact_p():
    values = np.random.default_rng(4).normal(0.5, 1, 12)
    exact = sign_flip(values)
    drawn, again, other = (sign_flip(values, num_draws=3999, seed=seed) for seed in (1, 1, 2))
    assert drawn == pytest.approx(exact, abs=4 * np.sqrt(exact / 3999))
    assert drawn == again != other


def test_random_flips_never_give_p_0():
    assert sign_flip(np.ones(60), num_draws=999) == 1 / 1000 == smallest_p(60, num_draws=999)
    assert sign_flip(np.zeros(20), num_draws=999) == 1


@pytest.mark.parametrize("num_seeds", [8, 18])
def test_false_positives_are_at_the_level_and_a_planted_gap_is_found(num_seeds):
    rng = np.random.default_rng(9)
    null = [sign_flip(rng.normal(size=num_seeds), num_draws=499, seed=i) for i in range(1000)]
    assert 0.03 <= np.mean(np.array(null) <= 0.05) <= 0.065
    planted = [sign_flip(rng.normal(2, 1, num_seeds), num_draws=499, seed=i) for i in range(100)]
    assert np.mean(np.array(planted) <= 0.05) > 0.9


def test_bad_input_is_refused():
    check_refused("1 of 2 differences are not finite", sign_flip, [0.1, np.nan])


def test_no_seed_has_no_p():
    assert np.isnan([sign_flip([]), smallest_p(0)]).all()


def test_all_patterns_are_tried_where_there_are_as_many_as_draws():
    assert smallest_p(3, num_draws=8) == sign_flip([1, 2, 3], num_draws=8) == 1 / 4
    assert smallest_p(3, num_draws=7) == 1 / 8
