"""Runs that failed, that are at chance or whose score is undefined, against statsmodels and planted answers."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from tests.comparison.planted import plant
from tests.run_directories import write_run
from toolkit.comparison.runs import (
    count_at_chance,
    counted_score,
    last_fall,
    last_score,
    read_reported,
    reported_first,
    splits_out_of_distribution,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs"), "none", 0, epochs=1).path


def answered(place, num_right, num_majority, num_items):
    """A run with these numbers of right answers and of items of the most frequent label."""
    right = np.arange(num_items) < num_right
    return read_reported(plant(place, right, labels=np.arange(num_items) >= num_majority), "run")


@st.composite
def counts(draw):
    num_items = draw(st.integers(1, 60))
    return draw(st.integers(0, num_items)), draw(st.integers((num_items + 1) // 2, num_items)), num_items


@settings(max_examples=40, deadline=None)
@given(counts())
def test_chance_is_the_exact_binomial_interval_and_holds_every_failed_run(place, numbers):
    num_right, num_majority, num_items = numbers
    run = answered(place, *numbers)
    if num_majority == num_items:  # one class: always giving its label is right throughout
        assert (run.is_at_chance, run.is_failed) == (None, None)
        return
    low, _ = proportion_confint(num_right, num_items, method="beta")
    assert run.is_at_chance == ((0.0 if num_right == 0 else low) <= num_majority / num_items)
    assert run.is_failed == (num_right <= num_majority)
    assert run.is_at_chance or not run.is_failed


def test_the_majority_is_of_train_wherever_it_is_scored_and_one_answer_to_all_has_failed(place):
    """Of 100 items 20 have train's most frequent label and 80 another: one page called .20 and .80 the majority."""
    labels = np.arange(100) >= 20
    apart, constant = (
        read_reported(plant(place, right, labels=labels), "run") for right in (np.arange(100) < 25, labels)
    )
    assert [run.majority_rate("validation") for run in (apart, constant)] == [0.2, 0.2]
    assert [run.is_failed for run in (apart, constant)] == [False, True]
    floors = {"majority": {"validation": {"accuracy": 0.2}}}
    for known, rate, at_chance in (({"floors": floors}, 0.2, True), ({}, np.nan, None)):
        apart, constant = (replace(run, manifest=known) for run in (apart, constant))
        assert apart.majority_rate("validation") == pytest.approx(rate, nan_ok=True)
        assert (apart.is_failed, constant.is_failed, apart.is_at_chance) == (
            None if rate != rate else False,
            True,
            at_chance,
        )


def test_answers_that_are_all_of_one_cluster_are_one_answer(place):
    run = answered(place, 90, 50, 100)
    together = replace(run, predictions=run.predictions.assign(cluster=[0] * 100))
    assert [run.is_at_chance, together.is_at_chance] == [False, True]


def test_coin_tosses_are_at_chance_and_fail_half_of_the_time(place):
    """500 balanced items: the count of failures alone would call half of such runs fine."""
    rng = np.random.default_rng(0)
    runs = [answered(place, int(right), 250, 500) for right in rng.binomial(500, 0.5, 200)]
    assert 0.4 < np.mean([run.is_failed for run in runs]) < 0.65
    assert np.mean([run.is_at_chance for run in runs]) >= 0.94
    learned = [answered(place, int(right), 250, 500) for right in rng.binomial(500, 0.65, 50)]
    assert not any(run.is_at_chance for run in learned)


def test_chance_does_not_apply_to_regression_and_to_hidden_labels(make_run):
    regression = read_reported(make_run(is_regression=True), "one")
    task = {"name": "toy", "kind": "classification", "score": "accuracy", "reported_split": "hidden"}
    hidden = read_reported(make_run(seed=1, facts={"task": task}), "two")
    assert [regression.is_at_chance, hidden.is_at_chance, count_at_chance([regression, hidden])] == [None] * 3
    assert not hidden.is_failed
    assert count_at_chance([regression, read_reported(make_run(seed=2, right=0.3), "three")]) == 1


def test_an_undefined_headline_is_a_failed_run_and_a_correlation_of_0(make_run):
    fine, constant = (read_reported(make_run(seed=s, is_regression=True, is_constant=s == 1), str(s)) for s in (0, 1))
    assert [fine.is_failed, constant.is_failed] == [False, True]
    assert np.isnan(last_score(constant, "validation"))
    assert counted_score(constant, "validation") == 0
    assert counted_score(constant, "validation", "loss") == last_score(constant, "validation", "loss")
    assert counted_score(fine, "validation") == last_score(fine, "validation") > 0.9


def test_what_is_undefined_for_another_reason_stays_so(make_run):
    run = make_run(is_regression=True, is_constant=True)
    object.__setattr__(run, "predictions", run.predictions.assign(label=pd.array([0.5] * len(run.predictions))))
    equal = read_reported(run, "labels that are all equal")
    assert np.isnan(counted_score(equal, "validation"))
    assert not equal.is_failed  # the task, not the run
    other = make_run(seed=1, is_regression=True)
    object.__setattr__(other, "scores", other.scores.assign(pearson=np.nan))
    assert np.isnan(counted_score(read_reported(other, "answers that differ"), "validation"))


@pytest.mark.parametrize(
    ("task", "found"),
    [({}, ()), ({"out_of_distribution": ["cr", "gone"]}, ("cr",)), ({"out_of_distribution": []}, ())],
)
def test_a_manifest_says_what_is_out_of_distribution(task, found):
    splits = [
        "validation",
        "val",
        "holdout",
        "blind",
        "cr",
        "ood",
        "ood2",
        "mismatched",
        "validation_mismatched",
        "ood",
    ]
    assert splits_out_of_distribution(task, splits) == found


def test_a_run_knows_its_splits_out_of_distribution(make_run):
    plain = make_run()
    task = plain.manifest["task"] | {"out_of_distribution": ["ood"]}
    runs = [read_reported(run, "run") for run in (plain, make_run(seed=1, facts={"task": task}))]
    assert [run.out_of_distribution for run in runs] == [(), ("ood",)]


def test_reported_splits_come_first_and_each_once():
    assert reported_first(["ood", "test", "ood", "validation"], {"validation"}) == ["validation", "ood", "test"]


@pytest.mark.parametrize(
    ("epochs", "losses", "head_training", "fall"),
    [
        ((0, 1, 2, 3), (9, 4, 2, 1.9), "epochs", 0.05),
        ((0, 1, 2, 3), (9, 4, 2, 2.1), "epochs", -0.05),
        ((0, 1, 2, 2.5), (9, 4, 2, 1.9), "epochs", 0.05),  # it ended within an epoch
        ((0.5, 1, 1.5, 2), (8, 4, 3, 1), None, 0.75),  # another loop scored twice in each
        ((0, 1), (2, 1), "epochs", 0.5),
        ((0, 1), (2, 1), "early-stopping", np.nan),
        ((2, 3), (np.nan, 1), "epochs", np.nan),
        ((3,), (1,), "epochs", np.nan),
    ],
)
def test_the_last_fall_is_that_of_the_loss_on_a_split_in_its_last_epoch(epochs, losses, head_training, fall):
    table = pd.DataFrame({"epoch": epochs, "loss": losses, "split": "validation"})
    table = pd.concat([table.assign(epoch=table["epoch"] + 9, loss=7.0, split="far"), table.iloc[::-1]])
    assert last_fall(table, "validation", head_training) == pytest.approx(fall, nan_ok=True)
    assert np.isnan(last_fall(table.drop(columns="loss"), "validation", head_training))
