"""Nearest words before and after training, and how far each word kept its neighbours.

Similarity is the cosine of the rows as they are. That is what looking a word up in any other tool gives, so it is the
default; but an offset common to all word rows, which position rows can undo and no behaviour shows, changes it. With
``is_centred`` the mean of the candidates is subtracted from every row first, at each epoch its own: such an offset then
changes nothing. A statement that holds only for one of the two is about the offset.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.blocks import iterate_blocks, tables_of
from toolkit.analysis.measures import Array
from toolkit.analysis.nearest import Ids, overlaps, search_nearest
from toolkit.analysis.strata import assign_strata, count_exposure, describe_rows, table_exposure
from toolkit.naming import at_least, lookup
from toolkit.progress import shows_progress
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, run_of, trajectory_of

PARAMETER = "word_embeddings"
NO_WORDS = ("[PAD]", "other special", "[unused]")
"""Strata that are no candidates."""


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
        nearest = search_nearest(table, self.k, queries=self.words, candidates=self.words, center=center)
        return nearest.indices, nearest.similarity

    def measure(self, table: NDArray[Any], before: Ids, similarity: Array) -> pd.DataFrame:
        """What became, in another table, of the neighbours that each word had; ``find`` gave ``before`` its cosines.

        Indexed by row: overlap, the share of them that is still among the k nearest, and similarity_change, that of the
        mean cosine with them.
        """
        center = mean_row(table, self.words) if self.is_centred else np.zeros(table.shape[1])
        means = np.empty(len(before))
        for start in range(0, len(before), 128):
            block = slice(start, start + 128)
            word_units, neighbour_units = (_units(table[ids] - center) for ids in (self.words[block], before[block]))
            means[block] = np.einsum("ij,ikj->i", word_units, neighbour_units) / self.k
        columns = {
            "overlap": overlaps(before, self.find(table)[0]),
            "similarity_change": means - similarity.mean(axis=1),
        }
        return pd.DataFrame(columns, index=pd.Index(self.words, name="row"))


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
    tables_of(pair, PARAMETER)
    return pair


def list_words(trajectory: Trajectory) -> Ids:
    """The rows that are candidates, ascending; all without a vocabulary."""
    return np.flatnonzero(~np.isin(np.asarray(assign_strata(trajectory, PARAMETER)), NO_WORDS))


def word_table(snapshot: Snapshot) -> NDArray[Any]:
    """The word rows of a snapshot (rows, hidden); ValueError when it has none."""
    return tables_of([snapshot], PARAMETER)[0]


def mean_row(table: NDArray[Any], words: Ids) -> Array:
    """(hidden,) float64 mean of some rows."""
    total = np.zeros(table.shape[1])
    for start in range(0, len(words), 2048):
        total += table[words[start : start + 2048]].sum(axis=0, dtype=np.float64)
    return total / len(words)


def _units(rows: Array) -> Array:
    """(..., hidden) rows at length 1."""
    return np.asarray(rows / np.sqrt(np.einsum("...j,...j->...", rows, rows))[..., None])


NUM_MATCHED = 200
"""Words of nearest exposure, at least, that a word's excess is compared with."""
NUM_PERMUTATIONS = 1000


@dataclass(frozen=True)
class ChangedWords:
    """One run's words, how much each lost, and how much in random directions."""

    table: pd.DataFrame
    """Indexed by row: num_steps (float, NaN where unknown), overlap, similarity_change,
    random_overlap, excess and percentile."""
    random: Sequence[pd.DataFrame]
    """For each random draw the same of overlap, similarity_change, and excess over the other draws."""


def find_changed(
    pair: Sequence[Snapshot], search: WordSearch, steps: NDArray[np.int64] | None, num_draws: int, seed: Sequence[int]
) -> ChangedWords:
    """What the words of a search lost between two snapshots; ``steps`` is the exposure of every row of the table.

    Words never seen take no part in the comparison, though other words may have them as neighbours.
    """
    before, similarity = search.find(word_table(pair[0]))
    moved = search.measure(word_table(pair[1]), before, similarity)
    generator = np.random.default_rng(list(seed))
    has_moved = not np.array_equal(word_table(pair[0]), word_table(pair[1]))  # frozen: nothing to draw
    drawn = [
        search.measure(move_randomly(pair, generator), before, similarity) if has_moved else moved
        for _ in range(num_draws)
    ]
    total_overlap = np.sum([draw["overlap"] for draw in drawn], axis=0)
    steps_of_words = np.full(len(search.words), np.nan) if steps is None else steps[search.words].astype(np.float64)
    table = moved.assign(
        num_steps=steps_of_words,
        random_overlap=total_overlap / num_draws,
        excess=total_overlap / num_draws - moved["overlap"],
    )
    is_kept = ~(steps_of_words == 0)  # NaN stays
    table = table[is_kept]
    percentiles = matched_percentiles(table["num_steps"].to_numpy(), table["excess"].to_numpy())
    random = [
        draw.assign(excess=(total_overlap - draw["overlap"]) / (num_draws - 1) - draw["overlap"])[is_kept]
        for draw in drawn
    ]
    return ChangedWords(table.assign(percentile=percentiles), random)


