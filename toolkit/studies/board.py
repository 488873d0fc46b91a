"""A stage's runs and an executor's events in, what is known of each run and how long the rest will take out."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.studies.attempts import START
from toolkit.studies.calibration import makespan
from toolkit.studies.executors import Event, State
from toolkit.studies.jobs import log_of
from toolkit.studies.plan import PlannedRun

_TAIL_BYTES = 4_000
_PROGRESS = re.compile(r"\|\s*(\d+)/(\d+)\s*\[")
"""The steps done and the steps of a run, in its progress bar."""


@dataclass
class Line:
    """One run as the board shows it."""

    run: PlannedRun
    state: State
    is_earlier: bool = False
    """Finished before this command began."""
    started: float = 0.0
    """On the monotonic clock; 0 until it runs."""
    seconds: float = 0.0
    detail: str = ""
    score: str = ""
    """Of a run that this command finished."""

    def elapsed(self, now: float) -> float:
        """Seconds of its last try."""
        return now - self.started if self.state == "running" else self.seconds


@dataclass
class Board:
    """What a study is doing; fed by ``on_stage`` and ``on_event``, read by whoever shows it."""

    workers: int = 1
    stage: str = ""
    lines: dict[str, Line] = field(default_factory=dict)

    def on_stage(self, stage: str, runs: Sequence[PlannedRun]) -> None:
        """Begin a stage."""
        self.stage = stage
        self.lines = {run.name: _line_of(run) for run in runs}

    def on_event(self, event: Event) -> Line:
        """Note what has become of a run."""
        line = self.lines[event.name]
        line.state, line.detail = event.state, event.detail
        if event.state == "running":
            line.started = time.monotonic()
        elif event.seconds:
            line.seconds = event.seconds
        if event.state == "finished":
            line.score = last_score(line.run)
        return line

    def count(self, state: State) -> int:
        """Runs in this state."""
        return sum(line.state == state for line in self.lines.values())

    def seconds_left(self, now: float) -> float | None:
        """About how long the stage still takes, from the runs that this command has finished; None before the first.

        A run is taken to last as long as the mean run of its task and arm so far, or else as the mean of these means:
        of one run per kind, whichever kinds were finished first. Workers take the next run when they become free.
        """
        took: dict[tuple[str, str], list[float]] = {}
        for line in self.lines.values():
            if line.state == "finished" and line.seconds:
                took.setdefault((line.run.cell.task, line.run.cell.arm), []).append(line.seconds)
        if not took:
            return None
        means = {key: sum(values) / len(values) for key, values in took.items()}
        usual = sum(means.values()) / len(means)
        running, waiting = [], []
        for line in self.lines.values():
            expected = means.get((line.run.cell.task, line.run.cell.arm), usual)
            if line.state in ("waiting", "retried"):
                waiting.append(expected)
            elif line.state == "running":
                running.append(max(expected - line.elapsed(now), 0.0))
        return makespan([*running, *waiting], self.workers)


def _line_of(run: PlannedRun) -> Line:
    """A run as the stage finds it: one that diverged before is not run again."""
    if run.has_diverged:
        return Line(run, "failed", detail="diverged before")
    return Line(run, "finished" if run.is_finished else "waiting", run.is_finished)


def progress_of(run: PlannedRun) -> str:
    """How far a running run is, from its progress bar and its scores: ``45% of 375 steps; epoch 1: accuracy 0.871``."""
    steps = _steps(log_of(run))
    if steps is None:
        return "starting"  # an earlier try's scores are still there until training begins
    done, total = steps
    score = last_score(run)
    return f"{done / max(total, 1):.0%} of {total:,} steps" + (f"; {score}" if score else "")


def _steps(log: Path) -> tuple[int, int] | None:
    """(done, all) steps in the last progress bar of a log's last try; None before there is one."""
    if not log.is_file():
        return None
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        tail = file.read().decode(errors="replace")
    found = _PROGRESS.findall(tail.rpartition(START)[2])
    return (int(found[-1][0]), int(found[-1][1])) if found else None


def last_score(run: PlannedRun) -> str:
    """The score of the last epoch on the first split, which is the reported one: ``epoch 2: accuracy 0.875``."""
    import pandas as pd

    path = run.path / "scores.csv"
    try:
        scores = pd.read_csv(path)
        last = scores[scores["epoch"] == scores["epoch"].max()].iloc[0]
        name = next(n for n in ("accuracy", "pearson") if n in scores)
        return f"epoch {last['epoch']:.3g}: {name} {last[name]:.3f}"
    except (OSError, ValueError, KeyError, IndexError, StopIteration):  # not there yet, or being replaced
        return ""


def shown_seconds(seconds: float) -> str:
    """A length of time: ``42 s``, ``3 min 5 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def shown_roughly(seconds: float) -> str:
    """An estimated length of time, without the digits that nobody can estimate: ``42 s``, ``7 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
