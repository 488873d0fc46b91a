"""The rows that moved farthest, not at all or to other places, by the names that a reader knows."""

from collections.abc import Mapping

import numpy as np

from toolkit.analysis.changes.survey import Survey
from toolkit.analysis.rows.measures import norm, relative
from toolkit.snapshots.snapshot import NAMED_ROWS, Trajectory


def name_farthest(trajectory: Trajectory, found: Survey) -> list[str]:
    """Up to NAMED_ROWS rows that moved farthest for their norm, by token, position or number: ``'good' (0.012)``.

    A row that was 0 has no relative change: it comes first, with ‖Δ‖.
    """
    best: list[tuple[float, float, int]] = []
    for rows, a, b in found.moved_blocks():
        lengths, shares = norm(a, b), relative(a, b)
        keys = np.where(np.isfinite(shares), -shares, -np.inf)
        for i in np.lexsort((-lengths, keys))[:NAMED_ROWS]:
            best.append((float(keys[i]), -float(lengths[i]), int(rows[i])))
        best = sorted(best)[:NAMED_ROWS]
    sizes = (f"{-key:.3g}" if np.isfinite(key) else f"from 0 to {-length:.3g}" for key, length, _ in best)
    names = (trajectory.name_row(found.pair.parameter, row) for *_, row in best)
    return [f"{name} ({size})" for name, size in zip(names, sizes, strict=True)]


def name_still(trajectory: Trajectory, found: Survey) -> str:
    """The one row of which no bit changed, where all others moved, as that of [PAD] often is; '' else."""
    still = np.flatnonzero(~found.moved)
    return trajectory.name_row(found.pair.parameter, int(still[0])) if len(still) == 1 < found.num_moved else ""


def name_moves(trajectory: Trajectory, parameter: str, sources: Mapping[int, int]) -> list[str]:
    """Up to NAMED_ROWS moves of a permutation: ``'good' and 'bad' are swapped``, ``'a' now holds the row of 'b'``.

    ``sources``: each row that stands elsewhere to the row whose values it now holds.
    """
    said: list[str] = []
    told: set[int] = set()
    for row, source in sources.items():
        if row in told:
            continue
        a, b = (trajectory.name_row(parameter, number) for number in (row, source))
        is_swap = sources.get(source) == row
        told |= {row, source} if is_swap else {row}
        said.append(f"{a} and {b} are swapped" if is_swap else f"{a} now holds the row of {b}")
        if len(said) == NAMED_ROWS:
            break
    return said
