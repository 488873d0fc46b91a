"""A tensor in, the same with elements dropped out: torch's dropout with four random numbers in each drawn word."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

LEVELS = 2**16
"""Random numbers are 16 bits wide: the probability of dropping is a multiple of 1/65536."""


class PackedDropout(nn.Dropout):
    """``nn.Dropout`` whose mask on a CPU costs a quarter of a random word per element (see `drop`)."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return drop(input, self.p) if self.training else input


def drop(states: torch.Tensor, probability: float) -> torch.Tensor:
    """``states`` with each element independently 0 with ``probability``, else multiplied by 1/(1 - probability).

    The probability is rounded to 1/65536 (.1 becomes .100006), and the factor is that of the rounded one. The bits
    come from torch's own generator, so that a seed repeats them, but they are others than ``nn.Dropout`` would draw.
    Another device, and probabilities that round to 0 or 1, are left to torch.
    """
    level = round(probability * LEVELS)
    if states.device.type != "cpu" or not 0 < level < LEVELS:
        return functional.dropout(states, probability)
    dropped: torch.Tensor = _Drop.apply(states, draw_mask(states.shape, level, states.dtype))  # type: ignore[no-untyped-call]
    return dropped


def draw_mask(shape: torch.Size, level: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of ``shape``: 0 with probability level/65536, else 1/(1 - level/65536) as ``dtype`` rounds it."""
    if level == LEVELS:
        return torch.zeros(shape, dtype=dtype)
    number = shape.numel()
    words = torch.empty(-(-number // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:number].view(shape)
    mask = torch.empty(shape, dtype=dtype)
    torch.ge(bits, level - LEVELS // 2, out=mask)
    return mask.mul_(1 / (1 - level / LEVELS))


class _Drop(torch.autograd.Function):
    """The product with a mask; autograd alone would also keep the states, which the gradient does not need."""

    @staticmethod
    def forward(context: Any, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(mask)
        return states * mask

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = context.saved_tensors
        return gradients[0] * mask, None


def pack_dropout(module: nn.Module) -> None:
    """Make every ``nn.Dropout`` inside a PackedDropout, in place: it has the same fields and no weights."""
    for child in module.modules():
        if type(child) is nn.Dropout:
            child.__class__ = PackedDropout


def unpack_dropout(module: nn.Module) -> None:
    """Undo `pack_dropout`, so that whoever saves the model needs nothing of ours to load it."""
    for child in module.modules():
        if type(child) is PackedDropout:
            child.__class__ = nn.Dropout  # type: ignore[assignment]
