"""The drift of each embedding parameter beside what random gradient signs would have moved it, and a paper's table.

The rows that training showed are judged together, without the offset that they share: what all rows of one table move
in common can be moved to another table without any output noticing (a gauge quantity). All of this is ours.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.adam import AdamSteps, RowSteps, replay_decay, resolve_log, row_steps
from toolkit.analysis.blocks import RowPass, Scratch, iterate_blocks, whole_values
from toolkit.analysis.measures import MEASURES, Array, dots
from toolkit.analysis.nulls import expected_squares
from toolkit.analysis.strata import count_rows, is_added, table_exposure, why_unknown
from toolkit.comparison.conditions import Condition, Group, Labels, Runs, arrange
from toolkit.comparison.intervals import statistics
from toolkit.comparison.runs import ReportedRun
from toolkit.families import TABLES
from toolkit.naming import NOT_APPLICABLE, NOT_IDENTIFIABLE, NOT_MEASURABLE, NOT_RECORDED, Refusal
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.logs import OptimizerLog
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Run, Source, run_of, trajectory_of

SHARED = (
    "all rows that were shown moved alike: only the sum of the tables is visible, so the move belongs to none of them"
)
NO_SIZES = (
    "the sizes of its gradients were not recorded, so that how far noise of that size moves it is unknown: a gap in "
    "the records of the run, not a quantity that no data could tell"
)
ONLY_ADDED = "no row moved but those of added tokens, which are told of apart"
NORMAL_QUANTILE = 1.959963984540054
"""Of a two-sided 95 % range."""
SAMPLED_ROWS = 64
"""Rows on which decay is replayed to learn by how much fp32 shrank the table."""


@with_columns
def measure_beyond_noise(source: Source, *, log: OptimizerLog | None = None) -> "pd.DataFrame":
    """One line per embedding parameter at the last epoch.

    offset_free_drift is the quantity that is judged: over the n rows that training showed, √(Σ‖Δ_i - c‖² / Σ‖E⁰_i‖²)
    with c their mean change (a LayerNorm vector has no c). null is its root mean square under sign noise (nulls.py: the
    steps that showed each row, its gradients' sizes, random signs, replayed decay d): √((1 - 1/n)·ΣS_i +
    Σ‖d_i - d̄‖²) with exact S_i. times_noise is their ratio: number of steps and how often rows were shown are in both.
    null_low and null_high bound the null's central 95 %, from a variance of the square of at most (2ΣS_i² +
    4Σ‖d_i - d̄‖²S_i)/p for p columns, as if normal.

    **The null takes rows as independent.** Rows of one batch share much of their gradient; c takes away what they share
    and the null does not know it, so that drift lies below the null where all else is noise: times_noise errs low, and
    the range is narrower than what runs really do. A second null, of random directions, lay 2 to 4 % below this one for
    each parameter of a run on SST-2, so it is not taken beside it here; the margin of the cards (cards.py) is
    wider than that.

    **times_noise describes; it shows no learning.** Under shuffled labels, which can only be memorised, it was as
    large on SST-2 (1.14 for 1.12) and TREC, though not on the built-in task order, and where nothing was learned at
    all 1.07 to 1.08: what learning adds is told by the same runs on shuffled labels (shuffled_labels.py). It falls as
    the learning rate rises (1.22 to 1.04 on one task), although the rate is in drift and null: compare it at equal
    rates only, not between tasks that were tuned apart.

    ``reason`` says why a drift is not to be told from noise, with NaN where there is no number at all: LayerNorm's
    gradient sizes are not recorded and count as equal in its null, which is description only. Described, and never to
    be compared between tasks: relative_drift = ‖Δ‖/‖E⁰‖ of the whole parameter, shown or not. ``log``: needed where
    ``source`` is a trajectory.
    """
    trajectory = trajectory_of(source)
    try:
        log_or_refusal: OptimizerLog | dict[str, str] = resolve_log(source, log)
    except ValueError as error:
        log_or_refusal = _refusal_fields(error)
        if (run := run_of(source)) is not None:  # evidence names no folder of anybody's machine
            log_or_refusal["reason"] = log_or_refusal["reason"].replace(str(run.path), run.path.name)
    records = [_record_of_parameter(trajectory, name, log_or_refusal) for name in trajectory.parameters]
    return pd.DataFrame(records, columns=columns_of("measure_beyond_noise"))


def _refusal_fields(error: ValueError) -> dict[str, str]:
    """The columns that say why there is no number to judge, and of which kind that reason is."""
    return {"reason": str(error), "reason_kind": getattr(error, "kind", NOT_MEASURABLE)}


def _record_of_parameter(trajectory: Trajectory, parameter: str, log: OptimizerLog | dict[str, str]) -> dict[str, Any]:
    """The record of one parameter in :func:`measure_beyond_noise`; ``log``: or the reason why there is none."""
    first, last = trajectory.snapshots[0], trajectory.snapshots[-1]
    exposed, num_rows = exposed_rows(trajectory, parameter), count_rows(trajectory, parameter)
    record: dict[str, Any] = dict.fromkeys(
        ("offset_free_drift", "null", "null_low", "null_high", "times_noise"), math.nan
    )
    record |= {"parameter": parameter, "num_rows": num_rows, "reason": "", "reason_kind": ""}
    record |= _movement_facts(first, last, parameter, is_added(trajectory, parameter))
    record["num_exposed_rows"] = math.nan if exposed is None else len(exposed)
    is_held = record.pop("is_held")
    # The first reason that holds is the one that is given: it makes those behind it idle.
    if not record["has_moved"]:
        return record | _refusal_fields(Refusal("did not move", NOT_APPLICABLE))
    if is_held:
        return record | _refusal_fields(Refusal(ONLY_ADDED, NOT_MEASURABLE))
    if exposed is None:
        return record | _refusal_fields(why_unknown(trajectory, parameter))
    if parameter in TABLES and len(exposed) < 2:
        return record | _refusal_fields(Refusal(SHARED, NOT_IDENTIFIABLE))
    before, after = (_row_values(snapshot, parameter, exposed) for snapshot in (first, last))
    record["offset_free_drift"] = offset_free(before, after, is_table=parameter in TABLES)
    if isinstance(log, dict):
        return record | log
    try:
        steps = AdamSteps.of(log, parameter, last.step)
        history = row_steps(trajectory, parameter, last.step).take(exposed)
    except ValueError as error:
        return record | _refusal_fields(error)
    record |= _null_range(before, steps, history, log, parameter)
    times_noise = record["offset_free_drift"] / record["null"] if record["null"] > 0 else math.nan
    record["times_noise"] = times_noise
    return record if history.has_norms.all() else record | _refusal_fields(Refusal(NO_SIZES, NOT_RECORDED))


def exposed_rows(trajectory: Trajectory, parameter: str) -> NDArray[np.int64] | None:
    """The exposed rows of a parameter, ascending; the one row of a LayerNorm vector; None where it was not recorded.

    Those of added tokens are not among them.
    """
    if parameter not in TABLES:
        return np.zeros(1, np.int64)
    table, added = table_exposure(trajectory, parameter), np.flatnonzero(is_added(trajectory, parameter))
    return None if table is None else np.setdiff1d(table.rows, added).astype(np.int64)


def offset_free(before: Array, after: Array, *, is_table: bool) -> float:
    """√(Σ‖Δ_i - c‖² / Σ‖E_i‖²) over (n, hidden) rows, c the mean change of a table's rows and 0 of a vector; NaN at 0.

    The least that the rows must have moved whatever offset they share (ours).
    """
    change = after - before
    return _relative_size(change - change.mean(axis=0) if is_table else change, before)


@dataclass(frozen=True, slots=True)
class Changes:
    """How far the exposed rows moved from epoch 0 to the last; arrays (n, hidden) float64."""

    rows: NDArray[np.int64]
    before: Array
    change: Array
    is_table: bool

    def without_offset(self) -> Array:
        """The changes without their mean, which no output of a table shows; of a LayerNorm vector as they are."""
        return self.change - self.change.mean(axis=0) if self.is_table else self.change

    def agreement(self, other: "Changes") -> float:
        """Mean cosine between the changes of two runs, without offset, over the rows exposed and moved in both.

        NaN for fewer than two such rows of a table, and for runs that did not start from the same values.
        """
        rows, own_index, other_index = np.intersect1d(self.rows, other.rows, return_indices=True)
        if not np.array_equal(self.before[own_index], other.before[other_index]) or len(rows) < 1 + self.is_table:
            return math.nan
        common = (
            Changes(rows, changes.before[index], changes.change[index], changes.is_table)
            for changes, index in ((self, own_index), (other, other_index))
        )
        first, second = (changes.without_offset() for changes in common)
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        moved = lengths > 0
        return float(np.mean(np.vecdot(first, second)[moved] / lengths[moved])) if moved.any() else math.nan


def changes_of_shown(trajectory: Trajectory, parameter: str) -> Changes | None:
    """The changes of the exposed rows; None where exposure was not recorded, or for fewer than two rows of a table."""
    rows = exposed_rows(trajectory, parameter)
    is_table = parameter in TABLES
    if rows is None or (is_table and len(rows) < 2):
        return None
    before, after = (_row_values(trajectory.snapshots[at], parameter, rows) for at in (0, -1))
    return Changes(rows, before, after - before, is_table)


def distance_of_seeds(first: Run, second: Run, parameter: str) -> float:
    """The same drift between the ends of two runs of one condition: what another seed does (the noise floor).

    Over the rows that both showed. NaN where they did not start from the same values, or exposure was not recorded.
    """
    first_trajectory, second_trajectory = first.trajectory, second.trajectory
    first_rows, second_rows = (
        exposed_rows(trajectory, parameter) for trajectory in (first_trajectory, second_trajectory)
    )
    has_other_rows = count_rows(first_trajectory, parameter) != count_rows(second_trajectory, parameter)
    if first_rows is None or second_rows is None or has_other_rows:
        return math.nan
    rows = np.intersect1d(first_rows, second_rows)
    start, other_start = (
        _row_values(trajectory.snapshots[0], parameter, rows) for trajectory in (first_trajectory, second_trajectory)
    )
    end, other_end = (
        _row_values(trajectory.snapshots[-1], parameter, rows) for trajectory in (first_trajectory, second_trajectory)
    )
    if not np.array_equal(start, other_start) or (parameter in TABLES and len(rows) < 2):
        return math.nan
    change = other_end - end
    return _relative_size(change - change.mean(axis=0) if parameter in TABLES else change, start)


def _null_range(
    before: Array, steps: AdamSteps, history: RowSteps, log: OptimizerLog, parameter: str
) -> dict[str, float]:
    """The drift of the exposed rows under sign noise: its root mean square, and the ends of its central 95 %.

    The formulas are those of :func:`measure_beyond_noise`.
    """
    hidden, num_rows = before.shape[1], len(before)
    decay = before * (_shrinkage(before, log, parameter, steps.num_steps) - 1)
    share_left = 1.0  # of the noise, without the offset that the rows share
    if parameter in TABLES:
        decay -= decay.mean(axis=0)
        share_left = 1 - 1 / num_rows
    noise = expected_squares(steps, history, hidden)
    decay_squares = np.einsum("ij,ij->i", decay, decay)
    square = share_left * float(noise.sum()) + float(decay_squares.sum())
    size = float(np.vdot(before, before))
    spread = NORMAL_QUANTILE * math.sqrt(float((2 * noise**2 + 4 * decay_squares * noise).sum()) / hidden)
    squares = {"null": square, "null_low": max(square - spread, 0.0), "null_high": square + spread}
    return {name: math.sqrt(value / size) if size > 0 else math.nan for name, value in squares.items()}


def _shrinkage(before: Array, log: OptimizerLog, parameter: str, num_steps: int) -> float:
    """The factor that decay alone leaves of the rows, replayed with fp32's roundings on an even sample of them."""
    sample = before[np.linspace(0, len(before) - 1, min(SAMPLED_ROWS, len(before))).astype(int)]
    decayed = replay_decay(sample.astype(np.float32), log, parameter, num_steps).astype(np.float64)
    size = float(np.vdot(sample, sample))
    return float(np.vdot(sample, decayed)) / size if size > 0 else 1.0


