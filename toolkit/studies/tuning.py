"""A study and its tuning runs in, which setting each arm takes on each task out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from toolkit.snapshots.store import Run
from toolkit.studies.study import Cell, Study

SELECTION = "selection"
"""The split that ``--selection-fraction`` holds out of train."""

COLUMNS = (
    "task", "arm", "setting", "fields", "num_seeds", "num_items", "split", "score", "mean_score", "is_chosen"
)  # fmt: skip


def choose(study: Study, runs: Mapping[Cell, Run | None]) -> pd.DataFrame:
    """One line per task, arm and setting: its mean score on ``selection`` at the last epoch; the best is chosen.

    The first of equal ones wins, so that a grid should begin with the setting one would take unseen. A run whose
    score is undefined, or that diverged (None), counts as the worst. ValueError when a tuning run is missing, or
    scored anything but ``selection``: a choice that has seen the reported split would spoil the claim.
    """
    lines = []
    for task in study.tasks:
        for arm, settings in study.grid.items():
            tries = [_try(study, runs, task, arm, index) for index in range(len(settings))]
            means = np.array([line["mean_score"] for line in tries])
            best = int(np.argmax(np.where(np.isnan(means), -np.inf, means)))
            lines += [{**line, "is_chosen": index == best} for index, line in enumerate(tries)]
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _try(study: Study, runs: Mapping[Cell, Run | None], task: str, arm: str, index: int) -> dict[str, Any]:
    own = [run for cell, run in runs.items() if (cell.task, cell.arm, cell.setting) == (task, arm, index)]
    if len(own) != len(study.tuning_seeds):
        raise ValueError(f"{task}, {arm}: setting {index} has {len(own)} of {len(study.tuning_seeds)} tuning runs")
    tried = [_selection_score(run) for run in own if run is not None]
    has_diverged = len(tried) < len(own)
    shown = ", ".join(f"{key} {value}" for key, value in study.grid[arm][index].items()) or "as it is"
    return {
        "task": task,
        "arm": arm,
        "setting": index,
        "fields": f"{shown} (diverged)" if has_diverged else shown,
        "num_seeds": len(own),
        "num_items": tried[0][1] if tried else 0,
        "split": SELECTION,
        "score": tried[0][0] if tried else "",
        "mean_score": np.nan if has_diverged else float(np.mean([score for _, _, score in tried])),
    }


def _selection_score(run: Run) -> tuple[str, int, float]:
    """Name of the score, items, and the score at the last epoch; ValueError if it saw any other split."""
    split, name = run.manifest["task"]["reported_split"], run.manifest["task"]["score"]
    if set(run.scores["split"]) != {SELECTION} or split != SELECTION:
        seen = sorted(set(run.scores["split"]))
        raise ValueError(f"{run.path.name} scored {seen}: tuning may see {SELECTION} only")
    last = run.scores[run.scores["epoch"] == run.scores["epoch"].max()]
    return name, int(last["num_examples"].iloc[0]), float(last[name].iloc[0])


def chosen_settings(table: pd.DataFrame) -> dict[tuple[str, str], int]:
    """(task, arm) to the index of its chosen setting."""
    best = table[table["is_chosen"]]
    return {(line.task, line.arm): int(line.setting) for line in best.itertuples()}
