"""The kinds of change that a parameter can have undergone: exact rules, tried from the special to the general.

An exact kind is a formula for Eᵗ from E⁰. It holds when every coordinate of every moved row is where the formula puts
it, up to ROUNDINGS roundings in the precision of the values: a mixture leaves more than that somewhere. Ours.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.measures import Array
from toolkit.analysis.precision import FORMATS, HALF_FORMATS, Format
from toolkit.families import TABLES
from toolkit.snapshots.snapshot import Snapshot

ROUNDINGS = 4
"""Roundings in a row that an exact kind may leave behind: one for the stored result, some for how it was computed."""

TELLING_VALUES = 16
"""Values other than 0 and ±1 that must fit a half precision before they count as stored in it: each fits by chance
with a probability of about 2⁻¹³ (fp16, if in its range) or 2⁻¹⁶ (bf16)."""


def unit_roundoff(form: Format) -> float:
    """The largest relative error of rounding to nearest, half a unit in the last place."""
    return float(2.0**-form.bits)


def roundoff(form: Format, values: Array) -> Array:
    """(...,) float64: the largest absolute error of rounding each value to a format."""
    return np.asarray(np.maximum(unit_roundoff(form) * np.abs(values), 2.0 ** (form.lowest - 1)))


def spacing_exponents(form: Format, values: Array) -> NDArray[np.int64]:
    """(...,) the exponent of the spacing (unit in the last place) of a format at each value."""
    exponents = np.frexp(values)[1].astype(np.int64) - form.bits
    return np.where(values == 0, form.lowest, np.maximum(exponents, form.lowest))


class FormatFinder:
    """Finds the coarsest format that holds every value it is given: weights cast up to fp32 keep few bits."""

    def __init__(self) -> None:
        self._fits = list(HALF_FORMATS)
        self._num_telling = 0

    def add(self, values: Array) -> None:
        """Look at a block of values."""
        if self._fits:
            self._num_telling += int(np.count_nonzero((values != 0) & (np.abs(values) != 1)))
            self._fits = [name for name in self._fits if np.array_equal(FORMATS[name].round(values), values)]

    @property
    def found(self) -> Format:
        """fp32 unless enough values say otherwise."""
        is_half = bool(self._fits) and self._num_telling >= TELLING_VALUES
        return FORMATS[self._fits[0] if is_half else "fp32"]


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
        """What several of its rows are called."""
        return "rows" if self.is_table else "entries"

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        shape = self.before.tensors[self.parameter].shape
        return (shape[0], shape[1]) if self.is_table else (shape[0], 1)

    def blocks(self) -> Iterator[Block]:
        """Every row, in order."""
        for rows, (a, b) in iterate_blocks([self.before, self.after], self.parameter):
            if not self.is_table:
                a, b, rows = a.reshape(-1, 1), b.reshape(-1, 1), slice(0, a.size)
            yield np.arange(rows.start, rows.stop), a, b


@dataclass
class Survey:
    """What one pass over a pair tells. Sums are over the moved rows; those of Δ are the same over all rows."""

    pair: Pair
    moved: NDArray[np.bool_]
    """(rows,) whether any bit of the row differs."""
    form: Format = field(init=False)
    """The format that the values after the change betray: storing them rounded to it."""
    form_before: Format = field(init=False)
    is_on_grid: bool = field(init=False)
    """Whether the values before are of no finer format, so that they lie on the grid of the new ones."""
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
        """The moved rows."""
        for rows, a, b in self.pair.blocks():
            keep = self.moved[rows]
            if keep.all():
                yield rows, a, b
            elif keep.any():
                yield rows[keep], a[keep], b[keep]


def survey(pair: Pair) -> Survey:
    """One pass: which rows moved, in which precision the values are, and the sums that the simple kinds need."""
    found = Survey(pair, np.zeros(pair.shape[0], np.bool_))
    found.sums, found.magnitudes = np.zeros(pair.shape[1]), np.zeros(pair.shape[1])
    finders = FormatFinder(), FormatFinder()
    for rows, a, b in pair.blocks():
        for finder, block in zip(finders, (a, b), strict=True):
            finder.add(block)
        found.squared_reference += float(np.einsum("ij,ij->", a, a))
        # Bits, not values: 0 and -0 are equal and not identical.
        moved = (a.view(np.int64) != b.view(np.int64)).any(axis=1)
        found.moved[rows] = moved
        if moved.any():
            _add(found, *((a, b) if moved.all() else (a[moved], b[moved])))
    before, after = (finder.found for finder in finders)
    found.form_before, found.form = before, after
    found.is_on_grid = before.bits <= after.bits
    return found


def _add(found: Survey, a: Array, b: Array) -> None:
    change = b - a
    found.num_changed += int(np.count_nonzero(change.any(axis=1)))
    found.squared_before += float(np.einsum("ij,ij->", a, a))
    found.squared_change += float(np.einsum("ij,ij->", change, change))
    found.inner += float(np.einsum("ij,ij->", a, change))
    found.sums += change.sum(axis=0)
    found.magnitudes += np.maximum(np.abs(a), np.abs(b)).sum(axis=0)


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
    """Every value of every row that changed is the old one rounded to a half precision; the detail counts the rows."""
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
    no end, and a few changed rows, are not low rank.
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


LIMIT = 6.0
"""In 4,000 draws of noise of relative size 1e-6 and 1e-2 on tables of 16 to 300 rows and 16 to 64 columns no score came
above 4.4; at 1e-7, where a large value moves in one draw of many, 1 of 2,000 came above 6 and would be general."""
SMALLEST = 16
"""Moved rows and columns that a table must have: with 8 the scores came up to 6.4 in 500 draws of noise."""
FIRST, LAST = -60, 20
"""Exponents of the grid steps that are distinguished; a finer step than 2⁻⁶⁰ rounds nothing that could matter."""
STEPS = np.ldexp(1.0, np.arange(FIRST, LAST + 1))


def rounded_moments(ratios: Array, is_on_grid: bool = True) -> tuple[Array, Array]:
    """Second and fourth moments of Gaussian noise of standard deviations ``ratios`` (m,), rounded to whole numbers.

    E N² = Σ_k (2k - 1)·P(|N| ≥ k), E N⁴ = Σ_k (k⁴ - (k - 1)⁴)·P(|N| ≥ k). Off the grid (E⁰ of a finer type), and for
    a ratio above 8, the rounding error is uniform and independent: s² + 1/12, 3s⁴ + s²/2 + 1/80.
    """
    from scipy.special import erfc

    k = np.arange(1.0, 102.0)
    tails = erfc((k - 0.5) / np.minimum(ratios, 8)[:, None] / math.sqrt(2))
    is_smooth = (ratios > 8) | (not is_on_grid)
    second = np.where(is_smooth, ratios**2 + 1 / 12, tails @ (2 * k - 1))
    fourth = np.where(is_smooth, 3 * ratios**4 + ratios**2 / 2 + 1 / 80, tails @ (k**4 - (k - 1) ** 4))
    return second, fourth


SMALLEST_VECTOR = 64
"""Entries that a LayerNorm vector must have: of fewer, hardly any other change would be distinguishable from noise."""
VECTOR_LIMIT = 3.5
"""For a vector, whose few entries never reach LIMIT: of 20,000 draws of noise on 64, 128, 384, 768 and 1,024 entries
.25 to .39 % had one of the six scores above it, and would be general."""
NUM_DRAWS = 400
"""Draws of each alternative, of which the share that would have been found is reported."""


@dataclass(frozen=True, slots=True)
class Law:
    """What noise of one s does to stored values: variance and fourth moment by the exponent of the grid step."""

    deviation: float
    form: Format
    variances: Array
    fourths: Array

    @classmethod
    def of(cls, deviation: float, form: Format, is_on_grid: bool) -> "Law":
        second, fourth = rounded_moments(deviation / STEPS, is_on_grid)
        return cls(deviation, form, second * STEPS**2, fourth * STEPS**4)

    def places(self, before: Array) -> NDArray[np.int64]:
        """Where each value stands in the two tables."""
        return _places(self.form, before)


def _places(form: Format, before: Array) -> NDArray[np.int64]:
    return np.asarray(np.clip(spacing_exponents(form, before), FIRST, LAST) - FIRST)


def fit_deviation(found: Survey) -> Law:
    """The s with which noise, rounded to the grid, has the observed Σ Δ²: by bisection, since both grow together."""
    counts = np.zeros(len(STEPS))
    for _, a, _ in found.moved_blocks():
        counts += np.bincount(_places(found.form, a).reshape(-1), minlength=len(counts))
    low, high = (math.sqrt(found.squared_change / counts.sum()) * factor for factor in (1 / 64, 64))
    law = Law.of(high, found.form, found.is_on_grid)
    for _ in range(60):
        middle = math.sqrt(low * high)
        law = Law.of(middle, found.form, found.is_on_grid)
        is_below = float(counts @ law.variances) < found.squared_change
        low, high = (middle, high) if is_below else (low, middle)
    return law


class _Sums:
    """Accumulates the cheap tests, which need no products of columns."""

    def __init__(self, num_columns: int) -> None:
        self.row_dispersion = self.radial = self.constants = 0.0
        self.num_rows = self.num_radial = 0
        self.scaling = np.zeros(2)
        self.neighbours = np.zeros(2)
        self.columns = np.zeros((3, num_columns))
        self.sums = np.zeros(num_columns)
        self._last: tuple[Array, Array] | None = None

    def add(self, a: Array, change: Array, law: Law) -> None:
        places = law.places(a)
        v, spread = law.variances[places], law.fourths[places] - law.variances[places] ** 2
        squared = change**2
        self.num_rows += len(a)
        self.row_dispersion += float((((squared - v).sum(axis=1)) ** 2 / spread.sum(axis=1)).sum())
        self.constants += float((change.sum(axis=1) ** 2 / v.sum(axis=1)).sum())
        inner, of_inner = (a * change).sum(axis=1), (a**2 * v).sum(axis=1)
        has_direction = of_inner > 0
        self.num_radial += int(has_direction.sum())
        self.radial += float((inner[has_direction] ** 2 / of_inner[has_direction]).sum())
        self.scaling += inner.sum(), of_inner.sum()
        self.columns += squared.sum(axis=0), v.sum(axis=0), spread.sum(axis=0)
        self.sums += change.sum(axis=0)
        if self._last is not None:
            change, v = np.vstack([self._last[0], change]), np.vstack([self._last[1], v])
        self.neighbours += (change[1:] * change[:-1]).sum(), (v[1:] * v[:-1]).sum()
        self._last = change[-1:], v[-1:]

    def scores(self) -> dict[str, float]:
        """Each test as its distance from noise in standard deviations."""
        squares, v, spread = self.columns
        n, p = self.num_rows, len(v)
        # The squares of standardised sums of p squared Gaussians have variance 2 + 12/p.
        return {
            "lengths of rows": (self.row_dispersion - n) / math.sqrt(n * (2 + 12 / p)),
            "lengths of columns": (float((((squares - v) ** 2) / spread).sum()) - p) / math.sqrt(p * (2 + 12 / n)),
            "a common offset": _chi_squared_score(float((self.sums**2 / v).sum()), p),
            "a constant added to each row": _chi_squared_score(self.constants, n),
            "a factor of each row": _chi_squared_score(self.radial, self.num_radial),
            "scaling": abs(self.scaling[0]) / math.sqrt(self.scaling[1]) if self.scaling[1] > 0 else 0.0,
            "likeness of neighbouring rows": abs(self.neighbours[0]) / math.sqrt(self.neighbours[1]),
        }


def _chi_squared_score(value: float, degrees: int) -> float:
    """χ² as a standard normal deviate by the cube root (Wilson & Hilferty 1931), good from few degrees on."""
    if degrees == 0:
        return 0.0
    share = 2 / (9 * degrees)
    return float((np.cbrt(value / degrees) - (1 - share)) / math.sqrt(share))


def _product_scores(found: Survey, law: Law) -> dict[str, float]:
    """Tests that need products of columns: do the columns of Δ go together, and is Δ a linear map of E⁰?"""
    p, n = found.num_columns, found.num_moved
    own, cross, change_of = np.zeros((p, p)), np.zeros((p, p)), np.zeros((p, p))
    v = np.zeros(p)
    for _, a, b in found.moved_blocks():
        change = b - a
        own += a.T @ a
        cross += a.T @ change
        change_of += change.T @ change
        v += law.variances[law.places(a)].sum(axis=0)
    v /= n
    pairs = p * (p - 1) / 2
    together = float((np.triu(change_of, 1) ** 2 / np.outer(v, v)).sum()) / n
    values, directions = np.linalg.eigh(own)
    kept = values > 1e-10 * values[-1]
    if 2 * kept.sum() <= n:
        # Least squares of Δ on E⁰: as many squares as the map has entries.
        explained = ((directions[:, kept].T @ cross) ** 2 / values[kept][:, None] / v).sum()
        linear = _chi_squared_score(float(explained), int(kept.sum()) * p)
    else:
        # A map could absorb everything; the covariance itself has a law for any number of rows.
        total = float((cross**2 / v).sum())
        linear = (total - p * values.sum()) / math.sqrt(2 * p * float((values**2).sum()))
    return {"likeness of columns": (together - pairs) / math.sqrt(2 * pairs), "a linear map of the rows": linear}


def score_noise(found: Survey) -> tuple[Law, dict[str, float]] | None:
    """s and the scores of every test, the costly ones only where the cheap ones pass; None for too small a table."""
    if not found.pair.is_table or min(found.num_moved, found.num_columns) < SMALLEST:
        return None
    law = fit_deviation(found)
    sums = _Sums(found.num_columns)
    for _, a, b in found.moved_blocks():
        sums.add(a, b - a, law)
    scores = sums.scores()
    if max(scores.values()) <= LIMIT:
        scores |= _product_scores(found, law)
    return law, scores


def score_vectors(before: Array, changes: Array) -> Array:
    """(tests, draws) scores of changes of a vector, (draws, entries), each a standard normal deviate under noise.

    A common offset (Student's t, as a deviate), skewness and kurtosis (D'Agostino's and Anscombe & Glynn's deviates, by
    scipy), correlation of Δ with the values and of |Δ| with their distance from the median (Fisher's z), likeness of
    neighbours (serial correlation times √entries).
    """
    from scipy import stats

    n = changes.shape[1]
    centred = changes - changes.mean(axis=1, keepdims=True)
    deviations = np.sqrt(np.square(centred).sum(axis=1) / (n - 1))
    t = changes.mean(axis=1) / deviations * math.sqrt(n)

    def correlation(x: Array, y: Array) -> Array:
        x, y = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(x).sum(axis=-1) * np.square(y).sum(axis=-1))
        r = np.divide((x * y).sum(axis=-1), scale, out=np.zeros(len(changes)), where=scale > 0)
        return np.asarray(np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12)) * math.sqrt(n - 3))

    serial = (centred[:, 1:] * centred[:, :-1]).sum(axis=1) / np.square(centred).sum(axis=1) * math.sqrt(n)
    away = np.abs(before - np.median(before))
    scores = [
        stats.norm.isf(stats.t.sf(np.abs(t), n - 1)),
        stats.skewtest(changes, axis=1).statistic,
        stats.kurtosistest(changes, axis=1).statistic,
        correlation(before[None], changes),
        correlation(away[None], np.abs(centred)),
        serial,
    ]
    return np.asarray(np.abs(np.stack(scores)))


def vector_power(before: Array) -> dict[str, float]:
    """Share of draws in which a change that is not noise would have been found in a vector of these entries.

    ``tied``: correlated by .3 with the values; ``heavy``: Student's t of 3 degrees of freedom; ``even``: uniform, as
    steps of one size are flatter than a Gaussian.
    """
    rng = np.random.default_rng([*b"noise", len(before)])
    shape = (NUM_DRAWS, len(before))
    values = (before - before.mean()) / (before.std() or 1)
    draws = {
        "tied": 0.3 * values + math.sqrt(1 - 0.3**2) * rng.normal(size=shape),
        "heavy": rng.standard_t(3, size=shape),
        "even": rng.uniform(-1, 1, size=shape),
    }
    return {name: float((score_vectors(before, own) > VECTOR_LIMIT).any(axis=0).mean()) for name, own in draws.items()}


def _find_vector_noise(found: Survey) -> Kind | None:
    """Of a LayerNorm vector of SMALLEST_VECTOR entries or more, nearly all of which moved, and far."""
    n = found.num_rows
    if n < SMALLEST_VECTOR or found.num_moved < 0.95 * n:
        return None
    before, after = (np.concatenate([block[i][:, 0] for block in found.pair.blocks()]) for i in (1, 2))
    change = after - before
    deviation = float(change.std())
    if deviation < 16 * float(roundoff(found.form, np.maximum(np.abs(before), np.abs(after))).max()):
        return None
    worst = float(score_vectors(before, change[None]).max())
    if not worst <= VECTOR_LIMIT:
        return None
    power = vector_power(before)
    detail = f"not distinguishable from Gaussian noise, standard deviation {deviation:.3g}"
    tied, heavy, even = (f"{100 * power[name]:.0f} %" for name in ("tied", "heavy", "even"))
    note = (
        f"6 tests on {n:,} entries, the worst {worst:.1f} SD; they would have shown a correlation of .3 with the "
        f"values in {tied} of draws, heavy tails (t, 3 df) in {heavy}, a uniform change in {even}: short training may "
        "look so too"
    )
    return Kind("noise", found.relative_of_moved, "1", detail, math.nan, note=note)


def find_noise(found: Survey) -> Kind | None:
    """``noise``: independent, of one s in every coordinate, tied to no row, column or value of E⁰.

    Of a LayerNorm vector, whose few entries tell less, what the tests would have found is said beside it.
    """
    if not found.pair.is_table:
        return _find_vector_noise(found)
    tested = score_noise(found)
    if tested is None or not max(tested[1].values()) <= LIMIT:
        return None
    law, scores = tested
    detail = f"independent and Gaussian, standard deviation {law.deviation:.3g}"
    if found.num_moved < found.num_rows:
        detail += f", on {found.num_moved:,} of {found.num_rows:,} rows; the others are bit-identical"
    worst = max(scores, key=lambda name: scores[name])
    note = f"{len(scores)} tests for structure, the worst {scores[worst]:.1f} SD: {worst}"
    return Kind("noise", found.relative_of_moved, "1", detail, math.nan, note=note)


ROTATION_ROUNDINGS = 16
"""Roundings of fp32, as a share of a row's length, that an orthogonal map may leave. Measured: products in fp32 left up
to 8 for rows of 16 to 2,048 columns, one in fp64 left 1. Noise of relative size 1e-6 beside a rotation hides there."""


@dataclass(frozen=True, slots=True)
class FittedRotation:
    """The orthogonal Procrustes solution for the moved rows, raw: neither centred nor scaled."""

    map: Array
    """(columns, columns): before @ map is nearest to after."""
    residual: float
    """Share of Σ‖Δ‖² that it leaves."""
    is_exact: bool
    """Whether every row is left within the roundings."""


def rotation_null(num_rows: int, num_columns: int) -> float:
    """Share of a small isotropic Gaussian change that the best orthogonal map explains, though nothing was rotated.

    The maps near the identity are E⁰A with A skew; with r = min(n, p) independent rows they span r·p - r(r + 1)/2 of
    the n·p directions of Δ. Ours; (p - 1)/(2n) for n ≥ p. A test holds it to simulated values.
    """
    rank = min(num_rows, num_columns)
    return rank * (num_columns - (rank + 1) / 2) / (num_rows * num_columns)


def fit_rotation(found: Survey) -> FittedRotation | None:
    """Two passes over the moved rows; None where there are fewer of them than columns, so that a map absorbs at least
    half of any change and is no finding.

    Schönemann (1966), A generalized solution of the orthogonal Procrustes problem. The residual is summed up from the
    rows: the usual ‖E⁰‖² + ‖Eᵗ‖² minus twice the singular values would lose a drift below 1e-7.
    """
    if not found.pair.is_table or found.num_columns < 2 or found.num_moved < found.num_columns:
        return None
    cross = np.zeros((found.num_columns,) * 2)
    for _, a, b in found.moved_blocks():
        cross += a.T @ b
    left, _, right = np.linalg.svd(cross)
    turn = left @ right
    total, is_exact = 0.0, True
    allowed = 2 * unit_roundoff(found.form) + ROTATION_ROUNDINGS * unit_roundoff(FORMATS["fp32"])
    for _, a, b in found.moved_blocks():
        squares = np.square(b - a @ turn).sum(axis=1)
        total += float(squares.sum())
        is_exact = is_exact and bool((np.sqrt(squares) <= allowed * np.sqrt(np.square(b).sum(axis=1))).all())
    share = total / found.squared_change
    return FittedRotation(turn, share, is_exact and share <= UNEXPLAINED)


def kind_of_rotation(found: Survey, rotation: FittedRotation | None) -> Kind | None:
    """``rotation`` where the map is exact, its size the mean angle over the columns' invariant planes in degrees."""
    if rotation is None or not rotation.is_exact:
        return None
    angles = np.degrees(np.abs(np.angle(np.linalg.eigvals(rotation.map))))
    is_proper = np.linalg.slogdet(rotation.map)[0] > 0
    detail = f"one orthogonal map of all rows, {'a rotation' if is_proper else 'with a reflection'}"
    # A row of zeros stays where it is under any map; another that stayed contradicts this one.
    stayed = sum(int(np.count_nonzero(a[~found.moved[rows]].any(axis=1))) for rows, a, _ in found.pair.blocks())
    detail += where(found, stayed)
    return Kind("rotation", float(angles.mean()), "degrees", detail, rotation.residual)


def removed_share(rotation: FittedRotation | None) -> float:
    """Share of Σ‖Δ‖² that the best orthogonal map explains; NaN where it was not fitted."""
    return math.nan if rotation is None else 1 - rotation.residual
