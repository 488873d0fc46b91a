"""Weight drift by layer over seeds, and whether it depends on how high a layer stands."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.measures import Array
from toolkit.comparison.conditions import Group
from toolkit.comparison.intervals import Interval, seeds_interval
from toolkit.comparison.multiplicity import benjamini_hochberg
from toolkit.questions.layers.weights import FACTS, drift_of_layers, drift_of_parameters
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.backbones import BackbonePair, open_backbones

KEY = ["group", "condition", "is_shuffled"]
"""Columns of every table, which name a condition."""
LEAST_SEEDS = 3
"""Of a verdict."""
MARGIN = 1.1
"""Layers that are nowhere further than this factor from their mean are called flat."""
LEVEL = 0.05
"""Of q."""

FLAT, BOTTOM, TOP = "flat", "more at the bottom", "more at the top"
UNDECIDED, NOT_JUDGED, NOT_APPLICABLE = "not decided", "not judged", "not applicable"

RANDOM_START = "started from random weights, which no checkpoint holds"


@dataclass(frozen=True, eq=False)
class ConditionWeights:
    """Weight drift of the runs of one condition, or of one pair of checkpoints."""

    group: str
    condition: str
    is_shuffled: bool
    tables: Mapping[int, pd.DataFrame]
    """Seed to the table by parameter; empty where ``note`` says why nothing could be compared."""
    note: str = ""

    @property
    def key(self) -> dict[str, Any]:
        """Its cells of KEY."""
        return {"group": self.group, "condition": self.condition, "is_shuffled": self.is_shuffled}


def weights_of_conditions(groups: Sequence[Group]) -> list[ConditionWeights]:
    """Weight drift of every run of every condition, each from what it started from (:func:`measure_weight_drift`)."""
    weights = []
    for group in groups:
        for condition in group.conditions:
            config = condition.runs[0].run.config
            tables = {}
            for reported in condition.runs if config.init != "random" else ():
                tables[reported.config.seed] = drift_of_parameters(open_backbones(reported.run))
            note = "" if tables else RANDOM_START
            weights.append(ConditionWeights(group.title, condition.label, config.shuffle_labels, tables, note))
    return weights


def weights_of_pair(pair: BackbonePair) -> ConditionWeights:
    """The same of two checkpoints, which stand for one seed."""
    title = f"{pair.before.name} and {pair.after.name}"
    return ConditionWeights(title, "after with before", False, {0: drift_of_parameters(pair)})


def weight_tables(conditions: Sequence[ConditionWeights]) -> dict[str, pd.DataFrame]:
    """The tables ``weight_drift`` (a line per run and parameter), ``weight_means`` and ``weight_trends``."""
    tables = [
        table.assign(**condition.key, seed=seed)[[*KEY, "seed", *(name for name in table if name not in FACTS)]]
        for condition in conditions
        for seed, table in condition.tables.items()
    ]
    drift = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=[*KEY, "seed"])
    return {
        "weight_drift": drift,
        "weight_means": average_weights(conditions),
        "weight_trends": find_trends(conditions),
    }


@with_columns
def average_weights(conditions: Sequence[ConditionWeights]) -> pd.DataFrame:
    """Means over the seeds of each condition by layer; the interval is of relative drift over new seeds."""
    records = []
    for condition in conditions:
        tables = [drift_of_layers(table) for table in condition.tables.values()]
        for layer_index, layer in enumerate(tables[0].to_dict("records") if tables else ()):
            over_seeds = pd.DataFrame([table.iloc[layer_index] for table in tables])
            interval = _interval(over_seeds["relative_drift"].to_numpy(np.float64))
            is_identical = bool(over_seeds["is_identical"].all())
            # That one seed has no interval is said once, by the trend.
            is_explained = len(over_seeds) == 1 or is_identical or layer["note"]
            same_for_all = {name: layer[name] for name in ("layer", "component", "num_values", "note")}
            means = {name: over_seeds[name].mean() for name in ("norm_before", "norm_change", "median_angle_degrees")}
            cells = {
                "relative_drift": over_seeds["relative_drift"].mean(skipna=False),
                "low": interval.low,
                "high": interval.high,
                "is_identical": is_identical,
                "num_seeds": len(over_seeds),
                "reason": layer["reason"] or ("" if is_explained else interval.note),
            }
            records.append(condition.key | same_for_all | means | cells)
    return pd.DataFrame(records, columns=columns_of("average_weights")).astype({"layer": "Int64"})


@with_columns
def find_trends(conditions: Sequence[ConditionWeights]) -> pd.DataFrame:
    """For each condition whether its layers' weights moved equally far, or more at the bottom or the top.

    ``most_layer``, ``least_layer``: description, chosen by looking.
    ``top_to_bottom``: relative drift of the top third of the layers over that of the bottom third (geometric means; of
    fewer than six layers the last over the first), with its 95 % interval and p over seeds (Student's t of the
    logarithms; null: 1), q over all conditions (Benjamini and Hochberg). Layers that did not move in some run are left
    out.

    ``trend``, the first that holds: not applicable (fewer than two layers moved), not judged (fewer than three
    seeds), flat (for every layer the 90 % interval of its drift over the mean of the layers lies within a factor of
    MARGIN: two one-sided tests at 5 % each), more at the bottom or more at the top (q < .05), not decided.
    """
    trends = [_trend_record(condition) for condition in conditions]
    for trend, q in zip(trends, benjamini_hochberg([trend["p"] for trend in trends]), strict=True):
        trend["q"] = q
        if trend["trend"] == UNDECIDED and q < LEVEL:
            trend["trend"] = TOP if trend["top_to_bottom"] > 1 else BOTTOM
    return pd.DataFrame(trends, columns=columns_of("find_trends")).astype(
        {"most_layer": "Int64", "least_layer": "Int64"}
    )


def _trend_record(condition: ConditionWeights) -> dict[str, Any]:
    """The record of one condition in :func:`find_trends`, without q; ``trend`` is UNDECIDED until q is known."""
    record = condition.key | dict.fromkeys(("most_layer", "least_layer"), pd.NA)
    record |= dict.fromkeys(("top_to_bottom", "low", "high", "p"), math.nan)
    record |= {"num_seeds": len(condition.tables), "trend": NOT_APPLICABLE, "reason": condition.note}
    if not condition.tables:
        return record
    by_seed = {}
    for seed, table in condition.tables.items():
        layers = drift_of_layers(table)  # what was 0 before, so that nothing can be said, is left out
        is_layer = layers["component"].str.startswith("layers.") & layers["relative_drift"].notna()
        by_seed[seed] = layers[is_layer].set_index("layer")["relative_drift"]
    drift = pd.DataFrame(by_seed)
    is_moved = (drift > 0).all(axis=1)
    moved_drift, unmoved_layers = drift[is_moved], drift.index[~is_moved]
    notes = []
    if len(unmoved_layers):
        notes.append(f"left out, as they did not move in every run: layers {', '.join(map(str, unmoved_layers))}")
    if len(moved_drift) < 2:
        notes.append(f"{len(moved_drift)} of {len(drift)} layers moved: nothing to compare")
        return record | {"reason": "; ".join(notes)}
    means = moved_drift.mean(axis=1)
    log_drift = np.log(moved_drift.to_numpy(np.float64).T)
    interval, p = top_to_bottom(log_drift)
    record |= {
        "most_layer": int(means.idxmax()),
        "least_layer": int(means.idxmin()),
        "top_to_bottom": math.exp(interval.estimate),
        "low": math.exp(interval.low),
        "high": math.exp(interval.high),
        "p": p,
    }
    if len(log_drift) < LEAST_SEEDS:
        # Not judged, so that it takes no part in the family of tests either.
        too_few = f"{len(log_drift)} of the {LEAST_SEEDS} seeds that a verdict needs: description only"
        return record | {"p": math.nan, "trend": NOT_JUDGED, "reason": "; ".join([*notes, too_few])}
    trend = FLAT if is_flat(log_drift) else UNDECIDED
    return record | {"trend": trend, "reason": "; ".join(filter(None, [*notes, interval.note]))}


def top_to_bottom(logs: Array) -> tuple[Interval, float]:
    """Mean over the top third of the layers less that over the bottom third, with interval and p over seeds.

    ``logs``: float64 (seeds, layers), logarithms of relative drift from the bottom up.
    """
    from scipy.stats import t

    third = max(1, logs.shape[1] // 3)
    interval = _interval(logs[:, -third:].mean(axis=1) - logs[:, :third].mean(axis=1), size=1.0)
    if math.isnan(interval.variance):
        return interval, math.nan
    return interval, float(2 * t.sf(abs(interval.estimate) / math.sqrt(interval.variance), interval.df))


def is_flat(logs: Array) -> bool:
    """Whether every layer is shown to be within a factor of MARGIN of the mean of the layers; ``logs`` as above.

    Every layer must pass two one-sided tests at 5 % each, so that the level holds for all together (intersection-union,
    Berger 1982).
    """
    logs_over_mean = logs - logs.mean(axis=1, keepdims=True)
    intervals = [_interval(logs_of_layer, 0.9, size=1.0) for logs_of_layer in logs_over_mean.T]
    return all(-math.log(MARGIN) < interval.low and interval.high < math.log(MARGIN) for interval in intervals)


def _interval(values: Array, level: float = 0.95, size: float | None = None) -> Interval:
    """The interval of a mean over seeds, with a note only where there is none; NaN where a value is undefined."""
    if np.isnan(values).any():
        return Interval(math.nan, math.nan, math.nan, math.nan, math.nan, level)
    interval = seeds_interval(values, level, size=size)
    return interval if math.isnan(interval.low) else replace(interval, note="")
