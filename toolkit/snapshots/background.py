"""Files of a run in, written one after the other while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """One thread that writes what it is given, in order; at most one thing waits.

    Writing waits for the disk more than it computes, so that it costs training little. What a thing to write reads
    must not change any more. Its error comes at the next call of anything here.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run-writer")
        self._last: Future[object] | None = None

    def start(self, write: Callable[[], object]) -> None:
        """Have ``write`` called once everything before it is written: until then this waits."""
        self.wait()
        self._last = self._pool.submit(write)

    def check(self) -> None:
        """Raise the error of what has been written, if any; does not wait."""
        if self._last is not None and self._last.done():
            self.wait()

    def wait(self) -> None:
        """Until everything is written; raises its error."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """Until everything is written, without its error: for the way out after another one."""
        self._pool.shutdown()
