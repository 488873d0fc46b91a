"""A run, a parameter and an epoch in, a table of the update Δ out: its spectrum and alignment with E⁰, with nulls."""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from toolkit.analysis.geometry.cloud import Cloud
from toolkit.analysis.geometry.geometry import BLOCK_ROWS, Indices, group_rows, read_rows
from toolkit.analysis.geometry.spectra import energy_in_top, entropy_rank
from toolkit.analysis.rows.blocks import tables_of
from toolkit.analysis.rows.measures import Array
from toolkit.analysis.rows.strata import count_rows, table_exposure
from toolkit.counts import at_least
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

TOUCHED, MOVED = "touched", "moved"
"""Which rows were taken when none were asked for: those with exposure by the epoch, or without a record all that moved
(weight decay then brings in rows that no batch ever used)."""

NUM_SUBSPACES = 400
"""Random subspaces of the alignment null; each is one thin QR."""

Line = tuple[str, int | None, float, float, float, float, float, str]  # measure to chance, and the reason


@with_columns
def measure_updates(
    source: Source,
    parameter: str = "word_embeddings",
    epoch: float | None = None,
    *,
    ks: Sequence[int] = (1, 10, 50),
    rows: str | Sequence[int] | Indices | None = None,
    reference_epoch: float = 0,
    num_null: int = 40,
    seed: int = 0,
) -> "pd.DataFrame":
    """The update of a table at an epoch (default: the last snapshot), one value per line.

    Rows: those with exposure by the epoch (``touched``), without a record all that moved, or the ones asked for (row
    indices, or the name of a stratum). Δ is not centred: a shift that all rows share is one of its directions.

    ``energy_top``: share of ‖Δ‖²_F in the k largest singular directions; ``effective_rank``: of Δ, see spectra.py.
    Their null (ours) gives each row a random direction and its own observed length: a few long rows concentrate the
    energy without any structure. Only values outside its quantiles, over ``num_null`` draws, say something.
    ``alignment_top``: share of ‖Δ‖²_F in the span of the k first principal directions of all rows of E⁰ about their
    mean, chance k/hidden. Its null (ours) turns that span at random, 400 times, and keeps Δ as it is: an
    update of few directions aligns more or less by luck, which random rows would not show.
    """
    at_least("num_null", num_null, 0)
    trajectory = trajectory_of(source)
    reference = trajectory.at(reference_epoch)
    snapshot = trajectory.at_or_last(epoch)
    tables_of([trajectory.snapshots[0], reference, snapshot], parameter)  # the rows are chosen in the first
    name, chosen = _choose_rows(trajectory, reference, snapshot, parameter, rows)
    norms = row_norms(reference, snapshot, parameter, chosen)
    num_moved = int(np.count_nonzero(norms))
    counts = len(chosen), len(chosen) - num_moved
    whole = np.arange(count_rows(trajectory, parameter))
    if num_moved < 2:
        reason = f"{num_moved} of {len(chosen)} row(s) moved: a spectrum needs two"
        lines = list(_refused(ks, reason))
    else:
        update = Cloud(lambda: changes(reference, snapshot, parameter, chosen), centre=False)
        lines = list(_spectrum_lines(update, norms[norms > 0], ks, num_null, seed))
        before = Cloud(lambda: (block for _, (block,) in read_rows([reference], parameter, whole)), centre=True)
        lines += _alignment_lines(update, before, ks, seed)
    table = pd.DataFrame(
        [(float(snapshot.epoch), parameter, name, *line[:-1], *counts, line[-1]) for line in lines],
        columns=columns_of("measure_updates"),
    )
    return table.astype({"k": "Int64"})


def changes(reference: Snapshot, snapshot: Snapshot, parameter: str, rows: Indices) -> Iterator[Array]:
    """Blocks of Δ of the given rows, (block, hidden) float64 each."""
    for _, (before, after) in read_rows([reference, snapshot], parameter, rows):
        yield after - before


def row_norms(reference: Snapshot, snapshot: Snapshot, parameter: str, rows: Indices) -> Array:
    """(rows,) ‖Δ_i‖ of the given rows."""
    parts = [np.sqrt(np.vecdot(delta, delta)) for delta in changes(reference, snapshot, parameter, rows)]
    return np.concatenate([np.zeros(0), *parts])


