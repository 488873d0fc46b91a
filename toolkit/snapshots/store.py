"""The run directory: written by a run, read by :func:`open_run`."""

import contextlib
import errno
import json
import math
import os
import platform
import re
import subprocess
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from safetensors import safe_open

from toolkit.config import FORMAT as FORMAT_OF_CONFIG
from toolkit.config import RunConfig
from toolkit.families import TABLES
from toolkit.lookup import REMEDY, NewerFormatError, parse_object, read_object
from toolkit.naming import Described
from toolkit.progress import shows_progress
from toolkit.snapshots import files, formats
from toolkit.snapshots.exposure import Exposure
from toolkit.snapshots.optimizer_log import OptimizerLog
from toolkit.snapshots.ownership import FORMAT as MANIFEST_FORMAT
from toolkit.snapshots.ownership import (
    JOURNAL,
    MARKER,
    Owned,
    check_replaceable,
    clear,
    files_in,
    is_lock,
    is_marked,
    is_sealed,
    mark,
    move_folder,
    read_list,
    remove_empty_folder,
    remove_file,
    remove_lock,
    remove_marked,
    replace_file,
    seal,
    shown,
    swap_folders,
    temporary_folder,
)
from toolkit.snapshots.ownership import MANIFEST as MANIFEST
from toolkit.snapshots.resume import INDEX, NUM_KEPT, State, Tensors, index_text, read_state, state_name
from toolkit.snapshots.snapshot import FORMAT, Snapshot, Trajectory, Vocabulary, check_alike, read_snapshot

if TYPE_CHECKING:
    import pandas as pd


class BackgroundWriter:
    """One thread that writes what it is given, in order; at most one thing waits.

    Writing waits for the disk more than it computes, so that it costs training little. What a thing to write reads
    must not change any more. Its error comes at the next call of anything here.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run-writer")
        self._last: Future[object] | None = None

    def start(self, write: Callable[[], object]) -> None:
        """Have ``write`` called once everything before it is written: until then this waits."""
        self.wait()
        self._last = self._pool.submit(write)

    def check(self) -> None:
        """Raise the error of what has been written, if any; does not wait."""
        if self._last is not None and self._last.done():
            self.wait()

    def wait(self) -> None:
        """Until everything is written; raises its error."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """Until everything is written, without its error: for the way out after another one."""
        self._pool.shutdown()


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_REFUSED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)
"""What file systems without locks answer."""

_held: "weakref.WeakValueDictionary[Path, RunLock]" = weakref.WeakValueDictionary()
"""This process's own locks, by lock file."""


def try_lock(file: int | IO[bytes]) -> bool:
    """Lock an open file until the last process that inherits it has closed it; False while another holds it.

    True also where there are no locks: who cannot lock goes on without.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    return True


class RunLock:
    """The right to write one run directory, until it is released or dropped or the process ends.

    A process that starts a run again takes its own lock over: what holds it may be a writer that an exception left
    behind, and that a notebook's traceback keeps alive.
    """

    def __init__(self, path: Path) -> None:
        """ValueError when another process holds the lock."""
        # Beside the directory, which is removed and made again; resolved, so that a folder has one lock, links or not.
        place = path.resolve()
        self.path = place.parent / f".{place.name}.lock"
        self._pid, self.is_lost = os.getpid(), False
        earlier = _held.get(self.path)
        descriptor = earlier._hand_over() if earlier is not None else None
        if descriptor is None and (descriptor := _open_locked(self.path)) is None:
            raise _refusal(path, self.path)
        self._close = weakref.finalize(self, _close, self.path, descriptor, self._pid)
        _held[self.path] = self

    def release(self) -> None:
        """Let others write; to release twice, or what was taken over, does nothing."""
        self._close()

    def _hand_over(self) -> int | None:
        """The open lock file, no longer this object's; None when it is released, or is a parent process's."""
        if self._pid != os.getpid() or (kept := self._close.detach()) is None:
            return None
        self.is_lost = True
        descriptor: int = kept[2][1]
        return descriptor


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Keep every other writer, also one of this process, out of ``folder`` by a lock file in it that goes at the end.

    ValueError when another has it.
    """
    path, pid = folder / name, os.getpid()
    if (descriptor := _open_locked(path)) is None:
        raise _refusal(folder, path)
    try:
        yield
    finally:
        _close(path, descriptor, pid)


def _refusal(path: Path, lock: Path) -> ValueError:
    return ValueError(
        f"another process is writing {path}: wait until it has ended, or end it (if there is none, delete {lock})"
    )


