"""What holds for executors before any of them runs: options, names, and what a failure is explained by."""

import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.studies.counted_jobs import counted_job, num_started, run_all, states
from toolkit.lookup import lookup
from toolkit.studies import executors
from toolkit.studies.attempts import SILENT, START, Outcome, count_starts, explain, start
from toolkit.studies.executors import EXECUTORS, Event, ExecutorOptions, Job, check_jobs
from toolkit.studies.local import LocalExecutor
from toolkit.studies.remote import Watch


def test_two_jobs_that_nobody_could_tell_apart_are_refused(tmp_path: Path) -> None:
    job = counted_job(tmp_path / "a")
    other = Job(name="b", command=job.command, log=tmp_path / "b" / ".." / "a" / "job.log", is_done=job.is_done)
    check_jobs([job])
    with pytest.raises(ValueError, match="two jobs are called 'a'"):
        check_jobs([job, job])
    with pytest.raises(ValueError, match="'a' and 'b' share the log"):
        check_jobs([job, other])
    with pytest.raises(ValueError, match="'c' has an empty command"):
        check_jobs([Job(name="c", command=(), log=tmp_path / "c", is_done=job.is_done)])


@pytest.mark.parametrize(
    ("field", "value"),
    [("workers", 0), ("retries", -1), ("cpus_per_run", 0), ("gpus_per_run", -1.0), ("timeout_minutes", 0)],
)
def test_options_that_cannot_work_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"--{field.replace('_', '-')} must be at least"):
        ExecutorOptions(**{field: value})  # type: ignore[arg-type]


def test_unknown_executor_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'local'"):
        lookup(EXECUTORS, "locl", "executor")


@pytest.mark.parametrize(("name", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, name: str, module: str) -> None:
    monkeypatch.setattr(executors, "find_spec", lambda wanted: None if wanted == module else find_spec(wanted))
    with pytest.raises(ValueError, match=rf"pip install 'embedding-drift-toolkit\[{name}\]'"):
        EXECUTORS[name](ExecutorOptions())


def test_importing_executors_brings_no_extra() -> None:
    modules = "toolkit.studies.executors, toolkit.studies.local"
    code = f"import sys, {modules}; print({{'ray', 'submitit', 'torch'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_a_silent_end_is_said_to_be_taken_as_killed() -> None:
    """A program that gives up without a word is tried again like a killed one: its event says why."""
    detail = explain(1, "epoch 1", 1.0).detail
    assert detail == "exit code 1 without an error line, taken as killed: worth another try"


@pytest.mark.parametrize(
    ("code", "output", "is_killed", "detail"),
    [
        (2, "warning\nerror: no file at x\n", False, "exit code 2: no file at x"),
        (-9, "", True, "killed by SIGKILL"),
        (137, "", True, "killed by SIGKILL"),
        (143, "", True, "killed by SIGTERM"),
        (255, "all is lost\n", False, "exit code 255: all is lost"),
        (0, "fine", False, "the command ended well, but the job is not done"),
        (3, "", False, "exit code 3: no output"),
        (1, "epoch 1", True, SILENT),
        (1, "step 1\rstep 2\rKeyError: 'x'\n  more", False, "exit code 1: KeyError: 'x'"),
        (1, "CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>.", True, "killed by SIGKILL"),
        (1, "error_file: <N/A>\ntraceback : Signal 9 (SIGKILL) received by PID 17", True, "killed by SIGKILL"),
        (
            1,
            "error: no such task\nsubprocess.CalledProcessError: Command 'x' returned non-zero exit status 2.",
            False,
            "exit code 1: no such task",
        ),
        (
            1,
            "torch.OutOfMemoryError: CUDA\nCalledProcessError: Command 'x' returned non-zero exit status 1.",
            False,
            "exit code 1: torch.OutOfMemoryError: CUDA",
        ),
    ],
)
def test_failures_are_explained(code: int, output: str, is_killed: bool, detail: str) -> None:
    outcome = explain(code, output, 1.5)
    assert (outcome.is_finished, outcome.is_killed, outcome.detail, outcome.seconds) == (False, is_killed, detail, 1.5)


def test_what_another_finishes_before_the_lock_is_got_is_not_run(tmp_path: Path) -> None:
    """The answer changes between the first question and the lock: as late as it can."""
    job = counted_job(tmp_path / "a")
    answers = [False, True]
    outcome = start(replace(job, is_done=lambda: answers.pop(0)), {})
    assert isinstance(outcome, Outcome)
    assert outcome.is_finished
    assert num_started(job) == 0


def test_starts_are_counted_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert count_starts(log, 0) == 0
    log.write_text(f"{START}1\noutput\n")
    size = log.stat().st_size
    log.write_text(log.read_text() + f"{START}2\n")
    assert (count_starts(log, 0), count_starts(log, size)) == (2, 1)


def test_jobs_that_run_elsewhere_are_told_by_their_logs_and_their_work(tmp_path: Path) -> None:
    """A process that dies after its work is done has done it."""
    lost, done = counted_job(tmp_path / "lost"), counted_job(tmp_path / "done")
    lost.log.write_text(f"{START}of an earlier study\n")
    events: list[Event] = []
    watch = Watch([lost, done], events.append)
    for job in (lost, done, lost):
        with job.log.open("a") as log:
            log.write(f"{START}now\n")
        watch.look([lost, done])
    (tmp_path / "done" / "completed").write_text("x")
    for job in (lost, done):
        watch.end(job, Outcome(False, True, "its worker was lost", 1.0))
    told = {name: states([event for event in events if event.name == name]) for name in ("lost", "done")}
    assert told["lost"] == ["waiting", "running", "retried", "running", "failed"]
    assert told["done"] == ["waiting", "running", "finished"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "killed"),
    [
        ((), "killed by SIGKILL"),
        (("--quiet",), SILENT),
    ],
)
def test_a_launcher_hides_neither_the_signal_nor_the_error_of_its_program(
    tmp_path: Path, flags: tuple[str, ...], killed: str
) -> None:
    """What accelerate launch really prints, against what explain() reads from it."""
    script = tmp_path / "script.py"
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu", *flags, str(script))
    details = {}
    for name, text in {
        "killed": f"import os; os.kill(os.getpid(), {signal.SIGKILL})",
        "mistaken": "import sys; print('error: no such task', file=sys.stderr); sys.exit(2)",
        "broken": "raise KeyError('x')",
    }.items():
        script.write_text(text)
        job = Job(name=name, command=launch, log=tmp_path / name, is_done=lambda: False)
        details[name] = run_all(LocalExecutor(workers=1), [job])[name]
    assert states(details["killed"]) == ["waiting", "running", "retried", "running", "failed"]
    assert details["killed"][-1].detail == killed
    assert states(details["mistaken"]) == states(details["broken"]) == ["waiting", "running", "failed"]
    assert details["mistaken"][-1].detail == "exit code 1: no such task"
    assert details["broken"][-1].detail == "exit code 1: KeyError: 'x'"
