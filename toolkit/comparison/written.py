"""The files of a report: what it wrote, what has changed since, and what need not be kept.

files.json   name and sha256 of each file that the report wrote; ``large``: the tables too large to be kept
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from toolkit.snapshots import files

WRITTEN = "files.json"
FORMAT = 1
"""Version of files.json; a reader removes nothing that a newer one names."""

MADE_AGAIN = (".svg", ".pdf", ".tex", ".parquet")
"""Endings of what is made again from the evidence, and may be left out of what is kept."""
LARGE_BYTES = 50_000
"""So may a CSV file of more bytes."""


def written_files(out: Path) -> dict[str, str]:
    """Name to sha256 of what a report wrote into a folder; empty where that is not known."""
    return dict(_read(out).get("files", {}))


def _read(out: Path) -> dict[str, Any]:
    try:
        values = json.loads((out / WRITTEN).read_text(encoding="utf-8"))
        dict(values["files"])
        return dict(values) if values["format"] <= FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def check_written(out: Path) -> tuple[list[str], list[str]]:
    """One line for each file that is missing or changed, and the names of those that need not be kept and were not.

    Nothing without a files.json, which older reports do not have. What is made again from the evidence need not be
    kept: the page, charts but the pictures that report.md shows, LaTeX, Parquet and large CSV files of tables.
    """
    expected = written_files(out)
    if not expected and (out / WRITTEN).exists():
        return [f"{WRITTEN} cannot be read: what else the report wrote is not known"], []
    missing = [name for name in expected if not (out / name).is_file()]
    changed = [n for n in expected if n not in missing and files.sha256_of_file(out / n) != expected[n]]
    spare = _spare(out, missing)
    lines = [f"missing: {name}" for name in missing if name not in spare]
    return [*lines, *(f"changed: {name}" for name in changed)], spare


def large_tables(out: Path, names: Iterable[str]) -> list[str]:
    """The CSV files of tables/ that are too large to be kept."""
    tables = (name for name in names if name.startswith("tables/") and name.endswith(".csv"))
    return sorted(name for name in tables if (out / name).stat().st_size > LARGE_BYTES)


def _spare(out: Path, names: Sequence[str]) -> list[str]:
    """Which of some names need not be kept."""
    page, large = out / "report.md", _read(out).get("large", [])
    shown = page.read_text(encoding="utf-8") if page.is_file() else ""

    def is_spare(name: str) -> bool:
        is_unseen = name.startswith("figures/") and name.endswith(".png") and bool(shown) and f"({name})" not in shown
        return is_unseen or name == "index.html" or name.endswith(MADE_AGAIN) or name in large

    return [name for name in names if is_spare(name) and not name.startswith("evidence/")]
