"""Unit rows in; out, the nearest candidates of each query, by a cheap product whose error has a proven bound.

An entry of the product of q and c, unit rows rounded to a short type (bf16), is off by at most the sum of
|dq| |c'| + |q| |dc| (Cauchy-Schwarz; dq and dc are the rounding errors, whose norms are computed, not guessed, and q'
and c' the rounded rows), 2 hidden 2**-24 |q'| |c'| for the sum in fp32, and the rounding of what is stored. If t is the
k-th largest of the maxima of disjoint groups of candidates, k entries are at least t, so each of the true k nearest has
an entry of at least t less twice that error. Those, and only those, are worth a product in float64. The filter is ours.
"""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array

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

    supported = [getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported")]
    has_bf16 = torch._C._has_mkldnn and any(function and function() for function in supported)
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

    table = _Table(candidates, screen)
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


class _Table:
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

    def __init__(self, table: _Table, num_queries: int) -> None:
        import torch

        num = len(table.rows)
        self._product = torch.empty(num * num_queries, dtype=table.dtype)
        self._maxima = torch.empty(num // GROUP * num_queries, dtype=table.dtype)
        self._halves = torch.empty(TILE // 2 * num_queries, dtype=table.dtype)

    def multiply(self, table: _Table, queries: "torch.Tensor", own: Ids) -> tuple["torch.Tensor", "torch.Tensor"]:
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


def _screen_block(table: _Table, units: Array, own: Ids, k: int, workspace: _Workspace) -> Found:
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
