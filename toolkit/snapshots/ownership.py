"""Which files are ours, and the only code that removes or replaces one.

Ours is what a list in the same folder names: the manifest.json of a finished run, the unfinished.json of a run that is
being written, the files.json of a report. A list with a file's sha256 names that content: who changes the file makes it
theirs. Nothing else is ever removed or replaced, and no link is followed to do so.

A list may have come with the folder. One that is not as its own sha256 says, or that names any file which no command
writes, is none of ours, whatever else it names: LISTED has the names. A sha256 is no signature: who makes a whole list
anew can have what bears such a name, and has just the content that the list gives, taken for a report's or a run's (in
a run that is being written the name alone counts), and nothing else.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.naming import first_few

MANIFEST = "manifest.json"
JOURNAL = "unfinished.json"
"""In a run that is being written: each of its files, named there before it is made; becomes the manifest in the end."""
WRITTEN = "files.json"
FORMAT = 2
"""Version of every list, which holds its own sha256; what one of another names is not known to be ours."""
OF_A_RUN = (
    r"(config|vocabulary|optimizer|diverged)\.json|scores\.csv|predictions\.parquet|exposure\.safetensors"
    r"|snapshots/(epoch-[0-9]{3,}|step-[0-9]{8,})\.safetensors|(model|resume)/.+"
)
OF_A_REPORT = (
    r"report\.md|index\.html|cards\.json|tables/[^/]+\.(csv|parquet|tex|md|html)|figures/[^/]+\.(png|svg|pdf)"
    r"|evidence/[^/]+\.(json|csv|parquet)"
)
LISTED = {MANIFEST: OF_A_RUN, JOURNAL: OF_A_RUN, WRITTEN: OF_A_REPORT}
"""List to a pattern of the names that it may hold: whole names, from its folder."""
BLANK = 64 * "0"
"""Stands in the place of a list's own sha256 while that is computed."""

PIECE_BYTES = 2**23
"""Read, hashed or written at a time: in between, a thread that does so may have to wait for another's Python."""


def sha256_of_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    hasher = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        piece = memoryview(bytearray(min(os.fstat(file.fileno()).st_size + 1, PIECE_BYTES)))
        while size := file.readinto(piece):
            hasher.update(piece[:size])
    return hasher.hexdigest()


def seal(values: Mapping[str, Any]) -> str:
    """The text of a list that holds the sha256 of its own bytes."""
    head = {"format": FORMAT, "sha256": BLANK}
    text = json.dumps(head | {k: v for k, v in values.items() if k not in head}, indent=2, ensure_ascii=False) + "\n"
    return text.replace(BLANK, hashlib.sha256(text.encode()).hexdigest(), 1)


def is_sealed(raw: bytes, values: Mapping[str, Any]) -> bool:
    """Whether the ``raw`` bytes of a list, which are read as ``values``, have the sha256 that they should hold."""
    digest = values.get("sha256")
    blanked = raw.replace(str(digest).encode(), BLANK.encode(), 1)
    return bool(digest == hashlib.sha256(blanked).hexdigest())


@dataclass(frozen=True)
class Owned:
    """The files of ours in ``folder``: name to the sha256 that each may have, none for one that is being written."""

    folder: Path
    list_name: str
    files: Mapping[str, Collection[str]] = field(default_factory=dict)

    def holds(self, path: Path) -> bool:
        """Whether what lies at ``path`` is a file that the list names, as we left it, or what a killed writer left of
        one."""
        if not _is_plain(path) or self.is_linked(path):
            return False
        name = path.relative_to(self.folder).as_posix()
        if hashes := self.files.get(name):
            return sha256_of_file(path) in hashes
        return any(each == self.list_name or each in self.files for each in (name, of_temporary(name) or name))

    def is_linked(self, path: Path) -> bool:
        """Whether a link, or a file, stands where a folder on the way from ``folder`` to ``path`` should be."""
        return any(
            parent.is_symlink() or (parent.exists() and not parent.is_dir())
            for parent in takewhile(lambda parent: parent != self.folder, path.parents)
        )

    def is_free(self, path: Path) -> bool:
        """Whether nothing lies at ``path``, or a file that the list names, as we left it."""
        is_there = os.path.lexists(path)  # looked for first: what another thread writes between two looks is ours too
        return not self.is_linked(path) and (not is_there or self.holds(path))

    def entries(self) -> list[str]:
        """What lies in the folder but folders of :func:`temporary_folder`; see :func:`entries_of`."""
        return [name for name in entries_of(self.folder, self.files) if not is_temporary_folder(self.folder / name)]

    def foreign(self) -> list[str]:
        """What else lies in the folder, by name: the outermost folder, a changed file, a link."""
        return [name for name in self.entries() if not self.holds(self.folder / name)]


