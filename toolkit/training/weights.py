"""The weights that a step works on: word rows in use alone, parameters end to end, half-precision copies of them."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from toolkit.models.classifier import Classifier
from toolkit.models.heads import MaskedHead
from toolkit.models.regimes import Embeddings, has_adapters, locate_embeddings

NORMS = (nn.LayerNorm, nn.RMSNorm)
HALVED = ("BERT", "RoBERTa", "DistilBERT", "ELECTRA", "ALBERT", "DeBERTa-v2", "ModernBERT")
"""The families whose half-precision copies tests compare with autocast, layer by layer; others take that."""


def is_halved(model: Classifier) -> bool:
    """Whether in half precision copies of the weights are computed with: of one of HALVED, whose last layer is read.

    Others are autocast's: LoRA's factors, a masked-LM head, and states of lower layers, which fp32 heads read.
    """
    is_plain = not has_adapters(model.backbone) and not model.asked and not isinstance(model.head, MaskedHead)
    return is_plain and locate_embeddings(model.backbone).family.name in HALVED


def halved_names(embeddings: Embeddings, device: torch.device) -> tuple[str, ...]:
    """Names of the backbone's parameters that are computed with in half precision.

    All but those of the embedding module, whose rows are what we measure, and on a CPU of normalisations, whose kernels
    there take fp32 weights beside half-precision states.
    """
    kept_ids = {id(p) for lookup in embeddings.lookups for p in lookup.parameters()}
    if device.type == "cpu":
        kept_ids |= {
            id(p) for module in embeddings.backbone.modules() if isinstance(module, NORMS) for p in module.parameters()
        }
    return tuple(name for name, p in embeddings.backbone.named_parameters() if id(p) not in kept_ids)


class HalfWeights:
    """Half-precision copies in the places of a backbone's weights, which autocast would make anew in every step.

    Between `install` and `settle` the parameters hold the copies, so that gradients are of half precision too. The
    embedding module runs in fp32, and its output is cast.
    """

    def __init__(self, embeddings: Embeddings, copies: Mapping[str, torch.Tensor]) -> None:
        """``copies``: name of a parameter of the backbone to its copy; all of one dtype."""
        self._embeddings, self._copies = embeddings, dict(copies)
        self._parameters = dict(embeddings.backbone.named_parameters())
        self._whole: dict[str, torch.Tensor] = {}
        self._handles: list[Any] = []

    def install(self) -> None:
        """Put the copies in the parameters' places."""
        for name, copy in self._copies.items():
            self._whole[name], self._parameters[name].data = self._parameters[name].data, copy
        if self._copies:
            dtype = next(iter(self._copies.values())).dtype
            for lookup in self._embeddings.lookups:
                self._handles.append(lookup.register_forward_hook(lambda module, args, output: output.to(dtype)))

    def settle(self) -> None:
        """Put the parameters' own values back."""
        for name, values in self._whole.items():
            self._parameters[name].data = values
        self._whole.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> "HalfWeights":
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()


CACHED_ROWS = 256
"""Decayed step after step while they are in a core's cache."""


