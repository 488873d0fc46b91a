"""Two processes of one gloo group, forked from a server that has imported torch and transformers once.

Not from this process: threads that a test had OpenMP start are not in a fork, which waits for them. `test_processes.py`
launches a command under torchrun itself.
"""

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes


def in_two_processes(work: Callable[..., None], meeting: Path, *values: Any) -> None:
    """Call ``work(*values)`` in both, which find one another by the file ``meeting``; an error of one is raised."""
    multiprocessing.set_forkserver_preload(["torch.distributed", "transformers.models.bert.modeling_bert"])
    start_processes(_joined, (meeting, work, values), nprocs=2, start_method="forkserver")


def _joined(rank: int, meeting: Path, work: Callable[..., None], values: tuple[Any, ...]) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(minutes=2)
    )
    work(*values)
    torch.distributed.destroy_process_group()
