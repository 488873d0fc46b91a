"""Places that a user named in, the runs that can be reported on out, and why the others cannot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.naming import shown_path
from toolkit.reporting.cells import listing
from toolkit.snapshots.store import MANIFEST, Run, listed, open_run, remedy_of
from toolkit.snapshots.verify import DRIFT_FILES

SHOWN_REASONS = 3
"""Places that the refusal of a whole list names: a glob of other files can bring along thousands."""
WHY_DIVERGED = "its training diverged (the loss was not finite), which counts against its arm"


@dataclass(frozen=True)
class Sources:
    """The runs of a report, and those that were named and cannot be in it."""

    runs: tuple[Run, ...]
    left_out: tuple[str, ...]
    """One sentence each."""
    diverged: tuple[Run, ...] = ()
    """Those of them whose training diverged."""
    lost: frozenset[str] = frozenset()
    """Arms with no run left, as every one diverged: they can be compared with nothing."""

    def note_lost(self, labels: Mapping[str, str] | None, named: Mapping[str, str] | None = None) -> "Sources":
        """The same with :attr:`lost`, and a sentence for each arm that diverged on every seed of a task.

        ``labels``, ``named``: run directory name to arm, and to what its task is called.
        """
        labels = labels or {}
        names = named or {}
        tasks_of = {run.path: names.get(run.path.name, run.config.task) for run in (*self.runs, *self.diverged)}
        kept = {(labels.get(run.path.name), tasks_of[run.path]) for run in self.runs}
        tasks: dict[str, dict[str, None]] = {}
        for run in self.diverged:
            label, task = labels.get(run.path.name), tasks_of[run.path]
            if label is not None and (label, task) not in kept:
                tasks.setdefault(label, {})[task] = None
        several = len(set(tasks_of.values())) > 1
        sentences = [
            f"Every run of {label}{f' on {listing(list(names))}' if several else ''} diverged: it is compared with "
            f"nothing{' there' if several else ''}."
            for label, names in tasks.items()
        ]
        lost = frozenset(tasks) - {label for label, _ in kept if label is not None}
        return replace(self, left_out=(*sentences, *self.left_out), lost=lost)


def find_runs(places: Sequence[Run | str | Path]) -> Sources:
    """Open what can be reported on; an unfinished run, a recorded one and a folder that is no run are left out.

    They are what a glob brings along. So is a run whose files are not those that its manifest names. ValueError for a
    place that does not exist, for one that is not in a list, and when nothing is left.
    """
    places, runs, left_out, diverged = listed(places), [], [], []
    for place in places:
        path = place.path if isinstance(place, Run) else Path(place)
        if not path.exists():
            raise ValueError(f"no run directory at {path}")
        reason = _reason_against(path)
        if reason:
            left_out.append(f"{shown_path(path)} is left out: {reason}.")
            diverged += [open_run(path)] if reason == WHY_DIVERGED else []
        else:
            runs.append(place if isinstance(place, Run) else open_run(path))
    if not runs:
        found = " ".join(left_out[:SHOWN_REASONS]) or "none was given."
        hidden = len(left_out) - SHOWN_REASONS
        more = f" So {'is' if hidden == 1 else 'are'} {hidden:,} more." if hidden > 0 else ""
        hints = " ".join(["", *filter(None, map(_runs_within, places))][: SHOWN_REASONS + 1])
        raise ValueError(f"no runs to report on: pass at least one finished run directory. {found}{more}{hints}")
    return Sources(tuple(runs), tuple(left_out), tuple(diverged))


def _runs_within(place: Run | str | Path) -> str:
    """What to pass instead of a folder that only holds run directories; empty for any other place."""
    if isinstance(place, Run) or not Path(place).is_dir() or _is_run(Path(place)):
        return ""
    count = sum(_is_run(path) for path in Path(place).glob("[!.]*"))  # hidden: one that is to replace another
    return f"{place} holds {count:,} run director{'ies' if count > 1 else 'y'}: pass {place}/*" if count else ""


def _is_run(path: Path) -> bool:
    """Whether a run directory, finished or not, is at a path."""
    try:
        open_run(path)
    except ValueError:
        return False
    return True


def _reason_against(path: Path) -> str:
    """Why a path cannot be reported on; empty when it can."""
    try:
        run = open_run(path)
    except ValueError:
        return "it is not a run directory"
    if run.is_finished:
        try:
            differences = run.differences(*DRIFT_FILES)
        except ValueError:  # whose words name the path, which no report must
            return f"its {MANIFEST} cannot be read: restore it or run it again"
        if differences:
            return f"it is not as its manifest says ({'; '.join(differences)}): {remedy_of(differences)}"
    if run.is_recorded:
        return "it was recorded in another training loop and has no scores (python -m toolkit drift shows it)"
    if run.has_diverged and not run.is_finished:
        return WHY_DIVERGED
    if not run.is_finished:
        return "it is unfinished (no manifest.json)"
    return "it served to choose settings (--selection-fraction)" if run.config.selection_fraction else ""
