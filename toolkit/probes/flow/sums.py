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
    by_block: dict[str, Array]
    """Interaction with the blocks, of each factor that is crossed with them: position and segment, not content."""
    num_levels: dict[str, Array]
    num_cells: Array
    num_blocks: Array

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

    def mean_square_error(self, factor: str) -> Array:
        """What a factor's mean square is held against: its interaction with the blocks; of content, the residual.

        NaN for a factor crossed with blocks where there is one block only.
        """
        if factor not in self.by_block:
            return np.asarray(self.residual / self.df_residual)
        df = (self.num_blocks - 1.0) * self.df[factor]
        return np.where(df > 0, self.by_block[factor] / np.where(df > 0, df, 1), np.nan)

    def omega_squared(self, factor: str) -> Array:
        """ω² = (SS - df·MS_err) / (SS_tot + MS_err) (Hays 1963; Olejnik & Algina 2003), SS traced over dimensions.

        MS_err: :meth:`mean_square_error`. The textbook formula for one observation per cell has the residual of all
        cells there. That is right where cells err independently; here the cells of a block share their text, and what a
        position does to one text only (block x position) would count as position with 1 / blocks of its size. Blocks
        are the sample, so that their interaction with the factor is its error, as in any design with a random factor.
        A vector that all tokens of a sequence share cancels from both. 0 is chance, and a value may fall below it; NaN
        where all states are equal, or with one block.
        """
        mean_square = self.mean_square_error(factor)
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

    def residual_share(self) -> Array:
        """η² of all interactions together."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.residual / self.total, np.float64)


class CrossedSums:
    """Streaming sums over the cells of a balanced design, for one layer."""

    def __init__(self, num_positions: int, num_contents: int, num_segments: int, num_units: int = 1) -> None:
        """``num_units``: blocks, which the jackknife leaves out in turn; each content lies in one, all of one size."""
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
        rows = {"position": self._position * scale, "segment": self._segment * scale}
        levels = {"position": num_positions, "segment": num_segments}
        whole = rows["position"].reshape(self.num_units, num_positions, -1).sum(axis=1)
        grand = _quadratic(w, whole) / cells
        per_block = num_contents // self.num_units * num_positions * num_segments
        blocks = w @ np.square(whole).sum(axis=1) / per_block - grand
        content = w @ np.square(self._content * scale).sum(axis=1).reshape(self.num_units, -1).sum(axis=1)
        factors, by_block = {"content": np.asarray(content / (num_positions * num_segments) - grand)}, {}
        for name, size in levels.items():
            if name == "segment" and size == 1:
                continue
            of_blocks = rows[name].reshape(self.num_units, -1)
            factors[name] = np.asarray(_quadratic(w, of_blocks) / (cells / size) - grand)
            both = w @ np.square(of_blocks).sum(axis=1) / (per_block // size) - grand
            by_block[name] = np.asarray(both - blocks - factors[name])
        num_levels = {"position": np.full_like(num, num_positions), "content": num}
        num_levels["segment"] = np.full_like(num, num_segments)
        return Squares(
            total=np.asarray(w @ (self._squares @ scale**2) - grand),
            factors={name: factors[name] for name in FACTORS if name in factors},
            by_block=by_block,
            num_levels={name: np.asarray(num_levels[name]) for name in factors},
            num_cells=np.asarray(cells),
            num_blocks=np.asarray(w.sum(axis=-1)),
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
