"""The trend of weight drift over layers: found where it was planted, rare where layers differ by chance only."""

import math

import numpy as np
import pandas as pd
import pytest

from toolkit.questions.layers import trend as layer_trend
from toolkit.questions.layers.trend import (
    BOTTOM,
    FLAT,
    NOT_APPLICABLE,
    NOT_JUDGED,
    RANDOM_START,
    TOP,
    UNDECIDED,
    ConditionWeights,
    average_weights,
    find_trends,
    is_flat,
    top_to_bottom,
    weight_tables,
)
from toolkit.schema import columns_of


def condition(logs: np.ndarray, name: str = "full") -> ConditionWeights:
    """One tensor of norm 2 per layer whose logarithm of relative drift is that of ``logs`` (seeds, layers)."""
    tables = {
        seed: pd.DataFrame(
            {
                "layer": pd.array(np.arange(1, len(own) + 1), dtype="Int64"),
                "component": [f"layers.{k}" for k in range(len(own))],
                "part": "output",
                "shape": "2x2",
                "num_values": 4,
                "norm_before": 2.0,
                "norm_change": 2 * own,
                "relative_drift": own,
                "angle_degrees": own,
                "is_identical": own == 0,
                "is_shared": False,
                "is_cast": False,
                "reason": "",
                "note": "",
            }
        )
        for seed, own in enumerate(np.exp(logs))
    }
    return ConditionWeights("m on t", name, False, tables)


def noise(seed: int, num_seeds: int = 3, num_layers: int = 6, scale: float = 0.02) -> np.ndarray:
    return np.random.default_rng(seed).normal(-4, scale, (num_seeds, num_layers))


def verdict(logs: np.ndarray) -> str:
    return str(find_trends([condition(logs)]).trend[0])


def test_a_planted_trend_is_found_with_its_size() -> None:
    slope = np.array([0, 0, 0.1, 0.2, 0.3, 0.3])
    for sign, said in ((1, TOP), (-1, BOTTOM)):
        line = find_trends([condition(noise(0, 5) + sign * slope)]).iloc[0]
        assert line.trend == said
        assert line.low < math.exp(0.3 * sign) < line.high
        assert line.p == line.q < 0.05
        assert (line.most_layer > 4) == (sign > 0)
    assert list(find_trends([condition(noise(0))])) == columns_of("find_trends")


def test_chance_is_called_a_trend_as_rarely_as_said() -> None:
    """2,000 draws of exchangeable layers, of 3 and of 8 seeds: 5 % and 4 standard errors."""
    for num_seeds in (3, 8):
        rejected = np.mean([top_to_bottom(noise(k, num_seeds, scale=0.3))[1] < 0.05 for k in range(2000)])
        assert abs(rejected - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 2000)


def test_coverage_of_the_ratio() -> None:
    slope = np.linspace(0, 1, 6)
    truth = slope[-2:].mean() - slope[:2].mean()
    covered = [i.low < truth < i.high for i in (top_to_bottom(noise(k, 3, scale=0.3) + slope)[0] for k in range(2000))]
    assert abs(np.mean(covered) - 0.95) < 4 * math.sqrt(0.05 * 0.95 / 2000)


def test_flat_is_shown_and_not_merely_not_contradicted() -> None:
    hump = np.array([0, 0, 0.4, 0.4, 0, 0])  # as far at the top as at the bottom, and not flat
    noisy = noise(0, scale=0.3)  # too much to say either
    still = noise(0, scale=0.005)
    assert [verdict(logs) for logs in (still, noisy, still + hump)] == [FLAT, UNDECIDED, UNDECIDED]
    small = np.linspace(0, 0.02, 6)  # a trend without doubt, and without size
    found = find_trends([condition(noise(0, 8, scale=0.001) + small)]).iloc[0]
    assert (found.trend, found.p < 0.001) == (FLAT, True)


def test_a_layer_at_the_margin_is_seldom_called_flat() -> None:
    edge = np.zeros(6)
    edge[2] = 1.2 * math.log(layer_trend.MARGIN)  # its distance from the mean of all six is the margin
    called = np.mean([is_flat(noise(k, 3, scale=0.02) + edge) for k in range(1000)])
    assert called < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 1000)


def test_few_seeds_are_described_and_not_judged() -> None:
    for num_seeds in (1, 2):
        line = find_trends([condition(noise(0, num_seeds) + np.linspace(0, 1, 6))]).iloc[0]
        assert line.trend == NOT_JUDGED
        assert np.isnan([line.p, line.q]).all()
        assert line.top_to_bottom > 1.5
        assert "of the 3 seeds" in line.reason
    assert math.isnan(find_trends([condition(noise(0, 1))]).low[0])


def test_layers_that_did_not_move_are_left_out_and_named() -> None:
    logs = noise(0, 4) + np.linspace(1, 0, 6)
    logs[:, 0] = -np.inf  # relative drift 0: frozen
    line = find_trends([condition(logs)]).iloc[0]
    assert line.reason == "left out, as they did not move in every run: layers 1"
    assert line.trend == BOTTOM
    logs[:, :5] = -np.inf
    alone = find_trends([condition(logs)]).iloc[0]
    assert alone.trend == NOT_APPLICABLE
    assert "1 of 6 layers moved" in alone.reason
    assert pd.isna(alone.most_layer)


def test_equal_seeds_have_no_interval() -> None:
    line = find_trends([condition(np.tile(np.linspace(0, 1, 6), (3, 1)))]).iloc[0]
    assert line.trend == UNDECIDED
    assert "no spread" in line.reason
    assert math.isnan(line.q)


def test_many_conditions_are_one_family_of_tests() -> None:
    conditions = [condition(noise(k, 3, scale=0.2), f"condition {k}") for k in range(9)]
    conditions.append(condition(noise(9, 3, scale=0.2) + np.linspace(0, 0.7, 6), "planted"))
    together = find_trends(conditions)
    assert (together.q >= together.p).all()
    alone = find_trends(conditions[-1:]).iloc[0]
    assert alone.p == together.p.iloc[-1]
    assert alone.q < together.q.iloc[-1]


def test_means_are_those_of_the_runs() -> None:
    logs = noise(3, 4)
    table = average_weights([condition(logs)])
    assert table.relative_drift.to_numpy() == pytest.approx(np.exp(logs).mean(axis=0), rel=1e-12)
    assert ((table.low < table.relative_drift) & (table.num_seeds == 4)).all()
    still = average_weights([condition(np.full((3, 2), -np.inf))])
    assert set(zip(still.relative_drift, still.is_identical, still.reason, strict=True)) == {(0, True, "")}
    alone = average_weights([condition(noise(0, 1))])
    assert (alone.low.count(), set(alone.reason)) == (0, {""})  # the trend says it once


def test_a_random_start_has_no_weights_before() -> None:
    tables = weight_tables([ConditionWeights("m on t", "random init", False, {}, RANDOM_START), condition(noise(0))])
    assert set(tables["weight_drift"].condition) == {"full"}
    assert list(tables["weight_trends"].reason) == [RANDOM_START, ""]
    assert tables["weight_trends"].trend[0] == NOT_APPLICABLE
    assert len(weight_tables([ConditionWeights("g", "a", False, {}, RANDOM_START)])["weight_means"]) == 0
