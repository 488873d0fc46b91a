"""The attention is torch's, and a backbone's outputs do not change with it."""

import pytest
import torch
from torch.nn import functional

from tests.conftest import FAMILY_CONFIGS
from toolkit.models.classifier import load_classifier
from toolkit.training.shortcuts import ATTENTION_NAME, MOST_SHORT_TOKENS, attend, use_attention


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("tokens", [5, MOST_SHORT_TOKENS + 4])
@pytest.mark.parametrize("scaling", [None, 0.2])
def test_it_is_scaled_dot_product_attention(scaling, tokens, is_training):
    torch.manual_seed(0)
    query, key, value = (torch.randn(3, 2, tokens, 4, dtype=torch.float64) for _ in range(3))
    mask = torch.zeros(3, 1, tokens, tokens, dtype=torch.float64)
    mask[1, :, :, 3:] = mask[2, :, 1, 2] = torch.finfo(torch.float64).min  # keys of an example, and one of one query
    for own in (mask, None):
        out, _ = attend(torch.nn.Identity().train(is_training), query, key, value, own, scaling=scaling)
        expected = functional.scaled_dot_product_attention(query, key, value, own, scale=scaling).transpose(1, 2)
        assert torch.allclose(out, expected, atol=1e-12)


def test_dropout_drops_shares_and_keeps_their_mean():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 1, 6, 4, dtype=torch.float64) for _ in range(3))
    plain, _ = attend(torch.nn.Identity(), query, key, value, None)
    draws = torch.stack([attend(torch.nn.Identity(), query, key, value, None, dropout=0.3)[0] for _ in range(4000)])
    error = (draws.mean(0) - plain) / (draws.std(0) / 4000**0.5)
    assert error.abs().max() < 4.5
    assert draws.std(0).min() > 0


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_a_backbone_computes_the_same_with_it(tiny_model, family):
    model = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2).model.eval()
    ids = torch.tensor([[1, 9, 8, 12, 2], [1, 30, 2, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    with torch.inference_mode():
        plain = model(**batch)
        before = use_attention(model.backbone, ATTENTION_NAME)
        switched = model(**batch)
    if before is None:
        assert family == "deberta-v2"  # its attention is its own code
        return
    assert model.backbone.config._attn_implementation == ATTENTION_NAME
    assert use_attention(model.backbone, before) == ATTENTION_NAME
    assert torch.allclose(plain, switched, atol=1e-6)
