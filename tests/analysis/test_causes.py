"""Causes of drift against runs in which the position of every row at every step is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.analysis.adam_runs import WORDS, make_log, plant, random_exposure, signs, warm_up_and_decay
from tests.refusals import check_refusals, refused
from toolkit.analysis.adam import replay_decay
from toolkit.analysis.causes import ALL_ROWS, BASES, CAUSES, decompose, explain
from toolkit.analysis.drift import measure_rows
from toolkit.analysis.nulls import regress_drift, sign_noise
from toolkit.snapshots.run_writer import RunWriter
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import open_run

NUM_STEPS, HIDDEN = 160, 32
SNAPSHOTS = (40, 80, 120)


def _lognormal(rng, step, rows):
    """Directions whose coordinates differ in size by orders of magnitude: none of the nulls' assumptions holds."""
    return rng.normal(size=(len(rows), HIDDEN)) * rng.lognormal(0, 1.5, (len(rows), HIDDEN))


def _exposed():
    """Row 0 never, rows 1-4 once, 5-8 last at a snapshot, 9-12 last just before one, the others at random."""
    exposed = random_exposure(NUM_STEPS, 200, 0.03)
    exposed[:, :13] = False
    exposed[[0, 19, 94, 129], range(1, 5)] = True
    exposed[np.ix_([9, 30, 79], range(5, 9))] = True  # step 80, counted from 1, has a snapshot
    exposed[np.ix_([9, 30, 75], range(9, 13))] = True
    return exposed


@pytest.fixture(scope="module")
def planted():
    return plant(_lognormal, _exposed(), snapshot_steps=SNAPSHOTS)


@pytest.fixture(scope="module")
def table(planted):
    return decompose(planted.trajectory, WORDS, 1, log=planted.log)


def _replay(rows, log, start, end):
    changed = make_log(log.learning_rates[start:end], decay=log.weight_decay[WORDS])
    return replay_decay(rows, changed, WORDS).astype(np.float64)


def _true_momentum(planted, row, start=0, end=NUM_STEPS):
    """Where the row is at the end beside where decay alone would have brought it from its last exposure."""
    last = max(int((np.flatnonzero(planted.exposed[:end, row]) + 1)[-1]), start)
    return planted.path[end, row] - _replay(planted.path[last, row], planted.log, last, end)


def test_columns_and_vocabulary(table):
    assert list(table.columns) == [
        *("row", "token", "stratum", "num_steps", "last_step", "drift", "decay", "update", "gradient", "momentum"),
        *("momentum_low", "momentum_high", "momentum_noise", "momentum_basis", "cause"),
    ]
    assert (set(table["cause"]) <= set(CAUSES), set(table["momentum_basis"]) <= set(BASES)) == (True, True)
    assert {"exact", "one exposure", "extrapolated", "bounds", "none"} == set(table["momentum_basis"])


def test_decay_and_update_are_an_exact_split(planted, table):
    before, after = planted.path[0].astype(np.float64), planted.path[-1].astype(np.float64)
    decayed = replay_decay(planted.path[0], planted.log, WORDS).astype(np.float64)
    assert np.array_equal((decayed - before) + (after - decayed), after - before)  # Sterbenz: no digit is lost
    lengths = np.linalg.norm([after - before, decayed - before, after - decayed], axis=2)
    assert np.allclose(table[["drift", "decay", "update"]], lengths.T, rtol=1e-14)


def test_exact_momentum_is_the_true_one(planted, table):
    exact = table[table["momentum_basis"] == "exact"]
    assert {5, 6, 7, 8} <= set(exact["row"])
    for row in exact["row"]:
        truth, line = _true_momentum(planted, row), table.loc[row]
        assert line["momentum"] == line["momentum_low"] == line["momentum_high"]
        update = planted.path[-1, row] - _replay(planted.path[0, row], planted.log, 0, NUM_STEPS)
        assert line[["momentum", "gradient"]].tolist() == pytest.approx(
            np.linalg.norm([truth, update - truth], axis=1), rel=1e-12
        )
    assert (exact.loc[[5, 6, 7, 8], "momentum"] > 1e-3).all()


