"""The output folder of a Trainer as a run that nobody recorded: its checkpoints are the snapshots."""

import glob
import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.families import component_of, regime_name
from toolkit.naming import refuse_damaged, refuse_first
from toolkit.snapshots.backbones import Backbone, hash_weights, open_place
from toolkit.snapshots.bases import doubts_on_base, of_another_name
from toolkit.snapshots.files import sha256_of_array
from toolkit.snapshots.importers import Imported, Place, find_file, find_places, import_checkpoints
from toolkit.snapshots.snapshot import CHECKED_ROWS, Trajectory, Vocabulary
from toolkit.snapshots.store import Run, checkpoints_in, holds_model, open_run
from toolkit.snapshots.tokenizer_files import read_settings
from toolkit.snapshots.weights import SINGLE

if TYPE_CHECKING:
    import pandas as pd

STATE = "trainer_state.json"
TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "jit_compilation_time")
"""What a Trainer logs of an evaluation beside its scores."""
ARGUMENTS = ("num_train_epochs", "max_steps", "train_batch_size")
"""Fields of trainer_state.json that tell runs apart."""
KINDS: Mapping[str, Any] = {
    "global_step": int,
    "max_steps": int,
    "epoch": int | float | None,
    "log_history": list | None,
}
"""Fields of it that are computed with, and their types."""
WITHOUT_RECORD = "output folder"
"""What ``recorded_by`` says of a run that nobody recorded."""
REST = "whatever else the model has"
"""A component of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One model of a training: of its output folder, or the base."""

    place: str | Path
    """Its folder, or its weights where other models lie beside these."""
    name: str
    step: int
    epoch: float
    log: tuple[str, ...]
    """The lines that the Trainer had logged by then."""


