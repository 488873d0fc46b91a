"""Intervals of a mean difference: laws, statsmodels and scipy as oracles, simulated coverage, and what is refused."""

import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import t, ttest_1samp

from tests.refusals import check_refusals
from toolkit.comparison.intervals import (
    EQUAL_SEEDS,
    EQUAL_VALUES,
    ITEMS_ONLY,
    NO_DISCORDANCE,
    NO_SEED,
    ONE_SEED,
    ONE_VALUE,
    SEEDS_ONLY,
    by_cluster,
    interval_of,
    mean_squares,
    seeds_interval,
    two_way_interval,
)

BENCHMARK = Path(__file__).parents[2] / "experiments" / "benchmarks" / "coverage.py"
SHAPES = st.tuples(st.integers(2, 6), st.integers(2, 8))
DISCORDANCE = SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=st.sampled_from([-1.0, 0.0, 1.0])))
REAL = SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=st.integers(-1000, 1000).map(lambda i: i / 64)))


def _gaussian(rng, num_seeds, num_items, *, seed_sd, item_sd=1.0, noise=0.5, mean=0.0):
    seeds, items = rng.normal(0, 1, (num_seeds, 1)), rng.normal(0, 1, num_items)
    return mean + seed_sd * seeds + item_sd * items + noise * rng.normal(size=(num_seeds, num_items))


def _ends(interval):
    return np.array([interval.low, interval.high])


@pytest.mark.parametrize(("num_seeds", "num_items"), [(2, 2), (3, 7), (8, 5)])
def test_mean_squares_are_those_of_statsmodels(num_seeds, num_items):
    import statsmodels.api as sm
    from statsmodels.formula.api import ols

    table = np.random.default_rng(3).normal(size=(num_seeds, num_items)) ** 3
    long = pd.DataFrame(table).reset_index().melt(id_vars="index", var_name="item", value_name="difference")
    anova = sm.stats.anova_lm(ols("difference ~ C(index) + C(item)", long).fit())
    assert np.allclose(mean_squares(table), anova["sum_sq"] / anova["df"], rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("seed_sd", "item_sd", "largest"), [(1.0, 1.0, "both"), (0.0, 0.0, "one"), (0.02, 2.0, "both"), (2.0, 0.02, "any")]
)
def test_the_interval_is_section_6_written_out_once_more(seed_sd, item_sd, largest):
    """Plain sums over seeds and items; tables in which seeds and items together, or one of them, give the variance."""
    num_seeds, num_items, seen = 4, 6, set()
    for trial in range(30):
        rng = np.random.default_rng([trial, num_items])
        table = _gaussian(rng, num_seeds, num_items, seed_sd=seed_sd, item_sd=item_sd)
        mean = sum(map(sum, table)) / 24
        seeds = [sum(row) / num_items - mean for row in table]
        items = [sum(column) / num_seeds - mean for column in table.T]
        rest = [table[k][i] - mean - seeds[k] - items[i] for k in range(4) for i in range(6)]
        ms_seed, ms_item = 6 * sum(s * s for s in seeds) / 3, 4 * sum(i * i for i in items) / 5
        ms_res = sum(r * r for r in rest) / 15
        u = max(ms_seed + ms_item - ms_res, ms_seed)
        df = max(3, u * u / (ms_seed**2 / 3 + ms_item**2 / 5 + ms_res**2 / 15))
        half = t.ppf(0.95, df) * np.sqrt(u / 24)
        found = two_way_interval(table, 0.9)
        expected = (mean, mean - half, mean + half, df, u / 24, 0.9)
        assert np.allclose((found.estimate, found.low, found.high, found.df, found.variance, found.level), expected)
        assert found.note == ""
        seen.add("both" if u > ms_seed else "one")
    assert largest == "any" or largest in seen


@given(st.one_of(DISCORDANCE, REAL))
def test_neither_variance_nor_df_falls_below_its_floor(table):
    squares, found = mean_squares(table), two_way_interval(table)
    if np.ptp(table) == 0:
        return
    assert found.df >= len(table) - 1
    assert found.variance > 0
    assert found.variance * table.size >= squares.seed * (1 - 1e-12)
    assert found.variance * table.size >= (squares.seed + squares.item - squares.residual) * (1 - 1e-9) - 1e-9


@pytest.mark.parametrize("table", [[[1, -1], [-1, 1]], [[0, -1], [-1, 0]], [[0, 1, 2], [2, 1, 0], [1, 1, 1]]])
def test_seeds_of_one_mean_whose_items_cancel_still_have_a_spread(table):
    table = np.array(table, float)
    squares, found = mean_squares(table), two_way_interval(table)
    assert squares.seed == pytest.approx(0)
    assert squares.item <= squares.residual
    assert found.variance * table.size == pytest.approx(squares.residual)
    assert found.low < table.mean() < found.high


