"""Sums of squares of the crossed design against statsmodels, planted causes, nulls, and the laws of the formulas."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.questions.flow.flow_planted import blocked, cells, summed
from tests.refusals import check_refusals
from toolkit.questions.flow.ledger import bounds, leave_one_out, unit_values

SHAPE = (5, 8, 2)
LEVELS = cells(*SHAPE)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("shape", [(5, 8, 1), SHAPE])
def test_the_sums_are_those_of_an_analysis_of_variance(shape):
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    levels = cells(*shape)
    states = 100 + normal(len(levels), 3) + normal(5, 3, seed=1)[levels[:, 0]] + normal(8, 3, seed=2)[levels[:, 1]]
    squares = summed(states, levels, shape).squares()
    names = ["position", "content", "segment"][: 2 + (shape[2] > 1)]
    crossed = {name: 0.0 for name in names if name != "content"}
    oracle = 0
    for dimension in states.T:
        frame = pd.DataFrame(levels, columns=["position", "content", "segment"]).assign(y=dimension)
        frame["block"] = frame["content"] // 4
        oracle = oracle + anova_lm(ols("y ~ " + " + ".join(f"C({name})" for name in names), frame).fit(), typ=2)
        for name in crossed:
            both = anova_lm(ols(f"y ~ C({name}) * C(block)", frame).fit(), typ=2)
            crossed[name] += both.loc[f"C({name}):C(block)", "sum_sq"]
    oracle["df"] /= 3  # of the dimensions
    expected = {name: oracle.loc[f"C({name})", ["sum_sq", "df"]].tolist() for name in names}
    expected["residual"] = oracle.loc["Residual", ["sum_sq", "df"]].tolist()
    found = {name: [value, squares.df[name]] for name, value in squares.factors.items()}
    found["residual"] = [squares.residual, squares.df_residual]
    assert found.keys() == expected.keys()
    assert [*found.values()] == pytest.approx(np.array([expected[name] for name in found]), rel=1e-9)
    residual = oracle.loc["Residual", "sum_sq"] / oracle.loc["Residual", "df"]
    total = oracle["sum_sq"].sum()
    for name in names:
        assert (name in squares.by_block) == (name in crossed)
        df = shape[["position", "content", "segment"].index(name)] - 1
        error = crossed[name] / df if name in crossed else residual  # two blocks: 1 x df degrees of freedom
        omega = (oracle.loc[f"C({name})", "sum_sq"] - df * error) / (total + error)
        assert squares.omega_squared(name) == pytest.approx(omega, rel=1e-9)
    assert squares.eta_squared("position") == pytest.approx(oracle.loc["C(position)", "sum_sq"] / total, rel=1e-9)


@pytest.mark.parametrize("factor", ["position", "content", "segment"])
def test_a_planted_cause_is_found_and_the_others_stay_silent(factor):
    place = ["position", "content", "segment"].index(factor)
    states = normal(8, 6)[LEVELS[:, place]] + 1e-3 * normal(len(LEVELS), 6, seed=3)
    squares = summed(states, LEVELS, SHAPE).squares()
    shares = {name: float(squares.omega_squared(name)) for name in squares.factors}
    assert shares == pytest.approx(dict.fromkeys(shares, 0) | {factor: 1}, abs=1e-4)


def test_unrelated_states_give_omega_0_and_eta_its_chance_on_average():
    levels = cells(6, 12)
    found = [summed(normal(len(levels), 4, seed=seed), levels, (6, 12, 1)).squares() for seed in range(200)]
    omega, eta = ([getattr(own, share)("position") for own in found] for share in ("omega_squared", "eta_squared"))
    assert found[0].eta_chance("position") == 5 / 71
    assert np.mean(eta) == pytest.approx(5 / 71, abs=4 * np.std(eta) / 200**0.5)
    assert np.mean(omega) == pytest.approx(0, abs=4 * np.std(omega) / 200**0.5)
    assert np.min(omega) < 0  # negatives are kept


@settings(max_examples=20, deadline=None)
@given(st.floats(-1e3, 1e3), st.floats(0.01, 100), st.integers(0, 100))
def test_shares_know_no_offset_no_scale_and_no_order(offset, scale, seed):
    levels = cells(4, 6, 2)
    states = normal(len(levels), 3) + normal(4, 3, seed=9)[levels[:, 0]]
    order = np.random.default_rng(seed).permutation(len(levels))
    first = summed(states, levels, (4, 6, 2)).squares()
    second = summed((offset + scale * states)[order], levels[order], (4, 6, 2)).squares()
    for name in first.factors:
        assert second.omega_squared(name) == pytest.approx(float(first.omega_squared(name)), abs=1e-7)


def test_weights_count_blocks_as_often_as_they_say():
    """Two of one block and none of another is the design with that block twice."""
    levels = cells(3, 8)
    states = normal(len(levels), 4)
    whole = summed(states, levels, (3, 8, 1), num_units=4)
    block = levels[:, 1] // 2
    twice = [np.flatnonzero(block == b) for b in (0, 2, 2, 3)]
    picked = np.concatenate(
        [
            levels[rows] * [1, 0, 1] + [0, 2 * i, 0] + levels[rows] % [9, 2, 9] * [0, 1, 0]
            for i, rows in enumerate(twice)
        ]
    )
    drawn = summed(np.concatenate([states[rows] for rows in twice]), picked, (3, 8, 1), num_units=4).squares()
    weighted = whole.squares(np.array([[1.0, 0, 2, 1], [1, 1, 1, 1]]))
    plain = whole.squares()
    for name in drawn.factors:
        assert weighted.omega_squared(name) == pytest.approx(
            [float(squares.omega_squared(name)) for squares in (drawn, plain)]
        )


def test_standardised_shares_do_not_follow_one_large_dimension():
    contents = [normal(8, seed=seed)[LEVELS[:, 1]] for seed in (0, 1)]
    large, constant = 1e3 * normal(8, seed=2)[LEVELS[:, 0]], np.full(len(LEVELS), 7.0)
    sums = summed(np.column_stack([*contents, large, constant]), LEVELS, SHAPE)
    assert sums.squares().omega_squared("position") > 0.99
    assert sums.squares(is_standardised=True).omega_squared("position") == pytest.approx(1 / 3, abs=1e-6)


def test_a_cell_left_out_is_refused():
    check_refusals(("once in each cell", lambda: summed(normal(len(LEVELS) - 1, 3), LEVELS[1:], SHAPE).squares()))


def test_equal_states_are_undefined():
    squares = summed(np.ones((len(LEVELS), 3)), LEVELS, SHAPE).squares()
    assert np.isnan([squares.omega_squared("position"), squares.eta_squared("content")]).all()


def old_omega_squared(squares) -> float:
    """Position against the residual of all cells, as textbooks have it for independent cells."""
    error = squares.residual / squares.df_residual
    return float((squares.factors["position"] - squares.df["position"] * error) / (squares.total + error))


def test_what_position_does_to_single_blocks_is_no_effect_of_position():
    """The null of random position rows per block and none in common; the residual of the cells fails it."""
    rngs = [np.random.default_rng(seed) for seed in range(100)]
    found = [blocked(rng, 8, np.zeros((8, 6)), by_block=1, noise=0.1).squares() for rng in rngs]
    omega = np.array([float(squares.omega_squared("position")) for squares in found])
    old = np.array([old_omega_squared(squares) for squares in found])
    assert abs(omega.mean()) < 4 * omega.std() / 10
    assert old.mean() > 0.03
    assert (old > 0).all()


def test_a_vector_that_a_sequence_shares_leaves_chance_at_0():
    """It cancels from every position's mean, and so must not count as their error."""
    rngs = [np.random.default_rng(seed) for seed in range(60)]
    found = [blocked(rng, 8, np.zeros((8, 6)), by_block=0, noise=0.1, by_sequence=3).squares() for rng in rngs]
    omega = np.array([float(squares.omega_squared("position")) for squares in found])
    assert abs(omega.mean()) < 4 * omega.std() / 60**0.5
    assert np.mean([old_omega_squared(squares) for squares in found]) < -20 * omega.std() / 60**0.5


@pytest.mark.parametrize("num_blocks", [8, 16])
@pytest.mark.parametrize("size", [0.0, 0.15, 0.5])
def test_the_interval_covers_the_share_that_many_blocks_have(num_blocks, size):
    """95 % nominal: 90 % and more with an effect, and no less without one, where the interval is too wide."""
    rows = size * np.random.default_rng(7).normal(size=(8, 4))
    truth = float(blocked(np.random.default_rng(1), 3000, rows).squares().omega_squared("position")) if size else 0.0
    covered, means = [], []
    for seed in range(150):
        sums = blocked(np.random.default_rng([2, seed]), num_blocks, rows)
        units = unit_values(sums.squares(leave_one_out(num_blocks)).omega_squared("position"))
        found = bounds(units)
        covered.append(found["low"] <= truth <= found["high"])
        means.append(np.mean(units))
    assert np.mean(covered) >= 0.9
    assert np.mean(means) == pytest.approx(truth, abs=0.1 * truth + 4 * np.std(means) / 150**0.5)


def test_one_block_has_no_error_term():
    sums = blocked(np.random.default_rng(0), 1, normal(8, 4))
    assert np.isnan(sums.squares().omega_squared("position"))
    assert np.isfinite(sums.squares().omega_squared("content"))
