"""A report is complete, agrees with the analysis, is inert whatever the vocabulary holds, and is the same twice."""

import html
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import toolkit
from tests.refusals import check_refusals, check_refused
from tests.reporting.conftest import contents
from toolkit.analysis.drift import measure_drift, measure_rows
from toolkit.analysis.measures import MEASURES
from toolkit.cli import main
from toolkit.reporting.comparison_report import write_report
from toolkit.reporting.sources import find_runs

FIGURES = ("scores_over_epochs", "drift_over_epochs", "position_drift")
SCORE_FIGURES = ("differences", "scores_by_condition", "cost_against_score")
CHARTS = ("first_screen", "words", *FIGURES, *SCORE_FIGURES)
TABLES = ("verdicts", "comparison", "comparison_by_seed", "summary", "cost", "drift_and_score")
TABLES += ("association", "runs", "last_scores", "scores", "baselines", "drift", "strata", "positions", "tokens")
PRINTED = ("verdicts", "comparison", "tests", "summary", "cost", "association", "tables")
LEAD = ["run", "model", "task", "regime", "seed"]


RUNS = (("none", 0.9), ("embeddings", 0.8), ("backbone", 0.7))


@pytest.fixture
def runs(make_run):
    return [make_run(regime, right=right) for regime, right in RUNS]


