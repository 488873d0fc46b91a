"""States with labels to fit on and others to be scored in; the log-loss of each of the others, and its bits, out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.training.threads import one_thread

Array = NDArray[np.float64]
Ids = NDArray[np.int64]

INVERSE_PENALTIES = (1e-6, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Tried in this order until the inner split gets no better; the first predicts little more than the prior."""
INNER_SHARE = 0.25
LEAST_PROBABILITY = 1e-12
PRIOR_WEIGHTS = (1.0, 4.0, 16.0, 64.0, 1024.0)


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a probe came to."""

    losses: Array
    """(held-out,) nats: minus the log-probability of each label."""
    inverse_penalty: float


def held_out_losses(
    states: NDArray[np.floating],
    labels: Ids,
    texts: Ids,
    is_held_out: NDArray[np.bool_],
    num_classes: int,
    inverse_penalty: float | None = None,
) -> Fitted:
    """Multinomial logistic regression (scikit-learn) on standardised states, scored on the held-out ones.

    ``states`` (tokens, hidden), ``labels`` (tokens,) in [0, num_classes), ``texts`` (tokens,) the text of each token:
    the penalty is chosen on a quarter of the texts that it may fit on, then all of these are fitted. A class that the
    fit never saw has the probability of half a token, so that the loss stays finite.
    ``inverse_penalty``: not chosen but given.
    """
    fit = ~is_held_out
    if inverse_penalty is not None:
        return Fitted(_losses(states, labels, fit, is_held_out, num_classes, inverse_penalty), inverse_penalty)
    inner, outer = _inner_split(texts, fit)
    best, chosen = np.inf, INVERSE_PENALTIES[0]
    for value in INVERSE_PENALTIES:
        loss = float(_losses(states, labels, outer, inner, num_classes, value).mean())
        if loss >= best:
            break
        best, chosen = loss, value
    return Fitted(_losses(states, labels, fit, is_held_out, num_classes, chosen), chosen)


def word_losses(words: Ids, labels: Ids, texts: Ids, is_held_out: NDArray[np.bool_], num_classes: int) -> Array:
    """(held-out,) nats when a label is predicted from the word alone, without any model.

    Frequencies of the labels beside each word, drawn towards those of all words with the weight of ``PRIOR_WEIGHTS``
    tokens that does best on the inner split; ``words`` (tokens,) are word rows.
    """
    fit = ~is_held_out
    inner, outer = _inner_split(texts, fit)
    _, word = np.unique(words, return_inverse=True)

    def losses(known: NDArray[np.bool_], scored: NDArray[np.bool_], weight: float) -> Array:
        counts = np.zeros((word.max() + 1, num_classes))
        np.add.at(counts, (word[known], labels[known]), 1)
        prior = (counts.sum(axis=0) + 0.5) / (counts.sum() + 0.5 * num_classes)
        shares = (counts + weight * prior) / (counts.sum(axis=1, keepdims=True) + weight)
        return np.asarray(-np.log(shares[word[scored], labels[scored]]))

    best = min(PRIOR_WEIGHTS, key=lambda weight: float(losses(outer, inner, weight).mean()))
    return losses(fit, is_held_out, best)


def _inner_split(texts: Ids, fit: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """A quarter of the texts to fit on, to choose by, and the rest of them."""
    inner = fit & np.isin(texts, np.unique(texts[fit])[:: round(1 / INNER_SHARE)])
    return inner, fit & ~inner


def _losses(
    states: NDArray[np.floating],
    labels: Ids,
    fit: NDArray[np.bool_],
    scored: NDArray[np.bool_],
    num_classes: int,
    inverse_penalty: float,
) -> Array:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    centre, scale = states[fit].mean(axis=0), states[fit].std(axis=0)
    scale = np.where(scale > 0, scale, 1)
    seen = np.unique(labels[fit])
    log_probabilities = np.full((int(scored.sum()), num_classes), np.log(0.5 / fit.sum()))
    if len(seen) > 1:
        model = LogisticRegression(C=inverse_penalty, max_iter=150, tol=1e-3)
        with warnings.catch_warnings(), one_thread():
            warnings.simplefilter("ignore", ConvergenceWarning)  # held-out loss judges the fit, finished or not
            model.fit((states[fit] - centre) / scale, labels[fit])
        # A probability that underflows to 0 would make one token's loss infinite.
        shares = np.maximum(model.predict_proba((states[scored] - centre) / scale), LEAST_PROBABILITY)
        log_probabilities[:, seen] = np.log(shares)
    else:
        log_probabilities[:, seen] = 0.0
    return np.asarray(-log_probabilities[np.arange(len(log_probabilities)), labels[scored]], np.float64)


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
