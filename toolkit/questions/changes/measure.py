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
    SHARE,
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
    survey_pair,
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


def name_farthest(trajectory: Trajectory, survey: Survey) -> str:
    """The row that moved farthest for its norm, by token, position or number: ``'good' (1.2 %)``.

    A row that was 0 has no relative change: it comes first, with ‖Δ‖.
    """
    candidates = []
    for rows, a, b in survey.moved_blocks():
        distances, shares = norm(a, b), relative(a, b)
        shares = np.where(np.isfinite(shares), shares, np.inf)
        i = np.lexsort((-distances, -shares))[0]  # the last key counts first
        candidates.append((float(shares[i]), float(distances[i]), int(rows[i])))
    # Of equal ones the lowest row.
    share, distance, row = max(candidates, key=lambda candidate: (candidate[0], candidate[1], -candidate[2]))
    size = f"{100 * share:.3g} %" if np.isfinite(share) else f"from 0 to {distance:.3g}"
    return f"{trajectory.name_row(survey.pair.parameter, row)} ({size})"


def name_still(trajectory: Trajectory, survey: Survey) -> str:
    """The one row of which no bit changed, where all others moved, as that of [PAD] often is; '' else."""
    still_rows = np.flatnonzero(~survey.moved)
    if len(still_rows) != 1 or survey.num_moved < 2:
        return ""
    return trajectory.name_row(survey.pair.parameter, int(still_rows[0]))


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
        name: _absent_record(name, NOT_COMPARED if name in trajectory.in_part else NOT_APPLICABLE)
        for name in EMBEDDING_PARAMETERS
    }
    offsets: dict[str, tuple[Array, Array]] = {}  # table to its offset, and how far rounding may have moved it
    for name in trajectory.parameters:
        for snapshot in (before, after):
            _check_finite(trajectory, snapshot, name)
        survey = survey_pair(Pair(before, after, name))
        kind = find_kind(survey)
        if compared := trajectory.compared(name, "snapshots"):
            if kind is IDENTICAL:
                kind = replace(kind, name=IN_PART, detail=f"{IN_PART}: {compared}")
            else:
                kind = replace(kind, detail=f"{kind.detail}; compared: {compared}")
        records[name] = _change_record(trajectory, survey, kind)
        if name in TABLES and kind.offset is not None:
            offsets[name] = kind.offset, roundoff(survey.form, survey.magnitudes / survey.num_moved)
    for names, gauge_note in _gauges(offsets):
        for name in names:
            records[name]["detail"] += f"; {gauge_note}"
    return pd.DataFrame(list(records.values()), columns=columns_of("measure_changes"))


def _check_finite(trajectory: Trajectory, snapshot: Snapshot, name: str) -> None:
    """ValueError where a parameter of a snapshot holds NaN or infinity."""
    values = snapshot.tensors.get(name, np.zeros(1))  # the survey reports a parameter that a snapshot lacks
    undefined_row = name_undefined(name, values, trajectory.vocabulary, trajectory.position_offset)
    if undefined_row:
        moment = f"at epoch {snapshot.epoch:g}" + (f" ({snapshot.name})" if snapshot.name else "")
        raise ValueError(f"{name} holds NaN or infinity {moment} {undefined_row}: the run diverged, leave it out")


def find_kind(survey: Survey) -> Kind:
    """The first kind that holds."""
    if survey.num_moved == 0:
        return IDENTICAL
    for find in FINDERS:
        if (kind := find(survey)) is not None:
            return kind
    return _unexplained_kind(survey)


def _unexplained_kind(survey: Survey) -> Kind:
    """The kind of a change that no finder explains: some rows moved, or all of them."""
    cast_note = ""
    if survey.pair.is_table:
        format_name, num_cast = count_cast(survey)
        cast_note = f", {num_cast:,} of them rounded to {format_name}" if num_cast else ""
    if survey.num_moved < survey.num_rows:
        detail = f"{survey.num_moved:,} of {survey.num_rows:,} {survey.pair.rows}{cast_note}"
        return Kind(f"some {survey.pair.rows}", survey.relative_of_moved, SHARE, detail)
    noun = "row" if survey.pair.is_table else "entry"
    return Kind("general", survey.relative_of_moved, SHARE, f"every {noun} moved{cast_note}")


def _change_record(trajectory: Trajectory, survey: Survey, kind: Kind) -> dict[str, Any]:
    """The record of one parameter: its kind, and how far it moved."""
    detail = kind.detail
    if still_row := name_still(trajectory, survey) if kind.name.startswith("some ") else "":
        detail += f", all but {still_row}"
    if kind.name.startswith(("one ", "some ")):
        farthest = name_farthest(trajectory, survey)
        detail += f"; {'farthest ' if survey.num_moved > 1 else ''}{farthest}"
    if len(kind.sources) == 2:
        first, second = (trajectory.name_row(survey.pair.parameter, row) for row in kind.sources)
        detail = f"{first} and {second} are swapped"
    return {
        "parameter": survey.pair.parameter,
        "kind": kind.name,
        "value": kind.size,
        "unit": kind.unit,
        "detail": detail,
        "relative_drift": survey.relative,
        "num_rows": survey.num_rows,
        "num_moved": survey.num_moved,
        **dict.fromkeys(("num_decayed", "sum_lr_decay", "num_directions"), math.nan),
        **kind.facts,
        "note": _note(survey, kind),
    }


def _absent_record(name: str, kind: str) -> dict[str, Any]:
    """The record of a parameter that was not compared: a kind without numbers."""
    record: dict[str, Any] = dict.fromkeys(columns_of("measure_changes"), math.nan)
    texts = {"parameter": name, "kind": kind, "detail": KINDS[kind], "unit": "", "note": ""}
    return record | texts | {"num_rows": 0, "num_moved": 0}


def _note(survey: Survey, kind: Kind) -> str:
    """What a reader must know beside the kind."""
    notes = []
    if survey.form.name in HALF_FORMATS and kind.name in ("identical", IN_PART, "equal in value", "rounding"):
        notes.append(f"the values fit {survey.form.name}: no drift is no verdict on half-precision weights")
    form_before = survey.form_before
    is_finer = form_before.name in HALF_FORMATS and survey.form.name == "fp32" and survey.num_moved > 0
    if is_finer and all(np.array_equal(form_before.round(b), a) for _, a, b in survey.moved_blocks()):
        name = form_before.name
        notes.append(f"rounded to {name}, the new values are the old ones: the change is finer than {name}")
    if kind.name in ("general", "some rows") and survey.pair.is_table and survey.num_moved < survey.num_columns:
        notes.append("fewer moved rows than columns: no orthogonal map was fitted")
    return "; ".join(notes)


def _gauges(offsets: Mapping[str, tuple[Array, Array]]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Which tables' common offsets cancel, so that no output shows them, each with a clause that says so.

    ``offsets``: per table that moved as a whole, the vector and how far rounding may have moved it, (columns,) each.
    """
    explained: set[str] = set()
    for names in (*combinations(offsets, 2), *combinations(offsets, 3)):
        vectors, errors = zip(*(offsets[name] for name in names), strict=True)
        sum_of_offsets, sum_of_errors = np.sum(vectors, axis=0), np.sum(errors, axis=0)
        if explained.isdisjoint(names) and bool((np.abs(sum_of_offsets) <= ROUNDINGS * sum_of_errors).all()):
            explained |= set(names)
            statement = f"offset moved from {names[0]} to {names[1]}"
            if len(names) > 2:
                statement = f"the offsets of {', '.join(names)} cancel"
            yield names, f"{statement}: a gauge change, which no behaviour shows"
