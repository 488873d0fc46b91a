"""Blocks of rows in, what their moments and directions say of them out: a few passes, and never all pairs of rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from toolkit.analysis.geometry.spectra import NO_SPREAD
from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused


@dataclass(frozen=True, slots=True)
class RowMoments:
    """What one pass over (n, p) rows keeps of them."""

    num_rows: int
    mean: Array
    """(p,)"""
    scatter: Array
    """(p, p) sum of the outer products of the rows less their mean."""


def accumulate_moments(blocks: Iterable[Array]) -> RowMoments:
    """Mean and scatter of (rows, p) float64 blocks, about each block's own mean and then merged.

    T. Chan, G. Golub, R. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances (1979):
    Σxxᵀ - nμμᵀ would lose digits where the mean is large. Rows that are all equal have scatter 0 exactly.
    """
    count, mean, scatter = 0, np.zeros(0), np.zeros((0, 0))
    for block in blocks:
        if not len(block):
            continue
        first = block[0]
        shifted = block - first
        shift = shifted.mean(axis=0)
        shifted -= shift
        block_mean, block_scatter = first + shift, shifted.T @ shifted
        if count == 0:
            count, mean, scatter = len(block), block_mean, block_scatter
            continue
        total, delta = count + len(block), block_mean - mean
        scatter += block_scatter
        scatter += np.outer(delta, delta) * (count * len(block) / total)
        mean, count = mean + delta * (len(block) / total), total
    if count == 0:
        raise Refused("no rows")
    return RowMoments(count, mean, scatter)


class Cloud:
    """The rows of one group as points, as they are or about their mean; each part is computed when it is asked for."""

    def __init__(self, read: Callable[[], Iterable[Array]], *, centre: bool, moments: RowMoments | None = None) -> None:
        """``read`` yields the rows as (rows, p) float64 blocks, the same ones at every call."""
        self._read, self.is_centred = read, centre
        self.moments = accumulate_moments(read()) if moments is None else moments
        self.num_rows, self.hidden = self.moments.num_rows, len(self.moments.mean)
        self._offset = self.moments.mean if centre else np.zeros(self.hidden)

    def recentred(self) -> "Cloud":
        """The same rows about their mean, without reading them again."""
        return Cloud(self._read, centre=True, moments=self.moments)

    @cached_property
    def products(self) -> Array:
        """(p, p) XᵀX of the rows, less their mean where the cloud is centred."""
        mean = self.moments.mean
        raw = 0.0 if self.is_centred else self.num_rows * np.outer(mean, mean)
        return np.asarray(self.moments.scatter + raw)

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(self.products)
        return np.maximum(values[::-1], 0.0), vectors[:, ::-1]

    @property
    def squared_singular_values(self) -> Array:
        """(p,) σ² in descending order; those beyond the number of rows are 0 up to rounding."""
        return self._eigen[0]

    @property
    def directions(self) -> Array:
        """(p, p) the principal directions, one per column, in the order of the σ²."""
        return self._eigen[1]

    @cached_property
    def _lengths(self) -> tuple[float, float, int, Array, Array]:
        """Mean and largest length, rows without a direction, Σû and Σû² (p,) of the directions û of the others."""
        total, largest, num_zero = 0.0, 0.0, 0
        sums, squares = np.zeros(self.hidden), np.zeros(self.hidden)
        # What is left of a row that equals the mean is rounding, and so would its direction be.
        smallest = 1e-12 * float(np.linalg.norm(self._offset))
        for block in self._read():
            rows = block - self._offset
            lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            has_direction = lengths > smallest
            total, largest = total + float(lengths.sum()), max(largest, float(lengths.max(initial=0.0)))
            num_zero += int(np.sum(~has_direction))
            units = rows[has_direction] / lengths[has_direction, None]
            sums, squares = sums + units.sum(axis=0), squares + np.square(units).sum(axis=0)
        return total / self.num_rows, largest, num_zero, sums, squares

    @property
    def num_without_direction(self) -> int:
        """Rows that are 0 (or equal to the mean, where the cloud is centred): no cosine is defined for them."""
        return self._lengths[2]

    @property
    def cosine_contributions(self) -> Array:
        """(p,) what each dimension adds to the mean cosine over all pairs of different rows that have a direction."""
        _, _, num_zero, sums, squares = self._lengths
        n = self.num_rows - num_zero
        if n < 2:
            raise Refused(f"{n} row(s) with a direction: a cosine needs two")
        return np.asarray((sums**2 - squares) / (n * (n - 1)))

    @cached_property
    def log_partition(self) -> Array:
        """(2p,) log of Z(c) = Σ_i exp⟨x_i, c⟩ for c = ± each principal direction, rows scaled to mean length 1."""
        mean, largest, *_ = self._lengths
        if mean == 0:
            raise Refused(NO_SPREAD)
        sums, shift = np.zeros(2 * self.hidden), largest / mean  # |⟨x, c⟩| is at most the shift: no overflow
        for block in self._read():
            products = (block - self._offset) @ (self.directions / mean)
            for half, sign in ((sums[: self.hidden], 1), (sums[self.hidden :], -1)):
                half += np.exp(sign * products - shift).sum(axis=0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(sums) + shift)
