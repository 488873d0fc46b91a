"""Block-wise float64 passes over the rows of one parameter, so that a table never lies in memory whole."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.measures import Array, Measure, dots
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.naming import at_least
from toolkit.snapshots.files import WidenedRows, sha256_of_array
from toolkit.snapshots.snapshot import MappedTensors, Snapshot

BLOCK_ROWS = 64
"""Rows converted to float64 at a time: 0.4 MB at hidden 768, so that a block and all that is computed from it stay in
the cache of one core (experiments/benchmarks/rows.py of commit 52f1e873 timed a pass)."""

ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector register: a block that starts elsewhere makes each vector straddle
two lines, and a subtraction takes twice as long."""


class Scratch:
    """Named (rows, hidden) float64 arrays that start on a cache line, made once and used for one block after another.

    New memory for every block of every array took as long as the arithmetic: the allocator hands freed blocks back to
    the system, which has to clear each page of the next one.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """The array of a name, with whatever it held before."""
        stored = self._arrays.get(name)
        if stored is None or len(stored) < shape[0] or stored.shape[1:] != shape[1:]:
            stored = self._arrays[name] = _aligned(shape)
        return stored[: shape[0]]


def tables_of(snapshots: Sequence[Snapshot], parameter: str) -> list[np.ndarray]:
    """(rows, hidden) of every snapshot, not read yet; ValueError where one lacks the parameter or differs in shape."""
    tables = [_table(snapshot, parameter) for snapshot in snapshots]
    for snapshot, table in zip(snapshots, tables, strict=True):
        if table.shape != tables[0].shape:
            raise ValueError(
                f"{parameter} has shape {table.shape} at epoch {snapshot.epoch:g} but {tables[0].shape} at epoch "
                f"{snapshots[0].epoch:g}: snapshots of one model are needed"
            )
    return tables


def iterate_blocks(
    snapshots: Sequence[Snapshot],
    parameter: str,
    block_rows: int = BLOCK_ROWS,
    *,
    rows: NDArray[np.integer] | None = None,
    scratch: Scratch | None = None,
) -> Iterator[tuple[slice, list[Array]]]:
    """Yield a slice of ``rows`` (all by default) and those rows of every snapshot, each (rows, hidden) float64.

    A LayerNorm vector is one row. Each block is new memory, which may be kept; with ``scratch`` it lies there and holds
    until the next one, which is faster. ValueError when a snapshot lacks the parameter, has another shape than the
    first or holds NaN.
    """
    tables = tables_of(snapshots, parameter)
    num_rows = len(tables[0] if rows is None else rows)
    for start in range(0, num_rows, at_least("block_rows", block_rows, 1)):
        span = slice(start, min(start + block_rows, num_rows))
        memory = scratch or Scratch()
        blocks = []
        for i, table in enumerate(tables):
            values = table[span if rows is None else rows[span]]
            blocks.append(memory.array(f"block {i}", values.shape))
            np.copyto(blocks[-1], values)
        for snapshot, block in zip(snapshots, blocks, strict=True):
            if not _is_finite(block):
                raise ValueError(
                    f"{parameter} holds NaN or infinity at epoch {snapshot.epoch:g}: the run diverged, leave it out"
                )
        yield span, blocks


def _aligned(shape: tuple[int, ...]) -> Array:
    """New memory of a shape that starts on a cache line."""
    size = math.prod(shape)
    memory = np.empty(size + ALIGNMENT // 8)
    start = -memory.ctypes.data % ALIGNMENT // 8
    return memory[start : start + size].reshape(shape)


def _is_finite(block: Array) -> bool:
    """Whether no value is NaN or infinite."""
    # One pass without a temporary array, and without BLAS, whose threads wait for one another when the machine is busy.
    # Values that are not finite never add up to one that is; the sum of large ones can overflow.
    return math.isfinite(np.einsum("ij->", block)) or bool(np.isfinite(block).all())


def _table(snapshot: Snapshot, parameter: str) -> np.ndarray:
    """The tensor of a parameter as (rows, hidden); ValueError where the snapshot has none, or one without values."""
    if parameter not in snapshot.tensors:
        raise ValueError(f"the snapshot of epoch {snapshot.epoch:g} lacks {parameter}")
    tensor = snapshot.tensors[parameter]
    if not tensor.size:
        raise ValueError(f"{parameter} has no values at epoch {snapshot.epoch:g}: its shape is {tensor.shape}")
    # A view as a plain array: slicing a memmap subclass costs more than it is worth here.
    return tensor if isinstance(tensor, WidenedRows) else np.atleast_2d(np.asarray(tensor))


def file_of(snapshot: Snapshot, parameter: str) -> str | None:
    """The file that a tensor is mapped from, None when it is in memory: what was computed from it need not be again."""
    tensor = snapshot.tensors.get(parameter) if isinstance(snapshot.tensors, MappedTensors) else None
    return str(tensor.filename) if isinstance(tensor, np.memmap) else None


class RowPass:
    """The measures of ``num_rows`` rows, taken block by block in any order."""

    def __init__(self, measures: Mapping[str, Measure], num_rows: int) -> None:
        self.scratch = Scratch()
        """Memory of the pass, for ``iterate_blocks`` to read into."""
        self._measures = measures
        self._values = {name: np.full(num_rows, np.nan) for name in measures}
        self._squares = np.zeros((2, num_rows))
        """‖Δ‖² and ‖E⁰‖² of each row."""

    def add(self, rows: slice, reference: Array, current: Array) -> Array:
        """Take in the reference and current values of some rows, each (rows, hidden) float64; returns ‖Δ‖ of each."""
        for name, measure in self._measures.items():
            self._values[name][rows] = measure.function(reference, current)
        delta = np.subtract(current, reference, out=self.scratch.array("delta", reference.shape))
        self._squares[:, rows] = dots(delta, delta), dots(reference, reference)
        return np.sqrt(self._squares[0, rows])

    def values(self) -> dict[str, Array]:
        """The measures of all rows, (rows,) float64 each, in the order in which they were chosen."""
        return self._values

    def squares(self) -> Array:
        """(2,) Σ Δ² and Σ E⁰² over all rows and coordinates."""
        return np.array([square.sum() for square in self._squares])


INITIAL_VALUES = {"LayerNorm.weight": 1.0, "LayerNorm.bias": 0.0}
"""What torch.nn.LayerNorm.reset_parameters writes; transformers does the same."""


def whole_values(squared_change: float, squared_reference: float) -> dict[str, float]:
    """‖Δ‖_F and ‖Δ‖_F / ‖E⁰‖_F from the sums of squares; relative is NaN where the reference is 0."""
    share = squared_change / squared_reference if squared_reference > 0 else math.nan
    return {"norm": math.sqrt(squared_change), "relative": math.sqrt(share)}


def squares(reference: Array, current: Array) -> Array:
    """(2,) Σ Δ² and Σ E⁰² of a block of rows, to be added up over the blocks."""
    change = current - reference
    return np.array([np.vdot(change, change), np.vdot(reference, reference)])


def whole_drift(
    reference: Snapshot, current: Snapshot, parameter: str, block_rows: int = BLOCK_ROWS
) -> dict[str, float]:
    """``norm`` and ``relative`` of a parameter's change from ``reference``, as one vector (:func:`whole_values`)."""
    blocks = iterate_blocks((reference, current), parameter, block_rows, scratch=Scratch())
    return whole_values(*sum((squares(before, after) for _, (before, after) in blocks), np.zeros(2)))


