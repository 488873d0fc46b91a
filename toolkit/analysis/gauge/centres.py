"""Snapshots and a reference corpus in, each snapshot's gauge out: what to take from its rows, and its common scale."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.analysis.gauge.corpus import ReferenceCorpus
from toolkit.analysis.gauge.incidence import Labels
from toolkit.analysis.rows.blocks import iterate_blocks
from toolkit.analysis.rows.measures import Array
from toolkit.snapshots.snapshot import Snapshot


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
        is_defined = self.mean_square > 0 and reference.mean_square > 0
        return self.rms / reference.rms if is_defined else math.nan

    def fix(self, table: str, projected: Array, labels: Labels) -> Array:
        """(n, hidden) projected rows that the corpus uses, and their groups, to W', P' or S'."""
        return projected + self._sign(table) * self.shifts[labels] - self.fixed_means[table]

    def fix_change(self, reference: "Centre", table: str, projected: Array, labels: Labels) -> Array:
        """(n, hidden) change of projected rows since the reference to the change of W', P' or S'.

        The difference of two fixed tables would lose the digits of a small change.
        """
        shifts = self._sign(table) * (self.shifts - reference.shifts)
        return projected + shifts[labels] - (self.fixed_means[table] - reference.fixed_means[table])

    def _sign(self, table: str) -> float:
        """Of the shifts: the first table takes over what the second gives away."""
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
            for s, block in enumerate(map(project, blocks)):
                squares[s] += np.sum(weights @ np.square(block))
                for group in np.unique(labels):
                    sums[table][s, group] += weights[labels == group] @ block[labels == group]
                for shares, others in partners:
                    squares[s] += 2 * np.sum(block * (shares[rows][used] @ others[s]))
    masses = {n: np.asarray(np.bincount(corpus.groups[n] + 1, f)[1:], float) for n, f in corpus.frequencies.items()}
    centres = []
    for s in range(len(snapshots)):
        of_groups = {table: sums[table][s] for table in corpus.tables}
        both = squares[s] if corpus.design is not None else squares[s] + _independent(of_groups, masses)
        centres.append(_centre(of_groups, masses, both / shape[-1]))
    return centres


def iterate_used(
    snapshots: Sequence[Snapshot], corpus: ReferenceCorpus, table: str
) -> Iterator[tuple[slice, Labels, list[Array]]]:
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
    for other in range(index + 1, len(corpus.tables)):
        sizes = tuple(len(corpus.frequencies[corpus.tables[i]]) for i in (index, other))
        together = coo_array((shares, (columns[index], columns[other])), shape=sizes).tocsr()
        tensors = [snapshot.tensors[corpus.tables[other]] for snapshot in snapshots]
        partners.append((together, [project(np.asarray(tensor, np.float64)) for tensor in tensors]))
    return partners


def _independent(sums: Mapping[str, Array], masses: Mapping[str, Array]) -> float:
    """2 Σ E⟨x, y⟩ over pairs of tables that are drawn independently, the first two within their group."""
    names = list(sums)
    total = 0.0
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            if (i, other) == (0, names[1]):
                total += 2 * float(np.sum(sums[name] * sums[other] / masses[other][:, None]))
            else:
                total += 2 * float(sums[name].sum(axis=0) @ sums[other].sum(axis=0))
    return total


def _centre(sums: Mapping[str, Array], masses: Mapping[str, Array], mean_square: float) -> Centre:
    means = {name: of_groups.sum(axis=0) for name, of_groups in sums.items()}
    fixed, names = dict(means), list(means)
    shifts = np.zeros_like(sums[names[0]])
    if len(names) > 1:
        of_groups = sums[names[1]] / masses[names[1]][:, None]
        shifts = of_groups - of_groups[0]
        fixed[names[0]] = means[names[0]] + masses[names[0]] @ shifts
        fixed[names[1]] = means[names[1]] - masses[names[1]] @ shifts
    return Centre(means, fixed, shifts, mean_square)
