"""The rows of tokens that were added to a checkpoint: how far from their start, how long, and near which old words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.measures import lengths, norm, relative
from toolkit.analysis.nearest import search_nearest
from toolkit.analysis.neighbours import PARAMETER, list_words, word_table
from toolkit.analysis.strata import count_exposure, is_added
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Epochs, Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

NUM_NEAREST = 5
BLOCK_ROWS = 2048
"""Old rows that are measured at a time: in float64 a whole table would be three of it."""
NO_START = "the first checkpoint has no row for it"


def has_added(trajectory: Trajectory) -> bool:
    """Whether any token was added to what the trajectory starts from."""
    return trajectory.appended is not None or bool(trajectory.vocabulary and trajectory.vocabulary.added_rows)


@with_columns
def measure_added_rows(source: Source, epochs: Epochs = None) -> pd.DataFrame:
    """Each added token at each snapshot: its distance from its start, its length among the old rows, its nearest words.

    Added tokens are those that ``--add-tokens`` or ``toolkit.record(added_tokens=)`` named, or that the last of some
    checkpoints has and the first lacks. Old rows are those of words that were there before: no added token, no special
    or unused one, nor [PAD]. Of checkpoints only the last gets lines, whatever ``epochs`` says, and a token has a start
    only where the first checkpoint has a spare row in its place: elsewhere its distances are NaN and ``reason`` says
    so. A model without added tokens has no lines.
    """
    trajectory = trajectory_of(source)
    if not has_added(trajectory):
        return pd.DataFrame(columns=columns_of("measure_added_rows"))
    if (appended := trajectory.appended) is not None:
        last_snapshot, vocabulary = trajectory.snapshots[-1], trajectory.vocabulary
        assert vocabulary is not None
        # The last checkpoint alone has these rows: they go behind those that both have.
        table, tokens = appended.read(), (*vocabulary.tokens, *appended.tokens)
        rows = np.arange(len(vocabulary.tokens), len(table))
        words = list_words(trajectory)
        unknown = pd.array([pd.NA] * len(rows), dtype="Int64")
        columns = {"row": appended.rows, "num_steps": unknown, "num_tokens": unknown}
        start, current = appended.read_start().astype(np.float64), table[rows].astype(np.float64)
        columns |= _neighbour_columns(table, rows, words, tokens) | _distance_columns(start, current)
        tables = [_with_snapshot(last_snapshot, columns)]
    else:
        assert trajectory.vocabulary is not None
        rows, tokens = np.flatnonzero(is_added(trajectory, PARAMETER)), trajectory.vocabulary.tokens
        start = word_table(trajectory.snapshots[0])[rows].astype(np.float64)
        tables = []
        for snapshot in trajectory.chosen(epochs):
            table = word_table(snapshot)
            words = np.setdiff1d(list_words(trajectory), rows)
            counts = count_exposure(trajectory, PARAMETER, snapshot.step)
            current, columns = table[rows].astype(np.float64), {"row": rows}
            columns |= {name: counts[name][rows] for name in ("num_steps", "num_tokens")}
            columns |= _neighbour_columns(table, rows, words, tokens) | _distance_columns(start, current)
            tables.append(_with_snapshot(snapshot, columns))
    return pd.concat(tables, ignore_index=True)[columns_of("measure_added_rows")]


def _with_snapshot(snapshot: Snapshot, columns: dict[str, object]) -> pd.DataFrame:
    """A table of these columns, led by epoch and step."""
    return pd.DataFrame({"epoch": float(snapshot.epoch), "step": snapshot.step, **columns})


def _distance_columns(start: NDArray[np.float64], current: NDArray[np.float64]) -> dict[str, object]:
    """The columns on how far rows are from their start, NaN without one, and on why a number is missing."""
    distances, share = norm(start, current), relative(start, current)
    reasons = np.where(np.isnan(distances), NO_START, np.where(np.isnan(share), "its row was 0 before training", ""))
    return {"norm": distances, "relative": share, "reason": reasons}


def _neighbour_columns(
    table: Any, rows: NDArray[np.int64], words: NDArray[np.int64], tokens: Sequence[str]
) -> dict[str, object]:
    """The columns on where rows are: token, length, length over the old words' median, and the nearest old words."""
    lengths_of_old = np.concatenate(
        [lengths(table[chunk].astype(np.float64)) for chunk in np.array_split(words, 1 + len(words) // BLOCK_ROWS)]
    )
    added_lengths = lengths(table[rows].astype(np.float64))
    k = min(NUM_NEAREST, int(np.count_nonzero(lengths_of_old)))
    texts = [""] * len(rows)
    if k:
        nearest = search_nearest(table, k, queries=rows, candidates=words)
        texts = [
            ", ".join(f"{tokens[i]} {cosine:.2f}" for i, cosine in zip(*pairs, strict=True) if i >= 0)
            for pairs in zip(nearest.indices, nearest.similarity, strict=True)
        ]
    low, median, high = np.quantile(lengths_of_old, [0.05, 0.5, 0.95]) if len(lengths_of_old) else [np.nan] * 3
    old_median = median if median > 0 else np.nan
    old_lengths = {
        "times_old_length": added_lengths / old_median,
        "old_length_low": low / old_median,
        "old_length_high": high / old_median,
    }
    return {"token": [tokens[row] for row in rows], "length": added_lengths, **old_lengths, "nearest_old": texts}
