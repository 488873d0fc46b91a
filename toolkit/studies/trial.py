"""The dry run: what a study would cost, by a real trial of each kind of run, and which differences it could detect."""

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit.comparison.runs import has_score
from toolkit.config import RunConfig, fields_that
from toolkit.progress import open_console
from toolkit.snapshots.formats import HEADLINES
from toolkit.snapshots.ownership import remove_empty_folder, remove_temporary_folders, temporary_folder
from toolkit.snapshots.store import Run, open_run
from toolkit.snapshots.unfinished import try_lock
from toolkit.studies.executors import Event, Executor
from toolkit.studies.plan import PlannedRun, describe, left_to_do, run_path
from toolkit.studies.progress import makespan, shown_roughly, shown_seconds
from toolkit.studies.runner import FOLDER, StudyPlan, check_limit, make_jobs, plan_study
from toolkit.studies.study import Study

DISCORDANCES = (0.05, 0.10, 0.20)
"""Shares of items on which two arms disagree about being right, for which the smallest detectable gap is printed."""

SEED_SDS = (0.01, 0.03)
"""Standard deviations of the true difference between seeds, shares: guesses, since nobody knows it beforehand."""

TRIAL_STEPS = 12
"""Optimizer steps of a trial."""

STOPPING_EPOCHS = 40
"""A guess at the epochs of a head until early stopping stops: between a dozen and 200, short ones."""


@dataclass(frozen=True)
class Trial:
    """What one kind of run has cost: a whole run of a few steps."""

    seconds: float
    """From its launch to its end: model and data read, everything written, floors and linear probe included."""
    training: float
    """Of them, those of the steps."""
    evaluation: float
    """Of them, those of scoring, each time."""
    num_evaluations: int
    num_steps: int
    num_examples: float
    """That the steps were trained on."""
    num_train: int
    """Of the whole of train."""
    num_scored: int

    @classmethod
    def of(cls, run: Run, seconds: float) -> "Trial":
        """``seconds``: of the whole run, as its executor has measured them."""
        cost, splits = run.manifest["cost"], run.manifest["task"]["splits"]
        sizes = {name: split["num_examples"] for name, split in splits.items()}
        num_evaluations = run.scores["epoch"].nunique()
        return cls(
            seconds=seconds,
            training=cost["seconds_training"],
            evaluation=cost["evaluation_seconds"] / num_evaluations,
            num_evaluations=num_evaluations,
            num_steps=int(run.scores["step"].max()),
            num_examples=cost["examples_per_second"] * sum(v for k, v in cost.items() if k.startswith("seconds_")),
            num_train=sizes.pop("train"),
            num_scored=sum(sizes.values()),
        )

    def seconds_of(self, config: RunConfig) -> float:
        """What a run of this kind takes: its own epochs of training and of scoring, the rest as in the trial."""
        epochs = STOPPING_EPOCHS if config.head_training == "early-stopping" else config.num_epochs
        drawn = min(self.num_train, config.max_train_examples or self.num_train)
        training = self.training / self.num_examples * drawn * (1 - config.selection_fraction) * epochs
        most = self.training / self.num_steps * (config.max_steps or math.inf)
        if training > most:
            epochs, training = math.ceil(epochs * most / training), most
        scored = config.selection_fraction * drawn or self.num_scored
        evaluation = self.evaluation * (scored / self.num_scored * (1 + epochs) - self.num_evaluations)
        return self.seconds - self.training + training + evaluation


@dataclass(frozen=True)
class Compared:
    """What the runs of a task are compared on."""

    items: Mapping[str, int]
    """Split to the items of its accuracy; empty in regression."""
    score: str
    others: tuple[str, ...] = ()
    """Scores that a study can name in its place."""

    @classmethod
    def of(cls, run: Run) -> "Compared":
        """As any run of the task says."""
        task, scores = run.manifest["task"], run.scores
        if task["kind"] != "classification":
            return cls({}, task["score"])
        scored = scores[scores["accuracy"].notna()]
        items = dict(zip(scored["split"], map(int, scored["num_examples"]), strict=True))
        return cls(items, task["score"], tuple(name for name in HEADLINES if has_score(scores, name)))


