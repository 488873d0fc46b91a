"""A run, a parameter and an epoch in, why each row moved out: weight decay, gradients, momentum after the last of them.

Δ = decay + update, exactly: decay is what replaying the logged decay makes of the reference, update is the rest, which
is what Adam's steps did. The update splits into the part up to the row's last exposure (``gradient``) and the part
after it (``momentum``), known as momentum.py says; SGD without momentum has none. A rounding of training belongs to the
update.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.causes.adam import resolve_log
from toolkit.analysis.causes.parts import Interval
from toolkit.analysis.rows.strata import assign_strata, count_rows
from toolkit.schema import with_columns
from toolkit.snapshots.optimizer_log import OptimizerLog
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

ALL_ROWS = "all rows"
BLOCK_ROWS = 512


@with_columns
def decompose(
    source: Source,
    parameter: str,
    epoch: float | None = None,
    *,
    reference_epoch: float = 0,
    log: OptimizerLog | None = None,
) -> "pd.DataFrame":
    """One line per row of a parameter (a LayerNorm vector is one row): its change since the reference, by cause.

    ``num_steps`` counts the exposures since the reference; it and ``last_step`` are NA where exposure was not recorded.
    ``momentum_noise`` is of sign_noise.py. Norms of parts do not add up to the drift: the parts have directions.

    ``log``: needed where ``source`` is a trajectory. ValueError: no optimizer log, another than the run has, epochs out
    of order.
    """
    trajectory, log = trajectory_of(source), resolve_log(source, log)
    num_rows = count_rows(trajectory, parameter)
    work = Interval.of(trajectory, parameter, trajectory.at(reference_epoch), trajectory.at_or_last(epoch), log)
    parts = [work.measure(np.arange(i, min(i + BLOCK_ROWS, num_rows))) for i in range(0, num_rows, BLOCK_ROWS)]
    measured = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    vocabulary = trajectory.vocabulary if parameter == "word_embeddings" else None
    table = pd.DataFrame(
        {
            "row": np.arange(num_rows),
            "token": list(vocabulary.tokens) if vocabulary else [""] * num_rows,
            "stratum": assign_strata(trajectory, parameter),
            **work.exposure_columns(num_rows),
            **{name: column for name, column in measured.items() if name not in ("has_moved", "is_updated")},
            "cause": _name_causes(work, measured["has_moved"], measured["is_updated"]),
        }
    )
    table.insert(table.columns.get_loc("momentum_basis"), "momentum_noise", work.noise(num_rows))
    return table


def _name_causes(work: Interval, has_moved: NDArray[np.bool_], is_updated: NDArray[np.bool_]) -> NDArray[np.object_]:
    conditions: list[Any] = [~has_moved, ~is_updated]
    names = ["did not move", "weight decay alone"]
    if work.history is None:
        conditions, names = [*conditions, is_updated], [*names, "exposure unknown"]
    else:
        last = work.history.last
        has_momentum = work.steps is None or work.steps.has_momentum
        conditions += [last <= (0 if has_momentum else work.path[0].step), last <= work.path[0].step]
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
) -> "pd.DataFrame":
    """One line per stratum that has rows, and one for all rows: how many moved why, and what the parts amount to.

    NaN: nothing moved, or, for ``unexplained_share``, no row that was never exposed did.
    """
    table = decompose(source, parameter, epoch, reference_epoch=reference_epoch, log=log)
    groups = [(name, table[table["stratum"] == name]) for name in table["stratum"].cat.categories]
    lines = [_summarise(name, rows) for name, rows in [*groups, (ALL_ROWS, table)] if len(rows)]
    return pd.DataFrame(lines)


def _summarise(name: str, rows: "pd.DataFrame") -> dict[str, Any]:
    squares = {column: float(np.square(rows[column]).sum()) for column in ("drift", "decay", "update")}
    total = squares["drift"] if squares["drift"] > 0 else np.nan
    unseen = rows[rows["momentum_basis"] == "none"]
    unseen_total = float(np.square(unseen["drift"]).sum())
    unexplained = float(np.square(unseen["update"]).sum()) / unseen_total if unseen_total > 0 else np.nan
    bounds = {side: float(np.square(rows[f"momentum_{side}"]).sum(min_count=1)) / total for side in ("low", "high")}
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
