"""LP-FT: the head is trained first on cached features, and nothing else has happened when epoch 0 is saved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from toolkit import Run, finetune
from toolkit.comparison.runs import STAGES
from toolkit.config import RunConfig


def run(config: RunConfig, folder: Path, **changes: object) -> Run:
    return finetune(replace(config, output_dir=str(folder), **changes))


def logits(finished: Run, epoch: float) -> pd.Series:
    table = finished.predictions[finished.predictions["epoch"] == epoch].set_index(["split", "id"])["scores"]
    return table.map(np.asarray)


@pytest.fixture(scope="module")
def runs(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("lpft")
    config = replace(tiny_config, head_learning_rate=0.02, epochs=2)
    return {
        "lpft": run(config, folder, head_epochs=2),
        "full": run(config, folder),
        "probe": run(config, folder, freeze="backbone"),
    }


def test_epoch_0_is_where_feature_extraction_of_as_many_epochs_ends(runs: dict[str, Run]) -> None:
    # The same head, batches, schedule and features: an identity, up to the rounding of batches of another shape.
    first, probe, full = logits(runs["lpft"], 0), logits(runs["probe"], 2), logits(runs["full"], 0)
    assert np.allclose(np.stack(first), np.stack(probe.loc[first.index]), atol=1e-5)
    assert not np.allclose(np.stack(first), np.stack(full.loc[first.index]), atol=1e-2)


def test_no_embedding_has_moved_and_no_step_is_counted_before_epoch_0(runs: dict[str, Run]) -> None:
    lpft, full = runs["lpft"], runs["full"]
    for name, tensor in full.trajectory.snapshots[0].tensors.items():
        assert np.array_equal(tensor, lpft.trajectory.snapshots[0].tensors[name])
        assert not np.array_equal(tensor, lpft.trajectory.snapshots[-1].tensors[name])
    assert len(lpft.optimizer_log.learning_rates) == len(full.optimizer_log.learning_rates)
    steps = [run.trajectory.exposure.tables["word_embeddings"].num_steps for run in (lpft, full)]
    assert steps[0] == steps[1] > 0


def test_the_manifest_says_what_the_head_did_first(runs: dict[str, Run]) -> None:
    manifest, stage = runs["lpft"].manifest, runs["lpft"].manifest["head_stage"]
    first, second = stage["train_loss"]
    assert (stage["epochs"], second < first, manifest["cost"]["seconds_head_stage"] > 0) == (2, True, True)
    assert {name for name in manifest["cost"] if name.startswith("seconds_")} <= {*STAGES}, (
        "a cost that no table counts"
    )
    assert runs["full"].manifest["head_stage"] is None
