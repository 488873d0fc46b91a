"""Exact nearest neighbours by cosine, without a matrix of rows x rows.

Many queries go through a cheap product first, which proves for each query which rows can be its
neighbours; what it cannot decide goes to the next finer product, float64 at last.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.measures import Array

if TYPE_CHECKING:
    import torch


Ids = NDArray[np.int64]
Found = tuple[Ids, Array]
"""(m, k) places among the candidates, nearest first, -1 where a query is undecided; and their cosines, else NaN."""

TILE, GROUP = 2048, 32
"""Candidates of one product, whose 2 MB stay in the cache of a core, and of one group, whose maximum is kept."""
MAX_POSSIBLE = 256
"""A query with more possible neighbours than this (or than 8k) is left undecided."""
ROUNDING = {"bf16": 1.01 * 2.0**-8, "fp32": 1.01 * 2.0**-24}
"""Rounding of a result of the product as a share of what is stored: bf16 keeps 8 binary digits, fp32 24."""


def list_screens() -> tuple[str, ...]:
    """The products that are worth trying before float64 on this CPU, fastest first."""
    import torch

    # Older releases do not say what the CPU can do: fp32 is then tried first.
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    has_bf16 = has_onednn and any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16"))
    # At a lower setting torch may compute an "fp32" product in bf16, and the bound would not hold.
    has_fp32 = torch.get_float32_matmul_precision() == "highest"
    return ("bf16",) * has_bf16 + ("fp32",) * has_fp32


def screen_queries(
    candidates: Array, read_queries: Callable[[Ids], Array], own: Ids, k: int, screen: str, block_rows: int
) -> Found:
    """The k nearest candidates of the queries that a product of type ``screen`` decides.

    ``candidates`` is (n, hidden), ``read_queries`` gives the same for query numbers from 0 to len(own), both float64
    rows of length 1; ``own`` is each query's place among the candidates, -1 for none. Blocks of queries are shared out
    over Python threads that compute on one core each: torch's own threads wait for one another after every small step.
    """
    import torch

    table = _Screened(candidates, screen)
    places, cosines = np.full((len(own), k), -1, np.int64), np.full((len(own), k), np.nan)
    num_blocks = -(-len(own) // block_rows)
    blocks = iter(np.array_split(np.arange(len(own)), num_blocks))  # even: no product of a single query at the end
    num_threads = torch.get_num_threads()

    def work(_: int) -> None:
        torch.set_num_threads(1)
        workspace = _Workspace(table, -(-len(own) // num_blocks))
        for block in blocks:
            places[block], cosines[block] = _screen_block(table, read_queries(block), own[block], k, workspace)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        try:
            with ThreadPoolExecutor(num_threads) as pool:
                list(pool.map(work, range(num_threads)))
        finally:
            torch.set_num_threads(num_threads)
    return places, cosines


def first_k(queries: Ids, places: Ids, cosines: Array, num_queries: int, k: int) -> Found:
    """The k largest cosines of each query from a list of pairs, the lower place first among equals."""
    counts = np.bincount(queries, minlength=num_queries)
    order = np.lexsort((places, -cosines, queries))
    has_enough = np.flatnonzero(counts >= k)
    chosen = order[(np.cumsum(counts) - counts)[has_enough][:, None] + np.arange(k)]
    found = np.full((num_queries, k), -1, np.int64), np.full((num_queries, k), np.nan)
    found[0][has_enough], found[1][has_enough] = places[chosen], cosines[chosen]
    return found


class _Screened:
    """The candidates as the screen multiplies them, (n, hidden), filled up with zero rows to whole tiles."""

    def __init__(self, candidates: Array, screen: str) -> None:
        import torch

        self.num, self.hidden = candidates.shape
        self.exact = torch.from_numpy(candidates)
        self.dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[screen]
        self.rounding = ROUNDING[screen]
        self.rows = torch.zeros(-(-self.num // TILE) * TILE, self.hidden, dtype=self.dtype)
        self.largest_error = 0.0
        for start in range(0, self.num, TILE):
            block = self.exact[start : start + TILE]
            self.rows[start : start + len(block)], errors = self.shorten(block)
            self.largest_error = max(self.largest_error, float(errors.max()))

    def shorten(self, units: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
        """Rows in the screen's type, and the norm of each one's rounding error."""
        short = units.to(self.dtype)
        return short, (units - short).norm(dim=1)

    def bound(self, errors: "torch.Tensor") -> "torch.Tensor":
        """How far an entry of the product can be from the cosine, before it is stored, for each query."""
        length, sum_error = 1 + self.largest_error, 2 * self.hidden * 2.0**-24
        total: torch.Tensor = errors * length + self.largest_error + sum_error * (1 + errors) * length
        return total


class _Workspace:
    """The memory of one thread, taken once: fresh pages for every block would cost more than the arithmetic."""

    def __init__(self, table: _Screened, num_queries: int) -> None:
        import torch

        num = len(table.rows)
        self._product = torch.empty(num * num_queries, dtype=table.dtype)
        self._maxima = torch.empty(num // GROUP * num_queries, dtype=table.dtype)
        self._halves = torch.empty(TILE // 2 * num_queries, dtype=table.dtype)

    def multiply(self, table: _Screened, queries: "torch.Tensor", own: Ids) -> tuple["torch.Tensor", "torch.Tensor"]:
        """The product (candidates, m), -inf for what is no neighbour, and the maximum of each group (groups, m).

        Group g of a tile is its rows g, g + 64, g + 128 …: maxima of whole halves of the tile, without strides.
        """
        import torch

        m, per_tile = len(queries), TILE // GROUP
        product = self._product[: len(table.rows) * m].view(-1, m)
        maxima = self._maxima[: len(table.rows) // GROUP * m].view(-1, m)
        halves = self._halves[: TILE // 2 * m].view(-1, m)
        for tile, start in enumerate(range(0, len(table.rows), TILE)):
            block = product[start : start + TILE]
            torch.mm(table.rows[start : start + TILE], queries.T, out=block)
            block[max(0, table.num - start) :] = -torch.inf
            is_here = np.flatnonzero((own >= start) & (own < start + TILE))
            block[torch.from_numpy(own[is_here] - start), torch.from_numpy(is_here)] = -torch.inf
            size = TILE // 2
            torch.maximum(block[:size], block[size:], out=halves)
            while size > per_tile:
                size //= 2
                torch.maximum(halves[:size], halves[size : 2 * size], out=halves[:size])
            maxima[tile * per_tile : (tile + 1) * per_tile] = halves[:size]
        return product, maxima


def _screen_block(table: _Screened, units: Array, own: Ids, k: int, workspace: _Workspace) -> Found:
    """The nearest of one block of queries; see the docstring of the file."""
    import torch

    exact = torch.from_numpy(units)
    queries, errors = table.shorten(exact)
    product, maxima = workspace.multiply(table, queries, own)
    by_query = maxima.T.float().contiguous()
    kth = by_query.topk(k, dim=1).values[:, -1]
    lowest = kth - table.rounding * kth.abs() - 2 * table.bound(errors).float() - 2.0**-20
    threshold = lowest - table.rounding * lowest.abs()
    limit = max(MAX_POSSIBLE, 8 * k)
    is_possible = by_query >= threshold[:, None]
    # A threshold of -inf: fewer than k groups hold a neighbour at all.
    is_possible &= ((is_possible.sum(dim=1) <= limit) & threshold.isfinite())[:, None]
    of_group, groups = is_possible.nonzero(as_tuple=True)
    per_tile = TILE // GROUP
    entries = product.view(-1, GROUP, per_tile, len(units))[groups // per_tile, :, groups % per_tile, of_group]
    group, member = (entries >= threshold[of_group, None]).nonzero(as_tuple=True)
    rows = groups[group] // per_tile * TILE + member * per_tile + groups[group] % per_tile
    counts = torch.bincount(of_group[group], minlength=len(units))
    is_kept = (counts <= limit)[of_group[group]]
    key = (of_group[group] * len(table.rows) + rows)[is_kept].sort().values
    of_pair, rows = key // len(table.rows), key % len(table.rows)
    cosines = _cosines(exact, table.exact, of_pair, rows)
    return first_k(of_pair.numpy(), rows.numpy(), cosines.numpy(), len(units), k)


def _cosines(
    queries: "torch.Tensor", candidates: "torch.Tensor", rows: "torch.Tensor", columns: "torch.Tensor"
) -> "torch.Tensor":
    """The dot products of some pairs of rows, without a copy of the rows: a dense product sampled at those pairs."""
    import torch

    ends = torch.bincount(rows, minlength=len(queries)).cumsum(0)
    pattern = torch.sparse_csr_tensor(
        torch.cat([torch.zeros(1, dtype=torch.int64), ends]),
        columns,
        torch.zeros(len(columns), dtype=queries.dtype),
        (len(queries), len(candidates)),
        check_invariants=False,
    )
    sampled: torch.Tensor = torch.sparse.sampled_addmm(pattern, queries, candidates.T, beta=0).values()
    return sampled


BLOCK_ROWS = 512
"""Queries of one block of the screen; for each thread one block's product is held, 31 MB in bf16 at 30,522 rows."""
FEW = 256
"""This many queries, or fewer, are not worth a screen."""
EXACT_QUERIES = 1024
"""Queries of one block of the float64 product, which holds their cosines with a tile of candidates, 16 MB."""


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
    products to try before float64 (default: those that are fast on this CPU). Up to 256 queries need some 20 MB,
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


