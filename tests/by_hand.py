"""What a run does, in plain code: what it starts from, an epoch of its training, and what its model answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from toolkit.config import RunConfig, recipe_of
from toolkit.data.batches import EncodedTask, epoch_batches, make_batch
from toolkit.data.tasks import load_task
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.heads import example_losses
from toolkit.snapshots.store import Run
from toolkit.training.encoding import encode_task
from toolkit.training.optimizer import learning_rate_factors


def begin(config: RunConfig, **options: Any) -> tuple[Loaded, EncodedTask]:
    """The classifier that a run starts from, and its task in tokens; ``options``: others than those of the config."""
    task = load_task(config)
    own = {"num_outputs": task.num_outputs, "is_token_task": task.kind == "tokens", "seed": config.seed}
    loaded = load_classifier(config.model, **(recipe_of(config) | own | {"dropout": config.dropout} | options))
    return loaded, encode_task(task, loaded, config.max_length)


def take_epoch(
    model: Any,
    groups: list[dict[str, Any]],
    data: EncodedTask,
    config: RunConfig,
    before_step: Callable[[], object] = lambda: None,
    after_step: Callable[[], object] = lambda: None,
) -> list[float]:
    """An epoch on parameter groups, each with the ``peak`` of its learning rate; the clipping factors of its steps."""
    kind: Any = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.SGD
    stepper, split, clipping = kind(groups, lr=0.0), data.splits["train"], []
    batches = epoch_batches(split.lengths, config, 0)
    for indices, factor in zip(batches, learning_rate_factors(len(batches), config.warmup_fraction), strict=True):
        labels = torch.from_numpy(split.labels[indices])
        stepper.zero_grad()
        example_losses("classes", model(**make_batch(split, indices, data)), labels).mean().backward()
        before_step()
        parameters = [p for group in groups for p in group["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.max_gradient_norm))
        clipping.append(min(1.0, config.max_gradient_norm / (norm + 1e-6)))
        for group in stepper.param_groups:
            group["lr"] = group["peak"] * factor
        stepper.step()
        after_step()
    return clipping


def logits(loaded: Loaded, run: Run) -> np.ndarray:
    """(examples, outputs) what a model answers to the validation split of a run."""
    data = encode_task(load_task(run.config), loaded, run.config.max_length)
    split = data.splits["validation"]
    with torch.inference_mode():
        return np.asarray(loaded.model(**make_batch(split, np.arange(len(split)), data)))
