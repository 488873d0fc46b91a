"""One point per task: refusals, an exact oracle, controls, and laws on what must change nothing."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from tests.comparison.planted import agree
from tests.refusals import check_refused
from toolkit.comparison.drift_and_score import LEAST_TASKS, associate_drift
from toolkit.schema import columns_of

SURE = ("supported",)


def joined(drift, gain, *, seeds=2, parameter="word_embeddings", epoch=3, size=100, is_frozen=False, verdicts=SURE):
    """A table as :func:`join_drift` makes it: every task's values are the means of those of its seeds."""
    lines = [
        {
            "group": f"tiny on task{task}",
            "model": "tiny",
            "base": "full",
            "learning_rate": 5e-5,
            "run": f"task{task}-{seed}-{size}",
            "parameter": parameter,
            "is_frozen": is_frozen,
            "epoch": epoch,
            "size": size,
            "num_train_examples": size,
            "times_noise": moved + (seed - (seeds - 1) / 2) / 100,
            "relative_drift": 1 / (1 + task),
            "gain_points": gained + (seed - (seeds - 1) / 2),
            "gain_verdict": verdicts[task % len(verdicts)],
        }
        for task, (moved, gained) in enumerate(zip(drift, gain, strict=True))
        for seed in range(seeds)
    ]
    return pd.DataFrame(lines)


def enumerate_p(drift, gain):
    """Two-sided p over every order of the tasks, twice the smaller tail as scipy has it."""
    found = spearmanr(drift, gain).statistic
    every = np.array([spearmanr(order, gain).statistic for order in permutations(drift)])
    return min(1, 2 * min(np.mean(every >= found - 1e-12), np.mean(every <= found + 1e-12)))


@pytest.mark.parametrize("gain", [[1, 2, 3, 4, 5, 6], [2, 1, 4, 3, 6, 5], [3, 1, 1, 2, 5, 0]])
def test_correlation_and_p_are_those_of_every_order_of_the_tasks(gain):
    drift = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    found = {"spearman": spearmanr(drift, gain).statistic, "p": enumerate_p(drift, gain)}
    agree(associate_drift(joined(drift, gain)).iloc[0], **found, num_tasks=6, num_runs=12, reason="")


