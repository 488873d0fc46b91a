"""Which of the tried settings each condition takes on each task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run
from toolkit.studies.study import Cell, Study

SELECTION = "selection"
"""The split that ``--selection-fraction`` holds out of train."""


@with_columns
def choose(study: Study, runs: Mapping[Cell, Run | None]) -> pd.DataFrame:
    """One line per task, condition and setting: its mean score on ``selection`` at the last epoch; the best is chosen.

    The first of equal ones wins, so that a grid should begin with the setting one would take unseen. A run whose
    score is undefined, or that diverged (None), counts as the worst. ValueError when a tuning run is missing, or
    scored anything but ``selection``: a choice that has seen the reported split would spoil the claim.
    """
    lines = []
    for task in study.tasks:
        for arm in study.grid:
            tries = [_try(study, runs, task, arm, index) for index in range(len(study.tries(task, arm)))]
            means = np.array([line["mean_score"] for line in tries], dtype=np.float64)
            means = np.where(np.isnan(means), -np.inf, means)
            best = int(np.argmax(means))
            at_edge = is_at_edge(study.settings_of(task, arm), means, best)
            lines += [
                {**line, "is_chosen": index == best, "is_at_edge": index == best and at_edge}
                for index, line in enumerate(tries)
            ]
    return pd.DataFrame(lines, columns=columns_of("choose"))


def is_at_edge(settings: Sequence[Mapping[str, Any]], scores: NDArray[np.float64], chosen: int) -> bool:
    """Whether the score still rises towards an end of the grid: a value beyond it may do better (definition ours).

    True when some numeric field of the chosen setting has the least or greatest value tried, and the chosen score is
    strictly above the best one at the next value of that field, among settings that agree in the other fields if there
    are any. No end: a least value of 0 (no field goes below), and a field with one value. ``settings``: per try the
    value of every field that the grid names; ``scores``: (tries,) float64, -inf for the worst.
    """
    own = settings[chosen]
    for name, value in own.items():
        values = sorted({each[name] for each in settings if _is_number(each[name])})
        if not _is_number(value) or len(values) < 2:
            continue
        ends = {values[-1]: values[-2]} | ({values[0]: values[1]} if values[0] != 0 else {})
        if value not in ends:
            continue
        beside = [index for index, each in enumerate(settings) if each[name] == ends[value]]
        same = [index for index in beside if {**settings[index], name: value} == own]
        if scores[chosen] > max(scores[index] for index in same or beside):
            return True
    return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _try(study: Study, runs: Mapping[Cell, Run | None], task: str, arm: str, index: int) -> dict[str, Any]:
    own = [run for cell, run in runs.items() if (cell.task, cell.arm, cell.setting) == (task, arm, index)]
    if len(own) != len(study.tuning_seeds):
        raise ValueError(f"{task}, {arm}: setting {index} has {len(own)} of {len(study.tuning_seeds)} tuning runs")
    tried = [_selection_score(run) for run in own if run is not None]
    has_diverged = len(tried) < len(own)
    shown = ", ".join(f"{key} {value}" for key, value in study.tries(task, arm)[index].items()) or "as it is"
    return {
        "task": task,
        "condition": arm,
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
    return {(line.task, line.condition): int(line.setting) for line in best.itertuples()}
