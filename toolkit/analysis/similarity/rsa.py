"""Two versions of the same items in, representational similarity out: do distances between items stay in order?"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused, Rows

NUM_RESAMPLES = 200

MIN_ITEMS = 20
"""Below this many items there is no interval: resampled, a few items are mostly copies of one another (our limit)."""


def item_distances(rows: Rows) -> Array:
    """(items, items) float64 Euclidean distances between a few hundred rows (items, p); never of a whole word table."""
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(np.asarray(rows, np.float64))))


def rsa_of_distances(reference: Array, current: Array, *, is_ranked: bool = True) -> float:
    """Correlation of the distances between items before and after, -1 to 1: Kriegeskorte et al. 2008.

    Spearman's, or Pearson's where not ``is_ranked``, of two (items, items) matrices. Euclidean distances leave it alone
    when either version is rotated, moved or scaled by a common factor. Refused where all of a version are equal.
    """
    pairs = np.triu_indices(len(reference), 1)
    sides = [_side(distances[pairs], is_ranked) for distances in (reference, current)]
    value = _correlation(sides[0], sides[1], np.ones(len(pairs[0])), is_ranked)
    if np.isnan(value):
        raise Refused("RSA is undefined: all distances of a version are equal")
    return value


def rsa_interval(
    reference: Array, current: Array, *, is_ranked: bool = True, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of :func:`rsa_of_distances` over resampled items.

    Items are drawn with replacement, 200 times, and pairs of an item with its own copy are left out. Pairs are never
    resampled: those of one item hang together, and an interval over pairs would be far too narrow. NaN below 20 items.
    """
    if len(reference) < MIN_ITEMS:
        return math.nan, math.nan
    generator = np.random.default_rng([*b"rsa", seed])
    num_items = len(reference)
    first, second = np.triu_indices(num_items, 1)
    sides = [_side(distances[first, second], is_ranked) for distances in (reference, current)]
    values: list[float] = []
    for _ in range(NUM_RESAMPLES):
        # An item drawn twice is there twice, so a pair counts as often as the product says: no pair is copied.
        times = np.bincount(generator.integers(num_items, size=num_items), minlength=num_items).astype(np.float64)
        values.append(_correlation(sides[0], sides[1], times[first] * times[second], is_ranked))
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _side(distances: Array, is_ranked: bool) -> Any:
    """The distances themselves, or for ranks the place of each among the distinct ones, in ascending order."""
    return np.unique(distances, return_inverse=True)[1] if is_ranked else distances


def _correlation(left: Any, right: Any, weights: Array, is_ranked: bool) -> float:
    """Weighted correlation of two sides; NaN where one does not vary, or nothing has weight."""
    if not weights.any():
        return math.nan
    if is_ranked:
        left, right = _ranks(left, weights), _ranks(right, weights)
    left, right = (side - np.average(side, weights=weights) for side in (left, right))
    lengths = float(np.sqrt((weights @ left**2) * (weights @ right**2)))
    return float((weights * left) @ right) / lengths if lengths > 0 else math.nan


def _ranks(places: NDArray[np.intp], weights: Array) -> Array:
    """The mean rank (less a constant) of each distance when it occurs as often as its weight says."""
    totals = np.bincount(places, weights)
    return np.asarray((np.cumsum(totals) - totals / 2)[places])


def permute_items(distances: Array, order: NDArray[np.intp]) -> Array:
    """The distance matrix of the same items in another order."""
    return distances[np.ix_(order, order)]
