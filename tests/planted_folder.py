"""A folder of a user's own, with the names that runs and reports use too, and all of its bytes."""

import os
from pathlib import Path

FILES = {
    "thesis.tex": "\\documentclass{article}",
    "report.md": "# My report",
    "index.html": "<p>mine</p>",
    "tables/runs.csv": "a,b\n1,2\n",
    "figures/mine.png": "no picture",
    "data/train.csv": "text,label\ngood,1\n",
    "data/rows.parquet": "my rows",
    "config.json": '{"model_type": "bert"}',
    "manifest.json": '{"format": 1, "files": {"app.js": "1f"}, "name": "of another tool"}',
    "files.json": '["thesis.tex"]',
    "unfinished.json": '{"todo": ["chapter 3"]}',
    "snapshots/keep.txt": "keep",
    ".git/HEAD": "ref: refs/heads/main",
    ".hidden": "hidden",
    ".unfinished-chapter/notes.txt": "notes",
    "models--bert/refs/main": "abc",
    "models--bert/blobs/0f": "{}",
}
LINKS = {
    "link.png": "../outside/file.png",
    "figure": "../outside",
    "models--bert/snapshots/abc/config.json": "../../blobs/0f",
}


def plant(parent: Path, names: tuple[str, ...] = (*FILES, *LINKS)) -> Path:
    """Make ``parent``/mine of some of the names, and ``parent``/outside, to which links lead; the first."""
    folder, outside = parent / "mine", parent / "outside"
    outside.mkdir(parents=True)
    (outside / "file.png").write_text("outside")
    folder.mkdir()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name in LINKS:
            (folder / name).symlink_to(LINKS[name])
        else:
            (folder / name).write_text(FILES[name])
    return folder


def contents(folder: Path) -> dict[str, object]:
    """Everything below a folder: bytes, targets of links, and when it was changed."""
    found: dict[str, object] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            shown = path.relative_to(folder).as_posix()
            if path.is_symlink():
                found[shown] = ("link", str(path.readlink()))
            else:
                content = path.read_bytes() if path.is_file() else "folder"
                found[shown] = (content, path.stat().st_mtime_ns if path.is_file() else None)
    return found
