"""Relative quality: ratios by hand, the interval against simulation and a bootstrap, and what has no ratio."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from relative_quality import (
    ITSELF,
    NEVER_BOTH,
    NOT_POSITIVE,
    UNDEFINED,
    both_defined,
    ratio_interval,
    relative_quality,
)
from tests.comparison.planted import plant
from tests.refusals import check_refused
from tests.run_directories import write_run
from tests.test_schema import holds
from toolkit.comparison.intervals import EQUAL_SEEDS, two_way_interval
from toolkit.schema import COLUMNS, columns_of

FULL = "full fine-tuning"


@pytest.fixture
def runs(tmp_path):
    """Three seeds of two arms with planted answers."""
    generator, planted = np.random.default_rng(0), {"none": 0.9, "embeddings": 0.7}
    answers = {regime: generator.random((3, 200)) < share for regime, share in planted.items()}
    made = [
        plant(write_run(tmp_path, regime, seed, epochs=1).path, right)
        for regime, arm in answers.items()
        for seed, right in enumerate(arm)
    ]
    return made, answers


def test_ratio_is_that_of_the_mean_scores(runs):
    made, answers = runs
    table = relative_quality(made, FULL)
    assert list(table.columns) == columns_of("relative_quality")
    assert not [name for name in table if not holds(COLUMNS[name], table[name])]
    own, line = table.to_dict("records")
    assert line["relative_quality"] == pytest.approx(answers["embeddings"].mean() / answers["none"].mean())
    assert line["low"] < line["relative_quality"] < line["high"]
    assert line["majority_quality"] == pytest.approx(0.5 / answers["none"].mean())
    assert (line["condition"], line["against"], line["num_seeds"]) == ("embeddings frozen", FULL, 3)
    assert relative_quality(made, FULL, level=0.99).iloc[1]["low"] < line["low"]
    assert (own["condition"], own["relative_quality"], own["reason"]) == (FULL, 1.0, ITSELF)
    assert np.isnan([own["low"], own["high"]]).all()
    assert own["majority_quality"] == line["majority_quality"]


def test_an_unknown_reference_is_named(runs):
    check_refused("unknown condition 'full'", relative_quality, runs[0], "full")


def test_no_share_of_nothing(tmp_path):
    cells = [(regime, seed) for regime in ("none", "embeddings") for seed in (0, 1)]
    made = [plant(write_run(tmp_path, r, seed, epochs=1).path, [r != "none"] * 20) for r, seed in cells]
    for line in relative_quality(made, FULL).to_dict("records"):
        assert line["reason"] == NOT_POSITIVE
        assert np.isnan(line["relative_quality"])


def test_failed_runs_are_counted(tmp_path):
    cells = [(regime, seed) for regime in ("none", "embeddings") for seed in range(3)]
    share = {("embeddings", 1): 0.5}  # exactly the majority class
    made = [
        plant(write_run(tmp_path, *cell, epochs=1).path, np.arange(40) < 40 * share.get(cell, 0.9)) for cell in cells
    ]
    assert list(relative_quality(made, FULL)["num_failed"]) == [0, 1]


def test_undefined_scores_are_named_and_leave_their_seed_out():
    nan = np.nan
    assert both_defined(np.array([[0.5, 0.6], [nan, nan]]))[1] == UNDEFINED.format("the reference's")
    assert both_defined(np.array([[nan, nan], [0.5, 0.6]]))[1] == UNDEFINED.format("the condition's")
    assert both_defined(np.array([[nan, 0.5], [0.5, nan]]))[1] == NEVER_BOTH
    kept, reason = both_defined(np.array([[nan, 0.5, 0.4], [0.5, 0.6, 0.8]]))
    assert np.array_equal(kept, [[0.5, 0.4], [0.6, 0.8]])
    assert reason == ""


def test_a_regression_whose_reference_has_no_score_says_so(tmp_path):
    made = [write_run(tmp_path, r, s, epochs=1, is_regression=True) for r in ("none", "embeddings") for s in (0, 1)]
    for run in made:
        if run.config.freeze == "none":  # as if no correlation had been written down
            object.__setattr__(run, "scores", run.scores.assign(pearson=np.nan))
    table = relative_quality(made, FULL)
    assert set(table[table["condition"] != FULL]["reason"]) == {UNDEFINED.format("the reference's")}


def test_with_equal_means_it_is_the_interval_of_the_difference():
    """R = 1: arm - R·reference is the difference itself."""
    generator = np.random.default_rng(1)
    first = (generator.random((4, 50)) < 0.8).astype(float)
    second = first[:, generator.permutation(50)]
    interval, own = ratio_interval(np.stack([first, second])), two_way_interval(first - second)
    assert interval.estimate == 1
    assert interval.low == pytest.approx(1 + own.low / second.mean())
    assert interval.high == pytest.approx(1 + own.high / second.mean())


def test_one_ratio_in_every_seed_but_for_rounding_has_no_interval():
    reference = np.array([0.02, 0.81, 0.91])
    found = ratio_interval(np.stack([0.7 * reference, reference]))
    assert found.estimate == pytest.approx(0.7)
    assert np.isnan([found.low, found.high]).all()
    assert found.note == EQUAL_SEEDS


@given(st.floats(0.1, 10))
def test_scaling_an_arm_scales_its_ratio_and_interval(factor):
    values = np.random.default_rng(2).random((2, 4, 30)) + 0.5
    plain, scaled = ratio_interval(values), ratio_interval(values * np.array([factor, 1])[:, None, None])
    assert scaled.estimate == pytest.approx(factor * plain.estimate)
    assert (scaled.low, scaled.high) == pytest.approx((factor * plain.low, factor * plain.high))


@pytest.mark.parametrize("factor", [1.0, 0.1, 7.0])
@pytest.mark.parametrize("shape", [(2, 4, 30), (2, 6)])
def test_the_variance_is_that_of_the_ratio_whatever_the_unit_of_the_scores(factor, shape):
    """The interval is t·√variance to either side, so that whoever reads the variance reads the same spread."""
    interval = ratio_interval(factor * (np.random.default_rng(4).random(shape) + 0.5))
    half = student.ppf(0.975, interval.df) * np.sqrt(interval.variance)
    assert (interval.low, interval.high) == pytest.approx((interval.estimate - half, interval.estimate + half))


@pytest.mark.parametrize("size", [None, 50])
def test_a_reference_named_without_its_size_is_itself_at_every_size(make_run, size):
    cells = [(regime, seed, own) for own in (50, 80) for regime in ("none", "embeddings") for seed in (0, 1)]
    made = [make_run(regime, seed, config={"max_train_examples": own}) for regime, seed, own in cells]
    table = relative_quality(made, FULL if size is None else f"{FULL}, {size} training examples")
    own = table[table["reason"] == ITSELF]
    assert set(own["size"]) == ({50, 80} if size is None else {50})
    assert (own["condition"] == own["against"]).all()
    assert (own["relative_quality"] == 1).all()
    others = table[table["reason"] != ITSELF]
    assert set(others["size"]) == set(own["size"])
    assert others["low"].notna().all()


def test_coverage_of_a_known_ratio():
    """Normal seed, item and residual effects of both arms; 95 % of 400 intervals are 380, ± 9 by chance alone."""
    generator, covered, num = np.random.default_rng(3), 0, 400
    for _ in range(num):
        means = np.array([0.6, 0.9])[:, None, None]
        item = generator.normal(0, 0.2, (2, 1, 60)) + generator.normal(0, 0.2, (1, 1, 60))
        values = means + generator.normal(0, 0.04, (2, 5, 1)) + item + generator.normal(0, 0.3, (2, 5, 60))
        interval = ratio_interval(values)
        covered += interval.low < 0.6 / 0.9 < interval.high
    assert 0.92 <= covered / num <= 0.99
