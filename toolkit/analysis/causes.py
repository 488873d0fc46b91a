"""Why each row moved: weight decay, gradients, and momentum after the last gradient.

Δ = decay + update, exactly: decay is what replaying the logged decay makes of the reference, update is the rest, which
is what the optimizer's steps did. A rounding of training belongs to the update.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.adam import AdamSteps, Ints, replay_decay, resolve_log, row_steps
from toolkit.analysis.drift import ALL_ROWS
from toolkit.analysis.measures import lengths
from toolkit.analysis.strata import count_rows, describe_rows, table_exposure
from toolkit.families import TABLES
from toolkit.schema import with_columns
from toolkit.snapshots.logs import OptimizerLog
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

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
"""Rows replayed at a time: a large table does not fill the memory."""


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
        not recorded.

    Raises
    ------
    ValueError
        There is no optimizer log, ``log`` is not the run's own, or the epochs are not in order.
    """
    trajectory = trajectory_of(source)
    log = resolve_log(source, log)
    num_rows = count_rows(trajectory, parameter)
    reference, current = trajectory.at(reference_epoch), trajectory.at_or_last(epoch)
    _check_order(reference, current, log)
    is_frozen = parameter not in log.weight_decay or bool(np.isnan(log.learning_rates[: current.step]).all())
    has_momentum = is_frozen or AdamSteps.of(log, parameter, current.step).has_momentum
    log_since = replace(log, learning_rates=log.learning_rates[reference.step :])
    blocks = []
    for start in range(0, num_rows, BLOCK_ROWS):
        before, after = (
            np.atleast_2d(np.asarray(snapshot.tensors[parameter]))[start : start + BLOCK_ROWS]
            for snapshot in (reference, current)
        )
        replayed = replay_decay(before, log_since, parameter, current.step - reference.step)
        blocks.append(_parts_of_change(before, replayed, after))
    drift, decay, update, has_moved, is_updated = map(np.concatenate, zip(*blocks, strict=True))
    exposure = _count_exposures(trajectory, parameter, reference.step, current.step)
    last_steps = None if exposure is None else exposure["last_step"]
    unknown = dict.fromkeys(("num_steps", "last_step"), [pd.NA] * num_rows)
    return pd.DataFrame(
        {
            **describe_rows(trajectory, parameter),
            **{name: pd.array(column, dtype="Int64") for name, column in (exposure or unknown).items()},
            "drift": drift,
            "decay": decay,
            "update": update,
            "cause": _name_causes(has_moved, is_updated, last_steps, reference.step, has_momentum=has_momentum),
        }
    )


def _parts_of_change(before: NDArray[Any], replayed: NDArray[Any], after: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """(rows,) each: ‖drift‖, ‖decay‖ and ‖update‖, and whether a row moved, and is not where decay leaves it."""
    drift, decay, update = (
        lengths(np.subtract(later, earlier, dtype=np.float64))
        for later, earlier in ((after, before), (replayed, before), (after, replayed))
    )
    return drift, decay, update, (after != before).any(axis=1), (after != replayed).any(axis=1)


def _check_order(reference: Snapshot, current: Snapshot, log: OptimizerLog) -> None:
    """ValueError where two snapshots are not in order or the log is too short."""
    if reference.step >= current.step:
        raise ValueError(
            f"epoch {current.epoch:g} (step {current.step}) is not after the reference, epoch "
            f"{reference.epoch:g} (step {reference.step}): pass a later epoch, or an earlier reference_epoch"
        )
    if current.step > log.num_steps:
        raise ValueError(f"the optimizer log has {log.num_steps} steps, the snapshot is of step {current.step}")


def _count_exposures(trajectory: Trajectory, parameter: str, start: int, end: int) -> dict[str, Ints] | None:
    """(rows,) exposures of each row after step ``start``, and the last up to ``end``; None where not recorded."""
    if parameter in TABLES and table_exposure(trajectory, parameter) is None:
        return None
    history = row_steps(trajectory, parameter, end)
    owners = np.repeat(np.arange(len(history)), history.counts)
    since = np.bincount(owners[history.steps >= start], minlength=len(history))
    return {"num_steps": since, "last_step": history.last}


def _name_causes(
    has_moved: NDArray[np.bool_],
    is_updated: NDArray[np.bool_],
    last_steps: Ints | None,
    reference_step: int,
    *,
    has_momentum: bool,
) -> NDArray[np.object_]:
    """(rows,) the cause of each row's change: the first that applies.

    ``last_steps``: the step of each row's last exposure.
    """
    conditions: list[Any] = [~has_moved, ~is_updated]
    names = ["did not move", "weight decay alone"]
    if last_steps is None:
        conditions, names = [*conditions, is_updated], [*names, "exposure unknown"]
    else:
        conditions += [last_steps <= (0 if has_momentum else reference_step), last_steps <= reference_step]
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
    unexposed = rows[(rows["last_step"] == 0).fillna(False)]
    unexposed_total = float(np.square(unexposed["drift"]).sum())
    unexplained = float(np.square(unexposed["update"]).sum()) / unexposed_total if unexposed_total > 0 else np.nan
    return {
        "stratum": name,
        "num_rows": len(rows),
        **{f"num_{cause.replace(' ', '_')}": int((rows["cause"] == cause).sum()) for cause in CAUSES},
        "decay_share": squares["decay"] / total,
        "update_share": squares["update"] / total,
        "unexplained_share": unexplained,
    }
