"""The pass over the rows of a table against each measure's definition, row tables in files, and the benchmarks."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from tests.refusals import check_refusals, check_refused
from toolkit.analysis import drift
from toolkit.analysis.blocks import RowPass, Scratch, iterate_blocks
from toolkit.analysis.drift import measure_rows, write_rows
from toolkit.analysis.measures import MEASURES
from toolkit.questions import QUESTIONS
from toolkit.snapshots.snapshot import Snapshot

BENCHMARKS = Path(__file__).parents[2] / "experiments" / "benchmarks"


def _in_one_pass(before, after, measures=MEASURES, block_rows=3):
    row_pass = RowPass(measures, len(before))
    for start in range(0, len(before), block_rows):
        part = slice(start, min(start + block_rows, len(before)))
        row_pass.add(part, before[part], after[part])
    return row_pass.values()


@pytest.mark.parametrize("factor", [0.5, 2.0, -1.0, 0.0])
def test_a_row_that_is_scaled_exactly_has_no_tangential_part(factor):
    before = np.random.default_rng(6).normal(size=(20, 48))
    values, turned = _in_one_pass(before, factor * before), 180 if factor < 0 else 0
    assert not values["tangential"].any()
    if factor:
        assert (values["angle_degrees"] == turned).all()
        assert np.allclose(values["cosine_distance"], turned / 90, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", MEASURES)
def test_a_choice_of_measures_does_not_change_any(name):
    before, after = np.random.default_rng(7).normal(size=(2, 10, 6))
    alone = _in_one_pass(before, after, {name: MEASURES[name]}, block_rows=4)
    assert list(alone) == [name]
    assert np.array_equal(alone[name], _in_one_pass(before, after)[name])


def test_blocks_are_new_memory_unless_scratch_is_given(make_trajectory):
    pair = make_trajectory().snapshots[:2]
    kept = [blocks for _, blocks in iterate_blocks(pair, "word_embeddings", 5)]
    for place, snapshot in enumerate(pair):
        assert np.array_equal(np.concatenate([blocks[place] for blocks in kept]), snapshot.tensors["word_embeddings"])
    for (_, reused), fresh in zip(iterate_blocks(pair, "word_embeddings", 5, scratch=Scratch()), kept, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(reused, fresh, strict=True))
        assert all(block.ctypes.data % 64 == 0 for block in (*reused, *fresh))


def test_values_beyond_the_range_of_sums_are_still_finite():
    table = np.array([[1.7e308, 1.7e308], [0.0, 1.0]])
    snapshot = Snapshot(0, 0, {"word_embeddings": table})
    assert np.array_equal(next(iterate_blocks([snapshot], "word_embeddings"))[1][0], table)


@pytest.mark.parametrize("row", [[0, np.inf], [-np.inf, 0], [np.inf, -np.inf], [np.nan, 1], [-np.nan, np.inf]])
def test_what_is_not_finite_is_refused(row):
    snapshot = Snapshot(0, 0, {"word_embeddings": np.array([[1.0, 2.0], row])})
    check_refused(
        "word_embeddings holds NaN or infinity at epoch 0", next, iterate_blocks([snapshot], "word_embeddings")
    )


@pytest.mark.parametrize("parameter", ["word_embeddings", "position_embeddings", "LayerNorm.bias"])
@pytest.mark.parametrize("block_rows", [5, 100])
def test_a_written_table_holds_what_measure_rows_gives(make_trajectory, tmp_path, parameter, block_rows):
    trajectory = make_trajectory()
    path = write_rows(trajectory, parameter, tmp_path / "new" / "rows.parquet", block_rows=block_rows)
    written = pd.read_parquet(path)
    assert list(written["epoch"].unique()) == [1, 1.5, 2, 3]
    for epoch, of_epoch in written.groupby("epoch"):
        expected = measure_rows(trajectory, parameter, epoch)
        found = of_epoch.drop(columns="epoch").reset_index(drop=True)
        pd.testing.assert_frame_equal(found, expected, check_exact=True, check_dtype=True, check_categorical=False)
        assert list(found["stratum"].astype(str)) == list(expected["stratum"].astype(str))
    assert parquet.ParquetFile(path).metadata.num_row_groups == 4 * -(-len(expected) // block_rows)
    assert [p.name for p in path.parent.iterdir()] == ["rows.parquet"]


def test_a_choice_of_epochs_walks_through_the_others(make_trajectory, tmp_path):
    trajectory = make_trajectory()
    written = pd.read_parquet(
        write_rows(trajectory, "word_embeddings", tmp_path / "rows.parquet", epochs=[3, 1.5], measures=["l1"])
    )
    assert list(written["epoch"].unique()) == [1.5, 3]
    expected = [measure_rows(trajectory, "word_embeddings", epoch, ["l1"]) for epoch in (1.5, 3)]
    assert list(written.columns) == ["epoch", *expected[0].columns]
    for name in ("l1", "path_efficiency"):
        assert np.array_equal(written[name], pd.concat(expected)[name], equal_nan=True)


def test_a_run_that_diverged_leaves_no_file(make_trajectory, tmp_path):
    trajectory = make_trajectory()
    trajectory.at(3).tensors["word_embeddings"][11, 0] = np.nan
    path, each_once = tmp_path / "rows.parquet", "rows are written for epochs after 0, each once"
    write = partial(write_rows, trajectory, "word_embeddings", path)
    check_refusals(
        ("word_embeddings holds NaN or infinity at epoch 3", lambda: write(block_rows=4)),
        (r"no snapshot of epoch 9; at hand: 0, 1, 1\.5, 2, 3", lambda: write(epochs=[9])),
        (each_once, lambda: write(epochs=[0, 1])),
        (each_once, lambda: write(epochs=[1, 1])),
        (each_once, lambda: write(epochs=[])),
        ("did you mean 'word_embeddings'", lambda: write_rows(trajectory, "word_embedings", path)),
        (
            r"written as Parquet: name it rows\.parquet, not rows\.csv",
            lambda: write_rows(trajectory, "word_embeddings", path.with_suffix(".csv")),
        ),
    )
    assert not list(tmp_path.iterdir())


def test_no_more_rows_are_measured_at_a_time_than_are_written(make_trajectory, tmp_path, monkeypatch):
    passes = []

    class Recorded(RowPass):
        def __init__(self, measures, num_rows):
            passes.append(num_rows)
            super().__init__(measures, num_rows)

    monkeypatch.setattr(drift, "RowPass", Recorded)
    path = write_rows(make_trajectory(), "word_embeddings", tmp_path / "rows.parquet", block_rows=5)
    assert passes == 4 * [5, 5, 2]
    groups = parquet.ParquetFile(path).metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == passes


@pytest.mark.parametrize(
    ("script", "flags", "said"),
    [
        ("rows.py", "--rows 300 --hidden 16 --repeats 2", "times the peer"),
        ("memory.py", "--rows 300 --hidden 16 --snapshots 3", "below 3"),
    ],
)
def test_the_benchmarks_run(tmp_path, script, flags, said):
    if script == "memory.py" and not (Path("/proc/self/clear_refs").exists() and "changes" in QUESTIONS):
        return  # it measures what only Linux tells, inferred exposure among it
    command = [sys.executable, BENCHMARKS / script, *flags.split()] + (
        ["--folder", tmp_path] if script == "memory.py" else []
    )
    environment = {"PYTHONPATH": str(BENCHMARKS.parents[1]), "PATH": "", "OPENBLAS_NUM_THREADS": "1"}
    answer = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, env=environment)
    assert (said in answer.stdout, "numpy" in answer.stdout) == (True, True)
    assert not list(tmp_path.iterdir()), "something was left behind"
