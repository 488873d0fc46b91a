"""Curves over the number of training examples are the summaries and comparisons of each size."""

import pandas as pd
import pytest

from toolkit.analysis.comparison.compare import compare
from toolkit.analysis.comparison.efficiency import COLUMNS, data_efficiency
from toolkit.analysis.comparison.summaries import summarise_scores

FULL, PROBE = "none (full fine-tuning)", "backbone (feature extraction)"


@pytest.fixture
def runs(make_run):
    def one(regime, size, seed, right):
        facts = {"splits": {"train": {"num_examples": size}}, "name": "toy", "reported_split": "validation"}
        facts |= {"kind": "classification", "score": "accuracy"}
        return make_run(regime, seed, right=right, config={"max_train_examples": size}, facts={"task": facts})

    cells = ((50, "none", 0.7), (50, "backbone", 0.8), (800, "none", 0.95), (800, "backbone", 0.85))
    return [one(regime, size, seed, right) for size, regime, right in cells for seed in range(3)]


def test_one_line_per_split_arm_and_size(runs):
    table = data_efficiency(runs)
    assert list(table.columns) == list(COLUMNS)
    own = table[table["split"] == "validation"]
    assert list(zip(own["base"], own["num_train_examples"], own["against"] != "", strict=True)) == [
        (FULL, 50, False),
        (FULL, 800, False),
        (PROBE, 50, True),
        (PROBE, 800, True),
    ]
    assert own.set_index(["base", "num_train_examples"]).loc[(FULL, 50), "difference_points"] != 0


def test_values_are_those_of_the_summaries_and_of_the_comparison(runs):
    table, summary, compared = data_efficiency(runs), summarise_scores(runs), compare(runs)
    points = summary[summary["score"] == "accuracy"].set_index(["split", "arm"])
    for line in table.to_dict("records"):
        point = points.loc[line["split"], line["arm"]]
        assert (line["mean"], line["sd"], line["num_seeds"]) == (point["mean"], point["sd"], 3)
        lines = compared[(compared["split"] == line["split"]) & (compared["second"] == line["arm"])]
        if line["against"]:
            expected = lines.to_dict("records")[0]
            for name in ("difference_points", "low_points", "high_points", "p", "q", "verdict"):
                assert line[name] == expected[name]
        else:
            assert lines.empty
            assert pd.isna(line["difference_points"])


def test_a_crossing_of_the_curves_is_seen(runs):
    """Planted: feature extraction is better with 50 examples and worse with 800."""
    own = data_efficiency(runs).query("split == 'validation' and against != ''").set_index("num_train_examples")
    assert own.loc[50, "difference_points"] < 0 < own.loc[800, "difference_points"]


def test_one_size_has_no_curve(runs, make_run):
    assert data_efficiency(runs[:6]).empty
    other = [make_run(regime, task="other") for regime in ("none", "backbone")]
    assert set(data_efficiency([*runs, *other])["task"]) == {"toy"}