def _movement_facts(first: Snapshot, last: Snapshot, parameter: str, added: NDArray[np.bool_]) -> dict[str, Any]:
    """has_moved, is_held and relative_drift, in one pass over all rows, a block at a time.

    ``is_held``: whether only ``added`` rows moved, which count in has_moved and relative_drift alone.
    """
    row_pass = RowPass({"norm": MEASURES["norm"]}, len(added))
    for rows, (before, after) in iterate_blocks((first, last), parameter, scratch=row_pass.scratch):
        row_pass.add(rows, before, after)
    change, reference = row_pass.squares()
    return {
        "has_moved": bool(change > 0),
        "is_held": not (row_pass.values()["norm"][~added] > 0).any(),
        "relative_drift": whole_values(change, reference)["relative"],
    }


def _row_values(snapshot: Snapshot, parameter: str, rows: NDArray[np.int64]) -> Array:
    """(n, hidden) float64 values of some rows of a parameter; a LayerNorm vector is one row."""
    return np.atleast_2d(np.asarray(snapshot.tensors[parameter]))[rows].astype(np.float64)


def _relative_size(change: Array, reference: Array) -> float:
    """‖change‖ / ‖reference‖; NaN where the reference is 0."""
    size = float(np.vdot(reference, reference))
    return math.sqrt(float(np.vdot(change, change)) / size) if size > 0 else math.nan