def reinitialise(reference: Snapshot, parameter: str, seed: int, block_rows: int = BLOCK_ROWS) -> dict[str, float]:
    """The whole-parameter values between a parameter and an independent re-initialisation of it: a yardstick.

    A table is redrawn as Gaussian with the table's own mean and standard deviation, so that only what each row had
    learnt is lost and not the scale (our choice; about √2 relative where the mean is small). LayerNorm vectors are
    initialised without chance, at ones and zeros, and that is what they are set to: the bias is then relative 1.
    Each parameter has its own random stream, so its value does not depend on which others the model has. Drawing takes
    far longer than hashing, and the runs of a report start from the same weights: equal tables are redrawn once.
    """
    key = (sha256_of_array(reference.tensors[parameter]), parameter, seed, block_rows)
    if key not in _REDRAWN:
        _REDRAWN[key] = _redraw(reference, parameter, seed, block_rows)
    return dict(_REDRAWN[key])


_REDRAWN: dict[tuple[str, str, int, int], dict[str, float]] = {}
"""Yardsticks of this process: a few numbers each."""


def _redraw(reference: Snapshot, parameter: str, seed: int, block_rows: int) -> dict[str, float]:
    """The values of :func:`reinitialise`, computed anew."""
    if parameter in TABLES:
        mean, deviation = _moments(reference, parameter, block_rows)
    else:
        mean, deviation = INITIAL_VALUES[parameter], 0.0
    # The text in the seed keeps this stream apart from one that made the model: default_rng(0) draws what [0, 0] draws.
    generator = np.random.default_rng([*b"reinitialise", seed, EMBEDDING_PARAMETERS.index(parameter)])
    scratch, total = Scratch(), np.zeros(2)
    for _, (block,) in iterate_blocks([reference], parameter, block_rows, scratch=scratch):
        total += squares(block, generator.normal(mean, deviation, block.shape))
    return whole_values(*total)


def _moments(reference: Snapshot, parameter: str, block_rows: int) -> tuple[float, float]:
    """Mean and standard deviation of all values; two passes, because one loses digits where the mean is large."""
    size, scratch = reference.tensors[parameter].size, Scratch()
    blocks = (block for _, (block,) in iterate_blocks([reference], parameter, block_rows, scratch=scratch))
    mean = sum(float(block.sum()) for block in blocks) / size
    blocks = (block for _, (block,) in iterate_blocks([reference], parameter, block_rows, scratch=scratch))
    centred = (np.subtract(block, mean, out=block) for block in blocks)
    return mean, math.sqrt(sum(float(np.vdot(block, block)) for block in centred) / size)
