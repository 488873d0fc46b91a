"""Queries, keys and values in, attention out: torch's formula with packed dropout, as transformers plugs it in."""

from typing import Any

import torch
from torch import nn

from toolkit.training.fast.dropout import drop

NAME = "embedding_drift"
"""What transformers calls it."""


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(QKᵀ·scaling + mask)V, (examples, tokens, heads, width) from (examples, heads, tokens, width) each.

    ``attention_mask`` is added to the scores. At the lengths of sentences the plain products are faster on a CPU than
    torch's fused kernel, whose backward pass is slow there and which does without packed dropout.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query * scaling, key.transpose(2, 3))
    if attention_mask is not None:
        scores = scores + attention_mask
    shares = torch.softmax(scores, dim=-1)
    if dropout > 0:
        shares = drop(shares, dropout)
    return torch.matmul(shares, value).transpose(1, 2).contiguous(), None


def use_attention(backbone: Any, name: str) -> str | None:
    """Switch the attention of ``backbone``; the name of the one before, or None where its code has its own."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not backbone._can_set_attn_implementation():
        return None
    if name == NAME:
        ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, eager_mask)
    before: str = backbone.config._attn_implementation
    backbone.set_attn_implementation(name)
    return before
