"""The forward passes that a training step learns from, told from all others by the gradient that comes back."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from toolkit.families import TABLES
from toolkit.models.regimes import Embeddings
from toolkit.training.recorder import RowsByTable

Key = tuple[int, tuple[int, ...]]
"""Where a tensor of ids lies and its shape: one and the same within a step."""

BY_VECTORS = "a forward pass was given inputs_embeds, not input_ids: its rows are not known"

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


@dataclass(frozen=True, slots=True)
class LookUp:
    """One look-up of tokens, by the tensors that it was given: they are kept, so that no address is given out again."""

    ids: torch.Tensor
    mask: torch.Tensor | None
    positions: torch.Tensor | None
    segments: torch.Tensor | None

    @property
    def key(self) -> Key:
        return _key(self.ids)


class PassWatch:
    """Collects the rows that forward passes look up, of those passes that the next optimizer step learns from.

    A look-up counts when a gradient reaches its output, once: so a pass that gradient checkpointing repeats counts
    once, and evaluation never does. Where no gradient can reach it (the tables and all below them are frozen, or the
    pass ran under no_grad), a gradient that reaches what the outermost module around the backbone returned tells as
    much, whichever mode the modules are in. Of a backbone that a loop calls by itself a look-up counts in training
    mode. Of look-ups without a gradient, one tensor of ids counts once in a step.

    Padding is what the attention mask hides; where the backbone was given none (or not one of a number per token), what
    the word table's padding_idx says, and a table without one has none.
    """

    def __init__(self, model: nn.Module, embeddings: Embeddings) -> None:
        self._root, self._embeddings = innermost(model), embeddings
        self._signatures = {m: inspect.signature(m.forward) for m in embeddings.lookups}
        self._signature_above = inspect.signature(embeddings.backbone.forward)
        self._names = tuple(name for name in TABLES if name in embeddings.parameters)
        self._call: list[LookUp] = []
        """Look-ups without a gradient of the call that is going on, of a module around the backbone."""
        self._depth = 0
        """Calls of such modules that are going on, one within another."""
        self._learned: list[tuple[Key, RowsByTable]] = []
        self._unlearned: dict[Key, LookUp] = {}
        self._masks: dict[Key, torch.Tensor] = {}
        self._positions: dict[Key, torch.Tensor] = {}
        self.problem: str | None = None
        """Why the rows cannot be known; None while they can."""
        self._is_closed = False
        # Code that was compiled before does not look for hooks that came later: it would pass by these.
        torch.compiler.reset()
        self._handles = (
            *(m.register_forward_pre_hook(self._on_call) for m in self._around()),
            *(m.register_forward_hook(self._on_return, always_call=True) for m in self._around()),
            embeddings.backbone.register_forward_pre_hook(self._on_backbone, with_kwargs=True),
            *(m.register_forward_hook(self._on_look_up, with_kwargs=True) for m in embeddings.lookups),
        )

    def _around(self) -> list[nn.Module]:
        """The modules around the backbone, or the backbone where there is none."""
        root, backbone = self._root, self._embeddings.backbone
        return [root] if root is backbone else [m for m in root.modules() if m is not backbone and _has(m, backbone)]

    def close(self) -> None:
        """Take the hooks off the model; compiled code goes on calling them."""
        self._is_closed = True
        for handle in self._handles:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model (an average of its weights, say) carries a copy of this, which must not collect rows."""
        return {"problem": "a copy of the model is not watched"}

    @uncompiled
    def _on_call(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self.problem and not self._is_closed:
            self._call = self._call if self._depth else []
            self._depth += 1

    @uncompiled
    def _on_return(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Have the look-ups of a call wait for a gradient of what it returned; without one in sight they are let go."""
        if self.problem or self._is_closed:
            return
        self._depth -= 1
        waiting = [] if self._depth else self._call
        if not waiting:
            return

        def on_gradient(_: torch.Tensor) -> None:
            self._add(*waiting)
            waiting.clear()

        returned = [tensor for tensor in _tensors_of(output) if tensor.grad_fn is not None]
        for tensor in returned:
            tensor.register_hook(on_gradient)  # type: ignore[no-untyped-call]
        if not returned and torch.is_grad_enabled() and module.training:  # its head is elsewhere, in the loss, say
            self._add(*waiting)
        elif not returned:
            self._forget(*waiting)

    @uncompiled
    def _on_backbone(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the mask until the embedding module, which is not given it, runs, and positions that a table is not."""
        if self.problem or self._is_closed:
            return
        given = self._signature_above.bind_partial(*args, **kwargs).arguments
        if given.get("inputs_embeds") is not None and module.training and torch.is_grad_enabled():
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
    def _on_look_up(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
    ) -> None:
        if self.problem or self._is_closed:
            return
        signature = self._signatures[module]
        given = signature.bind_partial(*args, **kwargs).arguments
        # A table that is a module of its own is given nothing else.
        ids = given.get("input_ids") if "input_ids" in signature.parameters else next(iter((*args, *kwargs.values())))
        if ids is None:
            if module.training and torch.is_grad_enabled():
                self.problem = BY_VECTORS
            return
        positions = given.get("position_ids", self._positions.get(_key(ids)))
        used = LookUp(ids, self._masks.get(_key(ids)), positions, given.get("token_type_ids"))
        if output.requires_grad:
            waiting = [(used.key, self._rows(used))]

            def on_gradient(_: torch.Tensor) -> None:
                self._learned.extend(waiting)
                waiting.clear()  # a graph that is kept may be gone through again: it is still one pass

            output.register_hook(on_gradient)  # type: ignore[no-untyped-call]
        elif self._depth:
            self._call.append(used)
        elif module.training or self._root.training:
            self._add(used)
        else:
            self._forget(used)

    def _forget(self, *used: LookUp) -> None:
        """Let go what evaluation, which may be long, was given."""
        for each in used:
            self._masks.pop(each.key, None)
            self._positions.pop(each.key, None)

    def _add(self, *used: LookUp) -> None:
        for each in used:
            self._unlearned.setdefault(each.key, each)

    def _rows(self, used: LookUp) -> RowsByTable:
        """The rows of each real token, as the module itself derives them; every array (tokens,)."""
        ids, positions, segments = used.ids, used.positions, used.segments
        padding = self._embeddings.padding_row
        is_counted = torch.ones_like(ids, dtype=torch.bool) if padding is None else ids != padding
        is_real = is_counted if used.mask is None else used.mask.to(ids.device) != 0
        if positions is None and self._embeddings.family.position_start == "after_padding":
            positions = torch.cumsum(is_counted, dim=1) * is_counted + (padding or 0)
        elif positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        if segments is None:
            segments = torch.zeros_like(ids)
        tables = dict(zip(TABLES, (ids, positions, segments), strict=True))
        return {name: tables[name].expand_as(ids)[is_real].cpu().numpy().astype(np.int64) for name in self._names}

    def take(self) -> list[RowsByTable]:
        """The passes since the last call that a step learns from, one after another."""
        repeated = {key for key, _ in self._learned}  # re-entrant checkpointing runs a pass without and with gradients
        found = [rows for _, rows in self._learned]
        found += [self._rows(used) for key, used in self._unlearned.items() if key not in repeated]
        self.drop()
        return found

    def drop(self) -> None:
        """Forget the passes since the last step: their gradients were thrown away."""
        self._learned, self._unlearned, self._masks, self._positions = [], {}, {}, {}


def _has(module: nn.Module, inner: nn.Module) -> bool:
    return any(each is inner for each in module.modules())


def _tensors_of(output: Any) -> Iterator[torch.Tensor]:
    """The tensors in whatever a model returns."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from (tensor for each in output.values() for tensor in _tensors_of(each))
    elif isinstance(output, tuple | list):
        yield from (tensor for each in output for tensor in _tensors_of(each))
    elif is_dataclass(output):
        yield from _tensors_of([getattr(output, each.name) for each in fields(output)])


def _key(ids: torch.Tensor) -> Key:
    return ids.data_ptr(), tuple(ids.shape)
