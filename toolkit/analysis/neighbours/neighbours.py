"""A trajectory in; out, the nearest words of a word before and after training, and how far each word kept its own.

Similarity is the cosine of the rows as they are. That is what looking a word up in any other tool gives, so it is the
default; but an offset common to all word rows, which position rows can undo and no behaviour shows, changes it. With
``is_centred`` the mean of the candidates is subtracted from every row first, at each epoch its own: such an offset then
changes nothing. A statement that holds only for one of the two is about the offset.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from toolkit.analysis.geometry.agreement import name_of
from toolkit.analysis.neighbours.changed_words import ORDERS, Changed, choose, compare_lists, find_changed
from toolkit.analysis.neighbours.nearest import nearest_neighbours
from toolkit.analysis.neighbours.screening import Ids
from toolkit.analysis.neighbours.word_search import (
    PARAMETER,
    WordSearch,
    compared,
    correct,
    find_row,
    list_words,
    mean_row,
    texts,
    word_table,
)
from toolkit.analysis.rows.strata import assign_strata, table_exposure
from toolkit.counts import at_least
from toolkit.lookup import lookup
from toolkit.progress import shows_progress
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Trajectory
from toolkit.snapshots.store import Source, trajectory_of


@with_columns
def neighbours(
    source: Source,
    word: str | int,
    epoch: float | None = None,
    k: int = 10,
    *,
    reference_epoch: float = 0,
    only_seen: bool = False,
    is_centred: bool = False,
    include_unused: bool = False,
) -> "pd.DataFrame":
    """The k nearest words of one word (its text, or its row) at two epochs (default: the first and the last).

    One line per rank; the text is "" without a vocabulary. Candidates are the rows of words: not special, not kept free
    (``include_unused`` lets them in), and with ``only_seen`` seen in training up to the epoch. The tables are read by
    blocks. ValueError for a word that the vocabulary lacks, a row that is zero and a run without exposure when
    ``only_seen``.
    """
    trajectory = trajectory_of(source)
    row = find_row(trajectory, word)
    pair = compared(trajectory, reference_epoch, epoch)
    at_least("k", k, 1)
    candidates = list_words(trajectory, pair[1], only_seen=only_seen, include_unused=include_unused)
    columns: dict[str, Any] = {"rank": np.arange(1, k + 1)}
    rows = []
    for snapshot, name in zip(pair, ("before", "after"), strict=True):
        center = mean_row(word_table(snapshot), candidates) if is_centred else None
        found, similarity = nearest_neighbours(
            word_table(snapshot), k, queries=[row], candidates=candidates, center=center
        )
        if found[0, 0] < 0:
            raise ValueError(f"row {row} is zero at epoch {snapshot.epoch:g}: it has no direction, hence no neighbours")
        rows.append(found[0])
        columns |= {f"row_{name}": found[0], f"neighbour_{name}": texts(trajectory, found[0])}
        columns |= {f"similarity_{name}": similarity[0]}
    columns |= {"is_lost": ~np.isin(rows[0], rows[1]), "is_new": ~np.isin(rows[1], rows[0])}
    return pd.DataFrame(columns)[columns_of("neighbours")]


@shows_progress("neighbours of every word")
@with_columns
def measure_neighbours(
    source: Source,
    epoch: float | None = None,
    k: int = 10,
    *,
    reference_epoch: float = 0,
    only_seen: bool = False,
    is_centred: bool = False,
    include_unused: bool = False,
) -> "pd.DataFrame":
    """How far each word kept its k nearest words between two epochs (default: the first and the last); a line per word.

    ``num_steps`` is up to the epoch, NA where exposure was not recorded; ``chance`` is k/(n-1) for n candidates, and
    ``corrected_overlap`` below 0 is possible. The words are the candidates of :func:`neighbours`. A row that is zero at
    either epoch has NaN, and is no candidate at the other.
    """
    trajectory = trajectory_of(source)
    pair = compared(trajectory, reference_epoch, epoch)
    words = list_words(trajectory, pair[1], only_seen=only_seen, include_unused=include_unused)
    search = WordSearch.of(pair, words, k, is_centred)
    before, similarity = search.find(word_table(pair[0]))
    moved = search.measure(word_table(pair[1]), before, similarity)
    chance = k / (len(search.words) - 1)
    measured = pd.DataFrame(
        {
            "overlap": moved.overlap,
            "chance": chance,
            "corrected_overlap": correct(moved.overlap, chance),
            "similarity_before": similarity.mean(axis=1),
            "similarity_change": moved.similarity_change,
        },
        index=search.words,
    )
    return _describe(trajectory, words, pair[1].step).join(measured, on="row")


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
) -> "pd.DataFrame":
    r"""The ``num`` words that lost most of their k nearest words, beyond what any drift of that size loses.

    Of one run, or of several that differ in their seed: then values are means over the runs, of words compared in all.
    ``stratum`` is that of the first run, ``random_overlap`` a mean over ``num_draws`` draws: words whose neighbours are
    close rivals lose some by any drift. ``percentile`` is among at least 200 words, among all without exposure, and
    ``num_runs`` counts the runs whose own list has the word. With several runs, how well their lists agree stands on
    every line, the mean over the pairs of :func:`compare_changed`; else NaN. Words never seen are left out where
    exposure is known, and always words that lost nothing: a list can be short, and is empty where nothing moved. It
    describes; the agreement is the test.

    ``order`` is ``excess``, or ``overlap`` for the words that lost most, whether or not any drift would do it. A row
    that moves as far as it is long can lose its neighbours in any direction: then only ``overlap`` shows it. Ties go by
    the size of similarity_change. ValueError for another order or fewer than two draws.
    """
    lookup(ORDERS, order, "order")
    at_least("num", num, 1)
    sources = cast(list[Source], list(source) if isinstance(source, list | tuple) else [source])
    found = _find_all(sources, epoch, k, seed, num_draws, reference_epoch, is_centred)
    table = choose(found, num, order)
    described = _describe(trajectory_of(sources[0]), table["row"].to_numpy(), 0)
    for place, name in enumerate(("token", "stratum"), 2):
        table.insert(place, name, described[name].to_numpy())
    agreement = compare_lists(found, num, seed, order).mean(numeric_only=True) if len(found) > 1 else {}
    for name in ("jaccard", "jaccard_permuted", "jaccard_random", "spearman", "spearman_permuted", "spearman_random"):
        table[name] = agreement.get(name, np.nan)
    return table


@shows_progress("neighbours of every word")
@with_columns
def compare_changed(
    sources: Sequence[Source],
    epoch: float | None = None,
    k: int = 10,
    num: int = 50,
    seed: int = 0,
    *,
    order: str = "excess",
    num_draws: int = 2,
    reference_epoch: float = 0,
    is_centred: bool = False,
) -> "pd.DataFrame":
    """Whether runs agree on the words of :func:`most_changed`: one line per pair.

    Beside the Jaccard index of the lists and the rank correlation of what orders them stands what each is by chance:
    ``_permuted``, the mean over 1,000 exchanges of one run's words at random among words of like exposure in both, and
    ``_random``, the mean when every row of both runs moves as far as it did in random directions. Agreement above the
    first but not above the second is a property of the table before training: words whose neighbours are close rivals.
    NaN where a list is empty. The options are those of :func:`most_changed`.
    """
    if len(sources) < 2:
        raise ValueError(f"agreement needs two runs or more; got {len(sources)}")
    lookup(ORDERS, order, "order")
    found = _find_all(sources, epoch, k, seed, num_draws, reference_epoch, is_centred)
    table = compare_lists(found, num, seed, order)
    names = dict(enumerate(name_of(source, place) for place, source in enumerate(sources)))
    return table.assign(first=table["first"].map(names), second=table["second"].map(names))


def _find_all(
    sources: Sequence[Source],
    epoch: float | None,
    k: int,
    seed: int,
    num_draws: int,
    reference_epoch: float,
    is_centred: bool,
) -> list[Changed]:
    if num_draws < 2:
        raise ValueError(f"num_draws must be 2 or more, so that a draw can be compared with others; got {num_draws}")
    found = []
    for place, trajectory in enumerate(trajectory_of(source) for source in sources):
        pair = compared(trajectory, reference_epoch, epoch)
        words = list_words(trajectory, pair[1], only_seen=False, include_unused=False)
        exposure = table_exposure(trajectory, PARAMETER)
        steps = None if exposure is None else exposure.step_counts(len(word_table(pair[0])), pair[1].step)
        search = WordSearch.of(pair, words, k, is_centred)
        found.append(find_changed(pair, search, steps, num_draws, [*b"neighbours", seed, place]))
    return found


def _describe(trajectory: Trajectory, words: Ids, last_step: int) -> "pd.DataFrame":
    exposure = table_exposure(trajectory, PARAMETER)
    strata = assign_strata(trajectory, PARAMETER)
    steps = None if exposure is None else exposure.step_counts(len(strata), last_step)[words]
    return pd.DataFrame(
        {
            "row": words,
            "token": texts(trajectory, words),
            "stratum": strata[words],
            "num_steps": pd.array([pd.NA] * len(words) if steps is None else steps, dtype="Int64"),
        }
    )
