"""The tables of drift against brute force, and what they say of what is missing, undefined or broken."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refusals, check_refused, refused
from toolkit.analysis.blocks import RowPass
from toolkit.analysis.drift import measure_drift, measure_rows
from toolkit.analysis.measures import MEASURES
from toolkit.analysis.strata import assign_strata
from toolkit.schema import columns_of
from toolkit.snapshots.snapshot import Snapshot, Trajectory

GROUP = ["epoch", "step", "parameter", "stratum", "measure", "unit"]
KEYS = [*GROUP, "statistic"]


def _brute_force(trajectory, reference_epoch=0):
    """Every value of the strata, one row and one measure at a time, then grouped by pandas."""
    lines = []
    for snapshot in trajectory:
        for parameter in trajectory.parameters:
            before = np.atleast_2d(trajectory.at(reference_epoch).tensors[parameter]).astype(np.float64)
            after = np.atleast_2d(snapshot.tensors[parameter]).astype(np.float64)
            for row, stratum in enumerate(assign_strata(trajectory, parameter)):
                for name, measure in MEASURES.items():
                    value = measure.function(before[row : row + 1], after[row : row + 1])[0]
                    for label in (stratum, "all rows"):
                        lines.append((snapshot.epoch, snapshot.step, parameter, label, name, measure.unit, value))
    groups = pd.DataFrame(lines, columns=[*GROUP, "value"]).groupby(GROUP)["value"]
    tables = [groups.agg(statistic).rename("value").reset_index() for statistic in ("mean", "median", "max")]
    for table, statistic in zip(tables, ("mean", "median", "max"), strict=True):
        table["statistic"] = statistic
        table["num_rows"] = groups.size().to_numpy()
        table["num_undefined"] = groups.size().to_numpy() - groups.count().to_numpy()
    return pd.concat(tables)[columns_of("measure_drift")]


def _sorted(table):
    return table.sort_values(KEYS).reset_index(drop=True)


@pytest.mark.parametrize("reference_epoch", [0, 2])
def test_the_tidy_table_against_brute_force(make_trajectory, reference_epoch):
    trajectory = make_trajectory()
    table = measure_drift(trajectory, reference_epoch=reference_epoch)
    of_rows = table[table.stratum != "whole parameter"]
    pd.testing.assert_frame_equal(
        _sorted(of_rows), _sorted(_brute_force(trajectory, reference_epoch)), check_dtype=False, rtol=1e-12
    )
    assert not table.duplicated(KEYS).any()
    assert list(dict.fromkeys(table.parameter)) == list(trajectory.parameters)


def test_whole_parameters_against_numpy(make_trajectory):
    trajectory = make_trajectory()
    table = measure_drift(trajectory).query("stratum == 'whole parameter' and statistic == 'value'")
    assert len(table) == len(trajectory) * len(trajectory.parameters) * 2
    for line in table.itertuples():
        before, after = (
            s.tensors[line.parameter].astype(np.float64) for s in (trajectory.at(0), trajectory.at(line.epoch))
        )
        scale = np.linalg.norm(before) if line.measure == "relative" else 1
        assert line.value == pytest.approx(np.linalg.norm(after - before) / scale, rel=1e-12)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 14), st.integers(0, 1000))
def test_blocks_do_not_show(make_trajectory, block_rows, seed):
    trajectory = make_trajectory(seed)
    pd.testing.assert_frame_equal(
        measure_drift(trajectory, block_rows=block_rows), measure_drift(trajectory), rtol=1e-12
    )


def test_undefined_rows_are_counted_and_left_out(make_trajectory):
    table = measure_drift(make_trajectory(), ["relative", "norm"]).query(
        "epoch == 3 and parameter == 'word_embeddings'"
    )
    lines = table.set_index(["stratum", "measure", "statistic"])
    # Row 5, seen in one step, is 0 before training; row 7 is the other one.
    assert tuple(lines.loc[("seen in 1 step", "relative", "mean"), ["num_rows", "num_undefined"]]) == (2, 1)
    assert tuple(lines.loc[("seen in 1 step", "norm", "mean"), ["num_rows", "num_undefined"]]) == (2, 0)
    rows = measure_rows(make_trajectory(), "word_embeddings", 3)
    assert lines.loc[("seen in 1 step", "relative", "mean"), "value"] == pytest.approx(rows["relative"][7])


def test_a_stratum_without_defined_rows_is_nan(make_trajectory):
    trajectory = make_trajectory()
    for snapshot in trajectory:
        snapshot.tensors["token_type_embeddings"][:] = 0
    table = measure_drift(trajectory, ["relative"]).query("parameter == 'token_type_embeddings' and epoch == 1")
    assert table["value"].isna().all()
    of_rows = table[table.stratum != "whole parameter"]
    assert (of_rows["num_undefined"] == of_rows["num_rows"]).all()
    assert (table[table.stratum == "whole parameter"]["num_undefined"] == 1).all()


def test_rows_carry_their_identity_and_exposure(make_trajectory):
    trajectory = make_trajectory()
    words = measure_rows(trajectory, "word_embeddings", 1)
    assert list(words.columns) == ["row", "token", "stratum", "num_steps", "num_tokens", *MEASURES, "path_efficiency"]
    assert list(words["token"]) == list(trajectory.vocabulary.tokens)
    assert list(words["num_steps"]) == [0, 0, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0]
    assert list(words["num_tokens"]) == [0, 0, 2, 2, 3, 1, 1, 0, 0, 0, 0, 0]
    assert list(measure_rows(trajectory, "word_embeddings", 3)["num_steps"])[2] == 6
    vector = measure_rows(trajectory, "LayerNorm.weight", 3)
    assert len(vector) == 1
    assert vector.loc[0, ["row", "token", "stratum"]].tolist() == [0, "", "all"]
    assert vector[["num_steps", "num_tokens"]].isna().all(axis=None)


def test_path_efficiency_goes_through_the_ends_of_epochs(make_trajectory):
    trajectory = make_trajectory()
    path = [trajectory.at(epoch).tensors["word_embeddings"].astype(np.float64) for epoch in (0, 1, 2, 3)]
    length = sum(np.linalg.norm(b - a, axis=1) for a, b in pairwise(path))
    efficiency = measure_rows(trajectory, "word_embeddings", 3)["path_efficiency"]
    assert np.allclose(efficiency[:11], np.linalg.norm(path[3] - path[0], axis=1)[:11] / length[:11])
    assert np.isnan(efficiency[11])  # the row that never moved
    backwards = measure_rows(trajectory, "word_embeddings", 0, reference_epoch=3)["path_efficiency"]
    assert np.allclose(backwards, efficiency, equal_nan=True)
    assert measure_rows(trajectory, "word_embeddings", 0)["path_efficiency"].isna().all()


@pytest.mark.parametrize("block_rows", [0, -1, 2.5])
def test_a_number_of_rows_that_is_none_is_refused(make_trajectory, block_rows):
    with refused(f"block_rows must be a whole number of at least 1; got {block_rows}"):
        measure_drift(make_trajectory(), ["norm"], block_rows=block_rows)


def test_rows_that_were_never_read_are_undefined():
    passed = RowPass(MEASURES, 3)
    passed.add(slice(0, 2), np.ones((2, 4)), np.full((2, 4), 2.0))
    for name, values in passed.values().items():
        assert np.isfinite(values[:2]).all(), name
        assert np.isnan(values[2]), name


@pytest.mark.parametrize("epoch", [None, "1"])
def test_an_epoch_is_a_number(make_trajectory, epoch):
    with refused(f"an epoch is a number; got {epoch!r}"):
        measure_rows(make_trajectory(), "word_embeddings", 1, reference_epoch=epoch)
    if epoch is not None:  # which means the last
        check_refused(f"an epoch is a number; got {epoch!r}", measure_rows, make_trajectory(), "word_embeddings", epoch)


@pytest.mark.parametrize("shape", [(0, 8), (5, 0)])
def test_a_table_without_values_is_refused(shape):
    pair = Trajectory([Snapshot(i, i, {"word_embeddings": np.zeros(shape, np.float32)}) for i in (0, 1)])
    check_refused(rf"word_embeddings has no values at epoch 0: its shape is \({shape[0]}, ", measure_drift, pair)


def test_errors_are_one_clear_line(make_trajectory):
    trajectory = make_trajectory()
    check_refusals(
        (r"no snapshot of epoch 9; at hand: 0, 1, 1\.5, 2, 3", lambda: measure_drift(trajectory, reference_epoch=9)),
        (r"unknown measure 'nrom' \(did you mean 'norm'\?\)", lambda: measure_drift(trajectory, ["nrom"])),
        (
            r"unknown embedding parameter .*did you mean 'word_embeddings'",
            lambda: measure_rows(trajectory, "word_embedings", 1),
        ),
    )
    broken = {name: tensor.copy() for name, tensor in trajectory.at(2).tensors.items()}
    broken["position_embeddings"][3, 3] = np.nan
    check_refused(
        "position_embeddings holds NaN or infinity at epoch 2",
        measure_drift,
        replace(trajectory, snapshots=[trajectory.at(0), Snapshot(2, 4, broken)]),
    )
    other = dict(trajectory.at(2).tensors) | {"LayerNorm.bias": np.ones(7, np.float32)}
    check_refused(
        r"LayerNorm.bias has shape \(1, 7\) at epoch 2 but \(1, 6\) at epoch 0",
        measure_drift,
        replace(trajectory, snapshots=[trajectory.at(0), Snapshot(2, 4, other)]),
    )
    fewer = {"LayerNorm.bias": trajectory.at(2).tensors["LayerNorm.bias"]}
    check_refused(
        "the snapshot of epoch 2 lacks word_embeddings",
        measure_drift,
        replace(trajectory, snapshots=[trajectory.at(0), Snapshot(2, 4, fewer)]),
    )
