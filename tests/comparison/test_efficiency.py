"""Curves over the number of training examples are the summaries and comparisons of each size."""

import numpy as np
import pandas as pd
import pytest

from tests.comparison.planted import agree
from toolkit.comparison.compare import compare
from toolkit.comparison.conditions import arrange
from toolkit.comparison.summaries import data_efficiency, efficiency_of_groups, summarise_scores

FULL, PROBE = "full fine-tuning", "feature extraction"


@pytest.fixture(scope="module")
def runs(read_run):
    def one(regime, size, seed, right):
        facts = {
            "splits": {"train": {"num_examples": size}},
            "name": "toy",
            "reported_split": "validation",
            "kind": "classification",
            "score": "accuracy",
        }
        return read_run(regime, seed, right=right, config={"max_train_examples": size}, facts={"task": facts})

    cells = ((50, "none", 0.7), (50, "backbone", 0.8), (800, "none", 0.95), (800, "backbone", 0.85))
    return [one(regime, size, seed, right) for size, regime, right in cells for seed in range(3)]


@pytest.fixture(scope="module")
def table(runs):
    return data_efficiency(runs)


def test_one_line_per_split_condition_and_size(table):
    assert set(table["size"]) == {50, 800}
    assert (table["size"] == table["num_train_examples"]).all()
    own = table[table["split"] == "validation"]
    assert list(zip(own["base"], own["num_train_examples"], own["against"] != "", strict=True)) == [
        (FULL, 50, False),
        (FULL, 800, False),
        (PROBE, 50, True),
        (PROBE, 800, True),
    ]
    assert own.set_index(["base", "num_train_examples"]).loc[(FULL, 50), "difference_points"] != 0


def test_values_are_those_of_the_summaries_and_of_the_comparison(runs, table):
    summary, compared = summarise_scores(runs), compare(runs)
    points = summary[summary["score"] == "accuracy"].set_index(["split", "condition"])
    for line in table.to_dict("records"):
        point = points.loc[line["split"], line["condition"]]
        agree(line, mean=point["mean"], sd=point["sd"], num_seeds=3)
        lines = compared[(compared["split"] == line["split"]) & (compared["second"] == line["condition"])]
        assert len(lines) == bool(line["against"])
        names = ["difference_points", "low_points", "high_points", "p", "q", "verdict"]
        for expected in lines[names].to_dict("records") or [{"difference_points": np.nan}]:
            agree(line, **expected)


def test_a_crossing_of_the_curves_is_seen(table):
    """Planted: feature extraction is better with 50 examples and worse with 800."""
    own = table.query("split == 'validation' and against != ''").set_index("num_train_examples")
    assert own.loc[50, "difference_points"] < 0 < own.loc[800, "difference_points"]


def test_one_size_has_no_curve(runs, read_run):
    assert data_efficiency(runs[:6]).empty
    assert set(
        data_efficiency([*runs, *[read_run(regime, task="other") for regime in ("none", "backbone")]])["task"]
    ) == {"toy"}


def test_q_is_that_of_the_whole_comparison(runs, table, read_run):
    """Groups of one size are in the family of the comparison's tests, and not in this table."""
    every = [
        *runs,
        *(read_run(r, s, task="other", right=x) for r, x in (("none", 0.9), ("backbone", 0.5)) for s in (0, 1)),
    ]
    compared = compare(every)
    found = data_efficiency(every)
    keys = ["group", "split", "condition"]
    expected = compared.rename(columns={"second": "condition"}).set_index(keys)["q"]
    paired = found[found["against"] != ""].set_index(keys)
    assert paired["q"].tolist() == expected.loc[paired.index].tolist()
    assert paired["q"].tolist() != table.query("against != ''")["q"].tolist()
    groups = arrange(every)
    pd.testing.assert_frame_equal(efficiency_of_groups(groups, comparison=compared), found)


def test_only_the_headline_score_is_set_against_another_condition(read_run):
    """Where that is a correlation, the comparison has lines of accuracy too, which belong to no mean of this table."""
    facts = {"task": {"name": "toy", "reported_split": "validation", "kind": "classification", "score": "matthews"}}
    cells = [(size, regime, seed) for size in (50, 800) for regime in ("none", "backbone") for seed in range(3)]
    made = [read_run(regime, seed, config={"max_train_examples": size}, facts=facts) for size, regime, seed in cells]
    compared, table = compare(made), data_efficiency(made)
    assert set(compared["score"]) == {"matthews", "accuracy"}
    assert set(table["score"]) == {"matthews"}
    assert not table.duplicated(["group", "split", "condition", "against"]).any()
    keys, paired = ["group", "split", "condition"], table[table["against"] != ""]
    own = compared[compared["score"] == "matthews"].rename(columns={"second": "condition"}).set_index(keys)
    assert paired["difference_points"].tolist() == own.loc[paired.set_index(keys).index, "difference_points"].tolist()


def test_pairs_may_name_conditions_of_groups_of_one_size(runs, read_run):
    other = [read_run(regime, task="other") for regime in ("none", "embeddings")]
    table = data_efficiency([*runs, *other], pairs=[(FULL, PROBE), (FULL, "embeddings frozen")])
    assert set(table["against"]) == {"", f"{FULL}, 50 training examples", f"{FULL}, 800 training examples"}