@dataclass(frozen=True, repr=False)
class OutputFolder(Run):
    """What transformers' Trainer, or sentence-transformers', leaves in its output_dir, read lazily; nothing is written.

    No pickle is opened: training_args.bin, and with it the seed and most arguments, is not known. What was frozen is
    what is bit-identical in all that was kept.
    """

    base: str | Path | None = None
    """The checkpoint that training started from; None: drift is since the first checkpoint that was kept."""

    def facts(self) -> dict[str, str]:
        """Where it is, and what was kept."""
        return {"run": str(self.path), "checkpoints": ", ".join(path.name for path in checkpoints_in(self.path))}

    @property
    def is_finished(self) -> bool:
        """Nothing says whether more was to come: what was kept is taken as the run."""
        return True

    @cached_property
    def is_recorded(self) -> bool:
        """It is of another training loop."""
        return True

    def has(self, name: str) -> bool:
        """The Trainer's log stands for scores.csv; there is nothing else."""
        return name == "scores.csv" and len(self.scores) > 0

    def differences(self, *names: str, again: bool = False) -> list[str]:
        """None: nothing says what its files were."""
        return []

    def sha256_of(self, name: str) -> str:
        """Of what stands for its manifest.json, or its config.json."""
        own = self.manifest if name == "manifest.json" else self.recorded
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()

    @cached_property
    def training(self) -> tuple[str, ...]:
        """The lines of the log, whose losses and seconds no other training has; without any, the weights in the end."""
        last = checkpoints_in(self.path)[-1]
        return _logged(self._state) or (hash_weights(last) or str(last),)

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """What is known in place of a config: the last trainer_state.json and config.json."""
        config = read_settings(find_places(str(checkpoints_in(self.path)[-1]))[0].fetch("config.json"))
        rates = [line["learning_rate"] for line in self._log if _is_number(line.get("learning_rate"))]
        arguments: dict[str, Any] = {name: self._state[name] for name in ARGUMENTS if name in self._state}
        arguments |= {"highest_logged_rate": max(rates)} if rates else {}
        labels = config.get("id2label")
        arguments |= {"num_labels": len(labels)} if isinstance(labels, dict) else {}
        named = config.get("_name_or_path") or next(iter(config.get("architectures") or ()), config.get("model_type"))
        since = {} if self.base is not None else {"since": self._kept[0].name}
        return {
            "model": str(self.base or named or "not known"),
            "arguments": arguments,
            "moved": self._moved,
            **since,
            "recorded_by": WITHOUT_RECORD,
            "notes": [*self.doubts, *self._imported.notes, *self._notes],
        }

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What stands for a manifest: what is bit-identical in everything that was kept."""
        ends, parameters = [self.trajectory.snapshots[i] for i in (0, -1)], self.trajectory.parameters
        hashes = {name: [sha256_of_array(end.tensors[name]) for end in ends] for name in parameters}
        frozen = [name for name in parameters if name not in self._moved]
        return {
            "recorded": True,
            "regime": {
                "label": regime_name([name for name, is_same in self._is_same.items() if is_same], self._is_same),
                "frozen_components": frozen,
            },
            "frozen": {
                "is_bit_identical": True,
                "parameters": {name: dict(zip(("before", "after"), hashes[name], strict=True)) for name in frozen},
            },
            "model": {"name": self.recorded["model"], "family": next(iter(self._imported.families), None)},
            "task": {"name": None, "kind": None, "score": None, "reported_split": None},
            "ends": {name: own[1] for name, own in hashes.items()},
        }

    @cached_property
    def scores(self) -> "pd.DataFrame":
        """The evaluations of the Trainer's log; of several sets each is a split, one alone is ``validation``."""
        import pandas as pd

        lines = [
            {"epoch": float(entry["epoch"]), "step": entry.get("step"), "split": split, "num_examples": math.nan}
            | found
            for entry in self._log
            for split, found in evaluations(entry)
        ]
        scores = pd.DataFrame(lines, columns=None if lines else ["epoch", "step", "split"])
        return scores.drop_duplicates(["epoch", "split"], keep="last", ignore_index=True)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """Of the tokenizer files beside the weights."""
        return self._imported.trajectory.vocabulary

    @cached_property
    def trajectory(self) -> Trajectory:
        """The base, where it is given, the checkpoints in the order of their steps, and a later model beside them.

        Their epochs are those of each trainer_state.json; steps count from the first snapshot. ValueError where epochs
        do not ascend as steps do.
        """
        first = self._kept[0]
        alone = (
            f"{self.path} holds one checkpoint, {first.name}, which alone says nothing of change: pass base= (--base), "
            "the checkpoint that training started from"
        )
        _ = self.doubts
        refuse_first({alone: len(self._kept) < 2})
        found = zip(self._imported.trajectory, self._kept, strict=True)
        snapshots = [replace(own, epoch=kept.epoch, step=kept.step - first.step) for own, kept in found]
        return replace(self._imported.trajectory, snapshots=snapshots)

    @cached_property
    def doubts(self) -> list[str]:
        """What speaks against the base, and for a training that was cut short, a clause each.

        ValueError where training cannot have started from the base, and for checkpoints of two trainings.
        """
        self._check_one_training()
        step, last_step = self._kept[-1].step, self._state.get("max_steps", 0)
        of_all = f"what is kept last is of step {step:,} of {last_step:,}"
        of_end = [f"{of_all}: training was cut short, or what came later is gone"] if step < last_step else []
        if self.base is None:
            return of_end
        of_its_log = self._doubts_on_state_of(find_places(str(self.base))[0])
        base, *others = self._imported.trajectory
        named = [replace(each, name=f"{self.path.name}/{each.name.rpartition('/')[2]}") for each in others]
        of_rows = doubts_on_base(
            replace(self._imported.trajectory, snapshots=[base, *named]), [kept.epoch for kept in self._kept]
        )
        return [*of_end, *of_its_log, *of_another_name(self.base, self._kept[-1].place), *of_rows]

    def _check_one_training(self) -> None:
        """ValueError where the epochs do not ascend as steps do, or a log does not begin with that of the checkpoint
        before: a Trainer takes its log over, also where it resumes."""
        two = "these are of two trainings, pass each in a folder of its own"
        pairs, faults = list(pairwise(self._kept)), dict[str, bool]()
        for one, other in pairs:
            names = f"{self.path}: {other.name}"
            epochs = f"{names} is of epoch {other.epoch:g}, {one.name} of epoch {one.epoch:g}: {two}"
            faults[epochs] = other.epoch <= one.epoch
            logs = f"{names} has another log of the steps up to {one.step:,} than {one.name}: {two}"
            faults[logs] = bool(other.log) and other.log[: len(one.log)] != one.log
        refuse_first(faults)

    def _doubts_on_state_of(self, base: Place) -> list[str]:
        """What the Trainer's state beside a base says of it; ValueError for a checkpoint of this training itself."""
        path = base.fetch(STATE) if base.is_local else None
        state = {} if path is None else _read_state(path.parent)
        log, step, last_step = _logged(state), state.get("global_step", 0), state.get("max_steps", 0)
        kept = {path.resolve() for path in checkpoints_in(self.path)}
        is_own = Path(self.base or "").resolve() in kept or (bool(log) and self.training[: len(log)] == log)
        own = (
            f"the base {self.base} is a checkpoint of this training: give the one that training started from, or leave "
            "the base out, for drift since the first checkpoint that was kept"
        )
        refuse_first({own: is_own})
        midway = f"the base {base.parts[-1]} is of step {step:,} of {last_step:,} of another training"
        return [f"{midway}: this one may not have started there"] if 0 < step < last_step else []

    @cached_property
    def _imported(self) -> Imported:
        return import_checkpoints([kept.place for kept in self._kept])

    @cached_property
    def _state(self) -> Mapping[str, Any]:
        """What the Trainer knew at the end: as it was saved in the folder itself, or with the last checkpoint."""
        own, last = (_read_state(folder) for folder in (self.path, checkpoints_in(self.path)[-1]))
        return own if own.get("global_step", -1) >= last.get("global_step", 0) else last

    @property
    def _log(self) -> list[Mapping[str, Any]]:
        entries = self._state.get("log_history") or []
        return [entry for entry in entries if isinstance(entry, dict) and _is_number(entry.get("epoch"))]

    @cached_property
    def _kept(self) -> list[Kept]:
        """The base, where it is given, the checkpoints, and the model beside them where it is known to be later."""
        paths = checkpoints_in(self.path)
        found = [] if self.base is None else [Kept(self.base, Path(self.base).name, 0, 0.0, ())]
        found += [
            Kept(
                path, path.name, int(path.name.rpartition("-")[2]), float(state.get("epoch") or number), _logged(state)
            )
            for number, (path, state) in enumerate(zip(paths, map(_read_state, paths), strict=True), start=1)
        ]
        state, weights = _read_state(self.path), self._beside
        if weights is not None and state.get("epoch") and state.get("global_step", 0) > found[-1].step:
            found.append(Kept(weights, weights.name, int(state["global_step"]), float(state["epoch"]), _logged(state)))
        return found

    @property
    def _beside(self) -> Path | None:
        """The weights of a model beside the checkpoints."""
        places = (self.path / SINGLE, self.path / "0_Transformer" / SINGLE)
        return next((path for path in places if path.is_file()), None)

    @cached_property
    def _notes(self) -> list[str]:
        """What is open of epochs, and of the model beside the checkpoints."""
        notes = [] if self._backbones else ["more than the embedding parameters could not be compared"]
        if not all((path / STATE).is_file() for path in checkpoints_in(self.path)):
            notes.append(f"a checkpoint has no {STATE}: what is called its epoch is its number")
        if self._beside is None or self._kept[-1].place == self._beside:
            return notes
        (final,) = import_checkpoints([self._beside]).trajectory
        same = [
            kept.name
            for kept, snapshot in zip(reversed(self._kept), reversed(self.trajectory.snapshots), strict=True)
            if all(_is_equal(snapshot.tensors[name], final.tensors[name]) for name in final.tensors)
        ]
        if not same:
            notes.append("the model beside the checkpoints is none of these, and its step is not known: it is left out")
        elif same[0] != self._kept[-1].name:
            notes.append(f"the model beside the checkpoints is that of {same[0]}, not of the last one")
        return notes

    @cached_property
    def _backbones(self) -> list[Backbone]:
        """Every parameter of the base and of each checkpoint, mapped; none where one of them is an adapter."""
        found = [find_places(str(kept.place))[0] for kept in self._kept]
        try:
            return [open_place(place, place.parts[-1]) for place in found]
        except ValueError:  # what is there for embeddings may be no whole model
            return []

    @cached_property
    def _is_same(self) -> dict[str, bool]:
        """Component to whether it is bit-identical in everything that was kept.

        Where more than the embedding parameters cannot be read, REST is not.
        """
        tables = [side.tensors for side in self._backbones or self.trajectory]
        # In the type in which they are stored: fp64 may differ by less than fp32 tells.
        reads: list[Any] = [each.values for each in self._backbones] or [table.__getitem__ for table in tables]
        found: dict[str, bool] = {} if self._backbones else {REST: False}
        for name in set.intersection(*map(set, tables)):
            component = component_of(self._backbones[0].families[0], name) if self._backbones else name
            first, *others = (read(name) for read in reads)
            is_same = component not in self._imported.trajectory.in_part and all(
                _is_equal(first, other) for other in others
            )
            found[component] = found.get(component, True) and is_same
        return dict(sorted(found.items()))  # a file names its tensors in any order

    @property
    def _moved(self) -> list[str]:
        """The components that are not bit-identical in everything that was kept."""
        return [name for name, is_same in self._is_same.items() if not is_same and name != REST]


