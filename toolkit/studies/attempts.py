"""A job in, one try at its command and the outcome of it out: what the executors have in common.

A try holds an exclusive lock (flock) on the job's log. The command inherits it, so the lock lasts until the last
process of the try is gone, whatever becomes of the executor: a second try, of anybody, waits and then asks again.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from toolkit.snapshots.lock import try_lock
from toolkit.studies import keeper
from toolkit.studies.executors import Job

START = "=== start "
"""Begins the line that every try leaves in the log before the command's own output."""
SILENT = "exit code 1 without an error line, taken as killed: worth another try"
"""What is said of the ambiguous case: a launcher whose program was killed, or a program that gave up without a word."""
POLL_SECONDS = 0.1
STOP_SECONDS = 3 * keeper.GRACE_SECONDS
_TAIL_BYTES = 20_000
_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")
_LAUNCHER_ERROR = re.compile(r"[\w.]*(CalledProcessError|ChildFailedError)\b")


@dataclass(frozen=True)
class Outcome:
    """How one try ended."""

    is_finished: bool
    is_killed: bool
    """Ended by a signal: worth another try, where an error of the program's own would only come again."""
    detail: str
    seconds: float


class Attempt:
    """A running try. Exactly one of its outcome or ``stop`` ends it."""

    def __init__(self, job: Job, log: IO[bytes], environment: Mapping[str, str]) -> None:
        self.job = job
        self.offset = log.tell()
        log.write(f"{START}{time.strftime('%Y-%m-%d %H:%M:%S')}: {job.name}\n".encode())
        log.flush()
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-P", keeper.__file__, *job.command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment, **job.environment},
            start_new_session=True,  # Ctrl-C reaches the executor alone, which ends its jobs in order
        )

    @property
    def pid(self) -> int:
        """The keeper's, which is also the number of its process group."""
        return self._process.pid

    def poll(self) -> Outcome | None:
        """The outcome, or None while the command runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._close()
        seconds = time.monotonic() - self.started
        if self.job.is_done():
            return Outcome(True, False, "", seconds)
        with self.job.log.open("rb") as log:
            log.seek(max(self.offset, self.job.log.stat().st_size - _TAIL_BYTES))
            return explain(code, log.read().decode(errors="replace"), seconds)

    def release(self) -> None:
        """Let the keeper end the command, and do not wait for it."""
        self._close()

    def stop(self) -> None:
        """End the command and everything below it; returns when they are gone."""
        self._close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def start(job: Job, environment: Mapping[str, str]) -> Attempt | Outcome | None:
    """Begin a try: the running attempt, the outcome of a job done already, or None while another try holds the log."""
    if job.is_done():
        return Outcome(True, False, "was done already", 0.0)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        if not try_lock(log):
            return None
        if job.is_done():  # by the one who held the lock until now
            return Outcome(True, False, "was done already", 0.0)
        return Attempt(job, log, environment)


def check_log(log: Path) -> None:
    """ValueError where a log cannot be added to: something lies there that no try has begun."""
    if log.is_symlink() or (log.exists() and not log.is_file()):
        raise ValueError(f"{log} is in the way of a run's log: move it away")
    if log.exists():
        with log.open("rb") as file:
            begun = file.read(len(START))
        if begun and begun != START.encode():
            raise ValueError(f"{log} is no log of a run, which begins with {START.strip()!r}: move it away")


def run_once(job: Job, environment: Mapping[str, str]) -> Outcome:
    """One whole try, for executors that give every job a process of its own; waits while another try holds the log."""
    while (attempt := start(job, environment)) is None:
        time.sleep(POLL_SECONDS)
    if isinstance(attempt, Outcome):
        return attempt
    try:
        while (outcome := attempt.poll()) is None:
            time.sleep(POLL_SECONDS)
        return outcome
    finally:
        attempt.stop()


def share_threads(workers: int) -> dict[str, str]:
    """The CPU threads of each of several workers; nothing where the user has set them.

    Workers that each take all cores wait for one another, which slows training many times over.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, num_cores // workers))}


def explain(code: int, output: str, seconds: float) -> Outcome:
    """What the keeper's exit code and the command's output say of a job that is not done.

    A launcher exits with 1 whatever became of its program. Its own error names the signal; with accelerate's --quiet
    there is none, so that 1 without any error is taken for a killed program: the others explain themselves.
    """
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip() and not line.startswith(START)]
    number = -code if code < 0 else code - keeper.KILLED
    if number in set(signal.valid_signals()):
        return Outcome(False, True, f"killed by {signal.Signals(number).name}", seconds)
    inner = re.search(r"died with <Signals\.(\w+)|Signal \d+ \((SIG\w+)\) received by PID", "\n".join(lines))
    if code == 1 and inner:
        return Outcome(False, True, f"killed by {inner[1] or inner[2]}", seconds)
    if code == 0:
        return Outcome(False, False, "the command ended well, but the job is not done", seconds)
    errors = [line for line in lines if line.startswith("error: ")] or [line for line in lines if _ERROR.match(line)]
    if code == 1 and not errors:
        return Outcome(False, True, SILENT, seconds)
    line = next(
        (line for line in reversed(errors) if not _LAUNCHER_ERROR.match(line)), (errors or lines or ["no output"])[-1]
    )
    return Outcome(False, False, f"exit code {code}: {line.removeprefix('error: ')}", seconds)


def is_held(log: Path) -> bool:
    """Whether any process of a try is alive."""
    if not log.is_file():
        return False
    with log.open("rb") as file:
        return not try_lock(file)


def await_end(jobs: Iterable[Job]) -> None:
    """Wait until no try of the jobs is alive, at most as long as their keepers may take."""
    deadline = time.monotonic() + STOP_SECONDS
    for job in jobs:
        while is_held(job.log) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def count_starts(log: Path, offset: int) -> int:
    """How many tries a log has seen behind an offset in bytes; 0 where there is no log yet."""
    if not log.is_file():
        return 0
    with log.open("rb") as file:
        file.seek(offset)
        return sum(line.startswith(START.encode()) for line in file)
