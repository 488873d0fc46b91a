"""Texts in, the tokens that a decoding probe reads out: halves, labels, control tasks and a null."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, gather_tokens
from toolkit.models.classifier import Loaded
from toolkit.probes.flow.probe import Ids

NUM_BINS = 8
NUM_TOKENS = 6000
NUM_CONTROLS = 5
"""Draws of the control task: a few frequent words decide how hard one draw is."""
LEAST_TEXTS = 10


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that the probe reads, the same at every layer."""

    address: Ids
    """(tokens,) places in the split's flat arrays."""
    words: Ids
    """(tokens,) word row of each."""
    texts: Ids
    """(tokens,) text of each."""
    is_held_out: NDArray[np.bool_]
    labels: Ids
    """(tokens,) bin of its position."""
    control: Ids
    """(draws, tokens) random labels of its word: in each draw one per word row, from the frequencies of ``labels``."""
    shuffled: Ids
    """(tokens,) the labels dealt out at random, among the tokens to fit on and among the others."""
    edges: tuple[int, ...]
    """First position of each bin."""


def choose_tokens(
    loaded: Loaded, split: EncodedSplit, *, num_bins: int, num_tokens: int, seed: int, num_controls: int = NUM_CONTROLS
) -> Tokens:
    """Texts in halves, to fit on and held out, no text in both; their tokens with labels, controls and null."""
    rng = np.random.default_rng([*b"decode", seed])
    known: dict[bytes, int] = {}
    for i, (start, stop) in enumerate(zip(split.offsets[:-1], split.offsets[1:], strict=True)):
        known.setdefault(split.tokens[start:stop].tobytes(), i)
    order = rng.permutation(np.fromiter(known.values(), np.int64))
    if len(order) < LEAST_TEXTS:
        raise ValueError(f"decoding needs at least {LEAST_TEXTS} different texts, got {len(order)}: pass more")
    halves = [_up_to(half, split.lengths, num_tokens) for half in (order[::2], order[1::2])]
    texts = np.concatenate(halves)
    address, place = gather_tokens(split, texts)
    owner = np.repeat(np.arange(len(texts)), split.lengths[texts])
    kept = ~np.isin(split.tokens[address], loaded.tokenizer.all_special_ids)
    address, place, owner = address[kept], place[kept], owner[kept]
    is_held_out = owner >= len(halves[0])
    edges = np.unique(np.quantile(place[~is_held_out], np.arange(num_bins) / num_bins, method="inverted_cdf"))
    labels = np.maximum(np.searchsorted(edges, place, side="right") - 1, 0)
    words, word = np.unique(split.tokens[address], return_inverse=True)
    control = rng.choice(labels[~is_held_out], size=(num_controls, len(words)))[:, word]
    shuffled = labels.copy()
    for part in (is_held_out, ~is_held_out):
        shuffled[part] = rng.permutation(labels[part])
    return Tokens(
        address,
        split.tokens[address].astype(np.int64),
        owner,
        is_held_out,
        labels,
        control,
        shuffled,
        tuple(int(edge) for edge in edges),
    )


def _up_to(texts: Ids, lengths: Ids, num_tokens: int) -> Ids:
    """The first texts that together have no more than ``num_tokens`` tokens; one at least."""
    return texts[: max(1, int(np.searchsorted(np.cumsum(lengths[texts]), num_tokens, side="right")))]
