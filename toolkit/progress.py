"""What is being computed: a line on the terminal that goes away or, of a command, now and then a line in a log."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from toolkit.naming import visible

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
T = TypeVar("T")

LOG_SECONDS = 15.0
"""Between the lines where stderr is no terminal and nothing can be drawn over: a short command leaves none."""

_told: list[Callable[[str], object]] = []
"""Who hears :func:`say`: rich draws one line at a time, and a function that shows progress may call another."""


def open_console(*, stderr: bool = False) -> "Console":
    """A rich console to which no text can give a command: what is invisible of it is shown as U+XXXX.

    Names come from data, files and checkpoints, and rich passes their escape sequences on. Its own are no text.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
            for part in super().render(*args, **options):
                yield part if part.control else part._replace(text=visible(part.text))

    return Plain(stderr=stderr)


def show(text: str, *, is_result: bool = True) -> None:
    """Print a line on stdout, or on stderr what is no result, its invisible characters as U+XXXX."""
    print(visible(text), file=sys.stdout if is_result else sys.stderr, flush=True)


def say(text: str) -> None:
    """Show what is being computed, where progress is being shown."""
    if _told:
        _told[-1](text)


def shows_progress(text: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function that takes seconds show ``text``, a spinner and the time on stderr, on a terminal only.

    It may :func:`say` more. Inside of another that shows progress it adds no line of its own.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def shown(*args: P.args, **options: P.kwargs) -> T:
            is_first = os.environ.get("RANK", "0") == "0"  # of several processes, which share the terminal
            if _told or not is_first or sys.stderr is None or not sys.stderr.isatty():
                return function(*args, **options)
            with reporting_progress() as hear:
                hear(text)
                return function(*args, **options)

        return shown

    return decorate


@contextmanager
def reporting_progress() -> Iterator[Callable[[str], None]]:
    """A function that shows its text beside a spinner on stderr until the next one, or the end."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = open_console(stderr=True)
    if not console.is_terminal:
        yield _log()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("opening files", total=None)
        with telling(lambda text: progress.update(task, description=text)):
            yield say


@contextmanager
def counting_progress(unit: str) -> Iterator[Callable[[str, int, int], None]]:
    """A function that takes (name, done, total) and moves the bar of that name on stderr, counted in ``unit``."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = open_console(stderr=True)
    if not console.is_terminal:
        say = _log()
        yield lambda name, done, total: say(f"{name}: {done} of {total} {unit}")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}", markup=False), *columns, console=console) as progress:
        tasks = {}

        def hear(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done, total=total)

        with telling(lambda text: None):
            yield hear


@contextmanager
def telling(hear: Callable[[str], object]) -> Iterator[None]:
    """Inside, :func:`say` goes to ``hear``, and what shows progress adds no line of its own."""
    _told.append(hear)
    try:
        yield
    finally:
        _told.pop()


def _log() -> Callable[[str], None]:
    """A function that prints a text on stderr where LOG_SECONDS have gone by since the last one, or the start."""
    start = last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LOG_SECONDS:
            last = now
            show(f"{now - start:.0f} s: {text}", is_result=False)

    return say
