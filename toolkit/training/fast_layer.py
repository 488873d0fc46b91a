"""One BERT layer as one recorded function instead of some thirty.

BERT's layer is self-attention and a feed-forward network, each followed by dropout, a residual sum and LayerNorm
(Vaswani et al. 2017; Devlin et al. 2019). Here its derivative is written out, which saves passes over memory, records
of autograd's and two products of three; tests compare it with autograd's.
"""

from functools import partial
from typing import Any, NamedTuple

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


Tensors = tuple[torch.Tensor, ...]


def fuse_layers(backbone: Any) -> None:
    """Have the layers of ``backbone`` that are BERT's compute as one function each, until `part_layers`.

    BERT's, RoBERTa's and ELECTRA's are (one code under three names in transformers), unless their config changes what
    they compute or somebody's hook waits inside of one.
    """
    for layer in backbone.modules():
        if is_plain(layer, backbone.config):
            layer.forward = StandIn(_forward, layer)


def part_layers(backbone: nn.Module) -> None:
    """Give every layer with a stand-in its own forward again."""
    for layer in backbone.modules():
        if isinstance(vars(layer).get("forward"), StandIn):
            del layer.forward


class StandIn(partial[Any]):
    """What takes the place of a layer's forward, its first argument the layer."""


def is_plain(layer: Any, config: Any) -> bool:
    """Whether ``layer`` is one of BERT's that computes what BERT's paper says, watched by nobody inside."""
    from transformers.models.bert.modeling_bert import BertLayer
    from transformers.models.electra.modeling_electra import ElectraLayer
    from transformers.models.roberta.modeling_roberta import RobertaLayer

    if type(layer) not in (BertLayer, ElectraLayer, RobertaLayer) or layer.is_decoder or layer.chunk_size_feed_forward:
        return False
    return config.hidden_act == "gelu" and not _has_hooks_inside(layer)


def _forward(layer: Any, states: torch.Tensor, attention_mask: torch.Tensor | None = None, *_: Any, **__: Any) -> Any:
    return run_layer(layer, states, attention_mask)


def _has_hooks_inside(layer: nn.Module) -> bool:
    inner = [module for module in layer.modules() if module is not layer]
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in inner)


class Shape(NamedTuple):
    """What a layer's function needs besides tensors."""

    heads: int
    attention_dropout: float
    hidden_dropout: float
    epsilons: tuple[float, float]
    """Of the two LayerNorms."""


def weights_of(layer: Any) -> Tensors:
    """The 16 weights and biases in the order in which `_Layer` takes them."""
    self_attention, output = layer.attention.self, layer.attention.output
    modules = (
        *(self_attention.query, self_attention.key, self_attention.value, output.dense, output.LayerNorm),
        *(layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm),
    )
    return tuple(weight for module in modules for weight in (module.weight, module.bias))


