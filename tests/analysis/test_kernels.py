"""Debiased CKA from kernels: the closed form, whatever the number of times that an item is drawn, and invariances."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.cross_products import cross_products_of
from toolkit.analysis.similarity_measures import cka_of_kernels, debiased_cka, kernel, standardised


@given(st.integers(4, 40), st.integers(1, 12), st.floats(0, 3), st.integers(0, 100))
def test_each_item_once_is_the_moment_form(n: int, p: int, noise: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    y = x @ rng.normal(size=(p, p)) + noise * rng.normal(size=(n, p))
    for is_standardised in (False, True):
        expected = debiased_cka(cross_products_of(x, y), is_standardised=is_standardised)
        sides = (standardised(x), standardised(y)) if is_standardised else (x, y)
        value = cka_of_kernels(kernel(sides[0]), kernel(sides[1]))
        assert value == pytest.approx(expected, abs=1e-9)


def test_an_item_drawn_twice_is_not_evidence_of_its_own() -> None:
    # Copies as items of their own would pull unrelated data up: every copied pair is "alike in both versions".
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 60, 10))
    values, naive = [], []
    for _ in range(100):
        draw = rng.integers(60, size=60)
        times = np.bincount(draw, minlength=60)
        values.append(cka_of_kernels(kernel(x), kernel(y), times))
        naive.append(debiased_cka(cross_products_of(x[draw], y[draw])))
    once = debiased_cka(cross_products_of(x, y))
    assert abs(np.mean(values) - once) < 0.02
    assert np.mean(naive) > once + 0.05


@given(st.integers(8, 30), st.integers(0, 100))
def test_an_item_drawn_no_times_is_not_there(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, n, 5))
    is_kept = np.arange(n) != rng.integers(n)
    value = cka_of_kernels(kernel(x), kernel(y), is_kept.astype(np.float64))
    assert value == pytest.approx(debiased_cka(cross_products_of(x[is_kept], y[is_kept])), abs=1e-9)


def test_rotation_and_scale_leave_it_alone_and_equal_items_have_no_value() -> None:
    rng = np.random.default_rng(2)
    x, rotation = rng.normal(size=(30, 5)), np.linalg.qr(rng.normal(size=(5, 5)))[0]
    assert cka_of_kernels(kernel(x), kernel(3 * x @ rotation + 7)) == pytest.approx(1)
    assert math.isnan(cka_of_kernels(kernel(x), kernel(np.ones_like(x))))
