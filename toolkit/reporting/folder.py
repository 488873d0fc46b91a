"""A report's files in, its folder out: what an earlier report wrote there is replaced, and nothing else is touched."""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from toolkit.analysis.comparison.written import FORMAT
from toolkit.analysis.comparison.written import WRITTEN as WRITTEN
from toolkit.analysis.comparison.written import written_files as written_files
from toolkit.naming import shown_path
from toolkit.snapshots import files

if TYPE_CHECKING:
    import pandas as pd

_UNFINISHED = ".unfinished-"


def check_out(out: Path) -> None:
    """ValueError when what is to become a report's folder, or one above it, is a file."""
    if file := next((path for path in (out, *out.parents) if path.exists() and not path.is_dir()), None):
        raise ValueError(f"{shown_path(file)} is a file where the report's folder should go: pass another --out")


def write_csvs(folder: Path, tables: "Mapping[str, pd.DataFrame]") -> None:
    """Write each table as ``<name>.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        files.write_text(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))


def write_page(out: Path, parts: Iterable[str]) -> Path:
    """Write the paragraphs of report.md; its path."""
    files.write_text(out / "report.md", "\n\n".join(parts) + "\n")
    return out / "report.md"


@contextmanager
def report_folder(out: Path) -> Iterator[Path]:
    """A folder to write a report into, whose files come into ``out`` when all are written.

    Files that an earlier report wrote into ``out`` and this one does not have are removed, unless somebody has changed
    them since. Whatever else lies there stays. If the report fails, ``out`` is as it was.
    """
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob(f"{_UNFINISHED}*"):  # of a report that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(dir=out, prefix=_UNFINISHED) as folder:
            yield Path(folder)
            _publish(Path(folder), out)
    except BaseException:
        if is_new and not any(out.iterdir()):
            out.rmdir()
        raise


def _publish(folder: Path, out: Path) -> None:
    made = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    hashes = {name: files.sha256_of_file(path) for name, path in made.items()}
    earlier = written_files(out)
    _save(out, earlier | hashes)  # first: what is moved next must be known as a report's if this is cut short
    for name, path in made.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        path.replace(out / name)
    for name in earlier.keys() - hashes.keys():
        _remove(out, name, earlier[name])
    _save(out, hashes)


def _save(out: Path, hashes: Mapping[str, str]) -> None:
    values = {"format": FORMAT, "files": dict(sorted(hashes.items()))}
    files.write_text(out / WRITTEN, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def _remove(out: Path, name: str, digest: str) -> None:
    """Remove a file of an earlier report that is still what it wrote, and its folder if nothing else is in there."""
    path, place = out / name, PurePosixPath(name)
    is_within = not place.is_absolute() and ".." not in place.parts
    if is_within and path.is_file() and files.sha256_of_file(path) == digest:
        path.unlink()
        if path.parent != out and not any(path.parent.iterdir()):
            path.parent.rmdir()
