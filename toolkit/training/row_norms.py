"""A table's gradient in, the norms of some of its rows out: of a dense, a sparse and a sharded one alike."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def row_norms(parameter: torch.Tensor, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(rows,) Euclidean norm of some rows of a table's gradient; NaN where it has none."""
    return norms_of_rows(parameter.grad, rows)


def norms_of_rows(table: torch.Tensor | None, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(rows,) Euclidean norm of some rows of a tensor, sharded or sparse too; NaN where there is none."""
    return norms_of(pick(whole(table), rows), len(rows))


def whole(table: Any) -> torch.Tensor | None:
    """A sharded tensor gathered, a sparse one with one entry per row."""
    if table is None:
        return None
    gathered: torch.Tensor = table.full_tensor() if hasattr(table, "full_tensor") else table
    return gathered.coalesce() if gathered.is_sparse else gathered


def pick(table: torch.Tensor | None, rows: NDArray[np.int64]) -> torch.Tensor | None:
    """Some rows of what :func:`whole` gives."""
    if table is None:
        return None
    picked = table.index_select(0, torch.from_numpy(rows.astype(np.int64, copy=False)).to(table.device))
    return picked.to_dense() if picked.is_sparse else picked


def norms_of(picked: torch.Tensor | None, num_rows: int) -> NDArray[np.float32]:
    """(num_rows,) norms of what :func:`pick` gives; NaN where that is nothing."""
    if picked is None:
        return np.full(num_rows, np.nan, np.float32)
    norms: NDArray[np.float32] = torch.linalg.vector_norm(picked.float(), dim=1).cpu().numpy()
    return norms


def num_nonzero(table: torch.Tensor | None) -> int:
    """Values that are not 0: exact whatever their size, and a single pass that copies nothing."""
    if table is None:
        return 0
    return int(torch.count_nonzero(table.values() if table.is_sparse else table))
