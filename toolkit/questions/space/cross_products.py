"""Cross-products of two versions of the same rows, summed in blocks: what CKA, Procrustes and CCA are made of."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.kernels import Refused, Rows, check_rows
from toolkit.analysis.measures import Array


class Axes(NamedTuple):
    """Principal axes of n rows, those without variance left out."""

    lengths: Array
    """(q,) singular values of the rows, largest first."""
    directions: Array
    """(p, q) unit columns."""

    def leading(self, variance_kept: float) -> "Axes":
        """The fewest axes that hold this share of the variance, 0 to 1."""
        if variance_kept >= 1 or not len(self.lengths):
            return self
        shares = np.cumsum(self.lengths**2) / (self.lengths**2).sum()
        count = int(np.searchsorted(shares, variance_kept)) + 1
        return Axes(self.lengths[:count], self.directions[:, :count])


class Variates(NamedTuple):
    """Canonical variates of length 1 by their inner products with the columns of both versions."""

    of_x: Array
    """(q, p) with the columns of X."""
    correlations: Array
    """(q,) largest first, 0 to 1."""
    of_y: Array
    """(q, p) with the columns of Y."""


def principal_axes(products: Array) -> Axes:
    """The axes of rows with these cross-products, (p, p) XᵀX."""
    values, vectors = np.linalg.eigh(products)
    values, vectors = values[::-1], vectors[:, ::-1]
    count = int((values > values[0] * len(values) * np.finfo(np.float64).eps).sum())
    return Axes(np.sqrt(values[:count]), vectors[:, :count])


def correlate(x: Axes, xy: Array, y: Axes) -> Array:
    """(directions,) canonical correlations, largest first, between two sets of axes; ``xy``: (p, p) XᵀY."""
    # Rounding may leave 1 + 1e-15.
    return np.asarray(np.minimum(np.linalg.svd(_between(x, xy, y), compute_uv=False), 1))


def find_variates(x: Axes, xy: Array, y: Axes) -> Variates:
    """The canonical variates of two sets of axes; ``xy``: (p, p) XᵀY. Refused where all rows of a version are equal."""
    left_vectors, correlations, right_vectors = np.linalg.svd(_between(x, xy, y), full_matrices=False)
    products_with_x = left_vectors.T @ (x.directions * x.lengths).T
    return Variates(products_with_x, np.minimum(correlations, 1), right_vectors @ (y.directions * y.lengths).T)


def _between(x: Axes, xy: Array, y: Axes) -> Array:
    if not (len(x.lengths) and len(y.lengths)):
        raise Refused("CCA is undefined: the rows of a version are all equal")
    return np.asarray((x.directions / x.lengths).T @ xy @ (y.directions / y.lengths))


BLOCK_ROWS = 1024
"""Rows converted to float64 at a time: large enough for a matrix product, 8 MB at 1,024 columns."""


@dataclass(frozen=True)
class CrossProducts:
    """Sums over n rows of X (the reference) and Y = X + Δ (the current version), columns centred, float64.

    Δ is kept instead of Y, so that a drift of 1e-8 is not lost in the difference of two large sums. What only some
    similarities need is computed when it is first asked for, and once.
    """

    versions: tuple[Rows, Rows] = field(repr=False)
    """X and Y themselves, (n, p), not centred."""
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
    centred_change: float
    """Σ‖Δ_i‖² of centred rows."""

    @property
    def num_rows(self) -> int:
        return len(self.versions[0])

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
        yy, mean_y = np.zeros_like(self.xx), self.mean + self.offset
        for _, _, y in _blocks(*self.versions):
            y = y - mean_y
            yy += y.T @ y
        return yy

    @property
    def squared_change(self) -> float:
        """Σ‖Δ_i‖², not centred."""
        return self.centred_change + self.num_rows * float(self.offset @ self.offset)

    @cached_property
    def scales(self) -> tuple[Array, Array]:
        """(p,) 1 / standard deviation of the columns of X and of Y; 0 for a constant column, which then drops out."""
        return (
            _inverse_deviations(self.xx, self.mean, self.num_rows),
            _inverse_deviations(self.yy, self.mean + self.offset, self.num_rows),
        )

    def check_varying(self, what: str) -> None:
        """Refused where all rows of a version are equal: what centring leaves of them is rounding."""
        if not all(scales.any() for scales in self.scales):
            raise Refused(f"{what} is undefined: the rows of a version are all equal")

    @cached_property
    def norms(self) -> Array:
        """(2, n) ‖x_i‖² and ‖y_i‖² of each centred row."""
        return self._squares(np.ones(self.num_columns), np.ones(self.num_columns))

    @cached_property
    def standardised_norms(self) -> Array:
        """(2, n) the same after each column of each version was divided by its own standard deviation."""
        return self._squares(*self.scales)

    @cached_property
    def axes_of_x(self) -> Axes:
        return principal_axes(self.xx)

    @cached_property
    def axes_of_y(self) -> Axes:
        return principal_axes(self.yy)

    @cached_property
    def variates(self) -> Variates:
        """Of all axes; Refused where the rows of a version are all equal."""
        return find_variates(self.axes_of_x, self.xy, self.axes_of_y)

    @cached_property
    def aligned_square(self) -> float:
        """min ‖XQ - Y‖² over rotations and reflections Q, as ‖X(Q - I) - Δ‖² so that small drift keeps its digits."""
        from scipy.linalg import orthogonal_procrustes

        # It takes two matrices A and B and uses AᵀB only: I and XᵀY stand for tables of any length.
        identity = np.eye(self.num_columns)
        turn = orthogonal_procrustes(identity, self.xy)[0] - identity
        square = np.vdot(turn, self.xx @ turn) - 2 * np.vdot(turn, self.xd) + self.centred_change
        # No rotation at all is one of the choices, so rounding never makes the best one worse than it.
        return min(max(float(square), 0.0), self.centred_change)

    def _squares(self, scale_x: Array, scale_y: Array) -> Array:
        """(2, n) squared norms of the centred rows of both versions, each column times its scale."""
        squares, mean_y = np.empty((2, self.num_rows)), self.mean + self.offset
        for rows, x, y in _blocks(*self.versions):
            for version, values in enumerate(((x - self.mean) * scale_x, (y - mean_y) * scale_y)):
                squares[version, rows] = np.einsum("ij,ij->i", values, values)
        return squares


def cross_products_of(reference: Rows, current: Rows) -> CrossProducts:
    """The cross-products of two versions of the same rows, (n, p) each, in two passes over blocks; no n by n matrix."""
    check_rows(reference, current, "a similarity")
    num_rows, p = reference.shape
    mean, offset, square = np.zeros(p), np.zeros(p), 0.0
    for _, x, y in _blocks(reference, current):
        offset += (y - x).sum(axis=0)
        mean += x.sum(axis=0)
        square += float(np.vdot(x, x))
    mean, offset = mean / num_rows, offset / num_rows
    xx, xd, centred_change = np.zeros((p, p)), np.zeros((p, p)), 0.0
    for _, x, y in _blocks(reference, current):
        delta = y - x - offset
        x = x - mean
        xx += x.T @ x
        xd += x.T @ delta
        centred_change += float(np.vdot(delta, delta))
    return CrossProducts((reference, current), mean, offset, square, xx, xd, centred_change)


def permuted_cross_products(products: CrossProducts, current: Rows, order: NDArray[np.intp]) -> CrossProducts:
    """The cross-products of X and ``current``, Y[order], given those of the two in order: one product of tables."""
    xy, centred_change, mean_y = np.zeros_like(products.xx), 0.0, products.mean + products.offset
    for _, x, y in _blocks(products.versions[0], current):
        x, y = x - products.mean, y - mean_y
        xy += x.T @ y
        centred_change += float(np.square(y - x).sum())  # from the traces it could come out below 0
    permuted = CrossProducts(
        (products.versions[0], current),
        *(products.mean, products.offset, products.square, products.xx, xy - products.xx),
        centred_change,
    )
    # What depends on one version alone is what it was; what is of each row goes with the rows.
    names = ("yy", "scales", "axes_of_x", "axes_of_y")
    vars(permuted).update({name: getattr(products, name) for name in names})
    for name in ("norms", "standardised_norms"):
        of_x, of_y = getattr(products, name)
        vars(permuted)[name] = np.stack([of_x, of_y[order]])
    return permuted


def _blocks(reference: Rows, current: Rows) -> Iterator[tuple[slice, Array, Array]]:
    for start in range(0, len(reference), BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, len(reference)))
        yield rows, np.asarray(reference[rows], np.float64), np.asarray(current[rows], np.float64)


def _inverse_deviations(products: Array, mean: Array, num_rows: int) -> Array:
    deviations = np.sqrt(np.maximum(np.diag(products), 0) / num_rows)
    # Below the rounding of the mean itself a column is constant: dividing would blow up noise.
    return np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 1e-12 * np.abs(mean))
