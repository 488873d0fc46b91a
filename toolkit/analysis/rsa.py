"""Representational similarity: whether the distances between items keep their order."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.cross_products import Refused, Rows, check_rows
from toolkit.analysis.measures import Array
from toolkit.analysis.nearest import Ids, correct, overlaps, search_nearest

CHECKED_ROWS = 4096
"""Rows whose lengths are taken at a time."""

QUERY_ROWS = 10
"""Queries whose neighbourhoods are compared at a time: 1.6 MB at k = 10 and 1,024 columns, in a core's cache."""


@dataclass(frozen=True)
class Neighbourhoods:
    """The nearest rows of some rows (the queries) in two versions of a table."""

    queries: Ids
    """(m,) row of each query."""
    reference: Ids
    """(m, k) rows nearest to each in the reference, nearest first."""
    current: Ids
    """(m, k) the same in the current version."""
    num_others: int
    """Rows with a direction beside the query itself."""
    means: tuple[Array, Array] | None
    """(p,) mean rows that were taken away from both versions; None for none."""


def find_neighbourhoods(
    reference: Rows, current: Rows, k: int = 10, *, queries: Ids | None = None, is_centred: bool = False
) -> Neighbourhoods:
    """Neighbours of the queries (default: all rows) among all rows in both versions, (n, p) each.

    Rows without a direction in either are dropped. Refused for k ≥ n - 1, where every neighbourhood would be nearly the
    whole table.
    """
    check_rows(reference, current, "k-NN overlap")
    if k < 1:
        raise ValueError(f"k is a number of neighbours, at least 1, not {k}")
    before, after = (rows.mean(axis=0, dtype=np.float64) if is_centred else None for rows in (reference, current))
    has_direction = _has_direction(reference, before) & _has_direction(current, after)
    candidates = np.flatnonzero(has_direction)
    queries = candidates if queries is None else np.asarray(queries)[has_direction[queries]]
    if not len(queries):
        raise Refused("k-NN overlap is undefined: no query row has a direction in both versions")
    num_others = len(candidates) - 1
    if k >= num_others:
        raise Refused(f"k-NN overlap needs more than k = {k} other rows with a direction, there are {num_others}")
    found = [
        search_nearest(rows, k, queries=queries, candidates=candidates, center=mean, screens=()).indices
        for rows, mean in ((reference, before), (current, after))
    ]
    means = None if before is None or after is None else (before, after)
    return Neighbourhoods(queries, found[0], found[1], num_others, means)


def overlap(neighbourhoods: Neighbourhoods, *, is_corrected: bool = True) -> Array:
    """(m,) share of the k neighbours that a row keeps, 0 to 1; :func:`correct` for chance, k / num_others."""
    shares = overlaps(neighbourhoods.reference, neighbourhoods.current)
    chance = neighbourhoods.reference.shape[1] / neighbourhoods.num_others
    return correct(shares, chance) if is_corrected else shares


def second_order_cosine(reference: Rows, current: Rows, neighbourhoods: Neighbourhoods) -> Array:
    """(m,) cosine between a row's cosines to the union of both its neighbourhoods, before and after, -1 to 1.

    Hamilton, Leskovec & Jurafsky 2016 (arXiv 1606.02821), with our centring where the neighbourhoods were found so:
    without it, unrelated rows with a common mean give nearly 1. Even centred, unrelated rows do not give 0: read the
    null. NaN where all cosines are 0.
    """
    versions = zip((reference, current), neighbourhoods.means or (None, None), strict=True)
    sides_of = [partial(_cosines, rows, mean) for rows, mean in versions]
    values = np.empty(len(neighbourhoods.queries))
    for start in range(0, len(values), QUERY_ROWS):
        some = slice(start, start + QUERY_ROWS)
        queries, before, after = (
            ids[some] for ids in (neighbourhoods.queries, neighbourhoods.reference, neighbourhoods.current)
        )
        is_new = ~(after[:, :, None] == before[:, None, :]).any(axis=2)
        in_union = np.concatenate([np.ones(before.shape, np.bool_), is_new], axis=1)
        union = np.concatenate([before, after], axis=1)
        left, right = (cosines(queries, union) * in_union for cosines in sides_of)
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        values[some] = np.einsum("mj,mj->m", left, right) / np.where(lengths > 0, lengths, np.nan)
    return values


def _take(rows: Rows, ids: Ids, mean: Array | None) -> Array:
    taken = rows[ids].astype(np.float64)
    if mean is not None:
        taken -= mean
    return taken


def _has_direction(rows: Rows, mean: Array | None) -> NDArray[np.bool_]:
    """Whether each row is above 0 in length, by more than the rounding of the mean that was taken away."""
    lengths = np.empty(len(rows))
    for start in range(0, len(rows), CHECKED_ROWS):
        ids = np.arange(start, min(start + CHECKED_ROWS, len(rows)))
        lengths[ids] = np.linalg.norm(_take(rows, ids, mean), axis=1)
    floor = 0.0 if mean is None else 1e-12 * float(np.linalg.norm(mean))
    return np.asarray(lengths > floor)


def _cosines(rows: Rows, mean: Array | None, queries: Ids, others: Ids) -> Array:
    """(m, j) cosine of each query to its own others, (m, j) rows."""
    targets = _take(rows, queries, mean)
    targets /= np.linalg.norm(targets, axis=1, keepdims=True)
    of_others = _take(rows, others.reshape(-1), mean).reshape(*others.shape, -1)
    lengths = np.sqrt(np.einsum("mjp,mjp->mj", of_others, of_others))
    products = (of_others @ targets[:, :, None])[:, :, 0]
    # Under a permutation a neighbour in one version can be a row of zeros in the other.
    return np.asarray(np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0))


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
