"""Jobs whose commands write down when they start and when they end, so that a test can count what was run."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from toolkit.studies.executors import Event, Executor, Job

SCRIPT = """
import os, signal, sys, time
folder, seconds, last = sys.argv[1], float(sys.argv[2]), sys.argv[3]
with open(folder + "/started", "a") as file:
    print(os.getpid(), file=file, flush=True)
while (os.path.exists(folder + "/hold") and seconds > -300) or seconds > 0:
    time.sleep(0.02)
    seconds -= 0.02
exec(last)
open(folder + "/completed", "a").write("x")
"""
KILL_FIRST = "if len(open(folder + '/started').readlines()) == 1: os.kill(os.getpid(), signal.SIGKILL)"
"""The last act of a command whose first try is killed."""


def counted_job(folder: Path, *, seconds: float = 0.0, last: str = "pass", hold: bool = False) -> Job:
    """A job that runs ``seconds`` long (and while ``hold`` is there), executes ``last`` and then is completed."""
    folder.mkdir(parents=True, exist_ok=True)
    if hold:
        (folder / "hold").touch()
    command = (sys.executable, "-S", "-c", SCRIPT, str(folder), str(seconds), last)
    completed = folder / "completed"
    return Job(name=folder.name, command=command, log=folder / "job.log", is_done=lambda: completed.exists())


def num_started(job: Job) -> int:
    path = job.log.parent / "started"
    return len(path.read_text().splitlines()) if path.exists() else 0


def num_completed(job: Job) -> int:
    path = job.log.parent / "completed"
    return len(path.read_text()) if path.exists() else 0


def pid_of(job: Job) -> int:
    """The process of the latest try, once it has written its number down."""
    path = job.log.parent / "started"
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text().splitlines()[-1])


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is over may stay in the table until somebody asks for its exit code."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def release(job: Job) -> None:
    (job.log.parent / "hold").unlink(missing_ok=True)


def wait_until(is_met: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_met():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def run_all(executor: Executor, jobs: Sequence[Job]) -> dict[str, list[Event]]:
    """Run the jobs; returns the events of each, in order."""
    events: dict[str, list[Event]] = {job.name: [] for job in jobs}
    executor.run(jobs, lambda event: events[event.name].append(event))
    return events


def states(events: Sequence[Event]) -> list[str]:
    return [event.state for event in events]


NOTHING_IGNORED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""
"""First lines of a process that will be signalled: the tests may themselves run in the background or under nohup, and
ignored signals are inherited."""
