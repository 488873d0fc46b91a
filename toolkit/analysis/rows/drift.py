"""A trajectory in, the tidy table of its drift out: statistics of every measure, stratum, parameter and epoch."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.rows.blocks import BLOCK_ROWS, file_of, iterate_blocks
from toolkit.analysis.rows.measures import MEASURES, Array, Measure, Measures, select_measures
from toolkit.analysis.rows.row_pass import RowPass
from toolkit.analysis.rows.strata import assign_strata
from toolkit.analysis.rows.whole import reinitialise, whole_values
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

ALL_ROWS = "all rows"
WHOLE = "whole parameter"

STATISTICS: Mapping[str, Any] = {"mean": np.mean, "median": np.median, "max": np.max}
"""Over the defined rows of a stratum. ``max`` is the plain maximum: of a signed measure the largest value, which need
not be the farthest from 0."""

Line = tuple[str, str, str, str, float, str, int, int]  # the columns from ``parameter`` on
Indices = NDArray[np.intp]


@with_columns
def measure_drift(
    source: Source,
    measures: Measures = MEASURES,
    *,
    reference_epoch: float = 0,
    seed: int = 0,
    block_rows: int = BLOCK_ROWS,
) -> "pd.DataFrame":
    """The drift of every snapshot from the reference as a tidy table, one value per line.

    For each parameter, each stratum that has rows and ``all rows``: mean, median and max of each measure over the rows
    where it is defined (NaN where it is nowhere), with the number of rows and of undefined ones. For ``whole
    parameter``: norm and relative, if chosen, of the parameter as one vector (statistic ``value``), and the same
    numbers for a re-initialisation drawn with ``seed`` (statistic ``reinitialised``; see whole.py).
    """
    trajectory, chosen = trajectory_of(source), select_measures(measures)
    reference = trajectory.at(reference_epoch)
    parameters = [_parameter_lines(trajectory, reference, p, chosen, seed, block_rows) for p in trajectory.parameters]
    rows = [
        (float(snapshot.epoch), snapshot.step, *line)
        for snapshot, of_parameters in zip(trajectory, zip(*parameters, strict=True), strict=True)
        for line in chain.from_iterable(of_parameters)
    ]
    return pd.DataFrame(rows, columns=columns_of("measure_drift"))


def _parameter_lines(
    trajectory: Trajectory,
    reference: Snapshot,
    parameter: str,
    chosen: Mapping[str, Measure],
    seed: int,
    block_rows: int,
) -> list[list[Line]]:
    """The lines of one parameter, for each snapshot."""
    groups = _groups(trajectory, parameter)
    yardstick = reinitialise(reference, parameter, seed, block_rows)
    num_rows = len(groups[ALL_ROWS])
    known: dict[str | int, list[Line]] = {}
    lines_of_snapshots = []
    for index, snapshot in enumerate(trajectory):
        # A frozen parameter is one file for all epochs: what was computed from that file holds for all of them.
        key = file_of(snapshot, parameter) or index
        if key not in known:
            values, whole = _measure((reference, snapshot), parameter, chosen, num_rows, block_rows)
            of_whole = {"value": whole, "reinitialised": yardstick}
            known[key] = _row_lines(parameter, values, groups, chosen)
            known[key] += _whole_lines(parameter, of_whole, num_rows, chosen)
        lines_of_snapshots.append(known[key])
    return lines_of_snapshots


def _measure(
    pair: Sequence[Snapshot], parameter: str, chosen: Mapping[str, Measure], num_rows: int, block_rows: int
) -> tuple[dict[str, Array], dict[str, float]]:
    """The measures of every row, and those of the parameter as one vector, in one pass over both snapshots."""
    row_pass = RowPass(chosen, num_rows)
    for rows, (before, after) in iterate_blocks(pair, parameter, block_rows, scratch=row_pass.scratch):
        row_pass.add(rows, before, after)
    return row_pass.values(), whole_values(*row_pass.squares())


def _row_lines(
    parameter: str, values: Mapping[str, Array], groups: Mapping[str, Indices], chosen: Mapping[str, Measure]
) -> list[Line]:
    lines: list[Line] = []
    for stratum, rows in groups.items():
        for name, measure in chosen.items():
            of_stratum = values[name][rows]
            defined = of_stratum[~np.isnan(of_stratum)]
            for statistic, function in STATISTICS.items():
                value = float(function(defined)) if len(defined) else math.nan
                counts = (len(rows), len(rows) - len(defined))
                lines.append((parameter, stratum, name, statistic, value, measure.unit, *counts))
    return lines


def _whole_lines(
    parameter: str, statistics: Mapping[str, Mapping[str, float]], num_rows: int, chosen: Mapping[str, Measure]
) -> list[Line]:
    return [
        (parameter, WHOLE, name, statistic, values[name], measure.unit, num_rows, int(math.isnan(values[name])))
        for name, measure in chosen.items()
        for statistic, values in statistics.items()
        if name in values
    ]


def _groups(trajectory: Trajectory, parameter: str) -> dict[str, Indices]:
    """The rows of each stratum that has any, and of all strata together."""
    strata = assign_strata(trajectory, parameter)
    groups = {name: np.flatnonzero(strata == name) for name in strata.categories}
    return {name: rows for name, rows in groups.items() if len(rows)} | {ALL_ROWS: np.arange(len(strata))}
