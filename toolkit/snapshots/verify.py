"""A finished run in, how its files differ from what its manifest says out."""

from collections.abc import Mapping
from pathlib import Path

from toolkit.snapshots.store import MANIFEST, Run, hash_files, open_run

SMALL_FILES = ("config.json", "optimizer.json", "predictions.parquet", "scores.csv", "vocabulary.json")
"""The files of a run that hold no tensors."""
DRIFT_FILES = ("snapshots/", "exposure.safetensors", *SMALL_FILES)
"""What a report of drift reads of a run: all but ``model/``."""


def verify_run(path: str | Path) -> list[str]:
    """Recompute every hash of a finished run; the differences, one line each, none when all is as it was."""
    run = open_run(path)
    if not (run.path / "snapshots").is_dir():
        raise ValueError(f"{run.path} is not a run directory: it has no snapshots/")
    if not run.is_finished:
        raise ValueError(f"{run.path} is unfinished (no {MANIFEST}): run it again with the same command")
    return _differences(run.manifest["files"], hash_files(run.path))


def verify_files(run: Run, *names: str) -> list[str]:
    """:func:`verify_run` of some files of a finished run, or of all below a folder (``model/``), and of no new ones."""
    expected = {name: digest for name, digest in run.manifest.get("files", {}).items() if name.startswith(names)}
    return _differences(expected, hash_files(run.path, expected))


def check_files(run: Run, *names: str) -> None:
    """ValueError where a finished run's files are not as they were; see :func:`verify_files`."""
    if run.is_finished and (differences := verify_files(run, *names)):
        raise ValueError(f"{run.path} is not as its manifest says ({'; '.join(differences)}): restore it, or run again")


def _differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    lines = [f"missing: {name}" for name in expected if name not in found]
    lines += [f"changed: {name}" for name in expected if name in found and found[name] != expected[name]]
    return lines + [f"not in the manifest: {name}" for name in found if name not in expected]
