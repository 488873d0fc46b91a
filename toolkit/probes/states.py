"""Texts as models read them, and the hidden states of every layer, one batch at a time."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.data.batches import EVALUATION_TOKENS, EncodedSplit, EncodedTask, evaluation_batches, make_batch
from toolkit.data.files import read_file
from toolkit.data.tasks import Split, Task, check_texts, load_task
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.snapshots.store import Run
from toolkit.training.encoding import encode_task


def task_of(run: Run) -> Task:
    """The task of a finished run, read again; ValueError where its data are not those that the manifest names."""
    task = load_task(run.config)
    task.check_data(run.manifest["task"].get("data_sha256") or {}, run.path.name)
    return task


TEXTS = "train"
"""The only split of what :func:`encode_texts` returns; the name that every task has."""


def task_of_texts(texts: Sequence[tuple[str, ...]], name: str = "texts") -> Task:
    """Texts without labels as a task of one split, TEXTS."""
    split = Split(ids=np.arange(len(texts)), texts=tuple(texts), labels=None)
    known: dict[str, Any] = {"kind": "classification", "label_names": (), "score": "accuracy", "file_hashes": {}}
    return Task(name=name, splits={TEXTS: split}, reported_split=TEXTS, **known)


def encode_texts(loaded: Loaded, texts: Sequence[tuple[str, ...]], max_length: int | None = None) -> EncodedTask:
    """Texts without labels as one split, TEXTS; longer ones than ``max_length`` tokens are truncated and counted.

    ``texts``: one or two texts each, all alike. ``max_length``: None takes what the model reads at most. ValueError
    when there are none, when singles and pairs are mixed, or for a length that the model does not have.
    """
    if not texts or len({len(text) for text in texts}) > 1 or len(texts[0]) not in (1, 2):
        raise ValueError(f"texts must be all single texts or all pairs, at least one; got {len(texts)} of them")
    return encode_task(task_of_texts(texts), loaded, max_length or min(loaded.max_length or 512, 512))


def read_texts(entries: Sequence[str], text_columns: tuple[str, ...] = ()) -> dict[str, list[tuple[str, ...]]]:
    """``NAME=PATH`` entries to named lists of texts, singles or pairs; ValueError for a bad entry, file or text."""
    texts: dict[str, list[tuple[str, ...]]] = {}
    for entry in entries:
        name, separator, path = entry.partition("=")
        if not (separator and name and path):
            raise ValueError(f"--texts takes NAME=PATH, got {entry!r}")
        if name in texts:
            raise ValueError(f"--texts: the name {name!r} is taken; choose another")
        texts[name] = read_file(Path(path), text_columns, None).texts
        check_texts(name, texts[name])
    return texts


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
    """ValueError for texts of a pair that are encoded separately: the states of an example are then not defined."""
    if split.num_sequences > 1:
        raise ValueError(
            "the texts of a pair are encoded separately (--pair-encoding separate): take a run that reads them jointly"
        )


def batch_on(
    model: nn.Module, split: EncodedSplit, indices: NDArray[np.int64], data: EncodedTask
) -> dict[str, torch.Tensor]:
    """Some examples of a split as a batch, on the device of a model."""
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in make_batch(split, indices, data).items()}


@contextlib.contextmanager
def replaced(parameter: torch.Tensor, values: torch.Tensor) -> Iterator[None]:
    """A parameter holds other values inside the block, and its own, bit for bit, after it."""
    kept = parameter.detach().clone()
    with torch.no_grad():
        parameter.copy_(values)
    try:
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(kept)


def stream_states(
    loaded: Loaded, data: EncodedTask, split: EncodedSplit, *, num_tokens: int = EVALUATION_TOKENS
) -> Iterator[States]:
    """Run the backbone over a split in eval mode, in the order of length, and hand out one batch after the other.

    Memory holds one batch's states. Layer 0 is what the first layer reads: the embeddings, after a projection where
    the family has one. Nothing is cast: states have the dtype of the weights.
    """
    one_sequence_each(split)
    backbone = loaded.model.backbone
    with in_eval_mode(backbone):
        for indices in evaluation_batches(split.lengths, num_tokens):
            batch = batch_on(backbone, split, indices, data)
            with torch.inference_mode():
                output = backbone(**batch, output_hidden_states=True)
            yield States(indices, batch["attention_mask"].bool(), tuple(output.hidden_states))
