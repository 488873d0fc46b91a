"""Neighbourhoods against loops and scikit-learn; chance, duplicates, rows of zeros, and the trap of a common mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from tests.refusals import check_refusals
from toolkit.analysis.kernels import Refused
from toolkit.questions.space.similarity_measures import find_neighbourhoods, overlap, second_order_cosine


def _cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def _plain(x, y, k, queries):
    """Overlap and second-order cosine of each query, pair by pair."""
    shares, second = [], []
    for i in queries:
        near = []
        for rows in (x, y):
            others = [j for j in range(len(x)) if j != i]
            near.append(sorted(others, key=lambda j, rows=rows: (-round(_cosine(rows[i], rows[j]), 12), j))[:k])
        shares.append(len(set(near[0]) & set(near[1])) / k)
        union = sorted(set(near[0]) | set(near[1]))
        second.append(_cosine(*(np.array([_cosine(rows[i], rows[j]) for j in union]) for rows in (x, y))))
    return np.array(shares), np.array(second)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans(), st.booleans())
def test_against_loops(seed, k, is_centred, is_restricted):
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(0.5, 1, (2, 24, 3))
    y = x + rng.uniform(0, 1) * noise
    x[3], y[3] = x[5], y[5]  # duplicates
    queries = rng.permutation(24)[:9] if is_restricted else None
    a, b = (x - x.mean(0), y - y.mean(0)) if is_centred else (x, y)
    shares, second = _plain(a, b, k, np.arange(24) if queries is None else queries)
    found = find_neighbourhoods(x, y, k, queries=queries, is_centred=is_centred)
    assert np.allclose(overlap(found, is_corrected=False), shares)
    chance = k / found.num_others
    assert np.allclose(overlap(found), (shares - chance) / (1 - chance))
    assert np.allclose(second_order_cosine(x, y, found), second, atol=1e-10)


def test_against_scikit_learn_over_several_blocks(monkeypatch):
    monkeypatch.setattr("toolkit.questions.space.similarity_measures.CHECKED_ROWS", 64)
    x, y = np.random.default_rng(0).normal(size=(2, 700, 16)).astype(np.float32)
    found = find_neighbourhoods(x, y, 7, queries=np.arange(5, 300))
    for rows, ours in ((x, found.reference), (y, found.current)):
        theirs = NearestNeighbors(n_neighbors=8, metric="cosine").fit(rows.astype(np.float64))
        assert np.array_equal(ours, theirs.kneighbors(rows[5:300].astype(np.float64), return_distance=False)[:, 1:])


def test_unrelated_rows_keep_what_chance_keeps():
    x, y = np.random.default_rng(1).normal(size=(2, 1500, 24))
    found = find_neighbourhoods(x, y, 10)
    # Hypergeometric: k of n - 1 with k marked; its SD over 1,500 rows, which are nearly independent.
    deviation = np.sqrt(10 / 1499 * (1 - 10 / 1499) / 10 / 1500)
    assert overlap(found, is_corrected=False).mean() == pytest.approx(10 / 1499, abs=4 * deviation)
    assert overlap(found).mean() == pytest.approx(0, abs=4 * deviation)
    assert overlap(found).min() < 0, "negatives are kept"


def test_destroyed_neighbourhoods_are_found():
    x, noise = np.random.default_rng(2).normal(size=(2, 400, 12))
    moved = np.arange(400) < 100  # a quarter of the rows somewhere else
    shares = overlap(find_neighbourhoods(x, np.where(moved[:, None], noise, x), 10))
    assert abs(shares[moved].mean()) < 0.05 < 0.6 < shares[~moved].mean()


def test_a_common_mean_makes_unrelated_rows_look_alike_until_it_is_taken_away():
    x, y = np.random.default_rng(3).normal(1, 1, (2, 512, 768))
    raw, centred = (find_neighbourhoods(x, y, 10, is_centred=is_centred) for is_centred in (False, True))
    assert second_order_cosine(x, y, raw).mean() == pytest.approx(0.994, abs=0.002)
    value = second_order_cosine(x, y, centred).mean()
    order = np.random.default_rng(4).permutation(512)
    null = second_order_cosine(x, y[order], find_neighbourhoods(x, y[order], 10, is_centred=True)).mean()
    assert abs(value) < 0.1
    assert value == pytest.approx(null, abs=0.03)


def test_duplicates_are_neighbours_and_rows_of_zeros_are_left_out():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(30, 6))
    x[10:14] = x[20]
    y = x + 0.01 * rng.normal(size=x.shape)
    y[10:14] = y[20]
    x[7] = y[8] = 0
    found = find_neighbourhoods(x, y, 4)
    assert (set(found.queries), found.num_others) == (set(range(30)) - {7, 8}, 27)
    row = np.flatnonzero(found.queries == 12)[0]
    for near in (found.reference, found.current):
        assert not np.isin(near, [7, 8]).any()
        assert not (near == found.queries[:, None]).any(), "a row is its own neighbour"
        assert list(near[row]) == [10, 11, 13, 20]
    mean = x - x.mean(0)
    mean[3] = -mean[[i for i in range(30) if i != 3]].sum(0)  # so that row 3 + c is the mean row of rows + c
    shifted = np.vstack([mean, mean.mean(0)]) + 1000
    assert 30 not in find_neighbourhoods(shifted, shifted, 4, is_centred=True).queries


def test_refusals():
    x, y = np.random.default_rng(7).normal(size=(2, 11, 4))
    find_neighbourhoods(x, y, 9)
    check_refusals(
        ("more than k = 10 other rows with a direction, there are 10", lambda: find_neighbourhoods(x, y, 10)),
        ("no query row has a direction", lambda: find_neighbourhoods(0 * x, y, 3)),
        kind=Refused,
    )
    check_refusals(
        ("at least 1, not 0", lambda: find_neighbourhoods(x, y, 0)),
        (r"\(11, 4\) and \(10, 4\)", lambda: find_neighbourhoods(x, y[:10], 3)),
    )
