"""The update of a parameter as a matrix: spectrum, alignment with the table before, with nulls."""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from toolkit.analysis.blocks import tables_of
from toolkit.analysis.drift import ALL_ROWS, Indices
from toolkit.analysis.measures import Array, summarise_null
from toolkit.analysis.spectra import entropy_rank
from toolkit.analysis.strata import table_exposure
from toolkit.naming import at_least
from toolkit.questions.space.geometry import BLOCK_ROWS, Cloud, energy_in_top, group_rows, read_changes, read_rows
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Snapshot
from toolkit.snapshots.store import Source, trajectory_of

TOUCHED_ROWS, MOVED_ROWS = "touched", "moved"
"""Which rows are taken: those with exposure by the epoch, or without a record all that moved
(weight decay then brings in rows that no batch ever used)."""

NUM_SUBSPACES = 400
"""Random subspaces of the alignment null; each is one thin QR."""

Record = tuple[str, int | None, float, float, float, float, float, str]  # measure to chance, and the reason


@with_columns
def measure_updates(
    source: Source,
    parameter: str = "word_embeddings",
    epoch: float | None = None,
    *,
    ks: Sequence[int] = (1, 10, 50),
    reference_epoch: float = 0,
    num_null: int = 40,
    seed: int = 0,
) -> pd.DataFrame:
    """How concentrated the update Δ of a table is, and how it lies to the table before, one value per line.

    Parameters
    ----------
    ks
        Numbers of directions to measure.

    Returns
    -------
    pandas.DataFrame
        ``stratum`` says of which rows: ``touched``, those exposed by the epoch, or, without a record of exposure,
        ``moved``, all that moved.

        ``energy_top``: share of ‖Δ‖²_F in the k largest singular directions. ``effective_rank``: of Δ, as in
        toolkit.questions.space.geometry. ``alignment_top``: share of ‖Δ‖²_F in the span of the k first principal
        directions of all rows of E⁰ about their mean; chance is k/hidden.

    Notes
    -----
    Δ is not centred: a shift that all rows share is one of its directions. The nulls are ours. That of
    ``energy_top`` and ``effective_rank`` gives each row a random direction and its own observed length, since a few
    long rows concentrate the energy without any structure: only values outside its quantiles say something. That of
    ``alignment_top`` turns the span at random, 400 times, and keeps Δ as it is: an update of few directions aligns more
    or less by luck, which random rows would not show.
    """
    at_least("num_null", num_null, 0)
    trajectory = trajectory_of(source)
    reference = trajectory.at(reference_epoch)
    snapshot = trajectory.at_or_last(epoch)
    tables_of([trajectory.snapshots[0], reference, snapshot], parameter)  # the rows are chosen in the first
    all_rows = group_rows(trajectory, parameter, by_stratum=False)[ALL_ROWS]
    if (exposure := table_exposure(trajectory, parameter)) is not None:
        stratum, chosen = TOUCHED_ROWS, np.flatnonzero(exposure.step_counts(len(all_rows), snapshot.step))
    else:
        stratum, chosen = MOVED_ROWS, np.flatnonzero(row_norms(reference, snapshot, parameter, all_rows))
    norms = row_norms(reference, snapshot, parameter, chosen)
    num_moved = int(np.count_nonzero(norms))
    columns = columns_of("measure_updates")
    if num_moved < 2:
        reason = f"{num_moved} of {len(chosen)} row(s) moved: a spectrum needs two"
        requested = [*(("energy_top", k) for k in ks), ("effective_rank", None), *(("alignment_top", k) for k in ks)]
        records = [_record(measure, k, reason=reason) for measure, k in requested]
    else:
        update = Cloud(lambda: read_changes(reference, snapshot, parameter, chosen), centre=False)
        records = list(_spectrum_records(update, norms[norms > 0], ks, num_null, seed))
        before = Cloud(lambda: (block for _, (block,) in read_rows([reference], parameter, all_rows)), centre=True)
        records += _alignment_records(update, before, ks, seed)
    key = (float(snapshot.epoch), parameter, stratum)
    counts = (len(chosen), len(chosen) - num_moved)
    table = pd.DataFrame([(*key, *values, *counts, reason) for *values, reason in records], columns=columns)
    return table.astype({"k": "Int64"})


