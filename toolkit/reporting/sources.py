"""What a user named on the command line in, trajectories to analyse out: run directories, or any checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from toolkit.comparison.arms import differences_beside_seed
from toolkit.comparison.reported import read_reported
from toolkit.json_files import read_object
from toolkit.naming import names_of
from toolkit.snapshots.embedded import find_embedded
from toolkit.snapshots.importers import import_checkpoints
from toolkit.snapshots.snapshot import Trajectory
from toolkit.snapshots.store import Run, open_run
from toolkit.snapshots.verify import DRIFT_FILES


@dataclass(frozen=True)
class Opened:
    """One trajectory to analyse, the runs of other seeds beside it, and what must be said with any number of them."""

    trajectory: Trajectory
    title: str
    """What is analysed, in a few words."""
    runs: tuple[Run, ...] = ()
    """The run of ``trajectory`` and those of other seeds; empty for checkpoints."""
    names: tuple[str, ...] = ()
    """A name per run, distinct and without a path."""
    notes: tuple[str, ...] = ()
    """One sentence each, from the import of checkpoints."""
    is_half: bool = False
    """Whether any embedding parameter is stored in half precision, where no drift is no verdict."""

    default_length: int | None = None
    """Tokens that the first checkpoint reads by default, where a file of sentence-transformers says so."""

    @property
    def is_run(self) -> bool:
        """Whether exposure and an optimizer log may be at hand."""
        return bool(self.runs)


def open_sources(places: Sequence[str | Path], *, at_least: int = 1) -> Opened:
    """Open run directories (the first is analysed, the others are seeds beside it) or checkpoints, in their order.

    ValueError when there is nothing to open, when a run's files have changed since it finished, when run directories
    and checkpoints are mixed in a way that says nothing, or when there are fewer than ``at_least`` snapshots in all.
    """
    if places and all(is_run_directory(place) for place in places):
        runs = tuple(open_run(place) for place in places)
        names = tuple(names_of(run.path for run in runs))
        for run in runs:
            run.check(*DRIFT_FILES)
        _check_seeds(runs, names)
        beside = f"beside it, for what needs several seeds: {', '.join(names[1:])}" if len(runs) > 1 else ""
        unfinished = [name for run, name in zip(runs, names, strict=True) if not run.is_finished]
        said = f"unfinished, so that nothing says whether its files are whole: {', '.join(unfinished)}"
        notes = [*filter(None, [beside]), *([said] if unfinished else [])]
        opened = Opened(runs[0].trajectory, names[0], runs, names, tuple(notes))
    else:
        imported = import_checkpoints(places)
        shown = [snapshot.name for snapshot in imported.trajectory]
        is_half = any(kind in ("bfloat16", "float16") for kinds in imported.dtypes.values() for kind in kinds)
        title = " → ".join(shown if len(shown) <= 3 else (shown[0], f"{len(shown) - 2} more", shown[-1]))
        length = _default_length(places[0])
        notes = list(imported.notes)
        if len(places) > 1 and any(is_run_directory(place) for place in places):
            ends = f"{shown[0]} with {shown[-1]}"
            notes.append(
                f"A run directory stands for all of its snapshots: compared are the first and the last, {ends}."
            )
        opened = Opened(imported.trajectory, title, notes=tuple(notes), is_half=is_half, default_length=length)
    if len(opened.trajectory) < at_least:
        remedy = "pass two or more checkpoints, or a run directory"
        if opened.is_run and not opened.runs[0].is_finished:
            remedy = "finish the run, with the same command"
        raise ValueError(
            f"{len(opened.trajectory)} snapshot of {opened.title}: drift needs at least {at_least}, so {remedy}"
        )
    return opened


def _check_seeds(runs: Sequence[Run], names: Sequence[str]) -> None:
    """ValueError when a run differs from the first in more than its seed: their rows would not compare."""
    first = runs[0]
    for run, name in zip(runs[1:], names[1:], strict=True):
        if run.is_recorded or first.is_recorded:
            fields = [] if run.trajectory.parameters == first.trajectory.parameters else ["parameters"]
        else:
            fields = differences_beside_seed(
                read_reported(first, names[0], has_answers=False), read_reported(run, name, has_answers=False)
            )
        shapes = [{k: v.shape for k, v in r.trajectory.snapshots[0].tensors.items()} for r in (first, run)]
        if shapes[0] != shapes[1]:
            fields.append("shapes")
        if fields:
            words = " and ".join(field.replace("_", " ") for field in fields)
            raise ValueError(
                f"{name} is no other seed of {names[0]}: it differs in {words}; give runs of one model, "
                "task, regime and settings, or compare regimes with python -m toolkit report"
            )
    seeds = [None if run.is_recorded else run.config.seed for run in runs]
    for (seed, name), (other, second) in combinations(zip(seeds, names, strict=True), 2):
        if seed is not None and seed == other:
            raise ValueError(f"{name} and {second} have the same seed, {seed}: give runs of different seeds")


def is_run_directory(place: str | Path) -> bool:
    """Whether a place is a run directory of ours, finished or not."""
    return (Path(place) / "snapshots").is_dir()


def _default_length(place: str | Path) -> int | None:
    path = (find_embedded(str(place)) or Path(place)) / "sentence_bert_config.json"
    if not path.is_file():
        return None
    length = read_object(path).get("max_seq_length")
    return length if isinstance(length, int) else None
