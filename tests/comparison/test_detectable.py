"""Smallest detectable gaps: section 6's figures, statsmodels, exact enumeration, and studies with just that gap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, chi, norm, t

from tests.refusals import check_refused
from toolkit.comparison.intervals import (
    _noncentrality,
    _planned_variance,
    detectable_gap,
    detectable_gap_planned,
    seeds_interval,
    two_way_interval,
)


@pytest.mark.parametrize(
    ("num_items", "discordance", "points"), [(408, 0.05, 3.1), (408, 0.2, 6.2), (872, 0.05, 2.1), (872, 0.2, 4.2)]
)
def test_one_seed_gives_the_figures_of_section_6(num_items, discordance, points):
    planned = detectable_gap_planned(1, num_items, discordance, seed_sd=0.5)
    assert round(100 * planned, 1) == points, "one seed covers items only"


@pytest.mark.parametrize("num_items", [408, 872])
@pytest.mark.parametrize("discordance", [0.05, 0.2])
def test_the_exact_test_has_nearly_that_power_at_that_gap(num_items, discordance):
    gap = detectable_gap_planned(1, num_items, discordance, 0.0)
    total, first = np.tril_indices(num_items + 1)  # items that one of the two has right, those that the first has
    is_rejected = 2 * binom.cdf(np.minimum(first, total - first), total, 0.5) <= 0.05

    def power(gap):
        chance = binom.pmf(total, num_items, discordance) * binom.pmf(first, total, (1 + gap / discordance) / 2)
        return chance @ is_rejected

    assert 0.77 < power(gap) < 0.8 < power(1.1 * gap)
    assert power(0.0) < 0.05


def test_a_gap_cannot_be_above_the_discordance():
    """Few items: discordance is then at least the gap itself, which a one-sided table has."""
    assert detectable_gap_planned(1, 3, 0.02, 0.0) == 1
    planned = detectable_gap_planned(5, 50, 0.02, 0.01)
    assert planned == pytest.approx(detectable_gap_planned(5, 50, planned, 0.01), rel=1e-4)
    assert planned > 0.02
    assert detectable_gap_planned(2, 400, 0.1, 0.5) == 1


@pytest.mark.parametrize("df", [1, 2, 3.5, 7, 60])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_the_noncentrality_has_the_power_by_adaptive_integration(df, alpha):
    """scipy.stats.nct gives NaN at some of these points, by the last digit of the non-centrality."""
    found, threshold = _noncentrality(df, 0.8, alpha), t.ppf(1 - alpha / 2, df) / np.sqrt(df)

    def density(s):
        return (norm.cdf(found - threshold * s) + norm.cdf(-found - threshold * s)) * chi.pdf(s, df)

    assert quad(density, 0, np.inf, epsabs=1e-10, limit=500)[0] == pytest.approx(0.8, abs=2e-6)


def test_the_gap_over_seeds_is_that_of_statsmodels():
    from statsmodels.stats.power import tt_solve_power

    values = np.random.default_rng(0).normal(0.3, 0.02, 8)
    effect = tt_solve_power(nobs=8, alpha=0.05, power=0.9)
    assert detectable_gap(values, power=0.9) == pytest.approx(effect * values.std(ddof=1), rel=1e-5)


@settings(max_examples=30)
@given(st.floats(-3, 3), st.floats(0.1, 10))
def test_the_gap_is_of_the_spread_and_not_of_the_mean(shift, scale):
    table = np.random.default_rng(1).normal(size=(5, 30))
    gap = detectable_gap(table)
    assert detectable_gap(scale * table + shift) == pytest.approx(scale * gap, rel=1e-6)
    assert detectable_gap(two_way_interval(table, 0.9)) == gap


@pytest.mark.parametrize(
    ("change", "is_less"),
    [
        ({"num_seeds": 8}, True),
        ({"num_items": 872}, True),
        ({"item_share": 0.5}, True),
        ({"discordance": 0.05}, True),
        ({"seed_sd": 0.02}, False),
        ({"power": 0.9}, False),
        ({"alpha": 0.01}, False),
    ],
)
def test_more_power_seeds_items_and_less_spread_do_what_they_should(change, is_less):
    plain = {"num_seeds": 5, "num_items": 400, "discordance": 0.1, "seed_sd": 0.01}
    base, changed = (detectable_gap_planned(**plain | own) for own in ({}, change))
    assert changed != base
    assert (changed < base) == is_less


def test_without_seed_variance_seeds_cannot_make_up_for_items():
    """All discordance repeats: V is that of the items, however many seeds."""
    gaps = [detectable_gap_planned(num_seeds, 400, 0.1, 0.0) for num_seeds in (2, 5, 50)]
    assert np.allclose(gaps, detectable_gap_planned(1, 400, 0.1, 0.0))
    seeds_only = detectable_gap_planned(5, 10**7, 0.1, 0.02)
    values = 0.02 * np.sqrt(4 / 10) * np.arange(-2, 3)
    assert seeds_only == pytest.approx(detectable_gap(values), rel=1e-2)


@pytest.mark.parametrize(("num_seeds", "seed_sd", "item_share"), [(5, 0.0, 0.9), (8, 0.03, 0.7), (5, 0.1, 0.5)])
def test_studies_with_just_the_planned_gap_find_it_four_times_in_five(num_seeds, seed_sd, item_share):
    num_items, discordance, rng = 150, 0.15, np.random.default_rng(5)
    gap = detectable_gap_planned(num_seeds, num_items, discordance, seed_sd, item_share=item_share)
    sds = np.sqrt(discordance * item_share), np.sqrt(discordance * (1 - item_share))
    found, gaps = [], []
    for study in range(800):
        table = gap + seed_sd * rng.normal(size=(num_seeds, 1)) + sds[0] * rng.normal(size=num_items)
        interval = two_way_interval(table + sds[1] * rng.normal(size=(num_seeds, num_items)))
        found.append(interval.low > 0)
        if study % 20 == 0:
            gaps.append(detectable_gap(interval))
    assert 0.74 <= np.mean(found) <= 0.86
    assert np.median(gaps) == pytest.approx(gap, rel=0.15)


@pytest.mark.parametrize("num_items", [2, 4, 11, 400])
def test_one_planned_seed_has_the_gap_of_such_a_seed(num_items):
    """Items whose differences have that variance: one of them is spent on the mean."""
    signs = np.where(np.arange(num_items) % 2, 1.0, -1.0)
    differences = 0.3 * signs[None] / np.std(signs, ddof=1)
    planned = _planned_variance(1, num_items, 0.09, 0.0, 1.0)
    interval = two_way_interval(differences)
    assert planned == pytest.approx((interval.variance, interval.df))
    assert planned[1] == num_items - 1


def test_without_discordance_the_gap_is_its_own_discordance():
    assert detectable_gap(np.zeros((5, 100))) == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) ** 2 / 100)


def test_what_is_refused_has_no_gap():
    for refused in (seeds_interval([0.1]), two_way_interval(np.full((3, 4), 0.2))):
        assert np.isnan(detectable_gap(refused))


@pytest.mark.parametrize("power", [0.01, 1.0, 80])
def test_a_power_below_alpha_or_above_1_is_refused_in_one_line(power):
    check_refused("0 < alpha < power < 1", detectable_gap, np.eye(3), power=power)