def test_one_exposure_is_known_without_a_snapshot(planted, table):
    for row in (1, 2, 3, 4):
        truth, line = np.linalg.norm(_true_momentum(planted, row)), table.loc[row]
        assert (line["momentum_basis"], line["momentum"]) == ("one exposure", pytest.approx(truth, rel=0.01))
        assert line["momentum_low"] * (1 - 1e-4) <= truth <= line["momentum_high"] * (1 + 1e-4)
    assert (table.loc[[3, 4], "momentum"] > 5 * table.loc[[3, 4], "gradient"]).all()


def test_extrapolation_finds_what_happened_before_the_snapshot(planted, table):
    found = table[table["momentum_basis"] == "extrapolated"]
    assert {9, 10, 11, 12} <= set(found["row"])
    for row in found["row"]:
        assert found.loc[row, "momentum"] == pytest.approx(np.linalg.norm(_true_momentum(planted, row)), rel=0.05)


def test_bounds_hold_for_every_row_whatever_its_gradients(planted, table):
    exposed = table[table["num_steps"] > 0]
    truth = np.array([np.linalg.norm(_true_momentum(planted, row)) for row in exposed["row"]])
    slack = 1e-6  # fp32 rounding of the last movements
    assert (exposed["momentum_low"] <= truth * (1 + 1e-3) + slack).all()
    assert (truth <= exposed["momentum_high"] * (1 + 1e-3) + slack).all()
    bounded = exposed["momentum_basis"] == "bounds"
    assert exposed.loc[bounded, ["momentum", "gradient"]].isna().all().all()
    assert (
        exposed.loc[bounded, "momentum_high"] < exposed.loc[bounded, "update"]
    ).mean() > 0.3  # and they say something


def test_the_ceiling_is_reached_by_the_gradients_that_cauchy_schwarz_names():
    """Gradients in the ratio (β1/β2)ᴸ⁻ˢ make the bound an equality, so no smaller one would hold."""
    exposed = np.zeros((60, 1), bool)
    exposed[[20, 25, 30]] = True

    def aligned(rng, step, rows):
        return np.full((1, HIDDEN), (0.9 / 0.999) ** (30.0 - step))

    sizes = plant(aligned, exposed, log=make_log(warm_up_and_decay(60)), size=1.0, sigma=0.0)
    line = decompose(sizes.trajectory, WORDS, 1, log=sizes.log).iloc[0]
    truth = pytest.approx(np.linalg.norm(_true_momentum(sizes, 0, end=60)), rel=1e-3)
    assert (line["momentum_basis"], line["momentum_high"]) == ("bounds", truth)


def test_sign_noise_expects_the_momentum_of_random_signs():
    planted = plant(signs(), random_exposure(NUM_STEPS, 300, 0.03))
    table = decompose(planted.trajectory, WORDS, 1, log=planted.log)
    exposed = table[table["num_steps"] > 0]
    truth = np.array([np.linalg.norm(_true_momentum(planted, row)) for row in exposed["row"]])
    is_large = exposed["momentum_noise"] > 1e-4
    assert is_large.sum() > 100
    assert np.mean(truth[is_large] / exposed.loc[is_large, "momentum_noise"]) == pytest.approx(1, abs=0.03)


def test_causes_since_a_later_epoch(planted):
    table = decompose(planted.trajectory, WORDS, 1, reference_epoch=0.5, log=planted.log)
    assert (table["cause"][0], set(table.loc[[3, 4], "cause"])) == ("weight decay alone", {"gradient"})
    left = table.loc[5:12]
    told = left[["cause", "momentum_basis", "gradient", "num_steps"]].drop_duplicates()
    assert told.to_numpy().tolist() == [["momentum after its last exposure", "exact", 0, 0]]
    assert (left["momentum"] == left["update"]).all()
    assert table.loc[5:8, "last_step"].eq(80).all()
    later = table.index[table["last_step"] > 80]
    assert len(later) > 100
    for row in later:
        truth = np.linalg.norm(_true_momentum(planted, row, start=80))
        assert table.loc[row, "momentum_low"] - 1e-6 <= truth <= table.loc[row, "momentum_high"] + 1e-6


