"""Word tables before and after in; out, the words that lost more neighbours than any drift of that size would take.

A word whose tenth and eleventh neighbour are nearly as close loses one of them by any drift, in every run: a list of
changed words, and its agreement between seeds, must be held against that. So every row is also moved as far as it went
in a random direction of its own, which keeps the table before training and each row's drift, and nothing else. Ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.neighbours.screening import Ids
from toolkit.analysis.neighbours.word_search import PARAMETER, Moved, WordSearch, correct, word_table
from toolkit.analysis.rows.blocks import iterate_blocks
from toolkit.analysis.rows.measures import Array
from toolkit.snapshots.snapshot import Snapshot

NUM_MATCHED = 200
"""Words of nearest exposure, at least, that a word's excess is compared with."""
NUM_PERMUTATIONS = 1000


@dataclass(frozen=True)
class Changed:
    """One run's words, how much each lost, and how much in random directions."""

    table: pd.DataFrame
    """Columns row, num_steps (float, NaN where unknown), overlap, chance, corrected_overlap, similarity_change,
    random_overlap, excess and percentile."""
    random: Sequence[pd.DataFrame]
    """For each random draw, its excess over the other draws, and its similarity_change; columns row, excess, overlap,
    similarity_change."""


def find_changed(
    pair: Sequence[Snapshot], search: WordSearch, steps: NDArray[np.int64] | None, num_draws: int, seed: Sequence[int]
) -> Changed:
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
    total = np.sum([draw.overlap for draw in drawn], axis=0)
    chance = search.k / (len(search.words) - 1)
    of_words = np.full(len(search.words), np.nan) if steps is None else steps[search.words].astype(np.float64)
    table = _lines(search.words, moved, total / num_draws)
    table.insert(1, "num_steps", of_words)
    table.insert(3, "chance", chance)
    table.insert(4, "corrected_overlap", correct(moved.overlap, chance))
    table["random_overlap"] = total / num_draws
    is_kept = ~(of_words == 0)  # NaN stays
    table = table[is_kept].reset_index(drop=True)
    table["percentile"] = matched_percentiles(table["num_steps"].to_numpy(), table["excess"].to_numpy())
    others = [(total - draw.overlap) / (num_draws - 1) for draw in drawn]
    random = [_lines(search.words, draw, rest)[is_kept] for draw, rest in zip(drawn, others, strict=True)]
    return Changed(table, [lines.reset_index(drop=True) for lines in random])


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
    known = np.nan_to_num(exposure, nan=1.0)
    levels, starts = np.unique(np.sort(known), return_index=True)
    ends, order = np.append(starts[1:], len(known)), np.argsort(known, kind="stable")
    percentiles = np.full(len(values), np.nan)
    for level in range(len(levels)):
        low = high = level
        while ends[high] - starts[low] < min(num_matched, len(known)):
            down = levels[level] / levels[low - 1] if low > 0 else np.inf
            up = levels[high + 1] / levels[level] if high + 1 < len(levels) else np.inf
            low, high = (low - 1, high) if down <= up else (low, high + 1)
        matched = np.sort(values[order[starts[low] : ends[high]]])
        if len(matched) > 1:
            own = order[starts[level] : ends[level]]
            below, upto = (np.searchsorted(matched, values[own], side) for side in ("left", "right"))
            percentiles[own] = (below + (upto - below - 1) / 2) / (len(matched) - 1)
    return percentiles


ORDERS: Mapping[str, float] = {"excess": 1.0, "overlap": -1.0}
"""What a list can be ordered by, and the sign that puts the words that lost most first."""


def choose(found: Sequence[Changed], num: int, order: str) -> pd.DataFrame:
    """The list of most_changed, without texts: rank, row and the means over the runs of words compared in all."""
    tables = [changed.table.set_index("row") for changed in found]
    common = sorted(set.intersection(*(set(table.index) for table in tables)))
    mean = sum(table.loc[common] for table in tables) / len(tables)
    mean = mean.rename_axis("row").reset_index()
    listed = [set(_top(changed.table, num, order)) for changed in found]
    mean["num_runs"] = [sum(row in rows for rows in listed) for row in mean["row"]]
    chosen: pd.DataFrame = mean.set_index("row").loc[_top(mean, num, order)].reset_index()
    chosen.insert(0, "rank", np.arange(1, len(chosen) + 1))
    names = ("num_steps", "overlap", "chance", "corrected_overlap", "similarity_change", "random_overlap", "excess")
    return chosen[["rank", "row", *names, "percentile", "num_runs"]]


