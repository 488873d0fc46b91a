"""The kinds of change that are fitted or tested: decay of some rows or all, low rank, rotation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.measures import Array
from toolkit.analysis.precision import FORMATS, HALF_FORMATS, TELLING_VALUES
from toolkit.questions.changes.finders import (
    LIKE_DECAY,
    ROUNDINGS,
    SHARE,
    UNEXPLAINED,
    Block,
    Kind,
    Survey,
    roundoff,
    say_where,
    unit_roundoff,
)
from toolkit.questions.changes.inferred_exposure import LEAST_VALUE, UNEXPOSED, tell_rows

MANTISSA = 2**23 - 1
"""The bits of an fp32 that hold its significand."""

TIE_SPACINGS = 2
"""Spacings of fp32 up to which two values can lose the same amount and have it rounded the other way (see
is_repeated_shrinking)."""


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
    neighbours up to TIE_SPACINGS away can have one and the same; where that lies half-way between two spacings, the
    difference is rounded to even, down for one and up for the other, and the larger value loses one spacing less.
    """
    remaining = _map_significands(blocks)
    if remaining is None:
        return False
    significands = np.flatnonzero(remaining)
    if len(significands) < TELLING_VALUES:
        return False
    shares_left = remaining[significands].view(np.float32).astype(np.float64)
    shares_taken = 1 + significands / 2**23 - shares_left
    slack = np.where(shares_left < 1, ROUNDINGS * 2.0**-23, 0.0)
    most_taken = np.maximum.accumulate(shares_taken - slack)
    num_far_below = np.searchsorted(significands, significands - TIE_SPACINGS)  # how many lie further below than that
    has_far_below = num_far_below > 0
    is_ordered = (
        bool((np.diff(shares_left) >= 0).all())
        and bool((shares_taken[1:] >= most_taken[:-1] - 2.0**-23).all())
        and bool((shares_taken[has_far_below] >= most_taken[num_far_below[has_far_below] - 1]).all())
    )
    # Neither more than doubles over a power of two.
    return is_ordered and bool(
        shares_left[-1] <= 2 * shares_left[0]
        and shares_taken[-1] <= 2 * (shares_taken[0] + slack[0])
        and shares_taken[0] > 0
    )


def _map_significands(blocks: Iterable[Block]) -> NDArray[np.uint32] | None:
    """(2²³,) what is left of each significand in [1, 2), as the bits of an fp32; 0 of those that no value has.

    None where a value grew, changed its sign or is no longer a normal number, or where two values with one significand
    are left differently.
    """
    remaining = np.zeros(0, np.uint32)
    for _, a, b in blocks:
        if (np.abs(b) > np.abs(a)).any() or (a * b < 0).any():
            return None
        is_telling = np.abs(a) >= LEAST_VALUE
        before = np.abs(a[is_telling]).astype(np.float32).view(np.uint32).astype(np.int64)
        after = np.abs(b[is_telling]).astype(np.float32).view(np.uint32).astype(np.int64)
        # Both over the power of two of the first, as the bits of fp32: their order is that of the values.
        scaled = after - (((before >> 23) - 127) << 23)
        if (scaled <= 0).any() or (after < 1 << 23).any():
            return None
        if not len(remaining):  # 32 MiB, only for what has come so far
            remaining = np.zeros(2**23, np.uint32)
        significands = before & MANTISSA
        bits = scaled.astype(np.uint32)
        earlier_bits = remaining[significands]
        if ((earlier_bits != 0) & (earlier_bits != bits)).any():
            return None
        remaining[significands] = bits
        if not np.array_equal(remaining[significands], bits):  # two within this block
            return None
    return remaining


@dataclass(frozen=True, slots=True)
class Decay:
    """What decay did to some rows."""

    total: float
    """Σ lr·decay = -ln s, with one s for all of the rows by least squares: what came of it in fp32, which rounds each
    step, so that the schedule itself may add up to more or less."""
    is_several: bool
    """Whether these are the products of several steps, small ones or many: no single factor, rounded once, gives every
    value, and Σ is below LIKE_DECAY or a value is further from s·E⁰ than ROUNDINGS roundings."""


