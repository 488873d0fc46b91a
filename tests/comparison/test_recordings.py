"""Runs of other training loops beside ours: grouped by what is known of them, and by nothing that is made up."""

import numpy as np
import pandas as pd
import pytest

import toolkit
from tests.recordings import ARGUMENTS, write_recording
from tests.refusals import check_refused, refused
from tests.reporting.chart_data import alone
from tests.run_directories import write_run
from toolkit.comparison.compare import NO_ANSWERS, OTHER_ACCURACY
from toolkit.comparison.conditions import arrange
from toolkit.comparison.evidence import read_evidence
from toolkit.comparison.measure import measure
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.verify import describe
from toolkit.questions.drift_report import show_drift
from toolkit.reporting.comparison_report import report_from, write_report
from toolkit.reporting.methods import paragraphs_of
from toolkit.reporting.page import spoken
from toolkit.reporting.sources import open_sources
from toolkit.snapshots.store import open_run

REGIMES = {"none": 0.9, "embeddings": 0.88, "backbone": 0.7}
ADAPTED = {f"encoder.layer.0.attention.self.{x}.base_layer.weight": {"before": "a", "after": "a"} for x in "qv"}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """``record(regime, seed, **oddities)``: a recording below the current directory, a temporary one."""
    monkeypatch.chdir(tmp_path)
    return lambda *given, **oddities: write_recording(tmp_path / "runs", *given, **oddities)


def labels_of(runs):
    return [
        (group.title, condition.label, len(condition.runs)) for group in arrange(runs) for condition in group.conditions
    ]


def test_drift_of_recordings_is_that_of_their_snapshots_and_needs_no_scores(record):
    runs = [record(regime, seed) for regime in REGIMES for seed in (0, 1)]
    table = toolkit.drift_table(runs).set_index(["condition", "parameter"])
    assert list(dict.fromkeys(table.index.get_level_values(0))) == [
        *("full fine-tuning", "embeddings frozen", "feature extraction")
    ]
    for name in runs[0].trajectory.parameters:
        ends = [[np.asarray(run.trajectory.snapshots[i].tensors[name], float) for i in (0, -1)] for run in runs[:2]]
        drifts = [100 * np.linalg.norm(last - first) / np.linalg.norm(first) for first, last in ends]
        line = table.loc[("full fine-tuning", name)]
        np.testing.assert_allclose(
            line[["drift_percent", "drift_percent_sd"]].to_list(), [np.mean(drifts), np.std(drifts, ddof=1)]
        )
        assert table.loc[("embeddings frozen", name), ["is_frozen", "drift_percent"]].tolist() == [True, 0]
    with pytest.warns(UserWarning, match="pass runs with scores of one split, of which more is better; got"):
        assert toolkit.compare(runs).empty
    assert toolkit.summarise_scores(runs).empty


def test_scores_are_compared_over_seeds_without_predictions(record):
    gains = {0: 0.01, 1: 0.03, 2: 0.02}
    runs = [
        record(regime, seed, scores={"f1": value + gain * (regime == "none"), "loss": 0.5, "rmse": 1})
        for regime, value in REGIMES.items()
        for seed, gain in gains.items()
    ]
    line = toolkit.compare(runs).iloc[0]
    assert (line["score"], line["split"], line["num_seeds"]) == ("f1", "validation", 3)
    differences = pd.Series([2 + 100 * gain for gain in gains.values()])
    half = 4.302652729911275 * differences.sem()  # Student's t, two degrees of freedom
    expected = [differences.mean(), differences.mean() - half, differences.mean() + half]
    np.testing.assert_allclose(line[["difference_points", "low_points", "high_points"]].to_list(), expected)
    assert line["note"] == NO_ANSWERS
    assert np.isnan(line["num_items"])
    assert np.isnan(line["ms_item"])
    assert set(toolkit.summarise_scores(runs)["score"]) == {"f1", "loss", "rmse"}
    assert toolkit.compare(runs, score="f1").equals(toolkit.compare(runs))
    assert toolkit.compare_seeds(runs)["mcnemar_p"].isna().all()
    assert toolkit.join_drift(runs)["gain_points"].notna().any()
    check_refused(
        "no run can be judged by loss: unknown score 'loss'; choose from: f1$", toolkit.compare, runs, score="loss"
    )


