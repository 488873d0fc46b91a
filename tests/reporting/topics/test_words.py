"""The words of a run are those that training saw and a sample of the rest, with what the analyses say of them."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import toolkit
from tests.refusals import check_refused
from tests.reporting.pages import HOSTILE as HOSTILE_RUNS
from tests.reporting.pages import INJECTION, make_words, tables_of
from tests.run_directories import HOSTILE, NUM_WORDS, TOKENS, MakeRun
from toolkit.analysis import word_rows as measured
from toolkit.analysis.drift import measure_rows
from toolkit.analysis.neighbours import neighbours
from toolkit.naming import visible
from toolkit.reporting import chart_files
from toolkit.reporting.charts import Chart, spec_of
from toolkit.reporting.page import ChartBlock, FoldBlock, Section, TableBlock
from toolkit.reporting.render_html import script_json
from toolkit.reporting.topics.words import (
    MOST_LABELLED,
    SAME_AS_BEFORE,
    labels_of,
    packed_words,
    words_chart,
    words_section,
)
from toolkit.snapshots.store import Run


def data_of(chart: Chart) -> str:
    chart.to_dict()  # valid Vega-Lite
    spec = spec_of(chart)
    return str(spec["datasets"][spec["data"]["name"]])


def runs_of(chart: Chart) -> list[dict[str, Any]]:
    """The data of a chart, a table per run."""
    runs = json.loads(data_of(chart))
    for run in runs:
        num = len(run["x"])
        columns = {name: run[f"{name}_lines"].split("\n") for name in ("word", "before", "after")}
        columns = {name: texts + [""] * (num - len(texts)) for name, texts in columns.items()}
        near = zip(columns["before"], columns["after"], strict=True)
        columns["after"] = [before if after == SAME_AS_BEFORE else after for before, after in near]
        numbers = {name: values for name, values in run.items() if isinstance(values, list) and len(values) == num}
        run["table"] = pd.DataFrame(columns | numbers).set_index("word")
    return list(runs)


def section(*runs: tuple[str, Any], **options: Any) -> Section:
    made = words_section(runs or (), **options)
    assert made is not None
    return made


def collect(run: Run, **options: Any) -> dict[str, Any]:
    return runs_of(chart_of(section(("one", run), **options)))[0]


def picture_of(made: Section) -> ChartBlock:
    (block,) = (block for block in made.blocks if isinstance(block, ChartBlock))
    return block


def chart_of(made: Section) -> Chart:
    return picture_of(made).chart


def table_of(made: Section) -> pd.DataFrame:
    """The words of the first run that moved most."""
    return next(tables_of(made.blocks)).table


def counts_of(made: Section) -> list[list[Any]]:
    """What the section says is drawn of each run."""
    (fold,) = (block for block in made.blocks if isinstance(block, FoldBlock) and "drawn" in block.title)
    (block,) = fold.blocks
    assert isinstance(block, TableBlock)
    return [list(row) for row in block.table.itertuples(index=False)]


def svg_of(words: pd.DataFrame) -> str:
    """The picture of a table of words."""
    return chart_files.image_of(words_chart(words), "svg").decode()


def test_words_are_those_that_training_saw_and_a_sample_of_the_rest(read_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run = collect(read_run())
    seen, unseen = run["table"].query("x >= 1"), run["table"].query("x < 1")
    assert set(seen.index) == {visible(TOKENS[row]) for row in (2, 3, *range(5, 45))}  # what run_directories.py shows
    assert set(unseen.index) == {visible(TOKENS[row]) for row in range(45, NUM_WORDS)}  # no [PAD], no [unused0]
    assert set(HOSTILE[:5]) <= set(seen.index)
    assert run["epochs"] == [1, 2, 3]
    monkeypatch.setattr(measured, "NUM_UNSEEN", 4)
    made = section(("one", read_run()))
    assert runs_of(chart_of(made))[0]["table"].query("x < 1").shape[0] == 4
    assert counts_of(made) == [["one", 42, 42, 4, 15, 3, 3, ""]]
    assert "42 of 42 words that training used or may have used, and 4 of 15 others" in picture_of(made).caption


def test_drift_and_exposure_are_those_of_measure_rows(read_run: MakeRun):
    made = read_run()
    table = collect(made)["table"]
    for epoch in (1, 2, 3):
        rows = measure_rows(made, "word_embeddings", epoch)
        rows = rows.assign(token=rows["token"].map(visible)).set_index("token").loc[table.index]
        drawn = table[[f"drift{epoch - 1}", f"angle{epoch - 1}"]]
        np.testing.assert_allclose(drawn, rows[["relative", "angle_degrees"]] * [100, 1], rtol=5e-3)  # three digits
    assert np.floor(table["x"]).tolist() == rows["num_steps"].tolist()
    assert table["num_tokens"].tolist() == rows["num_tokens"].tolist()
    assert table["drift2"].is_monotonic_decreasing
    assert table["drift2"].iloc[-1] == 0  # exactly: the last row of run_directories.py never moves


def test_neighbours_are_those_of_neighbours(read_run: MakeRun):
    made = read_run()
    table = collect(made)["table"]
    for row in (7, 22, 44):
        expected = neighbours(made, row, k=5)
        for name in ("before", "after"):
            pairs = zip(expected[f"neighbour_{name}"], expected[f"similarity_{name}"], strict=True)
            assert table.loc[visible(TOKENS[row]), name] == ", ".join(f"{visible(t)} {cos:.2f}" for t, cos in pairs)
    assert "[CLS]" in table.index  # seen, but nobody's neighbour
    near = " ".join([*table["before"], *table["after"]])
    assert [name for name in ("[CLS]", "[SEP]", "[PAD]", "[unused0]") if name in near] == []


def test_neighbours_are_told_of_the_words_that_moved_most(read_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolkit.reporting.topics.words.NUM_NAMED", 25)
    table = collect(read_run())["table"]
    assert table["before"].iloc[:25].astype(bool).all()
    assert not table["before"].iloc[25:].astype(bool).any()


def test_the_table_has_the_words_that_moved_most(read_run: MakeRun):
    made = read_run()
    table = table_of(section(("one", made)))
    rows = measure_rows(made, "word_embeddings")
    rows = rows[rows["num_steps"] > 0].nlargest(20, "relative")
    assert table["token"].tolist() == [visible(token) for token in rows["token"]]
    np.testing.assert_allclose(table["drift"], 100 * rows["relative"], rtol=1e-9)
    numbers = ["angle_degrees", "num_steps"]
    np.testing.assert_allclose(table[numbers].astype(float), rows[numbers].astype(float), rtol=1e-9)
    assert table["after"].iloc[0] == ", ".join(
        map(visible, neighbours(made, int(rows["row"].iloc[0]), k=5)["neighbour_after"])
    )


def test_without_exposure_every_word_is_shown(read_run: MakeRun):
    made = section(("one", run := read_run(has_exposure=False)))
    table = runs_of(chart_of(made))[0]["table"]
    assert ("[CLS]" in table.index, len(table)) == (False, NUM_WORDS - 5)  # four special tokens and one free row
    # Of more than are kept those that moved farthest: steps are not known.
    whole, part = (measured.measure_words([run.trajectory], most_seen=number).table for number in (None, 7))
    assert set(part["token"]) == set(whole.query("epoch == 3").sort_values("norm")["token"].tail(7))
    assert (table["x"] < 0.2).all()  # at "not recorded", which is not "never"
    assert table["num_tokens"].isna().all()
    assert set(table_of(made)["num_steps"]) == {"not recorded"}


USED = range(5, 25)
"""Rows that two checkpoints are taken to tell were used."""


def inferred(run: Run, *, untold: range = range(0)) -> Any:
    """A run's trajectory as if two checkpoints alone had told which words training used."""
    names = np.full(NUM_WORDS, "unexposed", dtype=object)
    names[list(USED)], names[list(untold)] = "exposed", "cannot tell"
    return replace(run.trajectory, read_exposure=None, inferred={"word_embeddings": names})


