"""The kinds of change that are fitted or tested: decay of some rows or all, low rank, noise, rotation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.measures import Array
from toolkit.analysis.precision import FORMATS, HALF_FORMATS, TELLING_VALUES, Format
from toolkit.questions.changes.exposure import LEAST, UNEXPOSED, tell_rows
from toolkit.questions.changes.finders import (
    LIKE_DECAY,
    ROUNDINGS,
    UNEXPLAINED,
    Block,
    Kind,
    Survey,
    roundoff,
    spacing_exponents,
    unit_roundoff,
    where,
)

MANTISSA = np.uint64(2**23 - 1)

TIED = 2
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
    neighbours up to TIED spacings away can have one and the same; where that lies half-way between two spacings, the
    difference is rounded to even, down for one and up for the other, and the larger value loses one spacing less.
    """
    remaining = np.zeros(0, np.uint32)
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
        if not len(remaining):
            remaining = np.zeros(2**23, np.uint32)
        places, new = before & int(MANTISSA), scaled.astype(np.uint32)
        earlier = remaining[places]
        if ((earlier != 0) & (earlier != new)).any():
            return False
        remaining[places] = new
        if not np.array_equal(remaining[places], new):
            return False
    places = np.flatnonzero(remaining)
    if len(places) < TELLING_VALUES:
        return False
    shares_left = remaining[places].view(np.float32).astype(np.float64)
    shares_taken = 1 + places / 2**23 - shares_left
    slack = np.where(shares_left < 1, ROUNDINGS * 2.0**-23, 0.0)
    most_taken = np.maximum.accumulate(shares_taken - slack)
    num_far_below = np.searchsorted(places, places - TIED)  # so many values are further below than TIED spacings
    is_ordered = (
        bool((np.diff(shares_left) >= 0).all())
        and bool((shares_taken[1:] >= most_taken[:-1] - 2.0**-23).all())
        and bool((shares_taken[num_far_below > 0] >= most_taken[num_far_below[num_far_below > 0] - 1]).all())
    )
    return is_ordered and bool(
        shares_left[-1] <= 2 * shares_left[0]
        and shares_taken[-1] <= 2 * (shares_taken[0] + slack[0])
        and shares_taken[0] > 0
    )


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
    if found.form.name in HALF_FORMATS or not is_repeated_shrinking(found.blocks_of(rows)):
        return None
    squares = inner = squared_change = 0.0
    for _, a, b in found.blocks_of(rows):
        squares += float(np.einsum("ij,ij->", a, a))
        inner += float(np.einsum("ij,ij->", a, b - a))
        squared_change += float(np.square(b - a).sum())
    factor = 1 + inner / squares
    squared_residual, is_far, least_factor, most_factor = 0.0, False, 0.0, math.inf
    for _, a, b in found.blocks_of(rows):
        residual = np.abs(b - factor * a)
        squared_residual += float(np.square(residual).sum())
        is_far = is_far or bool((residual > ROUNDINGS * (roundoff(found.form, b) + roundoff(found.form, a))).any())
        is_normal = np.abs(a) >= LEAST
        a, b, error = np.abs(a[is_normal]), np.abs(b[is_normal]), roundoff(found.form, b[is_normal])
        least_factor = max(least_factor, float(((b - error) / a).max(initial=0)))
        most_factor = min(most_factor, float(((b + error) / a).min(initial=math.inf)))
    total = -math.log(factor)
    # Where no one factor is within the rounding of every value, several products were taken.
    return Decay(
        total, squared_residual / squared_change, least_factor > most_factor and (is_far or total < LIKE_DECAY)
    )


def find_decay(found: Survey) -> Kind | None:
    """``decay``: every moved value is what several fp32 products by factors below 1 make of it, of any schedule.

    Where one product gives every value, the kind is ``scaling``: a single step of decay does the same, and that is
    said there. So are several large products that leave few roundings, as of a model halved twice.
    """
    decay = fit_decay(found, found.moved)
    if decay is None or not decay.is_several:
        return None
    detail = f"Σ lr·decay = {decay.total:.3g}" + where(found, found.count_still(lambda a: a.any(axis=1)))
    facts = {"num_decayed": found.num_moved, "sum_lr_decay": decay.total}
    return Kind("decay", decay.total, "Σ lr·decay", detail, decay.share_left, facts=facts)


