"""What a user named on the command line, opened: run directories or any checkpoints, and each table of them once."""

import glob
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.comparison.conditions import differences_beside_seed
from toolkit.comparison.runs import read_reported
from toolkit.naming import meant_by, names_of, read_object, refuse_first, shown_path
from toolkit.progress import counted
from toolkit.reporting.cells import listing
from toolkit.reporting.page import Answer, Section, Tile
from toolkit.reporting.topics.recordings import notes_on, notes_on_several
from toolkit.snapshots.backbones import is_run
from toolkit.snapshots.bases import doubts_on_base
from toolkit.snapshots.importers import import_checkpoints
from toolkit.snapshots.output_folder import OutputFolder, check_base, run_at, with_base
from toolkit.snapshots.snapshot import Trajectory, name_undefined
from toolkit.snapshots.store import (
    CHECKPOINT,
    DRIFT_FILES,
    MAKE_AGAIN,
    MANIFEST,
    WRITTEN,
    Run,
    Source,
    checkpoints_in,
    holds_model,
    listed,
    open_run,
    remedy_of,
)
from toolkit.snapshots.tokenizer_files import find_embedded

SHOWN_REASONS = 3
"""Places that the refusal of a whole list names: a glob of other files can bring along thousands."""
WHY_DIVERGED = "its training diverged (the loss was not finite), which counts against its condition"


@dataclass(frozen=True)
class Sources:
    """The runs of a report, and the places that cannot be in it."""

    runs: tuple[Run, ...]
    left_out: tuple[str, ...]
    """One sentence each."""
    diverged: tuple[Run, ...] = ()
    """Those of them whose training diverged."""
    lost: frozenset[str] = frozenset()
    """Conditions with no run left, as every one diverged: they can be compared with nothing."""

    def note_lost(self, labels: Mapping[str, str] | None, task_names: Mapping[str, str] | None = None) -> "Sources":
        """The same with :attr:`lost`, and a sentence for each condition that diverged on every seed of a task.

        ``labels``, ``task_names``: run directory name to condition, and to what its task is called.
        """
        labels = labels or {}
        names_given = task_names or {}

        def task_of(run: Run) -> str:
            task = str(run.recorded.get("task")) if run.is_recorded else run.config.task
            return names_given.get(run.path.name, task)

        surviving = {(labels.get(run.path.name), task_of(run)) for run in self.runs}
        lost_tasks: dict[str, list[str]] = {}  # condition to the tasks on which no run of it is left
        for run in self.diverged:
            label, task = labels.get(run.path.name), task_of(run)
            if label is not None and (label, task) not in surviving and task not in lost_tasks.get(label, ()):
                lost_tasks.setdefault(label, []).append(task)
        sentences = [
            f"Every run of {label} on {listing(tasks)} diverged: it is compared with nothing there."
            for label, tasks in lost_tasks.items()
        ]
        # A condition with a run left on some task is compared there.
        lost = frozenset(lost_tasks) - {label for label, _ in surviving if label is not None}
        return replace(self, left_out=(*sentences, *self.left_out), lost=lost)


def find_runs(places: Sequence[Run | str | Path], base: str | Path | None = None) -> Sources:
    """Open what can be reported on; an unfinished run and a folder that is no run are left out.

    They are what a glob brings along. So is a run whose files are not those that its manifest names. ``base``: what
    training in output folders started from. ValueError for a place that does not exist, for one that is not in a list,
    and when nothing is left.
    """
    check_base(base)
    places = listed(places)
    runs: list[Run] = []
    left_out: list[str] = []
    diverged: list[Run] = []
    for place in places:
        path = place.path if isinstance(place, Run) else Path(place)
        if not path.exists():
            raise ValueError(f"no run directory at {path}{meant_by(path)}")
        run = with_base([place], base)[0] if isinstance(place, Run) else run_at(path, base)
        reason = _what_instead(path) if run is None else _reason_against(run)
        if run is None or reason:
            left_out.append(f"{shown_path(path)} is left out: {reason}.")
        else:
            runs.append(run)
        if run is not None and reason == WHY_DIVERGED:
            diverged.append(run)
    if not runs:
        reasons = " ".join(left_out[:SHOWN_REASONS]) or "none was given."
        hidden = len(left_out) - SHOWN_REASONS
        rest = f" So {'is' if hidden == 1 else 'are'} {hidden:,} more." if hidden > 0 else ""
        hints = " ".join(["", *filter(None, map(_runs_within, places))][: SHOWN_REASONS + 1])
        raise ValueError(f"no runs to report on: pass at least one finished run directory. {reasons}{rest}{hints}")
    return Sources(tuple(runs), tuple(left_out), tuple(diverged))


