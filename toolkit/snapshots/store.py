"""The run directory as it is read, from :func:`open_run` on."""

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from toolkit.config import RunConfig
from toolkit.families import TABLES
from toolkit.naming import (
    Described,
    OtherFormatError,
    meant_by,
    parse_object,
    read_object,
    reading,
    refuse_damaged,
    refuse_first,
)
from toolkit.progress import counted, shows_progress
from toolkit.snapshots import files, formats
from toolkit.snapshots.logs import Exposure, OptimizerLog
from toolkit.snapshots.ownership import FORMAT as MANIFEST_FORMAT
from toolkit.snapshots.ownership import JOURNAL, Owned, entries_of, is_sealed, move_aside, read_list
from toolkit.snapshots.ownership import MANIFEST as MANIFEST
from toolkit.snapshots.ownership import WRITTEN as WRITTEN
from toolkit.snapshots.snapshot import (
    FORMAT,
    MappedTensors,
    Snapshot,
    Trajectory,
    Vocabulary,
    check_metadata,
)
from toolkit.snapshots.unfinished import RunLock

if TYPE_CHECKING:
    import pandas as pd


T = TypeVar("T")

DIVERGED = "diverged.json"
"""Stands in an unfinished run whose training stopped because its loss was not finite: the same again would too."""

SNAPSHOTS = "snapshots/"
SNAPSHOT = re.compile(r"(epoch-[0-9]{3,}|step-[0-9]{8,})\.safetensors")
"""The name of a snapshot's file, whole: any other file below ``snapshots/`` is somebody else's."""
SMALL_FILES = ("config.json", "optimizer.json", "predictions.parquet", "scores.csv", "vocabulary.json")
"""The files of a run that hold no tensors."""
EXPOSURE = "exposure.safetensors"


class Unnamed(str):
    """A line on a file that the manifest does not name: nothing that it does name is damaged by it."""

    __slots__ = ()


RECORDED = "is_recorded"
"""The field of config.json that marks a run which another training loop made."""


def hash_files(path: Path, digest: Callable[[Path], str], names: Sequence[str], told: str = "") -> dict[str, str]:
    """Name to sha256 of files of a run directory; hashing lets other threads run. ``told``: what is said of it."""
    if len(names) < 2:
        return {name: digest(path / name) for name in names}
    with ThreadPoolExecutor(max_workers=4) as pool:
        digests = pool.map(lambda name: digest(path / name), names)
        return dict(zip(counted(names, told) if told else names, digests, strict=True))


def remedy_of(differences: Iterable[str]) -> str:
    """What to do about lines of :meth:`Run.differences`."""
    return "move it away" if all(isinstance(line, Unnamed) for line in differences) else "restore it, or run again"


def owned_files(place: Path) -> Owned:
    """The files of the run in a directory: what its manifest names, or its unfinished.json; none where neither does."""
    for name in (MANIFEST, JOURNAL):
        if os.path.lexists(place / name):
            return read_list(place, name) or Owned(place, "")
    return Owned(place, JOURNAL)


def run_around(folder: Path) -> Path | None:
    """The run that a folder is or lies in, through links; None where it lies in none."""
    place = folder.resolve()
    return next((path for path in (place, *place.parents) if path.is_dir() and owned_files(path).files), None)


