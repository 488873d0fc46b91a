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
from toolkit.naming import names_of, read_object, refuse_first, shown_path
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

    def note_lost(self, labels: Mapping[str, str] | None, named: Mapping[str, str] | None = None) -> "Sources":
        """The same with :attr:`lost`, and a sentence for each condition that diverged on every seed of a task.

        ``labels``, ``named``: run directory name to condition, and to what its task is called.
        """
        labels = labels or {}
        names = named or {}
        tasks_of = {
            run.path: names.get(run.path.name, str(run.recorded.get("task")) if run.is_recorded else run.config.task)
            for run in (*self.runs, *self.diverged)
        }
        surviving = {(labels.get(run.path.name), tasks_of[run.path]) for run in self.runs}
        tasks: dict[str, dict[str, None]] = {}
        for run in self.diverged:
            label, task = labels.get(run.path.name), tasks_of[run.path]
            if label is not None and (label, task) not in surviving:
                tasks.setdefault(label, {})[task] = None
        sentences = [
            f"Every run of {label} on {listing(list(names))} diverged: it is compared with nothing there."
            for label, names in tasks.items()
        ]
        # A condition with a run left on some task is compared there.
        lost = frozenset(tasks) - {label for label, _ in surviving if label is not None}
        return replace(self, left_out=(*sentences, *self.left_out), lost=lost)


def find_runs(places: Sequence[Run | str | Path], base: str | Path | None = None) -> Sources:
    """Open what can be reported on; an unfinished run and a folder that is no run are left out.

    They are what a glob brings along. So is a run whose files are not those that its manifest names. ``base``: what
    training in output folders started from. ValueError for a place that does not exist, for one that is not in a list,
    and when nothing is left.
    """
    check_base(base)
    places, runs, left_out, diverged = listed(places), [], [], []
    for place in places:
        path = place.path if isinstance(place, Run) else Path(place)
        if not path.exists():
            raise ValueError(f"no run directory at {path}")
        opened = with_base([place], base)[0] if isinstance(place, Run) else run_at(path, base)
        is_of_several = CHECKPOINT.fullmatch(path.name) is not None
        model = (
            "one checkpoint of a training: pass the folder that it lies in" if is_of_several else "a model and no run"
        )
        no_run = f"it is {model}" if holds_model(path) else "it is not a run directory"
        no_run = f"it is a report and no run: {MAKE_AGAIN}" if (path / WRITTEN).is_file() else no_run
        reason = no_run if opened is None else _reason_against(opened)
        if opened is None or reason:
            left_out.append(f"{shown_path(path)} is left out: {reason}.")
            diverged += [opened] if opened is not None and reason == WHY_DIVERGED else []
        else:
            runs.append(opened)
    if not runs:
        reasons = " ".join(left_out[:SHOWN_REASONS]) or "none was given."
        hidden = len(left_out) - SHOWN_REASONS
        rest = f" So {'is' if hidden == 1 else 'are'} {hidden:,} more." if hidden > 0 else ""
        hints = " ".join(["", *filter(None, map(_runs_within, places))][: SHOWN_REASONS + 1])
        raise ValueError(f"no runs to report on: pass at least one finished run directory. {reasons}{rest}{hints}")
    return Sources(tuple(runs), tuple(left_out), tuple(diverged))


