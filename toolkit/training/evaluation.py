"""A model and splits in, its outputs for every example out, shared out over processes."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches, make_batch
from toolkit.models.classifier import Classifier
from toolkit.models.locate import locate_embeddings
from toolkit.training.accelerators import is_fast
from toolkit.training.fast.half import HalfBackbone, halved_names

Batch = dict[str, torch.Tensor]


def evaluate(accelerator: Any, model: Classifier, data: EncodedTask) -> dict[str, NDArray[np.float32]]:
    """Outputs of every split but ``train``, on all processes; dropout off, and the mode put back afterwards."""
    score = scorer(accelerator, model)
    return {
        name: run_over(accelerator, model, score, split, data) for name, split in data.splits.items() if name != "train"
    }


def extract_features(
    accelerator: Any, model: Classifier, data: EncodedTask, splits: Collection[str] | None = None
) -> Mapping[str, NDArray[np.float32]]:
    """(examples, hidden) pooled vectors of every split (or of ``splits``), on all processes, in eval mode."""
    model.to(accelerator.device)
    backbone = _scoring_backbone(accelerator, model)
    chosen = {name: split for name, split in data.splits.items() if splits is None or name in splits}

    def pool(batch: Batch) -> torch.Tensor:
        return model.pool(backbone(**batch), batch["attention_mask"])

    return {name: run_over(accelerator, model, pool, split, data) for name, split in chosen.items()}


def scorer(accelerator: Any, model: Classifier) -> Callable[[Batch], torch.Tensor]:
    """The model's outputs of a batch, as it is now: weights that change afterwards need another scorer."""
    backbone = _scoring_backbone(accelerator, model)
    return lambda batch: model.classify(backbone(**batch), batch["attention_mask"])


def _scoring_backbone(accelerator: Any, model: Classifier) -> Callable[..., Any]:
    """The backbone; in one bf16 CPU process with half-precision copies, instead of casts in every batch."""
    if not (is_fast(accelerator) and accelerator.mixed_precision == "bf16"):
        return model.backbone
    embeddings = locate_embeddings(model.backbone)
    parameters = dict(embeddings.backbone.named_parameters())
    copies = {name: parameters[name].detach().bfloat16() for name in halved_names(embeddings)}
    return HalfBackbone(embeddings, copies, torch.bfloat16)


def run_over(
    accelerator: Any,
    model: torch.nn.Module,
    function: Callable[[Batch], torch.Tensor],
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
