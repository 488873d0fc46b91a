"""How many bits of a token's position its state gives away, per layer."""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.measures import Array
from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches, gather_tokens
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.progress import counted
from toolkit.questions.flow.ledger import (
    bounds,
    columns_beside_model,
    forward_stages,
    leave_one_out,
    stage_name,
    unit_values,
)
from toolkit.questions.models import Ids, find_parts
from toolkit.training.accelerators import one_thread

INVERSE_PENALTIES = (1e-6, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Tried in this order until the inner split gets no better; the first predicts little more than the prior."""
INNER_SHARE = 0.25
"""Of the texts to fit on, those that a penalty is chosen by."""
LEAST_PROBABILITY = 1e-12
PRIOR_WEIGHTS = (1.0, 4.0, 16.0, 64.0, 1024.0)
"""In tokens: how much the labels of all words count beside those of one."""


def held_out_losses(
    states: NDArray[np.floating],
    labels: Ids,
    texts: Ids,
    is_held_out: NDArray[np.bool_],
    num_classes: int,
    inverse_penalty: float | None = None,
) -> tuple[Array, float]:
    """Multinomial logistic regression (scikit-learn) on standardised states, scored on the held-out ones.

    ``states`` (tokens, hidden), ``labels`` (tokens,) in [0, num_classes), ``texts`` (tokens,) the text of each token:
    the penalty is chosen on a quarter of the texts that it may fit on, then all of these are fitted. A class that the
    fit never saw has the probability of half a token, so that the loss stays finite.
    ``inverse_penalty``: not chosen but given. Returns (held-out,) nats, minus the log-probability of each label, and
    the inverse penalty.
    """
    if inverse_penalty is None:
        inner, outer = inner_split(texts, is_held_out)
        least_loss, inverse_penalty = np.inf, INVERSE_PENALTIES[0]
        for candidate in INVERSE_PENALTIES:
            loss = float(_losses(states, labels, outer, inner, num_classes, candidate).mean())
            if loss >= least_loss:
                break  # weaker ones would only fit the chance of these texts closer
            least_loss, inverse_penalty = loss, candidate
    return _losses(states, labels, ~is_held_out, is_held_out, num_classes, inverse_penalty), inverse_penalty


def inner_split(texts: Ids, is_held_out: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(tokens,) which tokens to choose by, a quarter of the texts to fit on, and which to fit on meanwhile."""
    inner_texts = np.unique(texts[~is_held_out])[:: round(1 / INNER_SHARE)]
    inner = ~is_held_out & np.isin(texts, inner_texts)
    return inner, ~is_held_out & ~inner


def word_losses(words: Ids, labels: Ids, texts: Ids, is_held_out: NDArray[np.bool_], num_classes: int) -> Array:
    """(held-out,) nats when a label is predicted from the word alone, without any model.

    Frequencies of the labels beside each word, drawn towards those of all words with the weight of ``PRIOR_WEIGHTS``
    tokens that does best on the inner split; ``words`` (tokens,) are word rows.
    """
    inner, outer = inner_split(texts, is_held_out)
    _, word_of_token = np.unique(words, return_inverse=True)

    def losses(is_fitted: NDArray[np.bool_], is_scored: NDArray[np.bool_], weight: float) -> Array:
        counts = np.zeros((word_of_token.max() + 1, num_classes))
        np.add.at(counts, (word_of_token[is_fitted], labels[is_fitted]), 1)
        prior = (counts.sum(axis=0) + 0.5) / (counts.sum() + 0.5 * num_classes)
        shares = (counts + weight * prior) / (counts.sum(axis=1, keepdims=True) + weight)
        return np.asarray(-np.log(shares[word_of_token[is_scored], labels[is_scored]]))

    best_weight = min(PRIOR_WEIGHTS, key=lambda weight: float(losses(outer, inner, weight).mean()))
    return losses(~is_held_out, is_held_out, best_weight)


def _losses(
    states: NDArray[np.floating],
    labels: Ids,
    is_fitted: NDArray[np.bool_],
    is_scored: NDArray[np.bool_],
    num_classes: int,
    inverse_penalty: float,
) -> Array:
    """(scored,) nats of the labels of scored tokens under a logistic regression of those that it is fitted to.

    ``is_fitted``, ``is_scored``: (tokens,) which these are.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    centre, scale = states[is_fitted].mean(axis=0), states[is_fitted].std(axis=0)
    scale = np.where(scale > 0, scale, 1)
    classes = np.unique(labels[is_fitted])
    # A class that the fit never saw: half a token.
    log_probabilities = np.full((int(is_scored.sum()), num_classes), np.log(0.5 / is_fitted.sum()))
    if len(classes) > 1:
        model = LogisticRegression(C=inverse_penalty, max_iter=150, tol=1e-3)
        with warnings.catch_warnings(), one_thread():
            warnings.simplefilter("ignore", ConvergenceWarning)  # held-out loss judges the fit, finished or not
            model.fit((states[is_fitted] - centre) / scale, labels[is_fitted])
        # A probability that underflows to 0 would make one token's loss infinite.
        probabilities = model.predict_proba((states[is_scored] - centre) / scale)
        log_probabilities[:, classes] = np.log(np.maximum(probabilities, LEAST_PROBABILITY))
    else:
        log_probabilities[:, classes] = 0.0
    return np.asarray(-log_probabilities[np.arange(len(log_probabilities)), labels[is_scored]], np.float64)


def information(losses: Array, labels: Ids, texts: Ids, weights: Array, num_classes: int) -> Array:
    """(draws,) bits: (entropy of the labels - mean loss) / ln 2, when text t counts ``weights[draw, t]`` times.

    ``losses`` (tokens,) in nats, ``labels`` and ``texts`` (tokens,) each.
    """
    from scipy.special import entr

    num_texts = weights.shape[1]
    counts = np.zeros((num_texts, num_classes))
    np.add.at(counts, (texts, labels), 1)
    tokens_of_labels = weights @ counts
    shares = tokens_of_labels / tokens_of_labels.sum(axis=1, keepdims=True)
    mean_loss = weights @ np.bincount(texts, losses, minlength=num_texts) / tokens_of_labels.sum(axis=1)
    return np.asarray((entr(shares).sum(axis=-1) - mean_loss) / np.log(2))


NUM_BINS = 8
NUM_TOKENS = 6000
NUM_CONTROLS = 5
"""Draws of the control task: a few frequent words decide how hard one draw is."""
LEAST_TEXTS = 10


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that the probe reads, the same at every layer."""

    indices: Ids
    """(tokens,) in the split's flat arrays."""
    words: Ids
    """(tokens,) word row of each."""
    texts: Ids
    """(tokens,) text of each."""
    is_held_out: NDArray[np.bool_]
    labels: Ids
    """(tokens,) bin of its position."""
    controls: Ids
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
    first_index_of: dict[bytes, int] = {}  # a text's tokens to where they stand first
    for i, (start, stop) in enumerate(zip(split.offsets[:-1], split.offsets[1:], strict=True)):
        first_index_of.setdefault(split.tokens[start:stop].tobytes(), i)
    distinct_texts = rng.permutation(np.fromiter(first_index_of.values(), np.int64))
    if len(distinct_texts) < LEAST_TEXTS:
        raise ValueError(f"decoding needs at least {LEAST_TEXTS} different texts, got {len(distinct_texts)}: pass more")
    halves = []
    for half in (distinct_texts[::2], distinct_texts[1::2]):
        # The first texts that together are no longer than asked for, at least one.
        num_texts = int(np.searchsorted(np.cumsum(split.lengths[half]), num_tokens, side="right"))
        halves.append(half[: max(1, num_texts)])
    texts = np.concatenate(halves)
    indices, positions = gather_tokens(split, texts)
    text_of_token = np.repeat(np.arange(len(texts)), split.lengths[texts])
    is_ordinary = ~np.isin(split.tokens[indices], loaded.tokenizer.all_special_ids)
    indices, positions, text_of_token = indices[is_ordinary], positions[is_ordinary], text_of_token[is_ordinary]
    is_held_out = text_of_token >= len(halves[0])
    edges = np.unique(np.quantile(positions[~is_held_out], np.arange(num_bins) / num_bins, method="inverted_cdf"))
    labels = np.maximum(np.searchsorted(edges, positions, side="right") - 1, 0)
    words, word_of_token = np.unique(split.tokens[indices], return_inverse=True)
    controls = rng.choice(labels[~is_held_out], size=(num_controls, len(words)))[:, word_of_token]
    shuffled = labels.copy()
    for mask in (is_held_out, ~is_held_out):
        shuffled[mask] = rng.permutation(labels[mask])
    return Tokens(
        indices=indices,
        words=split.tokens[indices].astype(np.int64),
        texts=text_of_token,
        is_held_out=is_held_out,
        labels=labels,
        controls=controls,
        shuffled=shuffled,
        edges=tuple(edges.tolist()),
    )


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
    without any model (:func:`word_losses`), ``beyond_word_bits`` = bits - word_bits: what
    the state tells and counting words would not. ``shuffled_bits``: labels dealt at random, which nothing can predict:
    0, or a little below. ``low`` and ``high``: 95 % of Student's t over held-out texts, by the jackknife, of
    ``selective_bits`` with these draws; ``*_values`` (held-out texts,) are what intervals come from. ``num_tokens`` is
    the most to fit on, and to score. ValueError for fewer than ten different texts.
    """
    tokens = choose_tokens(
        loaded, split, num_bins=num_bins, num_tokens=num_tokens, num_controls=num_controls, seed=seed
    )
    word_loss = word_losses(tokens.words, tokens.labels, tokens.texts, tokens.is_held_out, len(tokens.edges))
    counts = {
        "num_bins": len(tokens.edges),
        "bins": " ".join(str(edge) for edge in tokens.edges),
        "num_fit_texts": len(np.unique(tokens.texts[~tokens.is_held_out])),
        "num_held_out_texts": len(np.unique(tokens.texts[tokens.is_held_out])),
        "num_fit_tokens": int((~tokens.is_held_out).sum()),
        "num_held_out_tokens": int(tokens.is_held_out.sum()),
        "note": NO_TABLE if find_parts(loaded).position is None else "",
    }
    records = [
        {"layer": layer, "stage": stage_name(layer), **_bit_cells(states, tokens, word_loss), **counts}
        for layer, states in enumerate(counted(_states_of(loaded, data, split, tokens), "what a probe reads"), start=-1)
    ]
    return pd.DataFrame(records, columns=columns_beside_model("decoding"))


def _states_of(loaded: Loaded, data: EncodedTask, split: EncodedSplit, tokens: Tokens) -> list[NDArray[np.floating]]:
    """Per stage (tokens, hidden): the states of the chosen tokens only."""
    # Each token of the split to its number among the chosen ones; -1 for the others.
    numbers = np.full(len(split.tokens), -1, np.int64)
    numbers[tokens.indices] = np.arange(len(tokens.indices))
    used_texts = np.unique(np.searchsorted(split.offsets, tokens.indices, side="right") - 1)
    states, numbers_of_batches = [], []
    with in_eval_mode(loaded.model):
        for batch in evaluation_batches(split.lengths[used_texts]):
            texts = used_texts[batch]
            stages = forward_stages(loaded, split, texts, data)
            indices, positions = gather_tokens(split, texts)
            text_in_batch = np.repeat(np.arange(len(texts)), split.lengths[texts])
            is_chosen = numbers[indices] >= 0
            chosen = text_in_batch[is_chosen], positions[is_chosen]
            states.append([layer[chosen].cpu().numpy() for layer in stages.layers])
            numbers_of_batches.append(numbers[indices][is_chosen])
    order = np.argsort(np.concatenate(numbers_of_batches))  # batches come by length
    return [np.concatenate(batches)[order] for batches in zip(*states, strict=True)]


def _bit_cells(states: NDArray[np.floating], tokens: Tokens, word_loss: Array) -> dict[str, object]:
    """Bits of the label, of each control, of the shuffled labels and of the word alone, with each text left out.

    ``word_loss``: (held-out,) nats of the label when it is predicted from the word.
    """
    num_classes, held_out = len(tokens.edges), tokens.is_held_out
    _, texts = np.unique(tokens.texts[held_out], return_inverse=True)
    weights = leave_one_out(int(texts.max()) + 1)

    def bits_of(losses: Array, labels: Ids) -> Array:
        return information(losses, labels[held_out], texts, weights, num_classes)

    def fit(labels: Ids, penalty: float | None = None) -> tuple[Array, float]:
        losses, penalty = held_out_losses(states, labels, tokens.texts, held_out, num_classes, penalty)
        return bits_of(losses, labels), penalty

    bits, penalty = fit(tokens.labels)
    first_control, control_penalty = fit(tokens.controls[0])
    draws = np.stack([first_control, *(fit(labels, control_penalty)[0] for labels in tokens.controls[1:])])
    shuffled, _ = fit(tokens.shuffled)
    word_bits = bits_of(word_loss, tokens.labels)
    selective_values = unit_values(bits - draws.mean(axis=0))
    interval = bounds(selective_values)  # its units are columns of their own names here
    no_loss = np.zeros(int(held_out.sum()))  # leaves the entropy
    return {
        "bits": bits[0],
        "control_bits": draws[:, 0].mean(),
        "selective_bits": bits[0] - draws[:, 0].mean(),
        "low": interval["low"],
        "high": interval["high"],
        "word_bits": word_bits[0],
        "beyond_word_bits": bits[0] - word_bits[0],
        "shuffled_bits": shuffled[0],
        "entropy_bits": bits_of(no_loss, tokens.labels)[0],
        "control_entropy_bits": float(np.mean([bits_of(no_loss, labels)[0] for labels in tokens.controls])),
        "inverse_penalty": penalty,
        "control_draws": tuple(draws[:, 0].tolist()),
        "bit_values": unit_values(bits),
        "selective_values": selective_values,
        "beyond_word_values": unit_values(bits - word_bits),
    }