def _open_locked(path: Path) -> int | None:
    """A locked file, open; None while another process holds it."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR):
                raise
            raise ValueError(f"{path} is in the way of a lock file: move it away") from None
        try:
            if not is_lock(descriptor):
                raise ValueError(f"{path} is not empty, so it is not a lock file of this toolkit: move it away")
            if not try_lock(descriptor):
                os.close(descriptor)
                return None
            # The one who held it may have removed it since it was opened: that lock would keep nobody out.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _close(path: Path, descriptor: int, pid: int) -> None:
    if fcntl is None:
        os.close(descriptor)  # Windows removes no open file
    if pid == os.getpid():  # a forked child shares the lock, and leaves it to its parent
        remove_lock(path)
    if fcntl is not None:
        os.close(descriptor)


PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy", "pandas",
            "scikit-learn", "scipy")  # fmt: skip


def read_versions() -> dict[str, str]:
    """Package name to version, Python and the toolkit among them; a package that is not installed is left out."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("embedding-drift-toolkit", *PACKAGES):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def read_git_commit() -> str | None:
    """The commit of the toolkit's checkout, with ``-dirty`` when it has changes; None when it is installed."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        describe = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


T = TypeVar("T")

DIVERGED = "diverged.json"
"""Stands in an unfinished run whose training stopped because its loss was not finite: the same again would too."""

SNAPSHOTS = "snapshots/"
SNAPSHOT = re.compile(r"(epoch-[0-9]{3,}|step-[0-9]{8,})\.safetensors")
"""The name of a snapshot's file, whole: any other file below ``snapshots/`` is somebody else's."""
SMALL_FILES = ("config.json", "optimizer.json", "predictions.parquet", "scores.csv", "vocabulary.json")
"""The files of a run that hold no tensors."""
EXPOSURE = "exposure.safetensors"
UNNAMED = "not in the manifest: "

MOST_ROWS = 2**31
"""Of any table; a position offset is below it."""

RECORDED = "is_recorded"
"""The field of config.json that marks a run which another training loop made."""


@dataclass
class RunWriter:
    """Writes one run directory, every file atomically, the manifest last.

    Until then unfinished.json names each file before it is there, so that whoever starts the run again knows which
    files are the run's.
    """

    path: Path
    """Where it writes; from :meth:`finish` on where the run is."""
    _digests: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Per parameter: (sha256, file name) of every distinct tensor written so far."""
    facts: dict[str, str] = field(default_factory=dict)
    """What analysis needs of the model, kept in every snapshot: an unfinished run has no manifest."""
    lock: RunLock | None = None
    """Keeps other processes out while this one writes."""
    replaces: Path | None = None
    """A finished run, which stays as it is until this one is finished and takes its place."""
    background: BackgroundWriter = field(default_factory=BackgroundWriter)
    """For what is written while training goes on; a run is finished and released after it."""
    _written: set[Path] = field(default_factory=set)
    _hashes: dict[str, str] = field(default_factory=dict)
    """Of the snapshots, each taken when it had been written."""
    _states: dict[str, str] = field(default_factory=dict)
    """Name to sha256 of the states that are kept, the newest first."""
    resumed: State | None = None
    """Where an unfinished run was taken up; None of one that starts anew."""
    _journal_lock: threading.Lock = field(default_factory=threading.Lock)
    """Snapshots are named by the thread that writes them, beside what this one names."""
    _names: dict[str, Collection[str]] = field(default_factory=dict)
    """Every file of the run so far, as :class:`Owned` has them."""

    def __post_init__(self) -> None:
        self._names |= owned_files(self.path).files
        if (self.path / MANIFEST).exists():  # a finished run that is written again
            self._names[MANIFEST] = ()
        # The list is ours from when we have written it: until then one that appears is somebody else's.
        list_name = JOURNAL if read_list(self.path, JOURNAL) is not None else ""
        self._owned = Owned(self.path, list_name, self._names)

    def write_config(self, config: RunConfig) -> None:
        files.write_text(self._own("config.json"), config.to_json(), self._owned)

    def write_recorded_config(self, facts: Mapping[str, Any]) -> None:
        """The config.json of a run that another training loop made: whatever is known of it, and no RunConfig."""
        values = {"format": FORMAT_OF_CONFIG, RECORDED: True, **facts}
        files.write_text(self._own("config.json"), json.dumps(values, indent=2, default=str) + "\n", self._owned)

    def write_vocabulary(self, vocabulary: Vocabulary) -> None:
        text = json.dumps(vocabulary.to_dict(), ensure_ascii=False) + "\n"
        files.write_text(self._own("vocabulary.json"), text, self._owned)

    def write_snapshot(
        self, epoch: float, step: int, tensors: Mapping[str, np.ndarray], *, is_epoch_end: bool = True
    ) -> Path:
        """Write ``epoch-NNN.safetensors`` (or ``step-NNNNNNNN``); a tensor seen before is named, not stored again."""
        name = _snapshot_name(epoch, step, is_epoch_end)
        path = self._own(name)
        path.parent.mkdir(exist_ok=True)
        metadata = {**self.facts, "format": FORMAT, "epoch": repr(float(epoch)), "step": str(step)}
        stored = {}
        for parameter, tensor in tensors.items():
            digest = files.sha256_of_array(tensor)
            known = dict(self._digests.setdefault(parameter, []))
            if digest in known:
                metadata[f"held_by.{parameter}"] = known[digest]
            else:
                stored[parameter] = tensor
                self._digests[parameter].append((digest, path.name))
        files.write_tensors(path, stored, metadata, self._owned)
        self._hashes[name] = files.sha256_of_file(path)
        return path

    def discard_snapshot(self, epoch: float, step: int, *, is_epoch_end: bool = True) -> None:
        """Take the last snapshot away again, in a run that goes no further."""
        self.background.wait()
        name = _snapshot_name(epoch, step, is_epoch_end)
        self._drop(name)
        self._hashes.pop(name, None)

    def moved_parameters(self) -> list[str]:
        """The parameters of which the snapshots so far hold more than one tensor."""
        return [name for name, tensors in self._digests.items() if len(tensors) > 1]

    def write_scores(self, scores: "pd.DataFrame") -> None:
        files.write_with(self._own("scores.csv"), lambda path: scores.to_csv(path, index=False), self._owned)

    def write_predictions(self, predictions: "pd.DataFrame") -> None:
        path = self._own("predictions.parquet")
        files.write_with(path, lambda path: predictions.to_parquet(path, index=False), self._owned)

    def write_exposure(self, exposure: Exposure | None) -> None:
        """Write the exposure so far; None, when it is not known after all, takes it away again."""
        if exposure is None:
            self._drop("exposure.safetensors")
        else:
            path = self._own("exposure.safetensors")
            files.write_tensors(path, exposure.to_tensors(), {"format": FORMAT}, self._owned)

    def write_optimizer_log(self, log: OptimizerLog | None) -> None:
        """Write the log so far; None, when there is none that describes the updates, takes it away again."""
        if log is None:
            self._drop("optimizer.json")
        else:
            files.write_text(self._own("optimizer.json"), log.to_json(), self._owned)

    def write_folder(self, name: str, write: Callable[[Path], object]) -> None:
        """Let ``write`` fill a folder of the run with whatever files it makes."""
        with temporary_folder(self.path) as made:
            write(made)
            found = files_in(made)
            for path, source in zip(self._own_all(f"{name}/{each}" for each in found), found.values(), strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(source, path, self._owned)

    def write_state(self, step: int, tensors: Tensors, facts: Mapping[str, Any]) -> None:
        """Write what the run needs to go on from here, in the place of the last state but one."""
        self.background.wait()
        state, name = State(step, tensors, facts, dict(self._hashes)), state_name(step)
        path = self._own(name)
        path.parent.mkdir(exist_ok=True)
        files.write_tensors(path, tensors, state.metadata(), self._owned)
        self._states = {name: files.sha256_of_file(path), **{k: v for k, v in self._states.items() if k != name}}
        old, self._states = list(self._states)[NUM_KEPT:], dict(list(self._states.items())[:NUM_KEPT])
        files.write_text(self._own(INDEX), index_text(self._states), self._owned)
        for name in old:
            self._drop(name)

    def drop_states(self) -> None:
        """Take the states away again: the run is finished, or the same again would end as it did."""
        for name in (*self._states, INDEX):
            self._drop(name)
        self._states = {}

    def go_on(self, state: State) -> None:
        """Take over what a run has written until ``state``."""
        for name, digest in state.snapshots.items():
            path = self._own(name)
            with safe_open(path, "numpy") as file:
                for parameter in file.keys():  # noqa: SIM118 (it has no other way)
                    own = (files.sha256_of_array(file.get_tensor(parameter)), path.name)
                    self._digests.setdefault(parameter, []).append(own)
            self._hashes[name] = digest
        self._states = {state_name(state.step): files.sha256_of_file(self._own(state_name(state.step)))}

    def write_divergence(self, message: str) -> None:
        """Note that training diverged: there will be no manifest."""
        self.drop_states()
        files.write_text(self._own(DIVERGED), json.dumps({"message": message}) + "\n", self._owned)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Hash all other files and write the manifest: from now on the run counts as finished, and others may write it.

        ValueError when what was written is no longer there, or the run was started again meanwhile.
        """
        self.background.wait()
        self.drop_states()
        self._check_held()
        if missing := sorted(path.name for path in self._written if not path.is_file()):
            raise ValueError(f"{self.path} has lost {', '.join(missing)} while it was being written: run it again")
        others = (name for name in sorted(self._names) if name not in self._hashes)
        hashes = dict(sorted({**self._hashes, **hash_files(self.path, others)}.items()))
        sizes = {name: (self.path / name).stat().st_size for name in hashes}
        # A list of the run's files at any moment, and one that is renamed, so that there never are two of them.
        journal = self.path / JOURNAL
        files.write_text(journal, seal({**facts, "sizes": sizes, "files": hashes}), self._owned)
        replace_file(journal, self.path / MANIFEST, self._owned)
        if self.replaces is not None:
            self._take_place(self.replaces)
        self.release()

    def _take_place(self, place: Path) -> None:
        """Put the finished run where it belongs, and remove the one that was there."""
        if place.exists():
            swap_folders(self.path, place, _swap_of(place) / OLD)
        else:
            move_folder(self.path, place)
        self.path, self.replaces = place, None
        _remove_replaced(place)
        remove_marked(_swap_of(place))

    def release(self) -> None:
        """Let other processes write this run, when nothing here does any more."""
        self.background.close()
        if self.lock is not None:
            self.lock.release()

    def _check_held(self) -> None:
        """ValueError where another writer has taken the run over."""
        if self.lock is not None and self.lock.is_lost:
            raise ValueError(f"{self.path} was started again while it was being written: this writer stops")

    def _own(self, name: str) -> Path:
        """Where a file goes that must still be there at the end; unfinished.json names it from now on.

        ValueError where something lies there that is not this run's.
        """
        (path,) = self._own_all([name])
        return path

    def _own_all(self, names: Iterable[str]) -> list[Path]:
        """:meth:`_own` of several files."""
        self._check_held()
        names = list(names)
        with self._journal_lock:
            if new := [name for name in names if name not in self._names or self._names[name]]:
                for name in new:
                    check_replaceable(self.path / name, self._owned)
                self._names |= dict.fromkeys(new, ())
                journal = {"format": 1, "files": dict.fromkeys(sorted(self._names))}
                files.write_text(self.path / JOURNAL, json.dumps(journal, indent=1) + "\n", self._owned)
                self._owned = Owned(self.path, JOURNAL, self._names)
            paths = [self.path / name for name in names]
            self._written |= set(paths)
        return paths

    def _drop(self, name: str) -> None:
        """Take a file of this run away again, if it is there."""
        self._check_held()
        if name in self._names:
            remove_file(self.path / name, self._owned)
            self._written.discard(self.path / name)


def _snapshot_name(epoch: float, step: int, is_epoch_end: bool) -> str:
    """A snapshot's file, from the run directory."""
    # An epoch that --max-steps cuts short is named after the epoch it is in; its metadata holds the fraction.
    name = f"epoch-{math.ceil(epoch):03d}" if is_epoch_end else f"step-{step:08d}"
    return f"snapshots/{name}.safetensors"


def facts_of(position_offset: int, layer_norm_eps: float | None) -> dict[str, str]:
    """What every snapshot keeps of its model, as safetensors metadata."""
    facts = {"position_offset": str(position_offset)}
    return facts if layer_norm_eps is None else facts | {"layer_norm_eps": repr(layer_norm_eps)}


def hash_files(path: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """Relative name to sha256 of every file of a run directory but the manifest and temporary files.

    With ``names``, of those that are there; the others are not read.
    """
    if names is None:
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*"))
    names = [name for name in names if (path / name).is_file() and name != MANIFEST and not is_leftover(name)]
    return _in_threads(lambda name: files.sha256_of_file(path / name), names)


def _in_threads(digest: Callable[[str], str], names: list[str]) -> dict[str, str]:
    """Name to hash; hashing lets other threads run."""
    if len(names) < 2:
        return {name: digest(name) for name in names}
    with ThreadPoolExecutor(max_workers=4) as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))


