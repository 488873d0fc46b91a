"""A trajectory in; out, its word rows, which of them are words to compare, and their neighbours in any version."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.neighbours.nearest import nearest_neighbours
from toolkit.analysis.neighbours.screening import Ids
from toolkit.analysis.rows.blocks import iterate_blocks, tables_of
from toolkit.analysis.rows.measures import Array
from toolkit.analysis.rows.strata import assign_strata, table_exposure
from toolkit.counts import at_least
from toolkit.snapshots.snapshot import Snapshot, Trajectory

PARAMETER = "word_embeddings"
NO_WORDS = ("[PAD]", "other special", "[unused]")
"""Strata that are no candidates unless ``include_unused`` asks for them."""


@dataclass(frozen=True)
class WordSearch:
    """Which words are compared, and how; the same for every table."""

    words: Ids
    """Rows that are words and zero in neither table, ascending."""
    k: int
    is_centred: bool

    @classmethod
    def of(cls, pair: Sequence[Snapshot], words: Ids, k: int, is_centred: bool) -> "WordSearch":
        """The words of a pair of snapshots; ValueError when there are too few for k neighbours that mean anything."""
        is_zero = np.zeros(len(word_table(pair[0])), bool)
        for rows, blocks in iterate_blocks(pair, PARAMETER):
            is_zero[rows] = ~(blocks[0].any(axis=1) & blocks[1].any(axis=1))
        words = words[~is_zero[words]]
        if not 1 <= at_least("k", k, 0) < len(words):
            raise ValueError(f"k must be 1 to {len(words) - 1}, the number of other words; got {k}")
        return cls(words, k, is_centred)

    def find(self, table: NDArray[Any]) -> tuple[Ids, Array]:
        """(words, k) rows of the neighbours of each word, and their cosines."""
        center = mean_row(table, self.words) if self.is_centred else None
        return nearest_neighbours(table, self.k, queries=self.words, candidates=self.words, center=center)

    def measure(self, table: NDArray[Any], before: Ids, similarity: Array) -> "Moved":
        """What became, in another table, of the neighbours that each word had; ``find`` gave ``before`` its cosines."""
        after = self.find(table)[0]
        return Moved(overlaps(before, after), self._mean_similarity(table, before) - similarity.mean(axis=1))

    def _mean_similarity(self, table: NDArray[Any], found: Ids) -> Array:
        """(words,) mean cosine of each word with the rows found for it, in a table."""
        center = mean_row(table, self.words) if self.is_centred else np.zeros(table.shape[1])
        means = np.empty(len(found))
        for start in range(0, len(found), 128):
            part = slice(start, start + 128)
            word, others = (_units(table[ids] - center) for ids in (self.words[part], found[part]))
            means[part] = np.einsum("ij,ikj->i", word, others) / self.k
        return means


@dataclass(frozen=True)
class Moved:
    """What became of each word's k neighbours; (words,) arrays."""

    overlap: Array
    """Share of them that is still among the k nearest."""
    similarity_change: Array
    """Change of the mean cosine with them."""


def correct(overlap: Array, chance: float) -> Array:
    """(overlap - chance) / (1 - chance); NaN where k is all other words, so that chance is 1."""
    return (overlap - chance) / (1 - chance) if chance < 1 else np.full_like(overlap, np.nan)


def overlaps(before: Ids, after: Ids) -> Array:
    """(n,) share of the k rows in each line of ``before`` that are in the same line of ``after``."""
    k = before.shape[1]
    both = np.sort(np.concatenate([before, after], axis=1), axis=1)
    # No line has a row twice, so a row that stands twice in both together is in each.
    return np.asarray((both[:, 1:] == both[:, :-1]).sum(axis=1) / k)


def find_row(trajectory: Trajectory, word: str | int) -> int:
    """The row of a word given by its text, or by its row; ValueError with the three nearest texts."""
    num_rows = len(word_table(trajectory.snapshots[0]))
    if not isinstance(word, str):
        if (row := at_least("the row of a word", word, 0)) >= num_rows:
            raise ValueError(f"word row {row} is outside the table: rows are 0 to {num_rows - 1}")
        return row
    if trajectory.vocabulary is None:
        raise ValueError(
            f"this trajectory has no vocabulary to look {word!r} up in: give the number of its row instead"
        )
    tokens = trajectory.vocabulary.tokens
    if word and word in tokens:
        return tokens.index(word)
    nearest = ", ".join(repr(text) for text in get_close_matches(word, dict.fromkeys(tokens), n=3, cutoff=0.5))
    hint = f"; the nearest are {nearest}" if nearest else ""
    raise ValueError(f"the vocabulary has no token {word!r} (words may be lower case or in pieces){hint}")


def compared(trajectory: Trajectory, reference_epoch: float, epoch: float | None) -> tuple[Snapshot, Snapshot]:
    """The snapshots of two epochs, the last one for None; ValueError when their word tables differ in shape."""
    pair = trajectory.at(reference_epoch), trajectory.at_or_last(epoch)
    shapes = [word_table(snapshot).shape for snapshot in pair]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{PARAMETER} has shapes {shapes[0]} and {shapes[1]}: snapshots of one model are needed")
    return pair


def list_words(trajectory: Trajectory, snapshot: Snapshot, *, only_seen: bool, include_unused: bool) -> Ids:
    """The rows that are candidates, ascending; all without a vocabulary."""
    is_word = np.ones(len(word_table(snapshot)), bool)
    if not include_unused:
        is_word = ~np.isin(np.asarray(assign_strata(trajectory, PARAMETER)), NO_WORDS)
    if only_seen:
        exposure = table_exposure(trajectory, PARAMETER)
        if exposure is None:
            raise ValueError("only_seen needs the run's exposure, which was not recorded: leave it out")
        is_word &= exposure.step_counts(len(is_word), snapshot.step) > 0
    return np.flatnonzero(is_word)


def word_table(snapshot: Snapshot) -> NDArray[Any]:
    """The word rows of a snapshot (rows, hidden); ValueError when it has none."""
    return tables_of([snapshot], PARAMETER)[0]


def texts(trajectory: Trajectory, rows: Ids) -> list[str]:
    """The token of each row, "" without a vocabulary."""
    vocabulary = trajectory.vocabulary
    return [vocabulary.tokens[row] if vocabulary else "" for row in rows]


def mean_row(table: NDArray[Any], words: Ids) -> Array:
    """(hidden,) float64 mean of some rows."""
    total = np.zeros(table.shape[1])
    for start in range(0, len(words), 2048):
        total += table[words[start : start + 2048]].sum(axis=0, dtype=np.float64)
    return total / len(words)


def _units(rows: Array) -> Array:
    return np.asarray(rows / np.sqrt(np.einsum("...j,...j->...", rows, rows))[..., None])
