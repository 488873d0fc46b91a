"""Statistics over seeds against numpy's, with failed runs planted."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.comparison.planted import agree
from toolkit.comparison.compare import compare
from toolkit.comparison.summaries import last_scores, measure_cost, statistics, summarise_scores

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


def last(runs, name):
    """What each run scored on validation in the end."""
    return [run.scores.query("split == 'validation' and epoch == 3")[name].item() for run in runs]


def test_failed_runs_are_counted_and_shown_with_and_without(runs):
    table = summarise_scores(runs).set_index(["split", "condition", "score"]).sort_index()
    line = table.loc["validation", FULL, "accuracy"]
    scores = last(runs[:4], "accuracy")
    agree(line, num_seeds=4, num_failed=1, num_undefined=0, num_at_chance=1, majority_rate=0.6)
    agree(line, mean=np.mean(scores), mean_not_failed=np.mean(scores[:3]), sd=np.std(scores, ddof=1))
    agree(line, min=scores[3], sd_not_failed=np.std(scores[:3], ddof=1))
    other = table.loc["validation", PROBE, "accuracy"]
    agree(other, num_seeds=2, num_failed=0, mean=other["mean_not_failed"])


def test_lines_are_labelled_splits_and_scores_the_reported_split_first(runs):
    table = summarise_scores(runs)
    assert list(dict.fromkeys(table["split"])) == ["validation", "ood"]  # not "hidden", which has no labels
    assert set(table.loc[table["is_reported_split"], "split"]) == {"validation"}
    assert set(table["score"]) == {"accuracy", "macro_f1", "matthews", "loss"}
    assert set(table.loc[table["is_headline"], "score"]) == {"accuracy"}
    assert len(table) == 2 * 2 * 4


def test_equal_seeds_have_a_standard_deviation_of_exactly_0():
    values = [0.877] * 3  # whose mean is not .877 to the bit
    assert np.std(values, ddof=1) > 0
    assert statistics(values)["sd"] == 0


def test_one_seed_has_no_sd_and_all_failed_no_statistics(make_run):
    table = summarise_scores([make_run(right=0.2)])
    assert table[["sd", "mean_not_failed"]].isna().all(axis=None)
    assert table["mean"].notna().all()
    assert (table["num_failed"] == 1).all()


def test_undefined_scores_are_counted_and_not_averaged(make_run):
    runs = [make_run(seed=seed, right=0.9) for seed in range(3)]
    object.__setattr__(runs[0], "scores", runs[0].scores.assign(matthews=np.nan))
    table = summarise_scores(runs).query("score == 'matthews' and split == 'validation'")
    agree(table.iloc[0], num_undefined=1, mean=np.mean(last(runs[1:], "matthews")))


def test_a_collapsed_regression_run_counts_as_0_and_is_left_out_of_those_that_did_not_fail(make_run):
    runs = [make_run(seed=seed, is_regression=True, is_constant=seed == 2) for seed in range(3)]
    line = summarise_scores(runs).query("score == 'pearson' and split == 'validation'").to_dict("records")[0]
    values = last(runs[:2], "pearson")
    agree(line, num_seeds=3, num_failed=1, num_undefined=1, mean=sum(values) / 3, min=0)
    agree(line, mean_not_failed=np.mean(values))
    assert pd.isna(line["num_at_chance"])  # no majority class


def test_a_size_is_what_was_asked_for_whatever_near_duplicates_left_of_it(make_run):
    def one(regime, left, seed=0):
        task = {"splits": {"train": {"num_examples": left}}, "score": "accuracy", "reported_split": "validation"}
        return make_run(regime, seed, config={"max_train_examples": 2000}, facts={"task": task})

    runs = [one("none", 1990), one("none", 1995, seed=1), one("backbone", 1991)]
    for table in (summarise_scores(runs), measure_cost(runs), compare(runs)):
        assert set(table["size"]) == {2000}
    assert set(summarise_scores(runs)["num_train_examples"]) == {1990, 1991}
    of_runs = last_scores(runs).drop_duplicates("run").set_index("run")["num_train_examples"]
    counts = {run.path.name: run.manifest["task"]["splits"]["train"]["num_examples"] for run in runs}
    assert of_runs.to_dict() == counts


def test_order_of_seeds_changes_nothing(runs):
    first, second = summarise_scores(runs), summarise_scores(runs[::-1])
    keys = ["split", "condition", "score"]
    assert first.sort_values(keys, ignore_index=True).equals(second.sort_values(keys, ignore_index=True))