class CompactWords:
    """The rows of a word table that some training data use, as a parameter of their own.

    Any optimizer that works element by element does with them what it would do with the whole table, since the others
    get no gradient; weight decay, which reaches these, is made up for in `settle`.
    """

    def __init__(self, module: Any, rows: NDArray[np.int64]) -> None:
        """``module``: the nn.Embedding; ``rows``: all that will be looked up."""
        self.module, self.table = module, module.weight
        device = self.table.device
        self.rows = torch.from_numpy(np.unique(rows)).to(device)
        is_other = torch.ones(len(self.table), dtype=torch.bool, device=device)
        is_other[self.rows] = False
        self.others = is_other.nonzero()[:, 0]
        # Of each row of the whole table its place in the small one, -1 where it has none.
        self._place_in_small = torch.full((len(self.table),), -1, device=device)
        self._place_in_small[self.rows] = torch.arange(len(self.rows), device=device)
        self._place_of_row: NDArray[np.int64] = self._place_in_small.cpu().numpy()
        self.parameter = nn.Parameter(self.table.detach()[self.rows])
        self.rest = self.table.detach()[self.others]
        self._decays: list[float] = []
        padding = module.padding_idx
        self._padding = None if padding is None or is_other[padding] else int(self._place_in_small[padding])

    def place_of(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Where rows of the whole table are in the small one; -1 for those that are not."""
        places: NDArray[np.int64] = self._place_of_row[rows]
        return places

    def install(self) -> None:
        """Look words up in the small table; the memory of the whole one is free until `settle`."""
        self.module.weight = self.parameter
        self.table.data = self.table.new_empty(0)
        self.module.forward = self._look_up

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(self._place_in_small[ids], self.parameter, self._padding)

    def decay(self, amount: float) -> None:
        """One step's decay of the rows that are not in use; ``amount``: learning rate times weight decay.

        It is done at the next `settle`: nobody looks at these rows before.
        """
        if amount:
            self._decays.append(1 - amount)

    @torch.no_grad()
    def settle(self) -> None:
        """Write all rows back into the whole table and look words up there again."""
        on_cpu = self.rest.device.type == "cpu"
        for rows in torch.split(self.rest, CACHED_ROWS) if on_cpu else [self.rest]:
            for factor in self._decays:
                rows.mul_(factor)  # one by one, as AdamW rounds
        self._decays.clear()
        if not len(self.table):
            self.table.data = self.rest.new_empty(len(self._place_in_small), self.rest.shape[1])
        self.table[self.rows] = self.parameter.detach()
        self.table[self.others] = self.rest
        if "forward" in vars(self.module):
            del self.module.forward
        self.module.weight = self.table


class FlatGroup:
    """The parameters of one optimizer group, end to end: values, gradients and half-precision copies.

    The same numbers as parameter by parameter, since the optimizers work element by element; but a step is a few long
    loops instead of hundreds of short ones. The parameters' own ``data`` become views, until `release`.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], halved: Collection[str], dtype: torch.dtype) -> None:
        """``parameters``: name to parameter, fp32; ``halved``: the names of those to copy to ``dtype``."""
        # Halved ones first, so that their copies are one piece of memory.
        names = sorted(parameters, key=lambda name: name not in halved)
        self._parameters = [parameters[name] for name in names]
        sizes = [p.numel() for p in self._parameters]
        values = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self._num_halved_values = sum(n for n, name in zip(sizes, names, strict=True) if name in halved)
        self._num_halved_parameters = sum(name in halved for name in names)
        half = values[: self._num_halved_values].to(dtype)
        self.values = nn.Parameter(values)
        self.values.grad = torch.zeros_like(values)
        self._half = half
        self.gradients: dict[str, torch.Tensor] = {}
        """Name to its gradient, a view."""
        self.copies: dict[str, torch.Tensor] = {}
        """Name of a halved parameter to its copy, a view."""
        start = 0
        for name, parameter, size in zip(names, self._parameters, sizes, strict=True):
            span = slice(start, start + size)
            parameter.data = values[span].view(parameter.shape)
            self.gradients[name] = self.values.grad[span].view(parameter.shape)
            if name in halved:
                self.copies[name] = half[span].view(parameter.shape)
            start += size

    @torch.no_grad()
    def collect(self, *, is_first: bool) -> None:
        """Take what the backward pass left (``is_first``: instead of what was there, else added to it)."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        flat = [g.reshape(-1) for g in gradients]
        halved, others = flat[: self._num_halved_parameters], flat[self._num_halved_parameters :]
        assert self.values.grad is not None
        targets = self.values.grad[: self._num_halved_values], self.values.grad[self._num_halved_values :]
        for target, pieces in zip(targets, (halved, others), strict=True):
            if not pieces:
                continue
            if not is_first:
                target.add_(torch.cat(pieces))
            elif target.dtype == pieces[0].dtype or not target.is_cuda:
                torch.cat(pieces, out=target)
            else:  # of other dtypes a GPU would copy them one by one
                target.copy_(torch.cat(pieces))
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the half-precision copies again, after an update."""
        self._half.copy_(self.values.detach()[: self._num_halved_values])

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()