@pytest.mark.parametrize("options", [{}, {"budget_bytes": 100}], ids=["all", "the words used alone fit"])
def test_words_inferred_to_be_used_stand_to_the_right_of_all_others(read_run: MakeRun, options: dict[str, int]):
    made = section(("one", inferred(read_run(has_exposure=False), untold=range(25, 30))), **options)
    table = runs_of(chart_of(made))[0]["table"]
    is_used = table.index.isin([visible(TOKENS[row]) for row in USED])
    assert is_used.any()
    assert is_used.all() == bool(options)
    assert table["x"][is_used].min() > max(table["x"][~is_used], default=0.55)
    assert table["x"].max() < 1  # which would be a step
    assert (table["x"][table.index.isin([visible(TOKENS[row]) for row in range(25, 30)])] < 0.2).all()
    assert set(table_of(made)["num_steps"]) == {"unknown (inferred)"}


def test_beside_recorded_steps_words_inferred_to_be_used_stand_between_never_and_1(read_run: MakeRun):
    recorded, told = runs_of(chart_of(section(("a", read_run()), ("b", inferred(read_run(has_exposure=False))))))
    used, steps = told["table"].query("x > 0.55")["x"], recorded["table"]["x"]
    assert (len(used), (steps >= 1).sum()) == (len(USED), 42)
    assert steps[steps < 1].max() < used.min() <= used.max() < 1


