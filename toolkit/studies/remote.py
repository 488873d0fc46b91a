"""Jobs that an engine runs in processes of its own, watched through their logs: what Ray and Slurm have in common."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path

from toolkit.studies.attempts import Outcome, count_starts, run_once
from toolkit.studies.executors import Event, Job, OnEvent, check_jobs
from toolkit.studies.local import end_event

POLL_SECONDS = 0.5


def run_there(job: Job, folder: Path, environment: Mapping[str, str]) -> Outcome:
    """One try at a job, in the engine's process, as if it were started in ``folder``."""
    with chdir(folder):
        return run_once(job, environment)


class Watch:
    """The events of jobs that run elsewhere: every try leaves a line in its log, on the shared file system."""

    def __init__(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        check_jobs(jobs)
        self._on_event = on_event
        self._offsets = {job.name: job.log.stat().st_size if job.log.is_file() else 0 for job in jobs}
        self._num_starts = dict.fromkeys(self._offsets, 0)
        self.jobs: list[Job] = []
        """Those that were not done at the beginning."""
        for job in jobs:
            on_event(Event(job.name, "waiting"))
        for job in jobs:
            if job.is_done():
                on_event(Event(job.name, "finished", "was done already"))
            else:
                self.jobs.append(job)

    def look(self, jobs: Iterable[Job]) -> None:
        """Report the tries that have begun since the last look."""
        for job in jobs:
            seen, now = self._num_starts[job.name], count_starts(job.log, self._offsets[job.name])
            for number in range(seen, now):
                if number:
                    self._on_event(Event(job.name, "retried", "the try before was killed"))
                self._on_event(Event(job.name, "running"))
            self._num_starts[job.name] = now

    def end(self, job: Job, outcome: Outcome) -> None:
        """Report the end of a job; what is done counts, whatever became of the process that did it."""
        self.look([job])
        if not outcome.is_finished and job.is_done():
            outcome = Outcome(True, False, "", outcome.seconds)
        self._on_event(end_event(job, outcome))
