"""What is being computed in, a line on the terminal out that goes away; nothing where there is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def reporting_progress() -> Iterator[Callable[[str], None]]:
    """A function that shows its text beside a spinner on stderr until the next one, or the end."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # rich would leave an empty line behind
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("opening runs", total=None)
        yield lambda text: progress.update(task, description=text)
