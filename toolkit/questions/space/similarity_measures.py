"""Similarity of two versions of the same rows: up to a rotation (Procrustes, CKA), any linear map (CCA), order (RSA).

The snapshots of one run share a basis, so un-aligned drift is what training did; Procrustes says how much of it a
rotation could explain. It absorbs real drift where rows are few: (p-1)/(2n) of the square of small isotropic drift.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.kernels import Refused, Rows, check_rows, refuse_below
from toolkit.analysis.measures import Array
from toolkit.analysis.nearest import Ids, correct, overlaps, search_nearest
from toolkit.questions.space.cross_products import CrossProducts, correlate

_ROUNDING = 1e-12


def biased_cka(products: CrossProducts, *, is_standardised: bool = False) -> float:
    """Linear CKA ‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F) of centred rows, 0 to 1: Kornblith et al. 2019, arXiv 1905.00414.

    Unrelated rows do not give 0 but about p/(n+p) (independent Gaussians), and two rows always give 1: its null
    belongs beside it. Refused where the rows of a version are all equal.
    """
    products.check_varying("CKA")
    xx, xy, yy = (math.sqrt(square) for square in _squared_products(products, is_standardised))
    return (xy / xx) * (xy / yy)


def debiased_cka(products: CrossProducts, *, is_standardised: bool = False) -> float:
    """HSIC₁(X,Y) / √(HSIC₁(X,X)·HSIC₁(Y,Y)): 0 on average for unrelated rows, so below 0 by chance, and never clipped.

    HSIC₁ is the U-statistic of Song et al. 2012 (JMLR 13), put into CKA by Nguyen et al. 2021 (arXiv 2010.15327).
    With linear kernels and centred rows it needs no n by n matrix (our derivation; a test holds it to that form):
    n(n-3)·HSIC₁ = ‖XᵀY‖²_F - n/(n-2)·Σ‖x_i‖²‖y_i‖² + Σ‖x_i‖²·Σ‖y_i‖²/((n-1)(n-2)).
    Refused for n ≤ 3, and where HSIC₁ of a version with itself is 0: all its rows equal, or equally far from one
    another.
    """
    n = products.num_rows
    refuse_below(n, 4, "debiased CKA")
    products.check_varying("debiased CKA")
    a, b = products.standardised_norms if is_standardised else products.norms
    xx, xy, yy = _squared_products(products, is_standardised)
    of_x, of_both, of_y = _unbiased(xx, a, a, n), _unbiased(xy, a, b, n), _unbiased(yy, b, b, n)
    # HSIC₁ of a version with itself is never below 0; where it is 0, rounding leaves a little.
    if not (of_x > _ROUNDING * xx and of_y > _ROUNDING * yy):
        raise Refused("debiased CKA is undefined: all rows of a version are equally far from one another")
    return of_both / math.sqrt(of_x) / math.sqrt(of_y)


def _unbiased(squared_product: float, a: Array, b: Array, n: int) -> float:
    """n(n-3)·HSIC₁ from ‖XᵀY‖²_F and the squared norms of centred rows."""
    total = float(a.sum()) * float(b.sum()) / ((n - 1) * (n - 2))
    return squared_product - n / (n - 2) * float(a @ b) + total


def _squared_products(products: CrossProducts, is_standardised: bool) -> tuple[float, float, float]:
    """‖XᵀX‖², ‖XᵀY‖², ‖YᵀY‖²."""
    xx, xy, yy = products.xx, products.xy, products.yy
    if is_standardised:
        x, y = products.scales
        xx, xy, yy = xx * np.outer(x, x), xy * np.outer(x, y), yy * np.outer(y, y)
    return float(np.vdot(xx, xx)), float(np.vdot(xy, xy)), float(np.vdot(yy, yy))


VARIANCE_KEPT = 0.99
"""Share of the variance that SVCCA keeps of each version (Raghu et al. 2017)."""

ROWS_PER_COLUMN = 5
"""CCA finds correlation in any rows that are few against the columns: refused below this ratio."""


def procrustes_similarity(products: CrossProducts) -> float:
    """‖XᵀY‖_* / (‖X‖_F ‖Y‖_F) of centred rows, 0 to 1: the cosine after the best rotation or reflection.

    Orthogonal Procrustes (Schönemann 1966). Unmoved by rotation, translation and a common factor of either version.
    1 for any two rows, and far above 0 for unrelated rows unless n is far above p. Refused where the rows of a version
    are all equal.
    """
    products.check_varying("Procrustes similarity")
    norms = math.sqrt(np.trace(products.xx)) * math.sqrt(np.trace(products.yy))
    return float(np.linalg.svd(products.xy, compute_uv=False).sum()) / norms


def unaligned_relative_drift(products: CrossProducts) -> float:
    """‖Y - X‖_F / ‖X‖_F, nothing removed: the whole-parameter ``relative`` of measure_drift, over these rows."""
    return math.sqrt(products.squared_change) / _reference_norm(products)


def aligned_relative_drift(products: CrossProducts) -> float:
    """min over rotations and reflections Q and translations c of ‖XQ + 1cᵀ - Y‖_F / ‖X‖_F.

    Orthogonal Procrustes (Schönemann 1966) of centred rows, with the denominator of the un-aligned drift so that the
    two compare. No scaling is removed.
    """
    return math.sqrt(products.aligned_square) / _reference_norm(products)


def translation_share(products: CrossProducts) -> float:
    """n‖mean Δ‖² / ‖Δ‖²_F, 0 to 1: the share of squared un-aligned drift that is one shift of all rows. Ours.

    Isotropic drift gives 1/n. Refused where nothing moved.
    """
    return products.num_rows * float(products.offset @ products.offset) / _squared_change(products)


def rotation_share(products: CrossProducts) -> float:
    """(‖Δ‖² of centred rows - its least value over rotations and reflections of X) / ‖Δ‖²_F, 0 to 1. Ours.

    The share of squared un-aligned drift that the best rotation removes after the common shift: translation share,
    rotation share and (aligned / un-aligned)² add up to 1. Refused where nothing moved.
    """
    return (products.centred_change - products.aligned_square) / _squared_change(products)


def svcca(products: CrossProducts) -> float:
    """Mean canonical correlation of the leading directions of both versions, 0 to 1.

    Raghu et al. 2017, arXiv 1706.05806. Each version keeps the fewest principal directions that hold 99 % of its
    variance. Refused where there are fewer than five rows per column.
    """
    _check_correlation(products, "SVCCA")
    return float(np.mean(canonical_correlations(products, VARIANCE_KEPT)))


def pwcca(products: CrossProducts, *, weights_of: str = "reference") -> float:
    """Mean of the canonical correlations, weighted by how much of one version each accounts for, 0 to 1.

    Morcos et al. 2018, arXiv 1806.05759. Weight of correlation i: Σ_j|⟨h_i, x_j⟩| over the columns x_j of the version
    ``weights_of`` (``reference`` or ``current``), h_i its canonical variate of length 1. Asymmetric; the weights depend
    on the basis of that version, so only the other one may be rotated (or mapped by any invertible matrix) without
    changing the value. All directions are kept. Refused for n < 5p.
    """
    if weights_of not in ("reference", "current"):
        raise ValueError(f"weights_of is 'reference' or 'current', not {weights_of!r}")
    _check_correlation(products, "PWCCA")
    loadings = products.variates.of_x if weights_of == "reference" else products.variates.of_y
    weights = np.abs(loadings).sum(axis=1)
    return float(weights @ products.variates.correlations / weights.sum())


def canonical_correlations(products: CrossProducts, variance_kept: float = 1.0) -> Array:
    """(directions,) canonical correlations, largest first, between the leading directions of both versions."""
    return correlate(products.axes_of_x.leading(variance_kept), products.xy, products.axes_of_y.leading(variance_kept))


def _reference_norm(products: CrossProducts) -> float:
    if not products.square > 0:
        raise Refused("relative drift is undefined: the reference is 0")
    return math.sqrt(products.square)


def _squared_change(products: CrossProducts) -> float:
    if not products.squared_change > 0:
        raise Refused("a share of the drift is undefined: no row moved")
    return products.squared_change


def _check_correlation(products: CrossProducts, name: str) -> None:
    products.check_varying(name)
    n, p = products.num_rows, products.num_columns
    if n < ROWS_PER_COLUMN * p:
        raise Refused(f"{name} needs at least {ROWS_PER_COLUMN} rows per column: {n} rows, {p} columns")


CHECKED_ROWS = 4096
"""Rows whose lengths are taken at a time."""

QUERY_ROWS = 10
"""Queries whose neighbourhoods are compared at a time: 1.6 MB at k = 10 and 1,024 columns, in a core's cache."""


