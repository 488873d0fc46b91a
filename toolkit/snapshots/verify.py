"""A finished run in, how its files differ from what its manifest says out."""

from pathlib import Path

from toolkit.snapshots.store import EXPOSURE, MANIFEST, SMALL_FILES, SNAPSHOTS, open_run

DRIFT_FILES = (SNAPSHOTS, EXPOSURE, *SMALL_FILES)
"""What a report of drift reads of a run: all but ``model/``."""


def verify_run(path: str | Path) -> list[str]:
    """Recompute every hash of a finished run; the differences, one line each, none when all is as it was.

    A file that the manifest does not name is one, wherever it lies; only what a killed writer left is passed over.
    """
    run = open_run(path)
    if not (run.path / SNAPSHOTS).is_dir():
        raise ValueError(f"{run.path} is not a run directory: it has no snapshots/")
    if not run.is_finished:
        raise ValueError(f"{run.path} is unfinished (no {MANIFEST}): run it again with the same command")
    return run.differences(again=True)
