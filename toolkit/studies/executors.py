"""How jobs are carried out: the interface, and the executor for this machine.

An executor knows commands and nothing of what they do. Whether a job is done is asked of the job itself, never
remembered, so that the same list of jobs can be handed in again after any interruption.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from toolkit.naming import check_least

State = Literal["waiting", "running", "retried", "finished", "failed", "damaged"]

START = "=== start "
"""Begins the line that every try leaves in the log before the command's own output."""
POLL_SECONDS = 0.1
GRACE_SECONDS = 3.0
"""Between asking a command to end and killing it."""
PR_SET_PDEATHSIG = 1
"""From Linux's <linux/prctl.h>."""
_TAIL_BYTES = 20_000


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command to carry out, in the working directory of the caller."""

    name: str
    """How events call it: the name of its run directory, which no two jobs share."""
    command: tuple[str, ...]
    """Program and arguments; they are not read by a shell."""
    log: Path
    """File that its output is appended to. It is locked while the command runs, so two commands with one log never
    run at the same time, whoever started them: name it after the run directory, not after the study."""
    is_done: Callable[[], bool]
    """Whether the work is there: asked before the start, and after the end in place of trusting the exit code.
    Slurm asks it in another process, so it must be picklable by cloudpickle (lambdas are)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of the caller."""


@dataclass(frozen=True)
class Event:
    """What has just become of a job. Each job ends with one ``finished`` or ``failed``."""

    name: str
    state: State
    detail: str = ""
    """Why; of a failure its exit code and the last line of its log."""
    seconds: float = 0.0
    """With ``finished`` and ``failed``: what the last try took; 0 where nothing was run."""


OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    is_finished: bool
    detail: str = ""
    seconds: float = 0.0
    is_killed: bool = False
    """Ended by a signal: worth another try, where an error of the program's own would only come again."""


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """What an executor may use; each executor takes the options that apply to it."""

    workers: int = 1
    """Number of runs at a time (Slurm: array tasks at a time)."""
    retries: int = 1
    """How often a run whose process was killed (by a signal, or with its worker) is started again.
    Any other failure is final."""
    cpus_per_run: int = 1
    """Slurm: number of CPU cores reserved for each run."""
    gpus_per_run: int = 0
    """Slurm: number of GPUs reserved for each run."""
    cluster: Literal["slurm", "local", "debug"] = "slurm"
    """Slurm: back end of submitit. local and debug try a set-up out on a machine without Slurm."""
    partition: str | None = None
    """Slurm: partition; None: the cluster's default."""
    timeout_minutes: int = 240
    """Slurm: time limit of one run, in minutes. One that is cut off or preempted is queued again and starts over."""

    def __post_init__(self) -> None:
        check_least({name: getattr(self, name) for name in ("workers", "cpus_per_run", "timeout_minutes")}, 1)
        check_least({name: getattr(self, name) for name in ("retries", "gpus_per_run")}, 0)


class Handle(Protocol):
    """A job that was handed in: what a future of Python or of submitit can be asked."""

    def done(self) -> bool: ...

    def result(self) -> Any:
        """Its Outcome; an exception where its process was lost."""


Submit = Callable[[Sequence[Job]], Sequence[Handle]]


