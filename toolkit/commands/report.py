"""``report RUNS`` and ``report --from FOLDER``: a report of run directories, or one made again from its evidence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from toolkit.progress import show


@dataclass(frozen=True, slots=True)
class ReportCommand:
    """Compare finished runs: scores, drift and verdicts in index.html and report.md, with figures and tables."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories. Unfinished ones and other folders that a glob (runs/*) brings along are left out and named."""
    out: Path | None = None
    """Folder for this report alone, made where it is missing; a report that is there is replaced. With --from,
    None: the report's own folder."""
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Folder of a report, which is made again from its evidence alone, without a run: pages, figures, tables, cards."""
    title: str | None = None
    """Title of the report; None: made from the runs."""
    question: str | None = None
    """Question that the report answers, printed under its title; None: no question."""
    margin_points: float = 1.0
    """Margin of equivalence in points (hundredths of the score): smaller differences do not matter."""

    def run(self) -> int:
        from toolkit.progress import reporting_progress
        from toolkit.reporting.comparison_report import report_from, write_report
        from toolkit.reporting.folder import check_out
        from toolkit.reporting.sources import find_runs

        options = {"title": self.title, "question": self.question, "margin_points": self.margin_points}
        if self.from_ is not None:
            if self.runs or options != {"title": None, "question": None, "margin_points": 1.0}:
                raise ValueError("--from makes a report again as its evidence has it: only --out goes with it")
            with reporting_progress() as hear:
                report = report_from(self.from_, self.out, on_progress=hear)
        else:
            if not self.runs or self.out is None:
                raise ValueError("report needs run directories and --out FOLDER, or --from with the folder of a report")
            check_out(self.out)
            for line in find_runs(self.runs).left_out:
                show(line, is_result=False)
            with reporting_progress() as hear:
                report = write_report(self.runs, self.out, on_progress=hear, **options)  # type: ignore[arg-type]
        show(f"Report: {report}\nOpen:   {report.with_name('index.html')}")
        return 0
