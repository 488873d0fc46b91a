"""Charts of scores hold every number of their tables once, on axes that hold it, and leave out what does not apply."""

import re

import altair
import numpy as np
import pandas as pd
import pytest

import toolkit
from tests.reporting.chart_data import lines_of, names_of, panels_of, titles_of
from toolkit.reporting.chart_files import KINDS, image_of
from toolkit.reporting.charts import COLOURS, colour, dash, shape, spec_of
from toolkit.reporting.topics.caveats import headline, largest_size
from toolkit.reporting.topics.comparison import VERDICT_MARKS, differences_chart
from toolkit.reporting.topics.drift_and_score import drift_and_score_chart
from toolkit.reporting.topics.runs import study_charts
from toolkit.reporting.topics.scores import cost_chart, epochs_chart, scores_chart


@pytest.fixture
def data(read_study, data_of):
    return data_of(*read_study(tasks=("toy", "other"), num_seeds=3))


def scale_of(spec, channel):
    """The domain of an axis: one for all layers of a panel."""
    found = {
        tuple(layer["encoding"][channel]["scale"]["domain"])
        for layer in spec["layer"]
        if "scale" in layer["encoding"].get(channel, {})
    }
    (domain,) = found
    return domain


@pytest.fixture
def forest(data):
    """A function: what the comparison says instead, to the panels of its forest."""
    return lambda **columns: panels_of(differences_chart(data.comparison.assign(**columns)))


def test_the_forest_holds_every_difference_with_the_interval_that_decided(data):
    table = data.comparison.copy()
    table["verdict"] = ["equivalent", "supported"] * (len(table) // 2)
    chart = differences_chart(table)
    panels = panels_of(chart)
    conditions = ("embeddings frozen", "feature extraction")
    assert titles_of(chart) == [
        ["full fine-tuning", f"minus {second}"] if len(panels) > 2 else [f"full fine-tuning minus {second}"]
        for second in conditions
    ]
    is_equivalent = table["verdict"] == "equivalent"
    ends = {side: table[f"{side}90_points"].where(is_equivalent, table[f"{side}_points"]) for side in ("low", "high")}
    for panel, second in zip(panels, conditions, strict=True):
        own = table.assign(difference=table["difference_points"], **ends)[table["second"] == second]
        drawn, numbers = lines_of(panel, "difference"), ["difference", "low", "high"]
        np.testing.assert_allclose(drawn[numbers], own[numbers], rtol=1e-4)
        assert list(drawn["verdict"]) == list(own["verdict"])
        assert list(drawn["place"]) == ["toy: validation", "toy: ood", "other: validation", "other: ood"]
        low, high = scale_of(panel, "x")
        assert low <= drawn["low"].min() + 1e-3
        assert drawn["high"].max() - 1e-3 <= high


@pytest.mark.parametrize(("score", "end"), [("accuracy", 100), ("pearson", 140), ("r2", 140)])
def test_the_axis_of_a_forest_ends_where_scores_end(forest, score, end):
    low, high = scale_of(forest(score=score, low_points=-140.0, verdict="supported")[0], "x")
    assert low == -end
    assert high < 100


@pytest.mark.parametrize("has_others", [False, True])
def test_the_axis_of_a_forest_holds_a_difference_without_an_interval(data, has_others):
    """F1 and correlations have none from one seed, or where all seeds differ by as much."""
    table = data.comparison.assign(difference_points=[80.0] + [1.0] * (len(data.comparison) - 1))
    ends = ["low_points", "high_points", "low90_points", "high90_points"]
    table.loc[table.index[:1] if has_others else table.index, ends] = np.nan
    low, high = scale_of(panels_of(differences_chart(table))[0], "x")
    assert low <= 0
    assert high >= 80


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_one_seed_is_dotted_and_named(read_study, data_of, num_seeds):
    panel = panels_of(differences_chart(data_of(*read_study(num_seeds=num_seeds)).comparison))[0]
    assert set(lines_of(panel, "difference")["over"]) == {"one seed: items only" if num_seeds == 1 else "2 seeds"}
    layers = [layer for layer in panel["layer"] if "transform" in layer]
    dotted = {layer["transform"][0]["filter"]: "strokeDash" in layer["mark"] for layer in layers}
    assert dotted == {"datum.num_seeds > 1": False, "datum.num_seeds == 1": True}


def test_an_interval_narrower_than_its_mark_is_seen(data):
    layers = panels_of(differences_chart(data.comparison))[0]["layer"]
    ticks = [layer for layer in layers if layer["mark"]["type"] == "tick"]
    (mark,) = [layer["mark"] for layer in layers if layer["mark"]["type"] == "point"]
    assert [layer["encoding"]["x"]["field"] for layer in ticks] == ["low", "high"]
    assert all(layer["mark"]["size"] > 1.5 * mark["size"] ** 0.5 for layer in ticks)


def test_no_two_of_twenty_conditions_look_alike():
    names = [f"condition {i}" for i in range(20)]
    hues, marks, dashes = (make("regime", names)["scale"]["range"] for make in (colour, shape, dash))
    assert len(set(zip(hues, marks, strict=True))) == len(set(zip(hues, map(tuple, dashes), strict=True))) == 20


def test_a_line_that_others_cover_is_wider_than_they():
    epochs = [{"epoch": float(epoch), "split": "validation", "accuracy": 0.5 + epoch / 10} for epoch in range(3)]
    table = pd.concat([pd.DataFrame(epochs).assign(run=name, condition=name) for name in "abc"])
    (panel,) = panels_of(epochs_chart(table))
    (width,) = [layer["encoding"]["strokeWidth"] for layer in panel["layer"] if layer["mark"]["type"] == "line"]
    widths = [each["value"] for each in width["condition"]] + [width["value"]]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 3


def test_whole_numbers_of_an_axis_have_no_exponent():
    lines = [{"epoch": float(i), "split": "validation", "accuracy": 0.5 + i / 100} for i in range(41)]
    svg = image_of(epochs_chart(pd.DataFrame(lines)), "svg").decode()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"10", "20", "30", "40"} <= set(texts)
    assert not [text for text in texts if "e+" in text]


