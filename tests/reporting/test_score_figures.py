"""Figures of scores show every number once, on axes that hold it, and leave out what does not apply."""

import numpy as np
import pandas as pd
import pytest

from toolkit.reporting.comparison import forest_figure, score_figures
from toolkit.reporting.comparison.forest_figure import VERDICT_STYLES
from toolkit.reporting.comparison.selections import headline, largest_size
from toolkit.reporting.images import styled
from toolkit.reporting.panels import wrap


@pytest.fixture
def data(read_study, data_of):
    return data_of(*read_study(tasks=("toy", "other"), num_seeds=3))


def points_of(axes):
    """Every point that is drawn as a mark."""
    marks = [line for line in axes.lines if line.get_linestyle() == "None"]
    return [(x, y) for line in marks for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def test_the_forest_holds_every_difference_at_its_place(data):
    figure = forest_figure.differences(data.comparison)
    axes = [each for each in figure.axes if each.get_visible()]
    assert len(axes) == 2  # one per pair
    names = [label.get_text() for label in axes[0].get_yticklabels()]
    assert names == ["toy: validation", "ood", "other: validation", "ood"]
    for each, second in zip(axes, ("embeddings frozen", "feature extraction"), strict=True):
        own = data.comparison[data.comparison["second"] == second]
        assert sorted(points_of(each)) == sorted(zip(own["difference_points"], range(4), strict=True))
        low, high = each.get_xlim()
        assert low <= own["low_points"].min()
        assert own["high_points"].max() <= high
        spans = [(s[:, 0].min(), s[:, 0].max()) for c in each.collections for s in c.get_segments()]
        for name in ("low_points", "low90_points"):
            assert {round(value, 9) for value in own[name]} <= {round(low, 9) for low, _ in spans}


@pytest.mark.parametrize(("score", "end"), [("accuracy", 103), ("pearson", 150)])
def test_the_axis_of_a_forest_ends_where_scores_end(data, score, end):
    table = data.comparison.assign(score=score, low_points=-140.0)
    for axes in forest_figure.differences(table).axes:
        low, high = axes.get_xlim()
        assert low == pytest.approx(-end, abs=12 if score == "pearson" else 1e-9)
        assert high < 100
        assert ((-100, 0) in points_of(axes)) == (score == "accuracy")  # an arrow


def test_long_names_leave_room_for_the_lines(data):
    """Panels whose titles took five lines once had 30 pixels for three splits."""
    own = data.comparison[data.comparison["second"] == "embeddings frozen"]
    names = [f"full fine-tuning, shuffle labels {i}" for i in range(4)]
    table = pd.concat([own.iloc[:1].assign(second_base=name, second=name) for name in names])
    with styled():
        figure = forest_figure.differences(table)
        figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.get_window_extent().height / figure.dpi > 0.5  # inches


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_legend_of_many_long_names_takes_no_room_from_the_panels(data, tasks):
    """Eleven arms of a grid once had their names written over the data."""
    own = data.scores[data.scores["group"].isin(data.scores["group"].unique()[:tasks])]
    names = [f"feature extraction, pooling pooler, head learning rate {i}" for i in range(11)]
    table = pd.concat([own.assign(base=name, arm=name) for name in names])
    with styled():
        figure = score_figures.cost_against_score(table)
        figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1
    for axes in (each for each in figure.axes if each.get_visible()):
        assert axes.get_window_extent().height / figure.dpi > 1
        assert axes.get_tightbbox().y0 >= legend.y1 - 1


def test_a_verdict_is_told_by_mark_and_colour():
    styles = [(style["marker"], style["color"], style["markerfacecolor"]) for style in VERDICT_STYLES.values()]
    assert len(set(styles)) == len(styles) == 6


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_one_seed_is_dotted_and_named(read_study, data_of, num_seeds):
    figure = forest_figure.differences(data_of(*read_study(num_seeds=num_seeds)).comparison)
    texts = {text.get_text() for text in figure.legends[0].get_texts()}
    kinds = {True: "95 %, one seed: items only", False: "95 % interval"}
    assert texts & {*kinds.values()} == {kinds[num_seeds == 1]}, "and no line that is not drawn"
    thin = [c.get_linestyle()[0][1] for axes in figure.axes for c in axes.collections if c.get_linewidth()[0] == 0.9]
    assert len(thin) == 4  # two pairs, two splits
    assert [dashes is not None for dashes in thin] == [num_seeds == 1] * 4


def test_every_seed_is_a_dot_and_failed_ones_are_hollow(read_study, data_of):
    data = data_of(*read_study(num_seeds=3, right={"feature extraction": 0.2}))
    (axes,) = score_figures.scores_by_arm(data.scores).axes
    drawn = sorted(x for x, _ in points_of(axes))
    np.testing.assert_allclose(drawn, sorted(data.scores["value"]))
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert sum(len(line.get_xdata()) for line in hollow) == data.scores["is_failed"].sum() == 6


def test_cost_has_a_mark_per_run_and_needs_seconds(data):
    figure = score_figures.cost_against_score(data.scores)
    marks = [point for axes in figure.axes for point in points_of(axes)]
    assert len(marks) == data.scores["run"].nunique()
    assert score_figures.cost_against_score(data.scores.assign(seconds=np.nan)) is None


def test_drift_stands_beside_its_noise_and_has_one_large_mark_per_task(data):
    """As a multiple of its noise, whatever share of the whole table that is; both margins are in the picture."""
    words = (data.joined["parameter"] == "word_embeddings") & data.joined["gain_points"].notna()
    joined = data.joined.assign(relative_drift=np.arange(len(data.joined)) / 10)
    joined.loc[words, "times_noise"] = 1.3 + 0.01 * np.arange(words.sum())
    figure = score_figures.drift_against_gain(joined, margin_points=2.0)
    (axes,) = (each for each in figure.axes if each.get_visible())
    low, high = axes.get_xlim()
    assert low < 0.95 < 1.35 < high
    assert axes.get_ylim()[0] < -2 < 2 < axes.get_ylim()[1]
    assert "1 = its noise" in axes.get_xlabel()
    large = [line for line in axes.lines if line.get_markersize() == 7]
    means = joined[words].groupby("group", sort=False)["times_noise"].mean()
    np.testing.assert_allclose([line.get_xdata()[0] for line in large], means)
    small = [x for line in axes.lines if line.get_markersize() == 3 for x in line.get_xdata()]
    np.testing.assert_allclose(sorted(small), sorted(joined.loc[words, "times_noise"]))


def test_drift_without_a_null_is_that_of_the_shown_rows_in_per_cent_from_zero(data):
    figure = score_figures.drift_against_gain(data.joined)
    (axes,) = (each for each in figure.axes if each.get_visible())
    assert axes.get_xlim()[0] == 0
    assert "shown rows, %" in axes.get_xlabel()
    drawn = sorted(x for line in axes.lines if line.get_markersize() == 3 for x in line.get_xdata())
    words = data.joined.query("parameter == 'word_embeddings'").dropna(subset="gain_points")
    np.testing.assert_allclose(drawn, sorted(100 * words["drift"]))
    assert len([line for line in axes.lines if line.get_markersize() == 7]) == 2
    frozen_only = data.joined[data.joined["is_frozen"]]
    assert score_figures.drift_against_gain(frozen_only) is None


def test_data_efficiency_needs_two_sizes(read_run, data_of, data):
    assert score_figures.data_efficiency(data.scores) is None
    runs = []
    for size in (20, 40, 80):
        for regime, left in (("none", size), ("backbone", size - 1)):  # a near-duplicate was removed
            splits = {"train": {"num_examples": left}}
            facts = {"task": {"name": "toy", "score": "accuracy", "reported_split": "validation", "splits": splits}}
            settings = {"config": {"max_train_examples": size}, "facts": facts}
            runs += [read_run(regime, seed, **settings) for seed in range(2)]
    sized = data_of(runs)
    (axes,) = score_figures.data_efficiency(sized.scores).axes
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["20", "40", "80"]
    assert set(largest_size(sized.scores)["num_train_examples"]) == {79, 80}
    assert {arm.size for tables in sized.details for arm in tables.group.arms} == {80}


def test_nothing_to_draw_gives_no_figure(read_run, data_of):
    data = data_of([read_run("backbone")])
    assert set(score_figures.draw_scores(data.scores, data.comparison, data.joined)) == {
        "scores_by_arm",
        "cost_against_score",
    }


def test_headline_leaves_out_the_accuracy_beside_it():
    table = pd.DataFrame({"score": ["matthews", "accuracy"], "is_headline": [True, False]})
    assert list(headline(table)["score"]) == ["matthews"]


def test_brackets_stay_together_in_narrow_titles():
    assert wrap("feature extraction", 24) == "backbone\n(feature extraction)"
    assert wrap("short", 24) == "short"
    assert "\\$" in wrap("cost $5", 24)
