"""The writer of a run directory."""

import json
import math
import os
import platform
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open

from toolkit.config import FORMAT as FORMAT_OF_CONFIG
from toolkit.config import RunConfig
from toolkit.naming import first_few, refuse_first
from toolkit.snapshots import files
from toolkit.snapshots.csv_tables import csv_of
from toolkit.snapshots.logs import Exposure, OptimizerLog
from toolkit.snapshots.ownership import (
    JOURNAL,
    MANIFEST,
    Owned,
    check_replaceable,
    clear,
    files_in,
    make_folder,
    move_aside,
    move_folder,
    read_list,
    remove_empty_folder,
    remove_file,
    replace_file,
    seal,
    temporary_folder,
)
from toolkit.snapshots.snapshot import FORMAT, Vocabulary
from toolkit.snapshots.store import (
    DIVERGED,
    EXPOSURE,
    RECORDED,
    SMALL_FILES,
    SNAPSHOTS,
    hash_files,
    owned_files,
    run_around,
)
from toolkit.snapshots.unfinished import (
    INDEX,
    NUM_KEPT,
    TABLES,
    RunLock,
    State,
    Tensors,
    find_state,
    index_text,
    state_name,
)

if TYPE_CHECKING:
    import pandas as pd


class _AbandonedError(Exception):
    """What is being written is not wanted any more."""


class BackgroundWriter:
    """One thread that writes what it is given, in order; at most one thing waits.

    Writing waits for the disk more than it computes, so that it costs training little. What a thing to write reads
    must not change any more. Its error comes at the next call of anything here.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run-writer")
        self._last: Future[object] | None = None
        self.seconds = 0.0
        """What writing has taken so far."""

    def start(self, write: Callable[[], object]) -> None:
        """Have ``write`` called once everything before it is written: until then this waits."""
        self.wait()
        self._last = self._pool.submit(self._call, write)

    def _call(self, write: Callable[[], object]) -> None:
        started = time.perf_counter()
        write()
        self.seconds += time.perf_counter() - started

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        return self._last is not None and not self._last.done()

    def check(self) -> None:
        """Raise the error of what has been written, if any; does not wait."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Until everything is written; raises its error."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """Until everything is written, without its error: for the way out after another one."""
        self._pool.shutdown()


PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy", "pandas",
            "scikit-learn", "scipy", "peft")  # fmt: skip


@cache
def read_versions() -> Mapping[str, str]:
    """Package name to version, Python and the toolkit among them; a package that is not installed is left out."""
    found = {name: next(iter(distributions(name=name)), None) for name in ("embedding-drift-toolkit", *PACKAGES)}
    versions = {name: package.version for name, package in found.items() if package is not None}
    return {"python": platform.python_version()} | versions