def test_each_split_has_its_own_last_evaluation_and_what_was_not_given_there_is_not_known(record):
    lines = pd.DataFrame(
        [
            {"epoch": 1.0, "split": "validation", "f1": 0.1, "late": 0.1},  # where recording began
            {"epoch": 1.5, "split": "test", "f1": 0.7},
            {"epoch": 3.5, "split": "validation", "f1": 0.6},
            {"epoch": 3.5, "split": "validation", "precision": 0.5},
            {"epoch": 2.0, "split": "validation", "f1": 0.4, "late": 0.9},
        ]
    )
    table = toolkit.summarise_scores([record("none", 0, scores=lines, begins=(1.0, 4))]).set_index(["split", "score"])
    assert table.loc[("validation", ["f1", "precision", "late"]), "mean"].tolist() == [
        0.6,
        0.5,
        pytest.approx(np.nan, nan_ok=True),
    ]
    assert table.loc[("test", "f1"), "mean"] == 0.7
    assert toolkit.last_scores([open_run("runs/none-0")])["value_before"].tolist()[0] == 0.1


FULL, FROZEN = "full fine-tuning", "embeddings frozen"
RATE = ARGUMENTS | {"learning_rate": 5e-5}


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ([{"condition": "A"}, {"condition": "B"}], ["A", "B"]),
        ([{"condition": "A"}, {"condition": "A", "seed": 1}], ["A"]),
        ([{"condition": "A"}, {"condition": "A", "regime": "embeddings"}], ["A, frozen none", "A, frozen embeddings"]),
        ([{}, {"arguments": RATE}], [f"{FULL}, learning rate 5e-05", f"{FULL}, learning rate 0.0001"]),
        ([{"seed": None}, {"seed": None, "facts": {"note": "another training"}}], [FULL]),
        ([{"regime": "embeddings"}, {"regime": "backbone"}], [FROZEN, "feature extraction"]),
        ([{"facts": {"frozen": {"parameters": ADAPTED}, "regime": {"label": None}}}], ["adapters on q, v"]),
    ],
)  # fmt: skip
def test_a_condition_is_what_was_given_or_what_hashes_prove(record, given, labels):
    runs = [record(**{"name": str(i)} | oddities) for i, oddities in enumerate(given)]
    assert [label for _, label, _ in labels_of(runs)] == labels


def test_what_is_not_known_keeps_runs_apart_or_is_said(record, tmp_path):
    ours = [write_run(tmp_path / "runs", "none", seed, task="trec") for seed in (0, 1)]
    runs = [
        *ours,
        record("none", 0),
        record("none", 0, task="sst2", name="sst2"),
        record("none", 0, task=None, name="-"),
    ]
    assert labels_of(runs) == [
        ("tiny on trec", FULL, 2),
        ("tiny on trec", f"{FULL}, training loop Trainer", 1),
        ("tiny on sst2", FULL, 1),
        ("tiny on task not given", FULL, 1),
    ]
    with refused("none-0 is no other seed of tiny_trec_freeze-none_seed-0_0123abcd: it differs in training loop"):
        open_sources([runs[0].path, runs[2].path])
    with refused(
        "again and sst2 are the same run \\(condition 'full fine-tuning' and seed 0\\): pass one of them, or record"
    ):
        toolkit.compare([runs[3], record("none", 0, task="sst2", name="again")])
    with refused(
        "none-0 and tiny_trec_freeze-none_seed-0_0123abcd both have the label 'x' and differ in training loop"
    ):
        toolkit.compare(runs[2::-2], labels={run.path.name: "x" for run in runs})


