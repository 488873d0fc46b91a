"""Our dropout is dropout: the same distribution, the right gradient, its own seed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from toolkit.models.classifier import load_classifier
from toolkit.training.shortcuts import StandIn, drop, leave_shortcuts, take_shortcuts

ONES = torch.ones(400_003)
"""No multiple of four: the last word is used in part."""


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elements_are_dropped_with_the_probability_and_the_rest_is_scaled(probability, dtype):
    torch.manual_seed(0)
    out = drop(ONES.to(dtype), probability)
    kept = out[out != 0]
    assert stats.binomtest(len(ONES) - len(kept), len(ONES), probability).pvalue > 1e-3
    assert (kept == torch.tensor(1 / (1 - round(probability * 65536) / 65536)).to(dtype)).all()


def test_elements_are_dropped_independently():
    """Neighbours, elements four apart (the same place of the next word) and eight masks in a row do not agree."""
    torch.manual_seed(1)
    mask = (drop(ONES, 0.1) == 0).numpy().astype(float)
    for lag in (1, 2, 3, 4, 8, 1024):
        assert abs(np.corrcoef(mask[:-lag], mask[lag:])[0, 1]) < 4 / np.sqrt(len(mask))
    masks = np.stack([(drop(ONES[:20_000], 0.3) == 0).numpy() for _ in range(8)])
    assert np.abs(np.corrcoef(masks)[np.triu_indices(8, 1)]).max() < 4.5 / np.sqrt(20_000)
    counts = np.bincount(masks.sum(axis=0), minlength=9)
    expected = stats.binom.pmf(np.arange(9), 8, round(0.3 * 65536) / 65536) * 20_000
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-3


def test_every_place_of_a_word_has_the_probability():
    """A planted fault would be to read the words as 8-bit or signed numbers: some places would drop more."""
    torch.manual_seed(2)
    dropped = (drop(ONES[:400_000], 0.1) == 0).numpy().reshape(-1, 4)
    for place in range(4):
        assert stats.binomtest(int(dropped[:, place].sum()), len(dropped), 6554 / 65536).pvalue > 1e-3


@given(st.floats(0.01, 0.99), st.integers(1, 200), st.integers(0, 2**31))
def test_the_gradient_is_the_mask(probability, number, seed):
    torch.manual_seed(seed)
    states = torch.full((number,), 3.0, dtype=torch.float64, requires_grad=True)
    out = drop(states, probability)
    (out * torch.arange(number)).sum().backward()
    assert torch.allclose(states.grad, out.detach() / 3 * torch.arange(number), rtol=1e-12)


def test_a_seed_repeats_the_mask_and_the_next_call_draws_another():
    torch.manual_seed(5)
    first, second = drop(ONES, 0.5), drop(ONES, 0.5)
    torch.manual_seed(5)
    assert torch.equal(drop(ONES, 0.5), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_with_probability_0_and_all_with_1():
    assert torch.equal(drop(ONES, 0.0), ONES)
    assert torch.equal(drop(ONES, 1.0), torch.zeros_like(ONES))


def test_for_the_gradient_the_mask_alone_is_kept():
    """Beside the states a layer would hold a copy of each of its dropouts' outputs."""
    states, kept = ONES.clone().requires_grad_(), []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = drop(states, 0.25)
    assert len(kept) == 1
    assert torch.equal(kept[0], out.detach())  # as the states are 1


def test_dropout_modules_are_stood_in_for_and_nothing_else_and_all_is_undone(tiny_model):
    backbone = load_classifier(str(tiny_model("bert")), pooling="mean", num_outputs=2).model.backbone
    backbone.others = nn.ModuleList([nn.Dropout1d(0.2), nn.Linear(2, 2)])
    names = [name for name, _ in backbone.named_parameters()]
    dropouts = [module for module in backbone.modules() if type(module) is nn.Dropout]
    for module in dropouts:
        module.p = 0.5
    attention = take_shortcuts(backbone, "mean")
    assert {m for m in backbone.modules() if isinstance(vars(m).get("forward"), StandIn)} == set(dropouts)
    torch.manual_seed(0)
    expected = drop(ONES, 0.5)
    torch.manual_seed(0)
    assert torch.equal(dropouts[0].train()(ONES), expected)
    assert dropouts[0].eval()(ONES) is ONES
    assert [name for name, _ in backbone.named_parameters()] == names
    leave_shortcuts(backbone, attention)
    assert not any("forward" in vars(module) for module in backbone.modules())
    assert backbone.config._attn_implementation == attention
