"""A sentence in, whether the encoder notices the order of its tokens out: as it is, and without its positions."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from toolkit.models.classifier import Loaded
from toolkit.probes.anatomy.forward import SAME, in_float64, largest, relative_difference, run_model
from toolkit.probes.anatomy.parts import Parts, find_parts
from toolkit.probes.anatomy.sentence import Rows, Sentence
from toolkit.schema import columns_of

TABLE = "position table"
DISTANCES = "relative distances"
ANGLES = "rotary angles and the local window"
CONVOLUTION = "convolution"


@dataclass(frozen=True, slots=True)
class Permutation:
    """The encoder's output for shuffled tokens against its output for the text, put in the same order."""

    order: tuple[int, ...]
    """Token ``order[i]`` of the text stands at place i of the shuffled one."""
    table: pd.DataFrame
    """In float64. The first line is the model as it is (``without`` empty); each next line takes
    away one source of order more. What a family does not have has no line."""


def measure_permutation(loaded: Loaded, sentence: Sentence, seed: int = 0) -> Permutation:
    """Shuffle the tokens, each with its segment, and ask whether the output is shuffled alike and nothing more.

    A function f is permutation-equivariant where f(Px) = P f(x) for every P; shown here for one P drawn with ``seed``
    that is neither the identity nor, with three tokens or more, the reversal, which keeps distances.
    """
    parts = find_parts(loaded)
    order = _draw_order(len(sentence), seed)
    shuffled = replace(
        sentence,
        words=sentence.words[order],
        segments=None if sentence.segments is None else sentence.segments[order],
    )
    lines = []
    with in_float64(loaded), contextlib.ExitStack() as silenced:
        arguments: dict[str, Any] = {}
        for name, take_away in _sources(parts, len(sentence)).items():
            arguments |= take_away(silenced)
            straight = run_model(loaded, sentence, **arguments).encoded[order]
            permuted = run_model(loaded, shuffled, **arguments).encoded
            difference = relative_difference(permuted, straight)
            lines.append((name, difference, largest(permuted - straight), difference < SAME))
    return Permutation(tuple(order.tolist()), pd.DataFrame(lines, columns=columns_of("take_apart.permutation.table")))


def _draw_order(length: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    straight = np.arange(length)
    if length < 2:  # one token has one order
        return straight
    while True:
        order = rng.permutation(length)
        is_reversal = length > 2 and np.array_equal(order, straight[::-1])
        if not np.array_equal(order, straight) and not is_reversal:
            return order


TakeAway = Callable[[contextlib.ExitStack], dict[str, Any]]
"""Silences one source of order until the stack is closed, and returns arguments of the backbone that do the same."""


def _sources(parts: Parts, length: int) -> dict[str, TakeAway]:
    """The sources of order that a model has, in the order in which they are taken away."""
    weights: dict[str, torch.Tensor] = {}
    if parts.position is not None:
        weights[TABLE] = parts.position.weight
    if parts.relative is not None:
        weights[DISTANCES] = parts.relative.weight  # equal rows for all distances, so that none differs
    if parts.convolution is not None:
        weights[CONVOLUTION] = parts.convolution.get_parameter("conv.weight")
    sources: dict[str, TakeAway] = {"": lambda stack: {}}
    for name, weight in weights.items():
        sources[name] = partial(_silence, weight)
    if parts.is_rotary:
        # Every token at place 0 turns all of them by one angle; no mask lets each see all the others.
        level = {
            "position_ids": torch.zeros(1, length, dtype=torch.long, device=parts.word.weight.device),
            "attention_mask": {"full_attention": None, "sliding_attention": None},
        }
        sources[ANGLES] = lambda stack: level
    return sources


def _silence(weight: torch.Tensor, stack: contextlib.ExitStack) -> dict[str, Any]:
    stack.enter_context(_zeroed(weight))
    return {}


@contextlib.contextmanager
def _zeroed(weight: torch.Tensor) -> Iterator[None]:
    """A weight at 0, and then as it was."""
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.zero_()
    try:
        yield
    finally:
        with torch.no_grad():
            weight.copy_(kept)
