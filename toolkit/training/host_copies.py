"""Copies of tensors in host memory, so that training may change them while they are written."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

PIECE_BYTES = 2**25
"""What goes from a GPU to the host at a time."""


class HostCopies:
    """Copies of named tensors, in memory that is kept for the next ones.

    From a GPU they go through two pieces of pinned memory, of which one is filled while the other is emptied: to pin
    room for all of them takes longer than to copy them, and a copy to memory that is not pinned waits for one thread.
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._pinned: list[torch.Tensor] = []

    @torch.no_grad()
    def take(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
        """Name to a copy of each tensor as it is now. They hold until the next call, which overwrites them."""
        self._kept = {name: self._memory_for(name, tensor) for name, tensor in tensors.items()}
        pieces: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, tensor in tensors.items():
            if tensor.is_cuda:
                sources = torch.split(_bytes_of(tensor), PIECE_BYTES)
                targets = torch.split(_bytes_of(self._kept[name]), PIECE_BYTES)
                pieces += zip(sources, targets, strict=True)
            else:
                self._kept[name].copy_(tensor)
        self._fetch(pieces)
        return {name: tensor.numpy() for name, tensor in self._kept.items()}

    def _memory_for(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The memory that a tensor is copied to: that of the last copy where it fits."""
        copy = self._kept.get(name)
        if copy is not None and (copy.shape, copy.dtype) == (tensor.shape, tensor.dtype):
            return copy
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    def _fetch(self, pieces: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy pieces of a GPU's memory to the host's, each (bytes,) uint8 and PIECE_BYTES long at most."""
        if pieces and not self._pinned:
            self._pinned = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        arriving: list[tuple[torch.cuda.Event, torch.Tensor, torch.Tensor]] = []
        for i, (source, target) in enumerate(pieces):
            if len(arriving) == len(self._pinned):
                _empty(*arriving.pop(0))
            pinned = self._pinned[i % len(self._pinned)][: len(source)]
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            pinned.copy_(source, non_blocking=True)
            arrival.record()
            arriving.append((arrival, pinned, target))
        for arrived in arriving:
            _empty(*arrived)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """(bytes,) uint8: the memory of a tensor, or of a copy in order where it lies in another."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def _empty(arrival: torch.cuda.Event, pinned: torch.Tensor, target: torch.Tensor) -> None:
    arrival.synchronize()
    target.copy_(pinned)