def trial_config(config: RunConfig) -> RunConfig:
    """The few steps that stand for every run of the same kind; equal for runs that differ in size class only by size.

    Numbers of training examples of as many digits are one class.
    """
    costly = fields_that(affect="time")
    same: dict[str, Any] = {each.name: each.default for each in fields(RunConfig) if each.name not in costly}
    return replace(config, **same | {"head_training": "epochs", "epochs": 1, "max_steps": TRIAL_STEPS})


def _kind(config: RunConfig) -> RunConfig:
    size = config.max_train_examples
    return replace(trial_config(config), max_train_examples=None if size is None else 10 ** len(str(size)))


def estimate(
    runs: Sequence[PlannedRun], executor: Executor, output_dir: str | Path, console: Console
) -> tuple[dict[str, float], dict[str, "Compared"]]:
    """Seconds that each run will take, by its name; and what the runs of each task will be compared on.

    One run per kind, the largest of its size class, is carried out for a few steps by the executor of the study, as
    many at a time as there will be, in a folder that is removed. ValueError with the end of its log for one that fails.
    """
    largest: dict[RunConfig, PlannedRun] = {}
    for run in sorted(runs, key=lambda run: run.config.max_train_examples or 0):
        largest[_kind(run.config)] = run
    console.print(Text(f"Trying {len(largest)} kinds of runs out, {TRIAL_STEPS} steps each."))
    with _trial_folder(Path(output_dir)) as folder, console.status("trial runs"):
        trials = {}
        for kind, run in largest.items():
            config = replace(trial_config(run.config), output_dir=str(folder))
            trials[kind] = PlannedRun(run.cell, config, run_path(config))
        # Runs side by side slow one another down: where there are fewer kinds than workers, some are run again.
        beside = min(executor.options.workers, len(runs)) - len(trials)
        more = [replace(list(trials.values())[i % len(trials)].config, seed=1 + i) for i in range(max(beside, 0))]
        jobs = make_jobs([*trials.values(), *(PlannedRun(runs[0].cell, own, run_path(own)) for own in more)])
        ends: dict[str, Event] = {}
        executor.run(jobs, lambda event: ends.update({event.name: event}))
        for run in trials.values():
            if not run.is_finished:
                raise ValueError(f"a trial run of {describe(run.cell)} failed: {ends[run.name].detail}")
        opened = {kind: open_run(run.path) for kind, run in trials.items()}
        measured = {kind: Trial.of(run, ends[run.path.name].seconds) for kind, run in opened.items()}
        known = {kind: Compared.of(run) for kind, run in opened.items()}
        compared = {run.cell.task: known[_kind(run.config)] for run in runs}
    return {run.name: measured[_kind(run.config)].seconds_of(run.config) for run in runs}, compared


@contextmanager
def _trial_folder(output_dir: Path) -> Iterator[Path]:
    """A folder below that of the runs, which other machines see too; it is removed, and what was made to hold it."""
    parent = output_dir / FOLDER
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        if try_lock(descriptor):  # no other dry run is at work: what lies there was left by one that was killed
            remove_temporary_folders(parent)
        with temporary_folder(parent) as folder:
            yield folder
    finally:
        os.close(descriptor)
        for folder in made:
            remove_empty_folder(folder)


def dry_run(
    study: Study,
    *,
    executor: Executor,
    limit: int | None = None,
    output_dir: str | Path = "runs",
    console: Console | None = None,
) -> None:
    """Print a study's runs, the time that those to do will take, and the smallest gap that its final runs can detect.

    ``limit``: also how long the first so many runs take. ValueError for a study, model or data that cannot work, and
    for a limit below 1.
    """
    check_limit(limit)
    console = console or open_console()
    plan, started = plan_study(study, output_dir), time.monotonic()
    _print_head(study, console)
    left = left_to_do(plan.runs)
    seconds, compared = estimate(left, executor, output_dir, console) if left else ({}, {})
    compared |= {run.cell.task: Compared.of(open_run(run.path)) for run in plan.final if run.is_finished}
    console.print(runs_table(plan, seconds))
    for line in [*plan.notes, *_time_lines(plan, seconds, executor.options.workers, limit)]:
        console.print(Text(line))
    if left:
        console.print(Text(f"Estimated in {shown_seconds(time.monotonic() - started)}."))
    console.print(gaps_table(study, compared))
    console.print(Text("No run of the study was started, and nothing of the trial runs is kept."))


