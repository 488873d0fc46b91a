"""Exact nearest neighbours by cosine, without a matrix of rows x rows.

A product in float32 proves for each query which rows can be its neighbours: those within twice its error of the k-th
best. Only they are compared in float64.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from toolkit.analysis.measures import Array
from toolkit.progress import counted
from toolkit.snapshots.files import WidenedRows

Ids = NDArray[np.int64]
Neighbours = tuple[Ids, Array]
"""(m, k) places among the candidates, nearest first, and their cosines."""

TILE = 2048
"""Candidates of one product."""
BLOCK_ROWS = 1024
"""Queries of one product, which with a tile of candidates takes 8 MB."""


def first_k(queries: Ids, places: Ids, cosines: Array, num_queries: int, k: int) -> Neighbours:
    """The k largest cosines of each query from a list of pairs, the lower place first among equals.

    Every query must have k pairs or more.
    """
    counts = np.bincount(queries, minlength=num_queries)
    order = np.lexsort((places, -cosines, queries))
    chosen = order[(np.cumsum(counts) - counts)[:, None] + np.arange(k)]
    return places[chosen], cosines[chosen]


@dataclass(frozen=True, slots=True)
class Nearest:
    """The neighbours of each query."""

    indices: Ids
    """(m, k) int64 row numbers, nearest first, the lower number first among equals; -1 for the query of a zero row."""
    similarity: Array
    """(m, k) float64 cosines; NaN for the query of a zero row."""


def search_nearest(
    rows: Any,
    k: int,
    *,
    queries: Any = None,
    candidates: Any = None,
    center: Array | None = None,
    block_rows: int = BLOCK_ROWS,
) -> Nearest:
    """The k nearest rows by cosine, exactly, of every row or of the rows numbered ``queries``, among ``candidates``.

    ``rows`` is (n, hidden) of floats, read by blocks if it lies in a file; ``center`` (hidden,) is subtracted from
    every row first. A row is left out of its own list by its number, not by its distance, so that a duplicate of it is
    found. A zero row has no direction: it is nobody's neighbour and has none itself (-1, NaN). Besides the result some
    40 MB are held however many rows there are, and for more than ``block_rows`` queries the candidates in float32.

    ValueError for NaN or infinity, for row numbers that the table lacks, and for k above the number of candidates.
    """
    rows = rows if isinstance(rows, WidenedRows) else np.asarray(rows)
    if rows.ndim != 2 or rows.dtype.kind != "f":
        raise ValueError(f"rows must be a (rows, hidden) array of floats, not {rows.dtype} of shape {rows.shape}")
    query_ids = _ids(queries, len(rows), "queries")
    table = _Table(rows, np.unique(_ids(candidates, len(rows), "candidates")), center)
    own_places = table.places_of(query_ids)
    num_others = len(table.ids) - int((own_places >= 0).any())
    if not 1 <= k <= num_others:
        raise ValueError(f"k must be 1 to {num_others}, the candidate rows that are not zero; got {k}")
    indices = np.full((len(query_ids), k), -1, np.int64)
    similarity = np.full((len(query_ids), k), np.nan)
    has_direction = np.flatnonzero(table.is_direction(query_ids))
    if len(has_direction) > block_rows:
        table.keep_short()
    blocks = [has_direction[chunk] for chunk in _parts(len(has_direction), block_rows)]

    def search_block(block: Ids) -> None:
        places, similarity[block] = _search(table, table.units(query_ids[block]), own_places[block], k)
        indices[block] = table.ids[places]

    # A thread for each block, which computes on one core: the threads of one product wait for one another.
    num_threads = max((pool["num_threads"] for pool in threadpool_info()), default=1)
    with threadpool_limits(1), ThreadPoolExecutor(num_threads) as pool:
        list(zip(counted(blocks, "nearest neighbours"), pool.map(search_block, blocks), strict=False))
    return Nearest(indices, similarity)


def correct(overlap: Array, chance: float) -> Array:
    """(overlap - chance) / (1 - chance): 0 on average for unrelated rows, so below 0 by chance, and never clipped.

    The usual correction of agreement for chance. NaN where k is all other rows, so that chance is 1.
    """
    return (overlap - chance) / (1 - chance) if chance < 1 else np.full_like(overlap, np.nan)


def overlaps(before: Ids, after: Ids) -> Array:
    """(n,) share of the k rows in each line of ``before`` that are in the same line of ``after``."""
    k = before.shape[1]
    together = np.sort(np.concatenate([before, after], axis=1), axis=1)
    # No line has a row twice, so a row that stands twice in both together is in each.
    return np.asarray((together[:, 1:] == together[:, :-1]).sum(axis=1) / k)


class _Table:
    """The rows, read a block at a time as float64 rows of length 1, and the numbers of those that are candidates."""

    def __init__(self, rows: Any, ids: Ids, center: Array | None) -> None:
        self._rows, self._center = rows, center
        self.ids = ids[self.is_direction(ids)]
        self.hidden = rows.shape[1]
        self._short: NDArray[np.float32] | None = None

    def keep_short(self) -> None:
        """Hold the candidates as they are multiplied, for more than one block of queries."""
        self._short = np.concatenate([self.short(np.arange(len(self.ids))[part]) for part in _parts(len(self.ids))])

    def short(self, places: Ids) -> NDArray[np.float32]:
        """(len(places), hidden) candidates of length 1 in float32, by their places."""
        return self.units(self.ids[places]).astype(np.float32) if self._short is None else self._short[places]

    def units(self, ids: Ids) -> Array:
        """(len(ids), hidden) rows of length 1; zero rows must not be asked for."""
        units = np.empty((len(ids), self.hidden))
        for part in _parts(len(ids)):
            rows = self._read(ids[part])
            np.divide(rows, _lengths(rows)[:, None], out=units[part])
        return units

    def is_direction(self, ids: Ids) -> NDArray[np.bool_]:
        """Whether each row, less the centre, is not zero; ValueError for NaN or infinity."""
        lengths = np.empty(len(ids))
        for part in _parts(len(ids)):
            lengths[part] = _lengths(self._read(ids[part]))
        if not np.isfinite(lengths).all():
            row = ids[~np.isfinite(lengths)][0]
            raise ValueError(f"row {row} holds NaN, infinity or values whose squares are infinite: leave it out")
        return np.asarray(lengths > 0)

    def places_of(self, ids: Ids) -> Ids:
        """Where each row stands among the candidates, -1 where it does not."""
        return np.where(np.isin(ids, self.ids), np.searchsorted(self.ids, ids), -1)

    def _read(self, ids: Ids) -> Array:
        """(len(ids), hidden) float64 rows, less the centre where there is one."""
        # A slice of a memory map is read in order, and copied once instead of twice.
        is_run = len(ids) > 1 and bool((np.diff(ids) == 1).all())
        rows = np.array(self._rows[ids[0] : ids[-1] + 1] if is_run else self._rows[ids], np.float64, subok=False)
        if self._center is not None:
            rows -= self._center
        return rows


def product_error(hidden: int) -> float:
    """How far the float32 product of two rows of length 1 can be from their cosine: the usual bound of a sum."""
    return (hidden + 4) * 2.0**-24


def _search(table: _Table, units: Array, own_places: Ids, k: int) -> Neighbours:
    """The nearest of one block of queries, (m, hidden) rows of length 1, streamed over the candidates."""
    num_candidates = len(table.ids)
    short = units.astype(np.float32)
    # Both sides of a comparison err; as much again is to spare.
    margin = np.float32(4 * product_error(table.hidden))
    # The k-th best among some candidates is a floor for the k-th best of all: little passes it. One more for the query.
    stride = max(1, num_candidates // max(TILE, k + 1))
    sampled = short @ table.short(np.arange(0, num_candidates, stride)).T
    from_end = -min(k + 1, sampled.shape[1])
    floor = np.partition(sampled, from_end, axis=1)[:, from_end, None] - margin
    above_floor = []
    for tile in _parts(num_candidates):
        product = short @ table.short(np.arange(tile.start, tile.stop)).T
        flat = np.flatnonzero(product >= floor)
        query, column = np.divmod(flat, product.shape[1])
        is_other = column + tile.start != own_places[query]
        above_floor.append((query[is_other], column[is_other] + tile.start, product.ravel()[flat[is_other]]))
    queries, places, values = (np.concatenate(arrays) for arrays in zip(*above_floor, strict=True))
    _, best_values = first_k(queries, places, values, len(units), k)
    is_possible = values >= (best_values[:, -1] - margin)[queries]
    queries, places = queries[is_possible], places[is_possible]
    # Row by row, so that equal rows tie: a product of blocks can give their cosines another last bit.
    cosines = np.empty(len(places))
    for pairs in _parts(len(places)):
        cosines[pairs] = _dots(units[queries[pairs]], table.units(table.ids[places[pairs]]))
    return first_k(queries, places, cosines, len(units), k)


def _ids(ids: Any, num_rows: int, kind: str) -> Ids:
    """Row numbers, all of them for None; ValueError for what is no list of rows of the table."""
    if ids is None:
        return np.arange(num_rows)
    numbers = np.asarray(ids)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(f"{kind} must be a list of row numbers, not {numbers.dtype} of shape {numbers.shape}")
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < num_rows:
        raise ValueError(f"{kind} must be row numbers from 0 to {num_rows - 1}; got {numbers.min()} to {numbers.max()}")
    return numbers.astype(np.int64)


def _parts(num_rows: int, size: int = TILE) -> Iterator[slice]:
    """Slices of ``size`` rows, the last of what is left."""
    return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))


def _dots(left: Array, right: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", left, right))


def _lengths(rows: Array) -> Array:
    return np.sqrt(_dots(rows, rows))
