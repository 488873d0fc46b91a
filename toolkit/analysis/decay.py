"""Rows that only weight decay moved, separated from trained rows by the tables before and after alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.change_finders import (
    LIKE_DECAY,
    ROUNDINGS,
    TELLING_VALUES,
    Block,
    Kind,
    Pair,
    Survey,
    roundoff,
    unit_roundoff,
    where,
)
from toolkit.analysis.measures import Array
from toolkit.analysis.precision import FORMATS, HALF_FORMATS

LEAST_GAP = 10.0
"""How many times the residual of the last row below the cut the first one above it must have. In three runs of 19 and
38 steps (words and positions, the defaults) it had 5,300 to 11,300 times; among trained rows alone the largest gap was
3.5, among decayed ones 1.3. The residual of decayed rows grows with the steps: replayed over 5,000 steps with lr·decay
from 1e-7 to 2e-7 at the peak it was up to 6e-5, and up to .22 of Σ lr·decay."""

LEAST = 2.0**-100
"""Values below it are left out: their products may be subnormal, where the spacing no longer follows the value."""

MANTISSA = np.uint64(2**23 - 1)

TIED = 2
"""Spacings of fp32 up to which two values can lose the same amount and have it rounded the other way (see
is_repeated_shrinking)."""


@dataclass(frozen=True)
class RowSplit:
    """Each row's best factor, what it leaves, and where the rows fall apart into two groups.

    An exposed row is not a multiple of what it was; a row that decay alone moved is, up to the roundings of its steps,
    and the factor is the same for all of them.
    """

    factors: Array
    """(rows,) s_i = ⟨Eᵗ_i, E⁰_i⟩ / ‖E⁰_i‖²; NaN for a row that was 0."""
    residuals: Array
    """(rows,) ‖Eᵗ_i - s_i·E⁰_i‖ / ‖E⁰_i‖; NaN for a row that was 0."""
    cut: float
    """The geometric mean of the two residuals about the largest gap of log residuals; NaN without two rows."""
    gap: float
    """The larger of these two residuals by the smaller; NaN without two rows."""

    @property
    def is_below(self) -> NDArray[np.bool_]:
        """(rows,) whether the row is a multiple of what it was: its residual is below the cut; all rows without one."""
        return self.residuals < self.cut if self.cut == self.cut else np.isfinite(self.residuals)


def split_rows(pair: Pair, among: NDArray[np.bool_] | None = None) -> RowSplit:
    """Fit s_i to every row and cut at the largest gap of log residuals; nothing is decided about what the gap means.

    ``among``: (rows,) the rows that the gap is looked for among, default all. A residual below one rounding of fp32
    counts as one rounding: a gap between roundings says nothing.
    """
    factors, residuals = np.full(pair.shape[0], np.nan), np.full(pair.shape[0], np.nan)
    for rows, a, b in pair.blocks():
        change = b - a
        squares = np.vecdot(a, a)
        known = squares > 0
        # By the change, and not by the two rows, whose squares would lose a factor next to 1.
        shift = np.divide(np.vecdot(a, change), squares, out=np.full(len(a), np.nan), where=known)
        left = change - shift[:, None] * a
        factors[rows] = 1 + shift
        residuals[rows] = np.sqrt(np.divide(np.vecdot(left, left), squares, out=shift, where=known))
    chosen = np.isfinite(residuals) if among is None else np.isfinite(residuals) & among
    logs = np.log(np.maximum(np.sort(residuals[chosen]), unit_roundoff(FORMATS["fp32"])))
    if len(logs) < 2:
        return RowSplit(factors, residuals, math.nan, math.nan)
    gaps = np.diff(logs)
    place = int(np.argmax(gaps))
    cut, gap = math.exp((logs[place] + logs[place + 1]) / 2), math.exp(gaps[place])
    return RowSplit(factors, residuals, cut, gap)


def is_repeated_shrinking(blocks: Iterable[Block]) -> bool:
    """Whether fp32 products by factors below 1, one after the other and the same for all values, could be the change.

    A law of every schedule of factors (ours). A product rounded to nearest takes g(x) = x - fl(f·x) from x > 0. Neither
    fl(f·x) nor g falls as x grows within a power of two: from one x to the next, h apart, f·x grows by less than h, and
    its rounding by no more than h, which is a multiple of the spacing there. Both hold of chains of such products too,
    and x·2ᵏ moves as x does. So over all values, by their significands in [1, 2), what is left of them never falls, nor
    does what was taken, nor does either more than double. Only what was taken of a value that fell below its power of
    two may be up to a few roundings less, as the spacing halves there. Noise of 1/N of the change breaks the law for N
    values; so do two factors, a factor of each row and any map that is not linear. torch's AdamW does one such product
    per step (nulls.py). False also for fewer than TELLING_VALUES significands, of which chance could make an order.

    A step written as x - fl(c·x) keeps the law with one exception. fl(c·x) has 24 bits as well, so that x and its
    neighbours up to TIED spacings away can have one and the same; where that lies half-way between two spacings, the
    difference is rounded to even, down for one and up for the other, and the larger value loses one spacing less.
    """
    left = np.zeros(0, np.uint32)
    for _, a, b in blocks:
        if (np.abs(b) > np.abs(a)).any() or (a * b < 0).any():
            return False
        is_telling = np.abs(a) >= LEAST
        before = np.abs(a[is_telling]).astype(np.float32).view(np.uint32).astype(np.int64)
        after = np.abs(b[is_telling]).astype(np.float32).view(np.uint32).astype(np.int64)
        # Both over the power of two of the first, as the bits of fp32: their order is that of the values.
        scaled = after - (((before >> 23) - 127) << 23)
        if (scaled <= 0).any() or (after < 1 << 23).any():
            return False
        if not len(left):
            left = np.zeros(2**23, np.uint32)
        places, new = before & int(MANTISSA), scaled.astype(np.uint32)
        known = left[places]
        if ((known != 0) & (known != new)).any():
            return False
        left[places] = new
        if not np.array_equal(left[places], new):
            return False
    places = np.flatnonzero(left)
    if len(places) < TELLING_VALUES:
        return False
    rest = left[places].view(np.float32).astype(np.float64)
    taken = 1 + places / 2**23 - rest
    slack = np.where(rest < 1, ROUNDINGS * 2.0**-23, 0.0)
    most_taken = np.maximum.accumulate(taken - slack)
    apart = np.searchsorted(places, places - TIED)  # so many values are further below than TIED spacings
    is_ordered = (
        bool((np.diff(rest) >= 0).all())
        and bool((taken[1:] >= most_taken[:-1] - 2.0**-23).all())
        and bool((taken[apart > 0] >= most_taken[apart[apart > 0] - 1]).all())
    )
    return is_ordered and bool(rest[-1] <= 2 * rest[0] and taken[-1] <= 2 * (taken[0] + slack[0]) and taken[0] > 0)


@dataclass(frozen=True, slots=True)
class Decay:
    """What decay did to some rows."""

    total: float
    """Σ lr·decay = -ln s, with one s for all of the rows by least squares: what came of it in fp32, which rounds each
    step, so that the schedule itself may add up to more or less."""
    share_left: float
    """Σ‖Eᵗ_i - s·E⁰_i‖² / Σ‖Δ_i‖²."""
    is_several: bool
    """Whether these are the products of several steps, small ones or many: no single factor, rounded once, gives every
    value, and Σ is below LIKE_DECAY or a value is further from s·E⁰ than ROUNDINGS roundings."""


def fit_decay(found: Survey, rows: NDArray[np.bool_]) -> Decay | None:
    """The decay of the given rows, (rows,) bool; None where it is not what moved them. For fp32 only: a type of two
    bytes rounds once more, and hardly any decay moves it."""
    if found.form.name in HALF_FORMATS or not is_repeated_shrinking(_only(found, rows)):
        return None
    squares = inner = changed = 0.0
    for _, a, b in _only(found, rows):
        squares += float(np.einsum("ij,ij->", a, a))
        inner += float(np.einsum("ij,ij->", a, b - a))
        changed += float(np.square(b - a).sum())
    factor = 1 + inner / squares
    left, is_far, least, most = 0.0, False, 0.0, math.inf
    for _, a, b in _only(found, rows):
        residual = np.abs(b - factor * a)
        left += float(np.square(residual).sum())
        is_far = is_far or bool((residual > ROUNDINGS * (roundoff(found.form, b) + roundoff(found.form, a))).any())
        known = np.abs(a) >= LEAST
        a, b, error = np.abs(a[known]), np.abs(b[known]), roundoff(found.form, b[known])
        least = max(least, float(((b - error) / a).max(initial=0)))
        most = min(most, float(((b + error) / a).min(initial=math.inf)))
    total = -math.log(factor)
    return Decay(total, left / changed, least > most and (is_far or total < LIKE_DECAY))


def _only(found: Survey, rows: NDArray[np.bool_]) -> Iterable[Block]:
    for numbers, a, b in found.pair.blocks():
        if (keep := rows[numbers]).any():
            yield numbers[keep], a[keep], b[keep]


def find_decay(found: Survey) -> Kind | None:
    """``decay``: every moved value is what several fp32 products by factors below 1 make of it, of any schedule.

    Where one product gives every value, the kind is ``scaling``: a single step of decay does the same, and that is
    said there. So are several large products that leave few roundings, as of a model halved twice.
    """
    decay = fit_decay(found, found.moved)
    if decay is None or not decay.is_several:
        return None
    still = found.num_rows - found.num_moved
    blocks = found.pair.blocks() if still else ()
    contradicting = sum(int(a[~found.moved[rows]].any(axis=1).sum()) for rows, a, _ in blocks)
    detail = f"Σ lr·decay = {decay.total:.3g}" + where(found, contradicting)
    facts = {"num_decayed": found.num_moved, "sum_lr_decay": decay.total}
    return Kind("decay", decay.total, "Σ lr·decay", detail, decay.share_left, facts=facts)


def find_decay_and_training(found: Survey) -> Kind | None:
    """``decay and training``: some moved rows are as in ``decay``, the others moved otherwise, with a gap between them.

    The rows below the largest gap of log residuals (split_rows), which must be LEAST_GAP wide, are decay's where the
    law of is_repeated_shrinking holds of all of them together, and several products are needed. The size is that of
    the other rows, ‖Δ‖/‖E⁰‖.
    """
    if not found.pair.is_table or found.num_moved < 2:
        return None
    split = split_rows(found.pair, found.moved)
    if not split.gap >= LEAST_GAP:
        return None
    decayed = split.is_below & found.moved
    decay = fit_decay(found, decayed)
    # One product is a scaling of some rows: none of the kinds.
    if decay is None or not decay.is_several:
        return None
    squares, changed = 0.0, 0.0
    for _, a, b in _only(found, found.moved & ~decayed):
        squares, changed = squares + float(np.square(a).sum()), changed + float(np.square(b - a).sum())
    num_decayed = int(decayed.sum())
    num_trained = found.num_moved - num_decayed
    detail = f"decay on {num_decayed:,} of {found.num_rows:,} rows, training on {num_trained:,}"
    detail += f"; Σ lr·decay = {decay.total:.3g}"
    facts = {"num_decayed": num_decayed, "sum_lr_decay": decay.total}
    size = math.sqrt(changed / squares) if squares else math.nan
    return Kind("decay and training", size, "1", detail, math.nan, facts=facts)
