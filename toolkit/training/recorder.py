"""Optimizer steps in, the run's exposure and optimizer log out."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, EncodedTask, gather_tokens
from toolkit.families import TABLES
from toolkit.snapshots.exposure import DesignCounter, Exposure, StepRows, TableExposure
from toolkit.training.watch import row_norms

Norms = Callable[[str, NDArray[np.int64]], NDArray[np.float32]]
"""Table and rows to the Euclidean norms of these rows' gradients."""
BATCHES_AHEAD = 64
"""Batches whose rows are found together: sorting the tokens of many takes a fraction of sorting them one by one."""


class BatchRows(NamedTuple):
    """The rows that one batch uses, by table."""

    indices: NDArray[np.int64]
    """(examples,) the batch itself."""
    rows: Mapping[str, NDArray[np.int64]]
    """(tokens,) the row of each real token."""
    distinct: Mapping[str, NDArray[np.int64]]
    """(rows,) each of them once, ascending."""
    counts: Mapping[str, NDArray[np.int64]]
    """(rows,) tokens that use it."""


class Recorder:
    """Keeps, for every optimizer step, which rows it used, their gradients' norms, learning rates and clipping."""

    def __init__(self, data: EncodedTask, tables: dict[str, torch.Tensor]) -> None:
        """``tables``: the model's embedding tables by canonical name, live: their ``.grad`` is read at each step."""
        self._data = data
        self._tables = tables
        self._steps: dict[str, list[StepRows]] = {name: [] for name in TABLES if name in tables}
        self._design = DesignCounter(tuple(self._steps))
        self._coming: Iterator[NDArray[np.int64]] = iter(())
        self._found: deque[BatchRows] = deque()
        self.num_examples = 0
        """Examples of all steps so far."""
        self.learning_rates: list[float] = []
        self.head_learning_rates: list[float] = []
        self.clipping_factors: list[float] = []

    def expect(self, batches: Iterable[NDArray[np.int64]]) -> None:
        """Say which global batches the next steps take, in order, so that their rows can be found many at a time."""
        self._coming, self._found = iter(batches), deque()

    def record_step(self, indices: NDArray[np.int64], norms: Norms | None = None) -> None:
        """Note the rows of one global batch; call it after the backward pass and before clipping.

        ``norms(name, rows)``: norms of rows' gradients, where the tables' own ``.grad`` does not hold them. ValueError
        for another batch than the one that was expected.

        Every process holds the whole epoch's order, so the main process sees the global batch without communication,
        and gradients are already averaged over processes.
        """
        if not self._found:
            ahead = list(islice(self._coming, BATCHES_AHEAD)) or [indices]
            self._found.extend(rows_of_batches(self._data.splits["train"], ahead, self._data.position_offset))
        batch = self._found.popleft()
        if not np.array_equal(batch.indices, indices):
            raise ValueError(f"step {len(self.learning_rates) + 1} recorded another batch than was expected")
        self.num_examples += len(indices)
        self._design.add(batch.rows)
        for name, steps in self._steps.items():
            distinct, counts = batch.distinct[name], batch.counts[name]
            own = norms(name, distinct) if norms else row_norms(self._tables[name], distinct)
            steps.append(StepRows(distinct.astype(np.int32), counts.astype(np.int32), own))

    def record_rates(self, learning_rate: float, head_learning_rate: float, clipping_factor: float) -> None:
        """Note the learning rates and clipping factor of one step."""
        self.learning_rates.append(learning_rate)
        self.head_learning_rates.append(head_learning_rate)
        self.clipping_factors.append(clipping_factor)

    def exposure(self) -> Exposure:
        """The exposure of all steps so far."""
        tables = {name: TableExposure.from_steps(steps) for name, steps in self._steps.items()}
        return Exposure(tables, self._design.design())


def rows_of_batches(split: EncodedSplit, batches: list[NDArray[np.int64]], position_offset: int) -> Iterator[BatchRows]:
    """What each of some batches uses, found for all of them at once."""
    rows = exposed_rows(split, np.concatenate(batches), position_offset)
    sizes = [(split.offsets[batch + 1] - split.offsets[batch]).sum() for batch in batches]
    number, ends = np.repeat(np.arange(len(batches)), sizes), np.cumsum(sizes)[:-1]
    found = {}
    for name, own in rows.items():
        num_rows = int(own.max(initial=0)) + 1
        keys, counts = np.unique(number * num_rows + own, return_counts=True)  # by batch, then by row
        starts = np.searchsorted(keys, np.arange(1, len(batches)) * num_rows)
        found[name] = [
            np.split(values, by) for values, by in ((own, ends), (keys % num_rows, starts), (counts, starts))
        ]
    for k, batch in enumerate(batches):
        yield BatchRows(batch, *({name: parts[column][k] for name, parts in found.items()} for column in range(3)))


def exposed_rows(split: EncodedSplit, indices: NDArray[np.int64], position_offset: int) -> dict[str, NDArray[np.int64]]:
    """The row of each real token of some examples in each table; three arrays (tokens,)."""
    address, place = gather_tokens(split, indices)
    return {
        "word_embeddings": split.tokens[address].astype(np.int64),
        "position_embeddings": place + position_offset,
        "token_type_embeddings": split.segments[address].astype(np.int64),
    }