@dataclass(frozen=True, repr=False)
class Run(Described):
    """One run directory, read lazily. A checkpoint, a task, a regime and a seed, and their results.

    Examples
    --------
    >>> run = toolkit.open_runs("runs/*")[0]
    >>> run.drift().index.tolist()  # whose values are in % of the norm
    ['word_embeddings', 'position_embeddings', 'token_type_embeddings', 'LayerNorm.weight', 'LayerNorm.bias']
    """

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
            frozen = f"all but the head and {config.adapters}" if config.lora else config.freeze
            known |= {"model": config.model, "task": config.task, "frozen": frozen, "seed": str(config.seed)}
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
    def recorded(self) -> dict[str, Any]:
        """What whoever recorded it, or the loop that made it, says of it: the fields of config.json; none of ours."""
        return read_object(self._existing("config.json")) if self.is_recorded else {}

    def has(self, name: str) -> bool:
        """Whether it has one of the files that a run may have."""
        return self._checked(name) is not None

    @cached_property
    def config(self) -> RunConfig:
        """The resolved config; ValueError for a recorded run, which has none."""
        if self.is_recorded:
            raise ValueError(
                f"{self.path} was recorded in another training loop and has no RunConfig: its drift is analysed by "
                f"python -m toolkit drift {self.path}"
            )
        path = self._existing("config.json")
        return RunConfig.from_json(path.read_bytes(), path)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Hashes, versions, devices, the frozen parameters and their proof.

        ValueError when unfinished, and where the manifest's own sha256 says that it has changed.
        """
        path = self.path / MANIFEST if self.is_finished else self._existing(MANIFEST)
        raw = path.read_bytes()
        values = parse_object(raw, path, {"format": int, "files": dict, "sizes": dict}, version=MANIFEST_FORMAT)
        refuse_damaged(path, {"is not as it was written (its own sha256 says so)": not is_sealed(raw, values)})
        return values

    @property
    def adapted(self) -> list[str]:
        """The embedding parameters that an adapter changes: no log of an optimizer tells what moved them."""
        model = self.manifest.get("model") if self.is_finished else None  # which nobody's manifest need have
        return (model or {}).get("adapted") or []

    @cached_property
    def scores(self) -> "pd.DataFrame":
        """One row per epoch and split: step, number of examples, loss and the task's scores.

        Of another loop: a line per evaluation, at epochs of its own, with scores by its own names.
        """
        return formats.read_scores(self._existing("scores.csv"), is_recorded=self.is_recorded)

    @cached_property
    def predictions(self) -> "pd.DataFrame":
        """One row per epoch, split and example: id, label, prediction, scores (the logits, or the value)."""
        return formats.read_predictions(self._existing("predictions.parquet"))

    @cached_property
    def optimizer_log(self) -> OptimizerLog | None:
        """Learning rates, clipping and hyperparameters of every step; None when they were not recorded."""
        path = self._checked("optimizer.json")
        return None if path is None else OptimizerLog.from_json(path.read_bytes(), path)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """Row to token text; None when no tokenizer was at hand."""
        path = self._checked("vocabulary.json")
        if path is None:
            return None
        values = read_object(path, {"tokens": list, "special_rows": list}, version=int(FORMAT))
        tokens, pad = tuple(map(str, values["tokens"])), values.get("pad_row")
        with reading(path, "is not a vocabulary of texts and rows"):
            rows = range(len(tokens))  # which has an item for each row, and no other
            special, added = ([rows[row] for row in values.get(kind, [])] for kind in ("special_rows", "added_rows"))
            return Vocabulary(tokens, frozenset(special), None if pad is None else rows[pad], frozenset(added))

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
        with reading(first := self.path / SNAPSHOTS / names[0], "does not say where positions begin"):
            facts = files.read_header(first)[0]
            offset, eps_text = int(facts.get("position_offset") or 0), facts.get("layer_norm_eps") or "1e-12"
            eps = None if eps_text == "None" else float(eps_text)
        return Trajectory(snapshots, self.vocabulary, self._read_exposure, offset, eps)

    def drift(self, epoch: float | None = None) -> "pd.Series":
        """How far each embedding parameter moved by an epoch (None: the last), in % of the norm that it had at first.

        0 only where nothing moved, NaN where it is undefined (it was 0 before). :func:`toolkit.measure_drift` says the
        same of every snapshot and of groups of rows.
        """
        return self.trajectory.drift(epoch)

    def snapshot_names(self) -> list[str]:
        """The files below ``snapshots/`` that are the run's; ValueError for any other, and for one that is gone.

        Of a finished run its manifest decides; of an unfinished one unfinished.json, where it is there, and
        only plain files of the exact names of snapshots are taken. What a killed writer left of such a file is passed
        over.
        """
        if not (self.path / SNAPSHOTS).is_dir():
            return []
        if self.is_finished:
            self._refuse(self._differences(SNAPSHOTS, is_hashed=False))
            return sorted(n.removeprefix(SNAPSHOTS) for n in self.manifest["files"] if n.startswith(SNAPSHOTS))
        every = sorted((self.path / SNAPSHOTS).iterdir())
        paths = [path for path in every if not SNAPSHOT.fullmatch(files.of_temporary(path.name) or "")]
        # Nothing says what a link is, which no run writes.
        odd = [path for path in paths if not path.is_file() or path.is_symlink() or not SNAPSHOT.fullmatch(path.name)]
        what = "no snapshot (epoch-NNN or step-NNNNNNNN, .safetensors, and in an unfinished run no link)"
        refuse_first({f"{path} is {what}: move it away": True for path in odd})
        self.check(*(SNAPSHOTS + path.name for path in paths))
        return [path.name for path in paths]

    def open_snapshot(self, name: str) -> Snapshot:
        """One of :meth:`snapshot_names`, memory-mapped; its tensors are checked when they are read."""
        tensors = MappedTensors(self.path / SNAPSHOTS / name, lambda file: self.check(SNAPSHOTS + file))
        return Snapshot(tensors.epoch, tensors.step, tensors)

    def differences(self, *names: str, again: bool = False) -> list[str]:
        """How files of a finished run differ from what its manifest says, one line each.

        ``names`` are files, or folders with a slash at the end; default: everything. A file that has not changed since
        it was last hashed by this process is not hashed again, unless ``again``.
        """
        return self._differences(*names, is_hashed=self.verify or again, again=again)

    def _differences(self, *names: str, is_hashed: bool, again: bool = False) -> list[str]:
        """See :meth:`differences`; without ``is_hashed`` a file counts as changed where its size has, and no other."""
        recorded, sizes = self.manifest["files"], self.manifest["sizes"]
        folders = tuple(name for name in names if name.endswith("/")) if names else ("",)
        there = [entries_of(self.path, recorded, folder) for folder in folders if (self.path / folder).is_dir()]
        wanted = {*(name for name in names if name not in folders), *chain.from_iterable(there)}
        in_manifest = sorted(name for name in recorded if name in wanted or name.startswith(folders))
        present = [name for name in in_manifest if (self.path / name).is_file()]
        same_size = [name for name in present if (self.path / name).stat().st_size == sizes.get(name)]
        # A file of another size needs no hashing: "" is no digest. One of the right size is as it was, unless hashed.
        digests = dict.fromkeys(present, "") | {name: recorded[name] for name in same_size}
        known_sha256 = partial(files.known_sha256, again=again)
        digests |= hash_files(self.path, known_sha256, same_size, "hashing files") if is_hashed else {}
        unlisted = [name for name in wanted.difference(in_manifest, [MANIFEST]) if os.path.lexists(self.path / name)]
        unlisted = sorted(name for name in unlisted if files.of_temporary(name) not in {MANIFEST, *recorded})
        return [
            *(f"missing: {name}" for name in in_manifest if name not in digests),
            *(f"changed: {name}" for name in present if digests[name] != recorded[name]),
            *(Unnamed(f"not in the manifest: {name}") for name in unlisted),
        ]

    def check(self, *names: str) -> None:
        """ValueError where a finished run's files are not as they were; see :meth:`differences`.

        Of an unfinished run, where a file among ``names`` is none that its unfinished.json names.
        """
        if self.is_finished:
            self._refuse(self.differences(*names))
        elif os.path.lexists(self.path / JOURNAL):
            named = owned_files(self.path).files
            others = [self.path / name for name in names if name not in named and not name.endswith("/")]
            refuse_first(
                {f"{path} is not named in the run's {JOURNAL}: move it away": os.path.lexists(path) for path in others}
            )

    def sha256_of(self, name: str) -> str:
        """The sha256 of one of its files."""
        return files.sha256_of_file(self.path / name)

    @cached_property
    def training(self) -> tuple[str, ...]:
        """What no other training has; that of a part of a training is the beginning of this."""
        return (self.sha256_of(MANIFEST),)

    def _refuse(self, differences: list[str]) -> None:
        if differences:
            said = f"{self.path} is not as its manifest says ({'; '.join(differences)})"
            raise ValueError(f"{said}: {remedy_of(differences)}")

    def _read_exposure(self) -> Exposure | None:
        path = self._checked(EXPOSURE)
        if path is None:
            return None
        (metadata, entries), first = files.read_header(path), self.trajectory.snapshots[0].tensors
        check_metadata(metadata, path)
        tensors = {name: np.array(files.map_tensor(path, entry)) for name, entry in entries.items()}
        sizes = {name: len(first[name]) for name in TABLES if name in first}
        return formats.read_exposure(path, tensors, sizes, may_lack=self.is_recorded)

    def _existing(self, name: str) -> Path:
        path = self._checked(name)
        if path is None:
            state = "" if self.is_finished else " (the run is unfinished: run it again)"
            state = " (a recorded run has none)" if self.is_recorded else state
            raise ValueError(f"{self.path / name} is missing{state}")
        return path

    def _checked(self, name: str) -> Path | None:
        """One of the files that a run may have, as its manifest says; None where it has none."""
        self.check(name)
        return path if (path := self.path / name).exists() else None


MAKE_AGAIN = "report --from makes its page again; the runs that it is about are somewhere else"
PATTERN = ": open_runs takes patterns"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
"""What transformers.Trainer calls the folder of a step."""


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a Trainer below its output folder, in the order of their steps."""
    found = (path for path in folder.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name) and path.is_dir())
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def open_run(path: str | Path, *, verify: bool = True) -> Run:
    """Open a run directory, finished or not, or the output folder of a Trainer; ValueError when none is at ``path``.

    Nothing is read now. Whatever is read of a finished run later is checked then: its size always, and its sha256 when
    it is first read, and again where it has changed since, unless ``verify`` is False. A ValueError names what differs.

    Examples
    --------
    >>> run = toolkit.open_run("runs/tiny_toy_freeze-none_seed-0_0123abcd")
    >>> run
    Run(...)
    """
    if not isinstance(path, str | Path):
        raise ValueError(f"open_run takes the path of one run; got {type(path).__name__}: open_runs takes several")
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"no run directory at {path}{PATTERN if glob.has_magic(str(path)) else meant_by(path)}")
    if not (path / SNAPSHOTS).is_dir() and checkpoints_in(path):
        from toolkit.snapshots.output_folder import OutputFolder  # which stands upon all of this

        return OutputFolder(path, verify)
    is_model = holds_model(path)
    faults = {
        f"{path} is a report and no run: {MAKE_AGAIN}": (path / WRITTEN).is_file(),
        f"{path} is one checkpoint of a training: pass the folder that it lies in, {path.parent}": is_model
        and CHECKPOINT.fullmatch(path.name),
        f"{path} holds runs, and is none: pass {path}/* to open_runs": any(path.glob(f"*/{SNAPSHOTS}")),
        f"{path} is not a run directory: it has neither config.json nor snapshots/": not (
            (path / "config.json").exists() or (path / SNAPSHOTS).is_dir()
        ),
        f"{path} is a model and no run: pass it to import_checkpoints, or as base= of a training": is_model,
    }
    refuse_first(faults)
    return Run(path, verify)


