"""What a terminal shows of a study: every state in words, a table that fits the screen, labels that are no markup."""

import io
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.run_directories import write_run
from toolkit.config import RunConfig
from toolkit.studies.board import Board, Line, progress_of, shown_roughly, shown_seconds
from toolkit.studies.executors import Event
from toolkit.studies.live import LiveTable, PlainLines, choose_lines, watch
from toolkit.studies.plan import PlannedRun
from toolkit.studies.study import Cell


def planned(folder: Path, seed: int, *, arm: str = "full", task: str = "toy", size: int | None = None) -> PlannedRun:
    cell = Cell(task, arm, seed, size, "final", None, RunConfig(seed=seed))
    return PlannedRun(cell, cell.config, folder / f"{task}_{arm}_{seed}")


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width)


def test_plain_lines_where_output_is_no_terminal(tmp_path: Path) -> None:
    run = write_run(tmp_path, "none", 0)
    first = PlannedRun(planned(tmp_path, 0).cell, RunConfig(), run.path)
    second = planned(tmp_path, 1, arm="[bold]frozen[/]")
    console = plain()
    with watch(1, console) as watcher:
        assert isinstance(watcher, PlainLines)
        watcher.on_stage("final", [first, second])
        watcher.on_event(Event(second.name, "waiting"))
        watcher.on_event(Event(second.name, "running"))
        watcher.on_event(Event(second.name, "retried", "killed by SIGKILL", 3.0))
        watcher.on_event(Event(second.name, "failed", "exit code 2: no memory", 61.0))
        watcher.on_event(Event(first.name, "finished", seconds=5.0))
    assert text_of(console).splitlines() == [
        "final: 2 runs, 1 finished, 1 to do",
        "[1/2] running: toy, [bold]frozen[/], seed 1",
        "[1/2] retried: toy, [bold]frozen[/], seed 1; killed by SIGKILL (3 s)",
        "[1/2] failed: toy, [bold]frozen[/], seed 1; exit code 2: no memory (1 min 1 s)",
        f"[1/2] finished: toy, full, seed 0; epoch 3: accuracy {last_accuracy(run.path):.3f} (5 s)",
    ]


def last_accuracy(path: Path) -> float:
    import pandas as pd

    scores = pd.read_csv(path / "scores.csv")
    return float(scores[(scores["epoch"] == 3) & (scores["split"] == "validation")]["accuracy"].iloc[0])


def test_no_line_holds_control_characters_when_piped(tmp_path: Path) -> None:
    console = plain()
    with watch(1, console) as watcher:
        watcher.on_stage("final", [planned(tmp_path, 0)])
        watcher.on_event(Event("toy_full_0", "running"))
    assert "\x1b" not in text_of(console)


def table_of(runs: list[PlannedRun], events: list[Event], *, height: int = 40, width: int = 100) -> str:
    """What the live table shows after these events."""
    screen = LiveTable(2, Console(file=io.StringIO(), width=width, height=height, force_terminal=True))
    screen.on_stage("final", runs)
    for event in events:
        screen.on_event(event)
    shown = plain(width)
    shown.print(screen.render())
    return text_of(shown)


def test_the_live_table_shows_every_state(tmp_path: Path) -> None:
    runs = [planned(tmp_path, seed, arm="[red]x[/red]", size=1000) for seed in range(5)]
    names = [run.name for run in runs]
    events = [Event(names[0], "finished", seconds=30.0), Event(names[1], "running"), Event(names[2], "running")]
    events += [Event(names[2], "failed", "exit code 2: bad", 2.0), Event(names[3], "retried", "killed by SIGKILL", 1.0)]
    text = table_of(runs, events)
    for words in (
        "✓",
        "▶",
        "✗",
        "↻",
        "·",
        "[red]x[/red]",
        "1,000",
        "exit code 2: bad",
        "killed by SIGKILL",
        "starting",
    ):
        assert words in text, words
    assert "1 of 5 finished, 1 running, 1 failed" in text
    assert "about 60 s left" in text, (
        "of 30 s each: one runs, a retried and a waiting one are left, so that one of two workers has two"
    )


