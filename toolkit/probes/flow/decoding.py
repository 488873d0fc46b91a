"""A model and natural texts in, how many bits of a token's position its state gives away, per layer, out."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches, gather_tokens
from toolkit.models.classifier import Loaded
from toolkit.probes.flow.ledger import LEVEL, NUM_DRAWS, has_position_table
from toolkit.probes.flow.probe import Array, Ids, held_out_losses, word_losses
from toolkit.probes.flow.stages import forward_stages, in_eval_mode, stage_name

DECODING_COLUMNS: tuple[str, ...] = ("layer", "stage", "bits", "control_bits", "selective_bits", "low", "high")
DECODING_COLUMNS += (
    "word_bits",
    "shuffled_bits",
    "entropy_bits",
    "num_bins",
    "bins",
    "num_fit_texts",
    "num_held_out_texts",
)
DECODING_COLUMNS += ("num_fit_tokens", "num_held_out_tokens", "inverse_penalty", "note")

NUM_BINS = 8
NUM_TOKENS = 6000
LEAST_TEXTS = 10
NO_TABLE = "the model has no position table: what is decoded came in through attention, or from the words themselves"


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
    """(tokens,) a random label of its word: one draw per word row, from the frequencies of ``labels``."""
    shuffled: Ids
    """(tokens,) the labels dealt out at random, among the tokens to fit on and among the others."""
    edges: tuple[int, ...]
    """First position of each bin."""


def decode_positions(
    loaded: Loaded,
    data: EncodedTask,
    split: EncodedSplit,
    *,
    num_bins: int = NUM_BINS,
    num_tokens: int = NUM_TOKENS,
    num_draws: int = NUM_DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> pd.DataFrame:
    """Bits of position that a linear probe reads off a token's state, one line per stage: DECODING_COLUMNS.

    Label: the token's position in ``num_bins`` bins that are about equally full in the texts fitted on; special tokens
    are left out. ``bits`` = (entropy of the held-out labels - cross-entropy of the probe on held-out texts) / ln 2. The
    control task (idea of Hewitt & Liang 2019, arXiv 1909.03368) gives every word a random label, the same in all texts:
    ``control_bits`` is what the probe reads by knowing words, and ``selective_bits`` = bits - control_bits. It is
    subtracted in full, though natural position is less tied to words than the control is: a lower bound in spirit.
    ``word_bits`` is what the word alone tells of its position, without any model (:func:`word_losses`): what natural
    text gives away for nothing. ``shuffled_bits``: labels dealt at random, which nothing can predict: 0, or a little
    below. ``low`` and ``high``: bootstrap over held-out texts, of ``selective_bits``. ``num_tokens`` is the most to fit
    on, and to score.
    ValueError for fewer than ten different texts.
    """
    tokens = choose_tokens(loaded, split, num_bins=num_bins, num_tokens=num_tokens, seed=seed)
    note = "" if has_position_table(loaded) else NO_TABLE
    counts = {
        "num_bins": len(tokens.edges),
        "bins": " ".join(str(edge) for edge in tokens.edges),
        "num_fit_texts": len(np.unique(tokens.texts[~tokens.is_held_out])),
        "num_held_out_texts": len(np.unique(tokens.texts[tokens.is_held_out])),
        "num_fit_tokens": int((~tokens.is_held_out).sum()),
        "num_held_out_tokens": int(tokens.is_held_out.sum()),
        "note": note,
    }
    lines = [
        {"layer": layer, "stage": stage_name(layer), **_bits(states, tokens, num_draws, level, seed), **counts}
        for layer, states in enumerate(_states_of(loaded, data, split, tokens), start=-1)
    ]
    return pd.DataFrame(lines, columns=list(DECODING_COLUMNS))


def choose_tokens(loaded: Loaded, split: EncodedSplit, *, num_bins: int, num_tokens: int, seed: int) -> Tokens:
    """Texts in halves, to fit on and held out, no text in both; their tokens with labels, control and null."""
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
    control = rng.choice(labels[~is_held_out], size=len(words))[word]
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


def _states_of(loaded: Loaded, data: EncodedTask, split: EncodedSplit, tokens: Tokens) -> list[NDArray[np.floating]]:
    """Per stage (tokens, hidden): the states of the chosen tokens only."""
    flat = np.full(len(split.tokens), -1, np.int64)
    flat[tokens.address] = np.arange(len(tokens.address))
    used = np.unique(np.searchsorted(split.offsets, tokens.address, side="right") - 1)
    states: list[NDArray[np.floating]] = []
    with in_eval_mode(loaded):
        for chosen in evaluation_batches(split.lengths[used]):
            stages = forward_stages(loaded, split, used[chosen], data)
            address, place = gather_tokens(split, used[chosen])
            row = np.repeat(np.arange(len(chosen)), split.lengths[used[chosen]])
            slot = flat[address]
            keep = slot >= 0
            for k, layer in enumerate(stages.layers):
                if len(states) <= k:
                    states.append(np.empty((len(tokens.address), layer.shape[2]), layer.cpu().numpy().dtype))
                states[k][slot[keep]] = layer[row[keep], place[keep]].cpu().numpy()
    return states


def _bits(states: NDArray[np.floating], tokens: Tokens, num_draws: int, level: float, seed: int) -> dict[str, float]:
    """Bits of the label, the control and the shuffled labels; the interval of the first minus the second."""
    num_classes = len(tokens.edges)
    held_out = tokens.is_held_out
    texts = np.unique(tokens.texts[held_out], return_inverse=True)[1]
    weights = np.vstack(
        [
            np.ones(texts.max() + 1),
            np.random.default_rng([*b"texts", seed]).multinomial(
                texts.max() + 1, np.full(texts.max() + 1, 1 / (texts.max() + 1)), size=num_draws
            ),
        ]
    )
    values = {}
    for name, labels in (("bits", tokens.labels), ("control", tokens.control), ("shuffled", tokens.shuffled)):
        fitted = held_out_losses(states, labels, tokens.texts, held_out, num_classes)
        values[name] = information(fitted.losses, labels[held_out], texts, weights, num_classes)
        if name == "bits":
            penalty = fitted.inverse_penalty
    losses = word_losses(tokens.words, tokens.labels, tokens.texts, held_out, num_classes)
    values["word"] = information(losses, tokens.labels[held_out], texts, weights, num_classes)
    selective = values["bits"] - values["control"]
    low, high = np.quantile(selective[1:], [(1 - level) / 2, (1 + level) / 2])
    shares = np.bincount(tokens.labels[held_out], minlength=num_classes) / held_out.sum()
    return {
        "bits": values["bits"][0],
        "control_bits": values["control"][0],
        "selective_bits": selective[0],
        "low": low,
        "high": high,
        "word_bits": values["word"][0],
        "shuffled_bits": values["shuffled"][0],
        "entropy_bits": float(_entropy(shares) / np.log(2)),
        "inverse_penalty": penalty,
    }


def information(losses: Array, labels: Ids, texts: Ids, weights: Array, num_classes: int) -> Array:
    """(draws,) bits: (entropy of the labels - mean loss) / ln 2, when text t counts ``weights[draw, t]`` times."""
    num_texts = weights.shape[1]
    counts = np.zeros((num_texts, num_classes))
    np.add.at(counts, (texts, labels), 1)
    tokens = weights @ counts
    shares = tokens / tokens.sum(axis=1, keepdims=True)
    mean_loss = weights @ np.bincount(texts, losses, minlength=num_texts) / tokens.sum(axis=1)
    return np.asarray((_entropy(shares) - mean_loss) / np.log(2))


def _entropy(shares: Array) -> Array:
    """Nats, over the last axis."""
    from scipy.special import entr

    return np.asarray(entr(shares).sum(axis=-1))