def holds_model(path: Path) -> bool:
    """Whether a folder is a checkpoint, and not what is left of a run, which keeps its model in a folder below."""
    weights = [each for pattern in ("*.safetensors", "*.bin") for each in path.glob(pattern)]
    return bool(weights) and not any((path / name).exists() for name in (SNAPSHOTS, MANIFEST, JOURNAL, DIVERGED))


@runtime_checkable
class HasTrajectory(Protocol):
    """A run, or imported checkpoints."""

    @property
    def trajectory(self) -> Trajectory:
        """What is analysed."""


Source = Trajectory | HasTrajectory | str | Path
"""What every analysis takes."""


def run_of(source: Source) -> Run | None:
    """The run behind what an analysis is given; None for a trajectory and for imported checkpoints."""
    if isinstance(source, str | Path):
        return open_run(source)
    return source if isinstance(source, Run) else None


def trajectory_of(source: Source) -> Trajectory:
    """The trajectory of whatever an analysis is given: a trajectory, a run, or the path of a run directory."""
    found = source if isinstance(source, Trajectory) else getattr(run_of(source) or source, "trajectory", None)
    if not isinstance(found, Trajectory):
        raise ValueError(f"expected a run, its path, a trajectory or imported checkpoints; got {type(source).__name__}")
    return found


