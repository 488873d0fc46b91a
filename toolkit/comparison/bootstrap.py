"""Differences of two arms, seeds x items, in; a hierarchical percentile bootstrap interval out. Secondary.

It is no interval to rest a claim on. Where seeds differ and are few it is too narrow, because K seeds show less spread
than what they were drawn from and no t quantile makes up for it; where only noise differs it is too wide, because the
noise is resampled twice (Owen 2007). `experiments/benchmarks/coverage.py` prints how often either holds the truth.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolkit.comparison.intervals import (
    EQUAL_VALUES,
    ITEMS_ONLY,
    ONE_VALUE,
    SEEDS_ONLY,
    Interval,
    checked,
)

_BLOCK_COUNTS = 2_000_000


def hierarchical_interval(
    differences: ArrayLike, level: float = 0.95, num_draws: int = 2000, seed: int = 0
) -> Interval:
    """Percentile interval of the mean when seeds and then items are drawn anew, with replacement.

    ``differences``: float64 (seeds K, items N). Both arms keep their pairing, since differences are drawn, and a draw
    takes the same items in all of its seeds, since all seeds were scored on the same items (the crossed or "pigeonhole"
    bootstrap, Owen 2007; Efron's percentile interval). ``variance`` is that of the draws, df NaN. Refused where all
    values are equal; one seed or one item: only the other factor is covered, and the ``note`` says so. The result does
    not depend on the order of the items. ValueError as for two_way_interval, or fewer than 100 draws.
    """
    table = checked(differences, 2, level)
    if num_draws < 100:
        raise ValueError(f"num_draws must be at least 100 for a percentile interval; got {num_draws}")
    mean, (num_seeds, num_items) = float(table.mean()), table.shape
    if np.ptp(table) == 0:
        note = ONE_VALUE if table.size == 1 else EQUAL_VALUES
        return Interval(mean, np.nan, np.nan, np.nan, np.nan, level, note)
    means = _draw_means(table, num_draws, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    note = ITEMS_ONLY if num_seeds == 1 else SEEDS_ONLY if num_items == 1 else ""
    return Interval(mean, float(low), float(high), np.nan, float(means.var(ddof=1)), level, note)


def _draw_means(table: NDArray[np.float64], num_draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(draws,) means. Items with the same differences are counted together: a draw is a draw of these counts."""
    num_seeds, num_items = table.shape
    patterns, counts = np.unique(table, axis=1, return_counts=True)
    block = max(1, _BLOCK_COUNTS // len(counts))
    means = np.empty(num_draws)
    for start in range(0, num_draws, block):
        size = min(block, num_draws - start)
        seeds = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=size)
        items = rng.multinomial(num_items, counts / num_items, size=size)
        means[start : start + size] = np.einsum("dk,dk->d", seeds, items @ patterns.T) / table.size
    return means