def test_no_tick_stands_above_the_best_score(data):
    (panel, *_) = panels_of(cost_chart(data.scores.assign(value=1.0)))
    low, high = panel["encoding"]["y"]["scale"]["domain"]
    assert low < 0.98 < 1 < high < 1.005
    (panel, *_) = panels_of(cost_chart(data.scores.assign(value=3.0, score="loss")))
    low, high = panel["encoding"]["y"]["scale"]["domain"]
    assert low < 3 < high


def test_every_seed_is_a_dot_and_failed_ones_are_hollow(read_study, data_of):
    data = data_of(*read_study(num_seeds=3, right={"feature extraction": 0.2}))
    (panel,) = panels_of(scores_chart(data.scores))
    dots = lines_of(panel, "is_failed")
    np.testing.assert_allclose(sorted(dots["value"]), sorted(data.scores["value"]), rtol=1e-4)
    assert dots["is_failed"].sum() == data.scores["is_failed"].sum() == 6
    (circles,) = [layer["encoding"] for layer in panel["layer"] if layer["mark"]["type"] == "circle"]
    hollow = circles["fillOpacity"]
    assert (hollow["condition"][0]["test"], hollow["condition"][0]["value"]) == ("datum.is_failed", 0)
    assert hollow["value"] > 0.5
    assert circles["stroke"]["field"] == circles["color"]["field"]  # what is hollow is drawn