@given(REAL, st.floats(-5, 5), st.floats(0.25, 8), st.randoms(use_true_random=False))
def test_shift_scale_mirror_and_order(table, shift, scale, random):
    if np.ptp(table) == 0:
        return
    ends = _ends(two_way_interval(table))
    rows, columns = (random.sample(range(n), n) for n in table.shape)
    for other, expected in (
        (table + shift, ends + shift),
        (table * scale, ends * scale),
        (-table, -ends[::-1]),
        (table[rows][:, columns], ends),
    ):
        assert np.allclose(_ends(two_way_interval(other)), expected, rtol=1e-6, atol=1e-6)


@given(DISCORDANCE)
def test_a_higher_level_holds_the_lower_one(table):
    narrow, wide = two_way_interval(table, 0.9), two_way_interval(table, 0.95)
    assert wide.low <= narrow.low <= narrow.estimate <= narrow.high <= wide.high
    assert narrow.estimate == pytest.approx(table.mean())


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_equal_seeds_are_a_t_interval_over_items_and_equal_items_one_over_seeds(level):
    values = np.random.default_rng(0).normal(size=9)
    oracle = ttest_1samp(values, 0).confidence_interval(level)
    for table in (np.tile(values, (4, 1)), np.tile(values, (6, 1)).T, values[None], values[:, None]):
        assert np.allclose(_ends(two_way_interval(table, level)), oracle)
    found = seeds_interval(values, level)
    assert np.allclose(_ends(found), oracle)
    assert (found.df, found.variance) == (8, pytest.approx(values.var(ddof=1) / 9))


def test_what_one_seed_or_one_item_does_not_cover_is_said():
    table = np.random.default_rng(1).normal(size=(4, 6))
    assert two_way_interval(table).note == ""
    assert two_way_interval(table[:1]).note == ITEMS_ONLY
    assert two_way_interval(table[:, :1]).note == SEEDS_ONLY


@pytest.mark.parametrize(
    ("interval", "note"),
    [
        (lambda: two_way_interval([[0.3]]), ONE_VALUE),
        (lambda: two_way_interval(np.full((3, 4), 0.3)), EQUAL_VALUES),
        (lambda: seeds_interval([0.3]), ONE_SEED),
        (lambda: seeds_interval([0.3, 0.3, 0.3]), EQUAL_SEEDS),
        (lambda: seeds_interval([0.4 - 0.1, 0.5 - 0.2, 0.7 - 0.4]), EQUAL_SEEDS),
        (lambda: seeds_interval([0.3, 0.3 + 1e-8, 0.3 + 2e-8], size=100), EQUAL_SEEDS),  # rounding of scores of 100
        (lambda: two_way_interval([[0.4 - 0.1, 0.5 - 0.2], [0.7 - 0.4, 0.3]]), EQUAL_VALUES),
        (lambda: seeds_interval([]), NO_SEED),
    ],
)
def test_without_spread_the_interval_is_refused(interval, note):
    found = interval()
    assert np.isnan([found.low, found.high, found.df, found.variance]).all()
    assert found.note == note
    assert np.isnan(found.estimate) if note == NO_SEED else found.estimate == pytest.approx(0.3)


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6])
def test_a_small_spread_is_a_spread(size):
    values = size * (1 + np.array([0, 1e-8, 3e-8]))
    assert seeds_interval(values).df == 2
    assert two_way_interval(values[:, None] + [0, 0.5e-8 * size]).variance > 0


def test_a_whole_value_but_for_rounding_is_whole():
    assert two_way_interval([[0.1 + 0.2 + 0.7, 1.0], [0.7 + 0.2 + 0.1, 1.0]]).note == NO_DISCORDANCE


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("num_items", [2, 30, 1000])
def test_without_discordance_the_bound_is_exact_in_the_items(num_items, level):
    """Were a share `high` of all items discordant, N items without one would come up with probability 1 - level."""
    found = two_way_interval(np.zeros((3, num_items)), level)
    assert found.note == NO_DISCORDANCE
    assert (1 - found.high) ** num_items == pytest.approx(1 - level)
    assert found.low == -found.high
    assert found.num_effective == num_items
    always = two_way_interval(np.ones((3, num_items)), level)
    assert (always.high, always.low) == (1, pytest.approx(1 - 2 * found.high))
    assert always.num_effective == num_items


def test_bad_input_is_refused_in_one_line():
    calls = [partial(two_way_interval, np.eye(3)), partial(seeds_interval, np.arange(3.0))]
    no_share = [partial(call, level) for call in calls for level in (-0.1, 0, 1, 1.1)]
    check_refusals(
        (r"shape \(seeds, items\).*got shape \(2,\)", lambda: two_way_interval([0.1, 0.2])),
        (r"at least one of each; got shape \(3, 0\)", lambda: two_way_interval(np.zeros((3, 0)))),
        ("2 of 3 differences are not finite", lambda: two_way_interval([[0.0, np.nan, np.inf]])),
        ("level must be between 0 and 1, for example .95; got 95", lambda: two_way_interval([[0.0, 1.0]], 95)),
        (r"shape \(seeds,\); got shape \(1, 1\)", lambda: seeds_interval([[0.1]])),
        ("1 of 2", lambda: seeds_interval([0.1, np.nan])),
        *(("level must be between 0 and 1", call) for call in no_share),
    )


