"""Snapshots, their gauges and a reference corpus in, the weighted drift of every table and its gauge share out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from toolkit.analysis.gauge.centres import Centre, iterate_used, project
from toolkit.analysis.gauge.corpus import PROJECTED, ReferenceCorpus
from toolkit.analysis.gauge.incidence import Labels, NullSpace
from toolkit.analysis.rows.measures import Array
from toolkit.snapshots.snapshot import Snapshot

DRIFTS = ("raw_drift", "pi_drift", "gauge_fixed_drift", "scaled_drift")

ROUNDING = 1e-30
"""Squared drift, as a share of the squared rows, below which float64 rounding of Π is all there is."""

ONE_TABLE = "one table: no gauge between tables"
NOTHING_LEFT = "no drift but what LayerNorm's mean subtraction removes"


@dataclass(frozen=True, slots=True)
class DriftSums:
    """The drift of one snapshot from the reference."""

    squares: Mapping[str, Array]
    """Table to (4,): Σ f‖·‖² of each of DRIFTS."""
    gauge_share: float
    """Share, 0 to 1, of the squared drift after Π that offsets between the tables explain (ours).

    1 - [Σf‖Δw'‖² + Σq‖Δp'‖² + Σg‖Δs'‖² + ‖Δm‖²/3] / [Σf‖Δw‖² + Σq‖Δp‖² + Σg‖Δs‖²], /2 with two tables. The first
    bracket is the least drift to any state that only offsets tell from the current one.
    """
    gauge_share_of_all_directions: float
    note: str
    """Why a share is NaN; empty when it is not."""


def drift_vectors(
    before: Array, after: Array, table: str, labels: Labels, reference: Centre, centre: Centre
) -> list[Array]:
    """The change of used rows, each (n, hidden): raw, after Π, in the fixed gauge, and with the common scale out."""
    projected = project(after - before)
    fixed = reference.fix(table, project(before), labels)
    change = centre.fix_change(reference, table, projected, labels)
    scale = centre.scale_since(reference)
    return [after - before, projected, change, (change - (scale - 1) * fixed) / scale]


def sum_drifts(snapshots: list[Snapshot], centres: list[Centre], corpus: ReferenceCorpus) -> list[DriftSums]:
    """The drift of each snapshot from the first: one pass over every table."""
    bases = orthonormal(corpus.null_space(), corpus.frequencies)
    num_later = len(snapshots) - 1
    squares = {table: np.zeros((num_later, len(DRIFTS))) for table in corpus.tables}
    sizes = np.zeros(num_later)
    along = np.zeros((num_later, next(iter(bases.values())).shape[1], len(centres[0].offset)))
    for table in corpus.tables:
        for rows, used, (before, *others) in iterate_used(snapshots, corpus, table):
            weights, labels = corpus.frequencies[table][rows][used], corpus.groups[table][rows][used]
            sizes += weights @ np.sum(np.square(before), axis=1)
            basis = bases[table][rows][used] * np.sqrt(weights)[:, None]
            for index, after in enumerate(others):
                vectors = drift_vectors(before, after, table, labels, centres[0], centres[index + 1])
                squares[table][index] += [weights @ np.sum(np.square(vector), axis=1) for vector in vectors]
                along[index] += basis.T @ vectors[1]
    drifts = [
        _sums({name: of_table[i] for name, of_table in squares.items()}, sizes[i], along[i], centres[0], centres[i + 1])
        for i in range(num_later)
    ]
    if corpus.is_projected:
        return [
            replace(d, gauge_share=math.nan, gauge_share_of_all_directions=math.nan, note=PROJECTED) for d in drifts
        ]
    return drifts


def orthonormal(nulls: NullSpace, frequencies: Mapping[str, Array]) -> dict[str, Array]:
    """Table to (rows, null directions): orthonormal over all tables once each row is weighted by √frequency."""
    names = list(nulls.directions)
    weighted = np.vstack([nulls.directions[name] * np.sqrt(frequencies[name])[:, None] for name in names])
    basis = np.linalg.qr(weighted)[0]
    ends = np.cumsum([len(nulls.directions[name]) for name in names])[:-1]
    return dict(zip(names, np.split(basis, ends), strict=True))


def _sums(squares: Mapping[str, Array], size: float, along: Array, reference: Centre, centre: Centre) -> DriftSums:
    raw, total = (sum(float(of_table[i]) for of_table in squares.values()) for i in (0, 1))
    shares, note = (math.nan, math.nan), ""
    if total <= ROUNDING * (size + raw):
        note = NOTHING_LEFT
    elif len(squares) == 1:
        note = ONE_TABLE
    else:
        # Σ‖Δx̄‖² - ‖Δm‖²/k as one sum of squares; min() because rounding alone can put it a hair above 1.
        changes = np.array([centre.means[name] - reference.means[name] for name in squares])
        offsets = float(np.sum(np.square(changes - changes.mean(axis=0))))
        shares = min(1.0, offsets / total), min(1.0, float(np.sum(np.square(along))) / total)
    return DriftSums(squares, *shares, note)
