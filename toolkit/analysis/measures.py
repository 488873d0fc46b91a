"""The row measures: one number per row for how far, and in which way, it moved.

Every function takes ``reference`` and ``current``, both (rows, hidden) float64, and returns (rows,) float64; Δ is their
difference. Undefined is NaN, never 0.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from toolkit.naming import Table, select

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measure:
    """A function that gives the drift of each row, and what must be known to read its numbers."""

    name: str
    function: Callable[[Array, Array], Array]
    """Reference and current rows, (rows, hidden) float64, to (rows,) float64; rows never influence each other."""
    unit: str
    """``weight units``: scales with the weights; ``degrees``, or ``1`` for a pure number: does not."""
    source: str
    """Where the formula comes from, with any departure."""
    description: str
    """One plain sentence."""
    is_metric: bool = False
    """Whether symmetry and the triangle inequality hold, for directions where only the direction counts."""
    is_signed: bool = False
    """Whether values below 0 occur."""


def norm(reference: Array, current: Array) -> Array:
    """‖Δ‖ of each row."""
    return lengths(current - reference)


def relative(reference: Array, current: Array) -> Array:
    """‖Δ‖ / ‖E⁰‖ of each row; NaN where the reference row is 0."""
    return norm(reference, current) / or_nan(lengths(reference))


def cosine_distance(reference: Array, current: Array) -> Array:
    """1 - cos θ of each row as ½‖û - v̂‖², which keeps its digits near 0; NaN where either row is 0."""
    chord = lengths(_directions(current) - _directions(reference))
    return 0.5 * chord**2


def angle_degrees(reference: Array, current: Array) -> Array:
    """2·atan2(‖û - v̂‖, ‖û + v̂‖) of each row in degrees, 0 to 180; NaN where either row is 0."""
    u, v = _directions(reference), _directions(current)
    return np.asarray(np.degrees(2 * np.arctan2(lengths(u - v), lengths(u + v))))


def radial(reference: Array, current: Array) -> Array:
    """⟨Δ, E⁰⟩ / ‖E⁰‖ of each row, below 0 when it shrinks towards the origin; NaN where the reference row is 0."""
    return dots(current - reference, reference) / or_nan(lengths(reference))


def tangential(reference: Array, current: Array) -> Array:
    """Norm of the part of Δ orthogonal to E⁰; NaN where the reference row is 0.

    The part is projected out: √(‖Δ‖² - radial²) would lose half the digits where Δ is almost radial. Δ and Eᵗ have the
    same part; it is taken from the shorter of the two, whose rounding errors are the smaller ones.
    """
    delta = current - reference
    is_nearer = dots(delta, delta) <= dots(current, current)
    shorter = np.where(is_nearer[:, None], delta, current)
    share = dots(shorter, reference) / or_nan(dots(reference, reference))
    return lengths(shorter - share[:, None] * reference)


def max_abs(reference: Array, current: Array) -> Array:
    """max|Δ| over the coordinates of each row."""
    return np.asarray(np.abs(current - reference).max(axis=1, initial=0.0))


def l1(reference: Array, current: Array) -> Array:
    """Σ|Δ| over the coordinates of each row."""
    return np.asarray(np.abs(current - reference).sum(axis=1))


def path_efficiency(path: Sequence[Array]) -> Array:
    """‖Eᵗ - E⁰‖ / Σ‖Eˢ - Eˢ⁻¹‖ of each row over (rows, hidden) arrays in order: 1 is a straight way, 0 a round trip.

    NaN where the row never moved: a way of length 0 is neither straight nor crooked. The denser the snapshots, the
    longer the path and the lower the value, so compare equal spacing only.
    """
    steps = [norm(before, after) for before, after in pairwise(path)]
    length = np.sum([np.zeros(len(path[0])), *steps], axis=0)
    return norm(path[0], path[-1]) / or_nan(length)


Measures = Mapping[str, Measure] | Iterable[str]
"""A mapping such as MEASURES, or names of its entries."""


def select_measures(measures: Measures) -> dict[str, Measure]:
    """The measures of a mapping, or those of MEASURES with the given names; ValueError for an unknown name."""
    return select(MEASURES, measures, "measure")


def lengths(rows: Array) -> Array:
    """Euclidean length of each row."""
    # Not np.linalg.norm(axis=1), which makes two temporary copies.
    return np.sqrt(dots(rows, rows))


def dots(left: Array, right: Array) -> Array:
    """Inner product of each row of one array with the same row of the other."""
    return np.asarray(np.vecdot(left, right))


def or_nan(denominator: Array) -> Array:
    """The denominator, NaN where it is 0, so that a quotient is NaN and numpy does not warn."""
    return np.where(denominator > 0, denominator, np.nan)


def summarise_null(drawn: Sequence[float] | Array) -> tuple[float, float, float, float]:
    """Mean, standard deviation, 2.5 % and 97.5 % quantile of the draws of a null; NaN of too few."""
    if len(drawn) == 0:
        return math.nan, math.nan, math.nan, math.nan
    low, high = np.quantile(drawn, (0.025, 0.975))
    deviation = float(np.std(drawn, ddof=1)) if len(drawn) > 1 else math.nan
    return float(np.mean(drawn)), deviation, float(low), float(high)


def _directions(rows: Array) -> Array:
    return rows / or_nan(lengths(rows))[:, None]


_DEFINITION = "by definition"

MEASURES: Mapping[str, Measure] = Table(
    (measure.name, measure)
    for measure in (
        Measure("norm", norm, "weight units", _DEFINITION, "Euclidean length of a row's change.", is_metric=True),
        Measure("relative", relative, "1", _DEFINITION, "Length of a row's change as a share of its length before."),
        Measure(  # no metric: twice 45 degrees costs 0.59, once 90 degrees costs 1
            "cosine_distance",
            cosine_distance,
            "1",
            "1 - cos θ by the identity 1 - cos θ = 2 sin²(θ/2) = ½‖û - v̂‖²",
            "One minus the cosine between a row before and after.",
        ),
        Measure(
            "angle_degrees",
            angle_degrees,
            "degrees",
            "W. Kahan, How Futile are Mindless Assessments of Roundoff (2006), section 12",
            "Angle between a row before and after.",
            is_metric=True,
        ),
        Measure(
            "radial",
            radial,
            "weight units",
            _DEFINITION,
            "Change along the row's direction before; weight decay alone makes it negative.",
            is_signed=True,
        ),
        Measure(
            "tangential",
            tangential,
            "weight units",
            _DEFINITION,
            "Length of the change across the row's direction before.",
        ),
        Measure(
            "max_abs",
            max_abs,
            "weight units",
            _DEFINITION,
            "Largest absolute change of one coordinate.",
            is_metric=True,
        ),
        Measure(
            "l1", l1, "weight units", _DEFINITION, "Sum of the absolute changes of all coordinates.", is_metric=True
        ),
    )
)
"""Every row measure, in the order of every table.

To add one: write its function above, its entry here, and in toolkit/schema.py its column and its name in ``_MEASURES``.
It then works everywhere, and its function is called for every block of rows. All eight take a third of a second for
30,522 x 768 (experiments/benchmarks/rows.py of commit 52f1e873).
"""
