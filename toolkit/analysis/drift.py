"""The drift table of a trajectory: every measure, stratum, parameter and epoch; its rows one by one; its segments."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.adam import given_log
from toolkit.analysis.blocks import BLOCK_ROWS, RowPass, Scratch, file_of, iterate_blocks, reinitialise, whole_values
from toolkit.analysis.measures import (
    MEASURES,
    Array,
    Measure,
    Measures,
    cosine_distance,
    lengths,
    norm,
    or_nan,
    relative,
    select_measures,
)
from toolkit.analysis.strata import count_exposure, count_rows, describe_rows, rows_by_stratum, table_exposure
from toolkit.naming import at_least
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.ownership import atomic_path, check_new
from toolkit.snapshots.snapshot import Epochs, Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

WRITTEN_ROWS = 65_536
"""Rows of a table that are in memory at a time while it is written, and rows of each row group of the file."""


@with_columns
def measure_rows(
    source: Source,
    parameter: str,
    epoch: float | None = None,
    measures: Measures = MEASURES,
    *,
    reference_epoch: float = 0,
) -> pd.DataFrame:
    """How far each row of a parameter moved, beside what the row is and how often training exposed it.

    Returns
    -------
    pandas.DataFrame
        One line per row; a LayerNorm vector is one row. Only the chosen measures have a column. Exposure is counted up
        to the epoch, and NA where it was not recorded.
    """
    trajectory, chosen = trajectory_of(source), select_measures(measures)
    path = _path(trajectory, reference_epoch, epoch)
    values, length, walked = _measure_rows(
        path[0], path, parameter, slice(0, count_rows(trajectory, parameter)), chosen
    )
    columns = describe_rows(trajectory, parameter) | count_exposure(trajectory, parameter, path[-1].step)
    return pd.DataFrame(columns | values | {"path_efficiency": length / or_nan(walked)})


@with_columns
def write_rows(
    source: Source,
    parameter: str,
    path: str | Path,
    *,
    epochs: Epochs = None,
    measures: Measures = MEASURES,
    block_rows: int = WRITTEN_ROWS,
    overwrite: bool = False,
) -> Path:
    """Write what :func:`measure_rows` gives for many snapshots to one Parquet file.

    Parameters
    ----------
    path
        The file to write, named ``.parquet``; its folder is made where it is missing.
    epochs
        Epoch or epochs of the snapshots; None takes every snapshot after epoch 0.
    block_rows
        Number of lines held in memory at a time.
    overwrite
        Replace a file that exists. A link is never written to.

    Returns
    -------
    pathlib.Path
        The file: the epoch, then the columns of :func:`measure_rows` with the same values; snapshots in order, and the
        rows of each in order. It appears whole or not at all.

    Raises
    ------
    ValueError
        An epoch has no snapshot, there is nothing to write, or the file exists and ``overwrite`` is off (unlike
        ``DataFrame.to_parquet``, which would replace it).
    """
    import pyarrow as pa
    from pyarrow import parquet

    trajectory, chosen = trajectory_of(source), select_measures(measures)
    wanted, block_rows = _wanted(trajectory, epochs), at_least("block_rows", block_rows, 1)
    path = Path(path)
    if path.suffix != ".parquet":
        raise ValueError(
            f"the table is written as Parquet: name it {path.with_suffix('.parquet').name}, not {path.name}"
        )
    check_new(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = _frames(trajectory, wanted, parameter, chosen, block_rows)
    first = pa.Table.from_pandas(next(frames), preserve_index=False)
    # Dictionaries of numbers that are all different would be built, found too large and thrown away.
    repeated = ["epoch", "token", "stratum"]
    with (
        atomic_path(path, may_replace=overwrite) as temporary,
        parquet.ParquetWriter(temporary, first.schema, use_dictionary=repeated) as file,
    ):
        file.write_table(first)
        for frame in frames:
            file.write_table(pa.Table.from_pandas(frame, schema=first.schema, preserve_index=False))
    return path


def _frames(
    trajectory: Trajectory, wanted: Sequence[Snapshot], parameter: str, chosen: Mapping[str, Measure], block_rows: int
) -> Iterator[pd.DataFrame]:
    """The lines of the wanted snapshots, some rows at a time, each snapshot read once and the end of an epoch twice.

    The way to each snapshot is continued from the end of the epoch before it, not walked again from the reference.
    """
    described, num_rows = describe_rows(trajectory, parameter), count_rows(trajectory, parameter)
    reference = last_end = trajectory.at(0)
    walked = np.zeros(num_rows)
    for snapshot in (s for s in trajectory if reference.epoch < s.epoch <= wanted[-1].epoch):
        is_wanted = any(snapshot is other for other in wanted)
        if not is_wanted and not snapshot.is_epoch_end:
            continue
        columns = described | count_exposure(trajectory, parameter, snapshot.step)
        for start in range(0, num_rows, block_rows):
            rows = slice(start, min(start + block_rows, num_rows))
            since = [last_end, snapshot]
            values, length, step = _measure_rows(reference, since, parameter, rows, chosen if is_wanted else {})
            if is_wanted:
                of_rows = {name: column[rows] for name, column in columns.items()}
                line = {"epoch": float(snapshot.epoch), **of_rows, **values}
                yield pd.DataFrame(line | {"path_efficiency": length / or_nan(walked[rows] + step)})
            if snapshot.is_epoch_end:
                walked[rows] += step
        if snapshot.is_epoch_end:
            last_end = snapshot


def _measure_rows(
    reference: Snapshot, since: Sequence[Snapshot], parameter: str, rows: slice, chosen: Mapping[str, Measure]
) -> tuple[dict[str, Array], Array, Array]:
    """Of some rows: the measures from the reference to the last snapshot, ‖Δ‖, and the length of the way ``since``."""
    snapshots = since if since[0] is reference else [reference, *since]
    num_rows = rows.stop - rows.start
    row_pass, (length, walked) = RowPass(chosen, num_rows), np.full((2, num_rows), np.nan)
    for part, blocks in iterate_blocks(snapshots, parameter, rows=rows, scratch=row_pass.scratch):
        length[part] = row_pass.add(part, blocks[0], blocks[-1])
        walked[part] = length[part] if len(blocks) == 2 else _walk(blocks[-len(since) :], row_pass.scratch)
    return row_pass.values(), length, walked


def _walk(blocks: Sequence[Array], scratch: Scratch) -> Array:
    """Σ‖Eˢ - Eˢ⁻¹‖ of each row."""
    total = np.zeros(len(blocks[0]))
    for before, after in pairwise(blocks):
        total += lengths(np.subtract(after, before, out=scratch.array("step", before.shape)))
    return total


def _path(trajectory: Trajectory, reference_epoch: float, epoch: float | None) -> list[Snapshot]:
    """The reference, the ends of epochs in between (so that runs with snapshots within epochs compare), the epoch."""
    first, last = trajectory.at(reference_epoch), trajectory.at_or_last(epoch)
    low, high = sorted((first.epoch, last.epoch))
    between = [snapshot for snapshot in trajectory if snapshot.is_epoch_end and low < snapshot.epoch < high]
    ordered = between if first.epoch <= last.epoch else between[::-1]
    return [first, *ordered, last]


def _wanted(trajectory: Trajectory, epochs: Epochs) -> list[Snapshot]:
    """The snapshots after epoch 0, or those of the given epochs, in order; ValueError when there are none."""
    chosen = trajectory.chosen(epochs)
    wanted = [s for s in trajectory.snapshots[1:] if any(s is other for other in chosen)]
    if not wanted or (epochs is not None and len(wanted) < len(chosen)):
        at_hand = ", ".join(f"{snapshot.epoch:g}" for snapshot in trajectory)
        raise ValueError(f"rows are written for epochs after 0, each once; at hand: {at_hand}; asked for: {epochs}")
    return wanted


def after_start(drift: pd.DataFrame) -> pd.DataFrame:
    """The lines of :func:`measure_drift`, of one run or led by ``run``, but those of each run's first snapshot.

    That is epoch 0; where recording began later, the first epoch, at which it had seen no step.
    """
    epochs = drift["epoch"]
    starts = epochs.groupby(drift["run"]).transform("min") if "run" in drift else epochs.min()
    return drift[(epochs > 0) & ~((drift["step"] == 0) & (epochs == starts))]


ALL_ROWS = "all rows"
WHOLE = "whole parameter"

STATISTICS: Mapping[str, Any] = {"mean": np.mean, "median": np.median, "max": np.max}
"""Over the defined rows of a stratum. ``max`` is the plain maximum: of a signed measure the largest value, which need
not be the farthest from 0."""

Line = tuple[str, str, str, str, float, str, int, int]  # the columns from ``parameter`` on
Indices = NDArray[np.intp]


@with_columns
def measure_drift(
    source: Source,
    measures: Measures = MEASURES,
    *,
    reference_epoch: float = 0,
    seed: int = 0,
    block_rows: int = BLOCK_ROWS,
) -> pd.DataFrame:
    """The drift of every snapshot from the reference, one value per line.

    Parameters
    ----------
    block_rows
        Number of rows converted to float64 at a time.

    Returns
    -------
    pandas.DataFrame
        Per snapshot, parameter and stratum that has rows, and for ``all rows``: mean, median and max of each measure
        over the rows where it is defined; NaN where it is defined nowhere.

        For ``whole parameter``: norm and relative, if chosen, of the parameter as one vector (statistic ``value``), and
        the same of a random re-initialisation as a yardstick (statistic ``reinitialised``).
    """
    trajectory, chosen = trajectory_of(source), select_measures(measures)
    reference = trajectory.at(reference_epoch)
    parameters = [_parameter_lines(trajectory, reference, p, chosen, seed, block_rows) for p in trajectory.parameters]
    rows = [
        (float(snapshot.epoch), snapshot.step, *line)
        for snapshot, of_parameters in zip(trajectory, zip(*parameters, strict=True), strict=True)
        for line in chain.from_iterable(of_parameters)
    ]
    return pd.DataFrame(rows, columns=columns_of("measure_drift"))


def _parameter_lines(
    trajectory: Trajectory,
    reference: Snapshot,
    parameter: str,
    chosen: Mapping[str, Measure],
    seed: int,
    block_rows: int,
) -> list[list[Line]]:
    """The lines of one parameter, for each snapshot."""
    num_rows = count_rows(trajectory, parameter)
    groups = rows_by_stratum(trajectory, parameter) | {ALL_ROWS: np.arange(num_rows)}
    yardstick = reinitialise(reference, parameter, seed, block_rows)
    known: dict[str | int, list[Line]] = {}
    lines_of_snapshots = []
    for index, snapshot in enumerate(trajectory):
        # A frozen parameter is one file for all epochs: what was computed from that file holds for all of them.
        key = file_of(snapshot, parameter) or index
        if key not in known:
            row_pass, pair = RowPass(chosen, num_rows), (reference, snapshot)
            for rows, (before, after) in iterate_blocks(pair, parameter, block_rows, scratch=row_pass.scratch):
                row_pass.add(rows, before, after)
            of_whole = {"value": whole_values(*row_pass.squares()), "reinitialised": yardstick}
            known[key] = _lines(parameter, row_pass.values(), of_whole, groups, chosen)
        lines_of_snapshots.append(known[key])
    return lines_of_snapshots


def _lines(
    parameter: str,
    values: Mapping[str, Array],
    of_whole: Mapping[str, Mapping[str, float]],
    groups: Mapping[str, Indices],
    chosen: Mapping[str, Measure],
) -> list[Line]:
    """Of each stratum from the values of its rows, then of the whole parameter."""
    lines: list[Line] = []
    for stratum, rows in groups.items():
        for name, measure in chosen.items():
            of_stratum = values[name][rows]
            defined = of_stratum[~np.isnan(of_stratum)]
            for statistic, function in STATISTICS.items():
                value = float(function(defined)) if len(defined) else math.nan
                counts = (len(rows), len(rows) - len(defined))
                lines.append((parameter, stratum, name, statistic, value, measure.unit, *counts))
    for name in (name for name in chosen if name in of_whole["value"]):
        for statistic, known in of_whole.items():
            counts = (len(groups[ALL_ROWS]), int(math.isnan(known[name])))
            lines.append((parameter, WHOLE, name, statistic, known[name], chosen[name].unit, *counts))
    return lines


SEGMENTS = "token_type_embeddings"

DECAY_ALONE = "no gradient: weight decay alone moves it"
UNUSED = "no token used it"
"""Said where no optimizer log shows that the table was trained with weight decay."""

SegmentLine = tuple[str, str, float, str, str, str]  # parameter, measure, value, unit, reason, note


@with_columns
def measure_segments(source: Source, epochs: Epochs = None) -> pd.DataFrame:
    """The segment rows: their lengths, drift and exposure, and how they lie to each other, one value per line.

    With single sentences only row 0 gets a gradient, and it is the sum of all position rows' gradients: its drift is a
    shift of every token alike, no learning about segments. So the difference and the mean of two rows stand apart.

    ``parameter`` names what is measured: ``segment k``, and for every pair of rows ``segments j and k`` (cosine),
    ``difference k - j`` and ``mean of j and k``. Measures: norm, drift (‖Δ‖ from the first snapshot), relative_drift,
    num_steps and num_tokens (exposure so far), cosine. What does not apply has no line: a model with one row has no
    difference, a model without the table no lines at all. What applies but is undefined or was not recorded is NaN,
    with a reason.
    """
    trajectory = trajectory_of(source)
    snapshots = trajectory.chosen(epochs)
    lines: list[tuple[float | int | str, ...]] = []
    if SEGMENTS in trajectory.parameters:
        reference = _segment_rows(trajectory.snapshots[0])
        log = given_log(source, None)
        unused = DECAY_ALONE if log and log.weight_decay.get(SEGMENTS) else UNUSED
        for snapshot in snapshots:
            rows = _segment_rows(snapshot)
            found = [*_segment_lines(trajectory, snapshot, reference, rows, unused), *_pair_lines(reference, rows)]
            lines += [(float(snapshot.epoch), snapshot.step, *line) for line in found]
    return pd.DataFrame(lines, columns=columns_of("measure_segments"))


def _segment_rows(snapshot: Snapshot) -> Array:
    return np.concatenate([block for _, (block,) in iterate_blocks([snapshot], SEGMENTS)])


def _segment_lines(
    trajectory: Trajectory, snapshot: Snapshot, reference: Array, rows: Array, unused: str
) -> Iterator[SegmentLine]:
    """``unused``: the note of a row that no token has used so far."""
    exposure = table_exposure(trajectory, SEGMENTS)
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


def _pair_lines(reference: Array, rows: Array) -> Iterator[SegmentLine]:
    for first, second in combinations(range(len(rows)), 2):
        cosine = 1 - cosine_distance(rows[[first]], rows[[second]])[0]
        reason = "a row is 0 and has no direction" if np.isnan(cosine) else ""
        yield f"segments {first} and {second}", "cosine", float(cosine), "1", reason, ""
        difference = [table[second] - table[first] for table in (reference, rows)]
        yield from _vector_lines(f"difference {second} - {first}", *difference)
        mean = [(table[first] + table[second]) / 2 for table in (reference, rows)]
        yield from _vector_lines(f"mean of {first} and {second}", *mean)


def _vector_lines(of: str, before: Array, after: Array) -> Iterator[SegmentLine]:
    pair = before[None], after[None]
    share = float(relative(*pair)[0])
    yield of, "norm", float(np.linalg.norm(after)), "weight units", "", ""
    yield of, "drift", float(norm(*pair)[0]), "weight units", "", ""
    yield of, "relative_drift", share, "1", "0 before training" if np.isnan(share) else "", ""