def listed(sources: Iterable[T]) -> list[T]:
    """What a function of several runs is given, as a list, in place of a pattern the runs that fit it.

    ValueError for one alone: a str is a sequence of letters.
    """
    is_alone = isinstance(sources, str | Path | Run | Trajectory) or not isinstance(sources, Iterable)
    if is_alone and not _is_pattern(sources):
        alone = sources if isinstance(sources, str | Path) else getattr(sources, "path", type(sources).__name__)
        raise ValueError(f"expected a list of run directories; got {alone} alone: put it in a list")
    from toolkit.snapshots.output_folder import open_runs  # which stands upon all of this

    every: Any = [sources] if is_alone else sources
    fitting: Any = (open_runs(source) if _is_pattern(source) else [source] for source in every)
    return list(chain.from_iterable(fitting))


def _is_pattern(source: object) -> bool:
    return isinstance(source, str) and glob.has_magic(source) and not Path(source).exists()


def runs_of(sources: Iterable[Run | str | Path]) -> list[Run]:
    """The runs that a function of several of them is given, as runs or paths; ValueError for anything else."""
    found = {index: (source, run_of(source)) for index, source in enumerate(listed(sources))}
    for source in (source for source, run in found.values() if run is None):
        raise ValueError(f"expected run directories; got {type(source).__name__}: pass the run itself, or its path")
    return [run for _, run in found.values() if run is not None]


