"""What most tests of a recorded loop start with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.recorded_texts import load


@pytest.fixture
def model(tiny_model: Callable[[str], Path]) -> Any:
    """A tiny BERT under a new classification head, the same for every test, in eval mode."""
    return load(tiny_model("bert"))[0]


@pytest.fixture
def tokenizer(tiny_model: Callable[[str], Path]) -> Any:
    return load(tiny_model("bert"))[1]


@pytest.fixture
def adamw(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)