def is_leftover(name: str, named: Iterable[str] = ()) -> bool:
    """Whether a file of a run directory is what a writer that was killed left of a file that the run has, or could."""
    folder, slash, last = name.rpartition("/")
    of = files.of_temporary(last)
    if of is None:
        return False
    is_snapshot = folder + slash == SNAPSHOTS and SNAPSHOT.fullmatch(of) is not None
    return is_snapshot or folder + slash + of in {*SMALL_FILES, EXPOSURE, MANIFEST, DIVERGED, *named}


def remedy_of(differences: Iterable[str]) -> str:
    """What to do about lines of :meth:`Run.differences`."""
    return "move it away" if all(line.startswith(UNNAMED) for line in differences) else "restore it, or run again"


def _entries(root: Path, below: str, folders: Iterable[str]) -> Iterator[str]:
    """Every file, link and empty folder below ``root``/``below``, from ``root``; of links to folders only into those
    that ``folders`` names."""
    for entry in sorted((root / below).iterdir()):
        name = f"{below}{entry.name}"
        is_folder = entry.is_dir() and (not entry.is_symlink() or name in folders)
        yield from (list(_entries(root, f"{name}/", folders)) if is_folder else []) or [name]


def owned_files(place: Path) -> Owned:
    """The files of the run in a directory: what its manifest names, or its unfinished.json; none where neither does."""
    for name in (MANIFEST, JOURNAL):
        if os.path.lexists(place / name):
            return read_list(place, name) or Owned(place, "")
    return Owned(place, JOURNAL)


