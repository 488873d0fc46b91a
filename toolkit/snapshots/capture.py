"""A live model in, its embedding parameters out as fp32 arrays on the CPU."""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch

from toolkit.families import ModelFamily
from toolkit.snapshots.snapshot import Vocabulary


def capture(backbone: torch.nn.Module, family: ModelFamily) -> dict[str, np.ndarray]:
    """Copy the embedding parameters to fp32 arrays: tables (rows, hidden), LayerNorm (hidden,).

    ``backbone`` is unwrapped (no DDP around it). A parameter that the model lacks is left out. Under FSDP2 every rank
    must call this, because the shards are gathered.
    """
    parameters = dict(backbone.named_parameters())
    return {
        canonical: to_array(parameters[name])
        for canonical, name in family.embedding_parameters.items()
        if name in parameters
    }


def to_array(parameter: torch.Tensor) -> np.ndarray:
    """A detached fp32 copy of a parameter in CPU memory; a sharded one (DTensor) is gathered first."""
    tensor: Any = parameter.detach()
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    array: np.ndarray = tensor.to(device="cpu", dtype=torch.float32, copy=True).numpy()
    return array


class Tokenizer(Protocol):
    """What is needed of a transformers tokenizer."""

    pad_token_id: int | None
    all_special_ids: list[int]

    def __len__(self) -> int: ...
    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str | None]: ...


def check_word_rows(model: str, num_tokens: int, num_rows: int) -> None:
    """ValueError when a tokenizer's tokens are more than a word table's rows: it belongs to another model."""
    if num_tokens > num_rows:
        raise ValueError(
            f"the tokenizer of {model} has tokens beyond its {num_rows} word rows: take the model's own tokenizer, or "
            "resize the table"
        )


def read_vocabulary(tokenizer: Tokenizer, num_rows: int) -> Vocabulary:
    """The token text of every row of a word table with ``num_rows`` rows."""
    known = min(len(tokenizer), num_rows)
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(range(known))]
    tokens += [""] * (num_rows - known)
    special = frozenset(i for i in tokenizer.all_special_ids if i < num_rows)
    return Vocabulary(tuple(tokens), special, tokenizer.pad_token_id)
