"""The noise nulls: silent on rows that noise moved through torch.optim.AdamW, loud on a planted direction."""

import numpy as np
import pandas as pd
import pytest
import torch

from tests.analysis.adam_runs import (
    WORDS,
    constant,
    gaussian,
    make_log,
    optimize,
    plant,
    random_exposure,
    signs,
    warm_up_and_decay,
)
from tests.refusals import check_refusals
from toolkit.analysis import nulls
from toolkit.analysis.adam import AdamSteps, RowSteps, replay_decay, row_steps
from toolkit.analysis.nulls import SAMPLED_ROWS, expected_squares, is_beyond_both, random_directions, sign_noise
from toolkit.snapshots.snapshot import Snapshot, Trajectory

EXPOSED = random_exposure(120, 600, 0.06)


def _null(planted, rows=None, **options):
    rows = range(planted.exposed.shape[1]) if rows is None else rows
    options = {"num_replicates": 400, "num_coordinates": 0} | options
    return sign_noise(planted.trajectory, WORDS, 1, rows, log=planted.log, **options)


def _inside(table):
    return (table["null_low"] <= table["drift"]) & (table["drift"] <= table["null_high"])


@pytest.fixture(scope="module")
def by_signs():
    return plant(signs(), EXPOSED)


@pytest.fixture(scope="module")
def null_by_signs(by_signs):
    return _null(by_signs)


def test_rows_moved_by_random_signs_lie_inside_the_null(null_by_signs):
    several = null_by_signs[null_by_signs["num_steps"] >= 2]
    assert len(several) > 400
    assert _inside(several).mean() == pytest.approx(0.95, abs=0.035)
    z = several["z"].dropna()
    assert z.mean() == pytest.approx(0, abs=0.15)
    assert z.std() == pytest.approx(1, abs=0.12)
    assert several["ratio"].mean() == pytest.approx(1, abs=0.01)


def test_rows_moved_in_one_direction_lie_far_outside_both_nulls():
    table = _null(plant(constant(), EXPOSED), num_coordinates=256)
    several = table[table["num_steps"] >= 5]
    assert len(several) > 200
    assert (several["drift"] > several["null_high"]).mean() > 0.99
    assert several["z"].median() > 5
    assert ((several["drift"] - several["direction_mean"]) > 1.96 * several["direction_sd"]).mean() > 0.9


def test_random_directions_lie_inside_their_own_null_and_not_inside_that_of_signs():
    table = _null(plant(gaussian(), EXPOSED), num_coordinates=512)
    several = table[table["num_steps"] >= 2]
    z = (several["drift"] - several["direction_mean"]) / several["direction_sd"]
    assert (z.abs() < 1.96).mean() == pytest.approx(0.95, abs=0.035)
    assert z.mean() == pytest.approx(0, abs=0.3)
    # Why the second null stands beside the first: on such noise the first covers less than it says, by more than four
    # standard errors of the count.
    few = several[several["num_steps"] < 10]
    assert _inside(few).mean() < 0.95 - 4 * np.sqrt(0.95 * 0.05 / len(few))


@pytest.mark.parametrize(("hidden", "num_coordinates"), [(4, 4096), (64, 64)])
def test_the_direction_null_has_the_mean_and_deviation_of_the_optimizer(hidden, num_coordinates):
    """In four coordinates the mean length is below the root mean square; few simulated ones add their uncertainty."""
    num_rows, num_steps, exposed = 400, 12, np.arange(0, 12, 2)
    rng = np.random.default_rng(0)
    log = make_log([1e-4] * num_steps, decay=0.0)
    gradients = np.zeros((num_steps, num_rows, hidden))
    gradients[exposed] = 1e-3 * rng.normal(size=(len(exposed), num_rows, hidden))
    path = optimize(np.zeros((num_rows, hidden)), gradients, log, torch.float64)
    norms = np.full(num_rows * len(exposed), 1e-3 * np.sqrt(hidden))
    history = RowSteps(num_steps, np.full(num_rows, len(exposed)), np.tile(exposed, num_rows), norms)
    null = random_directions(
        AdamSteps.of(log, WORDS, num_steps),
        history,
        np.zeros((num_rows, hidden)),
        np.arange(num_rows),
        num_coordinates=num_coordinates,
        seed=0,
    )
    drift = np.linalg.norm(path[-1] - path[0], axis=1)
    error = (drift - null.mean) / drift.mean()
    assert error.mean() == pytest.approx(0, abs=0.03)
    assert error.std() == pytest.approx(np.sqrt(np.mean(null.deviation**2)) / drift.mean(), rel=0.1)


