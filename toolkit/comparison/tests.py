"""Tests of paired differences, and what many of them leave: McNemar, sign flips, Benjamini-Hochberg."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolkit.comparison.intervals import checked

NUM_DRAWS = 99_999
"""Sign flips that are tried: all 2^K of up to 16 seeds, random ones of more."""
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
    (Fisher's randomisation test for pairs). All patterns where 2^K is at most ``num_draws``; else as many random ones
    and the observed one, (1 + hits)/(1 + draws), which is never 0 (Phipson & Smyth 2010). K seeds cannot reach below
    `smallest_p(K)`. NaN for no seed. ValueError: no finite one-dimensional array.
    """
    values = checked(differences, 1)
    if len(values) < 2:
        return smallest_p(len(values))
    from scipy.stats import permutation_test

    size = float(np.abs(values).sum()) or 1.0

    def distance(signed: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        # Sums in another order differ by rounding: rounded, the observed pattern counts itself.
        return np.asarray(np.round(np.abs(signed.sum(axis=axis)) / size, 12))

    options = {"permutation_type": "samples", "n_resamples": num_draws, "batch": _BLOCK_FLIPS // len(values)}
    return float(
        permutation_test((values,), distance, vectorized=True, alternative="greater", rng=seed, **options).pvalue
    )


def smallest_p(num_seeds: int, *, num_draws: int = NUM_DRAWS) -> float:
    """The smallest p of sign_flip: 2/2^K, all K seeds pointing one way; 1/(1 + draws) of random flips; NaN for none."""
    if num_seeds < 1:
        return float("nan")
    return 2.0 ** (1 - num_seeds) if 2**num_seeds <= num_draws else 1 / (1 + num_draws)


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
