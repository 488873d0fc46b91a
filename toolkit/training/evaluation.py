"""A model and splits in, its outputs for every example out, shared out over processes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches, make_batch
from toolkit.models.classifier import Classifier


def evaluate(accelerator: Any, model: Classifier, data: EncodedTask) -> dict[str, NDArray[np.float32]]:
    """Outputs of every split but ``train``, on all processes; dropout off, and the mode put back afterwards."""
    return {
        name: run_over(accelerator, model, lambda batch: model(**batch), split, data)
        for name, split in data.splits.items()
        if name != "train"
    }


def run_over(
    accelerator: Any,
    model: torch.nn.Module,
    function: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    split: EncodedSplit,
    data: EncodedTask,
) -> NDArray[np.float32]:
    """(examples, width) ``function`` of every example in eval mode, shared out over processes and gathered on all."""
    from accelerate.utils import gather_object

    was_training = model.training
    model.eval()
    mine = evaluation_batches(split.lengths)[accelerator.process_index :: accelerator.num_processes]
    results = []
    with torch.inference_mode(), accelerator.autocast():
        for indices in mine:
            batch = {k: v.to(accelerator.device) for k, v in make_batch(split, indices, data).items()}
            results.append((indices, function(batch).float().cpu().numpy()))
    model.train(was_training)
    results = gather_object(results)
    gathered = np.empty((len(split), results[0][1].shape[1]), np.float32)
    for indices, values in results:
        gathered[indices] = values
    return gathered
