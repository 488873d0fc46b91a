"""A backbone in, its top layer computing the first token's state alone out: some poolings read no more of it."""

from typing import Any

import torch

from toolkit.training.fast.attention import attend
from toolkit.training.fast.layer import StandIn, is_plain

READ_FIRST = ("cls", "pooler")
"""Poolings that read the first token's state and no other."""


def narrow_top(backbone: Any) -> None:
    """Have the top layer of ``backbone``, if it is BERT's, compute its first token's state alone, until `part_layers`.

    The first token attends to all others, whose keys and values are needed still; the rest of what the layer does for
    them, five sixths of its products, is not. It has no part in the pooled vector, so that outputs and gradients are
    the same but for the order of sums. The layer is left alone where somebody's hook waits for its states.
    """
    layers = getattr(getattr(backbone, "encoder", None), "layer", None)
    if layers and is_plain(layers[-1], backbone.config) and not layers[-1]._forward_hooks:
        layers[-1].forward = StandIn(run_first, layers[-1])


def run_first(layer: Any, states: torch.Tensor, mask: torch.Tensor | None = None, *_: Any, **__: Any) -> torch.Tensor:
    """(examples, 1, hidden) state of the first token above ``layer`` from (examples, tokens, hidden) states.

    ``mask``, (examples, 1, 1 or tokens, tokens), is added to the scores of attention.
    """
    own, first = layer.attention.self, states[:, :1]
    q, k, v = (
        product(inputs).unflatten(-1, (own.num_attention_heads, -1)).transpose(1, 2)
        for product, inputs in ((own.query, first), (own.key, states), (own.value, states))
    )
    mask = None if mask is None else mask[:, :, :1]
    attended, _ = attend(own, q, k, v, mask, own.dropout.p if layer.training else 0.0, own.scaling)
    above: torch.Tensor = layer.attention.output(attended.flatten(2), first)
    out: torch.Tensor = layer.output(layer.intermediate(above), above)
    return out
