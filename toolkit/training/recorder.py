"""Optimizer steps in, the run's exposure and optimizer log out."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, EncodedTask, gather_tokens
from toolkit.families import TABLES
from toolkit.snapshots.exposure import DesignCounter, Exposure, StepRows, TableExposure
from toolkit.training.watch import row_norms

Norms = Callable[[str, NDArray[np.int64]], NDArray[np.float32]]
"""Table and rows to the Euclidean norms of these rows' gradients."""


class Recorder:
    """Keeps, for every optimizer step, which rows it used, their gradients' norms, learning rates and clipping."""

    def __init__(self, data: EncodedTask, tables: dict[str, torch.Tensor]) -> None:
        """``tables``: the model's embedding tables by canonical name, live: their ``.grad`` is read at each step."""
        self._data = data
        self._tables = tables
        self._steps: dict[str, list[StepRows]] = {name: [] for name in TABLES if name in tables}
        self._design = DesignCounter(tuple(self._steps))
        self.num_examples = 0
        """Examples of all steps so far."""
        self.learning_rates: list[float] = []
        self.head_learning_rates: list[float] = []
        self.clipping_factors: list[float] = []

    def record_step(self, indices: NDArray[np.int64], norms: Norms | None = None) -> None:
        """Note the rows of one global batch; call it after the backward pass and before clipping.

        ``norms(name, rows)``: norms of rows' gradients, where the tables' own ``.grad`` does not hold them.

        Every process holds the whole epoch's order, so the main process sees the global batch without communication,
        and gradients are already averaged over processes.
        """
        self.num_examples += len(indices)
        rows = exposed_rows(self._data.splits["train"], indices, self._data.position_offset)
        self._design.add(rows)
        for name, steps in self._steps.items():
            distinct, counts = np.unique(rows[name], return_counts=True)
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


def exposed_rows(split: EncodedSplit, indices: NDArray[np.int64], position_offset: int) -> dict[str, NDArray[np.int64]]:
    """The row of each real token of some examples in each table; three arrays (tokens,)."""
    address, place = gather_tokens(split, indices)
    return {
        "word_embeddings": split.tokens[address].astype(np.int64),
        "position_embeddings": place + position_offset,
        "token_type_embeddings": split.segments[address].astype(np.int64),
    }
