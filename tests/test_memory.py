"""Freed memory stays: large tensors, made again and again, cost no page faults after the first; and cycles wait."""

import gc
import platform
import resource
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from tests.refusals import leave
from toolkit.cli import main
from toolkit.memory import as_command, collecting_nothing, keep_freed_memory

FAULTS = """
import resource, sys, torch
from toolkit.memory import keep_freed_memory
is_kept = keep_freed_memory() if sys.argv[1] == "keep" else None
def make():
    [torch.ones(number) for number in (10_000_000, 300_000, 10_000_000)]
for _ in range(15):  # the first four or five rounds still find their places in the heap
    make()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    make()
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")
def test_memory_that_was_used_once_is_not_mapped_again() -> None:
    faults = {}
    for mode in ("keep", "plain"):
        done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
        is_kept, number = done.stdout.split()
        faults[mode] = int(number)
        assert is_kept == ("True" if mode == "keep" else "None")
    assert faults["keep"] < 100 < faults["plain"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")
def test_what_an_earlier_run_left_is_given_back_before_the_next() -> None:
    """Also where what is free lies below what is in use."""
    freed, _in_use = torch.ones(20_000_000), torch.ones(100)
    del freed
    held = psutil.Process().memory_info().rss
    keep_freed_memory()
    assert held - psutil.Process().memory_info().rss > 60_000_000


def test_nothing_is_collected_inside_and_all_is_as_it_was_after() -> None:
    with collecting_nothing():
        assert not gc.isenabled()
        with collecting_nothing():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_command_looks_through_nothing_that_was_there_and_leaves_what_others_froze(is_frozen: bool) -> None:
    was_frozen = gc.get_freeze_count() > 0
    (gc.freeze if is_frozen else gc.unfreeze)()
    before = gc.get_freeze_count()
    with as_command():
        with collecting_nothing():
            pass
        assert (gc.get_freeze_count() > before, gc.isenabled()) == (not is_frozen, True)
    assert (gc.get_freeze_count() > 0) == is_frozen
    (gc.freeze if was_frozen else gc.unfreeze)()


def compared(folder: str, room: int) -> object:
    """The exit code of a comparison of large tables, in a process that may grow by so many bytes since one of small."""
    small, large = (["drift", *(f"{folder}/{size}{i}.safetensors" for i in range(2))] for size in ("small", "large"))
    assert leave(main, small) == 0
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + room,) * 2)
    return leave(main, large)


@pytest.mark.slow
@pytest.mark.skipif(platform.system() != "Linux", reason="elsewhere what is mapped of a file counts too, or nothing")
def test_two_tables_are_compared_where_there_is_no_room_for_one(tmp_path: Path) -> None:
    for size, rows in (("small", 3000), ("large", 60_000)):
        table = torch.randn(rows, 256)
        for i in range(2):
            table[::7] *= 1 + i / 4
            save_file({"embeddings.word_embeddings.weight": table.bfloat16()}, tmp_path / f"{size}{i}.safetensors")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(compared, str(tmp_path), table.nbytes).result() == 0
