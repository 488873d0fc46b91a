"""The rows that each optimizer step used, watched through forward passes: exposure in any training loop."""

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.families import TABLES
from toolkit.models.locate import Embeddings
from toolkit.snapshots.exposure import DesignCounter, Exposure, StepRows, TableLog
from toolkit.training.step_recorder import norms_of, num_nonzero, pick, whole

RowsByTable = dict[str, NDArray[np.int64]]
Key = tuple[int, tuple[int, ...]]
"""Where a tensor of ids lies and its shape: one and the same within a step."""

USED_ELSEWHERE = (
    "rows that no recorded forward pass used got gradients (another use of the table, a penalty on it, padding that "
    "the loss counts, or gradients left from an earlier step): its exposure is not known"
)

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
    is more than a forward pass shows, and their exposure is left out. So is that of a table of which a row gets a
    gradient that no counted pass used.
    """

    def __init__(self, embeddings: Embeddings, shared: Collection[str] = ()) -> None:
        self._embeddings = embeddings
        self._signature = inspect.signature(embeddings.module.forward)
        self._signature_above = inspect.signature(embeddings.backbone.forward)
        self._names = tuple(name for name in TABLES if name in embeddings.parameters)
        self._steps = {name: TableLog() for name in self._names if name not in shared}
        self._design = DesignCounter(self._names)
        self._pending: list[RowsByTable] = []
        # The tensors themselves are kept until the step ends, so that their addresses are not given out again.
        self._frozen: dict[Key, torch.Tensor] = {}
        self._masks: dict[Key, torch.Tensor] = {}
        self.problem: str | None = None
        """Why exposure cannot be recorded; None while it can."""
        self.left_out: dict[str, str] = {}
        """Tables whose exposure cannot, and why."""
        self._is_closed = False
        # Code that was compiled before does not look for hooks that came later: it would pass by these.
        torch.compiler.reset()
        self._handles = (
            embeddings.backbone.register_forward_pre_hook(self._on_backbone, with_kwargs=True),
            embeddings.module.register_forward_hook(self._on_forward, with_kwargs=True),
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
        """Keep the mask until the embedding module, which is not given it, runs."""
        if not module.training or self.problem or self._is_closed:
            return
        given = self._signature_above.bind_partial(*args, **kwargs).arguments
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        if ids is not None:
            self._masks.pop(_key(ids), None)  # of a tensor that may have lain there before
            if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
                self._masks[_key(ids)] = mask

    @uncompiled
    def _on_forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
    ) -> None:
        if not module.training or not torch.is_grad_enabled() or self.problem or self._is_closed:
            return
        given = self._signature.bind_partial(*args, **kwargs).arguments
        ids = given.get("input_ids")
        if ids is None:
            self.problem = "a forward pass was given inputs_embeds, not input_ids: its rows are not known"
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
        positions, segments = given.get("position_ids"), given.get("token_type_ids")
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
        self._pending, self._frozen, self._masks = [], {}, {}

    def end_step(self, gather: Callable[[RowsByTable], list[RowsByTable]], gradient_scale: float = 1.0) -> None:
        """Close one optimizer step, before its update: gradients are as the optimizer gets them.

        ``gather`` collects the rows of all processes, which all call it; ``gradient_scale`` is what the optimizer will
        divide the gradients by. A row whose gradient is exactly 0 is left out. So are those of passes whose gradients
        were thrown away before the step (``zero_grad``, or a GradScaler that skips a step without telling the
        optimizer), save where this step used them too: then their tokens count with its own.
        """
        own = {name: np.concatenate([np.empty(0, np.int64), *(r[name] for r in self._pending)]) for name in self._names}
        self._pending, self._frozen, self._masks = [], {}, {}
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
        return Exposure(tables, self._design.design())


def _key(ids: torch.Tensor) -> Key:
    return ids.data_ptr(), tuple(ids.shape)
