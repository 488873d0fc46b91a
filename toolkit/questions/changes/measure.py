"""What kind of change each embedding parameter underwent between two snapshots, and how large it was."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.measures import Array, norm, relative
from toolkit.analysis.precision import HALF_FORMATS
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.questions.changes.finders import (
    IDENTICAL,
    ROUNDINGS,
    Kind,
    Pair,
    Survey,
    count_cast,
    find_cast,
    find_equal,
    find_offset,
    find_one_row,
    find_permutation,
    find_rounding,
    find_scaling,
    roundoff,
    survey,
)
from toolkit.questions.changes.fits import (
    find_decay,
    find_decay_and_training,
    find_low_rank,
    find_rotation,
)
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Snapshot, Trajectory, name_undefined
from toolkit.snapshots.store import Source, trajectory_of


def name_farthest(trajectory: Trajectory, found: Survey) -> str:
    """The row that moved farthest for its norm, by token, position or number: ``'good' (1.2 %)``.

    A row that was 0 has no relative change: it comes first, with ‖Δ‖.
    """
    farthest = []
    for rows, a, b in found.moved_blocks():
        lengths, shares = norm(a, b), relative(a, b)
        keys = np.where(np.isfinite(shares), -shares, -np.inf)
        i = np.lexsort((-lengths, keys))[0]
        farthest.append((float(keys[i]), -float(lengths[i]), int(rows[i])))
    key, length, row = min(farthest)
    size = f"{-100 * key:.3g} %" if np.isfinite(key) else f"from 0 to {-length:.3g}"
    return f"{trajectory.name_row(found.pair.parameter, row)} ({size})"


def name_still(trajectory: Trajectory, found: Survey) -> str:
    """The one row of which no bit changed, where all others moved, as that of [PAD] often is; '' else."""
    still_rows = np.flatnonzero(~found.moved)
    return (
        trajectory.name_row(found.pair.parameter, int(still_rows[0])) if len(still_rows) == 1 < found.num_moved else ""
    )


NOT_APPLICABLE, NOT_COMPARED = "not applicable", "not compared"
IN_PART = "identical in what could be compared"

KINDS = {
    "identical": "no bit differs",
    IN_PART: "no bit differs, but not all that was asked for could be compared",
    "equal in value": "no value differs, but the sign of some zeros",
    "cast": "the old values, rounded to a half precision, of all rows that changed",
    "rounding": f"no value moved by more than {ROUNDINGS} roundings",
    "one row": "one row moved, all others are bit-identical",
    "one entry": "one entry of a LayerNorm vector moved, all others are bit-identical",
    "permuted rows": "the same rows in another order",
    "decay": "weight decay alone: many fp32 products by factors just below 1, the same for all values",
    "scaling": "every value times one factor",
    "common offset": "one vector added to every row (one number to every entry of a LayerNorm vector)",
    "rotation": "one orthogonal map of all rows",
    "decay and training": "weight decay alone on some rows, the others moved otherwise",
    "low rank": "a change of few directions, as of a merged adapter",
    "some rows": "some rows moved, in none of these ways; the others are bit-identical",
    "some entries": "some entries of a LayerNorm vector moved; the others are bit-identical",
    "general": "every row moved, in none of these ways",
    NOT_APPLICABLE: "the model has no such parameter",
    NOT_COMPARED: "not every checkpoint has such a parameter",
}
"""Every kind, and what it says, in the order of :func:`find_kind`: the first that holds is the kind."""


FINDERS: Sequence[Callable[[Survey], Kind | None]] = (
    find_equal,
    find_cast,
    find_rounding,
    find_one_row,
    find_permutation,
    find_decay,
    find_scaling,
    find_offset,
    find_rotation,
    find_decay_and_training,
    find_low_rank,
)
"""In the order of :func:`find_kind`: first those that say of every coordinate where it is, then those that fit."""


@with_columns
def measure_changes(source: Source, epoch: float | None = None, *, reference_epoch: float = 0) -> pd.DataFrame:
    """What kind of change each embedding parameter underwent between two snapshots.

    Returns
    -------
    pandas.DataFrame
        One line per embedding parameter, from the word table to the bias of LayerNorm; one that the model lacks is
        ``not applicable`` and NaN, one that some checkpoints lack ``not compared``. Each entry of a LayerNorm vector
        counts as a row.

        ``kind`` is the first that holds of: identical (where rows or snapshots are left out: identical in what could be
        compared), equal in value, cast, rounding, one row (entry), permuted rows,
        decay, scaling, common offset, rotation, decay and training, low rank, some rows (entries), general.

        ``value`` depends on the kind, and ``unit`` names its unit: the mean angle of a rotation (degrees), c - 1 of a
        scaling, the length of an offset, the number of permuted rows, Σ lr·decay of decay; else ‖Δ‖/‖E⁰‖ of the moved
        rows (for decay and training, of those that decay alone did not move).

        ``num_decayed`` and ``sum_lr_decay`` are NaN for kinds without decay. ``sum_lr_decay`` is what came of
        Σ lr·decay in the rows: fp32 rounds each step, so that the schedule's own sum may be another (2.9 times smaller
        at a rate of 3e-6 with a decay of .01).

    Raises
    ------
    ValueError
        There is no other snapshot to compare with, or a value is NaN or infinite: the message names its row.
    """
    trajectory = trajectory_of(source)
    before = trajectory.at(reference_epoch)
    after = trajectory.at_or_last(epoch)
    if before is after:
        raise ValueError(
            f"epoch {before.epoch:g} would be compared with itself: pass two different epochs, or two checkpoints"
        )
    records = {
        name: _absent(name, NOT_COMPARED if name in trajectory.in_part else NOT_APPLICABLE)
        for name in EMBEDDING_PARAMETERS
    }
    offsets: dict[str, tuple[Array, Array]] = {}
    for name in trajectory.parameters:
        for snapshot in (before, after):
            _check_finite(trajectory, snapshot, name)
        surveyed = survey(Pair(before, after, name))
        kind = find_kind(surveyed)
        if compared := trajectory.compared(name, "snapshots"):
            is_same = kind is IDENTICAL
            kind = replace(
                kind,
                name=IN_PART if is_same else kind.name,
                detail=f"{IN_PART}: {compared}" if is_same else f"{kind.detail}; compared: {compared}",
            )
        records[name] = _change_record(trajectory, surveyed, kind)
        if name in TABLES and kind.offset is not None:
            offsets[name] = kind.offset, roundoff(surveyed.form, surveyed.magnitudes / surveyed.num_moved)
    for names, gauge_note in _gauges(offsets):
        for name in names:
            records[name]["detail"] += f"; {gauge_note}"
    return pd.DataFrame(list(records.values()), columns=columns_of("measure_changes"))


def _check_finite(trajectory: Trajectory, snapshot: Snapshot, name: str) -> None:
    """ValueError where a parameter of a snapshot holds NaN or infinity."""
    # The survey reports a parameter that a snapshot lacks.
    place = name_undefined(
        name, snapshot.tensors.get(name, np.zeros(1)), trajectory.vocabulary, trajectory.position_offset
    )
    if place:
        moment = f"at epoch {snapshot.epoch:g}" + (f" ({snapshot.name})" if snapshot.name else "")
        raise ValueError(f"{name} holds NaN or infinity {moment} {place}: the run diverged, leave it out")


def find_kind(found: Survey) -> Kind:
    """The first kind that holds."""
    if found.num_moved == 0:
        return IDENTICAL
    for find in FINDERS:
        if (kind := find(found)) is not None:
            return kind
    return _unexplained_kind(found)


def _unexplained_kind(surveyed: Survey) -> Kind:
    """The kind of a change that no finder explains: some rows moved, or all of them."""
    noun, n = ("row" if surveyed.pair.is_table else "entry"), surveyed.num_moved
    form, num_cast = count_cast(surveyed) if surveyed.pair.is_table else ("", 0)
    cast_note = f", {num_cast:,} of them rounded to {form}" if num_cast else ""
    if n < surveyed.num_rows:
        detail = f"{n:,} of {surveyed.num_rows:,} {surveyed.pair.rows}{cast_note}"
        return Kind(f"some {surveyed.pair.rows}", surveyed.relative_of_moved, "1", detail)
    return Kind("general", surveyed.relative_of_moved, "1", f"every {noun} moved{cast_note}")


def _change_record(trajectory: Trajectory, surveyed: Survey, kind: Kind) -> dict[str, Any]:
    """The record of one parameter: its kind, and how far it moved."""
    detail = kind.detail
    if still_row := name_still(trajectory, surveyed) if kind.name.startswith("some ") else "":
        detail += f", all but {still_row}"
    if kind.name.startswith(("one ", "some ")):
        farthest = name_farthest(trajectory, surveyed)
        detail += f"; {'farthest ' if surveyed.num_moved > 1 else ''}{farthest}"
    if len(kind.sources) == 2:
        first, second = (trajectory.name_row(surveyed.pair.parameter, row) for row in kind.sources)
        detail = f"{first} and {second} are swapped"
    return {
        "parameter": surveyed.pair.parameter,
        "kind": kind.name,
        "value": kind.size,
        "unit": kind.unit,
        "detail": detail,
        "relative_drift": surveyed.relative,
        "num_rows": surveyed.num_rows,
        "num_moved": surveyed.num_moved,
        **dict.fromkeys(("num_decayed", "sum_lr_decay", "num_directions"), math.nan),
        **kind.facts,
        "note": _note(surveyed, kind),
    }


def _absent(name: str, kind: str) -> dict[str, Any]:
    texts = {"parameter": name, "kind": kind, "detail": KINDS[kind]}
    empty = dict.fromkeys(("unit", "note"), "")
    return {**dict.fromkeys(columns_of("measure_changes"), math.nan), **empty, **texts, "num_rows": 0, "num_moved": 0}


def _note(surveyed: Survey, kind: Kind) -> str:
    """What a reader must know beside the kind."""
    notes = []
    if surveyed.form.name in HALF_FORMATS and kind.name in ("identical", IN_PART, "equal in value", "rounding"):
        notes.append(f"the values fit {surveyed.form.name}: no drift is no verdict on half-precision weights")
    old = surveyed.form_before
    is_finer = old.name in HALF_FORMATS and surveyed.form.name == "fp32" and surveyed.num_moved > 0
    if is_finer and all(np.array_equal(old.round(b), a) for _, a, b in surveyed.moved_blocks()):
        notes.append(f"rounded to {old.name}, the new values are the old ones: the change is finer than {old.name}")
    if kind.name in ("general", "some rows") and surveyed.pair.is_table and surveyed.num_moved < surveyed.num_columns:
        notes.append("fewer moved rows than columns: no orthogonal map was fitted")
    return "; ".join(notes)


def _gauges(offsets: Mapping[str, tuple[Array, Array]]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Which tables' common offsets cancel, so that no output shows them, each with a clause that says so.

    ``offsets``: per table that moved as a whole, the vector and how far rounding may have moved it, (columns,) each.
    """
    named: set[str] = set()
    for names in (*combinations(offsets, 2), *combinations(offsets, 3)):
        vectors, errors = (np.sum(terms, axis=0) for terms in zip(*(offsets[name] for name in names), strict=True))
        if named.isdisjoint(names) and bool((np.abs(vectors) <= ROUNDINGS * errors).all()):
            named |= set(names)
            statement = f"offset moved from {names[0]} to {names[1]}"
            if len(names) > 2:
                statement = f"the offsets of {', '.join(names)} cancel"
            yield names, f"{statement}: a gauge change, which no behaviour shows"
