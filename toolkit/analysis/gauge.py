"""The part of the tables' drift that no output depends on (offsets moved between tables), and the rest.

The embedding output LayerNorm(w_i + p_j + s_k) sees neither an offset moved from one table to another nor what
LayerNorm takes away. The formulas are this project's.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.measures import Array
from toolkit.analysis.tokens_in_use import PROJECTED, GroupLabels, ReferenceCorpus, reference_corpus
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Epochs, Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of


def project(rows: Array) -> Array:
    """Π = I - 11ᵀ/d on each row of (rows, hidden): what LayerNorm's mean subtraction leaves."""
    return np.asarray(rows - rows.mean(axis=-1, keepdims=True))


BLOCK_ROWS = 256
"""More than elsewhere: each block is summed in a dozen short products, whose overhead small blocks would pay for."""


@dataclass(frozen=True, slots=True)
class Centre:
    """The gauge of one snapshot."""

    means: Mapping[str, Array]
    """Table to (hidden,): its projected rows' mean over the tokens of the corpus; w̄, p̄, s̄."""
    fixed_means: Mapping[str, Array]
    """The same after the shifts."""
    shifts: Array
    """(groups, hidden): what a group's rows of the second table have over the main group's, and the first table gets
    instead. Only the sum of the two is seen, so this is a choice: it makes position 0 a mean position."""
    mean_square: float
    """E‖Πe_x‖² / hidden over the corpus; its root is the common scale."""

    @property
    def offset(self) -> Array:
        """(hidden,) m = w̄ + p̄ + s̄, the mean of Πe_x."""
        return np.asarray(sum(self.fixed_means.values()))

    @property
    def rms(self) -> float:
        return math.sqrt(max(0.0, self.mean_square))  # rounding alone can put it below 0

    def scale_since(self, reference: "Centre") -> float:
        """Ratio of the common scales; NaN where either is 0."""
        return self.rms / reference.rms if (self.mean_square > 0 and reference.mean_square > 0) else math.nan

    def fix(self, table: str, projected: Array, labels: GroupLabels) -> Array:
        """(n, hidden) projected rows that the corpus uses, and their groups, to W', P' or S'."""
        return projected + self._sign(table) * self.shifts[labels] - self.fixed_means[table]

    def fix_change(self, reference: "Centre", table: str, projected: Array, labels: GroupLabels) -> Array:
        """(n, hidden) change of projected rows since the reference to the change of W', P' or S'.

        The difference of two fixed tables would lose the digits of a small change.
        """
        shifts = self._sign(table) * (self.shifts - reference.shifts)
        return projected + shifts[labels] - (self.fixed_means[table] - reference.fixed_means[table])

    def _sign(self, table: str) -> float:
        """What shifts of groups do to a table: the first gains them, the second loses them, others have none."""
        return {0: 1.0, 1: -1.0}.get(list(self.means).index(table), 0.0)


def measure_centres(snapshots: Sequence[Snapshot], corpus: ReferenceCorpus) -> list[Centre]:
    """The gauge of each snapshot: one pass over every table, in blocks."""
    shape = (len(snapshots), corpus.num_groups, snapshots[0].tensors[corpus.tables[0]].shape[1])
    sums = {table: np.zeros(shape) for table in corpus.tables}
    squares = np.zeros(len(snapshots))
    for index, table in enumerate(corpus.tables):
        partners = _partners(snapshots, corpus, index)
        for rows, used, blocks in iterate_used(snapshots, corpus, table):
            weights, labels = corpus.frequencies[table][rows][used], corpus.groups[table][rows][used]
            for snapshot_index, block in enumerate(map(project, blocks)):
                squares[snapshot_index] += np.sum(weights @ np.square(block))
                for group in np.unique(labels):
                    sums[table][snapshot_index, group] += weights[labels == group] @ block[labels == group]
                # The square of a sum has the products of rows that stand together, twice.
                for shares, partner_rows in partners:
                    squares[snapshot_index] += 2 * np.sum(block * (shares[rows][used] @ partner_rows[snapshot_index]))
    # Table to (groups,) the share of the tokens in each; rows that no token uses are of group -1.
    masses = {
        table: np.asarray(np.bincount(corpus.groups[table] + 1, frequencies)[1:], float)
        for table, frequencies in corpus.frequencies.items()
    }
    centres = []
    for snapshot_index in range(len(snapshots)):
        group_sums = {table: sums[table][snapshot_index] for table in corpus.tables}
        square = squares[snapshot_index]
        if corpus.design is None:
            square += _independent(group_sums, masses)
        centres.append(_centre(group_sums, masses, square / shape[-1]))
    return centres


