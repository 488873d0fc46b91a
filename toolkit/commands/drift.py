"""``drift PLACES``: checkpoints or a run in, why its rows moved out."""

from dataclasses import dataclass
from pathlib import Path

import tyro


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
        from toolkit.reporting.drift.report import show_drift

        report = show_drift(self.places, self.out, title=self.title)
        if report is not None:
            print(f"Report: {report}")
        return 0
