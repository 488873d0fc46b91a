"""Why each row moved: weight decay, gradients, and momentum after the last gradient.

Δ = decay + update, exactly: decay is what replaying the logged decay makes of the reference, update is the rest, which
is what Adam's steps did. The update splits into the part up to the row's last exposure (``gradient``) and the part
after it (``momentum``), as far as the logs bound it; SGD without momentum has none. A rounding of training belongs to
the update.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.adam import AdamSteps, Ints, RowSteps, replay_decay, resolve_log, row_steps
from toolkit.analysis.drift import ALL_ROWS
from toolkit.analysis.measures import Array, lengths
from toolkit.analysis.nulls import expected_squares
from toolkit.analysis.strata import count_rows, describe_rows, table_exposure
from toolkit.families import TABLES
from toolkit.schema import with_columns
from toolkit.snapshots.logs import OptimizerLog
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

BASES = {
    "exact": "a snapshot lies at the last exposure, the row was not exposed since the reference, or SGD keeps none",
    "one exposure": "the share of its only exposure's movement that came after it is known, whatever the gradient",
    "extrapolated": "from the movement after the next snapshot; eps and rounding leave under 10 % between the bounds",
    "bounds": "only bounds are known",
    "none": "no exposure, or the parameter was frozen: no momentum",
    "exposure unknown": "exposure was not recorded",
}
"""How the momentum of a row is known (column ``momentum_basis``)."""

LARGEST_GAP = 1.1
"""Upper bound over lower bound, to which an extrapolation counts as known."""


@dataclass(frozen=True, slots=True)
class Tails:
    """What follows a step without further gradients, per step L of a run (index 0 unused); see AdamSteps.tails."""

    first: Array
    rest: Array
    """Movement after step L per m/√v at L, where eps is small beside √v."""
    first_below_eps: Array
    rest_below_eps: Array
    """The same per m/eps, where eps is large; what really happens lies between the two profiles."""
    betas: tuple[float, float]

    @classmethod
    def of(cls, steps: AdamSteps) -> "Tails":
        return cls(*steps.tails(), *steps.tails(is_below_eps=True), steps.betas)

    def one_exposure(self, last: Ints) -> tuple[Array, Array]:
        """(n,) least and largest share of the movement by an only exposure at step ``last`` that came after it.

        The larger |g| is beside eps, the slower the tail fades: the shares of the two limits enclose every other.
        """
        low = self.rest_below_eps[last] / (self.first_below_eps[last] + self.rest_below_eps[last])
        return low, self.rest[last] / (self.first[last] + self.rest[last])

    def extrapolation(self, last: Ints, anchor: Ints) -> tuple[Array, Array]:
        """(n,) least and largest factor from the movement after step ``anchor`` to all of it after step ``last``."""
        beta1, beta2 = self.betas
        gap = (anchor - last).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            low = self.rest[last] / ((beta1 / np.sqrt(beta2)) ** gap * self.rest[anchor])
            return low, self.rest_below_eps[last] / (beta1**gap * self.rest_below_eps[anchor])

    def ceiling(self, history: RowSteps, hidden: int) -> Array:
        """(n,) bound on ‖movement after the last exposure‖ for rows with those exposures, whatever their gradients.

        By Cauchy-Schwarz over the exposures s ≤ L, in each coordinate, |Σ(1-β1)β1ᴸ⁻ˢ g_s| ≤ K·√(Σ(1-β2)β2ᴸ⁻ˢ g_s²) with
        K² = (1-β1)²/(1-β2)·Σ(β1²/β2)ᴸ⁻ˢ; eps only lowers it.
        """
        beta1, beta2 = self.betas
        owners = np.repeat(np.arange(len(history)), history.counts)
        ages = history.last[owners] - 1 - history.steps
        sums = np.bincount(owners, (beta1**2 / beta2) ** ages, len(history))
        largest = (1 - beta1) / np.sqrt(1 - beta2) * np.sqrt(sums)
        return np.where(history.counts > 0, np.sqrt(hidden) * largest * self.rest[history.last], np.nan)


def identify(
    tails: Tails, history: RowSteps, reference_step: int, anchor: Ints, update: Array, since: Array, rounding: Array
) -> tuple[Array, Array, Array, NDArray[np.object_]]:
    """The movement by Adam of (n,) rows after their last exposure: vectors, bounds on the norms, and the basis.

    ``anchor``: (n,) step of the first snapshot at or after the last exposure. ``update``: (n, hidden) movement by Adam
    since the reference; ``since``: since the anchor, and ``rounding`` (n,) a bound on its error. The vectors are
    (n, hidden), NaN where only bounds are known; the rest (n,).
    """
    count, last = history.counts, history.last
    vectors, basis = np.full(update.shape, np.nan), np.full(len(count), "none", dtype=object)
    lows, highs = np.full((2, len(count)), np.nan)
    is_old = (count > 0) & (last <= reference_step)
    is_at_anchor = (last > reference_step) & (anchor == last)
    has_one = (last > reference_step) & ~is_at_anchor & (count == 1)
    has_several = (last > reference_step) & ~is_at_anchor & ~has_one
    for chosen, movement in ((is_old, update), (is_at_anchor, since)):
        vectors[chosen], basis[chosen] = movement[chosen], "exact"
        lows[chosen] = highs[chosen] = lengths(movement)[chosen]
    low, high = tails.one_exposure(last[has_one])
    length = lengths(update[has_one])
    vectors[has_one], basis[has_one] = high[:, None] * update[has_one], "one exposure"
    lows[has_one], highs[has_one] = low * length, high * length
    ceiling = tails.ceiling(history, update.shape[1])[has_several]
    factor, high = tails.extrapolation(last[has_several], anchor[has_several])
    length, spread = lengths(since[has_several]), rounding[has_several]
    is_clear = np.isfinite(high) & (length > spread)
    with np.errstate(invalid="ignore"):
        low = np.where(is_clear, factor * (length - spread), 0.0)
        high = np.fmin(ceiling, np.where(np.isfinite(high), high * (length + spread), np.inf))
        # Above its ceiling only by rounding: the movement after the anchor is then the better bound.
        high = np.maximum(high, low)
        is_near = is_clear & (high <= LARGEST_GAP * low)
        vectors[has_several] = np.where(is_near[:, None], factor[:, None] * since[has_several], np.nan)
    lows[has_several], highs[has_several], basis[has_several] = low, high, np.where(is_near, "extrapolated", "bounds")
    return vectors, lows, highs, basis


LARGEST_ERROR = 1.5
"""Units in the last place that one step can add to the rounding error of a weight beside its replay: half a unit each
by the decay of either and by the update."""


@dataclass(frozen=True, slots=True)
class StepRange:
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
    ) -> "StepRange":
        """From a reference to a later snapshot; ValueError where they are not in order or the log is too short."""
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
        change, decay, update = (
            np.subtract(later, earlier, dtype=np.float64)
            for later, earlier in ((after, before), (replayed, before), (after, replayed))
        )
        basis = np.full(len(rows), "none" if self.history else "exposure unknown", dtype=object)
        momentum, low, high = np.full(update.shape, np.nan), *np.full((2, len(rows)), np.nan)
        if self.history is not None and self.steps is not None and self.tails is not None:
            row_history = self.history.take(rows)
            if self.steps.has_momentum:
                path = np.array([snapshot.step for snapshot in self.path])
                anchors = np.searchsorted(path, np.maximum(row_history.last, path[0]))
                since, rounding = self._since(anchors, rows, update, after)
                momentum, low, high, basis = identify(
                    self.tails, row_history, int(path[0]), path[anchors], update, since, rounding
                )
            else:  # none, exactly
                momentum, low, high = np.zeros(update.shape), *np.zeros((2, len(rows)))
                basis = np.where(row_history.counts > 0, "exact", "none").astype(object)
        return {
            "drift": lengths(change),
            "decay": lengths(decay),
            "update": lengths(update),
            "gradient": lengths(update - momentum),
            "momentum": lengths(momentum),
            "momentum_low": low,
            "momentum_high": high,
            "momentum_basis": basis,
            "has_moved": np.any(change != 0, axis=1),
            "is_updated": np.any(update != 0, axis=1),
        }

    def _since(
        self, anchors: NDArray[np.intp], rows: NDArray[np.intp], update: Array, after: NDArray[np.float32]
    ) -> tuple[Array, Array]:
        """Movement by Adam since the anchor snapshot of each row, and a bound on what rounding adds to its norm."""
        since, rounding = update.copy(), np.zeros(len(rows))
        for anchor in np.unique(anchors[anchors > 0]):
            chosen = np.flatnonzero(anchors == anchor)
            since[chosen] = np.subtract(after[chosen], self._replay(anchor, rows[chosen]), dtype=np.float64)
            unit = np.spacing(np.abs(self._rows(anchor, rows[chosen]))).astype(np.float64)
            rounding[chosen] = LARGEST_ERROR * (self.path[-1].step - self.path[anchor].step) * lengths(unit)
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
        squares = expected_squares(self.steps, self.history, hidden, np.maximum(self.history.last, self.path[0].step))
        return np.where(self.history.counts > 0, np.sqrt(squares), np.nan)


CAUSES: Mapping[str, str] = {
    "did not move": "every coordinate is what it was",
    "weight decay alone": "the replayed decay gives the row bit for bit",
    "momentum after its last exposure": "not exposed since the reference but before it: Adam's moments, and decay",
    "gradient": "exposed since the reference: gradients, the momentum that they left, and decay",
    "unexplained": "never exposed (by SGD: not since the reference), yet not where decay leaves it: the log is "
    "not of this run, or it decayed otherwise",
    "exposure unknown": "neither still nor where decay leaves it, and exposure was not recorded",
}
"""Why a row moved (column ``cause``)."""

BLOCK_ROWS = 512


@with_columns
def decompose(
    source: Source,
    parameter: str,
    epoch: float | None = None,
    *,
    reference_epoch: float = 0,
    log: OptimizerLog | None = None,
) -> pd.DataFrame:
    """The change of every row since the reference, split by cause.

    Returns
    -------
    pandas.DataFrame
        One line per row; a LayerNorm vector is one row. The parts are vectors, so that their norms do not add up to the
        drift. ``num_steps`` counts the exposures since the reference; it and ``last_step`` are NA where exposure was
        not recorded. ``momentum_noise`` is the null of toolkit.analysis.nulls.

    Raises
    ------
    ValueError
        There is no optimizer log, ``log`` is not the run's own, or the epochs are not in order.
    """
    trajectory, log = trajectory_of(source), resolve_log(source, log)
    num_rows = count_rows(trajectory, parameter)
    step_range = StepRange.of(trajectory, parameter, trajectory.at(reference_epoch), trajectory.at_or_last(epoch), log)
    blocks = [step_range.measure(np.arange(i, min(i + BLOCK_ROWS, num_rows))) for i in range(0, num_rows, BLOCK_ROWS)]
    measured = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    table = pd.DataFrame(
        {
            **describe_rows(trajectory, parameter),
            **step_range.exposure_columns(num_rows),
            **{name: column for name, column in measured.items() if name not in ("has_moved", "is_updated")},
            "cause": _name_causes(step_range, measured["has_moved"], measured["is_updated"]),
        }
    )
    table.insert(table.columns.get_loc("momentum_basis"), "momentum_noise", step_range.noise(num_rows))
    return table


def _name_causes(
    step_range: StepRange, has_moved: NDArray[np.bool_], is_updated: NDArray[np.bool_]
) -> NDArray[np.object_]:
    """(rows,) the cause of each row's change: the first that applies."""
    conditions: list[Any] = [~has_moved, ~is_updated]
    names = ["did not move", "weight decay alone"]
    if step_range.history is None:
        conditions, names = [*conditions, is_updated], [*names, "exposure unknown"]
    else:
        last_exposure = step_range.history.last
        has_momentum = step_range.steps is None or step_range.steps.has_momentum
        conditions += [
            last_exposure <= (0 if has_momentum else step_range.path[0].step),
            last_exposure <= step_range.path[0].step,
        ]
        names += ["unexplained", "momentum after its last exposure"]
    return np.select(conditions, names, "gradient").astype(object)


