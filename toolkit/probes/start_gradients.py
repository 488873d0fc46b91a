"""A classifier and training examples in, how large the first gradient of each part of the model is out."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EncodedTask, evaluation_batches, make_batch
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.models.classifier import Loaded
from toolkit.models.regimes import list_components
from toolkit.training.losses import example_losses

PARTS = ("embeddings", "body", "head")


def start_gradients(loaded: Loaded, data: EncodedTask, indices: NDArray[np.int64]) -> dict[str, float]:
    """Part in PARTS to the Euclidean norm of the gradient of the mean loss over some training examples, in eval mode.

    The parameters that have requires_grad count; NaN for a part that has none. Gradients are left at None.
    """
    model, split = loaded.model, data.splits["train"]
    assert split.labels is not None
    model.eval()
    model.zero_grad()
    device = next(model.parameters()).device
    for places in evaluation_batches(split.lengths[indices]):
        chosen = indices[places]
        batch = {name: tensor.to(device) for name, tensor in make_batch(split, chosen, data).items()}
        labels = torch.from_numpy(split.labels[chosen]).to(device)
        losses = example_losses(data.task.kind, model(**batch), labels)
        (losses.sum() / len(indices)).backward()  # type: ignore[no-untyped-call]
    parameters, found = dict(model.named_parameters()), {}
    for part, names in _parts(loaded).items():
        gradients = [p.grad for name in names if (p := parameters[name]).requires_grad and p.grad is not None]
        squared = sum(float(gradient.double().square().sum()) for gradient in gradients)
        found[part] = squared**0.5 if gradients else float("nan")
    model.zero_grad()
    return found


def _parts(loaded: Loaded) -> Mapping[str, list[str]]:
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for leaf, names in list_components(loaded.model, loaded.family).items():
        parts["head" if leaf == "head" else "embeddings" if leaf in EMBEDDING_PARAMETERS else "body"] += names
    return parts
