"""Rows and the optimizer's log in, what weight decay alone makes of the rows out, and the share it leaves."""

import numpy as np
from numpy.typing import NDArray

from toolkit.counts import at_least
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.lookup import unknown
from toolkit.snapshots.optimizer_log import OptimizerLog
from toolkit.snapshots.snapshot import Trajectory

BLOCK_VALUES = 65_536
"""Values decayed at a time, 256 KiB: a block stays in the cache through all steps."""


def replay_decay(
    rows: NDArray[np.float32], log: OptimizerLog, parameter: str, last_step: int | None = None
) -> NDArray[np.float32]:
    """What weight decay alone makes of ``rows`` in ``last_step`` steps (default: all): (n, hidden) float32 both.

    Decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101) as torch.optim.AdamW rounds it: a zero gradient
    leaves both moments 0 and the Adam update ±0 (eps > 0), and what is left of a step is one fp32 product with
    1 - lr·wd rounded to fp32. So the product alone is bit-identical to the optimizer, plain and fused, on the CPU
    (a test holds it to both), and lr·wd ≤ 2⁻²⁵ rounds to 1: nothing happens. torch's fused CUDA kernel
    subtracts lr·wd·E instead (read in its source, not run), so such a run leaves a share that decay would explain.

    SGD's decay is the same product (toolkit.training.optimizer). A frozen parameter (absent from ``log.weight_decay``)
    and steps without a learning rate (NaN) change nothing.
    """
    check_replayable(log)
    check_parameter(log, parameter)
    if rows.dtype != np.float32:
        raise ValueError(f"decay is replayed in the dtype of training, float32; the rows are {rows.dtype}")
    if last_step is not None and at_least("last_step", last_step, 0) > log.num_steps:
        raise ValueError(f"the optimizer log has {log.num_steps} steps; asked for the first {last_step}")
    replayed = np.array(rows, order="C", subok=False)
    rates = log.learning_rates[:last_step]
    # The same float64 arithmetic and one rounding that torch does with Python's lr and wd.
    factors = (1 - rates[~np.isnan(rates)] * log.weight_decay.get(parameter, 0.0)).astype(np.float32)
    factors = factors[factors != 1]
    flat = replayed.reshape(-1)
    for start in range(0, flat.size, BLOCK_VALUES):
        block = flat[start : start + BLOCK_VALUES]
        for factor in factors:
            np.multiply(block, factor, out=block)
    return replayed


def check_replayable(log: OptimizerLog) -> None:
    """ValueError for a log of another optimizer than AdamW or SGD without momentum, whose updates are not known."""
    if not (log.is_adamw or log.is_sgd):
        raise ValueError(
            "only torch.optim.AdamW, and torch.optim.SGD without momentum or decay of its own, can be replayed; "
            f"this run used {log.algorithm}"
        )


def check_parameter(log: OptimizerLog, parameter: str) -> None:
    """ValueError for a name that is no embedding parameter's nor one of the log, which has over a hundred."""
    if parameter not in EMBEDDING_PARAMETERS and parameter not in log.weight_decay:
        said = unknown(parameter, "parameter", EMBEDDING_PARAMETERS)
        raise ValueError(f"{said}; or any other that was trained, by its name in the optimizer log")


def unexplained_share(
    reference: NDArray[np.float32], replayed: NDArray[np.float32], current: NDArray[np.float32]
) -> float:
    """Σ‖current - replayed‖² / Σ‖current - reference‖² over (n, hidden) rows: 0 when decay explains all drift.

    Defined by this project; meant for rows of no exposure. NaN when nothing moved.
    """
    left = total = 0.0
    for before, predicted, after in zip(reference, replayed, current, strict=True):
        left += float(np.sum(np.square(np.subtract(after, predicted, dtype=np.float64))))
        total += float(np.sum(np.square(np.subtract(after, before, dtype=np.float64))))
    return left / total if total > 0 else float("nan")


def unexplained_by_decay(trajectory: Trajectory, log: OptimizerLog) -> float:
    """The share that replayed decay leaves of the drift, up to the last snapshot, of the words never seen so far.

    The optimizer may go on after that snapshot: what it did then is not in it. NaN when exposure was not recorded,
    every row was seen, or none of them moved.
    """
    parameter = "word_embeddings"
    if trajectory.exposure is None or parameter not in trajectory.exposure.tables:
        return float("nan")
    first, last = (trajectory.snapshots[i].tensors[parameter] for i in (0, -1))
    last_step = trajectory.snapshots[-1].step
    unseen = trajectory.exposure.tables[parameter].step_counts(len(first), last_step) == 0
    return unexplained_share(first[unseen], replay_decay(first[unseen], log, parameter, last_step), last[unseen])