def test_rows_of_an_inferred_trajectory_are_drawn_as_its_section_does(read_run: MakeRun):
    (run,) = runs_of(words_chart(measure_rows(inferred(read_run(has_exposure=False)), "word_embeddings")))
    assert set(run["table"].query("x > 0.55").index) == {visible(TOKENS[row]) for row in USED}


CAPTIONS = {"recorded": "in more optimizer steps", "inferred": "is inferred from the", "neither": "over “not recorded”"}


@pytest.mark.parametrize("kind", CAPTIONS)
def test_the_caption_says_what_is_known_of_the_steps(read_run: MakeRun, kind: str):
    bare = read_run(has_exposure=False)
    source = {"recorded": read_run(), "inferred": inferred(bare), "neither": bare}[kind]
    caption = picture_of(section(("one", source))).caption
    assert [other for other, text in CAPTIONS.items() if text in caption] == [kind]


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(
    ("kind", "ticks"),
    [
        ("recorded", ["never", "1", "2", "5"]),
        ("inferred", ["not used by training", "used by training", "(inferred)"]),
        ("neither", ["not recorded"]),
    ],
)
def test_the_axis_names_what_stands_on_it_and_nothing_else(kind: str, ticks: list[str]):
    words = make_words(9, num_epochs=1)
    words = words.assign(norm=0.01 + 1e-5 * np.arange(9), num_steps=[0, 0, 0, 1, 2, 3, 5, 6, 6])
    if kind != "recorded":
        is_used = words["num_steps"] > 0
        words["num_steps"] = words["num_steps"].astype("Int64").mask(is_used | (kind == "neither"))
        words["stratum"] = np.where(is_used & (kind == "inferred"), "exposed (inferred)", "exposure unknown")
    picture = svg_of(words)
    axes = re.findall(r"role-axis-label.*?</g>", picture, re.DOTALL)
    assert re.findall(r">([^<>\n]+)</t", axes[0]) == ticks
    assert ("#0072B2" in picture) == (kind != "neither")


def test_runs_without_drift_or_words_are_named(read_run: MakeRun):
    frozen = read_run("embeddings")
    assert words_section([("frozen", frozen)]) is None
    assert words_section([]) is None
    lacking = read_run("none", 1, lacking=("word_embeddings",))
    made = section(("frozen", frozen), ("full", read_run()), ("lacking", lacking))
    assert [run["run"] for run in runs_of(chart_of(made))] == ["full"]
    reasons = {"frozen": "its word embeddings did not move", "lacking": "its model has no word embeddings"}
    assert {line[0]: line[-1] for line in counts_of(made)} == reasons | {"full": ""}


def test_a_trajectory_is_shown_as_its_run_is(read_run: MakeRun):
    run = read_run()
    assert spec_of(chart_of(section(("a", run)))) == spec_of(chart_of(section(("a", run.trajectory))))


def test_a_small_budget_is_shared_and_keeps_the_words_seen_most(read_run: MakeRun):
    whole = collect(read_run())["table"].query("x >= 1")
    made = section(("a", read_run()), ("b", read_run("none", 1)), budget_bytes=4000)
    runs = runs_of(chart_of(made))
    assert [run["run"] for run in runs] == ["a", "b"]
    for run, line in zip(runs, counts_of(made), strict=True):
        kept = run["table"].query("x >= 1")
        assert 3 <= len(kept) < len(whole)
        assert line[1:3] == [len(kept), 42]
        assert sorted(kept["x"]) == sorted(whole["x"])[-len(kept) :]
    assert len(data_of(chart_of(made)).encode()) <= 4000 + 100, "and the names of the furthest"
    assert len(table_of(made)) == 20
    assert "84 words that training used or may have used (those of the most steps" in picture_of(made).caption


