"""Two versions of the same rows in, how alike they are up to a rotation (Procrustes) or any linear map (CCA) out.

The snapshots of one run share a basis, so un-aligned drift is what training did; Procrustes says how much of it a
rotation could explain. It absorbs real drift where rows are few: (p-1)/(2n) of the square of small isotropic drift.
"""

import math

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.moments import Moments
from toolkit.analysis.similarity.refusal import Refused

VARIANCE_KEPT = 0.99
"""Share of the variance that SVCCA keeps of each version (Raghu et al. 2017)."""

ROWS_PER_COLUMN = 5
"""CCA finds correlation in any rows that are few against the columns: refused below this ratio."""


def procrustes_similarity(moments: Moments) -> float:
    """‖XᵀY‖_* / (‖X‖_F ‖Y‖_F) of centred rows, 0 to 1: the cosine after the best rotation or reflection.

    Orthogonal Procrustes (Schönemann 1966). Unmoved by rotation, translation and a common factor of either version.
    1 for any two rows, and far above 0 for unrelated rows unless n is far above p. Refused where the rows of a version
    are all equal.
    """
    norms = math.sqrt(np.trace(moments.xx)) * math.sqrt(max(np.trace(moments.yy), 0))
    if not norms > 0:
        raise Refused("Procrustes similarity is undefined: the rows of a version are all equal")
    return _best_rotation(moments)[1] / norms


def unaligned_relative_drift(moments: Moments) -> float:
    """‖Y - X‖_F / ‖X‖_F, nothing removed: the whole-parameter ``relative`` of measure_drift, over these rows."""
    return math.sqrt(moments.squared_change) / _reference_norm(moments)


def aligned_relative_drift(moments: Moments) -> float:
    """min over rotations and reflections Q and translations c of ‖XQ + 1cᵀ - Y‖_F / ‖X‖_F.

    Orthogonal Procrustes (Schönemann 1966) of centred rows, with the denominator of the un-aligned drift so that the
    two compare. No scaling is removed.
    """
    return math.sqrt(_aligned_square(moments)) / _reference_norm(moments)


def translation_share(moments: Moments) -> float:
    """n‖mean Δ‖² / ‖Δ‖²_F, 0 to 1: the share of squared un-aligned drift that is one shift of all rows. Ours.

    Isotropic drift gives 1/n. Refused where nothing moved.
    """
    return moments.num_rows * float(moments.offset @ moments.offset) / _squared_change(moments)


def rotation_share(moments: Moments) -> float:
    """(‖Δ‖² of centred rows - its least value over rotations and reflections of X) / ‖Δ‖²_F, 0 to 1. Ours.

    The share of squared un-aligned drift that the best rotation removes after the common shift: translation share,
    rotation share and (aligned / un-aligned)² add up to 1. Refused where nothing moved.
    """
    removed = float(np.trace(moments.dd)) - _aligned_square(moments)
    return removed / _squared_change(moments)


def svcca(moments: Moments) -> float:
    """Mean canonical correlation of the leading directions of both versions, 0 to 1.

    Raghu et al. 2017, arXiv 1706.05806. Each version keeps the fewest principal directions that hold 99 % of its
    variance. Refused for n < 5p.
    """
    _refuse_few_rows(moments, "SVCCA")
    return float(np.mean(_canonical(moments, VARIANCE_KEPT)[1]))


def pwcca(moments: Moments, *, weights_of: str = "reference") -> float:
    """Mean of the canonical correlations, weighted by how much of one version each accounts for, 0 to 1.

    Morcos et al. 2018, arXiv 1806.05759. Weight of correlation i: Σ_j|⟨h_i, x_j⟩| over the columns x_j of the version
    ``weights_of`` (``reference`` or ``current``), h_i its canonical variate of length 1. Asymmetric; the weights depend
    on the basis of that version, so only the other one may be rotated (or mapped by any invertible matrix) without
    changing the value. All directions are kept. Refused for n < 5p.
    """
    if weights_of not in ("reference", "current"):
        raise ValueError(f"weights_of is 'reference' or 'current', not {weights_of!r}")
    _refuse_few_rows(moments, "PWCCA")
    loadings_x, correlations, loadings_y = _canonical(moments, 1.0)
    loadings = loadings_x if weights_of == "reference" else loadings_y
    weights = np.abs(loadings).sum(axis=1)
    return float(weights @ correlations / weights.sum())


def canonical_correlations(moments: Moments, variance_kept: float = 1.0) -> Array:
    """(directions,) canonical correlations, largest first, between the leading directions of both versions."""
    return _canonical(moments, variance_kept)[1]


def _canonical(moments: Moments, variance_kept: float) -> tuple[Array, Array, Array]:
    """Inner products of the variates with the columns of X, the correlations, and the same with the columns of Y."""
    (roots_x, basis_x), (roots_y, basis_y) = (_leading(m, variance_kept) for m in (moments.xx, moments.yy))
    if not (len(roots_x) and len(roots_y)):
        raise Refused("CCA is undefined: the rows of a version are all equal")
    between = (basis_x / roots_x).T @ moments.xy @ (basis_y / roots_y)
    left, correlations, right = np.linalg.svd(between, full_matrices=False)
    # Rounding may leave 1 + 1e-15.
    return left.T @ (basis_x * roots_x).T, np.minimum(correlations, 1), right @ (basis_y * roots_y).T


def _leading(products: Array, variance_kept: float) -> tuple[Array, Array]:
    """Square roots of the leading eigenvalues of XᵀX, largest first, and their directions as columns."""
    values, vectors = np.linalg.eigh(products)
    values, vectors = values[::-1], vectors[:, ::-1]
    has_variance = values > values[0] * len(values) * np.finfo(np.float64).eps
    count = int(has_variance.sum())
    if variance_kept < 1:
        shares = np.cumsum(values[:count]) / values[:count].sum()
        count = min(count, int(np.searchsorted(shares, variance_kept)) + 1)
    return np.sqrt(values[:count]), vectors[:, :count]


def _best_rotation(moments: Moments) -> tuple[Array, float]:
    """Q that brings X nearest to Y, and the sum of the singular values of XᵀY."""
    from scipy.linalg import orthogonal_procrustes

    # It takes two matrices A and B and uses AᵀB only: I and XᵀY stand for tables of any length.
    rotation, nuclear_norm = orthogonal_procrustes(np.eye(moments.num_columns), moments.xy)
    return rotation, float(nuclear_norm)


def _aligned_square(moments: Moments) -> float:
    """min ‖XQ - Y‖² of centred rows, as ‖X(Q - I) - Δ‖² so that small drift keeps its digits."""
    turn = _best_rotation(moments)[0] - np.eye(moments.num_columns)
    unaligned = float(np.trace(moments.dd))
    square = np.vdot(turn, moments.xx @ turn) - 2 * np.vdot(turn, moments.xd) + unaligned
    # No rotation at all is one of the choices, so rounding never makes the best one worse than it.
    return min(max(float(square), 0.0), unaligned)


def _reference_norm(moments: Moments) -> float:
    if not moments.square > 0:
        raise Refused("relative drift is undefined: the reference is 0")
    return math.sqrt(moments.square)


def _squared_change(moments: Moments) -> float:
    if not moments.squared_change > 0:
        raise Refused("a share of the drift is undefined: no row moved")
    return moments.squared_change


def _refuse_few_rows(moments: Moments, what: str) -> None:
    n, p = moments.num_rows, moments.num_columns
    if n < ROWS_PER_COLUMN * p:
        raise Refused(f"{what} needs at least {ROWS_PER_COLUMN} rows per column: {n} rows, {p} columns")
