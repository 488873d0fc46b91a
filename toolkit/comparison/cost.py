"""What each condition cost beside what it scored, and its share of full fine-tuning's cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Arm, Group, Labels, arrange, led_by
from toolkit.comparison.runs import ReportedRun, counted_score
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run

MIB = 2**20

OTHER_DEVICES = "made on different devices: seconds, memory and speed are not comparable"
SEVERAL_FULL = (
    "no ratio: {} conditions of this size are full fine-tuning, which of them is meant is not known: pass one alone"
)

COSTS = (
    "num_trainable",
    "seconds_training",
    "seconds_features",
    "seconds_head_stage",
    "seconds",
    "peak_memory_mib",
    "examples_per_second",
)
RATIOS = ("num_trainable", "seconds", "peak_memory_mib", "examples_per_second")
"""Costs that are also given as a multiple of full fine-tuning's, in columns ``..._ratio``."""


@with_columns
def measure_cost(runs: Sequence[Run | str | Path], labels: Labels | None = None) -> pd.DataFrame:
    """One line per group and condition: costs means over the runs that recorded them, and the reported split's score.

    Runs which one process made share a peak of memory. A stage that a condition has not is 0 only where another one was
    recorded. The ratios divide by full fine-tuning of the same size and are NaN without it, and where several
    conditions of that size are full fine-tuning (at two learning rates, say): ``reason`` says so. ``note`` says where
    devices or the number of processes differ within a group: seconds and memory are then not comparable.
    """
    return cost_of_groups(arrange(runs, labels))


def cost_of_groups(groups: Sequence[Group]) -> pd.DataFrame:
    """:func:`measure_cost` of groups that are arranged already."""
    table = pd.DataFrame([line for group in groups for line in _lines(group)], columns=columns_of("measure_cost"))
    return table.astype(dict.fromkeys(("size", "num_at_chance"), "Int64"))


def _lines(group: Group) -> list[dict[str, Any]]:
    places = {place_of(run) for run in group.runs}
    costs = [_costs(arm) for arm in group.arms]
    lines = []
    for arm, own in zip(group.arms, costs, strict=True):
        full = [cost for other, cost in zip(group.arms, costs, strict=True) if other.is_full and other.size == arm.size]
        ratios = {f"{name}_ratio": _ratio(own[name], full[0][name]) if len(full) == 1 else np.nan for name in RATIOS}
        told = {"devices": "; ".join(_devices(arm)), "note": OTHER_DEVICES if len(places) > 1 else ""}
        told |= {"reason": SEVERAL_FULL.format(len(full)) if len(full) > 1 else ""}
        lines.append(led_by(group, arm) | _lead(arm) | own | ratios | told)
    return lines


def _lead(arm: Arm) -> dict[str, Any]:
    first = arm.runs[0]
    lead = {"num_seeds": len(arm.runs), "num_failed": arm.num_failed, "num_at_chance": arm.num_at_chance}
    mean = _mean([counted_score(run, run.reported_split) for run in arm.runs])
    return lead | {"split": first.reported_split, "score": first.score, "score_mean": mean}


def _costs(arm: Arm) -> dict[str, float]:
    """The costs of an arm, each the mean over its runs."""
    each = [cost_of(run) for run in arm.runs]
    return {name: _mean([one[name] for one in each]) for name in (*COSTS, "num_parameters")}


def cost_of(run: ReportedRun) -> dict[str, float]:
    """COSTS and num_parameters of one run; NaN for what its manifest does not hold."""
    cost, model = run.part("cost"), run.part("model")
    stages = {name: float(value) for name, value in cost.items() if name.startswith("seconds_")}
    absent = 0.0 if stages else np.nan
    values = {name: stages.get(name, absent) for name in COSTS if name.startswith("seconds_")}
    values |= {name: _number(model.get(name)) for name in ("num_trainable", "num_parameters")}
    values["seconds"] = sum(stages.values()) if stages else np.nan
    values["peak_memory_mib"] = _number(cost.get("peak_memory_bytes")) / MIB
    values["examples_per_second"] = _number(cost.get("examples_per_second"))
    return values


def place_of(run: ReportedRun) -> str:
    """The devices, number of processes and threads, and precision that a run was made with, as one text."""
    names = ("devices", "num_processes", "num_threads", "precision")
    return ", ".join(f"{name} {run.manifest[name]}" for name in names if name in run.manifest)


def _devices(arm: Arm) -> list[str]:
    return list(dict.fromkeys(place_of(run) for run in arm.runs))


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference > 0 else np.nan


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if value == value]
    return float(np.mean(defined)) if defined else np.nan


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)
