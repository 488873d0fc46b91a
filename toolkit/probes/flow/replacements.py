"""A model in, the same model with its position rows shifted, permuted, replaced or taken away for a while out."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.lookup import lookup
from toolkit.models.classifier import Loaded
from toolkit.models.positions import position_rows
from toolkit.probes.flow.ledger import has_position_table

SHIFT = 16
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Request:
    """What a replacement needs to know beside the rows."""

    longest: int
    """Tokens of the longest text: the rows in use."""
    shift: int
    seed: int


def _shifted(rows: Rows, request: Request) -> Rows:
    if request.longest + request.shift > len(rows):
        raise ValueError(
            f"a text of {request.longest} tokens shifted by {request.shift} needs {request.longest + request.shift} "
            f"position rows, the model has {len(rows)}: pass a smaller --shift, or shorter texts"
        )
    return np.concatenate([rows[request.shift :], rows[: request.shift]])


def _mean(rows: Rows, request: Request) -> Rows:
    used = rows[: request.longest].astype(np.float64).mean(axis=0)
    return np.tile(used, (len(rows), 1)).astype(np.float32)


COUNTERFACTUALS: Mapping[str, Callable[[Rows, Request], Rows]] = {
    "shifted": _shifted,
    "permuted": lambda rows, request: position_rows("shuffled", rows, num_reached=request.longest, seed=request.seed),
    "sinusoid": lambda rows, request: position_rows("sinusoidal", rows, num_reached=request.longest),
    "mean": _mean,
    "zero": lambda rows, request: position_rows("zero", rows, num_reached=request.longest),
}
"""Name to the rows that stand in for the table's, from a text's first position on: row i + shift for row i; the rows in
use in an order that leaves none in its place; the sinusoid of equal mean square norm; the mean row in use everywhere,
which takes order away and leaves the offset that all positions share; zeros, which take both."""


@contextlib.contextmanager
def replaced_positions(
    loaded: Loaded, counterfactual: str, *, longest: int, shift: int = SHIFT, seed: int = 0
) -> Iterator[None]:
    """The model reads other position rows inside the block and has its own back, bit for bit, after it.

    ValueError for a model without a position table, an unknown counterfactual, or a shift beyond the table.
    """
    if not has_position_table(loaded):
        raise ValueError(f"not applicable: {loaded.source.name} ({loaded.family.name}) has no position table")
    table = dict(loaded.model.backbone.named_parameters())[loaded.family.embedding_parameters["position_embeddings"]]
    kept = table.detach().clone()
    own = kept[loaded.position_offset :].cpu().numpy()
    rows = lookup(COUNTERFACTUALS, counterfactual, "counterfactual")(own, Request(longest, shift, seed))
    with torch.no_grad():
        table[loaded.position_offset :] = torch.from_numpy(rows).to(table)
    try:
        yield
    finally:
        with torch.no_grad():
            table.copy_(kept)
