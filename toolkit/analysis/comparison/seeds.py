"""A group of arms in, full fine-tuning minus each other arm on the same items out, seed by seed."""

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from toolkit.analysis.comparison.arms import Arm, Group, ReportedRun

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


def compare(group: Group) -> pd.DataFrame:
    """One line per split, pair (full fine-tuning, other arm) and seed: differences in points and exact McNemar p."""
    lines = [
        {"model": run.model, "task": run.task, "first": first.label, "second": second.label} | line
        for first in group.arms
        if first.is_full
        for second in group.arms
        if not second.is_full
        for run, line in _pair(first, second)
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
    ours, theirs = _last_predictions(first), _last_predictions(second)
    lines = []
    for split in (s for s in ours["split"].unique() if s in set(theirs["split"])):
        mine, other = (table[table["split"] == split].set_index("id") for table in (ours, theirs))
        line: dict[str, Any] = {"split": split, "num_items": len(mine), "score": first.score, "note": ""}
        if not _are_same_items(mine, other):
            line["note"] = "not comparable: other items or labels"
        else:
            line |= _differences(first, second, str(split))
            if not first.is_regression:
                line |= _discordance(mine, other.loc[mine.index])
        lines.append(line)
    return lines


def _last_predictions(run: ReportedRun) -> pd.DataFrame:
    table = run.run.predictions
    return table[(table["epoch"] == table["epoch"].max()) & table["label"].notna()]


def _are_same_items(first: pd.DataFrame, second: pd.DataFrame) -> bool:
    """Whether ids are unique, equal as sets, and carry the same labels."""
    if not (first.index.is_unique and second.index.is_unique) or len(first) != len(second):
        return False
    if not first.index.isin(second.index).all():
        return False
    return bool((first["label"] == second.loc[first.index, "label"]).all())


def _differences(first: ReportedRun, second: ReportedRun, split: str) -> dict[str, Any]:
    one, other = last_score(first, split), last_score(second, split)
    return {"first_score": one, "second_score": other, "difference_points": 100 * (one - other)}


def last_score(run: ReportedRun, split: str, score: str | None = None, *, at: str = "last") -> float:
    """A run's score (default: the headline score) on a split at its ``last`` or ``first`` epoch; NaN when absent."""
    scores, score = run.run.scores, score or run.score
    epoch = scores["epoch"].max() if at == "last" else scores["epoch"].min()
    lines = scores[(scores["split"] == split) & (scores["epoch"] == epoch)]
    return float(lines[score].iloc[-1]) if score in lines and len(lines) else np.nan


def _discordance(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, Any]:
    one, other = (table["label"] == table["prediction"] for table in (first, second))
    only_first, only_second = int((one & ~other).sum()), int((other & ~one).sum())
    return {
        "num_only_first_right": only_first,
        "num_only_second_right": only_second,
        "accuracy_difference_points": 100 * (only_first - only_second) / len(first),
        "mcnemar_p": mcnemar(only_first, only_second),
    }


def mcnemar(num_only_first_right: int, num_only_second_right: int) -> float:
    """Exact two-sided McNemar p: under the null each discordant item falls to either side with probability 1/2.

    McNemar 1947 in its exact binomial form; 1 when no item is discordant.
    """
    num_discordant = num_only_first_right + num_only_second_right
    return float(binomtest(num_only_first_right, num_discordant, 0.5).pvalue) if num_discordant else 1.0