def move_randomly(pair: Sequence[Snapshot], generator: np.random.Generator) -> NDArray[np.float32]:
    """(rows, hidden) the rows before, each moved as far as it went, in a uniformly random direction of its own."""
    moved = np.empty(word_table(pair[0]).shape, np.float32)
    for rows, (before, after) in iterate_blocks(pair, PARAMETER):
        directions = generator.standard_normal(before.shape)
        lengths = np.linalg.norm(after - before, axis=1) / np.linalg.norm(directions, axis=1)
        moved[rows] = before + lengths[:, None] * directions
    return moved


def matched_percentiles(exposure: Array, values: Array, num_matched: int = NUM_MATCHED) -> Array:
    """(n,) share of the words of like exposure whose value is lower, ties counting half, itself left out.

    Alike are all words of the same exposure, and where they are fewer than ``num_matched``, those of the next lower or
    higher, whichever is nearer on a log scale. Unknown exposure (NaN) is one exposure. NaN for a single word.
    """
    exposures = np.nan_to_num(exposure, nan=1.0)
    order = np.argsort(exposures, kind="stable")
    levels, starts = np.unique(np.sort(exposures), return_index=True)
    ends = np.append(starts[1:], len(exposures))
    percentiles = np.full(len(values), np.nan)
    for level in range(len(levels)):
        low = high = level
        while ends[high] - starts[low] < min(num_matched, len(exposures)):
            ratio_down = levels[level] / levels[low - 1] if low > 0 else np.inf
            ratio_up = levels[high + 1] / levels[level] if high + 1 < len(levels) else np.inf
            low, high = (low - 1, high) if ratio_down <= ratio_up else (low, high + 1)
        matched = np.sort(values[order[starts[low] : ends[high]]])
        if len(matched) > 1:
            members = order[starts[level] : ends[level]]
            num_lower = np.searchsorted(matched, values[members], "left")
            num_ties = np.searchsorted(matched, values[members], "right") - num_lower - 1
            percentiles[members] = (num_lower + num_ties / 2) / (len(matched) - 1)
    return percentiles


ORDERS: Mapping[str, float] = {"excess": 1.0, "overlap": -1.0}
"""What a list can be ordered by, and the sign that puts the words that lost most first."""


def choose(words_of_runs: Sequence[ChangedWords], num: int, order: str) -> pd.DataFrame:
    """The list of most_changed, without texts: rank, row and the means over the runs of words compared in all."""
    tables = [words.table for words in words_of_runs]
    common = sorted(set.intersection(*(set(table.index) for table in tables)))
    means = sum(table.loc[common] for table in tables) / len(tables)
    lists_of_runs = [set(_top(table, num, order)) for table in tables]
    means["num_runs"] = [sum(row in listed_rows for listed_rows in lists_of_runs) for row in means.index]
    chosen: pd.DataFrame = means.loc[_top(means, num, order)].reset_index()
    chosen.insert(0, "rank", np.arange(1, len(chosen) + 1))
    names = ("num_steps", "overlap", "similarity_change", "random_overlap", "excess")
    return chosen[["rank", "row", *names, "percentile", "num_runs"]]