@dataclass(frozen=True)
class Neighbourhoods:
    """The nearest rows of some rows (the queries) in two versions of a table."""

    queries: Ids
    """(m,) row of each query."""
    reference: Ids
    """(m, k) rows nearest to each in the reference, nearest first."""
    current: Ids
    """(m, k) the same in the current version."""
    num_others: int
    """Rows with a direction beside the query itself."""
    means: tuple[Array, Array] | None
    """(p,) mean rows that were taken away from both versions; None for none."""


def find_neighbourhoods(
    reference: Rows, current: Rows, k: int = 10, *, queries: Ids | None = None, is_centred: bool = False
) -> Neighbourhoods:
    """Neighbours of the queries (default: all rows) among all rows in both versions, (n, p) each.

    Rows without a direction in either are dropped. Refused for k ≥ n - 1, where every neighbourhood would be nearly the
    whole table.
    """
    check_rows(reference, current, "k-NN overlap")
    if k < 1:
        raise ValueError(f"k is a number of neighbours, at least 1, not {k}")
    reference_mean, current_mean = (
        rows.mean(axis=0, dtype=np.float64) if is_centred else None for rows in (reference, current)
    )
    has_direction = _has_direction(reference, reference_mean) & _has_direction(current, current_mean)
    candidates = np.flatnonzero(has_direction)
    queries = candidates if queries is None else np.asarray(queries)[has_direction[queries]]
    if not len(queries):
        raise Refused("k-NN overlap is undefined: no query row has a direction in both versions")
    num_others = len(candidates) - 1
    if k >= num_others:
        raise Refused(f"k-NN overlap needs more than k = {k} other rows with a direction, there are {num_others}")
    neighbours = [
        search_nearest(rows, k, queries=queries, candidates=candidates, center=mean).indices
        for rows, mean in ((reference, reference_mean), (current, current_mean))
    ]
    means = None if reference_mean is None or current_mean is None else (reference_mean, current_mean)
    return Neighbourhoods(queries, neighbours[0], neighbours[1], num_others, means)


