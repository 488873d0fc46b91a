"""What the charts of drift hold: the table's numbers, and what is exactly 0 on the floor, never on the axis proper."""

import numpy as np
import pandas as pd
import pytest

import toolkit
from tests.refusals import check_refused
from tests.reporting.chart_data import alone, lines_of, names_of, panels_of, titles_of
from toolkit.comparison.measure import measure
from toolkit.comparison.report_data import ReportData, order_of
from toolkit.reporting.cells import stratum_text
from toolkit.reporting.charts import regimes_of, spec_of
from toolkit.reporting.topics.drift import drift_chart, group_charts, position_chart, word_drift_chart
from toolkit.reporting.topics.scores import epochs_chart

FULL, FROZEN, FEATURES = "full fine-tuning", "embeddings frozen", "feature extraction"
HELD = "position_embeddings (frozen)"
PARAMETERS = ["word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm.weight", "LayerNorm.bias"]


def tables_of(*runs):
    (own,) = ReportData(measure(runs)).details
    return own


def words_of(*runs):
    """`measure_rows` of the word rows of runs, as people give them to the chart."""
    names = {"none": FULL, "embeddings": FROZEN, "backbone": FEATURES}
    parts = [
        toolkit.measure_rows(run, "word_embeddings").assign(
            run=run.path.name, condition=names[run.config.freeze], regime=run.config.freeze
        )
        for run in runs
    ]
    return pd.concat(parts, ignore_index=True)


def charts_of(*runs):
    tables = tables_of(*runs)
    return group_charts(tables, order_of([tables]))


@pytest.fixture
def plain(read_run):
    """The tables of full fine-tuning beside frozen embeddings."""
    return tables_of(read_run("none"), read_run("embeddings"))


def spans_of(table, value):
    """Mean and range over seeds of a column, by epoch: what a line of a chart draws."""
    return table.groupby("epoch")[value].agg(mean="mean", low="min", high="max")


def moved(tables, name):
    """Mean and range over seeds of a parameter's drift under full fine-tuning after each epoch, in %."""
    table = tables.drift[tables.drift["parameter"] == name].query(
        "stratum == 'whole parameter' and measure == 'relative' and statistic == 'value'"
    )
    return 100 * spans_of(table[(table["epoch"] > 0) & (table["regime"] == "none")], "value")


def test_the_numbers_of_the_drift_chart_are_the_tables(read_run):
    """Where something moved under two regimes, a panel for each parameter."""
    tables = tables_of(*(read_run(regime, seed) for regime in ("none", "position_embeddings") for seed in range(3)))
    chart = drift_chart(tables.with_conditions(tables.drift))
    assert titles_of(chart) == PARAMETERS
    for name, panel in zip(PARAMETERS, panels_of(chart), strict=True):
        drawn = lines_of(panel, "is_zero").set_index(["regime", "epoch"])
        own, expected = drawn.loc[FULL].sort_index(), moved(tables, name)
        np.testing.assert_allclose(own[list(expected)], expected, rtol=1e-4)
        assert set(zip(own["num_seeds"], own["is_zero"], strict=True)) == {(3, False)}
        assert set(drawn.loc[HELD, "is_zero"]) == {name == "position_embeddings"}


def test_where_one_regime_moved_anything_its_parameters_are_the_lines(read_run):
    tables = tables_of(*(read_run(regime, seed) for regime in ("none", "embeddings") for seed in range(3)))
    (panel,) = panels_of(drift_chart(tables.with_conditions(tables.drift)))
    drawn = lines_of(panel, "is_zero").set_index(["regime", "epoch"])
    assert list(dict.fromkeys(drawn.index.get_level_values("regime"))) == PARAMETERS
    for name in PARAMETERS:
        expected = moved(tables, name)
        np.testing.assert_allclose(drawn.loc[name][list(expected)], expected, rtol=1e-4)
    (axis,) = {layer["encoding"]["x"]["title"] for layer in panel["layer"] if "title" in layer["encoding"].get("x", {})}
    assert axis == "epoch"


def test_what_is_exactly_0_stands_below_the_axis_proper_and_apart(read_run):
    chart = charts_of(*map(read_run, ("none", "position_embeddings", "backbone")))["drift_over_epochs"]
    marks = pd.concat([lines_of(panel, "is_zero") for panel in panels_of(chart)])
    places = marks[marks["is_zero"]].groupby("regime")["place"].unique()
    assert set(places.index) == {HELD}, "nothing moved under feature extraction"
    assert all(len(own) == 1 for own in places), "a place of its own, the same in every panel"
    assert max(own[0] for own in places) < marks.loc[~marks["is_zero"], "place"].min()
    assert "exactly 0" in str(spec_of(chart))
    assert "exactly 0" not in str(spec_of(charts_of(read_run("none"))["drift_over_epochs"]))


