"""One process and several see the same rows at every step and reach the same scores; what one's end does to others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from toolkit import Run, finetune, measure_drift, open_run
from toolkit.config import RunConfig
from toolkit.snapshots.unfinished import find_state, try_lock
from toolkit.training.resume import Resumer

ROOT = Path(__file__).parents[2]


def start(words: Sequence[str], num_processes: int, **more: str) -> "subprocess.Popen[str]":
    """A script and its words under torchrun, in processes of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_processes}"]
    return subprocess.Popen(
        [*command, *words],
        cwd=ROOT,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more},
    )


def launch(words: Sequence[str], num_processes: int) -> tuple[int, str]:
    """:func:`start`, until it has ended: the exit code, and what was said."""
    process = start(words, num_processes)
    try:
        said = process.communicate(timeout=180)[1]
    finally:
        process.kill()
    return process.returncode, said


def words_of(config: RunConfig) -> list[str]:
    """What stands behind ``python`` to start a run."""
    return ["finetune.py", *config.to_command().split()[3:], "--output-dir", config.output_dir]


def launched(config: RunConfig) -> Run:
    code, said = launch(words_of(config), 2)
    assert code == 0, said[-3000:]
    return only_run(Path(config.output_dir))


def only_run(folder: Path) -> Run:
    (path,) = (path for path in folder.iterdir() if path.is_dir())
    return open_run(path)


@pytest.mark.slow
def test_a_run_that_is_being_written_stops_all_processes(tiny_config: RunConfig, tmp_path: Path) -> None:
    """The main process alone asks for the lock; the others hear of it instead of waiting."""
    config = replace(tiny_config, output_dir=str(tmp_path), max_steps=1)
    path = finetune(config).path
    (path / "manifest.json").rename(path / "unfinished.json")
    with (tmp_path / f".{path.name}.lock").open("wb") as file:
        assert try_lock(file)
        code, said = launch(words_of(config), 2)
    assert code != 0
    assert said.count(f"error: another process is writing {path}: wait until") == 1
    assert (path / "scores.csv").exists()


STOPPED = {"head_training": "early-stopping", "max_steps": None}
PROCESSES: list[tuple[dict[str, Any], int, int]] = [
    ({"freeze": "none"}, 2, 2),
    ({"freeze": "embeddings"}, 2, 1),
    ({"freeze": "none", "batch_size": 9}, 3, 1),
    ({"freeze": "backbone"}, 2, 1),
    ({"freeze": "none", "train_rows": "new", "add_tokens": "new.txt", "weight_decay": 0.1}, 2, 1),
    ({"freeze": "none", "lora": ("dense", "word_embeddings"), "learning_rate": 1e-3}, 2, 2),
    ({"freeze": "none", "lora": ("dense",), "train_rows": "new", "add_tokens": "new.txt"}, 2, 1),
    ({"freeze": "none", "features": "layers.1", "pair_encoding": "separate"}, 2, 2),  # no gradient above block 1
    ({"freeze": "none", "positions": "shuffled", "reinject_positions": True}, 2, 1),
    ({"freeze": "none", "objective": "mlm", "init": "random"}, 2, 2),
    ({"freeze": "backbone", "features": "mix", "head": "mlp", "dropout": 0.2, **STOPPED}, 2, 1),
]


SEVERAL = """
import sys
from pathlib import Path
from toolkit import RunConfig, finetune

for path in sys.argv[1:]:
    finetune(RunConfig.from_json(Path(path).read_text(encoding="utf-8")))
"""


@pytest.fixture(scope="module")
def made(tiny_pairs: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Run, Run]]:
    """Place in PROCESSES to its run of one process and its run of several, which are launched once for all."""
    folder, configs = tmp_path_factory.mktemp("processes"), dict[int, RunConfig]()
    (folder / "new.txt").write_text("fil\nbori\n")  # parts of words, which texts then hold
    for i, (changes, _, parts) in enumerate(PROCESSES):
        # 60 examples: the last batch of an epoch is incomplete and its parts are of unequal size.
        own = {"dropout": 0.0, "max_steps": 7, **changes, "gradient_accumulation_steps": parts}
        if "add_tokens" in own:
            own["add_tokens"] = str(folder / "new.txt")
        configs[i] = replace(tiny_pairs, max_train_examples=60, **own)
    script = folder / "several.py"
    script.write_text(SEVERAL, encoding="utf-8")
    for number in {number for _, number, _ in PROCESSES}:
        asked = [i for i, (_, own_number, _) in enumerate(PROCESSES) if own_number == number]
        for i in asked:
            config = replace(configs[i], output_dir=str(folder / f"several {i}"))
            (folder / f"{i}.json").write_text(config.to_json(), encoding="utf-8")
        code, said = launch([str(script), *(str(folder / f"{i}.json") for i in asked)], number)
        assert code == 0, said[-3000:]
    return {
        i: (finetune(replace(config, output_dir=str(folder / f"one {i}"))), only_run(folder / f"several {i}"))
        for i, config in configs.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(PROCESSES)), ids=lambda case: ", ".join(PROCESSES[case][0]))
