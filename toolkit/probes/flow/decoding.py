"""A model and natural texts in, how many bits of a token's position its state gives away, per layer, out."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches, gather_tokens
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.probes.flow.jackknife import bounds, leave_one_out, unit_values
from toolkit.probes.flow.ledger import has_position_table
from toolkit.probes.flow.probe import Array, Ids, held_out_losses, information, word_losses
from toolkit.probes.flow.stages import forward_stages, own_columns, stage_name
from toolkit.probes.flow.tokens import NUM_BINS, NUM_CONTROLS, NUM_TOKENS, Tokens, choose_tokens

NO_TABLE = "the model has no position table: what is decoded came in through attention, or from the words themselves"


def decode_positions(
    loaded: Loaded,
    data: EncodedTask,
    split: EncodedSplit,
    *,
    num_bins: int = NUM_BINS,
    num_tokens: int = NUM_TOKENS,
    num_controls: int = NUM_CONTROLS,
    seed: int = 0,
) -> pd.DataFrame:
    """Bits of position that a linear probe reads off a token's state, one line per stage.

    Label: the token's position in ``num_bins`` bins that are about equally full in the texts fitted on; special tokens
    are left out. ``bits`` = (entropy of the held-out labels - cross-entropy of the probe on held-out texts) / ln 2. The
    control task (idea of Hewitt & Liang 2019, arXiv 1909.03368) gives every word a random label, the same in all texts:
    ``control_bits`` is what the probe reads by knowing words, the mean of ``num_controls`` draws (``control_draws``
    holds each; the penalty is chosen on the first), and ``selective_bits`` = bits - control_bits. This is a lower
    bound of the position beyond words: the control is subtracted in full, also the words that tell no position, and its
    entropy (``control_entropy_bits``) is not the label's. ``word_bits`` is what the word alone tells of its position,
    without any model (:func:`toolkit.probes.flow.probe.word_losses`), ``beyond_word_bits`` = bits - word_bits: what
    the state tells and counting words would not. ``shuffled_bits``: labels dealt at random, which nothing can predict:
    0, or a little below. ``low`` and ``high``: 95 % of Student's t over held-out texts, by the jackknife, of
    ``selective_bits`` with these draws; ``*_values`` (held-out texts,) are what intervals come from. ``num_tokens`` is
    the most to fit on, and to score. ValueError for fewer than ten different texts.
    """
    tokens = choose_tokens(
        loaded, split, num_bins=num_bins, num_tokens=num_tokens, num_controls=num_controls, seed=seed
    )
    words = word_losses(tokens.words, tokens.labels, tokens.texts, tokens.is_held_out, len(tokens.edges))
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
        {"layer": layer, "stage": stage_name(layer), **_bits(states, tokens, words), **counts}
        for layer, states in enumerate(_states_of(loaded, data, split, tokens), start=-1)
    ]
    return pd.DataFrame(lines, columns=own_columns("decoding"))


def _states_of(loaded: Loaded, data: EncodedTask, split: EncodedSplit, tokens: Tokens) -> list[NDArray[np.floating]]:
    """Per stage (tokens, hidden): the states of the chosen tokens only."""
    flat = np.full(len(split.tokens), -1, np.int64)
    flat[tokens.address] = np.arange(len(tokens.address))
    used = np.unique(np.searchsorted(split.offsets, tokens.address, side="right") - 1)
    states: list[NDArray[np.floating]] = []
    with in_eval_mode(loaded.model):
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


def _bits(states: NDArray[np.floating], tokens: Tokens, words: Array) -> dict[str, object]:
    """Bits of the label, of each control, of the shuffled labels and of the word alone (``words``: its losses), with
    each text left out."""
    num_classes, held_out = len(tokens.edges), tokens.is_held_out
    texts = np.unique(tokens.texts[held_out], return_inverse=True)[1]
    weights = leave_one_out(int(texts.max()) + 1)

    def read(losses: Array, labels: Ids) -> Array:
        return information(losses, labels[held_out], texts, weights, num_classes)

    def fit(labels: Ids, penalty: float | None = None) -> tuple[Array, float]:
        fitted = held_out_losses(states, labels, tokens.texts, held_out, num_classes, penalty)
        return read(fitted.losses, labels), fitted.inverse_penalty

    bits, penalty = fit(tokens.labels)
    first, control_penalty = fit(tokens.control[0])
    draws = np.stack([first, *(fit(labels, control_penalty)[0] for labels in tokens.control[1:])])
    shuffled, _ = fit(tokens.shuffled)
    word = read(words, tokens.labels)
    selective = unit_values(bits - draws.mean(axis=0))
    interval = bounds(selective)
    zero = np.zeros(int(held_out.sum()))
    return {
        "bits": bits[0],
        "control_bits": draws[:, 0].mean(),
        "selective_bits": bits[0] - draws[:, 0].mean(),
        "low": interval["low"],
        "high": interval["high"],
        "word_bits": word[0],
        "beyond_word_bits": bits[0] - word[0],
        "shuffled_bits": shuffled[0],
        "entropy_bits": read(zero, tokens.labels)[0],
        "control_entropy_bits": float(np.mean([read(zero, labels)[0] for labels in tokens.control])),
        "inverse_penalty": penalty,
        "control_draws": tuple(draws[:, 0].tolist()),
        "bit_values": unit_values(bits),
        "selective_values": selective,
        "beyond_word_values": unit_values(bits - word),
    }