def run_layer(layer: Any, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """(examples, tokens, hidden) states above ``layer``, a module with the names of transformers' BertLayer.

    ``mask``, (examples, 1, 1 or tokens, tokens), is added to the scores of attention.
    """
    attention = layer.attention.self
    shape = Shape(
        attention.num_attention_heads,
        attention.dropout.p if layer.training else 0.0,
        layer.output.dropout.p if layer.training else 0.0,
        (layer.attention.output.LayerNorm.eps, layer.output.LayerNorm.eps),
    )
    out: torch.Tensor = _Layer.apply(shape, mask, states, *weights_of(layer))  # type: ignore[no-untyped-call]
    return out


def _mask_like(states: torch.Tensor, probability: float) -> torch.Tensor | None:
    level = round(probability * LEVELS)
    return draw_mask(states.shape, level, states.dtype) if level else None


def _product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A linear map; the bias is added afterwards, since oneDNN's product with a bias takes longer than both."""
    return torch.mm(states, weight.t()).add_(bias)


def _add_dropped(residual: torch.Tensor, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return residual + states if mask is None else torch.addcmul(residual, states, mask)


def _times(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return states if mask is None else states * mask


def _softmax_backward(gradient: torch.Tensor, shares: torch.Tensor, scale: float) -> torch.Tensor:
    """``scale`` times shares (gradient - Σ gradient shares), the sum over the last dimension but one, in place."""
    weighted = gradient.mul_(shares)
    return torch.addcmul(weighted, shares, weighted.sum(-2, keepdim=True), value=-1, out=weighted).mul_(scale)


def _gradients(needed: Any, gradient: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Of a linear map's weight and bias."""
    weight = torch.mm(gradient.t(), inputs) if needed[0] else None
    return weight, gradient.sum(0) if needed[1] else None


class _Layer(torch.autograd.Function):
    """Names as in the formula: a = softmax(q kᵀ/√d + mask) v, y = LN(x + o(a)), out = LN(y + down(gelu(up(y))))."""

    @staticmethod
    def forward(
        context: Any, shape: Shape, mask: torch.Tensor | None, states: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        wq, bq, wk, bk, wv, bv, wo, bo, gain1, shift1, wu, bu, wd, bd, gain2, shift2 = weights
        examples, tokens, hidden = states.shape
        heads, width = shape.heads, hidden // shape.heads
        x = states.reshape(-1, hidden)
        w3 = torch.cat((wq, wk, wv))
        by_token = torch.mm(x, w3.t()).view(examples, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)
        qkv = x.new_empty(3, examples, heads, tokens, width)
        torch.add(by_token, torch.cat((bq, bk, bv)).view(3, 1, heads, 1, width), out=qkv)
        q, k, v = qkv.view(3, -1, tokens, width)
        # Keys before queries: a softmax over the last dimension of few tokens takes torch 1.5 times as long, and its
        # derivative 3 times.
        scores = torch.bmm(k, q.transpose(1, 2)).view(examples, heads, tokens, tokens)
        scale = width**-0.5
        scores = scores.mul_(scale) if mask is None else torch.add(mask.transpose(2, 3), scores, alpha=scale)
        shares = torch.softmax(scores, -2)
        drop = _mask_like(shares, shape.attention_dropout)
        kept = _times(shares, drop)
        a = torch.bmm(kept.view(-1, tokens, tokens).transpose(1, 2), v).view(examples, heads, tokens, width)
        a = a.transpose(1, 2).reshape(-1, hidden)
        o = _product(a, wo, bo)
        drop1 = _mask_like(o, shape.hidden_dropout)
        sum1 = _add_dropped(x, o, drop1)
        y, mean1, scale1 = torch.native_layer_norm(sum1, [hidden], gain1, shift1, shape.epsilons[0])
        up = _product(y, wu, bu)
        active = nn.functional.gelu(up)
        down = _product(active, wd, bd)
        drop2 = _mask_like(down, shape.hidden_dropout)
        sum2 = _add_dropped(y, down, drop2)
        out, mean2, scale2 = torch.native_layer_norm(sum2, [hidden], gain2, shift2, shape.epsilons[1])
        context.save_for_backward(
            *(x, qkv, shares, drop, kept, a, drop1, sum1, mean1, scale1, y, up, active, drop2, sum2, mean2, scale2),
            *(w3, wo, wu, wd, gain1, shift1, gain2, shift2),
        )
        return out.view(states.shape)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, qkv, shares, drop, kept, a, drop1, sum1, mean1, scale1, y, up, active, drop2, sum2, mean2, scale2, *rest = (
            context.saved_tensors
        )
        w3, wo, wu, wd, gain1, shift1, gain2, shift2 = rest
        _, _, for_states, *needed = context.needs_input_grad
        hidden, (_, examples, heads, tokens, width) = x.shape[1], qkv.shape
        norm_backward = torch.ops.aten.native_layer_norm_backward
        top = gradients[0].reshape(-1, hidden)
        d_sum2, d_gain2, d_shift2 = norm_backward(
            top, sum2, [hidden], mean2, scale2, gain2, shift2, [True, *needed[14:16]]
        )
        d_down = _times(d_sum2, drop2)
        d_wd = _gradients(needed[12:14], d_down, active)
        d_up = torch.ops.aten.gelu_backward(torch.mm(d_down, wd), up)
        d_wu = _gradients(needed[10:12], d_up, y)
        d_y = torch.mm(d_up, wu).add_(d_sum2)
        d_sum1, d_gain1, d_shift1 = norm_backward(
            d_y, sum1, [hidden], mean1, scale1, gain1, shift1, [True, *needed[8:10]]
        )
        d_o = _times(d_sum1, drop1)
        d_wo = _gradients(needed[6:8], d_o, a)
        d_a = torch.mm(d_o, wo).view(examples, tokens, heads, width).transpose(1, 2)
        d_a = d_a.reshape(-1, tokens, width)
        q, k, v = qkv.view(3, -1, tokens, width)
        d_qkv = torch.empty_like(qkv)
        d_q, d_k, d_v = d_qkv.view(3, -1, tokens, width)
        torch.bmm(kept.view(-1, tokens, tokens), d_a, out=d_v)
        d_shares = torch.bmm(v, d_a.transpose(1, 2)).view(shares.shape)
        d_scores = _softmax_backward(_times(d_shares, drop), shares, width**-0.5).view(-1, tokens, tokens)
        torch.bmm(d_scores.transpose(1, 2), k, out=d_q)
        torch.bmm(d_scores, q, out=d_k)
        by_token = d_qkv.permute(1, 3, 0, 2, 4).reshape(-1, 3 * hidden)
        of_all = _gradients([any(needed[0:6:2]), any(needed[1:6:2])], by_token, x)
        d_x = torch.mm(by_token, w3).add_(d_sum1).view(gradients[0].shape) if for_states else None
        d_w3, d_b3 = ((None,) * 3 if own is None else own.chunk(3) for own in of_all)
        first = [own for pair in zip(d_w3, d_b3, strict=True) for own in pair]
        return None, None, d_x, *first, *d_wo, d_gain1, d_shift1, *d_wu, *d_wd, d_gain2, d_shift2


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
