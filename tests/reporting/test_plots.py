"""Every plot_* takes the same things and gives a chart of one panel that can be restyled; an empty one says why."""

import re
from functools import partial

import altair
import pandas as pd
import pytest

import toolkit
from tests.chart_data import values_of
from tests.recordings import write_recording
from tests.refusals import check_refusals, check_refused
from tests.reporting.chart_data import panels_of
from toolkit.reporting.chart_files import image_of
from toolkit.reporting.charts import CONFIG
from toolkit.reporting.topics.causes import measure_exposure

TABLES = {
    "plot_added_rows": lambda runs: toolkit.measure_added_rows(runs[0]),
    "plot_change": lambda runs: toolkit.measure_drift(runs[0]),
    "plot_cost": toolkit.last_scores,
    "plot_differences": toolkit.compare,
    "plot_drift": lambda runs: toolkit.measure_drift(runs[0]),
    "plot_drift_and_score": toolkit.join_drift,
    "plot_exposure": lambda runs: measure_exposure(runs[0]),
    "plot_position_drift": lambda runs: toolkit.measure_rows(runs[0], "position_embeddings"),
    "plot_scores": toolkit.last_scores,
    "plot_scores_over_epochs": lambda runs: runs[0].scores,
    "plot_word_drift": lambda runs: toolkit.measure_rows(runs[0], "word_embeddings"),
    "plot_words": lambda runs: toolkit.measure_rows(runs[0], "word_embeddings"),
}
STILL = set(TABLES) - {"plot_scores", "plot_scores_over_epochs"}
"""Those that have nothing to draw of one run that froze its embeddings."""
SCORED = {"plot_cost", "plot_differences", "plot_drift_and_score"} | (set(TABLES) - STILL)
"""Those of scores, which imported checkpoints have none of."""


@pytest.fixture
def runs(read_study):
    return read_study(tasks=("toy", "other"), num_seeds=2, facts={"cost": {"seconds_training": 2.5}})[0]


def test_the_list_is_the_public_one():
    assert set(TABLES) == {name for name in toolkit.__all__ if name.startswith("plot_")}


@pytest.mark.parametrize("name", TABLES)
def test_a_run_a_path_several_and_a_table_give_one_panel_that_can_be_restyled(name, runs):
    plot = getattr(toolkit, name)
    sources = {
        "run": runs[0],
        "path": str(runs[0].path),
        "several": [run.path for run in runs],
        "iterator": iter(runs),
        "table": TABLES[name](runs),
    }
    charts = {kind: plot(source) for kind, source in sources.items()}
    for kind, chart in charts.items():
        assert isinstance(chart, altair.Chart | altair.LayerChart), kind
        spec = chart.properties(width=333).configure_axis(labelFontSize=21).configure_view(stroke="red").to_dict()
        assert (spec["width"], spec["config"]["axis"]) == (333, {**CONFIG["axis"], "labelFontSize": 21}), kind
        assert spec["config"]["view"] == {**CONFIG["view"], "stroke": "red"}
        assert chart.configure(font="Times").to_dict()["config"] == {**CONFIG, "font": "Times"}
    assert charts["run"].to_dict() == charts["path"].to_dict()
    assert name == "plot_added_rows" or values_of(charts["several"])


def test_grid_and_columns_of_a_legend_are_what_altair_s_own_methods_say(runs):
    text = toolkit.plot_change(runs[0]).configure_legend(columns=2).configure_axis(grid=False).to_json()
    assert "columns" not in re.sub(r'"config": \{.*?\n  \},', "", text, flags=re.DOTALL)
    assert '"grid": true' not in text
    assert '"columns": 2' in text


@pytest.mark.parametrize("name", TABLES)
def test_where_there_is_nothing_to_draw_the_title_says_why(name, read_run):
    chart = getattr(toolkit, name)(read_run("embeddings", 0))
    assert (values_of(chart) == []) == (name in STILL)
    assert name not in STILL or chart.to_dict()["title"]