def overlap(neighbourhoods: Neighbourhoods, *, is_corrected: bool = True) -> Array:
    """(m,) share of the k neighbours that a row keeps, 0 to 1; :func:`correct` for chance, k / num_others."""
    shares = overlaps(neighbourhoods.reference, neighbourhoods.current)
    chance = neighbourhoods.reference.shape[1] / neighbourhoods.num_others
    return correct(shares, chance) if is_corrected else shares


def second_order_cosine(reference: Rows, current: Rows, neighbourhoods: Neighbourhoods) -> Array:
    """(m,) cosine between a row's cosines to the union of both its neighbourhoods, before and after, -1 to 1.

    Hamilton, Leskovec & Jurafsky 2016 (arXiv 1606.02821), with our centring where the neighbourhoods were found so:
    without it, unrelated rows with a common mean give nearly 1. Even centred, unrelated rows do not give 0: read the
    null. NaN where all cosines are 0.
    """
    versions = zip((reference, current), neighbourhoods.means or (None, None), strict=True)
    cosines_of = [partial(_cosines, rows, mean) for rows, mean in versions]
    values = np.empty(len(neighbourhoods.queries))
    for start in range(0, len(values), QUERY_ROWS):
        block = slice(start, start + QUERY_ROWS)
        queries, before, after = (
            ids[block] for ids in (neighbourhoods.queries, neighbourhoods.reference, neighbourhoods.current)
        )
        is_new = ~(after[:, :, None] == before[:, None, :]).any(axis=2)
        in_union = np.concatenate([np.ones(before.shape, np.bool_), is_new], axis=1)
        union = np.concatenate([before, after], axis=1)
        left, right = (cosines(queries, union) * in_union for cosines in cosines_of)
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        values[block] = np.einsum("mj,mj->m", left, right) / np.where(lengths > 0, lengths, np.nan)
    return values


def _take(rows: Rows, ids: Ids, mean: Array | None) -> Array:
    chosen = rows[ids].astype(np.float64)
    if mean is not None:
        chosen -= mean
    return chosen


def _has_direction(rows: Rows, mean: Array | None) -> NDArray[np.bool_]:
    """Whether each row is above 0 in length, by more than the rounding of the mean that was taken away."""
    lengths = np.empty(len(rows))
    for start in range(0, len(rows), CHECKED_ROWS):
        ids = np.arange(start, min(start + CHECKED_ROWS, len(rows)))
        lengths[ids] = np.linalg.norm(_take(rows, ids, mean), axis=1)
    floor = 0.0 if mean is None else 1e-12 * float(np.linalg.norm(mean))
    return np.asarray(lengths > floor)


def _cosines(rows: Rows, mean: Array | None, queries: Ids, other_ids: Ids) -> Array:
    """(m, j) cosine of each query to other rows of its own, whose ids are (m, j)."""
    targets = _take(rows, queries, mean)
    targets /= np.linalg.norm(targets, axis=1, keepdims=True)
    other_rows = _take(rows, other_ids.reshape(-1), mean).reshape(*other_ids.shape, -1)
    lengths = np.sqrt(np.einsum("mjp,mjp->mj", other_rows, other_rows))
    products = (other_rows @ targets[:, :, None])[:, :, 0]
    # Under a permutation a neighbour in one version can be a row of zeros in the other.
    return np.asarray(np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0))


def permute_items(distances: Array, order: NDArray[np.intp]) -> Array:
    """The distance matrix of the same items in another order."""
    return distances[np.ix_(order, order)]
