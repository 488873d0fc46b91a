"""SGD without momentum: what a gradient comes to, no momentum at all, and noise against its closed form."""

import numpy as np
import pytest
import torch

from tests.analysis.adam_runs import WORDS, gaussian, make_sgd_log, optimize, plant, random_exposure, signs
from toolkit.analysis.adam import AdamSteps, gradient_weights, replay_decay, row_steps, unexplained_by_decay
from toolkit.analysis.causes import decompose, explain
from toolkit.analysis.nulls import expected_squares, sign_noise
from toolkit.comparison.parameter_noise import measure_beyond_noise
from toolkit.snapshots.logs import OptimizerLog

STEPS = 60
EXPOSED = random_exposure(STEPS, 120, 0.1)
EXPOSED[:, 100:] = False
RATES = np.linspace(0.5, 0.1, STEPS)


def planted(direction=None, **changes):
    options = {"log": make_sgd_log(RATES, decay=0.01), "size": 1e-2, "snapshot_steps": (30,)} | changes
    return plant(direction or signs(), EXPOSED, **options)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_every_gradient_comes_to_what_the_optimizer_makes_of_it(decay):
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(STEPS, 5, 7)) * (rng.random((STEPS, 5, 1)) < 0.3)
    clipping = rng.uniform(0.1, 1, STEPS)
    log = make_sgd_log(RATES, decay=decay, clipping=clipping)
    rows = rng.normal(size=(5, 7))
    path = optimize(rows, gradients, log, torch.float64)
    clipped = np.moveaxis(gradients * clipping[:, None, None], 0, -1).reshape(35, STEPS)
    weights = gradient_weights(AdamSteps.of(log, WORDS, STEPS), np.abs(clipped))
    moved = -(np.sign(clipped) * weights).sum(axis=1).reshape(5, 7)
    np.testing.assert_allclose(path[-1], np.prod(1 - RATES * decay) * rows + moved, rtol=1e-12, atol=1e-14)


def test_nothing_moves_after_a_gradient():
    """No row moves by momentum, however long ago its last gradient was."""
    run = planted()
    for reference in (0, 0.5):
        table = decompose(run.trajectory, WORDS, 1, reference_epoch=reference, log=run.log)
        exposed = table["last_step"] > 0
        since = table["num_steps"] > 0
        assert set(table.loc[since, "cause"]) == {"gradient"}
        assert set(table.loc[~since, "cause"]) == {"weight decay alone"}
        assert (~since & exposed).any() == (reference > 0)
        causes = explain(run.trajectory, WORDS, 1, reference_epoch=reference, log=run.log)
        assert (causes["num_momentum_after_its_last_exposure"] == 0).all()


def test_decay_is_replayed_to_the_bit_and_a_row_that_moved_otherwise_is_unexplained():
    run = planted()
    unseen = ~EXPOSED.any(axis=0)
    np.testing.assert_array_equal(replay_decay(run.path[0][unseen], run.log, WORDS), run.path[-1][unseen])
    assert unexplained_by_decay(run.trajectory, run.log) == 0
    row = int(np.flatnonzero(EXPOSED.any(axis=0) & ~EXPOSED[30:].any(axis=0))[0])
    run.path[-1][row] += 1e-3  # as momentum would have moved it
    assert decompose(run.trajectory, WORDS, 1, reference_epoch=0.5, log=run.log)["cause"][row] == "unexplained"


@pytest.mark.parametrize("direction", [signs, gaussian])
def test_noise_is_its_closed_form(direction):
    """Independent steps: E‖Δ‖² = Σ(lr_t·‖g_t‖)², whatever the directions are, and the null says just that."""
    runs = [planted(direction(), log=make_sgd_log(RATES, decay=0.0), seed=seed) for seed in range(20)]
    ratios = []
    for run in runs:
        table = run.trajectory.exposure.tables[WORDS]
        steps = np.repeat(np.arange(STEPS), np.diff(table.offsets))
        form = np.bincount(table.rows, (RATES[steps] * table.norms.astype(float)) ** 2, EXPOSED.shape[1])
        exact = expected_squares(AdamSteps.of(run.log, WORDS, STEPS), row_steps(run.trajectory, WORDS, STEPS), 32)
        np.testing.assert_allclose(exact, form, rtol=1e-6)
        ratios.append(np.square(run.path[-1].astype(float) - run.path[0]).sum() / form.sum())
    assert np.mean(ratios) == pytest.approx(1, abs=0.02)
    rows = np.flatnonzero(EXPOSED.sum(axis=0) >= 3)
    null = sign_noise(runs[0].trajectory, WORDS, 1, rows, log=runs[0].log, num_replicates=400, num_coordinates=4096)
    for square in (null["null"] ** 2 + null["null_sd"] ** 2, null["direction_mean"] ** 2):
        np.testing.assert_allclose(square, _form(runs[0])[rows], rtol=0.15)


def _form(run):
    return expected_squares(AdamSteps.of(run.log, WORDS, STEPS), row_steps(run.trajectory, WORDS, STEPS), 32)


def test_gradients_of_unknown_size_have_no_null():
    """AdamW divides by what gradients were, so that equal ones will do; SGD moves as far as they say."""
    run = planted(has_norms=False)
    null = sign_noise(run.trajectory, WORDS, 1, [1, 2], log=run.log, num_replicates=10)
    assert null[["null", "ratio", "direction_mean"]].isna().all(axis=None)
    unknown, known = (measure_beyond_noise(own.trajectory, log=run.log).iloc[0] for own in (run, planted()))
    assert np.isnan(unknown["times_noise"])
    assert "the sizes of its gradients were not recorded" in unknown["reason"]
    assert (known["reason"], known["times_noise"]) == ("", pytest.approx(1, abs=0.1))


def test_a_log_without_betas_is_read_as_it_was_written():
    again = OptimizerLog.from_json(make_sgd_log(RATES).to_json())
    assert (again.is_sgd, again.is_replayable) == (True, True)
    assert np.isnan([*again.betas, again.eps]).all()
