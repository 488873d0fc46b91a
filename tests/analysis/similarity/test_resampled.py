"""Debiased CKA over resampled items: the closed form, invariances, and intervals that cover."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.similarity.cka import debiased_cka
from toolkit.analysis.similarity.moments import moments_of
from toolkit.analysis.similarity.refusal import Refused
from toolkit.analysis.similarity.resampled import cka_of_kernels, kernel, resampled_cka


@given(st.integers(4, 40), st.integers(1, 12), st.floats(0, 3), st.integers(0, 100))
def test_each_item_once_is_the_moment_form(n: int, p: int, noise: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    y = x @ rng.normal(size=(p, p)) + noise * rng.normal(size=(n, p))
    for is_standardised in (False, True):
        expected = debiased_cka(moments_of(x, y), is_standardised=is_standardised)
        value = resampled_cka(x, y, is_standardised=is_standardised)[0]
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
        naive.append(debiased_cka(moments_of(x[draw], y[draw])))
    once = debiased_cka(moments_of(x, y))
    assert abs(np.mean(values) - once) < 0.02
    assert np.mean(naive) > once + 0.05


@pytest.mark.parametrize("noise", [0.2, 1.0])
def test_the_interval_covers_the_value_of_many_items(noise: float) -> None:
    rng = np.random.default_rng(1)
    mixing = rng.normal(size=(12, 12)) / math.sqrt(12)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, 12)) * np.linspace(2, 0.3, 12)
        return x, x @ mixing + noise * rng.normal(size=(n, 12))

    truth = debiased_cka(moments_of(*draw(20_000)))
    hits = sum(low <= truth <= high for _, low, high in (resampled_cka(*draw(60), seed=i) for i in range(60)))
    assert hits >= 52  # of 60 at 95 %: fewer has a probability of 0.4 % if the level holds


def test_rotation_and_scale_leave_it_alone() -> None:
    rng = np.random.default_rng(2)
    x, rotation = rng.normal(size=(30, 5)), np.linalg.qr(rng.normal(size=(5, 5)))[0]
    assert resampled_cka(x, 3 * x @ rotation + 7)[0] == pytest.approx(1)


def test_too_few_items_have_no_interval_and_equal_ones_no_value() -> None:
    x = np.random.default_rng(3).normal(size=(10, 4))
    value, low, high = resampled_cka(x, x)
    assert value == pytest.approx(1)
    assert math.isnan(low)
    assert math.isnan(high)
    for is_standardised in (False, True):
        with pytest.raises(Refused, match="undefined"):
            resampled_cka(x, np.ones_like(x), is_standardised=is_standardised)
