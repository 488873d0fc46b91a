"""Arms in, pairs of them compared on the same items out, seed by seed: scores and the exact McNemar test."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.analysis.comparison.arms import Arm, Group, Labels, arrange
from toolkit.analysis.comparison.paired_tests import mcnemar as mcnemar
from toolkit.analysis.comparison.pairs import OTHER_ITEMS, Pairs, are_same_items, check_pairs, pair_arms
from toolkit.analysis.comparison.reported import ReportedRun
from toolkit.analysis.comparison.reported import last_score as last_score
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
    """One line per group, split, pair of arms and seed, columns COLUMNS with ``group`` first and ``q`` after the p.

    A p value covers the items of that split and no other seeds. ``q`` is the Benjamini-Hochberg value over the family
    of all McNemar tests of this call. ``pairs`` and ``labels`` as in :func:`toolkit.compare`.
    """
    return compare_seeds_of_groups(arrange(runs, labels), pairs)


def compare_seeds_of_groups(groups: Sequence[Group], pairs: Pairs | None = None) -> pd.DataFrame:
    """:func:`compare_seeds` of groups that are arranged already."""
    from toolkit.analysis.comparison.multiplicity import benjamini_hochberg

    check_pairs(groups, pairs)
    parts = [compare(group, pairs).assign(group=group.title) for group in groups]
    filled = [part for part in parts if len(part)] or parts[:1]
    table = pd.concat(filled, ignore_index=True)
    table["q"] = benjamini_hochberg(table["mcnemar_p"].to_numpy(dtype=float))
    return table[["group", *COLUMNS[:-1], "q", "note"]]


def compare(group: Group, pairs: Pairs | None = None) -> pd.DataFrame:
    """One line per split, pair of arms and seed: differences in points (first minus second) and exact McNemar p."""
    lines = [
        {"model": run.model, "task": run.task, "first": pair.first.label, "second": pair.second.label} | line
        for pair in pair_arms(group, pairs)
        for run, line in _pair(pair.first, pair.second)
    ]
    table = pd.DataFrame(lines, columns=list(COLUMNS))
    return table.astype({"seed": int}) if lines else table


def _pair(first: Arm, second: Arm) -> list[tuple[ReportedRun, dict[str, Any]]]:
    ours = {run.config.seed: run for run in first.runs}
    theirs = {run.config.seed: run for run in second.runs}
    lines = []
    for seed in sorted(ours.keys() | theirs.keys()):
        if seed in ours and seed in theirs:
            lines += [(ours[seed], {"seed": seed} | line) for line in compare_runs(ours[seed], theirs[seed])]
        else:
            run, missing = (ours[seed], second) if seed in ours else (theirs[seed], first)
            lines.append((run, {"split": "", "seed": seed, "note": f"no run of this seed under {missing.label}"}))
    return lines


def compare_runs(first: ReportedRun, second: ReportedRun) -> list[dict[str, Any]]:
    """One line per labelled split of both runs at their last epochs; a note where the items are not the same."""
    lines = []
    for split, mine in first.answers.items():
        if split not in second.answers:
            continue
        other = second.answers[split]
        line: dict[str, Any] = {"split": split, "num_items": len(mine), "score": first.score, "note": ""}
        if not are_same_items(mine, other):
            line["note"] = OTHER_ITEMS
        else:
            line |= _differences(first, second, split)
            if not first.is_regression:
                line |= _discordance(mine, other.loc[mine.index])
        lines.append(line)
    return lines


def _differences(first: ReportedRun, second: ReportedRun, split: str) -> dict[str, Any]:
    one, other = last_score(first, split), last_score(second, split)
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