@pytest.mark.parametrize("start", [0, 40, 80])
@pytest.mark.parametrize("end", [120, NUM_STEPS])
def test_exposures_are_counted_from_the_step_after_the_reference_to_the_epoch(planted, start, end):
    """The step that led to the reference is before it, the first one after it is not."""
    table = decompose(planted.trajectory, WORDS, end / NUM_STEPS, reference_epoch=start / NUM_STEPS, log=planted.log)
    assert planted.exposed[start].any()
    assert table["num_steps"].tolist() == planted.exposed[start:end].sum(axis=0).tolist()
    last = np.max(planted.exposed[:end] * np.arange(1, end + 1)[:, None], axis=0)
    assert table["last_step"].tolist() == last.tolist()


def test_a_movement_that_rounding_could_have_made_is_not_extrapolated():
    """A hundred steps after the last exposure momentum is some units in the last place: the rest of it tells nothing.

    With eight such units beyond the snapshot, the extrapolation would be a multiple of what Adam can have done.
    """
    exposed = np.zeros((160, 4), bool)
    exposed[[5, 10]] = True
    run = plant(_lognormal, exposed, snapshot_steps=(130,))
    after = run.path[-1].copy()
    after[:2] += 8 * np.spacing(after[:2])
    snapshots = [*run.trajectory.snapshots[:-1], Snapshot(1, 160, {WORDS: after})]
    table = decompose(Trajectory(snapshots, read_exposure=lambda: run.trajectory.exposure), WORDS, 1, log=run.log)
    truth = np.array([np.linalg.norm(_true_momentum(run, row)) for row in range(4)])
    assert set(table["momentum_basis"]) == {"bounds"}
    assert ((table["momentum_low"] <= truth) & (truth <= table["momentum_high"])).all()


def _with_last(planted, change):
    """The run with another table at the end."""
    after = planted.path[-1].copy()
    change(after)
    snapshots = [*planted.trajectory.snapshots[:-1], Snapshot(1, NUM_STEPS, {WORDS: after})]
    return Trajectory(snapshots, read_exposure=lambda: planted.trajectory.exposure)


def test_a_planted_movement_of_a_row_never_seen_is_unexplained(planted):
    assert decompose(planted.trajectory, WORDS, 1, log=planted.log).loc[0, "cause"] == "weight decay alone"
    summary = explain(planted.trajectory, WORDS, 1, log=planted.log).set_index("stratum")
    assert summary.loc["seen in 0 steps", "unexplained_share"] == 0

    def shift(after):
        after[0, 3] = np.nextafter(after[0, 3], np.float32(9))

    changed = _with_last(planted, shift)
    assert decompose(changed, WORDS, 1, log=planted.log).loc[0, "cause"] == "unexplained"
    assert explain(changed, WORDS, 1, log=planted.log).set_index("stratum").loc[ALL_ROWS, "unexplained_share"] > 0


def test_a_row_that_stayed_and_exposure_that_was_not_recorded(planted):
    def stay(after):
        after[20] = planted.path[0, 20]

    assert decompose(_with_last(planted, stay), WORDS, 1, log=planted.log).loc[20, "cause"] == "did not move"
    without = decompose(Trajectory(planted.trajectory.snapshots), WORDS, 1, log=planted.log)
    assert without.loc[0, "cause"] == "weight decay alone"
    assert set(without["cause"]) == {"weight decay alone", "exposure unknown"}
    assert set(without["momentum_basis"]) == {"exposure unknown"}
    assert without[["num_steps", "last_step", "momentum_high", "momentum_noise"]].isna().all().all()
    summary = explain(Trajectory(planted.trajectory.snapshots), WORDS, 1, log=planted.log)
    assert summary[["momentum_share_low", "momentum_share_high", "unexplained_share"]].isna().all().all()


