"""Regression of the exposed rows' drift on exposure and initial norm."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.adam import AdamSteps, replay_decay, resolve_log, row_steps
from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.measures import Array, norm
from toolkit.analysis.nulls import expected_squares
from toolkit.analysis.strata import count_rows, table_exposure
from toolkit.lookup import lookup
from toolkit.schema import with_columns
from toolkit.snapshots.optimizer_log import OptimizerLog
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

FEWEST_ROWS = 20
EXPOSURES = {"num_steps": "optimizer steps that exposed the row", "num_tokens": "tokens that used the row"}


@with_columns
def regress_drift(
    source: Source,
    parameter: str = "word_embeddings",
    *,
    epoch: float | None = None,
    exposure: str = "num_steps",
    log: OptimizerLog | None = None,
) -> pd.DataFrame:
    """Least squares of log ‖Δ‖ on log exposure and log ‖E⁰‖, over rows that were exposed and moved.

    Parameters
    ----------
    exposure
        ``num_steps`` or ``num_tokens``, counted up to the epoch.

    Returns
    -------
    pandas.DataFrame
        One line per term and outcome, with 95 % intervals. Outcome ``drift`` is what was observed; ``sign noise`` is,
        on the same rows, the root mean square drift that random gradient signs of recorded norms give.

    Raises
    ------
    ValueError
        Fewer than 20 rows, a regressor that is constant, a frozen parameter, or no exposure or optimizer log.

    Notes
    -----
    **A slope below 1 on exposure is no finding**: Adam's normalised steps make noise grow as a root of the number of
    steps, so that drift per occurrence falls with frequency by construction. Only what differs between the two outcomes
    comes from the data. Rows share the gradients of one run, so the intervals are narrower than repeats with other
    seeds would be. Standard errors are HC3 (MacKinnon & White 1985, through statsmodels).
    """
    trajectory, log = trajectory_of(source), resolve_log(source, log)
    lookup(EXPOSURES, exposure, "exposure")
    num_rows = count_rows(trajectory, parameter)
    first, last = trajectory.at(0), trajectory.at_or_last(epoch)
    steps = AdamSteps.of(log, parameter, last.step)
    history = row_steps(trajectory, parameter, last.step)
    drift, length = _lengths(first, last, parameter)
    chosen = np.flatnonzero((history.counts > 0) & (drift > 0) & (length > 0))
    counts = history.counts if exposure == "num_steps" else _token_counts(trajectory, parameter, last.step)
    regressors = {f"log_{exposure}": np.log(counts[chosen]), "log_norm": np.log(length[chosen])}
    _check(regressors, parameter, num_rows)
    hidden = first.tensors[parameter].shape[-1]
    squares = expected_squares(steps, history.take(chosen), hidden)
    noise = np.sqrt(squares + _squared_decay(first, parameter, chosen, log, last.step))
    outcomes = {"drift": drift[chosen], "sign noise": noise}
    return pd.DataFrame(
        [
            {"outcome": name, **line, "num_left_out": num_rows - len(chosen)}
            for name, values in outcomes.items()
            for line in _fit(np.log(values), regressors)
        ]
    )


def _lengths(first: Snapshot, last: Snapshot, parameter: str) -> tuple[Array, Array]:
    """(rows,) ‖Δ‖ and ‖E⁰‖."""
    pairs = [blocks for _, blocks in iterate_blocks([first, last], parameter)]
    drift = np.concatenate([norm(before, after) for before, after in pairs])
    return drift, np.concatenate([norm(np.zeros_like(before), before) for before, _ in pairs])


def _token_counts(trajectory: Trajectory, parameter: str, last_step: int) -> NDArray[np.int64]:
    table = table_exposure(trajectory, parameter)
    if table is None:
        raise ValueError(f"tokens of {parameter} were not counted: pass exposure='num_steps'")
    return table.token_counts(count_rows(trajectory, parameter), last_step)


def _squared_decay(first: Snapshot, parameter: str, rows: NDArray[np.intp], log: OptimizerLog, last_step: int) -> Array:
    """(n,) ‖replayed decay‖² of some rows, a block at a time."""
    table, squares = np.atleast_2d(np.asarray(first.tensors[parameter])), np.zeros(len(rows))
    for start in range(0, len(rows), 512):
        block = table[rows[start : start + 512]]
        change = np.subtract(replay_decay(block, log, parameter, last_step), block, dtype=np.float64)
        squares[start : start + 512] = np.einsum("ij,ij->i", change, change)
    return squares


def _check(regressors: dict[str, Array], parameter: str, num_rows: int) -> None:
    for name, values in regressors.items():
        if len(values) < FEWEST_ROWS:
            raise ValueError(
                f"{len(values)} of {num_rows} rows of {parameter} were exposed and moved; "
                f"a regression needs {FEWEST_ROWS}"
            )
        if np.ptp(values) == 0:
            raise ValueError(f"{name} is the same for all {len(values)} rows of {parameter}: it has no slope")


def _fit(outcome: Array, regressors: dict[str, Array]) -> list[dict[str, Any]]:
    import statsmodels.api as sm

    design = np.column_stack([np.ones(len(outcome)), *regressors.values()])
    fit = sm.OLS(outcome, design).fit(cov_type="HC3", use_t=True)
    interval = fit.conf_int(0.05)
    return [
        {
            "term": term,
            "value": float(fit.params[i]),
            "low": float(interval[i, 0]),
            "high": float(interval[i, 1]),
            "se": float(fit.bse[i]),
            "p": float(fit.pvalues[i]),
            "r_squared": float(fit.rsquared),
            "num_rows": len(outcome),
        }
        for i, term in enumerate(("constant", *regressors))
    ]
