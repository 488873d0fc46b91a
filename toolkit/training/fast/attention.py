"""Queries, keys and values in, attention out: torch's formula with packed dropout, as transformers plugs it in."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from toolkit.training.fast.dropout import drop

NAME = "embedding_drift"
"""What transformers calls it."""
SHORT = 16
"""Tokens up to which plain products take half the time of torch's fused kernel, forward."""


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

    ``attention_mask`` is added to the scores. Plain products serve in training, since the backward pass of torch's
    fused kernel is slow on a CPU and it does without packed dropout, and short texts, where they take half its time.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if not module.training and query.shape[2] > SHORT:
        fused = functional.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
        return fused.transpose(1, 2).contiguous(), None
    # Keys before queries: torch's softmax over the last dimension is slow where that is short.
    scores = torch.matmul(key, query.transpose(2, 3))
    if attention_mask is None:
        scores = scores * scaling
    else:
        scores = torch.add(attention_mask.transpose(2, 3), scores, alpha=scaling)
    shares = torch.softmax(scores, dim=-2)
    if dropout > 0:
        shares = drop(shares, dropout)
    return torch.matmul(shares.transpose(2, 3), value).transpose(1, 2).contiguous(), None


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
