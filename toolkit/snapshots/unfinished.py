"""Unfinished runs: the lock of a run directory, and the state from which a run that is started again goes on.

The state lies in the run directory, in ``resume/``: per state one safetensors file, and states.json, which names the
last two with their sha256. A state counts when its file and the snapshots that it names are there bit for bit, so that
one that was cut short is passed over for the one before. It holds the tables of scores and predictions as they were
then: of an unfinished run nothing is taken up that was not hashed. Nothing is pickled; a finished run has none.
"""

import errno
import json
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from filelock import FileLock, Timeout, lock_descriptor
from numpy.typing import NDArray
from safetensors import safe_open

from toolkit.naming import reading, refuse_first
from toolkit.snapshots.ownership import is_lock, remove_lock, sha256_of_file

_REFUSED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)
"""What file systems without locks answer: who cannot lock goes on without."""
GRACE_SECONDS = 0.2
"""How long a lock is waited for: whoever ends just now removes its file, and that is no other process at work."""

_held: "weakref.WeakValueDictionary[Path, RunLock]" = weakref.WeakValueDictionary()
"""This process's own locks, by lock file."""


def try_lock(file: IO[bytes]) -> bool:
    """Lock an open file until the last process that inherits it has closed it; False while another holds it."""
    try:
        return lock_descriptor(file.fileno(), blocking=False)
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
        self.path, self.is_lost = place.parent / f".{place.name}.lock", False
        earlier = _held.get(self.path)
        self._lock = (earlier and earlier._hand_over()) or _lock(path, self.path)
        self.release = weakref.finalize(self, _unlock, self._lock)
        """Lets others write; to release twice, or what was taken over, does nothing."""
        _held[self.path] = self

    def _hand_over(self) -> FileLock | None:
        """The lock, no longer this object's; None where it is released, or a parent process's."""
        self.is_lost = self._lock.is_locked and self.release.detach() is not None
        return self._lock if self.is_lost else None


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Keep every other writer, also one of this process, out of ``folder`` by a lock file in it that goes at the end.

    ValueError when another has it.
    """
    lock = _lock(folder, folder / name)
    try:
        yield
    finally:
        _unlock(lock)


def _lock(path: Path, place: Path) -> FileLock:
    """A lock of ``path`` by the file at ``place``; ValueError while another holds it, or where that is a user's."""
    if os.path.lexists(place) and not is_lock(place):
        raise ValueError(f"{place} is not an empty file, so it is not a lock file of this toolkit: move it away")
    lock = FileLock(place, timeout=GRACE_SECONDS, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        said = f"wait until it has ended, or end it (if there is none, delete {place})"
        raise ValueError(f"another process is writing {path}: {said}") from None
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        remove_lock(place)
    return lock


def _unlock(lock: FileLock) -> None:
    if lock.is_locked:  # not so in a forked child, which leaves it to its parent
        remove_lock(Path(lock.lock_file))
        lock.release(force=True)


FOLDER = "resume/"
INDEX = f"{FOLDER}states.json"
FORMAT = 2
"""Version of both files; a state of another is no state."""
NUM_KEPT = 2
TABLES = "tables."
"""How the tables are named among a state's tensors: as the bytes of Parquet."""

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class State:
    """A run after so many optimizer steps."""

    step: int
    tensors: Tensors
    """Weights and moments of what is trained, random states, exposure, losses: whatever its trainer has put in."""
    facts: Mapping[str, Any]
    """What must be equal for the run to go on, and small things."""
    snapshots: Mapping[str, str] = field(default_factory=dict)
    """Name, from the run directory, to sha256 of the snapshots that it follows."""

    def metadata(self) -> dict[str, str]:
        """What its file says beside the tensors."""
        values = {"format": FORMAT, "step": self.step, "facts": self.facts, "snapshots": dict(self.snapshots)}
        return {name: json.dumps(value) for name, value in values.items()}


def state_name(step: int) -> str:
    """The file of a state, from the run directory."""
    return f"{FOLDER}step-{step:08d}.safetensors"


def index_text(entries: Mapping[str, str]) -> str:
    """states.json: name to sha256 of the states that are kept, the newest first."""
    return json.dumps({"format": FORMAT, "states": dict(entries)}, indent=1) + "\n"


def find_state(run: Path, identity: Mapping[str, Any] = MappingProxyType({})) -> tuple[State | None, list[str]]:
    """The newest whole state of an unfinished run whose facts are those of ``identity``, None without any; and why
    each newer one is passed over."""
    entries: dict[str, str] = {}
    with suppress(OSError, ValueError, KeyError, TypeError):
        values = json.loads((run / INDEX).read_bytes())
        entries = dict(values["states"]) if values["format"] == FORMAT else {}
    passed_over = [f"{INDEX} names no state"] if (run / FOLDER).is_dir() and not entries else []
    for name, digest in entries.items():
        try:
            return _read(run, name, digest, identity), passed_over
        except (ValueError, OSError) as error:
            passed_over.append(str(error))
    return None, passed_over


def _read(run: Path, name: str, digest: str, identity: Mapping[str, Any]) -> State:
    """A state that is whole and fits; ValueError for any other."""
    with reading(name, "is no state", ValueError):
        _check_unchanged(run, {name: digest})
        with safe_open(run / name, "numpy") as file:
            values = {key: json.loads(text) for key, text in file.metadata().items()}
            tensors = {key: np.asarray(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118 (it has no other way)
        state = State(int(values["step"]), tensors, values["facts"], values["snapshots"])
        others = [
            f"{fact} ({state.facts[fact]} there, {value} here)" if isinstance(state.facts.get(fact), int) else fact
            for fact, value in identity.items()
            if state.facts.get(fact) != value
        ]
        is_misnamed = values["format"] != FORMAT or name != state_name(state.step)
        faults = {
            f"{name} is no state of this version": is_misnamed,
            f"{name} is of another {' and '.join(others)}": others,
        }
        refuse_first(faults)
        _check_unchanged(run, state.snapshots)
    return state


def _check_unchanged(run: Path, hashes: Mapping[str, str]) -> None:
    for name, digest in hashes.items():
        if not (run / name).is_file() or sha256_of_file(run / name) != digest:
            raise ValueError(f"{name} has changed or is gone")