def find_decay_and_training(found: Survey) -> Kind | None:
    """``decay and training``: some moved rows are as in ``decay``, the others moved otherwise, apart.

    Which rows are decay's, the curve of :func:`toolkit.infer_exposure` tells, where the law of is_repeated_shrinking
    holds of all of them together, and several products are needed. The size is that of the other rows, ‖Δ‖/‖E⁰‖.
    """
    if not found.pair.is_table or found.num_moved < 2:
        return None
    (table,) = tell_rows([found.pair], found.moved)
    decayed = (table.found == UNEXPOSED) & found.moved
    decay = fit_decay(found, decayed) if decayed.any() else None
    # One product is a scaling of some rows: none of the kinds.
    if decay is None or not decay.is_several or decayed.sum() == found.num_moved:
        return None
    squares, squared_change = 0.0, 0.0
    for _, a, b in found.blocks_of(found.moved & ~decayed):
        squares, squared_change = squares + float(np.square(a).sum()), squared_change + float(np.square(b - a).sum())
    num_decayed = int(decayed.sum())
    detail = (
        f"decay on {num_decayed:,} of {found.num_rows:,} rows, training on {found.num_moved - num_decayed:,}"
        f"; Σ lr·decay = {decay.total:.3g}"
    )
    facts = {"num_decayed": num_decayed, "sum_lr_decay": decay.total}
    size = math.sqrt(squared_change / squares) if squares else math.nan
    return Kind("decay and training", size, "1", detail, math.nan, facts=facts)


LOW_RANK_SHARE = 0.25
"""Largest rank that is low, as a share of the moved rows or the columns, whichever are fewer. LoRA's usual ranks (4 to
64) are below it for 384 columns; of a few moved rows, of which any change has a low rank, it leaves none."""


def find_low_rank(found: Survey) -> Kind | None:
    """``low rank``: Δ is a product of few directions and a stored rounding, as a merged LoRA update is (ours).

    The rank is the number of singular values of Δ above what rounding leaves: independent errors of variances v have a
    spectral norm of about the largest √Σv of a row plus that of a column (a test holds it to simulated ones), which is
    taken ROUNDINGS times, and not below what eigenvalues of ΔᵀΔ in float64 resolve. It is low up to LOW_RANK_SHARE of
    the moved rows or columns, and holds where these directions leave roundings of every row: a steep spectrum that has
    no end, and a few changed rows, are not low rank.
    """
    highest_rank = int(LOW_RANK_SHARE * min(found.num_moved, found.num_columns))
    if not found.pair.is_table or highest_rank < 1:
        return None
    products = np.zeros((found.num_columns,) * 2)
    column_variances, row_variance = np.zeros(found.num_columns), 0.0
    for _, a, b in found.moved_blocks():
        change = b - a
        products += change.T @ change
        variances = _error_of_sum(found, a, b) ** 2 / 3
        column_variances += variances.sum(axis=0)
        row_variance = max(row_variance, float(variances.sum(axis=1).max()))
    squares, directions = np.linalg.eigh(products)
    limit = (ROUNDINGS * (math.sqrt(row_variance) + math.sqrt(float(column_variances.max())))) ** 2
    limit = max(limit, ROUNDINGS * found.num_columns * np.finfo(np.float64).eps * float(squares[-1]))
    rank = int(np.count_nonzero(squares > limit))
    if not 0 < rank <= highest_rank:
        return None
    kept, squared_residual = directions[:, -rank:], 0.0
    for _, a, b in found.moved_blocks():
        change = b - a
        coordinates = change @ kept
        row_residuals = np.linalg.norm(change - coordinates @ kept.T, axis=1)
        # Its own roundings, and those of all rows together, which turn the directions, as far as it follows them.
        allowed = ROUNDINGS * np.linalg.norm(_error_of_sum(found, a, b), axis=1)
        allowed += math.sqrt(limit) * np.linalg.norm(coordinates / np.sqrt(squares[-rank:]), axis=1)
        if (row_residuals > allowed).any():
            return None
        squared_residual += float(np.square(row_residuals).sum())
    if squared_residual / found.squared_change > UNEXPLAINED:
        return None
    num_still = found.num_rows - found.num_moved
    detail = f"the change has rank {rank} of {min(found.num_moved, found.num_columns)}" + where(found, num_still)
    return Kind(
        "low rank",
        found.relative_of_moved,
        "1",
        detail,
        squared_residual / found.squared_change,
        facts={"num_directions": rank},
    )


def _error_of_sum(surveyed: Survey, before: Array, after: Array) -> Array:
    """How far rounding may have moved a sum of a value and what was added to it, itself rounded."""
    return roundoff(surveyed.form, after) + roundoff(surveyed.form, after - before)


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