@cache
def read_git_commit() -> str | None:
    """The commit of the toolkit's checkout, with ``-dirty`` when it has changes; None when it is installed.

    Of the first call: what is checked out later is not what this process runs.
    """
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        describe = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@dataclass
class RunWriter:
    """Writes one run directory, every file atomically, the manifest last.

    Until then unfinished.json names each file before it is there, so that whoever starts the run again knows which
    files are the run's.
    """

    path: Path
    """Where it writes; from :meth:`finish` on where the run is."""
    lock: RunLock
    """Keeps other processes out while this one writes."""
    _digests: dict[str, dict[str, str]] = field(default_factory=dict)
    """Per parameter: sha256 of every distinct tensor written so far to the name of its file."""
    last_digests: dict[str, str] = field(default_factory=dict)
    """Per parameter the sha256 of its tensor in the last snapshot."""
    facts: dict[str, str] = field(default_factory=dict)
    """What analysis needs of the model, kept in every snapshot: an unfinished run has no manifest."""
    replaces: Path | None = None
    """A finished run, which stays as it is until this one is finished and takes its place."""
    background: BackgroundWriter = field(default_factory=BackgroundWriter)
    """For what is written while training goes on; a run is finished and released after it."""
    states: BackgroundWriter = field(default_factory=BackgroundWriter)
    """For states alone, which take longest: the next snapshot does not wait for them."""
    _is_state_wanted: bool = True
    _hashes: dict[str, str] = field(default_factory=dict)
    """Of the snapshots, each taken when it had been written."""
    _states: dict[str, str] = field(default_factory=dict)
    """Name to sha256 of the states that are kept, the newest first."""
    tables: dict[str, bytes] = field(default_factory=dict)
    """Scores and predictions so far, as Parquet, which a state keeps: their files are not trusted."""
    resumed: State | None = None
    """Where an unfinished run was taken up; None of one that starts anew."""
    _journal_lock: threading.Lock = field(default_factory=threading.Lock)
    """Snapshots are named by the thread that writes them, beside what this one names."""

    def __post_init__(self) -> None:
        # The list is ours from when we have written it: until then one that appears is somebody else's.
        left = read_list(self.path, JOURNAL) or Owned(self.path, "")
        self._owned = replace(left, files={n: known for n, known in left.files.items() if (self.path / n).is_file()})
        """Every file of the run so far."""

    def write_config(self, config: RunConfig) -> None:
        self._write("config.json", config.to_json())

    def write_recorded_config(self, facts: Mapping[str, Any]) -> None:
        """The config.json of a run that another training loop made: whatever is known of it, and no RunConfig."""
        values = {"format": FORMAT_OF_CONFIG, RECORDED: True, **facts}
        self._write("config.json", json.dumps(values, indent=2, default=str) + "\n")

    def write_vocabulary(self, vocabulary: Vocabulary) -> None:
        self._write("vocabulary.json", json.dumps(vocabulary.to_dict(), ensure_ascii=False) + "\n")

    def write_snapshot(
        self, epoch: float, step: int, tensors: Mapping[str, np.ndarray], *, is_epoch_end: bool = True
    ) -> Path:
        """Write ``epoch-NNN.safetensors`` (or ``step-NNNNNNNN``); a tensor seen before is named, not stored again."""
        name = _snapshot_name(epoch, step, is_epoch_end)
        metadata = {**self.facts, "format": FORMAT, "epoch": repr(float(epoch)), "step": str(step)}
        stored = {}
        for parameter, tensor in tensors.items():
            digest = self.last_digests[parameter] = files.sha256_of_array(tensor)
            known = self._digests.setdefault(parameter, {})
            if digest in known:
                metadata[f"held_by.{parameter}"] = known[digest]
            else:
                stored[parameter], known[digest] = tensor, name.removeprefix(SNAPSHOTS)
        self._hashes[name] = self._write_tensors(name, stored, metadata)
        return self.path / name

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
        self._write("scores.csv", csv_of(scores))

    def write_predictions(self, predictions: "pd.DataFrame") -> bytes:
        """The bytes of the file."""
        content: bytes = predictions.to_parquet(index=False)
        self._write("predictions.parquet", content)
        return content

    def write_exposure(self, exposure: Exposure | None) -> None:
        """Write the exposure so far; None, when it is not known after all, takes it away again."""
        if exposure is None:
            self._drop(EXPOSURE)
        else:
            self._write_tensors(EXPOSURE, exposure.to_tensors(), {"format": FORMAT})

    def write_optimizer_log(self, log: OptimizerLog | None) -> None:
        """Write the log so far; None, when there is none that describes the updates, takes it away again."""
        if log is None:
            self._drop("optimizer.json")
        else:
            self._write("optimizer.json", log.to_json())

    def write_folder(self, name: str, write: Callable[[Path], object]) -> None:
        """Let ``write`` fill a folder of the run with whatever files it makes."""
        with temporary_folder(self.path) as made:
            write(made)
            found = {f"{name}/{each}": source for each, source in files_in(made).items()}
            self._own(*found)
            for each, source in found.items():
                make_folder((self.path / each).parent)
                replace_file(source, self.path / each, self._owned)

    def write_state(self, step: int, tensors: Tensors, facts: Mapping[str, Any]) -> None:
        """Begin to write what the run needs to go on from here, in the place of the last state but one.

        It follows everything that was begun before. ``tensors`` must not change until :meth:`wait_for_state` returns.
        """
        self.wait_for_state()

        def begin() -> None:
            tables = {f"{TABLES}{name}": np.frombuffer(content, np.uint8) for name, content in self.tables.items()}
            state = State(step, {**tensors, **tables}, facts, dict(self._hashes))
            self.states.start(partial(self._write_state, state))

        self.background.start(begin)

    def wait_for_state(self) -> None:
        """Until everything is written, the last state too; raises its error."""
        self.background.wait()
        self.states.wait()

    def abandon_state(self) -> None:
        """Write no state any more: one that is being written is left out, unless it is as good as written."""
        self._is_state_wanted = False

    def _write_state(self, state: State) -> None:
        name = state_name(state.step)
        try:
            digest = self._write_tensors(name, state.tensors, state.metadata(), self._check_wanted)
        except _AbandonedError:
            self._drop(name)
            return
        self._states = {name: digest, **{k: v for k, v in self._states.items() if k != name}}
        old, self._states = list(self._states)[NUM_KEPT:], dict(list(self._states.items())[:NUM_KEPT])
        self._write(INDEX, index_text(self._states))
        for name in old:
            self._drop(name)

    def _check_wanted(self) -> None:
        if not self._is_state_wanted:
            raise _AbandonedError

    def drop_states(self) -> None:
        """Take the states away again: the run is finished, or the same again would end as it did."""
        self.abandon_state()
        self.wait_for_state()
        for name in (*self._states, INDEX):
            self._drop(name)
        self._states = {}

    def go_on(self, state: State) -> None:
        """Take over what a run has written until ``state``."""
        last = state_name(state.step)
        self._own(*state.snapshots, last)
        self._hashes |= state.snapshots
        for name in state.snapshots:
            with safe_open(self.path / name, "numpy") as file:
                for parameter in file.keys():  # noqa: SIM118 (it has no other way)
                    digest = files.sha256_of_array(file.get_tensor(parameter))
                    self._digests.setdefault(parameter, {})[digest] = name.removeprefix(SNAPSHOTS)
        self._states = {last: files.sha256_of_file(self.path / last)}

    def write_divergence(self, message: str) -> None:
        """Note that training diverged: there will be no manifest."""
        self.drop_states()
        self._write(DIVERGED, json.dumps({"message": message}) + "\n")

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Hash all other files and write the manifest: from now on the run counts as finished, and others may write it.

        ValueError when what was written is no longer there, or the run was started again meanwhile.
        """
        self.drop_states()
        self._check_held()
        names = self._owned.files.keys()
        if missing := sorted(name for name in names if not (self.path / name).is_file()):
            raise ValueError(f"{self.path} has lost {', '.join(missing)} while it was being written: run it again")
        others = hash_files(self.path, files.sha256_of_file, [*(names - self._hashes.keys())])
        hashes = dict(sorted({**self._hashes, **others}.items()))
        sizes = {name: (self.path / name).stat().st_size for name in hashes}
        # A list of the run's files at any moment, and one that is renamed, so that there never are two of them.
        journal = self.path / JOURNAL
        files.write_text(journal, seal({**facts, "sizes": sizes, "files": hashes}), self._owned)
        replace_file(journal, self.path / MANIFEST, self._owned)
        if self.replaces is not None:
            if foreign := owned_files(self.replaces).foreign():
                what = f"{self.replaces}: {first_few(foreign)} was not written by the run that was replaced"
                warnings.warn(f"{what}: it is kept in {move_aside(self.replaces, 'replaced')}", stacklevel=2)
            _take_place(self.replaces)
            self.path, self.replaces = self.replaces, None
        self.release()

    def release(self) -> None:
        """Let other processes write this run, when nothing here does any more."""
        self.background.close()
        self.states.close()
        self.lock.release()

    def _check_held(self) -> None:
        """ValueError where another writer has taken the run over."""
        if self.lock.is_lost:
            raise ValueError(f"{self.path} was started again while it was being written: this writer stops")

    def _own(self, *names: str) -> None:
        """Files that must still be there at the end; unfinished.json names them from now on.

        ValueError where something lies there that is not this run's.
        """
        self._check_held()
        with self._journal_lock:
            known = self._owned.files
            if new := [name for name in names if name not in known or known[name]]:
                for name in new:
                    check_replaceable(self.path / name, self._owned)
                owned = Owned(self.path, JOURNAL, {**known, **dict.fromkeys(new, ())})
                files.write_text(self.path / JOURNAL, seal({"files": dict.fromkeys(sorted(owned.files))}), self._owned)
                self._owned = owned

    def _write(self, name: str, content: str | bytes) -> None:
        self._own(name)
        raw = content if isinstance(content, bytes) else content.encode()
        files.write_bytes(self.path / name, raw, self._owned)

    def _write_tensors(
        self, name: str, tensors: Tensors, metadata: Mapping[str, str], check: Callable[[], object] = lambda: None
    ) -> str:
        """The sha256 of the file."""
        path = self.path / name
        self._own(name)
        make_folder(path.parent)
        return files.write_tensors(path, tensors, metadata, self._owned, check)

    def _drop(self, name: str) -> None:
        """Take a file of this run away again, if it is there."""
        self._check_held()
        with self._journal_lock:
            if name in self._owned.files:
                remove_file(self.path / name, self._owned)
                left = {each: known for each, known in self._owned.files.items() if each != name}
                self._owned = replace(self._owned, files=left)


def _snapshot_name(epoch: float, step: int, is_epoch_end: bool) -> str:
    """A snapshot's file, from the run directory."""
    # An epoch that --max-steps cuts short is named after the epoch it is in; its metadata holds the fraction.
    name = f"epoch-{math.ceil(epoch):03d}" if is_epoch_end else f"step-{step:08d}"
    return f"{SNAPSHOTS}{name}.safetensors"


