"""``report RUNS``: run directories in, one report out."""

from dataclasses import dataclass
from pathlib import Path

import tyro


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
        import sys

        from toolkit.reporting.comparison.find import find_runs
        from toolkit.reporting.comparison.report import write_report
        from toolkit.reporting.progress import reporting_progress

        for line in find_runs(self.runs).left_out:
            print(line, file=sys.stderr)
        options = {"title": self.title, "question": self.question, "margin_points": self.margin_points}
        with reporting_progress() as hear:
            report = write_report(self.runs, self.out, on_progress=hear, **options)  # type: ignore[arg-type]
        print(f"Report: {report}\nOpen:   {report.with_name('index.html')}")
        return 0
