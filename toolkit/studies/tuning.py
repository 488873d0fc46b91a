"""A study and its tuning runs in, which setting each arm takes on each task out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from toolkit.snapshots.store import Run
from toolkit.studies.study import Cell, Study

COLUMNS = (
    "task", "arm", "setting", "fields", "num_seeds", "num_items", "split", "score", "mean_score", "is_chosen"
)  # fmt: skip


def choose(study: Study, runs: Mapping[Cell, Run]) -> pd.DataFrame:
    """One line per task, arm and setting: its mean score on ``selection`` at the last epoch; the best is chosen.

    The first of equal ones wins, so that a grid should begin with the setting one would take unseen. A run whose
    score is undefined counts as the worst. ValueError when a tuning run is missing, or scored anything but
    ``selection``: a choice that has seen the reported split would spoil the claim.
    """
    lines = []
    for task in study.tasks:
        for arm, settings in study.grid.items():
            tries = [_try(study, runs, task, arm, index) for index in range(len(settings))]
            means = np.array([line["mean_score"] for line in tries])
            best = int(np.argmax(np.where(np.isnan(means), -np.inf, means)))
            lines += [{**line, "is_chosen": index == best} for index, line in enumerate(tries)]
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _try(study: Study, runs: Mapping[Cell, Run], task: str, arm: str, index: int) -> dict[str, Any]:
    own = [run for cell, run in runs.items() if (cell.task, cell.arm, cell.setting) == (task, arm, index)]
    if len(own) != len(study.tuning_seeds):
        raise ValueError(f"{task}, {arm}: setting {index} has {len(own)} of {len(study.tuning_seeds)} tuning runs")
    scores = []
    for run in own:
        split, name = run.manifest["task"]["reported_split"], run.manifest["task"]["score"]
        if set(run.scores["split"]) != {"selection"} or split != "selection":
            raise ValueError(
                f"{run.path.name} scored {sorted(set(run.scores['split']))}: tuning may see selection only"
            )
        last = run.scores[run.scores["epoch"] == run.scores["epoch"].max()]
        scores.append(float(last[name].iloc[0]))
    shown = ", ".join(f"{key} {value}" for key, value in study.grid[arm][index].items()) or "as it is"
    items = int(own[0].scores["num_examples"].iloc[0])
    return {
        "task": task, "arm": arm, "setting": index, "fields": shown, "num_seeds": len(own), "num_items": items,
        "split": "selection", "score": name, "mean_score": float(np.mean(scores)),
    }  # fmt: skip


def chosen_settings(table: pd.DataFrame) -> dict[tuple[str, str], int]:
    """(task, arm) to the index of its chosen setting."""
    best = table[table["is_chosen"]]
    return {(line.task, line.arm): int(line.setting) for line in best.itertuples()}
