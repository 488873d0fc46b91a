"""Two versions of the same rows in, how alike they are up to a rotation (Procrustes) or any linear map (CCA) out.

The snapshots of one run share a basis, so un-aligned drift is what training did; Procrustes says how much of it a
rotation could explain. It absorbs real drift where rows are few: (p-1)/(2n) of the square of small isotropic drift.
"""

import math

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.axes import correlate
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
    moments.check_varying("Procrustes similarity")
    norms = math.sqrt(np.trace(moments.xx)) * math.sqrt(np.trace(moments.yy))
    return float(np.linalg.svd(moments.xy, compute_uv=False).sum()) / norms


def unaligned_relative_drift(moments: Moments) -> float:
    """‖Y - X‖_F / ‖X‖_F, nothing removed: the whole-parameter ``relative`` of measure_drift, over these rows."""
    return math.sqrt(moments.squared_change) / _reference_norm(moments)


def aligned_relative_drift(moments: Moments) -> float:
    """min over rotations and reflections Q and translations c of ‖XQ + 1cᵀ - Y‖_F / ‖X‖_F.

    Orthogonal Procrustes (Schönemann 1966) of centred rows, with the denominator of the un-aligned drift so that the
    two compare. No scaling is removed.
    """
    return math.sqrt(moments.aligned_square) / _reference_norm(moments)


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
    removed = moments.centred_change - moments.aligned_square
    return removed / _squared_change(moments)


def svcca(moments: Moments) -> float:
    """Mean canonical correlation of the leading directions of both versions, 0 to 1.

    Raghu et al. 2017, arXiv 1706.05806. Each version keeps the fewest principal directions that hold 99 % of its
    variance. Refused for n < 5p.
    """
    _check_correlation(moments, "SVCCA")
    return float(np.mean(canonical_correlations(moments, VARIANCE_KEPT)))


def pwcca(moments: Moments, *, weights_of: str = "reference") -> float:
    """Mean of the canonical correlations, weighted by how much of one version each accounts for, 0 to 1.

    Morcos et al. 2018, arXiv 1806.05759. Weight of correlation i: Σ_j|⟨h_i, x_j⟩| over the columns x_j of the version
    ``weights_of`` (``reference`` or ``current``), h_i its canonical variate of length 1. Asymmetric; the weights depend
    on the basis of that version, so only the other one may be rotated (or mapped by any invertible matrix) without
    changing the value. All directions are kept. Refused for n < 5p.
    """
    if weights_of not in ("reference", "current"):
        raise ValueError(f"weights_of is 'reference' or 'current', not {weights_of!r}")
    _check_correlation(moments, "PWCCA")
    loadings = moments.variates.of_x if weights_of == "reference" else moments.variates.of_y
    weights = np.abs(loadings).sum(axis=1)
    return float(weights @ moments.variates.correlations / weights.sum())


def canonical_correlations(moments: Moments, variance_kept: float = 1.0) -> Array:
    """(directions,) canonical correlations, largest first, between the leading directions of both versions."""
    return correlate(moments.axes_of_x.leading(variance_kept), moments.xy, moments.axes_of_y.leading(variance_kept))


def _reference_norm(moments: Moments) -> float:
    if not moments.square > 0:
        raise Refused("relative drift is undefined: the reference is 0")
    return math.sqrt(moments.square)


def _squared_change(moments: Moments) -> float:
    if not moments.squared_change > 0:
        raise Refused("a share of the drift is undefined: no row moved")
    return moments.squared_change


def _check_correlation(moments: Moments, what: str) -> None:
    moments.check_varying(what)
    n, p = moments.num_rows, moments.num_columns
    if n < ROWS_PER_COLUMN * p:
        raise Refused(f"{what} needs at least {ROWS_PER_COLUMN} rows per column: {n} rows, {p} columns")
