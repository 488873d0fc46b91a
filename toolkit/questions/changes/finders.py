"""The kinds of change that a parameter can have undergone: exact rules, tried from the special to the general.

An exact kind is a formula for Eᵗ from E⁰. It holds when every coordinate of every moved row is where the formula puts
it, up to ROUNDINGS roundings in the precision of the values: a mixture leaves more than that somewhere. Ours.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.measures import Array
from toolkit.analysis.precision import FORMATS, HALF_FORMATS, TELLING_VALUES, Format, FormatFinder
from toolkit.families import TABLES
from toolkit.snapshots.snapshot import Snapshot

ROUNDINGS = 4
"""Roundings in a row that an exact kind may leave behind: one for the stored result, some for how it was computed."""


def unit_roundoff(form: Format) -> float:
    """The largest relative error of rounding to nearest, half a unit in the last place."""
    return float(2.0**-form.bits)


def roundoff(form: Format, values: Array) -> Array:
    """(...,) float64: the largest absolute error of rounding each value to a format."""
    return np.asarray(np.maximum(unit_roundoff(form) * np.abs(values), 2.0 ** (form.lowest - 1)))


Block = tuple[NDArray[np.int64], Array, Array]
"""Row numbers (rows,), and those rows before and after, each (rows, columns) float64."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One parameter before and after. A LayerNorm vector is a table of one column: each entry is a row."""

    before: Snapshot
    after: Snapshot
    parameter: str

    @property
    def is_table(self) -> bool:
        return self.parameter in TABLES

    @property
    def rows(self) -> str:
        """``rows`` of a table, ``entries`` of a LayerNorm vector."""
        return "rows" if self.is_table else "entries"

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        shape = self.before.tensors[self.parameter].shape
        return (shape[0], shape[1]) if self.is_table else (shape[0], 1)

    def blocks(self, rows: NDArray[np.intp] | None = None) -> Iterator[Block]:
        """Every row, or of a table those of some numbers, in order."""
        for span, (a, b) in iterate_blocks([self.before, self.after], self.parameter, rows=rows):
            if not self.is_table:
                a, b, span = a.reshape(-1, 1), b.reshape(-1, 1), slice(0, a.size)
            yield np.arange(span.start, span.stop) if rows is None else rows[span], a, b


@dataclass
class Survey:
    """What one pass over a pair tells. Sums are over the moved rows; those of Δ are the same over all rows."""

    pair: Pair
    moved: NDArray[np.bool_]
    """(rows,) whether any bit of the row differs."""
    form: Format = field(init=False)
    """The format that the values after the change betray: storing them rounded to it."""
    form_before: Format = field(init=False)
    num_changed: int = 0
    """Rows of which a value differs: fewer than the moved ones where only a sign of zero does."""
    squared_reference: float = 0.0
    """Σ E⁰² over all rows."""
    squared_before: float = 0.0
    squared_change: float = 0.0
    inner: float = 0.0
    """Σ E⁰·Δ."""
    sums: Array = field(init=False)
    """(columns,) Σ Δ over rows."""
    magnitudes: Array = field(init=False)
    """(columns,) Σ max(|E⁰|, |Eᵗ|) over rows."""

    @property
    def num_rows(self) -> int:
        return len(self.moved)

    @property
    def num_columns(self) -> int:
        return self.pair.shape[1]

    @property
    def num_moved(self) -> int:
        return int(np.count_nonzero(self.moved))

    @property
    def offset(self) -> Array:
        """(columns,) the mean change of the moved rows: the vector that explains most when added to each of them."""
        return np.asarray(self.sums / self.num_moved)

    @property
    def relative(self) -> float:
        """‖Δ‖ / ‖E⁰‖ over all rows; NaN where the reference is 0."""
        return float(np.sqrt(self.squared_change / self.squared_reference)) if self.squared_reference else float("nan")

    @property
    def relative_of_moved(self) -> float:
        """‖Δ‖ / ‖E⁰‖ over the moved rows; NaN where they were 0."""
        return float(np.sqrt(self.squared_change / self.squared_before)) if self.squared_before else float("nan")

    def moved_blocks(self) -> Iterator[Block]:
        return self.blocks_of(self.moved)

    def blocks_of(self, chosen: NDArray[np.bool_]) -> Iterator[Block]:
        """Some rows; ``chosen``: (rows,)."""
        if self.pair.is_table and not chosen.all():
            # Gathered into full blocks: a product of columns is added up once a block, however few its rows.
            yield from self.pair.blocks(np.flatnonzero(chosen))
            return
        for rows, a, b in self.pair.blocks():
            keep = chosen[rows]
            if keep.any():
                yield rows[keep], a[keep], b[keep]

    def count_still(self, contradicts: Callable[[Array], Any]) -> int:
        """How many rows that did not move, (n, columns), contradict what is said of the others."""
        if self.moved.all():
            return 0
        return sum(int(contradicts(a[~self.moved[rows]]).sum()) for rows, a, _ in self.pair.blocks())