@with_columns
def explain(
    source: Source,
    parameter: str,
    epoch: float | None = None,
    *,
    reference_epoch: float = 0,
    log: OptimizerLog | None = None,
) -> pd.DataFrame:
    """How many rows of each stratum moved for which cause, and what the parts of their change amount to.

    Returns
    -------
    pandas.DataFrame
        One line per stratum that has rows, and one for all rows. NaN: nothing moved, or, for ``unexplained_share``, no
        unexposed row did.

    Raises
    ------
    ValueError
        As :func:`toolkit.decompose`.
    """
    table = decompose(source, parameter, epoch, reference_epoch=reference_epoch, log=log)
    groups = [(name, table[table["stratum"] == name]) for name in table["stratum"].cat.categories]
    return pd.DataFrame([_stratum_record(name, rows) for name, rows in [*groups, (ALL_ROWS, table)] if len(rows)])


def _stratum_record(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    """The record of one stratum: how many rows moved for which cause, and the shares of the squared drift."""
    squares = {column: float(np.square(rows[column]).sum()) for column in ("drift", "decay", "update")}
    total = squares["drift"] if squares["drift"] > 0 else np.nan
    unexposed = rows[rows["momentum_basis"] == "none"]
    unexposed_total = float(np.square(unexposed["drift"]).sum())
    unexplained = float(np.square(unexposed["update"]).sum()) / unexposed_total if unexposed_total > 0 else np.nan
    bounds = {end: float(np.square(rows[f"momentum_{end}"]).sum(min_count=1)) / total for end in ("low", "high")}
    is_unknown = bool((rows["momentum_basis"] == "exposure unknown").any())
    return {
        "stratum": name,
        "num_rows": len(rows),
        **{f"num_{cause.replace(' ', '_')}": int((rows["cause"] == cause).sum()) for cause in CAUSES},
        "squared_drift": squares["drift"],
        "decay_share": squares["decay"] / total,
        "update_share": squares["update"] / total,
        "cross_share": (squares["drift"] - squares["decay"] - squares["update"]) / total,
        "momentum_share_low": np.nan if is_unknown else bounds["low"],
        "momentum_share_high": np.nan if is_unknown else bounds["high"],
        "num_momentum_known": int(rows["momentum_basis"].isin(("exact", "one exposure", "extrapolated")).sum()),
        "unexplained_share": unexplained,
    }
