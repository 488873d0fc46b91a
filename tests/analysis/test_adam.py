"""AdamW as arithmetic against torch.optim.AdamW, and what one gradient, and noise, come to."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.analysis.adam_runs import WORDS, make_log, optimize, warm_up_and_decay
from tests.refusals import check_refusals, check_refused, refused
from toolkit.analysis.adam import AdamSteps, gradient_weights, resolve_log
from toolkit.snapshots.snapshot import Snapshot, Trajectory


def _sparse_gradients(num_steps, num_rows, hidden, seed=0):
    """Random gradients of sizes from 1e-7 to 1, most of them 0."""
    rng = np.random.default_rng([6, seed])
    gradients = rng.normal(size=(num_steps, num_rows, hidden)) * 10.0 ** rng.uniform(-7, 0, (1, num_rows, 1))
    gradients[rng.random((num_steps, num_rows)) < 0.7] = 0
    return gradients.astype(np.float32)


def _closed_form(rows, gradients, log):
    """The rows after all steps from the linear form: every gradient's weight times its sign."""
    steps = AdamSteps.of(log, WORDS, len(gradients))
    clipped = (gradients * log.clipping_factors[:, None, None]).reshape(len(gradients), -1).T
    weights = gradient_weights(steps, np.abs(clipped))
    moved = np.sum(np.copysign(weights, clipped) * (clipped != 0), axis=1).reshape(rows.shape)
    return rows * np.prod(1 - log.learning_rates * log.weight_decay[WORDS]) - moved


@pytest.mark.parametrize("decay", [0.0, 0.01, 0.3])
def test_closed_form_is_torch_in_float64(decay):
    gradients = _sparse_gradients(150, 8, 16)
    rows = np.random.default_rng(1).normal(0, 0.04, (8, 16))
    clipping = np.random.default_rng(2).uniform(0.05, 1, 150)
    log = make_log(warm_up_and_decay(150, 3e-3), decay=decay, clipping=clipping)
    expected = optimize(rows, gradients.astype(np.float64), log, torch.float64)[-1]
    assert np.allclose(_closed_form(rows, gradients.astype(np.float64), log), expected, rtol=0, atol=1e-13)
    assert np.abs(expected - rows).max() > 1e-3


def test_closed_form_is_torch_in_fp32_but_for_rounding():
    gradients = _sparse_gradients(400, 30, 16)
    rows = np.random.default_rng(1).normal(0, 0.04, (30, 16)).astype(np.float32)
    log = make_log(warm_up_and_decay(400, 5e-5))
    path = optimize(rows, gradients, log)
    error = np.abs(_closed_form(rows, gradients.astype(np.float64), log) - path[-1])
    assert (error <= 400 * 1.5 * np.spacing(np.abs(path).max(axis=0))).all()  # the stated bound
    assert np.linalg.norm(error) < 1e-3 * np.linalg.norm(path[-1] - rows)  # and what it comes to


def _one_exposure(step, size, further=300, rate=1e-3):
    """Movement in learning rates by one gradient at a step (counted from 1) at constant rate."""
    steps = AdamSteps.of(make_log([rate] * (step + further), decay=0.0), WORDS, step + further)
    gradient = np.zeros((1, step + further))
    gradient[0, step - 1] = size
    return gradient_weights(steps, gradient)[0, step - 1] / rate


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 6.0), (10, 5.2), (100, 10.2), (1000, 25.3), (5000, 31.7), (30_000, 31.77)]
)
def test_what_one_exposure_comes_to(step, expected):
    """SCIENCE.md, section 1: whatever the gradient's size while it is far above eps, from 100 further steps on."""
    found = [_one_exposure(step, size, further) for size in (1e-1, 1e3) for further in (100, 1000)]
    assert found == pytest.approx([expected] * 4, abs=0.05 if step < 30_000 else 0.006)


def test_what_one_exposure_of_a_gradient_near_eps_comes_to():
    assert [_one_exposure(1000, size) for size in (1e-6, 1e-8)] == pytest.approx([20.2, 0.96], rel=0.0025)


@pytest.mark.parametrize("num_steps", [100, 1000, 5000])
def test_noise_at_every_step_drifts_as_a_square_root(num_steps):
    steps = AdamSteps.of(make_log([1e-3] * num_steps, decay=0.0), WORDS, num_steps)
    weights = gradient_weights(steps, np.ones((1, num_steps)))
    assert np.sqrt(np.square(weights).sum()) / 1e-3 == pytest.approx(np.sqrt(num_steps), rel=0.065)


def test_steps_refuse_what_did_not_train():
    log = make_log([1e-3, np.nan])
    assert AdamSteps.of(log, WORDS, 1).num_steps == 1
    check_refusals(
        ("learning rate of step 2 is NaN", lambda: AdamSteps.of(log, WORDS, 2)),
        ("the optimizer log has 2 steps, the snapshot is of step 3", lambda: AdamSteps.of(log, WORDS, 3)),
        (r"LayerNorm.bias was frozen in this run", lambda: AdamSteps.of(log, "LayerNorm.bias", 1)),
        (r"did you mean 'word_embeddings'\?", lambda: AdamSteps.of(log, "word_embedding", 1)),
    )


def test_a_log_is_needed_and_of_adamw(tmp_path):
    trajectory, log = Trajectory([Snapshot(0, 0, {})]), make_log([1e-3])
    assert resolve_log(trajectory, log) is log
    check_refused("a trajectory has no optimizer log: pass the run", resolve_log, trajectory, None)
    for other in ("torch.optim.SGD (momentum)", "somebody.CautiousAdamW"):
        with refused(rf"only torch.optim.AdamW, .* can be replayed; this run used {re.escape(other)}"):
            resolve_log(trajectory, replace(log, algorithm=other))
    (tmp_path / "snapshots").mkdir()
    check_refused(r"has no optimizer.json", resolve_log, tmp_path, None)