def null_spectra(norms: Array, hidden: int, num_null: int, seed: int = 0) -> Iterator[Array]:
    """Yield (hidden,) σ² of ``num_null`` tables whose rows have the (n,) given lengths and random directions."""
    for draw in range(num_null):
        generator = np.random.default_rng([*b"updates", seed, draw])
        gram = np.zeros((hidden, hidden))
        for start in range(0, len(norms), BLOCK_ROWS):
            of_block = norms[start : start + BLOCK_ROWS]
            rows = generator.normal(size=(len(of_block), hidden))
            rows *= (of_block / np.sqrt(np.vecdot(rows, rows)))[:, None]
            gram += rows.T @ rows
        yield np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)


def alignment(update: Array, directions: Array) -> float:
    """Share of ‖Δ‖²_F of (n, p) rows of Δ in the span of (p, k) orthonormal columns."""
    total = float(np.vdot(update, update))
    projected = update @ directions
    return float(np.vdot(projected, projected)) / total if total > 0 else math.nan


def null_alignments(squared: Array, k: int, num_null: int = NUM_SUBSPACES, seed: int = 0) -> Array:
    """(num_null, k): for Δ with (p,) given σ², the share in the first 1 … k columns of a random orthonormal frame."""
    generator, shares = np.random.default_rng([*b"alignment", seed]), squared / squared.sum()
    frames = (np.linalg.qr(generator.normal(size=(len(squared), k)))[0] for _ in range(num_null))
    return np.array([np.cumsum(shares @ np.square(frame)) for frame in frames])


def _choose_rows(
    trajectory: Trajectory,
    reference: Snapshot,
    snapshot: Snapshot,
    parameter: str,
    rows: str | Sequence[int] | Indices | None,
) -> tuple[str, Indices]:
    ((name, chosen),) = group_rows(trajectory, parameter, rows, by_stratum=False).items()
    if rows is not None:
        return name, chosen
    exposure = table_exposure(trajectory, parameter)
    if exposure is not None:
        return TOUCHED, np.flatnonzero(exposure.step_counts(len(chosen), snapshot.step))
    return MOVED, np.flatnonzero(row_norms(reference, snapshot, parameter, chosen))


def _spectrum_lines(update: Cloud, norms: Array, ks: Iterable[int], num_null: int, seed: int) -> Iterator[Line]:
    """Of Δ, given the lengths of the rows that moved."""
    squared, nulls = update.squared_singular_values, list(null_spectra(norms, update.hidden, num_null, seed))
    rank = min(len(norms), update.hidden)
    for k in ks:
        if not 1 <= k < rank:
            yield _refuse("energy_top", k, f"k must be from 1 to {rank - 1}: Δ has no more than {rank} directions")
            continue
        null = [energy_in_top(drawn, k) for drawn in nulls]
        yield "energy_top", k, energy_in_top(squared, k), *_summary(null), math.nan, ""
    null = [entropy_rank(drawn) for drawn in nulls]
    yield "effective_rank", None, entropy_rank(squared), *_summary(null), math.nan, ""


def _alignment_lines(update: Cloud, before: Cloud, ks: Sequence[int], seed: int) -> Iterator[Line]:
    hidden, total = update.hidden, float(np.trace(update.products))
    valid = [k for k in ks if 1 <= k < hidden]
    nulls = null_alignments(update.squared_singular_values, max(valid, default=1), seed=seed)
    for k in ks:
        if k not in valid:
            yield _refuse("alignment_top", k, f"k must be from 1 to {hidden - 1}: all directions hold all of Δ")
        elif before.squared_singular_values[k - 1] <= 1e-12 * before.squared_singular_values[0]:
            yield _refuse("alignment_top", k, f"E⁰ has fewer than {k} principal directions")
        else:
            span = before.directions[:, :k]
            value = float(np.vdot(span, update.products @ span)) / total
            yield "alignment_top", k, value, *_summary(nulls[:, k - 1]), k / hidden, ""


def _refused(ks: Sequence[int], reason: str) -> Iterator[Line]:
    yield from (_refuse("energy_top", k, reason) for k in ks)
    yield _refuse("effective_rank", None, reason)
    yield from (_refuse("alignment_top", k, reason) for k in ks)


def _refuse(measure: str, k: int | None, reason: str) -> Line:
    return measure, k, math.nan, math.nan, math.nan, math.nan, math.nan, reason


def _summary(drawn: Sequence[float] | Array) -> tuple[float, float, float]:
    """Mean and the 2.5 % and 97.5 % quantiles; NaN of nothing."""
    if len(drawn) == 0:
        return math.nan, math.nan, math.nan
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(np.mean(drawn)), float(low), float(high)
