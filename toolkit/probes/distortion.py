"""How far fine-tuning moved the features, how well heads began, and which gradients came first."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from toolkit.comparison.runs import splits_out_of_distribution
from toolkit.data.batches import EncodedTask, evaluation_batches
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.models.classifier import Loaded
from toolkit.models.heads import example_losses
from toolkit.models.lora import put_adapters
from toolkit.models.new_tokens import hold_old_rows
from toolkit.models.regimes import Regime, apply_regime, list_components
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.naming import at_least, unknown
from toolkit.probes.embedding_layer import ANSWERED, batch_on, task_of
from toolkit.progress import shows_progress
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, runs_of
from toolkit.training.accelerators import build_accelerator
from toolkit.training.encoding import encode_task
from toolkit.training.evaluation import compute_scores, extract_features
from toolkit.training.features import linear_probe, train_head_first

STILL = "no feature moved"
NO_SPREAD = "all features are equal: no spread to hold a distance against"
CONSTANT = "a head gives every text one answer"

Features = NDArray[np.floating[Any]]


def feature_movement(before: Features, after: Features) -> dict[str, tuple[float, str]]:
    """How far (texts, hidden) pooled features moved, each with a note where it is undefined; float64 inside.

    ``feature_distance``: mean over texts of ‖f' - f‖, in the features' unit. ``relative_feature_distance``:
    √(Σ‖f' - f‖² / Σ‖f - f̄‖²), in spreads of the features before: 0 when nothing moved, √2 where f' is as f and has
    nothing to do with it; invariant to a rotation or scaling of both. ``shared_share``: ‖mean Δ‖² / mean ‖Δ‖², the
    part of the movement that all texts share and a bias could undo; 1 is a translation. Ours.
    """
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    change = second - first
    total, spread = float((change**2).sum()), float(((first - first.mean(axis=0)) ** 2).sum())
    shared = len(change) * float((change.mean(axis=0) ** 2).sum())
    return {
        "feature_distance": (float(np.linalg.norm(change, axis=1).mean()), ""),
        "relative_feature_distance": ((total / spread) ** 0.5, "") if spread else (float("nan"), NO_SPREAD),
        "shared_share": (shared / total, "") if total else (float("nan"), STILL),
    }


def head_alignment(start: Features, best: Features) -> tuple[float, str]:
    """Cosine of two heads on the same features, from their (texts, outputs) outputs, and a note where it is undefined.

    Outputs are centred over texts (a bias is no direction) and, of several, over outputs (which softmax cannot see);
    the cosine is that of what is left, so that heads v and v* have ⟨v, v*⟩_Σ / ‖v‖_Σ‖v*‖_Σ with Σ the covariance of
    the features. 1: the same direction, however long; 0 on average for a random head. The plain cosine
    of the weights would be ruled by directions in which no feature varies, and which no data determine (our choice).
    """
    sides = []
    for outputs in (start, best):
        centred = np.asarray(outputs, np.float64)
        centred = centred - centred.mean(axis=0)
        sides.append(centred - centred.mean(axis=1, keepdims=True) if centred.shape[1] > 1 else centred)
    first, second = sides
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return (float((first * second).sum()) / size, "") if size else (float("nan"), CONSTANT)


PARTS = ("embeddings", "body", "head")


def start_gradients(loaded: Loaded, data: EncodedTask, indices: NDArray[np.int64]) -> dict[str, float]:
    """Part in PARTS to the Euclidean norm of the gradient of the mean loss over some training examples, in eval mode.

    The parameters that have requires_grad count; NaN for a part that has none. Gradients are left at None.
    """
    model, split = loaded.model, data.splits["train"]
    assert split.labels is not None
    model.eval()
    model.zero_grad()
    for places in evaluation_batches(split.lengths[indices]):
        chosen = indices[places]
        outputs = model(**batch_on(model, split, chosen, data))
        losses = example_losses(data.task.kind, outputs, torch.from_numpy(split.labels[chosen]).to(outputs.device))
        (losses.sum() / len(indices)).backward()  # type: ignore[no-untyped-call]
    parameters, found = dict(model.named_parameters()), {}
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for leaf, own in list_components(model, loaded.family).items():
        parts["head" if leaf == "head" else "embeddings" if leaf in EMBEDDING_PARAMETERS else "body"] += own
    for part, names in parts.items():
        gradients = [p.grad for name in names if (p := parameters[name]).requires_grad and p.grad is not None]
        squared = sum(float(gradient.double().square().sum()) for gradient in gradients)
        found[part] = squared**0.5 if gradients else float("nan")
    model.zero_grad()
    return found


FROZEN = "frozen: it gets no gradient"
NO_PROBE = "no best linear head: a class has fewer than two training examples"


@shows_progress("feature distortion")
@with_columns
def measure_distortion(
    runs: Sequence[Run | str | Path],
    *,
    out_of_distribution: Collection[str] | None = None,
    num_gradient_examples: int = 512,
    seed: int = 0,
) -> pd.DataFrame:
    """How far fine-tuning moved the features (feature distortion), and how well the head fitted them at the start.

    Parameters
    ----------
    runs
        Finished runs with ``--save-model``, or the paths of their directories.
    out_of_distribution
        Names of the splits that are out of distribution, or one name; None takes those that each run's manifest names.
    num_gradient_examples
        Number of training examples behind the gradient norms.
    seed
        Seed of every random draw.

    Returns
    -------
    pandas.DataFrame
        One value per line; ``place`` is a split (all but train) or a part of the model. All is computed in fp32 and
        eval mode, whatever the run computed in. Undefined is NaN, and ``reason`` says why.

        Per split, ``feature_distance``, ``relative_feature_distance`` and ``shared_share`` of pooled features before
        and after the run: see :func:`toolkit.probes.distortion.feature_movement`.

        Per split, ``head_alignment`` of the head that training began with (with ``--head-epochs`` the one after the
        head stage, which is repeated) and the linear probe on the features before: see
        :func:`toolkit.probes.distortion.head_alignment`. ``start_loss`` and ``ceiling_loss`` are the losses of the two
        (nats, or squared error).

        Per part (embeddings, body, head), ``gradient_norm``: Euclidean norm of the gradient of the mean loss at step 0,
        without dropout or clipping. Body: all of the backbone but the embedding parameters. Of a part that is frozen in
        part, that of the rest.

    Raises
    ------
    ValueError
        There are no runs, no saved model or no split of that name, or the data can no longer be read.

    References
    ----------
    Kumar et al. 2022 (arXiv 2202.10054): a head that is not yet aligned with the features makes fine-tuning distort
    them, those of in-distribution texts above all; training the head first (LP-FT) prevents it. The definitions are
    ours (their theory is for two-layer linear networks).
    """
    opened = runs_of(runs)
    if not opened:
        raise ValueError("no runs to measure: pass at least one finished run with --save-model")
    for run in opened:
        if run.manifest["task"].get("kind") == "masked":
            raise ValueError(f"{run.path} {ANSWERED['masked']}: distortion is of features that a fresh head reads")
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
    head = loaded.model.head
    probe = linear_probe(head, before, data, config.seed)
    task, regime = run.manifest["task"], run.manifest["regime"]
    out = splits_out_of_distribution(task, after) if out is None else out
    lead = {"run": run.path.resolve().name, "model": Path(config.model).name, "task": task["name"]}
    lead |= {"regime": regime["label"], "head_epochs": config.head_epochs, "seed": config.seed}
    for split in after:
        place = {"place": split, "is_out_of_distribution": split in out, "num_examples": len(after[split])}
        with torch.inference_mode():
            start = head(torch.from_numpy(before[split]).to(next(head.parameters()).device)).cpu().numpy()
        best = None if probe is None else probe.outputs.get(split)
        found = feature_movement(before[split], after[split])
        none, labels = (float("nan"), NO_PROBE), data.splits[split].labels
        unlabelled = "" if labels is not None else "no labels"
        found["head_alignment"] = none if best is None else head_alignment(start, best)
        for measure, outputs in (("start_loss", start), ("ceiling_loss", best)):
            loss = float("nan") if outputs is None else compute_scores(data.task.kind, labels, outputs)["loss"]
            found[measure] = none if outputs is None else (loss, unlabelled)
        for measure, (value, reason) in found.items():
            yield lead | {"measure": measure} | place | {"value": value, "reason": reason}
    drawn = np.random.default_rng([*b"gradients", seed]).permutation(len(data.splits["train"]))
    chosen = np.sort(drawn[:num_gradient_examples])
    if config.train_rows == "new":
        hold_old_rows(loaded)
    put_adapters(loaded, config)
    apply_regime(loaded.model, Regime(regime["label"], frozenset(regime["frozen_components"])), loaded.family)
    for part, value in start_gradients(loaded, data, chosen).items():
        place = {"place": part, "is_out_of_distribution": pd.NA, "num_examples": len(chosen)}
        reason = FROZEN if np.isnan(value) else ""
        yield lead | {"measure": "gradient_norm"} | place | {"value": value, "reason": reason}
