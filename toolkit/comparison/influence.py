"""How much single items weigh in scores that are no mean over items, so that these have intervals over items too.

A score T of N answers is written as the mean of T + ψ_i: ψ_i, the empirical influence of item i, is the derivative of T
as the weight of that item grows, and the ψ of all items add up to 0 (Hampel 1974; the infinitesimal jackknife of
Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, chapter 6). T + ψ_i then stands for an item as
right or wrong does in an accuracy: its mean over items is the score, and its variance over N is that of the score to
first order. An accuracy is the case in which this is exact. Leaving item i out changes T by -ψ_i/N, but for terms of
1/N². With it the two-way interval of a difference covered .93 to .97 of simulated studies with 3 to 10 seeds and 200 or
872 items, one over seeds alone .36 to .94 (`experiments/benchmarks/coverage.py`). All formulas are derivatives of the
scores' own (:func:`toolkit.training.evaluation.compute_scores`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolkit.analysis.measures import Array

Influence = tuple[float, Array]
"""A score, and (items,) the influence of each item on it."""


def _ratio(top: Array, bottom: Array) -> Influence:
    """Mean over columns of the ratios of the means over items, 0 where the lower is: ψ = (top - T·bottom) / lower."""
    lower = np.where(bottom.any(axis=0), bottom.mean(axis=0), 1.0)
    ratios = top.mean(axis=0) / lower
    return float(ratios.mean()), ((top - ratios * bottom) / lower).mean(axis=1)


def _correlation(first: Array, second: Array) -> Influence:
    """Correlation of two tables (items, columns), 0 where either is constant; of one column each it is Pearson's.

    T = mean of x·y / √(mean of x·x · mean of y·y), x and y the centred rows, and ψ = x·y/√(...) - T/2 · (x·x / mean of
    x·x + y·y / mean of y·y).
    """
    if not (np.ptp(first, axis=0).any() and np.ptp(second, axis=0).any()):
        return 0.0, np.zeros(len(first))
    x, y = first - first.mean(axis=0), second - second.mean(axis=0)
    products, first_squares, second_squares = ((left * right).sum(axis=1) for left, right in ((x, y), (x, x), (y, y)))
    scale = np.sqrt(first_squares.mean() * second_squares.mean())
    value = float(products.mean() / scale)
    return value, products / scale - value / 2 * (
        first_squares / first_squares.mean() + second_squares / second_squares.mean()
    )


def _spearman(labels: Array, predictions: Array) -> Influence:
    """Pearson's correlation of mid-ranks: an item weighs by its own ranks, and by the ranks that it gives to others.

    The second part is Σ_j ∂T/∂F(x_j) · (H(x_i, x_j) - F(x_j)) on each side, F(x_j) the mean of H(x_i, x_j) over i, H 1
    where x_i < x_j, 1/2 where they are equal, else 0.
    """
    # The number of each item's value among the distinct ones, ascending.
    orders = [np.unique(values, return_inverse=True)[1] for values in (labels, predictions)]
    ranks = np.array([_weight_below(order, np.ones(len(order))) for order in orders]) / len(labels)
    value, influence = _correlation(*ranks[:, :, None])
    if not influence.any():
        return value, influence
    x, y = ranks - ranks.mean(axis=1, keepdims=True)
    for order, side_ranks, other_ranks in zip(orders, (x, y), (y, x), strict=True):
        slopes = other_ranks / np.sqrt((x @ x) * (y @ y)) - value * side_ranks / (side_ranks @ side_ranks)
        influence = influence - _weight_below(order, slopes)
    return value, influence - influence.mean()


def _weight_below(order: NDArray[np.intp], weights: Array) -> Array:
    """(items,) the weights of all items below each, by ``order``, and half of those of its equals."""
    sums = np.bincount(order, weights)
    return np.asarray((np.cumsum(sums) - sums / 2)[order])


def _r2(labels: Array, predictions: Array) -> Influence:
    """1 - squared errors / squared deviations of the labels from their mean."""
    value, influence = _ratio((predictions - labels)[:, None] ** 2, (labels - labels.mean())[:, None] ** 2)
    return 1 - value, -influence


def _f1(labels: Array, predictions: Array) -> Influence:
    """Of each column, which is a class, 2·hits / (labels + predictions), and the mean over them."""
    return _ratio(2 * labels * predictions, labels + predictions)


def _classes(labels: NDArray[Any], predictions: NDArray[Any], names: ArrayLike | None = None) -> tuple[Array, Array]:
    """(items, classes) 1 where an item has a class and 0 elsewhere: all classes that occur, or those of some names."""
    names = np.unique(np.concatenate([labels, predictions])) if names is None else names
    return (labels[:, None] == names).astype(float), (predictions[:, None] == names).astype(float)


SCORES: Mapping[str, Callable[[Any, Any], Influence]] = {
    "pearson": lambda labels, predictions: _correlation(labels[:, None], predictions[:, None]),
    "spearman": _spearman,
    "r2": _r2,
    "matthews": lambda labels, predictions: _correlation(*_classes(labels, predictions)),
    "macro_f1": lambda labels, predictions: _f1(*_classes(labels, predictions)),
    "f1": lambda labels, predictions: _f1(*_classes(labels, predictions, [1])),
}
"""Score to the function of (items,) labels and predictions, numbers or classes, that gives it and the influences."""


def influence_of_entities(
    score: str, labels: NDArray[Any], predictions: NDArray[Any], sentences: NDArray[Any]
) -> Influence:
    """Precision, recall or F1 of entities (seqeval's), and (words,) how much the sentence of each word weighs in it.

    That is a ratio of sums over sentences: of right entities over those that were told (precision), that there are
    (recall), or half of both (F1). The words of a sentence share its influence in equal parts. ``sentences``: (words,)
    which one each is of; those of one stand together, in order. ``labels``, ``predictions``: (words,) tags.
    """
    from seqeval.metrics.sequence_labeling import get_entities

    starts = np.flatnonzero(sentences[1:] != sentences[:-1]) + 1
    true, predicted = (
        [{*get_entities(list(sentence_tags))} for sentence_tags in np.split(tags, starts)]
        for tags in (labels, predictions)
    )
    counts = np.array(
        [(len(a & b), len(b), len(a), (len(a) + len(b)) / 2) for a, b in zip(true, predicted, strict=True)]
    )
    # Column 0 is right entities, the others what each score divides them by.
    denominator = ("", "precision", "recall", "f1").index(score)
    value, influence = _ratio(counts[:, :1], counts[:, [denominator]])
    sizes = np.diff([0, *starts, len(sentences)])
    return value, np.repeat(influence / sizes * sizes.mean(), sizes)
