"""Segment rows: oracles of every statistic, exposure, and no line where something does not apply."""

from types import SimpleNamespace

import numpy as np
import pytest

from toolkit.analysis import drift
from toolkit.analysis.drift import DECAY_ALONE, UNUSED, measure_segments
from toolkit.families import TABLES
from toolkit.snapshots.logs import Exposure
from toolkit.snapshots.snapshot import Snapshot, Trajectory

PARAMETER = "token_type_embeddings"


def trajectory(*tables, exposure=None):
    snapshots = [Snapshot(i, 2 * i, {PARAMETER: np.asarray(t, np.float32)}) for i, t in enumerate(tables)]
    return Trajectory(snapshots, read_exposure=lambda: exposure)


def value(table, of, statistic, epoch=1):
    (line,) = table[(table["parameter"] == of) & (table["measure"] == statistic) & (table["epoch"] == epoch)].to_dict(
        "records"
    )
    return line["value"]


def test_known_values(make_exposure):
    exposure = Exposure({PARAMETER: make_exposure({PARAMETER: [[0] * 4] * 6}).tables[PARAMETER]})
    table = measure_segments(trajectory([[3.0, 0], [0, 4]], [[3, 4], [0, 4]], exposure=exposure))
    assert value(table, "segment 0", "norm") == 5
    assert value(table, "segment 0", "norm", epoch=0) == 3
    assert value(table, "segment 0", "drift") == 4
    assert value(table, "segment 0", "relative_drift") == pytest.approx(4 / 3)
    assert value(table, "segment 1", "drift") == 0
    assert value(table, "segments 0 and 1", "cosine", epoch=0) == pytest.approx(0, abs=1e-12)
    assert value(table, "segments 0 and 1", "cosine") == pytest.approx(0.8)
    assert value(table, "difference 1 - 0", "norm") == 3
    assert value(table, "difference 1 - 0", "drift") == 4
    assert value(table, "mean of 0 and 1", "drift") == 2
    assert value(table, "segment 0", "num_steps") == 2  # up to step 2
    assert value(table, "segment 0", "num_tokens") == 8
    assert value(table, "segment 1", "num_steps") == 0
    unseen = table[(table["parameter"] == "segment 1") & (table["measure"] == "num_steps")].set_index("epoch")["note"]
    assert unseen[1] == UNUSED  # a trajectory alone does not say whether rows decay
    assert unseen[0] == ""


@pytest.mark.parametrize(
    ("decay", "note"), [(None, UNUSED), ({}, UNUSED), ({PARAMETER: 0.0}, UNUSED), ({PARAMETER: 0.01}, DECAY_ALONE)]
)
def test_decay_is_named_where_the_log_shows_it(decay, note, make_exposure, monkeypatch):
    log = None if decay is None else SimpleNamespace(weight_decay=decay)
    monkeypatch.setattr(drift, "given_log", lambda source, given: log)
    table = measure_segments(trajectory(np.eye(2), np.eye(2), exposure=make_exposure({PARAMETER: [[0]] * 2})))
    line = table[(table["parameter"] == "segment 1") & (table["measure"] == "num_steps") & (table["epoch"] == 1)]
    assert line["note"].item() == note


def test_a_shared_shift_is_in_the_mean_and_not_in_the_difference():
    before = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    shift = np.full(5, 0.25, np.float32)
    table = measure_segments(trajectory(before, before + shift))
    assert value(table, "difference 1 - 0", "drift") == pytest.approx(0, abs=1e-6)
    assert value(table, "mean of 0 and 1", "drift") == pytest.approx(np.linalg.norm(shift), rel=1e-6)
    opposite = measure_segments(trajectory(before, before + np.array([[1.0], [-1]]) * shift))
    assert value(opposite, "mean of 0 and 1", "drift") == pytest.approx(0, abs=1e-6)
    assert value(opposite, "difference 1 - 0", "drift") == pytest.approx(2 * np.linalg.norm(shift), rel=1e-6)


def test_one_row_has_no_lines_of_pairs_and_no_table_has_no_lines():
    assert set(measure_segments(trajectory(np.ones((1, 4)), np.full((1, 4), 2.0)))["parameter"]) == {"segment 0"}
    assert measure_segments(Trajectory([Snapshot(0, 0, {"word_embeddings": np.ones((3, 2), np.float32)})])).empty


def test_three_rows_have_every_pair():
    assert {"segments 0 and 1", "segments 0 and 2", "segments 1 and 2"} <= set(
        measure_segments(trajectory(np.eye(3)))["parameter"]
    )


def test_unknown_exposure_and_zero_rows_are_nan_with_a_note():
    table = measure_segments(trajectory(np.zeros((2, 3)), np.ones((2, 3)))).set_index(["epoch", "parameter", "measure"])
    steps = table.loc[(1.0, "segment 0", "num_steps")]
    assert np.isnan(steps["value"])
    assert steps["reason"] == "exposure was not recorded"
    assert table.loc[(1.0, "segment 0", "relative_drift"), "reason"] == "0 before training"
    cosine = table.loc[(0.0, "segments 0 and 1", "cosine")]
    assert np.isnan(cosine["value"])
    assert cosine["reason"] == "a row is 0 and has no direction"


def test_an_epoch_alone(make_trajectory):
    source = make_trajectory()
    every, last = measure_segments(source), measure_segments(source, 3)
    assert set(every["epoch"]) == {0, 1, 1.5, 2, 3}
    assert every[every["epoch"] == 3].reset_index(drop=True).equals(last)
    assert PARAMETER in TABLES