def test_both_nulls_know_the_size_of_gradients_near_eps():
    """Far above eps Adam sees no scale; here (|g| about 3e-8) a factor of 2 in the recorded norms would show."""
    for direction, name in ((signs(), "null"), (gaussian(), "direction_mean")):
        table = _null(plant(direction, EXPOSED, size=3e-8), num_coordinates=512)
        several = table[table["num_steps"] >= 2]
        assert (several["drift"] / several[name]).mean() == pytest.approx(1, abs=0.02), name


def test_one_exposure_drifts_alike_whatever_the_signs(null_by_signs):
    # Exposures at the very end are left out: their drift is mostly decay, along which the signs do count.
    once = null_by_signs[(null_by_signs["num_steps"] == 1) & (EXPOSED[:100].sum(axis=0) == 1)]
    assert len(once) > 10
    assert (once["null_sd"] < 0.01 * once["null"]).all()
    assert once["z"].isna().all()
    assert np.allclose(once["ratio"], 1, atol=0.01)


def test_without_decay_one_exposure_has_no_spread_at_all():
    exposed = np.zeros((50, 2), bool)
    exposed[10] = True
    table = _null(plant(signs(), exposed, log=make_log(warm_up_and_decay(50), decay=0.0)))
    assert (table["null_sd"] / table["null"]).max() < 1e-7
    assert np.allclose(table["ratio"], 1, atol=1e-4)


def test_rows_never_seen_are_the_replayed_decay_without_spread(by_signs, null_by_signs):
    unseen = null_by_signs[null_by_signs["num_steps"] == 0]
    before = by_signs.path[0][unseen["row"]]
    decayed = np.linalg.norm(replay_decay(before, by_signs.log, WORDS).astype(np.float64) - before, axis=1)
    assert len(unseen) > 5
    assert np.allclose(unseen["null"], decayed, rtol=1e-12)
    assert ((unseen["null_low"] == unseen["drift"]) & (unseen["ratio"] == 1) & unseen["z"].isna()).all()


def test_replicates_have_the_exact_second_moment(by_signs, null_by_signs):
    exact = expected_squares(AdamSteps.of(by_signs.log, WORDS, 120), row_steps(by_signs.trajectory, WORDS, 120), 32)
    before = by_signs.path[0]
    exact += np.sum((replay_decay(before, by_signs.log, WORDS).astype(np.float64) - before) ** 2, axis=1)
    simulated = null_by_signs["null"] ** 2 + null_by_signs["null_sd"] ** 2
    assert np.allclose(simulated, exact, rtol=0.06)
    assert (simulated / exact).mean() == pytest.approx(1, abs=0.003)


def test_a_row_has_the_same_null_whichever_others_are_asked_for(by_signs, null_by_signs):
    few = _null(by_signs, [5, 300, 7])
    together = null_by_signs.iloc[[5, 300, 7]].reset_index(drop=True)
    assert few["row"].tolist() == [5, 300, 7]
    columns = ["drift", "null", "null_sd", "null_low", "null_high"]
    assert np.allclose(few[columns], together[columns], rtol=1e-6)
    directions = _null(by_signs, [7], num_coordinates=64), _null(by_signs, [5, 7], num_coordinates=64)
    assert directions[0]["direction_mean"].iloc[0] == directions[1]["direction_mean"].iloc[1]
    assert not np.allclose(_null(by_signs, [5], seed=1)["null"], few["null"].iloc[0], rtol=1e-9)


def test_by_default_a_seeded_sample_of_each_stratum(by_signs):
    tables = [
        sign_noise(by_signs.trajectory, WORDS, 1, log=by_signs.log, num_replicates=2, num_coordinates=2, seed=seed)
        for seed in (0, 0, 1)
    ]
    assert tables[0].equals(tables[1])
    assert tables[0]["row"].tolist() != tables[2]["row"].tolist()
    assert tables[0]["row"].is_monotonic_increasing
    assert tables[0].groupby("stratum", observed=True).size().max() == SAMPLED_ROWS


