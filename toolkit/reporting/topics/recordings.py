"""What must be known of runs of other training loops before any number from them: problems, gaps, and what is open."""

from collections.abc import Iterable, Sequence

from toolkit.comparison.arms import Group, ReportedRun
from toolkit.comparison.recorded import TASK_NOT_GIVEN
from toolkit.reporting.page import Answer

KNOW = "What is to know of these runs?"
MOST_NAMED = 3
"""Runs that a line names; of more it gives the number."""


def notes_answer(groups: Sequence[Group]) -> tuple[Answer, ...]:
    """The lines of :func:`notes_on` as a part of the first screen; nothing where there are none."""
    lines = [*notes_on([run for group in groups for run in group.runs]), *notes_on_groups(groups)]
    return (Answer(question=KNOW, verdict="", text="\n".join(lines)),) if lines else ()


def notes_on(runs: Iterable[ReportedRun]) -> list[str]:
    """A line for each distinct thing to know of single runs, with the runs that it is about."""
    of: dict[str, list[str]] = {}
    for run in runs:
        said = [str(problem) for problem in run.manifest.get("problems") or ()]
        if begins := run.manifest.get("begins_after_steps"):
            said.append(f"drift is since step {begins}, where its recording began")
        if since := run.recorded.get("since"):
            said.append(f"drift is since {since}, the first one kept")
        proofs = run.part("frozen").get("parameters") or {}
        if changed := [name for name, own in proofs.items() if own.get("before") != own.get("after")]:
            more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
            said.append(f"frozen, but changed: {', '.join(changed[:MOST_NAMED])}{more}")
        for line in (*said, *run.recorded.get("notes", ())):
            of.setdefault(line, []).append(run.name)
    return [f"{_named(names)}: {line.rstrip('.')}." for line, names in of.items()]


def notes_on_several(runs: Sequence[ReportedRun]) -> list[str]:
    """A line each: seeds and tasks that were not given, by which runs would be told apart."""
    unseeded, unnamed = [run for run in runs if run.seed is None], [run for run in runs if run.task == TASK_NOT_GIVEN]
    said = "Seeds not given ({}): runs that differ in nothing else are taken as replicates."
    lines = [said.format(_named([run.name for run in unseeded]))] if unseeded else []
    said = "What {} runs were trained on is not given (task=): those of a model are taken together; data may differ."
    return [*lines, said.format(len(unnamed))] if len(unnamed) > 1 else lines


def notes_on_groups(groups: Sequence[Group]) -> list[str]:
    """Those, and a line each on predictions and scores that were not given, and what was done without them."""
    lines = notes_on_several([run for group in groups for run in group.runs])
    scored = [run for group in groups for run in group.runs if run.splits]
    if unanswered := [run.name for run in scored if not run.answers]:
        lines.append(f"No predictions of {_named(unanswered)}: intervals of their scores are over seeds alone.")
    if unscored := [run.name for group in groups for run in group.runs if run.is_recorded and not run.splits]:
        lines.append(f"No scores of {_named(unscored)}: what needs them is left out.")
    return lines


def _named(names: Sequence[str]) -> str:
    """The names, or of many their number."""
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{names[0]} and {len(names) - 1} more"
