"""One process and two see the same rows at every step and reach the same scores."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolkit import Run, finetune, open_run
from toolkit.config import RunConfig
from toolkit.snapshots.store import try_lock

ROOT = Path(__file__).parents[2]


def launch(config: RunConfig, num_processes: int) -> "subprocess.CompletedProcess[str]":
    """Run a config under torchrun in processes of their own."""
    words = [*config.to_command().split()[3:], "--output-dir", config.output_dir]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "finetune.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=180,
    )


def launched(config: RunConfig, num_processes: int) -> Run:
    done = launch(config, num_processes)
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = Path(config.output_dir).iterdir()
    return open_run(path)


def test_a_run_that_is_being_written_stops_all_processes(tiny_config: RunConfig, tmp_path: Path) -> None:
    """The main process alone asks for the lock; the others hear of it instead of waiting."""
    config = replace(tiny_config, output_dir=str(tmp_path), max_steps=1)
    path = finetune(config).path
    (path / "manifest.json").rename(path / "unfinished.json")
    with (tmp_path / f".{path.name}.lock").open("wb") as file:
        assert try_lock(file)
        done = launch(config, 2)
    assert done.returncode != 0
    assert done.stderr.count(f"error: another process is writing {path}: wait until") == 1
    assert (path / "scores.csv").exists()


STOPPED = {"head_training": "early-stopping", "max_steps": None}
PROCESSES: list[tuple[dict[str, Any], int]] = [
    ({"freeze": "none"}, 2),
    ({"freeze": "embeddings"}, 1),
    ({"freeze": "backbone"}, 1),
    ({"freeze": "none", "features": "layers.1", "pair_encoding": "separate"}, 2),  # no gradient above block 1
    ({"freeze": "backbone", "features": "mix", "head": "mlp", "dropout": 0.2, **STOPPED}, 1),
]
# Each launches two processes, a quarter of a minute: the first is enough to see that it works at all.
PROCESSES_SLOW = [PROCESSES[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in PROCESSES[1:])]


@pytest.mark.parametrize(("changes", "parts"), PROCESSES_SLOW)
def test_two_processes_do_what_one_does(
    tiny_pairs: RunConfig, tmp_path: Path, changes: dict[str, Any], parts: int
) -> None:
    # 60 examples: the last batch of an epoch is incomplete and its parts are of unequal size.
    config = replace(tiny_pairs, max_train_examples=60, **{"dropout": 0.0, "max_steps": 7, **changes})
    config = replace(config, gradient_accumulation_steps=parts)
    one = finetune(replace(config, output_dir=str(tmp_path / "one")))
    two = launched(replace(config, output_dir=str(tmp_path / "two")), 2)
    assert (one.manifest["num_processes"], two.manifest["num_processes"]) == (1, 2)
    assert one.path.name == two.path.name
    first, second = one.trajectory.exposure, two.trajectory.exposure
    assert first is not None
    assert second is not None
    for name, table in first.tables.items():
        other = second.tables[name]
        for part in ("offsets", "rows", "counts"):
            np.testing.assert_array_equal(getattr(table, part), getattr(other, part))
        np.testing.assert_allclose(table.norms, other.norms, rtol=2e-2, atol=1e-6, equal_nan=True)
    columns = ["loss", "accuracy"]
    np.testing.assert_allclose(one.scores[columns], two.scores[columns], atol=1e-3)
    outputs = [np.stack(run.predictions["scores"].to_list()) for run in (one, two)]
    np.testing.assert_allclose(*outputs, atol=1e-3)
