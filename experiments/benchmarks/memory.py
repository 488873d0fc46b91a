"""Question: how much memory of its own does the analysis of a long run of a large vocabulary need?

Ten snapshots of a 250,002 x 1,024 fp32 word table (XLM-RoBERTa-large's shape, 1 GB each, every row moving between any
two) are written by blocks into a temporary folder below --folder, which is removed at the end, with a vocabulary and an
exposure. Then each analysis runs on the run directory, and `infer_exposure` on two checkpoints with a table of that
shape, a tenth of whose rows were trained and the others decayed. Measured is RssAnon of /proc/self/status, sampled
every 5 ms: memory that only this process can give back. The pages of mapped snapshot files are the system's cache and
do not count; VmHWM, the highest total with those pages, stands beside it. Linux only.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 taskset -c 0 python experiments/benchmarks/memory.py --folder /tmp
"""

import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import tyro
from pyarrow import parquet
from rows import cpu_name
from safetensors.numpy import save_file

from toolkit.analysis.blocks import Scratch, iterate_blocks
from toolkit.analysis.drift import measure_drift, measure_rows, write_rows
from toolkit.questions.changes.exposure import InferredExposure, infer_exposure
from toolkit.snapshots.logs import Exposure, StepRows, TableExposure
from toolkit.snapshots.run_writer import start_run
from toolkit.snapshots.snapshot import Trajectory, Vocabulary
from toolkit.snapshots.store import open_run

PARAMETER = "word_embeddings"
STEPS_PER_EPOCH = 100
GIB = 2**30


class Peak:
    """The highest RssAnon and VmHWM, in bytes, while the ``with`` block runs."""

    def __enter__(self) -> "Peak":
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew from what is resident now
        self.anonymous, self._is_over = _read_status("RssAnon"), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.total = _read_status("VmHWM")

    def _sample(self) -> None:
        while not self._is_over.wait(0.005):
            self.anonymous = max(self.anonymous, _read_status("RssAnon"))


def _read_status(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(f"{name}:"))


def make_run(path: Path, num_rows: int, hidden: int, num_snapshots: int) -> None:
    """A finished run directory of one table, as far as analysis reads it."""
    writer, rng = start_run(path), np.random.default_rng(0)
    place = path.with_name("table.bin")
    table = np.memmap(place, np.float32, "w+", shape=(num_rows, hidden))  # whole on disk, and not in memory
    for epoch in range(num_snapshots):
        for start in range(0, num_rows, 4096):
            block = table[start : start + 4096]
            block += (0.001 if epoch else 0.04) * rng.standard_normal(block.shape, dtype=np.float32)
        writer.write_snapshot(epoch, STEPS_PER_EPOCH * epoch, {PARAMETER: table})
    del table
    place.unlink()
    writer.write_vocabulary(Vocabulary(tuple(f"token{row}" for row in range(num_rows)), frozenset({0, 1}), 0))
    per_step = min(1000, num_rows)
    seen = [
        np.unique((num_rows * rng.random(per_step) ** 3).astype(np.int32))
        for _ in range(STEPS_PER_EPOCH * (num_snapshots - 1))
    ]
    steps = [StepRows(rows, np.ones(len(rows), np.int32), np.ones(len(rows), np.float32)) for rows in seen]
    writer.write_exposure(Exposure({PARAMETER: TableExposure.from_steps(steps)}))
    writer.finish({})


def make_checkpoints(folder: Path, num_rows: int, hidden: int) -> tuple[Path, Path]:
    """Embeddings before and after: a tenth of the words moved by 1 %, the others were decayed by 1e-4."""
    rng, factor, paths = np.random.default_rng(0), np.float32(1 - 1e-4), (folder / "before", folder / "after")
    words = 0.04 * rng.standard_normal((num_rows, hidden), dtype=np.float32)
    others = {"position_embeddings": (512, hidden), "token_type_embeddings": (2, hidden), "LayerNorm": (hidden,)}
    tensors = {f"embeddings.{name}.weight": np.full(shape, 0.1, np.float32) for name, shape in others.items()}
    tensors["embeddings.LayerNorm.bias"] = np.zeros(hidden, np.float32)
    for path in paths:
        save_file(tensors | {f"embeddings.{PARAMETER}.weight": words}, path.with_suffix(".safetensors"))
        words *= factor
        words[::10] += 0.0004 * rng.standard_normal(words[::10].shape, dtype=np.float32)
    return paths[0].with_suffix(".safetensors"), paths[1].with_suffix(".safetensors")


