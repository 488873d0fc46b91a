"""Packed dropout is dropout: the same distribution, the right gradient, its own seed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from toolkit.training.fast_layer import PackedDropout, draw_mask, drop, pack_dropout

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
        r = np.corrcoef(mask[:-lag], mask[lag:])[0, 1]
        assert abs(r) < 4 / np.sqrt(len(mask))
    masks = np.stack([(drop(ONES[:20_000], 0.3) == 0).numpy() for _ in range(8)])
    assert np.abs(np.corrcoef(masks)[np.triu_indices(8, 1)]).max() < 4.5 / np.sqrt(20_000)
    counts = np.bincount(masks.sum(axis=0), minlength=9)
    expected = stats.binom.pmf(np.arange(9), 8, round(0.3 * 65536) / 65536) * 20_000
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-3


def test_every_place_of_a_word_has_the_probability():
    """A planted fault would be to read the words as 8-bit or signed numbers: some places would drop more."""
    torch.manual_seed(2)
    dropped = (draw_mask(torch.Size((400_000,)), 6554, torch.float32) == 0).numpy().reshape(-1, 4)
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


def test_nothing_is_dropped_in_eval_mode_or_with_probability_0_and_all_with_1():
    assert PackedDropout(0.5).eval()(ONES) is ONES
    assert torch.equal(drop(ONES, 0.0), ONES)
    assert torch.equal(drop(ONES, 1.0), torch.zeros_like(ONES))


def test_dropout_modules_are_packed_in_place_and_nothing_else():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.3)), nn.Dropout1d(0.2))
    names = [name for name, _ in model.named_parameters()]
    pack_dropout(model)
    assert type(model[1][0]) is PackedDropout
    assert model[1][0].p == 0.3
    assert type(model[2]) is nn.Dropout1d
    assert [name for name, _ in model.named_parameters()] == names
