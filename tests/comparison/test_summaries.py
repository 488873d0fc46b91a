"""Statistics over seeds against numpy's, with failed runs planted, and splits side by side."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.comparison.compare import compare
from toolkit.comparison.summaries import measure_cost, side_by_side, statistics, summarise_scores
from toolkit.schema import columns_of

FULL, PROBE = "full fine-tuning", "feature extraction"


@given(st.lists(st.floats(-5, 5) | st.just(np.nan), max_size=9))
def test_statistics_are_numpys_over_what_is_defined(values):
    own, defined = statistics(values), np.array([value for value in values if not np.isnan(value)])
    if not len(defined):
        assert all(np.isnan(value) for value in own.values())
        return
    oracle = {"mean": np.mean, "median": np.median, "min": np.min, "max": np.max}
    assert {name: own[name] for name in oracle} == pytest.approx({name: f(defined) for name, f in oracle.items()})
    assert np.isnan(own["sd"]) if len(defined) == 1 else own["sd"] == pytest.approx(np.std(defined, ddof=1))


@pytest.fixture
def runs(make_run):
    """Three good seeds and a failed one of full fine-tuning, two good ones of feature extraction."""
    good = [make_run("none", seed, right=0.9) for seed in range(3)]
    return [*good, make_run("none", 3, right=0.3), *(make_run("backbone", seed, right=0.8) for seed in range(2))]


def test_failed_runs_are_counted_and_shown_with_and_without(runs):
    table = summarise_scores(runs).set_index(["split", "condition", "score"]).sort_index()
    line = table.loc["validation", FULL, "accuracy"]
    scores = [run.scores.query("split == 'validation' and epoch == 3")["accuracy"].item() for run in runs]
    assert (line["num_seeds"], line["num_failed"], line["num_undefined"]) == (4, 1, 0)
    assert line["mean"] == pytest.approx(np.mean(scores[:4]))
    assert line["mean_not_failed"] == pytest.approx(np.mean(scores[:3]))
    assert line["sd"] == pytest.approx(np.std(scores[:4], ddof=1))
    assert (line["min"], line["min_not_failed"]) == (scores[3], min(scores[:3]))
    assert line["majority_rate"] == 0.6
    assert line["num_at_chance"] == 1
    other = table.loc["validation", PROBE, "accuracy"]
    assert (other["num_seeds"], other["num_failed"], other["mean"]) == (2, 0, other["mean_not_failed"])


def test_lines_are_labelled_splits_and_scores_the_reported_split_first(runs):
    table = summarise_scores(runs)
    assert list(dict.fromkeys(table["split"])) == ["validation", "ood"]  # not "hidden", which has no labels
    assert set(table.loc[table["is_reported_split"], "split"]) == {"validation"}
    assert set(table["score"]) == {"accuracy", "macro_f1", "matthews", "loss"}
    assert set(table.loc[table["is_headline"], "score"]) == {"accuracy"}
    assert len(table) == 2 * 2 * 4


def test_one_seed_has_no_sd_and_all_failed_no_statistics(make_run):
    table = summarise_scores([make_run(right=0.2)])
    assert table["sd"].isna().all()
    assert table["mean"].notna().all()
    assert table["mean_not_failed"].isna().all()
    assert (table["num_failed"] == 1).all()


def test_undefined_scores_are_counted_and_not_averaged(make_run):
    runs = [make_run(seed=seed, right=0.9) for seed in range(3)]
    scores = runs[0].scores
    object.__setattr__(runs[0], "scores", scores.assign(matthews=np.nan))
    table = summarise_scores(runs).query("score == 'matthews' and split == 'validation'")
    others = [run.scores.query("split == 'validation' and epoch == 3")["matthews"].item() for run in runs[1:]]
    assert table["num_undefined"].item() == 1
    assert table["mean"].item() == pytest.approx(np.mean(others))


def test_a_collapsed_regression_run_counts_as_0_and_is_left_out_of_those_that_did_not_fail(make_run):
    runs = [make_run(seed=seed, is_regression=True, is_constant=seed == 2) for seed in range(3)]
    line = summarise_scores(runs).query("score == 'pearson' and split == 'validation'").to_dict("records")[0]
    values = [run.scores.query("split == 'validation' and epoch == 3")["pearson"].item() for run in runs]
    assert (line["num_seeds"], line["num_failed"], line["num_undefined"]) == (3, 1, 1)
    assert (line["mean"], line["min"]) == pytest.approx((sum(values[:2]) / 3, 0))
    assert line["mean_not_failed"] == pytest.approx(np.mean(values[:2]))
    assert pd.isna(line["num_at_chance"])  # no majority class


def test_a_size_is_what_was_asked_for_whatever_near_duplicates_left_of_it(make_run):
    def one(regime, left):
        task = {"splits": {"train": {"num_examples": left}}, "score": "accuracy", "reported_split": "validation"}
        return make_run(regime, config={"max_train_examples": 2000}, facts={"task": task})

    runs = [one("none", 1990), one("backbone", 1991)]
    for table in (summarise_scores(runs), measure_cost(runs), compare(runs, num_draws=0)):
        assert set(table["size"]) == {2000}
    assert set(summarise_scores(runs)["num_train_examples"]) == {1990, 1991}
    assert side_by_side(summarise_scores(runs))["size"].tolist() == [2000, 2000]


def test_side_by_side_has_a_line_per_arm_and_columns_per_split(runs, make_run):
    summary = summarise_scores([*runs, make_run("none", 0, task="other", is_regression=True)])
    wide = side_by_side(summary)
    assert list(wide["condition"]) == [FULL, PROBE, FULL]
    assert list(wide["score"]) == ["accuracy", "accuracy", "pearson"]
    lines = summary.set_index(["group", "condition", "score", "split"])
    for line in wide.to_dict("records"):
        for split in ("validation", "ood"):
            assert line[f"{split}_mean"] == lines.loc[(line["group"], line["condition"], line["score"], split), "mean"]
    assert len(side_by_side(summary, "macro_f1")) == 2
    with pytest.raises(ValueError, match=r"unknown score 'acuracy' \(did you mean 'accuracy'\?\); choose from: "):
        side_by_side(summary, "acuracy")


def test_order_of_seeds_changes_nothing(runs):
    first, second = summarise_scores(runs), summarise_scores(runs[::-1])
    keys = ["split", "condition", "score"]
    assert first.sort_values(keys, ignore_index=True).equals(second.sort_values(keys, ignore_index=True))
    assert list(first.columns) == columns_of("summarise_scores")


def test_side_by_side_takes_runs_and_refuses_another_table(runs):
    pd.testing.assert_frame_equal(side_by_side(runs), side_by_side(summarise_scores(runs)))
    with pytest.raises(ValueError, match="expected the table of summarise_scores"):
        side_by_side(compare(runs, num_draws=100))
