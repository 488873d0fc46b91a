"""What a report keeps of its runs compares exactly as the runs do, and says nothing of texts or machines."""

import csv
import json
import re
import tempfile
import time
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.comparison.planted import write_evidence
from tests.formulas import check_no_formula
from tests.refusals import check_refused
from toolkit.comparison.compare import Settings, compare, compare_groups
from toolkit.comparison.conditions import arrange
from toolkit.comparison.evidence import FOLDER, NAMES, PAGE, read_evidence, read_table
from toolkit.comparison.parameter_noise import drift_of, measure_beyond_noise
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.summaries import summarise_scores
from toolkit.snapshots import files
from toolkit.snapshots.csv_tables import csv_of


def test_evidence_compares_bit_for_bit_like_its_runs(logged):
    runs = logged()
    evidence = write_evidence(runs, None, "out")
    live, kept = compare(runs), compare_groups(evidence.groups, settings=Settings())
    pd.testing.assert_frame_equal(live, kept, check_exact=True)
    pd.testing.assert_frame_equal(summarise_scores(runs), summarise_scores(evidence.groups), check_exact=True)
    assert live["p"].notna().all()


def test_numbers_are_kept_to_the_last_bit(logged):
    runs = logged()
    evidence = write_evidence(runs, None, "out")
    live = pd.concat([measure_beyond_noise(run).assign(run=run.path.name) for run in runs], ignore_index=True)
    pd.testing.assert_frame_equal(live, evidence.drift[list(live)], check_exact=True)
    numbers = np.random.default_rng(0).lognormal(0, 9, 2000)
    files.write_text(Path("numbers.csv"), pd.DataFrame({"drift": numbers}).to_csv(index=False))
    np.testing.assert_array_equal(read_table(Path("numbers.csv"))["drift"], numbers)


@pytest.fixture
def out(logged):
    """The folder of evidence of one run of each condition."""
    write_evidence(logged(1), None, "out")
    return Path("out") / FOLDER


def test_labels_and_the_order_of_conditions_are_kept(logged):
    runs = logged()
    words = {"none": "Z: everything", "embeddings": "12", "backbone": "nan"}
    labels = {run.path.name: words[run.config.freeze] for run in reversed(runs)} | {"of-another-run": "gone"}
    evidence = write_evidence(runs, labels, "out", pairs=[("12", "nan")])
    for groups in (evidence.groups, arrange(runs, labels)):
        assert [condition.label for condition in groups[0].conditions] == ["nan", "12", words["none"]]
    assert set(evidence.settings["labels"]) == {run.path.name for run in runs}
    assert evidence.settings["pairs"] == [["12", "nan"]]
    assert set(evidence.seeds["condition"]) == {"nan", "12", words["none"]}


def test_groups_of_several_tasks_and_kinds_are_kept_apart(make_run):
    kinds = ({"task": "toy"}, {"task": "nan"}, {"task": "value", "is_regression": True})
    runs = [make_run(regime, seed, **kind) for kind in kinds for regime in ("none", "backbone") for seed in range(2)]
    evidence = write_evidence(runs, None, "out")
    live = compare_groups(arrange(runs))
    pd.testing.assert_frame_equal(live, compare_groups(evidence.groups), check_exact=True)
    assert list(live["task"].unique()) == ["toy", "nan", "value"]


def test_two_tasks_on_the_same_data_are_two_groups(make_run):
    runs = [make_run("none", seed, config={"max_length": length}) for length in (16, 32) for seed in range(2)]
    labels = {run.path.name: "full" for run in runs}
    check_refused("differ in max length 16 and 32", arrange, runs, labels)
    tasks = {run.path.name: {16: "short", 32: "long"}[run.config.max_length] for run in runs}
    evidence = write_evidence(runs, labels, "out", tasks=tasks | {"of-another-run": "gone"})
    for groups in (arrange(runs, labels, tasks), evidence.groups):
        assert [group.title for group in groups] == ["tiny on short", "tiny on long"]
    assert set(ReportData(evidence).joined["task"]) == {"short", "long"}
    path = Path("out") / FOLDER / "settings.json"
    settings = json.loads(path.read_text())
    assert set(settings["tasks"]) == set(tasks)
    path.write_text(json.dumps(settings | {"labels": None, "tasks": None}))
    assert [group.title for group in read_evidence("out").groups] == ["tiny on toy"]


