"""The flags of each command of ``python -m toolkit`` in, its exit code out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, slots=True)
class Report:
    """Write the drift report of one or more runs: report.md, figures and tables."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    out: Path
    """Folder for the report."""
    title: str | None = None
    """Title of the report."""

    def run(self) -> int:
        from toolkit.reporting.report import write_report

        print(f"Report: {write_report(self.runs, self.out, title=self.title)}")
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
    """Recompute every hash of a run directory; exit code 1 on any difference."""

    directory: tyro.conf.Positional[Path]
    """Run directory."""

    def run(self) -> int:
        from toolkit.snapshots.store import verify_run

        differences = verify_run(self.directory)
        print("\n".join(differences) or f"{self.directory}: every file is as the manifest says")
        return 1 if differences else 0


Command = (
    Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Drift, tyro.conf.subcommand("drift")]
    | Annotated[Positions, tyro.conf.subcommand("positions")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
)
