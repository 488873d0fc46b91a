"""How far each word's row moved, against how often training saw it, and its nearest words before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.neighbours.nearest import nearest_neighbours
from toolkit.analysis.neighbours.word_search import PARAMETER, list_words, word_table
from toolkit.analysis.rows.blocks import iterate_blocks
from toolkit.analysis.rows.measures import MEASURES
from toolkit.analysis.rows.strata import table_exposure
from toolkit.reporting.cells import Column, visible
from toolkit.reporting.page import Block, ChartBlock, FoldBlock, Section, TableBlock, folds, rows_block
from toolkit.reporting.topics.words_chart import data_size, plot_words, shown_word
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

BUDGET_BYTES = 1_100_000
"""What the data of the chart may take of a page."""
NUM_NEIGHBOURS = 5
NUM_NAMED = 1000
"""So many words, those that moved most, have their neighbours told: of all runs together, in equal shares."""
NUM_UNSEEN = 1000
"""So many words that training never saw are drawn."""
NUM_TABLED = 20
MOST_EPOCHS = 8
"""More epochs than these are thinned out evenly, the first and the last kept."""
BLOCK_ROWS = 1024
NO_DIRECTION = "undefined: the row is zero"
HOW_NEIGHBOURS = (
    "The five words whose rows point most nearly the same way (greatest cosine), among all words of the vocabulary, "
    "seen in training or not, but not special tokens."
)
TABLED: Mapping[str, Column] = {
    "token": Column(label="word", how="As the model's vocabulary spells it; ## continues a word."),
    "num_steps": Column(label="steps", how="Optimizer steps whose batch held the word: only these gave it a gradient."),
    "norm": Column(label="drift", how="Norm of the change of its row over all of training, in weight units."),
    "angle_degrees": Column(label="angle", how="Between its row before and after training.", unit="degrees"),
    "before": Column(label="nearest before training", how=HOW_NEIGHBOURS),
    "after": Column(label="nearest after", how=HOW_NEIGHBOURS),
}

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class _Words:
    """What is drawn of one run."""

    run: str
    table: pd.DataFrame
    """What plot_words takes."""
    most_moved: pd.DataFrame
    """The last epoch of the words that moved most, drawn or not."""
    num_seen: int
    """Words that training saw, drawn or not; every word where that was not recorded."""
    num_drawn: int
    num_unseen: int
    num_unseen_drawn: int
    num_epochs: int
    """Epochs after training began, shown or not."""


def words_section(runs: Sequence[tuple[str, Source]], *, budget_bytes: int = BUDGET_BYTES) -> Section | None:
    """The words of labelled runs: the chart, those that moved most as a table, and what is drawn; None without any.

    Every row that training used is drawn ([CLS] and other special tokens too, [PAD] never), or without recorded
    exposure every word, and beside them some words that training never saw. Neighbours are the five nearest by cosine,
    exactly, among all words of the vocabulary. A run whose words do not fit into its share of ``budget_bytes`` keeps
    those seen in the most steps.
    """
    drawn: list[_Words] = []
    refused: list[tuple[str, str]] = []
    left = budget_bytes
    for i, (label, source) in enumerate(runs):
        trajectory = trajectory_of(source)
        if reason := _reason_against(trajectory):
            refused.append((label, reason))
            continue
        made = _fitting(visible(label), trajectory, left // (len(runs) - i), max(NUM_NAMED // len(runs), NUM_TABLED))
        drawn, left = [*drawn, made], left - data_size(made.table)
    if not drawn:
        return None
    chart = plot_words(pd.concat([made.table for made in drawn], ignore_index=True))
    drawn_seen, all_seen = sum(each.num_drawn for each in drawn), sum(each.num_seen for each in drawn)
    drawn_rest, all_rest = sum(each.num_unseen_drawn for each in drawn), sum(each.num_unseen for each in drawn)
    caption = (
        "A mark is a word: to the right, training saw it in more optimizer steps, and only these gave its row a "
        "gradient; upwards, its row moved farther. Marks on the floor are exactly 0. Type part of a word, or click on "
        "a mark, to read its neighbours: the five words whose rows point most nearly the same way, with their cosines. "
        f"Of a condition the first seed is shown. Drawn: {drawn_seen:,} of {all_seen:,} words seen in training and "
        f"{drawn_rest:,} of {all_rest:,} others, evenly spaced in the vocabulary."
    )
    alt = (
        "Scatter of words: in how many optimizer steps training saw each, against how far its row moved. "
        "The table below it names those that moved most."
    )
    picture = ChartBlock(name="words", chart=chart, caption=caption, alt=alt)
    tables = folds([each.run for each in drawn], [(_most_moved(each),) for each in drawn])
    moved = FoldBlock(title="Words that moved most", blocks=tables)
    return Section(id="words", title="Which words moved", blocks=(picture, moved, *_counts(drawn, refused)))


def _reason_against(trajectory: Trajectory) -> str:
    if PARAMETER not in trajectory.parameters:
        return "its model has no word embeddings"
    tables = [word_table(snapshot) for snapshot in (trajectory.snapshots[0], trajectory.snapshots[-1])]
    if len(trajectory) < 2 or np.array_equal(tables[0], tables[1]):
        return "its word embeddings did not move"
    return "" if len(_seen(trajectory)) >= 3 else "training used fewer than three of its words"


def _seen(trajectory: Trajectory) -> Rows:
    """The rows that training used, [PAD] apart; every word where that was not recorded."""
    exposure = table_exposure(trajectory, PARAMETER)
    if exposure is None:
        return list_words(trajectory, trajectory.snapshots[-1], only_seen=False, include_unused=False)
    steps = exposure.step_counts(len(word_table(trajectory.snapshots[-1])))
    pad = trajectory.vocabulary.pad_row if trajectory.vocabulary else None
    return np.array([row for row in np.flatnonzero(steps) if row != pad], np.int64)


def _fitting(run: str, trajectory: Trajectory, budget_bytes: int, num_named: int) -> _Words:
    """The words of a run: all that training saw, where they fit, else those seen in the most steps."""
    ends, snapshots = _ends(trajectory), _thinned(trajectory)
    seen = _seen(trajectory)
    words = list_words(trajectory, snapshots[-1], only_seen=False, include_unused=False)
    unseen = np.setdiff1d(words, seen)
    kept, sample = seen, _evenly(unseen, NUM_UNSEEN)
    whole = _measured(run, trajectory, snapshots, np.union1d(kept, sample))
    near = _neighbours(whole, trajectory, (snapshots[0], snapshots[-1]), words, num_named)
    for name, lists in near.items():
        texts = {
            row: ", ".join(f"{word} {cosine:.2f}" for word, cosine in line) or NO_DIRECTION
            for row, line in lists.items()
        }
        whole[name] = whole["row"].map(texts).fillna("")
    table = whole
    while (share := budget_bytes / data_size(table)) < 1 and len(kept) > 3:
        # Some bytes are no word's: a little less than the share fits.
        kept = _seen_most(whole, kept, max(int(0.95 * share * len(kept)), 3))
        sample = _evenly(sample, int(0.95 * share * len(sample)))
        table = whole[whole["row"].isin([*kept, *sample])]
    last = whole[(whole["epoch"] == snapshots[-1].epoch) & whole["row"].isin(seen)]
    most_moved = last.sort_values("norm", ascending=False, kind="stable").head(NUM_TABLED)
    for name, lists in near.items():
        most_moved[name] = [", ".join(word for word, _ in lists[row]) or NO_DIRECTION for row in most_moved["row"]]
    return _Words(
        run=run,
        table=table,
        most_moved=most_moved,
        num_seen=len(seen),
        num_drawn=len(kept),
        num_unseen=len(unseen),
        num_unseen_drawn=len(sample),
        num_epochs=len(ends) - 1,
    )


def _ends(trajectory: Trajectory) -> list[Snapshot]:
    """The ends of the epochs, and the last snapshot."""
    return [s for s in trajectory if s.is_epoch_end or s is trajectory.snapshots[-1]]


def _thinned(trajectory: Trajectory) -> list[Snapshot]:
    """At most MOST_EPOCHS of the ends of the epochs, the first and the last kept."""
    snapshots = _ends(trajectory)
    places = np.unique(np.linspace(0, len(snapshots) - 1, min(MOST_EPOCHS, len(snapshots))).round().astype(int))
    return [snapshots[i] for i in places]


def _evenly(rows: Rows, num: int) -> Rows:
    """At most ``num`` of the rows at even distances: vocabularies are in the order of frequency, or of the alphabet."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, num).round().astype(int))] if num < len(rows) else rows


