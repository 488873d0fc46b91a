"""A sentence in, what the real modules say of it out: read with a hook, not computed again."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.probes.anatomy.parts import find_parts
from toolkit.probes.anatomy.sentence import Sentence, make_inputs

Array = NDArray[np.float64]

SAME = 1e-9
"""In float64, vectors that differ by less than this share of their size count as equal; rounding is far less (ours)."""


@contextlib.contextmanager
def in_float64(loaded: Loaded) -> Iterator[None]:
    """Compute with the same weights in float64, so that equal and nearly equal can be told apart; then back to fp32.

    fp32 values survive the way there and back bit for bit. The weights need twice their memory meanwhile.
    """
    backbone = loaded.model.backbone
    if next(backbone.parameters()).dtype == torch.float64:
        yield
        return
    backbone.double()
    try:
        yield
    finally:
        backbone.float()


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one forward pass gave, as float64 copies."""

    embedded: Array
    """(tokens, width) output of the embedding module."""
    encoded: Array
    """(tokens, hidden) output of the last layer."""


def run_model(loaded: Loaded, sentence: Sentence, **changes: Any) -> Outputs:
    """One forward pass in eval mode; ``changes`` replace or add arguments of the backbone."""
    backbone = loaded.model.backbone
    seen: list[torch.Tensor] = []
    hook = find_parts(loaded).embeddings.register_forward_hook(lambda module, inputs, output: seen.append(output))
    try:
        with in_eval_mode(backbone), torch.inference_mode():
            output = backbone(**(make_inputs(loaded, sentence) | changes))
    finally:
        hook.remove()
    return Outputs(as_array(seen[0][0]), as_array(output.last_hidden_state[0]))


def as_array(tensor: torch.Tensor) -> Array:
    """A float64 copy on the CPU."""
    return tensor.detach().cpu().double().numpy()


def largest(difference: Array) -> float:
    """The largest absolute value."""
    return float(np.abs(difference).max())


def relative_difference(values: Array, reference: Array) -> float:
    """‖values - reference‖ / ‖reference‖ over all entries (Frobenius); NaN where the reference is 0."""
    size = float(np.linalg.norm(reference))
    return float(np.linalg.norm(values - reference)) / size if size else float("nan")