def iterate_used(
    snapshots: Sequence[Snapshot], corpus: ReferenceCorpus, table: str
) -> Iterator[tuple[slice, GroupLabels, list[Array]]]:
    """Yield a slice, the places in it of rows that the corpus uses, and these rows of every snapshot."""
    for rows, blocks in iterate_blocks(snapshots, table, BLOCK_ROWS):
        used = np.flatnonzero(corpus.frequencies[table][rows] > 0)
        if len(used):
            yield rows, used, [block[used] for block in blocks]


def _partners(snapshots: Sequence[Snapshot], corpus: ReferenceCorpus, index: int) -> list[tuple[Any, list[Array]]]:
    """For each later table: sparse shares of tokens (rows of this table, of that), and that table's projected rows."""
    from scipy.sparse import coo_array

    if corpus.design is None:
        return []
    columns, shares = corpus.design.combinations.T, corpus.design.counts / corpus.design.counts.sum()
    partners = []
    for later in range(index + 1, len(corpus.tables)):
        sizes = tuple(len(corpus.frequencies[corpus.tables[i]]) for i in (index, later))
        token_shares = coo_array((shares, (columns[index], columns[later])), shape=sizes).tocsr()
        tensors = [snapshot.tensors[corpus.tables[later]] for snapshot in snapshots]
        partners.append((token_shares, [project(np.asarray(tensor, np.float64)) for tensor in tensors]))
    return partners


def _independent(sums: Mapping[str, Array], masses: Mapping[str, Array]) -> float:
    """2 Σ E⟨x, y⟩ over pairs of tables that are drawn independently, the first two within their group."""
    names = list(sums)
    total = 0.0
    for i, name in enumerate(names):
        for later in names[i + 1 :]:
            if (i, later) == (0, names[1]):
                total += 2 * float(np.sum(sums[name] * sums[later] / masses[later][:, None]))
            else:
                total += 2 * float(sums[name].sum(axis=0) @ sums[later].sum(axis=0))
    return total


def _centre(sums: Mapping[str, Array], masses: Mapping[str, Array], mean_square: float) -> Centre:
    """The gauge of one snapshot from the weighted sums of each table's rows by group, and the groups' masses."""
    means = {name: group_sums.sum(axis=0) for name, group_sums in sums.items()}
    fixed_means, names = dict(means), list(means)
    shifts = np.zeros_like(sums[names[0]])
    if len(names) > 1:
        group_means = sums[names[1]] / masses[names[1]][:, None]
        shifts = group_means - group_means[0]
        fixed_means[names[0]] = means[names[0]] + masses[names[0]] @ shifts
        fixed_means[names[1]] = means[names[1]] - masses[names[1]] @ shifts
    return Centre(means, fixed_means, shifts, mean_square)


DRIFTS = ("raw_drift", "pi_drift", "gauge_fixed_drift", "scaled_drift")

ROUNDING = 1e-30
"""Squared drift, as a share of the squared rows, below which float64 rounding of Π is all there is."""

ONE_TABLE = "one table: no gauge between tables"
NOTHING_LEFT = "no drift but what LayerNorm's mean subtraction removes"


@dataclass(frozen=True, slots=True)
class DriftSums:
    """The drift of one snapshot from the reference."""

    squares: Mapping[str, Array]
    """Table to (4,): Σ f‖·‖² of each of DRIFTS."""
    gauge_share: float
    """Share, 0 to 1, of the squared drift after Π that offsets between the tables explain (ours).

    1 - [Σf‖Δw'‖² + Σq‖Δp'‖² + Σg‖Δs'‖² + ‖Δm‖²/3] / [Σf‖Δw‖² + Σq‖Δp‖² + Σg‖Δs‖²], /2 with two tables. The first
    bracket is the least drift to any state that only offsets tell from the current one.
    """
    note: str
    """Why the share is NaN; empty when it is not."""


