"""The hierarchical bootstrap: exact enumeration, its variance in closed form, laws, and what it is too narrow for."""

from itertools import product

import numpy as np
import pytest

from tests.refusals import check_refusals
from toolkit.comparison import intervals as bootstrap
from toolkit.comparison.intervals import EQUAL_VALUES, ITEMS_ONLY, ONE_VALUE, SEEDS_ONLY, hierarchical_interval

TABLE = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], p=[0.1, 0.7, 0.2], size=(5, 300))


def _enumerate(table):
    """The mean of every way to draw seeds and items."""
    num_seeds, num_items = table.shape
    return np.array(
        [
            table[np.ix_(seeds, items)].mean()
            for seeds in product(range(num_seeds), repeat=num_seeds)
            for items in product(range(num_items), repeat=num_items)
        ]
    )


def _variance(table):
    """Of a draw's mean, exactly: seeds, items and what is left over each give their population variance."""
    by_seed, by_item = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    rest = table - by_seed - by_item + table.mean()
    return by_seed.var() / len(by_seed) + by_item.var() / by_item.size + (rest**2).mean() / table.size


def test_draws_are_those_of_exact_enumeration():
    table = np.array([[1.0, 0.0, -1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    every = _enumerate(table)
    drawn = bootstrap._draw_means(table, 40_000, np.random.default_rng(1))
    values, counts = np.unique(every.round(9), return_counts=True)
    shares = np.array([(np.abs(drawn - value) < 1e-8).mean() for value in values])
    assert shares.sum() == pytest.approx(1)
    assert np.abs(shares - counts / len(every)).max() < 0.012
    assert every.var() == pytest.approx(_variance(table))
    found = hierarchical_interval(table, 0.7, 40_000)
    assert np.allclose((found.low, found.high), np.quantile(every, [0.15, 0.85]), atol=1e-9)


@pytest.mark.parametrize("shape", [(5, 300), (1, 300), (5, 1), (20, 40)])
def test_the_variance_of_the_draws_is_the_closed_form(shape):
    table = np.random.default_rng(2).normal(size=shape) + np.random.default_rng(3).normal(size=(shape[0], 1))
    assert hierarchical_interval(table, num_draws=20_000).variance == pytest.approx(_variance(table), rel=0.05)


def test_blocks_of_draws_do_not_change_what_is_drawn(monkeypatch):
    whole = bootstrap._draw_means(TABLE, 5000, np.random.default_rng(0))
    monkeypatch.setattr(bootstrap, "_BLOCK_COUNTS", 700)
    parts = bootstrap._draw_means(TABLE, 5000, np.random.default_rng(0))
    assert len(parts) == 5000
    assert np.ptp(parts[-10:]) > 0
    assert parts.var() == pytest.approx(whole.var(), rel=0.1)


def test_it_repeats_scales_and_knows_no_order_of_items():
    first = hierarchical_interval(TABLE, seed=4)
    assert str(hierarchical_interval(TABLE, seed=4)) == str(first)  # as text: in Python 3.13 nan fields differ
    assert str(hierarchical_interval(TABLE, seed=5)) != str(first)
    assert str(hierarchical_interval(TABLE[:, ::-1], seed=4)) == str(first)
    double = hierarchical_interval(2 * TABLE + 1, seed=4)
    assert np.allclose((double.low, double.high), (2 * first.low + 1, 2 * first.high + 1))
    assert first.low < first.estimate == TABLE.mean() < first.high


def test_items_stay_paired_over_seeds():
    """Seeds that agree item by item add nothing: as wide as one of them. Items drawn per seed would be √5 narrower."""
    items = np.random.default_rng(5).normal(size=300)
    assert np.sqrt(hierarchical_interval(np.tile(items, (5, 1)), num_draws=10_000).variance) == pytest.approx(
        items.std() / np.sqrt(300), rel=0.03
    )


def test_it_finds_what_was_planted_and_is_silent_where_nothing_was():
    rng = np.random.default_rng(6)
    null = [rng.choice([-1.0, 0.0, 1.0], p=[0.1, 0.8, 0.1], size=(1, 200)).repeat(8, axis=0) for _ in range(300)]
    found = [hierarchical_interval(table, num_draws=200) for table in null]
    assert 0.9 <= np.mean([interval.low <= 0 <= interval.high for interval in found]) <= 0.98
    assert hierarchical_interval(rng.choice([-1.0, 0.0, 1.0], p=[0.05, 0.75, 0.2], size=(8, 400))).low > 0


def test_few_seeds_that_differ_are_covered_too_rarely():
    """Why it stands second: 5 seeds, the differences of which are all that there is. The two-way interval has .95."""
    rng = np.random.default_rng(7)
    tables = (rng.normal(size=(5, 1)) + 0.01 * rng.normal(size=(5, 20)) for _ in range(400))
    found = [hierarchical_interval(table, num_draws=300) for table in tables]
    assert 0.75 < np.mean([interval.low <= 0 <= interval.high for interval in found]) < 0.9


@pytest.mark.parametrize(
    ("table", "note"),
    [
        (np.zeros((3, 4)), EQUAL_VALUES),
        ([[1.0]], ONE_VALUE),
        (TABLE[:1], ITEMS_ONLY),
        (TABLE[:, :1], SEEDS_ONLY),
        (TABLE, ""),
    ],
)
def test_notes_say_what_is_refused_or_not_covered(table, note):
    found = hierarchical_interval(table)
    assert found.note == note
    assert np.isnan(found.low) == np.isnan(found.variance) == (note in (EQUAL_VALUES, ONE_VALUE))
    assert np.isnan(found.df)


def test_bad_input_is_refused_in_one_line():
    few = "num_draws must be at least 100 for a percentile interval; got 10"
    check_refusals(
        (few, lambda: hierarchical_interval(TABLE, num_draws=10)), ("shape", lambda: hierarchical_interval(TABLE[0]))
    )
