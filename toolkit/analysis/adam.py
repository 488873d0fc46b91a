"""AdamW as arithmetic on a run's optimizer log: what each step's gradient contributed to a row.

AdamW (Kingma & Ba 2015, arXiv 1412.6980; Loshchilov & Hutter 2019, arXiv 1711.05101) is linear in the gradients of a
coordinate once its second moment v is known: the gradient g of step s moves it at every step t ≥ s by
-lr_t/(1-β1ᵗ) · (1-β1)β1ᵗ⁻ˢ g / (√(v_t/(1-β2ᵗ)) + eps), and every later decay shrinks that by 1 - lr·wd. The sums over
these movements are ours.

SGD without momentum is the same recursion with β1 = 0, a second moment that stays 0 (β2 = 1) and eps = 1: a gradient
moves its coordinate by -lr·g at its own step, and nothing moves after it.
"""

import json
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.measures import Array
from toolkit.analysis.strata import count_rows, table_exposure, why_unknown
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.naming import NOT_APPLICABLE, NOT_RECORDED, Refusal, at_least, lookup
from toolkit.snapshots.logs import OptimizerLog
from toolkit.snapshots.snapshot import Trajectory
from toolkit.snapshots.store import Source, run_of

BLOCK_VALUES = 65_536
"""Values decayed at a time, 256 KiB: a block stays in the cache through all steps."""


def replay_decay(
    rows: NDArray[np.float32], log: OptimizerLog, parameter: str, last_step: int | None = None
) -> NDArray[np.float32]:
    """What weight decay alone makes of some rows.

    Parameters
    ----------
    rows
        (n, hidden) float32 rows before the first step.
    log
        Optimizer log of the run.
    parameter
        Name of the parameter that the rows belong to. A frozen one (absent from ``log.weight_decay``) does not change.
    last_step
        Number of steps to replay; None replays all. Steps without a learning rate (NaN) change nothing.

    Returns
    -------
    numpy.ndarray
        (n, hidden) float32 rows after the last step.

    Raises
    ------
    ValueError
        The rows are not float32, the log is shorter than ``last_step``, another optimizer than AdamW or SGD without
        momentum made it, or no parameter has that name.

    Notes
    -----
    Decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101) as torch.optim.AdamW rounds it: with a zero
    gradient both moments stay 0 and the Adam update is ±0 (eps > 0), which leaves one fp32 product with 1 - lr·wd
    rounded to fp32. That product is bit-identical to the optimizer, plain and fused, on the CPU (a test holds it to
    both); lr·wd ≤ 2⁻²⁵ rounds to 1, so that nothing happens. torch's fused CUDA kernel subtracts lr·wd·E instead (read
    in its source, not run): there a share remains that decay would explain. SGD's decay is the same product
    (toolkit.training.optimizer).
    """
    check_replayable(log)
    check_parameter(parameter)
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
    if not log.is_replayable:
        raise ValueError(
            "only torch.optim.AdamW, and torch.optim.SGD without momentum or decay of its own, can be replayed; "
            f"this run used {log.algorithm}"
        )


def check_parameter(parameter: str) -> None:
    """ValueError for another name than an embedding parameter's, whose learning rate the log has."""
    lookup(dict.fromkeys(EMBEDDING_PARAMETERS), parameter, "parameter")


