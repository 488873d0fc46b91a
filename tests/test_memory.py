"""Freed memory stays: large tensors, made again and again, cost no page faults after the first."""

import platform
import subprocess
import sys

import pytest

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
