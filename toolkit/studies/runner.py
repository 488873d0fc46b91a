"""Carrying out a study: missing runs are made, finished ones kept, and an interruption loses nothing.

The only state is the run directories: a run counts as done when its manifest, which is written last, is there. One
that is no longer as its manifest says is put aside, and made again.
"""

import hashlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

import toolkit
from toolkit.config import KEEP_THREADS
from toolkit.naming import Table, check_least, command_path, command_place, first_few
from toolkit.progress import counted
from toolkit.snapshots import files
from toolkit.snapshots.store import MANIFEST, Run, open_run, put_aside
from toolkit.studies.executors import Event, Executor, ExecutorOptions, Job, LocalExecutor, check_log
from toolkit.studies.plan import (
    PlannedRun,
    check_score,
    choose,
    chosen_settings,
    describe,
    left_to_do,
    plan_runs,
)
from toolkit.studies.study import Cell, Study

if TYPE_CHECKING:
    from toolkit.reporting.page import Report

FOLDER = ".study"
"""Below the parent of the runs: per run a log, and configs whose names hold their digests. Hidden, so that ``runs/*``
holds run directories only."""
SHOWN_FAILURES = 3


@dataclass(frozen=True)
class StudyPlan:
    """All runs of a study."""

    tuning: Sequence[PlannedRun]
    final: Sequence[PlannedRun]
    is_chosen: bool
    """Whether the settings of the final runs are chosen; until tuning is finished, each condition's first stands in."""

    @property
    def runs(self) -> Sequence[PlannedRun]:
        """Tuning runs first, as they are carried out."""
        return [*self.tuning, *self.final]


def plan_study(study: Study, output_dir: str | Path) -> StudyPlan:
    """The runs of a study below ``output_dir``; nothing is written."""
    tuning = plan_runs(study.tuning_cells(), output_dir)
    is_chosen = not left_to_do(tuning)
    chosen = chosen_settings(choose(study, open_all(tuning))) if is_chosen else {}
    final = plan_runs(study.final_cells(chosen), output_dir)
    check_score(study, left_to_do([*tuning, *final]))
    return StudyPlan(tuning, final, is_chosen)


OnStage = Callable[[str, Sequence[PlannedRun]], None]
"""Called before each stage with its name (``tuning``, ``final``) and all of its runs, finished or not."""


def run_study(
    study: Study,
    *,
    executor: Executor,
    limit: int | None = None,
    out: str | Path,
    output_dir: str | Path = "runs",
    on_stage: OnStage = lambda stage, runs: None,
    on_event: Callable[[Event], None] = lambda event: None,
    command: str | None = None,
) -> "Report | None":
    """Run what is missing of a study, at most ``limit`` runs, then write its report; None while runs are left.

    First the tuning runs, then the choice of settings, then the runs that are compared. The report names ``command``
    as what makes it again. ValueError for a study that cannot work, for a folder ``out`` that cannot take its report
    and, after all others have had their turn, for runs that failed.
    """
    from toolkit.reporting.folder import check_out

    check_least({"limit": limit}, 1)
    check_out(out)
    stages = _Stages(executor, limit, on_stage, on_event)
    tuning = plan_runs(study.tuning_cells(), output_dir)
    check_score(study, left_to_do(tuning))
    stages.carry_out("tuning", tuning)
    if left_to_do(tuning):
        return None
    # Only now is it known which settings the final runs take.
    table = choose(study, open_all(tuning))
    final = plan_runs(study.final_cells(chosen_settings(table)), output_dir)
    check_score(study, left_to_do(final))
    stages.carry_out("final", final)
    if left_to_do(final):
        return None
    return write_study_report(study, final, out, tuning=table, command=command)


