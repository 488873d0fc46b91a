"""What is being computed, and how long it will take: a line that goes away on a terminal, lines in a log."""

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from toolkit.naming import visible

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

FIRST_SECONDS = 2.0
"""What takes longer says so, also where stderr is no terminal; what is quicker leaves nothing in a log."""
LOG_SECONDS = 15.0
"""Between the lines in a log, where nothing can be drawn over: what works for longer says again what it is doing."""

Hear = Callable[[str, int, int], object]
_hearing: list[Hear] = []
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


def say(text: str, done: int = 0, total: int = 0) -> None:
    """Show what is being computed, where progress is being shown; ``done`` of ``total`` parts tell the time left."""
    if _hearing:
        _hearing[-1](text, done, total)


def counted(items: Collection[T], text: str) -> Iterator[T]:
    """The items in turn; before each, and after the last, it is said how many are done."""
    for done, item in enumerate(items):
        say(text, done, len(items))
        yield item
    if len(items):
        say(text, len(items), len(items))


@contextmanager
def shows_progress(text: str) -> Iterator[None]:
    """Inside, or around a function as its decorator, show on stderr ``text`` and whatever is said by :func:`say`.

    On a terminal that is a line with a spinner, which goes away; in a log a line now and then, none within the first
    seconds. Inside of another that shows progress it adds to the line of that one.
    """
    is_first = os.environ.get("RANK", "0") == "0"  # of several processes, which share the terminal
    if _hearing or not is_first or sys.stderr is None:
        say(text)
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console, stages = open_console(stderr=True), Stages()
    if not console.is_terminal:
        stages.log(text, 0, 0)
        with telling(stages.log), repeating(stages):
            yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(text, total=None)
        with telling(lambda *said: progress.update(task, description=stages.describe(*said))):
            yield


@contextmanager
def telling(hear: Hear) -> Iterator[None]:
    """Inside, :func:`say` goes to ``hear``, and what shows progress adds no line of its own."""
    _hearing.append(hear)
    try:
        yield
    finally:
        _hearing.pop()


@contextmanager
def repeating(stages: "Stages") -> Iterator[None]:
    """Inside, the log has a line at least every LOG_SECONDS, also within one long step that says nothing."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(max(LOG_SECONDS / 30, 0.05)):
            stages.print_if_due()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Stages:
    """When each thing that is being done began, from which the time left follows."""

    def __init__(self) -> None:
        self.start = self.last = time.monotonic()
        self.wait = FIRST_SECONDS
        self.began: dict[str, tuple[int, float]] = {}
        """Text to how many parts were done when it was first said, and when that was."""
        self.described = ""

    def describe(self, text: str, done: int, total: int) -> str:
        """The text with how much is done and about how long the rest will take."""
        now = time.monotonic()
        done_at_first, began = self.began.get(text, (done, now))
        if done <= done_at_first:  # for the first time, or where the same begins again
            done_at_first, began = done, now
            self.began[text] = done, now
        if done_at_first < done < total:
            seconds_per_part = (now - began) / (done - done_at_first)
            return f"{text}: {done} of {total}, {_about(seconds_per_part * (total - done))} left"
        return f"{text}: {done} of {total} done" if total else text

    def log(self, text: str, done: int, total: int) -> None:
        """Print it on stderr where enough time has gone by since the last line, or the start."""
        self.described = self.describe(text, done, total)
        self.print_if_due()

    def print_if_due(self) -> None:
        """Print what was said last, as :meth:`log`."""
        now = time.monotonic()
        if now - self.last >= self.wait:
            self.last, self.wait = now, LOG_SECONDS
            show(f"{now - self.start:.0f} s: {self.described}", is_result=False)


def _about(seconds: float) -> str:
    return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:.0f} min"
