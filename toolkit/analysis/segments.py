"""The segment rows: their length, likeness, exposure and drift, alone and together.

With single sentences only row 0 gets a gradient, and it is the sum of all position rows' gradients: its drift is a
shift of every token alike, no learning about segments. So the difference and the mean of two rows are measured apart.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd

from toolkit.analysis import measures
from toolkit.analysis.adam import given_log
from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.measures import Array
from toolkit.analysis.strata import table_exposure
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Epochs, Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

PARAMETER = "token_type_embeddings"

DECAY_ALONE = "no gradient: weight decay alone moves it"
UNUSED = "no token used it"
"""Said where no optimizer log shows that the table was trained with weight decay."""

Line = tuple[str, str, float, str, str, str]  # parameter, measure, value, unit, reason, note


@with_columns
def measure_segments(source: Source, epochs: Epochs = None) -> pd.DataFrame:
    """The segment rows: their lengths, drift and exposure, and how they lie to each other, one value per line.

    ``parameter`` names what is measured: ``segment k``, and for every pair of rows ``segments j and k`` (cosine),
    ``difference k - j`` and ``mean of j and k``. Measures: norm, drift (‖Δ‖ from the first snapshot), relative_drift,
    num_steps and num_tokens (exposure so far), cosine. What does not apply has no line: a model with one row has no
    difference, a model without the table no lines at all. What applies but is undefined or was not recorded is NaN,
    with a reason.
    """
    trajectory = trajectory_of(source)
    snapshots = trajectory.chosen(epochs)
    lines: list[tuple[float | int | str, ...]] = []
    if PARAMETER in trajectory.parameters:
        reference = _rows(trajectory.snapshots[0])
        log = given_log(source, None)
        unused = DECAY_ALONE if log and log.weight_decay.get(PARAMETER) else UNUSED
        for snapshot in snapshots:
            rows = _rows(snapshot)
            found = [*_row_lines(trajectory, snapshot, reference, rows, unused), *_pair_lines(reference, rows)]
            lines += [(float(snapshot.epoch), snapshot.step, *line) for line in found]
    return pd.DataFrame(lines, columns=columns_of("measure_segments"))


def _rows(snapshot: Snapshot) -> Array:
    return np.concatenate([block for _, (block,) in iterate_blocks([snapshot], PARAMETER)])


def _row_lines(
    trajectory: Trajectory, snapshot: Snapshot, reference: Array, rows: Array, unused: str
) -> Iterator[Line]:
    """``unused``: the note of a row that no token has used so far."""
    exposure = table_exposure(trajectory, PARAMETER)
    if exposure is not None:
        counts = {
            "num_steps": exposure.step_counts(len(rows), snapshot.step).astype(np.float64),
            "num_tokens": exposure.token_counts(len(rows), snapshot.step).astype(np.float64),
        }
    for row in range(len(rows)):
        of = f"segment {row}"
        yield from _vector_lines(of, reference[row], rows[row])
        for name in ("num_steps", "num_tokens"):
            if exposure is None:
                yield of, name, float("nan"), "count", "exposure was not recorded", ""
            else:
                value = float(counts[name][row])
                yield of, name, value, "count", "", "" if value or not snapshot.step else unused


def _pair_lines(reference: Array, rows: Array) -> Iterator[Line]:
    for first, second in combinations(range(len(rows)), 2):
        cosine = 1 - measures.cosine_distance(rows[[first]], rows[[second]])[0]
        reason = "a row is 0 and has no direction" if np.isnan(cosine) else ""
        yield f"segments {first} and {second}", "cosine", float(cosine), "1", reason, ""
        difference = [table[second] - table[first] for table in (reference, rows)]
        yield from _vector_lines(f"difference {second} - {first}", *difference)
        mean = [(table[first] + table[second]) / 2 for table in (reference, rows)]
        yield from _vector_lines(f"mean of {first} and {second}", *mean)


def _vector_lines(of: str, before: Array, after: Array) -> Iterator[Line]:
    pair = before[None], after[None]
    relative = float(measures.relative(*pair)[0])
    yield of, "norm", float(np.linalg.norm(after)), "weight units", "", ""
    yield of, "drift", float(measures.norm(*pair)[0]), "weight units", "", ""
    yield of, "relative_drift", relative, "1", "0 before training" if np.isnan(relative) else "", ""