def row_norms(reference: Snapshot, snapshot: Snapshot, parameter: str, rows: Indices) -> Array:
    """(rows,) ‖Δ_i‖ of the given rows."""
    norms = [np.sqrt(np.vecdot(delta, delta)) for delta in read_changes(reference, snapshot, parameter, rows)]
    return np.concatenate([np.zeros(0), *norms])


def null_spectra(norms: Array, hidden: int, num_null: int, seed: int = 0) -> Iterator[Array]:
    """Yield (hidden,) σ² of ``num_null`` tables whose rows have the (n,) given lengths and random directions."""
    for draw in range(num_null):
        generator = np.random.default_rng([*b"updates", seed, draw])
        gram = np.zeros((hidden, hidden))
        for start in range(0, len(norms), BLOCK_ROWS):
            block_norms = norms[start : start + BLOCK_ROWS]
            rows = generator.normal(size=(len(block_norms), hidden))
            rows *= (block_norms / np.sqrt(np.vecdot(rows, rows)))[:, None]
            gram += rows.T @ rows
        yield np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)


def null_alignments(squared: Array, k: int, num_null: int = NUM_SUBSPACES, seed: int = 0) -> Array:
    """(num_null, k): for Δ with (p,) given σ², the share in the first 1 … k columns of a random orthonormal frame."""
    generator = np.random.default_rng([*b"alignment", seed])
    shares = squared / squared.sum()
    frames = (np.linalg.qr(generator.normal(size=(len(squared), k))).Q for _ in range(num_null))
    return np.array([np.cumsum(shares @ np.square(frame)) for frame in frames])


def _spectrum_records(update: Cloud, norms: Array, ks: Iterable[int], num_null: int, seed: int) -> Iterator[Record]:
    """The records of ``energy_top`` and ``effective_rank``; ``norms``: how far each row moved that did."""
    squared = update.squared_singular_values
    nulls = list(null_spectra(norms, update.hidden, num_null, seed))
    rank = min(len(norms), update.hidden)
    for k in ks:
        if 1 <= k < rank:
            yield _record("energy_top", k, energy_in_top(squared, k), [energy_in_top(null, k) for null in nulls])
        else:
            reason = f"k must be from 1 to {rank - 1}: Δ has no more than {rank} directions"
            yield _record("energy_top", k, reason=reason)
    yield _record("effective_rank", None, entropy_rank(squared), [entropy_rank(null) for null in nulls])


def _alignment_records(update: Cloud, before: Cloud, ks: Sequence[int], seed: int) -> Iterator[Record]:
    """The records of ``alignment_top``: the share of the update in the table's first k principal directions."""
    hidden = update.hidden
    squared_norm = float(np.trace(update.products))
    valid = [k for k in ks if 1 <= k < hidden]
    nulls = null_alignments(update.squared_singular_values, max(valid, default=1), seed=seed)
    for k in ks:
        if k not in valid:
            reason = f"k must be from 1 to {hidden - 1}: all directions hold all of Δ"
            yield _record("alignment_top", k, reason=reason)
        elif before.squared_singular_values[k - 1] <= 1e-12 * before.squared_singular_values[0]:
            yield _record("alignment_top", k, reason=f"E⁰ has fewer than {k} principal directions")
        else:
            span = before.directions[:, :k]
            value = float(np.vdot(span, update.products @ span)) / squared_norm
            yield _record("alignment_top", k, value, nulls[:, k - 1], k / hidden)


def _record(
    measure: str,
    k: int | None,
    value: float = math.nan,
    null: Sequence[float] | Array = (),
    chance: float = math.nan,
    reason: str = "",
) -> Record:
    """A record of :func:`measure_updates` from the measure on: a value beside the mean and quantiles of its null."""
    mean, _, low, high = summarise_null(null)
    return measure, k, value, mean, low, high, chance, reason