def check_startable(path: Path, *, overwrite: bool, is_recorded: bool = False) -> None:
    """ValueError where a run cannot be written to ``path``: nothing is touched.

    So it is where a finished run lies and ``overwrite`` is not set, where anything lies that no manifest and no
    unfinished.json names, or a file of a finished run that has changed since: that is somebody's work; and inside
    another run, whose manifest would not name it.

    ``is_recorded``: another training loop makes the run, which has no config of ours and no command line.
    """
    place, other = _check_place(path, is_recorded), "pass a folder of its own" if is_recorded else OTHER
    if not place.exists():
        return
    owned = owned_files(place)
    is_finished = owned.list_name == MANIFEST
    if is_finished and not overwrite:
        flag = "pass overwrite=True" if is_recorded else "pass --overwrite (in Python: overwrite=True)"
        raise ValueError(f"{path} holds a finished run{'' if is_recorded else ' of this config'}: {flag} to replace it")
    if foreign := owned.foreign():
        if owned.files:
            what = f"holds {shown(foreign)}, which its run did not write as it is now: move that away, or {other}"
        else:
            what = f"is not empty and holds no run, but {shown(foreign)}: {other}"
            what += " (or delete it, if it is an unfinished run of an earlier version)"
        raise ValueError(f"{path} {what}; nothing there was touched")
    if is_finished and place.is_mount():
        raise ValueError(f"{path} is where a disk is mounted, so that no finished run there can be replaced: {other}")
    if is_finished and os.path.lexists(swap := _swap_of(place)) and not _is_swap(swap):
        raise ValueError(f"{swap} is in the way of the run that replaces {path}: move it away")