class Executor:
    """Carries out jobs, several at a time. A subclass says how jobs are handed in, and ends them when it is left."""

    poll_seconds = POLL_SECONDS
    signals: tuple[str, ...] = ("SIGTERM", "SIGHUP")
    """What ends a study as Ctrl-C does."""

    def __init__(self, options: ExecutorOptions) -> None:
        self.options = options

    @property
    def most_pending(self) -> int | None:
        """Jobs that are handed in at a time; None: all at once, to an engine with a queue of its own."""
        return self.options.workers

    @contextlib.contextmanager
    def engine(self) -> Iterator[Submit]:
        """A function that takes jobs; leaving the context ends those that still run."""
        raise NotImplementedError
        yield

    def run(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        """Run every job that is not done; return when each is finished or failed.

        A failed job does not stop the others. ``on_event`` is called in this thread, in order of time.
        KeyboardInterrupt, also for SIGTERM and SIGHUP, once the commands have been ended.
        """
        watches = {job.name: _Watch(job, on_event) for job in jobs}
        waiting = deque[Job]()
        for job in jobs:
            if job.is_done():
                on_event(Event(job.name, "finished", "was done already"))
            else:
                waiting.append(job)
        if not waiting:
            return
        pending: list[tuple[Job, Handle]] = []
        # Twice: an engine may put signal handlers of its own in between.
        with interruptible(self.signals), self.engine() as submit, interruptible(self.signals):
            while waiting or pending:
                most_new = len(waiting) if self.most_pending is None else self.most_pending - len(pending)
                batch = [waiting.popleft() for _ in range(min(len(waiting), most_new))]
                pending += zip(batch, submit(batch), strict=True) if batch else []
                begun_watches = [watches[job.name] for job, _ in pending if watches[job.name].has_news()]
                ended_jobs = [(job, handle) for job, handle in pending if handle.done()]
                for job, handle in ended_jobs:  # before what has begun in their place
                    pending.remove((job, handle))
                    watches[job.name].end(_outcome_of(job, handle))
                for watch in begun_watches:
                    watch.tell()
                if pending and not ended_jobs:
                    time.sleep(self.poll_seconds)


class _Watch:
    """The events of one job, wherever it runs: every try leaves a line in its log."""

    def __init__(self, job: Job, on_event: OnEvent) -> None:
        self.job, self.on_event = job, on_event
        self.offset = job.log.stat().st_size if job.log.is_file() else 0
        self.num_seen = self.num_told = 0
        on_event(Event(job.name, "waiting"))

    def has_news(self) -> bool:
        """Whether a try has begun since the last look; reads what was added to the log."""
        if self.job.log.is_file():
            with self.job.log.open("rb") as log:
                log.seek(self.offset)
                complete_lines, newline, _ = log.read().rpartition(b"\n")
            self.offset += len(complete_lines + newline)
            self.num_seen += sum(line.startswith(START.encode()) for line in complete_lines.split(b"\n"))
        return self.num_seen > self.num_told

    def tell(self) -> None:
        """Send the events of the tries that have begun since the last call."""
        for number in range(self.num_told, self.num_seen):
            if number:
                self.on_event(Event(self.job.name, "retried", "the try before was killed"))
            self.on_event(Event(self.job.name, "running"))
        self.num_told = self.num_seen

    def end(self, outcome: Outcome) -> None:
        """Send the events that are left, and the one that says how the job ended."""
        self.has_news()
        self.tell()
        state: State = "finished" if outcome.is_finished else "failed"
        self.on_event(Event(self.job.name, state, outcome.detail, outcome.seconds))


def _outcome_of(job: Job, handle: Handle) -> Outcome:
    """The outcome of a job that is over; work that is done counts, whatever became of the process that did it."""
    try:
        outcome: Outcome = handle.result()
        return outcome
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        detail = f"its process was lost ({type(error).__name__}: {lines[-1]})"
        return Outcome(True) if job.is_done() else Outcome(False, detail)


class Commands:
    """The commands that one process has started: carried out one by one, in any thread, and ended together."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._is_stopped = threading.Lock(), False

    def __enter__(self) -> "Commands":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def carry_out(self, job: Job, environment: Mapping[str, str], retries: int) -> Outcome:
        """Run a job to its end, again if it was killed; waits while another process holds its log."""
        for attempt in range(retries + 1):
            outcome = self._try(job, environment)
            if not outcome.is_killed or self._is_stopped or attempt == retries:
                break
        return outcome

    def _try(self, job: Job, environment: Mapping[str, str]) -> Outcome:
        """One try of a job: waits for its log, runs the command and reads how it ended."""
        from toolkit.snapshots.unfinished import try_lock

        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            # The command inherits the lock: it lasts until the last process that writes to the log is gone.
            while not try_lock(log):
                if self._is_stopped:
                    return Outcome(False, "interrupted")
                time.sleep(POLL_SECONDS)
            if job.is_done():  # by the one who held the lock until now
                return Outcome(True, "was done already")
            offset = log.tell()  # where this try's output begins
            started = time.monotonic()
            try:
                code = self._run(job, environment, log)
            except OSError as error:
                return Outcome(False, f"cannot start {job.command[0]}: {error.strerror}")
        seconds = time.monotonic() - started
        if job.is_done():
            return Outcome(True, "", seconds)
        with job.log.open("rb") as log:
            log.seek(max(offset, job.log.stat().st_size - _TAIL_BYTES))
            return _failure(code, log.read().decode(errors="replace"), seconds)

    def _run(self, job: Job, environment: Mapping[str, str], log: IO[bytes]) -> int:
        """The exit code of a job's command."""
        with self._lock:
            if self._is_stopped:
                return -signal.SIGTERM
            log.write(f"{START}{time.strftime('%Y-%m-%d %H:%M:%S')}: {job.name}\n".encode())
            log.flush()
            process = subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment, **job.environment},
                start_new_session=True,  # Ctrl-C reaches the executor alone, which ends its commands in order
                preexec_fn=end_with_parent,
            )
            self._running.add(process)
        try:
            return process.wait()
        finally:
            _signal_group(process, signal.SIGKILL)  # what the command has left behind
            self._running.discard(process)

    def stop(self) -> None:
        """End what runs, and begin nothing more; returns when the commands are gone."""
        with self._lock:
            self._is_stopped = True
        running = list(self._running)
        for process in running:
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                _signal_group(process, signal.SIGKILL)
                process.wait()


