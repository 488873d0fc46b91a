"""Drift joined with score: what forbidding it cost each run, and whether it predicts that across tasks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.comparison.compare import Lines, Settings, lines_of_pairs
from toolkit.comparison.conditions import (
    OTHER_ITEMS,
    Condition,
    ConditionPair,
    Group,
    Labels,
    Runs,
    arrange,
    differing_settings,
    have_same_items,
    led_by,
)
from toolkit.comparison.multiplicity import benjamini_hochberg
from toolkit.comparison.parameter_noise import measure_beyond_noise
from toolkit.comparison.runs import ReportedRun, counted_score, last_score
from toolkit.comparison.summaries import check_table
from toolkit.families import LORA, TABLES
from toolkit.schema import columns_of, with_columns

NOT_TRAINED = "no embedding parameter was trained"


@with_columns
def join_drift(
    runs: Runs,
    labels: Labels | None = None,
    *,
    margin_points: float = 1.0,
) -> pd.DataFrame:
    """One line per run and embedding parameter: how far it moved by the last epoch, and what that did to the score.

    The formulas of drift are in parameter_noise.py; ``reason`` says why ``times_noise`` is missing. ``gain_points`` is
    of the headline score on the reported split, against a run of the same size and start: NaN where
    there is none, as ``gain_reason`` says; ``note`` names what else the two differ in. ``gain_verdict``: that
    of :func:`toolkit.compare` on them with ``margin_points``; empty without a frozen one.
    """
    groups = arrange(runs, labels)
    drift = pd.concat(
        [measure_beyond_noise(run.run).assign(run=run.name) for group in groups for run in group.runs],
        ignore_index=True,
    )
    lines_of = lines_of_pairs(Settings(margin_points=margin_points))
    return join_groups(groups, drift=drift, lines_of=lines_of)


def join_groups(
    groups: Sequence[Group],
    *,
    drift: pd.DataFrame,
    lines_of: Callable[[ConditionPair], Lines],
) -> pd.DataFrame:
    """:func:`join_drift` of groups that are arranged already, with `measure_beyond_noise` of their runs, led by the
    run's name."""
    moved = drift.assign(times_noise=drift["times_noise"].where(drift["reason"] == ""))
    records = []
    for group in groups:
        for condition in group.conditions:
            records += _score_records(group, condition, lines_of)
    table = pd.DataFrame(records).merge(moved, on="run", validate="one_to_many")
    frozen = {run.name: run.frozen for group in groups for run in group.runs}
    is_frozen = [name in frozen[run] for run, name in zip(table["run"], table["parameter"], strict=True)]
    return table.assign(is_frozen=is_frozen)[columns_of("join_drift")]


def _score_records(group: Group, condition: Condition, lines_of: Callable[[ConditionPair], Lines]) -> Lines:
    """One record per run of a condition: its scores, and its gain over the frozen condition that is most like it."""
    partner, note = _frozen_partner(group, condition)
    pair = None if partner is None else ConditionPair(condition, partner)
    records_of_pair = [] if pair is None else lines_of(pair)
    verdicts = {record["split"]: str(record["verdict"]) for record in records_of_pair if record["is_headline"]}
    records = []
    for run in condition.runs:
        scored_split = run.reported_split
        gain, gain_reason, note_of_run = _gain(run, pair, scored_split, note)
        scores = {
            "run": run.name,
            "seed": run.seed,
            "num_train_examples": run.num_train_examples,
            "size": np.nan if condition.size is None else condition.size,
            "learning_rate": run.learning_rate,
            "is_failed": run.is_failed,
            "epoch": run.last_epoch,
            "split": scored_split,
            "score": run.score,
            "value_before": last_score(run, scored_split, at="first"),
            "value": last_score(run, scored_split),
            "gain_points": gain,
            "gain_reason": gain_reason,
            "gain_verdict": verdicts.get(scored_split, ""),
            "note": note_of_run,
        }
        records.append(led_by(group, condition) | scores)
    return records