def drift_vectors(
    before: Array, after: Array, table: str, labels: GroupLabels, reference: Centre, centre: Centre
) -> list[Array]:
    """The change of used rows, each (n, hidden): raw, after Π, in the fixed gauge, and with the common scale out."""
    projected = project(after - before)
    fixed = reference.fix(table, project(before), labels)
    change = centre.fix_change(reference, table, projected, labels)
    scale = centre.scale_since(reference)
    return [after - before, projected, change, (change - (scale - 1) * fixed) / scale]


def sum_drifts(snapshots: list[Snapshot], centres: list[Centre], corpus: ReferenceCorpus) -> list[DriftSums]:
    """The drift of each snapshot from the first: one pass over every table."""
    num_later = len(snapshots) - 1
    squares = {table: np.zeros((num_later, len(DRIFTS))) for table in corpus.tables}
    sizes = np.zeros(num_later)
    for table in corpus.tables:
        for rows, used, (before, *later_rows) in iterate_used(snapshots, corpus, table):
            weights, labels = corpus.frequencies[table][rows][used], corpus.groups[table][rows][used]
            sizes += weights @ np.sum(np.square(before), axis=1)
            for index, after in enumerate(later_rows):
                vectors = drift_vectors(before, after, table, labels, centres[0], centres[index + 1])
                squares[table][index] += [weights @ np.sum(np.square(vector), axis=1) for vector in vectors]
    drifts = [
        _sum_drift({name: sums[i] for name, sums in squares.items()}, sizes[i], centres[0], centres[i + 1])
        for i in range(num_later)
    ]
    if corpus.is_projected:
        return [replace(drift, gauge_share=math.nan, note=PROJECTED) for drift in drifts]
    return drifts


def _sum_drift(squares: Mapping[str, Array], size: float, reference: Centre, centre: Centre) -> DriftSums:
    """The drift of one snapshot from its sums, with the share that offsets have of it."""
    # The first two of DRIFTS, over all tables.
    squared_raw, squared_projected, *_ = np.sum(list(squares.values()), axis=0).tolist()
    share, note = math.nan, ""
    if squared_projected <= ROUNDING * (size + squared_raw):
        note = NOTHING_LEFT
    elif len(squares) == 1:
        note = ONE_TABLE
    else:
        # Σ‖Δx̄‖² - ‖Δm‖²/k as one sum of squares; min() because rounding alone can put it a hair above 1.
        changes = np.array([centre.means[name] - reference.means[name] for name in squares])
        offsets = float(np.sum(np.square(changes - changes.mean(axis=0))))
        share = min(1.0, offsets / squared_projected)
    return DriftSums(squares, share, note)


ALL_TABLES = "all tables"
OFFSET = "common offset"
LAYER_NORM = "LayerNorm"
INSEPARABLE = "inseparable rows"
Record = tuple[str, str, float, str, int, str]  # parameter, measure, value, unit, num_rows, reason