def test_a_frozen_parameter_did_not_move(planted):
    frozen = make_log(planted.log.learning_rates, weight_decay={})
    snapshots = [Snapshot(0, 0, {WORDS: planted.path[0]}), Snapshot(1, NUM_STEPS, {WORDS: planted.path[0]})]
    trajectory = Trajectory(snapshots, read_exposure=lambda: planted.trajectory.exposure)
    assert set(decompose(trajectory, WORDS, 1, log=frozen)["cause"]) == {"did not move"}
    summary = explain(trajectory, WORDS, 1, log=frozen)
    assert (summary["num_did_not_move"] == summary["num_rows"]).all()
    assert summary[["decay_share", "update_share", "cross_share"]].isna().all().all()


def test_shares_add_up_and_counts_are_complete(planted, table):
    summary = explain(planted.trajectory, WORDS, 1, log=planted.log)
    assert np.allclose(summary[["decay_share", "update_share", "cross_share"]].sum(axis=1), 1, rtol=1e-12)
    counts = [f"num_{cause.replace(' ', '_')}" for cause in CAUSES]
    assert (summary[counts].sum(axis=1) == summary["num_rows"]).all()
    whole = summary.set_index("stratum").loc[ALL_ROWS]
    assert whole["num_rows"] == len(table) == summary["num_rows"].iloc[:-1].sum()
    assert whole["squared_drift"] == pytest.approx((table["drift"] ** 2).sum())
    assert whole["momentum_share_low"] <= whole["momentum_share_high"]
    assert np.isnan(summary.set_index("stratum").loc["seen in 0 steps", "momentum_share_high"])


def test_refusals(planted):
    check_refusals(
        (
            r"epoch 0.5 \(step 80\) is not after the reference, epoch 1 \(step 160\)",
            lambda: decompose(planted.trajectory, WORDS, 0.5, reference_epoch=1, log=planted.log),
        ),
        (
            "the optimizer log has 100 steps, the snapshot is of step 160",
            lambda: decompose(planted.trajectory, WORDS, 1, log=make_log(planted.log.learning_rates[:100])),
        ),
        ("a trajectory has no optimizer log", lambda: explain(planted.trajectory, WORDS, 1)),
    )


def test_the_log_of_another_run_is_refused(planted, tmp_path):
    writer = RunWriter(tmp_path)
    for snapshot in planted.trajectory:
        writer.write_snapshot(snapshot.epoch, snapshot.step, dict(snapshot.tensors), is_epoch_end=snapshot.is_epoch_end)
    writer.write_optimizer_log(planted.log)
    run, rates = open_run(tmp_path), planted.log.learning_rates
    assert decompose(run, WORDS, 1, log=planted.log).equals(decompose(run, WORDS, 1))
    for log, what in (
        (make_log(np.append(rates, 1e-4)), "learning rates"),
        (make_log(rates, decay=0.1), "weight decay"),
        (make_log(rates * 2), "learning rates"),
        (replace(planted.log, betas=(0.5, 0.5), eps=1.0), "betas and eps"),
        (replace(planted.log, clipping_factors=planted.log.clipping_factors / 7), "clipping factors"),
    ):
        for measure in (decompose, explain):
            with refused(f"is not of {tmp_path}: the run's own differs in {what}[a-z ]*; leave log="):
                measure(run, WORDS, 1, log=log)


@pytest.mark.parametrize(
    "function",
    [
        lambda run, **epoch: decompose(run.trajectory, WORDS, log=run.log, **epoch),
        lambda run, **epoch: explain(run.trajectory, WORDS, log=run.log, **epoch),
        lambda run, **epoch: sign_noise(run.trajectory, WORDS, log=run.log, num_replicates=5, **epoch),
        lambda run, **epoch: regress_drift(run.trajectory, WORDS, log=run.log, **epoch),
        lambda run, **epoch: measure_rows(run.trajectory, WORDS, **epoch),
    ],
    ids=["decompose", "explain", "sign_noise", "regress_drift", "measure_rows"],
)
def test_without_an_epoch_it_is_the_last(planted, function):
    last, before = (planted.trajectory.snapshots[i].epoch for i in (-1, -2))
    pd.testing.assert_frame_equal(function(planted), function(planted, epoch=last))
    assert not function(planted).equals(function(planted, epoch=before))