def fit_decay(survey: Survey, rows: NDArray[np.bool_]) -> Decay | None:
    """The decay of the given rows, (rows,) bool; None where it is not what moved them.

    For fp32 only: a type of two bytes rounds once more, and hardly any decay moves it.
    """
    if survey.form.name in HALF_FORMATS or not is_repeated_shrinking(survey.blocks_of(rows)):
        return None
    squares = inner = 0.0
    for _, a, b in survey.blocks_of(rows):
        squares += float(np.einsum("ij,ij->", a, a))
        inner += float(np.einsum("ij,ij->", a, b - a))
    factor = 1 + inner / squares
    is_far = False
    # Between which factors one alone, rounded once, gives every value; the first above the second: there is none.
    least_factor, most_factor = 0.0, math.inf
    for _, a, b in survey.blocks_of(rows):
        residual = np.abs(b - factor * a)
        is_far = is_far or bool((residual > ROUNDINGS * (roundoff(survey.form, b) + roundoff(survey.form, a))).any())
        is_normal = np.abs(a) >= LEAST_VALUE
        sizes_before, sizes_after = np.abs(a[is_normal]), np.abs(b[is_normal])
        error = roundoff(survey.form, b[is_normal])
        least_factor = max(least_factor, float(((sizes_after - error) / sizes_before).max(initial=0)))
        most_factor = min(most_factor, float(((sizes_after + error) / sizes_before).min(initial=math.inf)))
    total = -math.log(factor)
    return Decay(total, is_several=least_factor > most_factor and (is_far or total < LIKE_DECAY))


def find_decay(survey: Survey) -> Kind | None:
    """``decay``: every moved value is what several fp32 products by factors below 1 make of it, of any schedule.

    Where one product gives every value, the kind is ``scaling``: a single step of decay does the same, and that is
    said there. So are several large products that leave few roundings, as of a model halved twice.
    """
    decay = fit_decay(survey, survey.moved)
    if decay is None or not decay.is_several:
        return None
    detail = f"Σ lr·decay = {decay.total:.3g}" + say_where(survey, survey.count_contradicting(lambda a: a.any(axis=1)))
    facts = {"num_decayed": survey.num_moved, "sum_lr_decay": decay.total}
    return Kind("decay", decay.total, "Σ lr·decay", detail, facts=facts)


def find_decay_and_training(survey: Survey) -> Kind | None:
    """``decay and training``: some moved rows are as in ``decay``, the others moved otherwise, apart.

    Which rows are decay's, the curve of :func:`toolkit.infer_exposure` tells, where the law of is_repeated_shrinking
    holds of all of them together, and several products are needed. The size is that of the other rows, ‖Δ‖/‖E⁰‖.
    """
    if not survey.pair.is_table or survey.num_moved < 2:
        return None
    (table,) = tell_rows([survey.pair], survey.moved)
    decayed = (table.exposure == UNEXPOSED) & survey.moved
    decay = fit_decay(survey, decayed) if decayed.any() else None
    # One product is a scaling of some rows: none of the kinds.
    if decay is None or not decay.is_several or decayed.sum() == survey.num_moved:
        return None
    squared_before = squared_change = 0.0
    for _, a, b in survey.blocks_of(survey.moved & ~decayed):
        squared_before += float(np.square(a).sum())
        squared_change += float(np.square(b - a).sum())
    num_decayed = int(decayed.sum())
    detail = (
        f"decay on {num_decayed:,} of {survey.num_rows:,} rows, training on {survey.num_moved - num_decayed:,}"
        f"; Σ lr·decay = {decay.total:.3g}"
    )
    facts = {"num_decayed": num_decayed, "sum_lr_decay": decay.total}
    size = math.sqrt(squared_change / squared_before) if squared_before else math.nan
    return Kind("decay and training", size, SHARE, detail, facts=facts)


LOW_RANK_SHARE = 0.25
"""Largest rank that is low, as a share of the moved rows or the columns, whichever are fewer. LoRA's usual ranks (4 to
64) are below it for 384 columns; of a few moved rows, of which any change has a low rank, it leaves none."""


