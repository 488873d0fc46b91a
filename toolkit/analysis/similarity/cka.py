"""Moments of two versions of the same rows in, linear CKA out, biased and debiased: do rows still relate as before?

Both are unmoved by rotation, reflection, translation and one common factor of either version. A column whose variance
is far above the rest decides both: read the column-standardised value (ours) beside the raw one. Standardised, each
column of each version first gets standard deviation 1, and constant columns drop out; rotation then moves the value.
"""

import math

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.moments import Moments
from toolkit.analysis.similarity.refusal import Refused, refuse_below

_ROUNDING = 1e-12


def biased_cka(moments: Moments, *, is_standardised: bool = False) -> float:
    """Linear CKA ‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F) of centred rows, 0 to 1: Kornblith et al. 2019, arXiv 1905.00414.

    Unrelated rows do not give 0 but about p/(n+p) (independent Gaussians), and two rows always give 1: its null
    belongs beside it. Refused where the rows of a version are all equal.
    """
    moments.check_varying("CKA")
    xx, xy, yy = (math.sqrt(square) for square in _squared_products(moments, is_standardised))
    return (xy / xx) * (xy / yy)


def debiased_cka(moments: Moments, *, is_standardised: bool = False) -> float:
    """HSIC₁(X,Y) / √(HSIC₁(X,X)·HSIC₁(Y,Y)): 0 on average for unrelated rows, so below 0 by chance, and never clipped.

    HSIC₁ is the U-statistic of Song et al. 2012 (JMLR 13), put into CKA by Nguyen et al. 2021 (arXiv 2010.15327).
    With linear kernels and centred rows it needs no n by n matrix (our derivation; a test holds it to that form):
    n(n-3)·HSIC₁ = ‖XᵀY‖²_F - n/(n-2)·Σ‖x_i‖²‖y_i‖² + Σ‖x_i‖²·Σ‖y_i‖²/((n-1)(n-2)).
    Refused for n ≤ 3, and where HSIC₁ of a version with itself is 0: all its rows equal, or equally far from one
    another.
    """
    n = moments.num_rows
    refuse_below(n, 4, "debiased CKA")
    moments.check_varying("debiased CKA")
    a, b = moments.standardised_norms if is_standardised else moments.norms
    xx, xy, yy = _squared_products(moments, is_standardised)
    of_x, of_both, of_y = _unbiased(xx, a, a, n), _unbiased(xy, a, b, n), _unbiased(yy, b, b, n)
    # HSIC₁ of a version with itself is never below 0; where it is 0, rounding leaves a little.
    if not (of_x > _ROUNDING * xx and of_y > _ROUNDING * yy):
        raise Refused("debiased CKA is undefined: all rows of a version are equally far from one another")
    return of_both / math.sqrt(of_x) / math.sqrt(of_y)


def _unbiased(squared_product: float, a: Array, b: Array, n: int) -> float:
    """n(n-3)·HSIC₁ from ‖XᵀY‖²_F and the squared norms of centred rows."""
    total = float(a.sum()) * float(b.sum()) / ((n - 1) * (n - 2))
    return squared_product - n / (n - 2) * float(a @ b) + total


def _squared_products(moments: Moments, is_standardised: bool) -> tuple[float, float, float]:
    """‖XᵀX‖², ‖XᵀY‖², ‖YᵀY‖²."""
    xx, xy, yy = moments.xx, moments.xy, moments.yy
    if is_standardised:
        x, y = moments.scales
        xx, xy, yy = xx * np.outer(x, x), xy * np.outer(x, y), yy * np.outer(y, y)
    return float(np.vdot(xx, xx)), float(np.vdot(xy, xy)), float(np.vdot(yy, yy))