def _read_state(folder: Path) -> Mapping[str, Any]:
    """The trainer_state.json of a folder, empty where there is none; ValueError where a field is none of KINDS."""
    state = read_settings(find_file(folder, STATE))
    odd = [name for name, kind in KINDS.items() if name in state and not isinstance(state[name], kind)]
    refuse_damaged(folder / STATE, {f"has a {', '.join(odd)} of another type than a Trainer writes": odd})
    return state


def _logged(state: Mapping[str, Any]) -> tuple[str, ...]:
    """The lines of a Trainer's log."""
    return tuple(json.dumps(line, sort_keys=True) for line in state.get("log_history") or [])


def _is_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are the same, value for value; some rows at a time, until one differs."""
    if not one.ndim:  # a scalar has no rows
        return np.array_equal(one, other)
    parts = (slice(start, start + CHECKED_ROWS) for start in range(0, len(one), CHECKED_ROWS))
    return one.shape == other.shape and all(np.array_equal(one[part], other[part]) for part in parts)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def evaluations(entry: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Split to scores of one entry of a Trainer's log: the name of each set is told by the time that it took."""
    ends = [name.removesuffix("_runtime") for name in entry if name.startswith("eval") and name.endswith("_runtime")]
    for prefix in ends or ["eval"]:
        found = {
            name.removeprefix(f"{prefix}_"): value for name, value in entry.items() if name.startswith(f"{prefix}_")
        }
        scores = {name: float(value) for name, value in found.items() if name not in TIMES and _is_number(value)}
        if scores:
            yield prefix.removeprefix("eval").removeprefix("_") or "validation", scores


