"""Jobs in, N commands at a time on this machine: the default executor."""

import time
from collections import Counter, deque
from collections.abc import Sequence

from toolkit.studies.attempts import POLL_SECONDS, Attempt, Outcome, share_threads, start
from toolkit.studies.executors import Event, Job, OnEvent, check_jobs
from toolkit.studies.interruption import interruptible


class LocalExecutor:
    """A queue of commands in the order given, ``workers`` of them at a time, CPU threads divided among them."""

    def __init__(self, *, workers: int = 1, retries: int = 1) -> None:
        self.workers, self.retries = workers, retries

    def run(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        """As ``Executor.run``. No command outlives the call, nor this process if that is killed."""
        check_jobs(jobs)
        for job in jobs:
            on_event(Event(job.name, "waiting"))
        queue, running = deque(jobs), list[Attempt]()
        tries: Counter[str] = Counter()
        with interruptible():
            try:
                while queue or running:
                    self._start_some(queue, running, on_event)
                    for attempt in list(running):
                        outcome = attempt.poll()
                        if outcome is None:
                            continue
                        running.remove(attempt)
                        job = attempt.job
                        tries[job.name] += 1
                        if outcome.is_killed and tries[job.name] <= self.retries:
                            on_event(Event(job.name, "retried", outcome.detail, outcome.seconds))
                            queue.appendleft(job)
                        else:
                            on_event(end_event(job, outcome))
                    if running or queue:
                        time.sleep(POLL_SECONDS)
            finally:
                for attempt in running:
                    attempt.release()
                for attempt in running:
                    attempt.stop()

    def _start_some(self, queue: deque[Job], running: list[Attempt], on_event: OnEvent) -> None:
        """Fill the free places from the queue; jobs that somebody else is running go to its end."""
        environment = share_threads(self.workers)
        for _ in range(len(queue)):
            if len(running) == self.workers:
                return
            job = queue.popleft()
            attempt = start(job, environment)
            if attempt is None:
                queue.append(job)
            elif isinstance(attempt, Outcome):
                on_event(end_event(job, attempt))
            else:
                running.append(attempt)
                on_event(Event(job.name, "running"))


def end_event(job: Job, outcome: Outcome) -> Event:
    """The last event of a job."""
    state = "finished" if outcome.is_finished else "failed"
    return Event(job.name, state, outcome.detail, outcome.seconds)  # type: ignore[arg-type]
