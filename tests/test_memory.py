"""Freed memory stays: large tensors, made again and again, cost no page faults after the first; and cycles wait."""

import gc
import platform
import subprocess
import sys

import pytest

from toolkit.memory import as_command, collecting_nothing

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