def compare_lists(found: Sequence[Changed], num: int, seed: int, order: str) -> pd.DataFrame:
    """The table of compare_changed, the runs by their places."""
    generator = np.random.default_rng([*b"lists", seed])
    lines = []
    for a, b in combinations(range(len(found)), 2):
        rows = np.intersect1d(found[a].table["row"], found[b].table["row"])
        first, second = (_at(found[i].table, rows) for i in (a, b))
        random = [
            _agreement(_Standing.of(_at(one, rows), num, order), _Standing.of(_at(other, rows), num, order))
            for one, other in zip(found[a].random, found[b].random, strict=True)
        ]
        standings = _Standing.of(first, num, order), _Standing.of(second, num, order)
        observed = _agreement(*standings)
        permuted = _permute(*standings, _bins(first, second), generator)
        line: dict[str, Any] = {"first": a, "second": b, "num_words": len(rows)}
        line |= {"num_first": int(standings[0].is_listed.sum()), "num_second": int(standings[1].is_listed.sum())}
        for i, name in enumerate(("jaccard", "spearman")):
            line |= {name: observed[i], f"{name}_permuted": permuted[:, i].mean()}
            reached = np.sum(permuted[:, i] >= observed[i] - 1e-12)
            line[f"{name}_p_permuted"] = (1 + reached) / (1 + len(permuted)) if np.isfinite(observed[i]) else np.nan
            line[f"{name}_random"] = np.mean([draw[i] for draw in random])
        lines.append(line)
    return pd.DataFrame(lines)


@dataclass(frozen=True)
class _Standing:
    """How the words of one run stand to one another."""

    is_listed: NDArray[np.bool_]
    rank: Array
    """Rank of what the list is ordered by, at mean 0 and length 1; NaN where all are equal."""

    @classmethod
    def of(cls, table: pd.DataFrame, num: int, order: str) -> "_Standing":
        rank = (ORDERS[order] * table[order]).round(9).rank().to_numpy()
        rank = rank - rank.mean()
        length = float(np.linalg.norm(rank))
        return cls(np.isin(table["row"], _top(table, num, order)), rank / (length or np.nan))


def _agreement(first: _Standing, second: _Standing, places: Ids | slice = slice(None)) -> tuple[float, float]:
    """Jaccard index of the lists and Spearman's correlation over all words; NaN where undefined."""
    listed = second.is_listed[places]
    either = int((first.is_listed | listed).sum())
    jaccard = float((first.is_listed & listed).sum() / either) if either else np.nan
    return jaccard, float(first.rank @ second.rank[places])


def _bins(first: pd.DataFrame, second: pd.DataFrame) -> Ids:
    """(n,) words with one number are of like exposure in both runs: the same power of two."""
    exposures = [np.nan_to_num(table["num_steps"].to_numpy(), nan=1.0) for table in (first, second)]
    bins: Ids = np.unique(np.floor(np.log2(exposures)), axis=1, return_inverse=True)[1].reshape(-1)
    return bins


def _permute(first: _Standing, second: _Standing, bins: Ids, generator: np.random.Generator) -> Array:
    """(permutations, 2) agreements when the second run's words change places within their bins."""
    in_order = np.argsort(bins, kind="stable")
    places = np.empty(len(bins), np.int64)
    agreements = np.empty((NUM_PERMUTATIONS, 2))
    for draw in range(NUM_PERMUTATIONS):
        places[in_order] = np.lexsort((generator.random(len(bins)), bins))
        agreements[draw] = _agreement(first, second, places)
    return agreements


def _top(table: pd.DataFrame, num: int, order: str) -> Ids:
    """Rows of the words that lost most, of those that lost a neighbour and, by excess, more than by chance."""
    lost = table[(table["overlap"] < 1) & ((table["excess"] > 1e-9) | (order == "overlap"))]
    # Rounded, so that equal shares are ties; and ties never by row: that would make any two lists agree.
    keys = -lost["similarity_change"].abs(), -(ORDERS[order] * lost[order]).round(9)
    rows: Ids = lost["row"].to_numpy()[np.lexsort(keys)[:num]]
    return rows


def _at(table: pd.DataFrame, rows: Ids) -> pd.DataFrame:
    return table.set_index("row").loc[rows].reset_index()


def _lines(words: Ids, moved: Moved, expected: Array) -> pd.DataFrame:
    values = {"overlap": moved.overlap, "similarity_change": moved.similarity_change}
    return pd.DataFrame({"row": words, **values, "excess": expected - moved.overlap})