PARTS = ("exposed_relative_drift", "unexposed_relative_drift")
"""‖Δ‖ / ‖E⁰‖ of the rows that training exposed, and of the others."""
VALUES = ("drift_percent", "exposed_percent", "unexposed_percent", "times_noise")


@with_columns
def drift_table(runs: Runs | Run | str | Path, labels: Labels | None = None) -> pd.DataFrame:
    """One line per model, task, condition and embedding parameter at the last epoch, means over seeds; for a paper.

    Means over seeds; rows are those of the tables: NaN for LayerNorm, without exposure, and where there is no such row;
    ``times_noise`` is NaN where it is refused. ``labels``: run directory name to condition.
    :func:`toolkit.export_table` writes it as LaTeX. ValueError as of :func:`toolkit.compare`.

    Examples
    --------
    >>> toolkit.drift_table(runs)[["condition", "parameter", "is_frozen"]].tail(1).to_string(header=False)
    '9  embeddings frozen  LayerNorm.bias  True'
    """
    return drift_table_of_groups(arrange([runs] if isinstance(runs, Run | str | Path) else runs, labels))


def drift_table_of_groups(groups: Sequence[Group], drift: pd.DataFrame | None = None) -> pd.DataFrame:
    """:func:`drift_table` of groups that are arranged already.

    ``drift``: :func:`drift_of` each of their runs, led by the run's name, where it is known.
    """
    records = [
        record for group in groups for condition in group.conditions for record in _table_records(condition, drift)
    ]
    return pd.DataFrame(records, columns=columns_of("drift_table"))


