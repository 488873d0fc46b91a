"""Parameters in groups in, the same as views of one buffer per group out: one call updates them all."""

import contextlib
import mmap
from collections.abc import Collection, Mapping

import torch
from torch import nn

from toolkit.training.optimizer import Group


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
        self, group: Group, parameters: Mapping[str, nn.Parameter], halved: Collection[str], dtype: torch.dtype
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