def _what_instead(path: Path) -> str:
    """What a path is that is no run."""
    if (path / WRITTEN).is_file():
        return f"it is a report and no run: {MAKE_AGAIN}"
    if not holds_model(path):
        return "it is not a run directory"
    if CHECKPOINT.fullmatch(path.name):
        return "it is one checkpoint of a training: pass the folder that it lies in"
    return "it is a model and no run"


def _runs_within(place: Run | str | Path) -> str:
    """A hint to pass the runs within a folder that only holds run directories; empty for any other place."""
    if isinstance(place, Run) or not Path(place).is_dir() or run_at(Path(place)) is not None:
        return ""
    # Hidden: one that is to replace another.
    num_runs = sum(run_at(path) is not None for path in Path(place).glob("[!.]*"))
    hint = f"{place} holds {num_runs:,} run director{'ies' if num_runs > 1 else 'y'}: pass {place}/*"
    return hint if num_runs else ""


def _reason_against(run: Run) -> str:
    """Why a run cannot be reported on; empty when it can."""
    if isinstance(run, OutputFolder):
        try:
            return "" if len(run.trajectory) > 1 else "it holds one checkpoint, from which nothing can have moved"
        except ValueError as error:  # of weights that cannot be read, whose words may name the path
            return str(error).replace(f"{run.path}/", "").replace(str(run.path), run.path.name)
    if run.is_finished:
        try:
            differences = run.differences(*DRIFT_FILES)
        except ValueError:  # whose words name the path, which no report must
            return f"its {MANIFEST} cannot be read: restore it or run it again"
        if differences:
            return f"it is not as its manifest says ({'; '.join(differences)}): {remedy_of(differences)}"
    if run.has_diverged and not run.is_finished:
        return WHY_DIVERGED
    if not run.is_finished:
        return "it is unfinished (no manifest.json)"
    is_choice = not run.is_recorded and run.config.selection_fraction
    return "it served to choose settings (--selection-fraction)" if is_choice else ""


@dataclass(frozen=True)
class Opened:
    """One trajectory to analyse, the runs of other seeds beside it, and notes that belong to any of its numbers."""

    trajectory: Trajectory
    title: str
    """What is analysed, in a few words."""
    runs: tuple[Run, ...] = ()
    """The run of ``trajectory`` and those of other seeds; empty for checkpoints."""
    names: tuple[str, ...] = ()
    """A name per run, distinct and without a path."""
    notes: tuple[str, ...] = ()
    """One sentence each, from the import of checkpoints."""
    problems: tuple[str, ...] = ()
    """Those that stand before any number."""
    is_half: bool = False
    """Whether any embedding parameter is stored in half precision, where no drift is no verdict."""

    default_length: int | None = None
    """Tokens that the first checkpoint reads by default, where a file of sentence-transformers says so."""

    @property
    def is_run(self) -> bool:
        """Whether exposure and an optimizer log may be at hand."""
        return bool(self.runs)

    @property
    def source(self) -> Source:
        """The source that analyses take: the run, for its exposure and its log, or the snapshots alone."""
        return self.runs[0] if self.runs else self.trajectory


SINCE = "drift is since {first}, the first that was kept, and not since before training: --base CHECKPOINT says that"
"""Of an output folder alone, where what training did first is not to be seen."""


def open_sources(places: Sequence[str | Path], base: str | None = None, *, at_least: int = 1) -> Opened:
    """Open run directories (the first is analysed, the others are seeds beside it) or checkpoints, in their order.

    ``base``: what the one training started from whose checkpoints are given. ValueError when there is nothing to open,
    when a run's files have changed since it finished, when several trainings are given that are no run directories,
    when the base cannot be that, or when there are fewer than ``at_least`` snapshots in all.
    """
    _check_trainings(places, base)
    are_runs = places and all(is_run(place) for place in places)
    opened = _opened_runs(places) if are_runs else _opened_checkpoints(places, base)
    if len(opened.trajectory) < at_least:
        remedy = "pass two or more checkpoints, or (--base) the one that training started from"
        if opened.is_run and not opened.runs[0].is_finished:
            remedy = "finish the run, with the same command"
        raise ValueError(
            f"{len(opened.trajectory)} snapshot of {opened.title}: drift needs at least {at_least}, so {remedy}"
        )
    return opened


