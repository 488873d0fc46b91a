"""The word tables of a run's epochs in; out, how far each word moved, and two maps on which it is seen to move.

One map has the principal axes of the words before training: their lie of the land, on which drift is small. The other
has the axes along which the words drifted most, uncentred, so that a common offset counts: what there is to see of it.
Neither turns with the epochs. Ours.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import MEASURES
from toolkit.reporting.page.model import NAN, WordMap

BLOCK = 1024
"""Rows converted to float64 at a time."""
WORD_AXES = "of the words before training"
DRIFT_AXES = "of the drift"
HOW = {
    WORD_AXES: "The two directions in which the words differ most before training (principal axes). They stay the same "
    "at every epoch: what moves on the map moved in the table.",
    DRIFT_AXES: "The two directions along which the words moved most between the first and the last epoch (singular "
    "vectors of the change, not centred). They are chosen to show drift: that it is seen here is no evidence.",
}

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]


def measure_words(tables: Sequence[NDArray[Any]], rows: Rows, mapped: Rows) -> dict[str, Any]:
    """The fields norm_before, norm, angle_degrees and maps of a WordsRun, for ``rows`` of (rows, hidden) tables.

    The axes are those of the rows ``mapped``, or of all where these are fewer than three.
    """
    mapped = mapped if len(mapped) >= 3 else rows
    mean, of_words, of_drift = _scatters(tables[0], tables[-1], mapped)
    chosen = {WORD_AXES: principal_axes(of_words), DRIFT_AXES: principal_axes(of_drift)}
    norm, angle = (np.empty((len(tables) - 1, len(rows))) for _ in range(2))
    before = np.empty(len(rows))
    coordinates = {name: np.empty((len(tables), len(rows), 2)) for name in chosen}
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        blocks = [_block(table, rows[part]) for table in tables]
        before[part] = np.linalg.norm(blocks[0], axis=1)
        for epoch, block in enumerate(blocks):
            for name, axes in chosen.items():
                coordinates[name][epoch, part] = (block - mean) @ axes
            if epoch:
                norm[epoch - 1, part] = MEASURES["norm"].function(blocks[0], block)
                angle[epoch - 1, part] = MEASURES["angle_degrees"].function(blocks[0], block)
    maps = tuple(
        WordMap(
            title=name,
            how=HOW[name],
            coordinates=coordinates[name],
            word_shares=(_share(of_words, axes[:, :1]), _share(of_words, axes[:, 1:])),
            drift_share=_share(of_drift, axes),
        )
        for name, axes in chosen.items()
    )
    return {"norm_before": before, "norm": norm, "angle_degrees": angle, "maps": maps}


def principal_axes(scatter: Floats) -> Floats:
    """(hidden, 2) the two eigenvectors of greatest eigenvalue, each with its largest coordinate positive."""
    vectors = np.linalg.eigh(scatter)[1]
    axes = vectors[:, [-1, -2]] if len(scatter) > 1 else np.column_stack([vectors, np.zeros(1)])
    return np.asarray(axes * np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0))


def _scatters(before: NDArray[Any], after: NDArray[Any], rows: Rows) -> tuple[Floats, Floats, Floats]:
    """Mean of the rows before (hidden,), their scatter around it, and the uncentred one of their change."""
    hidden = before.shape[1]
    mean, of_words, of_drift = np.zeros(hidden), np.zeros((hidden, hidden)), np.zeros((hidden, hidden))
    parts = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
    for part in parts:
        mean += _block(before, part).sum(axis=0) / len(rows)
    for part in parts:
        block = _block(before, part)
        change = _block(after, part) - block
        block -= mean
        of_words += block.T @ block
        of_drift += change.T @ change
    return mean, of_words, of_drift


def _block(table: NDArray[Any], rows: Rows) -> Floats:
    return np.array(table[rows], np.float64, subok=False)


def _share(scatter: Floats, axes: Floats) -> float:
    """Share of a scatter's trace that lies along axes."""
    total = float(np.trace(scatter))
    return float(np.einsum("ij,ik,jk->", scatter, axes, axes)) / total if total else NAN
