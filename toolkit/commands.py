"""The flags of each command of ``python -m toolkit`` in, its exit code out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from toolkit.studies.executors import ExecutorOptions


@dataclass(frozen=True, slots=True)
class Report:
    """Compare runs: index.html to look at, report.md, figures and tables for a paper, verdicts with their evidence."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories; unfinished ones and other folders that a glob brings along are left out."""
    out: Path
    """Folder for the report."""
    title: str | None = None
    """Title of the report."""
    question: str | None = None
    """The question that it answers, under the title."""
    margin_points: float = 1.0
    """Differences within this many points count as equivalent."""

    def run(self) -> int:
        from toolkit.reporting.progress import reporting_progress
        from toolkit.reporting.report import write_report

        options = {"title": self.title, "question": self.question, "margin_points": self.margin_points}
        with reporting_progress() as hear:
            report = write_report(self.runs, self.out, on_progress=hear, **options)  # type: ignore[arg-type]
        print(f"Report: {report}\nOpen:   {report.with_name('index.html')}")
        return 0


@dataclass(frozen=True, slots=True)
class Drift:
    """Compare the embedding parameters of two or more checkpoints, or analyse a run in depth: why rows moved."""

    places: tyro.conf.Positional[tuple[str, ...]]
    """Checkpoints in order (hub ids with @revision, folders, checkpoint-* folders, .safetensors files, minilm), or
    one run directory, followed by runs of other seeds."""
    out: Path | None = None
    """Folder for the report; default: print the tables only."""
    title: str | None = None
    """Title of the report."""

    def run(self) -> int:
        from toolkit.reporting.drift_report import print_drift, write_drift_report
        from toolkit.reporting.sources import open_sources

        print_drift(open_sources(self.places, at_least=2))
        if self.out is not None:
            print(f"Report: {write_drift_report(self.places, self.out, title=self.title)}")
        return 0


@dataclass(frozen=True, slots=True)
class Positions:
    """Describe the position embeddings of a model beside sine and cosine, with a verdict that survives its controls."""

    model: tyro.conf.Positional[str]
    """A checkpoint (hub id, folder, .safetensors file, minilm) or a run directory."""
    out: Path | None = None
    """Folder for the report with its figures; default: print the tables only."""
    default_length: int | None = None
    """Tokens that the model reads by default; rows beyond are called inherited. Default: what its files say."""
    title: str | None = None
    """Title of the report."""

    def run(self) -> int:
        from toolkit.naming import shown_command
        from toolkit.reporting.position_report import print_positions, write_position_report
        from toolkit.reporting.sources import open_sources

        opened = open_sources((self.model,))
        length = self.default_length or opened.default_length
        print_positions(opened.trajectory, default_length=length)
        if self.out is not None:
            command = shown_command("positions", (self.model,), self.out, self.title)
            options = {"title": self.title, "default_length": length, "command": command}
            print(f"Report: {write_position_report(opened.trajectory, self.out, **options)}")  # type: ignore[arg-type]
        return 0


@dataclass(frozen=True, slots=True)
class Verify:
    """Recompute every hash of a run directory, or every card of a report; exit code 1 on any difference."""

    directory: tyro.conf.Positional[Path]
    """Run directory, or folder of a report."""
    runs: Path | None = None
    """Folder in which a report's runs are looked for; default: runs/, and beside the report."""

    def run(self) -> int:
        from toolkit.analysis.comparison.verify import describe, is_report

        if is_report(self.directory):
            lines, has_differences = describe(self.directory, self.runs)
            print("\n".join(lines))
            return 1 if has_differences else 0
        from toolkit.snapshots.store import verify_run

        differences = verify_run(self.directory)
        print("\n".join(differences) or f"{self.directory}: every file is as the manifest says")
        return 1 if differences else 0


@dataclass(frozen=True, slots=True)
class StudyCommand:
    """Run what is missing of a study, skip what is finished, and write its report."""

    file: tyro.conf.Positional[Path]
    """Python file that defines STUDY = toolkit.Study(...)."""
    out: Path | None = None
    """Folder for the report; default: reports/ and the name of the file."""
    output_dir: Path = Path("runs")
    """Parent of run directories."""
    dry_run: bool = False
    """Print the runs, how long they will take and the smallest detectable difference; run nothing."""
    limit: int | None = None
    """Run at most this many runs this time."""
    executor: Literal["local", "ray", "slurm"] = "local"
    """What carries the runs out; ray and slurm are extras."""
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


Command = (
    Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Drift, tyro.conf.subcommand("drift")]
    | Annotated[Positions, tyro.conf.subcommand("positions")]
    | Annotated[StudyCommand, tyro.conf.subcommand("study")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
)
