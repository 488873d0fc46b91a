"""Two snapshots of a run in, the change of each row between them out, split into decay, gradient and momentum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.causes.adam import AdamSteps
from toolkit.analysis.causes.momentum import Known, Tails, identify, without_momentum
from toolkit.analysis.causes.nulls import replay_decay
from toolkit.analysis.causes.row_steps import RowSteps, row_steps
from toolkit.analysis.causes.sign_noise import expected_squares
from toolkit.analysis.rows.measures import Array, norm
from toolkit.analysis.rows.strata import table_exposure
from toolkit.families import TABLES
from toolkit.snapshots.optimizer_log import OptimizerLog
from toolkit.snapshots.snapshot import Snapshot, Trajectory

LARGEST_ERROR = 1.5
"""Units in the last place that one step can add to the rounding error of a weight beside its replay: half a unit each
by the decay of either and by the update."""


@dataclass(frozen=True, slots=True)
class Interval:
    """All that the rows of one parameter between two snapshots are judged by."""

    parameter: str
    path: Sequence[Snapshot]
    """The reference, the snapshots after it, the epoch's last."""
    log: OptimizerLog
    history: RowSteps | None
    """None where exposure was not recorded."""
    steps: AdamSteps | None
    """None where the parameter was frozen."""
    tails: Tails | None

    @classmethod
    def of(
        cls, trajectory: Trajectory, parameter: str, reference: Snapshot, current: Snapshot, log: OptimizerLog
    ) -> "Interval":
        if reference.step >= current.step:
            raise ValueError(
                f"epoch {current.epoch:g} (step {current.step}) is not after the reference, epoch "
                f"{reference.epoch:g} (step {reference.step}): pass a later epoch, or an earlier reference_epoch"
            )
        if current.step > log.num_steps:
            raise ValueError(f"the optimizer log has {log.num_steps} steps, the snapshot is of step {current.step}")
        between = [s for s in trajectory if reference.step < s.step < current.step]
        is_known = parameter not in TABLES or table_exposure(trajectory, parameter) is not None
        history = row_steps(trajectory, parameter, current.step) if is_known else None
        is_frozen = parameter not in log.weight_decay or np.isnan(log.learning_rates[: current.step]).all()
        steps = None if is_frozen else AdamSteps.of(log, parameter, current.step)
        tails = None if steps is None else Tails.of(steps)
        return cls(parameter, (reference, *between, current), log, history, steps, tails)

    def measure(self, rows: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """The measured columns of some rows."""
        before, after = self._rows(0, rows), self._rows(-1, rows)
        replayed = self._replay(0, rows)
        change, decay, update = _minus(after, before), _minus(replayed, before), _minus(after, replayed)
        basis = np.full(len(rows), "none" if self.history else "exposure unknown", dtype=object)
        momentum, low, high = np.full(update.shape, np.nan), *np.full((2, len(rows)), np.nan)
        if self.history is not None and self.tails is not None:
            part = self.history.take(rows)
            anchors = np.searchsorted([s.step for s in self.path], np.maximum(part.last, self.path[0].step))
            since, rounding = self._since(anchors, rows, update, after)
            reached = np.array([s.step for s in self.path])[anchors]
            known = self._identify(part, reached, update, since, rounding)
            momentum, low, high, basis = known.vectors, known.low, known.high, known.basis
        zero = np.zeros_like(update)
        return {
            "drift": norm(zero, change),
            "decay": norm(zero, decay),
            "update": norm(zero, update),
            "gradient": norm(momentum, update),
            "momentum": norm(zero, momentum),
            "momentum_low": low,
            "momentum_high": high,
            "momentum_basis": basis,
            "has_moved": np.any(change != 0, axis=1),
            "is_updated": np.any(update != 0, axis=1),
        }

    def _identify(
        self, part: RowSteps, reached: NDArray[np.int64], update: Array, since: Array, rounding: Array
    ) -> Known:
        assert self.steps is not None
        assert self.tails is not None
        if not self.steps.has_momentum:
            return without_momentum(part, update.shape[1])
        return identify(self.tails, part, self.path[0].step, reached, update, since, rounding)

    def _since(
        self, anchors: NDArray[np.intp], rows: NDArray[np.intp], update: Array, after: NDArray[np.float32]
    ) -> tuple[Array, Array]:
        """Movement by Adam since the anchor snapshot of each row, and a bound on what rounding adds to its norm."""
        since, rounding = update.copy(), np.zeros(len(rows))
        for anchor in np.unique(anchors[anchors > 0]):
            chosen = np.flatnonzero(anchors == anchor)
            since[chosen] = _minus(after[chosen], self._replay(anchor, rows[chosen]))
            unit = np.spacing(np.abs(self._rows(anchor, rows[chosen]))).astype(np.float64)
            num_steps = self.path[-1].step - self.path[anchor].step
            rounding[chosen] = LARGEST_ERROR * num_steps * norm(np.zeros_like(unit), unit)
        return since, rounding

    def _rows(self, place: int, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        return np.atleast_2d(np.asarray(self.path[place].tensors[self.parameter]))[rows]

    def _replay(self, place: int, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Rows of a snapshot of the path, decayed up to its end."""
        start, end = self.path[place].step, self.path[-1].step
        log = replace(self.log, learning_rates=self.log.learning_rates[start:])
        return replay_decay(self._rows(place, rows), log, self.parameter, end - start)

    def exposure_columns(self, num_rows: int) -> dict[str, Any]:
        """Exposures since the reference and the last exposure of all rows."""
        if self.history is None:
            unknown = pd.array([pd.NA] * num_rows, dtype="Int64")
            return {"num_steps": unknown, "last_step": unknown}
        owners = np.repeat(np.arange(num_rows), self.history.counts)
        since = np.bincount(owners[self.history.steps >= self.path[0].step], minlength=num_rows)
        columns = {"num_steps": since, "last_step": self.history.last}
        return {name: pd.array(column, dtype="Int64") for name, column in columns.items()}

    def noise(self, num_rows: int) -> Array:
        """(rows,) root mean square of ‖momentum‖ under sign noise; NaN for rows of no exposure, or where unknown."""
        if self.history is None or self.steps is None:
            return np.full(num_rows, np.nan)
        hidden = self.path[0].tensors[self.parameter].shape[-1]
        after = np.maximum(self.history.last, self.path[0].step)
        squares = expected_squares(self.steps, self.history, hidden, after)
        return np.where(self.history.counts > 0, np.sqrt(squares), np.nan)


def _minus(left: NDArray[np.float32], right: NDArray[np.float32]) -> Array:
    return np.subtract(left, right, dtype=np.float64)
