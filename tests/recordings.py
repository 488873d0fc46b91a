"""A condition, a seed and some oddities in, a tiny recording of another training loop out."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.run_directories import write_run
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.snapshots.files import sha256_of_array
from toolkit.snapshots.run_writer import facts_of, start_run
from toolkit.snapshots.store import Run, open_run

OWN = "model.embeddings."
FROZEN: dict[str, tuple[str, ...]] = {"none": (), "embeddings": EMBEDDING_PARAMETERS, "backbone": EMBEDDING_PARAMETERS}
ARGUMENTS = {"learning_rate": 1e-4, "num_train_epochs": 3, "per_device_train_batch_size": 8, "bf16": False}


def write_recording(
    folder: Path,
    regime: str = "none",
    seed: int | None = 0,
    *,
    task: str | None = "trec",
    condition: str | None = None,
    scores: dict[str, float] | pd.DataFrame | None = None,
    begins: tuple[float, int] = (0.0, 0),
    arguments: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    predictions: pd.DataFrame | None = None,
    undefined: tuple[str, int] = ("", 0),
    name: str = "",
) -> Run:
    """A finished recording of ``regime``, whose snapshots are those of tests.run_directories' run of that seed.

    ``scores``: name to the value at the last epoch, by 0.1 less in each epoch before, or the lines of scores.csv, of
    which nothing says which score is the headline; None: without scores.csv.
    ``begins``: the epoch of the first snapshot, and the steps that were taken before it; ``undefined``: a parameter
    that holds NaN, and from which epoch on.
    """
    like = write_run(folder / ".like", "embeddings" if regime == "backbone" else regime, seed or 0, has_exposure=False)
    writer = start_run(folder / (name or f"{condition or regime}-{seed}"), is_recorded=True)
    writer.facts = facts_of(0, 1e-12)
    known = {"model": "tiny", "task": task, "condition": condition, "seed": seed, "recorded_by": "Trainer"}
    writer.write_recorded_config(known | {"arguments": ARGUMENTS if arguments is None else arguments})
    for snapshot in like.trajectory:
        tensors = {name: np.array(snapshot.tensors[name]) for name in snapshot.tensors}
        if undefined[0] and snapshot.epoch >= undefined[1]:
            tensors[undefined[0]].flat[0] = np.nan
        writer.write_snapshot(begins[0] + snapshot.epoch, snapshot.step, tensors)
    frozen = {OWN + name.replace("_embeddings", "_embeddings.weight"): tensors[name] for name in FROZEN[regime]}
    digests = {name: sha256_of_array(tensor) for name, tensor in frozen.items()}
    if predictions is not None:
        writer.write_predictions(predictions)
    if isinstance(scores, pd.DataFrame):
        writer.write_scores(scores)
    elif scores is not None:
        lines = [
            {"epoch": begins[0] + epoch, "step": epoch * 10, "split": "validation", "num_examples": np.nan}
            | {name: value - 0.1 * (3 - epoch) for name, value in scores.items()}
            for epoch in (1, 2, 3)
        ]
        writer.write_scores(pd.DataFrame(lines))
    writer.finish(
        {
            "recorded": True,
            "regime": {"label": regime, "frozen_components": sorted(FROZEN[regime])},
            "frozen": {
                "is_bit_identical": True,
                "parameters": {name: {"before": own, "after": own} for name, own in digests.items()},
            },
            "model": {"name": "tiny", "family": "BERT", "num_parameters": 5000, "num_trainable": 500},
            "task": {
                "name": task,
                "kind": None,
                "score": next(iter(scores), None) if isinstance(scores, dict) else None,
            }
            | {"reported_split": None if scores is None else "validation"},
            "begins_after_steps": begins[1],
            "problems": [],
            "devices": "cpu",
            "num_processes": 1,
            "versions": {"python": "3.11.9"},
        }
        | (facts or {})
    )
    return open_run(writer.path)
