"""An exposure in, the same turned round out: of each row, the steps that exposed it and its gradients' norms."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.rows.strata import count_rows, table_exposure
from toolkit.families import TABLES
from toolkit.snapshots.exposure import TableExposure
from toolkit.snapshots.snapshot import Trajectory

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowSteps:
    """The exposures of some rows up to a step, row after row, in order of time within each."""

    num_steps: int
    """Optimizer steps done, exposing or not."""
    counts: Ints
    """(rows,) exposures of each row."""
    steps: Ints
    """(exposures,) the step of each, counted from 0."""
    norms: Array
    """(exposures,) norm of the row's gradient before clipping; NaN where it was not recorded."""

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def last(self) -> Ints:
        """(rows,) the last step, counted from 1, that exposed each row; 0 where none did."""
        ends = np.cumsum(self.counts)
        return np.where(self.counts > 0, np.append(self.steps, 0)[ends - 1] + 1, 0)

    @property
    def has_norms(self) -> NDArray[np.bool_]:
        """(rows,) whether the norm is known at each exposure."""
        return np.asarray(np.bincount(self._owners(), np.isnan(self.norms), len(self)) == 0)

    def take(self, rows: NDArray[np.integer]) -> "RowSteps":
        """The exposures of some of the rows, in the order given."""
        starts = np.cumsum(self.counts) - self.counts
        counts = self.counts[rows]
        places = np.arange(counts.sum()) + np.repeat(starts[rows] - (np.cumsum(counts) - counts), counts)
        return RowSteps(self.num_steps, counts, self.steps[places], self.norms[places])

    def gradients(self, clipping_factors: Array, hidden: int, unknown: float = 1.0) -> Array:
        """(rows, steps) float64 size of each coordinate's gradient after clipping, 0 where the row was not exposed.

        The norm is spread equally over ``hidden`` coordinates; a row without all its norms gets ``unknown`` at
        each exposure.
        """
        owners = self._owners()
        sizes = self.norms * clipping_factors[self.steps] / np.sqrt(hidden)
        spread = np.zeros((len(self), self.num_steps))
        spread[owners, self.steps] = np.where(self.has_norms[owners], sizes, unknown)
        return spread

    def at_exposures(self, values: Array) -> NDArray[np.float32]:
        """(rows, steps) values to (rows, most exposures) float32: those of each row's exposures, 0 beyond its last."""
        owners = self._owners()
        places = np.arange(len(owners)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        picked = np.zeros((len(self), int(self.counts.max(initial=0))), np.float32)
        picked[owners, places] = values[owners, self.steps]
        return picked

    def _owners(self) -> Ints:
        return np.repeat(np.arange(len(self)), self.counts)


def row_steps(trajectory: Trajectory, parameter: str, num_steps: int) -> RowSteps:
    """The exposures of every row of a parameter in the first ``num_steps`` steps.

    A LayerNorm vector has a gradient at every step, of a norm that is not recorded. ValueError when the exposure of a
    table was not recorded, or ends before.
    """
    num_rows = count_rows(trajectory, parameter)
    if parameter not in TABLES:
        every = np.arange(num_steps)
        return RowSteps(num_steps, np.array([num_steps]), every, np.full(num_steps, np.nan))
    table = table_exposure(trajectory, parameter)
    if table is None:
        raise ValueError(f"the exposure of {parameter} was not recorded: which steps moved its rows is unknown")
    if table.num_steps < num_steps:
        raise ValueError(f"the exposure of {parameter} ends at step {table.num_steps}, the snapshot is of {num_steps}")
    return _turn_round(table, num_rows, num_steps)


def _turn_round(table: TableExposure, num_rows: int, num_steps: int) -> RowSteps:
    end = int(table.offsets[num_steps])
    steps = np.repeat(np.arange(num_steps), np.diff(table.offsets[: num_steps + 1]))
    order = np.argsort(table.rows[:end], kind="stable")
    counts = table.step_counts(num_rows, num_steps)
    return RowSteps(num_steps, counts, steps[order], table.norms[:end][order].astype(np.float64))