OTHER = "pass another --output-dir"


def _check_place(path: Path, is_recorded: bool) -> Path:
    """The directory of a run, through the link that it may be; ValueError where none can be: see
    :func:`check_startable`."""
    other = "pass another directory" if is_recorded else OTHER
    if file := next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), None):
        raise ValueError(f"{file} is a file where the folder of runs should go: {other}")
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file where a run directory should go: {other}")
    if path.is_symlink() and not path.exists():
        raise ValueError(f"{path} is a link to nothing where a run directory should go: {other}")
    place = path.resolve() if path.is_symlink() else path
    if outer := run_around(place.resolve().parent):
        raise ValueError(f"{path} would lie inside the run {outer}: {other}")
    return place


NEW, OLD = "new", "old"


def _swap_of(place: Path) -> Path:
    """The folder of our mark, beside a finished run, in which the one that is to replace it is written (``new``), and
    in which it is kept itself (``old``) until it has been replaced."""
    place = place.resolve()
    return place.parent / f".{place.name}.swap"


def _is_swap(folder: Path) -> bool:
    """Whether a folder bears our mark and holds runs, or what is left of them, and nothing else."""
    return is_marked(folder) and all(
        path.name in (NEW, OLD) and path.is_dir() and not path.is_symlink() and not owned_files(path).foreign()
        for path in folder.iterdir()
        if path.name != MARKER
    )


def run_around(folder: Path) -> Path | None:
    """The run that a folder is or lies in, through links; None where it lies in none."""
    place = folder.resolve()
    return next((path for path in (place, *place.parents) if path.is_dir() and owned_files(path).files), None)


def _remove_replaced(place: Path) -> None:
    """Remove the run that was replaced, unless somebody has changed it meanwhile."""
    old = _swap_of(place) / OLD
    if not old.exists():
        return
    if foreign := owned_files(old).foreign():
        kept = shown(foreign)
        warnings.warn(
            f"{place}: {kept} was not written by the run that was replaced: it is kept in {old}", stacklevel=3
        )
    else:
        clear(owned_files(old))
        remove_empty_folder(old)


def _complete_swap(place: Path) -> None:
    """Put the finished run in place that a process left in the folder of the swap, killed between the two renames."""
    swap = _swap_of(place)
    if not os.path.lexists(place) and is_marked(swap) and read_list(swap / NEW, MANIFEST) is not None:
        move_folder(swap / NEW, place)


def start_run(
    path: Path,
    *,
    overwrite: bool = False,
    is_recorded: bool = False,
    goes_on: Callable[[State], bool] = lambda _: False,
) -> RunWriter:
    """A writer of a run directory: what an unfinished run left there is removed first, but for its last state and what
    that follows, where ``goes_on`` says of that state that this run goes on from it.

    With ``overwrite`` a finished run stays until the new one is finished, which is written beside it, in a hidden
    folder, and then takes its place. The writer keeps other processes out until it has finished, is released or
    dropped. ValueError while one of them writes this run, or where :func:`check_startable` finds something.
    """
    _check_place(path, is_recorded)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = RunLock(path)
    try:
        place = _check_place(path, is_recorded).absolute()  # wherever this process goes
        _complete_swap(place)
        check_startable(path, overwrite=overwrite, is_recorded=is_recorded)
        replaced, written = None, place
        if (place / MANIFEST).exists():
            replaced, written = place, _swap_of(place) / NEW
            mark(written.parent)
            _remove_replaced(place)
        written.mkdir(exist_ok=True)
        owned, state = owned_files(written), read_state(written)
        state = state if state is not None and goes_on(state) else None
        clear(owned, () if state is None else _names_until(state, owned.files))
    except BaseException:
        lock.release()
        raise
    writer = RunWriter(written, lock=lock, replaces=replaced, resumed=state)
    if state is not None:
        writer.go_on(state)
    return writer


def _names_until(state: State, names: Iterable[str]) -> list[str]:
    """The files of an unfinished run that a state follows, or that say of their lines which step they are of."""
    kept = {state_name(state.step), INDEX, *state.snapshots, *SMALL_FILES, EXPOSURE}
    return [name for name in names if name in kept]


