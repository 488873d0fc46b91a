"""Runs on a cluster: as Ray tasks, or through submitit as a Slurm job array."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.studies.executors import (
    Executor,
    ExecutorOptions,
    Handle,
    Job,
    Outcome,
    Submit,
    carry_out_there,
    share_threads,
)


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


class CarryOut:
    """What submitit pickles and calls on a node; called again from the start after a time-out or a preemption."""

    def __init__(self, job: Job, folder: Path, environment: Mapping[str, str], retries: int) -> None:
        self.arguments = (job, folder, environment, retries)

    def __call__(self) -> Outcome:
        return carry_out_there(*self.arguments)

    def checkpoint(self) -> Any:
        """Submitit asks this before the job is cut off: what to queue in its place."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SlurmExecutor(Executor):
    """All jobs as one array, ``workers`` of its tasks at a time; submitit's own files lie beside the logs.

    What has no option here is set as for any sbatch: SBATCH_ACCOUNT, SBATCH_QOS, SBATCH_MEM_PER_NODE ... The nodes need
    the same Python environment and file system. An interrupted study cancels its jobs; they go on when the process is
    killed or loses its connection, and the next call then waits for them instead of running them twice.
    """

    def __init__(self, options: ExecutorOptions) -> None:
        super().__init__(options)
        if options.gpus_per_run != int(options.gpus_per_run):
            raise ValueError(f"--gpus-per-run: Slurm gives whole GPUs only; got {options.gpus_per_run:g}")
        if options.cluster != "slurm":
            return
        if not (shutil.which("sbatch") and shutil.which("srun")):
            raise ValueError(
                "--executor slurm: there is no sbatch here; start the study on a login node of the cluster"
            )
        self.poll_seconds = 2.0  # every look at a job is an access to the shared file system
        self.signals = ("SIGTERM",)  # the jobs outlive a lost connection

    @property
    def most_pending(self) -> int | None:
        """All on Slurm; elsewhere everything would start at once."""
        return None if self.options.cluster == "slurm" else self.options.workers

    @contextmanager
    def engine(self) -> Iterator[Submit]:
        """Submitit's executor; jobs that are not over are cancelled in the end."""
        options, tasks = self.options, list[Any]()
        environment = share_threads(options.workers)
        if environment and options.cluster == "slurm":  # a node's cores are not those of this machine
            environment = {"OMP_NUM_THREADS": str(options.cpus_per_run)}

        def submit(jobs: Sequence[Job]) -> list[Handle]:
            executor = self._build(jobs[0].log.absolute().parent / "submitit")
            calls = [CarryOut(job, Path.cwd(), environment, options.retries) for job in jobs]
            if len(calls) == 1:
                new = [executor.submit(calls[0])]
            else:
                with executor.batch():
                    new = [executor.submit(call) for call in calls]
            tasks.extend(new)
            return new

        try:
            yield submit
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel(check=False)

    def _build(self, folder: Path) -> Any:
        import submitit

        options = self.options
        executor = submitit.AutoExecutor(folder=folder, cluster=options.cluster)
        asked: dict[str, Any] = {"gpus_per_node": int(options.gpus_per_run), "slurm_partition": options.partition}
        executor.update_parameters(
            name="embedding-drift",
            timeout_min=options.timeout_minutes,
            cpus_per_task=options.cpus_per_run,
            slurm_array_parallelism=options.workers,
            **{name: value for name, value in asked.items() if value},
        )
        return executor
