"""Whether a position table carries the sinusoid's waves, or is made of waves of its own.

Principal directions and slow waves of *any* smooth curve look like sine and cosine, so that shares explained by the
sinusoid's directions are description only. Each verdict rests on a statistic (:mod:`line_match`, :mod:`orbits`) and
on its controls at the same shape: tables that have the waves, in noise, and smooth random curves, which have not.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.kernels import Refused
from toolkit.analysis.measures import Array
from toolkit.naming import at_least, lookup
from toolkit.schema import columns_of, with_columns
from toolkit.sinusoid import BASE, sinusoidal_table, wave_frequencies

RESOLUTION = 1.25
"""Neighbouring waves count as apart from this many periods per window on (1 is the Rayleigh limit)."""
MIN_LINES = 6
"""With fewer waves apart there is too little to match."""
NUM_COMBS = 200
"""Other combs that make the scale of the score."""
LONGEST_STEP = 3.0
"""Steps longer than this many median steps are shortened to it: one jump would flood the whole spectrum."""


@dataclass(frozen=True, slots=True)
class LineMatch:
    """How a table's spectrum matches the sinusoid's waves."""

    score: float
    """Correlation of the two log spectra, both less a cubic trend, over its root mean square for other combs; about
    Gaussian around 0 without lines."""
    num_lines: int
    """Waves of the sinusoid in the band."""
    longest_wave: float
    """Rows per period of the slowest wave in the band; the fastest has 2π. Slower ones blend."""


@dataclass(frozen=True, slots=True)
class Band:
    """Where the sinusoid's waves are apart, for one shape of table."""

    frequencies: Array
    """(m,) radians per row, four per period and window."""
    num_lines: int
    basis: Array
    """(m, 4) orthonormal cubic trend."""
    template: Array
    """(m,) the sinusoid's comb, less its trend, of norm 1."""
    combs: Array
    """(NUM_COMBS, m) other combs, likewise: other spacings on the logarithmic axis, random phases."""
    waves: tuple[Array, Array]
    """(m, n - 1) cosines and sines."""


def line_match(table: Array) -> LineMatch:
    """The match of a (n, p) table with the waves of the sinusoid of its width; Refused where too few are apart.

    NaN where all rows are equal. Invariant under rotations, shifts and positive factors.
    """
    num_rows, hidden = table.shape
    band = band_of(num_rows, hidden)
    spectrum = step_spectrum(table, band)
    longest = 2 * math.pi / float(wave_frequencies(hidden)[band.num_lines - 1])
    if not spectrum.any():
        return LineMatch(math.nan, band.num_lines, longest)
    shape = _flatten(np.log(np.maximum(spectrum, spectrum.max() * 1e-30)), band.basis)
    spread = float(np.sqrt(np.mean((band.combs @ shape) ** 2)))
    return LineMatch(float(band.template @ shape) / spread, band.num_lines, longest)