def open_runs(
    places: str | Path | Run | Iterable[str | Path | Run], *, base: str | Path | None = None, verify: bool = True
) -> list[Run]:
    """Open all runs at some places: run directories, recordings, and output folders of a Trainer.

    Parameters
    ----------
    places
        Folders, or patterns such as ``"runs/*"``, of which what is no run is passed over.
    base
        The checkpoint that training in output folders started from; None: their drift is since the first checkpoint
        that was kept. What speaks against it is a warning.
    verify
        As in :func:`toolkit.open_run`.

    Returns
    -------
    list of Run
        In the order of the places, those of a pattern by name: what compare, drift_table and write_report take.

    Raises
    ------
    ValueError
        A place is no run, a pattern fits none, or the base cannot be what a training started from.

    Examples
    --------
    >>> runs = toolkit.open_runs("old_runs/*", base="minilm")  # doctest: +SKIP
    >>> toolkit.drift_table(runs)  # doctest: +SKIP
    """
    check_base(base)
    found: list[Run] = []
    for place in [places] if isinstance(places, str | Path | Run) else places:
        if isinstance(place, Run) or Path(place).exists() or not glob.has_magic(str(place)):
            found.append(place if isinstance(place, Run) else open_run(place, verify=verify))
            continue
        paths = sorted(glob.glob(str(place)))  # noqa: PTH207 # pathlib takes no absolute ones
        fitting = [run for path in paths if (run := run_at(path, verify=verify)) is not None]
        if not fitting:
            raise ValueError(f"no run fits {str(place)!r}: pass a pattern of run directories or output folders")
        found += fitting
    runs = with_base(found, base)
    for folder in (run for run in runs if isinstance(run, OutputFolder)):
        for doubt in folder.doubts:
            warnings.warn(f"{folder.path.name}: {doubt}", stacklevel=2)
    return runs


def run_at(path: str | Path, base: str | Path | None = None, *, verify: bool = True) -> Run | None:
    """The run at a path, finished or not, an output folder with its base; None where there is no run."""
    try:
        return with_base([open_run(path, verify=verify)], base)[0]
    except ValueError:
        return None


def check_base(base: str | Path | None) -> None:
    """ValueError for a base that is a training, with snapshots or checkpoints of its own, and no one checkpoint."""
    folder = Path(base or "")
    # What a Trainer saved beside its checkpoints is one.
    is_training = folder.is_dir() and not holds_model(folder) and run_at(folder, verify=False) is not None
    if base is not None and is_training:
        raise ValueError(
            f"the base {base} is a training of its own: give the one checkpoint that training started from"
        )


def with_base(runs: Sequence[Run], base: str | Path | None) -> list[Run]:
    """The runs, output folders among them with the checkpoint that they started from."""
    is_given = base is not None
    return [replace(run, base=base) if is_given and isinstance(run, OutputFolder) else run for run in runs]
