"""A position table in, how well the lines of its spectrum match the sinusoid's own waves out. Defined by this project.

Any smooth curve resembles the sinusoid's slow waves, and its principal components look like sine and cosine; what no
smooth curve has are *lines*: power at the sinusoid's frequencies and less of it between them. The fast waves stand far
enough apart to be told from each other within the table's rows. In that band the logarithm of the power spectrum
(summed over all columns, so that no rotation of them matters) is correlated with the comb of lines that the sinusoid
of the same width has there; the score is that correlation in units of its root mean square over other combs.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused
from toolkit.sinusoid import BASE, wave_frequencies

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
    """The correlation over its root mean square for other combs; about Gaussian around 0 without lines."""
    correlation: float
    """Between the two log spectra, both less a cubic trend."""
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
        return LineMatch(math.nan, math.nan, band.num_lines, longest)
    shape = _flatten(np.log(np.maximum(spectrum, spectrum.max() * 1e-30)), band.basis)
    correlation = float(band.template @ shape)
    spread = float(np.sqrt(np.mean((band.combs @ shape) ** 2)))
    return LineMatch(correlation / spread, correlation, band.num_lines, longest)


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
    others = [spacing / density * (np.arange(-9, 2 * num_lines + 9) + rng.uniform()) for density in densities]
    own = spacing * np.arange(num_lines + 3, dtype=np.float64)
    template = _comb(own, frequencies, num_rows, basis)
    combs = np.array([_comb(comb, frequencies, num_rows, basis) for comb in others])
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
    rest = values - basis @ (basis.T @ values)
    return np.asarray(rest / (np.linalg.norm(rest) or 1.0))
