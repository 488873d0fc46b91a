"""Unfinished runs: the lock of a run directory, and the state from which a run that is started again goes on.

The state lies in the run directory, in ``resume/``: per state one safetensors file, and states.json, which names the
last two with their sha256. A state counts when its file and the snapshots that it names are there bit for bit, so that
one that was cut short is passed over for the one before. Nothing is pickled; a finished run has none.
"""

import contextlib
import errno
import json
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from toolkit.snapshots.ownership import is_lock, remove_lock, sha256_of_file

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


FOLDER = "resume/"
INDEX = f"{FOLDER}states.json"
FORMAT = 1
"""Version of both files; a state of another is no state."""
NUM_KEPT = 2

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


def read_state(run: Path) -> State | None:
    """The newest whole state of an unfinished run; None without any."""
    try:
        values = json.loads((run / INDEX).read_bytes())
        entries = dict(values["states"]) if values["format"] == FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return next((state for name, digest in entries.items() if (state := _read(run, name, digest))), None)


def _read(run: Path, name: str, digest: str) -> State | None:
    try:
        if not name.startswith(FOLDER) or sha256_of_file(run / name) != digest:
            return None
        with safe_open(run / name, "numpy") as file:
            values = {key: json.loads(text) for key, text in file.metadata().items()}
            tensors = {key: np.asarray(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118 (it has no other way)
        state = State(int(values["step"]), tensors, values["facts"], values["snapshots"])
        held = all(sha256_of_file(run / snapshot) == own for snapshot, own in state.snapshots.items())
        return state if values["format"] == FORMAT and held else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