def facts_of(position_offset: int, layer_norm_eps: float | None) -> dict[str, str]:
    """What every snapshot keeps of its model, as safetensors metadata; an eps of None: it has no LayerNorm."""
    return {"position_offset": str(position_offset), "layer_norm_eps": repr(layer_norm_eps)}


def check_startable(path: Path, *, overwrite: bool, is_recorded: bool = False) -> None:
    """ValueError where a run cannot be written to ``path``: nothing is touched.

    So it is where a finished run lies and ``overwrite`` is not set, where anything lies that no manifest and no
    unfinished.json names, or a file of a finished run that has changed since: that is somebody's work; and inside
    another run, whose manifest would not name it.

    ``is_recorded``: another training loop makes the run, which has no config of ours and no command line.
    """
    place, other = _check_place(path, is_recorded), OTHER[is_recorded]
    if not place.exists():
        return
    owned, swap = owned_files(place), _swap_of(place)
    is_finished = owned.list_name == MANIFEST
    is_kept = is_finished and not overwrite
    flag = "overwrite=True" if is_recorded else "--overwrite (in Python: overwrite=True)"
    foreign = [] if is_kept else owned.foreign()  # which reads the whole run
    added = f"holds {first_few(foreign)}, which its run did not write as it is now: move that away, or {other}"
    other_folder = f"is not empty and holds no run, but {first_few(foreign)}: {other}"
    is_swap_free = not os.path.lexists(swap) or _is_swap(swap)
    faults = {
        f"{path} holds a finished run{'' if is_recorded else ' of this config'}: pass {flag} to replace it": is_kept,
        f"{path} {added if owned.files else other_folder}; nothing there was touched": foreign,
        f"{path} is where a disk is mounted, so that no finished run there can be replaced: {other}": is_finished
        and place.is_mount(),
        f"{swap} is in the way of the run that replaces {path}: move it away": is_finished and not is_swap_free,
    }
    refuse_first(faults)


