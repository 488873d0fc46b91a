"""A backbone in, its top layer computing the first token's state alone out: some poolings read no more of it."""

from typing import Any

import torch

from toolkit.training.fast.attention import attend
from toolkit.training.fast.layer import StandIn, is_plain

_READ_FIRST = ("cls", "pooler")
"""Poolings that read the first token's state and no other."""


def narrow_top(backbone: Any, pooling: str) -> None:
    """Have the top layer, if it is BERT's, compute no more than ``pooling`` reads, until `part_layers`.

    Where that is the first token's state, the states of the top layer become (examples, 1, hidden). The first token
    attends to all others, whose keys and values are needed still; the rest of what the layer does for them, five
    sixths of its products, is not. It has no part in the pooled vector, so that without dropout outputs and gradients
    are the same but for the order of sums; with it, other random bits are drawn. The layer is left alone where
    somebody's hook waits for its states.
    """
    encoder: Any = getattr(backbone, "encoder", None)
    layers = getattr(encoder, "layer", None)
    if pooling not in _READ_FIRST or not layers or not is_plain(layers[-1], backbone.config):
        return
    top: Any = layers[-1]
    is_watched = top._forward_hooks or top._backward_hooks or top._backward_pre_hooks or encoder._forward_hooks
    if not is_watched:
        top.forward = StandIn(run_first, top)


def run_first(layer: Any, states: torch.Tensor, mask: torch.Tensor | None = None, *_: Any, **__: Any) -> torch.Tensor:
    """(examples, 1, hidden) state of the first token above ``layer`` from (examples, tokens, hidden) states.

    ``mask``, (examples, 1, 1 or tokens, tokens), is added to the scores of attention.
    """
    own, first = layer.attention.self, states[:, :1]
    q, k, v = (
        product(inputs).unflatten(-1, (own.num_attention_heads, -1)).transpose(1, 2)
        for product, inputs in ((own.query, first), (own.key, states), (own.value, states))
    )
    of_first = None if mask is None else mask[:, :, :1]
    attended = attend(own, q, k, v, of_first, own.dropout.p if layer.training else 0.0, own.scaling)[0]
    above: torch.Tensor = layer.attention.output(attended.flatten(2), first)
    out: torch.Tensor = layer.output(layer.intermediate(above), above)
    return out