def _opened_runs(places: Sequence[str | Path]) -> Opened:
    """Runs of one condition that differ in their seeds, checked, the first to be analysed."""
    runs = tuple(open_run(place) for place in places)
    names = tuple(names_of(run.path for run in runs))
    for run in runs:
        run.check(*DRIFT_FILES)
    for run, name in zip(runs, names, strict=True):
        _check_finite(run.trajectory, name)
    _check_seeds(runs, names)
    notes = []
    if len(runs) > 1:
        notes.append(f"beside it, for what needs several seeds: {', '.join(names[1:])}")
    unfinished = [name for run, name in zip(runs, names, strict=True) if not run.is_finished]
    if unfinished:
        notes.append(f"unfinished, so that nothing says whether its files are whole: {', '.join(unfinished)}")
    recorded = [(run, name) for run, name in zip(runs, names, strict=True) if run.is_recorded]
    reported = [read_reported(run, name, has_answers=False) for run, name in recorded]
    notes += notes_on(reported)
    notes += notes_on_several(reported) if len(runs) > 1 else []
    return Opened(runs[0].trajectory, names[0], runs, names, tuple(notes))


def _opened_checkpoints(places: Sequence[str | Path], base: str | None) -> Opened:
    """Checkpoints in their order, as one trajectory: the base first, where one is given."""
    imported = import_checkpoints([*places] if base is None else [base, *places])
    trajectory = imported.trajectory
    names = [snapshot.name for snapshot in trajectory]
    num_between = len(names) - 2
    title = " → ".join(names if num_between <= 1 else (names[0], f"{num_between} more", names[-1]))
    notes = [note for note in imported.notes if note not in imported.problems]
    if len(places) > 1 and any(is_run(place) for place in places):
        notes.append(
            "A run directory stands for all of its snapshots: compared are the first and the last, "
            f"{names[0]} with {names[-1]}."
        )
    problems = list(imported.problems)
    is_folder = len(places) == 1 and bool(checkpoints_in(Path(places[0])))
    if is_folder and not base:
        problems.append(SINCE.format(first=names[0]))
    if is_folder:
        problems += OutputFolder(Path(places[0]), base=base).doubts
    elif base is not None and len(trajectory) > 1:
        problems += doubts_on_base(trajectory)
    return Opened(
        trajectory,
        title,
        notes=tuple(notes),
        problems=tuple(problems),
        is_half=any(dtype in ("bfloat16", "float16") for dtypes in imported.dtypes.values() for dtype in dtypes),
        default_length=_default_length(base or places[0]),
    )


def _check_trainings(places: Sequence[str | Path], base: str | None) -> None:
    """ValueError where the checkpoints of several trainings would be read as those of one, in their order."""
    check_base(base)
    paths = [Path(path) for place in places for path in glob.glob(str(place)) or [str(place)]]  # noqa: PTH207 # see open_runs
    folders = {path: path.parent if CHECKPOINT.fullmatch(path.name) else path for path in paths}
    num_checkpoints = Counter[Path]()
    for path, folder in folders.items():
        # A whole training counts as several, however many it kept.
        num_checkpoints[folder] += 2 if is_run(path) or checkpoints_in(path) else 1
    # One checkpoint of each of two trainings is a before and an after, unless both are said to have one base.
    trainings = [str(folder) for folder, number in num_checkpoints.items() if base is not None or number > 1]
    base_flag = f" --base {base}" if base is not None else ""
    refuse_first(
        {
            "--base is what checkpoints of a Trainer were trained from: a run directory holds its own, leave it out": (
                base is not None and any(map(is_run, paths))
            ),
            f"{listing(trainings[:SHOWN_REASONS])} are trainings of their own, and no one trajectory: pass one of "
            f"them, or compare them: report {shlex.join(trainings)}{base_flag} --out FOLDER": (
                len(trainings) > 1 and not all(map(is_run, paths))
            ),
        }
    )


def _check_finite(trajectory: Trajectory, name: str) -> None:
    """ValueError where a snapshot of a run holds NaN or infinity."""
    for snapshot in trajectory:
        for parameter, tensor in snapshot.tensors.items():
            if where := name_undefined(parameter, tensor, trajectory.vocabulary, trajectory.position_offset):
                raise ValueError(
                    f"{name}: {parameter} holds NaN or infinity at epoch {snapshot.epoch:g} {where}: the run diverged, "
                    "leave it out"
                )


