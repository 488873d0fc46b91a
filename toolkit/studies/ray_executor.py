"""Runs as Ray tasks: Ray schedules, packs GPUs and starts a task again when its worker dies."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.studies.executors import Executor, Handle, Job, Submit, carry_out_there, share_threads


class RayExecutor(Executor):
    """Each job a task of ``cpus_per_run`` and ``gpus_per_run``, on the cluster at ``address`` or a local one.

    The nodes of a cluster need the toolkit installed, and the working directory and the logs on a shared file system.
    Without ``gpus_per_run`` Ray hides the GPUs from a task. A Ray that is initialised already is used and left running.
    """

    poll_seconds = 0.5
    most_pending = None

    @contextmanager
    def engine(self) -> Iterator[Submit]:
        """A cluster; its tasks are cancelled in the end."""
        import ray

        options, references = self.options, list[Any]()
        environment = share_threads(options.workers) if options.address is None else {}
        task: Any = ray.remote(carry_out_there)

        def submit(jobs: Sequence[Job]) -> list[Handle]:
            resources = {"num_cpus": options.cpus_per_run, "num_gpus": options.gpus_per_run}
            for job in jobs:
                own = task.options(name=job.name, max_retries=options.retries, **resources)
                references.append(own.remote(job, Path.cwd(), environment, options.retries))
            return [reference.future() for reference in references[-len(jobs) :]]

        with self._cluster():
            try:
                yield submit
            finally:
                for reference in references:  # of one that is over this does nothing
                    ray.cancel(reference, force=True)

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
