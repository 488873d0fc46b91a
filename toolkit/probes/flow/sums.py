"""States of a crossed design in, one batch at a time, sums of squares of every factor out: no state is kept.

What is kept are sums over the cells of each content, and of each position and segment within each block, so that memory
does not grow with positions x contents; the bootstrap over blocks works on their inner products.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]

FACTORS = ("position", "content", "segment")


@dataclass(frozen=True, slots=True)
class Squares:
    """Sums of squares of a balanced design, traced over dimensions; arrays (...) for several weightings of blocks."""

    total: Array
    factors: dict[str, Array]
    """Of each factor with more than one level."""
    num_levels: dict[str, Array]
    num_cells: Array

    @property
    def residual(self) -> Array:
        """What no main effect explains: all interactions."""
        return np.asarray(self.total - sum(self.factors.values()))

    @property
    def df(self) -> dict[str, Array]:
        return {name: self.num_levels[name] - 1.0 for name in self.factors}

    @property
    def df_residual(self) -> Array:
        return np.asarray(self.num_cells - 1.0 - sum(self.df.values()))

    def omega_squared(self, factor: str) -> Array:
        """ω² = (SS - df·MS_res) / (SS_tot + MS_res) (Hays 1963; Olejnik & Algina 2003), SS traced over dimensions.

        0 is chance and a value may fall below it; NaN where all states are equal.
        """
        mean_square = self.residual / self.df_residual
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(
                (self.factors[factor] - self.df[factor] * mean_square) / (self.total + mean_square), np.float64
            )

    def eta_squared(self, factor: str) -> Array:
        """η² = SS / SS_tot; its chance is :meth:`eta_chance`."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.factors[factor] / self.total, np.float64)

    def eta_chance(self, factor: str) -> Array:
        """df / (N - 1): of position (T - 1) / (C·T - 1), what unrelated states give on average."""
        return np.asarray(self.df[factor] / (self.num_cells - 1))


class CrossedSums:
    """Streaming sums over the cells of a balanced design, for one layer."""

    def __init__(self, num_positions: int, num_contents: int, num_segments: int, num_units: int = 1) -> None:
        """``num_units``: blocks, which the bootstrap resamples; each content lies in one, all of one size."""
        self.shape = (num_positions, num_contents, num_segments)
        self.num_units = num_units
        self._pivot: Array | None = None
        self._counts = np.zeros(num_contents, np.int64)

    def add(self, states: Array, position: Ids, content: Ids, segment: Ids) -> None:
        """States (cells, hidden) with the level of each factor, (cells,) each; computed in float64."""
        states = np.asarray(states, np.float64)
        num_positions, num_contents, num_segments = self.shape
        if self._pivot is None:
            # Sums of squares are differences: far from 0 they would lose their digits.
            self._pivot = states.mean(axis=0)
            hidden = states.shape[1]
            self._content = np.zeros((num_contents, hidden))
            self._position = np.zeros((self.num_units * num_positions, hidden))
            self._segment = np.zeros((self.num_units * num_segments, hidden))
            self._squares = np.zeros((self.num_units, hidden))
        states = states - self._pivot
        unit = content * self.num_units // num_contents
        _add_rows(self._content, content, states)
        _add_rows(self._position, unit * num_positions + position, states)
        _add_rows(self._segment, unit * num_segments + segment, states)
        _add_rows(self._squares, unit, states**2)
        np.add.at(self._counts, content, 1)

    def squares(self, weights: Array | None = None, *, is_standardised: bool = False) -> Squares:
        """Sums of squares when block u counts ``weights[..., u]`` times, (..., units); None: each once.

        ``is_standardised``: every dimension is first scaled to unit variance (over all cells, each once), so that no
        single dimension of large variance decides; a dimension without variance counts nothing.
        ValueError unless every cell was added once: an unbalanced design has no such split.
        """
        num_positions, num_contents, num_segments = self.shape
        if (self._counts != num_positions * num_segments).any():
            raise ValueError(
                f"every content must be seen {num_positions * num_segments} times, once in each cell; seen "
                f"{self._counts.min()} to {self._counts.max()} times"
            )
        w = np.ones(self.num_units) if weights is None else np.asarray(weights, np.float64)
        num = w.sum(axis=-1) * (num_contents / self.num_units)  # contents, those drawn twice counted twice
        cells = num * num_positions * num_segments
        scale = self._scales() if is_standardised else np.ones(self._squares.shape[1])
        position, segment = ((x * scale).reshape(self.num_units, -1) for x in (self._position, self._segment))
        whole = position.reshape(self.num_units, num_positions, -1).sum(axis=1)
        grand = _quadratic(w, whole) / cells
        own = np.square(self._content * scale).sum(axis=1).reshape(self.num_units, -1).sum(axis=1)
        parts = {
            "position": (_quadratic(w, position) / (num * num_segments), np.full_like(num, num_positions)),
            "content": (w @ own / (num_positions * num_segments), num),
            "segment": (_quadratic(w, segment) / (num * num_positions), np.full_like(num, num_segments)),
        }
        kept = {name: part for name, part in parts.items() if name != "segment" or num_segments > 1}
        return Squares(
            total=np.asarray(w @ (self._squares @ scale**2) - grand),
            factors={name: np.asarray(square - grand) for name, (square, _) in kept.items()},
            num_levels={name: np.asarray(levels) for name, (_, levels) in kept.items()},
            num_cells=np.asarray(cells),
        )

    def _scales(self) -> Array:
        """(hidden,) 1 / standard deviation over all cells; 0 for a dimension whose variance is rounding."""
        num_cells = self.shape[0] * self.shape[1] * self.shape[2]
        squares = self._squares.sum(axis=0) / num_cells
        variance = squares - (self._position.sum(axis=0) / num_cells) ** 2
        varies = variance > 1e-12 * squares.max()
        return np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1)), 0.0)


def _add_rows(sums: Array, level: Ids, states: Array) -> None:
    """``np.add.at(sums, level, states)``, many times faster: one sparse product of the levels that occur."""
    from scipy.sparse import csr_array

    levels, place = np.unique(level, return_inverse=True)
    chooser = csr_array((np.ones(len(level)), (place, np.arange(len(level)))), shape=(len(levels), len(level)))
    sums[levels] += chooser @ states


def _quadratic(w: Array, rows: Array) -> Array:
    """(...) |sum_u w_u rows_u|² for weightings (..., units) of rows (units, anything)."""
    return np.asarray(np.einsum("...u,uv,...v->...", w, rows @ rows.T, w, optimize=True))
