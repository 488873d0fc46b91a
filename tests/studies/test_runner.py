"""A study runs what is missing and nothing else, tunes before it compares, and tells its report what it compared."""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from tests.exits import exit_code_of
from tests.refusals import check_refused
from tests.studies.tiny_studies import CONDITIONS, GRID, InProcess, Recorded, config_of, make_study
from toolkit.config import RunConfig
from toolkit.progress import telling
from toolkit.reporting.comparison_report import write_report
from toolkit.reporting.page import Answer
from toolkit.snapshots.store import MANIFEST, verify_run
from toolkit.studies.executors import Job
from toolkit.studies.plan import PlannedRun, plan_runs
from toolkit.studies.progress import StudyProgress
from toolkit.studies.runner import launch_command, make_jobs, plan_study, run_study, study_command
from toolkit.studies.study import Comparison


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Stands in for write_report, which tests of its own are about."""
    recorded = Recorded()
    monkeypatch.setattr("toolkit.reporting.comparison_report.write_report", recorded)
    return recorded


@pytest.fixture
def carry_out(tmp_path: Path) -> Callable[..., Any]:
    """``run_study`` with the folders ``runs`` and ``r`` of the test's own."""
    return partial(run_study, out=tmp_path / "r", output_dir=tmp_path / "runs")


def test_a_study_runs_once_and_then_only_reports(
    tiny_config: RunConfig, tmp_path: Path, report: Recorded, carry_out: Callable[..., Any]
) -> None:
    study, executor, again = make_study(tiny_config), InProcess(), InProcess()
    stages: list[tuple[str, int]] = []

    def on_stage(stage: str, runs: Sequence[PlannedRun]) -> None:
        stages.append((stage, len(runs)))

    assert carry_out(study, executor=executor, on_stage=on_stage).path == tmp_path / "r" / "report.md"
    assert stages == [("final", 4)], "a study without a grid has no tuning"
    assert carry_out(study, executor=again)
    assert (len(executor.started), again.started) == (4, [])
    assert report.calls[0]["runs"] == report.calls[1]["runs"]


def test_a_score_that_no_task_has_is_refused_before_anything_runs(
    tiny_config: RunConfig, tmp_path: Path, report: Recorded, carry_out: Callable[..., Any]
) -> None:
    """Recall is a score of tags: found out after training, it would be after hours."""
    message = r"^no task of the study has that score: unknown score 'recall'; .*: accuracy, macro_f1, matthews, f1$"
    for grid in ({}, GRID):
        study, executor = make_study(tiny_config, score="recall", grid=grid), InProcess()
        check_refused(message, carry_out, study, executor=executor)
        assert executor.started == []
        check_refused(message, plan_study, study, tmp_path / "runs")
    masked = {"masked": {"objective": "mlm"}}
    assert plan_study(make_study(tiny_config, score="macro_f1", tasks={"toy": {}} | masked), tmp_path / "runs").final
    without = make_study(tiny_config, score="r2", tasks=masked)
    check_refused(r"choose from: accuracy$", plan_study, without, tmp_path / "runs")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty manifest": (lambda path: (path / MANIFEST).write_text(""), f"{MANIFEST} is not JSON"),
    "a flipped bit of the manifest": (lambda path: flip(path / MANIFEST), MANIFEST),
    "cut scores": (lambda path: (path / "scores.csv").write_text("epoch,st"), "changed: scores.csv"),
    "a flipped bit": (
        lambda path: flip(path / "snapshots" / "epoch-000.safetensors"),
        "changed: snapshots/epoch-000.safetensors",
    ),
    "a flipped bit of the model": (
        lambda path: flip(path / "model" / "model.safetensors"),
        "changed: model/model.safetensors",
    ),
    "a flipped bit of the head": (
        lambda path: flip(path / "model" / "head.safetensors"),
        "changed: model/head.safetensors",
    ),
    "a file gone": (lambda path: (path / "exposure.safetensors").unlink(), "missing: exposure.safetensors"),
    "the manifest alone": (
        lambda path: (
            [each.unlink() for each in path.rglob("*") if each.is_file() and each.name != MANIFEST]
            and (path / "snapshots").rmdir()
        ),
        "is not a run directory",
    ),
}


