"""Jobs in, every job run once and a stream of events out: the interface that all executors share.

An executor knows commands and nothing of what they do. Whether a job is done is asked of the job itself, never
remembered, so that the same list of jobs can be handed in again after any interruption.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

from toolkit.lookup import Table

State = Literal["waiting", "running", "retried", "finished", "failed"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command to carry out, in the working directory of the caller."""

    name: str
    """How events call it; unique within one list of jobs."""
    command: tuple[str, ...]
    """Program and arguments; they are not read by a shell."""
    log: Path
    """File that its output is appended to. It is locked while the command runs, so two commands with one log never
    run at the same time, whoever started them: name it after the run directory, not after the study."""
    is_done: Callable[[], bool]
    """Whether the work is there: asked before the start, and after the end in place of trusting the exit code. Ray
    and Slurm ask it in another process, so it must be picklable by cloudpickle (lambdas are)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of the caller."""


@dataclass(frozen=True)
class Event:
    """What has just become of a job. Each job ends with one ``finished`` or ``failed``."""

    name: str
    state: State
    detail: str = ""
    """Why, in a few words: of a failure its last error line."""
    seconds: float = 0.0
    """With ``finished``, ``failed`` and ``retried``: what the attempt took; 0 where nothing was run."""


OnEvent = Callable[[Event], None]


class Executor(Protocol):
    """Carries out jobs, several at a time."""

    def run(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        """Run every job that is not done; return when each is finished or failed.

        A failed job does not stop the others. ``on_event`` is called in this thread, in order of time.
        ValueError for two jobs of one name or one log; KeyboardInterrupt, also for SIGTERM and SIGHUP, once all
        commands have been ended.
        """


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """What an executor may use; each takes what means something to it."""

    workers: int = 1
    """Number of runs at a time (Slurm: array tasks at a time)."""
    retries: int = 1
    """How often a run whose process was killed (by a signal, or with its worker) is started again.
    Any other failure is final."""
    cpus_per_run: int = 1
    """Ray, Slurm: number of CPU cores reserved for each run."""
    gpus_per_run: float = 0
    """Ray, Slurm: number of GPUs reserved for each run; Ray also takes fractions."""
    address: str | None = None
    """Ray: address of a running cluster, or auto; None: a local cluster is started for the time of the study."""
    cluster: Literal["slurm", "local", "debug"] = "slurm"
    """Slurm: back end of submitit. local and debug try a set-up out on a machine without Slurm."""
    partition: str | None = None
    """Slurm: partition; None: the cluster's default."""
    timeout_minutes: int = 240
    """Slurm: time limit of one run, in minutes. One that is cut off or preempted is queued again and starts over."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("retries", 0), ("cpus_per_run", 1), ("timeout_minutes", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name.replace('_', '-')} must be at least {least}; got {getattr(self, name)}")
        if not 0 <= self.gpus_per_run < float("inf"):
            raise ValueError(f"--gpus-per-run must be at least 0; got {self.gpus_per_run}")


def check_jobs(jobs: Sequence[Job]) -> None:
    """ValueError for two jobs that events or logs could not tell apart, and for an empty command."""
    names: set[str] = set()
    logs: dict[Path, str] = {}
    for job in jobs:
        if job.name in names:
            raise ValueError(f"two jobs are called {job.name!r}: give each its own name")
        log = job.log.resolve()
        if log in logs:
            raise ValueError(f"jobs {logs[log]!r} and {job.name!r} share the log {job.log}: give each its own")
        if not job.command:
            raise ValueError(f"job {job.name!r} has an empty command")
        names.add(job.name)
        logs[log] = job.name


def require(module: str, extra: str) -> None:
    """ValueError that names the extra when a module is not installed."""
    if find_spec(module) is None:
        raise ValueError(f"--executor {extra} needs {module}: pip install 'embedding-drift-toolkit[{extra}]'")


def _local(options: ExecutorOptions) -> Executor:
    from toolkit.studies.local import LocalExecutor

    return LocalExecutor(workers=options.workers, retries=options.retries)


def _ray(options: ExecutorOptions) -> Executor:
    require("ray", "ray")
    from toolkit.studies.ray_executor import RayExecutor

    return RayExecutor(options)


def _slurm(options: ExecutorOptions) -> Executor:
    require("submitit", "slurm")
    from toolkit.studies.slurm import SlurmExecutor

    return SlurmExecutor(options)


EXECUTORS: Mapping[str, Callable[[ExecutorOptions], Executor]] = Table(local=_local, ray=_ray, slurm=_slurm)
"""Name, as in ``--executor``, to a function that builds the executor or says which extra is missing."""
