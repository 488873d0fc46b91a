"""Everything that the page on the positions of one snapshot says and draws, as tables and arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from toolkit.analysis.drift import measure_segments
from toolkit.analysis.kernels import Refused
from toolkit.analysis.measures import Array
from toolkit.progress import counted, shows_progress
from toolkit.questions.positions import resemblance
from toolkit.questions.positions.measure import (
    VERDICTS,
    cosine_by_lag,
    measure_position_windows,
    measure_positions,
    norms_and_steps,
    num_described,
    num_exposed,
    position_table,
    snapshot_at,
    standing_out,
)
from toolkit.questions.positions.resemblance import MIN_ROWS, Verdict, find_waves, line_match, smooth_curves
from toolkit.schema import columns_of
from toolkit.sinusoid import sinusoidal_table
from toolkit.snapshots.snapshot import Snapshot
from toolkit.snapshots.store import Source, trajectory_of

LEARNED = "learned"
ROUND = 0.5
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
    courses: list[Array]
    by_lag: pd.DataFrame
    """`cosine_by_lag` of every table, with ``table``; empty where a row is 0."""
    lengths: pd.DataFrame
    """One line per position: position, norm, step to the next (NaN at the last)."""
    outliers: pd.DataFrame
    spectra: pd.DataFrame
    """One line per table and DCT-II order: table, order, share; ``drift`` is the change from the first snapshot."""
    change: pd.DataFrame
    """Statistics of all positions at the first and last epoch; empty where no position moved."""
    segments: pd.DataFrame
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
    """Everything about the positions at the last epoch; ``is_brief`` leaves the windows and the first epoch out."""
    trajectory = trajectory_of(source)
    all_rows = position_table(source)
    table = all_rows[: num_described(source)]
    first_table = position_table(source, trajectory.snapshots[0].epoch)[: len(table)]
    rows = _tables(table, seed)
    measure = measure_positions if is_brief else measure_position_windows
    statistics = measure(source, seed=seed, num_draws=num_draws)
    waves, courses = (
        find_waves(table) if len(table) >= MIN_ROWS else (pd.DataFrame(columns=columns_of("find_waves")), [])
    )
    norms, steps = norms_and_steps(table)
    has_moved = len(trajectory) > 1 and not np.array_equal(first_table, table)
    return PositionTables(
        snapshot=snapshot_at(source),
        rows=rows,
        statistics=statistics,
        verdicts={
            name: judge(table, num_draws=num_draws, seed=seed) for name, judge in counted(VERDICTS.items(), "verdicts")
        },
        waves=waves.assign(is_wave=(waves["roundness"] >= ROUND) & (waves["period"] * LEAST_TURNS <= len(table))),
        courses=courses,
        by_lag=_by_lag(rows),
        lengths=pd.DataFrame({"position": np.arange(len(table)), "norm": norms, "step": [*steps, np.nan]}),
        outliers=standing_out(table),
        spectra=pd.concat(
            [
                _spectrum(*named_table)
                for named_table in (rows | ({"drift": table - first_table} if has_moved else {})).items()
            ],
            ignore_index=True,
        ),
        change=_change(source, statistics, seed, num_draws) if has_moved and not is_brief else pd.DataFrame(),
        segments=measure_segments(source, trajectory.snapshots[-1].epoch),
        default_length=default_length,
        num_exposed=num_exposed(source),
        num_untrained=len(all_rows) - len(table),
        longest_wave=_longest_wave(table),
    )


def brief_of(tables: PositionTables) -> PositionTables:
    """What ``is_brief`` would have collected."""
    every_window = tables.statistics
    return replace(
        tables, statistics=every_window[every_window["window"] == every_window["window"].iloc[0]], change=pd.DataFrame()
    )


def _tables(table: Array, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng([*b"page", seed])
    sinusoid = {} if table.shape[1] % 2 else {"sinusoid": sinusoidal_table(*table.shape)}
    smooth = smooth_curves(len(table), table.shape[1], rng, "squared_exponential", 20.0)
    return {LEARNED: table, **sinusoid, "smooth": smooth, "shuffled": table[rng.permutation(len(table))]}


def _by_lag(rows: Mapping[str, Array]) -> pd.DataFrame:
    try:
        return pd.concat([cosine_by_lag(table).assign(table=name) for name, table in rows.items()], ignore_index=True)
    except Refused:
        return pd.DataFrame()


def _spectrum(name: str, table: Array) -> pd.DataFrame:
    return pd.DataFrame({"table": name, "order": np.arange(1, len(table)), "share": resemblance.dct_spectrum(table)})


def _change(source: Source, statistics: pd.DataFrame, seed: int, num_draws: int) -> pd.DataFrame:
    """The statistics of all positions at the first snapshot beside those of the last."""
    first_epoch = trajectory_of(source).snapshots[0].epoch
    after = statistics[statistics["window"] == statistics["window"].iloc[0]]
    before = measure_positions(source, first_epoch, (0, int(after["num_rows"].iloc[0])), seed=seed, num_draws=num_draws)
    changes = before[["measure", "unit", "value"]].rename(columns={"value": "before"})
    for name in ("reason", "note"):
        changes[f"{name}_before"], changes[f"{name}_after"] = before[name], after[name].to_numpy()
    return changes.assign(after=after["value"].to_numpy())


def _longest_wave(table: Array) -> float:
    try:
        return line_match(table).longest_wave
    except Refused:
        return float("nan")
