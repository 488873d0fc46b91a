"""How many threads a run takes: all cores alone, its share in a study; and what of a launch it refuses."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from tests.refusals import check_refused
from toolkit.config import KEEP_THREADS, RunConfig
from toolkit.pipeline import finetune
from toolkit.training.accelerators import (
    build_accelerator,
    peak_memory_bytes,
    resolve_precision,
    use_all_cores,
)


@pytest.mark.parametrize("is_in_study", [True, False])
def test_a_run_of_a_study_keeps_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch, is_in_study: bool) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if is_in_study:
        monkeypatch.setenv(KEEP_THREADS, "1")
    taken: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    use_all_cores(SimpleNamespace(num_processes=1, device=torch.device("cpu")))
    assert taken == ([] if is_in_study else [len(os.sched_getaffinity(0))])


@pytest.mark.parametrize("engine", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"])
def test_a_launch_that_shards_the_model_is_refused(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Where there is no GPU Accelerate takes DDP instead, and says nothing."""
    monkeypatch.setenv(f"ACCELERATE_USE_{engine}", "true")
    check_refused(r"finetune does not run under .*: each process trains a whole", build_accelerator, RunConfig())


def test_processes_that_accelerate_does_not_see_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where something has begun before for one of them: each would train alone and write where the others do."""
    build_accelerator(RunConfig())
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_refused("2 processes were launched, but Accelerate sees 1", build_accelerator, RunConfig())


def test_the_peak_of_memory_is_no_less_than_what_is_in_use() -> None:
    peak, in_use = peak_memory_bytes(SimpleNamespace(device=torch.device("cpu"))), psutil.Process().memory_info().rss
    assert in_use * 0.9 < peak < in_use * 100
    assert peak % 1024 == 0  # the system counts KiB


def test_a_tracker_that_is_not_installed_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    check_refused("pip install tensorboard", build_accelerator, RunConfig(log_with="tensorboard"))


def test_the_precision_of_a_launch_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.training.accelerators.has_bf16", lambda: False)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert (resolve_precision("auto"), resolve_precision("no")) == ("bf16", "no")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert resolve_precision("no") == "no"
    check_refused("asks for fp16, which is not supported: pass --precision bf16", resolve_precision, "auto")


def test_what_another_loop_left_open_does_not_end_a_batch_early(tiny_config: RunConfig, tmp_path: Path) -> None:
    """Accelerate keeps in one place for the process whether a data loader is at its end, where gradients are used."""
    config = replace(tiny_config, gradient_accumulation_steps=2, optimizer="sgd", learning_rate=0.1)
    expected = finetune(replace(config, output_dir=str(tmp_path / "alone")))
    batches = iter(Accelerator(cpu=not torch.accelerator.is_available()).prepare(DataLoader(torch.arange(2))))
    for _ in range(2):  # left within its last batch, as a Trainer that stops leaves it
        next(batches)
    found = finetune(replace(config, output_dir=str(tmp_path / "after")))
    for name, tensor in expected.trajectory.snapshots[-1].tensors.items():
        assert np.array_equal(tensor, found.trajectory.snapshots[-1].tensors[name])