@dataclass(frozen=True, repr=False)
class Run(Described):
    """One run directory, read lazily. A checkpoint, a task, a regime and a seed, and their results."""

    path: Path
    verify: bool = True
    """Whether the files of a finished run are hashed; see :func:`open_run`."""

    def facts(self) -> dict[str, str]:
        """The main facts of a run, in words; of a damaged one also what is wrong with it."""
        state = "finished" if self.is_finished else "diverged" if self.has_diverged else "unfinished"
        known = {"run": str(self.path), "state": state}
        try:
            if self.is_recorded:
                return known | {"recorded in": "another training loop"}
            config = self.config
            known |= {"model": config.model, "task": config.task, "frozen": config.freeze, "seed": str(config.seed)}
            if self.is_finished:
                task = self.manifest["task"]
                own = self.scores[self.scores["split"] == task["reported_split"]].sort_values("epoch")
                known |= {f"{task['score']} on {task['reported_split']}": f"{own[task['score']].iloc[-1]:.3f}"}
        except (ValueError, OSError, LookupError) as error:
            known["damaged"] = str(error)
        return known

    @property
    def is_finished(self) -> bool:
        """Whether the manifest, which is written last, is there."""
        return (self.path / MANIFEST).exists()

    @property
    def has_diverged(self) -> bool:
        """Whether its training stopped because the loss was not finite; it is unfinished then."""
        return (self.path / DIVERGED).exists()

    @cached_property
    def is_recorded(self) -> bool:
        """Whether another training loop made it (``toolkit.record``, the Trainer's callback): it has no RunConfig."""
        path = self._checked("config.json")
        return path is not None and bool(read_object(path).get(RECORDED))

    @cached_property
    def config(self) -> RunConfig:
        """The resolved config; ValueError for a recorded run, which has none."""
        if self.is_recorded:
            raise ValueError(
                f"{self.path} was recorded in another training loop and has no RunConfig: its drift is analysed by "
                f"python -m toolkit drift {self.path}"
            )
        return RunConfig.from_json(self._text("config.json"), str(self.path / "config.json"))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Hashes, versions, devices, the frozen parameters and their proof.

        ValueError when unfinished, and where the manifest's own sha256 says that it has changed.
        """
        path = self._existing(MANIFEST)
        raw = path.read_bytes()
        values = parse_object(raw, path, {"format": int, "files": dict}, newest=MANIFEST_FORMAT)
        if not is_sealed(raw, values):
            raise ValueError(f"{path} is not as it was written (its own sha256 says so): {REMEDY}")
        return values

    @cached_property
    def scores(self) -> "pd.DataFrame":
        """One row per epoch and split: step, number of examples, loss and the task's scores."""
        return formats.read_scores(self._existing("scores.csv"), self._epochs)

    @cached_property
    def predictions(self) -> "pd.DataFrame":
        """One row per epoch, split and example: id, label, prediction, scores (the logits, or the value)."""
        return formats.read_predictions(self._existing("predictions.parquet"), self._epochs)

    @property
    def _epochs(self) -> set[int] | None:
        """What the snapshots of a finished run at the ends of epochs are named by; None of an unfinished one."""
        if not self.is_finished:
            return None
        found = (re.fullmatch(SNAPSHOTS + r"epoch-([0-9]+)\.safetensors", name) for name in self._named)
        return {int(each[1]) for each in found if each}

    @cached_property
    def optimizer_log(self) -> OptimizerLog | None:
        """Learning rates, clipping and hyperparameters of every step; None when they were not recorded."""
        path = self._checked("optimizer.json")
        if path is None:
            return None
        log = OptimizerLog.from_json(path.read_text(encoding="utf-8"), str(path))
        self._check_steps(path, log.num_steps)
        return log

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """Row to token text; None when no tokenizer was at hand."""
        path = self._checked("vocabulary.json")
        if path is None:
            return None
        values = read_object(path, {"tokens": list, "special_rows": list}, newest=int(FORMAT))
        tokens, special, pad = values["tokens"], values["special_rows"], values.get("pad_row")
        rows = special if pad is None else [*special, pad]
        is_whole = all(isinstance(token, str) for token in tokens)
        if not (is_whole and all(type(row) is int and 0 <= row < len(tokens) for row in rows)):
            raise ValueError(f"{path} is not a vocabulary of texts and rows: {REMEDY}")
        return Vocabulary(tuple(tokens), frozenset(special), pad)

    @cached_property
    def trajectory(self) -> Trajectory:
        """The snapshots in order of step, memory-mapped, with exposure and vocabulary.

        ValueError where ``snapshots/`` holds what the manifest does not name, or lacks what it names. Each file is
        hashed when a tensor of it is first read, and the first one now: a ValueError comes then if it has changed.
        """
        names = self.snapshot_names()
        if not names:
            raise ValueError(f"{self.path} holds no snapshots: is it a run directory?")
        self.check(SNAPSHOTS + names[0])  # whose header tells the position offset and the eps of all of them
        snapshots = sorted(map(self.open_snapshot, names), key=lambda s: (s.step, s.is_epoch_end))
        kept = files.read_header(self.path / SNAPSHOTS / names[0])[0]
        facts = {**(self.manifest if self.is_finished else {}), **kept}
        offset, eps = int(facts.get("position_offset") or 0), float(facts.get("layer_norm_eps") or 1e-12)
        if not 0 <= offset < MOST_ROWS or not 0 <= eps < 1:
            raise ValueError(f"{self.path} has a position offset of {offset} and a LayerNorm eps of {eps:g}: {REMEDY}")
        check_alike(self.path / SNAPSHOTS, [snapshot.tensors for snapshot in snapshots])
        words, vocabulary = snapshots[0].tensors.get("word_embeddings"), self.vocabulary
        if words is not None and vocabulary is not None and len(words) != len(vocabulary.tokens):
            has = f"has {len(vocabulary.tokens):,} tokens, the word table {len(words):,} rows"
            raise ValueError(f"{self.path / 'vocabulary.json'} {has}: {REMEDY}")
        return Trajectory(snapshots, vocabulary, self._read_exposure, offset, eps)

    def snapshot_names(self) -> list[str]:
        """The files below ``snapshots/`` that are the run's; ValueError for any other, and for one that is gone.

        Of a finished run its manifest decides; of an unfinished one unfinished.json, which that of an earlier version
        has not, and only plain files of the exact names of snapshots are taken. What a killed writer left of such a
        file is passed over.
        """
        if not (self.path / SNAPSHOTS).is_dir():
            return []
        if self.is_finished:
            named = {name for name in self._named if name.startswith(SNAPSHOTS)}
            self._refuse([*self._missing(named), *self._unnamed(SNAPSHOTS)])
            self._refuse([f"changed: {name}" for name in self._resized(sorted(named))])
            names = sorted(name.removeprefix(SNAPSHOTS) for name in named)
            if other := [name for name in names if SNAPSHOT.fullmatch(name) is None]:
                raise ValueError(
                    f"{self.path / MANIFEST} names {SNAPSHOTS}{other[0]}, which is not a snapshot: run again"
                )
            return names
        names = sorted(entry.name for entry in (self.path / SNAPSHOTS).iterdir())
        names = [name for name in names if not is_leftover(SNAPSHOTS + name)]
        for path in (self.path / SNAPSHOTS / name for name in names):
            if SNAPSHOT.fullmatch(path.name) is None or path.is_dir():
                what = "no snapshot of an unfinished run (epoch-NNN or step-NNNNNNNN, .safetensors)"
                raise ValueError(f"{path} is {what}: move it away")
            if path.is_symlink():  # which we never write, and nothing says what it should lead to
                raise ValueError(
                    f"{path} is a link, and an unfinished run has no manifest to judge it by: move it away"
                )
        self.check(*(SNAPSHOTS + name for name in names))
        return names

    def open_snapshot(self, name: str) -> Snapshot:
        """One of :meth:`snapshot_names`, memory-mapped; its tensors are checked when they are read."""
        return read_snapshot(self.path / SNAPSHOTS / name, lambda file: self.check(SNAPSHOTS + file))

    def differences(self, *names: str, again: bool = False) -> list[str]:
        """How files of a finished run differ from what its manifest says, one line each.

        ``names`` are files, or folders with a slash at the end; default: everything. A file that has not changed since
        it was last hashed by this process is not hashed again, unless ``again``.
        """
        folders = tuple(name for name in names if name.endswith("/"))
        if names and not folders:
            named = [name for name in dict.fromkeys(names) if name in self._named]
        else:
            named = [n for n in self._named if not names or n in names or n.startswith(folders)]
        missing = self._missing(named)
        there = [name for name in named if (self.path / name).is_file()]
        changed = set(self._resized(there))
        hashed = [name for name in there if name not in changed] if self.verify or again else []
        digests = _in_threads(lambda name: files.known_sha256(self.path / name, again=again), hashed)
        changed |= {name for name, digest in digests.items() if digest != self._named[name]}
        return [*missing, *(f"changed: {name}" for name in there if name in changed), *self._unnamed(*names)]

    def check(self, *names: str) -> None:
        """ValueError where a finished run's files are not as they were; see :meth:`differences`.

        Of an unfinished run, where a file among ``names`` is none that its unfinished.json names.
        """
        if self.is_finished:
            self._refuse(self.differences(*names))
        elif os.path.lexists(self.path / JOURNAL):
            named = owned_files(self.path).files
            there = (name for name in names if not name.endswith("/") and os.path.lexists(self.path / name))
            if other := [name for name in there if name not in named]:
                raise ValueError(f"{self.path / other[0]} is not named in the run's {JOURNAL}: move it away")

    def _refuse(self, differences: list[str]) -> None:
        if differences:
            said = f"{self.path} is not as its manifest says ({'; '.join(differences)})"
            raise ValueError(f"{said}: {remedy_of(differences)}")

    @property
    def _named(self) -> Mapping[str, str]:
        named: Mapping[str, str] = self.manifest.get("files", {})
        return named

    def _resized(self, names: Iterable[str]) -> list[str]:
        """Those of files that are there whose size is not the manifest's, which says none in earlier versions."""
        sizes: Mapping[str, int] = self.manifest.get("sizes", {})
        return [name for name in names if name in sizes and (self.path / name).stat().st_size != sizes[name]]

    def _missing(self, names: Iterable[str]) -> list[str]:
        return [f"missing: {name}" for name in sorted(names) if not (self.path / name).is_file()]

    def _unnamed(self, *names: str) -> list[str]:
        """A line for each entry that the manifest does not name: among some files and folders, or everywhere."""
        named = self._named
        found = {n for n in names if n not in named and not n.endswith("/") and os.path.lexists(self.path / n)}
        if places := [name for name in names if name.endswith("/")] if names else [""]:
            folders = {str(parent) for name in named for parent in PurePosixPath(name).parents}
            for place in places:
                found |= set(_entries(self.path, place, folders)) if (self.path / place).is_dir() else set()
        others = (name for name in found if name not in named and name != MANIFEST and not is_leftover(name, named))
        return [f"{UNNAMED}{name}" for name in sorted(others)]

    def _read_exposure(self) -> Exposure | None:
        path = self._checked(EXPOSURE)
        if path is None:
            return None
        entries, first = files.read_header(path)[1], self.trajectory.snapshots[0].tensors
        tensors = {name: np.array(files.map_tensor(path, entry)) for name, entry in entries.items()}
        sizes = {name: len(first[name]) for name in TABLES if name in first}
        exposure = formats.read_exposure(path, tensors, sizes, may_lack=self.is_recorded)
        for table in exposure.tables.values():
            self._check_steps(path, table.num_steps)
        return exposure

    def _check_steps(self, path: Path, found: int) -> None:
        """Of a finished run; snapshots of another's training loop may end before its steps."""
        if self.is_finished:
            last = self.trajectory.snapshots[-1].step
            formats.check_steps(path, found, last, is_least=self.is_recorded)

    def _existing(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            state = "" if self.is_finished else " (the run is unfinished: run it again)"
            state = " (a recorded run has none)" if self.is_recorded else state
            raise ValueError(f"{path} is missing{state}")
        if name != MANIFEST:
            self.check(name)
        return path

    def _checked(self, name: str) -> Path | None:
        """One of the files that a run may have, as its manifest says; None where it has none."""
        self.check(name)
        return path if (path := self.path / name).exists() else None

    def _text(self, name: str) -> str:
        return self._existing(name).read_text(encoding="utf-8")


def open_run(path: str | Path, *, verify: bool = True) -> Run:
    """Open a run directory, finished or not; ValueError when there is none at ``path``.

    Nothing is read now. Whatever is read of a finished run later is checked then: its size always, and its sha256 when
    it is first read, and again where it has changed since, unless ``verify`` is False. A ValueError names what differs.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"no run directory at {path}")
    if not (path / "config.json").exists() and not (path / "snapshots").is_dir():
        raise ValueError(f"{path} is not a run directory: it has neither config.json nor snapshots/")
    return Run(path, verify)


@runtime_checkable
class HasTrajectory(Protocol):
    """A run, or imported checkpoints."""

    @property
    def trajectory(self) -> Trajectory:
        """What is analysed."""


Source = Trajectory | HasTrajectory | str | Path
"""What every analysis takes."""


def trajectory_of(source: Source) -> Trajectory:
    """The trajectory of whatever an analysis is given: a trajectory, a run, or the path of a run directory."""
    if isinstance(source, Trajectory):
        return source
    if isinstance(source, str | Path):
        return open_run(source).trajectory
    if isinstance(trajectory := getattr(source, "trajectory", None), Trajectory):
        return trajectory
    raise ValueError(f"expected a run, its path, a trajectory or imported checkpoints; got {type(source).__name__}")


def run_of(source: Source) -> Run | None:
    """The run behind what an analysis is given; None for a trajectory and for imported checkpoints."""
    if isinstance(source, str | Path):
        return open_run(source)
    return source if isinstance(source, Run) else None


def listed(sources: Iterable[T]) -> list[T]:
    """What a function of several runs is given, as a list; ValueError for one alone: a str is a sequence of letters."""
    if isinstance(sources, str | Path | Run | Trajectory):
        alone = sources if isinstance(sources, str | Path) else getattr(sources, "path", type(sources).__name__)
        raise ValueError(f"expected a list of run directories; got {alone} alone: put it in a list")
    return list(sources)


def runs_of(sources: Iterable[Run | str | Path]) -> list[Run]:
    """The runs that a function of several of them is given, as runs or paths; ValueError for anything else."""
    runs = []
    for source in listed(sources):
        if (run := run_of(source)) is None:
            raise ValueError(f"expected run directories; got {type(source).__name__}: pass the run itself, or its path")
        runs.append(run)
    return runs


DRIFT_FILES = (SNAPSHOTS, EXPOSURE, *SMALL_FILES)
"""What a report of drift reads of a run: all but ``model/``."""


def damage_of(path: Path) -> list[str]:
    """What is gone or changed of DRIFT_FILES of a finished run, one line each; what was added there is no damage.

    NewerFormatError for the run of a later version.
    """
    try:
        differences = open_run(path).differences(*DRIFT_FILES)
    except NewerFormatError:
        raise
    except ValueError as error:  # no run any more, or its manifest is not as it was written
        return [str(error)]
    return [line for line in differences if not line.startswith(UNNAMED)]


def put_aside(path: Path) -> str:
    """Rename the directory of a finished run that is damaged, so that it can be made again; what is wrong, and where
    it is kept: beside its place, hidden from what looks for runs. Empty where it is whole.

    ValueError while another process writes it.
    """
    if not damage_of(path):
        return ""
    lock = RunLock(path)
    try:
        if not (path / MANIFEST).exists() or not (damage := damage_of(path)):
            return ""  # another process has seen to it since
        places = (path.with_name(f".{path.name}.damaged-{number}") for number in count(1))
        place = next(place for place in places if not os.path.lexists(place))
        move_folder(path, place)
    finally:
        lock.release()
    return f"{'; '.join(damage)}; kept as {place}"


@shows_progress("hashing every file")
def verify_run(path: str | Path) -> list[str]:
    """Recompute every hash of a finished run; the differences, one line each, none when all is as it was.

    A file that the manifest does not name is one, wherever it lies; only what a killed writer left is passed over.
    """
    run = open_run(path)
    if not (run.path / SNAPSHOTS).is_dir():
        raise ValueError(f"{run.path} is not a run directory: it has no snapshots/")
    if not run.is_finished:
        raise ValueError(f"{run.path} is unfinished (no {MANIFEST}): run it again with the same command")
    try:
        return run.differences(again=True)
    except ValueError as error:  # of the manifest, without which nothing can be said of the others
        return [str(error)]
