"""Steps of anybody's loop that are looked at where they are computed, on a GPU: no hook waits for one."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

RowsByTable = dict[str, NDArray[np.int64]]
"""Table to (tokens,): the row of each real token of some passes; all arrays have one length."""


def is_read_later(ids: torch.Tensor) -> bool:
    """Whether these token ids are on a device that computes on while this process does something else."""
    return ids.is_cuda


def rows_on_host(rows: NDArray[np.int32], names: Sequence[str]) -> RowsByTable:
    """The rows of real tokens of ``rows``, (tables, tokens), which is -1 where there is none."""
    is_real = rows[0] >= 0
    return {name: table[is_real].astype(np.int64) for name, table in zip(names, rows, strict=True)}


class SeenTable(NamedTuple):
    """What one step did with one table."""

    rows: NDArray[np.int32]
    """(tokens,) the row of each real token."""
    norms: NDArray[np.float32]
    """(tokens,) the norm of its gradient; NaN where there is none."""
    elsewhere: float
    """The largest size of a value of the gradient in rows of no token; NaN where one is."""
    largest: float
    """The largest size of all; NaN where one is."""


def look_at(
    rows: torch.Tensor, gradients: Mapping[str, torch.Tensor | None]
) -> tuple[torch.Tensor, Callable[[NDArray[np.float32]], dict[str, SeenTable]]]:
    """Look at a step before its update, without waiting for it.

    Parameters
    ----------
    rows
        (tables, tokens) int32, the row of each token; -1 where it is not real.
    gradients
        Each of these tables to its gradient, (rows, hidden) and dense; None where it has none.

    Returns
    -------
    tuple
        (values,) fp32 on the device, and what reads them on the host, by table; it keeps no view of them.
    """
    with_gradient = [(k, gradient.detach()) for k, gradient in enumerate(gradients.values()) if gradient is not None]
    pieces = [rows.view(torch.float32).flatten()]
    if with_gradient:
        picked = torch.stack([rows[k] for k, _ in with_gradient])  # an index would be copied, and waited for
        pieces += _sizes([gradient for _, gradient in with_gradient], picked)

    def read(values: NDArray[np.float32]) -> dict[str, SeenTable]:
        token_rows = values[: rows.numel()].view(np.int32).reshape(rows.shape)
        is_real = token_rows[0] >= 0
        norms = np.full(rows.shape, np.nan, np.float32)
        largest_sizes = np.zeros((2, len(rows)))  # elsewhere, and of all
        # Behind the rows lie the norms of each table with a gradient, then their largest sizes, as `_sizes` has them.
        for k, (table, _) in enumerate(with_gradient):
            norms[table] = values[rows.numel() :].reshape(-1)[k * rows.shape[1] : (k + 1) * rows.shape[1]]
            largest_sizes[:, table] = values[len(values) - 2 * len(with_gradient) :].reshape(2, -1)[:, k]
        tables = zip(token_rows[:, is_real], norms[:, is_real], *largest_sizes.tolist(), strict=True)
        return {name: SeenTable(*table) for name, table in zip(gradients, tables, strict=True)}

    return torch.cat(pieces), read


@lru_cache(maxsize=8)
def _places_of(lengths: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(tables, 1) where each of some tables starts when they lie end to end, and a 0."""
    return torch.tensor(np.cumsum([0, *lengths[:-1]])[:, None], device=device), torch.zeros(1, device=device)


def _sizes(gradients: Sequence[torch.Tensor], rows: torch.Tensor) -> list[torch.Tensor]:
    """(tables · tokens,) norms of the rows of these tables, and (2 · tables,) their largest sizes: elsewhere, of all.

    The largest size, unlike a norm, is exact however small it is: 0 says that every value is. All tables together: each
    call that starts something on a GPU takes a loop's time, however little it does.
    """
    lengths, device = [len(gradient) for gradient in gradients], rows.device
    starts, zero = _places_of(tuple(lengths), device)
    norms = [torch.linalg.vector_norm(g, dim=1, dtype=torch.float32).to(device) for g in gradients]
    largest = torch.cat([torch.linalg.vector_norm(g, torch.inf, dim=1).float().to(device) for g in gradients])
    flat_rows = torch.where(rows < 0, len(largest), rows + starts).flatten()  # behind them all what stands for no row
    is_used = torch.zeros(len(largest) + 1, dtype=torch.bool, device=device).index_fill_(0, flat_rows, True)
    elsewhere_and_all = torch.stack([largest.masked_fill(is_used[:-1], 0), largest])
    table_maxima = torch.stack([table.amax(dim=1) for table in torch.split(elsewhere_and_all, lengths, dim=1)], dim=1)
    return [torch.cat([*norms, zero]).index_select(0, flat_rows), table_maxima.flatten()]
