"""How many threads a run takes: all cores alone, its share in a study."""

import os
from types import SimpleNamespace

import pytest
import torch

from toolkit.config import KEEP_THREADS
from toolkit.training.accelerators import use_all_cores


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
