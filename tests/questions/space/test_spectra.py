"""Ranks and IsoScore as mathematics: plain SVD beside the Gram forms, laws, and the values of Gaussian tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.test_spectra import plain_ranks, tables
from toolkit.analysis.kernels import Refused
from toolkit.analysis.spectra import effective_rank, entropy_rank, squared_singular_values
from toolkit.questions.space import geometry


def _of_rows(function):
    return lambda rows, *, centre=True: function(squared_singular_values(rows, centre=centre))


stable_rank = _of_rows(geometry.stable_rank_of)
participation_ratio = _of_rows(geometry.participation_ratio_of)
RANKS = {"effective_rank": effective_rank, "stable_rank": stable_rank, "participation_ratio": participation_ratio}


def isoscore(rows):
    return geometry.isoscore_of(squared_singular_values(rows), rows.shape[1])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(tables(), st.booleans())
def test_ranks_against_the_svd_and_in_their_range(rows, centre):
    expected = plain_ranks(rows, centre)
    values = {name: rank(rows, centre=centre) for name, rank in RANKS.items()}
    for name, value in values.items():
        assert value == pytest.approx(expected[name], rel=1e-8), name
        assert 1 - 1e-12 <= value <= min(rows.shape) + 1e-9, name
    # The Rényi entropies of order 1, 2 and infinity never increase.
    assert values["stable_rank"] <= values["participation_ratio"] * (1 + 1e-9)
    assert values["participation_ratio"] <= values["effective_rank"] * (1 + 1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables(), st.integers(0, 2**32 - 1), st.booleans())
def test_ranks_do_not_depend_on_rotation_scale_or_order_nor_centred_ones_on_the_mean(rows, seed, centre):
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(rows.shape[1],) * 2))[0]
    for name, rank in RANKS.items():
        value = rank(rows, centre=centre)
        changed = {"rotated": rows @ rotation, "scaled": 8 * rows, "shuffled": rng.permutation(rows)}
        if centre:
            changed["shifted"] = rows + rng.normal(size=rows.shape[1])
        for what, table in changed.items():
            assert rank(table, centre=centre) == pytest.approx(value, rel=1e-7), (name, what)


def test_ranks_of_known_spectra():
    for name, rank in RANKS.items():
        assert rank(3 * np.eye(7), centre=False) == pytest.approx(7), name
        assert rank(np.outer(np.arange(1.0, 6), [1.0, -2, 3]), centre=True) == pytest.approx(1), name
    entropy = -(4 / 6 * np.log(4 / 6) + 2 / 6 * np.log(1 / 6))
    expected = {"effective_rank": np.exp(entropy), "stable_rank": 6 / 4, "participation_ratio": 36 / 18}
    planted = {name: rank(np.diag([2.0, 1, 1, 0]), centre=False) for name, rank in RANKS.items()}
    assert planted == pytest.approx(expected)


@pytest.mark.parametrize("centre", [False, True])
def test_gaussian_512_by_768(centre):
    rows = np.random.default_rng(0).normal(size=(512, 768))  # SCIENCE.md section 3: 366/157/306
    assert effective_rank(rows, centre=centre) == pytest.approx(366, abs=1.5)
    assert stable_rank(rows, centre=centre) == pytest.approx(157, abs=5)
    assert participation_ratio(rows, centre=centre) == pytest.approx(306, abs=1.5)
    assert isoscore(rows) == pytest.approx(0.40, abs=0.005)


def test_gaussian_30522_by_768():
    """SCIENCE.md section 3: 758/572/749, IsoScore .975. The Gram matrix of that many rows is drawn by itself.

    Bartlett (1933): XᵀX of n standard normal rows is LLᵀ with normal entries below the diagonal of L and the roots of
    chi-squares of n, n - 1, … degrees of freedom on it; about the mean it is that of n - 1 rows.
    """
    rng = np.random.default_rng(0)
    factor = np.tril(rng.normal(size=(768, 768)), -1) + np.diag(np.sqrt(rng.chisquare(30521 - np.arange(768))))
    squared = squared_singular_values(factor.T, centre=False)
    assert entropy_rank(squared) == pytest.approx(758, abs=0.6)
    assert geometry.stable_rank_of(squared) == pytest.approx(572, abs=4)
    assert geometry.participation_ratio_of(squared) == pytest.approx(749, abs=0.6)
    assert geometry.isoscore_of(squared, 768) == pytest.approx(0.975, abs=0.001)


def _isoscore_step_by_step(rows: np.ndarray) -> float:
    """IsoScore by the steps of Rudman et al. 2022."""
    p = rows.shape[1]
    centred = rows - rows.mean(axis=0)
    principal = centred @ np.linalg.eigh(np.cov(rows, rowvar=False))[1]
    variances = np.diag(np.cov(principal, rowvar=False))
    normalised = np.sqrt(p) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - 1) / np.sqrt(2 * (p - np.sqrt(p)))
    used = (p - defect**2 * (p - np.sqrt(p))) ** 2 / p**2
    return (p * used - 1) / (p - 1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(tables())
def test_isoscore_in_closed_form_is_isoscore_step_by_step(rows):
    value = isoscore(rows)
    assert value == pytest.approx(_isoscore_step_by_step(rows), abs=1e-9)
    assert -1e-12 <= value <= 1 + 1e-12


def test_isoscore_of_one_direction_is_0_and_of_an_isotropic_cloud_1():
    rng = np.random.default_rng(0)
    assert isoscore(np.outer(rng.normal(size=50), rng.normal(size=6))) == pytest.approx(0, abs=1e-9)
    assert isoscore(np.concatenate([np.eye(6), -np.eye(6)])) == pytest.approx(1)


def test_what_has_no_spread_is_refused():
    for rank in (*RANKS.values(), isoscore):
        with pytest.raises(Refused, match="all rows are equal"):
            rank(np.full((30, 5), 0.1))
    with pytest.raises(Refused, match="one dimension"):
        isoscore(np.arange(5.0)[:, None])
