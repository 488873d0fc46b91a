"""The survey of one parameter in, the rows that moved farthest or not at all out, by the names that a reader knows."""

import numpy as np

from toolkit.analysis.changes.survey import Survey
from toolkit.analysis.rows.measures import norm, relative
from toolkit.families import TABLES
from toolkit.snapshots.snapshot import Trajectory

NAMED_ROWS = 5


def name_farthest(trajectory: Trajectory, found: Survey) -> str:
    """The rows that moved farthest, by token, position or number, each with its relative change (‖Δ‖ from 0)."""
    best: list[tuple[float, int, str]] = []
    for rows, a, b in found.moved_blocks():
        lengths, shares = norm(a, b), relative(a, b)
        for i in np.argsort(-lengths, kind="stable")[:NAMED_ROWS]:
            share = f"{shares[i]:.3g}" if np.isfinite(shares[i]) else f"from 0 to {lengths[i]:.3g}"
            best.append((-float(lengths[i]), int(rows[i]), share))
        best = sorted(best)[:NAMED_ROWS]
    names = (f"{_called(trajectory, found.pair.parameter, row)} ({share})" for _, row, share in best)
    return ", ".join(names) + (", ..." if found.num_moved > NAMED_ROWS else "")


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
