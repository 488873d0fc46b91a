"""The controlled tasks do what they were built for, with the real embedded model: minutes, so ``make test-slow``."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import saved
from toolkit import finetune
from toolkit.config import RunConfig
from toolkit.models.classifier import load_classifier

pytestmark = pytest.mark.slow


def accuracies(config: RunConfig) -> dict[str, float]:
    """Split to accuracy at the last epoch."""
    scores = finetune(config).scores
    last = scores[scores["epoch"] == scores["epoch"].max()]
    return dict(zip(last["split"], last["accuracy"], strict=True))


@pytest.mark.parametrize(("task", "rate"), [("polarity", 5e-5), ("order", 5e-5), ("pair", 2e-4)])
def test_full_fine_tuning_learns_every_builtin_task(task: str, rate: float, tmp_path: Path) -> None:
    """In one epoch; at the default rate of the others pair takes three."""
    config = RunConfig(task=task, epochs=1, learning_rate=rate, output_dir=str(tmp_path))
    assert accuracies(config)["test"] >= 0.95


def test_without_positions_order_stays_at_chance(tmp_path: Path) -> None:
    """The position table is zeroed and frozen: then the model sees a bag of words, and every bag has both labels."""
    loaded = load_classifier("minilm", pooling="mean", num_outputs=2)
    with torch.no_grad():
        loaded.model.backbone.embeddings.position_embeddings.weight.zero_()
    folder = saved(loaded.model.backbone, loaded.tokenizer, tmp_path / "no-positions")
    frozen: Any = {"freeze": "position_embeddings", "epochs": 1}  # as long as it takes with positions
    config = RunConfig(model=str(folder), task="order", output_dir=str(tmp_path), **frozen)
    for split, accuracy in accuracies(config).items():
        assert 0.45 <= accuracy <= 0.55, (split, accuracy)
