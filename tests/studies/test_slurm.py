"""The Slurm executor through submitit's local and debug clusters, and through its Slurm plugin on stand-in commands."""

import os
import signal
import stat
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.refusals import check_refused
from tests.studies.counted_jobs import (
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
from toolkit.studies.executors import Event, ExecutorOptions, Job
from toolkit.studies.runner import EXECUTORS

pytest.importorskip("submitit", reason="the extra 'slurm' is not installed")

ONCE = ["waiting", "running", "finished"]
LOCAL = ExecutorOptions(cluster="local", workers=4)


def test_the_debug_cluster_runs_everything_in_this_process(tmp_path: Path) -> None:
    events = run_all(
        EXECUTORS["slurm"](ExecutorOptions(cluster="debug")), [counted_job(tmp_path / name) for name in ("a", "b")]
    )
    assert [states(own) for own in events.values()] == [ONCE] * 2


def run_beside(job: Job, act: object) -> list[Event]:
    """Run one job while ``act`` is done to its first try."""
    assert callable(act)
    thread = threading.Thread(target=act)
    thread.start()
    events = run_all(EXECUTORS["slurm"](LOCAL), [job])[job.name]
    thread.join()
    return events


def task_of(job: Job) -> psutil.Process:
    """Submitit's process of a job: the parent of its command."""
    task = psutil.Process(pid_of(job)).parent()
    assert "submitit" in " ".join(task.cmdline())
    return task


def test_a_preempted_job_is_queued_again(tmp_path: Path) -> None:
    job = counted_job(tmp_path / "a", hold=True)
    seen: list[bool] = []

    def preempt() -> None:
        first = pid_of(job)
        task_of(job).send_signal(signal.SIGUSR2)
        wait_until(lambda: num_started(job) == 2)
        seen.append(is_alive(first))
        release(job)

    assert states(run_beside(job, preempt)) == ["waiting", "running", "retried", "running", "finished"]
    assert (num_started(job), num_completed(job), seen) == (2, 1, [False])


@pytest.mark.slow  # submitit waits a quarter of a minute for the result of a dead job
def test_a_killed_task_takes_its_command_along_and_fails_alone(tmp_path: Path) -> None:
    job = counted_job(tmp_path / "a", hold=True)
    pids: list[int] = []

    def kill() -> None:
        pids.append(pid_of(job))
        task_of(job).kill()
        wait_until(lambda: not is_alive(pids[0]))

    events = run_beside(job, kill)
    assert states(events) == ["waiting", "running", "failed"]
    assert events[-1].detail.startswith("its process was lost")


SBATCH = """#!{python}
import os, re, subprocess, sys
text = open(sys.argv[1]).read()
open("{folder}/submitted.sh", "w").write(text)
array = re.search(r"--array='?0-(\\d+)", text)
for index in range(int(array[1]) + 1 if array else 1):
    ids = dict(SLURM_ARRAY_JOB_ID="77", SLURM_ARRAY_TASK_ID=str(index)) if array else dict()
    common = dict(SLURM_JOB_ID=str(77 + index), SLURM_NTASKS="1", SLURM_PROCID="0", SLURM_LOCALID="0")
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen(["bash", sys.argv[1]], env=os.environ | common | ids, **nowhere)
print("Submitted batch job 77")
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --unbuffered ]] && shift || shift 2; done
exec "$@" > /dev/null 2>&1
"""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH with commands that start the tasks of an array at once, on this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    texts = {"sbatch": SBATCH.format(python=sys.executable, folder=tmp_path), "srun": SRUN}
    texts |= dict.fromkeys(("sacct", "scancel", "scontrol"), "#!/bin/bash\necho 'JobID|State|NodeList'\n")
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_the_slurm_plugin_gets_one_array_with_our_limits(tmp_path: Path, stand_ins: Path) -> None:
    jobs = [counted_job(tmp_path / f"job{i}") for i in range(3)]
    options = ExecutorOptions(workers=2, cpus_per_run=3, gpus_per_run=1, partition="gpu", timeout_minutes=90)
    assert [states(own) for own in run_all(EXECUTORS["slurm"](options), jobs).values()] == [ONCE] * 3
    assert [(num_started(job), num_completed(job)) for job in jobs] == [(1, 1)] * 3
    lines = (tmp_path / "submitted.sh").read_text().replace("'", "").splitlines()
    for flag in ("array=0-2%2", "cpus-per-task=3", "gpus-per-node=1", "partition=gpu", "time=90", "signal=USR2@90"):
        assert f"#SBATCH --{flag}" in lines


def test_one_job_needs_no_array(tmp_path: Path, stand_ins: Path) -> None:
    assert states(run_all(EXECUTORS["slurm"](ExecutorOptions()), [counted_job(tmp_path / "a")])["a"]) == ONCE
    assert "--array" not in (tmp_path / "submitted.sh").read_text()


def test_no_slurm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    check_refused("there is no sbatch here", EXECUTORS["slurm"], ExecutorOptions())