def survey(pair: Pair) -> Survey:
    """One pass: which rows moved, in which precision the values are, and the sums that the simple kinds need."""
    surveyed = Survey(pair, np.zeros(pair.shape[0], np.bool_))
    surveyed.sums, surveyed.magnitudes = np.zeros(pair.shape[1]), np.zeros(pair.shape[1])
    finders = FormatFinder(), FormatFinder()
    for rows, a, b in pair.blocks():
        for finder, block in zip(finders, (a, b), strict=True):
            finder.add(block)
        surveyed.squared_reference += float(np.einsum("ij,ij->", a, a))
        # Bits, not values: 0 and -0 are equal and not identical.
        has_moved = (a.view(np.int64) != b.view(np.int64)).any(axis=1)
        surveyed.moved[rows] = has_moved
        if has_moved.any():
            _add(surveyed, *((a, b) if has_moved.all() else (a[has_moved], b[has_moved])))
    surveyed.form_before, surveyed.form = (finder.found for finder in finders)
    return surveyed


def _add(surveyed: Survey, a: Array, b: Array) -> None:
    """Add the moved rows of one block, before and after, to the sums of a survey."""
    change = b - a
    surveyed.num_changed += int(np.count_nonzero(change.any(axis=1)))
    surveyed.squared_before += float(np.einsum("ij,ij->", a, a))
    surveyed.squared_change += float(np.einsum("ij,ij->", change, change))
    surveyed.inner += float(np.einsum("ij,ij->", a, change))
    surveyed.sums += change.sum(axis=0)
    surveyed.magnitudes += np.maximum(np.abs(a), np.abs(b)).sum(axis=0)


UNEXPLAINED = 0.05
"""Largest share of Σ‖Δ‖² that an exact kind may leave: changes of a few roundings lie within the tolerances of any
formula, and without this limit the first one tried would get them."""

LIKE_DECAY = 0.1
"""Largest Σ lr·decay of few steps: one step of more than some hundredths (a rate of .1 with a decay of .1 is one) is no
schedule of fine-tuning, but a scaling."""

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
    offset: Array | None = field(default=None)
    """(columns,) the vector that was added to every row, for ``common offset`` of a whole table."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Values for columns of their own, by their names."""
    sources: Mapping[int, int] = field(default_factory=dict)
    """For ``permuted rows``: the number of each row that stands elsewhere, and of the row whose values it now holds."""


IDENTICAL = Kind("identical", 0.0, "1", "bit-identical")


def find_equal(found: Survey) -> Kind | None:
    """Bits differ and no value does: some zeros changed their sign. No cast and no rounding, and not bit-identical."""
    if found.num_changed:
        return None
    num_zeros = sum(int(np.count_nonzero(np.signbit(a) != np.signbit(b))) for _, a, b in found.moved_blocks())
    return Kind("equal in value", 0.0, "1", f"identical in value; the sign of zero differs {num_zeros:,} times")


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
    """Every value of every row that changed is the old one rounded to a half precision; the detail counts the rows."""
    name, num_cast = count_cast(found)
    if num_cast != found.num_changed:
        return None
    detail = f"each value is the old one rounded to {name}: a conversion, no training"
    if found.count_still(lambda still: (FORMATS[name].round(still) != still).any(axis=1)):
        detail = f"{num_cast:,} of {found.num_rows:,} {found.pair.rows} rounded to {name}; the others are bit-identical"
    return Kind("cast", found.relative_of_moved, "1", detail)


def find_rounding(found: Survey) -> Kind | None:
    """No value has moved by more than ROUNDINGS roundings: whatever was done, the type hardly holds it."""

    def is_within(a: Array, b: Array) -> bool:
        return bool((np.abs(b - a) <= ROUNDINGS * roundoff(found.form, np.maximum(np.abs(a), np.abs(b)))).all())

    if not all(is_within(a, b) for _, a, b in found.moved_blocks()):
        return None
    detail = f"nothing above {ROUNDINGS} roundings of {found.form.name}, so nothing can be told of it"
    return Kind("rounding", found.relative_of_moved, "1", detail)


def find_one_row(found: Survey) -> Kind | None:
    """One row moved and no bit of any other."""
    if found.num_moved != 1:
        return None
    noun = "row" if found.pair.is_table else "entry"
    detail = f"its only {noun}" if found.num_rows == 1 else f"1 of {found.num_rows:,} {found.pair.rows}"
    return Kind(f"one {noun}", found.relative_of_moved, "1", detail)