def test_without_norms_every_gradient_has_one_size():
    exposed = random_exposure(60, 300, 0.1)
    with_equal_sizes = plant(signs(), exposed, has_norms=False)
    table = _null(with_equal_sizes, num_coordinates=16)
    assert not table.loc[table["num_steps"] > 0, "has_norms"].any()
    steps = AdamSteps.of(with_equal_sizes.log, WORDS, 60)
    spread = row_steps(with_equal_sizes.trajectory, WORDS, 60).gradients(steps.clipping_factors, 32)
    assert np.array_equal(spread, exposed.T.astype(float))


def test_layer_norm_is_exposed_at_every_step():
    rng = np.random.default_rng(0)
    log = make_log(warm_up_and_decay(40), weight_decay={"LayerNorm.weight": 0.0})
    vectors = [np.ones(64, np.float32), (1 + rng.normal(0, 1e-3, 64)).astype(np.float32)]
    trajectory = Trajectory([Snapshot(i, 40 * i, {"LayerNorm.weight": v}) for i, v in enumerate(vectors)])
    (line,) = sign_noise(trajectory, "LayerNorm.weight", 1, log=log).to_dict("records")
    assert (line["num_steps"], line["has_norms"], line["null"] > 0) == (40, False, True)


def test_a_growing_history_is_cut_at_the_epoch(by_signs):
    planted = plant(signs(), EXPOSED, snapshot_steps=(60,))
    table = sign_noise(planted.trajectory, WORDS, 0.5, range(600), log=planted.log, num_coordinates=0)
    assert table["num_steps"].tolist() == EXPOSED[:60].sum(axis=0).tolist()
    assert table["ratio"].mean() == pytest.approx(1, abs=0.01)


def test_refusals(by_signs):
    trajectory, log = by_signs.trajectory, by_signs.log
    check_refusals(
        ("pass the run, or log=", lambda: sign_noise(trajectory, WORDS, 1)),
        (
            "word_embeddings was frozen",
            lambda: sign_noise(trajectory, WORDS, 1, log=make_log(log.learning_rates, weight_decay={})),
        ),
        (
            "learning rate of step 1 is NaN",
            lambda: sign_noise(trajectory, WORDS, 1, log=make_log(log.learning_rates * np.nan)),
        ),
        ("rows 0 to 599; asked for 3 to 600", lambda: _null(by_signs, [3, 600])),
        ("no rows were given: pass row numbers, or leave rows out", lambda: _null(by_signs, [])),
        ("num_replicates must be a whole number of at least 2; got 1", lambda: _null(by_signs, [3], num_replicates=1)),
        (
            "num_coordinates must be a whole number of at least 0; got -5",
            lambda: _null(by_signs, [3], num_coordinates=-5),
        ),
        (
            r"unknown embedding parameter of this run 'position_embeddings'",
            lambda: sign_noise(trajectory, "position_embeddings", 1, log=log),
        ),
        (
            "exposure of word_embeddings was not recorded",
            lambda: sign_noise(Trajectory(trajectory.snapshots), WORDS, 1, log=log),
        ),
    )


def test_the_null_of_the_table_is_that_of_its_replicates(by_signs, monkeypatch):
    monkeypatch.setattr(
        nulls, "_simulate", lambda weights, _, number, seed: np.tile(np.arange(number), (len(weights), 1))
    )
    table = _null(by_signs, rows=range(3), num_replicates=1001)
    expected = {"null": 500, "null_low": 25, "null_median": 500, "null_high": 975, "null_sd": np.sqrt(1001 * 1002 / 12)}
    assert table[[*expected]].to_numpy() == pytest.approx(np.tile([*expected.values()], (3, 1)), rel=1e-12)


def test_a_row_is_beyond_both_nulls_only_where_it_is_beyond_each():
    """97.5 % of random directions lie below their mean and 1.96 SD: here 2.96."""
    rows = {"drift": [2.95, 2.97, 2.97], "null_high": [2.0, 2.0, 3.0], "direction_mean": 1.0, "direction_sd": 1.0}
    assert list(is_beyond_both(pd.DataFrame(rows))) == [False, True, False]


def test_beside_a_far_larger_decay_only_the_movement_along_it_varies():
    hidden, steps = 64, AdamSteps.of(make_log([1e-4] * 12, decay=0.0), WORDS, 12)
    history = RowSteps(12, np.array([6]), np.arange(0, 12, 2), np.full(6, 1e-2))
    still, decayed = (
        random_directions(steps, history, np.full((1, hidden), size), np.arange(1), num_coordinates=4096, seed=0)
        for size in (0.0, 1.0)
    )
    assert decayed.deviation[0] == pytest.approx(still.mean[0] / np.sqrt(hidden), rel=0.02)