def unexplained_share(
    reference: NDArray[np.float32], replayed: NDArray[np.float32], current: NDArray[np.float32]
) -> float:
    """Σ‖current - replayed‖² / Σ‖current - reference‖² over (n, hidden) rows: 0 when decay explains all drift.

    Defined by this project; meant for rows of no exposure. NaN when nothing moved.
    """
    unexplained = total = 0.0
    for before, predicted, after in zip(reference, replayed, current, strict=True):
        unexplained += float(np.sum(np.square(np.subtract(after, predicted, dtype=np.float64))))
        total += float(np.sum(np.square(np.subtract(after, before, dtype=np.float64))))
    return unexplained / total if total > 0 else float("nan")


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
        return np.where(self.counts > 0, np.append(self.steps, 0)[np.cumsum(self.counts) - 1] + 1, 0)

    @property
    def has_norms(self) -> NDArray[np.bool_]:
        """(rows,) whether the norm is known at each exposure."""
        return np.asarray(np.bincount(self._owners(), np.isnan(self.norms), len(self)) == 0)

    def take(self, rows: NDArray[np.integer]) -> "RowSteps":
        """The exposures of some of the rows, in the order given."""
        starts = np.cumsum(self.counts) - self.counts
        counts = self.counts[rows]
        indices = np.arange(counts.sum()) + np.repeat(starts[rows] - (np.cumsum(counts) - counts), counts)
        return RowSteps(self.num_steps, counts, self.steps[indices], self.norms[indices])

    def gradients(self, clipping_factors: Array, hidden: int, unknown: float = 1.0) -> Array:
        """(rows, steps) float64 size of each coordinate's gradient after clipping, 0 where the row was not exposed.

        The norm is spread equally over ``hidden`` coordinates; a row without all its norms gets ``unknown`` at
        each exposure.
        """
        owners = self._owners()
        sizes = self.norms * clipping_factors[self.steps] / np.sqrt(hidden)
        gradients = np.zeros((len(self), self.num_steps))
        gradients[owners, self.steps] = np.where(self.has_norms[owners], sizes, unknown)
        return gradients

    def at_exposures(self, values: Array) -> NDArray[np.float32]:
        """(rows, steps) values to (rows, most exposures) float32: those of each row's exposures, 0 beyond its last."""
        owners = self._owners()
        ordinals = np.arange(len(owners)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        values_at_exposures = np.zeros((len(self), int(self.counts.max(initial=0))), np.float32)
        values_at_exposures[owners, ordinals] = values[owners, self.steps]
        return values_at_exposures

    def _owners(self) -> Ints:
        """(exposures,) the row of each."""
        return np.repeat(np.arange(len(self)), self.counts)


def row_steps(trajectory: Trajectory, parameter: str, num_steps: int) -> RowSteps:
    """The exposures of every row of a parameter in the first ``num_steps`` steps.

    A LayerNorm vector has a gradient at every step, of a norm that is not recorded. ValueError when the exposure of a
    table was not recorded, or ends before.
    """
    num_rows = count_rows(trajectory, parameter)
    if parameter not in TABLES:
        return RowSteps(num_steps, np.array([num_steps]), np.arange(num_steps), np.full(num_steps, np.nan))
    table = table_exposure(trajectory, parameter)
    if table is None:
        raise ValueError(f"{why_unknown(trajectory, parameter)}: which steps moved its rows is unknown")
    if table.num_steps < num_steps:
        shortfall = f"the exposure of {parameter} ends at step {table.num_steps}, the snapshot is of {num_steps}"
        raise Refusal(shortfall, NOT_RECORDED)
    end = int(table.offsets[num_steps])
    steps = np.repeat(np.arange(num_steps), np.diff(table.offsets[: num_steps + 1]))
    order = np.argsort(table.rows[:end], kind="stable")
    counts = table.step_counts(num_rows, num_steps)
    return RowSteps(num_steps, counts, steps[order], table.norms[:end][order].astype(np.float64))


def resolve_log(source: Source, log: OptimizerLog | None) -> OptimizerLog:
    """:func:`given_log`; ValueError also when there is none, or it is not of AdamW nor of SGD without momentum."""
    log = given_log(source, log)
    if log is None:
        if (run := run_of(source)) is None:
            raise ValueError("a trajectory has no optimizer log: pass the run, or log=run.optimizer_log beside it")
        problems = run.manifest.get("problems") if run.is_finished else None
        problem_note = f" ({'; '.join(problems)})" if problems else ""
        message = f"{run.path} has no optimizer.json: without it, why rows moved is not known{problem_note}"
        raise Refusal(message, NOT_APPLICABLE if run.adapted else NOT_RECORDED)
    check_replayable(log)
    return log


def given_log(source: Source, log: OptimizerLog | None) -> OptimizerLog | None:
    """The optimizer log given, or else that of the run, if any; ValueError for one that is not of the run."""
    run = run_of(source)
    run_log = None if run is None else run.optimizer_log
    if run is None or run_log is None or log is None:
        return log if run_log is None else run_log
    run_fields, given_fields = (json.loads(either.to_json()) for either in (run_log, log))
    if differing := [name.replace("_", " ") for name in run_fields if run_fields[name] != given_fields[name]]:
        raise ValueError(
            f"log= is not of {run.path}: the run's own differs in {' and '.join(differing)}; leave log= out"
        )
    return log


@dataclass(frozen=True, slots=True)
class AdamSteps:
    """What AdamW (or SGD) multiplies by at each of the first ``num_steps`` steps, for one parameter: (steps,)."""

    step_sizes: Array
    """lr_t / (1 - β1ᵗ)."""
    root_corrections: Array
    """√(1 - β2ᵗ)."""
    survivals: Array
    """What decay leaves at the end of what was added at each step: the product of all later decay factors."""
    clipping_factors: Array
    betas: tuple[float, float]
    eps: float

    @classmethod
    def of(cls, log: OptimizerLog, parameter: str, num_steps: int) -> "AdamSteps":
        """ValueError when the parameter was frozen, a learning rate is NaN or the log ends before ``num_steps``."""
        check_parameter(parameter)
        if parameter not in log.weight_decay:
            raise ValueError(f"{parameter} was frozen in this run: the optimizer never moved it")
        if num_steps > log.num_steps:
            message = f"the optimizer log has {log.num_steps} steps, the snapshot is of step {num_steps}"
            raise Refusal(message, NOT_RECORDED)
        rates = log.learning_rates[:num_steps]
        if np.isnan(rates).any():
            step = int(np.flatnonzero(np.isnan(rates))[0]) + 1
            raise ValueError(f"the learning rate of step {step} is NaN: the backbone was frozen, nothing to replay")
        steps = np.arange(1, num_steps + 1, dtype=np.float64)
        factors = 1 - rates * log.weight_decay[parameter]
        survivals = np.cumprod(np.append(factors[1:], 1.0)[::-1])[::-1] if num_steps else factors
        clipping_factors = log.clipping_factors[:num_steps]
        if log.is_sgd:
            return cls(rates, np.ones(num_steps), survivals, clipping_factors, betas=(0.0, 1.0), eps=1.0)
        return cls(
            step_sizes=rates / (1 - log.betas[0] ** steps),
            root_corrections=np.sqrt(1 - log.betas[1] ** steps),
            survivals=survivals,
            clipping_factors=clipping_factors,
            betas=log.betas,
            eps=log.eps,
        )

    @property
    def num_steps(self) -> int:
        return len(self.step_sizes)

    @property
    def has_momentum(self) -> bool:
        """Whether a gradient moves its row after its own step too."""
        return self.betas[0] > 0

    @property
    def unknown_size(self) -> float:
        """What gradients of unknown size count as: 1 where steps are divided by what gradients were, so that only their
        being equal matters; else NaN, since nothing is known of the movement."""
        return 1.0 if self.betas[1] < 1 else float("nan")

    def sizes(self, history: RowSteps, hidden: int) -> Array:
        """(rows, steps) :meth:`RowSteps.gradients` after clipping."""
        return history.gradients(self.clipping_factors, hidden, self.unknown_size)

    def since(self, start: int) -> "AdamSteps":
        """Without the first ``start`` steps, in which nothing happened."""
        names = ("step_sizes", "root_corrections", "survivals", "clipping_factors")
        return replace(self, **{name: getattr(self, name)[start:] for name in names})


def gradient_weights(steps: AdamSteps, gradients: Array) -> Array:
    """What each gradient comes to: (n, steps) |g| after clipping to (n, steps) |movement at the end|, float64.

    Entry (i, s) is how far the gradient of step s has moved coordinate i by the last step, decay included, for n
    coordinates whose squared gradients are those of ``gradients``: the second moments, and so every denominator, know
    no signs. With signs ε_s the coordinate has moved by -Σ_s ε_s·weights[i, s] (ours; exact but for fp32 rounding).
    """
    from scipy.signal import lfilter

    beta1, beta2 = steps.betas
    second_moments = lfilter([1 - beta2], [1, -beta2], np.square(gradients), axis=1)
    denominators = np.sqrt(second_moments) / steps.root_corrections + steps.eps
    # Movement at the end per unit of first moment at each step.
    per_moment = steps.step_sizes * steps.survivals / denominators
    # The same per unit of gradient, Σ over t ≥ s of β1ᵗ⁻ˢ·per_moment[t]: a first moment fades by β1 with every step.
    per_gradient = lfilter([1], [1, -beta1], per_moment[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(gradients * (1 - beta1) * per_gradient)
