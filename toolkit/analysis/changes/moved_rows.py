"""The survey of one parameter in, the rows that moved farthest or not at all out, by the names that a reader knows."""

import numpy as np

from toolkit.analysis.changes.survey import Survey
from toolkit.analysis.rows.measures import norm, relative
from toolkit.families import TABLES
from toolkit.snapshots.snapshot import Trajectory

NAMED_ROWS = 5


def name_farthest(trajectory: Trajectory, found: Survey) -> str:
    """The rows that moved farthest for their norm, by token, position or number, each with its relative change.

    A row that was 0 has none: it comes first, with ‖Δ‖.
    """
    best: list[tuple[float, float, int]] = []
    for rows, a, b in found.moved_blocks():
        lengths, shares = norm(a, b), relative(a, b)
        keys = np.where(np.isfinite(shares), -shares, -np.inf)
        for i in np.lexsort((-lengths, keys))[:NAMED_ROWS]:
            best.append((float(keys[i]), -float(lengths[i]), int(rows[i])))
        best = sorted(best)[:NAMED_ROWS]
    sizes = (f"{-key:.3g}" if np.isfinite(key) else f"from 0 to {-length:.3g}" for key, length, _ in best)
    names = (_called(trajectory, found.pair.parameter, row) for *_, row in best)
    listed = ", ".join(f"{name} ({size})" for name, size in zip(names, sizes, strict=True))
    return listed + (", ..." if found.num_moved > NAMED_ROWS else "")


def name_still(trajectory: Trajectory, found: Survey) -> str:
    """The one row of which no bit changed, where all others moved, as that of [PAD] often is; '' else."""
    still = np.flatnonzero(~found.moved)
    return _called(trajectory, found.pair.parameter, int(still[0])) if len(still) == 1 < found.num_moved else ""


def _called(trajectory: Trajectory, parameter: str, row: int) -> str:
    vocabulary = trajectory.vocabulary if parameter == "word_embeddings" else None
    if vocabulary is not None and row < len(vocabulary.tokens) and vocabulary.tokens[row]:
        return repr(vocabulary.tokens[row])
    if parameter == "position_embeddings" and row >= trajectory.position_offset:
        return f"position {row - trajectory.position_offset}"
    kind = {"token_type_embeddings": "segment"}.get(parameter, "row" if parameter in TABLES else "entry")
    return f"{kind} {row}"
