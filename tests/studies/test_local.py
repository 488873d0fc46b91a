"""The local executor: everything is run once, nothing outlives it, and failures stay among themselves."""

import os
import signal
import subprocess
import sys
import threading
import time
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
from toolkit.studies.executors import Event, Job
from toolkit.studies.local import LocalExecutor

ONCE = ["waiting", "running", "finished"]


def test_every_job_runs_once_in_order(tmp_path: Path) -> None:
    jobs = [counted_job(tmp_path / f"job{i}") for i in range(4)]
    order: list[str] = []
    LocalExecutor(workers=1).run(jobs, lambda event: order.append(f"{event.name} {event.state}"))
    assert order == [f"job{i} waiting" for i in range(4)] + [
        f"job{i} {state}" for i in range(4) for state in ("running", "finished")
    ]
    assert [(num_started(job), num_completed(job)) for job in jobs] == [(1, 1)] * 4


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    jobs = [counted_job(tmp_path / name) for name in ("old", "new")]
    (tmp_path / "old" / "completed").write_text("x")
    events = run_all(LocalExecutor(workers=2), jobs)
    assert states(events["old"]) == ["waiting", "finished"]
    assert events["old"][-1] == Event("old", "finished", "was done already", 0.0)
    assert states(events["new"]) == ONCE
    assert (num_started(jobs[0]), num_started(jobs[1])) == (0, 1)
    again = run_all(LocalExecutor(workers=2), jobs)
    assert all(states(own) == ["waiting", "finished"] for own in again.values())
    assert num_started(jobs[1]) == 1


def test_a_job_done_while_it_waited_is_not_run(tmp_path: Path) -> None:
    first = counted_job(tmp_path / "first", last=f"open({str(tmp_path / 'second' / 'completed')!r}, 'w').write('x')")
    second = counted_job(tmp_path / "second")
    assert states(run_all(LocalExecutor(workers=1), [first, second])["second"]) == ["waiting", "finished"]
    assert num_started(second) == 0


def test_never_more_than_the_workers_at_a_time(tmp_path: Path) -> None:
    jobs = [counted_job(tmp_path / f"job{i}", seconds=0.2) for i in range(5)]
    running: set[str] = set()
    seen: list[int] = []

    def watch(event: Event) -> None:
        running.add(event.name) if event.state == "running" else running.discard(event.name)
        seen.append(len(running))

    LocalExecutor(workers=2).run(jobs, watch)
    assert max(seen) == 2
    assert all(num_completed(job) == 1 for job in jobs)


def test_a_failure_stops_nobody_and_is_not_tried_again(tmp_path: Path) -> None:
    last = {"bad": "print('error: no such task', file=sys.stderr); sys.exit(2)", "good": "pass", "idle": "sys.exit(0)"}
    jobs = [counted_job(tmp_path / name, last=text) for name, text in last.items()]
    events = run_all(LocalExecutor(workers=1), jobs)
    assert states(events["bad"]) == ["waiting", "running", "failed"]
    assert events["bad"][-1].detail == "exit code 2: no such task"
    assert events["idle"][-1].detail == "the command ended well, but the job is not done"
    assert states(events["good"]) == ONCE
    assert num_started(jobs[0]) == 1


def test_a_missing_program_is_one_plain_failure(tmp_path: Path) -> None:
    job = Job(name="a", command=("/no/such/program",), log=tmp_path / "log", is_done=lambda: False)
    assert run_all(LocalExecutor(), [job])["a"][-1].detail == (
        "exit code 127: cannot start /no/such/program: No such file or directory"
    )


@pytest.mark.parametrize(("retries", "state"), [(1, "finished"), (0, "failed")])
def test_a_killed_command_is_tried_again(tmp_path: Path, retries: int, state: str) -> None:
    job = counted_job(tmp_path / "a", last=KILL_FIRST)
    events = run_all(LocalExecutor(retries=retries), [job])["a"]
    assert states(events) == ["waiting", "running", *["retried", "running"] * retries, state]
    assert events[2].detail == "killed by SIGKILL"
    assert num_started(job) == 1 + retries


@pytest.mark.parametrize("generation", [0, 1])
def test_a_killed_keeper_takes_its_command_along_and_is_tried_again(tmp_path: Path, generation: int) -> None:
    job = counted_job(tmp_path / "a", hold=True)
    pids: list[int] = []

    def kill_keeper() -> None:
        pids.append(pid_of(job))
        psutil.Process(pids[0]).parents()[generation].kill()
        wait_until(lambda: not is_alive(pids[0]))
        release(job)

    thread = threading.Thread(target=kill_keeper)
    thread.start()
    events = run_all(LocalExecutor(), [job])["a"]
    thread.join()
    assert states(events) == ["waiting", "running", "retried", "running", "finished"]
    assert (num_started(job), num_completed(job)) == (2, 1)