def entries_of(root: Path, named: Iterable[str], below: str = "") -> list[str]:
    """What lies in ``root``/``below``, by name from ``root``: every file and link, and a folder, with a slash at its
    end, where it is none that the ``named`` files lie in; in these, what they hold, through a link too."""
    parents = {place.as_posix() for name in named for place in PurePosixPath(name).parents}
    found, places = [], [root / below]
    while places:
        for path in places.pop().iterdir():
            name = path.relative_to(root).as_posix()
            if path.is_dir() and name in parents:
                places.append(path)
            else:
                found.append(f"{name}/" if path.is_dir() and not path.is_symlink() else name)
    return sorted(found)


def read_list(folder: Path, list_name: str) -> Owned | None:
    """What a list in ``folder`` names; None where there is none, or none of ours."""
    path = folder / list_name
    if not _is_plain(path):
        return None
    try:
        values = json.loads(raw := path.read_bytes())
        parts = [values["files"], values.get("before", {})]
        entries = [entry for part in parts for entry in part.items()]
        is_known = values["format"] == FORMAT and is_sealed(raw, values)
        is_empty = list_name == MANIFEST and not entries
        if is_empty or not is_known or not all(_is_entry(name, digest, list_name) for name, digest in entries):
            return None
        return Owned(folder, list_name, {n: [part[n] for part in parts if part.get(n)] for n, _ in entries})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_entry(name: str, digest: object, list_name: str) -> bool:
    """Whether a list may name such a file: one that is written beside it, with its sha256 or, in a run that is being
    written, without."""
    place = PurePosixPath(name)
    is_within = name == place.as_posix() and ".." not in place.parts
    is_hash = isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) is not None
    is_written = re.fullmatch(LISTED[list_name], name, re.DOTALL) is not None
    return is_within and is_written and (is_hash or (digest is None and list_name == JOURNAL))


def of_temporary(name: str) -> str | None:
    """The file that :func:`atomic_path` writes under such a name before it is whole; None for any other name."""
    found = re.fullmatch(r"((?:.*/)?)\.([^/]+)\.[0-9]+\.tmp", name, re.DOTALL)
    return None if found is None else found[1] + found[2]


def _is_plain(path: Path) -> bool:
    """Whether a file lies there, and no link to one."""
    return path.is_file() and not path.is_symlink()


def check_replaceable(path: Path, owned: Owned | None = None, *, may_replace: bool = False) -> None:
    """The rule: ValueError where something lies at ``path`` that no list names as it is.

    ``may_replace``: the user named this one file and asked for it to be replaced.
    """
    if not ((owned or Owned(path.parent, "")).is_free(path) or (may_replace and _is_plain(path))):
        raise ValueError(f"{path} is there already, not as the toolkit wrote it: move it away, or write elsewhere")


def replace_file(source: Path, path: Path, owned: Owned | None = None, *, may_replace: bool = False) -> None:
    """Move a file of ours to ``path``, durably: a power cut leaves the one or the other there, whole.

    ValueError as :func:`check_replaceable`.
    """
    check_replaceable(path, owned, may_replace=may_replace)
    sync(source)
    source.replace(path)
    sync(path.parent)


