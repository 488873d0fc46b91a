"""Tests of paired differences, and what many of them leave: McNemar, sign flips, Benjamini-Hochberg."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolkit.comparison.intervals import checked

MOST_ENUMERATED = 16
"""Seeds up to which all 2^K sign flips are tried (65,536)."""
NUM_DRAWS = 99_999
_BLOCK_FLIPS = 1_000_000


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar p: under the null each discordant item falls to either side with probability 1/2.

    ``only_first``, ``only_second``: number of items that only the first or only the second run has right. McNemar
    1947 in its exact binomial form; 1 when no item is discordant. It says nothing of other seeds. ValueError: a count
    below 0.
    """
    from scipy.stats import binomtest

    if only_first < 0 or only_second < 0:
        raise ValueError(f"discordant items are counted: expected numbers from 0, got {only_first} and {only_second}")
    num_discordant = int(only_first) + int(only_second)
    return float(binomtest(int(only_first), num_discordant, 0.5).pvalue) if num_discordant else 1.0


def sign_flip(differences: ArrayLike, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> float:
    """Two-sided p that per-seed differences are symmetric about 0, by flipping their signs.

    ``differences``: float64 (seeds K,). p = the share of sign patterns whose |sum| is at least the observed one
    (Fisher's randomisation test for pairs). All 2^K patterns up to K = 16; beyond, ``num_draws`` random patterns and
    the observed one, (1 + hits)/(1 + draws), which is never 0 (Phipson & Smyth 2010). K seeds cannot reach below
    `smallest_p(K)`. NaN for no seed. ValueError: no finite one-dimensional array.
    """
    values = checked(differences, 1)
    if not len(values):
        return float("nan")
    size = np.abs(values).sum()
    # Sums in another order differ by rounding: without the tolerance the observed pattern may not count itself.
    threshold = abs(float(values.sum())) - 1e-12 * size
    num_seeds = len(values)
    if num_seeds <= MOST_ENUMERATED:
        # |sum| is the same for a pattern and its opposite: the first sign is held, half of the patterns are tried.
        codes = np.arange(2 ** (num_seeds - 1))[:, None]
        signs = 1 - 2 * ((codes >> np.arange(num_seeds)) & 1)
        return float(np.mean(np.abs(signs @ values) >= threshold))
    hits, block = 0, _BLOCK_FLIPS // num_seeds
    rng = np.random.default_rng(seed)
    for start in range(0, num_draws, block):
        signs = _draw_signs(rng, min(block, num_draws - start), num_seeds)
        hits += int((np.abs(signs @ values) >= threshold).sum())
    return (1 + hits) / (1 + num_draws)


def smallest_p(num_seeds: int, *, num_draws: int = NUM_DRAWS) -> float:
    """The smallest p of sign_flip: 2/2^K, where all K seeds point one way; 1/(1 + draws) beyond 16; NaN for none."""
    if num_seeds < 1:
        return float("nan")
    return 2.0 ** (1 - num_seeds) if num_seeds <= MOST_ENUMERATED else 1 / (1 + num_draws)


def _draw_signs(rng: np.random.Generator, num_draws: int, num_seeds: int) -> NDArray[np.int64]:
    return 2 * rng.integers(0, 2, size=(num_draws, num_seeds)) - 1


def benjamini_hochberg(p: ArrayLike) -> NDArray[np.float64]:
    """q values of Benjamini & Hochberg 1995, float64 in the shape of ``p``.

    A NaN p is no test: it stays NaN and does not count in the size of the family. ValueError: a p outside [0, 1].
    """
    from scipy.stats import false_discovery_control

    values = np.asarray(p, dtype=np.float64)
    tested = ~np.isnan(values)
    if ((values[tested] < 0) | (values[tested] > 1)).any():
        raise ValueError(f"p values lie in [0, 1]; got {values[tested].min():g} to {values[tested].max():g}")
    result = np.full(values.shape, np.nan)
    if tested.any():
        result[tested] = false_discovery_control(values[tested], method="bh")
    return result
