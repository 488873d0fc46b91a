"""Whether a checkpoint can be what a training started from, as its rows tell.

A row that no text used is only decayed: it is what it was, up to one factor of at most 1. Of the base of a training
most rows of a word table are such rows; of a model that is no relative none is, and hardly any row points its way.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolkit.families import TABLES
from toolkit.naming import refuse_first
from toolkit.snapshots.importers import called, find_places, named_otherwise
from toolkit.snapshots.snapshot import CHECKED_ROWS, Snapshot, Trajectory
from toolkit.snapshots.tokenizer_files import read_settings

KEPT = 1e-4
"""Share of what decay left of its length by which a row that was only decayed may miss its direction: rounding to fp32
takes less in any number of steps, and rows of unrelated models miss by all of it."""
UNRELATED = math.sqrt(3)
"""The same, from which on a row has little in common with what it was (a cosine of .5): rows of
unrelated BERTs share a mean direction, and may have one of .4."""
GREW = 1e-6
"""Share by which a row grows that rounding does not explain."""
LEAST_ROWS = 10
"""Fewer rows may be chance, or a token or two of their own."""
SHARE_STILL = 0.1
"""Share of the rows that moved before the first checkpoint, and not after it, from which on the base is in doubt."""


def doubts_on_base(trajectory: Trajectory, epochs: Sequence[float] = ()) -> list[str]:
    """What speaks against the first snapshot as what training to the others started from, a clause each.

    ``epochs``: of the snapshots, where they are known. ValueError where it cannot be that. A relative that was decayed
    no more, and trained on texts that hold this training's, looks like a base: nothing here tells it.
    """
    base, first, last = (trajectory.snapshots[place] for place in (0, 1, -1))
    tables = [name for name in TABLES[:2] if name in trajectory.parameters]
    to_first = np.concatenate([_fits(base, first, name) for name in tables] or [np.empty((0, 2))])
    factors, misfits = to_first[~np.isnan(to_first).any(axis=1)].T
    is_kept, is_related = misfits < KEPT * factors, misfits <= UNRELATED * factors
    grown = np.median(factors[is_kept]) - 1 if is_kept.sum() >= LEAST_ROWS else 0.0
    start = f"{base.name} is not what training to {first.name} started from"
    refuse_first(
        {
            f"{start}: of {len(factors):,} rows none is the same up to weight decay, and {is_related.sum():,} have "
            "anything in common; give the base of this training": not is_kept.any()
            and 2 * is_related.sum() < len(factors),
            f"{start}: rows that no text used are longer in the end, by {100 * grown:.2g} %, and weight decay only "
            "shortens; it may be another training of the same base: give that base": grown > GREW,
        }
    )
    if len(factors) and not is_kept.any():
        return [
            f"no row of {base.name} is as weight decay alone would leave it: its texts used every row, a trained "
            "output layer shares the table, or it is not what training started from"
        ]
    if not tables or first is last:
        return []
    to_last = np.concatenate([_fits(first, last, name) for name in tables])
    are_kept = (to_first[:, 1] < KEPT * to_first[:, 0]) & (to_last[:, 1] < KEPT * to_last[:, 0])
    were_equal = (to_first[are_kept] == (1, 0)).all(axis=1)
    if were_equal.sum() >= max(LEAST_ROWS, are_kept.sum() / 2) and 1 - np.median(to_last[are_kept, 0]) > GREW:
        return [
            f"{were_equal.sum():,} rows are as {base.name} has them in {first.name}, bit for bit, and were decayed "
            "after it: weight decay begins with training, so that this may be a checkpoint of another training"
        ]
    # After a whole pass over the texts another one uses the same rows again.
    if len(epochs) < 3 or epochs[1] < 1 or epochs[-1] < epochs[1] + 1:
        return []
    moved = to_first[:, 1] >= KEPT
    num_still = (moved & (to_last[:, 1] < KEPT)).sum()
    if num_still < max(LEAST_ROWS, SHARE_STILL * moved.sum()):
        return []
    return [
        f"{num_still:,} of {moved.sum():,} rows that differ from {base.name} in {first.name} never moved again: it may "
        "be another training of the same base, and not what training started from"
    ]


def of_another_name(base: str | Path, after: str | Path) -> list[str]:
    """That the config.json of a checkpoint names another model than the base, where it names any."""
    start, end = (find_places(str(place))[0] for place in (base, after))
    start_config, end_config = (read_settings(place.fetch("config.json")) for place in (start, end))
    named, shown = end_config.get("_name_or_path"), f"the config.json of {end.parts[-1]}"
    return named_otherwise(named, called(start, start_config), f"{shown}, beside the base {start.parts[-1]},")


def _fits(before: Snapshot, after: Snapshot, name: str) -> NDArray[np.float64]:
    """(rows, 2) the factor that brings each row nearest to what it became, and by which share of its length it misses.

    NaN of a row that was 0.
    """
    old_rows, new_rows = before.tensors[name], after.tensors[name]
    fits = np.full((len(old_rows), 2), np.nan)
    for begin in range(0, len(old_rows), CHECKED_ROWS):
        part = slice(begin, begin + CHECKED_ROWS)
        old, new = (np.asarray(rows[part], np.float64) for rows in (old_rows, new_rows))
        squares = np.vecdot(old, old)
        squares[squares == 0] = np.nan
        factors = np.vecdot(old, new) / squares
        misses = new - factors[:, None] * old
        fits[part] = np.stack([factors, np.sqrt(np.vecdot(misses, misses) / squares)], axis=1)
    return fits
