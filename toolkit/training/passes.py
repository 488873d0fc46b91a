"""The forward passes that a training step learns from, told from all others by the gradient that comes back."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from toolkit.families import TABLES
from toolkit.models.regimes import Embeddings
from toolkit.training.device_steps import RowsByTable, is_read_later

ROWS_NOT_KNOWN = "which rows the steps used is not known"
IN_REPLICAS = f"the model runs in replicas (nn.DataParallel), which are not watched: {ROWS_NOT_KNOWN}"
BY_VECTORS = "a forward pass was given inputs_embeds, not input_ids: its rows are not known"

Rows = RowsByTable | torch.Tensor
"""Of one pass: table to (tokens,), the row of each real token; on a GPU one tensor there, (tables, tokens) int32, of
all tokens, with -1 for those that are not real."""
Hook = TypeVar("Hook", bound=Callable[..., Any])


def uncompiled(hook: Hook) -> Hook:
    """A function that torch.compile leaves its graph for: what it sees is then what the training step used."""
    left_alone: Hook = torch.compiler.disable(  # type: ignore[no-untyped-call]
        hook, reason="toolkit.record looks at each step: compile without fullgraph=True"
    )
    return left_alone


def innermost(model: nn.Module) -> nn.Module:
    """The model that DDP or torch.compile wraps: it is called whichever of them a loop calls."""
    is_wrapper = isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel)
    inner = model.module if is_wrapper else getattr(model, "_orig_mod", None)
    return innermost(inner) if isinstance(inner, nn.Module) else model


def watching(hook: Hook) -> Hook:
    """A hook that never ends anybody's training: what cannot be watched is not known, and why is the watch's problem.

    torch.func, torch.export and the like run a model on tensors that have no values to look at.
    """

    @wraps(hook)
    def guarded(watch: "PassWatch", *args: Any) -> None:
        if not watch.problem and not watch.is_closed:
            try:
                hook(watch, *args)
            except Exception as error:
                watch.problem = f"a forward pass could not be watched ({type(error).__name__}): {ROWS_NOT_KNOWN}"

    return uncompiled(guarded)  # type: ignore[return-value]


class PassWatch:
    """Collects the rows that forward passes look up, of those passes that the next optimizer step learns from.

    A look-up counts when a gradient reaches its output, once: so a pass that gradient checkpointing repeats counts
    once, and evaluation does not. Where none can reach it, as all tables are frozen, a gradient that reaches what the
    outermost call around it returned tells as much, whichever mode the modules are in. Of a module that is wholly
    frozen and called by itself a look-up counts in training mode. Passes are forgotten whose gradients were thrown away
    before a step: set to None or, where that is seen without waiting for a GPU or other processes, to 0.

    Padding is what the attention mask hides; where the backbone was given none (or not one of a number per token), what
    the word table's padding_idx says, and a table without one has none.
    """

    def __init__(self, model: nn.Module, embeddings: Embeddings) -> None:
        self._root, self._embeddings = innermost(model), embeddings
        self._signatures = {module: inspect.signature(module.forward) for module in embeddings.lookups}
        self._signature_above = inspect.signature(embeddings.backbone.forward)
        self._names = tuple(name for name in TABLES if name in embeddings.parameters)
        self._tables = [embeddings.parameters[name] for name in self._names]
        self._depth = 0
        """Calls of modules around the look-ups that are going on, one within another."""
        self._call: list[tuple[Rows, bool]] = []
        """Of the outermost call that is going on: the look-ups of frozen tables, and whether gradients were enabled."""
        self._passes: list[Rows] = []
        self._given: dict[tuple[int, ...], tuple[torch.Tensor, Any, Any]] = {}
        """By their place in memory (a look-up may be given a view) the ids of the last call of the backbone, with their
        mask and positions."""
        has_replicas = isinstance(model, nn.DataParallel) and len(model.device_ids) > 1
        self.problem = IN_REPLICAS if has_replicas else None
        """Why the rows cannot be known; None while they can."""
        self.is_closed = False
        # Code that was compiled before does not look for hooks that came later: it would pass by these.
        torch.compiler.reset()
        outer_modules = [
            module
            for module in self._root.modules()
            if _contains(module, embeddings.backbone) and module not in self._signatures
        ]
        self._handles = (
            *(module.register_forward_pre_hook(self._on_call) for module in outer_modules),
            *(module.register_forward_hook(self._on_return, always_call=True) for module in outer_modules),
            embeddings.backbone.register_forward_pre_hook(self._on_backbone, with_kwargs=True),
            *(module.register_forward_hook(self._on_look_up, with_kwargs=True) for module in embeddings.lookups),
        )

    def close(self) -> None:
        """Take the hooks off the model; compiled code goes on calling them."""
        self.is_closed = True
        for handle in self._handles:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model (an average of its weights, say) carries a copy of this, which must not collect rows."""
        return {"problem": "a copy of the model is not watched"}

    @watching
    def _on_call(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._depth:
            self._call = []
        self._depth += 1

    @watching
    def _on_return(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Have the look-ups of a call wait for a gradient of what it returned; what raised teaches nothing."""
        self._depth = max(self._depth - 1, 0)
        if self._depth or output is None:
            return
        # Of several passes in one call those under no_grad are targets, which nothing is learned from.
        has_enabled = any(is_enabled for _, is_enabled in self._call)
        waiting = [rows for rows, is_enabled in self._call if is_enabled or not has_enabled]
        self._call = []
        if not waiting:
            return

        def on_gradient(_: torch.Tensor) -> None:
            self._passes.extend(waiting)
            waiting.clear()

        returned = [tensor for tensor in _tensors_of(output) if tensor.grad_fn is not None]
        for tensor in returned:
            tensor.register_hook(on_gradient)  # type: ignore[no-untyped-call]
        if not returned and not any(p.requires_grad for p in module.parameters()):  # what learns from it is elsewhere
            self._passes.extend(waiting if module.training or self._root.training else [])

    @watching
    def _on_backbone(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the ids of a call with its mask and positions, which the modules that look rows up are not given."""
        arguments = self._signature_above.bind_partial(*args, **kwargs).arguments
        if arguments.get("inputs_embeds") is not None and module.training and torch.is_grad_enabled():
            self.problem = BY_VECTORS
        self._given.clear()
        for prefix in ("", "decoder_"):
            ids, mask = arguments.get(f"{prefix}input_ids"), arguments.get(f"{prefix}attention_mask")
            if ids is not None:
                is_mask = isinstance(mask, torch.Tensor) and mask.shape == ids.shape
                self._given[_memory_key(ids)] = ids, mask if is_mask else None, arguments.get("position_ids")

    @watching
    def _on_look_up(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
    ) -> None:
        """Have rows looked up wait for a gradient of the output; of frozen tables, for one of the outermost call's."""
        if module not in self._signatures:
            self.problem = IN_REPLICAS
            return
        signature = self._signatures[module]
        arguments = signature.bind_partial(*args, **kwargs).arguments
        # A table that is a module of its own is given nothing else.
        ids = (
            arguments.get("input_ids") if "input_ids" in signature.parameters else next(iter((*args, *kwargs.values())))
        )
        if ids is None:
            if module.training and torch.is_grad_enabled():
                self.problem = BY_VECTORS
            return
        if self._passes and not any(_is_left(p.grad) for p in self._root.parameters() if p.requires_grad):
            self._passes = []  # what they gave was thrown away, and no step has learned from it
        rows = self._rows(ids, arguments)
        if output.requires_grad:
            waiting = [rows]

            def on_gradient(_: torch.Tensor) -> None:
                self._passes.extend(waiting)
                waiting.clear()  # a graph that is kept may be gone through again: it is still one pass

            output.register_hook(on_gradient)  # type: ignore[no-untyped-call]
        elif self._depth and not any(p.requires_grad for p in self._tables):
            self._call.append((rows, torch.is_grad_enabled()))

    def _rows(self, ids: torch.Tensor, arguments: Mapping[str, Any]) -> Rows:
        """The rows of each real token, as the module itself derives them."""
        _, mask, positions = self._given.get(_memory_key(ids), (ids, None, None))
        positions, segments = arguments.get("position_ids", positions), arguments.get("token_type_ids")
        padding = self._embeddings.padding_row
        num_past = int(arguments.get("past_key_values_length") or 0)  # tokens that a cache holds before these
        is_counted = torch.ones_like(ids, dtype=torch.bool) if padding is None else ids != padding
        is_real = is_counted if mask is None else mask.to(ids.device) != 0
        if positions is None and self._embeddings.family.position_start == "after_padding":
            positions = (torch.cumsum(is_counted, dim=1) + num_past) * is_counted + (padding or 0)
        elif positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None] + num_past
        if segments is None:
            segments = torch.zeros_like(ids)
        tables = dict(zip(TABLES, (ids, positions, segments), strict=True))
        if is_read_later(ids):
            rows = torch.stack([tables[name].expand_as(ids) for name in self._names])
            return rows.int().masked_fill_(~is_real, -1).flatten(1)
        return {name: tables[name].expand_as(ids)[is_real].cpu().numpy().astype(np.int64) for name in self._names}

    @property
    def has_passes(self) -> bool:
        """Whether a step would have learned from any since the last one."""
        return bool(self._passes)

    def take(self) -> list[Rows]:
        """The passes since the last call that a step learns from, one after another."""
        passes = self._passes
        self.drop()
        return passes

    def drop(self) -> None:
        """Forget the passes since the last step: their gradients were thrown away."""
        self._passes, self._call, self._depth = [], [], 0


def _is_left(gradient: torch.Tensor | None) -> bool:
    """Whether anything may be left of what passes gave: nobody waits for the answer of a GPU or of other processes."""
    is_asked = type(gradient) is torch.Tensor and gradient.layout is torch.strided and not is_read_later(gradient)
    return gradient is not None and (not is_asked or bool(gradient.any()))


def _contains(module: nn.Module, inner: nn.Module) -> bool:
    return any(part is inner for part in module.modules())


def _tensors_of(output: Any) -> Iterator[torch.Tensor]:
    """The tensors in whatever a model returns."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from (tensor for item in output.values() for tensor in _tensors_of(item))
    elif isinstance(output, tuple | list):
        yield from (tensor for item in output for tensor in _tensors_of(item))
    elif is_dataclass(output):
        yield from _tensors_of([getattr(output, field.name) for field in fields(output)])


def _memory_key(ids: torch.Tensor) -> tuple[int, ...]:
    """What tells token ids from others: where they lie, and their shape."""
    return ids.data_ptr(), *ids.shape