@pytest.mark.parametrize("name", ["plot_scores_over_epochs", "plot_position_drift"])
def test_of_several_runs_those_that_lack_what_is_drawn_are_left_out(name, tmp_path, read_run):
    plot = getattr(toolkit, name)
    without = {
        "plot_scores_over_epochs": lambda: write_recording(tmp_path),
        "plot_position_drift": lambda: read_run("none", 0, model="other", lacking=("position_embeddings",)),
    }
    has, more = read_run("none", 0), read_run("embeddings", 0)
    counts = [len(values_of(plot(runs))) for runs in ([has, without[name](), more], [has, more])]
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("name", TABLES)
def test_what_is_no_source_is_refused_with_what_is_expected(name, runs):
    plot = getattr(toolkit, name)
    imported = toolkit.import_checkpoints(sorted((runs[0].path / "snapshots").iterdir()))
    alone = [imported, imported.trajectory, [imported]]
    others = [
        None,
        3,
        pd.Series([1]),
        [],
        [None],
        [runs[0], pd.DataFrame()],
        [imported] * 2,
        lambda: runs,
        *(alone if name in SCORED else []),
    ]
    check_refusals(
        ("no run directory at", lambda: plot("nowhere/at/all")),
        ("expected the table of", lambda: plot(pd.DataFrame({"a": [1]}))),
        *(("expected a run or its path, several .*; got", partial(plot, other)) for other in others),
    )
    assert name in SCORED or all(isinstance(plot(one), altair.Chart | altair.LayerChart) for one in alone)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_a_column_is_drawn_or_refused_with_what_is_expected(name, runs):
    plot, table = getattr(toolkit, name), TABLES[name](runs)
    for column in table:
        try:
            said = "" if plot(table.drop(columns=column)).to_dict() else "nothing"
        except ValueError as error:
            said = str(error)
        assert re.fullmatch(rf"|expected the table .*; got one without .*{column}.*", said), said


@pytest.mark.parametrize(
    ("said", "name", "call"),
    [
        ("did you mean 'word_", "drift", lambda plot, runs: plot(runs, "wrd_embeddings")),
        *(
            ("unknown regime 'frozn'.*choose from: ", name, lambda plot, runs: plot(runs, regimes=["frozn"]))
            for name in ("drift", "word_drift", "position_drift", "scores_over_epochs", "scores", "cost")
        ),
        ("did you mean 'word_", "exposure", lambda plot, runs: plot(runs, "wrd_embeddings")),
        ("did you mean 'word_", "drift_and_score", lambda plot, runs: plot(runs, "wrd_embeddings")),
        ("did you mean 'word_", "drift_and_score", lambda plot, runs: plot(runs, "wrd_embeddings", panels=True)),
    ],
)
def test_another_parameter_regime_and_table_are_refused(said, name, call, runs):
    check_refused(said, call, getattr(toolkit, f"plot_{name}"), runs)


@pytest.mark.parametrize(
    ("name", "num_panels"), [("drift", 5), ("scores", 2), ("cost", 2), ("differences", 2), ("position_drift", 2)]
)
def test_panels_are_asked_for(name, num_panels, runs):
    chart = getattr(toolkit, f"plot_{name}")(runs, panels=True)
    assert len(panels_of(chart)) == num_panels


@pytest.mark.parametrize("name", ["scores", "cost", "differences"])
def test_one_panel_holds_what_the_panels_hold(name, runs):
    plot, values = getattr(toolkit, f"plot_{name}"), {"scores": "value", "cost": "seconds", "differences": "difference"}
    one, several = (
        {line[values[name]] for line in values_of(plot(runs, panels=panels)) if line.get(values[name]) is not None}
        for panels in (False, True)
    )
    assert one == several


@pytest.mark.usefixtures("drawn")
def test_colours_are_those_that_the_user_sets(runs):
    chart = toolkit.plot_drift(runs).configure_range(category=["#123456", "#654321"])
    assert b"#123456" in image_of(chart, "svg")
