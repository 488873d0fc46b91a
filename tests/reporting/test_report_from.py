"""A report is made from its evidence alone: in memory or read again, of today's format or of the first."""

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.comparison.planted import sign_again
from tests.refusals import check_refused
from tests.reporting.conftest import contents
from toolkit.cli import main
from toolkit.comparison.cards import make_cards
from toolkit.comparison.evidence import (
    FOLDER,
    LARGE_BYTES,
    Evidence,
    check_written,
    read_evidence,
    read_table,
    save_evidence,
    settled,
)
from toolkit.comparison.measure import measure
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.verify import check_report, describe, verify_report
from toolkit.reporting.comparison_report import report_from, write_report


def test_a_report_that_keeps_no_evidence_says_what_to_read(tmp_path):
    (tmp_path / "report.md").write_text("of models")
    said = "keeps no evidence to make its pages from: read .*report.md, which has its command"
    check_refused(said, report_from, tmp_path, tmp_path / "out")


def several_sizes(make):
    sizes = ({"max_train_examples": size} for size in (10, 20))
    return [make(regime, seed, config=config) for config in sizes for regime in ("none", "backbone") for seed in (0, 1)]


KINDS = {
    "classes": lambda make: [make(regime, seed) for regime in ("none", "embeddings", "backbone") for seed in range(3)],
    "values": lambda make: [make(r, s, is_regression=True) for r in ("none", "embeddings") for s in range(2)],
    "undefined": lambda make: [make(r, 0, is_regression=True, is_constant=True) for r in ("none", "backbone")],
    "sizes": several_sizes,
    "shuffled labels": lambda make: [
        make("none", seed, config=config) for config in ({}, {"shuffle_labels": True}) for seed in range(3)
    ],
    "tasks and models": lambda make: [
        make("none", 0, task="nan", lacking=("position_embeddings", "token_type_embeddings")),
        make("none", 0, model="other", is_regression=True, has_exposure=False),
        make("backbone", 0, model="other", is_regression=True),
    ],
}


