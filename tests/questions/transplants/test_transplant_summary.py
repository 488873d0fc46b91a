"""From games to tables: sums, intervals, refused shares, planted causes and pure noise."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from toolkit.analysis.shapley import shapley_values
from toolkit.comparison.intervals import two_way_interval
from toolkit.questions.transplants import measure as transplants
from toolkit.questions.transplants.games import Game

PLAYERS = ("word", "position", "segment", "LayerNorm")
WORD, POSITION, SEGMENT = 0, 1, 2


def make_game(seed, worth=(0.0, 0.3, 0.0, 0.0), noise=0.2, num_items=80, moving=0b1011, draws=3):
    """A game in which each item is worth about the same; segments have not moved."""
    rng = np.random.default_rng([9, seed])
    own = np.array(worth)[:, None] + rng.normal(0, noise, (4, num_items)) + rng.normal(0, noise / 10, (4, 1))
    own[[i for i in range(4) if not moving >> i & 1]] = 0
    values = np.array([[c >> i & 1 for i in range(4)] for c in range(16)], float) @ own - 1
    right = (values > -0.9).astype(float)
    random = np.repeat(values[None, :1], 5, axis=0).repeat(draws, axis=1) + rng.normal(0, 0.01, (5, draws, num_items))
    return Game(
        PLAYERS,
        moving,
        np.arange(num_items),
        "validation",
        {"log-likelihood": values, "accuracy": right},
        {
            "random": {"log-likelihood": random, "accuracy": np.zeros((5, draws, num_items))},
            "rotated": {"log-likelihood": 2 * random - values[0], "accuracy": np.zeros((5, draws, num_items))},
        },
        None,
        8,
        (),
    )


def of(lines, component, score="log-likelihood", **match):
    match |= {"component": component, "score": score}
    (line,) = [line for line in lines if all(line[k] == v for k, v in match.items())]
    return line


def test_shapley_lines_add_up_and_are_the_interval_of_the_items_own_values():
    games = [make_game(seed) for seed in range(4)]
    lines = transplants.shapley_records(games)
    for value, factor in (("log-likelihood", 1), ("accuracy", 100)):
        total = of(lines, transplants.TOTAL, value)["value"]
        assert sum(of(lines, name, value)["value"] for name in PLAYERS) == pytest.approx(total)
        table = np.stack([shapley_values(game.values[value])[POSITION] for game in games])
        found, line = two_way_interval(table), of(lines, "position", value)
        np.testing.assert_allclose(
            [line["value"], line["low"], line["high"]], [factor * x for x in (found.estimate, found.low, found.high)]
        )
        assert (line["num_seeds"], line["num_items"]) == (4, 80)


def test_the_planted_cause_is_found_and_the_others_are_silent():
    lines = transplants.shapley_records([make_game(seed) for seed in range(5)])
    line = of(lines, "position")
    assert line["low"] > 0.2
    assert line["share"] == pytest.approx(1, abs=0.2)
    for name in ("word", "LayerNorm"):
        assert of(lines, name)["low"] < 0 < of(lines, name)["high"]
    still = of(lines, "segment")
    assert (still["value"], still["low"], still["high"]) == (0, 0, 0)
    assert "bit for bit what it was" in still["note"]
    told = [replace(make_game(seed), stillness=("", "", "all its rows are inseparable", "")) for seed in range(2)]
    assert of(transplants.shapley_records(told), "segment")["note"].startswith("all its rows are inseparable")


def test_shares_are_refused_where_the_sum_may_be_0_and_for_one_seed():
    for games, reason in (
        ([make_game(seed, (0.0,) * 4) for seed in range(5)], transplants.NO_SHARE),
        ([make_game(0)], transplants.NO_SHARE_OF_ONE),
    ):
        for line in transplants.shapley_records(games):
            if line["score"] == "accuracy" and len(games) > 1:
                continue  # right or wrong by a threshold: noise moves it one way
            assert np.isnan(line["share"])
            assert reason in line["reason"] or line["component"] == transplants.TOTAL


def test_noise_alone_is_told_apart_from_0_no_more_often_than_its_level_says():
    misses = 0
    for world in range(60):
        games = [make_game(100 * world + seed, (0.0,) * 4) for seed in range(4)]
        line = of(transplants.shapley_records(games), "position")
        misses += not line["low"] <= 0 <= line["high"]
    assert misses <= 8  # of 60 at 5 %: a binomial count above 8 has a probability below 0.003


def test_singles_are_the_transplant_random_changes_and_their_difference():
    games = [make_game(seed) for seed in range(4)]
    lines = transplants.single_records(games)
    real, random, difference = (of(lines, "position", change=kind) for kind in ("transplant", "random", "difference"))
    assert real["value"] == pytest.approx(np.mean([g.values["log-likelihood"][2] + 1 for g in games]))
    assert difference["low"] > 0.2
    draws = [
        (g.perturbed["random"]["log-likelihood"][POSITION] - g.values["log-likelihood"][0]).mean(axis=1) for g in games
    ]
    assert (random["least"], random["greatest"]) == pytest.approx((np.min(draws), np.max(draws)))
    whole = of(lines, transplants.TOTAL, change="transplant")
    assert whole["value"] == pytest.approx(of(transplants.shapley_records(games), transplants.TOTAL)["value"])
    assert of(lines, "word", change="difference")["low"] < 0
    rotated, other = (of(lines, "position", change=kind) for kind in ("rotated", "rotated difference"))
    expected = [real["value"] - random["value"], 2 * random["value"], real["value"] - rotated["value"]]
    assert [difference["value"], rotated["value"], other["value"]] == pytest.approx(expected)


def test_a_kind_of_change_that_does_not_apply_has_a_reason_and_no_number():
    games = [make_game(seed) for seed in range(2)]
    for game, score in product(games, ("log-likelihood", "accuracy")):
        game.perturbed["rotated"][score][POSITION] = np.nan
    lines = transplants.single_records(games)
    for kind in ("rotated", "rotated difference"):
        line = of(lines, "position", change=kind)
        assert np.isnan([line["value"], line["low"], line["high"]]).all()
        assert line["reason"] == transplants.NOT_ROTATED
    assert np.isfinite(of(lines, "position", change="difference")["value"])


def test_coalitions_and_checks_have_a_line_each():
    games = {3: make_game(3), 5: make_game(5)}
    lines = transplants.coalition_records(games)
    assert len(lines) == 2 * 2 * 16
    assert {line["coalition"] for line in lines} >= {"none", "all", "word + position"}
    assert [line["seed"] for line in transplants.check_records(games)] == [3, 5]
