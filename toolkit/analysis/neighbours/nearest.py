"""A table of rows in, the exact nearest neighbours of its rows by cosine out; nothing of size rows x rows is kept.

Many queries go through a cheap product first (screening.py), which proves for each query which rows can be its
neighbours; what it cannot decide goes to the next finer product, float64 at last.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.neighbours.screening import GROUP, TILE, Found, Ids, first_k, list_screens, screen_queries
from toolkit.analysis.rows.measures import Array

BLOCK_ROWS = 512
"""Queries of one block of the screen; for each thread one block's product is held, 31 MB in bf16 at 30,522 rows."""
FEW = 256
"""This many queries, or fewer, are not worth a screen."""
EXACT_VALUES = 1 << 24
"""Cosines that the float64 product holds at a time, 128 MB."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """The neighbours of each query, and how they were found."""

    indices: Ids
    """(m, k) int64 row numbers, nearest first, the lower number first among equals; -1 for the query of a zero row."""
    similarity: Array
    """(m, k) float64 cosines; NaN for the query of a zero row."""
    screen: str
    """The first product: ``bf16``, ``fp32`` or, without a screen, ``fp64``."""
    num_fallbacks: int
    """Queries that the first product could not decide, so that a finer one did."""


def nearest_neighbours(
    rows: NDArray[Any],
    k: int,
    *,
    queries: Any = None,
    candidates: Any = None,
    center: Array | None = None,
) -> tuple[Ids, Array]:
    """(m, k) int64 row numbers and (m, k) float64 cosines of the k nearest rows: :func:`search_nearest` in short."""
    found = search_nearest(rows, k, queries=queries, candidates=candidates, center=center)
    return found.indices, found.similarity


def search_nearest(
    rows: NDArray[Any],
    k: int,
    *,
    queries: Any = None,
    candidates: Any = None,
    center: Array | None = None,
    block_rows: int = BLOCK_ROWS,
    screens: Sequence[str] | None = None,
) -> Nearest:
    """The k nearest rows by cosine, exactly, of every row or of the rows numbered ``queries``, among ``candidates``.

    ``rows`` is (n, hidden) of floats, read by blocks if it is a memory map; ``center`` (hidden,) is subtracted from
    every row first. A row is left out of its own list by its number, not by its distance, so that a duplicate of it is
    found. A zero row has no direction: it is nobody's neighbour and has none itself (-1, NaN). ``screens`` are the
    products to try before float64 (default: those that are fast on this CPU). Up to 256 queries need some 128 MB,
    however many rows there are; for more, the candidates are held as float64 unit rows and in the screen's type.

    ValueError for NaN or infinity, for row numbers that the table lacks, and for k above the number of candidates.
    """
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.dtype.kind != "f":
        raise ValueError(f"rows must be a (rows, hidden) array of floats, not {rows.dtype} of shape {rows.shape}")
    query_ids = _ids(queries, len(rows), "queries")
    table = _Table(rows, np.unique(_ids(candidates, len(rows), "candidates")), center)
    own = table.places_of(query_ids)
    num_others = len(table.ids) - int((own >= 0).any())
    if not 1 <= k <= num_others:
        raise ValueError(f"k must be 1 to {num_others}, the candidate rows that are not zero; got {k}")
    indices, similarity = np.full((len(query_ids), k), -1, np.int64), np.full((len(query_ids), k), np.nan)
    pending = np.flatnonzero(table.is_direction(query_ids))
    first, num_fallbacks = "fp64", 0
    for screen in list_screens() if screens is None else screens:
        if len(pending) <= FEW or 4 * k * GROUP > len(table.ids):  # too few groups for a threshold that keeps few rows
            break
        read = partial(_read_queries, table, query_ids[pending])
        units = table.units(table.ids)
        places, cosines = screen_queries(units, read, own[pending], k, screen, block_rows)
        is_decided = places[:, 0] >= 0
        indices[pending[is_decided]], similarity[pending[is_decided]] = (
            table.ids[places[is_decided]],
            cosines[is_decided],
        )
        pending = pending[~is_decided]
        if first == "fp64":
            first, num_fallbacks = screen, len(pending)
    if len(pending):
        places, similarity[pending] = _multiply(table, query_ids[pending], own[pending], k)
        indices[pending] = table.ids[places]
    return Nearest(indices, similarity, first, num_fallbacks)


class _Table:
    """The rows, read a block at a time as float64 rows of length 1, and the numbers of those that are candidates."""

    def __init__(self, rows: NDArray[Any], ids: Ids, center: Array | None) -> None:
        self._rows, self._center = rows, center
        self.ids = ids[self.is_direction(ids)]
        self.hidden = rows.shape[1]

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
        # A slice of a memory map is read in order, and copied once instead of twice.
        is_run = len(ids) > 1 and bool((np.diff(ids) == 1).all())
        rows = np.array(self._rows[ids[0] : ids[-1] + 1] if is_run else self._rows[ids], np.float64, subok=False)
        if self._center is not None:
            rows -= self._center
        return rows


def _read_queries(table: _Table, query_ids: Ids, part: Ids) -> Array:
    return table.units(query_ids[part])


def _multiply(table: _Table, query_ids: Ids, own: Ids, k: int) -> Found:
    """Neighbours by the float64 product, streamed over the candidates."""
    num = len(table.ids)
    # Two computed cosines of the same pair differ by at most twice hidden x 2⁻⁵³ each, plus that of the normalisation.
    margin = 8 * (table.hidden + 4) * 2.0**-53
    places, cosines = np.empty((len(query_ids), k), np.int64), np.empty((len(query_ids), k))
    for part in _parts(len(query_ids), max(1, EXACT_VALUES // num)):
        units, of_part = table.units(query_ids[part]), own[part]
        product = np.empty((len(units), num))
        for columns in _parts(num):
            product[:, columns] = units @ table.units(table.ids[columns]).T
        has_own = np.flatnonzero(of_part >= 0)
        product[has_own, of_part[has_own]] = -np.inf
        lowest = np.partition(product, num - k, axis=1)[:, num - k] - margin
        queries, found = np.nonzero(product >= lowest[:, None])
        # In a product of blocks equal rows can have cosines that differ in the last bit; row by row, ties are ties.
        values = np.empty(len(found))
        for pairs in _parts(len(found)):
            values[pairs] = _dots(units[queries[pairs]], table.units(table.ids[found[pairs]]))
        places[part], cosines[part] = first_k(queries, found, values, len(units), k)
    return places, cosines


def _ids(ids: Any, num_rows: int, kind: str) -> Ids:
    if ids is None:
        return np.arange(num_rows)
    numbers = np.asarray(ids)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(f"{kind} must be a list of row numbers, not {numbers.dtype} of shape {numbers.shape}")
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < num_rows:
        raise ValueError(f"{kind} must be row numbers from 0 to {num_rows - 1}; got {numbers.min()} to {numbers.max()}")
    return numbers.astype(np.int64)


def _parts(num: int, size: int = TILE) -> Iterator[slice]:
    return (slice(start, min(start + size, num)) for start in range(0, num, size))


def _dots(left: Array, right: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", left, right))


def _lengths(rows: Array) -> Array:
    return np.sqrt(_dots(rows, rows))