def _runs_within(place: Run | str | Path) -> str:
    """A hint to pass the runs within a folder that only holds run directories; empty for any other place."""
    if isinstance(place, Run) or not Path(place).is_dir() or run_at(Path(place)) is not None:
        return ""
    count = sum(
        run_at(path) is not None for path in Path(place).glob("[!.]*")
    )  # hidden: one that is to replace another
    return f"{place} holds {count:,} run director{'ies' if count > 1 else 'y'}: pass {place}/*" if count else ""


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
    if places and all(is_run(place) for place in places):
        runs = tuple(open_run(place) for place in places)
        names = tuple(names_of(run.path for run in runs))
        for run in runs:
            run.check(*DRIFT_FILES)
        for run, name in zip(runs, names, strict=True):
            _check_finite(run.trajectory, name)
        _check_seeds(runs, names)
        beside = f"beside it, for what needs several seeds: {', '.join(names[1:])}" if len(runs) > 1 else ""
        unfinished = [name for run, name in zip(runs, names, strict=True) if not run.is_finished]
        unfinished_note = f"unfinished, so that nothing says whether its files are whole: {', '.join(unfinished)}"
        recorded = [(run, name) for run, name in zip(runs, names, strict=True) if run.is_recorded]
        reported = [read_reported(run, name, has_answers=False) for run, name in recorded]
        notes = [*filter(None, [beside]), *([unfinished_note] if unfinished else []), *notes_on(reported)]
        notes += notes_on_several(reported) if len(runs) > 1 else []
        opened = Opened(runs[0].trajectory, names[0], runs, names, tuple(notes))
    else:
        in_order: list[str | Path] = [*places] if base is None else [base, *places]
        imported = import_checkpoints(in_order)
        snapshot_names = [snapshot.name for snapshot in imported.trajectory]
        is_half = any(kind in ("bfloat16", "float16") for kinds in imported.dtypes.values() for kind in kinds)
        title = " → ".join(
            snapshot_names
            if len(snapshot_names) <= 3
            else (snapshot_names[0], f"{len(snapshot_names) - 2} more", snapshot_names[-1])
        )
        length = _default_length(base or places[0])
        notes = [note for note in imported.notes if note not in imported.problems]
        if len(places) > 1 and any(is_run(place) for place in places):
            ends = f"{snapshot_names[0]} with {snapshot_names[-1]}"
            notes.append(
                f"A run directory stands for all of its snapshots: compared are the first and the last, {ends}."
            )
        is_folder = len(places) == 1 and bool(checkpoints_in(Path(places[0])))
        problems = [*imported.problems, *([SINCE.format(first=snapshot_names[0])] if is_folder and not base else [])]
        if is_folder:
            problems += OutputFolder(Path(places[0]), base=base).doubts
        elif base is not None and len(imported.trajectory) > 1:
            problems += doubts_on_base(imported.trajectory)
        opened = Opened(imported.trajectory, title, (), (), tuple(notes), tuple(problems), is_half, length)
    if len(opened.trajectory) < at_least:
        remedy = "pass two or more checkpoints, or (--base) the one that training started from"
        if opened.is_run and not opened.runs[0].is_finished:
            remedy = "finish the run, with the same command"
        raise ValueError(
            f"{len(opened.trajectory)} snapshot of {opened.title}: drift needs at least {at_least}, so {remedy}"
        )
    return opened


def _check_trainings(places: Sequence[str | Path], base: str | None) -> None:
    """ValueError where the checkpoints of several trainings would be read as those of one, in their order."""
    check_base(base)
    paths = [Path(found) for place in places for found in glob.glob(str(place)) or [str(place)]]  # noqa: PTH207 # see open_runs
    folders = {path: path.parent if CHECKPOINT.fullmatch(path.name) else path for path in paths}
    num_kept = Counter[Path]()
    for path, folder in folders.items():
        num_kept[folder] += 2 if is_run(path) or checkpoints_in(path) else 1
    # One checkpoint of each of two trainings is a before and an after, unless both are said to have one base.
    several = [str(folder) for folder, number in num_kept.items() if base is not None or number > 1]
    shown_base = f" --base {base}" if base is not None else ""
    refuse_first(
        {
            "--base is what checkpoints of a Trainer were trained from: a run directory holds its own, leave it out": (
                base is not None and any(map(is_run, paths))
            ),
            f"{listing(several[:SHOWN_REASONS])} are trainings of their own, and no one trajectory: pass one of them, "
            f"or compare them: report {shlex.join(several)}{shown_base} --out FOLDER": len(several) > 1
            and not all(map(is_run, paths)),
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
    first = runs[0]
    for run, name in zip(runs[1:], names[1:], strict=True):
        first_reported, reported = (
            read_reported(compared, compared_name, has_answers=False)
            for compared, compared_name in ((first, names[0]), (run, name))
        )
        fields = differences_beside_seed(first_reported, reported)
        shapes = [
            {parameter: tensor.shape for parameter, tensor in shown_run.trajectory.snapshots[0].tensors.items()}
            for shown_run in (first, run)
        ]
        if shapes[0] != shapes[1]:
            fields.append("shapes")
        if fields:
            differences = " and ".join(field_name.replace("_", " ") for field_name in fields)
            raise ValueError(
                f"{name} is no other seed of {names[0]}: it differs in {differences}; give runs of one model, "
                "task, regime and settings, or compare regimes with python -m toolkit report"
            )
    seeds = [run.recorded.get("seed") if run.is_recorded else run.config.seed for run in runs]
    for (seed, name), (other_seed, other_name) in combinations(zip(seeds, names, strict=True), 2):
        if seed is not None and seed == other_seed:
            raise ValueError(f"{name} and {other_name} have the same seed, {seed}: give runs of different seeds")


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
        unknown = {name: make for name, make in makers.items() if name not in self.frames}
        for name, make in counted(unknown.items(), "computing tables"):
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
        return lines_of(self.frames.get(name, pd.DataFrame()), **where)


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


def lines_of(frame: pd.DataFrame, **where: Any) -> pd.DataFrame:
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
            parts = dict.fromkeys(
                " ".join(map(str, values)).replace("_", " ") for values in refusals[columns].to_numpy()
            )
            yield f"{name.replace('_', ' ')}: {', '.join(parts)}", str(reason)


def computed(frame: pd.DataFrame) -> pd.DataFrame:
    """The table without the records that an analysis refused: :func:`refused` lists them once, for the whole page."""
    return frame[frame["reason"] == ""] if len(frame) else frame