def accumulate_moments(trajectory: Trajectory) -> np.ndarray:
    """(hidden, hidden) ΣΔΔᵀ of the last snapshot, by blocks: what spectra and geometry add up."""
    scratch, hidden = Scratch(), trajectory.at(0).tensors[PARAMETER].shape[1]
    total = np.zeros((hidden, hidden))
    pair = [trajectory.snapshots[0], trajectory.snapshots[-1]]
    for _, (before, after) in iterate_blocks(pair, PARAMETER, 1024, scratch=scratch):
        delta = np.subtract(after, before, out=before)
        total += delta.T @ delta
    return total


def run_stages(folder: Path, num_rows: int, hidden: int, num_snapshots: int) -> int:
    """Make the run, run every analysis on it, print a line for each; the highest RssAnon of the analyses in bytes."""
    path, last = folder / "run", num_snapshots - 1
    checkpoints: list[Path] = []
    inferred: list[InferredExposure] = []
    stages: dict[str, Callable[[], object]] = {
        "make the snapshots (not analysis)": lambda: make_run(path, num_rows, hidden, num_snapshots),
        "measure_drift": lambda: measure_drift(path),
        "measure_rows, last epoch": lambda: measure_rows(path, PARAMETER, last),
        "write_rows, all epochs": lambda: write_rows(path, PARAMETER, folder / "rows.parquet"),
        "ΣΔΔᵀ of the last epoch": lambda: accumulate_moments(open_run(path).trajectory),
        "make the checkpoints (not analysis)": lambda: checkpoints.extend(make_checkpoints(folder, num_rows, hidden)),
        "infer_exposure": lambda: inferred.append(infer_exposure(*checkpoints)),
    }
    print(f"{'':36}{'seconds':>9}{'RssAnon GiB':>13}{'VmHWM GiB':>11}")
    highest = 0
    for name, stage in stages.items():
        start = time.perf_counter()
        with Peak() as peak:
            stage()
        seconds = time.perf_counter() - start
        print(f"{name:36}{seconds:9.1f}{peak.anonymous / GIB:13.2f}{peak.total / GIB:11.2f}", flush=True)
        highest = max(highest, 0 if name.startswith("make") else peak.anonymous)
    print("", inferred[0], sep="\n")
    num_lines, size = parquet.read_metadata(folder / "rows.parquet").num_rows, (folder / "rows.parquet").stat().st_size
    print(f"\nrows.parquet: {num_lines:,} lines, {size / GIB:.2f} GiB")
    return highest


def main(
    *,
    folder: Path | None = None,
    rows: int = 250_002,
    hidden: int = 1024,
    snapshots: int = 10,
    limit_gib: float = 3.0,
) -> int:
    """Parse the flags, check the disk, measure, print one table; 1 when the limit was passed.

    Args:
        folder: where there is room; the one for temporary files by default
        rows: of the table
        hidden: of the table
        snapshots: of the run
        limit_gib: of RssAnon
    """
    place = folder or Path(tempfile.gettempdir())
    needed = (snapshots + 1) * rows * (4 * hidden + 120) + GIB // 16
    if (free := shutil.disk_usage(place).free) < needed:
        sys.exit(f"{place} has {free / GIB:.1f} GiB free, {needed / GIB:.1f} are needed: pass another --folder")
    versions = f"numpy {np.__version__}, pandas {pd.__version__}, pyarrow {pa.__version__}"
    print(f"{cpu_name()}; Python {platform.python_version()}, {versions}")
    print(f"{snapshots} snapshots of {rows:,} x {hidden} fp32\n")
    with tempfile.TemporaryDirectory(dir=place) as made:
        highest = run_stages(Path(made), rows, hidden, snapshots)
    is_held = highest < limit_gib * GIB
    print(f"highest RssAnon of an analysis {highest / GIB:.2f} GiB, {'below' if is_held else 'ABOVE'} {limit_gib:g}")
    return 0 if is_held else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
