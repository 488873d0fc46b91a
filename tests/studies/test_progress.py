"""What is shown of a study: every event in words, bars where there is a terminal, labels that are no markup."""

import io
import os
import re
import time
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.run_directories import write_run
from toolkit.config import RunConfig
from toolkit.progress import say
from toolkit.studies.executors import Event
from toolkit.studies.plan import PlannedRun
from toolkit.studies.progress import StudyProgress, last_score, makespan, shown_roughly, shown_seconds
from toolkit.studies.study import Cell


def planned(folder: Path, seed: int, *, arm: str = "full", task: str = "toy", size: int | None = None) -> PlannedRun:
    cell = Cell(task, arm, seed, size, "final", None, RunConfig(seed=seed))
    return PlannedRun(cell, cell.config, folder / f"{task}_{arm}_{seed}")


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def last_accuracy(path: Path) -> float:
    return float(pd.read_csv(path / "scores.csv").query("epoch == 3 and split == 'validation'")["accuracy"].item())


def test_plain_lines_where_output_is_no_terminal(tmp_path: Path) -> None:
    run = write_run(tmp_path, "none", 0)
    first = PlannedRun(planned(tmp_path, 0).cell, RunConfig(), run.path)
    second, third = planned(tmp_path, 1, arm="[bold]frozen[/]"), planned(tmp_path, 2)
    console = Console(file=io.StringIO(), width=80)
    with StudyProgress(1, console) as progress:
        progress.on_stage("final", [first, second, third])
        progress.on_event(Event(second.name, "waiting"))
        progress.on_event(Event(second.name, "running"))
        progress.on_event(Event(second.name, "retried", "the try before was killed"))
        progress.on_event(Event(second.name, "failed", "exit code 2: no memory", 61.0))
        progress.on_event(Event(first.name, "finished", seconds=5.0))
        progress.on_progress("scores")
    assert text_of(console).splitlines() == [
        "final: 3 runs, 1 finished, 2 to do",
        "[1/3] running: toy, [bold]frozen[/], seed 1",
        "[1/3] retried: toy, [bold]frozen[/], seed 1; the try before was killed",
        "[1/3] failed: toy, [bold]frozen[/], seed 1; exit code 2: no memory (1 min 1 s)",
        f"[1/3] finished: toy, full, seed 0; epoch 3: accuracy {last_accuracy(run.path):.3f} (5 s), about 5 s left",
        "report: scores",
    ], "no control characters"


def test_a_terminal_shows_each_running_run_with_its_scores_and_keeps_what_has_ended(tmp_path: Path) -> None:
    runs = [planned(tmp_path, seed, arm="[red]x", size=1000) for seed in range(4)]
    console = Console(file=io.StringIO(), width=120, height=10, force_terminal=True)
    with StudyProgress(2, console) as progress:
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
        assert progress._bars.tasks[0].completed == 1
        assert "about 30 s left" in progress._bars.tasks[0].fields["told"], "two runs wait for two workers"
    assert "failed: toy, [red]x, seed 0, 1000 examples; exit code 2: bad" in text_of(console)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_is_computed_beside_the_runs_is_the_text_of_the_bar(is_terminal: bool) -> None:
    """Checking what is finished reads every byte of it, and comes before the stage."""
    with StudyProgress(1, Console(file=io.StringIO(), force_terminal=is_terminal)) as progress:
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


def test_the_time_left_is_until_the_last_worker_is_done(tmp_path: Path) -> None:
    runs = [planned(tmp_path, s, arm=arm) for s in range(3) for arm in ("slow", "fast")]
    progress = StudyProgress(2, Console(file=io.StringIO()))
    progress.on_stage("final", runs)
    assert progress.seconds_left(time.monotonic()) is None
    progress.on_event(Event("toy_slow_0", "finished", seconds=100.0))
    progress.on_event(Event("toy_fast_0", "finished", seconds=10.0))
    progress.on_event(Event("toy_slow_1", "running"))
    started = progress._lines["toy_slow_1"].started
    # One goes on for 60 s while the other does 10 s and then, in the order of the plan, 100 s, the first the last 10 s.
    assert progress.seconds_left(started + 40) == pytest.approx(10 + 100)
    assert progress.seconds_left(started + 400) == pytest.approx(0 + 100), "never below nothing"


def test_lengths_of_time_in_words() -> None:
    assert [shown_seconds(s) for s in (0.4, 59.4, 60, 3599, 3600, 7890)] == [
        "0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "2 h 11 min",
    ]  # fmt: skip
    assert [shown_roughly(s) for s in (12.6, 89, 90, 3600, 5400, 9000)] == [
        "13 s", "89 s", "2 min", "60 min", "1.5 h", "2.5 h",
    ]  # fmt: skip


@given(st.lists(st.floats(0.1, 10.0), max_size=7), st.integers(1, 3))
def test_makespan_is_between_its_bounds_and_that_of_a_queue(seconds: list[float], workers: int) -> None:
    result = makespan(seconds, workers)
    assert result >= max([sum(seconds) / workers, *seconds, 0.0]) - 1e-9
    assert result <= sum(seconds) + 1e-9
    assert result == pytest.approx(slow_queue(seconds, workers))


def slow_queue(seconds: list[float], workers: int) -> float:
    """The same by stepping from event to event."""
    clock, waiting, running = 0.0, list(seconds), list[float]()
    while waiting or running:
        while waiting and len(running) < workers:
            running.append(clock + waiting.pop(0))
        clock = min(running)
        running.remove(clock)
    return clock
