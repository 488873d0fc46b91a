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
            if not self.is_table:  # one block has the whole vector
                a, b, span = a.reshape(-1, 1), b.reshape(-1, 1), slice(0, a.size)
            row_numbers = np.arange(span.start, span.stop) if rows is None else rows[span]
            yield row_numbers, a, b


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

    def count_contradicting(self, contradicts: Callable[[Array], Any]) -> int:
        """How many rows that did not move contradict what is said of the others.

        ``contradicts``: which of some unmoved rows, (rows, columns), do.
        """
        if self.moved.all():
            return 0
        return sum(int(contradicts(a[~self.moved[rows]]).sum()) for rows, a, _ in self.pair.blocks())


def survey_pair(pair: Pair) -> Survey:
    """One pass: which rows moved, in which precision the values are, and the sums that the simple kinds need."""
    survey = Survey(pair, np.zeros(pair.shape[0], np.bool_))
    survey.sums, survey.magnitudes = np.zeros(pair.shape[1]), np.zeros(pair.shape[1])
    format_before, format_after = FormatFinder(), FormatFinder()
    for rows, a, b in pair.blocks():
        format_before.add(a)
        format_after.add(b)
        survey.squared_reference += float(np.einsum("ij,ij->", a, a))
        # Bits, not values: 0 and -0 are equal and not identical.
        has_moved = (a.view(np.int64) != b.view(np.int64)).any(axis=1)
        survey.moved[rows] = has_moved
        if has_moved.any():
            is_copied = not has_moved.all()  # a copy of whole blocks is spared
            _add(survey, a[has_moved] if is_copied else a, b[has_moved] if is_copied else b)
    survey.form_before = format_before.format
    survey.form = format_after.format
    return survey


def _add(survey: Survey, a: Array, b: Array) -> None:
    """Add the moved rows of one block, before and after, to the sums of a survey."""
    change = b - a
    survey.num_changed += int(np.count_nonzero(change.any(axis=1)))
    survey.squared_before += float(np.einsum("ij,ij->", a, a))
    survey.squared_change += float(np.einsum("ij,ij->", change, change))
    survey.inner += float(np.einsum("ij,ij->", a, change))
    survey.sums += change.sum(axis=0)
    survey.magnitudes += np.maximum(np.abs(a), np.abs(b)).sum(axis=0)


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


SHARE = "1"
"""Unit of a size that is a share, such as ‖Δ‖/‖E⁰‖; pages show it in %."""

IDENTICAL = Kind("identical", 0.0, SHARE, "bit-identical")


def find_equal(survey: Survey) -> Kind | None:
    """Bits differ and no value does: some zeros changed their sign. No cast and no rounding, and not bit-identical."""
    if survey.num_changed:
        return None
    num_zeros = sum(int(np.count_nonzero(np.signbit(a) != np.signbit(b))) for _, a, b in survey.moved_blocks())
    return Kind("equal in value", 0.0, SHARE, f"identical in value; the sign of zero differs {num_zeros:,} times")


def count_cast(survey: Survey) -> tuple[str, int]:
    """The half precision to which most rows were rounded, and how many: rows of which a value changed, and of which
    each value is the old one rounded. 0 where fewer than TELLING_VALUES values changed so."""
    counts = dict.fromkeys(HALF_FORMATS, (0, 0))  # rows, and values of them, that changed so
    for _, a, b in survey.moved_blocks():
        for name in HALF_FORMATS:
            # Few values fit by chance, so the first column spares most rows the rounding.
            rows = np.flatnonzero(FORMATS[name].round(b[:, 0]) == b[:, 0])
            rows = rows[(FORMATS[name].round(a[rows]) == b[rows]).all(axis=1)]
            num_changed = np.count_nonzero(a[rows] != b[rows], axis=1)
            num_rows, num_values = counts[name]
            counts[name] = num_rows + int(np.count_nonzero(num_changed)), num_values + int(num_changed.sum())
    name = max(counts, key=lambda name: counts[name])
    num_rows, num_values = counts[name]
    return name, num_rows if num_values >= TELLING_VALUES else 0


def find_cast(survey: Survey) -> Kind | None:
    """Every value of every row that changed is the old one rounded to a half precision; the detail counts the rows."""
    name, num_cast = count_cast(survey)
    if num_cast != survey.num_changed:
        return None
    detail = f"each value is the old one rounded to {name}: a conversion, no training"
    if survey.count_contradicting(lambda still: (FORMATS[name].round(still) != still).any(axis=1)):
        counts = f"{num_cast:,} of {survey.num_rows:,} {survey.pair.rows}"
        detail = f"{counts} rounded to {name}; the others are bit-identical"
    return Kind("cast", survey.relative_of_moved, SHARE, detail)


def find_rounding(survey: Survey) -> Kind | None:
    """No value has moved by more than ROUNDINGS roundings: whatever was done, the type hardly holds it."""

    def is_within(a: Array, b: Array) -> bool:
        return bool((np.abs(b - a) <= ROUNDINGS * roundoff(survey.form, np.maximum(np.abs(a), np.abs(b)))).all())

    if not all(is_within(a, b) for _, a, b in survey.moved_blocks()):
        return None
    detail = f"nothing above {ROUNDINGS} roundings of {survey.form.name}, so nothing can be told of it"
    return Kind("rounding", survey.relative_of_moved, SHARE, detail)


