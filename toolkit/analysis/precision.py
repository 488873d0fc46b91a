"""The smallest change that a weight's precision admits: the guard before any claim of "no drift".

A floating-point weight can only move in steps of one unit in its last place (ulp). An update below half of that is
rounded away, every time, however long training lasts.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.adam import given_log
from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.measures import Array
from toolkit.naming import lookup
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.logs import OptimizerLog
from toolkit.snapshots.store import Run, Source, open_run, trajectory_of


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format."""

    name: str
    bits: int
    """Significant bits, the hidden one included."""
    lowest: int
    """Exponent of the smallest subnormal number, 2^lowest."""
    largest: float

    def round(self, values: Array) -> Array:
        """(...,) float64 to the nearest values of the format, ties to even; beyond the largest: infinity."""
        exponents = np.maximum(np.frexp(values)[1] - self.bits, self.lowest)
        rounded = np.ldexp(np.rint(np.ldexp(values, -exponents)), exponents)
        return np.where(np.abs(rounded) > self.largest, np.copysign(np.inf, values), rounded)


FORMATS = {
    "fp32": Format("fp32", 24, -149, float(np.finfo(np.float32).max)),
    "bf16": Format("bf16", 8, -133, (2 - 2.0**-7) * 2.0**127),
    "fp16": Format("fp16", 11, -24, 65_504.0),
}
"""IEEE 754 binary32 and binary16, and bfloat16."""

HALF_FORMATS = ("bf16", "fp16")
"""The coarsest first: most bf16 weights are fp16 numbers too."""


TELLING_VALUES = 16
"""Values other than 0 and ±1 that must fit a half precision before they count as stored in it: each fits by chance
with a probability of about 2⁻¹³ (fp16, if in its range) or 2⁻¹⁶ (bf16)."""


class FormatFinder:
    """Finds the coarsest format that holds every value it is given: weights cast up to fp32 keep few bits."""

    def __init__(self) -> None:
        self.fits = list(HALF_FORMATS)
        """The half precisions that hold every value so far."""
        self._num_telling = 0

    def add(self, values: Array) -> None:
        """Look at a block of values."""
        if self.fits:
            self._num_telling += int(np.count_nonzero((values != 0) & (np.abs(values) != 1)))
            self.fits = [name for name in self.fits if np.array_equal(FORMATS[name].round(values), values)]

    @property
    def found(self) -> Format:
        """fp32 unless enough values say otherwise."""
        is_half = bool(self.fits) and self._num_telling >= TELLING_VALUES
        return FORMATS[self.fits[0] if is_half else "fp32"]


