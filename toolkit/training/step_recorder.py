"""Exposure and optimizer log of each step: of our own loop, and watched through forward passes in any other."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, EncodedTask, gather_tokens
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.models.regimes import Embeddings
from toolkit.snapshots.logs import DesignCounter, Exposure, StepRows, TableExposure, TableLog
from toolkit.training.live_drift import StepSize


def row_norms(parameter: torch.Tensor, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(rows,) Euclidean norm of some rows of a table's gradient; NaN where it has none."""
    return norms_of_rows(parameter.grad, rows)


def norms_of_rows(
    table: torch.Tensor | None, rows: NDArray[np.int64], first_row: int | None = None
) -> NDArray[np.float32]:
    """(rows,) Euclidean norm of some rows of a tensor, sharded or sparse too; NaN where there is none.

    ``first_row``: the tensor holds the gradients of the rows from this one on, and the optimizer sees 0 of all others.
    """
    if first_row is None or table is None:
        return norms_of(pick(whole(table), rows), len(rows))
    norms, is_there = np.zeros(len(rows), np.float32), (rows >= first_row) & (rows < first_row + len(table))
    norms[is_there] = norms_of(pick(whole(table), rows[is_there] - first_row), int(is_there.sum()))
    return norms


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


Norms = Callable[[str, NDArray[np.int64]], NDArray[np.float32]]
"""Table and rows to the Euclidean norms of these rows' gradients."""
BATCHES_AHEAD, TOKENS_AHEAD = 64, 50_000
"""Batches whose rows are found together, and tokens: many calls for few tokens each take longer than one for them all,
but sorting far more takes longer again."""


LOGS = ("learning_rates", "head_learning_rates", "clipping_factors")


