"""Runs on a cluster, through submitit as a Slurm job array."""

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
        """ValueError where this machine cannot hand jobs to Slurm."""
        super().__init__(options)
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
        options = self.options
        all_handles: list[Any] = []
        environment = share_threads(options.workers)
        if environment and options.cluster == "slurm":  # a node's cores are not those of this machine
            environment = {"OMP_NUM_THREADS": str(options.cpus_per_run)}

        def submit(jobs: Sequence[Job]) -> list[Handle]:
            executor = self._build(jobs[0].log.absolute().parent / "submitit")
            calls = [CarryOut(job, Path.cwd(), environment, options.retries) for job in jobs]
            if len(calls) == 1:  # which needs no array
                handles = [executor.submit(calls[0])]
            else:
                with executor.batch():
                    handles = [executor.submit(call) for call in calls]
            all_handles.extend(handles)
            return handles

        try:
            yield submit
        finally:
            for handle in all_handles:
                if not handle.done():
                    handle.cancel(check=False)

    def _build(self, folder: Path) -> Any:
        """Submitit's executor with the options of this one; None and 0 stay the cluster's defaults."""
        import submitit

        options = self.options
        executor = submitit.AutoExecutor(folder=folder, cluster=options.cluster)
        resources: dict[str, Any] = {"gpus_per_node": options.gpus_per_run, "slurm_partition": options.partition}
        executor.update_parameters(
            name="embedding-drift",
            timeout_min=options.timeout_minutes,
            cpus_per_task=options.cpus_per_run,
            slurm_array_parallelism=options.workers,
            **{name: value for name, value in resources.items() if value},
        )
        return executor