def movable_share(table: np.ndarray, learning_rate: float, dtype: str = "fp32") -> float:
    """Share of the coordinates of a table that one update of a given size changes, in either direction.

    Parameters
    ----------
    table
        Values of any shape; they are first rounded to ``dtype``.
    learning_rate
        Size of the update. Adam's updates are about lr where gradients keep coming, and at most 3.2 lr after a rare one
        (betas .9, .999).
    dtype
        ``fp32``, ``bf16`` or ``fp16``.

    Returns
    -------
    float
        Share, 0 to 1, of the weights w for which rounding w + lr and w - lr (to the nearest, ties to even) both give
        another number. Many small updates do not add up, as each is rounded by itself.

    Raises
    ------
    ValueError
        An unknown dtype, a rate not above 0, or weights beyond the range of the dtype.
    """
    kind = lookup(FORMATS, dtype, "dtype")
    if not learning_rate > 0:
        raise ValueError(f"the learning rate must be above 0, not {learning_rate}")
    num_movable, blocks = 0, np.array_split(np.asarray(table).reshape(-1), max(1, np.size(table) // 65_536))
    for block in blocks:
        weights = kind.round(block.astype(np.float64))
        if not np.isfinite(weights).all():
            raise ValueError(
                f"the table holds values that {dtype} cannot hold: NaN, infinity or above {kind.largest:g}"
            )
        up, down = kind.round(weights + learning_rate), kind.round(weights - learning_rate)
        num_movable += int(np.sum((up != weights) & (down != weights)))
    return num_movable / np.size(table) if np.size(table) else float("nan")


def stored_precision(table: np.ndarray) -> str:
    """``fp16``, ``bf16`` or ``fp32``: what holds all values of a table exactly; fp32 files can hold bf16 weights."""
    finder = FormatFinder()
    for block in np.array_split(np.asarray(table).reshape(-1), max(1, np.size(table) // 65_536)):
        finder.add(block.astype(np.float64))
    return (*finder.fits, "fp32")[0]


@with_columns
def guard_precision(
    source: Source, epoch: float | None = None, *, log: OptimizerLog | None = None, learning_rate: float | None = None
) -> pd.DataFrame:
    """Whether each embedding parameter could have moved at all in its precision, and whether it did.

    Parameters
    ----------
    epoch
        Epoch of the snapshot, after 0; None is the last one.
    learning_rate
        The largest learning rate, where no log says it.

    Returns
    -------
    pandas.DataFrame
        One line per embedding parameter, compared with epoch 0. ``precision`` holds all values of both snapshots. The
        movable shares (see :func:`movable_share`) are of coordinates at epoch 0; NaN without a rate, under SGD, whose
        updates are not of its size, or beyond the format. Where nothing moved and the weights have half precision,
        ``finding`` is ``not identifiable: ...``: "no drift" is then never a finding.

    Raises
    ------
    ValueError
        The epoch is not after 0.
    """
    trajectory, log = trajectory_of(source), given_log(source, log)
    first, last = trajectory.at(0), trajectory.at_or_last(epoch)
    if last.epoch <= first.epoch:
        raise ValueError(f"epoch {last.epoch:g} is not after the reference, epoch 0: nothing could have moved yet")
    lines = []
    for parameter in trajectory.parameters:
        before, after = (np.asarray(snapshot.tensors[parameter]) for snapshot in (first, last))
        is_frozen, rate = _largest_rate(log, parameter, last.step, learning_rate)
        num_moved = sum(int(np.sum(a != b)) for _, (a, b) in iterate_blocks([first, last], parameter))
        # A constant such as LayerNorm's first weights fits any precision; both snapshots must.
        weights = stored_precision(np.concatenate([before.reshape(-1), after.reshape(-1)]))
        largest = float(np.abs(before).max(initial=0))
        shares = {
            f"movable_{name}": movable_share(before, rate, name) if rate > 0 and largest <= form.largest else math.nan
            for name, form in FORMATS.items()
        }
        values: dict[str, Any] = {"parameter": parameter, "precision": weights, "learning_rate": rate, **shares}
        finding = _finding(num_moved, is_frozen, weights, shares)
        lines.append({**values, "moved_share": num_moved / before.size, "finding": finding})
    return pd.DataFrame(lines)


def _largest_rate(
    log: OptimizerLog | None, parameter: str, last_step: int, learning_rate: float | None
) -> tuple[bool, float]:
    """Whether the parameter was frozen in the whole run, and its largest learning rate so far; NaN where unknown."""
    if log is None:
        return False, float("nan") if learning_rate is None else learning_rate
    rates = log.learning_rates
    is_frozen = parameter not in log.weight_decay or bool(len(rates) and np.isnan(rates).all())
    if log.is_sgd:  # its updates are as large as its gradients: the rate alone does not say what they can change
        return is_frozen, float("nan")
    known = rates[:last_step][~np.isnan(rates[:last_step])]
    return is_frozen, float("nan") if is_frozen or not len(known) else float(known.max())


def _finding(num_moved: int, is_frozen: bool, weights: str, shares: dict[str, float]) -> str:
    if num_moved:
        return "moved"
    if is_frozen:
        return "frozen"
    if weights in HALF_FORMATS:
        share = shares[f"movable_{weights}"]
        could = "an unknown share" if np.isnan(share) else f"{100 * share:.3g} %"
        return f"not identifiable: {weights} weights, of which one update can change {could}"
    return "did not move"


@with_columns
def measure_step_sizes(run: Run | str | Path) -> pd.DataFrame:
    """How large optimizer steps were, as the run noted it at each step whose number is a power of two.

    Of each trained embedding parameter: of its rows with a gradient at that step, 4,096 of them at most. What is lost
    to rounding is lost in that one step, not in training: the last line is of the last power of two. Runs that train no
    embeddings have no lines. ValueError for an unfinished run.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    noted = pd.DataFrame(opened.manifest.get("step_sizes") or {}, columns=columns_of("measure_step_sizes"))
    return noted.astype({"step": "int64", "update_to_weight": float, "lost_to_rounding": float})
