"""A study in, what it would cost and what it could see out, printed before anything is spent; no run is written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit.studies.board import shown_roughly, shown_seconds
from toolkit.studies.calibration import Calibration, calibrate, makespan
from toolkit.studies.plan import PlannedRun, left_to_do, plan_runs
from toolkit.studies.runner import check_limit, open_all
from toolkit.studies.sizes import notes_on, without_repeats
from toolkit.studies.study import Study
from toolkit.studies.tuning import choose, chosen_settings

DISCORDANCES = (0.05, 0.10, 0.20)
"""Shares of items on which two arms disagree about being right, for which the smallest detectable gap is printed."""

SEED_SDS = (0.01, 0.03)
"""Standard deviations of the true difference between seeds, shares: guesses, since nobody knows it beforehand."""


@dataclass(frozen=True)
class StudyPlan:
    """All runs of a study."""

    tuning: Sequence[PlannedRun]
    final: Sequence[PlannedRun]
    is_chosen: bool
    """Whether the settings of the final runs are chosen; until tuning is finished, each arm's first stands for them."""
    notes: Sequence[str] = ()
    """One sentence per size that is more than train has."""

    @property
    def runs(self) -> Sequence[PlannedRun]:
        """Tuning runs first, as they are carried out."""
        return [*self.tuning, *self.final]


def plan_study(study: Study, output_dir: str | Path) -> StudyPlan:
    """The runs of a study below ``output_dir``; nothing is written."""
    tuning = plan_runs(study.tuning_cells(), output_dir)
    is_chosen = not left_to_do(tuning)
    chosen = chosen_settings(choose(study, open_all(tuning))) if is_chosen else {}
    cells = study.final_cells(chosen)
    return StudyPlan(tuning, plan_runs(without_repeats(cells), output_dir), is_chosen, notes_on(cells))


def dry_run(
    study: Study,
    *,
    workers: int = 1,
    limit: int | None = None,
    output_dir: str | Path = "runs",
    console: Console | None = None,
) -> None:
    """Print a study's runs, the time that those to do will take, and the smallest gap that its final runs can detect.

    ``limit``: also how long the first so many runs take. ValueError for a study, model or data that cannot work, and
    for a limit below 1.
    """
    check_limit(limit)
    console = console or Console()
    margin = study.margin_points
    plan = plan_study(study, output_dir)
    _print_head(study, console)
    with console.status("timing a few steps of each kind of run"):
        known = calibrate(plan.runs, workers=workers)
    console.print(runs_table(plan, known))
    for line in [*plan.notes, *_time_lines(plan, known, workers, limit)]:
        console.print(Text(line))
    console.print(gaps_table(study, plan, known, margin))
    console.print(Text("No run of the study was started, and nothing was written."))


def _print_head(study: Study, console: Console) -> None:
    console.print(Text(study.title, style="bold"))
    console.print(Text(f"Question: {study.question}"))
    if study.hypothesis:
        console.print(Text(f"Expected: {study.hypothesis}"))


def runs_table(plan: StudyPlan, known: Calibration) -> Table:
    """One row per stage, task, arm and size: how many runs, how many are finished, and what the others take."""
    has_sizes = any(run.cell.size is not None for run in plan.runs)
    table = Table("stage", "task", "arm", *(["examples"] if has_sizes else []), title="Runs")
    for name in ("runs", "finished", "to do", "each", "together"):
        table.add_column(name, justify="right")
    for members in _groups(plan.runs).values():
        cell, left = members[0].cell, left_to_do(members)
        words = [cell.stage, cell.task, cell.arm]
        words += [f"{cell.size:,}" if cell.size is not None else ""] if has_sizes else []
        num_diverged = sum(run.has_diverged for run in members)
        finished = str(len(members) - len(left) - num_diverged) + (
            f" ({num_diverged} diverged)" if num_diverged else ""
        )
        words += [str(len(members)), finished, str(len(left)), *_times(left, known)]
        table.add_row(*(Text(word) for word in words), style="dim" if not left else "")
    return table


def _groups(runs: Iterable[PlannedRun]) -> dict[tuple[object, ...], list[PlannedRun]]:
    groups: dict[tuple[object, ...], list[PlannedRun]] = {}
    for run in runs:
        cell = run.cell
        groups.setdefault((cell.stage, cell.task, cell.arm, cell.size), []).append(run)
    return groups


