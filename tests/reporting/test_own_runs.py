"""From runs that somebody made without our loop to the tables, the page and the figure of a paper."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import toolkit
from tests.recordings import write_recording
from tests.trainer_outputs import train
from toolkit.commands import ReportCommand
from toolkit.comparison.verify import describe
from toolkit.reporting.comparison_report import report_from
from toolkit.reporting.render_markdown import read_answers

REGIMES = {"full fine-tuning": "none", "embeddings frozen": "embeddings", "feature extraction": "backbone"}
OWN = "bert.embeddings."


@pytest.fixture(scope="module")
def base(tiny_model):
    return tiny_model("bert")


@pytest.fixture(scope="module")
def made(base, tmp_path_factory):
    """Six output folders, and one that is called frozen and is not."""
    folder = tmp_path_factory.mktemp("made") / "old_runs"
    for regime in REGIMES.values():
        for seed in (0, 1):
            train(base, folder / f"{regime}_{seed}", regime, seed)
    train(base, folder / "frozen_2", "none", 2)
    return folder


@pytest.fixture
def folders(made, tmp_path, monkeypatch):
    """A copy of them below the current directory, a temporary one."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(made, tmp_path / "old_runs")


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Three regimes, two seeds each, as recordings below the current directory, a temporary one."""
    monkeypatch.chdir(tmp_path)
    for number, regime in enumerate(REGIMES.values()):
        for seed in (0, 1):
            value = 0.9 - 0.1 * number + 0.01 * seed * (number + 1)
            write_recording(tmp_path / "runs", regime, seed, scores={"accuracy": value})
    return tmp_path / "runs"


def said_by(page):
    return [line for answer in read_answers(page.read_text()) for line in answer.split("\n")]


def test_recordings_become_a_paper(recorded, capsys):
    runs = toolkit.open_runs("runs/*")
    assert len(runs) == 6
    latex = toolkit.export_table(toolkit.drift_table(runs))
    assert all(label in latex for label in REGIMES)
    assert ReportCommand(tuple(run.path for run in runs), Path("out")).run() == 0
    assert "What is to know of these runs?" in capsys.readouterr().out
    names = {path.name for path in Path("out").rglob("*")}
    assert {
        "index.html",
        "drift_compact.tex",
        "comparison.tex",
        "summary.csv",
        "first_screen.svg",
        "cards.json",
    } <= names
    (question,) = [line for line in said_by(Path("out/report.md")) if line.startswith("Does freezing")]
    assert question.startswith("Does freezing the embeddings change the score? two seeds: not judged.")
    assert "+9.5 points of accuracy" in question


@pytest.mark.parametrize("with_base", [True, False], ids=["base", "first kept"])
def test_output_folders_become_a_paper_without_any_callback(folders, base, with_base):
    given = base if with_base else None
    before = {path: path.stat().st_mtime_ns for path in folders.rglob("*")}
    runs = toolkit.open_runs("old_runs/*", base=given)
    table = toolkit.drift_table(runs).set_index(["condition", "parameter"])
    assert list(dict.fromkeys(table.index.get_level_values(0))) == list(REGIMES)
    own = [run for run in runs if run.path.name.startswith(("none", "frozen"))]
    drifts = [drift_by_hand(run.path, base if with_base else None) for run in own]
    line = table.loc[("full fine-tuning", "word_embeddings")]
    np.testing.assert_allclose(line["drift_percent"], np.mean(drifts), rtol=1e-6)
    assert line["num_seeds"] == 3
    assert table.loc[("embeddings frozen", "word_embeddings"), "is_frozen"]
    page = toolkit.write_report(runs, "out", base=given)
    told = said_by(page)
    assert "In 1 of 7 runs what the name calls frozen moved: frozen_2." in told
    assert any("since checkpoint-2, the first one kept" in line for line in told) != with_base
    assert any(line.endswith("taken as replicates.") for line in told)
    assert (Path("out") / "figures" / "first_screen.svg").is_file()
    assert {path: path.stat().st_mtime_ns for path in folders.rglob("*")} == before
    again = report_from("out", "again")
    assert again.read_text() == page.read_text()
    lines, has_changed = describe(Path("again"), folders)
    assert not has_changed
    # A base of an absolute path is known by its name alone, so that nobody can measure again from it.
    assert with_base or lines[-1] == "7 of 7 runs were at hand and measured again"


def drift_by_hand(folder, base):
    """Relative drift of the word table in %, by numpy on the files that the Trainer wrote."""
    places = [folder / "checkpoint-2" if base is None else base, folder / "checkpoint-4"]
    first, last = ({k.removeprefix("bert."): v for k, v in load_file(p / "model.safetensors").items()} for p in places)
    one, other = (each["embeddings.word_embeddings.weight"].astype(float) for each in (first, last))
    return 100 * np.linalg.norm(other - one) / np.linalg.norm(one)
