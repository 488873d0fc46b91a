"""A report's folder in, every file out that is no longer what the report wrote there.

files.json   name and sha256 of each file that the report wrote
"""

import json
from pathlib import Path

from toolkit.snapshots import files

WRITTEN = "files.json"
FORMAT = 1
"""Version of files.json; a reader removes nothing that a newer one names."""


def written_files(out: Path) -> dict[str, str]:
    """Name to sha256 of what a report wrote into a folder; empty where that is not known."""
    try:
        values = json.loads((out / WRITTEN).read_text(encoding="utf-8"))
        return dict(values["files"]) if values["format"] <= FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def check_written(out: Path) -> list[str]:
    """One line for each file that is missing or changed; none without a files.json, which older reports do not have."""
    expected = written_files(out)
    if not expected and (out / WRITTEN).exists():
        return [f"{WRITTEN} cannot be read: what else the report wrote is not known"]
    missing = [name for name in expected if not (out / name).is_file()]
    changed = [n for n in expected if n not in missing and files.sha256_of_file(out / n) != expected[n]]
    return [*(f"missing: {name}" for name in missing), *(f"changed: {name}" for name in changed)]
