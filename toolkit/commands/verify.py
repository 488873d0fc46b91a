"""``verify DIRECTORY``: every hash of a run, or every hash and card of a report, computed again."""

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True, slots=True)
class Verify:
    """Recompute every hash of a run directory, or every hash and card of a report; exit code 1 on any difference."""

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
        from toolkit.snapshots.store import open_run
        from toolkit.snapshots.verify import verify_run

        if self.directory.is_file():
            raise ValueError(f"{self.directory} is a file, not a folder: pass a run directory or a report's folder")
        if not self.directory.exists():
            raise ValueError(f"no run directory and no report at {self.directory}")
        try:
            open_run(self.directory)
        except ValueError:
            raise ValueError(f"{self.directory} is neither a run directory nor a report with cards") from None
        if self.runs is not None:
            raise ValueError(f"{self.directory} is a run: --runs says where a report's runs are, leave it out")
        differences = verify_run(self.directory)
        print("\n".join(differences) or f"{self.directory}: every file is as the manifest says")
        return 1 if differences else 0
