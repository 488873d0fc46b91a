"""A run in, the task that it was trained on out: refused where its data have changed since."""

from toolkit.data.tasks import Task, load_task
from toolkit.snapshots.store import Run


def task_of(run: Run) -> Task:
    """The task of a finished run, read again; ValueError where its data are not those that the manifest names."""
    task = load_task(run.config)
    task.check_data(run.manifest["task"].get("data_sha256") or {}, run.path.name)
    return task
