"""A model and encoded texts in, the hidden states of every layer out, one batch at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EVALUATION_TOKENS, EncodedSplit, EncodedTask, evaluation_batches, make_batch
from toolkit.models.classifier import Loaded, in_eval_mode


@dataclass(frozen=True, slots=True)
class States:
    """The hidden states of one batch of texts."""

    indices: NDArray[np.int64]
    """(examples,) which texts of the split these are."""
    mask: torch.Tensor
    """(examples, longest) bool: real tokens."""
    layers: tuple[torch.Tensor, ...]
    """(examples, longest, hidden) each: the encoder's input (layer 0), then the output of layers 1 to L."""

    def mean_of_tokens(self) -> list[torch.Tensor]:
        """Per layer (examples, hidden): the mean over each text's real tokens."""
        weights = self.mask.unsqueeze(-1).to(self.layers[0].dtype)
        return [(layer * weights).sum(dim=1) / weights.sum(dim=1) for layer in self.layers]


def one_sequence_each(split: EncodedSplit) -> None:
    """ValueError for texts of a pair that are encoded apart: which states are an example's is not defined there."""
    if split.num_sequences > 1:
        raise ValueError(
            "the texts of a pair are encoded apart (--pair-encoding separate): take a run that reads them jointly"
        )


def stream_states(
    loaded: Loaded, data: EncodedTask, split: EncodedSplit, *, num_tokens: int = EVALUATION_TOKENS
) -> Iterator[States]:
    """Run the backbone over a split in eval mode, in the order of length, and hand out one batch after the other.

    Memory holds one batch's states. Layer 0 is what the first layer reads: the embeddings, after a projection where
    the family has one. Nothing is cast: states have the dtype of the weights.
    """
    one_sequence_each(split)
    backbone = loaded.model.backbone
    device = next(backbone.parameters()).device
    with in_eval_mode(backbone):
        for indices in evaluation_batches(split.lengths, num_tokens):
            batch = {name: tensor.to(device) for name, tensor in make_batch(split, indices, data).items()}
            with torch.inference_mode():
                output = backbone(**batch, output_hidden_states=True)
            yield States(indices, batch["attention_mask"].bool(), tuple(output.hidden_states))
