"""The survey of one table in, the orthogonal map that best carries it from before to after out, and what it leaves."""

import math
from dataclasses import dataclass

import numpy as np

from toolkit.analysis.causes.precision import FORMATS
from toolkit.analysis.changes.kinds import UNEXPLAINED, Kind, where
from toolkit.analysis.changes.rounding import unit_roundoff
from toolkit.analysis.changes.survey import Survey
from toolkit.analysis.rows.measures import Array

ROTATION_ROUNDINGS = 16
"""Roundings of fp32, as a share of a row's length, that an orthogonal map may leave. Measured: products in fp32 left up
to 8 for rows of 16 to 2,048 columns, one in fp64 left 1. Noise of relative size 1e-6 beside a rotation hides there."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The orthogonal Procrustes solution for the moved rows, raw: neither centred nor scaled."""

    map: Array
    """(columns, columns): before @ map is nearest to after."""
    residual: float
    """Share of Σ‖Δ‖² that it leaves."""
    is_exact: bool
    """Whether every row is left within the roundings."""


def rotation_null(num_rows: int, num_columns: int) -> float:
    """Share of a small isotropic Gaussian change that the best orthogonal map explains, though nothing was rotated.

    The maps near the identity are E⁰A with A skew; with r = min(n, p) independent rows they span r·p - r(r + 1)/2 of
    the n·p directions of Δ. Ours; (p - 1)/(2n) for n ≥ p. A test holds it to simulated values.
    """
    rank = min(num_rows, num_columns)
    return rank * (num_columns - (rank + 1) / 2) / (num_rows * num_columns)


def fit_rotation(found: Survey) -> Rotation | None:
    """Two passes over the moved rows; None where there are fewer of them than columns, so that a map absorbs at least
    half of any change and is no finding.

    Schönemann (1966), A generalized solution of the orthogonal Procrustes problem. The residual is summed up from the
    rows: the usual ‖E⁰‖² + ‖Eᵗ‖² minus twice the singular values would lose a drift below 1e-7.
    """
    if not found.pair.is_table or found.num_columns < 2 or found.num_moved < found.num_columns:
        return None
    cross = np.zeros((found.num_columns,) * 2)
    for _, a, b in found.moved_blocks():
        cross += a.T @ b
    left, _, right = np.linalg.svd(cross)
    turn = left @ right
    total, is_exact = 0.0, True
    allowed = 2 * unit_roundoff(found.form) + ROTATION_ROUNDINGS * unit_roundoff(FORMATS["fp32"])
    for _, a, b in found.moved_blocks():
        squares = np.square(b - a @ turn).sum(axis=1)
        total += float(squares.sum())
        is_exact = is_exact and bool((np.sqrt(squares) <= allowed * np.sqrt(np.square(b).sum(axis=1))).all())
    share = total / found.squared_change
    return Rotation(turn, share, is_exact and share <= UNEXPLAINED)


def kind_of_rotation(found: Survey, rotation: Rotation | None) -> Kind | None:
    """``rotation`` where the map is exact, its size the mean angle over the columns' invariant planes in degrees."""
    if rotation is None or not rotation.is_exact:
        return None
    angles = np.degrees(np.abs(np.angle(np.linalg.eigvals(rotation.map))))
    is_proper = np.linalg.slogdet(rotation.map)[0] > 0
    detail = f"one orthogonal map of all rows, {'a rotation' if is_proper else 'with a reflection'}"
    # A row of zeros stays where it is under any map; another that stayed contradicts this one.
    stayed = sum(int(np.count_nonzero(a[~found.moved[rows]].any(axis=1))) for rows, a, _ in found.pair.blocks())
    detail += where(found, stayed)
    return Kind("rotation", float(angles.mean()), "degrees", detail, rotation.residual)


def removed_share(rotation: Rotation | None) -> float:
    """Share of Σ‖Δ‖² that the best orthogonal map explains; NaN where it was not fitted."""
    return math.nan if rotation is None else 1 - rotation.residual
