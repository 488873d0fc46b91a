"""Snapshots in, the rows of one parameter out: checked float64 blocks, a few dozen rows at a time."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.counts import at_least
from toolkit.snapshots.snapshot import MappedTensors, Snapshot

BLOCK_ROWS = 64
"""Rows converted to float64 at a time: 0.4 MB at hidden 768, so that a block and all that is computed from it stay in
the cache of one core (``experiments/benchmarks/rows.py --block-rows`` shows what other sizes cost)."""

ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector register: a block that starts elsewhere makes each vector straddle
two lines, and a subtraction takes twice as long."""


class Scratch:
    """Named (rows, hidden) float64 arrays that start on a cache line, made once and used for one block after another.

    New memory for every block of every array took as long as the arithmetic: the allocator hands freed blocks back to
    the system, which has to clear each page of the next one.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """The array of a name, with whatever it held before."""
        known = self._arrays.get(name)
        if known is None or len(known) < shape[0] or known.shape[1:] != shape[1:]:
            known = self._arrays[name] = _aligned(shape)
        return known[: shape[0]]


def tables_of(snapshots: Sequence[Snapshot], parameter: str) -> list[np.ndarray]:
    """(rows, hidden) of every snapshot, not read yet; ValueError where one lacks the parameter or differs in shape."""
    tables = [_table(snapshot, parameter) for snapshot in snapshots]
    for snapshot, table in zip(snapshots, tables, strict=True):
        if table.shape != tables[0].shape:
            raise ValueError(
                f"{parameter} has shape {table.shape} at epoch {snapshot.epoch:g} but {tables[0].shape} at epoch "
                f"{snapshots[0].epoch:g}: snapshots of one model are needed"
            )
    return tables


def iterate_blocks(
    snapshots: Sequence[Snapshot], parameter: str, block_rows: int = BLOCK_ROWS, *, scratch: Scratch | None = None
) -> Iterator[tuple[slice, list[Array]]]:
    """Yield a slice of rows and those rows of every snapshot, each (rows, hidden) float64.

    A LayerNorm vector is one row. Each block is new memory, which may be kept; with ``scratch`` it lies there and holds
    until the next one, which is faster. ValueError when a snapshot lacks the parameter, has another shape than the
    first or holds NaN.
    """
    tables = tables_of(snapshots, parameter)
    for start in range(0, len(tables[0]), at_least("block_rows", block_rows, 1)):
        rows = slice(start, min(start + block_rows, len(tables[0])))
        memory = scratch or Scratch()
        blocks = [memory.array(f"block {i}", table[rows].shape) for i, table in enumerate(tables)]
        for block, table in zip(blocks, tables, strict=True):
            np.copyto(block, table[rows])
        for snapshot, block in zip(snapshots, blocks, strict=True):
            if not _is_finite(block):
                raise ValueError(
                    f"{parameter} holds NaN or infinity at epoch {snapshot.epoch:g}: the run diverged, leave it out"
                )
        yield rows, blocks


def _aligned(shape: tuple[int, ...]) -> Array:
    size = math.prod(shape)
    memory = np.empty(size + ALIGNMENT // 8)
    start = -memory.ctypes.data % ALIGNMENT // 8
    return memory[start : start + size].reshape(shape)


def _is_finite(block: Array) -> bool:
    # One pass without a temporary array, and without BLAS, whose threads wait for one another when the machine is busy.
    # Values that are not finite never add up to one that is; the sum of large ones can overflow.
    return math.isfinite(np.einsum("ij->", block)) or bool(np.isfinite(block).all())


def _table(snapshot: Snapshot, parameter: str) -> np.ndarray:
    if parameter not in snapshot.tensors:
        raise ValueError(f"the snapshot of epoch {snapshot.epoch:g} lacks {parameter}")
    tensor = snapshot.tensors[parameter]
    if not tensor.size:
        raise ValueError(f"{parameter} has no values at epoch {snapshot.epoch:g}: its shape is {tensor.shape}")
    # A view as a plain array: slicing a memmap subclass costs more than it is worth here.
    return np.atleast_2d(np.asarray(tensor))


def file_of(snapshot: Snapshot, parameter: str) -> str | None:
    """The file that a tensor is mapped from, None when it is in memory: what was computed from it need not be again."""
    tensor = snapshot.tensors.get(parameter) if isinstance(snapshot.tensors, MappedTensors) else None
    return str(tensor.filename) if isinstance(tensor, np.memmap) else None