@pytest.mark.parametrize(
    ("oddities", "field"),
    [({"task": "sst2"}, "task"), ({"condition": "B"}, "condition"), ({"arguments": RATE}, "learning rate")],
)
def test_drift_of_seeds_refuses_another_recording(record, oddities, field):
    one, other = record("none", 0), record("none", 1, **oddities, name="other")
    check_refused(f"other is no other seed of none-0: it differs in {field}", open_sources, [one.path, other.path])
    (
        frozen := record("embeddings", 2).path / "manifest.json"
    ).unlink()  # unfinished, so that nothing says what was frozen
    assert open_sources([record("embeddings", 3).path, frozen.parent]).names == ("embeddings-3", "embeddings-2")
    notes = open_sources([one.path, record("none", None, name="third").path]).notes
    assert "Seeds not given (third): runs that differ in nothing else are taken as replicates." in notes


def test_without_seeds_runs_are_paired_in_their_order(record):
    runs = [
        record(regime, None, name=f"{regime}{i}", scores={"accuracy": value + 0.01 * i * (i + (regime == "none"))})
        for regime, value, count in (("none", 0.8, 4), ("embeddings", 0.7, 3))
        for i in range(count)
    ]
    lines = toolkit.compare_seeds(runs[::-1])  # in whatever order they are given
    np.testing.assert_allclose(lines["difference_points"], [10, 11, 12, np.nan])
    assert lines["seed"].isna().all()
    assert lines["reason"].iloc[-1] == "no run of embeddings frozen is left"
    assert toolkit.compare(runs)["note"].item().endswith("seeds not given: runs are paired in the order of their names")


def test_a_report_of_recordings_survives_its_evidence_and_says_what_is_to_know(record, tmp_path, undrawn):
    facts = {"problems": ["two optimizers stepped"], "begins_after_steps": 8}
    changed = {"frozen": {"parameters": {"model.encoder.layer.0.x.bias": {"before": "a", "after": "b"}}}}
    runs = [record("none", seed, scores={"f1": 0.9}, begins=(1.0, 8), facts=facts) for seed in (0, 1)] + [
        record("embeddings", seed, facts=changed if seed else None, task=None) for seed in (0, 1)
    ]
    (tmp_path / "runs" / ".like").rename(tmp_path / "elsewhere")
    report = write_report(runs, "out")
    told = [line for answer in report.answers for line in spoken(answer).split("\n")]
    assert toolkit.summarise_scores(runs)["num_failed"].isna().all()
    assert toolkit.last_scores(runs)["is_failed"].isna().all()
    for line in (
        "none-0, none-1: two optimizers stepped.",
        "none-0, none-1: drift is since step 8, where its recording began, and not since before training.",
        "embeddings-1: frozen, but changed: model.encoder.layer.0.x.bias.",
        "No predictions of none-0, none-1: intervals of their scores are over seeds alone, and whether they "
        "learned is not known (keep_predictions of a recording and keeping_predictions of the callback keep them).",
        "No scores of embeddings-0, embeddings-1: what needs them is left out.",
    ):
        assert [each for each in told if each.endswith(line)], line
    assert report_from("out", "again").path.read_text() == report.path.read_text()
    lines, has_changed = describe(tmp_path / "again", tmp_path / "runs")
    assert (lines[1:], has_changed) == (["4 of 4 runs were at hand and measured again"], False)
    known, made = read_evidence("again").groups, measure(runs).groups
    assert [[condition.label for condition in group.conditions] for group in known] == [
        [condition.label for condition in g.conditions] for g in made
    ]
    assert "not known" in report.path.read_text()


@pytest.mark.parametrize(("regimes", "is_alone"), [(["none"], True), (["none", "embeddings"], False)])
def test_a_comparison_without_an_interval_is_a_comparison(record, regimes, is_alone):
    runs = [record(regime, 0, scores={"accuracy": 0.9}) for regime in regimes]
    text = paragraphs_of(ReportData(measure(runs)))[1]
    assert ("Conditions were not compared" in text, "were compared (1 comparison)" in text) == (is_alone, not is_alone)