def test_output_and_every_try_are_in_the_log(tmp_path: Path) -> None:
    job = counted_job(tmp_path / "deep" / "a", last="print('out'); print('err', file=sys.stderr)\n" + KILL_FIRST)
    run_all(LocalExecutor(), [job])
    lines = job.log.read_text().splitlines()
    assert [line[:10] for line in lines if line in ("out", "err") or line.startswith("===")] == [
        *("=== start ", "out", "err"),
        *("=== start ", "out", "err"),
    ]


@pytest.mark.parametrize(("set_by_user", "workers", "expected"), [(None, 1000, "1"), ("7", 2, "7")])
def test_threads_are_shared_among_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_user: str | None, workers: int, expected: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_by_user:
        monkeypatch.setenv("OMP_NUM_THREADS", set_by_user)
    job = counted_job(tmp_path / "a", last="print(os.environ['OMP_NUM_THREADS'])")
    run_all(LocalExecutor(workers=workers), [job])
    assert job.log.read_text().splitlines()[-1] == expected


def test_one_worker_may_use_every_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    job = counted_job(tmp_path / "a", last="print(os.environ['OMP_NUM_THREADS'], len(os.sched_getaffinity(0)))")
    run_all(LocalExecutor(workers=1), [job])
    threads, cores = job.log.read_text().splitlines()[-1].split()
    assert threads == cores


def test_what_another_process_runs_is_waited_for_not_run_twice(tmp_path: Path) -> None:
    """Two executors get the same jobs at the same time, as from two terminals."""
    jobs = [counted_job(tmp_path / f"job{i}", seconds=0.3) for i in range(3)]
    results: list[dict[str, list[Event]]] = []
    threads = [threading.Thread(target=lambda: results.append(run_all(LocalExecutor(workers=2), jobs))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(num_started(job), num_completed(job)) for job in jobs] == [(1, 1)] * 3
    assert all(events[-1].state == "finished" for result in results for events in result.values())


FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, file=open(folder + "/child", "w"), flush=True)
time.sleep(600)
"""
"""A launcher that starts a worker in a session of its own, as torch's elastic agent does."""

ORPHAN = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), file=open(folder + "/child", "w"), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(folder + "/child") or not open(folder + "/child").read().endswith("\\n"):
    time.sleep(0.02)
"""

PARENT = """
import sys
from pathlib import Path
from tests.studies.counted_jobs import counted_job
from tests.studies.test_local import FAMILY
from toolkit.studies.local import LocalExecutor
jobs = [counted_job(Path(sys.argv[1]) / name, last=FAMILY) for name in ("a", "b")]
try:
    LocalExecutor(workers=2).run(jobs, lambda event: None)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_command_outlives_the_executor(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", NOTHING_IGNORED + PARENT, str(tmp_path)])
    children = [tmp_path / name / "child" for name in ("a", "b")]
    wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in children))
    pids = [int(path.read_text()) for path in children] + [
        int((tmp_path / name / "started").read_text()) for name in ("a", "b")
    ]
    assert all(is_alive(pid) for pid in pids)
    os.kill(parent.pid, number)
    code = parent.wait(20)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    if number == signal.SIGKILL:
        wait_until(lambda: not any(is_alive(pid) for pid in pids), 10)
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
def test_what_a_command_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    """A background process whose parent is gone, in a session of its own, would still use the machine."""
    job = counted_job(tmp_path / "a", last=ORPHAN)
    assert run_all(LocalExecutor(), [job])["a"][-1].state == "finished"
    assert not is_alive(int((tmp_path / "a" / "child").read_text()))


def test_a_command_that_will_not_end_is_killed(tmp_path: Path) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open(folder + '/deaf', 'w'); time.sleep(600)"
    job = counted_job(tmp_path / "a", last=stubborn)
    others: list[int] = []

    class Enough(Exception): ...

    def stop(event: Event) -> None:
        if event.state == "running":
            wait_until((tmp_path / "a" / "deaf").exists)
            others.append(pid_of(job))
            raise Enough

    started = time.monotonic()
    with pytest.raises(Enough):
        LocalExecutor().run([job], stop)
    assert not is_alive(others[0])
    assert time.monotonic() - started < 30


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """nohup: a study goes on when the terminal is closed."""
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + PARENT
    parent = subprocess.Popen([sys.executable, "-c", code.replace("last=FAMILY", "seconds=1.0"), str(tmp_path)])
    wait_until((tmp_path / "b" / "started").exists)
    parent.send_signal(signal.SIGHUP)
    assert parent.wait(20) == 0
    assert [(tmp_path / name / "completed").read_text() for name in ("a", "b")] == ["x", "x"]