def find_low_rank(survey: Survey) -> Kind | None:
    """``low rank``: Δ is a product of few directions and a stored rounding, as a merged LoRA update is (ours).

    The rank is the number of singular values of Δ above what rounding leaves: independent errors of variances v have a
    spectral norm of about the largest √Σv of a row plus that of a column (a test holds it to simulated ones), which is
    taken ROUNDINGS times, and not below what eigenvalues of ΔᵀΔ in float64 resolve. It is low up to LOW_RANK_SHARE of
    the moved rows or columns, and holds where these directions leave roundings of every row: a steep spectrum that has
    no end, and a few changed rows, are not low rank.
    """
    highest_rank = int(LOW_RANK_SHARE * min(survey.num_moved, survey.num_columns))
    if not survey.pair.is_table or highest_rank < 1:
        return None
    products = np.zeros((survey.num_columns,) * 2)
    column_variances = np.zeros(survey.num_columns)
    largest_row_variance = 0.0
    for _, a, b in survey.moved_blocks():
        change = b - a
        products += change.T @ change
        variances = _error_of_sum(survey, a, b) ** 2 / 3  # of an error uniform between -e and e: e²/3
        column_variances += variances.sum(axis=0)
        largest_row_variance = max(largest_row_variance, float(variances.sum(axis=1).max()))
    squares, directions = np.linalg.eigh(products)  # squared singular values, ascending
    limit = (ROUNDINGS * (math.sqrt(largest_row_variance) + math.sqrt(float(column_variances.max())))) ** 2
    limit = max(limit, ROUNDINGS * survey.num_columns * np.finfo(np.float64).eps * float(squares[-1]))
    rank = int(np.count_nonzero(squares > limit))
    if not 0 < rank <= highest_rank:
        return None
    kept = directions[:, -rank:]
    squared_residual = 0.0
    for _, a, b in survey.moved_blocks():
        change = b - a
        coordinates = change @ kept
        row_residuals = np.linalg.norm(change - coordinates @ kept.T, axis=1)
        # Its own roundings, and those of all rows together, which turn the directions, as far as it follows them.
        allowed = ROUNDINGS * np.linalg.norm(_error_of_sum(survey, a, b), axis=1)
        allowed += math.sqrt(limit) * np.linalg.norm(coordinates / np.sqrt(squares[-rank:]), axis=1)
        if (row_residuals > allowed).any():
            return None
        squared_residual += float(np.square(row_residuals).sum())
    if squared_residual / survey.squared_change > UNEXPLAINED:
        return None
    num_still = survey.num_rows - survey.num_moved
    detail = f"the change has rank {rank} of {min(survey.num_moved, survey.num_columns)}" + say_where(survey, num_still)
    return Kind("low rank", survey.relative_of_moved, SHARE, detail, facts={"num_directions": rank})


def _error_of_sum(survey: Survey, before: Array, after: Array) -> Array:
    """How far rounding may have moved a sum of a value and what was added to it, itself rounded."""
    return roundoff(survey.form, after) + roundoff(survey.form, after - before)


ROTATION_ROUNDINGS = 16
"""Roundings of fp32, as a share of a row's length, that an orthogonal map may leave. Measured: products in fp32 left up
to 8 for rows of 16 to 2,048 columns, one in fp64 left 1. Noise of relative size 1e-6 beside a rotation hides there."""


def find_rotation(survey: Survey) -> Kind | None:
    """``rotation``: one orthogonal map of all rows; its size is the mean angle over the columns' invariant planes.

    The orthogonal Procrustes solution for the moved rows, raw: neither centred nor scaled (Schönemann 1966). Not tried
    where there are fewer of them than columns, so that a map absorbs at least half of any change and is no finding.
    """
    if not survey.pair.is_table or survey.num_columns < 2 or survey.num_moved < survey.num_columns:
        return None
    cross = np.zeros((survey.num_columns,) * 2)
    for _, a, b in survey.moved_blocks():
        cross += a.T @ b
    left_vectors, _, right_vectors = np.linalg.svd(cross)
    turn = left_vectors @ right_vectors
    squared_residual = 0.0
    allowed_share = 2 * unit_roundoff(survey.form) + ROTATION_ROUNDINGS * unit_roundoff(FORMATS["fp32"])
    for _, a, b in survey.moved_blocks():
        squared_residuals = np.square(b - a @ turn).sum(axis=1)
        if (np.sqrt(squared_residuals) > allowed_share * np.sqrt(np.square(b).sum(axis=1))).any():
            return None
        squared_residual += float(squared_residuals.sum())
    # Summed up from the rows: from norms and singular values a drift below 1e-7 would be lost.
    if squared_residual / survey.squared_change > UNEXPLAINED:
        return None
    angles = np.degrees(np.abs(np.angle(np.linalg.eigvals(turn))))
    is_proper = np.linalg.slogdet(turn)[0] > 0
    detail = f"one orthogonal map of all rows, {'a rotation' if is_proper else 'with a reflection'}"
    # A row of zeros stays where it is under any map; another that stayed contradicts this one.
    detail += say_where(survey, survey.count_contradicting(lambda a: a.any(axis=1)))
    return Kind("rotation", float(angles.mean()), "degrees", detail)
