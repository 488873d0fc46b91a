"""A shape and a generator in, tables out that have, or have not, a sinusoid or waves: the controls of every claim."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import cycle, islice

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.lookup import lookup
from toolkit.sinusoid import BASE, sinusoidal_table

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
    from scipy.linalg import eigh, toeplitz

    covariance = toeplitz(lookup(KERNELS, kernel, "kernel")(np.arange(num_rows) / length))
    # Not Cholesky: smooth kernels are singular to working precision. And the symmetric root, since it alone does not
    # hang on the signs of eigenvectors, which another machine or number of threads chooses otherwise.
    values, vectors = eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T)


def _ladder(lags: Array) -> Array:
    # The sinusoid's kernel, Σ cos(ω_k·lag), with its ladder of waves filled in to a continuum.
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


def draw_sinusoids(num_rows: int, hidden: int, num_draws: int, seed: int = 0) -> Iterator[Array]:
    """Positive control: ``num_draws`` rotated noisy sinusoids at SNR 1."""
    rng = np.random.default_rng([*b"sinusoid", seed])
    return (noisy_sinusoid(num_rows, hidden, rng) for _ in range(num_draws))


def draw_smooth(num_rows: int, hidden: int, num_draws: int, seed: int = 0) -> Iterator[Array]:
    """Negative control: ``num_draws`` tables of smooth curves, the entries of SMOOTH in turn."""
    rng = np.random.default_rng([*b"smooth", seed])
    return (smooth_curves(num_rows, hidden, rng, *entry) for entry in islice(cycle(SMOOTH), num_draws))


def draw_waves(num_rows: int, hidden: int, num_draws: int, seed: int = 0) -> Iterator[Array]:
    """Positive control: ``num_draws`` tables of a few waves at WAVES_SNR."""
    rng = np.random.default_rng([*b"waves", seed])
    return (few_waves(num_rows, hidden, rng) for _ in range(num_draws))