def test_models_of_one_name_in_two_folders_stay_two_groups(make_run):
    runs = [make_run("none", 0, model="/secret/a/mine"), make_run("none", 1, model="/secret/b/mine")]
    evidence = write_evidence(runs, None, "out")
    assert len(arrange(runs)) == len(evidence.groups) == 2


def test_no_text_and_no_place_of_a_machine(make_run, tmp_path):
    config = {"train_file": str(tmp_path / "deep" / "train.csv"), "validation_file": "/secret/place/dev.csv"}
    write_evidence([make_run(model="/secret/models/mine", config=config)], None, tmp_path / "out")
    folder = tmp_path / "out" / FOLDER
    assert {path.name for path in folder.iterdir()} == {*NAMES, PAGE}
    for path in folder.iterdir():
        assert not re.search(b"/secret|" + re.escape(str(tmp_path).encode()), path.read_bytes()), path.name
    table = pd.read_parquet(folder / "predictions.parquet")
    assert list(table) == ["run", "model", "task", "condition", "seed", "epoch", "split", "id", "label", "prediction"]
    assert set(table["epoch"]) == {3.0}
    assert set(table["split"]) == {"validation", "ood"}  # hidden has no labels


def test_the_same_runs_give_the_same_bytes(logged):
    runs = logged(2)
    one, other = (write_evidence(runs, None, name).hashes for name in ("one", "two"))
    assert one == other


def test_the_drift_of_each_run_is_measured_once(logged, monkeypatch):
    """Drift, its null and what is joined with the score come from one pass over the tables of a run."""
    measured = []

    def count(source):
        measured.append(source.path.name)
        return measure_beyond_noise(source)

    monkeypatch.setattr("toolkit.comparison.measure.drift_of", drift_of)  # not what the tests before this one know
    monkeypatch.setattr("toolkit.comparison.parameter_noise.measure_beyond_noise", count)
    runs = logged(1)
    evidence = write_evidence(runs, None, "out")
    assert sorted(measured) == sorted(run.path.name for run in runs)
    joined = ReportData(evidence).joined
    own = joined.merge(evidence.drift, on=["run", "parameter"], suffixes=("", "_known"))
    assert len(own) == len(joined) == len(evidence.drift)
    np.testing.assert_array_equal(own["offset_free_drift"], own["offset_free_drift_known"])


@pytest.mark.parametrize("name", NAMES)
def test_missing_and_cut_files_are_one_clear_line(out, name):
    content = (out / name).read_bytes()
    (out / name).unlink()
    check_refused(f"missing {FOLDER}/{name}", read_evidence, "out")
    if not name.endswith(".csv"):
        (out / name).write_bytes(content[: len(content) // 2])
        check_refused(rf"{FOLDER}/{name} (cannot be read|is not JSON) \(.*: restore it or", read_evidence, "out")


@pytest.mark.parametrize(
    ("version", "said"), [(99, "a newer"), (2, "an older"), (None, "the format None, which is no")]
)
def test_another_format_is_refused(out, version, said):
    path = out / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": version}))
    check_refused(f"^out/evidence has {said}", read_evidence, "out")


CELLS = st.one_of(
    st.text(st.sampled_from("'=+-@\t\r\n a1.e,;\""), min_size=1, max_size=6),
    st.sampled_from(["=HYPERLINK(1)", "'=1+1", "-0.5", "+", "-", "@a", "-inf", "''-x", "nan", "a;=1+1", ";'=x"]),
)


def test_a_text_that_is_a_number_but_for_its_end_is_written_at_once():
    start = time.process_time()
    assert csv_of(pd.DataFrame({"label": [f"+{'9' * 100_000}x"]})).startswith("label\n'+9")
    assert time.process_time() - start < 5


@given(st.lists(CELLS, min_size=1, max_size=8), CELLS)
def test_no_cell_or_head_of_a_csv_starts_a_formula_and_each_is_read_back(texts: list[str], head: str) -> None:
    table = pd.DataFrame({"condition": texts, head: np.arange(len(texts)) - 0.5})
    written = csv_of(table)
    check_no_formula(written)
    (_, *heads), *lines = csv.reader(StringIO(written, newline=""))
    for cell, text in zip([*heads, *(line[0] for line in lines)], [head, *texts], strict=True):
        assert cell.replace("'", "") == text.replace("'", "")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        files.write_text(path, written)
        pd.testing.assert_frame_equal(read_table(path), table, check_dtype=False)
