"""The evidence of a report in, its cards on drift out: beyond noise, shared offsets, and what drift is worth."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.comparison.associations import associate_drift
from toolkit.analysis.comparison.card import NAN, Card, Null, Span
from toolkit.analysis.comparison.evidence import FOLDER, Evidence
from toolkit.analysis.comparison.verdicts import verdict

VERSION = 1
"""Of the estimators of drift, offset and association cards."""

DRIFT_FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", "drift.csv", "seeds.csv"))
GAUGE_FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", "gauge.csv"))
JOINED_FILES = (f"{FOLDER}/joined.csv",)

TIMES = "times its noise"
SIGN_NOISE = "the same optimizer steps and gradient sizes with random signs"
NO_SIZES = "the sizes of its gradients were not recorded, so that what noise of that size would do is unknown"
OFFSET = (
    "an offset moved from one table to another changes no output: only the sum of the tables reaches the encoder, so "
    "that no data can say which of them it belongs to"
)


def drift_cards(evidence: Evidence) -> Iterable[Card]:
    """Per arm and embedding parameter that moved in any of its runs."""
    for title, label, runs in _arms(evidence):
        own = evidence.drift[evidence.drift["run"].isin(runs) & evidence.drift["has_moved"].astype(bool)]
        for parameter in own["parameter"].unique():
            yield _drift_card(evidence, title, label, runs, own[own["parameter"] == parameter])


def _drift_card(evidence: Evidence, title: str, label: str, runs: list[str], lines: pd.DataFrame) -> Card:
    parameter, level = str(lines["parameter"].iloc[0]), float(evidence.settings["level"])
    refusals = [text for text in lines["refusal"] if text]
    refusals += [] if lines["has_norms"].all() else [NO_SIZES]
    null = lines["null"].to_numpy(dtype=float)
    ratios = lines[["drift", "null_low", "null_high"]].to_numpy(dtype=float) / null[:, None]
    value, low, high = _mean_and_interval(ratios[:, 0], level)
    null_low, null_high = (NAN, NAN) if refusals else (float(ratios[:, 1].min()), float(ratios[:, 2].max()))
    judged = verdict(
        refusal=refusals[0] if refusals else None,
        low=low,
        high=high,
        low90=NAN,
        high90=NAN,
        margin=NAN,
        null_low=null_low,
        null_high=null_high,
        gap=NAN,
        side="above",
        unit=TIMES,
    )
    beside = evidence.seeds
    mask = (beside["group"] == title) & (beside["arm"] == label) & (beside["parameter"] == parameter)
    return Card(
        id=f"drift: {title} / {label} / {parameter}",
        claim=f"{parameter} moved further than noise would move it under {label}, {title}",
        kind="drift",
        estimator="drift of the rows that training showed, without their common offset; t interval over seeds",
        version=VERSION,
        unit=TIMES,
        value=value,
        interval=Span(low, high, level),
        equivalence=Span(),
        margin=NAN,
        null=Null(SIGN_NOISE, null_low, null_high),
        noise_floor=_mean(beside.loc[mask, "distance"]) / _mean(null),
        num_seeds=len(lines),
        num_items=None,
        detectable_gap=NAN,
        q=NAN,
        verdict=judged.name,
        reason=judged.reason,
        source="√Σ‖Δ_i - c‖² over the rows, c their mean change (0 for a LayerNorm vector), divided by the root mean "
        "square of the same under sign noise with replayed decay, run by run; null: its widest central 95 %; ours",
        inputs=evidence.inputs(DRIFT_FILES, runs),
    )


def offset_cards(evidence: Evidence) -> Iterable[Card]:
    """Per arm whose tables moved: the share of their squared drift that offsets between them explain."""
    level = float(evidence.settings["level"])
    for title, label, runs in _arms(evidence):
        lines = evidence.gauge[evidence.gauge["run"].isin(runs)]
        if not len(lines):
            continue
        value, low, high = _mean_and_interval(lines["gauge_share"].to_numpy(dtype=float), level)
        numbers: dict[str, Any] = dict.fromkeys(("low90", "high90", "margin", "gap"), NAN)
        judged = verdict(refusal=OFFSET, low=low, high=high, **numbers)
        yield Card(
            id=f"offset: {title} / {label}",
            claim=f"The offset that the tables share moved in one of them rather than another under {label}, {title}",
            kind="offset",
            estimator="gauge share: share of the tables' squared drift that offsets between them explain",
            version=VERSION,
            unit="1",
            value=value,
            interval=Span(low, high, level),
            equivalence=Span(),
            margin=NAN,
            null=Null("tables that moved without any common offset"),
            noise_floor=NAN,
            num_seeds=len(lines),
            num_items=None,
            detectable_gap=NAN,
            q=NAN,
            verdict=judged.name,
            reason=judged.reason,
            source="1 - (squared drift of n centred tables + ‖Δm‖²/n)/(that of the tables), weighted by use; ours",
            inputs=evidence.inputs(GAUGE_FILES, runs),
        )


def association_cards(evidence: Evidence) -> Iterable[Card]:
    """Across tasks, per model, arm and parameter: do tasks on which it moved further gain more from its moving?"""
    level = float(evidence.settings["level"])
    for line in associate_drift(evidence.joined).to_dict("records"):
        low, high = spearman_interval(float(line["spearman"]), int(line["num_tasks"]), level)
        numbers: dict[str, Any] = dict.fromkeys(("low90", "high90", "margin", "gap"), NAN)
        judged = verdict(refusal=line["note"] or None, low=low, high=high, unit="", **numbers)
        own = evidence.joined
        mask = (own["model"] == line["model"]) & (own["base"] == line["base"])
        which, where = line["parameter"], f"{line['base']}, {line['model']}"
        yield Card(
            id=f"association: {line['model']} / {line['base']} / {line['parameter']}",
            claim=f"Tasks on which {which} moved further gained more, or less, from drift under {where}",
            kind="association",
            estimator="Spearman rank correlation over tasks",
            version=VERSION,
            unit="1",
            value=float(line["spearman"]),
            interval=Span(low, high, level),
            equivalence=Span(),
            margin=NAN,
            null=Null("no association between tasks"),
            noise_floor=NAN,
            num_seeds=int(line["num_runs"]),
            num_items=int(line["num_tasks"]),
            detectable_gap=NAN,
            q=float(line["q"]),
            verdict=judged.name,
            reason=judged.reason,
            source="one point per task, the means over its seeds; tanh(atanh r ± z·√((1 + r²/2)/(n - 3))): "
            "Bonett & Wright 2000",
            inputs=evidence.inputs(JOINED_FILES, list(dict.fromkeys(own.loc[mask, "run"]))),
        )


def spearman_interval(rho: float, num_points: int, level: float) -> tuple[float, float]:
    """tanh(atanh r ± z·√((1 + r²/2)/(n - 3))): Bonett & Wright 2000; NaN under four points.

    A perfect order counts as one swap of neighbours short of it (ours): its own interval would have no width.
    """
    if math.isnan(rho) or num_points < 4:
        return NAN, NAN
    from scipy.stats import norm

    most = 1 - 12 / (num_points * (num_points**2 - 1))
    kept = min(max(rho, -most), most)
    half = float(norm.ppf((1 + level) / 2)) * math.sqrt((1 + kept**2 / 2) / (num_points - 3))
    return math.tanh(math.atanh(kept) - half), math.tanh(math.atanh(kept) + half)


def _arms(evidence: Evidence) -> list[tuple[str, str, list[str]]]:
    return [(group.title, arm.label, arm.names) for group in evidence.groups for arm in group.arms]


def _mean_and_interval(values: NDArray[np.float64], level: float) -> tuple[float, float, float]:
    """Mean over the seeds that have a value and its Student t interval; NaN ends with fewer than two."""
    from toolkit.analysis.comparison.intervals import seeds_interval

    defined = values[~np.isnan(values)]
    if len(defined) < 2:
        return _mean(defined), NAN, NAN
    interval = seeds_interval(defined, level)
    return interval.estimate, interval.low, interval.high


def _mean(values: Any) -> float:
    defined = np.asarray(values, dtype=float)
    defined = defined[~np.isnan(defined)]
    return float(defined.mean()) if len(defined) else NAN
