"""The survey of one parameter in, the kind of its change out: each kind an exact rule, tried from special to general.

An exact kind is a formula for Eᵗ from E⁰. It holds when every coordinate of every moved row is where the formula puts
it, up to ROUNDINGS roundings in the precision of the values: a mixture leaves more than that somewhere. Ours.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.causes.precision import FORMATS, HALF_FORMATS
from toolkit.analysis.changes.rounding import ROUNDINGS, TELLING_VALUES, roundoff
from toolkit.analysis.changes.survey import Survey
from toolkit.analysis.rows.measures import Array

UNEXPLAINED = 0.05
"""Largest share of Σ‖Δ‖² that an exact kind may leave: changes of a few roundings lie within the tolerances of any
formula, and without this limit the first one tried would get them."""

LIKE_DECAY = 0.1
"""Largest Σ lr·decay of few steps: one step of more than some hundredths (a rate of .1 with a decay of .1 is one) is no
schedule of fine-tuning, but a scaling."""

LOW_RANK_SHARE = 0.25
"""Largest rank that is low, as a share of the moved rows or the columns, whichever are fewer. LoRA's usual ranks (4 to
64) are below it for 384 columns; of a few moved rows, of which any change has a low rank, it leaves none."""

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
    note: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Values for columns of their own, by their names."""
    sources: Mapping[int, int] = field(default_factory=dict)
    """For ``permuted rows``: the number of each row that stands elsewhere, and of the row whose values it now holds."""


IDENTICAL = Kind("identical", 0.0, "1", "bit-identical", math.nan)


def find_equal(found: Survey) -> Kind | None:
    """Bits differ and no value does: some zeros changed their sign. No cast and no rounding, and not bit-identical."""
    if found.num_changed:
        return None
    num_zeros = sum(int(np.count_nonzero(np.signbit(a) != np.signbit(b))) for _, a, b in found.moved_blocks())
    return Kind(
        "equal in value", 0.0, "1", f"identical in value; the sign of zero differs {num_zeros:,} times", math.nan
    )


def count_cast(found: Survey) -> tuple[str, int]:
    """The half precision to which most rows were rounded, and how many: rows of which a value changed, and of which
    each value is the old one rounded. 0 where fewer than TELLING_VALUES values changed so."""
    counts = dict.fromkeys(HALF_FORMATS, (0, 0))
    for _, a, b in found.moved_blocks():
        for name in HALF_FORMATS:
            # Few values fit by chance, so the first column spares most rows the rounding.
            rows = np.flatnonzero(FORMATS[name].round(b[:, 0]) == b[:, 0])
            rows = rows[(FORMATS[name].round(a[rows]) == b[rows]).all(axis=1)]
            num_changed = np.count_nonzero(a[rows] != b[rows], axis=1)
            num_rows, num_values = counts[name]
            counts[name] = num_rows + int(np.count_nonzero(num_changed)), num_values + int(num_changed.sum())
    name = max(counts, key=lambda name: counts[name])
    return name, counts[name][0] if counts[name][1] >= TELLING_VALUES else 0


def find_cast(found: Survey) -> Kind | None:
    """Every value of every row that changed is the old one rounded to a half precision; how many rows is said."""
    name, num_cast = count_cast(found)
    if num_cast != found.num_changed:
        return None
    detail = f"each value is the old one rounded to {name}: a conversion, no training"
    form, contradicting = FORMATS[name], 0
    for rows, a, _ in found.pair.blocks():
        still = a[~found.moved[rows]]
        contradicting += int(np.count_nonzero((form.round(still) != still).any(axis=1)))
    if contradicting:
        detail = f"{num_cast:,} of {found.num_rows:,} {found.pair.rows} rounded to {name}; the others are bit-identical"
    return Kind("cast", found.relative_of_moved, "1", detail, 0.0, facts={"num_cast": num_cast})