def _frozen_partner(group: Group, condition: Condition) -> tuple[Condition | None, str]:
    """The condition of the same size and start with frozen embeddings that differs in fewest settings, and a note.

    The note names these settings, or says why there is no such condition. Of adapters it is the one with the same
    adapters but those of the tables; where there are no others, a head alone.
    """
    if all(all(name in run.frozen for name in run.parameters) for run in condition.runs):
        return None, NOT_TRAINED
    first_run = condition.runs[0]
    lora = first_run.setting("lora")
    # Frozen embeddings beside adapters: the same adapters, but none on a table.
    other_adapters = None if lora is None else tuple(name for name in lora if name not in TABLES)
    lora_regime = LORA if other_adapters else "backbone"
    regime = "embeddings" if other_adapters is None else lora_regime
    candidates = [
        candidate
        for candidate in group.conditions
        if (candidate.runs[0].regime, candidate.runs[0].setting("lora")) == (regime, other_adapters or None)
        and all(candidate.is_proven_frozen(name) for name in candidate.runs[0].parameters)
        and candidate.size == condition.size
        and all(candidate.runs[0].setting(name) == first_run.setting(name) for name in ("init", "head_epochs"))
    ]
    if not candidates:
        return None, "no runs with frozen embeddings from the same start"
    best = min(candidates, key=lambda candidate: len(differing_settings(condition, candidate)))
    names = [name.replace("_", " ") for name in differing_settings(condition, best) if name != "lora"]
    return best, f"differs from {best.label} also in {', '.join(names)}" if names else ""


def _gain(run: ReportedRun, pair: ConditionPair | None, split: str, note: str) -> tuple[float, str, str]:
    """The points that a run gained over the pair's second condition, why there are none, and what to note."""
    if pair is None:
        return np.nan, note, ""
    partner = pair.second
    partner_run = dict(pair.runs).get(run)
    if partner_run is None:
        return np.nan, f"no run of this seed under {partner.label}", ""
    if split not in run.splits or split not in partner_run.splits:
        return np.nan, f"no labelled split {split}", ""
    if not have_same_items(run, partner_run, split):
        return np.nan, OTHER_ITEMS, ""
    return 100 * (counted_score(run, split) - counted_score(partner_run, split)), "", note


LEAST_TASKS = 6
"""Fewer points say nothing: of five tasks even a perfect order has an exact two-sided p of 2/5! = .017, and a single
task decides it."""

NUM_PERMUTATIONS = 99_999
"""Permutations of the test; all of them up to eight tasks (8! = 40,320)."""

FOUND_GAIN = "supported"
"""The verdict on a gain whose interval excludes 0 and that may be above the margin."""

KEY_COLUMNS = ("group", "model", "base", "size", "run", "learning_rate", "epoch", "parameter", "is_frozen")
VALUE_COLUMNS = ("times_noise", "gain_points", "gain_verdict")


