"""Jobs in, Ray tasks that carry them out: Ray schedules, packs GPUs and starts a task again when its worker dies."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.studies.attempts import Outcome, await_end, share_threads
from toolkit.studies.executors import ExecutorOptions, Job, OnEvent
from toolkit.studies.interruption import interruptible
from toolkit.studies.remote import POLL_SECONDS, Watch, run_there


class CommandKilledError(Exception):
    """Raised in a task so that Ray tries it again; its one argument is the Outcome."""


def _carry_out(job: Job, folder: Path, environment: dict[str, str]) -> Outcome:
    outcome = run_there(job, folder, environment)
    if outcome.is_killed:
        raise CommandKilledError(outcome)
    return outcome


class RayExecutor:
    """Each job a task of ``cpus_per_run`` and ``gpus_per_run``, on the cluster at ``address`` or a local one.

    The nodes of a cluster need the toolkit installed, and the working directory and the logs on a shared file system.
    Without ``gpus_per_run`` Ray hides the GPUs from a task.
    """

    def __init__(self, options: ExecutorOptions) -> None:
        self.options = options

    def run(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        """As ``Executor.run``; a Ray that is initialised already is used and left running."""
        watch = Watch(jobs, on_event)
        if not watch.jobs:
            return
        with interruptible(), self._cluster(), interruptible():  # twice: ray.init puts its own handler in between
            self._run(watch)

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        import ray

        if ray.is_initialized():
            yield
            return
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.options.address is None:  # by default ray.init would look for a cluster that happens to be there
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            num_cpus = self.options.workers * self.options.cpus_per_run
            options |= {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
        else:
            options |= {"address": self.options.address}
        try:
            ray.init(**options)
        except ConnectionError as error:
            raise ValueError(f"--address {self.options.address}: no Ray cluster there ({error})") from None
        try:
            resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            self._check_gpus(resources.get("GPU", 0))
            yield
        finally:
            ray.shutdown()

    def _check_gpus(self, num_gpus: float) -> None:
        """ValueError where Ray would wait for ever; a cluster elsewhere may grow."""
        if self.options.address is None and self.options.gpus_per_run > num_gpus:
            raise ValueError(
                f"--gpus-per-run {self.options.gpus_per_run:g}: Ray finds {num_gpus:g} GPUs on this machine"
            )

    def _run(self, watch: Watch) -> None:
        import ray

        options: dict[str, Any] = {
            "num_cpus": self.options.cpus_per_run,
            "num_gpus": self.options.gpus_per_run,
            "max_retries": self.options.retries,
            "retry_exceptions": [CommandKilledError],
        }
        task: Any = ray.remote(_carry_out)
        environment = share_threads(self.options.workers) if self.options.address is None else {}
        pending = {
            task.options(name=job.name, **options).remote(job, Path.cwd(), environment): job for job in watch.jobs
        }
        try:
            while pending:
                ready, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
                watch.look(pending.values())
                for reference in ready:
                    watch.end(pending.pop(reference), _outcome(reference))
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)
            await_end(pending.values())


def _outcome(reference: Any) -> Outcome:
    """What a task that is over gave, or what became of its worker."""
    import ray

    try:
        outcome: Outcome = ray.get(reference)
        return outcome
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, CommandKilledError):
            killed: Outcome = cause.args[0]
            return killed
        return Outcome(False, False, f"{type(cause).__name__}: {cause}", 0.0)
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines() or [""]
        return Outcome(False, True, f"its worker was lost ({type(error).__name__}: {lines[0]})", 0.0)
