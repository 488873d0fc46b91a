"""Decoding of positions: checked values, chance for noise, and no position on both sides."""

import numpy as np
import pytest

from tests.refusals import check_refusals
from toolkit.analysis.kernels import Refused
from toolkit.questions.positions import measure as positions
from toolkit.sinusoid import sinusoidal_table

SINUSOID = sinusoidal_table(512, 384)
GAUSSIAN = np.random.default_rng(0).normal(size=(512, 384))


def test_the_sinusoid_tells_its_positions():
    assert positions.decoding_error(SINUSOID) < 0.01


def test_noise_is_the_mean_predictor():
    for table, within in ((GAUSSIAN, 4), (SINUSOID[np.random.default_rng(1).permutation(512)], 8)):
        assert positions.decoding_error(table) == pytest.approx(128, abs=within)


def test_a_rotation_and_a_factor_do_not_matter_to_a_table_in_noise():
    table = sinusoidal_table(120, 16) + 0.1 * np.random.default_rng(2).normal(size=(120, 16))
    assert positions.decoding_error(7 * table) == pytest.approx(positions.decoding_error(table), rel=1e-9)
    assert positions.decoding_error(table) < 0.2 * 30


def test_no_row_helps_to_predict_itself():
    # A column that marks one row tells nothing on the others: with leakage its row would be predicted exactly.
    assert positions.decoding_error(np.eye(60)) == pytest.approx(60 / 4, rel=0.1)


def test_order_of_pairs():
    assert positions.order_error(SINUSOID) < 0.06
    assert positions.order_error(GAUSSIAN) == pytest.approx(0.5, abs=0.12)


def test_order_has_no_position_on_both_sides():
    assert positions.order_error(np.eye(100), num_pairs=2000) == pytest.approx(0.5, abs=0.2)


def test_a_seed_gives_one_value():
    table = GAUSSIAN[:60, :8]
    assert positions.decoding_error(table, seed=3) == positions.decoding_error(table, seed=3)
    assert positions.decoding_error(table, seed=3) != positions.decoding_error(table, seed=4)
    assert len({positions.order_error(table, seed=5, num_pairs=500) for _ in range(2)}) == 1


@pytest.mark.parametrize("function", [positions.decoding_error, positions.order_error])
def test_too_few_rows(function):
    check_refusals(("10 rows; got 9", lambda: function(GAUSSIAN[:9])), kind=Refused)
