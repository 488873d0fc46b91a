"""``report RUNS``: run directories in, one report out."""

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True, slots=True)
class Report:
    """Compare finished runs: scores, drift and verdicts in index.html and report.md, with figures and tables."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories. Unfinished ones and other folders that a glob (runs/*) brings along are left out and named."""
    out: Path
    """Folder of its own to write the report into; made if need be. A report that is there is replaced."""
    title: str | None = None
    """Title of the report; None: one is made up from the runs."""
    question: str | None = None
    """Question that the report answers, printed under its title; None: nothing is."""
    margin_points: float = 1.0
    """Margin of equivalence: smaller differences would interest nobody. In points, that is hundredths of the score."""

    def run(self) -> int:
        import sys

        from toolkit.progress import reporting_progress
        from toolkit.reporting.comparison.find import find_runs
        from toolkit.reporting.comparison.report import write_report
        from toolkit.reporting.folder import check_out

        check_out(self.out)
        for line in find_runs(self.runs).left_out:
            print(line, file=sys.stderr)
        options = {"title": self.title, "question": self.question, "margin_points": self.margin_points}
        with reporting_progress() as hear:
            report = write_report(self.runs, self.out, on_progress=hear, **options)  # type: ignore[arg-type]
        print(f"Report: {report}\nOpen:   {report.with_name('index.html')}")
        return 0
