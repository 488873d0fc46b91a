"""One parameter of two snapshots in, its drift as one long vector out, beside that of a re-initialisation."""

import math

import numpy as np

from toolkit.analysis.rows.blocks import BLOCK_ROWS, Scratch, iterate_blocks
from toolkit.analysis.rows.measures import Array
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.snapshots.files import sha256_of_array
from toolkit.snapshots.snapshot import Snapshot

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
