"""Snapshots in, what their position table is like out: every statistic beside the same of four reference tables.

The references have the table's own window and hidden size: the sinusoid, iid Gaussian rows, smooth random curves, and
the table itself with its rows shuffled. Rows before the first position (RoBERTa's padding rows) are left out.
"""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pandas as pd

from toolkit.analysis.positions.position_controls import smooth_curves
from toolkit.analysis.positions.position_statistics import STATISTICS, VERDICTS, PositionStatistic
from toolkit.analysis.positions.resemblance import NUM_DRAWS
from toolkit.analysis.rows.blocks import iterate_blocks
from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused
from toolkit.schema import columns_of, with_columns
from toolkit.sinusoid import sinusoidal_table
from toolkit.snapshots.snapshot import Snapshot
from toolkit.snapshots.store import Source, trajectory_of

PARAMETER = "position_embeddings"
Window = tuple[int, int]

REFERENCES = ("sinusoid", "gaussian", "smooth", "shuffled")
"""Reference tables; ``smooth``: squared-exponential Gaussian processes of length 20 rows."""


@with_columns
def measure_positions(
    source: Source,
    epoch: float | None = None,
    window: Window | None = None,
    seed: int = 0,
    *,
    num_draws: int = NUM_DRAWS,
) -> pd.DataFrame:
    """One line per statistic of the positions ``window`` = (start, stop) at an epoch (default: all, at the last).

    ``value`` is the table's; the references are tables of the same window. Where a value is refused it is NaN and
    ``reason`` says why. The notes of ``line_match`` (does it carry the sinusoid's waves?) and ``orbit_share`` (is it
    made of waves at all?) are verdicts with their grounds, from ``num_draws`` tables of each control. ValueError when
    the model has no position table or no such window.
    """
    snapshot = snapshot_at(source, epoch)
    table = position_table(source, snapshot.epoch, window)
    start, stop = window or (0, len(table))
    shuffled = table[np.random.default_rng([*b"shuffle", seed]).permutation(len(table))]
    of_shape = _reference_values(*table.shape, seed)
    lines = []
    for name, statistic in STATISTICS.items():
        (value, reason), note = _value(statistic, table, seed), ""
        if name in VERDICTS:
            found = VERDICTS[name](table, num_draws=num_draws, seed=seed)
            note = f"{found.answer}: {found.reason}"
        others = [*(of_shape[kind][name] for kind in REFERENCES[:3]), _value(statistic, shuffled, seed)[0]]
        where = (float(snapshot.epoch), f"{start}-{stop - 1}")
        lines.append((*where, name, value, *others, statistic.unit, len(table), reason, note))
    return pd.DataFrame(lines, columns=columns_of("measure_positions"))


def measure_position_windows(
    source: Source, epoch: float | None = None, seed: int = 0, *, num_draws: int = NUM_DRAWS
) -> pd.DataFrame:
    """:func:`measure_positions` of all positions and of each of :func:`position_windows`, in one table."""
    windows = position_windows(len(position_table(source, epoch)))
    parts = [measure_positions(source, epoch, window, seed, num_draws=num_draws) for window in windows]
    return pd.concat(parts, ignore_index=True)


def position_windows(num_positions: int) -> list[Window]:
    """All positions; then 0-127, 128-255, 256-511 and so on, doubling, as far as the table goes (if there are two)."""
    edges = [0, *(128 * 2**k for k in range(32) if 128 * 2**k < num_positions), num_positions]
    parts = [(low, high) for low, high in pairwise(edges) if high - low >= 3]
    return [(0, num_positions), *(parts if len(parts) > 1 else [])]


def position_table(source: Source, epoch: float | None = None, window: Window | None = None) -> Array:
    """(positions, hidden) float64 rows of the position table, from the first position on; ValueError without one."""
    trajectory, snapshot = trajectory_of(source), snapshot_at(source, epoch)
    if PARAMETER not in snapshot.tensors:
        raise ValueError(f"this model has no {PARAMETER}: its positions are no rows, and there is nothing to measure")
    blocks = [rows for _, (rows,) in iterate_blocks([snapshot], PARAMETER)]
    table = np.concatenate(blocks)[trajectory.position_offset :]
    start, stop = window or (0, len(table))
    if not 0 <= start < stop <= len(table):
        raise ValueError(f"window {start} to {stop} does not lie within the {len(table)} positions of this model")
    return table[start:stop]


def snapshot_at(source: Source, epoch: float | None = None) -> Snapshot:
    """The snapshot of an epoch, by default the last."""
    trajectory = trajectory_of(source)
    return trajectory.at_or_last(epoch)


def _value(statistic: PositionStatistic, table: Array, seed: int) -> tuple[float, str]:
    """A statistic's value and no reason, or NaN and why it was refused."""
    try:
        return statistic.function(table, seed), ""
    except Refused as refusal:
        return math.nan, str(refusal)


@lru_cache(maxsize=16)
def _reference_values(num_rows: int, hidden: int, seed: int) -> dict[str, dict[str, float]]:
    """Every statistic of the references that depend on shape and seed only."""
    rng = np.random.default_rng([*b"positions", seed])
    tables: dict[str, Array] = {} if hidden % 2 else {"sinusoid": sinusoidal_table(num_rows, hidden)}
    tables["gaussian"] = rng.normal(size=(num_rows, hidden))
    tables["smooth"] = smooth_curves(num_rows, hidden, rng, "squared_exponential", 20.0)
    return {
        kind: {
            name: _value(statistic, tables[kind], seed)[0] if kind in tables else math.nan
            for name, statistic in STATISTICS.items()
        }
        for kind in REFERENCES[:3]
    }