def correct(overlap: Array, chance: float) -> Array:
    """(overlap - chance) / (1 - chance): 0 on average for unrelated rows, so below 0 by chance, and never clipped.

    The usual correction of agreement for chance. NaN where k is all other rows, so that chance is 1.
    """
    return (overlap - chance) / (1 - chance) if chance < 1 else np.full_like(overlap, np.nan)


def overlaps(before: Ids, after: Ids) -> Array:
    """(n,) share of the k rows in each line of ``before`` that are in the same line of ``after``."""
    k = before.shape[1]
    both = np.sort(np.concatenate([before, after], axis=1), axis=1)
    # No line has a row twice, so a row that stands twice in both together is in each.
    return np.asarray((both[:, 1:] == both[:, :-1]).sum(axis=1) / k)


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
    for part in _parts(len(query_ids), EXACT_QUERIES):
        units, of_part = table.units(query_ids[part]), own[part]
        # The k-th best among some candidates is a floor for the k-th best of all: little passes it.
        some = _product(table, units, of_part, np.arange(0, num, max(1, num // max(TILE, k + 1))))
        floor = np.partition(some, -k, axis=1)[:, -k, None] - margin
        passed = []
        for tile in _parts(num):
            product = _product(table, units, of_part, np.arange(tile.start, tile.stop))
            query, place = np.nonzero(product >= floor)
            passed.append((query, place + tile.start, product[query, place]))
        queries, found, values = (np.concatenate(each) for each in zip(*passed, strict=True))
        lowest = first_k(queries, found, values, len(units), k)[1][:, -1] - margin
        queries, found = queries[values >= lowest[queries]], found[values >= lowest[queries]]
        # In a product of blocks equal rows can have cosines that differ in the last bit; row by row, ties are ties.
        values = np.empty(len(found))
        for pairs in _parts(len(found)):
            values[pairs] = _dots(units[queries[pairs]], table.units(table.ids[found[pairs]]))
        places[part], cosines[part] = first_k(queries, found, values, len(units), k)
    return places, cosines


def _product(table: _Table, units: Array, own: Ids, candidates: Ids) -> Array:
    """(queries, candidates) cosines, -inf of a query with itself; candidates by their places."""
    cosines = np.asarray(units @ table.units(table.ids[candidates]).T)
    cosines[own[:, None] == candidates] = -np.inf
    return cosines


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
