"""Kernels of two versions of a few hundred items in, debiased CKA of them or of some of them out."""

import math

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Rows


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
