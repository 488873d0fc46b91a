"""The folder of a report and its files: what an earlier report wrote there is replaced, nothing else is touched."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.comparison.evidence import WRITTEN as WRITTEN
from toolkit.comparison.evidence import large_tables
from toolkit.comparison.evidence import written_files as written_files
from toolkit.naming import first_few, refuse_first, shown_path
from toolkit.reporting.chart_files import write_charts
from toolkit.reporting.page import Page, charts_of
from toolkit.reporting.render_html import render_page
from toolkit.reporting.render_markdown import render_markdown
from toolkit.snapshots import files
from toolkit.snapshots.csv_tables import csv_of
from toolkit.snapshots.ownership import (
    LISTED,
    Owned,
    check_replaceable,
    files_in,
    is_temporary_folder,
    make_folder,
    read_list,
    remove_empty_folder,
    remove_file,
    remove_temporary_folders,
    replace_file,
    seal,
    temporary_folder,
)
from toolkit.snapshots.store import run_around
from toolkit.snapshots.unfinished import locked

if TYPE_CHECKING:
    import pandas as pd

PAGES = ("report.md", "index.html", "cards.json")
"""What a report writes beside its folders."""
LOCK = ".report.lock"
"""Lies in a folder while a report is written into it."""


def check_out(out: str | Path) -> Path:
    """Where a report goes; ValueError where it cannot, before anything is computed or touched.

    So it is where ``out`` or a folder above it is a file, or a run directory; where ``out`` holds anything, but no
    files.json of an earlier report; and where what an earlier report wrote there has changed since.
    """
    out = Path(out)
    file = next((path for path in (out, *out.parents) if path.exists() and not path.is_dir()), None)
    run = run_around(out)
    owned = read_list(out, WRITTEN)
    # Leftovers of a report that was killed are none of the user's.
    paths = out.iterdir() if out.is_dir() else ()
    present = sorted(path.name for path in paths if path.name != LOCK and not is_temporary_folder(path))
    names = (*owned.files, *PAGES) if owned is not None else ()
    changed = [name for name in names if owned is not None and not owned.is_free(out / name)]
    faults = {
        f"{shown_path(file or out)} is a file where the report's folder should go: pass another --out": file,
        f"the report would lie inside the run {(run or out).name}: pass another --out": run,
        f"{shown_path(out)} is a link to nothing: pass another --out": out.is_symlink() and not out.exists(),
        f"{shown_path(out)} holds {first_few(present)}, and no {WRITTEN} of a report: pass another --out, a folder of "
        "its own; nothing there was touched": present and owned is None,
        f"{shown_path(out)} holds {first_few(changed)}, not as an earlier report wrote it: move that away, or pass "
        "another --out; nothing there was touched": changed,
    }
    refuse_first(faults)
    return out


def check_if_asked(out: Path | None) -> None:
    """As :func:`check_out`, of a command that writes a report only where ``--out`` asks for one."""
    if out is not None:
        check_out(out)


def publish(page: Page, folder: Path, tasks: Collection[str] = ()) -> None:
    """Write index.html, report.md and figures/ of ``page`` into ``folder``; ``tasks`` are those of render_markdown."""
    write_charts(folder / "figures", {block.name: block.spec for block in charts_of(page)})
    files.write_text(folder / "report.md", render_markdown(page, tasks))
    files.write_text(folder / "index.html", render_page(page))


def write_page(page: Page, out: str | Path, tables: "Mapping[str, pd.DataFrame]", **options: str) -> Path:
    """Write a page with its figures/, and tables/ with a CSV of each table, into ``out``; the path of report.md.

    The options are those of ``DataFrame.to_csv``. ValueError as :func:`report_folder`.
    """
    with report_folder(out) as folder:
        write_csvs(folder / "tables", tables, **options)
        publish(page, folder)
    return Path(out) / "report.md"


def write_csvs(folder: Path, tables: "Mapping[str, pd.DataFrame]", **options: str) -> None:
    """Write each table as ``<name>.csv``; the options are those of ``DataFrame.to_csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        files.write_text(folder / f"{name}.csv", csv_of(table, **options))


@contextmanager
def report_folder(out: str | Path) -> Iterator[Path]:
    """A folder to write a report into, whose files come into ``out`` when all are written.

    files.json names them there. Files that an earlier report wrote into ``out`` and this one does not have are removed.
    Whatever else lies there stays. If the report fails, ``out`` is as it was. ValueError as :func:`check_out`, and
    where a file that the report has made lies there already and is not an earlier report's, or another process is
    writing a report there.
    """
    out = check_out(out)
    is_new = not out.exists()
    make_folder(out)
    try:
        with locked(out, LOCK):
            remove_temporary_folders(out)  # of a report that was killed
            with temporary_folder(out) as folder:
                yield folder
                _move_into_place(folder, out)
    except BaseException:
        if is_new:
            remove_empty_folder(out)
        raise


def _move_into_place(folder: Path, out: Path) -> None:
    """Move a finished report from its temporary folder into its place, and remove what an earlier one had besides."""
    new_files = files_in(folder)
    hashes = {name: files.sha256_of_file(path) for name, path in new_files.items()}
    large = large_tables(folder, new_files)
    earlier = read_list(out, WRITTEN) or Owned(out, "")  # a files.json that is none of ours is not replaced either
    for name in new_files:
        check_replaceable(out / name, earlier)  # all of them before any is touched
    unlisted = [name for name in new_files if not re.fullmatch(LISTED[WRITTEN], name)]
    refuse_first({f"no list of a report may name {first_few(unlisted)}, which it could not replace later": unlisted})
    earlier_hashes = {name: files.sha256_of_file(out / name) for name in earlier.files if (out / name).is_file()}
    earlier_hashes = {name: digest for name, digest in earlier_hashes.items() if digest in earlier.files[name]}
    # First: what is moved next must be known as a report's, as it was and as it will be, if this is cut short.
    owned = _save_list(folder, earlier, hashes, earlier_hashes)
    for name, path in new_files.items():
        make_folder((out / name).parent)
        replace_file(path, out / name, owned)
    for name in earlier_hashes.keys() - hashes.keys():
        remove_file(out / name, owned)
    _save_list(folder, owned, hashes, large=large)


def _save_list(
    folder: Path,
    owned: Owned,
    hashes: Mapping[str, str],
    before: Mapping[str, str] | None = None,
    large: Sequence[str] = (),
) -> Owned:
    """Put files.json in place, made in ``folder``; the files that are ours from then on.

    ``hashes``: name of a file to its sha256, as it will be; ``before``: as it was; ``large``: tables that git is not to
    keep.
    """
    contents = (
        {"files": dict(sorted(hashes.items()))}
        | ({"before": dict(sorted(before.items()))} if before else {})
        | ({"large": large} if large else {})
    )
    files.write_text(folder / WRITTEN, seal(contents))
    replace_file(folder / WRITTEN, owned.folder / WRITTEN, owned)
    versions = (hashes, before or {})
    names = dict.fromkeys(name for version in versions for name in version)
    hashes_by_name = {name: [version[name] for version in versions if name in version] for name in names}
    return Owned(owned.folder, WRITTEN, hashes_by_name)