@pytest.mark.parametrize("scale", [1, 1.5], ids=["classes", "numbers"])
def test_predictions_bring_intervals_over_items(record, scale):
    labels, runs = np.arange(40) % 2, []
    for regime, share in (("none", 36), ("embeddings", 30)):
        for seed in (0, 1, 2):
            answers = np.where(np.random.default_rng(seed).permutation(40) < share, labels, 1 - labels)
            columns = {"epoch": 3.0, "split": "validation", "id": np.arange(40), "label": labels * scale}
            own = pd.DataFrame({**columns, "prediction": answers * scale})
            runs.append(record(regime, seed, predictions=own, scores={"accuracy": share / 40}))
    line = toolkit.compare(runs).iloc[0]
    assert (line["num_items"], line["difference_points"]) == (40, 15)
    assert line["low_points"] < 15 < line["high_points"]
    assert toolkit.compare_seeds(runs)["mcnemar_p"].notna().all() == (scale == 1)


@pytest.mark.parametrize(("added", "num_items"), [(0, 40), (0.004, 40), (0.09, None)])
def test_an_accuracy_that_contradicts_the_answers_is_compared_as_it_was_scored(record, added, num_items):
    """One that is rounded contradicts nothing."""
    labels, runs = np.arange(40) % 2, []
    for regime, num_right in (("none", 36), ("embeddings", 30)):
        for seed in (0, 1, 2):
            answers = np.where(np.random.default_rng(seed).permutation(40) < num_right, labels, 1 - labels)
            columns = {"epoch": 3.0, "split": "validation", "id": np.arange(40), "label": labels}
            kept = pd.DataFrame({**columns, "prediction": answers})
            runs.append(record(regime, seed, predictions=kept, scores={"accuracy": num_right / 40 + added}))
    line = toolkit.compare(runs).iloc[0]
    assert line["first_mean"] == pytest.approx(36 / 40 + (added if num_items is None else 0))
    assert (None if pd.isna(line["num_units"]) else line["num_units"]) == num_items
    assert (OTHER_ACCURACY in line["note"]) == (num_items is None)


def test_what_is_better_when_lower_is_no_headline_though_a_loop_names_it(record):
    facts = {"task": {"name": "trec", "score": "mse"}}
    runs = [
        record(regime, seed, facts=facts, scores={"mse": 0.3 - value + seed / 100, "r2": value + seed / 100})
        for regime, value in (("none", 0.1), ("embeddings", 0.2))
        for seed in range(3)
    ]
    assert {(run.score, run.headlines) for group in arrange(runs) for run in group.runs} == {("r2", ("r2",))}


def test_the_accuracy_of_words_has_the_exact_bound_of_an_accuracy(record):
    """One word of 400 differs in one of three seeds: that is no sameness within .75 points."""
    labels, runs = np.arange(400) % 3, []
    for regime in ("none", "embeddings"):
        for seed in range(3):
            told = labels.copy()
            told[7] += regime == "embeddings" and seed == 2
            table = pd.DataFrame({"epoch": 3.0, "split": "validation", "id": np.arange(400) // 5})
            table = table.assign(word=np.arange(400) % 5, label=labels, prediction=told)
            scores = {"accuracy": float((told == labels).mean())}
            runs.append(record(regime, seed, scores=scores, predictions=table))
    (line,) = toolkit.compare(runs, margin_points=0.75).to_dict("records")
    assert line["num_units"] == 80
    assert line["high90_points"] > 0.9


def test_drift_is_counted_from_where_recording_began(record):
    early, late = record("none", 0), record("none", 0, begins=(1.0, 8), name="late")
    for measured in (toolkit.measure_drift, lambda run: toolkit.measure_rows(run, "word_embeddings")):
        one, other = (measured(run).drop(columns="epoch", errors="ignore") for run in (early, late))
        pd.testing.assert_frame_equal(one, other)
    charts = [toolkit.plot_drift(toolkit.measure_drift(run)).to_dict() for run in (early, late)]
    epochs = [{epoch for data in alone(chart) for epoch in data.get("epoch", ())} for chart in charts]
    assert epochs == [{1, 2, 3}, {2, 3, 4}]


@pytest.mark.parametrize("command", [show_drift, lambda runs: write_report(runs, "out"), toolkit.drift_table])
def test_a_run_that_diverged_is_refused_in_one_line_that_names_it(record, command):
    run = record("none", 0, undefined=("word_embeddings", 3))
    with refused("^none-0: word_embeddings holds NaN or infinity at epoch 3.*: the run diverged, leave it out$"):
        command([run.path])
