"""A trajectory in, its reference corpus out: how often the run used each row, and which rows stood together."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.gauge.incidence import Labels, NullSpace, label_groups, null_space, offset_directions
from toolkit.analysis.rows.measures import Array
from toolkit.analysis.rows.strata import count_rows, table_exposure
from toolkit.families import TABLES
from toolkit.snapshots.exposure import Design
from toolkit.snapshots.snapshot import Trajectory

PROJECTED = "the sums are projected before LayerNorm, and no snapshot holds the projection: Π is no gauge here"

FIRST_TOKENS = ("[CLS]", "<s>")
"""Special tokens that stand at the first position of every text, and nowhere else."""


@dataclass(frozen=True, slots=True)
class ReferenceCorpus:
    """The tokens that a gauge is fixed with: those of the whole run, so that it is the same at every epoch."""

    frequencies: Mapping[str, Array]
    """Table to (rows,) float64: share of the tokens that used each row; adds up to 1."""
    groups: Mapping[str, Labels]
    """Table to (rows,): see ``incidence.label_groups``; group 0 unless rows are inseparable."""
    design: Design | None
    frequency_source: str
    """``run's tokens`` or ``uniform``."""
    note: str
    """What had to be assumed; empty when exposure and design were recorded."""
    is_projected: bool = False
    """Whether the sums are projected to another width before LayerNorm (DeBERTa with a small embedding size)."""

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(self.frequencies)

    @property
    def num_groups(self) -> int:
        return 1 + max(int(labels.max()) for labels in self.groups.values())

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Groups of one row of the first and one of the second table, without the main group."""
        if len(self.tables) == 1:
            return []
        of_groups = [np.bincount(self.groups[name] + 1, minlength=self.num_groups + 1) for name in self.tables[:2]]
        alone = [g for g in range(1, self.num_groups) if of_groups[0][g + 1] == of_groups[1][g + 1] == 1]
        first, second = ([int(np.flatnonzero(self.groups[n] == g)[0]) for g in alone] for n in self.tables[:2])
        return list(zip(first, second, strict=True))

    def null_space(self) -> NullSpace:
        """The directions that no sum of rows shows; without a design those that are certain."""
        if self.design is None:
            return offset_directions(self.groups)
        return null_space(self.design, {name: len(values) for name, values in self.frequencies.items()})


def reference_corpus(trajectory: Trajectory) -> ReferenceCorpus:
    """The run's own tokens; uniform frequencies, and a note, without exposure.

    ValueError when the model has no embedding table or the recorded design lacks one.
    """
    tables = [name for name in trajectory.parameters if name in TABLES]
    if not tables:
        raise ValueError(f"a gauge needs embedding tables; this run has only {', '.join(trajectory.parameters)}")
    counts = {name: _token_counts(trajectory, name) for name in tables}
    is_recorded = all(values is not None for values in counts.values())
    design = _design(trajectory, tables)
    if is_recorded:
        frequencies = {name: values / values.sum() for name, values in counts.items() if values is not None}
    else:
        frequencies = {name: _uniform(trajectory, name) for name in tables}
    notes = [] if is_recorded else ["uniform frequencies: no exposure was recorded"]
    if design is not None:
        sizes = {name: len(values) for name, values in frequencies.items()}
        groups = label_groups(design, sizes)
        if num_more := null_space(design, sizes).num_directions - offset_directions(groups).num_directions:
            notes.append(f"{num_more} more null directions than groups explain: the fixed gauge leaves them free")
    else:
        groups = {name: np.where(values > 0, 0, -1) for name, values in frequencies.items()}
        notes.append("tables taken as independent: no design was recorded")
        if pair := _first_pair(trajectory, counts):
            notes.append("the first token and its position taken as inseparable, as the vocabulary tells")
            for name, row in zip(tables, pair, strict=False):
                groups[name][row] = 1
            if not is_recorded:  # both rows of a pair are used by the same tokens
                share, words = frequencies[tables[1]][pair[1]], frequencies[tables[0]]
                words *= (1 - share) / (1 - words[pair[0]])
                words[pair[0]] = share
    source = "run's tokens" if is_recorded else "uniform"
    widths = {trajectory.snapshots[0].tensors[name].shape[-1] for name in trajectory.parameters}
    return ReferenceCorpus(frequencies, groups, design, source, "; ".join(notes), len(widths) > 1)


def draw_combinations(
    corpus: ReferenceCorpus, max_combinations: int, seed: int
) -> tuple[NDArray[np.int64], Array, str]:
    """(n, tables) rows that stand together, (n,) their shares, and how they were got.

    All of the design when it has no more than ``max_combinations``; else as many tokens drawn from it with
    replacement. Without a design each table is drawn on its own from its frequencies, within the same group.
    """
    generator = np.random.default_rng(seed)
    if corpus.design is not None:
        rows, counts = corpus.design.combinations.astype(np.int64), corpus.design.counts
        if len(rows) <= max_combinations:
            return rows, counts / counts.sum(), "all combinations of the run"
        counts = generator.multinomial(max_combinations, counts / counts.sum())
        how = f"{max_combinations:,} tokens drawn from {len(rows):,} combinations with seed {seed}"
        return rows[counts > 0], counts[counts > 0] / max_combinations, how
    first, *others = corpus.tables
    columns = [generator.choice(len(corpus.frequencies[first]), max_combinations, p=corpus.frequencies[first])]
    for name in others:
        column = np.empty(max_combinations, np.int64)
        within = corpus.groups[first][columns[0]] if name == corpus.tables[1] else np.zeros(max_combinations, int)
        for group in np.unique(within):
            shares = np.where(corpus.groups[name] == group, corpus.frequencies[name], 0)
            places = np.flatnonzero(within == group)
            column[places] = generator.choice(len(shares), len(places), p=shares / shares.sum())
        columns.append(column)
    rows, drawn = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    return rows, drawn / max_combinations, f"tables drawn independently, {max_combinations:,} tokens with seed {seed}"


def _token_counts(trajectory: Trajectory, table: str) -> NDArray[np.int64] | None:
    exposure = table_exposure(trajectory, table)
    counts = None if exposure is None else exposure.token_counts(count_rows(trajectory, table))
    return counts if counts is not None and counts.any() else None


def _design(trajectory: Trajectory, tables: list[str]) -> Design | None:
    """The recorded design with its columns in the order of the tables."""
    design = trajectory.exposure.design if trajectory.exposure else None
    if design is None or not len(design.counts):
        return None
    if missing := [name for name in tables if name not in design.tables]:
        raise ValueError(f"the design of this run lacks {', '.join(missing)}: it has {', '.join(design.tables)}")
    columns = [design.tables.index(name) for name in tables]
    return Design(tuple(tables), design.combinations[:, columns], design.counts)


def _uniform(trajectory: Trajectory, table: str) -> Array:
    """The same for every row that a real token can use: not for [PAD], nor for RoBERTa's padding positions."""
    shares = np.ones(count_rows(trajectory, table))
    if table == "position_embeddings":
        shares[: trajectory.position_offset] = 0
    if table == "word_embeddings" and trajectory.vocabulary and trajectory.vocabulary.pad_row is not None:
        shares[trajectory.vocabulary.pad_row] = 0
    return np.asarray(shares / shares.sum())


def _first_pair(trajectory: Trajectory, counts: Mapping[str, NDArray[np.int64] | None]) -> tuple[int, int] | None:
    """The rows of the first token and the first position, if the vocabulary names one and their counts agree."""
    vocabulary, offset = trajectory.vocabulary, trajectory.position_offset
    if vocabulary is None or tuple(counts)[:2] != TABLES[:2]:
        return None
    rows = [row for row in vocabulary.special_rows if vocabulary.tokens[row] in FIRST_TOKENS]
    words, positions = (counts[name] for name in TABLES[:2])
    if len(rows) != 1:
        return None
    if words is not None and positions is not None:
        is_alone = words[rows[0]] == words.sum()
        if words[rows[0]] == 0 or words[rows[0]] != positions[offset] or is_alone:
            return None
    return rows[0], offset