def find_rounding(found: Survey) -> Kind | None:
    """No value has moved by more than ROUNDINGS roundings: whatever was done, the type hardly holds it."""

    def is_within(a: Array, b: Array) -> bool:
        return bool((np.abs(b - a) <= ROUNDINGS * roundoff(found.form, np.maximum(np.abs(a), np.abs(b)))).all())

    if not all(is_within(a, b) for _, a, b in found.moved_blocks()):
        return None
    detail = f"nothing above {ROUNDINGS} roundings of {found.form.name}, so nothing can be told of it"
    return Kind("rounding", found.relative_of_moved, "1", detail, math.nan)


def find_one_row(found: Survey) -> Kind | None:
    """One row moved and no bit of any other."""
    if found.num_moved != 1:
        return None
    one = "row" if found.pair.is_table else "entry"
    detail = f"its only {one}" if found.num_rows == 1 else f"1 of {found.num_rows:,} {found.pair.rows}"
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
    if math.exp(-LIKE_DECAY) <= factor < 1:
        detail += f"; weight decay with Σ lr·decay = {-math.log(factor):.3g} would say the same"
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
    detail = f"{len(rows):,} of {found.num_rows:,} rows stand elsewhere"
    sources = dict(zip(rows.tolist(), source.tolist(), strict=True))
    return Kind("permuted rows", float(len(rows)), "rows", detail, 0.0, sources=sources)


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
    return f", on {found.num_moved:,} of {found.num_rows:,} {found.pair.rows}; the others are bit-identical"


def find_low_rank(found: Survey) -> Kind | None:
    """``low rank``: Δ is a product of few directions and a stored rounding, as a merged LoRA update is (ours).

    The rank is the number of singular values of Δ above what rounding leaves: independent errors of variances v have a
    spectral norm of about the largest √Σv of a row plus that of a column (a test holds it to simulated ones), which is
    taken ROUNDINGS times, and not below what eigenvalues of ΔᵀΔ in float64 resolve. It is low up to LOW_RANK_SHARE of
    the moved rows or columns, and holds where these directions leave roundings of every row: a steep spectrum that has
    no end, and a few changed rows, are no low rank.
    """
    most = int(LOW_RANK_SHARE * min(found.num_moved, found.num_columns))
    if not found.pair.is_table or most < 1:
        return None
    products = np.zeros((found.num_columns,) * 2)
    of_columns, of_row = np.zeros(found.num_columns), 0.0
    for _, a, b in found.moved_blocks():
        change = b - a
        products += change.T @ change
        variances = _error_of_sum(found, a, b) ** 2 / 3
        of_columns += variances.sum(axis=0)
        of_row = max(of_row, float(variances.sum(axis=1).max()))
    squares, directions = np.linalg.eigh(products)
    limit = (ROUNDINGS * (math.sqrt(of_row) + math.sqrt(float(of_columns.max())))) ** 2
    limit = max(limit, ROUNDINGS * found.num_columns * np.finfo(np.float64).eps * float(squares[-1]))
    rank = int(np.count_nonzero(squares > limit))
    if not 0 < rank <= most:
        return None
    kept, left = directions[:, -rank:], 0.0
    for _, a, b in found.moved_blocks():
        change = b - a
        parts = change @ kept
        own = np.linalg.norm(change - parts @ kept.T, axis=1)
        # Its own roundings, and those of all rows together, which turn the directions, as far as it follows them.
        allowed = ROUNDINGS * np.linalg.norm(_error_of_sum(found, a, b), axis=1)
        allowed += math.sqrt(limit) * np.linalg.norm(parts / np.sqrt(squares[-rank:]), axis=1)
        if (own > allowed).any():
            return None
        left += float(np.square(own).sum())
    if left / found.squared_change > UNEXPLAINED:
        return None
    still = found.num_rows - found.num_moved
    detail = f"the change has rank {rank} of {min(found.num_moved, found.num_columns)}" + where(found, still)
    return Kind(
        "low rank", found.relative_of_moved, "1", detail, left / found.squared_change, facts={"num_directions": rank}
    )


def _error_of_sum(found: Survey, before: Array, after: Array) -> Array:
    """How far rounding may have moved a sum of a value and what was added to it, itself rounded."""
    return roundoff(found.form, after) + roundoff(found.form, after - before)