def _places(form: Format, before: Array) -> NDArray[np.int64]:
    """Where the exponent of each value is in the two tables of a :class:`Law`."""
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
        """Add a block of rows, ``a`` before and their change, (n, columns), under the law of noise."""
        places = _places(law.form, a)
        variances, spreads = law.variances[places], law.fourths[places] - law.variances[places] ** 2
        squared = change**2
        self.num_rows += len(a)
        self.row_dispersion += float((((squared - variances).sum(axis=1)) ** 2 / spreads.sum(axis=1)).sum())
        self.constants += float((change.sum(axis=1) ** 2 / variances.sum(axis=1)).sum())
        inner, inner_variances = (a * change).sum(axis=1), (a**2 * variances).sum(axis=1)
        has_direction = inner_variances > 0
        self.num_radial += int(has_direction.sum())
        self.radial += float((inner[has_direction] ** 2 / inner_variances[has_direction]).sum())
        self.scaling += inner.sum(), inner_variances.sum()
        self.columns += squared.sum(axis=0), variances.sum(axis=0), spreads.sum(axis=0)
        self.sums += change.sum(axis=0)
        if self._last is not None:
            change, variances = np.vstack([self._last[0], change]), np.vstack([self._last[1], variances])
        self.neighbours += (change[1:] * change[:-1]).sum(), (variances[1:] * variances[:-1]).sum()
        self._last = change[-1:], variances[-1:]

    def scores(self) -> dict[str, float]:
        """Each test as its distance from noise in standard deviations."""
        squares, variances, spreads = self.columns
        n, p = self.num_rows, len(variances)
        # The squares of standardised sums of p squared Gaussians have variance 2 + 12/p.
        return {
            "lengths of rows": (self.row_dispersion - n) / math.sqrt(n * (2 + 12 / p)),
            "lengths of columns": (float((((squares - variances) ** 2) / spreads).sum()) - p)
            / math.sqrt(p * (2 + 12 / n)),
            "a common offset": _chi_squared_score(float((self.sums**2 / variances).sum()), p),
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


def _product_scores(surveyed: Survey, law: Law) -> dict[str, float]:
    """Tests that need products of columns: do the columns of Δ go together, and is Δ a linear map of E⁰?"""
    p, n = surveyed.num_columns, surveyed.num_moved
    gram, cross, change_gram = np.zeros((p, p)), np.zeros((p, p)), np.zeros((p, p))
    variances = np.zeros(p)
    for _, a, b in surveyed.moved_blocks():
        change = b - a
        gram += a.T @ a
        cross += a.T @ change
        change_gram += change.T @ change
        variances += law.variances[_places(law.form, a)].sum(axis=0)
    variances /= n
    num_pairs = p * (p - 1) / 2
    together = float((np.triu(change_gram, 1) ** 2 / np.outer(variances, variances)).sum()) / n
    values, directions = np.linalg.eigh(gram)
    is_kept = values > 1e-10 * values[-1]
    if 2 * is_kept.sum() <= n:
        # Least squares of Δ on E⁰: as many squares as the map has entries.
        explained = ((directions[:, is_kept].T @ cross) ** 2 / values[is_kept][:, None] / variances).sum()
        linear = _chi_squared_score(float(explained), int(is_kept.sum()) * p)
    else:
        # A map could absorb everything; the covariance itself has a law for any number of rows.
        total = float((cross**2 / variances).sum())
        linear = (total - p * values.sum()) / math.sqrt(2 * p * float((values**2).sum()))
    return {
        "likeness of columns": (together - num_pairs) / math.sqrt(2 * num_pairs),
        "a linear map of the rows": linear,
    }


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
    return {
        name: float((score_vectors(before, changes) > VECTOR_LIMIT).any(axis=0).mean())
        for name, changes in draws.items()
    }


def _find_vector_noise(surveyed: Survey) -> Kind | None:
    """``noise`` of a LayerNorm vector; None where its entries are few, too many of them stayed, or all hardly moved."""
    n = surveyed.num_rows
    if n < SMALLEST_VECTOR or surveyed.num_moved < 0.95 * n:
        return None
    before, after = (np.concatenate([block[i][:, 0] for block in surveyed.pair.blocks()]) for i in (1, 2))
    change = after - before
    deviation = float(change.std())
    if deviation < 16 * float(roundoff(surveyed.form, np.maximum(np.abs(before), np.abs(after))).max()):
        return None
    worst = float(score_vectors(before, change[None]).max())
    if not worst <= VECTOR_LIMIT:
        return None
    power = vector_power(before)
    detail = f"not distinguishable from Gaussian noise, standard deviation {deviation:.3g}"
    least = min(power[name] for name in ("tied", "heavy", "even"))
    note = (
        f"6 tests on {n:,} entries, the worst {worst:.1f} SD; in {100 * least:.0f} % of draws or more they would have "
        "shown a correlation of .3 with the values, heavy tails (t, 3 df), a uniform change: short training may look "
        "so too"
    )
    return Kind("noise", surveyed.relative_of_moved, "1", detail, math.nan, note=note)


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
    left_vectors, _, right_vectors = np.linalg.svd(cross)
    turn = left_vectors @ right_vectors
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
    detail += where(found, found.count_still(lambda a: a.any(axis=1)))
    return Kind("rotation", float(angles.mean()), "degrees", detail, rotation.residual)