def compare_lists(words_of_runs: Sequence[ChangedWords], num: int, seed: int, order: str) -> pd.DataFrame:
    """Whether runs agree on the words that lost most, a line per pair: Jaccard index of the lists.

    With two values by chance. ``_permuted`` is the mean over 1,000 exchanges of one run's words at random among words
    of like exposure in both; ``_random`` is the mean when every row of both runs moves as far as it did in random
    directions. Agreement above the first but not above the second is a property of the table before training: words
    whose neighbours are close rivals. NaN where a list is empty.
    """
    generator = np.random.default_rng([*b"lists", seed])
    records = []
    for first_words, second_words in combinations(words_of_runs, 2):
        rows = np.intersect1d(first_words.table.index, second_words.table.index)
        first, second = first_words.table.loc[rows], second_words.table.loc[rows]
        random = [
            _agreement(_is_listed(first_draw.loc[rows], num, order), _is_listed(second_draw.loc[rows], num, order))
            for first_draw, second_draw in zip(first_words.random, second_words.random, strict=True)
        ]
        first_listed, second_listed = _is_listed(first, num, order), _is_listed(second, num, order)
        permuted = _permute(first_listed, second_listed, _bins(first, second), generator)
        records.append(
            {
                "jaccard": _agreement(first_listed, second_listed),
                "jaccard_permuted": permuted.mean(),
                "jaccard_random": np.mean(random),
            }
        )
    return pd.DataFrame(records)


def _is_listed(table: pd.DataFrame, num: int, order: str) -> NDArray[np.bool_]:
    """(words,) whether each word of a run is in its list."""
    return np.isin(table.index, _top(table, num, order))


