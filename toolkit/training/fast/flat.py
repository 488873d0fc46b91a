"""Parameters as views of one buffer per group, so that one call updates them all."""

import contextlib
import mmap
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from toolkit.models.locate import Embeddings
from toolkit.training.optimizer import ParameterGroup

NORMS = (nn.LayerNorm, nn.RMSNorm)


def halved_names(embeddings: Embeddings) -> tuple[str, ...]:
    """Names of the backbone's parameters that are computed with in half precision.

    All but those of the embedding module, whose rows are what we measure, and of normalisations, whose kernels take
    fp32 weights beside half-precision states.
    """
    kept = {id(p) for p in embeddings.module.parameters()}
    kept |= {id(p) for m in embeddings.backbone.modules() if isinstance(m, NORMS) for p in m.parameters()}
    return tuple(name for name, p in embeddings.backbone.named_parameters() if id(p) not in kept)


class HalfBackbone:
    """A backbone with half-precision copies of its weights, which autocast would make anew in every step.

    ``weights``: name to copy; those that require gradients get them in half precision. The embedding module runs in
    fp32, and its output is cast. Between `install` and `settle` the modules hold the copies instead of their own
    parameters; calls may come from several threads.
    """

    def __init__(self, embeddings: Embeddings, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._backbone, self._module = embeddings.backbone, embeddings.module
        self._weights, self._dtype = dict(weights), dtype
        self._own: dict[str, nn.Parameter] = {}
        self._handle: Any = None

    def install(self) -> None:
        """Put the copies in the parameters' places."""
        self._handle = self._module.register_forward_hook(self._cast)
        for name, weight in self._weights.items():
            owner, _, leaf = name.rpartition(".")
            places: Any = self._backbone.get_submodule(owner)._parameters
            self._own[name], places[leaf] = places[leaf], weight

    def settle(self) -> None:
        """Put the parameters back."""
        for name, parameter in self._own.items():
            owner, _, leaf = name.rpartition(".")
            self._backbone.get_submodule(owner)._parameters[leaf] = parameter
        self._own.clear()
        if self._handle is not None:
            self._handle.remove()

    def __enter__(self) -> "HalfBackbone":
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()

    def __call__(self, **batch: torch.Tensor) -> Any:
        """The backbone's own output, with states of the half-precision dtype."""
        with torch.autocast(next(iter(batch.values())).device.type, enabled=False):
            return self._backbone(**batch)

    def _cast(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output.to(self._dtype)


CACHED_ROWS = 256
"""Decayed step after step while they are in a core's cache."""


class CompactWords:
    """The rows of a word table that some training data use, as a parameter of their own.

    A row that no batch exposes has no gradient: AdamW's moments of it stay 0 and its step is its decay alone. So only
    the used rows need gradients, moments and updates; the others are multiplied by the decay, exactly as AdamW does it.
    Between `install` and `settle` the module looks words up in the small table.
    """

    def __init__(self, module: nn.Embedding, rows: NDArray[np.int64]) -> None:
        """``rows``: distinct rows, which must hold every id that `module` is called with while installed."""
        self.module, self.table = module, module.weight
        self.rows = torch.from_numpy(np.unique(rows))
        is_other = torch.ones(len(self.table), dtype=torch.bool)
        is_other[self.rows] = False
        self.others = is_other.nonzero()[:, 0]
        self._place = torch.full((len(self.table),), -1)
        self._place[self.rows] = torch.arange(len(self.rows))
        self.parameter = nn.Parameter(self.table.detach()[self.rows])
        self.rest = self.table.detach()[self.others]
        self._decays: list[float] = []
        padding = module.padding_idx
        self._padding = None if padding is None or is_other[padding] else int(self._place[padding])

    def place_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where rows of the whole table are in the small one; -1 for those that are not."""
        places: NDArray[np.int64] = self._place.numpy()[rows]
        return places

    def install(self) -> None:
        """Look words up in the small table."""
        module: Any = self.module
        module.weight = self.parameter
        module.forward = self._look_up

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(self._place[ids], self.parameter, self._padding)

    def decay(self, amount: float) -> None:
        """One AdamW step of the rows that are not in use; ``amount``: learning rate times weight decay.

        It is done at the next `settle`: nobody looks at these rows before.
        """
        if amount:
            self._decays.append(1 - amount)

    @torch.no_grad()
    def settle(self) -> None:
        """Write all rows back into the whole table and look words up there again."""
        module: Any = self.module
        for rows in torch.split(self.rest, CACHED_ROWS):
            for factor in self._decays:
                rows.mul_(factor)  # one by one, as AdamW rounds
        self._decays.clear()
        self.table[self.rows] = self.parameter.detach()
        self.table[self.others] = self.rest
        if "forward" in vars(module):
            del module.forward
        module.weight = self.table


def allocate(number: int, dtype: torch.dtype) -> torch.Tensor:
    """(number,) zeros, in huge pages where the system has them: a step walks through all of it several times."""
    if not number:
        return torch.zeros(0, dtype=dtype)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(number, dtype=dtype)
    # Private, not shared as by default: only such memory gets huge pages, and a forked process must not write to it.
    memory = mmap.mmap(-1, number * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)


class FlatGroup:
    """The parameters of one optimizer group, end to end: values, gradients and half-precision copies.

    The same numbers as parameter by parameter, since AdamW works element by element (one that gets no gradient, which
    torch's AdamW would leave alone, decays here: no family has one); but nothing is allocated in a
    step, and a step is a few long loops instead of hundreds of short ones. The parameters' own ``data`` become views,
    until `release`.
    """

    def __init__(
        self, group: ParameterGroup, parameters: Mapping[str, nn.Parameter], halved: Collection[str], dtype: torch.dtype
    ) -> None:
        """``parameters`` holds every name of ``group``, fp32; ``halved`` names those to copy to ``dtype``."""
        names = sorted(group.names, key=lambda name: name not in halved)
        self._own = {name: parameters[name] for name in names}
        sizes = [p.numel() for p in self._own.values()]
        self.values = nn.Parameter(allocate(sum(sizes), torch.float32))
        self.values.grad = allocate(sum(sizes), torch.float32)
        self._half = allocate(sum(n for n, name in zip(sizes, names, strict=True) if name in halved), dtype)
        self.gradients: dict[str, torch.Tensor] = {}
        """Name to its gradient, a view."""
        self.copies: dict[str, torch.Tensor] = {}
        """Name of a halved parameter to its copy, a view and a leaf of the graph."""
        start = 0
        for (name, parameter), size in zip(self._own.items(), sizes, strict=True):
            part = slice(start, start + size)
            view = self.values.data[part].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            self.gradients[name] = self.values.grad[part].view(parameter.shape)
            if name in halved:
                self.copies[name] = self._half[part].view(parameter.shape).detach().requires_grad_()
            start += size
        self.refresh()

    @torch.no_grad()
    def collect(self, *, is_first: bool) -> torch.Tensor:
        """Take what the backward pass left (``is_first``: instead of what was there, else added to it).

        The sum of the gradients' squares comes back: each is in the cache now, which they are not all at once.
        """
        squares = torch.zeros(())
        for name, parameter in self._own.items():
            source, target = self.copies.get(name, parameter), self.gradients[name]
            if source.grad is None:
                target.zero_() if is_first else target
            elif is_first:
                target.copy_(source.grad)
            else:
                target.add_(source.grad)
            source.grad = None
            squares += torch.dot(target.view(-1), target.view(-1))
        return squares

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the half-precision copies again, after an update."""
        self._half.copy_(self.values.data[: len(self._half)])

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        for parameter in self._own.values():
            parameter.data = parameter.data.clone()