@given(st.integers(1, LEAST_TASKS - 1), st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_fewer_than_six_tasks_are_refused_however_many_runs(num_tasks, seeds):
    table = associate_drift(joined(range(num_tasks), range(num_tasks), seeds=seeds))
    assert table[["spearman", "p", "q"]].isna().all(axis=None)
    assert table["reason"].str.startswith(f"refused: {num_tasks} task").all()


def test_tasks_of_unlike_learning_rates_are_refused():
    """A multiple of noise falls as the rate rises: tasks that were tuned apart would be ranked by their rates."""
    table = joined([1.1, 1.2, 1.3, 1.4, 1.5, 1.6], [1, 2, 3, 4, 5, 6])
    agree(associate_drift(table).iloc[0], spearman=1.0)
    table.loc[table["group"] == "tiny on task2", "learning_rate"] = 3e-4
    reason = "refused: tasks were trained at different learning rates (5e-05, 0.0003)"
    agree(associate_drift(table).iloc[0], spearman=np.nan, p=np.nan, reason=reason)


def test_more_epochs_and_more_sizes_of_the_same_runs_change_nothing():
    drift, gain = [0.1, 0.3, 0.2, 0.5, 0.4, 0.7, 0.6], [3, 1, 2, 5, 7, 6, 4]
    own = joined(drift, gain)
    earlier = [joined(np.square(drift), gain[::-1], epoch=epoch) for epoch in (1, 2, 2.5)]
    smaller = joined(drift[::-1], gain, size=10)
    expected = associate_drift(own)
    for more in (*earlier, smaller, own):
        pd.testing.assert_frame_equal(associate_drift(pd.concat([more, own], ignore_index=True)), expected)
        pd.testing.assert_frame_equal(associate_drift(pd.concat([own, more], ignore_index=True)), expected)
    five = joined(drift[:5], gain[:5])
    table = associate_drift(pd.concat([five, *(part.query("group < 'tiny on task5'") for part in earlier)]))
    assert table["reason"].str.startswith("refused: 5 tasks").all()


def test_the_last_epoch_and_the_largest_size_are_each_tasks_own():
    """Tasks trained for other numbers of epochs, on other numbers of examples; all of them (NA) is the most."""
    drift, gain = np.array([0.1, 0.3, 0.2, 0.5, 0.4, 0.7, 0.6]), np.array([3, 1, 2, 5, 7, 6, 4])
    parts = []
    for task, last in enumerate((1, 2, 3, 1, 2, 3, 4)):
        size = pd.NA if task % 2 else 100 * last
        own = [
            joined(drift, gain, epoch=last, size=size),
            joined(drift[::-1], gain, epoch=last, size=20 + task),
            joined(gain, drift, epoch=last - 0.5, size=size),
        ]
        parts += [table[table["group"] == f"tiny on task{task}"] for table in own]
    expected = associate_drift(joined(drift, gain))
    for order in (parts, parts[::-1]):
        pd.testing.assert_frame_equal(associate_drift(pd.concat(order, ignore_index=True)), expected)


def test_controls():
    """Twelve tasks: a planted monotone relation is found; independent values fall below .05 about as often as that."""
    drift = np.linspace(0.01, 0.2, 12)
    assert associate_drift(joined(drift, np.exp(drift))).iloc[0]["p"] < 0.001
    generator = np.random.default_rng(0)
    null = [associate_drift(joined(drift[:6], generator.random(6), seeds=1)).iloc[0]["p"] for _ in range(200)]
    assert np.mean(np.array(null) < 0.05) <= 0.09


def test_what_is_undefined_is_said():
    flat = associate_drift(joined(range(6), [1] * 6)).iloc[0]
    assert np.isnan(flat["spearman"])
    assert flat["reason"].startswith("undefined")
    table = joined(range(7), range(7))
    table.loc[table["group"] == "tiny on task3", "gain_points"] = np.nan
    agree(associate_drift(table).iloc[0], num_tasks=6)
    assert associate_drift(joined(range(6), range(6), is_frozen=True)).empty
    assert list(associate_drift(joined([], []).reindex(columns=table.columns)).columns) == columns_of("associate_drift")


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        (
            ("equivalent",),
            "refused: every gain is within the margin (equivalent to 0), so that there is nothing to predict",
        ),
        (
            ("equivalent", "under-powered", "equivalent"),
            "no gain is distinguishable from 0 (4 equivalent, 2 under-powered)",
        ),
        (("equivalent",) * 5 + SURE, ""),
    ],
)
def test_gains_that_are_all_noise_are_not_ranked(verdicts, reason):
    """Six tasks in perfect order, none of whose gains is told apart from 0: there is nothing to predict."""
    line = associate_drift(joined(range(6), range(6), verdicts=verdicts)).iloc[0]
    assert reason in line["reason"]
    assert bool(reason) == bool(line["reason"]) == line[["spearman", "p", "q"]].isna().all()
    assert reason or line["spearman"] == 1


def test_tasks_that_tie_beyond_noise_are_tied_whatever_the_whole_table_moved():
    """relative_drift falls from task to task as the vocabulary's coverage does; no rank rests on it."""
    table = associate_drift(joined([1.2] * 7, range(7), seeds=1))
    assert table["reason"].str.startswith("undefined: drift or gain is the same").all()


def test_parameters_are_one_family():
    parts = [joined(range(7), range(7), parameter="word_embeddings"), joined(range(7), [1, 0, 3, 2, 5, 4, 6])]
    parts[1]["parameter"] = "position_embeddings"
    table = associate_drift(pd.concat(parts, ignore_index=True))
    assert len(table) == 2
    assert (table["q"] >= table["p"]).all()
    assert table["q"].max() == pytest.approx(table["p"].max())


@pytest.mark.parametrize(
    ("other", "got"),
    [
        (joined([1.0], [1.0]).drop(columns=["is_frozen", "gain_verdict"]), "one without is_frozen, gain_verdict"),
        (["runs/one"], "list"),
    ],
)
def test_another_table_is_refused(other, got):
    check_refused(f"^expected the table of join_drift; got {got}$", associate_drift, other)
