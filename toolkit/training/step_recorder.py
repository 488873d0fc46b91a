"""Counts exposure step after step (rows, gradient norms, rates), of our own loop and of anybody's; writes nothing."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, EncodedTask, gather_tokens
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.snapshots.logs import DesignCounter, Exposure, TableExposure, TableLog
from toolkit.training.device_steps import RowsByTable, look_at, rows_on_host
from toolkit.training.graphs import Blocks
from toolkit.training.live_drift import StepSize


def whole(table: Any) -> torch.Tensor | None:
    """A sharded tensor gathered, a sparse one with one entry per row."""
    if table is None:
        return None
    gathered: torch.Tensor = table.full_tensor() if hasattr(table, "full_tensor") else table
    return gathered.coalesce() if gathered.is_sparse else gathered


def pick(table: torch.Tensor | None, rows: NDArray[np.integer]) -> torch.Tensor | None:
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


def _is_finite(table: torch.Tensor | None) -> bool:
    return table is None or bool(torch.isfinite(table.values() if table.is_sparse else table).all())


LOGS = ("learning_rates", "head_learning_rates", "clipping_factors")

NO_PASS_SEEN = (
    "a step was taken that no forward pass of the model was seen to lead to: which rows the steps used is not known"
)
NOT_FINITE = "its gradient held NaN or infinity: its exposure is not known"
USED_ELSEWHERE = (
    "rows that no recorded forward pass used got gradients (another use of the table, a penalty on it, padding that "
    "the loss counts, or gradients left from an earlier step): its exposure is not known"
)
IS_OUTPUT_TOO = (
    "also serves elsewhere in the model (as its output layer, say), where any row may get a gradient: what the input "
    "used is known, not which rows each step moved"
)


class Recorder:
    """Counts, of any training loop, the optimizer steps, and of each step the rows, norms and rates.

    Its clients say what a step used: our own loop the batch (:meth:`record_batch`), any other what the forward passes
    were seen to look up (:meth:`record_step`). What could not be seen is never counted as nothing: a table is left out,
    or everything, with the reason.
    """

    def __init__(
        self,
        tables: Mapping[str, torch.Tensor],
        first_rows: Mapping[str, int] | None = None,
        shared: Collection[str] = (),
    ) -> None:
        """``tables``: the model's embedding tables by canonical name, live: their ``.grad`` is read at each step.

        ``first_rows``: of a table of which only some rows are trained, and given, the first of these. ``shared``:
        tables that are the output layer too, of which any row may get a gradient: what the input used is kept of them,
        and nothing by step.
        """
        self.first_rows = dict(first_rows or {})
        self.tables = tables
        self.names = tuple(name for name in TABLES if name in tables)
        self._input_only = tuple(name for name in self.names if name in shared)
        self._rows = {name: TableLog() for name in self.names if name not in shared}
        self._design = DesignCounter(self.names)
        self._blocks: Blocks | None = None
        self.num_examples = 0
        """Examples of all steps so far, where batches were given."""
        self.learning_rates: list[float] = []
        self.head_learning_rates: list[float] = []
        self.clipping_factors: list[float] = []
        self.step_sizes: list[StepSize] = []
        """Of embedding parameters, at the steps whose number is a power of two."""
        self.problem: str | None = None
        """Why no exposure is known; None while it is."""
        self.left_out: dict[str, str] = {}
        """Tables whose exposure is not known, and why."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps so far."""
        return len(self.learning_rates)

    def rows_of(self, data: EncodedTask, indices: NDArray[np.int64]) -> "BatchRows":
        """The rows that a global batch of some examples of train uses.

        Every process holds the whole epoch's order, so the main process sees the global batch without communication.
        """
        rows_by_table = exposed_rows(data.splits["train"], indices, data.position_offset)
        tokens = np.stack([rows_by_table[name].astype(np.int32) for name in self.names], axis=1)
        rows = {}
        for name in self.names:
            distinct, counts = np.unique(rows_by_table[name], return_counts=True)
            rows[name] = distinct.astype(np.int32), counts.astype(np.int32)
        return BatchRows(len(indices), tokens, rows)

    def record_batch(
        self, batch_rows: "BatchRows", norms: Mapping[str, NDArray[np.float32]] = MappingProxyType({})
    ) -> None:
        """Note the rows of one global batch.

        ``norms``: table to norms of its rows' gradients, averaged over processes and before clipping.
        """
        steps = {}
        for name in self._rows:
            rows, counts = batch_rows.rows[name]
            steps[name] = TableExposure.of_step(rows, counts, norms.get(name, np.full(len(rows), np.nan, np.float32)))
        self.record_step(batch_rows.tokens, steps)
        self.num_examples += batch_rows.num_examples

    def record_step(self, tokens: NDArray[np.int32], rows: Mapping[str, TableExposure]) -> None:
        """Note what one step used: the row of each real token, as :meth:`DesignCounter.add` takes them, and per table
        the distinct rows with their norms."""
        self._design.add(tokens)
        for name in self._rows:
            self._rows[name].add(rows[name])

    def record_passes(self, tokens: RowsByTable | torch.Tensor, num_passes: int, gradient_scale: float = 1.0) -> None:
        """Note a step by the rows that its forward passes looked up, and its gradients, before the update.

        A row whose gradient is exactly 0 is left out. So are those of passes whose gradients were thrown away before
        the step (``zero_grad``, or a GradScaler that skips a step without telling the optimizer), save where this step
        used them too: then their tokens count with its own. Of a table of which a row gets a gradient that no pass used
        nothing is known. Every process calls this with the rows of them all: sharded gradients are gathered.
        ``gradient_scale``: what the optimizer will divide the gradients by. The rates are NaN until they are known.

        On a GPU ``tokens`` is one tensor there, as :func:`look_at` takes it: then the step is looked at there too, and
        noted when that has come over, or at :meth:`settle`.
        """
        self.record_rates(np.nan, np.nan, 1.0)
        gradients = {name: whole(self.tables[name].grad) for name in self.names if name not in self._input_only}
        if not num_passes:
            self.problem = self.problem or NO_PASS_SEEN
        if self.problem:
            return
        if isinstance(tokens, torch.Tensor):
            if not any(gradient is not None and gradient.is_sparse for gradient in gradients.values()):
                self._look_at(tokens, gradients, gradient_scale)
                return
            self.settle()
            tokens = rows_on_host(tokens.cpu().numpy(), self.names)
        rows_by_table = {}
        for name in list(self._rows):
            gradient = gradients[name]
            distinct, counts = np.unique(tokens[name], return_counts=True)
            is_trained = self.tables[name].requires_grad
            picked = pick(gradient, distinct)
            # More values than those of the rows looked up: something else gave the table a gradient.
            if is_trained and num_nonzero(gradient) != num_nonzero(picked):
                self.leave_out(name, USED_ELSEWHERE if _is_finite(gradient) else NOT_FINITE)
                continue
            norms = norms_of(picked, len(distinct)) / np.float32(gradient_scale)
            rows_by_table[name] = _with_gradient(distinct, counts, norms, is_trained=is_trained)
        self.record_step(np.stack([tokens[name].astype(np.int32) for name in self.names], axis=1), rows_by_table)

    def _look_at(self, rows: torch.Tensor, gradients: Mapping[str, torch.Tensor | None], scale: float) -> None:
        """Note a step on a GPU when it has come over: ``rows`` as :func:`look_at` takes them."""
        values, read = look_at(rows, {name: gradients.get(name) for name in self.names})
        trained = [name for name in self._rows if self.tables[name].requires_grad]

        def note(values: NDArray[np.float32]) -> None:
            tables = read(values)
            rows_by_table = {}
            for name in list(self._rows):
                seen = tables[name]
                if name in trained and seen.elsewhere != 0:
                    self.leave_out(name, USED_ELSEWHERE if np.isfinite(seen.largest) else NOT_FINITE)
                    continue
                norms = np.empty(len(self.tables[name]), np.float32)  # by row, of which those that were seen are read
                norms[seen.rows] = seen.norms / np.float32(scale)  # cheaper than to find each row's first place
                distinct, counts = np.unique(seen.rows, return_counts=True)
                rows_by_table[name] = _with_gradient(distinct, counts, norms[distinct], is_trained=name in trained)
            self.record_step(np.stack([tables[name].rows for name in self.names], axis=1), rows_by_table)

        self._blocks = self._blocks or Blocks(rows.device)
        self._blocks.add(values, note)

    def settle(self) -> None:
        """Note all steps that a GPU has been given."""
        if self._blocks is not None:
            self._blocks.drain()

    def record_rates(self, learning_rate: float, head_learning_rate: float, clipping_factor: float) -> None:
        """Note the learning rates and clipping factor of one step."""
        self.learning_rates.append(learning_rate)
        self.head_learning_rates.append(head_learning_rate)
        self.clipping_factors.append(clipping_factor)

    def leave_out(self, name: str, why: str) -> None:
        """Of this table it is not known which rows were exposed; the first reason stays."""
        if self._rows.pop(name, None) is not None:
            self.left_out[name] = f"{name}: {why}"

    def exposure(self) -> Exposure | None:
        """The exposure of all steps so far; None where it is not known."""
        self.settle()
        if self.problem:
            return None
        tables = {name: rows.exposure() for name, rows in self._rows.items()}
        return Exposure(tables, self._design.design(), self._input_only)

    def state(self) -> dict[str, NDArray[Any]]:
        """All that is recorded so far, as named arrays."""
        logs = {name: np.array(getattr(self, name), np.float64) for name in LOGS}
        sizes = [(size.step, EMBEDDING_PARAMETERS.index(size.parameter), *size[2:]) for size in self.step_sizes]
        others = {"num_examples": np.array(self.num_examples), "step_sizes": np.array(sizes, np.float64)}
        exposure = self.exposure()
        return {**({} if exposure is None else exposure.to_tensors()), **logs, **others}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what :meth:`state` gave; nothing may have been recorded before."""
        recorded = Exposure.from_tensors(state)
        self._design = DesignCounter(self.names, recorded.design)
        self._rows = {name: TableLog(recorded.tables.get(name)) for name in self._rows}
        for name in LOGS:
            getattr(self, name)[:] = state[name].tolist()
        self.num_examples = int(state["num_examples"])
        size_rows = state["step_sizes"].tolist()
        self.step_sizes[:] = [
            StepSize(int(step), EMBEDDING_PARAMETERS[int(parameter)], *values) for step, parameter, *values in size_rows
        ]


def _with_gradient(
    distinct: NDArray[np.integer], counts: NDArray[np.int64], norms: NDArray[np.float32], *, is_trained: bool
) -> TableExposure:
    """The rows of a step, without those whose gradient is exactly 0.

    Of a frozen table all stay: zeros that it may keep from before it was frozen say nothing.
    """
    is_used = (norms != 0) | (not is_trained)  # NaN, of no gradient at all, is not 0
    return TableExposure.of_step(distinct[is_used].astype(np.int32), counts[is_used].astype(np.int32), norms[is_used])


@dataclass(frozen=True, slots=True)
class BatchRows:
    """What one batch uses."""

    num_examples: int
    tokens: NDArray[np.int32]
    """(tokens, tables): the row of each real token."""
    rows: dict[str, tuple[NDArray[np.int32], NDArray[np.int32]]]
    """Table to its distinct rows, ascending, and the number of tokens of each."""


def exposed_rows(split: EncodedSplit, indices: NDArray[np.int64], position_offset: int) -> dict[str, NDArray[np.int64]]:
    """The row of each real token of some examples in each table; three arrays (tokens,)."""
    address, positions = gather_tokens(split, indices)
    return {
        "word_embeddings": split.tokens[address].astype(np.int64),
        "position_embeddings": positions + position_offset,
        "token_type_embeddings": split.segments[address].astype(np.int64),
    }