def _print_head(study: Study, console: Console) -> None:
    console.print(Text(study.title, style="bold"))
    console.print(Text(f"Question: {study.question}"))
    if study.hypothesis:
        console.print(Text(f"Expected: {study.hypothesis}"))


def runs_table(plan: StudyPlan, seconds: Mapping[str, float]) -> Table:
    """One row per stage, task, arm and size: how many runs, how many are finished, and what the others take."""
    has_sizes = any(run.cell.size is not None for run in plan.runs)
    table = Table("stage", "task", "condition", *(["examples"] if has_sizes else []), title="Runs")
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
        words += [str(len(members)), finished, str(len(left)), *_times([seconds[run.name] for run in left])]
        table.add_row(*(Text(word) for word in words), style="dim" if not left else "")
    return table


def _groups(runs: Iterable[PlannedRun]) -> dict[tuple[object, ...], list[PlannedRun]]:
    groups: dict[tuple[object, ...], list[PlannedRun]] = {}
    for run in runs:
        cell = run.cell
        groups.setdefault((cell.stage, cell.task, cell.arm, cell.size), []).append(run)
    return groups


def _times(seconds: Sequence[float]) -> list[str]:
    """The mean time of the runs left and their sum."""
    return [shown_roughly(sum(seconds) / len(seconds)), shown_roughly(sum(seconds))] if seconds else ["", ""]


def _time_lines(plan: StudyPlan, seconds: Mapping[str, float], workers: int, limit: int | None) -> list[str]:
    """The table in sentences."""
    left = left_to_do(plan.runs)
    at_a_time = "one at a time" if workers == 1 else f"{workers} at a time"
    if not left:
        return [f"All {len(plan.runs)} runs are finished: only the report is still to be made, or made again."]
    lines = [f"{len(plan.runs)} runs, {len(plan.runs) - len(left)} finished, {len(left)} to do"]
    stages = [left_to_do(plan.tuning), left_to_do(plan.final)]
    total = sum(makespan((seconds[run.name] for run in stage), workers) for stage in stages)
    lines[0] += f": about {shown_roughly(total)}, {at_a_time}, and the report."
    first = left[:limit]
    if limit is not None and len(first) < len(left):
        took = makespan((seconds[run.name] for run in first), workers)
        lines.append(f"With --limit {limit}: {len(first)} of them, about {shown_roughly(took)}, and no report yet.")
    if not plan.is_chosen:
        lines.append("Final runs are estimated with the first setting of each arm, until tuning has chosen.")
    return lines


def gaps_table(study: Study, compared: Mapping[str, Compared]) -> Table:
    """The smallest difference in accuracy that the final runs can detect, per task, split and seed sd, in points."""
    table = Table("task", "split", title="Smallest detectable difference of two arms, in points of accuracy")
    for name in ("items", "seeds", "seed sd", *(f"{share:.0%} differ" for share in DISCORDANCES)):
        table.add_column(name, justify="right")
    known = {task: compared[task] for task in study.tasks if task in compared}
    for task, own in known.items():
        for split, number in own.items.items():
            for seed_sd in SEED_SDS:
                gaps = [f"{gap:.1f}" for gap in planned_gaps(len(study.seeds), number, seed_sd)]
                counts = (f"{number:,}", str(len(study.seeds)), f"{100 * seed_sd:g}")
                table.add_row(Text(task), Text(split), *counts, *gaps)
        if not own.items:
            table.add_row(Text(task), "not applicable: no accuracy", "", str(len(study.seeds)))
    scores = {t: study.score if study.score in own.others else own.score for t, own in known.items() if own.items}
    others = [f"{task} ({score})" for task, score in scores.items() if score != "accuracy"]
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