def find_one_row(survey: Survey) -> Kind | None:
    """One row moved and no bit of any other."""
    if survey.num_moved != 1:
        return None
    noun = "row" if survey.pair.is_table else "entry"
    detail = f"its only {noun}" if survey.num_rows == 1 else f"1 of {survey.num_rows:,} {survey.pair.rows}"
    return Kind(f"one {noun}", survey.relative_of_moved, SHARE, detail)


def find_scaling(survey: Survey) -> Kind | None:
    """Eᵗ = c·E⁰, with c by least squares."""
    if survey.squared_before == 0:
        return None
    factor = 1 + survey.inner / survey.squared_before
    form = survey.form

    def tolerance(a: Array, b: Array) -> Array:
        # The error of c is at most one rounding of a mean, so it adds one more of the fitted value.
        return np.asarray(ROUNDINGS * (roundoff(form, b) + roundoff(form, factor * a)))

    num_contradicting = _check(survey, lambda a: factor * a, tolerance)
    if num_contradicting is None:
        return None
    detail = f"times {factor:.9g}" + say_where(survey, num_contradicting)
    if math.exp(-LIKE_DECAY) <= factor < 1:
        detail += f"; weight decay with Σ lr·decay = {-math.log(factor):.3g} would say the same"
    if find_offset(survey) is not None:
        detail += "; a common offset says the same of rows that were all equal"
    return Kind("scaling", factor - 1, SHARE, detail)


def find_offset(survey: Survey) -> Kind | None:
    """Eᵗ = E⁰ + o with one vector for all rows, o by least squares."""
    if survey.num_moved < 2:
        return None
    form = survey.form
    error_of_mean = roundoff(form, survey.magnitudes / survey.num_moved)

    def tolerance(a: Array, b: Array) -> Array:
        return np.asarray(ROUNDINGS * (roundoff(form, np.maximum(np.abs(a), np.abs(b))) + error_of_mean))

    num_contradicting = _check(survey, lambda a: a + survey.offset, tolerance)
    if num_contradicting is None:
        return None
    if survey.pair.is_table:
        size = float(np.linalg.norm(survey.offset))
        change = "one vector added to every row"
    else:  # one number, with its sign
        size = float(survey.offset[0])
        change = f"{size:+.6g} added to every entry"
    detail = change + say_where(survey, num_contradicting)
    return Kind("common offset", size, "weight units", detail, None if num_contradicting else survey.offset)


def find_permutation(survey: Survey) -> Kind | None:
    """The same rows, bit for bit, in another order."""
    if not survey.pair.is_table or survey.num_moved < 2:
        return None
    # A permutation keeps the sums; most changes do not, and are spared the pass.
    if np.abs(survey.sums).max() > 1e-9 * float(np.abs(survey.magnitudes).max()):
        return None
    weights = np.random.default_rng(0).integers(2**63, size=(2, survey.num_columns), dtype=np.uint64) | np.uint64(1)
    hashes = [(_hash(a, weights), _hash(b, weights)) for _, a, b in survey.moved_blocks()]
    hashes_before, hashes_after = (np.concatenate(blocks) for blocks in zip(*hashes, strict=True))
    order_before = np.lexsort(hashes_before.T)
    order_after = np.lexsort(hashes_after.T)
    if not np.array_equal(hashes_before[order_before], hashes_after[order_after]):
        return None
    rows: NDArray[np.int64] = np.flatnonzero(survey.moved)
    source_rows = np.empty_like(rows)
    source_rows[order_after] = rows[order_before]
    old = np.asarray(survey.pair.before.tensors[survey.pair.parameter])
    new = np.asarray(survey.pair.after.tensors[survey.pair.parameter])
    for start in range(0, len(rows), 1024):  # a hash may collide, rows are compared
        block = slice(start, start + 1024)
        if not np.array_equal(new[rows[block]], old[source_rows[block]]):
            return None
    detail = f"{len(rows):,} of {survey.num_rows:,} rows stand elsewhere"
    sources = dict(zip(rows.tolist(), source_rows.tolist(), strict=True))
    return Kind("permuted rows", float(len(rows)), "rows", detail, sources=sources)


def _hash(rows: Array, weights: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(rows, 2) multilinear hashes of the bits, modulo 2⁶⁴."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    return np.stack([(bits * w).sum(axis=1, dtype=np.uint64) for w in weights], axis=1)


def _check(survey: Survey, formula: Formula, tolerance: Tolerance) -> int | None:
    """How many of the unmoved rows contradict a formula.

    None as soon as a moved row is not where the formula puts it, or where the residual is above UNEXPLAINED.
    """
    squared_residual = 0.0
    num_contradicting = 0
    for rows, a, b in survey.pair.blocks():
        residual = b - formula(a)
        holds: NDArray[np.bool_] = np.all(np.abs(residual) <= tolerance(a, b), axis=1)
        has_moved = survey.moved[rows]
        if not holds[has_moved].all():
            return None
        squared_residual += float(np.sum(np.square(residual[has_moved])))
        num_contradicting += int(np.count_nonzero(~holds & ~has_moved))
    return num_contradicting if squared_residual <= UNEXPLAINED * survey.squared_change else None


def say_where(survey: Survey, num_contradicting: int) -> str:
    """A clause on which rows a formula holds for; empty where it holds for all."""
    if not num_contradicting:
        return ""
    return f", on {survey.num_moved:,} of {survey.num_rows:,} {survey.pair.rows}; the others are bit-identical"
