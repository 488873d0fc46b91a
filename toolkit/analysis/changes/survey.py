"""Two snapshots of one parameter in, its rows as pairs of blocks out, with which of them moved and their moments."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.causes.precision import Format
from toolkit.analysis.changes.rounding import FormatFinder
from toolkit.analysis.rows.blocks import iterate_blocks
from toolkit.analysis.rows.measures import Array
from toolkit.families import TABLES
from toolkit.snapshots.snapshot import Snapshot

Block = tuple[NDArray[np.int64], Array, Array]
"""Row numbers (rows,), and those rows before and after, each (rows, columns) float64."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One parameter before and after. A LayerNorm vector is a table of one column: each entry is a row."""

    before: Snapshot
    after: Snapshot
    parameter: str

    @property
    def is_table(self) -> bool:
        return self.parameter in TABLES

    @property
    def rows(self) -> str:
        """What several of its rows are called."""
        return "rows" if self.is_table else "entries"

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        shape = self.before.tensors[self.parameter].shape
        return (shape[0], shape[1]) if self.is_table else (shape[0], 1)

    def blocks(self) -> Iterator[Block]:
        """Every row, in order."""
        for rows, (a, b) in iterate_blocks([self.before, self.after], self.parameter):
            if not self.is_table:
                a, b, rows = a.reshape(-1, 1), b.reshape(-1, 1), slice(0, a.size)
            yield np.arange(rows.start, rows.stop), a, b


@dataclass
class Survey:
    """What one pass over a pair tells. Sums are over the moved rows; those of Δ are the same over all rows."""

    pair: Pair
    moved: NDArray[np.bool_]
    """(rows,) whether any bit of the row differs."""
    form: Format = field(init=False)
    """The format that the values after the change betray: storing them rounded to it."""
    form_before: Format = field(init=False)
    is_on_grid: bool = field(init=False)
    """Whether the values before are of no finer format, so that they lie on the grid of the new ones."""
    num_changed: int = 0
    """Rows of which a value differs: fewer than the moved ones where only a sign of zero does."""
    squared_reference: float = 0.0
    """Σ E⁰² over all rows."""
    squared_before: float = 0.0
    squared_change: float = 0.0
    inner: float = 0.0
    """Σ E⁰·Δ."""
    sums: Array = field(init=False)
    """(columns,) Σ Δ over rows."""
    magnitudes: Array = field(init=False)
    """(columns,) Σ max(|E⁰|, |Eᵗ|) over rows."""

    @property
    def num_rows(self) -> int:
        return len(self.moved)

    @property
    def num_columns(self) -> int:
        return self.pair.shape[1]

    @property
    def num_moved(self) -> int:
        return int(np.count_nonzero(self.moved))

    @property
    def offset(self) -> Array:
        """(columns,) the mean change of the moved rows: the vector that explains most when added to each of them."""
        return np.asarray(self.sums / self.num_moved)

    @property
    def relative(self) -> float:
        """‖Δ‖ / ‖E⁰‖ over all rows; NaN where the reference is 0."""
        return float(np.sqrt(self.squared_change / self.squared_reference)) if self.squared_reference else float("nan")

    @property
    def relative_of_moved(self) -> float:
        """‖Δ‖ / ‖E⁰‖ over the moved rows; NaN where they were 0."""
        return float(np.sqrt(self.squared_change / self.squared_before)) if self.squared_before else float("nan")

    def moved_blocks(self) -> Iterator[Block]:
        """The moved rows."""
        for rows, a, b in self.pair.blocks():
            keep = self.moved[rows]
            if keep.all():
                yield rows, a, b
            elif keep.any():
                yield rows[keep], a[keep], b[keep]


def survey(pair: Pair) -> Survey:
    """One pass: which rows moved, in which precision the values are, and the sums that the simple kinds need."""
    found = Survey(pair, np.zeros(pair.shape[0], np.bool_))
    found.sums, found.magnitudes = np.zeros(pair.shape[1]), np.zeros(pair.shape[1])
    finders = FormatFinder(), FormatFinder()
    for rows, a, b in pair.blocks():
        for finder, block in zip(finders, (a, b), strict=True):
            finder.add(block)
        found.squared_reference += float(np.einsum("ij,ij->", a, a))
        # Bits, not values: 0 and -0 are equal and not identical.
        moved = (a.view(np.int64) != b.view(np.int64)).any(axis=1)
        found.moved[rows] = moved
        if moved.any():
            _add(found, *((a, b) if moved.all() else (a[moved], b[moved])))
    before, after = (finder.found for finder in finders)
    found.form_before, found.form = before, after
    found.is_on_grid = before.bits <= after.bits
    return found


def _add(found: Survey, a: Array, b: Array) -> None:
    change = b - a
    found.num_changed += int(np.count_nonzero(change.any(axis=1)))
    found.squared_before += float(np.einsum("ij,ij->", a, a))
    found.squared_change += float(np.einsum("ij,ij->", change, change))
    found.inner += float(np.einsum("ij,ij->", a, change))
    found.sums += change.sum(axis=0)
    found.magnitudes += np.maximum(np.abs(a), np.abs(b)).sum(axis=0)
