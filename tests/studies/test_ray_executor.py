"""The Ray executor on a real local cluster: workers and commands are killed, nothing is lost and nothing run twice."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.studies.counted_jobs import (
    KILL_FIRST,
    NOTHING_IGNORED,
    counted_job,
    is_alive,
    num_completed,
    num_started,
    pid_of,
    release,
    run_all,
    states,
    wait_until,
)
from toolkit.studies.executors import EXECUTORS, ExecutorOptions, Job

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

ONCE = ["waiting", "running", "finished"]


def worker_of(job: Job) -> psutil.Process:
    """The Ray worker process that runs a job: command, two keepers, worker."""
    worker = psutil.Process(pid_of(job)).parents()[2]
    assert "ray::" in worker.name()
    return worker


def test_two_workers_one_killed_in_mid_run(tmp_path: Path) -> None:
    """The headline: six jobs on two workers; one worker dies under its job, and each job is completed exactly once."""
    held = counted_job(tmp_path / "held", hold=True)
    others = [counted_job(tmp_path / f"job{i}", seconds=0.3) for i in range(3)]
    done = counted_job(tmp_path / "done")
    (tmp_path / "done" / "completed").write_text("x")
    bad = counted_job(tmp_path / "bad", last="print('error: no such task', file=sys.stderr)\nsys.exit(2)")
    shot = counted_job(tmp_path / "shot", last=KILL_FIRST)
    commands: list[int] = []

    def kill() -> None:
        commands.append(pid_of(held))
        worker_of(held).kill()
        wait_until(lambda: num_started(held) == 2)
        commands.append(int(is_alive(commands[0])))
        release(held)

    thread = threading.Thread(target=kill)
    thread.start()
    events = run_all(EXECUTORS["ray"](ExecutorOptions(workers=2)), [held, *others, done, bad, shot])
    thread.join()

    assert states(events["held"]) == ["waiting", "running", "retried", "running", "finished"]
    assert (num_started(held), num_completed(held)) == (2, 1)
    assert commands[1] == 0, "the command of the dead worker was still there when the next try began"
    for job in others:
        assert states(events[job.name]) == ONCE
        assert (num_started(job), num_completed(job)) == (1, 1)
    assert states(events["done"]) == ["waiting", "finished"]
    assert num_started(done) == 0
    assert states(events["bad"]) == ["waiting", "running", "failed"]
    assert events["bad"][-1].detail == "exit code 2: no such task"
    assert num_started(bad) == 1
    assert states(events["shot"]) == ["waiting", "running", "retried", "running", "finished"]


@pytest.mark.slow
def test_a_worker_that_always_dies_fails_its_job_alone(tmp_path: Path) -> None:
    held = counted_job(tmp_path / "held", hold=True)
    good = counted_job(tmp_path / "good")

    def kill() -> None:
        worker_of(held).kill()

    thread = threading.Thread(target=kill)
    thread.start()
    events = run_all(EXECUTORS["ray"](ExecutorOptions(workers=2, retries=0)), [held, good])
    thread.join()
    assert states(events["held"]) == ["waiting", "running", "failed"]
    assert events["held"][-1].detail.startswith("its worker was lost")
    assert states(events["good"]) == ONCE


@pytest.mark.slow
def test_more_gpus_than_there_are_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--gpus-per-run 64: Ray finds \d+ GPUs"):
        EXECUTORS["ray"](ExecutorOptions(gpus_per_run=64)).run([counted_job(tmp_path / "a")], lambda event: None)


def test_nothing_to_do_starts_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("started a cluster for nothing"))
    job = counted_job(tmp_path / "a")
    (tmp_path / "a" / "completed").write_text("x")
    assert states(run_all(EXECUTORS["ray"](ExecutorOptions()), [job])["a"]) == ["waiting", "finished"]


PARENT = """
import sys
from pathlib import Path
from tests.studies.counted_jobs import counted_job
from toolkit.studies.executors import EXECUTORS, ExecutorOptions
jobs = [counted_job(Path(sys.argv[1]) / name, hold=True) for name in ("a", "b")]
try:
    EXECUTORS["ray"](ExecutorOptions(workers=2)).run(jobs, lambda event: None)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_no_command_outlives_the_driver(tmp_path: Path, name: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", NOTHING_IGNORED + PARENT, str(tmp_path)])
    files = [tmp_path / job / "started" for job in ("a", "b")]
    wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in files))
    pids = [int(path.read_text()) for path in files]
    parent.send_signal(getattr(signal, name))
    assert parent.wait(30) == (-signal.SIGKILL if name == "SIGKILL" else 130)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), 30 if name == "SIGKILL" else 1)
