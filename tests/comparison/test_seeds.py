"""McNemar against an enumeration of every outcome, and comparisons of synthetic runs against a count by hand."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from tests.comparison.planted import agree
from toolkit.comparison.compare import compare_seeds
from toolkit.comparison.conditions import arrange
from toolkit.comparison.intervals import mcnemar


def enumerate_mcnemar(num_first: int, num_second: int) -> float:
    """Share of the 2^n ways in which n discordant items can fall that are as uneven as the one observed, or more so."""
    num_items = num_first + num_second
    outcomes = [abs(2 * sum(sides) - num_items) for sides in product((0, 1), repeat=num_items)]
    return sum(outcome >= abs(num_first - num_second) for outcome in outcomes) / len(outcomes)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6))
def test_mcnemar_is_the_enumerated_p(num_first, num_second):
    assert mcnemar(num_first, num_second) == pytest.approx(enumerate_mcnemar(num_first, num_second), abs=1e-12)


def test_one_line_per_split_pair_and_seed(make_run):
    runs = [
        make_run(regime, seed, right=right) for regime, right in (("none", 0.9), ("backbone", 0.6)) for seed in (0, 1)
    ]
    (group,) = arrange([*runs, make_run("embeddings", 0)])
    table = compare_seeds([group])
    assert list(zip(table["second"], table["seed"], table["split"], strict=True)) == [
        ("embeddings frozen", 0, "validation"),
        ("embeddings frozen", 0, "ood"),
        ("embeddings frozen", 1, ""),
        ("feature extraction", 0, "validation"),
        ("feature extraction", 0, "ood"),
        ("feature extraction", 1, "validation"),
        ("feature extraction", 1, "ood"),
    ]
    assert table["reason"][2] == "no run of this seed under embeddings frozen"


def test_numbers_are_those_of_the_predictions(make_run):
    runs = [make_run("none", right=0.9), make_run("backbone", right=0.6)]
    line = compare_seeds(runs[::-1]).set_index("split").loc["validation"]
    last = [run.predictions.query("epoch == 3 and split == 'validation'").sort_values("id") for run in runs]
    first, second = ((own["label"] == own["prediction"]).to_numpy(bool) for own in last)
    only, points = [int((first & ~second).sum()), int((second & ~first).sum())], 100 * (first.mean() - second.mean())
    agree(line, num_only_first_right=only[0], num_only_second_right=only[1], mcnemar_p=mcnemar(*only))
    agree(line, difference_points=points)


def test_every_test_of_a_call_is_one_family(make_run):
    runs = [make_run(r, s, right=x) for r, x in (("none", 0.9), ("backbone", 0.7), ("embeddings", 0.9)) for s in (0, 1)]
    other = [make_run(r, right=x, task="other") for r, x in (("none", 0.9), ("backbone", 0.6))]
    table = compare_seeds([*runs, *other])
    assert list(dict.fromkeys(table["group"])) == ["tiny on toy", "tiny on other"]
    np.testing.assert_allclose(table["q"], multipletests(table["mcnemar_p"], method="fdr_bh")[1])
    parts = pd.concat([compare_seeds([group]) for group in arrange([*runs, *other])], ignore_index=True)
    pd.testing.assert_frame_equal(table.drop(columns="q"), parts.drop(columns="q"))


def test_pairs_and_labels_are_taken_and_a_single_condition_gives_no_line(make_run):
    runs = [make_run(regime) for regime in ("embeddings", "backbone")]
    assert set(compare_seeds(runs)["first"]) == {"embeddings frozen"}
    labels = {runs[0].path.name: "fixed", runs[1].path.name: "probe"}
    assert set(compare_seeds(runs, labels=labels, pairs=[("probe", "fixed")])["first"]) == {"probe"}
    assert compare_seeds(runs[:1]).empty


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        (lambda table: table.sample(frac=1, random_state=0), True),
        (lambda table: table.assign(label=1 - table["label"]), False),
        (lambda table: table.assign(id=table["id"] + 1), False),
        (lambda table: table.assign(id=np.where(table["id"] == 1, 0, table["id"])), False),
    ],
    ids=["shuffled", "relabelled", "renumbered", "an id repeated"],
)
def test_only_the_same_items_are_compared(make_run, change, is_same):
    full, other = make_run("none", right=0.9), make_run("backbone", right=0.6)
    unchanged = compare_seeds(arrange([full, other]))
    object.__setattr__(other, "predictions", change(other.predictions))
    table = compare_seeds(arrange([full, other]))
    if is_same:
        pd.testing.assert_frame_equal(table, unchanged)
    else:
        assert set(table["reason"]) == {"not compared: other items or labels"}
        assert table["mcnemar_p"].isna().all()


def test_regression_has_differences_and_no_test(make_run):
    table = compare_seeds(arrange([make_run(regime, is_regression=True) for regime in ("none", "backbone")]))
    assert set(table["score"]) == {"pearson"}
    assert table["difference_points"].notna().all()
    assert table["mcnemar_p"].isna().all()


def test_a_collapsed_seed_has_a_score_of_0(make_run):
    runs = [make_run(regime, is_regression=True, is_constant=regime == "backbone") for regime in ("none", "backbone")]
    line = compare_seeds(runs).set_index("split").loc["validation"]
    assert line["second_score"] == 0
    assert line["difference_points"] == pytest.approx(100 * line["first_score"])


def test_a_seed_that_one_condition_lacks_stands_in_its_place(make_run):
    runs = [make_run(regime, seed) for regime, seeds in (("none", (0, 1, 2)), ("backbone", (0, 2))) for seed in seeds]
    assert list(compare_seeds(runs)["seed"].drop_duplicates()) == [0, 1, 2]
