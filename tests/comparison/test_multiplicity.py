"""q values: statsmodels as the oracle, NaN outside of the family, and the share of false discoveries."""

import numpy as np
import pytest
import scipy.stats  # noqa: F401  before the first example, whose deadline an import would pass
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from tests.refusals import check_refused
from toolkit.comparison.intervals import benjamini_hochberg

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


@pytest.mark.parametrize("p", [[0.1, 1.2], [-0.01]])
def test_what_is_no_p_is_refused(p):
    check_refused(r"p values lie in \[0, 1\]; got", benjamini_hochberg, p)