def test_a_running_run_shows_how_far_it_is(tmp_path: Path) -> None:
    run = planned(tmp_path, 0)
    log = tmp_path / ".study" / f"{run.name}.log"
    assert progress_of(run) == "starting"
    log.parent.mkdir()
    log.write_text("=== start 1\n 90%|####| 90/100 [00:10<00:01, loss=0.1]\n=== start 2\nloading\n")
    assert progress_of(run) == "starting", "what an earlier try reached is gone"
    with log.open("a") as file:
        file.write("  0%|  | 0/100 [00:00<?]\r 45%|####  | 45/100 [00:05<00:06,  8.99step/s, loss=0.31]")
    assert progress_of(run) == "45% of 100 steps"
    made = write_run(tmp_path, "none", 0)
    made.path.rename(run.path)
    assert progress_of(run) == f"45% of 100 steps; epoch 3: accuracy {last_accuracy(run.path):.3f}"


@pytest.mark.parametrize("height", [12, 24, 50])
def test_the_table_of_a_large_study_fits_the_screen(height: int, tmp_path: Path) -> None:
    runs = [planned(tmp_path, seed) for seed in range(150)]
    events = [Event(run.name, "finished", seconds=1.0) for run in runs[:70]]
    events += [Event(runs[70].name, "running"), Event(runs[3].name, "failed", "why", 1.0)]
    text = table_of(runs, events, height=height)
    assert len(text.splitlines()) <= height
    assert "why" in text
    assert "▶" in text
    assert "69 of 150 finished" in text


STATES = st.lists(st.sampled_from(["waiting", "running", "retried", "finished", "failed"]), min_size=1, max_size=30)


@given(states=STATES, room=st.integers(1, 35))
def test_lines_are_chosen_in_order_and_failures_win(states: list[str], room: int) -> None:
    lines = [Line(planned(Path("runs"), i), state) for i, state in enumerate(states)]  # type: ignore[arg-type]
    chosen = list(choose_lines(lines, room))
    seeds = [line.run.cell.seed for line in chosen]
    assert seeds == sorted(seeds)
    assert len(seeds) == len(set(seeds)) == min(room, len(lines))
    shown, there = sum(line.state == "failed" for line in chosen), states.count("failed")
    assert shown == min(room, there)
    active = sum(state in ("running", "retried") for state in states)
    assert sum(line.state in ("running", "retried") for line in chosen) == min(room - shown, active)


def test_the_time_left_is_until_the_last_worker_is_done(tmp_path: Path) -> None:
    runs = [planned(tmp_path, s, arm=arm) for s in range(3) for arm in ("slow", "fast")]
    board = Board(workers=2)
    board.on_stage("final", runs)
    now = time.monotonic()
    assert board.seconds_left(now) is None
    board.on_event(Event("toy_slow_0", "finished", seconds=100.0))
    board.on_event(Event("toy_fast_0", "finished", seconds=10.0))
    board.on_event(Event("toy_slow_1", "running"))
    started = board.lines["toy_slow_1"].started
    # One goes on for 60 s while the other does 10 s and then, in the order of the plan, 100 s, the first the last 10 s.
    assert board.seconds_left(started + 40) == pytest.approx(10 + 100)
    assert board.seconds_left(started + 400) == pytest.approx(0 + 100), "never below nothing"
    board.workers = 4
    for name in ("toy_fast_1", "toy_fast_2", "toy_slow_1"):
        board.on_event(Event(name, "finished", seconds=10.0 if "fast" in name else 100.0))
    assert board.seconds_left(started) == pytest.approx(100), "one run is left: more workers do not shorten it"


def test_lengths_of_time_in_words() -> None:
    assert [shown_seconds(s) for s in (0.4, 59.4, 60, 3599, 3600, 7890)] == [
        "0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "2 h 11 min",
    ]  # fmt: skip
    assert [shown_roughly(s) for s in (12.6, 89, 90, 3600, 5400, 9000)] == [
        "13 s", "89 s", "2 min", "60 min", "1.5 h", "2.5 h",
    ]  # fmt: skip