def words_as_items(run):
    """The run as that of a token task: its items are words of examples."""
    table = run.predictions.assign(word=np.arange(len(run.predictions)) % 3)
    object.__setattr__(run, "predictions", table.assign(id=table["id"] // 3))
    return run


KINDS["tokens"] = lambda make: [
    *(words_as_items(make(regime, 0, task="tags")) for regime in ("none", "backbone")),
    make("none", 0),
]


def tables_of(evidence: Evidence) -> dict[str, pd.DataFrame]:
    found = {field.name: getattr(evidence, field.name) for field in fields(evidence)}
    return {name: table for name, table in found.items() if isinstance(table, pd.DataFrame)}


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_in_memory_and_read_again_is_the_same_and_gives_the_same_cards(make_run, tmp_path, kind):
    measured = measure(KINDS[kind](make_run))
    saved, read = save_evidence(measured, tmp_path), read_evidence(tmp_path)
    assert (measured.settings, measured.page, saved.hashes) == (read.settings, read.page, read.hashes)
    assert measured.facts == read.facts
    for name, table in tables_of(read).items():
        pd.testing.assert_frame_equal(tables_of(measured)[name], table, check_exact=True, obj=name)
    one, other = ([card.to_dict() for card in make_cards(evidence)] for evidence in (saved, read))
    assert json.dumps(one) == json.dumps(other)
    assert one


@given(
    st.lists(st.tuples(st.floats(), st.integers(-(2**62), 2**62), st.booleans(), st.text('aN,"\n 1', max_size=3))),
    st.booleans(),
)
def test_any_table_is_read_as_it_is_kept(tmp_path_factory, lines, is_csv):
    table = settled(pd.DataFrame(lines, columns=["value", "num_rows", "is_failed", "task"]))
    path = tmp_path_factory.mktemp("table") / ("a.csv" if is_csv else "a.parquet")
    table.to_csv(path, index=False) if is_csv else table.to_parquet(path, index=False)
    pd.testing.assert_frame_equal(read_table(path), table, check_exact=True, check_dtype=bool(lines))


def test_a_score_that_is_undefined_at_every_epoch_stays_a_score_of_its_run(read_run):
    values = [read_run(regime, is_regression=True) for regime in ("none", "backbone")]
    measured = measure([*values, read_run(task="other")])
    evidence = replace(measured, scores=measured.scores.assign(pearson=np.nan))
    assert ["pearson" in run.scores for run in evidence.reported] == [run.is_regression for run in measured.reported]


@pytest.fixture(scope="module")
def made(shared_runs, tmp_path_factory):
    """A report with a title, a tuning table and a run that was left out, beside which no run is left."""
    folder = tmp_path_factory.mktemp("made")
    conditions = (("none", "full", 0.9), ("embeddings", "frozen", 0.9), ("backbone", "features", 0.6))
    runs = [
        shared_runs.copy_into(folder / "runs", regime, seed, right=right)
        for regime, _, right in conditions
        for seed in range(3)
    ]
    names = {regime: label for regime, label, _ in conditions}
    labels = {run.path.name: names[run.config.freeze] for run in runs}
    tried = {"task": "toy", "condition": "full", "rate": 1e-4, "num_seeds": 1, "is_chosen": True, "mean_score": 0.5}
    tuning = pd.DataFrame([tried, tried | {"rate": 1e-3, "is_chosen": False, "mean_score": np.nan}])
    (folder / "notes").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = {"title": "T <b>", "question": "Why?", "expected": "Much.", "tuning": tuning, "labels": labels}
        write_report([*runs, "notes"], "out", pairs=[("full", "frozen"), ("features", "full")], **options)
        shutil.rmtree("runs")
    return folder


@pytest.fixture
def report(made, tmp_path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("out")


@pytest.fixture
def command(capsys):
    """A function: the words of a command to its exit status and what it says of errors."""

    def run(*words):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        return stop.value.code, capsys.readouterr().err

    return run


@pytest.mark.slow  # whole reports
def test_a_report_made_again_is_the_same_byte_for_byte(report, command):
    assert command("report", "--from", report, "--out", "again")[0] == 0
    assert contents(Path("again")) == contents(report)
    text = (report / "report.md").read_text()
    said = ("T &#60;b&#62;", "Why?", "notes is left out", "Expected before the runs: Much.")
    assert [each for each in said if each not in text] == []


def test_evidence_that_has_changed_is_refused(report, command):
    with (report / "evidence/scores.csv").open("a") as file:
        file.write("\n")
    code, error = command("report", "--from", report, "--out", "again")
    assert (code, error.count("\n")) == (2, 1)
    assert "changed: evidence/scores.csv" in error
    assert not Path("again").exists()


FORGED = {"runs.csv": "last_epoch", "scores.csv": "epoch", "drift.csv": "parameter", "predictions.parquet": "label"}
"""Table of the evidence to the column that somebody took out of it."""


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", FORGED)
def test_evidence_whose_hashes_were_made_anew_ends_in_one_line(report, name, command):
    path, said = report / FOLDER / name, "the evidence of out is not as a report writes it"
    table = read_table(path).drop(columns=FORGED[name])
    table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path, index=False)
    sign_again(report)
    code, error = command("report", "--from", report, "--out", "again")
    assert (code, error.count("\n"), said in error, Path("again").exists()) == (2, 1, True, False)
    check_refused(said, make_cards, report)
    assert any(said in line for line in verify_report(report))


@pytest.mark.parametrize(
    "words",
    [
        ["--from", "out", "runs/a"],
        ["--from", "out", "--title", "T"],
        ["--from", "out", "--score", "f1"],
        ["runs/a"],
        [],
        ["--from", "nowhere"],
    ],
)
def test_flags_that_do_not_go_together_are_one_clear_line(report, words, command):
    code, error = command("report", *words)
    assert (code, error.count("\n")) == (2, 1)


def test_evidence_that_kept_little_gives_the_same_cards_and_says_so(report):
    """As that of the committed reports whose runs were made before single rows were kept."""
    known = read_evidence(report)
    facts = {name: own | {"config_sha256": "not kept"} for name, own in known.facts.items()}
    for own in facts.values():
        own["manifest"] = {part: own["manifest"][part] for part in ("task", "frozen", "model", "regime")}
    empty = dict.fromkeys(("strata", "boxes", "dots", "exposed", "tokens", "positions", "words"), pd.DataFrame())
    page = {**known.page, "not_kept": ["It did not keep how single rows moved."]}
    evidence = replace(known, facts=facts, page=page, folder=None, word_counts=known.word_counts[:0], **empty)
    save_evidence(evidence, "old")
    assert report_from("old", "again").path == Path("again/report.md")
    old, new = (json.loads((place / "cards.json").read_text())["cards"] for place in (report, Path("again")))
    assert [card | {"inputs": {}} for card in new] == [card | {"inputs": {}} for card in old]
    text = Path("again/report.md").read_text()
    assert "It did not keep how single rows moved" in text
    absent = ("Which words moved", "Why rows moved", "Cost beside score", "were not recorded")
    assert [each for each in absent if each in text] == []
    assert verify_report("again") == []


@pytest.mark.slow  # whole reports
def test_what_is_made_again_need_not_be_kept_and_is_the_same_in_its_own_place(report):
    before = contents(report)
    (report / "notes.txt").write_text("mine")
    large = [path for path in (report / "tables").glob("*.csv") if path.stat().st_size > LARGE_BYTES]
    assert large
    kinds = ("**/*.svg", "**/*.pdf", "**/*.tex", "tables/*.parquet", "index.html")
    away = {*large, *(path for kind in kinds for path in report.glob(kind))}
    for path in away:
        path.unlink()
    lines, differs = describe(report, None)
    assert not differs
    assert f"{len(away)} files were not kept; python -m toolkit report --from {report} makes them again" in lines
    shutil.rmtree(report / "figures")
    assert report_from(report).path == report / "report.md"
    assert contents(report) == before | {"notes.txt": b"mine"}
    found = check_report(report)
    assert (found.differences, found.not_kept) == ([], [])


def test_what_should_have_been_kept_is_missed(report):
    shown = next((report / "figures").glob("first_screen.png"))
    small = report / "tables/cost.csv"
    for path in [report / "report.md", shown, small, report / "cards.json", *(report / FOLDER).iterdir()]:
        name, content = path.relative_to(report).as_posix(), path.read_bytes()
        path.unlink()
        assert any(name.split("/")[-1] in line for line in verify_report(report)), name
        path.write_bytes(content)
    assert verify_report(report) == []


def test_every_changed_byte_is_found(report):
    """Of each file alone by the list of what was written; verifying a report takes that list last, and names all."""
    changed = {name: content for name, content in contents(report).items() if name != "files.json"}
    for name, content in changed.items():
        (report / name).write_bytes(content + b" ")
        assert any(name in line for line in check_written(report)[0]), name
        (report / name).write_bytes(content)
    for name, content in changed.items():
        (report / name).write_bytes(content + b" ")
    lines = verify_report(report)
    assert [name for name in changed if not any(name in line for line in lines)] == []


def test_pairs_are_compared_once(read_study, monkeypatch):
    from toolkit.comparison import compare as module

    compared = []

    def count(pair, settings):
        compared.append((pair.first.label, pair.second.label))
        return compare_pair(pair, settings)

    compare_pair = module.compare_pair
    runs, labels = read_study(num_seeds=2)
    data = ReportData(measure(runs, labels))
    monkeypatch.setattr(module, "compare_pair", count)
    assert len(data.comparison)
    assert len(data.joined)
    data.evidence.__dict__["hashes"] = dict.fromkeys((f"{FOLDER}/{name}" for name in ALL_NAMES), "0")
    assert make_cards(data)
    assert sorted(compared) == sorted(set(compared))


ALL_NAMES = ("settings.json", "runs.json", "predictions.parquet", "scores.csv", "drift.csv", "seeds.csv", "gauge.csv")
ALL_NAMES += ("labels.csv",)
