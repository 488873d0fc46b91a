"""What is shown of a study: every event in words, bars where there is a terminal, labels that are no markup."""

import io
import os
import re
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from tests.run_directories import write_run
from toolkit.config import RunConfig
from toolkit.progress import say
from toolkit.studies.executors import Event
from toolkit.studies.plan import PlannedRun
from toolkit.studies.progress import StudyProgress, last_score
from toolkit.studies.study import Cell


def planned(
    folder: Path, seed: int, *, condition: str = "full", task: str = "toy", size: int | None = None
) -> PlannedRun:
    cell = Cell(task, condition, seed, size, "final", None, RunConfig(seed=seed))
    return PlannedRun(cell, cell.config, folder / f"{task}_{condition}_{seed}")


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def last_accuracy(path: Path) -> float:
    return float(pd.read_csv(path / "scores.csv").query("epoch == 3 and split == 'validation'")["accuracy"].item())


def test_plain_lines_where_output_is_no_terminal(tmp_path: Path) -> None:
    run = write_run(tmp_path, "none", 0)
    first = PlannedRun(planned(tmp_path, 0).cell, RunConfig(), run.path)
    second, third = planned(tmp_path, 1, condition="[bold]frozen[/]"), planned(tmp_path, 2)
    console = Console(file=io.StringIO(), width=80)
    with StudyProgress(console) as progress:
        progress.on_stage("final", [first, second, third])
        progress.on_event(Event(second.name, "waiting"))
        progress.on_event(Event(second.name, "running"))
        progress.on_event(Event(second.name, "retried", "the try before was killed"))
        progress.on_event(Event(second.name, "failed", "exit code 2: no memory", 61.0))
        progress.on_event(Event(first.name, "finished", seconds=5.0))
    assert text_of(console).splitlines() == [
        "final: 3 runs, 1 finished, 2 to do",
        "[1/3] running: toy, [bold]frozen[/], seed 1",
        "[1/3] retried: toy, [bold]frozen[/], seed 1; the try before was killed",
        "[1/3] failed: toy, [bold]frozen[/], seed 1; exit code 2: no memory (0:01:01)",
        f"[1/3] finished: toy, full, seed 0; epoch 3: accuracy {last_accuracy(run.path):.3f} (0:00:05)",
    ], "no control characters"


def test_a_terminal_shows_each_running_run_with_its_scores_and_keeps_what_has_ended(tmp_path: Path) -> None:
    runs = [planned(tmp_path, seed, condition="[red]x", size=1000) for seed in range(4)]
    console = Console(file=io.StringIO(), width=120, height=10, force_terminal=True)
    with StudyProgress(console) as progress:
        progress.on_stage("final", runs)
        for seed in (0, 1):
            progress.on_event(Event(runs[seed].name, "running"))
        progress.on_event(Event(runs[0].name, "failed", "exit code 2: bad", 2.0))
        write_run(tmp_path, "none", 0).path.rename(runs[1].path)
        shown = Console(file=io.StringIO(), width=120)
        shown.print(progress._bars.get_renderable())
        stage, run = text_of(shown).splitlines()
        assert re.match("final runs .*0/4", stage)
        assert "toy, [red]x, seed 1, 1000 examples" in run
        assert f"epoch 3: accuracy {last_accuracy(runs[1].path):.3f}" in run
        progress.on_event(Event(runs[1].name, "finished", seconds=30.0))
        assert progress._bars.tasks[0].completed == 2
    assert "failed: toy, [red]x, seed 0, 1000 examples; exit code 2: bad" in text_of(console)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_is_computed_beside_the_runs_is_the_text_of_the_bar(is_terminal: bool) -> None:
    """Checking what is finished reads every byte of it, and comes before the stage."""
    with StudyProgress(Console(file=io.StringIO(), force_terminal=is_terminal)) as progress:
        say("checking finished run 3 of 189")
        (bar,) = progress._bars.tasks
        assert (bar.description, bar.visible) == ("checking finished run 3 of 189" * is_terminal, is_terminal)
    say("nobody hears this")
    assert bar.description != "nobody hears this"


def test_an_earlier_trys_scores_are_not_shown(tmp_path: Path) -> None:
    run = PlannedRun(planned(tmp_path, 0).cell, RunConfig(), write_run(tmp_path, "none", 0).path)
    now = time.time()
    os.utime(run.path / "scores.csv", (now - 100, now - 100))
    assert last_score(run).startswith("epoch 3: accuracy")
    assert last_score(run, since=now) == ""
    assert last_score(planned(tmp_path, 1)) == ""


@pytest.mark.parametrize("num_failed", [0, 1])
def test_the_time_left_is_that_of_as_many_runs_at_the_speed_so_far(tmp_path: Path, num_failed: int) -> None:
    runs = [planned(tmp_path, seed) for seed in range(9)]
    console = Console(file=io.StringIO())
    progress = StudyProgress(console)
    progress.on_stage("final", runs)
    for i, run in enumerate(runs[:5]):
        progress._bars.get_time = partial(float, 60 * (i + 1))
        progress.on_event(Event(run.name, "failed" if i < num_failed else "finished", seconds=100.0))
    assert text_of(console).splitlines()[-1].endswith("(0:01:40), about 0:04:00 left"), "four runs, one a minute"
