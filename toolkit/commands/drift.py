"""``drift PLACES``: why the rows of a run, or of checkpoints in order, moved."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from toolkit.progress import show


@dataclass(frozen=True, slots=True)
class DriftCommand:
    """How did embeddings change between checkpoints? In a run: how far, and why?"""

    places: tyro.conf.Positional[tuple[str, ...]]
    """Either two or more checkpoints in order (minilm, hub ids with @revision, folders, .safetensors files),
    or one run directory, optionally followed by runs of other seeds."""
    out: Path | None = None
    """Folder to write the full report into; None: print a summary table only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.reporting.run_reports import show_drift

        report = show_drift(self.places, self.out, title=self.title)
        if report is not None:
            show(f"Report: {report}")
        return 0
