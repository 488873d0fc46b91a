"""A trajectory in, the part of its tables' drift that no behaviour can show out, and the drift that is left.

The embedding output LayerNorm(w_i + p_j + s_k) sees neither an offset moved from one table to another nor what
LayerNorm takes away. The formulas are this project's.
"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from toolkit.analysis.gauge.centres import Centre, measure_centres, project
from toolkit.analysis.gauge.corpus import PROJECTED, ReferenceCorpus, reference_corpus
from toolkit.analysis.gauge.gauge_sums import DRIFTS, DriftSums, sum_drifts
from toolkit.analysis.rows.blocks import iterate_blocks
from toolkit.analysis.rows.measures import Array, norm
from toolkit.analysis.rows.strata import assign_strata
from toolkit.lookup import unknown
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

ALL_TABLES = "all tables"
OFFSET = "common offset"
Line = tuple[str, str, float, str, int, str]  # parameter, measure, value, unit, num_rows, reason


@with_columns
def measure_gauge(source: Source, epoch: float | None = None, *, reference_epoch: float = 0) -> "pd.DataFrame":
    """The drift of the tables from the reference epoch in the fixed gauge, one value per line.

    Per table, root mean squares over the tokens of the corpus: ``raw_drift``; ``pi_drift`` after Π;
    ``gauge_fixed_drift`` of W', P', S'; ``scaled_drift``, the same with the snapshot divided by its ``common_scale``.
    The last two also of m (``common offset``), and all four of each inseparable pair of rows, such as [CLS] and
    position 0, as one row: its sum.

    For ``all tables``: ``rms`` of Πe_x over the corpus, ``common_scale`` (its ratio to the reference's),
    ``gauge_share``, ``gauge_share_of_all_directions`` (the same over every null direction that is known, the pairs'
    among them) and ``num_null_directions``. ``epoch``: None for every snapshot. ``frequencies`` and ``note`` say what
    had to be assumed.
    """
    trajectory = trajectory_of(source)
    corpus = reference_corpus(trajectory)
    chosen = list(trajectory) if epoch is None else [trajectory.at(epoch)]
    snapshots = [trajectory.at(reference_epoch), *chosen]
    reference, *centres = measure_centres(snapshots, corpus)
    drifts = sum_drifts(snapshots, [reference, *centres], corpus)
    num_nulls = corpus.null_space().num_directions
    lines = []
    for snapshot, centre, drift in zip(chosen, centres, drifts, strict=True):
        lines_of_snapshot = [
            *_table_lines(drift, corpus),
            *_offset_lines(reference, centre),
            *_pair_lines(snapshots[0], snapshot, reference, centre, corpus, trajectory),
            *_whole_lines(reference, centre, drift, num_nulls),
        ]
        for *values, reason in lines_of_snapshot:
            standing = PROJECTED if corpus.is_projected and reason != PROJECTED else ""
            note = "; ".join(filter(None, (standing, corpus.note)))
            lines.append((float(snapshot.epoch), snapshot.step, *values, corpus.frequency_source, reason, note))
    return pd.DataFrame(lines, columns=columns_of("measure_gauge"))


@with_columns
def measure_gauge_rows(
    source: Source, parameter: str, epoch: float | None = None, *, reference_epoch: float = 0
) -> "pd.DataFrame":
    """The drift of each row of a table in the fixed gauge, beside what it is without it.

    ``gauge_fixed_drift`` is NaN in rows that the corpus never uses, and in a position row that is reported as one row
    with the word row in ``merged_with``; where a projection stands before LayerNorm, it and ``pi_drift`` are NaN
    throughout. Drifts are norms in weight units.
    """
    trajectory = trajectory_of(source)
    corpus = reference_corpus(trajectory)
    if parameter not in corpus.tables:
        raise ValueError(unknown(parameter, "embedding table of this run", corpus.tables))
    pair = [trajectory.at(reference_epoch), trajectory.at_or_last(epoch)]
    raw, pi, fixed = _row_drifts(pair, parameter, corpus)
    if corpus.is_projected:
        pi[:] = fixed[:] = np.nan
    merged = [""] * len(raw)
    side = corpus.tables.index(parameter)
    for rows in corpus.pairs if side < 2 else []:
        merged[rows[side]] = _row_name(trajectory, corpus.tables[1 - side], rows[1 - side])
        if side == 1:
            fixed[rows[side]] = np.nan
    vocabulary = trajectory.vocabulary if parameter == "word_embeddings" else None
    columns = {
        "row": np.arange(len(raw)),
        "token": list(vocabulary.tokens) if vocabulary else [""] * len(raw),
        "stratum": assign_strata(trajectory, parameter),
        "frequency": corpus.frequencies[parameter],
        "raw_drift": raw,
        "pi_drift": pi,
        "gauge_fixed_drift": fixed,
        "merged_with": merged,
    }
    return pd.DataFrame(columns)


def _row_drifts(pair: list[Snapshot], parameter: str, corpus: ReferenceCorpus) -> tuple[Array, Array, Array]:
    reference, centre = measure_centres(pair, corpus)
    num_rows = len(corpus.frequencies[parameter])
    raw, pi, fixed = np.empty(num_rows), np.empty(num_rows), np.full(num_rows, np.nan)
    for rows, (before, after) in iterate_blocks(pair, parameter):
        change = project(after - before)
        raw[rows], pi[rows] = norm(before, after), norm(np.zeros_like(change), change)
        used = np.flatnonzero(corpus.frequencies[parameter][rows] > 0)
        change = centre.fix_change(reference, parameter, change[used], corpus.groups[parameter][rows][used])
        fixed[rows.start + used] = norm(np.zeros_like(change), change)
    return raw, pi, fixed


def _table_lines(drift: DriftSums, corpus: ReferenceCorpus) -> Iterator[Line]:
    for table, squares in drift.squares.items():
        num_rows = int(np.count_nonzero(corpus.frequencies[table]))
        for measure, square in zip(DRIFTS, squares.tolist(), strict=True):
            yield table, measure, math.sqrt(square), "weight units", num_rows, ""


def _offset_lines(reference: Centre, centre: Centre) -> Iterator[Line]:
    scaled = centre.offset / centre.scale_since(reference)
    for measure, offset in zip(DRIFTS[2:], (centre.offset, scaled), strict=True):
        yield OFFSET, measure, float(np.linalg.norm(offset - reference.offset)), "weight units", 1, ""


def _pair_lines(
    before: Snapshot,
    after: Snapshot,
    reference: Centre,
    centre: Centre,
    corpus: ReferenceCorpus,
    trajectory: Trajectory,
) -> Iterator[Line]:
    """The drift of w_i + p_j for each inseparable pair; in the fixed gauge p'_j is 0."""
    for rows in corpus.pairs:
        named = list(zip(corpus.tables, rows, strict=False))
        first, second = ([np.asarray(s.tensors[t][row], np.float64) for s in (before, after)] for t, row in named)
        sums = [first[0] + second[0], first[1] + second[1]]
        ends = [
            project(total) - sum(c.fixed_means[table] for table in corpus.tables[:2])
            for total, c in zip(sums, (reference, centre), strict=True)
        ]
        changes = [sums[1] - sums[0], project(sums[1] - sums[0]), ends[1] - ends[0]]
        changes.append(ends[1] / centre.scale_since(reference) - ends[0])
        name = " + ".join(_row_name(trajectory, t, r) for t, r in named)
        for measure, change in zip(DRIFTS, changes, strict=True):
            yield name, measure, float(np.linalg.norm(change)), "weight units", 1, ""


def _whole_lines(reference: Centre, centre: Centre, drift: DriftSums, num_nulls: int) -> Iterator[Line]:
    yield ALL_TABLES, "rms", centre.rms, "weight units", 0, ""
    yield ALL_TABLES, "common_scale", centre.scale_since(reference), "1", 0, ""
    yield ALL_TABLES, "gauge_share", drift.gauge_share, "1", 0, drift.note
    yield ALL_TABLES, "gauge_share_of_all_directions", drift.gauge_share_of_all_directions, "1", 0, drift.note
    yield ALL_TABLES, "num_null_directions", float(num_nulls), "1", 0, ""


def _row_name(trajectory: Trajectory, table: str, row: int) -> str:
    if table == "word_embeddings" and trajectory.vocabulary:
        return trajectory.vocabulary.tokens[row]
    if table == "position_embeddings":
        return f"position {row - trajectory.position_offset}"
    return f"{table} row {row}"