@pytest.mark.parametrize("num_seeds", [2, 3])
def test_a_mean_has_an_interval_from_three_seeds_on(read_study, data_of, num_seeds):
    from scipy import stats

    scores = data_of(*read_study(num_seeds=num_seeds)).scores
    (panel,) = panels_of(scores_chart(scores))
    means = lines_of(panel, "mean").set_index(["regime", "place"])
    for (regime, split), own in scores.groupby(["base", "split"])["value"]:
        place = "validation (reported)" if split == "validation" else split
        ends = (np.nan, np.nan)
        if num_seeds == 3 and own.nunique() > 1:
            ends = stats.t.interval(0.95, 2, loc=own.mean(), scale=own.std() / np.sqrt(3))
        drawn = means.loc[(regime, place), ["mean", "low", "high"]].astype(float)
        np.testing.assert_allclose(drawn, [own.mean(), *np.clip(ends, 0, 1)], rtol=1e-4)
    low, high = scale_of(panel, "x")
    shown = [*scores["value"], *means["low"].dropna(), *means["high"].dropna()]
    assert low < min(shown) < max(shown) < high


ENDS = {"accuracy": (0, 1), "matthews": (-1, 1), "r2": (-np.inf, 1), "loss": (0, np.inf)}
ENDS |= {"perplexity": (-np.inf, np.inf)}


@pytest.mark.parametrize("middle", [-0.9, 0.1, 0.9, 30.0])
@pytest.mark.parametrize("score", ENDS)
def test_an_interval_ends_where_its_score_does(read_study, data_of, score, middle):
    scores = data_of(*read_study(num_seeds=3)).scores
    around = scores.groupby(["base", "split"]).cumcount() - 1
    (panel,) = panels_of(scores_chart(scores.assign(value=middle + around / 10, score=score)))
    drawn = lines_of(panel, "mean")[["low", "high"]].astype(float).to_numpy()
    half_width = 4.302653 * 0.1 / 3**0.5  # Student's t of two degrees of freedom
    np.testing.assert_allclose(
        drawn, len(drawn) * [np.clip([middle - half_width, middle + half_width], *ENDS[score])], rtol=1e-4
    )


def test_cost_has_a_mark_per_run_and_needs_seconds(data):
    drawn = pd.concat([lines_of(panel, "seconds") for panel in panels_of(cost_chart(data.scores))])
    table = data.scores[data.scores["is_reported_split"]]
    assert sorted(drawn["run"]) == sorted(table["run"])
    np.testing.assert_allclose(sorted(drawn["seconds"]), sorted(table["seconds"]), rtol=1e-4)


def test_drift_stands_beside_its_noise_and_has_one_large_mark_per_task(data):
    """As a multiple of its noise, whatever share of the whole table that is; both margins are in the picture."""
    words = (data.joined["parameter"] == "word_embeddings") & data.joined["gain_points"].notna()
    joined = data.joined.assign(relative_drift=np.arange(len(data.joined)) / 10)
    joined.loc[words, "times_noise"] = 1.3 + 0.01 * np.arange(words.sum())
    (panel,) = panels_of(drift_and_score_chart(joined, margin_points=2.0))
    (left, right), (bottom, top) = (scale_of(panel, channel) for channel in "xy")
    assert left < 0.95 < 1.35 < right
    assert bottom < -2 < 2 < top
    assert "times its noise" in str(panel)
    means = joined[words].groupby("group", sort=False)["times_noise"].mean()
    np.testing.assert_allclose(lines_of(panel, "runs")["place"], means, rtol=1e-4)
    places = sorted(lines_of(panel, "seed")["place"])
    np.testing.assert_allclose(places, sorted(joined.loc[words, "times_noise"]), rtol=1e-4)


def test_drift_without_a_null_is_that_of_the_shown_rows_in_per_cent_from_zero(data):
    (panel,) = panels_of(drift_and_score_chart(data.joined))
    assert scale_of(panel, "x")[0] == 0
    assert "exposed rows (%)" in str(panel)
    words = data.joined.query("parameter == 'word_embeddings'").dropna(subset="gain_points")
    np.testing.assert_allclose(
        sorted(lines_of(panel, "seed")["place"]), sorted(100 * words["offset_free_drift"]), rtol=1e-4
    )
    assert len(lines_of(panel, "runs")) == 2