OTHER = {False: "pass another --output-dir", True: "pass a folder of its own"}
"""What to do, by whether another training loop makes the run."""


def _check_place(path: Path, is_recorded: bool) -> Path:
    """The directory of a run, through the link that it may be; ValueError where none can be: see
    :func:`check_startable`."""
    place = path.resolve() if path.is_symlink() else path
    file = next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), None)
    outer = run_around(place.resolve().parent)
    faults = {
        f"{file} is a file where the folder of runs should go": file is not None,
        f"{path} is a file where a run directory should go": path.exists() and not path.is_dir(),
        f"{path} is a link to nothing where a run directory should go": path.is_symlink() and not path.exists(),
        f"{path} would lie inside the run {outer}": outer is not None,
    }
    refuse_first({f"{fault}: {OTHER[is_recorded]}": is_so for fault, is_so in faults.items()})
    return place


NEW = "new"


def _swap_of(place: Path) -> Path:
    """The folder, beside a finished run, in which the one that is to replace it is written (``new``)."""
    place = place.resolve()
    return place.parent / f".{place.name}.swap"


def _is_swap(folder: Path) -> bool:
    """Whether a folder holds such a run, or what is left of one, and nothing else."""
    return (folder.is_dir() and not folder.is_symlink()) and all(
        path.name == NEW and path.is_dir() and not path.is_symlink() and not owned_files(path).foreign()
        for path in folder.iterdir()
    )


