"""A run's optimizer log in, AdamW as arithmetic out: what each gradient comes to.

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

from toolkit.analysis.causes.nulls import check_parameter, check_replayable
from toolkit.analysis.causes.row_steps import RowSteps
from toolkit.analysis.rows.measures import Array
from toolkit.snapshots.optimizer_log import OptimizerLog
from toolkit.snapshots.store import Source, run_of


def resolve_log(source: Source, log: OptimizerLog | None) -> OptimizerLog:
    """:func:`given_log`; ValueError also when there is none, or it is not of AdamW nor of SGD without momentum."""
    log = given_log(source, log)
    if log is None:
        if (run := run_of(source)) is None:
            raise ValueError("a trajectory has no optimizer log: pass the run, or log=run.optimizer_log beside it")
        problems = run.manifest.get("problems") if run.is_finished else None
        because = f" ({'; '.join(problems)})" if problems else ""
        raise ValueError(f"{run.path} has no optimizer.json: why rows moved cannot be told without it{because}")
    check_replayable(log)
    return log


def given_log(source: Source, log: OptimizerLog | None) -> OptimizerLog | None:
    """The optimizer log given, or else that of the run, if any; ValueError for one that is not of the run."""
    run = run_of(source)
    own = None if run is None else run.optimizer_log
    if run is None or own is None or log is None:
        return log if own is None else own
    ours, theirs = (json.loads(each.to_json()) for each in (own, log))
    if differs := [name.replace("_", " ") for name in ours if ours[name] != theirs[name]]:
        raise ValueError(f"log= is not of {run.path}: its own differs in {' and '.join(differs)}; leave log= out")
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
        check_parameter(log, parameter)
        if parameter not in log.weight_decay:
            raise ValueError(f"{parameter} was frozen in this run: the optimizer never moved it")
        if num_steps > log.num_steps:
            raise ValueError(f"the optimizer log has {log.num_steps} steps, the snapshot is of step {num_steps}")
        rates = log.learning_rates[:num_steps]
        if np.isnan(rates).any():
            step = int(np.flatnonzero(np.isnan(rates))[0]) + 1
            raise ValueError(f"the learning rate of step {step} is NaN: the backbone was frozen, nothing to replay")
        steps = np.arange(1, num_steps + 1, dtype=np.float64)
        factors = 1 - rates * log.weight_decay[parameter]
        later = np.cumprod(np.append(factors[1:], 1.0)[::-1])[::-1] if num_steps else factors
        clipping = log.clipping_factors[:num_steps]
        if log.is_sgd:
            return cls(rates, np.ones(num_steps), later, clipping, (0.0, 1.0), 1.0)
        corrections = 1 - log.betas[0] ** steps, np.sqrt(1 - log.betas[1] ** steps)
        return cls(rates / corrections[0], corrections[1], later, clipping, log.betas, log.eps)

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

    def tails(self, *, is_below_eps: bool = False) -> tuple[Array, Array]:
        """(steps + 1,) movement in and after the update of each step per m/√v of that step, with no gradient after it.

        For a coordinate whose last gradient was at step L (counted from 1), with first and second moments m and v
        there, update L moves it by -first[L]·m/√v and all later ones together by -rest[L]·m/√v, at the last step of
        the log, as far as eps is small beside √v (the two moments fade at known rates, so the profile of the tail is
        known: ours). ``is_below_eps``: the same per m/eps for eps that is large beside √v. Index 0 is NaN.
        """
        first = self.step_sizes * self.survivals * (1.0 if is_below_eps else self.root_corrections)
        fading = self.betas[0] if is_below_eps else self.betas[0] / np.sqrt(self.betas[1])
        rest = np.zeros(self.num_steps + 1)
        for step in range(self.num_steps - 1, 0, -1):
            rest[step] = fading * (first[step] + rest[step + 1])
        rest[0] = np.nan
        return np.append(np.nan, first), rest


def gradient_weights(steps: AdamSteps, gradients: Array, after: NDArray[np.int64] | None = None) -> Array:
    """What each gradient comes to: (n, steps) |g| after clipping to (n, steps) |movement at the end|, float64.

    Entry (i, s) is how far the gradient of step s has moved coordinate i by the last step, decay included, for n
    coordinates whose squared gradients are those of ``gradients``: the second moments, and so every denominator, know
    no signs. With signs ε_s the coordinate has moved by -Σ_s ε_s·weights[i, s] (ours; exact but for fp32 rounding).
    ``after``: (n,) a step of each coordinate, counted from 1; only the movement after it counts.
    """
    divided = _divided(steps, gradients)
    if after is not None:
        divided[np.arange(steps.num_steps) < after[:, None]] = 0
    return np.asarray(gradients * (1 - steps.betas[0]) * _backwards(steps, divided))


def _divided(steps: AdamSteps, gradients: Array) -> Array:
    """(n, steps) movement at the end per unit of first moment at each step."""
    from scipy.signal import lfilter

    beta = steps.betas[1]
    second = lfilter([1 - beta], [1, -beta], np.square(gradients), axis=1)
    return np.asarray(steps.step_sizes * steps.survivals / (np.sqrt(second) / steps.root_corrections + steps.eps))


def _backwards(steps: AdamSteps, divided: Array) -> Array:
    """Σ over t ≥ s of β1ᵗ⁻ˢ·divided[t]: a first moment fades by β1 with every step."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([1], [1, -steps.betas[0]], divided[:, ::-1], axis=1)[:, ::-1])