def test_interval_of_takes_an_interval_or_differences_of_either_shape():
    table = np.random.default_rng(2).normal(size=(5, 7))
    assert interval_of(table) == two_way_interval(table)
    assert interval_of(table.mean(axis=1), 0.9) == seeds_interval(table.mean(axis=1), 0.9)
    assert interval_of(two_way_interval(table, 0.8)) == two_way_interval(table, 0.8)


@pytest.mark.parametrize("seed_sd", [0.0, 0.5])
@pytest.mark.parametrize("num_seeds", [5, 8, 20])
def test_a_nominal_95_percent_covers_92_to_97_in_1000_gaussian_studies(num_seeds, seed_sd):
    rng = np.random.default_rng([11, num_seeds, int(10 * seed_sd)])
    tables = (_gaussian(rng, num_seeds, 60, seed_sd=seed_sd, mean=2.0) for _ in range(1000))
    assert 0.92 <= np.mean([found.low <= 2 <= found.high for found in map(two_way_interval, tables)]) <= 0.97


def test_an_interval_over_items_alone_would_cover_too_little_where_seeds_differ():
    """Positive control of the test above: it tells an interval that ignores seeds from one that does not."""
    rng = np.random.default_rng(12)
    tables = [_gaussian(rng, 5, 60, seed_sd=0.5).mean(axis=0, keepdims=True) for _ in range(300)]
    assert np.mean([found.low <= 0 <= found.high for found in map(two_way_interval, tables)]) < 0.85


@given(REAL, st.integers(1, 3), st.randoms(use_true_random=False))
def test_clusters_of_equal_size_are_their_means_and_copies_of_an_item_add_nothing(table, size, random):
    """So clusters of one leave every bit. In whatever order items stand, and whatever clusters are called."""
    num_clusters = table.shape[1]
    clusters = np.array(random.sample([*"abcdefgh"[:num_clusters]] * size, num_clusters * size))
    items = np.random.default_rng(0).normal(size=(len(table), len(clusters)))
    means = np.transpose([items[:, clusters == name].mean(axis=1) for name in np.unique(clusters)])
    np.testing.assert_allclose(by_cluster(items, clusters), means if size > 1 else items, atol=1e-12 * (size > 1))
    copies = by_cluster(np.repeat(table, size, axis=1), np.repeat(np.arange(num_clusters), size))
    assert np.allclose(copies, table, atol=1e-12)


def test_clusters_of_unequal_size_have_the_variance_of_a_ratio():
    """Of one seed: totals over sizes, by statsmodels' sandwich of clusters (its C/(C-1) with no N-1 beneath)."""
    import statsmodels.api as sm

    rng = np.random.default_rng(0)
    clusters = rng.integers(12, size=60)
    values = rng.normal(size=60) + rng.normal(size=12)[clusters]
    fit = sm.OLS(values, np.ones(60)).fit(cov_type="cluster", cov_kwds={"groups": clusters})
    found = two_way_interval(by_cluster(values[None], clusters))
    assert found.estimate == pytest.approx(values.mean())
    assert found.df == len(np.unique(clusters)) - 1
    assert found.variance == pytest.approx(fit.cov_params()[0, 0])


@pytest.mark.parametrize("size", [5, 10])
def test_items_in_clusters_are_covered_too_rarely_and_their_clusters_are_not(size):
    benchmark = runpy.run_path(str(BENCHMARK))
    options = {"num_studies": 400, "num_items": 200, "size": size}
    line = benchmark["measure_cell"](benchmark["WORLDS"]["apart"], 5, 0.05, **options)
    assert line["items_coverage"] < 0.91
    assert 0.92 <= line["clusters_coverage"] <= 0.98


def test_the_coverage_benchmark_prints_its_tables(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [str(BENCHMARK), "--studies", "3", "--items", "20"])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    _, *tables = capsys.readouterr().out.split("\n\n")
    assert [len(table.splitlines()) - 1 for table in tables] == [2 * 5 * 3, 2 * 3 * 3, 6 * 3 * 2 * 2]
    assert [("clusters_cov" in table, "seeds_cov" in table) for table in tables] == [(0, 0), (1, 0), (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("seed_sd", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("num_seeds", [3, 5, 8, 20])
def test_a_nominal_95_percent_covers_92_to_97_in_1000_studies_of_right_and_wrong(num_seeds, seed_sd):
    """Two conditions whose errors differ, from benchmarks/coverage.py; with three seeds .90 is all there is."""
    benchmark = runpy.run_path(str(BENCHMARK))
    line = benchmark["measure_cell"](benchmark["WORLDS"]["apart"], num_seeds, seed_sd, num_studies=1000, num_items=400)
    assert (0.92 if num_seeds >= 5 else 0.90) <= line["items_coverage"] <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [5, 8, 20])
def test_conditions_that_differ_in_noise_only_are_covered_as_often(num_seeds):
    """The world in which a floor at the items' mean square would cover .978 to .988 (seen: it was there once)."""
    benchmark = runpy.run_path(str(BENCHMARK))
    line = benchmark["measure_cell"](benchmark["WORLDS"]["alike"], num_seeds, 0.0, num_studies=1000, num_items=400)
    assert 0.92 <= line["items_coverage"] <= 0.97
