"""Row measures as mathematics: the laws that every entry of MEASURES obeys, and wrong measures that break them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from toolkit.analysis.measures import MEASURES, Measure

FLOATS = st.floats(-8, 8, width=32).map(float)  # snapshots are fp32: zeros, subnormals and repeats included


@st.composite
def three_versions(draw):
    """Three versions of the same rows, each (rows, hidden) float64; some rows are exactly 0."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 5)))
    versions = [draw(arrays(np.float64, shape, elements=FLOATS)) for _ in range(3)]
    for version in versions:
        version[draw(st.lists(st.integers(0, shape[0] - 1), max_size=1))] = 0
    return versions


def check_laws(measure: Measure, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """What is true of any drift measure, given what its entry declares. The same function judges the planted faults."""

    def m(reference, current):
        before = reference.copy(), current.copy()
        with np.errstate(divide="raise", invalid="raise"):
            values = measure.function(reference, current)
        assert values.dtype == np.float64, "not float64"
        assert np.array_equal((reference, current), before), "an input was changed"
        assert (values.shape, np.isinf(values).any()) == ((len(reference),), False)
        return values

    value = m(a, b)
    assert not np.isnan(value[a.any(axis=1) & b.any(axis=1)]).any(), "undefined between two rows that are not 0"
    assert not np.nan_to_num(m(a, a)).any(), "a row that stayed has drifted"
    assert not (m(np.zeros_like(b), b)[b.any(axis=1)] == 0).any(), "a row that left the origin has not drifted"
    if np.isnan(m(a, np.zeros_like(a))[a.any(axis=1)]).any():
        # Only a function of the direction has no value at 0.
        assert np.array_equal(m(a, 2 * b), value, equal_nan=True), "undefined where the current row is 0"
    alone = [m(a[i : i + 1], b[i : i + 1])[0] for i in range(len(a))]
    assert np.array_equal(alone, value, equal_nan=True), "rows influence each other"
    # A power of two scales every float exactly, so this needs no tolerance.
    expected = 4 * value if measure.unit == "weight units" else value
    assert np.array_equal(m(4 * a, 4 * b), expected, equal_nan=True), "the unit is wrong"
    shrunk = m(a, a / 2)[a.any(axis=1)]
    grown = m(a, 2 * a)[a.any(axis=1)]
    is_negative = (shrunk < 0).all() or (grown < 0).all()
    assert is_negative or not measure.is_signed, "declared signed but never negative"
    assert measure.is_signed or not (value < 0).any(), "a negative value that the entry does not declare"
    if measure.is_metric:
        assert np.array_equal(m(b, a), value, equal_nan=True), "not symmetric"
        detour = m(a, c) + m(c, b)
        assert not (value > detour * (1 + 1e-12) + 1e-12).any(), "not a metric: the detour is shorter"


def check_near_zero(measure: Measure) -> None:
    """Twice a drift of 1e-9 is two or four times the value: no noise, no saturation (arccos fails here)."""
    row, delta = np.random.default_rng(2).normal(size=(2, 30, 48))
    once, twice = (measure.function(row, row + t * delta) for t in (1e-9, 2e-9))
    assert (once != 0).all(), "drifts of 1e-9 are lost"
    order = np.log2(twice / once)
    assert np.allclose(order, np.round(order), atol=1e-4), "noise near 0"
    assert (np.round(order) >= 1).all(), "saturated near 0"


def check_contract(measure: Measure, phases=tuple(Phase)) -> None:
    @settings(
        max_examples=100, deadline=None, derandomize=True, database=None, report_multiple_bugs=False, phases=phases
    )
    @given(three_versions())
    def laws(versions):
        check_laws(measure, *versions)

    laws()
    check_near_zero(measure)


@pytest.mark.parametrize("name", MEASURES)
def test_contract(name):
    measure = MEASURES[name]
    assert (measure.name, bool(measure.source)) == (name, True)
    assert measure.description.endswith(".")
    assert measure.unit in ("weight units", "1", "degrees")
    check_contract(measure)


def _cosine(a, b):
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.sum(a * b, axis=1) / np.where(lengths > 0, lengths, np.nan)


def _arccos(a, b):
    return np.degrees(np.arccos(np.clip(_cosine(a, b), -1, 1)))


def _norm(a, b):
    return np.linalg.norm(b - a, axis=1)


def _in_place(a, b):
    b -= a
    return np.linalg.norm(b, axis=1)


def _or_one(lengths):
    return np.where(lengths > 0, lengths, 1)


ANGLE, COSINE, RELATIVE = MEASURES["angle_degrees"], MEASURES["cosine_distance"], MEASURES["relative"]
NORM, RADIAL = MEASURES["norm"], MEASURES["radial"]

FAULTS = {
    "arccos": (
        replace(ANGLE, function=_arccos),
        "a row that stayed has drifted",
    ),
    "one minus cosine": (replace(COSINE, function=lambda a, b: 1 - _cosine(a, b)), "a row that stayed has drifted"),
    "cosine distance as a metric": (replace(COSINE, is_metric=True), "not a metric"),
    "relative as a metric": (replace(RELATIVE, is_metric=True), "not symmetric"),
    "relative to the current norm": (
        replace(RELATIVE, function=lambda a, b: _norm(a, b) / np.where(b.any(axis=1), _norm(0, b), np.nan)),
        "undefined where the current row is 0",
    ),
    "0 for undefined": (
        replace(RELATIVE, function=lambda a, b: np.where(a.any(axis=1), _norm(a, b) / _or_one(_norm(0, a)), 0)),
        "a row that left the origin has not drifted",
    ),
    "relative to the mean norm": (
        replace(RELATIVE, function=lambda a, b: _norm(a, b) / _or_one(_norm(0, a).mean())),
        "rows influence each other",
    ),
    "squared": (replace(NORM, function=lambda a, b: _norm(a, b) ** 2), "the unit is wrong"),
    "wrong unit": (replace(NORM, unit="1"), "the unit is wrong"),
    "sign not declared": (replace(RADIAL, is_signed=False), "a negative value that the entry does not declare"),
    "sign lost": (
        replace(RADIAL, function=lambda a, b: np.abs(RADIAL.function(a, b))),
        "declared signed but never negative",
    ),
    "changes its input": (replace(NORM, function=_in_place), "an input was changed"),
    "float32": (replace(NORM, function=lambda a, b: _norm(a, b).astype(np.float32)), "not float64"),
    "similarity": (replace(COSINE, function=_cosine), "a row that stayed has drifted"),
}
"""Wrong measures, and the law that each breaks."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_measure_breaks_the_contract(name):
    measure, broken_law = FAULTS[name]
    with pytest.raises(AssertionError, match=broken_law):
        check_contract(measure, phases=(Phase.generate,))


@pytest.mark.parametrize("name", ["arccos", "one minus cosine"])
def test_noise_near_0_is_caught_even_where_a_row_that_stayed_would_pass(name):
    with pytest.raises(AssertionError, match=r"drifts of 1e-9 are lost|noise near 0"):
        check_near_zero(FAULTS[name][0])