@with_columns
def measure_gauge(source: Source, epochs: Epochs = None, *, reference_epoch: float = 0) -> pd.DataFrame:
    """The drift of the tables in the fixed gauge: without the offsets between tables that no output depends on.

    Returns
    -------
    pandas.DataFrame
        Per table, root mean squares over the tokens of the corpus: ``raw_drift``; ``pi_drift`` after Π;
        ``gauge_fixed_drift`` of W', P', S'; ``scaled_drift``, the same with the snapshot divided by its
        ``common_scale``. The last two also of m (``common offset``), and all four of each inseparable pair of rows,
        such as [CLS] and position 0, as one row: its sum.

        For ``all tables``: ``rms`` of Πe_x over the corpus, ``common_scale`` (its ratio to the reference's),
        ``gauge_share``, which knows the offsets between tables and not those of pairs, and ``num_null_directions``.

        ``frequencies`` and ``note`` say what had to be assumed.
    """
    trajectory = trajectory_of(source)
    corpus = reference_corpus(trajectory)
    snapshots = [trajectory.at(reference_epoch), *(chosen := trajectory.chosen(epochs))]
    reference, *centres = measure_centres(snapshots, corpus)
    drifts = sum_drifts(snapshots, [reference, *centres], corpus)
    num_nulls = corpus.num_null_directions
    records = []
    for snapshot, centre, drift in zip(chosen, centres, drifts, strict=True):
        snapshot_records = [
            *_table_records(drift, corpus),
            *_offset_records(reference, centre),
            *_pair_records(snapshots[0], snapshot, reference, centre, corpus, trajectory),
            *_whole_records(reference, centre, drift, num_nulls),
        ]
        for *values, reason in snapshot_records:
            projection_note = PROJECTED if corpus.is_projected and reason != PROJECTED else ""
            note = "; ".join(filter(None, (projection_note, corpus.note)))
            records.append((float(snapshot.epoch), snapshot.step, *values, corpus.frequency_source, reason, note))
    return pd.DataFrame(records, columns=columns_of("measure_gauge"))


def _table_records(drift: DriftSums, corpus: ReferenceCorpus) -> Iterator[Record]:
    """The records of each table: each of DRIFTS."""
    for table, squares in drift.squares.items():
        num_rows = int(np.count_nonzero(corpus.frequencies[table]))
        for measure, square in zip(DRIFTS, squares.tolist(), strict=True):
            yield table, measure, math.sqrt(square), "weight units", num_rows, ""


def _offset_records(reference: Centre, centre: Centre) -> Iterator[Record]:
    """The records of the common offset, which only the last two of DRIFTS have."""
    scaled = centre.offset / centre.scale_since(reference)
    for measure, offset in zip(DRIFTS[2:], (centre.offset, scaled), strict=True):
        yield OFFSET, measure, float(np.linalg.norm(offset - reference.offset)), "weight units", 1, ""


def _pair_records(
    before: Snapshot,
    after: Snapshot,
    reference: Centre,
    centre: Centre,
    corpus: ReferenceCorpus,
    trajectory: Trajectory,
) -> Iterator[Record]:
    """The drift of w_i + p_j for each inseparable pair; in the fixed gauge p'_j is 0."""
    for first_row, second_row in corpus.pairs:
        first_table, second_table = corpus.tables[:2]
        sum_before, sum_after = (
            snapshot.tensors[first_table][first_row].astype(np.float64) + snapshot.tensors[second_table][second_row]
            for snapshot in (before, after)
        )
        fixed_before, fixed_after = (
            project(total) - (gauge.fixed_means[first_table] + gauge.fixed_means[second_table])
            for total, gauge in ((sum_before, reference), (sum_after, centre))
        )
        changes = (
            sum_after - sum_before,
            project(sum_after - sum_before),
            fixed_after - fixed_before,
            fixed_after / centre.scale_since(reference) - fixed_before,
        )
        name = f"{_row_name(trajectory, first_table, first_row)} + {_row_name(trajectory, second_table, second_row)}"
        for measure, change in zip(DRIFTS, changes, strict=True):
            yield name, measure, float(np.linalg.norm(change)), "weight units", 1, ""


def _whole_records(reference: Centre, centre: Centre, drift: DriftSums, num_nulls: int) -> Iterator[Record]:
    """The records of all tables together."""
    yield ALL_TABLES, "rms", centre.rms, "weight units", 0, ""
    yield ALL_TABLES, "common_scale", centre.scale_since(reference), "1", 0, ""
    yield ALL_TABLES, "gauge_share", drift.gauge_share, "1", 0, drift.note
    yield ALL_TABLES, "num_null_directions", float(num_nulls), "1", 0, ""


def _row_name(trajectory: Trajectory, table: str, row: int) -> str:
    if table == "word_embeddings" and trajectory.vocabulary:
        return trajectory.vocabulary.tokens[row]
    return f"position {row - trajectory.position_offset}" if table == "position_embeddings" else f"{table} row {row}"
