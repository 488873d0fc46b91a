"""The top layer for its first token alone is the layer: that token's state, and every gradient that reaches it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from tests.conftest import FAMILY_CONFIGS
from toolkit.models.classifier import load_classifier
from toolkit.training import shortcuts
from toolkit.training.accelerators import build_accelerator
from toolkit.training.evaluation import scoring
from toolkit.training.shortcuts import StandIn, leave_shortcuts, run_first, take_shortcuts

EXAMPLES, TOKENS, HIDDEN, HEADS = 3, 5, 12, 2
NARROWED = {"bert", "roberta", "electra"}
IDS = torch.tensor([[1, 9, 8, 12, 2], [1, 30, 2, 0, 0]])
FIRST, SECOND = slice(0, 1), slice(1, 2)


def _layer(dropout: float = 0.0, **fields) -> BertLayer:
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
    layer = BertLayer(config).double().train()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def _states() -> torch.Tensor:
    return torch.randn(EXAMPLES, TOKENS, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _mask(kind: str) -> torch.Tensor | None:
    if kind == "none":
        return None
    mask = torch.zeros(EXAMPLES, 1, 1 if kind == "padding" else TOKENS, TOKENS, dtype=torch.float64)
    mask[1, ..., 3:] = torch.finfo(mask.dtype).min
    if kind == "pairs":  # of a query with a key, which no transposition may exchange
        for example, query, key in ((0, 1, 2), (2, 4, 0), (1, 0, 1)):
            mask[example, 0, query, key] = torch.finfo(mask.dtype).min
    return mask


def _run(function, layer, mask, states, tokens) -> dict[str, torch.Tensor]:
    """Outputs of some tokens, and every gradient of a loss of theirs that no symmetry hides."""
    states = states.clone().requires_grad_()
    layer.zero_grad()
    out = function(layer, states, mask)[:, tokens]
    (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    return {"out": out.detach(), "states": states.grad} | {n: p.grad.clone() for n, p in layer.named_parameters()}


def _plain(layer, states, mask) -> torch.Tensor:
    return layer(states, mask)


def _furthest(computed: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest relative difference (a key's bias has a gradient of rounding alone: hence the summand below)."""
    assert computed.keys() == expected.keys()
    return max(float((computed[n] - expected[n]).norm() / (expected[n].norm() + 1e-4)) for n in expected)


@pytest.mark.parametrize("kind", ["none", "padding", "pairs"])
def test_its_state_and_gradients_are_those_of_the_layer(kind):
    layer, states, mask = _layer(), _states(), _mask(kind)
    expected = _run(_plain, layer, mask, states, FIRST)
    assert run_first(layer, states, mask).shape == (EXAMPLES, 1, HIDDEN)
    assert _furthest(_run(run_first, layer, mask, states, FIRST), expected) < 1e-10
    assert _furthest(_run(_plain, layer, mask, states, SECOND), expected) > 1e-3
    if kind != "none":
        assert _furthest(_run(run_first, layer, None, states, FIRST), expected) > 1e-3
        said = _run(run_first, layer, mask == 0, states, FIRST)  # as transformers gives it to torch's own kernels
        assert _furthest(said, expected) < 1e-10


def test_dropout_stands_where_the_layer_has_it(monkeypatch):
    """With masks given, three of them, and the layer's own for its other tokens, which must not matter."""
    layer, states, drawn = _layer(dropout=0.25), _states(), []

    def drop(dropped, probability):
        assert probability == (0.25 if drawn else 0.125)  # of the shares of attention half as much, as configured
        torch.manual_seed(len(drawn))
        drawn.append(torch.randint(0, 3, dropped.shape).to(dropped.dtype))
        return dropped * drawn[-1]

    with monkeypatch.context() as patch:
        patch.setattr(shortcuts, "drop", drop)
        patch.setattr(nn.functional, "dropout", lambda dropped, p, *_, **__: drop(dropped, p))
        narrow = _run(run_first, layer, _mask("padding"), states, FIRST)
    assert [tuple(mask.shape) for mask in drawn] == [(EXAMPLES, HEADS, TOKENS, 1), *[(EXAMPLES, 1, HIDDEN)] * 2]
    shares, first, second = drawn
    others = torch.randint(0, 3, (EXAMPLES, TOKENS - 1, HIDDEN)).double()
    masks = iter(
        (
            torch.cat([shares.transpose(2, 3), torch.ones(EXAMPLES, HEADS, TOKENS - 1, TOKENS)], 2),
            torch.cat([first, others], 1),
            torch.cat([second, others], 1),
        )
    )
    monkeypatch.setattr(nn.functional, "dropout", lambda dropped, *_, **__: dropped * next(masks))
    assert _furthest(narrow, _run(_plain, layer, _mask("padding"), states, FIRST)) < 1e-10
    assert next(masks, None) is None


def test_in_eval_mode_nothing_is_dropped():
    layer = _layer(dropout=0.3).eval()
    assert torch.allclose(run_first(layer, _states(), None), layer(_states())[:, :1], atol=1e-12)


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_a_backbone_with_a_narrow_top_computes_the_same_first_state_and_is_put_back(tiny_model, family):
    backbone = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2).model.backbone.eval()

    def last_states() -> torch.Tensor:
        with torch.inference_mode():
            return backbone(input_ids=IDS, attention_mask=(IDS != 0).long()).last_hidden_state

    plain = last_states()
    for pooling in ("cls", "pooler"):
        attention = take_shortcuts(backbone, pooling)
        narrow = last_states()
        assert narrow.shape[1] == (1 if family in NARROWED else 5)
        assert torch.allclose(narrow[:, 0], plain[:, 0], atol=1e-5)
        leave_shortcuts(backbone, attention)
        assert not any("forward" in vars(module) for module in backbone.modules())
        assert torch.equal(last_states(), plain)


def test_a_top_of_which_more_is_read_or_that_computes_something_else_is_left_alone():
    class Backbone(nn.Module):
        def __init__(self, **fields) -> None:
            super().__init__()
            self.encoder = nn.Module()
            self.encoder.layer = nn.ModuleList([_layer(), _layer(**fields)])

        def _can_set_attn_implementation(self) -> bool:
            return False

    def narrowed(pooling="cls", **fields):
        backbone = Backbone(**fields)
        attention = take_shortcuts(backbone, pooling)
        stood_in = [isinstance(vars(layer).get("forward"), StandIn) for layer in backbone.encoder.layer]
        leave_shortcuts(backbone, attention)
        return stood_in

    assert narrowed() == narrowed("pooler") == narrowed(hidden_act="relu") == [False, True]
    for left in (narrowed("mean"), narrowed("last"), narrowed(is_decoder=True), narrowed(chunk_size_feed_forward=2)):
        assert left == [False, False]


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
        with scoring(accelerator, model):
            output = model.backbone(**batch)
        assert output.last_hidden_state.shape[1] == (5 if pooling == "mean" else 1)
        assert torch.allclose(model.pool(output, batch["attention_mask"]), plain, atol=0.05)
        assert not torch.allclose(model.features(batch | {"attention_mask": torch.ones_like(IDS)}), plain, atol=0.05)
        assert torch.equal(model.features(batch), plain)
    with pytest.raises(KeyboardInterrupt), scoring(accelerator, model):
        raise KeyboardInterrupt
    assert not any("forward" in vars(module) for module in model.modules())