def _times(left: Sequence[PlannedRun], known: Calibration) -> list[str]:
    """The mean time of the runs left and their sum; a star where no run of the kind was timed."""
    if not left:
        return ["", ""]
    estimates = [known.estimates[run.name] for run in left]
    total = sum(each.seconds for each in estimates)
    star = "" if all(each.is_measured for each in estimates) else " *"
    return [shown_roughly(total / len(left)) + star, shown_roughly(total)]


def _time_lines(plan: StudyPlan, known: Calibration, workers: int, limit: int | None) -> list[str]:
    """What the table comes to, in sentences."""
    left = left_to_do(plan.runs)
    at_a_time = "one at a time" if workers == 1 else f"{workers} at a time"
    if not left:
        return [f"All {len(plan.runs)} runs are finished: only the report is still to be made, or made again."]
    lines = [f"{len(plan.runs)} runs, {len(plan.runs) - len(left)} finished, {len(left)} to do"]
    stages = [left_to_do(plan.tuning), left_to_do(plan.final)]
    seconds = [makespan((known.estimates[run.name].seconds for run in stage), workers) for stage in stages]
    lines[0] += f": about {shown_roughly(sum(seconds))}, {at_a_time}, and the report."
    first = left[:limit]
    if limit is not None and len(first) < len(left):
        took = makespan((known.estimates[run.name].seconds for run in first), workers)
        lines.append(f"With --limit {limit}: {len(first)} of them, about {shown_roughly(took)}, and no report yet.")
    lines.append(f"Estimated from a few steps of each kind of run on this machine, in {shown_seconds(known.seconds)}.")
    lines.append("Not in it: the floors after training (a bag of words, seconds a run).")
    if not all(known.estimates[run.name].is_measured for run in left):
        lines.append("* not timed itself: from the same regime on another task, by the number of tokens.")
    if not plan.is_chosen:
        lines.append("Final runs are estimated with the first setting of each arm, until tuning has chosen.")
    return lines


def gaps_table(study: Study, plan: StudyPlan, known: Calibration, margin_points: float) -> Table:
    """The smallest difference in accuracy that the final runs can detect, per task, split and seed sd, in points."""
    table = Table("task", "split", title="Smallest detectable difference of two arms, in points of accuracy")
    for name in ("items", "seeds", "seed sd", *(f"{share:.0%} differ" for share in DISCORDANCES)):
        table.add_column(name, justify="right")
    for task, items in _items(plan, known).items():
        for split, number in items.items():
            for seed_sd in SEED_SDS:
                gaps = [f"{gap:.1f}" for gap in planned_gaps(len(study.seeds), number, seed_sd)]
                counts = (f"{number:,}", str(len(study.seeds)), f"{100 * seed_sd:g}")
                table.add_row(Text(task), Text(split), *counts, *gaps)
        if not items:
            table.add_row(Text(task), "not applicable: no accuracy", "", str(len(study.seeds)))
    table.caption = (
        "80 % power, two-sided alpha .05, paired seeds. On which share of the items exactly one arm is right, and how "
        "much the true difference varies between seeds (seed sd, points), is not known beforehand. "
        f"Margin of equivalence: {margin_points:g} points.{_other_headlines(plan, known)}"
    )
    return table


def _other_headlines(plan: StudyPlan, known: Calibration) -> str:
    """Which tasks are compared by another score than the table's."""
    scores = {run.cell.task: known.scores[run.name] for run in plan.final if known.num_items[run.name]}
    others = [f"{task} ({score})" for task, score in scores.items() if score != "accuracy"]
    if not others:
        return ""
    return f" The table is of accuracy; the headline score is another on {', '.join(others)}, where it is only a guide."


def planned_gaps(num_seeds: int, num_items: int, seed_sd: float) -> list[float]:
    """The smallest detectable gap in points at each of DISCORDANCES; NaN where one item leaves it undefined.

    ``seed_sd``: standard deviation of the true difference between seeds, a share.
    """
    from toolkit.comparison.intervals import detectable_gap_planned

    if num_items < 2:
        return [float("nan")] * len(DISCORDANCES)
    return [100 * detectable_gap_planned(num_seeds, num_items, share, seed_sd) for share in DISCORDANCES]


def _items(plan: StudyPlan, known: Calibration) -> dict[str, Mapping[str, int]]:
    """Task to the items of each split that its final runs are compared on."""
    return {run.cell.task: known.num_items[run.name] for run in plan.final}
