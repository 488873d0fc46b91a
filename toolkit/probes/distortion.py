"""Runs that kept their models in, how far features moved, how well heads began and which gradients came first out."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from toolkit.comparison.reported import splits_out_of_distribution
from toolkit.counts import at_least
from toolkit.data.batches import EncodedTask
from toolkit.lookup import unknown
from toolkit.models.classifier import Loaded
from toolkit.models.regimes import Regime, apply_regime
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.probes.feature_changes import Array, feature_movement, head_alignment
from toolkit.probes.start_gradients import start_gradients
from toolkit.probes.tasks import task_of
from toolkit.progress import shows_progress
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, runs_of
from toolkit.training.accelerators import build_accelerator
from toolkit.training.encoding import encode_task
from toolkit.training.evaluation import extract_features
from toolkit.training.features import linear_probe, train_head_first
from toolkit.training.scores import compute_scores

FROZEN = "frozen: it gets no gradient"
NO_CEILING = "no best linear head: a class has fewer than two training examples"


@shows_progress("feature distortion")
@with_columns
def measure_distortion(
    runs: Sequence[Run | str | Path],
    *,
    out_of_distribution: Collection[str] | None = None,
    num_gradient_examples: int = 512,
    seed: int = 0,
) -> pd.DataFrame:
    """Feature distortion of finished runs with ``--save-model``: one value per line.

    Idea: Kumar et al. 2022 (arXiv 2202.10054): a head that is not yet aligned with the features makes fine-tuning
    distort them, those of in-distribution texts above all, and training the head first (LP-FT) prevents it. The
    definitions are ours (their theory is for two-layer linear networks). ``place`` is a split (all but
    train) or a part of the model; all in fp32 and eval mode, whatever the run computed in:

    - ``feature_distance``, ``relative_feature_distance`` and ``shared_share`` per split, of pooled features before and
      after the run: see :func:`feature_movement`.
    - ``head_alignment`` per split, of the head that training began with (with ``--head-epochs`` the one after the
      head stage, which is repeated) and the best linear head on the features before: see :func:`head_alignment`;
      ``start_loss`` and ``ceiling_loss``: their losses (nats, or squared error).
    - ``gradient_norm`` per part (embeddings, body, head): Euclidean norm of the gradient of the mean loss at step 0,
      without dropout or clipping, over ``num_gradient_examples`` training examples drawn with ``seed``; body: all of
      the backbone but the embedding parameters. Of a part that is frozen in part, that of the rest.

    ``out_of_distribution``: names of the splits that are so, or one; None takes those that each run's manifest names
    (:func:`toolkit.comparison.reported.splits_out_of_distribution`).
    Undefined is NaN with a ``reason``. ValueError: no runs, no saved model, a split that no run has, data that cannot
    be read any more.
    """
    opened = runs_of(runs)
    if not opened:
        raise ValueError("no runs to measure: pass at least one finished run with --save-model")
    at_least("num_gradient_examples", num_gradient_examples, 1)
    splits = [split for run in opened for split in run.manifest["task"]["splits"] if split != "train"]
    if isinstance(out_of_distribution, str):
        out_of_distribution = (out_of_distribution,)
    for split in out_of_distribution or ():
        if split not in splits:
            raise ValueError(f"out_of_distribution: {unknown(split, 'split', tuple(dict.fromkeys(splits)))}")
    lines = [line for run in opened for line in _lines_of(run, out_of_distribution, num_gradient_examples, seed)]
    return pd.DataFrame(lines, columns=columns_of("measure_distortion")).astype({"is_out_of_distribution": "boolean"})


def _lines_of(run: Run, out: Collection[str] | None, num_gradient_examples: int, seed: int) -> Iterator[dict[str, Any]]:
    tuned, loaded = load_tuned(run), load_untuned(run)
    config = replace(run.config, precision="no", log_with=None)
    accelerator, data = build_accelerator(config), encode_task(task_of(run), loaded, config.max_length)
    before = extract_features(accelerator, loaded.model, data)
    after = extract_features(accelerator, tuned.model, data, before.keys() - {"train"})
    if config.head_epochs:
        train_head_first(accelerator, loaded.model, data, config)
    found_probe = linear_probe(loaded.model.head, before, data, config.seed)
    probe = {} if found_probe is None else found_probe.outputs
    task = run.manifest["task"]["name"]
    out = splits_out_of_distribution(run.manifest["task"], after) if out is None else out
    lead = {"run": run.path.resolve().name, "model": Path(config.model).name, "task": task}
    lead |= {"regime": config.freeze, "head_epochs": config.head_epochs, "seed": config.seed}
    for split in after:
        place = {"place": split, "is_out_of_distribution": split in out, "num_examples": len(after[split])}
        outputs = _head_outputs(loaded, before[split])
        found = {**feature_movement(before[split], after[split]), **_start(data, split, outputs, probe.get(split))}
        for measure, (value, reason) in found.items():
            yield lead | {"measure": measure} | place | {"value": value, "reason": reason}
    chosen = _draw(len(data.splits["train"]), num_gradient_examples, seed)
    regime = run.manifest["regime"]
    apply_regime(loaded.model, Regime(regime["label"], frozenset(regime["frozen_components"])), loaded.family)
    for part, value in start_gradients(loaded, data, chosen).items():
        place = {"place": part, "is_out_of_distribution": pd.NA, "num_examples": len(chosen)}
        reason = FROZEN if np.isnan(value) else ""
        yield lead | {"measure": "gradient_norm"} | place | {"value": value, "reason": reason}


def _start(
    data: EncodedTask, split: str, outputs: Array, ceiling: NDArray[np.float32] | None
) -> dict[str, tuple[float, str]]:
    """Of one split, how the head that training began with stands to the best linear one."""
    kind, labels = data.task.kind, data.splits[split].labels
    none = (float("nan"), NO_CEILING)
    unlabelled = "" if labels is not None else "no labels"
    losses = [none if x is None else (compute_scores(kind, labels, x)["loss"], unlabelled) for x in (outputs, ceiling)]
    alignment = none if ceiling is None else head_alignment(outputs, ceiling)
    return {"head_alignment": alignment, "start_loss": losses[0], "ceiling_loss": losses[1]}


@torch.inference_mode()
def _head_outputs(loaded: Loaded, features: NDArray[np.float32]) -> NDArray[np.float32]:
    head = loaded.model.head
    outputs: NDArray[np.float32] = head(torch.from_numpy(features).to(next(head.parameters()).device)).cpu().numpy()
    return outputs


def _draw(num: int, wanted: int, seed: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng([*b"gradients", seed]).permutation(num)[:wanted])
