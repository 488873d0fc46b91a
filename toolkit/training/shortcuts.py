"""Shorter ways to what a model computes: attention and dropout of a CPU, and a top layer of which one state is read."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

LEVELS = 2**16
"""Random numbers are 16 bits wide: the probability of dropping is a multiple of 1/65536."""


def drop(states: torch.Tensor, probability: float) -> torch.Tensor:
    """``states`` with each element independently 0 with ``probability``, else multiplied by 1/(1 - probability).

    The probability is rounded to 1/65536 (.1 becomes .100006), and the factor is that of the rounded one. The bits
    come from torch's own generator, so that a seed repeats them, but they are others than ``nn.Dropout`` would draw:
    four elements share one random word. Another device, and probabilities that round to 0 or 1, are left to torch.
    """
    level = round(probability * LEVELS)
    if states.device.type != "cpu" or not 0 < level < LEVELS:
        return functional.dropout(states, probability)
    num_elements = states.numel()
    random_words = torch.empty(-(-num_elements // 4), dtype=torch.int64).random_(-(2**63), None)  # 4 x 16 bits each
    bits = random_words.view(torch.int16)[:num_elements].view(states.shape)
    mask = torch.empty(states.shape, dtype=states.dtype)
    torch.ge(bits, level - LEVELS // 2, out=mask)
    return states * mask.mul_(1 / (1 - level / LEVELS))  # of the two the product keeps the mask alone for autograd


FORWARD = "forward"


class StandIn(partial[Any]):
    """What takes the place of a module's forward, its first argument the module."""


def _dropout(module: nn.Dropout, states: torch.Tensor) -> torch.Tensor:
    return drop(states, module.p) if module.training else states


def take_shortcuts(backbone: Any, pooling: str) -> str | None:
    """Have ``backbone`` compute in shorter ways, until `leave_shortcuts`; the name of the attention it had before.

    None where its attention is left alone. ``pooling``: what is read of its last states, which may become (examples, 1,
    hidden) where that is the first token's. In eval mode outputs are the same up to rounding.
    """
    if pooling in ("cls", "pooler"):
        _narrow_top(backbone)
    if next(backbone.parameters()).device.type != "cpu":
        return None
    for module in backbone.modules():
        if type(module) is nn.Dropout:
            setattr(module, FORWARD, StandIn(_dropout, module))
    return use_attention(backbone, ATTENTION_NAME)


def leave_shortcuts(backbone: Any, attention: str | None) -> None:
    """Undo `take_shortcuts`, which gave ``attention``."""
    for module in backbone.modules():
        if isinstance(vars(module).get(FORWARD), StandIn):
            del module.forward
    if attention is not None:
        use_attention(backbone, attention)


ATTENTION_NAME = "embedding_drift"
"""What transformers calls our attention."""
MOST_SHORT_TOKENS = 16
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
    fused kernel is slow on a CPU and it does without our dropout, and short texts, where they take half its time.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if not module.training and query.shape[2] > MOST_SHORT_TOKENS:
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
    if name == ATTENTION_NAME:
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, eager_mask)
    previous: str = backbone.config._attn_implementation
    backbone.set_attn_implementation(name)
    return previous


def _narrow_top(backbone: Any) -> None:
    """Have the top layer, if it is BERT's, compute the first token's state and no other.

    That token attends to all others, whose keys and values are needed still; the rest of what the layer does for them,
    five sixths of its products, is not. It has no part in the pooled vector, so that without dropout outputs and
    gradients are the same but for the order of sums; with it, other random bits are drawn.
    """
    from transformers.models.bert.modeling_bert import BertLayer
    from transformers.models.electra.modeling_electra import ElectraLayer
    from transformers.models.roberta.modeling_roberta import RobertaLayer

    layers = getattr(getattr(backbone, "encoder", None), "layer", None)
    if not layers or type(layers[-1]) not in (BertLayer, ElectraLayer, RobertaLayer):
        return
    if not (layers[-1].is_decoder or layers[-1].chunk_size_feed_forward):
        layers[-1].forward = StandIn(run_first, layers[-1])


def run_first(layer: Any, states: torch.Tensor, mask: torch.Tensor | None = None, *_: Any, **__: Any) -> torch.Tensor:
    """(examples, 1, hidden) state of the first token above ``layer`` from (examples, tokens, hidden) states.

    ``mask``, (examples, 1, 1 or tokens, tokens): is added to the scores of attention, or as bool says who takes part.
    """
    attention, first_token = layer.attention.self, states[:, :1]

    def by_head(vectors: Any) -> Any:
        """(examples, heads, tokens, width) from (examples, tokens, hidden)."""
        return vectors.unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)

    q, k, v = by_head(attention.query(first_token)), by_head(attention.key(states)), by_head(attention.value(states))
    first_mask = None if mask is None else mask[:, :, :1]
    if first_mask is not None and first_mask.dtype == torch.bool:
        first_mask = torch.zeros_like(first_mask, dtype=q.dtype).masked_fill(~first_mask, torch.finfo(q.dtype).min)
    dropout = attention.dropout.p if layer.training else 0.0
    attended = attend(attention, q, k, v, first_mask, dropout, attention.scaling)[0]
    attention_output: torch.Tensor = layer.attention.output(attended.flatten(2), first_token)
    out: torch.Tensor = layer.output(layer.intermediate(attention_output), attention_output)
    return out
