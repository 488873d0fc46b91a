"""Causes of drift against runs in which the position of every row at every step is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.analysis.adam_runs import WORDS, make_log, plant, random_exposure
from tests.refusals import check_refusals, refused
from toolkit.analysis.adam import replay_decay
from toolkit.analysis.causes import ALL_ROWS, CAUSES, decompose, explain
from toolkit.analysis.drift import measure_rows
from toolkit.analysis.nulls import sign_noise
from toolkit.snapshots.run_writer import start_run
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


def test_columns_and_vocabulary(table):
    assert list(table.columns) == [
        *("row", "token", "stratum", "num_steps", "last_step", "drift", "decay", "update", "cause"),
    ]
    assert set(table["cause"]) <= set(CAUSES)


def test_decay_and_update_are_an_exact_split(planted, table):
    before, after = planted.path[0].astype(np.float64), planted.path[-1].astype(np.float64)
    decayed = replay_decay(planted.path[0], planted.log, WORDS).astype(np.float64)
    assert np.array_equal((decayed - before) + (after - decayed), after - before)  # Sterbenz: no digit is lost
    lengths = np.linalg.norm([after - before, decayed - before, after - decayed], axis=2)
    assert np.allclose(table[["drift", "decay", "update"]], lengths.T, rtol=1e-14)


def test_causes_since_a_later_epoch(planted):
    table = decompose(planted.trajectory, WORDS, 1, reference_epoch=0.5, log=planted.log)
    assert (table["cause"][0], set(table.loc[[3, 4], "cause"])) == ("weight decay alone", {"gradient"})
    left = table.loc[5:12]
    told = left[["cause", "num_steps"]].drop_duplicates()
    assert told.to_numpy().tolist() == [["momentum after its last exposure", 0]]
    decayed = replay_decay(planted.path[80], make_log(planted.log.learning_rates[80:]), WORDS)[5:13]
    moved = np.linalg.norm(planted.path[-1, 5:13] - decayed.astype(np.float64), axis=1)
    np.testing.assert_allclose(left["update"], moved, rtol=1e-12)
    assert table.loc[5:8, "last_step"].eq(80).all()


@pytest.mark.parametrize("start", [0, 40, 80])
@pytest.mark.parametrize("end", [120, NUM_STEPS])
def test_exposures_are_counted_from_the_step_after_the_reference_to_the_epoch(planted, start, end):
    """The step that led to the reference is before it, the first one after it is not."""
    table = decompose(planted.trajectory, WORDS, end / NUM_STEPS, reference_epoch=start / NUM_STEPS, log=planted.log)
    assert planted.exposed[start].any()
    assert table["num_steps"].tolist() == planted.exposed[start:end].sum(axis=0).tolist()
    last = np.max(planted.exposed[:end] * np.arange(1, end + 1)[:, None], axis=0)
    assert table["last_step"].tolist() == last.tolist()


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
    assert without[["num_steps", "last_step"]].isna().all().all()
    summary = explain(Trajectory(planted.trajectory.snapshots), WORDS, 1, log=planted.log)
    assert summary["unexplained_share"].isna().all()


def test_a_frozen_parameter_did_not_move(planted):
    frozen = make_log(planted.log.learning_rates, weight_decay={})
    snapshots = [Snapshot(0, 0, {WORDS: planted.path[0]}), Snapshot(1, NUM_STEPS, {WORDS: planted.path[0]})]
    trajectory = Trajectory(snapshots, read_exposure=lambda: planted.trajectory.exposure)
    assert set(decompose(trajectory, WORDS, 1, log=frozen)["cause"]) == {"did not move"}
    summary = explain(trajectory, WORDS, 1, log=frozen)
    assert (summary["num_did_not_move"] == summary["num_rows"]).all()
    assert summary[["decay_share", "update_share"]].isna().all().all()


def test_shares_are_of_the_squared_drift_and_counts_are_complete(planted, table):
    summary = explain(planted.trajectory, WORDS, 1, log=planted.log)
    counts = [f"num_{cause.replace(' ', '_')}" for cause in CAUSES]
    assert (summary[counts].sum(axis=1) == summary["num_rows"]).all()
    by_stratum = summary.set_index("stratum")
    whole = by_stratum.loc[ALL_ROWS]
    assert np.isnan(by_stratum.loc["seen in 1 step", "unexplained_share"])  # every row of it was exposed
    assert whole["num_rows"] == len(table) == summary["num_rows"].iloc[:-1].sum()
    squares = np.square(table[["drift", "decay", "update"]]).sum()
    assert whole["decay_share"] == pytest.approx(squares["decay"] / squares["drift"])
    assert whole["update_share"] == pytest.approx(squares["update"] / squares["drift"])


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
    writer = start_run(tmp_path / "run")
    for snapshot in planted.trajectory:
        writer.write_snapshot(snapshot.epoch, snapshot.step, dict(snapshot.tensors), is_epoch_end=snapshot.is_epoch_end)
    writer.write_optimizer_log(planted.log)
    run, rates = open_run(writer.path), planted.log.learning_rates
    assert decompose(run, WORDS, 1, log=planted.log).equals(decompose(run, WORDS, 1))
    for log, what in (
        (make_log(np.append(rates, 1e-4)), "learning rates"),
        (make_log(rates, decay=0.1), "weight decay"),
        (make_log(rates * 2), "learning rates"),
        (replace(planted.log, betas=(0.5, 0.5), eps=1.0), "betas and eps"),
        (replace(planted.log, clipping_factors=planted.log.clipping_factors / 7), "clipping factors"),
    ):
        for measure in (decompose, explain):
            with refused(f"is not of {writer.path}: the run's own differs in {what}[a-z ]*; leave log="):
                measure(run, WORDS, 1, log=log)


@pytest.mark.parametrize(
    "function",
    [
        lambda run, **epoch: decompose(run.trajectory, WORDS, log=run.log, **epoch),
        lambda run, **epoch: explain(run.trajectory, WORDS, log=run.log, **epoch),
        lambda run, **epoch: sign_noise(run.trajectory, WORDS, log=run.log, num_replicates=5, **epoch),
        lambda run, **epoch: measure_rows(run.trajectory, WORDS, **epoch),
    ],
    ids=["decompose", "explain", "sign_noise", "measure_rows"],
)
def test_without_an_epoch_it_is_the_last(planted, function):
    last, before = (planted.trajectory.snapshots[i].epoch for i in (-1, -2))
    pd.testing.assert_frame_equal(function(planted), function(planted, epoch=last))
    assert not function(planted).equals(function(planted, epoch=before))
