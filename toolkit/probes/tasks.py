"""A run in, the task that it was trained on out: refused where a file of it has changed since."""

from toolkit.data.tasks import Task, load_task
from toolkit.snapshots.store import Run


def task_of(run: Run) -> Task:
    """The task of a finished run, read again; ValueError where a data file is not the one that the manifest names."""
    task = load_task(run.config)
    known = run.manifest["task"].get("data_sha256") or {}
    changed = [role for role, sha256 in task.data_hashes.items() if known.get(role, sha256) != sha256]
    if changed:
        raise ValueError(
            f"the data of {run.path.name} have changed since it was trained ({', '.join(changed)}): put these files "
            "back, or run again"
        )
    return task
