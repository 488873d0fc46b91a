"""Representational similarity: whether the distances between items keep their order."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.cross_products import Refused, Rows, check_rows
from toolkit.analysis.measures import Array

Indices = NDArray[np.int64]

CANDIDATE_ROWS = 4096
"""Candidates compared with the queries at a time: 32 MB for 1,000 queries."""

QUERY_ROWS = 10
"""Queries whose neighbourhoods are compared at a time: 1.6 MB at k = 10 and 1,024 columns, in a core's cache."""


@dataclass(frozen=True)
class Neighbourhoods:
    """The nearest rows of some rows (the queries) in two versions of a table."""

    queries: Indices
    """(m,) row of each query."""
    reference: Indices
    """(m, k) rows nearest to each in the reference, nearest first."""
    current: Indices
    """(m, k) the same in the current version."""
    num_others: Indices
    """(m,) candidates beside the query itself."""
    means: tuple[Array, Array] | None
    """(p,) mean rows that were taken away from both versions; None for none."""


def find_neighbourhoods(
    reference: Rows,
    current: Rows,
    k: int = 10,
    *,
    queries: Indices | None = None,
    candidates: Indices | None = None,
    is_centred: bool = False,
) -> Neighbourhoods:
    """Neighbours of the queries among the candidates (default: all rows) in both versions, (n, p) each.

    Queries without a direction are dropped. Refused where a query has no more than k other candidates (k ≥ n - 1 when
    all rows are candidates): every neighbourhood would be nearly the whole table.
    """
    check_rows(reference, current, "k-NN overlap")
    if k < 1:
        raise ValueError(f"k is a number of neighbours, at least 1, not {k}")
    means = (_mean(reference), _mean(current)) if is_centred else None
    before, after = means or (None, None)
    has_direction = _has_direction(reference, before) & _has_direction(current, after)
    queries, candidates = (_with_direction(ids, has_direction) for ids in (queries, candidates))
    num_others = len(candidates) - np.isin(queries, candidates).astype(np.int64)
    if not len(queries):
        raise Refused("k-NN overlap is undefined: no query row has a direction in both versions")
    if k >= num_others.min():
        raise Refused(f"k-NN overlap needs more than k = {k} other rows with a direction, there are {num_others.min()}")
    found = [
        _nearest(rows, k, queries=queries, candidates=candidates, mean=mean)[0]
        for rows, mean in ((reference, before), (current, after))
    ]
    return Neighbourhoods(queries, found[0], found[1], num_others, means)


def overlap(neighbourhoods: Neighbourhoods, *, is_corrected: bool = True) -> Array:
    """(m,) share of the k neighbours that a row keeps, 0 to 1; corrected for chance, (o - c) / (1 - c).

    c = k / (number of other candidates), what unrelated rows share on average: corrected, they give 0 (below 0 by
    chance, never clipped) and unchanged neighbourhoods give 1. The usual correction of agreement for chance.
    """
    k = neighbourhoods.reference.shape[1]
    is_kept = neighbourhoods.reference[:, :, None] == neighbourhoods.current[:, None, :]
    shares = is_kept.sum(axis=(1, 2)) / k
    if not is_corrected:
        return np.asarray(shares)
    chance = k / neighbourhoods.num_others
    return np.asarray((shares - chance) / (1 - chance))


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
        values[some] = _row_cosines(*(cosines(queries, union) * in_union for cosines in sides_of))
    return values


def _nearest(
    rows: Rows, k: int, *, queries: Indices, candidates: Indices, mean: Array | None = None
) -> tuple[Indices, Array]:
    """(m, k) nearest candidates of each query by cosine, itself left out, nearest first, and those cosines.

    Exact, float64, plain. Cosines equal to 12 decimals count as equal, and the lower row then comes first: so the
    order of duplicates does not hang on the last bit of a matrix product.
    """
    targets = _directions(_take(rows, queries, mean))

    def cosines_to(block: Indices) -> Array:
        cosines = targets @ _directions(_take(rows, block, mean)).T
        cosines[queries[:, None] == block] = -np.inf
        return cosines

    # The k-th best among some candidates is a floor for the k-th best of all: little passes it.
    some = cosines_to(candidates[:: max(1, len(candidates) // max(CANDIDATE_ROWS, k + 1))])
    floor = np.partition(some, -k, axis=1)[:, -k, None] - 1e-9
    places, ids, values = [], [], []
    for start in range(0, len(candidates), CANDIDATE_ROWS):
        block = candidates[start : start + CANDIDATE_ROWS]
        cosines = cosines_to(block)
        place, column = np.nonzero(cosines >= floor)
        places.append(place)
        ids.append(block[column])
        values.append(np.round(cosines[place, column], 12))
    place, found, cosine = np.concatenate(places), np.concatenate(ids), np.concatenate(values)
    order = np.lexsort((found, -cosine, place))
    chosen = order[np.searchsorted(place[order], np.arange(len(queries)))[:, None] + np.arange(k)]
    return found[chosen], cosine[chosen]


def _with_direction(ids: Indices | None, has_direction: NDArray[np.bool_]) -> Indices:
    return np.flatnonzero(has_direction) if ids is None else np.asarray(ids)[has_direction[ids]]


def _take(rows: Rows, ids: Indices, mean: Array | None) -> Array:
    taken = rows[ids].astype(np.float64)
    if mean is not None:
        taken -= mean
    return taken


def _mean(rows: Rows) -> Array:
    return np.asarray(rows.mean(axis=0, dtype=np.float64))


def _has_direction(rows: Rows, mean: Array | None) -> NDArray[np.bool_]:
    """Whether each row is above 0 in length, by more than the rounding of the mean that was taken away."""
    lengths = np.empty(len(rows))
    for start in range(0, len(rows), CANDIDATE_ROWS):
        ids = np.arange(start, min(start + CANDIDATE_ROWS, len(rows)))
        lengths[ids] = np.linalg.norm(_take(rows, ids, mean), axis=1)
    floor = 0.0 if mean is None else 1e-12 * float(np.linalg.norm(mean))
    return np.asarray(lengths > floor)


def _directions(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0))


def _cosines(rows: Rows, mean: Array | None, queries: Indices, others: Indices) -> Array:
    """(m, j) cosine of each query to its own others, (m, j) rows."""
    targets = _directions(_take(rows, queries, mean))
    of_others = _take(rows, others.reshape(-1), mean).reshape(*others.shape, -1)
    lengths = np.sqrt(np.einsum("mjp,mjp->mj", of_others, of_others))
    products = (of_others @ targets[:, :, None])[:, :, 0]
    return np.asarray(np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0))


def _row_cosines(left: Array, right: Array) -> Array:
    """(m,) cosine between rows; NaN where either is 0."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray(np.einsum("mj,mj->m", left, right) / np.where(lengths > 0, lengths, np.nan))


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
