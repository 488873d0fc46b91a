"""Rounding to a precision against torch's own, and which precision holds some weights."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.analysis.precision import FORMATS, FormatFinder

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_rounding_is_that_of_torch(name, values):
    """float32 inputs: their rounding to a coarser format is exact, ties and subnormals included."""
    expected = torch.tensor(values, dtype=torch.float32).to(TORCH[name]).double().numpy()
    assert np.array_equal(FORMATS[name].round(np.array(values, np.float64)), expected)


def stored_in(values):
    finder = FormatFinder()
    for block in np.array_split(values, max(1, len(values) // 65_536)):
        finder.add(block.astype(np.float64))
    return finder.format.name


def test_stored_precision_sees_through_the_dtype():
    weights = torch.randn(3000, generator=torch.Generator().manual_seed(1)) * 0.04
    for name in ("bf16", "fp16"):
        assert stored_in(weights.to(TORCH[name]).float().numpy()) == name
    assert stored_in(weights.numpy()) == stored_in(np.ones(3000, np.float32)) == "fp32"
    many = np.tile(weights.bfloat16().float().numpy(), 50)
    assert stored_in(many) == "bf16"
    many[-1] = 0.1
    assert stored_in(many) == "fp32"  # one value decides, wherever it stands