def test_charts_are_of_the_largest_size(read_run, data_of):
    runs = []
    for size in (20, 40, 80):
        for regime, left in (("none", size), ("backbone", size - 1)):  # a near-duplicate was removed
            splits = {"train": {"num_examples": left}}
            facts = {"task": {"name": "toy", "score": "accuracy", "reported_split": "validation", "splits": splits}}
            settings = {"config": {"max_train_examples": size}, "facts": facts}
            runs += [read_run(regime, seed, **settings) for seed in range(2)]
    sized = data_of(runs)
    assert set(largest_size(sized.scores)["num_train_examples"]) == {79, 80}
    assert {condition.size for tables in sized.details for condition in tables.group.conditions} == {80}


def test_nothing_to_draw_gives_no_chart(read_run, data_of):
    assert set(study_charts(data_of([read_run("backbone")]))) == {"scores_by_condition"}


def test_last_scores_are_the_reports(read_study, data_of):
    runs, labels = read_study(num_seeds=2)
    pd.testing.assert_frame_equal(toolkit.last_scores(runs, labels), data_of(runs, labels).scores)


def test_headline_leaves_out_the_accuracy_beside_it():
    assert list(headline(pd.DataFrame({"score": ["matthews", "accuracy"], "is_headline": [True, False]}))["score"]) == [
        "matthews"
    ]


def test_a_regime_has_one_colour_in_every_chart_of_a_report(data):
    charts = study_charts(data)
    domains = [names_of(charts[name])[1] for name in ("scores_by_condition", "cost_against_score")]
    assert domains == [["full fine-tuning", "embeddings frozen", "feature extraction"]] * 2
    assert (len(set(COLOURS)), len(set(VERDICT_MARKS.values()))) == (len(COLOURS), len(VERDICT_MARKS))


NAMES = [f'<b>backbone</b> $x$ (feature "extraction"), pooling pooler, head learning rate {i} \'\\' for i in range(11)]


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("plot", ["plot_scores", "plot_cost", "plot_differences"])
def test_hostile_and_long_names_stay_texts_and_charts_stay_narrow(data, plot):
    own = data.comparison[data.comparison["second"] == "embeddings frozen"].iloc[:2]
    if plot == "plot_differences":
        table = pd.concat([own.assign(second_base=name, second=name) for name in NAMES])
    else:
        table = pd.concat([data.scores.assign(base=name, condition=name) for name in NAMES])
    svg = image_of(getattr(toolkit, plot)(table), "svg").decode()
    assert "<b>" not in svg
    assert "&lt;b&gt;backbone&lt;/b&gt; $x$" in svg
    assert float(svg.split('width="')[1].split('"')[0]) < 800


@pytest.mark.usefixtures("drawn")
def test_equal_charts_are_equal_files(data):
    chart = differences_chart(data.comparison)  # with titles, shades and several marks
    for kind in KINDS:
        assert len({image_of(chart, kind) for _ in range(6)}) == 1, kind
    width = float(image_of(chart, "svg").decode().split('width="')[1].split('"')[0])
    box = re.search(rb"/MediaBox \[0 0 ([0-9.]+)", image_of(chart, "pdf"))
    assert float(box[1]) == pytest.approx(0.75 * width, abs=0.1), "a pixel is .75 points"


@pytest.mark.usefixtures("drawn")
def test_a_chart_looks_the_same_in_a_notebook_and_can_be_saved_and_changed(data, tmp_path):
    chart = scores_chart(data.scores)
    assert chart.to_dict()["config"]["font"] == spec_of(chart)["config"]["font"]
    assert spec_of(chart.configure_axis(labelFontSize=20))["config"]["axis"]["labelFontSize"] == 20
    for name in ("figure.pdf", "figure.svg"):
        chart.save(tmp_path / name)
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "figure.svg").read_text() == image_of(chart, "svg").decode()
    assert "vconcat" in altair.vconcat(chart, differences_chart(data.comparison)).to_dict()
