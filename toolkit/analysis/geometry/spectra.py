"""Rows or their squared singular values in, among how many directions they are spread out: ranks and IsoScore."""

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused

ISOSCORE_ROWS_PER_DIMENSION = 20
"""Below this many rows per dimension IsoScore measures the size of the sample: an isotropic Gaussian of 512 rows
of 768 has .40, of 30,522 rows .975 (both computed by this project, and the limit is ours)."""


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
    shares = _shares(squared)
    positive = shares[shares > 0]
    return float(np.exp(-np.sum(positive * np.log(positive))))


def stable_rank_of(squared: Array) -> float:
    """Σσ²/max σ² from (r,) σ², 1 to r (Rudelson & Vershynin 2007)."""
    return float(1 / _shares(squared).max())


def participation_ratio_of(squared: Array) -> float:
    """(Σσ²)²/Σσ⁴ from (r,) σ², 1 to r."""
    return float(1 / np.sum(np.square(_shares(squared))))


def energy_in_top(squared: Array, k: int) -> float:
    """Share of Σσ² in the k largest of (r,) σ², which are in descending order."""
    return float(_shares(squared)[:k].sum())


def isoscore_of(squared: Array, hidden: int) -> float:
    """(participation ratio - 1)/(p - 1) from the centred σ²: IsoScore in closed form.

    W. Rudman, N. Gillman, T. Rayne, C. Eickhoff, IsoScore: Measuring the Uniformity of Embedding Space Utilization
    (Findings of ACL 2022). Their steps (principal axes, variances scaled to length √p, distance to all-ones, share of
    dimensions used, rescaling) come to this number exactly; a test follows them one by one.
    """
    if hidden < 2:
        raise Refused("one dimension: nothing to be isotropic in")
    return (participation_ratio_of(squared) - 1) / (hidden - 1)


def _shares(squared: Array) -> Array:
    total = float(squared.sum())
    if not total > 0:
        raise Refused(NO_SPREAD)
    return np.asarray(squared / total)
