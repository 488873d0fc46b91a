"""Jobs in, a Slurm job array that carries them out, through submitit: Slurm schedules and repeats what it cut off."""

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.studies.attempts import Outcome, await_end, share_threads
from toolkit.studies.executors import ExecutorOptions, Job, OnEvent
from toolkit.studies.interruption import interruptible
from toolkit.studies.remote import POLL_SECONDS, Watch, run_there

SLURM_POLL_SECONDS = 2.0
"""Every look at a job is an access to the shared file system."""


class CarryOut:
    """What submitit pickles and calls on a node; called again from the start after a time-out or a preemption."""

    def __init__(self, job: Job, folder: Path, environment: Mapping[str, str], retries: int) -> None:
        self.job, self.folder, self.environment, self.retries = job, folder, environment, retries

    def __call__(self) -> Outcome:
        outcome = run_there(self.job, self.folder, self.environment)
        for _ in range(self.retries):
            if not outcome.is_killed:
                break
            outcome = run_there(self.job, self.folder, self.environment)
        return outcome

    def checkpoint(self) -> Any:
        """Submitit asks this before the job is cut off: what to queue in its place."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SlurmExecutor:
    """All jobs as one array, ``workers`` of its tasks at a time; submitit's own files lie beside the logs.

    What has no option here is set as for any sbatch: SBATCH_ACCOUNT, SBATCH_QOS, SBATCH_MEM_PER_NODE ... The nodes need
    the same Python environment and file system. An interrupted study cancels its jobs; they go on when the process is
    killed or loses its connection, and the next call then waits for them instead of running them twice.
    """

    def __init__(self, options: ExecutorOptions) -> None:
        if options.gpus_per_run != int(options.gpus_per_run):
            raise ValueError(f"--gpus-per-run: Slurm gives whole GPUs only; got {options.gpus_per_run:g}")
        if options.cluster == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
            raise ValueError(
                "--executor slurm: there is no sbatch here; start the study on a login node of the cluster"
            )
        self.options = options

    def run(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        """As ``Executor.run``, SIGHUP apart: the jobs outlive a lost connection."""
        watch = Watch(jobs, on_event)
        if not watch.jobs:
            return
        is_slurm = self.options.cluster == "slurm"
        size = len(watch.jobs) if is_slurm else self.options.workers  # elsewhere everything would start at once
        with interruptible(hang_up=not is_slurm):
            for start in range(0, len(watch.jobs), size):
                self._run(watch.jobs[start : start + size], watch)

    def _run(self, jobs: Sequence[Job], watch: Watch) -> None:
        tries = Counter(job.name for job in jobs)
        pending = self._submit(jobs)
        try:
            while pending:
                watch.look(job for _, job in pending)
                for entry in [entry for entry in pending if entry[0].done()]:
                    pending.remove(entry)
                    task, job = entry
                    outcome = _outcome(task)
                    if outcome is not None:
                        watch.end(job, outcome)
                    elif tries[job.name] <= self.options.retries and not job.is_done():
                        tries[job.name] += 1
                        pending += self._submit([job])
                    else:
                        watch.end(job, Outcome(False, True, f"its Slurm job {task.job_id} was lost", 0.0))
                if pending:
                    time.sleep(SLURM_POLL_SECONDS if self.options.cluster == "slurm" else POLL_SECONDS)
        finally:
            for task, _ in pending:
                task.cancel(check=False)
            await_end(job for _, job in pending)

    def _submit(self, jobs: Sequence[Job]) -> list[tuple[Any, Job]]:
        """Hand jobs to submitit, as one array; returns its job objects, each with its job."""
        options = self.options
        executor = self._build(jobs[0].log.absolute().parent / "submitit")
        environment = share_threads(options.workers)
        if environment and options.cluster == "slurm":  # a node's cores are not those of this machine
            environment = {"OMP_NUM_THREADS": str(options.cpus_per_run)}
        calls = [CarryOut(job, Path.cwd(), environment, options.retries) for job in jobs]
        if len(calls) == 1:
            return [(executor.submit(calls[0]), jobs[0])]
        with executor.batch():
            tasks = [executor.submit(call) for call in calls]
        return list(zip(tasks, jobs, strict=True))

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


def _outcome(task: Any) -> Outcome | None:
    """What a submitted job gave; None when it is over and gave nothing."""
    import submitit

    try:
        outcome: Outcome = task.result()
        return outcome
    except submitit.core.utils.FailedJobError as error:
        lines = str(error).strip().splitlines() or [""]
        return Outcome(False, False, lines[-1], 0.0)
    except submitit.core.utils.UncompletedJobError:
        return None
