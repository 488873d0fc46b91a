"""How far each word's row moved at each epoch, as the mean of several seeds, with its neighbours before and after."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.measures import MEASURES
from toolkit.analysis.nearest import Ids, search_nearest
from toolkit.analysis.neighbours import PARAMETER, list_words, word_table
from toolkit.analysis.strata import count_exposure, table_exposure
from toolkit.snapshots.snapshot import Snapshot, Trajectory

NUM_NEIGHBOURS = 5
NUM_NAMED = 1000
"""Number of words, those that moved most, whose neighbours are listed."""
NUM_UNSEEN = 1000
"""So many words that training never saw are kept."""
MAX_EPOCHS = 8
"""More epochs than these are thinned out evenly, the first and the last kept."""
BLOCK_ROWS = 1024
NO_DIRECTION = "undefined: the row is zero"
MEASURED = ("norm", "relative", "angle_degrees")
COLUMNS = ("row", "token", "num_steps", "num_tokens", "is_seen", "epoch", *MEASURED, "before", "after")


@dataclass(frozen=True)
class WordRows:
    """The words of one run, or of the runs of one condition."""

    table: pd.DataFrame
    """COLUMNS: a line per word and epoch; norm in weight units, relative as a share, the neighbours with their cosines
    as a text each."""
    num_seen: int = 0
    """Words that training saw, in the table or not; every word where that was neither recorded nor inferred."""
    num_unseen: int = 0
    num_epochs: int = 0
    """Epochs after training began, in the table or not."""
    reason: str = ""
    """Why the table is empty."""


def measure_words(
    trajectories: Sequence[Trajectory],
    *,
    most_seen: int | None = None,
    num_unseen: int | None = None,
    num_named: int | None = None,
) -> WordRows:
    """The words that training saw in any of the runs, and some that it never saw, evenly spaced in the vocabulary.

    Drift, angle, steps and tokens are means over the runs, at the epochs that all of them kept; neighbours are those of
    the first: the five nearest by cosine among all words, for the ``num_named`` words that moved most. Every row
    that training used is a word here ([CLS] too, [PAD] never); more than ``most_seen`` are thinned to those seen
    most, or, where steps are not known, to those that moved farthest.
    """
    first = trajectories[0]
    if reason := _reason_against(trajectories):
        return WordRows(pd.DataFrame(columns=list(COLUMNS)), reason=reason)
    snapshots = _common_snapshots(trajectories)
    seen_rows = np.unique(np.concatenate([_used_rows(trajectory) for trajectory in trajectories]))
    word_ids = list_words(first)
    unseen_rows = np.setdiff1d(word_ids, seen_rows)
    counts = _mean_exposure(trajectories)
    counts["norm"] = sum(map(_distances, trajectories))  # of which only the order counts
    kept_rows = seen_most(counts, seen_rows, len(seen_rows) if most_seen is None else most_seen)
    rows = np.union1d(kept_rows, evenly(unseen_rows, NUM_UNSEEN if num_unseen is None else num_unseen))
    table = _mean_drift(first, snapshots, rows, counts.iloc[rows]).assign(before="", after="")
    table.insert(4, "is_seen", table["row"].isin(seen_rows))
    named = table[table["epoch"] == table["epoch"].max()]
    named = named.sort_values(["relative", "norm"], ascending=False, kind="stable")
    named_rows = np.sort(named["row"].head(NUM_NAMED if num_named is None else num_named).to_numpy())
    for name, snapshot in (("before", snapshots[0][0]), ("after", snapshots[0][-1])):
        table[name] = table["row"].map(_neighbours(first, snapshot, word_ids, named_rows)).fillna("")
    return WordRows(table[list(COLUMNS)], len(seen_rows), len(unseen_rows), len(_epoch_ends(first)) - 1)


def _distances(trajectory: Trajectory) -> NDArray[np.float64]:
    """(rows,) how far each word row moved from the first snapshot to the last."""
    blocks = iterate_blocks([trajectory.snapshots[0], trajectory.snapshots[-1]], PARAMETER)
    return np.concatenate([np.linalg.norm(after - before, axis=1) for _, (before, after) in blocks])


def evenly(rows: Ids, num: int) -> Ids:
    """At most ``num`` of the rows at even distances: vocabularies are in the order of frequency, or of the alphabet."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, num).round().astype(int))] if num < len(rows) else rows


def seen_most(counts: pd.DataFrame, rows: Ids, num: int) -> Ids:
    """The rows seen in the most steps, by a table with num_steps and norm whose index is the row; where steps are not
    known, those that moved farthest."""
    column = "norm" if counts.loc[rows, "num_steps"].isna().any() else "num_steps"
    ranked = counts.loc[rows, column].sort_values(ascending=False, kind="stable")
    return np.sort(ranked.index[:num].to_numpy())


