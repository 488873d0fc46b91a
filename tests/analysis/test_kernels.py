"""CKA from kernels and RSA from distances against their definitions, however often an item is drawn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from scipy.stats import pearsonr, spearmanr

from toolkit.analysis.kernels import Refused, cka_of_kernels, item_distances, kernel, rsa_of_distances, standardised


def _hsic(k: np.ndarray, left: np.ndarray) -> float:
    """The U-statistic of Song et al. 2012 on two n by n kernels, term by term."""
    n, k, left = len(k), k.copy(), left.copy()
    np.fill_diagonal(k, 0)
    np.fill_diagonal(left, 0)
    ones = np.ones(n)
    total = np.trace(k @ left) + (ones @ k @ ones) * (ones @ left @ ones) / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * (ones @ k @ left @ ones)) / (n * (n - 3))


def plain_debiased(x: np.ndarray, y: np.ndarray) -> float:
    k, left = x @ x.T, y @ y.T
    return _hsic(k, left) / np.sqrt(_hsic(k, k) * _hsic(left, left))


def rsa(x: np.ndarray, y: np.ndarray, *, is_ranked: bool = True) -> float:
    return rsa_of_distances(item_distances(x), item_distances(y), is_ranked=is_ranked)


@given(st.integers(4, 40), st.integers(1, 12), st.floats(0, 3), st.integers(0, 100))
def test_each_item_once_is_the_n_by_n_form(n: int, p: int, noise: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    y = x @ rng.normal(size=(p, p)) + noise * rng.normal(size=(n, p))
    for is_standardised in (False, True):
        expected = plain_debiased(*((x / x.std(0), y / y.std(0)) if is_standardised else (x, y)))
        sides = (standardised(x), standardised(y)) if is_standardised else (x, y)
        assert cka_of_kernels(kernel(sides[0]), kernel(sides[1])) == pytest.approx(expected, abs=1e-9)


def test_an_item_drawn_twice_is_not_evidence_of_its_own() -> None:
    # Copies as items of their own would pull unrelated data up: every copied pair is "alike in both versions".
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 60, 10))
    values, naive = [], []
    for _ in range(100):
        draw = rng.integers(60, size=60)
        values.append(cka_of_kernels(kernel(x), kernel(y), np.bincount(draw, minlength=60)))
        naive.append(plain_debiased(x[draw], y[draw]))
    once = plain_debiased(x, y)
    assert abs(np.mean(values) - once) < 0.02
    assert np.mean(naive) > once + 0.05


@given(st.integers(8, 30), st.integers(0, 100))
def test_an_item_drawn_no_times_is_not_there(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, n, 5))
    is_kept = np.arange(n) != rng.integers(n)
    value = cka_of_kernels(kernel(x), kernel(y), is_kept.astype(np.float64))
    assert value == pytest.approx(plain_debiased(x[is_kept], y[is_kept]), abs=1e-9)


def test_rotation_and_scale_leave_it_alone_and_equal_items_have_no_value() -> None:
    rng = np.random.default_rng(2)
    x, rotation = rng.normal(size=(30, 5)), np.linalg.qr(rng.normal(size=(5, 5)))[0]
    assert cka_of_kernels(kernel(x), kernel(3 * x @ rotation + 7)) == pytest.approx(1)
    assert math.isnan(cka_of_kernels(kernel(x), kernel(np.ones_like(x))))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(4, 20), st.booleans())
def test_rsa_against_scipy_with_and_without_ties(seed: int, n: int, has_ties: bool) -> None:
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(size=(2, n, 3))
    y = x + rng.uniform(0, 2) * noise
    if has_ties:
        x, y = np.round(x), np.round(y)
        x[0], y[0] = 3, -3  # some distance always differs from the rest
    for is_ranked, theirs in ((True, spearmanr), (False, pearsonr)):
        expected = theirs(pdist(x), pdist(y))[0]
        if not np.isnan(expected):
            assert rsa(x, y, is_ranked=is_ranked) == pytest.approx(expected, abs=1e-9)


def test_distances_that_are_all_equal_have_no_rsa() -> None:
    with pytest.raises(Refused, match="all distances of a version are equal"):
        rsa(np.ones((6, 2)), np.random.default_rng(0).normal(size=(6, 2)))
