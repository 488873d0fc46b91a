"""Drift measured on memory-mapped run directories: what is shared, skipped and kept out of memory."""

import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd

from toolkit.analysis.drift import measure_drift
from toolkit.analysis.measures import MEASURES
from toolkit.snapshots.logs import Exposure
from toolkit.snapshots.run_writer import start_run
from toolkit.snapshots.snapshot import Trajectory
from toolkit.snapshots.store import Run


def _write(path, trajectory):
    writer = start_run(path)
    for s in trajectory:
        writer.write_snapshot(s.epoch, s.step, s.tensors, is_epoch_end=s.is_epoch_end)
    writer.write_vocabulary(trajectory.vocabulary)
    writer.write_exposure(trajectory.exposure or Exposure({}))
    return Run(path).trajectory


def test_a_tensor_kept_in_an_earlier_file_is_measured_once_with_the_same_result(make_trajectory, tmp_path):
    moving = make_trajectory()
    frozen = {"word_embeddings": moving.at(0).tensors["word_embeddings"]}
    in_memory = replace(
        moving, snapshots=[replace(s, tensors=s.tensors | (frozen if s.epoch < 3 else {})) for s in moving]
    )
    calls = []

    def norm(a, b):
        calls.append(len(a))
        return MEASURES["norm"].function(a, b)

    counted = dict(MEASURES) | {"norm": replace(MEASURES["norm"], function=norm)}
    from_files = measure_drift(_write(tmp_path / "run", in_memory), counted)
    pd.testing.assert_frame_equal(from_files, measure_drift(in_memory), check_exact=True)
    assert calls.count(12) == 2  # the word table: the file of epochs 0 to 2, and that of epoch 3


def test_equal_file_names_of_two_runs_are_two_files(make_trajectory, tmp_path):
    runs = [_write(tmp_path / str(seed), make_trajectory(seed)) for seed in (1, 2)]
    mixed = Trajectory([runs[0].at(0), replace(runs[1].at(0), epoch=1)])
    in_memory = Trajectory([make_trajectory(1).at(0), replace(make_trajectory(2).at(0), epoch=1)])
    pd.testing.assert_frame_equal(measure_drift(mixed), measure_drift(in_memory), check_exact=True)


def test_memory_stays_below_the_size_of_a_table(tmp_path):
    tables = [np.random.default_rng(i).normal(size=(40_000, 64)).astype(np.float32) for i in (0, 1)]
    writer = start_run(tmp_path / "run")
    for epoch, table in enumerate(tables):
        writer.write_snapshot(epoch, epoch, {"word_embeddings": table})
    trajectory = Run(tmp_path / "run").trajectory
    tracemalloc.start()
    measure_drift(trajectory)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000 * 64 * 8 / 2


def test_analysis_loads_none_of_the_training_stack():
    code = (
        "import sys, toolkit.analysis.drift, toolkit.analysis.adam; "
        "print(sorted({'torch', 'transformers', 'accelerate', 'datasets'} & sys.modules.keys()))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