def test_the_yardstick_is_the_tables(read_run):
    tables = tables_of(read_run("none"), read_run("position_embeddings"))
    for name, panel in zip(PARAMETERS, panels_of(drift_chart(tables.with_conditions(tables.drift))), strict=True):
        (rule,) = [data for data in alone(panel) if list(data) == ["place"]]
        expected = tables.whole(tables.group.conditions[0], name, statistic="reinitialised")["value"].unique()
        np.testing.assert_allclose(sorted(rule["place"]), sorted(100 * expected), atol=1e-2)


@pytest.mark.parametrize("regimes", [("none", "embeddings"), ("none",)])
def test_a_parameter_that_was_0_is_undefined_when_trained(read_run, regimes):
    """As the LayerNorm.bias of a random start, also in a report without a frozen run: the chart says so."""
    runs = [read_run(regime, zero=("LayerNorm.bias",)) for regime in regimes]
    (panel,) = panels_of(charts_of(*runs)["drift_over_epochs"])
    notes = [layer["mark"]["text"] for layer in panel["layer"] if "undefined" in str(layer["mark"])]
    assert notes == [["LayerNorm.bias", "undefined: it was 0 before"]]
    assert set(lines_of(panel, "is_zero")["regime"]) == {*PARAMETERS} - {"LayerNorm.bias"}


def test_an_absent_parameter_has_no_line(read_run):
    (panel,) = panels_of(charts_of(read_run("none", lacking=("token_type_embeddings",)))["drift_over_epochs"])
    assert set(lines_of(panel, "is_zero")["regime"]) == {*PARAMETERS} - {"token_type_embeddings"}


def test_what_did_not_move_has_no_chart(read_run):
    assert set(charts_of(read_run("backbone"))) == {"scores_over_epochs"}


def test_a_model_without_positions(read_run):
    lacking = ("position_embeddings", "token_type_embeddings")
    charts = charts_of(read_run("none", lacking=lacking), read_run("backbone", lacking=lacking))
    assert "position_drift" not in charts
    assert "drift_over_epochs" in charts


def test_positions_are_the_tables_and_end_at_the_longest_text(read_run):
    tables = tables_of(read_run("none", facts={"position_offset": 2}), read_run("embeddings"))
    rows = tables.with_conditions(tables.positions).query("regime == 'none'")
    assert rows["position"].min() == 0
    assert set(rows["longest_length"]) == {10}
    *_, last = panels_of(position_chart(rows))
    drawn = lines_of(last, "position", "percent")
    expected = rows.query("norm > 0")[["position", "relative"]] * [1, 100]
    np.testing.assert_allclose(drawn[["position", "percent"]], expected, rtol=1e-4)
    assert "'datum': 9.5" in str(last)


def test_positions_that_are_exactly_0_are_stretches_on_the_floor(plain):
    rows = plain.with_conditions(plain.positions)
    rows.loc[(rows["regime"] == "none") & rows["position"].isin([3, 4, 7]), "norm"] = 0.0
    *_, last = panels_of(position_chart(rows))
    still = lines_of(last, "stretch")
    assert sorted(still["stretch"]) == sorted(["3 to 4", "7 to 7", f"0 to {rows['position'].max()}"])
    assert still.groupby("regime")["place"].nunique().to_dict() == {FULL: 1, FROZEN: 1}
    assert still["place"].max() < lines_of(last, "percent")["percent"].min()


def test_words_by_exposure_are_the_quartiles_and_shares_of_the_rows(read_run):
    runs = read_run("none"), read_run("backbone")
    words = words_of(*runs)
    # In weight units where a row moved from 0, or shares are not at hand.
    check_boxes(lines_of(spec_of(word_drift_chart(words.drop(columns="relative"))), "zeros"), words, words["norm"])
    check_boxes(lines_of(spec_of(word_drift_chart(words)), "zeros"), words, 100 * words["relative"].fillna(0))


