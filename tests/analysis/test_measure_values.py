"""Row measures against oracles: exact arithmetic, known values, geometry, and the path of a row."""

import math
import statistics
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.refusals import check_refused
from toolkit.analysis.measures import MEASURES, path_efficiency, select_measures, summarise_null

PAIRS = arrays(np.float64, (2, 4, 3), elements=st.floats(-8, 8, width=32).map(float))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(2, 24))
def test_rotation_leaves_all_but_the_coordinate_measures_alone(seed, hidden):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 5, hidden))
    rotation = np.linalg.qr(rng.normal(size=(hidden, hidden)))[0]
    for name, measure in MEASURES.items():
        assert np.allclose(measure.function(a @ rotation, b @ rotation), measure.function(a, b), atol=1e-12) == (
            name not in ("max_abs", "l1")
        ), name


@settings(max_examples=100, deadline=None, derandomize=True)
@given(PAIRS)
def test_radial_and_tangential_are_the_legs_of_the_drift(pair):
    a, b = pair
    legs = np.hypot(MEASURES["radial"].function(a, b), MEASURES["tangential"].function(a, b))
    assert np.allclose(legs[a.any(axis=1)], MEASURES["norm"].function(a, b)[a.any(axis=1)], rtol=1e-12, atol=1e-300)
    assert np.isnan(legs[~a.any(axis=1)]).all()


def _exact(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Angle, cosine distance and tangential part of one row to 50 digits; floats are exact fractions."""
    rows = [[Fraction(x) for x in row.tolist()] for row in (a, b)]
    aa, bb, ab = (sum(x * y for x, y in zip(rows[i], rows[j], strict=True)) for i, j in ((0, 0), (1, 1), (0, 1)))
    with localcontext(prec=50):
        squared_sine = _decimal((aa * bb - ab * ab) / (aa * bb))
        sine = squared_sine.sqrt()
        angle = sine + sine**3 / 6 + 3 * sine**5 / 40  # the series of arcsin; the next term is below 1e-20
        tangential = _decimal((aa * bb - ab * ab) / aa).sqrt()
        cosine_distance = 1 - (1 - squared_sine).sqrt()
    return {
        "angle_degrees": np.degrees(float(angle)),
        "cosine_distance": float(cosine_distance),
        "tangential": float(tangential),
    }


def _decimal(fraction: Fraction) -> Decimal:
    return Decimal(fraction.numerator) / Decimal(fraction.denominator)


@pytest.mark.parametrize("drift", [1e-9, 1e-6, 1e-3])
def test_small_drift_against_exact_arithmetic(drift):
    a, delta = np.random.default_rng(3).normal(size=(2, 20, 64))
    b = a + drift * delta
    for i in range(len(a)):
        for name, expected in _exact(a[i], b[i]).items():
            assert MEASURES[name].function(a[i : i + 1], b[i : i + 1])[0] == pytest.approx(expected, rel=1e-6, abs=0), (
                name
            )
    if drift == 1e-9:  # the textbook formula has no correct digit left
        cosines = np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        textbook = np.degrees(np.arccos(np.clip(cosines, -1, 1)))
        assert abs(textbook / MEASURES["angle_degrees"].function(a, b) - 1).min() > 0.1


@pytest.mark.parametrize(("share", "drift", "error"), [(0.99, 1e-9, 1e-5), (1, 1e-12, 1e-11), (0, 1e-9, 1e-11)])
def test_the_tangential_part_of_what_mostly_shrank_hardly_moved_or_shrank_to_nearly_nothing(share, drift, error):
    """Projected out of the longer of Δ and Eᵗ it would keep four digits of the second, or seven of the third."""
    a, delta = np.random.default_rng(4).normal(size=(2, 20, 64))
    b = share * a + drift * delta
    for i, value in enumerate(MEASURES["tangential"].function(a, b)):
        assert value == pytest.approx(_exact(a[i], b[i])["tangential"], rel=error, abs=0)


def test_a_null_is_summarised_by_mean_sample_deviation_and_quantiles():
    drawn = np.arange(41.0) ** 2
    low, high = sorted(drawn)[1], sorted(drawn)[39]  # of 41 draws the second and the last but one
    assert summarise_null(drawn) == pytest.approx((drawn.mean(), statistics.stdev(drawn), low, high), rel=1e-12)
    assert summarise_null([3.0]) == pytest.approx((3.0, math.nan, 3.0, 3.0), nan_ok=True)
    assert np.isnan(summarise_null([])).all()
    assert summarise_null([1.0, 3.0])[1] == pytest.approx(math.sqrt(2))


def test_known_values():
    a, b = np.array([[3.0, 0, 0], [1, 0, 0], [0, 2, 0]]), np.array([[0.0, 4, 0], [-1, 0, 0], [0, 1, 0]])
    expected = {
        "norm": [5, 2, 1],
        "relative": [5 / 3, 2, 0.5],
        "cosine_distance": [1, 2, 0],
        "angle_degrees": [90, 180, 0],
        "radial": [-3, -2, -1],
        "tangential": [4, 0, 0],
        "max_abs": [4, 2, 1],
        "l1": [7, 2, 1],
    }
    assert list(expected) == list(MEASURES)
    for name, values in expected.items():
        assert np.allclose(MEASURES[name].function(a, b), values, rtol=1e-15, atol=1e-15), name


def test_unknown_measure_names_the_nearest():
    assert list(select_measures(["l1", "norm"])) == ["l1", "norm"]
    assert list(select_measures("norm")) == ["norm"]
    check_refused(
        r"unknown measure 'cosine_distanc' \(did you mean 'cosine_distance'\?\)", select_measures, ["cosine_distanc"]
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(arrays(np.float64, (3, 2), elements=st.floats(-8, 8, width=32)), min_size=1, max_size=5))
def test_path_efficiency_is_a_share_of_the_path(path):
    for i, value in enumerate(path_efficiency(path)):
        rows = [version[i] for version in path]
        length = sum(np.linalg.norm(after - before) for before, after in pairwise(rows))
        if length == 0:
            assert np.isnan(value)
        else:
            assert value == pytest.approx(np.linalg.norm(rows[-1] - rows[0]) / length, rel=1e-12)
            assert 0 <= value <= 1 + 1e-12
