"""Snapshots that are written while training goes on hold what the model was, and training ends when they cannot be."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoModel

from tests.by_hand import begin
from toolkit import finetune, open_run, pipeline, verify_run
from toolkit.config import RunConfig
from toolkit.snapshots.run_writer import RunWriter, start_run
from toolkit.training.saver import Saver
from toolkit.training.step_recorder import Recorder

write_snapshot = RunWriter.write_snapshot


def test_what_analysis_needs_of_the_model_is_there_before_the_first_snapshot(
    tiny_config: RunConfig, tmp_path: Path
) -> None:
    """Whoever looks at a run while it trains reads words."""
    (loaded, data), writer = begin(tiny_config), start_run(tmp_path / "run")
    Saver(writer, tiny_config, data, loaded, Recorder({}), torch.device("cpu"))
    writer.release()
    run = open_run(tmp_path / "run")
    assert run.vocabulary is not None
    tokens = loaded.tokenizer.convert_ids_to_tokens(range(len(loaded.tokenizer)))
    assert list(run.vocabulary.tokens[: len(tokens)]) == tokens
    assert run.config == tiny_config


@pytest.mark.parametrize("freeze", ["none", "embeddings", "backbone"])
def test_training_goes_on_while_a_snapshot_waits_and_the_snapshot_does_not_change(
    freeze: str, tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epoch 0 is written after two steps have been taken: it is the checkpoint all the same."""
    has_stepped, steps, waited = threading.Event(), [], []
    record_rates, compute = Recorder.record_rates, pipeline._Training._outputs_of

    def slow(self: RunWriter, epoch: float, step: int, tensors: Any, **kwargs: Any) -> Path:
        if step == 0:
            waited.append(has_stepped.wait(60))
        return write_snapshot(self, epoch, step, tensors, **kwargs)

    def noted(self: Recorder, *rates: float) -> None:
        record_rates(self, *rates)
        steps.append(rates)
        if len(steps) == 2:
            has_stepped.set()

    monkeypatch.setattr(RunWriter, "write_snapshot", slow)
    monkeypatch.setattr(Recorder, "record_rates", noted)
    # Outputs of epoch 0 are saved after its snapshot: without them two steps come first.
    monkeypatch.setattr(
        pipeline._Training, "_outputs_of", lambda self, moment: compute(self, moment) if moment.step else None
    )
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), freeze=freeze, learning_rate=0.01))
    assert waited == [True]
    before = AutoModel.from_pretrained(tiny_config.model).embeddings
    first, last = run.trajectory.snapshots[0].tensors, run.trajectory.snapshots[-1].tensors
    names = {"word_embeddings": before.word_embeddings.weight, "LayerNorm.weight": before.LayerNorm.weight}
    for name, parameter in names.items():
        np.testing.assert_array_equal(first[name], parameter.detach().numpy())
        assert np.array_equal(first[name], last[name]) == (freeze != "none")


def test_outputs_are_computed_while_the_snapshot_is_written(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_computed, waited = threading.Event(), []
    compute_outputs = pipeline._Training._outputs_of

    def slow(self: RunWriter, *args: Any, **kwargs: Any) -> Path:
        waited.append(has_computed.wait(60))
        has_computed.clear()
        return write_snapshot(self, *args, **kwargs)

    def computed(*args: Any) -> Any:
        outputs = compute_outputs(*args)
        has_computed.set()
        return outputs

    monkeypatch.setattr(RunWriter, "write_snapshot", slow)
    monkeypatch.setattr(pipeline._Training, "_outputs_of", computed)
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), epochs=2))
    assert waited == [True] * 3
    assert verify_run(run.path) == []


@pytest.mark.parametrize("freeze", ["none", "backbone"])
def test_a_full_disk_ends_training_before_the_epoch_does(
    freeze: str, tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of epoch 0 are the last thing that is written before the steps of epoch 1."""
    taken: list[int] = []
    record_step = Recorder.record_step

    def noted(self: Recorder, *args: Any) -> None:
        taken.append(len(taken))
        time.sleep(0.2)
        record_step(self, *args)

    monkeypatch.setattr(RunWriter, "write_scores", Mock(side_effect=OSError(28, "No space left on device")))
    monkeypatch.setattr(Recorder, "record_step", noted)
    with pytest.raises(OSError, match="No space left on device"):
        finetune(replace(tiny_config, output_dir=str(tmp_path), freeze=freeze, batch_size=4))
    assert 1 <= len(taken) <= 3
    (path,) = tmp_path.iterdir()
    assert not open_run(path).is_finished
    assert not path.with_name(f".{path.name}.lock").exists()
