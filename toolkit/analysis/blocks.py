"""Snapshots in, the rows of one parameter out: checked float64 blocks, a few hundred rows at a time."""

from collections.abc import Iterator, Sequence

import numpy as np

from toolkit.analysis.measures import Array
from toolkit.snapshots.snapshot import Snapshot

BLOCK_ROWS = 256
"""Rows converted to float64 at a time: 0.8 MB at hidden 384, so that a block and what is computed from it stay in the
cache. 4,096 rows took twice as long, whatever the size of the vocabulary."""


def iterate_blocks(
    snapshots: Sequence[Snapshot], parameter: str, block_rows: int = BLOCK_ROWS
) -> Iterator[tuple[slice, list[Array]]]:
    """Yield a slice of rows and those rows of every snapshot, each (rows, hidden) float64.

    A LayerNorm vector is one row. ValueError when a snapshot lacks the parameter, has another shape than the first or
    holds NaN.
    """
    tables = [_table(snapshot, parameter) for snapshot in snapshots]
    for snapshot, table in zip(snapshots, tables, strict=True):
        if table.shape != tables[0].shape:
            raise ValueError(
                f"{parameter} has shape {table.shape} at epoch {snapshot.epoch:g} but {tables[0].shape} at epoch "
                f"{snapshots[0].epoch:g}: snapshots of one model are needed"
            )
    for start in range(0, len(tables[0]), block_rows):
        rows = slice(start, min(start + block_rows, len(tables[0])))
        blocks = [np.asarray(table[rows], dtype=np.float64) for table in tables]
        for snapshot, block in zip(snapshots, blocks, strict=True):
            if not np.isfinite(block).all():
                raise ValueError(
                    f"{parameter} holds NaN or infinity at epoch {snapshot.epoch:g}: the run diverged, leave it out"
                )
        yield rows, blocks


def _table(snapshot: Snapshot, parameter: str) -> np.ndarray:
    if parameter not in snapshot.tensors:
        raise ValueError(f"the snapshot of epoch {snapshot.epoch:g} lacks {parameter}")
    tensor = snapshot.tensors[parameter]
    # A view as a plain array: slicing a memmap subclass costs more than it is worth here.
    return np.atleast_2d(np.asarray(tensor))