def _seen_most(table: pd.DataFrame, rows: Rows, num: int) -> Rows:
    """The rows seen in the most steps; evenly spaced ones where that was not recorded."""
    steps = table.drop_duplicates("row").set_index("row")["num_steps"].loc[rows]
    if steps.isna().any():
        return _evenly(rows, num)
    return np.sort(steps.sort_values(ascending=False, kind="stable").index[:num].to_numpy())


def _measured(run: str, trajectory: Trajectory, snapshots: Sequence[Snapshot], rows: Rows) -> pd.DataFrame:
    """A line per row and epoch after the first: what toolkit.measure_rows says of it, exposure that of all training."""
    values = {name: np.empty((len(snapshots) - 1, len(rows))) for name in ("norm", "angle_degrees")}
    for block, tables in iterate_blocks(snapshots, PARAMETER, BLOCK_ROWS):
        part = slice(*np.searchsorted(rows, (block.start, block.stop)))
        of_block = rows[part] - block.start
        for name, filled in values.items():
            for epoch, table in enumerate(tables[1:]):
                filled[epoch, part] = MEASURES[name].function(tables[0][of_block], table[of_block])
    exposure = table_exposure(trajectory, PARAMETER)
    counts: dict[str, Any] = {"num_steps": pd.NA, "num_tokens": pd.NA}
    if exposure is not None:
        num_rows = len(word_table(snapshots[0]))
        counts = {
            "num_steps": exposure.step_counts(num_rows)[rows],
            "num_tokens": exposure.token_counts(num_rows)[rows],
        }
    tokens = trajectory.vocabulary.tokens if trajectory.vocabulary else None
    names = [shown_word(tokens[row] if tokens else "", row) for row in rows]
    own = pd.DataFrame({"run": run, "row": rows, "token": names, **counts})
    own = own.astype({"num_steps": "Int64", "num_tokens": "Int64"})
    frames = [
        own.assign(epoch=float(snapshot.epoch), **{name: filled[i] for name, filled in values.items()})
        for i, snapshot in enumerate(snapshots[1:])
    ]
    return pd.concat(frames, ignore_index=True)