def carry_out_there(job: Job, folder: Path, environment: Mapping[str, str], retries: int) -> Outcome:
    """Run a job in the process of an engine, as if it were started in ``folder``; an exception ends its command."""
    with contextlib.chdir(folder), Commands() as commands:
        return commands.carry_out(job, environment, retries)


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _failure(code: int, output: str, seconds: float) -> Outcome:
    """The outcome of a job that is not done, from its exit code and the end of its log.

    A launcher exits with 1 whatever became of its program. Where that was killed it says so, or nothing at all; any
    other end has left an error.
    """
    log_lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(START)]
    last_line = log_lines[-1] if log_lines else "no output"
    if code < 0:
        return Outcome(False, f"killed by {signal.Signals(-code).name}", seconds, is_killed=True)
    has_error = any("rror" in line for line in log_lines)
    is_killed = code == 1 and (not has_error or any("SIGKILL" in line for line in log_lines))
    return Outcome(False, f"exit code {code}: {last_line}", seconds, is_killed)


def end_with_parent() -> None:
    """Let Linux kill this process when the one that started it is gone, however that ended; elsewhere do nothing."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.contextmanager
def interruptible(names: Sequence[str]) -> Iterator[None]:
    """Within this block the signals of these names raise KeyboardInterrupt, as Ctrl-C does.

    A signal that is ignored stays ignored, as nohup wants it. Outside the main thread nothing changes: Python delivers
    signals there only.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in names if is_main and hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    handlers = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in handlers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def share_threads(workers: int) -> dict[str, str]:
    """The CPU threads of each of several workers; nothing where the user has set them.

    Workers that each take all cores wait for one another, which slows training many times over.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, num_cores // workers))}


def check_log(log: Path) -> None:
    """ValueError where a log cannot be added to: something lies there that no try has begun."""
    if log.is_symlink() or (log.exists() and not log.is_file()):
        raise ValueError(f"{log} is in the way of a run's log: move it away")
    if log.exists():
        with log.open("rb") as file:
            beginning = file.read(len(START))
        if beginning and beginning != START.encode():
            raise ValueError(f"{log} is not the log of a run, which begins with {START.strip()!r}: move it away")


class LocalExecutor(Executor):
    """Commands on this machine, ``workers`` at a time in the order given, its CPU threads divided among them.

    No command outlives the call, nor (on Linux) this process if that is killed; what a command has put into a session
    of its own may.
    """

    @contextlib.contextmanager
    def engine(self) -> Iterator[Submit]:
        """Threads that each wait for one command."""
        from concurrent.futures import ThreadPoolExecutor

        environment, retries = share_threads(self.options.workers), self.options.retries
        with ThreadPoolExecutor(self.options.workers) as pool, Commands() as commands:
            yield lambda jobs: [pool.submit(commands.carry_out, job, environment, retries) for job in jobs]