def test_several_processes_do_what_one_does(made: dict[int, tuple[Run, Run]], case: int) -> None:
    (one, several), num_processes = made[case], PROCESSES[case][1]
    assert (one.manifest["num_processes"], several.manifest["num_processes"]) == (1, num_processes)
    assert one.path.name == several.path.name
    first, second = one.trajectory.exposure, several.trajectory.exposure
    for name, table in first.tables.items():
        other = second.tables[name]
        for part in ("offsets", "rows", "counts"):
            np.testing.assert_array_equal(getattr(table, part), getattr(other, part))
        np.testing.assert_allclose(table.norms, other.norms, rtol=2e-2, atol=1e-6, equal_nan=True)
    columns = ["loss", "accuracy"]
    np.testing.assert_allclose(one.scores[columns], several.scores[columns], atol=1e-3)
    outputs = [np.stack(run.predictions["scores"].to_list()) for run in (one, several)]
    np.testing.assert_allclose(*outputs, atol=1e-3)
    ours, theirs = (measure_drift(run, measures=("relative",))["value"].to_numpy() for run in (one, several))
    np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-7)


@pytest.mark.parametrize(
    ("error", "num_processes", "is_kept"),
    [
        (torch.distributed.DistBackendError("timed out"), 2, False),
        (RuntimeError("gloo: connection closed by peer"), 2, False),
        (RuntimeError("gloo: connection closed by peer"), 1, True),
        (RuntimeError("shapes do not match"), 2, True),
    ],
)
def test_a_process_that_others_have_lost_is_not_ended_before_it_has_said_so(
    error: RuntimeError, num_processes: int, is_kept: bool
) -> None:
    """The launcher asks the others to end as soon as it sees that one has."""
    mine = signal.getsignal(signal.SIGTERM)
    accelerator = SimpleNamespace(num_processes=num_processes)
    try:
        with pytest.raises(RuntimeError), Resumer(accelerator, cast(Any, None), None, None, {}).listening():
            raise error
        assert signal.getsignal(signal.SIGTERM) == (mine if is_kept else signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGTERM, mine)


def wait_for_a_state(process: "subprocess.Popen[str]", folder: Path, step: int) -> None:
    while not any(
        state.step >= step for path in folder.glob("*/unfinished.json") if (state := find_state(path.parent)[0])
    ):
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.02)


def ranks_of(process: "subprocess.Popen[str]") -> dict[int, int]:
    """Rank to process id of what a launcher has started."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout
    environments = {int(pid): Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in found.split()}
    return {
        int(entry[5:]): pid for pid, entries in environments.items() for entry in entries if entry.startswith(b"RANK=")
    }


ENDS = {
    "the first is killed": (0, signal.SIGKILL, (0, 1)),
    "another is killed": (1, signal.SIGKILL, (1,)),
    "another is stopped": (1, signal.SIGSTOP, (1,)),
    "the launcher is asked to end": (None, signal.SIGTERM, (0,)),
}
"""Which process a signal ends, and how many lines of ours may be said of it. The first process says them; without it
the second does, where the launcher has not ended it within the seconds that it waits for the first."""


@pytest.fixture(scope="module")
def long_run(tiny_config: RunConfig) -> RunConfig:
    """Two processes are at it for a few seconds."""
    return replace(tiny_config, epochs=10, max_steps=None, dropout=0.1, resume_steps=1, ddp_timeout=5)


@pytest.fixture(scope="module")
def left_alone(long_run: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launched(replace(long_run, output_dir=str(tmp_path_factory.mktemp("whole"))))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the ranks of processes from /proc")
@pytest.mark.parametrize("name", ENDS)
def test_a_process_that_is_lost_ends_the_others_and_the_run_goes_on(
    name: str, long_run: RunConfig, left_alone: Run, tmp_path: Path
) -> None:
    rank, number, nums_lines = ENDS[name]
    folder = tmp_path / "cut"
    config = replace(long_run, output_dir=str(folder))
    # A stopped process hears of no end: the launcher would wait for half a minute before it kills it.
    process = start(words_of(config), 2, TORCH_ELASTIC_SHUTDOWN_TIMEOUT="5" if number == signal.SIGSTOP else "30")
    try:
        wait_for_a_state(process, folder, 3)
        os.kill(process.pid if rank is None else ranks_of(process)[rank], number)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode != 0
    assert said.count("error: one of the 2 processes of this run has ended or does not answer") in nums_lines
    assert "finetune_main" not in said, "no traceback of ours"
    assert not list(folder.glob("*/manifest.json")), "it had finished before it was ended"
    again = launched(config)
    for file in (file for file in left_alone.manifest["files"] if file != "config.json"):
        assert (again.path / file).read_bytes() == (left_alone.path / file).read_bytes(), file
