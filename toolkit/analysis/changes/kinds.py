"""The survey of one parameter in, the kind of its change out: each kind an exact rule, tried from special to general.

An exact kind is a formula for Eᵗ from E⁰. It holds when every coordinate of every moved row is where the formula puts
it, up to ROUNDINGS roundings in the precision of the values: a mixture leaves more than that somewhere. Ours.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.causes.precision import FORMATS, HALF_FORMATS
from toolkit.analysis.changes.rounding import ROUNDINGS, roundoff
from toolkit.analysis.changes.survey import Survey
from toolkit.analysis.rows.measures import Array

UNEXPLAINED = 0.05
"""Largest share of Σ‖Δ‖² that an exact kind may leave: changes of a few roundings lie within the tolerances of any
formula, and without this limit the first one tried would get them."""

Formula = Callable[[Array], Array]
Tolerance = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class Kind:
    """What happened to one parameter."""

    name: str
    """An entry of KINDS."""
    size: float
    unit: str
    detail: str
    residual: float
    """Σ‖Δ‖² that the kind leaves unexplained, as a share of Σ‖Δ‖²; NaN where the kind explains no coordinate."""
    offset: Array | None = field(default=None)
    """(columns,) the vector that was added to every row, for ``common offset`` of a whole table."""


IDENTICAL = Kind("identical", 0.0, "1", "bit-identical", math.nan)


def find_cast(found: Survey) -> Kind | None:
    """Every value is the old one rounded to a half precision, bit for bit."""
    for name in HALF_FORMATS:
        if all(np.array_equal(FORMATS[name].round(a), b) for _, a, b in found.moved_blocks()):
            detail = f"every value is the old one rounded to {name}: a conversion, no training"
            return Kind("cast", found.relative_of_moved, "1", detail, 0.0)
    return None


def find_rounding(found: Survey) -> Kind | None:
    """No value has moved by more than ROUNDINGS roundings: whatever was done, the type hardly holds it."""

    def is_within(a: Array, b: Array) -> bool:
        return bool((np.abs(b - a) <= ROUNDINGS * roundoff(found.form, np.maximum(np.abs(a), np.abs(b)))).all())

    if not all(is_within(a, b) for _, a, b in found.moved_blocks()):
        return None
    detail = f"no value moved by more than {ROUNDINGS} roundings of {found.form.name}: nothing can be told of it"
    return Kind("rounding", found.relative_of_moved, "1", detail, math.nan)


def find_one_row(found: Survey) -> Kind | None:
    """One row moved and no bit of any other."""
    if found.num_moved != 1:
        return None
    one, many = ("row", "rows") if found.pair.is_table else ("entry", "entries")
    alone = f"1 of {found.num_rows:,} {many}; the others are bit-identical"
    detail = f"its only {one}" if found.num_rows == 1 else alone
    return Kind(f"one {one}", found.relative_of_moved, "1", detail, 0.0)


def find_scaling(found: Survey) -> Kind | None:
    """Eᵗ = c·E⁰, with c by least squares."""
    if found.squared_before == 0:
        return None
    factor = 1 + found.inner / found.squared_before
    form = found.form

    def tolerance(a: Array, b: Array) -> Array:
        # The error of c is at most one rounding of a mean, so it adds one more of the fitted value.
        return np.asarray(ROUNDINGS * (roundoff(form, b) + roundoff(form, factor * a)))

    checked = _check(found, lambda a: factor * a, tolerance)
    if checked is None:
        return None
    residual, contradicting = checked
    detail = f"times {factor:.9g}" + where(found, contradicting)
    if find_offset(found) is not None:
        detail += "; a common offset says the same of rows that were all equal"
    return Kind("scaling", factor - 1, "1", detail, residual)


def find_offset(found: Survey) -> Kind | None:
    """Eᵗ = E⁰ + o with one vector for all rows, o by least squares."""
    if found.num_moved < 2:
        return None
    form = found.form
    of_mean = roundoff(form, found.magnitudes / found.num_moved)

    def tolerance(a: Array, b: Array) -> Array:
        return np.asarray(ROUNDINGS * (roundoff(form, np.maximum(np.abs(a), np.abs(b))) + of_mean))

    checked = _check(found, lambda a: a + found.offset, tolerance)
    if checked is None:
        return None
    residual, contradicting = checked
    size = float(np.linalg.norm(found.offset))
    what = "one vector added to every row" if found.pair.is_table else f"{found.offset[0]:+.6g} added to every entry"
    signed = size if found.pair.is_table else float(found.offset[0])
    detail = what + where(found, contradicting)
    return Kind("common offset", signed, "weight units", detail, residual, None if contradicting else found.offset)


def find_permutation(found: Survey) -> Kind | None:
    """The same rows, bit for bit, in another order."""
    if not found.pair.is_table or found.num_moved < 2:
        return None
    # A permutation keeps the sums; most changes do not, and are spared the pass.
    scale = float(np.abs(found.magnitudes).max())
    if np.abs(found.sums).max() > 1e-9 * scale:
        return None
    weights = np.random.default_rng(0).integers(2**63, size=(2, found.num_columns), dtype=np.uint64) | np.uint64(1)
    hashes = [(_hash(a, weights), _hash(b, weights)) for _, a, b in found.moved_blocks()]
    before, after = (np.concatenate(part) for part in zip(*hashes, strict=True))
    order = [np.lexsort(part.T) for part in (before, after)]
    if not np.array_equal(before[order[0]], after[order[1]]):
        return None
    rows: NDArray[np.int64] = np.flatnonzero(found.moved)
    source = np.empty_like(rows)
    source[order[1]] = rows[order[0]]
    old, new = (np.asarray(s.tensors[found.pair.parameter]) for s in (found.pair.before, found.pair.after))
    for start in range(0, len(rows), 1024):  # a hash may collide, rows are compared
        part = slice(start, start + 1024)
        if not np.array_equal(new[rows[part]], old[source[part]]):
            return None
    detail = f"{len(rows):,} of {found.num_rows:,} rows stand elsewhere, no value is new"
    if len(rows) == 2:
        detail = f"rows {rows[0]} and {rows[1]} changed places, no value is new"
    return Kind("permuted rows", float(len(rows)), "rows", detail, 0.0)


def _hash(rows: Array, weights: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(rows, 2) multilinear hashes of the bits, modulo 2⁶⁴."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    return np.stack([(bits * w).sum(axis=1, dtype=np.uint64) for w in weights], axis=1)


def _check(found: Survey, formula: Formula, tolerance: Tolerance) -> tuple[float, int] | None:
    """The residual share that a formula leaves, and how many of the unmoved rows contradict it.

    None as soon as a moved row is not where the formula puts it, or where the residual is above UNEXPLAINED.
    """
    left, contradicting = 0.0, 0
    for rows, a, b in found.pair.blocks():
        residual = b - formula(a)
        holds: NDArray[np.bool_] = np.all(np.abs(residual) <= tolerance(a, b), axis=1)
        moved = found.moved[rows]
        if not holds[moved].all():
            return None
        left += float(np.sum(np.square(residual[moved])))
        contradicting += int(np.count_nonzero(~holds & ~moved))
    share = left / found.squared_change
    return (share, contradicting) if share <= UNEXPLAINED else None


def where(found: Survey, contradicting: int) -> str:
    """Which rows a formula holds for, where it does not hold for all."""
    if not contradicting:
        return ""
    what = "rows" if found.pair.is_table else "entries"
    return f", on {found.num_moved:,} of {found.num_rows:,} {what}; the others are bit-identical"


EXACT: Sequence[Callable[[Survey], Kind | None]] = (
    find_cast,
    find_rounding,
    find_one_row,
    find_permutation,
    find_scaling,
    find_offset,
)
"""In the order in which they are tried; the first that holds is the kind."""
