"""A classifier and items to score in, its outputs with any embedding parameters out: the body of a transplant."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches, gather_tokens, make_batch
from toolkit.families import TABLES
from toolkit.models.classifier import Classifier, Loaded
from toolkit.probes.transplants.components import Placement
from toolkit.snapshots.exposure import Design

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Body:
    """A classifier in eval mode whose embedding parameters are written into, in place; all else stays as it is."""

    def __init__(self, loaded: Loaded, data: EncodedTask, dtype: str = "float32") -> None:
        """``dtype``: of weights and activations, a key of DTYPES."""
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model: Classifier = loaded.model.to(self.device, DTYPES[dtype]).eval()
        self.data = data
        named = dict(self.model.backbone.named_parameters())
        names = loaded.family.embedding_parameters
        self.parameters = {key: named[name] for key, name in names.items() if name in named}

    def tensors(self) -> dict[str, Array]:
        """A copy of the embedding parameters, by canonical name."""
        return {name: p.detach().cpu().numpy().copy() for name, p in self.parameters.items()}

    @torch.no_grad()
    def place(self, placement: Placement) -> None:
        """Write rows and vectors; all other rows stay as they are."""
        for name, (rows, values) in placement.items():
            parameter = self.parameters[name]
            new = torch.from_numpy(np.ascontiguousarray(values)).to(parameter.device, parameter.dtype)
            if rows is None:
                parameter.copy_(new)
            else:
                parameter[torch.from_numpy(rows).to(parameter.device)] = new

    def outputs(self, split: EncodedSplit) -> Array:
        """(items, outputs) float64 logits."""
        return self._run(split, lambda batch: self.model.head(self._features(batch)))

    def features(self, split: EncodedSplit) -> Array:
        """(items, hidden) float64 pooled vectors."""
        return self._run(split, self._features)

    def _features(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """What the classifier does, which computes in fp32 whatever its weights are, in the dtype of the weights."""
        if next(self.model.parameters()).dtype == torch.float32:
            return self.model.features(batch)
        output: Any = self.model.backbone(**batch | self.model.asked)
        return self.model.pool(output, batch["attention_mask"], dtype=next(self.model.parameters()).dtype)

    @torch.inference_mode()
    def _run(self, split: EncodedSplit, function: Any) -> Array:
        result: Array | None = None
        for indices, batch in self._batches(split):
            values = function(batch).double().cpu().numpy()
            result = np.empty((len(split), values.shape[1])) if result is None else result
            result[indices] = values
        assert result is not None
        return result

    def _batches(self, split: EncodedSplit) -> Iterator[tuple[NDArray[np.int64], dict[str, torch.Tensor]]]:
        for indices in evaluation_batches(split.lengths):
            batch = make_batch(split, indices, self.data)
            yield indices, {name: tensor.to(self.device) for name, tensor in batch.items()}


def draw_items(split: EncodedSplit, num_items: int | None, seed: int = 0) -> EncodedSplit:
    """``num_items`` items drawn at random, in their old order; all of them for None, or where there are no more."""
    if num_items is None or num_items >= len(split):
        return split
    chosen = np.sort(np.random.default_rng(seed).permutation(len(split))[:num_items])
    addresses, _ = gather_tokens(split, chosen)
    sizes = np.diff(split.offsets)[split.sequences_of(chosen)]
    return replace(
        split,
        ids=split.ids[chosen],
        labels=None if split.labels is None else split.labels[chosen],
        tokens=split.tokens[addresses],
        segments=split.segments[addresses],
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )


def design_of(splits: list[EncodedSplit], data: EncodedTask, tables: tuple[str, ...]) -> Design:
    """Which rows of the tables stand together in the tokens of some splits."""
    parts = []
    for split in splits:
        place = gather_tokens(split, np.arange(len(split)))[1]
        found: list[NDArray[Any]] = [split.tokens, place + data.position_offset, split.segments]
        columns = dict(zip(TABLES, found, strict=True))
        parts.append(np.stack([columns[name].astype(np.int32) for name in tables], axis=1))
    rows, counts = np.unique(np.concatenate(parts), axis=0, return_counts=True)
    return Design(tables, rows, counts.astype(np.int64))