def output_of(code: str, folder: Path | None = None) -> str:
    """What a fresh interpreter prints in ``folder``, with this checkout on its path."""
    environment = {**os.environ, "PYTHONPATH": str(Path(toolkit.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=folder
    ).stdout


@dataclass(frozen=True)
class Made:
    """A folder with three runs and the report on them, ``out``, which a process of its own wrote."""

    folder: Path
    runs: list[toolkit.Run]
    printed: str
    """What that process printed: whether it imported pyplot."""


@pytest.fixture(scope="module")
def made(shared_runs, tmp_path_factory) -> Made:
    folder = tmp_path_factory.mktemp("report")
    runs = [shared_runs.copy_into(folder / "runs", regime, right=right) for regime, right in RUNS]
    code = (
        "import sys; from toolkit.reporting.comparison_report import write_report; "
        f"write_report({[str(run.path) for run in runs]}, 'out')"
    )
    return Made(folder, runs, output_of(code, folder))


@pytest.fixture
def report(made, monkeypatch) -> str:
    """The text of the report ``out`` in the current directory; both are for reading only."""
    monkeypatch.chdir(made.folder)
    return Path("out/report.md").read_text()


def section(text: str, title: str) -> str:
    """What stands under the heading that begins with ``title``, whatever its level, up to the next of its level."""
    heading = re.search(rf"^(#+) {re.escape(title)}.*$", text, re.M)
    assert heading, title
    rest = text[heading.end() :]
    end = re.search(rf"^#{{1,{len(heading[1])}}} ", rest, re.M)
    return rest[: end.start()] if end else rest


def written(runs, title: str | None = None) -> str:
    """The text of a report on runs, or what stands under one of its headings."""
    text = write_report(runs, "out").path.read_text()
    return section(text, title) if title else text


LIMITS = "What these runs cannot tell"


def test_every_file_is_there_and_valid(report):
    names = (
        {f"figures/{name}.{kind}" for name in CHARTS for kind in ("png", "svg", "pdf")}
        | {f"tables/{name}.{kind}" for name in TABLES for kind in ("csv", "parquet")}
        | ({f"tables/{name}.tex" for name in PRINTED} | {"report.md", "index.html", "cards.json", "files.json"})
    )
    names |= {f"tables/drift_compact.{kind}" for kind in ("csv", "parquet", "tex")}
    found = set(contents(Path("out")))
    assert {name for name in found if not name.startswith("evidence/")} == names
    assert "evidence/predictions.parquet" in found
    for name in FIGURES:
        with Image.open(f"out/figures/{name}.png") as image:
            assert len(image.convert("L").getcolors(256) or range(257)) > 8
            assert image.width > 1000
        root = ElementTree.parse(f"out/figures/{name}.svg").getroot()
        assert root.tag.endswith("svg")
        assert any(element.tag.endswith("text") for element in root.iter())
    links = re.findall(r"\]\((figures/[^)]*)\)", report)
    assert len(links) == 3 * len(CHARTS)
    assert all((Path("out") / link).is_file() for link in links)
    for name in TABLES:
        assert len(pd.read_parquet(f"out/tables/{name}.parquet")) == len(pd.read_csv(f"out/tables/{name}.csv")) > 0


def test_sections_are_in_order(report):
    headings = re.findall(r"^## (.*)$", report, re.M)
    assert headings == [
        "Which words moved",
        "Scores, in and out of distribution",
        "Drift of each parameter",
        "Why rows moved: what training exposed",
        "How sure this is",
        "What these runs cannot tell",
        "How to repeat it",
        "Runs, data, versions, definitions",
    ]


@pytest.mark.usefixtures("report")
def test_tables_agree_with_measure_drift(made):
    runs = made.runs
    table = pd.read_csv("out/tables/drift.csv")
    assert list(table.columns[:5]) == LEAD
    for run in runs:
        own = table[table["run"] == run.path.name].drop(columns=LEAD).reset_index(drop=True)
        expected = measure_drift(run.trajectory)
        assert list(own.columns) == list(expected.columns)
        np.testing.assert_array_equal(own["value"], expected["value"])
    tokens = pd.read_csv("out/tables/tokens.csv", keep_default_na=False)
    rows = measure_rows(runs[0].trajectory, "word_embeddings", 3)
    seen = rows[rows["num_steps"] > 0].sort_values("norm", ascending=False).head(20)
    assert list(tokens.loc[tokens["ranking"] == "norm", "token"]) == list(seen["token"])
    strata = pd.read_csv("out/tables/strata.csv")
    line = strata[(strata["regime"] == "none") & (strata["stratum"] == "seen in 1 step")].iloc[0]
    assert line["norm_median"] == pytest.approx(rows.loc[rows["stratum"] == "seen in 1 step", "norm"].median())


def test_numbers_in_the_text_agree(report, made):
    drift = measure_drift(made.runs[0].trajectory)
    last = drift[(drift["epoch"] == 3) & (drift["stratum"] == "whole parameter") & (drift["measure"] == "relative")]
    wide = last.pivot(index="parameter", columns="statistic", values="value")
    rows = [line.strip("| ").split(" | ") for line in section(report, "Drift of each").split("\n")]
    rows = [row for row in rows if row[0] in wide.index and len(row) == 5]  # three conditions and the yardstick
    assert len(rows) == 5
    for name, tuned, *frozen, yardstick in rows:
        numbers = float(tuned), float(yardstick.split(" ± ")[0])
        assert numbers == pytest.approx([100 * wide.loc[name, of] for of in ("value", "reinitialised")], rel=0.01)
        assert frozen == ["0 (bit-identical)"] * 2


def test_hostile_tokens_are_inert(report):
    tokens = section(report, "Which words moved")
    assert not re.search("<script>|\u202e", report)
    inert = ("&#60;script&#62;", "a&#124;b", "&#96;tick&#96;")
    assert [token for token in inert if token not in tokens] == []
    assert {line.count("|") for line in tokens.split("\n") if line.startswith("|")} == {7, 9}  # words, what is drawn
    assert set(map(html.unescape, inert)) <= {html.unescape(c.strip()) for c in tokens.split("|")}


@pytest.mark.usefixtures("undrawn")
def test_no_absolute_path_and_no_sentence(make_run, tmp_path):
    config = {"train_file": str(tmp_path / "deep" / "train.csv"), "validation_file": "/secret/place/dev.csv"}
    run = make_run(model="/secret/models/mine", config=config)
    options = {"title": "A <b>title</b>", "question": "Why not?", "margin_points": 2.5}
    text = write_report([run.path], tmp_path / "out", **options).path.read_text()
    assert not re.search(r"(?<![\w.)/<])/(?:[\w.-]+/)+", text)
    assert "--train-file deep/train.csv --validation-file dev.csv" in text
    own = f"python -m toolkit report runs/{run.path.name} --out out --title 'A <b>title</b>'"
    assert f"{own} --question 'Why not?' --margin-points 2.5" in text
    assert text.startswith("# A &#60;b&#62;title&#60;/b&#62;\n")
    for name, content in contents(Path("out")).items():
        shown = pd.read_parquet(f"out/{name}").to_csv() if name.endswith(".parquet") else content.decode()
        assert [place for place in ("/secret", str(tmp_path)) if place in shown] == [], name


@pytest.mark.slow  # whole reports
def test_same_runs_same_bytes_whatever_the_user_has_set(made, tmp_path, monkeypatch, as_files):
    import altair

    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    first = contents(Path("out"))
    Path("out/notes.txt").write_text("mine")
    runs = [tmp_path / "runs" / run.path.name for run in made.runs]
    with altair.theme.enable("dark"), altair.data_transformers.enable("csv"), as_files():
        assert write_report(runs, "out").path == Path("out/report.md")
    assert contents(Path("out")) == {**first, "notes.txt": b"mine"}


@pytest.mark.usefixtures("undrawn")
def test_a_model_without_segments(make_run):
    text = written([make_run(regime, lacking=("token_type_embeddings",)) for regime in ("none", "backbone")])
    assert "Not applicable: this model has no token_type_embeddings." in section(text, "Segments")
    (line,) = [
        line for line in section(text, "Drift of each").split("\n") if line.startswith("| token_type_embeddings")
    ]
    assert line.count("not applicable") == 3  # of two conditions and the yardstick


@pytest.mark.usefixtures("undrawn")
def test_a_manifest_that_says_almost_nothing(make_run):
    absent = dict.fromkeys(("regime", "frozen", "model", "task", "linear_probe", "cost", "versions", "devices"))
    absent |= {"num_processes": None, "precision": None}
    text = written([make_run(regime, facts=absent) for regime in ("none", "backbone")])
    assert "not recorded" in text
    assert "bit-identical" not in section(text, "Drift of each")
    assert "McNemar" in section(text, "Comparison")
    assert "| None" not in text


@pytest.mark.usefixtures("undrawn")
def test_without_exposure(make_run):
    text = written([make_run(has_exposure=False)])
    assert "exposure unknown" in section(text, "Word rows")


def test_undefined_values_are_counted(report):
    words = section(report, "Word rows")
    (line,) = [line for line in words.split("\n") if line.startswith("| &#91;PAD&#93; | full fine-tuning")]
    assert line.count("undefined (undefined rows: 1 of 1)") == 3


@pytest.mark.slow  # whole reports
def test_two_tasks_have_their_own_sections(make_run):
    runs = [make_run(task=task, is_regression=task == "grades") for task in ("toy", "grades")]
    first, second, *_ = written(runs, "Scores, in and out").split("### tiny on grades")
    assert "### tiny on toy" in first
    assert "pearson" in second
    assert Path("out/figures/2-tiny-on-grades_drift_over_epochs.png").exists()
    assert set(pd.read_csv("out/tables/scores.csv")["task"]) == {"toy", "grades"}


@pytest.mark.usefixtures("undrawn")
def test_seeds_are_averaged_and_failures_flagged(make_run):
    runs = [make_run("none", seed, right=right) for seed, right in enumerate((0.9, 0.8, 0.2))]
    text = written(runs)
    last = [run.scores.query("epoch == 3 and split == 'validation'")["accuracy"].iloc[0] for run in runs]
    scores = section(text, "Scores, in and out")
    line = next(line for line in scores.split("\n") if line.startswith("| full fine-tuning"))
    assert f"| 3 | 1 | {np.mean(last):.3f} ± {np.std(last, ddof=1):.2g}" in line
    assert "not failed" in scores
    assert section(text, "Runs").count("| failed |") == 1
    assert "on the reported split): 1 of 3; full fine-tuning 1 on toy." in section(text, LIMITS)


@pytest.mark.usefixtures("undrawn")
def test_one_seed_says_what_its_interval_covers(made, make_run, runs):
    text = (made.folder / "out/report.md").read_text()
    assert "Every condition has one seed: intervals cover the items and say nothing of other seeds." in text
    more = [make_run(regime, 1) for regime in ("none", "embeddings", "backbone")]
    assert "Every condition has one seed" not in written([*runs, *more])
    assert "with intervals over seeds and items" in Path("out/tables/comparison.tex").read_text()


@pytest.mark.usefixtures("undrawn")
def test_what_a_glob_brings_along_is_left_out_and_said(make_run, runs):
    unfinished = make_run(seed=9, is_finished=False)
    Path("runs/notes").mkdir()
    text = written([*runs, unfinished, "runs/notes"], LIMITS)
    assert f"runs/{unfinished.path.name} is left out: it is unfinished" in text
    assert "runs/notes is left out: it is not a run directory." in text
    assert set(pd.read_csv("out/tables/runs.csv")["run"]) == {run.path.name for run in runs}


def test_a_condition_is_lost_where_every_one_of_its_runs_diverged(make_run):
    labels, runs = {}, []
    conditions = (("a", "partly", 0), ("a", "partly", 1), ("b", "partly", 0), ("a", "wild", 0), ("a", "wild", 1))
    for task, condition, seed in (*conditions, ("b", "full", 0)):
        is_kept = condition == "full" or (condition, task, seed) == ("partly", "a", 0)
        run = make_run(seed=seed, task=task, is_finished=is_kept, config={"dropout": len(condition) / 10})
        labels[run.path.name] = condition
        if not is_kept:
            (run.path / "diverged.json").write_text("{}")
        runs.append(run)
    found = find_runs(runs).note_lost(labels)
    assert found.lost == {"wild"}
    said = "Every run of {} diverged: it is compared with nothing there."
    assert found.left_out[:2] == (said.format("partly on b"), said.format("wild on a"))
    assert len(found.left_out) == 2 + 4
    named = find_runs(runs).note_lost(labels, {run.path.name: f"the {run.config.task}" for run in runs})
    assert named.left_out[0] == said.format("partly on the b")


@pytest.mark.parametrize("is_removed", [True, False])
@pytest.mark.parametrize(
    "name",
    ["scores.csv", "predictions.parquet", "config.json", "snapshots/epoch-002.safetensors", "exposure.safetensors"],
)
def test_a_run_that_was_changed_after_it_finished_is_left_out(runs, name, is_removed):
    """What is left out is said in a report's limits, as that of any other reason."""
    path = runs[0].path / name
    content = path.read_bytes()
    path.unlink() if is_removed else path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    how = f"{'missing' if is_removed else 'changed'}: {name}"
    found, summarise = find_runs(paths := [run.path for run in runs]), toolkit.summarise_scores
    (said,) = found.left_out
    assert f"{paths[0].name} is left out: it is not as its manifest says ({how})" in said
    assert [run.path for run in found.runs] == paths[1:]
    check_refused(f"no runs to report on.*{how}", write_report, runs[:1], "out")
    if name in ("scores.csv", "predictions.parquet", "config.json"):
        check_refused(rf"is not as its manifest says \({how}\): restore it, or run again", summarise, paths)


def test_a_log_that_the_manifest_does_not_name_leaves_its_run_out(runs):
    """It was read as the run's own: what moved the rows is told from it."""
    (runs[1].path / "optimizer.json").write_text("{}")
    found = find_runs([run.path for run in runs])
    assert [run.path for run in found.runs] == [run.path for run in runs if run is not runs[1]]
    assert found.left_out[0].endswith("(not in the manifest: optimizer.json): move it away.")


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_manifest_does_not_stop_the_others_nor_does_a_file_of_the_users(runs, capsys):
    (runs[0].path / "manifest.json").write_text("{")
    (runs[1].path / "notes.txt").write_text("mine")
    found = find_runs([run.path for run in runs])
    assert [run.path for run in found.runs] == [run.path for run in runs[1:]]
    with pytest.raises(SystemExit, match="0"):
        main(["report", *(str(run.path) for run in runs), "--out", "out"])
    assert found.left_out[0] in capsys.readouterr().err
    assert found.left_out[0].endswith("is left out: its manifest.json cannot be read: restore it or run it again.")


def test_every_measure_is_defined(report):
    text = section(report, "Definitions")
    assert [name for name, measure in MEASURES.items() if f"| {name} | {measure.unit} |" not in text] == []


@pytest.mark.usefixtures("undrawn")
def test_refusals(runs, make_run):
    unfinished = make_run(seed=9, is_finished=False)
    files = [Path(f"{number}.txt") for number in range(1003)]
    for file in (*files, Path("file")):
        file.touch()
    path, no_run = runs[0].path, r"2\.txt is left out: it is not a run directory\."
    check_refusals(
        ("no runs", lambda: write_report([], "out")),
        (r"no runs to report on.*it is unfinished", lambda: write_report([unfinished], "out")),
        (rf"{no_run} So are 1,000 more\.$", lambda: write_report(files, "out")),
        (rf"{no_run}$", lambda: write_report(files[:3], "out")),
        (r"So is 1 more\.$", lambda: write_report(files[:4], "out")),
        ("no run directory at nowhere", lambda: write_report([*runs, "nowhere"], "out")),
        ("given twice", lambda: write_report([runs[0], path], "out")),
        ("would lie inside the run", lambda: write_report(runs, path / "report")),
        ("is a file", lambda: write_report(runs, "file")),
    )
    assert not Path("out").exists()


def test_reporting_needs_no_model():
    code = "import sys, toolkit.reporting.comparison_report; print(*(m for m in sys.modules if '.' not in m))"
    heavy = {"torch", "transformers", "accelerate", "datasets", "altair", "vl_convert"}
    assert heavy & set(output_of(code).split()) == set()
