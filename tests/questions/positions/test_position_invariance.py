"""Gram and cosine by lag of position tables: checked values, laws, controls, and slow plain oracles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refusals
from toolkit.analysis.kernels import Refused
from toolkit.analysis.spectra import effective_rank
from toolkit.questions.positions import measure as positions
from toolkit.sinusoid import sinusoidal_table

SINUSOID = sinusoidal_table(512, 384)
GAUSSIAN = np.random.default_rng(0).normal(size=(512, 384))
SHUFFLED = SINUSOID[np.random.default_rng(1).permutation(512)]


def test_checked_values_of_the_sinusoid():
    table = sinusoidal_table(512, 768)
    assert np.square(table).sum(axis=1) == pytest.approx(384, rel=1e-12)
    by_lag = positions.cosine_by_lag(table).set_index("lag")["value"]
    assert by_lag[[1, 2, 5, 10, 50]].to_numpy() == pytest.approx([0.973, 0.906, 0.741, 0.680, 0.512], abs=5e-4)
    assert effective_rank(table) == pytest.approx(59, abs=0.5)


def test_the_sinusoid_is_the_published_formula():
    slow = [[np.sin(i / 1e4 ** (2 * (k // 2) / 6)) if k % 2 == 0 else np.cos(i / 1e4 ** (2 * (k // 2) / 6))
             for k in range(6)] for i in range(9)]  # fmt: skip
    assert sinusoidal_table(9, 6) == pytest.approx(np.array(slow), abs=1e-15)
    check_refusals(("even hidden size; got 9 x 7", lambda: sinusoidal_table(9, 7)))


def test_translation_invariance_knows_the_sinusoid_and_nothing_in_noise():
    assert positions.translation_invariance(SINUSOID) == pytest.approx(1, abs=1e-12)
    for table in (GAUSSIAN, SHUFFLED):
        assert positions.translation_invariance(table) == pytest.approx(0.004, abs=5e-4)


def test_translation_invariance_is_what_the_full_matrix_gives():
    table = np.random.default_rng(2).normal(size=(20, 5)).cumsum(axis=0)
    gram = positions.cosine_gram(table)
    lags = np.subtract.outer(np.arange(20), np.arange(20))
    off = lags != 0
    total = ((gram[off] - gram[off].mean()) ** 2).sum()
    within = sum(((gram[lags == k] - gram[lags == k].mean()) ** 2).sum() for k in range(-19, 20) if k)
    assert positions.translation_invariance(table) == pytest.approx(1 - within / total, rel=1e-10)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(4, 30), st.integers(2, 12))
def test_rotations_and_factors_change_nothing(seed, num_rows, hidden):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(num_rows, hidden))
    turned = 3 * table @ np.linalg.qr(rng.normal(size=(hidden, hidden)))[0]
    value = positions.translation_invariance(table)
    assert -1e-9 <= value <= 1 + 1e-9
    assert positions.translation_invariance(turned) == pytest.approx(value, abs=1e-9)
    assert positions.local_monotonicity(turned, 3) == positions.local_monotonicity(table, 3)


def test_local_monotonicity_checked_values():
    wide = sinusoidal_table(512, 768)
    assert all(positions.local_monotonicity(wide, width) == 1 for width in (2, 8, 32))
    # At hidden 384 the ladder of waves is coarser, and the cosine first rises from lag 24 to 25.
    assert positions.local_monotonicity(SINUSOID, 24) == 1
    assert 0.9 < positions.local_monotonicity(SINUSOID, 32) < 1
    for table in (GAUSSIAN, SHUFFLED):
        assert positions.local_monotonicity(table, 32) == pytest.approx(0.5, abs=0.01)


def test_local_monotonicity_row_by_row():
    gram = positions.cosine_gram(table := np.random.default_rng(3).normal(size=(15, 4)).cumsum(axis=0))
    falls = []
    for i in range(15):
        for side in (-1, 1):
            for lag in range(1, 5):
                near, far = i + side * lag, i + side * (lag + 1)
                if 0 <= far < 15:
                    falls.append(gram[i, near] > gram[i, far])
    assert positions.local_monotonicity(table, 5) == pytest.approx(np.mean(falls))


def test_refusals_say_why():
    table = GAUSSIAN[:10].copy()
    table[4] = 0
    check_refusals(
        ("between 2 and 9 for 10 rows; got 10", lambda: positions.local_monotonicity(table, 10)),
        ("needs 3 rows; got 2", lambda: positions.translation_invariance(table[:2])),
        ("row 4 is 0 and has no cosine", lambda: positions.cosine_gram(table)),
        kind=Refused,
    )
    equal = np.tile(np.random.default_rng(0).normal(size=(1, 7)), (64, 1))
    for same in (np.ones((8, 3)), equal, equal * np.arange(1, 65)[:, None]):
        assert np.isnan([positions.translation_invariance(same), positions.local_monotonicity(same, 4)]).all()
