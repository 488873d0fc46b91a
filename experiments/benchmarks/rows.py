"""Question: how much longer do all measures of every row take than reading the two tables in float64?

A pair of fp32 snapshots of a word table (30,522 x 768 unless told) goes through `measure_rows`: every entry of MEASURES
and path efficiency, as a DataFrame. The peer is one pass over the same arrays in memory that only converts blocks of
as many rows of both to float64. The two take turns, after one untimed turn each; medians are printed, with the
ratio. One thread each.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 taskset -c 0 python experiments/benchmarks/rows.py
"""

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro

from toolkit.analysis import blocks
from toolkit.analysis.drift import measure_rows
from toolkit.snapshots.snapshot import Snapshot, Trajectory

PARAMETER = "word_embeddings"


def make_pair(num_rows: int, hidden: int) -> Trajectory:
    """Two snapshots of a table whose rows all moved by about 2.5 %."""
    rng = np.random.default_rng(0)
    before = 0.04 * rng.standard_normal((num_rows, hidden), dtype=np.float32)
    after = before + 0.001 * rng.standard_normal((num_rows, hidden), dtype=np.float32)
    return Trajectory([Snapshot(epoch, epoch, {PARAMETER: table}) for epoch, table in enumerate((before, after))])


def convert(pair: Trajectory) -> None:
    """The peer: every value of both tables to float64, a block at a time, and nothing else."""
    before, after = (snapshot.tensors[PARAMETER] for snapshot in pair)
    for start in range(0, len(before), blocks.BLOCK_ROWS):
        rows = slice(start, start + blocks.BLOCK_ROWS)
        np.asarray(before[rows], dtype=np.float64)
        np.asarray(after[rows], dtype=np.float64)


def take_turns(functions: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of each call of each function, in turns, so that a slow moment of the machine hits all of them; and what
    each returned last. Each is called once before, untimed."""
    results = {name: function() for name, function in functions.items()}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            results[name] = function()
            seconds[name].append(time.perf_counter() - start)
    return seconds, results


def cpu_name() -> str:
    """The CPU as its vendor calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main(*, rows: int = 30_522, hidden: int = 768, repeats: int = 5) -> None:
    """Parse the flags, take turns, print one table."""
    pair = make_pair(rows, hidden)
    seconds, _ = take_turns(
        {
            "conversion to float64 (peer)": lambda: convert(pair),
            "measure_rows": lambda: measure_rows(pair, PARAMETER, 1),
        },
        repeats,
    )
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    peer = next(iter(medians.values()))
    print(f"{cpu_name()}; Python {platform.python_version()}, numpy {np.__version__}, pandas {pd.__version__}")
    print(f"{rows:,} x {hidden} fp32, blocks of {blocks.BLOCK_ROWS} rows, median of {repeats}\n")
    print(f"{'':30}{'ms':>10}{'times the peer':>16}{'fastest ms':>12}{'slowest ms':>12}")
    for name, values in seconds.items():
        cells = f"{1e3 * medians[name]:10.1f}{medians[name] / peer:16.1f}"
        print(f"{name:30}{cells}{1e3 * min(values):12.1f}{1e3 * max(values):12.1f}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
