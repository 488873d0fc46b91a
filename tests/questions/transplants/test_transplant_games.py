"""Shapley values against permutations and the laws that define them."""

from functools import partial
from itertools import permutations
from math import factorial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refusals
from toolkit.analysis.shapley import shapley_values
from toolkit.questions.transplants.measure import name_coalition


def draw(num_players, num_items, seed):
    return np.random.default_rng(seed).normal(size=(2**num_players, num_items))


def over_all_orders(values, num_players):
    """Shapley's own definition: the mean gain of a player over all orders of arrival."""
    shares = np.zeros((num_players, values.shape[1]))
    for order in permutations(range(num_players)):
        coalition = 0
        for player in order:
            shares[player] += values[coalition | 1 << player] - values[coalition]
            coalition |= 1 << player
    return shares / factorial(num_players)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_shapley_values_are_the_mean_gain_over_all_orders(num_players, num_items, seed):
    values = draw(num_players, num_items, seed)
    shares = shapley_values(values)
    np.testing.assert_allclose(shares, over_all_orders(values, num_players), atol=1e-12)
    np.testing.assert_allclose(shares.sum(axis=0), values[-1] - values[0], atol=1e-12)
    np.testing.assert_allclose(shares.mean(axis=1), shapley_values(values.mean(axis=1)), atol=1e-12)


def test_who_changes_nothing_gets_exactly_0():
    few = np.random.default_rng(0).normal(size=(16, 50))
    values = np.stack([few[(c & 3) | (c >> 3 << 2)] for c in range(32)])  # player 2 is nowhere
    assert not shapley_values(values)[2].any()


def test_a_table_that_is_no_game_is_refused():
    check_refusals(*((r"2\^n", partial(shapley_values, np.zeros(shape))) for shape in ((3, 2), (0, 1))))


def test_coalitions_have_names():
    players = ("word", "position", "LayerNorm")
    assert [name_coalition(c, players) for c in (0, 1, 6, 7)] == ["none", "word", "position + LayerNorm", "all"]
