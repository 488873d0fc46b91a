"""Procrustes and CCA against scipy and the plain formulas, what Procrustes absorbs, and when CCA is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes, subspace_angles

from tests.refusals import check_refusals, check_refused
from toolkit.analysis.drift import measure_drift
from toolkit.analysis.kernels import Refused
from toolkit.questions.space.cross_products import cross_products_of
from toolkit.questions.space.similarity import measure_similarity
from toolkit.questions.space.similarity_measures import (
    aligned_relative_drift,
    canonical_correlations,
    procrustes_similarity,
    pwcca,
    rotation_share,
    svcca,
    translation_share,
    unaligned_relative_drift,
)


def _rotation(rng, p):
    return np.linalg.qr(rng.normal(size=(p, p)))[0]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(3, 30), st.integers(1, 8), st.floats(0.01, 3))
def test_procrustes_against_scipy_on_the_rows(seed, n, p, size):
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(0.5, 1, (2, n, p))
    y = x @ _rotation(rng, p) + size * noise
    a, b = x - x.mean(0), y - y.mean(0)
    rotation, nuclear = orthogonal_procrustes(a, b)
    products, norm = cross_products_of(x, y), np.linalg.norm(x)
    assert procrustes_similarity(products) == pytest.approx(nuclear / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-10)
    assert unaligned_relative_drift(products) == pytest.approx(np.linalg.norm(y - x) / norm, rel=1e-10)
    assert aligned_relative_drift(products) == pytest.approx(np.linalg.norm(a @ rotation - b) / norm, abs=1e-7)
    shares = translation_share(products), rotation_share(products)
    left = (aligned_relative_drift(products) / unaligned_relative_drift(products)) ** 2
    assert sum(shares) + left == pytest.approx(1, abs=1e-12)
    assert min(shares) >= 0


def test_what_similarity_procrustes_finds_where_there_is_none():
    x, y = np.random.default_rng(0).normal(size=(2, 512, 768))
    assert procrustes_similarity(cross_products_of(x, y)) == pytest.approx(0.834, abs=0.004)
    assert procrustes_similarity(cross_products_of(x[:2], y[:2])) == pytest.approx(1, abs=1e-10)


def _absorbed(n, p):
    rng = np.random.default_rng(n + p)
    x = rng.normal(size=(n, p))
    products = cross_products_of(x, x + 0.02 * rng.normal(size=(n, p)))
    assert 100 * unaligned_relative_drift(products) == pytest.approx(2, abs=0.01)
    return 100 * aligned_relative_drift(products), rotation_share(products)


def test_procrustes_absorbs_real_drift_where_rows_are_few():
    aligned, share = _absorbed(512, 384)
    assert aligned == pytest.approx(1.58, abs=0.01)
    assert share == pytest.approx(383 / 1024, abs=0.01)  # the p(p - 1)/2 directions of a rotation, of np
    assert _absorbed(512, 768)[0] == pytest.approx(1.16, abs=0.01)
    assert _absorbed(4000, 96)[1] == pytest.approx(95 / 8000, rel=0.05)


def test_the_shares_find_what_was_planted():
    rng = np.random.default_rng(1)
    x = rng.normal(0.3, 1, (2000, 12))
    skew = rng.normal(size=(12, 12)) * 0.01
    turn = np.linalg.matrix_power(np.eye(12) + (skew - skew.T) / 64, 64)
    turned = cross_products_of(x, (x - x.mean(0)) @ turn + x.mean(0))
    assert (rotation_share(turned), translation_share(turned)) == (pytest.approx(1, abs=1e-3), pytest.approx(0))
    assert translation_share(cross_products_of(x, x + rng.normal(size=12))) == pytest.approx(1, abs=1e-12)
    shrunk = cross_products_of(x - x.mean(0), 0.9 * (x - x.mean(0)))
    assert (rotation_share(shrunk), aligned_relative_drift(shrunk)) == pytest.approx((0, 0.1), rel=1e-12, abs=1e-12)
    mirrored = cross_products_of(x, x * np.where(np.arange(12) == 3, -1, 1))
    assert aligned_relative_drift(mirrored) == pytest.approx(0, abs=1e-7)


def test_small_drift_keeps_its_digits():
    x, delta = np.random.default_rng(2).normal(size=(2, 300, 10))
    drifts = [aligned_relative_drift(cross_products_of(x, x + size * delta)) / size for size in (1e-9, 1e-6)]
    assert drifts[0] == pytest.approx(drifts[1], rel=1e-5)
    assert aligned_relative_drift(cross_products_of(x, x)) == 0


def test_unaligned_drift_is_that_of_the_whole_parameter(make_trajectory):
    trajectory = make_trajectory()
    drift = measure_drift(trajectory, ["relative"]).query(
        "parameter == 'word_embeddings' and stratum == 'whole parameter' and statistic == 'value' and epoch == 3"
    )
    here = measure_similarity(trajectory, measures=["unaligned_relative_drift"], num_null=0)
    assert here.value.item() == pytest.approx(drift.value.item(), rel=1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(0, 3))
def test_canonical_correlations_against_subspace_angles(seed, p, size):
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(1, 1, (2, 8 * p + 4, p))
    y = x @ rng.normal(size=(p, p)) + size * noise
    expected = np.sort(np.cos(subspace_angles(x - x.mean(0), y - y.mean(0))))[::-1]
    assert np.allclose(canonical_correlations(cross_products_of(x, y)), expected, atol=1e-6)


def _plain_svcca(x, y):
    """Raghu et al. 2017: truncated SVD of each side, then CCA of what is left."""
    sides = []
    for rows in (x, y):
        u, s, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
        count = np.argmax(np.cumsum(s**2) / np.sum(s**2) >= 0.99) + 1
        sides.append(u[:, :count] * s[:count])
    return np.mean(np.cos(subspace_angles(*sides)))


def _plain_pwcca(x, y):
    """Morcos et al. 2018 with the weights of x: variates of length 1, each against every column of x."""
    x, y = x - x.mean(0), y - y.mean(0)
    basis_x, basis_y = np.linalg.qr(x)[0], np.linalg.qr(y)[0]
    u, correlations, _ = np.linalg.svd(basis_x.T @ basis_y)
    weights = [sum(abs(variate @ column) for column in x.T) for variate in (basis_x @ u).T]
    return np.average(correlations, weights=weights)


def test_svcca_and_pwcca_against_their_definitions():
    rng = np.random.default_rng(3)
    x = rng.normal(2, 1, (400, 20)) * np.geomspace(1, 0.01, 20)
    y = x @ rng.normal(size=(20, 20)) + 0.3 * rng.normal(size=(400, 20))
    products, swapped = cross_products_of(x, y), cross_products_of(y, x)
    assert (svcca(products), svcca(swapped)) == pytest.approx((_plain_svcca(x, y),) * 2, rel=1e-9)
    both = pwcca(products), pwcca(products, weights_of="current")
    assert both == pytest.approx((_plain_pwcca(x, y), _plain_pwcca(y, x)), rel=1e-9)
    assert abs(pwcca(products) - pwcca(swapped)) > 0.01, "it is asymmetric"
    assert len(canonical_correlations(products, 0.99)) < 20
    turned = cross_products_of(x @ _rotation(rng, 20), y)
    assert abs(pwcca(turned) - pwcca(products)) > 1e-3, "the weights depend on the basis of their version"
    assert pwcca(cross_products_of(x, y @ rng.normal(size=(20, 20)))) == pytest.approx(pwcca(products), rel=1e-6)


def test_refusals():
    x, y = np.random.default_rng(5).normal(size=(2, 49, 10))
    for measure in (svcca, pwcca):
        with pytest.raises(Refused, match="needs at least 5 rows per column: 49 rows, 10 columns"):
            measure(cross_products_of(x, y))
    check_refusals(
        ("no row moved", lambda: rotation_share(cross_products_of(x, x))),
        ("no row moved", lambda: translation_share(cross_products_of(x, x))),
        ("the reference is 0", lambda: aligned_relative_drift(cross_products_of(0 * x, y))),
        ("all equal", lambda: procrustes_similarity(cross_products_of(np.ones((9, 2)), x[:9, :2]))),
        ("all equal", lambda: svcca(cross_products_of(np.ones((20, 2)), x[:20, :2]))),
        kind=Refused,
    )
    check_refused("'reference' or 'current', not 'before'", pwcca, cross_products_of(x, y), weights_of="before")