def test_a_damaged_run_is_named_put_aside_and_made_again(
    tiny_config: RunConfig, tmp_path: Path, report: Recorded, carry_out: Callable[..., Any]
) -> None:
    study = make_study(replace(tiny_config, save_model=True), seeds=range(len(DAMAGES) // 2))
    carry_out(study, executor=InProcess())
    runs = [run.path for run in plan_runs(study.final_cells({}), tmp_path / "runs")]
    for path, (damage, _) in zip(runs, DAMAGES.values(), strict=True):
        damage(path)
        (path / "notes.txt").write_text("mine")

    executor, console = InProcess(), Console(file=StringIO(), width=500)
    with StudyProgress(console=console) as progress:
        carry_out(study, executor=executor, on_stage=progress.on_stage, on_event=progress.on_event)

    assert executor.started == [path.name for path in runs]
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert shown[0] == "final: 8 runs, 0 finished, 8 to do"
    for path, (_, said), line in zip(runs, DAMAGES.values(), shown[1:9], strict=True):
        kept = path.with_name(f".{path.name}.damaged-1")
        assert re.fullmatch(
            rf"\[0/8\] damaged: toy, .*{re.escape(said)}.*; kept as {re.escape(str(kept))}; it is made again", line
        )
        assert (verify_run(path), (kept / "notes.txt").read_text()) == ([], "mine")
    assert len(report.calls) == 2

    again = InProcess()
    (runs[0] / "notes.txt").write_text("mine")  # nothing of the run is damaged
    heard: list[tuple[str, int, int]] = []
    with telling(lambda *said: heard.append(said)):
        carry_out(study, executor=again)
    assert again.started == []
    checked = [said for said in heard if said[0] == "checking finished runs"]
    assert checked == [(checked[0][0], done, 8) for done in range(9)], "every byte of it is read"
    flip(runs[0] / "scores.csv")
    carry_out(study, executor=again)
    assert again.started == [runs[0].name]
    assert runs[0].with_name(f".{runs[0].name}.damaged-2").is_dir()


def test_a_run_of_a_later_version_is_not_made_again(
    tiny_config: RunConfig, tmp_path: Path, report: Recorded, carry_out: Callable[..., Any]
) -> None:
    study, executor = (
        make_study(tiny_config, conditions={"features": {"freeze": "backbone"}}, comparisons=()),
        InProcess(),
    )
    carry_out(study, executor=executor)
    (path,) = (tmp_path / "runs").glob(f"*seed-1*/{MANIFEST}")
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    check_refused(rf"^{path} has a newer format than 2: update the toolkit$", carry_out, study, executor=executor)
    assert (len(executor.started), path.exists()) == (2, True)


def test_the_report_knows_conditions_pairs_margin_and_question(
    tiny_config: RunConfig, tmp_path: Path, report: Recorded, carry_out: Callable[..., Any]
) -> None:
    study = make_study(tiny_config, hypothesis="No.")
    carry_out(study, executor=InProcess(), command="again")
    (call,) = report.calls
    runs = plan_runs(study.final_cells({}), tmp_path / "runs")
    expected = {
        "runs": [run.path for run in runs],
        "labels": {run.name: run.cell.condition for run in runs},
        "tasks": {run.name: "toy" for run in runs},
        "pairs": [("full", "features")],
        "margin_points": 2.0,
        "tuning": None,
        "command": "again",
        "question": "Does it matter?",
        "expected": "No.",
    }
    assert call == call | expected


def test_the_limit_is_of_this_time(tiny_config: RunConfig, report: Recorded, carry_out: Callable[..., Any]) -> None:
    study, executor = make_study(tiny_config), InProcess()
    assert carry_out(study, executor=executor, limit=3) is None
    assert (len(executor.started), report.calls) == (3, [])
    assert carry_out(study, executor=executor, limit=3)
    assert len(executor.started) == len(set(executor.started)) == 4
    check_refused(r"--limit must be at least 1; got 0", carry_out, study, executor=executor, limit=0)


def test_tuning_comes_first_and_its_choice_is_what_runs(
    tiny_config: RunConfig,
    tmp_path: Path,
    report: Recorded,
    carry_out: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The choice is the second setting here; that it is the best one is a test of ``choose``."""
    chosen: list[pd.DataFrame] = []

    def take_second(table: pd.DataFrame) -> dict[tuple[str, str], int]:
        chosen.append(table)
        return {("toy", "full"): 1, ("toy", "features"): 1}

    monkeypatch.setattr("toolkit.studies.runner.chosen_settings", take_second)
    study, executor = make_study(tiny_config, grid=GRID, seeds=(0,)), InProcess()
    assert carry_out(study, executor=executor, limit=3) is None
    assert not chosen
    configs: list[RunConfig] = []
    executor.before = lambda job: configs.append(config_of(job))
    assert carry_out(study, executor=executor, limit=2) is None, "the limit is over both stages"
    assert [config.selection_fraction for config in configs] == [0.2, 0]
    assert carry_out(study, executor=executor, limit=3)
    assert [config.selection_fraction for config in configs] == [0.2, 0, 0]
    assert (configs[1].learning_rate, configs[2].head_learning_rate) == (1e-2, 1e-2)
    (call,) = report.calls
    assert call["runs"] == [tmp_path / "runs" / name for name in executor.started[4:]]
    assert call["tuning"] is chosen[-1]
    assert call["tuning"]["split"].tolist() == ["selection"] * 4


def test_a_setting_that_diverges_is_not_chosen_and_does_not_stop_the_study(
    tiny_config: RunConfig, report: Recorded, carry_out: Callable[..., Any]
) -> None:
    wild = {"learning_rate": 1e30, "head_learning_rate": 1e30, "warmup_fraction": 0.0}
    grid = {"full": [wild, {}], "features": [{}, {"head_learning_rate": 1e-2}]}
    study, executor = make_study(tiny_config, grid=grid, seeds=(0,)), InProcess()
    assert carry_out(study, executor=executor)
    tuning = report.calls[0]["tuning"].set_index(["condition", "setting"])
    assert list(tuning.loc["full", "is_chosen"]) == [False, True]
    assert len(executor.started) == 6
    assert carry_out(study, executor=executor)
    assert len(executor.started) == 6, "what diverged would diverge again"


@pytest.mark.slow  # trains each
@pytest.mark.usefixtures("undrawn")
def test_a_condition_that_always_diverges_is_said_and_does_not_keep_the_report_from_the_others(
    tiny_config: RunConfig, tmp_path: Path, carry_out: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    wild = {"learning_rate": 1e30, "warmup_fraction": 0.0}
    comparisons = [Comparison("full", "features"), Comparison("full", "wild")]
    conditions = {name: CONDITIONS[name] for name in ("full", "features")} | {"wild": wild}
    study = make_study(tiny_config, conditions=conditions, comparisons=comparisons)
    for _ in range(2):
        with StudyProgress() as progress:
            report = carry_out(study, executor=InProcess(), on_stage=progress.on_stage)
    assert "final: 6 runs, 4 finished, 2 diverged, 0 to do" in capsys.readouterr().out.splitlines()
    assert "Every run of wild on toy diverged: it is compared with nothing there." in report.path.read_text()
    table = pd.read_csv(tmp_path / "r" / "tables" / "comparison.csv")
    assert set(zip(table["first"], table["second"], strict=True)) == {("full", "features")}
    runs = plan_runs(study.final_cells({}), tmp_path / "runs")
    said = r"^unknown condition 'nobody'; choose from: full, features$"
    check_refused(
        said,
        write_report,
        [run.path for run in runs],
        tmp_path / "s",
        labels={run.name: run.cell.condition for run in runs},
        pairs=[("full", "nobody")],
    )


def test_a_failed_run_is_named_and_the_others_are_kept(
    tiny_config: RunConfig, report: Recorded, carry_out: Callable[..., Any]
) -> None:
    def fail_second(job: Job) -> None:
        if len(executor.started) == 2:
            raise ValueError("the loss is not finite")

    study, executor = make_study(tiny_config), InProcess(fail_second)
    said = r"^1 run failed: toy, features, seed 0 \(the loss is not finite\)\. The others"
    check_refused(said, carry_out, study, executor=executor)
    assert (len(executor.started), report.calls) == (4, [])
    executor.before = lambda job: None
    assert carry_out(study, executor=executor)
    assert executor.started[4:] == [executor.started[1]]


def test_jobs_are_launched_by_accelerate_with_the_resolved_config(tiny_config: RunConfig, tmp_path: Path) -> None:
    runs = plan_runs(make_study(replace(tiny_config, precision="auto")).final_cells({}), tmp_path / "runs")
    job = make_jobs(runs)[0]
    (place,) = (tmp_path / "runs" / ".study").glob(f"{runs[0].name}-????????.json")
    assert job.command == launch_command(place)
    assert job.command[1:3] == ("-m", "accelerate.commands.launch")
    assert (Path(job.command[4]).name, Path(job.command[4]).is_file()) == ("finetune.py", True)
    assert config_of(job) == runs[0].config
    assert runs[0].config.precision in ("no", "bf16"), "another machine of a cluster must not choose another"
    assert not list((tmp_path / "runs").glob("[!.]*")), "what a shell's runs/* finds are run directories"


def test_without_finetune_py_the_package_is_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a wheel, which has no scripts beside the package."""
    monkeypatch.setattr("toolkit.__file__", str(tmp_path / "toolkit" / "__init__.py"))
    command = launch_command(Path("c.json"))
    assert command[4:] == ("--module", "toolkit.cli", "--config", "c.json")
    done = subprocess.run(
        [sys.executable, "-m", *command[5:]], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert (done.returncode, done.stderr) == (2, "error: --config: no file at c.json\n")


def test_the_command_of_a_report_has_no_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    where, command = study_command(tmp_path / "experiments" / "my study.py", Path("reports/x")).splitlines()
    assert where.startswith("# in the folder in which this report was made")
    assert command == "python -m toolkit study 'experiments/my study.py' --out reports/x"
    _, command = study_command(Path("s.py"), Path("r"), tmp_path / "elsewhere").splitlines()
    assert command == "python -m toolkit study s.py --out r --output-dir elsewhere"


@pytest.fixture
def study_file(tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study file in the current directory, whose runs the command carries out in this process."""
    fields = {k: v for k, v in asdict(tiny_config).items() if k not in ("output_dir", "overwrite")}
    lines = ["from tests.studies.tiny_studies import make_study", "from toolkit.config import RunConfig"]
    path = tmp_path / "mine.py"
    path.write_text("\n".join([*lines, f"STUDY = make_study(RunConfig(**{fields!r}))"]) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toolkit.studies.runner.EXECUTORS", {"local": lambda options: InProcess()})
    return path


def test_the_command_says_what_is_left_and_then_where_the_report_is(
    study_file: Path, report: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of("study", "mine.py", "--limit", "1") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 runs are left: the same command continues"
    report.answers = (Answer(question="Did it?", verdict="no", text="Not at all."),)
    assert exit_code_of("study", "mine.py", "--workers", "2") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-3:] == ["Did it? no. Not at all.", "Report: reports/mine/report.md", "Open:   reports/mine/index.html"]
    assert "final: 4 runs, 1 finished, 3 to do" in out
    assert report.calls[0]["command"].splitlines()[1:] == ["python -m toolkit study mine.py --out reports/mine"]
    assert {path.parent for path in report.calls[0]["runs"]} == {Path("runs")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.py"], r"error: no study file at gone\.py"),
        (["mine.py", "--limit", "0"], r"error: --limit must be at least 1; got 0"),
        (["mine.py", "--workers", "0"], r"--workers must be at least 1; got 0"),
        (["empty.py"], r"error: empty\.py must define STUDY"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, study_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.py").write_text("")
    assert exit_code_of("study", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line), line
    assert not Path("runs").exists()


def test_epochs_of_a_study_that_a_frozen_condition_would_not_train_are_refused_before_anything_runs(
    tiny_pairs: RunConfig, tmp_path: Path
) -> None:
    study = make_study(replace(tiny_pairs, head_training="auto"))
    check_refused("--epochs 1 with a frozen backbone", plan_runs, study.final_cells({}), tmp_path)
