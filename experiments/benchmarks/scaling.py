"""Question: how do time and memory of the analyses grow with the rows of a word table?

Runs of three snapshots with tables of 4,000 to 250,002 rows (memory.py makes them) go through each analysis, each time
in a new process that has done it once for 1,000 rows; seconds, and the memory of the process's own at its peak
(RssAnon) above what it held before, are written to scaling.csv and drawn in scaling.png beside this file. The exponent
of each line is the slope of its logarithm over the rows from 16,000 on. Exact neighbours compare every row with every
other and stop at 64,000 rows. Linux only.

    python experiments/benchmarks/scaling.py [--hidden 384] [--folder FOLDER]
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from memory import PARAMETER, Peak, _read_status, accumulate_moments, make_run

from toolkit.analysis.drift import measure_drift, measure_rows, write_rows
from toolkit.analysis.neighbours import measure_neighbours
from toolkit.reporting.chart_files import image_of
from toolkit.reporting.charts import colour, data_of, shape
from toolkit.snapshots.store import open_run

ROWS = (4_000, 16_000, 64_000, 250_002)
NUM_SNAPSHOTS = 3
FITTED_FROM = 16_000
QUADRATIC, MOST_QUADRATIC = "nearest neighbours, exact", 64_000
MIB = 2**20
POWERS = [10.0**k for k in range(-3, 6)]
LEAST_MIB = 5.0
"""Peaks below this are the noise of Python's own memory, and not drawn."""


def analyses(run: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """What is measured of one run."""
    return {
        "drift of the table": lambda: measure_drift(run),
        "all measures of every row, one epoch": lambda: measure_rows(run, PARAMETER, NUM_SNAPSHOTS - 1),
        "the same, all epochs, to a file": lambda: write_rows(run, PARAMETER, folder / "rows.parquet"),
        "ΣΔΔᵀ (spectra, geometry)": lambda: accumulate_moments(open_run(run).trajectory),
        QUADRATIC: lambda: measure_neighbours(run),
    }


def measure_one(name: str, run: Path, small: Path, folder: Path) -> tuple[float, float]:
    """Seconds and MiB of one analysis of ``run``."""
    analyses(small, folder)[name]()  # imports, and what is allocated once
    held, started = _read_status("RssAnon"), time.perf_counter()
    with Peak() as peak:
        analyses(run, folder)[name]()
    return time.perf_counter() - started, (peak.anonymous - held) / MIB


def measure(hidden: int, folder: Path) -> pd.DataFrame:
    """One line per analysis and number of rows: seconds and MiB."""
    lines = []
    with (
        tempfile.TemporaryDirectory(dir=folder) as own,
        ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        small, run = Path(own) / "small", Path(own) / "run"
        make_run(small, 1_000, hidden, NUM_SNAPSHOTS)
        for num_rows in ROWS:
            make_run(run, num_rows, hidden, NUM_SNAPSHOTS)
            for name in analyses(run, Path(own)):
                if name == QUADRATIC and num_rows > MOST_QUADRATIC:
                    continue
                seconds, mib = pool.submit(measure_one, name, run, small, Path(own)).result()
                lines.append((name, num_rows, seconds, mib))
                print(f"{name:40}{num_rows:10,}{seconds:10.2f} s{mib:10.0f} MiB", flush=True)
            shutil.rmtree(run)
    return pd.DataFrame(lines, columns=["analysis", "rows", "seconds", "mib"])


def exponent(points: pd.DataFrame, column: str) -> float:
    """Slope of log ``column`` over log rows by least squares; NaN where there is nothing to fit."""
    used = points[(points.rows >= FITTED_FROM) & (points[column] > (LEAST_MIB if column == "mib" else 0))]
    return float(np.polyfit(np.log(used.rows), np.log(used[column]), 1)[0]) if len(used) > 1 else float("nan")


def plot_scaling(table: pd.DataFrame, title: str) -> Any:
    """An Altair chart of two panels, time and memory over rows, each line with its exponent in the legend."""
    import altair

    panels = []
    labels = {"seconds": "seconds", "mib": f"peak memory (MiB; below {LEAST_MIB:g}: not shown)"}
    for column, label in labels.items():
        names = {}
        for name, points in table.groupby("analysis", sort=False):
            slope = exponent(points, column)
            names[name] = f"{name}: " + (f"rows^{slope:.2f}" if slope == slope else f"≤ {points[column].max():.0f} MiB")
        own = table[table[column] > (LEAST_MIB if column == "mib" else 0)]
        series = list(names.values())
        log = altair.Scale(type="log", nice=False, padding=8)
        base = altair.Chart(data_of(own.assign(line=own["analysis"].map(names)), ["line", "rows", column])).encode(
            altair.X("rows:Q", scale=log, axis=altair.Axis(values=list(ROWS), format=",", labelFlush=False)),
            altair.Y(f"{column}:Q", title=label, scale=altair.Scale(type="log"), axis=altair.Axis(values=POWERS)),
            colour("line", series, columns=1),
            tooltip=["line:N", altair.Tooltip("rows:Q", format=","), f"{column}:Q"],
        )
        dots = base.mark_point(filled=True, opacity=1).encode(shape=shape("line", series, columns=1))
        panels.append(altair.layer(base.mark_line(), dots).properties(width=265, height=240))
    both = altair.hconcat(*panels, spacing=40).resolve_scale(color="independent", shape="independent")
    return both.properties(title=altair.Title(title, fontWeight="normal"))


def title_of(hidden: int) -> str:
    """What was measured, and from where on the exponents are fitted."""
    return f"{NUM_SNAPSHOTS} snapshots of rows x {hidden} in fp32; exponents fitted from {FITTED_FROM:,} rows up"


def main() -> None:
    """Measure, write the table, draw it, print the exponents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where scaling.csv and .png go")
    flags = parser.parse_args()
    table = measure(flags.hidden, flags.folder)
    table.round(3).to_csv(flags.out / "scaling.csv", index=False)
    (flags.out / "scaling.png").write_bytes(image_of(plot_scaling(table, title_of(flags.hidden)), "png"))
    for name, points in table.groupby("analysis", sort=False):
        print(f"{name:40} seconds ~ rows^{exponent(points, 'seconds'):.2f}, MiB ~ rows^{exponent(points, 'mib'):.2f}")


if __name__ == "__main__":
    main()
