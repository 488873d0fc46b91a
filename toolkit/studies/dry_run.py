"""The dry run: which runs a study needs, and which differences they could detect."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit.progress import open_console
from toolkit.studies.plan import PlannedRun, left_to_do, read_data
from toolkit.studies.runner import StudyPlan, check_limit, plan_study
from toolkit.studies.study import Study

DISCORDANCES = (0.05, 0.10, 0.20)
"""Shares of items on which two arms disagree about being right, for which the smallest detectable gap is printed."""

SEED_SDS = (0.01, 0.03)
"""Standard deviations of the true difference between seeds, shares: guesses, since nobody knows it beforehand."""


def dry_run(
    study: Study, *, limit: int | None = None, output_dir: str | Path = "runs", console: Console | None = None
) -> None:
    """Print a study's runs, and the smallest gap that its final runs can detect; the data are read, nothing is run.

    ValueError for a study, model or data that cannot work, as far as that shows before training, and for a ``limit``
    below 1.
    """
    check_limit(limit)
    console = console or open_console()
    plan = plan_study(study, output_dir)
    _print_head(study, console)
    console.print(runs_table(plan))
    for line in [*plan.notes, *_lines(plan)]:
        console.print(Text(line))
    console.print(gaps_table(study, plan))
    console.print(Text("No run of the study was started."))


def _print_head(study: Study, console: Console) -> None:
    console.print(Text(study.title, style="bold"))
    console.print(Text(f"Question: {study.question}"))
    if study.hypothesis:
        console.print(Text(f"Expected: {study.hypothesis}"))


def runs_table(plan: StudyPlan) -> Table:
    """One row per stage, task, arm and size: how many runs, and how many are finished."""
    has_sizes = any(run.cell.size is not None for run in plan.runs)
    table = Table("stage", "task", "condition", *(["examples"] if has_sizes else []), title="Runs")
    for name in ("runs", "finished", "diverged", "to do"):
        table.add_column(name, justify="right")
    for members in _groups(plan.runs).values():
        cell, num_left = members[0].cell, len(left_to_do(members))
        num_diverged = sum(run.has_diverged for run in members)
        words = [cell.stage, cell.task, cell.arm]
        words += [f"{cell.size:,}" if cell.size is not None else ""] if has_sizes else []
        numbers = (len(members), len(members) - num_left - num_diverged, num_diverged, num_left)
        table.add_row(*map(Text, (*words, *map(str, numbers))), style="" if num_left else "dim")
    return table


def _groups(runs: Iterable[PlannedRun]) -> dict[tuple[object, ...], list[PlannedRun]]:
    groups: dict[tuple[object, ...], list[PlannedRun]] = {}
    for run in runs:
        cell = run.cell
        groups.setdefault((cell.stage, cell.task, cell.arm, cell.size), []).append(run)
    return groups


def _lines(plan: StudyPlan) -> list[str]:
    """The table in sentences."""
    num_left = len(left_to_do(plan.runs))
    lines = [f"{len(plan.runs)} runs, {len(plan.runs) - num_left} finished, {num_left} to do."]
    if not plan.is_chosen:
        lines.append("Final runs stand here with the first setting of each arm, until tuning has chosen.")
    return lines


def gaps_table(study: Study, plan: StudyPlan) -> Table:
    """The smallest difference in accuracy that the final runs can detect, per task, split and seed sd, in points."""
    table = Table("task", "split", title="Smallest detectable difference of two arms, in points of accuracy")
    for name in ("items", "seeds", "seed sd", *(f"{share:.0%} differ" for share in DISCORDANCES)):
        table.add_column(name, justify="right")
    others = []
    for task, run in {run.cell.task: run for run in plan.final}.items():
        data = read_data(run.config)
        if data.kind != "classification":
            table.add_row(Text(task), "not applicable: no accuracy", "", str(len(study.seeds)))
            continue
        for split in [split for split in data.sizes if split != "train"]:
            for seed_sd in SEED_SDS:
                gaps = [f"{gap:.1f}" for gap in planned_gaps(len(study.seeds), data.sizes[split], seed_sd)]
                counts = (f"{data.sizes[split]:,}", str(len(study.seeds)), f"{100 * seed_sd:g}")
                table.add_row(Text(task), Text(split), *counts, *gaps)
        score = study.score if study.score in data.scores else data.score
        others += [f"{task} ({score})"] if score != "accuracy" else []
    other = f" The headline score is another on {', '.join(others)}, where the table is only a guide." if others else ""
    table.caption = (
        "80 % power, two-sided alpha .05, paired seeds. On which share of the items exactly one arm is right, and how "
        "much the true difference varies between seeds (seed sd, points), is not known beforehand. "
        f"Margin of equivalence: {study.margin_points:g} points.{other}"
    )
    return table


def planned_gaps(num_seeds: int, num_items: int, seed_sd: float) -> list[float]:
    """The smallest detectable gap in points at each of DISCORDANCES; NaN where one item leaves it undefined.

    ``seed_sd``: standard deviation of the true difference between seeds, a share.
    """
    from toolkit.comparison.intervals import detectable_gap_planned

    if num_items < 2:
        return [float("nan")] * len(DISCORDANCES)
    return [100 * detectable_gap_planned(num_seeds, num_items, share, seed_sd) for share in DISCORDANCES]