def _table_records(condition: Condition, drift: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    """A record per parameter of a condition: means and standard deviations over its seeds."""
    parts = [drift_of(run) if drift is None else drift[drift["run"] == run.name] for run in condition.runs]
    table = pd.concat(parts)
    table = table.assign(times_noise=table["times_noise"].where(table["reason"] == ""))
    for value, source in zip(VALUES, ("relative_drift", *PARTS), strict=False):
        table[value] = 100 * table[source]
    for parameter, parameter_drift in table.groupby("parameter", sort=False):
        record: dict[str, Any] = {
            "model": condition.runs[0].model,
            "task": condition.runs[0].task,
            "condition": condition.label,
            "parameter": parameter,
            "num_seeds": len(parameter_drift),
            "is_frozen": condition.is_proven_frozen(str(parameter)),
        }
        for value in VALUES:
            over_seeds = statistics(parameter_drift[value])
            record |= {value: over_seeds["mean"], f"{value}_sd": over_seeds["sd"]}
        yield record


def drift_of(run: ReportedRun) -> pd.DataFrame:
    """:func:`measure_moved` of a run; ValueErrors name it."""
    try:
        return measure_moved(run.run)
    except ValueError as error:  # of several runs, which one
        raise ValueError(f"{run.name}: {error}") from None


def measure_moved(source: Source) -> pd.DataFrame:
    """:func:`measure_beyond_noise`, and PARTS: NaN for LayerNorm, without exposure, and without such a row."""
    table, trajectory = measure_beyond_noise(source), trajectory_of(source)
    ends, parts = (trajectory.snapshots[0], trajectory.snapshots[-1]), []
    for parameter in table["parameter"]:
        exposed = exposed_rows(trajectory, parameter)
        if parameter not in TABLES or exposed is None:
            parts.append((math.nan, math.nan))
            continue
        is_exposed = (~is_added(trajectory, parameter)).astype(np.int64) - 1  # -1 of an added row, in neither part
        is_exposed[exposed] = True
        sums = {True: np.zeros(2), False: np.zeros(2)}
        for rows, (before, after) in iterate_blocks(ends, parameter, scratch=Scratch()):
            after -= before
            for kind, total in sums.items():
                is_of_kind = is_exposed[rows] == kind
                total += dots(after, after)[is_of_kind].sum(), dots(before, before)[is_of_kind].sum()
        shares = [math.sqrt(change / size) if size > 0 else math.nan for change, size in sums.values()]
        parts.append((shares[0], shares[1]))
    return table.assign(**dict(zip(PARTS, zip(*parts, strict=True), strict=True)))