def check_boxes(boxes, words, sizes):
    assert set(boxes["regime"]) == {FULL}, "no row moved under feature extraction"
    own = words.assign(norm=sizes)[words["regime"] == "none"]
    for line in boxes.to_dict("records"):
        rows = own.loc[own["stratum"].astype(str).map(stratum_text) == line["stratum"], "norm"]
        assert line["num_rows"] == len(rows)
        assert float(line["zeros"].strip("% ")) == pytest.approx(100 * (rows == 0).mean(), abs=0.05)
        moved = rows[rows > 0]
        if len(moved) >= 5:
            drawn = [line[name] for name in ("low", "q1", "median", "q3", "high")]
            np.testing.assert_allclose(drawn, np.percentile(moved, (5, 25, 50, 75, 95)), rtol=1e-4)
        else:
            assert np.isnan(line["median"])
    assert set(boxes["stratum"]) == set(own["stratum"].astype(str).map(stratum_text))
    assert "6.7 %" in set(boxes["zeros"])
    assert {"0 %", "100 %"} <= set(boxes["zeros"])


def test_few_rows_are_drawn_one_by_one(read_run):
    words = words_of(read_run("none"))
    dots = lines_of(spec_of(word_drift_chart(words)), "norm")
    moved = words[words["norm"] > 0]
    few = moved.groupby("stratum")["norm"].transform("size") < 5
    np.testing.assert_allclose(sorted(dots["norm"]), sorted(100 * moved.loc[few, "relative"]), rtol=1e-4)


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_scores_over_epochs_span_the_seeds(read_run, num_seeds):
    tables = tables_of(*(read_run("none", seed) for seed in range(num_seeds)))
    chart = group_charts(tables, order_of([tables]))["scores_over_epochs"]
    assert titles_of(chart) == ["validation", "ood"]
    for panel in panels_of(chart):
        drawn = lines_of(panel, "mean").set_index("epoch")
        expected = spans_of(tables.scores[tables.scores["split"] == panel["title"]], "accuracy")
        np.testing.assert_allclose(drawn[list(expected)], expected, rtol=1e-4)
        assert set(drawn["num_seeds"]) == {num_seeds}
        (rate,) = [data["rate"] for data in alone(panel) if list(data) == ["rate"]]
        majority = tables.baselines.loc[tables.baselines["split"] == panel["title"], "majority_rate"].mean()
        assert rate[0] == pytest.approx(majority, rel=1e-4)


def test_colours_are_of_the_order_whatever_is_drawn(read_run):
    words = words_of(read_run("none"), read_run("embeddings"))
    tables = tables_of(read_run("none"), read_run("position_embeddings"))
    order = ["another", FULL, HELD]
    drift = drift_chart(tables.with_conditions(tables.drift), regimes=order)
    for chart in (drift, word_drift_chart(words, regimes=order)):
        shown, domain = names_of(chart)
        assert domain == order
        assert "another" not in shown


def test_regimes_of_a_runs_tables_have_plain_names():
    names = ["none", "embeddings", "backbone", "word_embeddings"]
    assert list(regimes_of(pd.DataFrame({"regime": names}))) == [FULL, FROZEN, FEATURES, "word_embeddings frozen"]
    assert list(regimes_of(pd.DataFrame({"condition": ["my own"], "regime": ["none"]}))) == ["my own"]


def test_clicks_on_a_legend_are_heard_by_the_first_layer_that_has_one(plain):
    """Vega-Lite hears none where another layer holds the choice: one without a legend, or a later one."""
    drift, positions, scores = (plain.with_conditions(table) for table in (plain.drift, plain.positions, plain.scores))
    of_scores = epochs_chart(scores, majority={"validation": 0.5, "ood": 0.5})
    for chart in (drift_chart(drift), position_chart(positions), of_scores):
        (param,) = [each for each in spec_of(chart)["params"] if each.get("bind") == "legend"]
        layers = [layer for panel in panels_of(chart) for layer in panel["layer"]]
        named = [layer for layer in layers if "scale" in layer["encoding"].get("color", {})]
        assert param["views"] == [named[0]["name"]]


def test_a_table_of_one_run_needs_no_names(read_run):
    run = read_run("none")
    drift = drift_chart(toolkit.measure_drift(run))
    words = word_drift_chart(toolkit.measure_rows(run, "word_embeddings"))
    positions = position_chart(toolkit.measure_rows(run, "position_embeddings"))
    assert all(spec_of(chart) for chart in (drift, words, positions))
    assert names_of(drift)[1] == PARAMETERS
    assert titles_of(epochs_chart(run.scores, "accuracy"))[:1] == ["validation"]


def test_a_score_that_is_not_there_is_refused(read_run):
    check_refused("'bleu'", epochs_chart, read_run("none").scores, "bleu")
