"""``study FILE``: what is missing of a study carried out, and its report."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from toolkit.studies.executors import ExecutorOptions


@dataclass(frozen=True, slots=True)
class StudyCommand:
    """Carry out a study (arms x tasks x seeds) and write its report; runs that are finished are skipped."""

    file: tyro.conf.Positional[Path]
    """Python file that defines STUDY = toolkit.Study(...)."""
    out: Path | None = None
    """Folder to write the report into; None: reports/ and the name of the file without .py."""
    output_dir: Path = Path("runs")
    """Folder in which run directories are made and looked for."""
    dry_run: bool = False
    """Run nothing: print the runs, an estimate of their time, and the smallest difference that they could show."""
    limit: int | None = None
    """Stop after this many runs; the same command goes on later. None: no limit."""
    executor: Literal["local", "ray", "slurm"] = "local"
    """What carries the runs out: this machine, Ray or Slurm (extras of the package: ray, slurm)."""
    options: Annotated[ExecutorOptions, tyro.conf.arg(name="")] = field(default_factory=ExecutorOptions)

    def run(self) -> int:
        from toolkit.studies.dry_run import dry_run, plan_study
        from toolkit.studies.executors import EXECUTORS
        from toolkit.studies.live import watch
        from toolkit.studies.plan import left_to_do
        from toolkit.studies.runner import run_study, study_command
        from toolkit.studies.study import load_study

        study, out = load_study(self.file), self.out or Path("reports") / self.file.stem
        if self.dry_run:
            dry_run(study, workers=self.options.workers, limit=self.limit, output_dir=self.output_dir)
            return 0
        with watch(self.options.workers) as watcher:
            report = run_study(
                study,
                executor=EXECUTORS[self.executor](self.options),
                limit=self.limit,
                out=out,
                output_dir=self.output_dir,
                on_stage=watcher.on_stage,
                on_event=watcher.on_event,
                on_progress=watcher.on_progress,
                command=study_command(self.file, out, self.output_dir),
            )
        if report is None:
            print(f"{len(left_to_do(plan_study(study, self.output_dir).runs))} runs are left: the same command goes on")
        else:
            print(f"Report: {report}\nOpen:   {report.with_name('index.html')}")
        return 0
