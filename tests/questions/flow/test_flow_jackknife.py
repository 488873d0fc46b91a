"""Values per unit: the units of a mean are the items, and the interval is the jackknife's of the textbook."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from toolkit.questions.flow.ledger import bounds, leave_one_out, unit_values

FLOATS = st.floats(-1e3, 1e3)


@settings(max_examples=30, deadline=None)
@given(st.lists(FLOATS, min_size=3, max_size=20))
def test_units_of_a_mean_are_its_items(items):
    weights = leave_one_out(len(items))
    np.testing.assert_allclose(unit_values(weights @ np.array(items) / weights.sum(axis=1)), items, atol=1e-8)


def test_the_interval_of_a_ratio_is_the_textbooks():
    rng = np.random.default_rng(0)
    a, b = rng.lognormal(size=12), rng.lognormal(size=12)
    weights = leave_one_out(12)
    ratios = (weights @ a) / (weights @ b)
    error = np.sqrt(11 / 12 * np.square(ratios[1:] - ratios[1:].mean()).sum())
    found = bounds(unit_values(ratios))
    assert np.mean(found["unit_values"]) == pytest.approx(ratios[0])
    assert found["low"] == pytest.approx(ratios[0] - t.ppf(0.975, 11) * error)
    assert found["high"] == pytest.approx(ratios[0] + t.ppf(0.975, 11) * error)


@pytest.mark.parametrize("estimates", [[1.0, 2, 3], [1.0, 2, np.nan, 4, 5]])
def test_too_few_units_or_an_undefined_estimate_have_no_interval(estimates):
    assert unit_values(estimates) == ()
    assert np.isnan(bounds(())["low"])


def test_equal_units_have_a_bound_only_where_they_are_right_or_wrong():
    assert np.isnan(bounds((0.0,) * 10)["low"])
    assert bounds((0.0,) * 10, is_share=True)["high"] == pytest.approx(1 - 0.05 ** (1 / 10))
