"""Cross-products of centred rows in, their principal axes and the canonical variates of two versions out."""

from typing import NamedTuple

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused


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
    left, correlations, right = np.linalg.svd(_between(x, xy, y), full_matrices=False)
    of_x = left.T @ (x.directions * x.lengths).T
    return Variates(of_x, np.minimum(correlations, 1), right @ (y.directions * y.lengths).T)


def _between(x: Axes, xy: Array, y: Axes) -> Array:
    if not (len(x.lengths) and len(y.lengths)):
        raise Refused("CCA is undefined: the rows of a version are all equal")
    return np.asarray((x.directions / x.lengths).T @ xy @ (y.directions / y.lengths))
