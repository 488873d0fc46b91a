"""Two versions of the same rows in, their cross-products out, block by block: what CKA, Procrustes and CCA need."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Rows, check_rows

BLOCK_ROWS = 1024
"""Rows converted to float64 at a time: large enough for a matrix product, 8 MB at 1,024 columns."""


@dataclass(frozen=True)
class Moments:
    """Sums over n rows of X (the reference) and Y = X + Δ (the current version), columns centred, float64.

    Δ is kept instead of Y, so that a drift of 1e-8 is not lost in the difference of two large sums.
    """

    num_rows: int
    mean: Array
    """(p,) column means of X."""
    offset: Array
    """(p,) column means of Δ."""
    square: float
    """Σ‖x_i‖², not centred."""
    xx: Array
    """(p, p) XᵀX."""
    xd: Array
    """(p, p) XᵀΔ."""
    dd: Array
    """(p, p) ΔᵀΔ."""
    norms: Array
    """(2, n) ‖x_i‖² and ‖y_i‖² of each centred row."""
    standardised_norms: Array
    """(2, n) the same after each column of each version was divided by its own standard deviation."""

    @property
    def num_columns(self) -> int:
        return len(self.xx)

    @cached_property
    def xy(self) -> Array:
        """(p, p) XᵀY."""
        return self.xx + self.xd

    @cached_property
    def yy(self) -> Array:
        """(p, p) YᵀY."""
        return self.xx + self.xd + self.xd.T + self.dd

    @property
    def squared_change(self) -> float:
        """Σ‖Δ_i‖², not centred."""
        return float(np.trace(self.dd)) + self.num_rows * float(self.offset @ self.offset)

    @cached_property
    def scales(self) -> tuple[Array, Array]:
        """(p,) 1 / standard deviation of the columns of X and of Y; 0 for a constant column, which then drops out."""
        return (
            _inverse_deviations(self.xx, self.mean, self.num_rows),
            _inverse_deviations(self.yy, self.mean + self.offset, self.num_rows),
        )


def moments_of(reference: Rows, current: Rows) -> Moments:
    """The moments of two versions of the same rows, (n, p) each; three passes over blocks, never an n by n matrix."""
    check_rows(reference, current, "a similarity")
    num_rows, p = reference.shape
    mean, offset = np.zeros(p), np.zeros(p)
    for _, x, y in _blocks(reference, current):
        mean += x.sum(axis=0)
        offset += (y - x).sum(axis=0)
    mean, offset = mean / num_rows, offset / num_rows
    xx, xd, dd = np.zeros((p, p)), np.zeros((p, p)), np.zeros((p, p))
    norms, square = np.empty((2, num_rows)), 0.0
    for rows, x, y in _blocks(reference, current):
        square += float(np.vdot(x, x))
        delta = y - x - offset
        x = x - mean
        xx += x.T @ x
        xd += x.T @ delta
        dd += delta.T @ delta
        norms[:, rows] = _squares(x), _squares(x + delta)
    moments = Moments(num_rows, mean, offset, square, xx, xd, dd, norms, np.empty((2, num_rows)))
    scale_x, scale_y = moments.scales
    for rows, x, y in _blocks(reference, current):
        x, y = x - mean, y - mean - offset
        moments.standardised_norms[:, rows] = _squares(x * scale_x), _squares(y * scale_y)
    return moments


def permuted_moments(moments: Moments, reference: Rows, current: Rows, order: NDArray[np.intp]) -> Moments:
    """The moments of ``reference`` and ``current[order]``, given those of the two in order: a third of the work."""
    xy = np.zeros_like(moments.xx)
    for _, x, y in _blocks(reference, current, order):
        xy += (x - moments.mean).T @ (y - moments.mean - moments.offset)
    return replace(
        moments,
        xd=xy - moments.xx,
        dd=moments.xx + moments.yy - xy - xy.T,
        norms=np.stack([moments.norms[0], moments.norms[1, order]]),
        standardised_norms=np.stack([moments.standardised_norms[0], moments.standardised_norms[1, order]]),
    )


def _blocks(
    reference: Rows, current: Rows, order: NDArray[np.intp] | None = None
) -> Iterator[tuple[slice, Array, Array]]:
    for start in range(0, len(reference), BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, len(reference)))
        y = current[rows] if order is None else current[order[rows]]
        yield rows, np.asarray(reference[rows], np.float64), np.asarray(y, np.float64)


def _squares(rows: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _inverse_deviations(products: Array, mean: Array, num_rows: int) -> Array:
    deviations = np.sqrt(np.maximum(np.diag(products), 0) / num_rows)
    # Below the rounding of the mean itself a column is constant: dividing would blow up noise.
    is_varying = deviations > 1e-12 * np.abs(mean)
    return np.divide(1.0, deviations, out=np.zeros_like(deviations), where=is_varying)
