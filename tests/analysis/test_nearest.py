"""Exact nearest neighbours against float64 brute force; and the bound of the float32 product that proves it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from tests.refusals import check_refusals, check_refused
from toolkit.analysis import nearest
from toolkit.analysis.nearest import search_nearest


def nearest_neighbours(rows, k, **options):
    found = search_nearest(rows, k, **options)
    return found.indices, found.similarity


def _units(rows):
    rows = np.asarray(rows, np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    return rows / np.where(lengths > 0, lengths, 1)[:, None]


def _brute_force(rows, k, queries=None, candidates=None):
    """The slow oracle: the whole float64 product, rounded so that equal rows tie, sorted by cosine, then by number."""
    units = _units(rows)
    queries = np.arange(len(rows)) if queries is None else np.asarray(queries)
    cosines = np.round(units[queries] @ units.T, 13)
    cosines[:, ~units.any(axis=1)] = -np.inf
    if candidates is not None:
        cosines[:, np.setdiff1d(np.arange(len(rows)), candidates)] = -np.inf
    cosines[np.arange(len(queries)), queries] = -np.inf
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    similarity = np.take_along_axis(cosines, order, axis=1)
    is_zero = ~units[queries].any(axis=1)
    order[is_zero], similarity[is_zero] = -1, np.nan
    return order, similarity


def _table(num_rows, hidden, seed=0, mean=0.0):
    """Clusters, a common mean, exact and scaled duplicates, zero rows, lengths that differ; float32."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(num_rows // 12, hidden))
    rows = centres[rng.integers(len(centres), size=num_rows)] + rng.normal(size=(num_rows, hidden)) + mean
    rows *= rng.lognormal(0, 0.5, (num_rows, 1))
    rows[7::97] = rows[5::97][: len(rows[7::97])]
    rows[8::101] = 2 * rows[6::101][: len(rows[8::101])]
    rows[[0, num_rows // 2, num_rows - 1]] = 0
    return rows.astype(np.float32)


def _assert_same(found, expected):
    assert np.array_equal(found.indices, expected[0])
    assert np.allclose(found.similarity, expected[1], rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(
    ("num_rows", "hidden", "k", "mean"),
    # The last one: all cosines above .99, hundreds of which differ by less than the product's error.
    [(3000, 64, 10, 0), (2500, 301, 3, 0), (2048, 33, 1, 0), (1900, 24, 14, 0), (2600, 40, 10, 40), (2600, 40, 9, 400)],
)
def test_it_finds_what_brute_force_finds(num_rows, hidden, k, mean):
    rows = _table(num_rows, hidden).astype(np.float64) + mean
    found = search_nearest(rows, k)
    assert found.indices.dtype == np.int64
    _assert_same(found, _brute_force(rows, k))


def test_equal_rows_come_in_the_order_of_their_numbers():
    rows = _table(2600, 40)
    rows[100:1500] = rows[100]
    found = search_nearest(rows, 10)
    _assert_same(found, _brute_force(rows, 10))
    # The lowest numbers, not itself.
    assert found.indices[[1400, 104]].tolist() == [[*range(100, 110)], [*range(100, 104), *range(105, 111)]]
    # A block product gives some of these cosines another last bit, which must not decide.
    equal = np.tile(np.random.default_rng(0).normal(size=301), (2055, 1))
    assert (nearest_neighbours(equal, 4, queries=np.arange(1000, 1050))[0] == [0, 1, 2, 3]).all()


def test_rows_that_rounding_puts_in_the_wrong_order(monkeypatch):
    """Twelve true neighbours that float32 rounds away from the query, and twelve rivals that it rounds towards it."""
    step = 2.0**-24  # half the distance between float32 numbers from 1 to 2
    sign = np.resize([1.0, -1.0], 256)
    neighbour = np.where(sign > 0, 1 + 0.95 * step, 1 + 1.05 * step)  # 1 and 1 + 2 steps: away
    rival = np.where(sign > 0, 1.0, 1 + 0.3 * step)  # 1 and 1: towards
    rows = np.concatenate([sign[None], np.tile(-sign, (1999, 1))])
    rows[100:112], rows[500:512] = neighbour, rival
    rest = np.sqrt(1024 - (rows**2).sum(axis=1))  # every row gets length 32, so that unit rows are still binary
    rest[0] = 0
    rows = np.c_[rows, rest]
    assert (search_nearest(rows, 12, queries=[0] * 300).indices == np.arange(100, 112)).all()
    monkeypatch.setattr(nearest, "product_error", lambda hidden: 0.0)
    assert (search_nearest(rows, 12, queries=[0] * 300).indices != np.arange(100, 112)).any()


def test_neighbours_on_the_other_side():
    rows = np.random.default_rng(0).normal(size=(2300, 20))
    rows[:, 0] = np.where(np.arange(2300) < 300, 9, -9)
    queries, candidates = np.arange(300), np.arange(300, 2300)
    found = search_nearest(rows, 5, queries=queries, candidates=candidates)
    _assert_same(found, _brute_force(rows, 5, queries, candidates))
    assert (found.similarity < 0).all()


@pytest.mark.parametrize("kind", ["gaussian", "constant", "alternating", "one large", "tiny values", "halfway"])
def test_the_error_of_the_product_is_below_the_bound(kind):
    rng = np.random.default_rng(3)
    rows = {
        "gaussian": lambda: rng.normal(size=(600, 500)),
        "constant": lambda: 1 + 1e-3 * rng.normal(size=(600, 500)),
        "alternating": lambda: np.resize([1.0, -1.0], 500) * (1 + 0.1 * rng.random((600, 500))),
        "one large": lambda: np.where(np.arange(500) == 3, 1e3, rng.normal(size=(600, 500))),
        "tiny values": lambda: 10.0 ** rng.uniform(-20, 0, (600, 500)),
        "halfway": lambda: (1 + 2.0**-24) * rng.choice([1.0, 1.0, 0.5], (600, 500)),
    }[kind]()
    units = _units(rows)
    short = units.astype(np.float32)
    error = np.abs(short @ short.T - units @ units.T).max()
    assert error <= nearest.product_error(500)
    if kind == "constant":  # and the bound is not so wide that it says nothing
        assert error > nearest.product_error(500) / 1000


def test_against_scikit_learn():
    rows = np.random.default_rng(1).normal(size=(900, 48)).astype(np.float32)
    distances, indices = NearestNeighbors(n_neighbors=8, metric="cosine", algorithm="brute").fit(rows).kneighbors()
    found, similarity = nearest_neighbours(rows, 8)
    assert np.array_equal(found, indices)
    assert np.allclose(similarity, 1 - distances, atol=1e-5)


@pytest.mark.parametrize("num_queries", [5, 400])
def test_queries_and_candidates(num_queries):
    rows = _table(2600, 32)
    rng = np.random.default_rng(2)
    queries = rng.choice(2600, num_queries, replace=False)
    queries[0] = 0  # a zero row
    candidates = rng.permutation(np.arange(0, 2600, 2))
    found = search_nearest(rows, 6, queries=queries, candidates=candidates)
    _assert_same(found, _brute_force(rows, 6, queries, candidates))
    assert (found.indices[0].tolist(), np.isnan(found.similarity[0]).all()) == ([-1] * 6, True)
    assert set(found.indices.flat) <= {-1, *candidates} - {0, 1300, 2599}


@pytest.mark.parametrize("block_rows", [100, 999, 10_000])
def test_deterministic_whatever_the_blocks(block_rows):
    rows = _table(2600, 48)
    expected, found = nearest_neighbours(rows, 10), nearest_neighbours(rows, 10, block_rows=block_rows)
    np.testing.assert_equal(found, expected)


def test_the_centre_is_subtracted_and_a_row_at_the_centre_has_no_direction():
    rows = np.random.default_rng(0).normal(1, 1, (500, 8))
    centre = rows.mean(axis=0)
    rows[3] = centre
    found = search_nearest(rows, 4, center=centre)
    _assert_same(found, _brute_force(rows - centre, 4))
    assert found.indices[3].tolist() == [-1] * 4


def test_a_memory_map_is_read_by_blocks(tmp_path):
    import tracemalloc

    rows = np.random.default_rng(0).normal(size=(40_000, 64)).astype(np.float32)
    rows.tofile(tmp_path / "rows")
    expected = _brute_force(rows, 5, [17, 39_999])
    mapped = np.memmap(tmp_path / "rows", dtype=np.float32, mode="r", shape=rows.shape)
    del rows
    tracemalloc.start()
    found = search_nearest(mapped, 5, queries=[17, 39_999])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    _assert_same(found, expected)
    assert peak < 10_000_000  # the table is 10 MB, its float64 unit rows 20 MB


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(3, 12), st.integers(1, 4), st.sampled_from([1, 2, 0.25]))
def test_laws(seed, num_rows, hidden, factor):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-2, 3, (num_rows, hidden)).astype(np.float64)  # many ties and zero rows
    is_zero = ~rows.any(axis=1)
    k = int((~is_zero).sum()) - 1
    if k < 1:
        return
    indices, similarity = nearest_neighbours(rows, k)
    assert np.allclose(similarity, _brute_force(rows, k)[1], equal_nan=True)
    assert np.array_equal(indices[is_zero], np.full((is_zero.sum(), k), -1))
    assert (np.diff(similarity[~is_zero], axis=1) <= 0).all(), "not in descending order"
    for row in np.flatnonzero(~is_zero):  # all others, each once
        assert sorted(indices[row]) == np.setdiff1d(np.flatnonzero(~is_zero), [row]).tolist()
    np.testing.assert_equal(nearest_neighbours(rows * factor, k), (indices, similarity))


def test_refusals():
    rows = np.random.default_rng(0).normal(size=(6, 3))
    rows[2] = 0
    check_refusals(
        ("k must be 1 to 4, the candidate rows that are not zero; got 0", lambda: nearest_neighbours(rows, 0)),
        ("k must be 1 to 4, the candidate rows that are not zero; got 5", lambda: nearest_neighbours(rows, 5)),
        ("queries must be row numbers from 0 to 5; got -1 to 3", lambda: nearest_neighbours(rows, 1, queries=[3, -1])),
        (
            "candidates must be a list of row numbers, not bool",
            lambda: nearest_neighbours(rows, 1, candidates=rows[:, 0] > 0),
        ),
        (
            r"rows must be a \(rows, hidden\) array of floats, not int64",
            lambda: nearest_neighbours(np.ones((3, 3), np.int64), 1),
        ),
    )
    rows[4, 1] = np.inf
    check_refused("row 4 holds NaN, infinity", nearest_neighbours, rows, 1)
    assert nearest_neighbours(rows, 1, queries=[], candidates=[0, 1])[0].shape == (0, 1)