def find_scaling(found: Survey) -> Kind | None:
    """Eᵗ = c·E⁰, with c by least squares."""
    if found.squared_before == 0:
        return None
    factor = 1 + found.inner / found.squared_before
    form = found.form

    def tolerance(a: Array, b: Array) -> Array:
        # The error of c is at most one rounding of a mean, so it adds one more of the fitted value.
        return np.asarray(ROUNDINGS * (roundoff(form, b) + roundoff(form, factor * a)))

    contradicting = _check(found, lambda a: factor * a, tolerance)
    if contradicting is None:
        return None
    detail = f"times {factor:.9g}" + where(found, contradicting)
    if math.exp(-LIKE_DECAY) <= factor < 1:
        detail += f"; weight decay with Σ lr·decay = {-math.log(factor):.3g} would say the same"
    if find_offset(found) is not None:
        detail += "; a common offset says the same of rows that were all equal"
    return Kind("scaling", factor - 1, "1", detail)


def find_offset(found: Survey) -> Kind | None:
    """Eᵗ = E⁰ + o with one vector for all rows, o by least squares."""
    if found.num_moved < 2:
        return None
    form = found.form
    of_mean = roundoff(form, found.magnitudes / found.num_moved)

    def tolerance(a: Array, b: Array) -> Array:
        return np.asarray(ROUNDINGS * (roundoff(form, np.maximum(np.abs(a), np.abs(b))) + of_mean))

    contradicting = _check(found, lambda a: a + found.offset, tolerance)
    if contradicting is None:
        return None
    size = float(np.linalg.norm(found.offset))
    change = "one vector added to every row" if found.pair.is_table else f"{found.offset[0]:+.6g} added to every entry"
    signed = size if found.pair.is_table else float(found.offset[0])
    detail = change + where(found, contradicting)
    return Kind("common offset", signed, "weight units", detail, None if contradicting else found.offset)


def find_permutation(found: Survey) -> Kind | None:
    """The same rows, bit for bit, in another order."""
    if not found.pair.is_table or found.num_moved < 2:
        return None
    # A permutation keeps the sums; most changes do not, and are spared the pass.
    if np.abs(found.sums).max() > 1e-9 * float(np.abs(found.magnitudes).max()):
        return None
    weights = np.random.default_rng(0).integers(2**63, size=(2, found.num_columns), dtype=np.uint64) | np.uint64(1)
    hashes = [(_hash(a, weights), _hash(b, weights)) for _, a, b in found.moved_blocks()]
    before, after = (np.concatenate(part) for part in zip(*hashes, strict=True))
    order = [np.lexsort(side.T) for side in (before, after)]
    if not np.array_equal(before[order[0]], after[order[1]]):
        return None
    rows: NDArray[np.int64] = np.flatnonzero(found.moved)
    source = np.empty_like(rows)
    source[order[1]] = rows[order[0]]
    old, new = (
        np.asarray(snapshot.tensors[found.pair.parameter]) for snapshot in (found.pair.before, found.pair.after)
    )
    for start in range(0, len(rows), 1024):  # a hash may collide, rows are compared
        block = slice(start, start + 1024)
        if not np.array_equal(new[rows[block]], old[source[block]]):
            return None
    detail = f"{len(rows):,} of {found.num_rows:,} rows stand elsewhere"
    sources = dict(zip(rows.tolist(), source.tolist(), strict=True))
    return Kind("permuted rows", float(len(rows)), "rows", detail, sources=sources)


def _hash(rows: Array, weights: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(rows, 2) multilinear hashes of the bits, modulo 2⁶⁴."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    return np.stack([(bits * w).sum(axis=1, dtype=np.uint64) for w in weights], axis=1)


def _check(surveyed: Survey, formula: Formula, tolerance: Tolerance) -> int | None:
    """How many of the unmoved rows contradict a formula.

    None as soon as a moved row is not where the formula puts it, or where the residual is above UNEXPLAINED.
    """
    squared_residual, contradicting = 0.0, 0
    for rows, a, b in surveyed.pair.blocks():
        residual = b - formula(a)
        holds: NDArray[np.bool_] = np.all(np.abs(residual) <= tolerance(a, b), axis=1)
        has_moved = surveyed.moved[rows]
        if not holds[has_moved].all():
            return None
        squared_residual += float(np.sum(np.square(residual[has_moved])))
        contradicting += int(np.count_nonzero(~holds & ~has_moved))
    return contradicting if squared_residual <= UNEXPLAINED * surveyed.squared_change else None


def where(found: Survey, contradicting: int) -> str:
    """A clause on which rows a formula holds for; empty where it holds for all."""
    if not contradicting:
        return ""
    return f", on {found.num_moved:,} of {found.num_rows:,} {found.pair.rows}; the others are bit-identical"
