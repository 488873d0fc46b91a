"""The singular values of a table of rows, and among how many directions its variance is divided."""

import numpy as np

from toolkit.analysis.kernels import Refused
from toolkit.analysis.measures import Array

NO_SPREAD = "all rows are equal: nothing is spread over any direction"


def squared_singular_values(rows: Array, *, centre: bool = True) -> Array:
    """(min(n, p),) σ² of (n, p) float64 rows in descending order, from the smaller of the two Gram matrices.

    Squares below 1e-16 of the largest are rounding. ``centre`` takes the mean row away first.
    """
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"rows must be a table (rows, hidden) that is not empty; got shape {rows.shape}")
    if centre:
        rows = rows - rows[0]
        rows = rows - rows.mean(axis=0)
    gram = rows.T @ rows if rows.shape[0] > rows.shape[1] else rows @ rows.T
    return np.asarray(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0))


def effective_rank(rows: Array, *, centre: bool = True) -> float:
    """exp(H(σ²/Σσ²)) of (n, p) rows, 1 to min(n, p); see :func:`entropy_rank`. Refused (ValueError) without spread."""
    return entropy_rank(squared_singular_values(rows, centre=centre))


def entropy_rank(squared: Array) -> float:
    """exp of the Shannon entropy of σ²/Σσ², from (r,) σ², 1 to r. Refused, as the others, without spread.

    O. Roy & M. Vetterli, The effective rank (EUSIPCO 2007), but of the squared singular values, where they take the
    values themselves: ours says among how many directions the variance is divided, and is never above theirs.
    """
    shares = variance_shares(squared)
    positive = shares[shares > 0]
    return float(np.exp(-np.sum(positive * np.log(positive))))


def variance_shares(squared: Array) -> Array:
    """(r,) σ²/Σσ²; Refused where nothing is spread."""
    total = float(squared.sum())
    if not total > 0:
        raise Refused(NO_SPREAD)
    return np.asarray(squared / total)
