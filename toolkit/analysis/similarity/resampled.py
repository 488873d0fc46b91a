"""Two versions of a few hundred items in, debiased CKA over resampled items out: its value and its interval."""

import math

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused, Rows, check_rows
from toolkit.analysis.similarity.rsa import MIN_ITEMS, NUM_RESAMPLES


def kernel(rows: Rows) -> Array:
    """(items, items) float64 linear kernel of centred rows, diagonal 0; never of a whole word table."""
    array = np.asarray(rows, np.float64)
    centred = array - array.mean(axis=0)
    product = np.asarray(centred @ centred.T)
    np.fill_diagonal(product, 0.0)
    return product


def standardised(rows: Rows) -> Array:
    """(items, columns) float64 with standard deviation 1 in every column; constant columns drop out."""
    array = np.asarray(rows, np.float64)
    deviations = array.std(axis=0)
    return np.asarray(array[:, deviations > 0] / deviations[deviations > 0])


def cka_of_kernels(reference: Array, current: Array, times: Array | None = None) -> float:
    """Debiased CKA (Song et al. 2012, JMLR 13; Nguyen et al. 2021, arXiv 2010.15327) of items drawn ``times`` each.

    ``reference`` and ``current``: :func:`kernel` of the same items. ``times``: (items,), None for once each, which is
    :func:`toolkit.analysis.similarity.cka.debiased_cka`. The pairs of an item with its own copies count as the diagonal
    does, that is not at all. NaN where HSIC₁ of a version with itself is not above 0.
    """
    weights = np.ones(len(reference)) if times is None else np.asarray(times, np.float64)
    of_both = _hsic(reference, current, weights)
    size = _hsic(reference, reference, weights) * _hsic(current, current, weights)
    return of_both / math.sqrt(size) if size > 0 and of_both == of_both else math.nan


def _hsic(left: Array, right: Array, weights: Array) -> float:
    n = float(weights.sum())
    sums_left, sums_right = left @ weights, right @ weights
    trace = float(weights @ ((left * right) @ weights))
    total = float(weights @ sums_left) * float(weights @ sums_right) / ((n - 1) * (n - 2))
    return trace + total - 2 / (n - 2) * float(weights @ (sums_left * sums_right))


def resampled_cka(
    reference: Rows, current: Rows, *, is_standardised: bool = False, level: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """Debiased CKA of two (items, columns) versions, and its interval over items drawn with replacement.

    The basic bootstrap: the resampled values are mirrored at the value, so that their own bias counts against it and
    not for it. The interval is NaN below 20 items. Refused below 4 items, and where a version's items are all alike.
    """
    check_rows(reference, current, "debiased CKA", min_rows=4)
    sides = (standardised(reference), standardised(current)) if is_standardised else (reference, current)
    if not all(side.shape[1] for side in sides):
        raise Refused("debiased CKA is undefined: the items of a version are all equal")
    before, after = kernel(sides[0]), kernel(sides[1])
    value = cka_of_kernels(before, after)
    if math.isnan(value):
        raise Refused("debiased CKA is undefined: all items of a version are equally far from one another")
    if len(before) < MIN_ITEMS:
        return value, math.nan, math.nan
    generator, n = np.random.default_rng([*b"resampled cka", seed]), len(before)
    draws = [np.bincount(generator.integers(n, size=n), minlength=n).astype(np.float64) for _ in range(NUM_RESAMPLES)]
    values = [cka_of_kernels(before, after, times) for times in draws]
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return value, float(2 * value - high), float(2 * value - low)
