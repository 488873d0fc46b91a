"""A study's events in, a table that follows its runs out: live on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from toolkit.studies.board import Board, Line, progress_of, shown_roughly, shown_seconds
from toolkit.studies.executors import Event
from toolkit.studies.plan import PlannedRun, describe

STYLES = {"waiting": "dim", "running": "bold cyan", "retried": "yellow", "finished": "green", "failed": "bold red"}
SYMBOLS = {"waiting": "·", "running": "▶", "retried": "↻", "finished": "✓", "failed": "✗"}
ROWS_AROUND = 9
"""Lines of the screen that are no runs: title, header, borders, the summary and a margin."""


class Watcher(Protocol):
    """What follows a study; a context manager."""

    def __enter__(self) -> "Watcher": ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def on_stage(self, stage: str, runs: Sequence[PlannedRun]) -> None:
        """Begin a stage."""

    def on_event(self, event: Event) -> None:
        """Show what has become of a run."""

    def on_progress(self, line: str) -> None:
        """Show how far the report is."""


def watch(workers: int, console: Console | None = None) -> Watcher:
    """The live table on a terminal, plain lines where output goes to a file or a pipe."""
    console = console or Console()
    return LiveTable(workers, console) if console.is_terminal else PlainLines(workers, console)


class PlainLines:
    """One line per event that matters, each flushed at once."""

    def __init__(self, workers: int, console: Console) -> None:
        self.board, self.console = Board(workers), console

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def on_stage(self, stage: str, runs: Sequence[PlannedRun]) -> None:
        self.board.on_stage(stage, runs)
        num_left, num_diverged = self.board.count("waiting"), self.board.count("failed")
        diverged = f", {num_diverged} diverged" if num_diverged else ""
        self._print(f"{stage}: {len(runs)} runs, {self.board.count('finished')} finished{diverged}, {num_left} to do")

    def on_event(self, event: Event) -> None:
        line = self.board.on_event(event)
        if event.state == "waiting":
            return
        number = f"{self.board.count('finished')}/{len(self.board.lines)}"
        words = [f"[{number}] {event.state}: {describe(line.run.cell)}"]
        words += [line.score]
        words += [event.detail] if event.detail else []
        took = f" ({shown_seconds(event.seconds)})" if event.seconds else ""
        left = self.board.seconds_left(time.monotonic()) if event.state == "finished" else None
        rest = f", about {shown_roughly(left)} left" if left else ""
        self._print("; ".join(word for word in words if word) + took + rest)

    def on_progress(self, line: str) -> None:
        self._print(f"report: {line}")

    def _print(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)
        self.console.file.flush()


class LiveTable:
    """A table that is drawn again twice a second: what runs, what has just ended, what comes next, and the sum."""

    def __init__(self, workers: int, console: Console) -> None:
        from rich.live import Live

        self.board, self.console = Board(workers), console
        self.started = time.monotonic()
        self.report = ""
        self.live = Live(console=console, get_renderable=self.render, refresh_per_second=2, transient=False)

    def __enter__(self) -> "LiveTable":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def on_stage(self, stage: str, runs: Sequence[PlannedRun]) -> None:
        self.board.on_stage(stage, runs)

    def on_event(self, event: Event) -> None:
        self.board.on_event(event)

    def on_progress(self, line: str) -> None:
        self.report = line

    def render(self) -> RenderableType:
        """What the screen shows now."""
        if not self.board.lines:
            return Text("")
        now = time.monotonic()
        lines = list(self.board.lines.values())
        shown = list(choose_lines(lines, max(self.console.height - ROWS_AROUND, 3)))
        has_sizes = any(line.run.cell.size is not None for line in lines)
        sizes = ["examples"] if has_sizes else []
        table = Table("", "task", "arm", *sizes, "seed", "progress", "time", title=f"{self.board.stage} runs")
        for line in shown:
            table.add_row(*_cells(line, now, has_sizes), style=STYLES[line.state])
        hidden = len(lines) - len(shown)
        caption = Text(f"and {hidden} more" if hidden else "", style="dim")
        return Group(table, caption, self._summary(now))

    def _summary(self, now: float) -> RenderableType:
        board, total = self.board, len(self.board.lines)
        done = board.count("finished")
        words = [f"{done} of {total} finished", f"{board.count('running')} running"]
        words += [f"{board.count('failed')} failed"] if board.count("failed") else []
        words += [shown_seconds(now - self.started)]
        left = board.seconds_left(now)
        words += [f"about {shown_roughly(left)} left"] if left else []
        line = Table.grid(padding=(0, 1))
        line.add_row(ProgressBar(total=total, completed=done, width=10), Text(", ".join(words)))
        return Group(line, *([Text(f"report: {self.report}")] if self.report else []))


def choose_lines(lines: Sequence[Line], room: int) -> Iterator[Line]:
    """As many lines as there is room for, in their order: failed and running ones first, then the next and the last."""
    if len(lines) <= room:
        yield from lines
        return
    active = [i for i, line in enumerate(lines) if line.state in ("running", "retried")]
    waiting = [i for i, line in enumerate(lines) if line.state == "waiting"]
    here = next(iter(active + waiting), len(lines))
    urgency = {"failed": 0, "running": 1, "retried": 1}

    def rank(i: int) -> tuple[int, int]:
        return urgency.get(lines[i].state, 2), abs(i - here)

    for i in sorted(sorted(range(len(lines)), key=rank)[:room]):
        yield lines[i]


def _cells(line: Line, now: float, has_sizes: bool) -> list[RenderableType]:
    """One row of the table. Labels are Text: what a study calls its arms is no markup."""
    cell = line.run.cell
    told = progress_of(line.run) if line.state == "running" else line.score or line.detail
    told = "finished before" if line.is_earlier else told
    seconds = line.elapsed(now)
    words = [SYMBOLS[line.state], cell.task, cell.arm]
    words += [f"{cell.size:,}" if cell.size is not None else ""] if has_sizes else []
    words += [str(cell.seed), told, shown_seconds(seconds) if seconds else ""]
    return [Text(word, overflow="ellipsis", no_wrap=True) for word in words]