DRIFT_FILES = (SNAPSHOTS, EXPOSURE, *SMALL_FILES)
"""What a report of drift reads of a run: all but ``model/``."""


def damage_of(path: Path) -> list[str]:
    """What is gone or changed of a finished run, one line each; what was added there is no damage.

    OtherFormatError for the run of another version.
    """
    try:
        differences = open_run(path).differences()
    except OtherFormatError:
        raise
    except ValueError as error:  # no run any more, or its manifest is not as it was written
        return [str(error)]
    return [line for line in differences if not isinstance(line, Unnamed)]


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
        return f"{'; '.join(damage)}; kept as {move_aside(path, 'damaged')}"
    finally:
        lock.release()


@shows_progress("hashing every file")
def verify_run(path: str | Path) -> list[str]:
    """Recompute every hash of a finished run; the differences, one line each, none when all is as it was.

    A file that the manifest does not name is one, wherever it lies; only what a killed writer left is passed over.
    """
    run = open_run(path)
    faults = {
        f"{path} is a Trainer's output folder: nothing says what its files were, to hold them against": bool(
            checkpoints_in(run.path)
        ),
        f"{path} is not a run directory: it has no snapshots/": not (run.path / SNAPSHOTS).is_dir(),
        f"{path} is unfinished (no {MANIFEST}): run it again with the same command": not run.is_finished,
    }
    refuse_first(faults)
    try:
        return run.differences(again=True)
    except ValueError as error:  # of the manifest, without which nothing can be said of the others
        return [str(error)]
