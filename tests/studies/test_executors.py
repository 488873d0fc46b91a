"""The laws of executors: every job is run once, N at a time, failures stay alone, and nothing is lost or doubled."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.refusals import check_refused
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
from toolkit.naming import lookup
from toolkit.studies import runner
from toolkit.studies.executors import Event, Executor, ExecutorOptions, Job
from toolkit.studies.runner import EXECUTORS

ONCE = ["waiting", "running", "finished"]
NEEDED = {"slurm": "submitit"}

Build = Callable[..., Executor]


def build(name: str, workers: int = 1, retries: int = 1) -> Executor:
    """An executor on this machine."""
    return EXECUTORS[name](ExecutorOptions(workers=workers, retries=retries, cluster="local"))


@pytest.fixture(params=["local", "slurm"])
def name(request: pytest.FixtureRequest) -> str:
    """Every executor that is installed."""
    name = str(request.param)
    if name in NEEDED:
        pytest.importorskip(NEEDED[name], reason=f"the extra {name!r} is not installed")
    return name


def local(workers: int = 1, retries: int = 1) -> Executor:
    return build("local", workers, retries)


BAD = "print('epoch 1')\nprint('error: no such task', file=sys.stderr)\nsys.exit(2)"


def test_each_job_runs_once_and_failures_stay_alone(name: str, tmp_path: Path) -> None:
    """Two at a time: good ones, one done before, one with a mistake, one that is killed and tried again."""
    last = {"a": "pass", "bad": BAD, "b": "pass", "shot": KILL_FIRST, "idle": "sys.exit(0)", "c": "pass"}
    # "a" runs until a second one does: on a busy machine short ones may never meet.
    jobs = {key: counted_job(tmp_path / key, last=text, seconds=0.1, hold=key == "a") for key, text in last.items()}
    done = counted_job(tmp_path / "done")
    (tmp_path / "done" / "completed").write_text("x")
    running, most = set[str](), 0
    events: dict[str, list[Event]] = {key: [] for key in (*jobs, "done")}

    def watch(event: Event) -> None:
        nonlocal most
        events[event.name].append(event)
        running.add(event.name) if event.state == "running" else running.discard(event.name)
        most = max(most, len(running))
        if most == 2:
            release(jobs["a"])

    executor = build(name, workers=2)
    executor.run([*jobs.values(), done], watch)
    assert most == 2
    failed = ["waiting", "running", "failed"]
    expected = {
        **dict.fromkeys(("a", "b", "c"), (ONCE, 1, 1)),
        **dict.fromkeys(("bad", "idle"), (failed, 1, 0)),  # an error of its own would come again
        "shot": (["waiting", "running", "retried", "running", "finished"], 2, 1),
    }
    assert {key: (states(events[key]), num_started(job), num_completed(job)) for key, job in jobs.items()} == expected
    assert (states(events["done"]), num_started(done)) == (["waiting", "finished"], 0)
    assert events["bad"][-1].detail == "exit code 2: error: no such task", "named with the end of its log"
    assert all(states(own) == ["waiting", "finished"] for own in run_all(executor, [jobs["a"], done]).values()), (
        "and starts nothing"
    )
    assert num_started(jobs["a"]) == 1


ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
PARENT = """
import sys
from pathlib import Path
from tests.studies.counted_jobs import counted_job
from tests.studies.test_executors import build
jobs = [counted_job(Path(sys.argv[2]) / name, hold=True) for name in ("a", "b")]
try:
    build(sys.argv[1], workers=2).run(jobs, lambda event: None)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("name", "number"),
    [("local", number) for number in ENDS] + [pytest.param("slurm", number, marks=pytest.mark.slow) for number in ENDS],
    indirect=["name"],
)
def test_what_is_killed_and_started_again_loses_and_doubles_nothing(
    name: str, tmp_path: Path, number: signal.Signals
) -> None:
    """Its commands end with it, SIGKILL to a cluster's client apart: those go on, and are waited for."""
    parent = subprocess.Popen([sys.executable, "-c", NOTHING_IGNORED + PARENT, name, str(tmp_path)])
    paths = [tmp_path / key / "started" for key in ("a", "b")]
    wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in paths))
    pids = [int(path.read_text()) for path in paths]
    parent.send_signal(number)
    assert parent.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    goes_on = name == "slurm" and number == signal.SIGKILL
    if not goes_on:
        wait_until(lambda: not any(is_alive(pid) for pid in pids), 30)
    jobs = [counted_job(tmp_path / key) for key in ("a", "b")]
    threading.Timer(1.0 if goes_on else 0.0, lambda: [release(job) for job in jobs]).start()
    events = run_all(build(name, workers=2), jobs)
    assert [own[-1].state for own in events.values()] == ["finished"] * 2
    assert [num_completed(job) for job in jobs] == [1, 1]
    assert [num_started(job) for job in jobs] == ([1, 1] if goes_on else [2, 2])


