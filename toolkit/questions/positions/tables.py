"""Everything that the page on the positions of one snapshot says and draws, as tables and arrays."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from toolkit.analysis.kernels import Refused
from toolkit.analysis.measures import Array
from toolkit.progress import counted, shows_progress
from toolkit.questions.positions import resemblance
from toolkit.questions.positions.measure import (
    VERDICTS,
    cosine_by_lag,
    measure_position_windows,
    measure_positions,
    num_described,
    num_exposed,
    position_table,
)
from toolkit.questions.positions.resemblance import MIN_ROWS, Verdict, find_waves, line_match, smooth_curves
from toolkit.schema import columns_of
from toolkit.sinusoid import sinusoidal_table
from toolkit.snapshots.snapshot import Snapshot
from toolkit.snapshots.store import Source, trajectory_of

LEARNED = "learned"
LEAST_ROUNDNESS = 0.5
"""Roundness from which a course in a plane is called a wave: an ellipse of axes 1 and .7."""
LEAST_TURNS = 2
"""Turns within the rows from which it is: a trend bends, but does not come back."""


@dataclass(frozen=True)
class PositionTables:
    """The positions of one snapshot, in numbers."""

    snapshot: Snapshot
    rows: Mapping[str, Array]
    """(positions, hidden) rows of the learned table, the sinusoid (not for an odd size), smooth and shuffled."""
    statistics: pd.DataFrame
    """`measure_position_windows`."""
    verdicts: Mapping[str, Verdict]
    """By the statistic that each rests on: line_match, orbit_share."""
    waves: pd.DataFrame
    """`find_waves`, with ``is_wave``: round enough, and often enough round."""
    by_lag: pd.DataFrame
    """`cosine_by_lag` of every table, with ``table``; empty where a row is 0."""
    spectra: pd.DataFrame
    """One line per table and DCT-II order: table, order, share; ``drift`` is the change from the first snapshot."""
    default_length: int | None
    """Tokens that the model reads by default, when known."""
    num_exposed: int | None
    """Positions up to the last that training exposed, where the rest is raw; None: unknown, or all."""
    num_untrained: int
    """Rows at the end that look as random weights left them: left out of all else."""
    longest_wave: float
    """Rows per period of the slowest wave that the line match can tell; NaN where it is refused."""

    @property
    def num_positions(self) -> int:
        return len(self.rows[LEARNED])


@shows_progress("positions")
def collect_positions(
    source: Source,
    *,
    default_length: int | None = None,
    seed: int = 0,
    num_draws: int = resemblance.NUM_DRAWS,
    is_brief: bool = False,
) -> PositionTables:
    """Everything about the positions at the last epoch; ``is_brief``: of all positions only, and of no window."""
    trajectory = trajectory_of(source)
    all_rows = position_table(source)
    table = all_rows[: num_described(source)]
    first_table = position_table(source, trajectory.snapshots[0].epoch)[: len(table)]
    rows = _tables(table, seed)
    measure = measure_positions if is_brief else measure_position_windows
    statistics = measure(source, seed=seed, num_draws=num_draws)
    waves = find_waves(table) if len(table) >= MIN_ROWS else pd.DataFrame(columns=columns_of("find_waves"))
    is_round = waves["roundness"] >= LEAST_ROUNDNESS
    has_moved = len(trajectory) > 1 and not np.array_equal(first_table, table)
    with_drift = rows | ({"drift": table - first_table} if has_moved else {})
    return PositionTables(
        snapshot=trajectory.snapshots[-1],
        rows=rows,
        statistics=statistics,
        verdicts={
            name: judge(table, num_draws=num_draws, seed=seed) for name, judge in counted(VERDICTS.items(), "verdicts")
        },
        waves=waves.assign(is_wave=is_round & (waves["period"] * LEAST_TURNS <= len(table))),
        by_lag=_by_lag(rows),
        spectra=pd.concat([_spectrum(name, values) for name, values in with_drift.items()], ignore_index=True),
        default_length=default_length,
        num_exposed=num_exposed(source),
        num_untrained=len(all_rows) - len(table),
        longest_wave=_longest_wave(table),
    )


def _tables(table: Array, seed: int) -> dict[str, Array]:
    """The learned table and those beside it, by name: ``rows`` of :class:`PositionTables`."""
    rng = np.random.default_rng([*b"page", seed])
    sinusoid = {} if table.shape[1] % 2 else {"sinusoid": sinusoidal_table(*table.shape)}
    smooth = smooth_curves(len(table), table.shape[1], rng, "squared_exponential", 20.0)
    return {LEARNED: table, **sinusoid, "smooth": smooth, "shuffled": table[rng.permutation(len(table))]}


def _by_lag(rows: Mapping[str, Array]) -> pd.DataFrame:
    """``by_lag`` of :class:`PositionTables`."""
    try:
        return pd.concat([cosine_by_lag(table).assign(table=name) for name, table in rows.items()], ignore_index=True)
    except Refused:
        return pd.DataFrame()


def _spectrum(name: str, table: Array) -> pd.DataFrame:
    return pd.DataFrame({"table": name, "order": np.arange(1, len(table)), "share": resemblance.dct_spectrum(table)})


def _longest_wave(table: Array) -> float:
    """Rows per period of the slowest wave that the line match can tell; NaN where it is refused."""
    try:
        return line_match(table).longest_wave
    except Refused:
        return float("nan")
