"""The survey of one table in, whether its change is what independent Gaussian noise would be, stored in that type.

Every test compares a sum with its law under noise of one standard deviation s for all coordinates, and the change is
noise when none is out by more than LIMIT of its own standard deviations. The law knows the rounding: E⁰ lies on the
grid of its type, so noise far below half a grid step mostly leaves a value where it was. The tests are ours.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.causes.precision import Format
from toolkit.analysis.changes.kinds import Kind
from toolkit.analysis.changes.rounding import roundoff, spacing_exponents
from toolkit.analysis.changes.survey import Survey
from toolkit.analysis.rows.measures import Array

LIMIT = 6.0
"""In 4,000 draws of noise of relative size 1e-6 and 1e-2 on tables of 16 to 300 rows and 16 to 64 columns no score came
above 4.4; at 1e-7, where a large value moves in one draw of many, 1 of 2,000 came above 6 and would be general."""
SMALLEST = 16
"""Moved rows and columns that a table must have: with 8 the scores came up to 6.4 in 500 draws of noise."""
FIRST, LAST = -60, 20
"""Exponents of the grid steps that are told apart; a finer step than 2⁻⁶⁰ rounds nothing that could matter."""
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
"""Draws of each alternative whose share that would have been found is said."""


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


def vector_power(before: Array, num_draws: int = NUM_DRAWS) -> dict[str, float]:
    """Share of draws in which a change that is no noise would have been found in a vector of these entries.

    ``tied``: correlated by .3 with the values; ``heavy``: Student's t of 3 degrees of freedom; ``even``: uniform, as
    steps of one size are flatter than a Gaussian.
    """
    rng = np.random.default_rng([*b"noise", len(before)])
    shape = (num_draws, len(before))
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
