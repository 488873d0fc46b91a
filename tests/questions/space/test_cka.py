"""CKA against its n by n definitions, its known values on unrelated rows, and what must and must not move it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.test_kernels import plain_debiased
from tests.refusals import check_refusals, check_refused
from toolkit.analysis.kernels import Refused
from toolkit.questions.space.cross_products import cross_products_of
from toolkit.questions.space.similarity_measures import biased_cka, debiased_cka


def _plain_biased(x, y):
    centre = np.eye(len(x)) - 1 / len(x)
    k, left = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    return np.sum(k * left) / np.sqrt(np.sum(k * k) * np.sum(left * left))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(4, 14), st.integers(2, 9), st.floats(0, 3), st.floats(-2, 2))
def test_against_the_n_by_n_forms(seed, n, p, mean, shared):
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(mean, 1, (2, n, p))
    y = shared * x + noise
    x *= rng.uniform(0.5, 2, p)  # so that standardising matters
    products = cross_products_of(x, y)
    for left, right, is_standardised in ((x, y, False), (x / x.std(0), y / y.std(0), True)):
        assert biased_cka(products, is_standardised=is_standardised) == pytest.approx(
            _plain_biased(left, right), abs=1e-9
        )
        expected = plain_debiased(left, right)
        assert debiased_cka(products, is_standardised=is_standardised) == pytest.approx(expected, abs=1e-7)
        assert abs(expected) <= 1 + 1e-9


def test_unrelated_rows_give_p_over_n_plus_p_when_biased_and_two_rows_always_one():
    x, y = np.random.default_rng(0).normal(size=(2, 512, 768))
    assert biased_cka(cross_products_of(x, y)) == pytest.approx(0.600, abs=0.004)
    assert biased_cka(cross_products_of(x[:, :96], y[:, :96])) == pytest.approx(96 / (512 + 96), abs=0.004)
    assert biased_cka(cross_products_of(x[:2], y[:2])) == pytest.approx(1, abs=1e-12)
    assert biased_cka(cross_products_of(x[:3, :2], y[:3, :2])) < 0.999


@pytest.mark.parametrize(("n", "draws"), [(128, 100), (512, 30), pytest.param(512, 400, marks=pytest.mark.slow)])
def test_unrelated_rows_give_0_when_debiased_and_negatives_are_kept(n, draws):
    rng = np.random.default_rng(n)
    values = [debiased_cka(cross_products_of(*rng.normal(size=(2, n, 768)))) for _ in range(draws)]
    # A correlation over n(n - 3)/2 free distances (Székely & Rizzo 2013): .0112 at n = 128, .00277 at 512.
    deviation = np.sqrt(2 / (n * (n - 3)))
    assert np.std(values, ddof=1) == pytest.approx(deviation, rel=3 / np.sqrt(2 * draws))
    assert abs(np.mean(values)) < 3.5 * deviation / np.sqrt(draws)
    assert min(values) < -deviation / 2


def test_a_constant_column_drops_out_of_the_standardised_value():
    x, y = np.random.default_rng(3).normal(size=(2, 50, 6))
    y += x
    constant = np.full((50, 1), 0.1)
    for measure in (biased_cka, debiased_cka):
        expected = measure(cross_products_of(x, y), is_standardised=True)
        more = cross_products_of(np.hstack([x, constant]), np.hstack([y, constant]))
        assert measure(more, is_standardised=True) == pytest.approx(expected, rel=1e-12)


def test_refusals():
    x, y = np.random.default_rng(4).normal(size=(2, 3, 5))
    with pytest.raises(Refused, match="debiased CKA needs at least 4 rows, there are 3"):
        debiased_cka(cross_products_of(x, y))
    equal = np.ones((5, 2))
    check_refusals(
        (
            "rows of a version are all equal",
            lambda: biased_cka(cross_products_of(equal, np.arange(10.0).reshape(5, 2))),
        ),
        (
            "equally far",
            lambda: debiased_cka(cross_products_of(np.eye(6), np.random.default_rng(0).normal(size=(6, 6)))),
        ),
        kind=Refused,
    )
    check_refused(r"the shapes are \(3, 5\) and \(3, 4\)", cross_products_of, x, y[:, :4])


def test_cross_products_are_the_plain_sums_whatever_the_block_and_the_dtype(monkeypatch):
    monkeypatch.setattr("toolkit.questions.space.cross_products.BLOCK_ROWS", 7)
    x, y = np.random.default_rng(5).normal(2, 1, (2, 40, 5)).astype(np.float32)
    products = cross_products_of(x, y)
    x, y = x.astype(np.float64), y.astype(np.float64)
    a, b = x - x.mean(0), y - y.mean(0)
    expected = {
        "xx": a.T @ a,
        "xy": a.T @ b,
        "yy": b.T @ b,
        "centred_change": np.sum((b - a) ** 2),
        "square": np.sum(x**2),
    }
    for name, value in expected.items():
        assert np.allclose(getattr(products, name), value, rtol=1e-12, atol=1e-11), name
    assert products.squared_change == pytest.approx(np.sum((y - x) ** 2), rel=1e-12)
    assert np.allclose(products.norms, [np.sum(a**2, 1), np.sum(b**2, 1)], rtol=1e-12)


def test_a_version_far_smaller_than_the_other_keeps_its_own_sums():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(2, 500, 16))
    for factor in (1, 1e-4, 1e-8):
        products = cross_products_of(x, factor * y)
        b = factor * (y - y.mean(0))
        assert np.allclose(products.yy / factor**2, b.T @ b / factor**2, rtol=1e-9, atol=1e-6)
        assert biased_cka(products) == pytest.approx(biased_cka(cross_products_of(x, y)), rel=1e-6)