def test_many_epochs_are_thinned(read_run: MakeRun):
    made = section(("one", read_run(epochs=20)))
    run = runs_of(chart_of(made))[0]
    assert (run["epochs"][0], run["epochs"][-1], len(run["epochs"])) == (3, 20, 7)  # with epoch 0, eight
    assert counts_of(made)[0][5:7] == [7, 20]
    (slider,) = (param for param in spec_of(chart_of(made))["params"] if param["name"] == "epoch")
    places = np.arange(slider["bind"]["min"], slider["bind"]["max"] + 1, slider["bind"]["step"])
    shown = [run["epochs"][place] for place in run["at"]]
    assert len(shown) == len(places)
    assert all(epoch <= place for epoch, place in zip(shown, places, strict=True))


def test_a_row_that_is_zero_has_no_neighbours_and_no_angle(read_run: MakeRun):
    trajectory = read_run().trajectory
    snapshots = []
    for snapshot in trajectory:
        table = np.array(snapshot.tensors["word_embeddings"])
        table[10] = 0
        snapshots.append(replace(snapshot, tensors={**snapshot.tensors, "word_embeddings": table}))
    line = collect(replace(trajectory, snapshots=snapshots))["table"].loc[visible(TOKENS[10])]
    assert line["before"] == line["after"] == measured.NO_DIRECTION
    assert np.isnan(line["angle2"])
    assert line["drift2"] == 0


def test_any_table_of_rows_is_drawn(read_run: MakeRun):
    rows = measure_rows(read_run(), "word_embeddings")
    (run,) = runs_of(words_chart(rows))
    # Without [PAD].
    assert (len(run["table"]), run["run"], run["epochs"]) == (NUM_WORDS - 1, "", [0])
    check_refused("without 'norm'", toolkit.plot_words, rows.drop(columns="norm"))


def test_runs_of_other_epochs_share_the_slider():
    runs = runs_of(words_chart(pd.concat([make_words(9, 2, "a"), make_words(9, 4, "b")])))
    assert [[run["epochs"][place] for place in run["at"]] for run in runs] == [[1, 2, 2, 2], [1, 2, 3, 4]]


@pytest.mark.usefixtures("drawn")
def test_equal_tables_are_equal_pictures_and_hostile_texts_are_texts():
    words = pd.concat([make_words(run=name) for name in HOSTILE_RUNS[:-1]])
    text = svg_of(words)
    assert text == svg_of(words)
    assert "<script" not in text
    assert INJECTION.replace("<", "&lt;").replace(">", "&gt;") in text


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("num_epochs", [(2, 4), (4, 2)])
def test_words_of_runs_with_other_epochs_are_all_drawn(num_epochs):
    runs = [make_words(400, num, name) for num, name in zip(num_epochs, "ab", strict=True)]
    assert svg_of(pd.concat(runs)).count("<use ") == svg_of(runs[0]).count("<use ") == 399


@pytest.mark.usefixtures("drawn")
def test_a_shape_of_many_places_is_written_once():
    picture = svg_of(make_words(400))
    assert picture.count("<use ") == 399  # the word never seen has a colour of its own
    assert len(picture) < 60_000
    assert len(chart_files.image_of(words_chart(make_words(400)), "png")) > 10_000


def test_the_words_that_moved_furthest_are_named_where_their_names_have_room():
    """The second stands where the first does, the fourth at the right edge; the last did not move."""
    run = {
        "word_lines": "one\ntwo\nthree\nfour\nfive",
        "epochs": [1],
        "x": [10, 10, 30, 99, 2],
        "drift0": [1, 1, 1, 0.5, 0],
    }
    assert labels_of(run, (1, 100), (0.01, 10)) == ["one", "", "three", "", ""]
    many = {"word_lines": "\n".join("ab" * 30), "epochs": [1], "x": [10] * 60, "drift0": [2.0**-k for k in range(60)]}
    named = labels_of(many, (1, 100), (2.0**-60, 2))
    assert [k for k, label in enumerate(named) if label] == [3 * k for k in range(MOST_LABELLED)]
    (drawn,) = runs_of(words_chart(make_words(400)))
    assert next(filter(None, drawn["label"])) == drawn["word_lines"].split("\n")[0]


def test_every_word_of_bert_base_is_a_megabyte():
    runs = packed_words(make_words(30_522), [1, 2, 3])
    assert len(script_json(runs)) < 4_500_000  # with neighbours of each, of which reports have a thousand
    bare = packed_words(make_words(30_522).drop(columns=["before", "after"]), [1, 2, 3])
    assert 500_000 < len(script_json(bare)) < 1_700_000
