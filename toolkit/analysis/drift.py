"""The drift table of a trajectory: every measure, stratum, parameter and epoch; its rows one by one; its segments."""

import math
import warnings
from collections.abc import Iterator, Mapping
from itertools import chain, combinations, pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.adam import given_log
from toolkit.analysis.blocks import BLOCK_ROWS, RowPass, file_of, iterate_blocks, reinitialise, whole_values
from toolkit.analysis.measures import (
    MEASURES,
    Array,
    Measure,
    Measures,
    cosine_distance,
    norm,
    or_nan,
    relative,
    select_measures,
)
from toolkit.analysis.strata import count_exposure, count_rows, describe_rows, rows_by_stratum, table_exposure
from toolkit.naming import at_least, refuse_first
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Epochs, Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of


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

    Examples
    --------
    >>> rows = toolkit.measure_rows(run, "word_embeddings")
    >>> rows.nlargest(5, "relative")[["token", "num_steps", "relative"]].shape
    (5, 3)
    """
    trajectory = trajectory_of(source)
    chosen = select_measures(measures)
    path = _path(trajectory, reference_epoch, epoch)
    num_rows = count_rows(trajectory, parameter)
    row_pass = RowPass(chosen, num_rows)
    distances, path_lengths = np.zeros(num_rows), np.zeros(num_rows)
    for rows, blocks in iterate_blocks(path, parameter, scratch=row_pass.scratch):
        distances[rows] = row_pass.add(rows, blocks[0], blocks[-1])
        path_lengths[rows] = sum(norm(before, after) for before, after in pairwise(blocks))
    columns = describe_rows(trajectory, parameter) | count_exposure(trajectory, parameter, path[-1].step)
    return pd.DataFrame(columns | row_pass.values() | {"path_efficiency": distances / or_nan(path_lengths)})


@with_columns
def top_words(
    source: Source | list[Source] | tuple[Source, ...], n: int = 10, epoch: float | None = None
) -> pd.DataFrame:
    """Which words did fine-tuning change most? Those that moved furthest, in % of the norm that each had before.

    >>> words = toolkit.top_words(run, 3)
    >>> words["drift_percent"].is_monotonic_decreasing
    True

    Parameters
    ----------
    source
        A run, the path of a run directory, a trajectory, or imported checkpoints. A list may hold one of these.
    n
        Number of words.

    Returns
    -------
    pandas.DataFrame
        One line per word, the furthest first; fewer than ``n`` where fewer moved. Last come words that were 0 before:
        their ``drift_percent`` is undefined. Counts are NA where exposure was not recorded.
    """
    if isinstance(source, list | tuple):
        refuse_first(
            {
                f"expected one run; got {len(source)}: pass one of them, or pandas.concat({{run.path.name: "
                "toolkit.top_words(run) for run in runs}) for the words of each": len(source) != 1
            }
        )
        (source,) = source
    rows = measure_rows(source, "word_embeddings", epoch, ("norm", "relative"))
    moved = rows[rows["norm"] > 0].sort_values(["relative", "norm"], ascending=False, kind="stable")
    top = moved.head(at_least("n", n, 1))
    if top.empty:
        warnings.warn("no word moved: were the word embeddings frozen? pass a run that trained them", stacklevel=2)
    columns = ["token", "drift_percent", "num_steps", "num_tokens", "row"]
    return top.assign(drift_percent=100 * top["relative"])[columns].reset_index(drop=True)


def _path(trajectory: Trajectory, reference_epoch: float, epoch: float | None) -> list[Snapshot]:
    """The reference, the ends of epochs in between (so that runs with snapshots within epochs compare), the epoch."""
    first, last = trajectory.at(reference_epoch), trajectory.at_or_last(epoch)
    low, high = sorted((first.epoch, last.epoch))
    between = [snapshot for snapshot in trajectory if snapshot.is_epoch_end and low < snapshot.epoch < high]
    ordered = between if first.epoch <= last.epoch else between[::-1]
    return [first, *ordered, last]


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

Record = tuple[str, str, str, str, float, str, int, int]  # the columns from ``parameter`` on
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

    Examples
    --------
    >>> drift = toolkit.measure_drift(run)
    >>> drift["parameter"].unique().tolist()
    ['word_embeddings', 'position_embeddings', 'token_type_embeddings', 'LayerNorm.weight', 'LayerNorm.bias']
    """
    trajectory, chosen = trajectory_of(source), select_measures(measures)
    reference = trajectory.at(reference_epoch)
    parameters = [
        _parameter_records(trajectory, reference, parameter, chosen, seed, block_rows)
        for parameter in trajectory.parameters
    ]
    rows = [
        (float(snapshot.epoch), snapshot.step, *record)
        for snapshot, by_parameter in zip(trajectory, zip(*parameters, strict=True), strict=True)
        for record in chain.from_iterable(by_parameter)
    ]
    return pd.DataFrame(rows, columns=columns_of("measure_drift"))