def _check_seeds(runs: Sequence[Run], names: Sequence[str]) -> None:
    """ValueError where a run differs from the first in more than its seed, or two runs have the same seed."""
    for run, name in zip(runs[1:], names[1:], strict=True):
        first_reported = read_reported(runs[0], names[0], has_answers=False)
        reported = read_reported(run, name, has_answers=False)
        settings = differences_beside_seed(first_reported, reported)
        if _shapes_of(run) != _shapes_of(runs[0]):
            settings.append("shapes")
        if settings:
            differences = " and ".join(setting.replace("_", " ") for setting in settings)
            raise ValueError(
                f"{name} is no other seed of {names[0]}: it differs in {differences}; give runs of one model, "
                "task, regime and settings, or compare regimes with python -m toolkit report"
            )
    seeds = [run.recorded.get("seed") if run.is_recorded else run.config.seed for run in runs]
    for (seed, name), (other_seed, other_name) in combinations(zip(seeds, names, strict=True), 2):
        if seed is not None and seed == other_seed:
            raise ValueError(f"{name} and {other_name} have the same seed, {seed}: give runs of different seeds")


def _shapes_of(run: Run) -> dict[str, tuple[int, ...]]:
    """Embedding parameter to its shape, at the first snapshot."""
    return {name: tuple(tensor.shape) for name, tensor in run.trajectory.snapshots[0].tensors.items()}


def _default_length(place: str | Path) -> int | None:
    """The tokens that a checkpoint reads by default, by its file of sentence-transformers; None without one."""
    path = (find_embedded(str(place)) or Path(place)) / "sentence_bert_config.json"
    if not path.is_file():
        return None
    length = read_object(path).get("max_seq_length")
    return length if isinstance(length, int) else None


Makers = Mapping[str, Callable[[], pd.DataFrame]]
"""Name of a table, which is that of its CSV file, to what computes it."""


@dataclass
class Computed:
    """Every table of one report by name, and why others are missing."""

    opened: Opened
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def epoch(self) -> float:
        """The last snapshot's epoch: every table but those over time is of it."""
        return float(self.opened.trajectory.snapshots[-1].epoch)

    def add(self, makers: Makers) -> "Computed":
        """Compute the tables that are not there yet."""
        lacking = {name: make for name, make in makers.items() if name not in self.frames}
        for name, make in counted(lacking.items(), "computing tables"):
            try:
                self.frames[name] = make()
            except ValueError as error:  # every analysis says in one line why it does not apply
                reason = str(error)
                for run in self.opened.runs:
                    reason = reason.replace(str(run.path), run.path.name)
                self.missing[name] = reason
        return self

    def get(self, name: str, **where: Any) -> pd.DataFrame:
        """The records of a table that have these values; an empty table where it is missing."""
        return records_of(self.frames.get(name, pd.DataFrame()), **where)


@dataclass(frozen=True)
class DriftPart:
    """A section of the page of ``drift``: what a topic of the core, or a question, gives to it."""

    section: Callable[[Computed], Section] = lambda computed: Section(id="none", title="")
    """Without blocks where there is nothing to show."""
    makers: Callable[[Opened], Makers] = lambda opened: {}
    answer: Callable[[Computed], Answer | None] = lambda computed: None
    """What stands on the first screen."""
    tiles: Callable[[Computed], tuple[Tile, ...]] = lambda computed: ()
    read: Callable[[Opened], Opened] = lambda opened: opened
    """What can be read off the places before any table is made."""
    is_brief: Callable[[Opened], bool] = lambda opened: False
    """Whether it is quick enough, and asked for by most, so that it stands in the summary in the terminal."""
    on_screen: Callable[[Computed], Section] | None = None
    """What stands there instead of the section."""


def records_of(frame: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """The records of a table that have these values; an empty table stays empty, whatever its columns."""
    for column, value in where.items():
        frame = frame[frame[column] == value] if len(frame) else frame
    return frame


def refused(frames: Mapping[str, pd.DataFrame]) -> Iterable[tuple[str, str]]:
    """Pairs of a measure that an analysis refused, although its table exists, and its reason."""
    for name, frame in frames.items():
        if "reason" not in frame or frame.empty:
            continue
        if "step" in frame:  # of every snapshot: before the first step nothing has moved, and that is no refusal
            frame = frame[frame["epoch"] == frame["epoch"].max()]
        for reason, refusals in frame[frame["reason"] != ""].groupby("reason", sort=False):
            columns = [column for column in ("parameter", "measure", "variant") if column in refusals]
            texts = [" ".join(map(str, values)).replace("_", " ") for values in refusals[columns].to_numpy()]
            yield f"{name.replace('_', ' ')}: {', '.join(dict.fromkeys(texts))}", str(reason)


def computed(frame: pd.DataFrame) -> pd.DataFrame:
    """The table without the records that an analysis refused: :func:`refused` lists them once, for the whole page."""
    return frame[frame["reason"] == ""] if len(frame) else frame
