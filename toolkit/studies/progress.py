"""What is shown of a study while it runs: bars on a terminal, one line per event elsewhere."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from toolkit.progress import Stages, open_console, telling
from toolkit.studies.executors import Event, State
from toolkit.studies.plan import PlannedRun, describe

WHOLE_STUDY = 1e9
"""Seconds, more than any study takes: rich then reckons what is left from all runs that this command has finished, and
not from the last ones alone."""


@dataclass
class _RunState:
    """The state of one run of a stage."""

    run: PlannedRun
    state: State
    row: TaskID | None = None
    """Its bar, while it runs."""


class _StatusText(ProgressColumn):
    """How far a run is, by the scores that it has written; of a stage what its bar stands for."""

    def render(self, task: Task) -> Text:
        run = task.fields.get("run")
        return Text(task.fields["status"] if run is None else last_score(run, task.fields["since"]))


@dataclass
class StudyProgress:
    """Follows a study; a context manager. ``on_stage`` and ``on_event`` go to ``run_study``."""

    console: Console = field(default_factory=open_console)
    _run_states: dict[str, _RunState] = field(default_factory=dict)
    _exit_stack: ExitStack = field(default_factory=ExitStack)
    _stages: Stages = field(default_factory=Stages)

    def __post_init__(self) -> None:
        """Set up the bars, which only a terminal shows: first that of the stage, hidden until one begins."""
        columns = (TextColumn("{task.description}", markup=False), BarColumn(20), _StatusText(), TimeElapsedColumn())
        is_off = not self.console.is_terminal
        self._bars = Progress(
            *columns, console=self.console, disable=is_off, refresh_per_second=1, speed_estimate_period=WHOLE_STUDY
        )
        self._stage = self._bars.add_task("", visible=False, status="")

    def __enter__(self) -> "StudyProgress":
        self._bars.start()
        self._exit_stack.enter_context(telling(self._hear))  # two that draw would draw over each other
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()
        self._bars.stop()

    def _hear(self, *message: Any) -> None:
        """Show what another part of the toolkit says of its progress, in the bar of the stage or as lines."""
        if self.console.is_terminal:
            self._bars.update(self._stage, description=self._stages.describe(*message), visible=True)
        else:
            self._stages.log(*message)

    def on_stage(self, stage: str, runs: Sequence[PlannedRun]) -> None:
        """Begin a stage; a run that diverged before is not run again."""
        self._run_states = {run.name: _RunState(run, _state_of(run)) for run in runs}
        done, diverged = self._count("finished"), self._count("failed")
        summary = f"{stage}: {len(runs)} runs, {done} finished{f', {diverged} diverged' if diverged else ''}"
        self._print(f"{summary}, {self._count('waiting')} to do")
        self._bars.reset(self._stage, total=len(runs), completed=done + diverged, visible=True)
        self._bars.update(self._stage, description=f"{stage} runs", status=f"{done}/{len(runs)}")

    def on_event(self, event: Event) -> None:
        """Show what has become of a run."""
        entry = self._run_states[event.name]
        entry.state = event.state
        if entry.row is not None:
            self._bars.remove_task(entry.row)
            entry.row = None
        if event.state == "running":
            name, now = describe(entry.run.cell), time.time()
            entry.row = self._bars.add_task(name, total=None, run=entry.run, since=now)
        # On a terminal a run that has begun is a bar; a log gets a line.
        if event.state == "waiting" or (event.state == "running" and self.console.is_terminal):
            return
        self._bars.update(self._stage, completed=self._count("finished") + self._count("failed"))
        seconds_left = self._bars.tasks[self._bars.task_ids.index(self._stage)].time_remaining
        finished_of_all = f"{self._count('finished')}/{len(self._run_states)}"
        score = last_score(entry.run) if event.state == "finished" else ""
        facts = [f"[{finished_of_all}] {event.state}: {describe(entry.run.cell)}", score, event.detail]
        duration = f" ({timedelta(seconds=round(event.seconds))})" if event.seconds else ""
        estimate = (
            f", about {timedelta(seconds=round(seconds_left))} left"
            if seconds_left and event.state == "finished"
            else ""
        )
        self._print("; ".join(filter(None, facts)) + duration + estimate)
        self._bars.update(self._stage, status=finished_of_all + estimate)

    def _count(self, state: State) -> int:
        return sum(entry.state == state for entry in self._run_states.values())

    def _print(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)
        self.console.file.flush()


def _state_of(run: PlannedRun) -> State:
    if run.has_diverged:
        return "failed"
    return "finished" if run.is_finished else "waiting"


def last_score(run: PlannedRun, since: float = 0.0) -> str:
    """The score of the last epoch on the first split, which is the reported one: ``epoch 2: accuracy 0.875``.

    Empty before there is one; one from before ``since`` (seconds since 1970) is an earlier try's.
    """
    import pandas as pd

    path = run.path / "scores.csv"
    try:
        if path.stat().st_mtime < since:
            return ""
        scores = pd.read_csv(path)
        last = scores[scores["epoch"] == scores["epoch"].max()].iloc[0]
        name = next(score_name for score_name in ("accuracy", "pearson") if score_name in scores)
        return f"epoch {last['epoch']:.3g}: {name} {last[name]:.3f}"
    except (OSError, ValueError, KeyError, IndexError, StopIteration):  # not there yet, or being replaced
        return ""
