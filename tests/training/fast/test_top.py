"""The top layer for its first token alone is the layer: that token's state, and every gradient that reaches it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.training.fast.test_layer import (
    EXAMPLES,
    FAMILIES,
    FUSED,
    HEADS,
    HIDDEN,
    IDS,
    TOKENS,
    _backbone,
    _draw_known_masks,
    _furthest,
    _last_states,
    _layer,
    _mask,
    _plain,
    _run,
    _states,
)
from toolkit.models.classifier import load_classifier
from toolkit.training import fast_layer
from toolkit.training.accelerators import build_accelerator
from toolkit.training.evaluation import scoring
from toolkit.training.fast_layer import fuse_layers, narrow_top, part_layers, run_first

FIRST, SECOND = slice(0, 1), slice(1, 2)


@pytest.mark.parametrize("kind", ["none", "padding", "pairs"])
def test_its_state_and_gradients_are_those_of_the_layer(kind):
    layer, states, mask = _layer(), _states(), _mask(kind)
    mask = mask if mask is None else mask.clone()
    if kind == "pairs":
        mask[1, 0, 0, 1] = torch.finfo(mask.dtype).min  # of the first token with another
    expected = _run(_plain, layer, mask, states, FIRST)
    assert run_first(layer, states, mask).shape == (EXAMPLES, 1, HIDDEN)
    assert _furthest(_run(run_first, layer, mask, states, FIRST), expected) < 1e-10
    assert _furthest(_run(_plain, layer, mask, states, SECOND), expected) > 1e-3
    if kind != "none":
        assert _furthest(_run(run_first, layer, None, states, FIRST), expected) > 1e-3


def test_dropout_stands_where_the_layer_has_it(monkeypatch):
    """With masks given, three of them, and the layer's own for its other tokens, which must not matter."""
    layer, states = _layer(dropout=0.25), _states()
    fast_layer.pack_dropout(layer)
    drawn = _draw_known_masks(monkeypatch)
    found = _run(run_first, layer, _mask("padding"), states, FIRST)
    assert [tuple(mask.shape) for mask in drawn] == [(EXAMPLES, HEADS, TOKENS, 1), *[(EXAMPLES, 1, HIDDEN)] * 2]
    fast_layer.unpack_dropout(layer)
    shares, first, second = drawn
    others = torch.randint(0, 3, (EXAMPLES, TOKENS - 1, HIDDEN)).double()
    masks = iter(
        (
            torch.cat([shares.transpose(2, 3), torch.ones(EXAMPLES, HEADS, TOKENS - 1, TOKENS)], 2),
            torch.cat([first, others], 1),
            torch.cat([second, others], 1),
        )
    )
    monkeypatch.setattr(nn.functional, "dropout", lambda states, *_, **__: states * next(masks))
    assert _furthest(found, _run(_plain, layer, _mask("padding"), states, FIRST)) < 1e-10
    assert next(masks, None) is None


def test_in_eval_mode_nothing_is_dropped():
    layer = _layer(dropout=0.3).eval()
    assert torch.allclose(run_first(layer, _states(), None), layer(_states())[:, :1], atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_backbone_with_a_narrow_top_computes_the_same_first_state_and_is_put_back(tiny_model, family):
    backbone = _backbone(tiny_model, family)
    plain = _last_states(backbone)
    for is_fused in (False, True):
        if is_fused:
            fuse_layers(backbone)
        narrow_top(backbone, "cls")
        narrow = _last_states(backbone)
        assert narrow.shape[1] == (1 if family in FUSED else 5)
        assert torch.allclose(narrow[:, 0], plain[:, 0], atol=1e-5)
        part_layers(backbone)
        assert torch.equal(_last_states(backbone), plain)


def test_a_top_whose_states_somebody_waits_for_is_left_alone():
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Module()
            self.encoder.layer = nn.ModuleList([_layer(), _layer()])
            self.config = _layer().attention.self.config

    backbone = Backbone()

    def narrowed(pooling="cls"):
        narrow_top(backbone, pooling)
        found = ["forward" in vars(layer) for layer in backbone.encoder.layer]
        part_layers(backbone)
        return found

    assert narrowed() == narrowed("pooler") == [False, True]
    assert narrowed("mean") == [False, False]
    top = backbone.encoder.layer[1]
    for wait in (
        top.register_forward_hook,
        top.register_full_backward_hook,
        top.register_full_backward_pre_hook,
        top.output.register_forward_hook,
        backbone.encoder.register_forward_hook,
    ):
        handle = wait(lambda *_: None)
        assert narrowed() == [False, False], wait
        handle.remove()
        assert narrowed() == [False, True]


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_scoring_computes_the_state_that_is_read_and_puts_the_model_back(tiny_model, tiny_config, pooling):
    accelerator = build_accelerator(replace(tiny_config, precision="bf16"))
    model = load_classifier(str(tiny_model("bert")), pooling=pooling, num_outputs=2).model.eval()
    with torch.no_grad():  # a tiny random model's layers hardly reach its outputs otherwise
        for name, parameter in model.backbone.named_parameters():
            is_above = "layer." in name or "pooler" in name
            parameter *= 10.0 if is_above and parameter.ndim > 1 else 1.0
    batch = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
    with torch.inference_mode():
        plain = model.features(batch)
        with scoring(accelerator, model) as backbone:
            output = backbone(**batch)
        assert output.last_hidden_state.shape[1] == (5 if pooling == "mean" else 1)
        found = model.pool(output, batch["attention_mask"])
        assert torch.allclose(found, plain, atol=0.05)
        assert not torch.allclose(model.features(batch | {"attention_mask": torch.ones_like(IDS)}), plain, atol=0.05)
        assert torch.equal(model.features(batch), plain)
    with pytest.raises(KeyboardInterrupt), scoring(accelerator, model):
        raise KeyboardInterrupt
    assert not any("forward" in vars(module) for module in model.modules())
