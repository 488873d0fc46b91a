"""The dry run: which runs a study needs, and which differences they could detect."""

from pathlib import Path

import pandas as pd
from rich.console import Console

from toolkit.naming import check_least
from toolkit.progress import counted, shows_progress
from toolkit.reporting.page import Block, Page, Section, TableBlock, TextBlock, rows_block
from toolkit.reporting.render_terminal import print_page
from toolkit.reporting.topics.comparison import planned_gaps_text
from toolkit.studies.plan import read_data
from toolkit.studies.runner import StudyPlan, plan_study
from toolkit.studies.study import Study

DISCORDANCES = (0.05, 0.10, 0.20)
"""Shares of items of which exactly one condition is right, for which the smallest detectable gap is printed."""

SEED_SDS = (0.01, 0.03)
"""Standard deviations of the true difference between seeds, shares: guesses, since nobody knows it beforehand."""


def dry_run(
    study: Study, *, limit: int | None = None, output_dir: str | Path = "runs", console: Console | None = None
) -> None:
    """Print a study's runs, and the smallest gap that its final runs can detect; the data are read, nothing is run.

    ValueError for a study, model or data that cannot work, as far as that shows before training, and for a ``limit``
    below 1.
    """
    check_least({"limit": limit}, 1)
    with shows_progress("planning"):
        plan = plan_study(study, output_dir)
        notes = () if plan.is_chosen else (TextBlock(text=UNTUNED),)
        blocks = (runs_block(plan), *notes, gaps_block(study, plan))
    expected = f"Expected: {study.hypothesis}" if study.hypothesis else ""
    section = Section(id="runs", title="", lead="No run of the study was started.", blocks=blocks)
    print_page(
        Page(title=study.title, question=f"Question: {study.question}", lead=expected, sections=(section,)), console
    )


UNTUNED = "Final runs stand here with the first setting of each condition, until tuning has chosen."


def runs_block(plan: StudyPlan) -> Block:
    """One row per stage, task, condition and size: how many runs, and how many are finished."""
    keys, states = ["stage", "task", "condition", "examples"], ["finished", "diverged"]
    records = [
        [run.cell.stage, run.cell.task, run.cell.condition, run.cell.size, run.is_finished, run.has_diverged]
        for run in plan.runs
    ]
    grouped = pd.DataFrame(records, columns=[*keys, *states]).groupby(keys, sort=False, dropna=False)
    table = grouped[states].sum().astype(int)
    table.insert(0, "runs", grouped.size())
    table["to do"] = table["runs"] - table["finished"] - table["diverged"]
    totals = ", ".join(f"{name} {table[name].sum():,}" for name in ("runs", "finished", "to do"))
    return TableBlock(table=table.reset_index().dropna(axis="columns", how="all"), caption=f"In all: {totals}.")


def gaps_block(study: Study, plan: StudyPlan) -> Block:
    """The smallest difference in accuracy that the final runs can detect, per task, split and seed sd, in points."""
    rows: list[list[object]] = []
    other_scores: list[str] = []
    sizes: dict[str, tuple[int, int]] = {}
    for task, run in counted({run.cell.task: run for run in plan.final}.items(), "data of tasks"):
        data = read_data(run.config)
        if data.kind != "classification":
            rows.append([task, "not applicable: no accuracy", *[""] * (3 + len(DISCORDANCES))])
            continue
        rows += [
            [task, split, size, len(study.seeds), f"{100 * sd:g}"]
            + [f"{gap:.1f}" for gap in planned_gaps(len(study.seeds), size, sd)]
            for split, size in data.sizes.items()
            for sd in SEED_SDS
            if split != "train"
        ]
        first_size = next((size for split, size in data.sizes.items() if split != "train"), 0)
        sizes[task] = len(study.seeds), first_size
        score = study.score if study.score in data.scores else data.score
        other_scores += [f"{task} ({score})"] if score != "accuracy" else []
    # Gaps are of an accuracy, whose differences are -1, 0 or 1 on each item.
    sentences = [planned_gaps_text(sizes), GAPS, f"Margin of equivalence: {study.margin_points:g} points."]
    if other_scores:
        sentences.append(
            f"The headline score is another on {', '.join(other_scores)}, where the table is only a guide."
        )
    caption = " ".join(filter(None, sentences))
    header = ["task", "split", "items", "seeds", "seed sd", *(f"{share:.0%} differ" for share in DISCORDANCES)]
    return rows_block(header, rows, caption)


GAPS = (
    "Smallest detectable difference of two conditions, in points of accuracy: 80 % power, two-sided alpha .05, paired "
    "seeds. On which share of the items exactly one condition is right, and how much the true difference varies "
    "between seeds (seed sd, points), is not known beforehand."
)


def planned_gaps(num_seeds: int, num_items: int, seed_sd: float) -> list[float]:
    """The smallest detectable gap in points at each of DISCORDANCES; NaN where one item leaves it undefined.

    ``seed_sd``: standard deviation of the true difference between seeds, a share.
    """
    from toolkit.comparison.intervals import detectable_gap_planned

    if num_items < 2:
        return [float("nan")] * len(DISCORDANCES)
    return [100 * detectable_gap_planned(num_seeds, num_items, share, seed_sd) for share in DISCORDANCES]
