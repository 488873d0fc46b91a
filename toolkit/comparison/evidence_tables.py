"""Arranged runs in, the tables of a report's evidence out: answers, facts, drift, gauge shares, distances of seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from toolkit.analysis.gauge.gauge import measure_gauge
from toolkit.comparison.arms import Group
from toolkit.comparison.parameter_noise import distance_of_seeds, measure_beyond_noise
from toolkit.comparison.reported import ReportedRun


def led(runs: Iterable[ReportedRun], make: Callable[[ReportedRun], pd.DataFrame]) -> pd.DataFrame:
    """One table of all runs, each part led by the run's name."""
    parts = [make(run).assign(run=run.name) for run in runs]
    filled = [part for part in parts if len(part)] or parts
    table = pd.concat(filled, ignore_index=True)
    return table[["run", *(name for name in table.columns if name != "run")]]


def drift_of(run: ReportedRun) -> pd.DataFrame:
    """The drift of each embedding parameter beside its noise."""
    return measure_beyond_noise(run.run)


def gauge_of(run: ReportedRun) -> pd.DataFrame:
    """The share of the tables' drift that offsets between them explain, at the last epoch; no line where none moved."""
    first, last = run.run.trajectory.snapshots[0], run.run.trajectory.snapshots[-1]
    tables = [name for name in run.run.trajectory.parameters if not name.startswith("LayerNorm")]
    if not any((first.tensors[name] != last.tensors[name]).any() for name in tables):
        return pd.DataFrame(columns=["gauge_share", "frequencies", "note"])
    lines = measure_gauge(run.run, last.epoch)
    chosen = lines[lines["measure"] == "gauge_share"].rename(columns={"value": "gauge_share"})
    said = ["; ".join(filter(None, texts)) for texts in zip(chosen["reason"], chosen["note"], strict=True)]
    return chosen.assign(note=said)[["gauge_share", "frequencies", "note"]]


def answers_of(run: ReportedRun) -> pd.DataFrame:
    """The last epoch's answers of a run to its labelled splits: epoch, split, id (and word), label, prediction."""
    table = run.run.predictions
    last: pd.DataFrame = table[(table["epoch"] == table["epoch"].max()) & table["label"].notna()]
    return last[["epoch", "split", *_items(last), "label", "prediction"]].reset_index(drop=True)


def _items(table: pd.DataFrame) -> list[str]:
    """The columns that name an item: of a token task it is a word of an example."""
    return ["id", "word"] if "word" in table else ["id"]


def all_answers(groups: Sequence[Group]) -> pd.DataFrame:
    """:func:`answers_of` every run, led by run, model, task, arm and seed."""
    parts = []
    for arm in (arm for group in groups for arm in group.arms):
        for run in arm.runs:
            lead = {"run": run.name, "model": run.model, "task": run.task, "arm": arm.label, "seed": run.config.seed}
            parts.append(answers_of(run).assign(**lead))
    if len({str(part["id"].dtype) for part in parts}) > 1:  # tasks number their items, or name them
        parts = [part.assign(id=part["id"].astype(str)) for part in parts]
    table = pd.concat(parts, ignore_index=True)
    names = ["run", "model", "task", "arm", "split"]
    columns = [*names[:4], "seed", "epoch", "split", *_items(table), "label", "prediction"]
    return table[columns].astype(dict.fromkeys(names, str))


def runs_table(groups: Sequence[Group], facts: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One line per run: where it stands in the comparison, and the sha256 of its manifest."""
    lines = []
    for group in groups:
        for arm in group.arms:
            lead: dict[str, Any] = {"group": group.title, "arm": arm.label, "base": arm.base}
            lead |= {"num_train_examples": arm.num_train_examples}
            for run in arm.runs:
                own: dict[str, Any] = {"regime": run.regime, "score": run.score, "reported_split": run.reported_split}
                own |= {"last_epoch": run.last_epoch, "manifest_sha256": facts[run.name]["manifest_sha256"]}
                lines.append({"run": run.name, **lead, "seed": run.config.seed, **own})
    return pd.DataFrame(lines)


def seeds_table(groups: Sequence[Group]) -> pd.DataFrame:
    """Each run beside the next seed of its arm: all pairs of 20 seeds would be read 190 times."""
    lines = [
        {"group": group.title, "arm": arm.label, "parameter": name, "first": one.name, "second": other.name}
        | {"distance": distance_of_seeds(one.run, other.run, name)}
        for group in groups
        for arm in group.arms
        for one, other in pairwise(arm.runs)
        for name in one.run.trajectory.parameters
        if name in other.run.trajectory.parameters
    ]
    return pd.DataFrame(lines, columns=["group", "arm", "parameter", "first", "second", "distance"])