def _agreement(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Jaccard index of two lists, (words,) each; NaN where both are empty."""
    num_in_either = int((first | second).sum())
    return float((first & second).sum() / num_in_either) if num_in_either else np.nan


def _bins(first: pd.DataFrame, second: pd.DataFrame) -> Ids:
    """(n,) words with one number are of like exposure in both runs: the same power of two."""
    exposures = [np.nan_to_num(table["num_steps"].to_numpy(), nan=1.0) for table in (first, second)]
    bins: Ids = np.unique(np.floor(np.log2(exposures)), axis=1, return_inverse=True)[1].reshape(-1)
    return bins


def _permute(first: NDArray[np.bool_], second: NDArray[np.bool_], bins: Ids, generator: np.random.Generator) -> Array:
    """(permutations,) agreements when the second run's words change places within their bins."""
    in_order = np.argsort(bins, kind="stable")
    partners = np.empty(len(bins), np.int64)
    agreements = np.empty(NUM_PERMUTATIONS)
    for draw in range(NUM_PERMUTATIONS):
        partners[in_order] = np.lexsort((generator.random(len(bins)), bins))
        agreements[draw] = _agreement(first, second[partners])
    return agreements


def _top(table: pd.DataFrame, num: int, order: str) -> Ids:
    """Rows of the words that lost most, of those that lost a neighbour and, by excess, more than by chance."""
    lost = table[(table["overlap"] < 1) & ((table["excess"] > 1e-9) | (order == "overlap"))]
    # Rounded, so that equal shares are ties; and ties never by row: that would make any two lists agree.
    keys = -lost["similarity_change"].abs(), -(ORDERS[order] * lost[order]).round(9)
    rows: Ids = lost.index.to_numpy()[np.lexsort(keys)[:num]]
    return rows


@with_columns
def neighbours(
    source: Source,
    word: str | int,
    epoch: float | None = None,
    k: int = 10,
    *,
    reference_epoch: float = 0,
    is_centred: bool = False,
) -> pd.DataFrame:
    """The nearest words of one word at two epochs.

    Parameters
    ----------
    word
        Text of the word, or its row.

    Returns
    -------
    pandas.DataFrame
        One line per rank; texts are empty without a vocabulary. Neighbours are rows of words: special tokens and rows
        that the vocabulary keeps free are left out. The table is read by blocks.

    Raises
    ------
    ValueError
        The vocabulary lacks the word, or its row is zero.

    Examples
    --------
    >>> near = toolkit.neighbours(run, "word1", k=3)
    >>> len(near)
    3
    """
    trajectory = trajectory_of(source)
    row = find_row(trajectory, word)
    pair = compared(trajectory, reference_epoch, epoch)
    at_least("k", k, 1)
    candidates = list_words(trajectory)
    tokens = describe_rows(trajectory, PARAMETER)["token"]
    columns: dict[str, Any] = {"rank": np.arange(1, k + 1)}
    rows = []
    for snapshot, name in zip(pair, ("before", "after"), strict=True):
        center = mean_row(word_table(snapshot), candidates) if is_centred else None
        nearest = search_nearest(word_table(snapshot), k, queries=[row], candidates=candidates, center=center)
        (nearest_rows,), (similarity,) = nearest.indices, nearest.similarity
        if nearest_rows[0] < 0:
            raise ValueError(f"row {row} is zero at epoch {snapshot.epoch:g}: it has no direction, hence no neighbours")
        rows.append(nearest_rows)
        columns |= {
            f"row_{name}": nearest_rows,
            f"neighbour_{name}": tokens[nearest_rows],
            f"similarity_{name}": similarity,
        }
    columns |= {"is_lost": ~np.isin(rows[0], rows[1]), "is_new": ~np.isin(rows[1], rows[0])}
    return pd.DataFrame(columns)[columns_of("neighbours")]


@shows_progress("neighbours of every word")
@with_columns
def most_changed(
    source: Source | Sequence[Source],
    epoch: float | None = None,
    k: int = 10,
    num: int = 50,
    seed: int = 0,
    *,
    order: str = "excess",
    num_draws: int = 2,
    reference_epoch: float = 0,
    is_centred: bool = False,
) -> pd.DataFrame:
    """The words that lost most of their nearest words, beyond what a random drift of that size loses.

    Parameters
    ----------
    source
        A run, the path of a run directory, a trajectory, or imported checkpoints; or several that differ in their seed.
    num
        Number of words to list.

    Returns
    -------
    pandas.DataFrame
        One line per word; of several runs, means over the runs, of words compared in all. ``stratum`` is that of the
        first run, ``num_runs`` counts the runs whose own list has the word, and the mean agreement of the lists over
        the pairs of runs stands on every line (NaN for one run): ``jaccard`` of the lists, beside the same by chance.
        ``_permuted``: one run's words exchanged at random among words of like exposure in both, 1,000 times;
        ``_random``: every row of both runs moved as far as it did, in random directions. What is above the first and
        not above the second is a property of the table before training.

        ``random_overlap`` is the mean over the random drifts: words whose neighbours are close rivals lose some by any
        drift. ``percentile`` is among at least 200 words of like exposure, among all words where exposure is unknown.

        Unexposed words are left out where exposure is known, and always words that lost nothing: the list can be short,
        and is empty where nothing moved. Ties go by the size of ``similarity_change``.

    Raises
    ------
    ValueError
        Another ``order``, or fewer than two draws.

    Notes
    -----
    The list describes; the agreement of runs is the test. A row that moves as far as it is long can lose its neighbours
    in any direction, so that only the order ``overlap`` finds it.
    """
    lookup(ORDERS, order, "order")
    at_least("num", num, 1)
    sources = cast(list[Source], list(source) if isinstance(source, list | tuple) else [source])
    changed = _find_all(sources, epoch, k, seed, num_draws, reference_epoch, is_centred)
    table = choose(changed, num, order)
    described = _describe(trajectory_of(sources[0]), table["row"].to_numpy(), 0)
    for column_number, name in enumerate(("token", "stratum"), 2):
        table.insert(column_number, name, described[name].to_numpy())
    agreement = compare_lists(changed, num, seed, order).mean() if len(changed) > 1 else {}
    for name in ("jaccard", "jaccard_permuted", "jaccard_random"):
        table[name] = agreement.get(name, np.nan)
    return table


def _find_all(
    sources: Sequence[Source],
    epoch: float | None,
    k: int,
    seed: int,
    num_draws: int,
    reference_epoch: float,
    is_centred: bool,
) -> list[ChangedWords]:
    """What the words of each run lost between two epochs."""
    if num_draws < 2:
        raise ValueError(f"num_draws must be 2 or more, so that a draw can be compared with others; got {num_draws}")
    changed = []
    for run_number, trajectory in enumerate(trajectory_of(source) for source in sources):
        pair = compared(trajectory, reference_epoch, epoch)
        words = list_words(trajectory)
        exposure = table_exposure(trajectory, PARAMETER)
        steps = None if exposure is None else exposure.step_counts(len(word_table(pair[0])), pair[1].step)
        search = WordSearch.of(pair, words, k, is_centred)
        changed.append(find_changed(pair, search, steps, num_draws, [*b"neighbours", seed, run_number]))
    return changed


def _describe(trajectory: Trajectory, words: Ids, last_step: int) -> pd.DataFrame:
    """What each word is, and its steps so far."""
    columns = describe_rows(trajectory, PARAMETER)
    columns["num_steps"] = count_exposure(trajectory, PARAMETER, last_step)["num_steps"]
    return pd.DataFrame({name: column[words] for name, column in columns.items()})


def name_of(source: Source, index: int) -> str:
    """What to call a run: its folder, or its place among the sources."""
    run = run_of(source)
    return f"run {index}" if run is None else run.path.name
