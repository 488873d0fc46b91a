"""The effective rank against the SVD of the rows themselves, and of planted spectra."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refused
from toolkit.analysis.kernels import Refused
from toolkit.analysis.spectra import effective_rank


def plain_ranks(rows: np.ndarray, centre: bool) -> dict[str, float]:
    """Every rank from the singular values of the rows themselves: the oracle."""
    if centre:
        rows = rows - rows.mean(axis=0)
    squared = np.linalg.svd(rows, compute_uv=False) ** 2
    shares = squared / squared.sum()
    entropy = -sum(share * np.log(share) for share in shares if share > 0)
    return {
        "effective_rank": np.exp(entropy),
        "stable_rank": np.linalg.norm(rows) ** 2 / np.linalg.norm(rows, 2) ** 2,
        "participation_ratio": squared.sum() ** 2 / np.sum(squared**2),
    }


@st.composite
def tables(draw):
    """(n, p) rows, some tall and some wide, with columns of unequal scale and a common mean."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, p = draw(st.tuples(st.integers(3, 12), st.integers(2, 12)))
    return rng.normal(size=(n, p)) * rng.lognormal(0, draw(st.floats(0, 2)), p) + draw(st.floats(-5, 5))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(tables(), st.booleans())
def test_effective_rank_against_the_svd(rows, centre):
    assert effective_rank(rows, centre=centre) == pytest.approx(plain_ranks(rows, centre)["effective_rank"], rel=1e-8)


def test_effective_rank_finds_the_planted_dimension_and_not_another():
    rng = np.random.default_rng(0)
    for dimension in (3, 20):
        rows = rng.normal(size=(2000, dimension)) @ np.linalg.qr(rng.normal(size=(50, dimension)))[0].T
        assert effective_rank(rows + 1e-4 * rng.normal(size=rows.shape)) == pytest.approx(dimension, rel=0.01)


def test_what_has_no_spread_is_refused():
    with pytest.raises(Refused, match="all rows are equal"):
        effective_rank(np.full((30, 5), 0.1))
    assert effective_rank(np.full((30, 5), 0.1), centre=False) == pytest.approx(1)
    check_refused(r"got shape \(0, 3\)", effective_rank, np.empty((0, 3)))