class _Stages:
    """One stage after the other, under one limit on the number of runs."""

    def __init__(
        self, executor: Executor, limit: int | None, on_stage: OnStage, on_event: Callable[[Event], None]
    ) -> None:
        self.executor, self.limit, self.on_stage, self.on_event = executor, limit, on_stage, on_event
        self.reasons: dict[str, str] = {}

    def carry_out(self, stage: str, runs: Sequence[PlannedRun]) -> None:
        """Run what is missing of ``runs``, or damaged, as far as the limit allows; ValueError for those that failed."""
        damaged = {}  # name of a run to the reason
        for run in counted([run for run in runs if run.is_finished], "checking finished runs"):
            if reason := put_aside(run.path):
                damaged[run.name] = reason
        if runs:
            self.on_stage(stage, runs)
        for name, reason in damaged.items():
            self.on_event(Event(name, "damaged", f"{reason}; it is made again"))
        # The limit is one for both stages.
        missing = left_to_do(runs)[: self.limit]
        if not missing:
            return
        self.executor.run(make_jobs(missing), self._note)
        self.limit = None if self.limit is None else self.limit - len(missing)
        if failed := left_to_do(missing):
            raise ValueError(self._describe(failed))

    def _note(self, event: Event) -> None:
        """Keep why a run failed, for the one line in the end, and pass the event on."""
        if event.state == "failed":
            self.reasons[event.name] = event.detail
        self.on_event(event)

    def _describe(self, failed: Sequence[PlannedRun]) -> str:
        """One line: which runs failed, why, and where to read more."""
        failures = [f"{describe(run.cell)} ({self.reasons.get(run.name, 'no reason given')})" for run in failed]
        number = "1 run" if len(failed) == 1 else f"{len(failed)} runs"
        logs = failed[0].path.parent / FOLDER
        return f"{number} failed: {first_few(failures, SHOWN_FAILURES, '; ')}. The others are kept; logs are in {logs}"


def open_all(runs: Sequence[PlannedRun]) -> dict[Cell, Run | None]:
    """Cell to its finished run; None for one that diverged."""
    return {run.cell: open_run(run.path) if run.is_finished else None for run in runs}


def write_study_report(
    study: Study,
    runs: Sequence[PlannedRun],
    out: str | Path,
    *,
    tuning: pd.DataFrame | None = None,
    command: str | None = None,
) -> "Report":
    """The report of a study whose final runs are finished."""
    from toolkit.reporting.comparison_report import write_report

    options: dict[str, Any] = {
        "title": study.title,
        "question": study.question,
        "expected": study.hypothesis,
        "sources": study.sources,
        "labels": {run.name: run.cell.condition for run in runs},
        "tasks": {run.name: run.cell.task for run in runs},
        "pairs": [(comparison.first, comparison.second) for comparison in study.comparisons] or None,
        "margin_points": study.margin_points,
        "score": study.score,
        "tuning": tuning if tuning is not None and len(tuning) else None,
        "command": command,
    }
    return write_report([run.path for run in runs], out, **options)


def study_command(file: Path, out: Path, output_dir: Path = Path("runs")) -> str:
    """The command that makes a study's report again, with no absolute path in it."""
    arguments = ["python", "-m", "toolkit", "study", command_path(file), "--out", command_path(out)]
    if output_dir != Path("runs"):  # elsewhere than by default: without it everything would be run again
        arguments += ["--output-dir", command_path(output_dir)]
    return f"{command_place()}\n{shlex.join(arguments)}"


def launch_command(config: Path) -> tuple[str, ...]:
    """The command that carries out one run; finetune.py where it lies beside the package, else the package's own."""
    script = Path(toolkit.__file__).parents[1] / "finetune.py"
    target = (str(script),) if script.is_file() else ("--module", "toolkit.cli")
    return (sys.executable, "-m", "accelerate.commands.launch", "--quiet", *target, "--config", str(config))


def make_jobs(runs: Sequence[PlannedRun]) -> list[Job]:
    """Write each run's config file, beside its log, and describe its job."""
    return [_job_of(run) for run in runs]


def _job_of(run: PlannedRun) -> Job:
    """Write the config file of one run beside its log; the job that carries it out."""
    log = run.path.parent / FOLDER / f"{run.name}.log"
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
        environment={KEEP_THREADS: "1"},  # OMP_NUM_THREADS is a run's share of the cores, also when that share is 1
    )


def require(module: str, extra: str) -> None:
    """ValueError that names the extra when a module is not installed."""
    if find_spec(module) is None:
        raise ValueError(f"--executor {extra} needs {module}: pip install 'embedding-drift-toolkit[{extra}]'")


def _slurm(options: ExecutorOptions) -> Executor:
    require("submitit", "slurm")
    from toolkit.studies.clusters import SlurmExecutor

    return SlurmExecutor(options)


EXECUTORS: Mapping[str, Callable[[ExecutorOptions], Executor]] = Table(local=LocalExecutor, slurm=_slurm)
"""Name, as in ``--executor``, to what builds the executor or says which extra is missing."""