def remove_file(path: Path, owned: Owned) -> None:
    """Remove a file, and its folders within the list's that are empty then; one that is not there is removed already.

    ValueError as :func:`check_replaceable`.
    """
    check_replaceable(path, owned)
    _unlink(path, owned.folder)
    # Before a list is written that no longer names it: a power cut would bring back what is nobody's then.
    sync(next(parent for parent in path.parents if parent.exists()))


def _unlink(path: Path, folder: Path) -> None:
    """Remove a file that was checked, and its folders within ``folder`` that are empty then."""
    path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty, or not there
        for parent in takewhile(lambda parent: parent != folder, path.parents):
            parent.rmdir()


@contextmanager
def atomic_path(path: Path, owned: Owned | None = None, *, may_replace: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success :func:`replace_file`, on failure remove it.

    ValueError as :func:`check_replaceable`, before anything is written.
    """
    check_replaceable(path, owned, may_replace=may_replace)
    temporary = path.with_name(f".{path.name}.{_new_number()}.tmp")
    temporary.touch(exist_ok=False)
    try:
        yield temporary
        replace_file(temporary, path, owned, may_replace=may_replace)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _new_number() -> str:
    """What tells something temporary of ours from all others, a user's too: process numbers come again."""
    return f"{secrets.randbelow(10**18):018}"


def sync(path: Path) -> None:
    """Have a file's content, or a folder's names, on the disk: without this a power cut may undo what was written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it lies in, durably, where they are not there."""
    new = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for place in new:
        sync(place.parent)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent`` to fill; whatever is still in it at the end is removed."""
    folder = parent / f".unfinished-{_new_number()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_temporary_folder(path: Path) -> bool:
    """Whether :func:`temporary_folder` made a folder: it is ours with all that is in it."""
    return re.fullmatch(r"\.unfinished-[0-9]{18}", path.name) is not None and path.is_dir() and not path.is_symlink()


def files_in(folder: Path) -> dict[str, Path]:
    """Name to path of every file in a folder."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def remove_temporary_folders(parent: Path) -> None:
    """Remove what killed processes left of :func:`temporary_folder` in ``parent``."""
    for path in filter(is_temporary_folder, parent.iterdir()):
        shutil.rmtree(path, ignore_errors=True)


def clear(owned: Owned, keep: Collection[str] = ()) -> None:
    """Remove every file that a list names, and the list last: killed at any moment, what is left is known as ours.

    Files that ``keep`` names stay, and the list with them. ValueError, before anything is removed, where anything else
    lies in the folder; the folder itself stays.
    """
    if foreign := owned.foreign():
        raise ValueError(f"{owned.folder} holds {first_few(foreign)}, which the toolkit did not write: move that away")
    remove_temporary_folders(owned.folder)
    names = dict.fromkeys([*owned.entries(), *owned.files])  # the second for folders that are empty
    for name in sorted(names, key=lambda name: name == owned.list_name):
        if name not in keep and not (keep and name == owned.list_name):
            _unlink(owned.folder / name, owned.folder)


def move_folder(source: Path, place: Path) -> None:
    """Rename a folder of ours to where nothing is, durably; OSError where something is."""
    source.rename(place)
    sync(place.parent)


def move_aside(folder: Path, word: str) -> Path:
    """Rename a folder to a free name beside its place, hidden from what looks for runs; where it is then."""
    places = (folder.with_name(f".{folder.name}.{word}-{number}") for number in count(1))
    place = next(place for place in places if not os.path.lexists(place))
    move_folder(folder, place)
    return place


def remove_empty_folder(path: Path) -> None:
    """Remove a folder that has nothing in it; any other stays."""
    with suppress(OSError):
        path.rmdir()


def is_lock(path: Path) -> bool:
    """Whether a file is as we make a lock: a plain one with nothing in it."""
    return _is_plain(path) and path.stat().st_size == 0


def remove_lock(path: Path) -> None:
    """Remove a lock file, if it is as we make it."""
    with suppress(OSError):  # gone already, or open: Windows removes no open file, and its lock goes with its end
        if is_lock(path):
            path.unlink()
