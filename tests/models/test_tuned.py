"""What a run saved is what it was scored with."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from toolkit.config import RunConfig
from toolkit.data.batches import make_batch
from toolkit.data.tasks import load_task
from toolkit.models.classifier import Loaded
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.pipeline import finetune
from toolkit.snapshots.store import Run
from toolkit.training.encoding import encode_task


def logits(loaded: Loaded, run: Run) -> np.ndarray:
    data = encode_task(load_task(run.config), loaded, run.config.max_length)
    split = data.splits["validation"]
    with torch.inference_mode():
        return np.asarray(loaded.model(**make_batch(split, np.arange(len(split)), data)))


def test_the_tuned_and_the_untuned_model_repeat_the_predictions(tiny_config: RunConfig, tmp_path: Path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), save_model=True))
    predictions = run.predictions[run.predictions.split == "validation"]
    for loaded, epoch in ((load_untuned(run), 0), (load_tuned(run), 2)):
        recorded = np.stack(predictions[predictions.epoch == epoch].sort_values("id").scores.to_list())
        np.testing.assert_allclose(logits(loaded, run), recorded, atol=1e-5)
    assert not np.allclose(logits(load_untuned(run), run), logits(load_tuned(run), run), atol=1e-3)


def test_a_run_without_its_model_says_what_to_do(tiny_config: RunConfig, tmp_path: Path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1))
    with pytest.raises(ValueError, match="--save-model"):
        load_tuned(run)