@with_columns
def associate_drift(joined: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Do tasks on which a parameter moved further gain more from it? One line per model, condition and parameter.

    ``joined``: the table of :func:`toolkit.join_drift`. A task is one point: the means over its seeds of
    ``times_noise`` and ``gain_points``, of the last epoch of each run and of the largest number of training examples,
    whatever else the table holds, so that more epochs, snapshots or sizes make no more points. Drift counts as a
    multiple of its noise (parameter_noise.py): as a share of the norm it follows the number of steps and of words in
    the data, which differ between tasks by design. ``spearman``: rank correlation; ``p``: two-sided permutation test
    over the tasks (exact up to eight of them, else 99,999 draws with ``seed``); ``q``: Benjamini-Hochberg over the
    lines. All NaN, with a ``reason``: under six tasks, because nothing is fitted to so few; where tasks were trained at
    different learning rates; and where no task's gain is told apart from 0 (``gain_verdict``), because ranks of gains
    that are noise are noise. The association is between tasks and says nothing of cause. ValueError for another table.
    """
    check_table(joined, (*KEY_COLUMNS, *VALUE_COLUMNS), "join_drift")
    records = [
        {"model": model, "base": base, "parameter": parameter} | _association_record(points, seed)
        for (model, base, parameter), points in _points_by_parameter(joined)
    ]
    table = pd.DataFrame(records, columns=columns_of("associate_drift"))
    if len(table):
        table["q"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
    return table


def _points_by_parameter(joined: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    """Per model, condition and parameter that was trained: a table of one point per task, the means over its runs."""
    table = joined[~joined["is_frozen"].astype(bool)]
    # Epochs, snapshots and smaller sizes of a run are no points of their own: they are not independent.
    table = table[table["epoch"] == table.groupby("run")["epoch"].transform("max")]
    sizes = pd.to_numeric(table["size"]).astype(float).fillna(np.inf)  # NaN: all training examples
    table = table[sizes == sizes.groupby([table[name] for name in ("group", "base")]).transform("max")]
    table = table.drop_duplicates(["run", "parameter"], keep="last")
    keys = ["model", "base", "parameter"]
    usable = table.dropna(subset=["times_noise", "gain_points"])
    runs_of_tasks = usable.groupby([*keys, "group"], sort=False)
    # A run's rate and verdict are those of its condition, the same for all of its seeds.
    means = runs_of_tasks[["times_noise", "gain_points"]].mean()
    means["num_runs"] = runs_of_tasks.size()
    means[["learning_rate", "verdict"]] = runs_of_tasks[["learning_rate", "gain_verdict"]].first()
    points = {key: means_of_key.droplevel(keys) for key, means_of_key in means.groupby(level=keys, sort=False)}
    no_points = means.iloc[:0].droplevel(keys)
    for key in table[keys].drop_duplicates().itertuples(index=False, name=None):
        yield key, points.get(key, no_points)


def _association_record(points: pd.DataFrame, seed: int) -> dict[str, Any]:
    """The rank correlation over the tasks of one parameter, and its p; a reason alone where it is refused."""
    record = {"num_tasks": len(points), "num_runs": int(points["num_runs"].sum()), "spearman": np.nan, "p": np.nan}
    if len(points) < LEAST_TASKS:
        count = f"{len(points)} task{'' if len(points) == 1 else 's'}"
        return record | {"reason": f"refused: {count} with both values, and at least {LEAST_TASKS} are needed"}
    if points["learning_rate"].nunique() > 1:
        rates = ", ".join(f"{rate:g}" for rate in sorted(set(points["learning_rate"])))
        return record | {"reason": f"refused: tasks were trained at different learning rates ({rates})"}
    if not (points["verdict"] == FOUND_GAIN).any():
        counts = ", ".join(f"{count} {name}" for name, count in points["verdict"].value_counts().items())
        fault = f"no gain is distinguishable from 0 ({counts})"
        if (points["verdict"] == "equivalent").all():
            fault = "every gain is within the margin (equivalent to 0)"
        return record | {"reason": f"refused: {fault}, so that there is nothing to predict"}
    ranks = points[["times_noise", "gain_points"]].rank().to_numpy(dtype=float)
    drift, gain = (ranks - ranks.mean(axis=0)).T
    if not (drift.any() and gain.any()):
        return record | {"reason": "undefined: drift or gain is the same in all tasks"}
    return record | _spearman(drift, gain, seed) | {"reason": ""}


def _spearman(drift: NDArray[np.float64], gain: NDArray[np.float64], seed: int) -> dict[str, float]:
    """Spearman's correlation of centred ranks with its permutation p; permuting changes neither mean nor norm."""
    from scipy.stats import permutation_test

    def statistic(permuted: NDArray[np.float64], axis: int = -1) -> Any:
        return (permuted * gain).sum(axis=axis) / np.sqrt((permuted**2).sum(axis=axis) * (gain**2).sum(axis=axis))

    options: dict[str, Any] = {"permutation_type": "pairings", "n_resamples": NUM_PERMUTATIONS}
    test = permutation_test((drift,), statistic, vectorized=True, rng=np.random.default_rng(seed), **options)
    return {"spearman": statistic(drift), "p": float(test.pvalue)}
