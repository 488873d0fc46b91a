"""Planned runs in, the jobs of an executor out: each an ``accelerate launch`` of finetune.py on a config file."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import toolkit
from toolkit.config import KEEP_THREADS
from toolkit.snapshots import files
from toolkit.snapshots.store import MANIFEST
from toolkit.studies.attempts import check_log
from toolkit.studies.executors import Job
from toolkit.studies.plan import PlannedRun

FOLDER = ".study"
"""Below the parent of the runs: per run a log, and configs whose names hold their digests. Hidden, so that ``runs/*``
holds run directories only."""

SHARED_THREADS = {KEEP_THREADS: "1"}
"""Tells finetune.py that OMP_NUM_THREADS is its share of the cores, also when that share is 1."""


def launch_command(config: Path) -> tuple[str, ...]:
    """The command that carries out one run; finetune.py where it lies beside the package, else the package's own."""
    script = Path(toolkit.__file__).parents[1] / "finetune.py"
    target = (str(script),) if script.is_file() else ("--module", "toolkit.cli")
    return (sys.executable, "-m", "accelerate.commands.launch", "--quiet", *target, "--config", str(config))


def log_of(run: PlannedRun) -> Path:
    """What a run prints, of all its tries."""
    return run.path.parent / FOLDER / f"{run.name}.log"


def make_jobs(runs: Sequence[PlannedRun]) -> list[Job]:
    """Write each run's config file, beside its log, and describe its job."""
    return [_job(run) for run in runs]


def _job(run: PlannedRun) -> Job:
    log = log_of(run)
    text = run.config.to_json()
    # Another text gets another name: runs of one name may differ in what their digest leaves out.
    config = log.with_name(f"{run.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json")
    log.parent.mkdir(parents=True, exist_ok=True)
    check_log(log)
    files.write_new(config, text)
    return Job(
        name=run.name,
        command=launch_command(config),
        log=log,
        is_done=(run.path / MANIFEST).exists,
        environment=SHARED_THREADS,
    )
