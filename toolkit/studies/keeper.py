"""A command in, its exit code out, and nothing of it left behind: two small processes that stand above every command.

The outer one ends the command, and all that the command started, when its own standard input is closed. That input is a
pipe that the executor holds, and the system closes the pipes of whoever dies: so no command outlives its executor, not
even one that was killed by SIGKILL. The inner one watches the outer in the same way, since engines kill what their dead
workers had started, but only the first generation of it. A signal to the process group would not do for either:
launchers put their workers into groups of their own.

Run as a file, ``python -P keeper.py COMMAND...``; imports nothing of the toolkit, so that it starts at once.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import psutil  # type: ignore[import-untyped]

CANNOT_START = 127
"""Exit code when there is no such program, as a shell has it."""
KILLED = 128
"""A command that signal N ended exits with this plus N, as a shell has it."""
POLL_SECONDS = 0.1
GRACE_SECONDS = 3.0
"""Between asking processes to end and killing them."""
PR_SET_CHILD_SUBREAPER = 36
"""From Linux's <linux/prctl.h>."""


def keep(command: Sequence[str]) -> int:
    """Run the command to its end, or end it when standard input closes; returns its exit code, in both processes."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(KILLED + number))
    reader, writer = os.pipe()
    inner = os.fork()
    adopt_orphans()
    if inner:
        os.close(reader)
        return guard(lambda: _poll(inner), sys.stdin.fileno())
    os.close(writer)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"error: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_START
    return guard(process.poll, reader)


def _poll(pid: int) -> int | None:
    """As Popen.poll, for a fork."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def guard(poll: Callable[[], int | None], lifeline: int) -> int:
    """Wait for an exit code or for the end of a pipe; then end whatever is left below this process."""
    try:
        while (code := poll()) is None:
            readable, _, _ = select.select([lifeline], [], [], POLL_SECONDS)
            if readable and not os.read(lifeline, 1):
                return KILLED + signal.SIGTERM
        return code if code >= 0 else KILLED - code
    finally:
        end_descendants()


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent dies, so that they stay among the descendants (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Ask every process below this one to end, kill what is left after the grace time, until there is none."""
    deadline = time.monotonic() + GRACE_SECONDS
    asked: set[int] = set()
    while descendants := psutil.Process().children(recursive=True):
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                if time.monotonic() > deadline:
                    process.kill()
                elif process.pid not in asked:
                    process.terminate()
        asked |= {process.pid for process in descendants}
        psutil.wait_procs(descendants, timeout=POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