def _parameter_records(
    trajectory: Trajectory,
    reference: Snapshot,
    parameter: str,
    chosen: Mapping[str, Measure],
    seed: int,
    block_rows: int,
) -> list[list[Record]]:
    """The records of one parameter, for each snapshot."""
    num_rows = count_rows(trajectory, parameter)
    groups = rows_by_stratum(trajectory, parameter) | {ALL_ROWS: np.arange(num_rows)}
    yardstick = reinitialise(reference, parameter, seed, block_rows)
    records_by_file: dict[str | int, list[Record]] = {}
    records_by_snapshot = []
    for index, snapshot in enumerate(trajectory):
        # A frozen parameter is one file for all epochs: what was computed from that file holds for all of them.
        key = file_of(snapshot, parameter) or index
        if key not in records_by_file:
            row_pass, pair = RowPass(chosen, num_rows), (reference, snapshot)
            for rows, (before, after) in iterate_blocks(pair, parameter, block_rows, scratch=row_pass.scratch):
                row_pass.add(rows, before, after)
            whole = {"value": whole_values(*row_pass.squares()), "reinitialised": yardstick}
            records_by_file[key] = _stratum_records(parameter, row_pass.values(), whole, groups, chosen)
        records_by_snapshot.append(records_by_file[key])
    return records_by_snapshot


def _stratum_records(
    parameter: str,
    values: Mapping[str, Array],
    whole: Mapping[str, Mapping[str, float]],
    groups: Mapping[str, Indices],
    chosen: Mapping[str, Measure],
) -> list[Record]:
    """The records of each stratum, from the values of its rows, then those of the parameter as a whole."""
    records: list[Record] = []
    for stratum, rows in groups.items():
        for name, measure in chosen.items():
            stratum_values = values[name][rows]
            defined = stratum_values[~np.isnan(stratum_values)]
            for statistic, function in STATISTICS.items():
                value = float(function(defined)) if len(defined) else math.nan
                counts = (len(rows), len(rows) - len(defined))
                records.append((parameter, stratum, name, statistic, value, measure.unit, *counts))
    for name in (name for name in chosen if name in whole["value"]):
        for statistic, whole_measures in whole.items():
            counts = (len(groups[ALL_ROWS]), int(math.isnan(whole_measures[name])))
            records.append((parameter, WHOLE, name, statistic, whole_measures[name], chosen[name].unit, *counts))
    return records


SEGMENTS = "token_type_embeddings"

DECAY_ALONE = "no gradient: weight decay alone moves it"
UNUSED = "no token used it"
"""Said where no optimizer log shows that the table was trained with weight decay."""

SegmentRecord = tuple[str, str, float, str, str, str]  # parameter, measure, value, unit, reason, note


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
    records: list[tuple[float | int | str, ...]] = []
    if SEGMENTS in trajectory.parameters:
        reference = _segment_rows(trajectory.snapshots[0])
        log = given_log(source, None)
        unused_note = DECAY_ALONE if log and log.weight_decay.get(SEGMENTS) else UNUSED
        for snapshot in snapshots:
            rows = _segment_rows(snapshot)
            segment_records = [
                *_segment_records(trajectory, snapshot, reference, rows, unused_note),
                *_pair_records(reference, rows),
            ]
            records += [(float(snapshot.epoch), snapshot.step, *record) for record in segment_records]
    return pd.DataFrame(records, columns=columns_of("measure_segments"))


def _segment_rows(snapshot: Snapshot) -> Array:
    """(segments, hidden) float64."""
    return np.concatenate([block for _, (block,) in iterate_blocks([snapshot], SEGMENTS)])


def _segment_records(
    trajectory: Trajectory, snapshot: Snapshot, reference: Array, rows: Array, unused_note: str
) -> Iterator[SegmentRecord]:
    """The records of each segment row; ``unused_note``: the note of a row that no token has used so far."""
    exposure = table_exposure(trajectory, SEGMENTS)
    if exposure is not None:
        counts = {
            "num_steps": exposure.step_counts(len(rows), snapshot.step).astype(np.float64),
            "num_tokens": exposure.token_counts(len(rows), snapshot.step).astype(np.float64),
        }
    for row in range(len(rows)):
        subject = f"segment {row}"
        yield from _vector_records(subject, reference[row], rows[row])
        for name in ("num_steps", "num_tokens"):
            if exposure is None:
                yield subject, name, float("nan"), "count", "exposure was not recorded", ""
            else:
                value = float(counts[name][row])
                yield subject, name, value, "count", "", "" if value or not snapshot.step else unused_note


def _pair_records(reference: Array, rows: Array) -> Iterator[SegmentRecord]:
    """The records of every pair of segment rows: their cosine, their difference and their mean."""
    for first, second in combinations(range(len(rows)), 2):
        cosine = 1 - cosine_distance(rows[[first]], rows[[second]])[0]
        reason = "a row is 0 and has no direction" if np.isnan(cosine) else ""
        yield f"segments {first} and {second}", "cosine", float(cosine), "1", reason, ""
        differences = [table[second] - table[first] for table in (reference, rows)]
        yield from _vector_records(f"difference {second} - {first}", *differences)
        means = [(table[first] + table[second]) / 2 for table in (reference, rows)]
        yield from _vector_records(f"mean of {first} and {second}", *means)


def _vector_records(subject: str, before: Array, after: Array) -> Iterator[SegmentRecord]:
    """The records of one vector before and after: its norm, its drift and its relative drift."""
    pair = before[None], after[None]
    share = float(relative(*pair)[0])
    yield subject, "norm", float(np.linalg.norm(after)), "weight units", "", ""
    yield subject, "drift", float(norm(*pair)[0]), "weight units", "", ""
    yield subject, "relative_drift", share, "1", "0 before training" if np.isnan(share) else "", ""