class Recorder:
    """Keeps, for every optimizer step, which rows it used, their gradients' norms, learning rates and clipping."""

    def __init__(
        self,
        data: EncodedTask,
        tables: dict[str, torch.Tensor],
        first_rows: Mapping[str, int] | None = None,
        shared: Collection[str] = (),
    ) -> None:
        """``tables``: the model's embedding tables by canonical name, live: their ``.grad`` is read at each step.

        ``first_rows``: of a table of which only some rows are trained, and given, the first of these. ``shared``:
        tables that are the output layer too, of which any row may get a gradient: what the input used is kept of them,
        and nothing by step.
        """
        self.data = data
        self.first_rows = dict(first_rows or {})
        self.tables = tables
        self._names = tuple(name for name in TABLES if name in tables)
        self._input_only = tuple(name for name in self._names if name in shared)
        self._design = DesignCounter(self._names)
        self._coming: Iterator[NDArray[np.int64]] = iter(())
        self._blocks: list[_Block] = []
        self._before: Exposure | None = None
        """That of the steps before a run was taken up again."""
        self.num_examples = 0
        """Examples of all steps so far."""
        self.learning_rates: list[float] = []
        self.head_learning_rates: list[float] = []
        self.clipping_factors: list[float] = []
        self.step_sizes: list[StepSize] = []
        """Of embedding parameters, at the steps whose number is a power of two."""

    def expect(self, batches: Iterable[NDArray[np.int64]]) -> None:
        """Say which global batches the next steps take, in order, so that their rows can be found many at a time."""
        self._coming = iter(batches)
        if self._blocks:
            self._blocks[-1].end()

    def record_step(self, indices: NDArray[np.int64], norms: Norms | None = None) -> None:
        """Note the rows of one global batch; call it after the backward pass and before clipping.

        ``norms(name, rows)``: norms of rows' gradients, where the tables' own ``.grad`` does not hold them. ValueError
        for another batch than the one that is expected; where none is, any batch is taken.

        Every process holds the whole epoch's order, so the main process sees the global batch without communication,
        and gradients are already averaged over processes.
        """
        if not (self._blocks and self._blocks[-1].batches):
            self._count_design()
            batches = self._look_ahead() or [indices]
            self._blocks.append(_Block(self.data, batches, self._names, self._input_only))
        self._blocks[-1].record(indices, norms or (lambda name, rows: self.norms(name, self.tables[name].grad, rows)))
        self.num_examples += len(indices)

    def norms(self, name: str, gradient: torch.Tensor | None, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(rows,) norms of rows of a table, from the gradient of what is trained of it: :func:`norms_of_rows`."""
        return norms_of_rows(gradient, rows, self.first_rows.get(name))

    def record_rates(self, learning_rate: float, head_learning_rate: float, clipping_factor: float) -> None:
        """Note the learning rates and clipping factor of one step."""
        self.learning_rates.append(learning_rate)
        self.head_learning_rates.append(head_learning_rate)
        self.clipping_factors.append(clipping_factor)

    def exposure(self) -> Exposure:
        """The exposure of all steps so far."""
        self._count_design()
        before = {} if self._before is None else self._before.tables
        parts = {
            n: [*([before[n]] if n in before else []), *(b.exposure(n) for b in self._blocks)]
            for n in self._names
            if n not in self._input_only
        }
        tables = {name: TableExposure.join(own) for name, own in parts.items()}
        return Exposure(tables, self._design.design(), self._input_only)

    def state(self) -> dict[str, NDArray[Any]]:
        """All that is recorded so far, as named arrays."""
        logs = {name: np.array(getattr(self, name), np.float64) for name in LOGS}
        sizes = [(size.step, EMBEDDING_PARAMETERS.index(size.parameter), *size[2:]) for size in self.step_sizes]
        own = {"num_examples": np.array(self.num_examples), "step_sizes": np.array(sizes, np.float64)}
        return {**self.exposure().to_tensors(), **logs, **own}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what :meth:`state` gave, in place of nothing."""
        self._before = Exposure.from_tensors(state)
        self._design = DesignCounter(self._names, self._before.design)
        for name in LOGS:
            getattr(self, name)[:] = state[name].tolist()
        self.num_examples = int(state["num_examples"])
        lines = state["step_sizes"].tolist()
        self.step_sizes[:] = [StepSize(int(step), EMBEDDING_PARAMETERS[int(k)], *own) for step, k, *own in lines]

    def _look_ahead(self) -> list[NDArray[np.int64]]:
        """The next expected batches, as many as are found together."""
        ahead: list[NDArray[np.int64]] = []
        split, num_tokens = self.data.splits["train"], 0
        while len(ahead) < BATCHES_AHEAD and num_tokens < TOKENS_AHEAD:
            batch = next(self._coming, None)
            if batch is None:
                break
            ahead.append(batch)
            num_tokens += split.num_tokens(batch)
        return ahead

    def _count_design(self) -> None:
        if self._blocks:
            self._design.add(self._blocks[-1].new_rows())


class _Block:
    """Some batches and what each of them uses, found at once and kept in few large arrays (see exposure's JOINED)."""

    def __init__(
        self, data: EncodedTask, batches: list[NDArray[np.int64]], names: Collection[str], input_only: Collection[str]
    ) -> None:
        split = data.splits["train"]
        rows = exposed_rows(split, np.concatenate(batches), data.position_offset)
        self.batches = batches[::-1]
        """Those that no step has taken yet, the next one last."""
        self._num_taken = self._num_counted = 0
        sizes = [split.num_tokens(batch) for batch in batches]
        self._ends = np.cumsum([0, *sizes])
        number = np.repeat(np.arange(len(batches)), sizes)
        self._rows = {name: rows[name].astype(np.int32) for name in names}
        by_step = [name for name in names if name not in input_only]
        self._tables = {name: _exposure_of(rows[name], number, len(batches)) for name in by_step}

    def record(self, indices: NDArray[np.int64], norms: Norms) -> None:
        """Note the norms of the next batch's rows."""
        if self.batches[-1] is not indices and not np.array_equal(self.batches[-1], indices):
            raise ValueError("a step recorded another batch than was expected")
        for name, table in self._tables.items():
            part = slice(*table.offsets[self._num_taken : self._num_taken + 2])
            table.norms[part] = norms(name, table.rows[part].astype(np.int64))
        self.batches.pop()
        self._num_taken += 1

    def end(self) -> None:
        """No step will take what is left."""
        self.batches.clear()

    def new_rows(self) -> dict[str, NDArray[np.int32]]:
        """Per table (tokens,) the rows of the tokens of all steps since the last call."""
        part = slice(self._ends[self._num_counted], self._ends[self._num_taken])
        self._num_counted = self._num_taken
        found = {name: rows[part] for name, rows in self._rows.items()}
        if not self.batches:
            self._rows = dict.fromkeys(self._rows, np.empty(0, np.int32))  # nobody asks for them again
        return found

    def exposure(self, name: str) -> TableExposure:
        """That of the steps so far to one table."""
        return self._tables[name].first(self._num_taken)


def _exposure_of(rows: NDArray[np.int64], step: NDArray[np.int64], num_steps: int) -> TableExposure:
    """Of one table: ``rows``, ``step``, both (tokens,): the row and the step of each token. Norms are NaN."""
    num_rows = int(rows.max(initial=0)) + 1
    keys, counts = np.unique(step * num_rows + rows, return_counts=True)  # by step, then by row
    offsets = np.searchsorted(keys, np.arange(num_steps + 1) * num_rows)
    norms = np.full(len(keys), np.nan, np.float32)
    return TableExposure(offsets, (keys % num_rows).astype(np.int32), counts.astype(np.int32), norms)


def exposed_rows(split: EncodedSplit, indices: NDArray[np.int64], position_offset: int) -> dict[str, NDArray[np.int64]]:
    """The row of each real token of some examples in each table; three arrays (tokens,)."""
    address, place = gather_tokens(split, indices)
    return {
        "word_embeddings": split.tokens[address].astype(np.int64),
        "position_embeddings": place + position_offset,
        "token_type_embeddings": split.segments[address].astype(np.int64),
    }


RowsByTable = dict[str, NDArray[np.int64]]
Key = tuple[int, tuple[int, ...]]
"""Where a tensor of ids lies and its shape: one and the same within a step."""

USED_ELSEWHERE = (
    "rows that no recorded forward pass used got gradients (another use of the table, a penalty on it, padding that "
    "the loss counts, or gradients left from an earlier step): its exposure is not known"
)

IS_OUTPUT_TOO = (
    "also serves elsewhere in the model (as its output layer, say), where any row may get a gradient: what the input "
    "used is known, not which rows each step moved"
)

BY_VECTORS = "a forward pass was given inputs_embeds, not input_ids: its rows are not known"

Hook = TypeVar("Hook", bound=Callable[..., Any])


def uncompiled(hook: Hook) -> Hook:
    """A function that torch.compile leaves its graph for: what it sees is then what the training step used."""
    left_alone: Hook = torch.compiler.disable(  # type: ignore[no-untyped-call]
        hook, reason="toolkit.record looks at each step: compile without fullgraph=True"
    )
    return left_alone


class ExposureWatch:
    """Counts the rows that training forward passes use, and closes the count at each optimizer step.

    A pass counts when the module is in training mode and a gradient reaches its output, once. So a pass that gradient
    checkpointing repeats counts once: of the two, the gradient goes through one. Where everything below the output is
    frozen, no gradient will come; every such pass counts, but one tensor of ids only once in a step.

    Padding is what the attention mask hides; where the backbone was given none (or not one of a number per token), what
    the word table's padding_idx says, and a table without one has none. ``shared`` names tables that also serve
    elsewhere in the model (the word table as the output layer of a language model): which of their rows got a gradient
    is more than a forward pass shows. Of them, the rows that the input used are kept, and nothing by step; nothing at
    all is kept of a table of which a row gets a gradient that no counted pass used.
    """

    def __init__(self, embeddings: Embeddings, shared: Collection[str] = ()) -> None:
        self._embeddings = embeddings
        self._signatures = {m: inspect.signature(m.forward) for m in embeddings.lookups}
        self._signature_above = inspect.signature(embeddings.backbone.forward)
        self._names = tuple(name for name in TABLES if name in embeddings.parameters)
        self._steps = {name: TableLog() for name in self._names if name not in shared}
        self._input_only = tuple(name for name in self._names if name in shared)
        self._design = DesignCounter(self._names)
        self._pending: list[RowsByTable] = []
        # The tensors themselves are kept until the step ends, so that their addresses are not given out again.
        self._frozen: dict[Key, torch.Tensor] = {}
        self._masks: dict[Key, torch.Tensor] = {}
        self._positions: dict[Key, torch.Tensor] = {}
        self.problem: str | None = None
        """Why exposure cannot be recorded; None while it can."""
        self.left_out: dict[str, str] = {}
        """Tables whose exposure cannot, and why."""
        self._is_closed = False
        # Code that was compiled before does not look for hooks that came later: it would pass by these.
        torch.compiler.reset()
        self._handles = (
            embeddings.backbone.register_forward_pre_hook(self._on_backbone, with_kwargs=True),
            *(m.register_forward_hook(self._on_forward, with_kwargs=True) for m in embeddings.lookups),
        )

    def close(self) -> None:
        """Take the hooks off the model; compiled code goes on calling them."""
        self._is_closed = True
        for handle in self._handles:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model (an average of its weights, say) carries a copy of this, which must not collect rows."""
        return {"problem": "a copy of the model is not watched"}

    @uncompiled
    def _on_backbone(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the mask until the embedding module, which is not given it, runs, and positions that a table is not."""
        if not module.training or self.problem or self._is_closed:
            return
        given = self._signature_above.bind_partial(*args, **kwargs).arguments
        if given.get("inputs_embeds") is not None and torch.is_grad_enabled():
            self.problem = BY_VECTORS
        for side in ("", "decoder_"):
            ids, mask = given.get(f"{side}input_ids"), given.get(f"{side}attention_mask")
            if ids is None:
                continue
            positions = given.get("position_ids")
            for kept, tensor in ((self._masks, mask), (self._positions, positions)):
                kept.pop(_key(ids), None)  # of a tensor that may have lain there before
                if isinstance(tensor, torch.Tensor) and (kept is self._positions or tensor.shape == ids.shape):
                    kept[_key(ids)] = tensor

    @uncompiled
    def _on_forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
    ) -> None:
        if not module.training or not torch.is_grad_enabled() or self.problem or self._is_closed:
            return
        signature = self._signatures[module]
        given = signature.bind_partial(*args, **kwargs).arguments
        # A table that is a module of its own is given nothing else.
        ids = given.get("input_ids") if "input_ids" in signature.parameters else next(iter((*args, *kwargs.values())))
        if ids is None:
            self.problem = BY_VECTORS
            return
        if not output.requires_grad:
            if _key(ids) not in self._frozen:
                self._frozen[_key(ids)] = ids
                self._pending.append(self._rows(ids, given))
            return
        waiting = [self._rows(ids, given)]

        def on_gradient(_: torch.Tensor) -> None:
            self._pending.extend(waiting)
            waiting.clear()  # a graph that is kept may be gone through again: it is still one pass

        output.register_hook(on_gradient)  # type: ignore[no-untyped-call]

    def _rows(self, ids: torch.Tensor, given: dict[str, Any]) -> RowsByTable:
        """The rows of each real token, as the module itself derives them; every array (tokens,)."""
        padding = self._embeddings.padding_row
        is_counted = torch.ones_like(ids, dtype=torch.bool) if padding is None else ids != padding
        mask = self._masks.get(_key(ids))
        is_real = is_counted if mask is None else mask.to(ids.device) != 0
        positions, segments = given.get("position_ids", self._positions.get(_key(ids))), given.get("token_type_ids")
        if positions is None and self._embeddings.family.position_start == "after_padding":
            positions = torch.cumsum(is_counted, dim=1) * is_counted + (padding or 0)
        elif positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        if segments is None:
            segments = torch.zeros_like(ids)
        tables = dict(zip(TABLES, (ids, positions, segments), strict=True))
        return {name: tables[name].expand_as(ids)[is_real].cpu().numpy().astype(np.int64) for name in self._names}

    def drop_step(self) -> None:
        """Forget the passes since the last step: their gradients were thrown away."""
        self._pending, self._frozen, self._masks, self._positions = [], {}, {}, {}

    def end_step(self, gather: Callable[[RowsByTable], list[RowsByTable]], gradient_scale: float = 1.0) -> None:
        """Close one optimizer step, before its update: gradients are as the optimizer gets them.

        ``gather`` collects the rows of all processes, which all call it; ``gradient_scale`` is what the optimizer will
        divide the gradients by. A row whose gradient is exactly 0 is left out. So are those of passes whose gradients
        were thrown away before the step (``zero_grad``, or a GradScaler that skips a step without telling the
        optimizer), save where this step used them too: then their tokens count with its own.
        """
        own = {name: np.concatenate([np.empty(0, np.int64), *(r[name] for r in self._pending)]) for name in self._names}
        self._pending, self._frozen, self._masks, self._positions = [], {}, {}, {}
        parts = gather(own)
        # Of every table, whatever is known of it here: under FSDP2 all processes take part in gathering it.
        gradients = {name: whole(self._embeddings.parameters[name].grad) for name in self._steps}
        if not any(len(rows) for part in parts for rows in part.values()) and any(map(num_nonzero, gradients.values())):
            self.problem = self.problem or (
                "gradients reached the embedding parameters, but no forward pass in training mode was seen: call "
                "model.train() before the loop"
            )
        rows = {name: np.concatenate([part[name] for part in parts]) for name in self._names}
        self._design.add(rows)
        for name, gradient in gradients.items():
            if name in self.left_out:
                continue
            distinct, counts = np.unique(rows[name], return_counts=True)
            is_trained = self._embeddings.parameters[name].requires_grad
            picked = pick(gradient, distinct)
            if is_trained and self.problem is None and num_nonzero(gradient) != num_nonzero(picked):
                self.left_out[name] = f"{name}: {USED_ELSEWHERE}"
            norms = norms_of(picked, len(distinct)) / np.float32(gradient_scale)
            # The zeros that a frozen table may keep from before it was frozen say nothing.
            is_used = (norms != 0) | (not is_trained)  # NaN, of no gradient at all, is not 0
            used = StepRows(distinct[is_used].astype(np.int32), counts[is_used].astype(np.int32), norms[is_used])
            self._steps[name].add(used)

    def exposure(self) -> Exposure | None:
        """What the steps so far used; None when that is not known."""
        if self.problem:
            return None
        tables = {name: steps.exposure() for name, steps in self._steps.items() if name not in self.left_out}
        return Exposure(tables, self._design.design(), self._input_only)


def _key(ids: torch.Tensor) -> Key:
    return ids.data_ptr(), tuple(ids.shape)
