"""Arms in, pairs of them compared on the same items out, seed by seed: scores and the exact McNemar test."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.comparison.arms import Group, Labels, arrange
from toolkit.comparison.paired_tests import mcnemar
from toolkit.comparison.pairs import OTHER_ITEMS, ArmPair, Pairs, check_pairs, have_same_items, pair_arms
from toolkit.comparison.reported import ReportedRun, counted_score
from toolkit.snapshots.store import Run

COLUMNS = (
    "model",
    "task",
    "split",
    "first",
    "second",
    "seed",
    "num_items",
    "score",
    "first_score",
    "second_score",
    "difference_points",
    "num_only_first_right",
    "num_only_second_right",
    "accuracy_difference_points",
    "mcnemar_p",
    "note",
)


def compare_seeds(
    runs: Sequence[Run | str | Path], *, pairs: Pairs | None = None, labels: Labels | None = None
) -> pd.DataFrame:
    """One line per group, split, pair of arms and seed.

    A p value covers the items of that split and no other seeds. ``q`` is the Benjamini-Hochberg value over the family
    of all McNemar tests of this call. ``pairs`` and ``labels`` as in :func:`toolkit.compare`.

    Columns: group, model, task, split, first, second, seed, num_items, score, first_score, second_score,
    difference_points, num_only_first_right, num_only_second_right, accuracy_difference_points, mcnemar_p, q, note.
    """
    return compare_seeds_of_groups(arrange(runs, labels), pairs)


def compare_seeds_of_groups(groups: Sequence[Group], pairs: Pairs | None = None) -> pd.DataFrame:
    """:func:`compare_seeds` of groups that are arranged already."""
    from toolkit.comparison.multiplicity import benjamini_hochberg

    check_pairs(groups, pairs)
    parts = [mcnemar_of_group(group, pairs).assign(group=group.title) for group in groups]
    filled = [part for part in parts if len(part)] or parts[:1]
    table = pd.concat(filled, ignore_index=True)
    table["q"] = benjamini_hochberg(table["mcnemar_p"].to_numpy(dtype=float))
    return table[["group", *COLUMNS[:-1], "q", "note"]]


def mcnemar_of_group(group: Group, pairs: Pairs | None = None) -> pd.DataFrame:
    """One line per split, pair of arms and seed: differences in points (first minus second) and exact McNemar p."""
    lines = [
        {"first": pair.first.label, "second": pair.second.label} | line
        for pair in pair_arms(group, pairs)
        for line in _lines_of_pair(pair)
    ]
    table = pd.DataFrame(lines, columns=list(COLUMNS))
    return table.astype({"seed": int}) if lines else table


def _lines_of_pair(pair: ArmPair) -> list[dict[str, Any]]:
    """The lines of the pairs of runs and of the seeds that one arm lacks, in the order of the seeds."""
    lines = [line for first, second in pair.runs for line in compare_runs(first, second)]
    for arm, other in ((pair.first, pair.second), (pair.second, pair.first)):
        missing = f"no run of this seed under {other.label}"
        alone = [run for run in arm.runs if run.config.seed not in pair.seeds]
        lines += [_lead(run) | {"split": "", "note": missing} for run in alone]
    return sorted(lines, key=lambda line: int(line["seed"]))


def _lead(run: ReportedRun) -> dict[str, Any]:
    return {"model": run.model, "task": run.task, "seed": run.config.seed}


def compare_runs(first: ReportedRun, second: ReportedRun) -> list[dict[str, Any]]:
    """One line per labelled split of both runs at their last epochs; a note where the items are not the same."""
    lines = []
    for split, mine in first.answers.items():
        if split not in second.answers:
            continue
        other = second.answers[split]
        line = _lead(first) | {"split": split, "num_items": len(mine), "score": first.score, "note": ""}
        if not have_same_items(first, second, split):
            line["note"] = OTHER_ITEMS
        else:
            line |= _differences(first, second, split)
            if not (first.is_regression or first.is_token_task):  # words of a sentence are no independent items
                line |= _discordance(mine, other.loc[mine.index])
        lines.append(line)
    return lines


def _differences(first: ReportedRun, second: ReportedRun, split: str) -> dict[str, Any]:
    one, other = counted_score(first, split), counted_score(second, split)
    return {"first_score": one, "second_score": other, "difference_points": 100 * (one - other)}


def _discordance(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, Any]:
    one, other = (table["label"] == table["prediction"] for table in (first, second))
    only_first, only_second = int((one & ~other).sum()), int((other & ~one).sum())
    return {
        "num_only_first_right": only_first,
        "num_only_second_right": only_second,
        "accuracy_difference_points": 100 * (only_first - only_second) / len(first),
        "mcnemar_p": mcnemar(only_first, only_second),
    }