def step_spectrum(table: Array, band: Band) -> Array:
    """(m,) power of the steps P_{i+1} - P_i at the band's frequencies, summed over columns; long steps shortened.

    Steps instead of rows, so that slow waves, which dominate rows, do not leak into the band.
    """
    steps = np.diff(table, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    longest = LONGEST_STEP * float(np.median(lengths))
    if longest > 0:
        steps = steps * np.minimum(1, longest / np.maximum(lengths, longest / LONGEST_STEP))[:, None]
    cosines, sines = band.waves
    return np.asarray(np.sum((cosines @ steps) ** 2 + (sines @ steps) ** 2, axis=1))


@lru_cache(maxsize=8)
def band_of(num_rows: int, hidden: int) -> Band:
    """The band for a shape, kept and so read-only; Refused for fewer than MIN_LINES waves in it or an odd size."""
    if hidden % 2:
        raise Refused(f"there is no sinusoid of an odd hidden size; got {hidden}")
    spacing = math.log(BASE) * 2 / hidden  # between neighbours, in log frequency
    slowest = RESOLUTION * 2 * math.pi / num_rows / spacing
    num_lines = min(int(math.log(1 / slowest) / spacing), hidden // 2) if slowest < 1 else 0
    if num_lines < MIN_LINES:
        raise Refused(
            f"in {num_rows} rows only {num_lines} waves of the sinusoid of width {hidden} are apart ({MIN_LINES} are "
            "needed): take more rows"
        )
    # From half a spacing below the slowest to half a spacing above the fastest, whose frequency is 1.
    low, high = math.exp(-spacing * (num_lines - 0.5)), math.exp(spacing / 2)
    frequencies = np.arange(low, high, 2 * math.pi / num_rows / 4)
    basis = np.linalg.qr(np.polynomial.legendre.legvander(np.linspace(-1, 1, len(frequencies)), 3))[0]
    angles = np.outer(frequencies, np.arange(num_rows - 1))
    rng = np.random.default_rng(0)
    densities = np.concatenate([rng.uniform(0.55, 0.85, NUM_COMBS // 2), rng.uniform(1.15, 1.7, NUM_COMBS // 2)])
    random_ladders = [spacing / density * (np.arange(-9, 2 * num_lines + 9) + rng.uniform()) for density in densities]
    ladder = spacing * np.arange(num_lines + 3, dtype=np.float64)
    template = _comb(ladder, frequencies, num_rows, basis)
    combs = np.array([_comb(random_ladder, frequencies, num_rows, basis) for random_ladder in random_ladders])
    waves = np.cos(angles), np.sin(angles)
    for array in (frequencies, basis, template, combs, *waves):
        array.setflags(write=False)
    return Band(frequencies, num_lines, basis, template, combs, waves)


def _comb(ladder: Array, frequencies: Array, num_rows: int, basis: Array) -> Array:
    """The log spectrum of lines at exp(-ladder), seen through the window, over noise of half the highest line."""
    inside = (np.exp(-ladder) > frequencies[0] / 1.2) & (np.exp(-ladder) < frequencies[-1] * 1.001)
    half = 0.5 * (frequencies[:, None] - np.exp(-ladder[inside]))
    # The window's own spectrum, the squared Dirichlet kernel; lines have orthogonal directions, so powers add.
    near = np.where(np.abs(half) < 1e-12, 1e-12, half)
    power = np.sum((np.sin((num_rows - 1) * near) / np.sin(near)) ** 2, axis=1)
    return _flatten(np.log(power + 0.5 * power.max()), basis)


def _flatten(values: Array, basis: Array) -> Array:
    """(m,) values less their cubic trend, of norm 1."""
    residual = values - basis @ (basis.T @ values)
    return np.asarray(residual / (np.linalg.norm(residual) or 1.0))


HALF_BANDWIDTH = 2
"""Of the tapers, in periods per window: looks at waves 2 x this far apart do not mix."""
NUM_TAPERS = 3
MIN_ROWS = 32
LEAST_SHARE = 0.02
"""A plane that holds less of the power than this ends the list of waves."""

Complex = NDArray[np.complex128]


def orbit_share(table: Array) -> float:
    """Share, 0 to 1, of the power of an (n, p) table that goes round in circles, one plane per frequency.

    Σ_ω S(ω)·κ(ω)·c(ω) / Σ_ω S(ω): S the power of the centred table, κ the share of the strongest of the directions
    that three orthogonal tapers (Thomson 1982) see, c = 1 - |aᵀa|² / ‖a‖⁴ of that direction a: 1 for a circle, 0 for a
    line. Frequencies below the tapers' bandwidth, trends, are left out. 1 for a few waves in quadrature, about .36 for
    unrelated rows (three equal directions give 1/3), 0 for one curve. A dense ladder of waves, such as the sinusoid's
    slow ones, blends: this asks for few waves and is no test for the sinusoid. NaN where all rows are equal; Refused
    for fewer than MIN_ROWS rows.
    """
    power, directions = _looks(table)
    if not power.sum() > 0:
        return math.nan
    strongest = np.square(np.abs(directions)).sum(axis=1)
    flat = np.abs(np.sum(directions**2, axis=1)) ** 2
    is_seen = strongest > 0
    circles = np.zeros(len(power))
    circles[is_seen] = strongest[is_seen] - flat[is_seen] / strongest[is_seen]
    return float(circles.sum() / power.sum())


@with_columns
def find_waves(table: Array, *, max_waves: int = 12) -> pd.DataFrame:
    """The waves of an (n, p) table, strongest first.

    One plane after the other: that of the frequency with most power in what is left, which is then projected out.
    ``period`` is that of the net rotation, ``share`` of the centred table's power, and ``spread`` (Σw)² / Σw² of the
    plane's squared weights: 2 for the sinusoid's waves. Description: any table has planes, whose rotation is arbitrary.
    """
    remaining = table - table.mean(axis=0)
    total = float(np.square(remaining).sum())
    records: list[tuple[float, ...]] = []
    while total > 0 and len(records) < max_waves:
        power, directions = _looks(remaining)
        direction = directions[int(np.argmax(power))]
        plane = np.linalg.svd(np.stack([direction.real, direction.imag]), full_matrices=False)[2]
        course = remaining @ plane.T
        share = float(np.square(course).sum()) / total
        if share < LEAST_SHARE:
            break
        weights = np.square(plane).sum(axis=0)
        spread = 4 / float(np.square(weights).sum())  # the weights of a plane add up to 2
        records.append((len(records) + 1, _period(course), share, _roundness(course), spread))
        remaining = remaining - course @ plane
    return pd.DataFrame(records, columns=columns_of("find_waves"))


def _looks(table: Array) -> tuple[Array, Complex]:
    """(m,) power and (m, p) strongest complex direction, scaled to its power, at every Fourier frequency in range."""
    num_rows = len(table)
    if num_rows < MIN_ROWS or table.shape[1] < 2:
        raise Refused(f"waves need {MIN_ROWS} rows and 2 columns; got {num_rows} and {table.shape[1]}")
    centred = table - table.mean(axis=0)
    looks = np.stack([np.fft.rfft(centred * taper[:, None], axis=0) for taper in _tapers(num_rows)], axis=1)
    looks = looks[HALF_BANDWIDTH + 1 : num_rows // 2 - HALF_BANDWIDTH]
    # (m, 3, 3) instead of p x p: the strongest direction is a combination of the three looks.
    values, vectors = np.linalg.eigh(looks @ looks.conj().transpose(0, 2, 1))
    directions = np.einsum("mk,mkp->mp", vectors[:, :, -1].conj(), looks)
    return np.clip(values, 0, None).sum(axis=1), directions


@lru_cache(maxsize=8)
def _tapers(num_rows: int) -> Array:
    from scipy.signal.windows import dpss

    return np.asarray(dpss(num_rows, HALF_BANDWIDTH, NUM_TAPERS))


def _period(course: Array) -> float:
    """Rows per turn, from the net rotation over all rows."""
    from scipy.linalg import sqrtm

    # Rounded first, since the angle of an ellipse does not grow evenly.
    rounded = course @ np.linalg.pinv(np.real(sqrtm(np.cov(course.T))))
    angles = np.unwrap(np.arctan2(rounded[:, 1], rounded[:, 0])) / (2 * math.pi)
    # Net rotation: the sum of absolute turns would count noise as turning, and make slow waves look fast.
    return (len(angles) - 1) / max(abs(float(angles[-1] - angles[0])), 1e-12)


def _roundness(course: Array) -> float:
    """Variance along the short axis of the ellipse over that along the long one; 1 of a circle."""
    small, large = np.linalg.eigvalsh(np.cov(course.T))
    return float(small / large) if large > 0 else math.nan


SNR = 1.0
"""Power of the sinusoid over that of the noise in the positive control."""
WAVES_SNR = 3.0
"""The same for the positive control of a few waves."""


def noisy_sinusoid(num_rows: int, hidden: int, rng: np.random.Generator, snr: float = SNR) -> Array:
    """(num_rows, hidden) the sinusoid, turned by a random orthogonal map, plus white Gaussian noise of 1 / snr."""
    table: Array = sinusoidal_table(num_rows, hidden)
    power = float(np.mean(np.square(table)))
    # Eight reflections instead of a QR of hidden x hidden: any orthogonal map serves, since noise has no direction.
    for axis in rng.normal(size=(8, hidden)):
        axis /= np.linalg.norm(axis)
        table -= 2 * np.outer(table @ axis, axis)
    return np.asarray(table + np.sqrt(power / snr) * rng.normal(size=table.shape))


def few_waves(num_rows: int, hidden: int, rng: np.random.Generator) -> Array:
    """(num_rows, hidden) five waves in quadrature of equal power, each on a circle in its own plane, plus white noise.

    Periods lie between 4 rows and a quarter of the window, each in its own part of the log scale and drawn from the
    middle of it, so that waves do not blend. Each drifts along the rows by up to a fifth either way: the waves of a
    learned table need not be pure tones.
    """
    num_waves = min(5, hidden // 2)  # a plane each
    places = (np.arange(num_waves) + rng.uniform(0.2, 0.8, num_waves)) / num_waves
    frequencies = 2 * np.pi / (4 * (num_rows / 16) ** places)
    drift = rng.uniform(-0.2, 0.2, num_waves) * np.linspace(-1, 1, num_rows)[:, None]
    angles = np.cumsum(frequencies * (1 + drift), axis=0) + rng.uniform(0, 2 * np.pi, num_waves)
    planes = np.linalg.qr(rng.normal(size=(hidden, 2 * num_waves)))[0]
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) @ planes.T
    power = float(np.mean(np.square(table)))
    return np.asarray(table + np.sqrt(power / WAVES_SNR) * rng.normal(size=table.shape))


def smooth_curves(
    num_rows: int,
    hidden: int,
    rng: np.random.Generator,
    kernel: str,
    length: float,
    noise: float = 0.0,
    rank: int | None = None,
) -> Array:
    """(num_rows, hidden) independent stationary Gaussian processes of variance 1, one per column, plus white noise.

    ``kernel`` is an entry of KERNELS and ``length`` its length scale in rows; ``noise`` is the variance of the noise.
    With ``rank`` there are so many curves only, and every column is a random mixture of them.
    """
    curves = _factor(num_rows, kernel, length) @ rng.normal(size=(num_rows, rank or hidden))
    if rank:
        curves = curves @ rng.normal(size=(rank, hidden)) / np.sqrt(rank)
    return np.asarray(curves + np.sqrt(noise) * rng.normal(size=curves.shape) if noise else curves)


@lru_cache(maxsize=32)
def _factor(num_rows: int, kernel: str, length: float) -> Array:
    """(n, n) symmetric square root of a kernel's covariance matrix."""
    from scipy.linalg import eigh, toeplitz

    covariance = toeplitz(lookup(KERNELS, kernel, "kernel")(np.arange(num_rows) / length))
    # Not Cholesky: smooth kernels are singular to working precision. And the symmetric root, since it alone does not
    # hang on the signs of eigenvectors, which another machine or number of threads chooses otherwise.
    values, vectors = eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T)


def _ladder(lags: Array) -> Array:
    # Of lags in rows: the sinusoid's kernel, Σ cos(ω_k·lag), with its ladder of waves filled in to a continuum.
    frequencies = BASE ** -((np.arange(4000) + 0.5) / 4000)
    return np.asarray(np.cos(lags[:, None] * frequencies).mean(axis=1))


KERNELS: Mapping[str, Callable[[Array], Array]] = {
    "squared_exponential": lambda d: np.exp(-0.5 * d**2),
    "matern_12": lambda d: np.exp(-d),
    "matern_32": lambda d: (1 + 3**0.5 * d) * np.exp(-(3**0.5) * d),
    "matern_52": lambda d: (1 + 5**0.5 * d + 5 * d**2 / 3) * np.exp(-(5**0.5) * d),
    "rational_quadratic": lambda d: 1 / (1 + d**2 / 2),
    "continuous_ladder": _ladder,
}
"""Covariance by lag over length scale (Rasmussen & Williams 2006, chapter 4); ``continuous_ladder`` is ours: the
sinusoid's own smoothness without its waves, exact at length 1."""

SMOOTH: tuple[tuple[str, float, float, int | None], ...] = (
    ("continuous_ladder", 1.0, 0.0, None),
    ("continuous_ladder", 1.0, 1.0, None),
    ("squared_exponential", 3.0, 0.0, None),
    ("squared_exponential", 20.0, 0.0, None),
    ("squared_exponential", 8.0, 1.0, 10),
    ("squared_exponential", 3.0, 0.01, 5),
    ("matern_12", 12.0, 0.0, 3),
    ("matern_32", 5.0, 1.0, None),
    ("matern_32", 12.0, 0.0, 10),
    ("matern_52", 60.0, 0.1, None),
)
"""Kernel, length, noise and rank of the smooth curves that are the null of the verdicts, drawn in turn."""


CONTROLS: Mapping[str, Callable[[int, int, np.random.Generator, int], Array]] = {
    "sinusoid": lambda num_rows, hidden, rng, _: noisy_sinusoid(num_rows, hidden, rng),
    "waves": lambda num_rows, hidden, rng, _: few_waves(num_rows, hidden, rng),
    "smooth": lambda num_rows, hidden, rng, draw: smooth_curves(num_rows, hidden, rng, *SMOOTH[draw % len(SMOOTH)]),
}
"""Positive controls (rotated noisy sinusoids at SNR, a few waves at WAVES_SNR), and the negative one: the entries of
SMOOTH in turn. Shape, generator and number of the draw to a table."""


def draw_controls(kind: str, num_rows: int, hidden: int, num_draws: int, seed: int = 0) -> Iterator[Array]:
    """``num_draws`` tables of an entry of CONTROLS, (num_rows, hidden) each."""
    rng = np.random.default_rng([*kind.encode(), seed])
    return (CONTROLS[kind](num_rows, hidden, rng, draw) for draw in range(num_draws))


LINE_THRESHOLD = 5.0
"""Score of :func:`line_match` from which a table carries the sinusoid's waves; set on controls, before any
model was looked at."""
ORBIT_THRESHOLD = 0.7
"""Value of :func:`orbit_share` from which a table is made of waves. Set between the controls, but after the embedded
model's value (.95) had been seen: for that model it is a description that its controls bear out, for others a test."""
MAX_ERROR_RATE = 0.05
"""Above this rate of wrong answers on either control the verdict is *not identifiable*."""
NUM_DRAWS = 100

NOT_IDENTIFIABLE = "not identifiable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer on one table, and everything that it rests on."""

    answer: str
    """As asked, or ``not identifiable``."""
    reason: str
    """The numbers behind it, or why there is no answer."""
    value: float
    """Of the statistic; NaN where it is undefined."""
    threshold: float
    positive: Array
    """(draws,) values of the positive control; empty where the statistic is refused at this shape."""
    negative: Array
    """(draws,) values of the negative control: the null."""

    @property
    def missed(self) -> float:
        """Share of the positive control below the threshold."""
        return float(np.mean(self.positive < self.threshold)) if len(self.positive) else float("nan")

    @property
    def false_alarms(self) -> float:
        """Share of the negative control that reaches the threshold."""
        return float(np.mean(self.negative >= self.threshold)) if len(self.negative) else float("nan")


def judge_resemblance(table: Array, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> Verdict:
    """``resembles`` where an (n, p) table carries the waves of the sinusoid of its shape, else ``does not resemble``.

    The score is invariant under rotations, and nearly so under other linear maps: "resembles" means the same
    frequencies, not the same coordinates. It says nothing on waves slower than ``line_match(table).longest_wave``: in
    these rows they blend. *Not identifiable*: too few rows, all rows equal, or a control fails at this shape.
    """
    answers, controls = ("resembles", "does not resemble"), f"sinusoids in noise (SNR {SNR:g})"
    return _judge(
        table, lambda rows: line_match(rows).score, LINE_THRESHOLD, answers, "sinusoid", controls, num_draws, seed
    )


def judge_waves(table: Array, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> Verdict:
    """``made of waves`` where an (n, p) table goes round circles, at whatever frequencies, else ``not made of waves``.

    *Not identifiable* as in :func:`judge_resemblance`. A dense ladder of waves, as the sinusoid's, blends and is not
    recognised here: that is what :func:`judge_resemblance` asks.
    """
    answers, controls = ("made of waves", "not made of waves"), f"five waves in noise (SNR {WAVES_SNR:g})"
    return _judge(table, orbit_share, ORBIT_THRESHOLD, answers, "waves", controls, num_draws, seed)


Statistic = Callable[[Array], float]


def _judge(
    table: Array,
    statistic: Statistic,
    threshold: float,
    answers: tuple[str, str],
    kind: str,
    controls: str,
    num_draws: int,
    seed: int,
) -> Verdict:
    """The verdict of one statistic: its answer, or ``not identifiable`` where it is refused or a control fails."""
    at_least("num_draws", num_draws, 1)
    no_values = np.empty(0)
    undecided = Verdict(NOT_IDENTIFIABLE, "all rows are equal", float("nan"), threshold, no_values, no_values)
    try:
        value = statistic(table)
    except Refused as refusal:
        return replace(undecided, reason=str(refusal))
    if np.isnan(value):
        return undecided
    num_rows, hidden = table.shape
    values = (_control_values(statistic, control, num_rows, hidden, num_draws, seed) for control in (kind, "smooth"))
    verdict = Verdict(NOT_IDENTIFIABLE, "", value, threshold, *values)
    if max(verdict.missed, verdict.false_alarms) > MAX_ERROR_RATE:
        reason = f"at {num_rows} x {hidden} it misses {verdict.missed:.0%} of {controls} and is deceived by "
        return replace(verdict, reason=f"{reason}{verdict.false_alarms:.0%} of smooth curves")
    relation = "at least" if value >= threshold else "below"
    reason = (
        f"{value:.3g}, {relation} {threshold:g}; smooth curves reach at most {verdict.negative.max():.3g}"
        f", {controls} at least {verdict.positive.min():.3g}"
    )
    return replace(verdict, answer=answers[0] if value >= threshold else answers[1], reason=reason)


@lru_cache(maxsize=16)
def _control_values(statistic: Statistic, kind: str, num_rows: int, hidden: int, num_draws: int, seed: int) -> Array:
    """(draws,) values of a statistic over a control, of one shape; read-only, as they are kept and handed out."""
    values = np.array([statistic(table) for table in draw_controls(kind, num_rows, hidden, num_draws, seed)])
    values.setflags(write=False)
    return values


def explained_by(table: Array, reference: Array, rank: int) -> float:
    """Share of the centred table's power in the top-r principal directions of the centred reference.

    Description only: r / (n - 1) for unrelated rows, but near 1 for any smooth curve. The directions are the left
    singular vectors, (n, r): curves along the positions. Refused for a rank outside 1 to n - 1, or a table whose rows
    are all equal.
    """
    if not 1 <= rank < len(table):
        raise Refused(f"the rank must lie between 1 and {len(table) - 1}; got {rank}")
    centred = table - table.mean(axis=0)
    total = float(np.square(centred).sum())
    if total == 0:
        raise Refused("all rows of the table are equal: there is nothing to explain")
    directions = np.linalg.svd(reference - reference.mean(axis=0), full_matrices=False)[0]
    return float(np.square(directions.T @ centred).sum(axis=1)[:rank].sum() / total)


def dct_spectrum(table: Array) -> Array:
    """(n - 1,) share of the centred table's power at DCT-II orders 1 to n - 1 (order k: k half periods in n rows).

    Orthonormal, so that the shares add up to 1 (scipy.fft.dct); NaN where all rows are equal.
    """
    from scipy.fft import dct

    power = np.square(dct(table - table.mean(axis=0), type=2, norm="ortho", axis=0)).sum(axis=1)[1:]
    has_spread = bool(np.ptp(table, axis=0).any())  # a centred constant may be rounding instead of 0
    return np.asarray(power / (power.sum() if has_spread else np.nan))
