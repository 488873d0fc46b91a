"""A model and a batch in, every stage of its forward pass out: the sum before LayerNorm, the layers, the logits."""

from dataclasses import dataclass
from typing import Any

import torch

from toolkit.data.batches import EncodedSplit, EncodedTask, make_batch
from toolkit.models.classifier import Loaded
from toolkit.schema import columns_of

PLACE = ("run", "group", "condition", "seed")
"""Which model a line is about: the first columns of each table of :func:`toolkit.measure_flow`."""

BEFORE_LAYER_NORM = -1
"""The stage before layer 0: word + position + segment, before the embedding LayerNorm."""


def own_columns(table: str) -> list[str]:
    """The columns of one of these tables that do not say which model it is about."""
    return columns_of(f"measure_flow.{table}")[len(PLACE) :]


@dataclass(frozen=True, slots=True)
class Stages:
    """One batch through the model."""

    mask: torch.Tensor
    """(examples, longest) bool: real tokens."""
    layers: tuple[torch.Tensor, ...]
    """(examples, longest, size) each: the sum before LayerNorm, the encoder's input (layer 0), layers 1 to L."""
    logits: torch.Tensor
    """(examples, outputs) of the head, whether or not it was ever trained."""


def forward_stages(loaded: Loaded, split: EncodedSplit, indices: Any, data: EncodedTask) -> Stages:
    """Run some examples of a split through a model in the mode that it is in; nothing is cast."""
    device = next(loaded.model.parameters()).device
    batch: dict[str, Any] = {name: tensor.to(device) for name, tensor in make_batch(split, indices, data).items()}
    seen: dict[str, Any] = {}
    norm = loaded.model.backbone.get_submodule(
        loaded.family.embedding_parameters["LayerNorm.weight"].removesuffix(".weight")
    )
    hooks = [
        norm.register_forward_pre_hook(lambda _, arguments: seen.update(before=arguments[0])),
        loaded.model.backbone.register_forward_hook(lambda _, __, output: seen.update(output=output)),
    ]
    try:
        with torch.inference_mode():
            logits = loaded.model(**batch, output_hidden_states=True)
    finally:
        for hook in hooks:
            hook.remove()
    return Stages(batch["attention_mask"].bool(), (seen["before"], *seen["output"].hidden_states), logits)


def stage_name(layer: int) -> str:
    """What tables call a stage."""
    return {BEFORE_LAYER_NORM: "before LayerNorm", 0: "layer 0 (input)"}.get(layer, f"layer {layer}")
