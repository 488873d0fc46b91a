"""q values: statsmodels as the oracle, NaN outside of the family, and the share of false discoveries; and the p values
that share what all claims say of seeds: a plain sum as the oracle, laws, level and power."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from toolkit.comparison.intervals import mean_squares, p_value, two_way_interval
from toolkit.comparison.multiplicity import GREATEST_SD, LEAST_SD, NUM_SDS, benjamini_hochberg, moderated_p

# Without subnormal numbers, which have too few bits for any relative tolerance.
P_VALUES = st.floats(0, 1, allow_subnormal=False)
P = st.lists(st.one_of(P_VALUES, st.just(np.nan), st.sampled_from([0.05, 0.0625, 1.0])), max_size=30)


@given(P)
def test_q_values_are_those_of_statsmodels_among_what_was_tested(p):
    p = np.array(p)
    q, tested = benjamini_hochberg(p), ~np.isnan(p)
    assert np.array_equal(np.isnan(q), ~tested)
    if tested.any():
        assert np.allclose(q[tested], multipletests(p[tested], method="fdr_bh")[1], rtol=1e-12, atol=0)


@given(P, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_q_is_never_below_p(p, random):
    order = random.sample(range(len(p)), len(p))
    q = benjamini_hochberg(p)
    assert np.array_equal(benjamini_hochberg(np.array(p)[order]), q[order], equal_nan=True)
    assert not (q < np.array(p)).any()


def test_one_test_is_no_family_and_none_has_no_q():
    assert benjamini_hochberg([0.03]) == 0.03
    assert np.array_equal(benjamini_hochberg([np.nan, 0.03]), [np.nan, 0.03], equal_nan=True)
    assert benjamini_hochberg([]).shape == (0,)
    assert benjamini_hochberg([[0.01, 0.02], [0.03, np.nan]]).shape == (2, 2)


def test_false_discoveries_are_at_most_at_the_level_and_true_ones_are_made():
    """20 tests of which 8 have an effect: of those called at q <= .1, at most 10 % are false on average."""
    from scipy.special import ndtr

    rng, false, true = np.random.default_rng(0), [], []
    for _ in range(1000):
        called = benjamini_hochberg(2 * ndtr(-np.abs(rng.normal(np.where(np.arange(20) < 8, 4.0, 0.0))))) <= 0.1
        false.append(called[8:].sum() / max(1, called.sum()))
        true.append(called[:8].mean())
    assert 0.04 < np.mean(false) < 0.075, "12/20 of .1 expected"
    assert np.mean(true) > 0.9


LEVELS = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "benchmarks" / "levels.py"))
CLAIMS = st.lists(st.tuples(st.floats(-0.2, 0.2), *[st.floats(1e-3, 3)] * 3), min_size=1, max_size=6)


def p_of(claims, num_seeds=3, num_items=200):
    claims = np.array(claims, float)
    return moderated_p(claims[..., 0], claims[..., 1:], num_seeds, num_items)


def test_a_claim_alone_weighs_every_spread_of_seeds_by_its_own_likelihood():
    """Written out once more, by densities of scipy; of one claim nothing is learned from others."""
    mean, (between, item, residual), num_seeds, num_items = 0.06, (0.9, 0.35, 0.3), 4, 150
    tails, likelihoods = [], []
    for sd in np.geomspace(LEAST_SD, GREATEST_SD, NUM_SDS):
        expected = num_items * sd**2 + residual
        likelihoods.append(scipy.stats.gamma.pdf(between, 1.5, scale=expected / 1.5))
        error = ((expected + item - residual) / (num_seeds * num_items)) ** 0.5
        tails.append(2 * scipy.stats.t.sf(mean / error, num_items - 1))
    own = moderated_p([mean], [[between, item, residual]], num_seeds, num_items)
    assert own == pytest.approx(np.average(tails, weights=likelihoods), rel=1e-10)


@given(CLAIMS, st.randoms(use_true_random=False))
def test_order_sign_and_other_reports_do_not_matter_and_p_is_a_chance(claims, random):
    p, order = p_of(claims), random.sample(range(len(claims)), len(claims))
    assert ((p >= 0) & (p <= 1)).all()
    assert np.allclose(p_of([claims[k] for k in order]), p[order], rtol=1e-9)
    mirrored = [(-mean, *squares) for mean, *squares in claims]
    assert np.array_equal(p_of(mirrored), p)
    others = [(2 * mean, 3.0, 0.5, 0.2) for mean, *_ in claims]
    assert np.allclose(p_of([claims, others])[0], p, rtol=1e-9)
    assert (p_of([(0.0, *squares) for _, *squares in claims]) > 1 - 1e-9).all()
    further = p_of([(1.5 * mean, *squares) for mean, *squares in claims])
    assert (further <= p).all()


def test_many_seeds_need_no_other_claims():
    """How much 30 seeds differ is nearly known: the p of the interval, whatever the other claims are."""
    rng = np.random.default_rng(3)
    tables = (
        0.01 + 0.03 * rng.normal(size=(4, 30, 1)) + rng.normal(size=(4, 1, 50)) * 0.2 + rng.normal(size=(4, 30, 50))
    )
    own = [p_value(two_way_interval(table)) for table in tables]
    squares = [mean_squares(table) for table in tables]
    found = moderated_p(tables.mean(axis=(1, 2)), squares, 30, 50)
    assert np.allclose(found, own, rtol=0.3)


def test_claims_say_of_each_other_how_much_seeds_differ():
    """Three seeds that happen to agree: believed beside claims whose seeds do so too, not beside others."""
    claim = (0.05, 0.1, 0.33, 0.3)
    steady, shaky = ([claim, *[(0.0, between, 0.33, 0.3)] * 12] for between in (0.3, 9.0))
    alone, beside_steady, beside_shaky = (p_of(claims, 3, 872)[0] for claims in ([claim], steady, shaky))
    assert beside_steady < alone / 2
    assert alone < beside_shaky / 2


def test_seeds_further_apart_than_any_share_are_taken_as_they_are():
    """An R² of -400 in one seed: differences of many times the score."""
    p = moderated_p([4.0], [[200 * 25.0, 1.0, 1.0]], 3, 200)
    assert 0.2 < p < 0.6


def test_the_benchmark_of_levels_has_the_formulas_of_the_toolkit():
    rng = np.random.default_rng(5)
    tables = rng.choice([-1, 0, 1], p=[0.1, 0.75, 0.15], size=(6, 10, 872)).astype(np.int8)
    found = LEVELS["squares_of"](tables)
    for row, num_seeds in enumerate((3, 5, 10)):
        for place, num_items in enumerate((200, 872)):
            own = tables[:, :num_seeds, :num_items].astype(float)
            assert np.allclose(found[:, row, place, 0], own.mean(axis=(1, 2)))
            assert np.allclose(found[:, row, place, 1:], [mean_squares(table) for table in own])
            p = LEVELS["satterthwaite"](
                found[:, row, place, 0], found[:, row, place, 1:], num_seeds, num_items, num_seeds - 1
            )
            assert np.allclose(p, [p_value(two_way_interval(table)) for table in own])


def test_the_benchmark_of_levels_prints_its_table(capsys):
    LEVELS["main"](reports=20, claims=6, threads=1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 3 * 2 * 6 + 3
    assert "any: toolkit" in lines[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed_sd", [0.15, 0.5])
def test_of_thirty_nulls_any_is_supported_in_no_more_than_six_percent_of_reports(seed_sd):
    """Beside Satterthwaite's, which has several times as many: the positive control. And planted effects are found."""
    nulls, effects = LEVELS["bank_of"](seed_sd, reports=800, claims=30)
    own = LEVELS["supported"](nulls[:, :, 0, 1], 3, 872)
    level = {name: found.any(axis=1).mean() for name, found in own.items()}
    assert level["toolkit"] <= 0.06
    assert level["Satterthwaite"] > 0.1
    planted = np.concatenate([effects[:, :, 1, 1], nulls[:, 3:, 1, 1]], axis=1)
    found = {name: hits[:, :3].mean() for name, hits in LEVELS["supported"](planted, 5, 872).items()}
    assert found["toolkit"] > found["K - 1"]
    assert found["toolkit"] > (0.3 if seed_sd == 0.15 else 0.0)
