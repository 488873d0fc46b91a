"""One function for a layer is transformers' layer: its outputs, every gradient, and dropout where the layer has it."""

import pytest
import torch
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from toolkit.models.classifier import load_classifier
from toolkit.training import fast_layer as fast
from toolkit.training.fast_layer import NAME, fuse_layers, part_layers, run_layer, use_attention, weights_of

EXAMPLES, TOKENS, HIDDEN, HEADS = 3, 5, 12, 2
FUSED = {"bert", "roberta", "electra"}
FAMILIES = (*sorted(FUSED), "distilbert", "albert", "deberta-v2", "modernbert")
IDS = torch.tensor([[1, 9, 8, 12, 2], [1, 30, 2, 0, 0]])


def _layer(dropout: float = 0.0, dtype: torch.dtype = torch.float64, **fields) -> BertLayer:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        intermediate_size=20,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout / 2,
        attn_implementation="eager",
        **fields,
    )
    layer = BertLayer(config).to(dtype).train()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def _states(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(EXAMPLES, TOKENS, HIDDEN, dtype=dtype, generator=torch.Generator().manual_seed(1))


def _mask(kind: str, dtype: torch.dtype = torch.float64) -> torch.Tensor | None:
    if kind == "none":
        return None
    mask = torch.zeros(EXAMPLES, 1, 1 if kind == "padding" else TOKENS, TOKENS, dtype=dtype)
    mask[1, ..., 3:] = torch.finfo(dtype).min
    if kind == "pairs":  # of a query with a key, which no transposition may exchange
        mask[0, 0, 1, 2] = mask[2, 0, 4, 0] = torch.finfo(dtype).min
    return mask


def _run(function, layer, mask, states, tokens=slice(None)) -> dict[str, torch.Tensor]:
    """Outputs, of all tokens or some, and every gradient of a loss of theirs that no symmetry hides."""
    states = states.clone().requires_grad_()
    layer.zero_grad()
    out = function(layer, states, mask)[:, tokens]
    (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    return {"out": out.detach(), "states": states.grad} | {n: p.grad.clone() for n, p in layer.named_parameters()}


def _draw_known_masks(monkeypatch) -> list[torch.Tensor]:
    """The masks that fast layers will draw: of half the level for shares of attention, then of the whole."""
    drawn = []

    def draw(shape, level, dtype):
        assert level == (0.25 if drawn else 0.125) * 2**16
        torch.manual_seed(len(drawn))
        drawn.append(torch.randint(0, 3, shape).to(dtype))
        return drawn[-1]

    monkeypatch.setattr(fast, "draw_mask", draw)
    return drawn


def _plain(layer, states, mask) -> torch.Tensor:
    return layer(states, mask)


def _furthest(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest relative difference (a key's bias has a gradient of rounding alone: hence the summand below)."""
    assert found.keys() == expected.keys()
    return max(float((found[n] - expected[n]).norm() / (expected[n].norm() + 1e-4)) for n in expected)


def _backbone(tiny_model, family) -> nn.Module:
    """A tiny model of a family, with the attention whose mask is one to add."""
    backbone = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2).model.backbone.eval()
    use_attention(backbone, NAME)
    return backbone


def _last_states(backbone) -> torch.Tensor:
    """(2, 5, hidden) states of IDS above the top layer; the second text is padded."""
    with torch.inference_mode():
        return backbone(input_ids=IDS, attention_mask=(IDS != 0).long()).last_hidden_state


@pytest.mark.parametrize("kind", ["none", "padding", "pairs"])
def test_outputs_and_gradients_are_those_of_the_layer(kind):
    layer, mask, states = _layer(), _mask(kind), _states()
    expected = _run(_plain, layer, mask, states)
    assert _furthest(_run(run_layer, layer, mask, states), expected) < 1e-10
    if kind != "none":
        assert _furthest(_run(run_layer, layer, None, states), expected) > 1e-3


def test_dropout_stands_where_the_layer_has_it(monkeypatch):
    """With masks given, three of them: on the shares of attention, and before both residual sums."""
    layer, states = _layer(dropout=0.25), _states()
    drawn = _draw_known_masks(monkeypatch)
    found = _run(run_layer, layer, _mask("padding"), states)
    assert [tuple(mask.shape) for mask in drawn] == [
        (EXAMPLES, HEADS, TOKENS, TOKENS),
        *[(EXAMPLES * TOKENS, HIDDEN)] * 2,
    ]
    keys_first, first, second = drawn
    masks = iter((keys_first.transpose(2, 3), first.view(states.shape), second.view(states.shape)))
    monkeypatch.setattr(nn.functional, "dropout", lambda states, *_, **__: states * next(masks))
    assert _furthest(found, _run(_plain, layer, _mask("padding"), states)) < 1e-10
    assert next(masks, None) is None


def test_its_derivative_with_dropout_is_the_slope_of_its_outputs():
    layer = _layer(dropout=0.3)

    def seeded(states):
        torch.manual_seed(5)
        return run_layer(layer, states, _mask("padding"))

    assert torch.autograd.gradcheck(seeded, _states().requires_grad_())
    layer.eval()
    assert torch.equal(run_layer(layer, _states(), None), run_layer(layer, _states(), None))


@pytest.mark.parametrize(
    "frozen", ["query.weight", "query.bias", "key.bias", "LayerNorm", "dense", "attention", "output", "bias", ""]
)
def test_frozen_weights_get_no_gradient_and_the_others_the_same(frozen):
    layer, states = _layer(), _states()
    whole = _run(run_layer, layer, None, states)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(frozen not in name)
    layer.zero_grad()
    states.requires_grad_()
    out = run_layer(layer, states, None)
    (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    assert torch.equal(states.grad, whole["states"])
    for name, parameter in layer.named_parameters():
        if frozen in name:
            assert parameter.grad is None, name
        else:
            assert torch.equal(parameter.grad, whole[name]), name


def test_states_below_which_nothing_is_trained_get_no_gradient():
    layer, states = _layer(), _states()
    run_layer(layer, states, None).sum().backward()
    assert states.grad is None
    assert all(p.grad is not None for p in layer.parameters())
    layer.requires_grad_(False)
    assert not run_layer(layer, states, None).requires_grad


def test_in_half_precision_it_rounds_no_worse_than_the_layer():
    exact = _run(_plain, _layer(), _mask("padding"), _states())
    halved = _layer().bfloat16()
    for name, parameter in halved.named_parameters():
        parameter.data = parameter.data.float() if "LayerNorm" in name else parameter.data
    mask, states = _mask("padding", torch.bfloat16), _states().bfloat16()
    fused, plain = (_run(function, halved, mask, states) for function in (run_layer, _plain))
    errors = [
        sum(float((run[n].double() - own).norm() / own.norm()) for n, own in exact.items() if "key.bias" not in n)
        for run in (fused, plain)
    ]
    assert 0 < errors[0] < 1.3 * errors[1]
    assert all(fused[n].dtype == plain[n].dtype for n in plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_backbone_with_fused_layers_computes_the_same_and_is_put_back(tiny_model, family):
    backbone = _backbone(tiny_model, family)
    plain = _last_states(backbone)
    fuse_layers(backbone)
    fused = [m for m in backbone.modules() if "forward" in vars(m)]
    assert bool(fused) == (family in FUSED)
    assert len(fused) in (0, backbone.config.num_hidden_layers)
    assert torch.allclose(_last_states(backbone), plain, atol=1e-5)
    part_layers(backbone)
    assert not any("forward" in vars(module) for module in backbone.modules())
    assert torch.equal(_last_states(backbone), plain)


def test_layers_that_compute_something_else_or_are_watched_inside_are_left_alone():
    class Backbone(nn.Module):
        def __init__(self, layer: BertLayer, config: BertConfig) -> None:
            super().__init__()
            self.layer, self.config = layer, config

    def is_fused(own: BertLayer) -> bool:
        backbone = Backbone(own, own.attention.self.config)
        fuse_layers(backbone)
        return "forward" in vars(own)

    others = ({"hidden_act": "relu"}, {"chunk_size_feed_forward": 2}, {"is_decoder": True})
    assert [is_fused(_layer(**fields)) for fields in ({}, *others)] == [True, False, False, False]
    watched = _layer()
    handle = watched.intermediate.dense.register_forward_hook(lambda *_: None)
    assert not is_fused(watched)
    handle.remove()
    watched.register_forward_hook(lambda *_: None)  # around the layer, where it still runs
    assert is_fused(watched)


def test_the_order_of_weights_is_that_of_the_modules():
    layer = _layer()
    assert len(weights_of(layer)) == len(list(layer.parameters()))
    assert {id(p) for p in weights_of(layer)} == {id(p) for p in layer.parameters()}
