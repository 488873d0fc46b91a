"""A backbone in fp32 in, its forward pass in half precision out: everything above the embedding module."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from toolkit.models.locate import Embeddings

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
