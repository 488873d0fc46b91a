"""Similarity of a few hundred items by their kernels (CKA) or distances (RSA), and when it is refused."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.measures import Array

Rows = NDArray[np.floating]
"""(n, p) float32 or float64; arithmetic is float64 whatever is given."""


class Refused(ValueError):
    """A similarity was asked for outside the range in which it means anything. Bad input is a plain ValueError."""


def check_rows(reference: Rows, current: Rows, what: str) -> None:
    """ValueError unless both are (n, p) of one shape; Refused when n is 0."""
    if reference.ndim != 2 or reference.shape != current.shape:
        raise ValueError(
            f"{what} compares two versions of the same rows, (n, p) both; the shapes are {reference.shape} and "
            f"{current.shape}: choose the same rows of both"
        )
    refuse_below(len(reference), 1, what)


def refuse_below(num_rows: int, min_rows: int, what: str) -> None:
    """Refused when there are fewer than ``min_rows`` rows."""
    if num_rows < min_rows:
        raise Refused(f"{what} needs at least {min_rows} rows, there are {num_rows}")


def kernel(rows: Rows) -> Array:
    """(items, items) float64 linear kernel of centred rows, diagonal 0; never of a whole word table."""
    array = np.asarray(rows, np.float64)
    centred = array - array.mean(axis=0)
    product = np.asarray(centred @ centred.T)
    np.fill_diagonal(product, 0.0)
    return product


def standardised(rows: Rows) -> Array:
    """(items, columns) float64 with standard deviation 1 in every column; constant columns drop out."""
    array = np.asarray(rows, np.float64)
    deviations = array.std(axis=0)
    return np.asarray(array[:, deviations > 0] / deviations[deviations > 0])


def cka_of_kernels(reference: Array, current: Array, times: Array | None = None) -> float:
    """Debiased CKA (Song et al. 2012, JMLR 13; Nguyen et al. 2021, arXiv 2010.15327) of items drawn ``times`` each.

    ``reference`` and ``current``: :func:`kernel` of the same items. ``times``: (items,), None for once each, which is
    :func:`debiased_cka`. The pairs of an item with its own copies count as the diagonal does, that is not at all. NaN
    where HSIC₁ of a version with itself is not above 0.
    """
    weights = np.ones(len(reference)) if times is None else np.asarray(times, np.float64)
    of_both = _hsic(reference, current, weights)
    size = _hsic(reference, reference, weights) * _hsic(current, current, weights)
    return of_both / math.sqrt(size) if size > 0 and of_both == of_both else math.nan


def _hsic(left: Array, right: Array, weights: Array) -> float:
    """n(n-3)·HSIC₁ (Song et al. 2012) of two kernels with diagonal 0; n is the sum of the weights.

    ``weights``: (items,) how many times each item counts.
    """
    n = float(weights.sum())
    sums_left, sums_right = left @ weights, right @ weights
    trace = float(weights @ ((left * right) @ weights))
    total = float(weights @ sums_left) * float(weights @ sums_right) / ((n - 1) * (n - 2))
    return trace + total - 2 / (n - 2) * float(weights @ (sums_left * sums_right))


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
    pair_values = [side_of(distances[pairs], is_ranked) for distances in (reference, current)]
    value = correlate_sides(pair_values[0], pair_values[1], np.ones(len(pairs[0])), is_ranked)
    if np.isnan(value):
        raise Refused("RSA is undefined: all distances of a version are equal")
    return value


def side_of(distances: Array, is_ranked: bool) -> Any:
    """The distances themselves, or for ranks the place of each among the distinct ones, in ascending order."""
    return np.unique(distances, return_inverse=True)[1] if is_ranked else distances


def correlate_sides(left: Any, right: Any, weights: Array, is_ranked: bool) -> float:
    """Weighted correlation of two sides; NaN where one does not vary, or nothing has weight."""
    if not weights.any():
        return math.nan
    if is_ranked:
        left, right = _ranks(left, weights), _ranks(right, weights)
    left, right = (values - np.average(values, weights=weights) for values in (left, right))
    lengths = float(np.sqrt((weights @ left**2) * (weights @ right**2)))
    return float((weights * left) @ right) / lengths if lengths > 0 else math.nan


def _ranks(places: NDArray[np.intp], weights: Array) -> Array:
    """The mean rank (less a constant) of each distance when it occurs as often as its weight says."""
    totals = np.bincount(places, weights)
    return np.asarray((np.cumsum(totals) - totals / 2)[places])
