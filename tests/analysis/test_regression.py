"""The regression of drift on exposure: planted slopes are found, absent ones are not, noise has its own slope."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.analysis.adam_runs import WORDS, constant, make_log, plant, random_exposure, signs
from tests.refusals import check_refusals
from toolkit.analysis.nulls import FEWEST_ROWS, regress_drift
from toolkit.snapshots.logs import Exposure, StepRows, TableExposure
from toolkit.snapshots.snapshot import Snapshot, Trajectory


def _world(slope, norm_slope, *, num_rows=400, hidden=16, seed=0, unseen=15, noise=0.2):
    """‖Δ‖ = .01·steps^slope·‖E⁰‖^norm_slope times lognormal noise; the first rows were never seen."""
    rng = np.random.default_rng([7, seed])
    num_steps = 64
    exposed = rng.random((num_steps, num_rows)) < rng.uniform(0.03, 1, num_rows)
    exposed[0] = True
    exposed[:, :unseen] = False
    before = rng.normal(size=(num_rows, hidden)) * rng.lognormal(-3, 0.5, (num_rows, 1))
    lengths = np.linalg.norm(before, axis=1)
    counts = exposed.sum(axis=0)
    drift = 0.01 * np.maximum(counts, 1.0) ** slope * lengths**norm_slope * np.exp(rng.normal(0, noise, num_rows))
    direction = rng.normal(size=(num_rows, hidden))
    after = before + drift[:, None] * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    records = [
        StepRows(rows.astype(np.int32), np.ones(len(rows), np.int32), np.ones(len(rows), np.float32))
        for rows in map(np.flatnonzero, exposed)
    ]
    exposure = Exposure({WORDS: TableExposure.from_steps(records)})
    trajectory = Trajectory(
        [Snapshot(0, 0, {WORDS: before}), Snapshot(1, num_steps, {WORDS: after})], read_exposure=lambda: exposure
    )
    return trajectory, make_log([1e-4] * num_steps), counts, lengths, drift


def _float32(trajectory):
    snapshots = [Snapshot(s.epoch, s.step, {WORDS: s.tensors[WORDS].astype(np.float32)}) for s in trajectory]
    return Trajectory(snapshots, read_exposure=trajectory.read_exposure)


def _fit(slope, norm_slope, **options):
    trajectory, log, *_ = _world(slope, norm_slope, **options)
    table = regress_drift(_float32(trajectory), epoch=1, log=log)
    return table[table["outcome"] == "drift"].set_index("term")


def test_planted_slopes_are_inside_their_intervals():
    table = _fit(0.5, -0.3)
    assert list(table.reset_index().columns[:1]) == ["term"]
    for term, value in (("log_num_steps", 0.5), ("log_norm", -0.3), ("constant", np.log(0.01))):
        line = table.loc[term]
        assert line["low"] < value < line["high"], term
    assert table.loc["log_num_steps", "p"] < 1e-6


def test_absent_slopes_are_inside_the_interval_as_often_as_it_says():
    covered = [
        (line["low"] <= 0 <= line["high"])
        for seed in range(60)
        for line in [_fit(0, 0, seed=seed, num_rows=100).loc["log_num_steps"]]
    ]
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 60)


def test_numbers_are_those_of_a_plain_formula():
    world, log, counts, *_ = _world(0.5, 0.2)
    trajectory = _float32(world)
    tables = [np.asarray(s.tensors[WORDS], np.float64) for s in trajectory]
    drift = np.linalg.norm(tables[1] - tables[0], axis=1)
    seen = counts > 0
    lengths = np.linalg.norm(tables[0], axis=1)
    design = np.column_stack([np.ones(seen.sum()), np.log(counts[seen]), np.log(lengths[seen])])
    outcome = np.log(drift[seen])
    inverse = np.linalg.inv(design.T @ design)
    beta = inverse @ design.T @ outcome
    residual = outcome - design @ beta
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    meat = (design * (residual / (1 - leverage))[:, None] ** 2).T @ design
    error = np.sqrt(np.diag(inverse @ meat @ inverse))
    table = regress_drift(trajectory, epoch=1, log=log)
    found = table[table["outcome"] == "drift"]
    half = stats.t.ppf(0.975, len(outcome) - 3) * error
    expected = {
        "value": beta,
        "se": error,
        "low": beta - half,
        "high": beta + half,
        "p": 2 * stats.t.sf(np.abs(beta / error), len(outcome) - 3),
        "r_squared": 1 - residual.var() / outcome.var(),
        "num_rows": seen.sum(),
        "num_left_out": (~seen).sum(),
    }
    for name, values in expected.items():
        assert np.allclose(found[name], values, rtol=1e-6 if name == "p" else 1e-9), name


def test_noise_has_a_slope_below_1_of_its_own_and_it_is_reported():
    """Rows moved by random signs: no finding. The slope is that of the null, within what the intervals allow."""
    planted = plant(signs(), random_exposure(200, 800, 0.1), log=make_log([1e-4] * 200, decay=0.0))
    table = regress_drift(planted.trajectory, epoch=1, log=planted.log).set_index(["outcome", "term"])
    observed, null = (table.loc[(outcome, "log_num_steps")] for outcome in ("drift", "sign noise"))
    assert observed["high"] < 1
    assert abs(observed["value"] - null["value"]) < 3 * np.hypot(observed["se"], null["se"])
    assert null["low"] > 0


def test_a_planted_direction_is_steeper_than_the_null():
    planted = plant(constant(), random_exposure(200, 800, 0.1), log=make_log([1e-4] * 200, decay=0.0))
    table = regress_drift(planted.trajectory, epoch=1, log=planted.log).set_index(["outcome", "term"])
    slopes = [table.loc[(outcome, "log_num_steps")] for outcome in ("drift", "sign noise")]
    assert slopes[0]["low"] > slopes[1]["high"]


def test_what_came_after_the_epoch_changes_nothing():
    """Later steps expose other rows than earlier ones, and decay all: neither has come by the epoch."""
    early, late = random_exposure(100, 60, 0.2, seed=1), random_exposure(100, 60, 0.2, seed=2)
    log, shorter = (make_log([1e-4] * num_steps, decay=100) for num_steps in (200, 100))
    run = plant(signs(), np.concatenate([early, late]), snapshot_steps=(100,), log=log)
    recorded = run.trajectory.exposure
    cut = Trajectory(
        run.trajectory.snapshots[:2],
        read_exposure=lambda: Exposure({WORDS: recorded.tables[WORDS].first(100)}),
    )
    tables = [regress_drift(own, epoch=0.5, log=its) for own, its in ((run.trajectory, log), (cut, shorter))]
    pd.testing.assert_frame_equal(*tables)


def test_where_decay_is_all_the_movement_the_null_follows_the_norm():
    """Decay takes a share of each row, whatever its exposure: slopes 1 and 0. Adam alone would have its own."""
    trajectory, log, *_ = _world(0, 1, num_rows=1200)  # several blocks
    strong = make_log(log.learning_rates, decay=1e4)
    table = regress_drift(_float32(trajectory), epoch=1, log=strong).set_index(["outcome", "term"])
    null = table.loc["sign noise", "value"]
    assert null[["log_norm", "log_num_steps"]].tolist() == pytest.approx([1, 0], abs=0.02)


def test_rows_that_did_not_move_or_started_at_0_are_left_out():
    trajectory, log, *_ = _world(0.5, 0, unseen=0)
    before, after = (s.tensors[WORDS].astype(np.float32) for s in trajectory)
    before[3], after[5] = 0, before[5]
    snapshots = [Snapshot(0, 0, {WORDS: before}), Snapshot(1, 64, {WORDS: after})]
    table = regress_drift(Trajectory(snapshots, read_exposure=trajectory.read_exposure), epoch=1, log=log)
    assert (table["num_left_out"] == 2).all()


def test_refusals():
    trajectory, log, *_ = _world(0.5, 0, num_rows=FEWEST_ROWS - 1, unseen=0)
    exposed = np.zeros((5, 30), bool)
    exposed[2] = True
    once = plant(signs(), exposed, log=make_log([1e-4] * 5))
    check_refusals(
        (
            r"19 of 19 rows of word_embeddings were exposed and moved; .* needs 20",
            lambda: regress_drift(_float32(trajectory), epoch=1, log=log),
        ),
        ("log_num_steps is the same for all 30 rows", lambda: regress_drift(once.trajectory, epoch=1, log=once.log)),
        (
            "word_embeddings was frozen",
            lambda: regress_drift(once.trajectory, epoch=1, log=make_log([1e-4] * 5, weight_decay={})),
        ),
    )