def _reason_against(trajectories: Sequence[Trajectory]) -> str:
    """Why there is nothing to show of the words of some runs; empty where there is."""
    if any(PARAMETER not in trajectory.parameters for trajectory in trajectories):
        return "its model has no word embeddings"
    ends = ((word_table(trajectory.snapshots[0]), word_table(trajectory.snapshots[-1])) for trajectory in trajectories)
    if all(np.array_equal(first, last) for first, last in ends):
        return "its word embeddings did not move"
    return "" if len(_used_rows(trajectories[0])) >= 3 else "training used fewer than three of its words"


def _used_rows(trajectory: Trajectory) -> Ids:
    """The rows that training used, [PAD] apart; every word where that was not recorded."""
    exposure = table_exposure(trajectory, PARAMETER)
    inferred = (trajectory.inferred or {}).get(PARAMETER)
    if exposure is not None:
        is_used = exposure.step_counts(len(word_table(trajectory.snapshots[-1]))) > 0
    elif inferred is not None:
        is_used = inferred == "exposed"
    else:
        return list_words(trajectory)
    pad_row = trajectory.vocabulary.pad_row if trajectory.vocabulary else None
    return np.array([row for row in np.flatnonzero(is_used) if row != pad_row], np.int64)


def _mean_exposure(trajectories: Sequence[Trajectory]) -> pd.DataFrame:
    """num_steps and num_tokens of every row, means over the runs; one that any run saw has at least 1."""
    mean = sum(pd.DataFrame(count_exposure(trajectory, PARAMETER)) for trajectory in trajectories) / len(trajectories)
    counts: pd.DataFrame = mean.round().mask(((mean > 0) & (mean <= 0.5)).fillna(False), 1).astype("Int64")
    return counts


def _epoch_ends(trajectory: Trajectory) -> list[Snapshot]:
    """The ends of the epochs, and the last snapshot."""
    last = trajectory.snapshots[-1]
    return [snapshot for snapshot in trajectory if snapshot.is_epoch_end or snapshot is last]


def _common_snapshots(trajectories: Sequence[Trajectory]) -> list[list[Snapshot]]:
    """Of each run its snapshots at the epochs that all of them have, thinned; of the first run alone without two."""
    snapshots_by_epoch = [
        {snapshot.epoch: snapshot for snapshot in _epoch_ends(trajectory)} for trajectory in trajectories
    ]
    epochs = [epoch for epoch in snapshots_by_epoch[0] if all(epoch in by_epoch for by_epoch in snapshots_by_epoch)]
    if len(epochs) < 2:
        epochs, snapshots_by_epoch = list(snapshots_by_epoch[0]), snapshots_by_epoch[:1]
    kept = np.unique(np.linspace(0, len(epochs) - 1, min(MAX_EPOCHS, len(epochs))).round().astype(int))
    return [[by_epoch[epochs[i]] for i in kept] for by_epoch in snapshots_by_epoch]


def _mean_drift(
    trajectory: Trajectory, snapshots: Sequence[Sequence[Snapshot]], rows: Ids, counts: pd.DataFrame
) -> pd.DataFrame:
    """A line per row and epoch after the first: what toolkit.measure_rows says of it, as the mean over the runs."""
    epochs = [snapshot.epoch for snapshot in snapshots[0][1:]]
    values = {name: np.zeros((len(snapshots), len(epochs), len(rows))) for name in MEASURED}
    for run, run_snapshots in enumerate(snapshots):
        for block, tables in iterate_blocks(run_snapshots, PARAMETER, BLOCK_ROWS):
            span = slice(*np.searchsorted(rows, (block.start, block.stop)))
            block_rows = rows[span] - block.start
            for name, collected in values.items():
                for epoch, table in enumerate(tables[1:]):
                    collected[run, epoch, span] = MEASURES[name].function(tables[0][block_rows], table[block_rows])
    means = {name: collected.mean(axis=0) for name, collected in values.items()}
    tokens = [_token(trajectory, row) for row in rows]
    described = pd.DataFrame({"row": rows, "token": tokens}).join(counts.reset_index(drop=True))
    frames = [
        described.assign(epoch=float(epoch), **{name: mean[i] for name, mean in means.items()})
        for i, epoch in enumerate(epochs)
    ]
    return pd.concat(frames, ignore_index=True)


def _token(trajectory: Trajectory, row: int) -> str:
    """The text of a word row; its number where it has none."""
    token = trajectory.vocabulary.tokens[row] if trajectory.vocabulary else ""
    return token or f"row {row}"


def _neighbours(trajectory: Trajectory, snapshot: Snapshot, words: Ids, named: Ids) -> dict[int, str]:
    """The neighbours of rows, nearest first, each with its cosine; NO_DIRECTION of a zero row."""
    num = min(NUM_NEIGHBOURS, len(words) - 1)
    nearest = search_nearest(word_table(snapshot), num, queries=named, candidates=words)
    texts = {}
    for row, neighbour_rows, cosines in zip(named, nearest.indices, nearest.similarity, strict=True):
        near = [
            f"{_token(trajectory, neighbour)} {cosine:.2f}"
            for neighbour, cosine in zip(neighbour_rows, cosines, strict=True)
            if neighbour >= 0
        ]
        texts[int(row)] = ", ".join(near) or NO_DIRECTION
    return texts