def test_two_at_work_on_the_same_jobs_run_none_twice(tmp_path: Path) -> None:
    """As from two terminals."""
    jobs = [counted_job(tmp_path / f"job{i}", seconds=0.2) for i in range(3)]
    results: list[dict[str, list[Event]]] = []
    threads = [threading.Thread(target=lambda: results.append(run_all(local(2), jobs))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(num_started(job), num_completed(job)) for job in jobs] == [(1, 1)] * 3
    assert all(events[-1].state == "finished" for result in results for events in result.values())


def test_jobs_are_begun_in_order_and_asked_whether_they_are_done_only_then(tmp_path: Path) -> None:
    first = counted_job(tmp_path / "first", last=f"open({str(tmp_path / 'third' / 'completed')!r}, 'w').write('x')")
    jobs = [first, *(counted_job(tmp_path / key) for key in ("second", "third"))]
    order: list[str] = []
    local().run(jobs, lambda event: order.append(f"{event.name} {event.state}"))
    assert order[:3] == ["first waiting", "second waiting", "third waiting"]
    assert order[3:] == ["first running", "first finished", "second running", "second finished", "third finished"]
    assert num_started(jobs[2]) == 0


def test_a_killed_command_fails_when_its_retries_are_spent(tmp_path: Path) -> None:
    job = counted_job(tmp_path / "a", last="os.kill(os.getpid(), signal.SIGKILL)")
    events = run_all(local(retries=2), [job])["a"]
    assert states(events) == ["waiting", *["running", "retried"] * 2, "running", "failed"]
    assert events[-1].detail == "killed by SIGKILL"
    assert num_started(job) == 3


def test_output_and_every_try_are_in_the_log(tmp_path: Path) -> None:
    job = counted_job(tmp_path / "deep" / "a", last="print('out'); print('err', file=sys.stderr)\n" + KILL_FIRST)
    run_all(local(), [job])
    assert [line[:10] for line in job.log.read_text().splitlines()] == ["=== start ", "out", "err"] * 2


def test_a_missing_program_is_one_plain_failure(tmp_path: Path) -> None:
    job = Job(name="a", command=("/no/such/program",), log=tmp_path / "log", is_done=lambda: False)
    assert run_all(local(), [job])["a"][-1].detail == "cannot start /no/such/program: No such file or directory"


@pytest.mark.parametrize(("set_by_user", "workers", "expected"), [(None, 1000, "1"), (None, 1, "all"), ("7", 2, "7")])
def test_threads_are_shared_among_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_user: str | None, workers: int, expected: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_by_user:
        monkeypatch.setenv("OMP_NUM_THREADS", set_by_user)
    job = counted_job(tmp_path / "a", last="print(os.environ['OMP_NUM_THREADS'])")
    run_all(local(workers), [job])
    cores = len(os.sched_getaffinity(0))
    assert job.log.read_text().splitlines()[-1] == (str(cores) if expected == "all" else expected)


LAUNCHER = "import subprocess; subprocess.run([sys.executable, '-S', '-c', PROGRAM, folder])"
PROGRAM = """
import os, sys, time
from toolkit.studies.executors import end_with_parent
end_with_parent()
print(os.getpid(), file=open(sys.argv[1] + "/child", "w"), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_program_of_a_launcher_ends_with_the_study(tmp_path: Path, number: signal.Signals) -> None:
    """The chain is study, launcher, program; the program asks to end with its parent, as finetune.py does."""
    last = LAUNCHER.replace("PROGRAM", repr(PROGRAM)).replace("'-S', ", "")
    parent = subprocess.Popen(
        [sys.executable, "-c", NOTHING_IGNORED + PARENT.replace("hold=True", f"last={last!r}"), "local", str(tmp_path)]
    )
    paths = [tmp_path / key / "child" for key in ("a", "b")]
    wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in paths))
    pids = [int(path.read_text()) for path in paths]
    parent.send_signal(number)
    parent.wait(30)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), 10)


def test_what_a_command_leaves_behind_in_its_group_is_ended_with_it(tmp_path: Path) -> None:
    orphan = (
        "import subprocess\nchild = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, file=open(folder + '/child', 'w'), flush=True)"
    )
    assert run_all(local(), [counted_job(tmp_path / "a", last=orphan)])["a"][-1].state == "finished"
    wait_until(lambda: not is_alive(int((tmp_path / "a" / "child").read_text())), 5)


def test_a_command_that_will_not_end_is_killed(tmp_path: Path) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open(folder + '/deaf', 'w'); time.sleep(600)"
    job = counted_job(tmp_path / "a", last=stubborn)

    class Enough(Exception): ...

    def stop(event: Event) -> None:
        if event.state == "running":
            wait_until((tmp_path / "a" / "deaf").exists)
            raise Enough

    started = time.monotonic()
    with pytest.raises(Enough):
        local().run([job], stop)
    assert not is_alive(pid_of(job))
    assert time.monotonic() - started < 30


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """nohup: a study goes on when the terminal is closed."""
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + PARENT.replace("hold=True", "seconds=1.0")
    parent = subprocess.Popen([sys.executable, "-c", code, "local", str(tmp_path)])
    wait_until((tmp_path / "b" / "started").exists)
    parent.send_signal(signal.SIGHUP)
    assert parent.wait(20) == 0
    assert [(tmp_path / key / "completed").read_text() for key in ("a", "b")] == ["x", "x"]


@pytest.mark.slow
def test_a_launcher_hides_neither_a_signal_nor_an_error_of_its_program(tmp_path: Path) -> None:
    """Accelerate's exit code is 1 whatever becomes of the program."""
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu", "--quiet")
    events = {}
    for key, text in {
        "killed": f"import os; print('epoch 1'); os.kill(os.getpid(), {signal.SIGKILL})",
        "mistaken": "import sys; print('error: no such task', file=sys.stderr); sys.exit(2)",
        "broken": "raise KeyError('x')",
    }.items():
        script = tmp_path / f"{key}.py"
        script.write_text(text)
        events[key] = run_all(
            local(), [Job(name=key, command=(*launch, str(script)), log=tmp_path / key, is_done=lambda: False)]
        )[key]
    assert states(events["killed"]) == ["waiting", "running", "retried", "running", "failed"]
    assert states(events["mistaken"]) == states(events["broken"]) == ["waiting", "running", "failed"]
    details = {key: own[-1].detail for key, own in events.items()}
    assert details["mistaken"] == "exit code 1: error: no such task"
    assert details["broken"] == "exit code 1: KeyError: 'x'"


@pytest.mark.parametrize(
    ("field", "value"),
    [("workers", 0), ("retries", -1), ("cpus_per_run", 0), ("gpus_per_run", -1), ("timeout_minutes", 0)],
)
def test_options_that_cannot_work_are_refused(field: str, value: float) -> None:
    check_refused(f"--{field.replace('_', '-')} must be at least", ExecutorOptions, **{field: value})


def test_unknown_executor_is_answered_with_the_nearest() -> None:
    check_refused("did you mean 'local'", lookup, EXECUTORS, "locl", "executor")


@pytest.mark.parametrize(("extra", "module"), NEEDED.items())
def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, extra: str, module: str) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda wanted: None if wanted == module else find_spec(wanted))
    check_refused(rf"pip install 'embedding-drift-toolkit\[{extra}\]'", EXECUTORS[extra], ExecutorOptions())


def test_importing_executors_brings_no_extra() -> None:
    code = "import sys, toolkit.studies.runner; print({'submitit', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