def _neighbours(
    table: pd.DataFrame, trajectory: Trajectory, pair: tuple[Snapshot, Snapshot], words: Rows, num_named: int
) -> dict[str, dict[int, list[tuple[str, float]]]]:
    """Neighbours before and after, nearest first, of the rows that moved most; none of a zero row."""
    last = table[table["epoch"] == table["epoch"].max()]
    named = np.sort(last.sort_values("norm", ascending=False, kind="stable")["row"].head(num_named).to_numpy())
    tokens = trajectory.vocabulary.tokens if trajectory.vocabulary else None
    num = min(NUM_NEIGHBOURS, len(words) - 1)
    near = {}
    for name, snapshot in zip(("before", "after"), pair, strict=True):
        found = zip(named, *nearest_neighbours(word_table(snapshot), num, queries=named, candidates=words), strict=True)
        near[name] = {
            int(row): [
                (shown_word(tokens[other] if tokens else "", other), float(cosine))
                for other, cosine in zip(others, cosines, strict=True)
                if other >= 0
            ]
            for row, others, cosines in found
        }
    return near


def _most_moved(words: _Words) -> TableBlock:
    table = words.most_moved
    shown = table.assign(
        num_steps=["not recorded" if pd.isna(count) else int(count) for count in table["num_steps"]],
    )
    caption = f"Words that moved most: {words.run}"
    return TableBlock(table=shown[list(TABLED)].reset_index(drop=True), caption=caption, columns=TABLED, num_shown=10)


def _counts(drawn: Sequence[_Words], refused: Sequence[tuple[str, str]]) -> tuple[Block, ...]:
    """How much of each run is drawn, and why nothing is of the others."""
    header = ("run", "seen in training: drawn", "of", "others: drawn", "of", "epochs: shown", "of", "why none")
    rows: list[Sequence[object]] = [
        (
            each.run,
            each.num_drawn,
            each.num_seen,
            each.num_unseen_drawn,
            each.num_unseen,
            each.table["epoch"].nunique(),
            each.num_epochs,
            "",
        )
        for each in drawn
    ]
    rows += [(run, 0, "", 0, "", 0, "", reason) for run, reason in refused]
    table = rows_block(header, rows, "The words of each run that are drawn")
    return (FoldBlock(title="What is drawn of each run", blocks=(table,)),)
