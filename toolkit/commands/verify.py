"""``verify DIRECTORIES``: every hash of a run, or every hash and card of a report, computed again."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from toolkit.progress import show


@dataclass(frozen=True, slots=True)
class VerifyCommand:
    """Check that a run (all hashes) or a report (all hashes and verdicts) is as written; exit code 1 if not."""

    directory: tyro.conf.Positional[Path]
    """Run directory, or folder of a report."""
    more: tyro.conf.Positional[tuple[Path, ...]] = ()
    """More run directories or reports."""
    runs: Path | None = None
    """Folder in which a report's runs are looked for; None: runs/, beside the report, and in runs/ beside it."""

    def run(self) -> int:
        directories, errors, differ = (self.directory, *self.more), [], False
        for directory in directories:
            try:
                lines, differs = self._verify(directory)
            except ValueError as error:  # one that cannot be verified does not keep the others from it
                errors.append(str(error))
                continue
            differ |= differs
            head = f"{directory}: " if self.more else ""
            said = "\n".join(line if line.startswith(head) else head + line for line in lines)
            show(said)
        if errors:
            raise ValueError("; ".join(errors))
        return 1 if differ else 0

    def _verify(self, directory: Path) -> tuple[list[str], bool]:
        """What there is to say of a run or a report, and whether it differs from what was written."""
        from toolkit.comparison.verify import describe, is_report

        if is_report(directory):
            return describe(directory, self.runs)
        from toolkit.snapshots.store import open_run, verify_run

        if directory.is_file():
            raise ValueError(f"{directory} is a file, not a folder: pass a run directory or a report's folder")
        if not directory.exists():
            raise ValueError(f"no run directory and no report at {directory}")
        try:
            open_run(directory)
        except ValueError:
            raise ValueError(f"{directory} is neither a run directory nor a report with cards") from None
        if self.runs is not None and not self.more:
            raise ValueError(f"{directory} is a run: --runs says where a report's runs are, leave it out")
        differences = verify_run(directory)
        return differences or [f"{directory}: every file is as the manifest says"], bool(differences)