def _take_place(place: Path) -> None:
    """Remove the run in a place, by its own list, and put the finished one there that was to replace it.

    At any moment one of them is whole: the old one is unfinished before the first of its files goes.
    """
    swap, owned = _swap_of(place), owned_files(place)
    if owned.list_name == MANIFEST:
        replace_file(place / MANIFEST, place / JOURNAL, owned)
    if place.exists():
        clear(owned_files(place))
        remove_empty_folder(place)
    move_folder(swap / NEW, place)
    remove_empty_folder(swap)


def start_run(
    path: Path,
    *,
    overwrite: bool = False,
    is_recorded: bool = False,
    identity: Mapping[str, Any] | None = None,
) -> RunWriter:
    """A writer of a run directory: what an unfinished run left there is removed first, but for its last whole state of
    this ``identity`` and what that follows; a warning says why a newer one is passed over. None goes on from none.

    With ``overwrite`` a finished run stays until the new one is finished, which is written beside it, in a hidden
    folder, and then takes its place. The writer keeps other processes out until it has finished, is released or
    dropped. ValueError while one of them writes this run, or where :func:`check_startable` finds something.
    """
    place = _check_place(path, is_recorded).absolute()  # wherever this process goes
    swap = _swap_of(place)
    make_folder(path.parent)
    lock = RunLock(path)
    try:
        if not (place / MANIFEST).exists() and read_list(swap / NEW, MANIFEST) is not None and _is_swap(swap):
            _take_place(place)  # for a process that was killed while it did
        check_startable(path, overwrite=overwrite, is_recorded=is_recorded)
        is_finished = (place / MANIFEST).exists()
        written = swap / NEW if is_finished else place
        make_folder(written)
        state, passed_over = (None, []) if identity is None else find_state(written, identity)
        clear(owned_files(written), () if state is None else _names_until(state))
        if passed_over:
            start = "goes on from an earlier step than it had reached" if state else "starts anew, as with --no-resume"
            warnings.warn(f"{path} {start}: {'; '.join(passed_over)}", stacklevel=2)
    except BaseException:
        lock.release()
        raise
    writer = RunWriter(written, lock, replaces=place if is_finished else None, resumed=state)
    if state is not None:
        writer.go_on(state)
    return writer


def _names_until(state: State) -> set[str]:
    """The files of an unfinished run that a state follows, and those that can be read until they are written anew."""
    return {state_name(state.step), INDEX, *state.snapshots, *SMALL_FILES, EXPOSURE}
