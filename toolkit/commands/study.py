"""``study FILE``: what is missing of a study carried out, and its report."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from toolkit.progress import show
from toolkit.studies.executors import ExecutorOptions


@dataclass(frozen=True, slots=True)
class StudyCommand:
    """Run a study (arms x tasks x seeds) and write its report; runs that are finished are skipped."""

    file: tyro.conf.Positional[Path]
    """Python file that defines STUDY = toolkit.Study(...)."""
    out: Path | None = None
    """Folder to write the report into; None: reports/ and the name of the file without .py."""
    output_dir: Path = Path("runs")
    """Folder in which run directories are made and looked for."""
    dry_run: bool = False
    """Print the runs, an estimate of their time (from a few steps of each kind of run, which are not kept), and the
    smallest difference that they could show; run nothing else."""
    limit: int | None = None
    """Stop after this many runs; the same command continues later. None: no limit."""
    executor: Literal["local", "ray", "slurm"] = "local"
    """Where the runs are executed: on this machine, by Ray or by Slurm (extras of the package: ray, slurm)."""
    options: Annotated[ExecutorOptions, tyro.conf.arg(name="")] = field(default_factory=ExecutorOptions)

    def run(self) -> int:
        from toolkit.studies.plan import left_to_do
        from toolkit.studies.progress import StudyProgress
        from toolkit.studies.runner import EXECUTORS, plan_study, run_study, study_command
        from toolkit.studies.study import load_study
        from toolkit.studies.trial import dry_run

        study, out = load_study(self.file), self.out or Path("reports") / self.file.stem
        executor = EXECUTORS[self.executor](self.options)
        if self.dry_run:
            dry_run(study, executor=executor, limit=self.limit, output_dir=self.output_dir)
            return 0
        with StudyProgress(self.options.workers) as progress:
            report = run_study(
                study,
                executor=executor,
                limit=self.limit,
                out=out,
                output_dir=self.output_dir,
                on_stage=progress.on_stage,
                on_event=progress.on_event,
                on_progress=progress.on_progress,
                command=study_command(self.file, out, self.output_dir),
            )
        if report is None:
            show(
                f"{len(left_to_do(plan_study(study, self.output_dir).runs))} runs are left: the same command continues"
            )
        else:
            show(f"Report: {report}\nOpen:   {report.with_name('index.html')}")
        return 0
