"""The evidence of a report in, its cards on drift out: whether it is beyond noise, and offsets that tables share."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.comparison.association_cards import NOTHING
from toolkit.analysis.comparison.association_cards import association_cards as association_cards
from toolkit.analysis.comparison.association_cards import spearman_interval as spearman_interval
from toolkit.analysis.comparison.card import NAN, Card, Null, Span
from toolkit.analysis.comparison.estimates import EQUIVALENCE_LEVEL
from toolkit.analysis.comparison.evidence import FOLDER, Evidence
from toolkit.analysis.comparison.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from toolkit.analysis.comparison.intervals import Interval

VERSION = 3
"""Of the estimators of drift cards; 1 had no margin, 2 called drift beyond sign noise supported."""
OFFSET_VERSION = 1

DRIFT_FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", "drift.csv", "seeds.csv"))
GAUGE_FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", "gauge.csv"))

TIMES = "times its noise"
SIGN_NOISE = "the same optimizer steps and gradient sizes with random signs, rows independent"
DESCRIBED = "not identifiable"
"""The verdict of a card that describes: its number cannot tell what the claim would be about."""
SAME_WHEN_SHUFFLED = (
    "shuffled labels, which can only be memorised, give the same multiple, so that it does not show that anything was "
    "learned"
)
NO_CONTROL = f"{SAME_WHEN_SHUFFLED}: that takes the same runs with --shuffle-labels --label-seed 0, for each seed"
MARGIN = 0.05
"""Drift of .95 to 1.05 times its noise is called equivalent to noise: the choice of the null alone moves the ratio by 2
to 4 % (parameter_noise.py)."""

SOURCE = (
    "√Σ‖Δ_i - c‖² over the rows, c their mean change (0 for a LayerNorm vector), divided by the root mean square of "
    "the same under sign noise with replayed decay, run by run; null: its widest central 95 %. Rows are taken as "
    "independent: gradients that rows share lower the ratio, so that a value of 1 or less does not show that all is "
    "noise; ours"
)
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
    null = lines["null"].to_numpy(dtype=float)
    ends = lines[["null_low", "null_high"]].to_numpy(dtype=float) / null[:, None]
    null_low, null_high = (NAN, NAN) if refusals else (float(ends[:, 0].min()), float(ends[:, 1].max()))
    times = lines["times_noise"].to_numpy(dtype=float)
    wide, narrow = (over_seeds(times, at) for at in (level, EQUIVALENCE_LEVEL))
    gap = _detectable(wide, float(evidence.settings["alpha"]))
    beyond = Null(SIGN_NOISE, null_low, null_high)
    judged = judge_drift(refusals[0] if refusals else None, wide, narrow, beyond, gap)
    if not refusals:
        has_control = ((evidence.labels["group"] == title) & (evidence.labels["arm"] == label)).any()
        judged = Verdict(DESCRIBED, f"{SAME_WHEN_SHUFFLED if has_control else NO_CONTROL}; {judged.reason}")
    beside = evidence.seeds
    mask = (beside["group"] == title) & (beside["arm"] == label) & (beside["parameter"] == parameter)
    return Card(
        id=f"drift: {title} / {label} / {parameter}",
        claim=f"{parameter} moved further than random gradient signs would move it under {label}, {title}",
        kind="drift",
        estimator="drift of the rows that training showed, without their common offset; t interval over seeds",
        version=VERSION,
        unit=TIMES,
        value=wide.estimate,
        interval=Span(wide.low, wide.high, level),
        equivalence=Span(narrow.low, narrow.high, EQUIVALENCE_LEVEL),
        margin=MARGIN,
        null=beyond,
        noise_floor=_mean(beside.loc[mask, "distance"]) / _mean(null),
        num_seeds=len(lines),
        num_items=None,
        detectable_gap=gap,
        q=NAN,
        source=SOURCE,
        inputs=evidence.inputs(DRIFT_FILES, runs),
        verdict=judged.name,
        reason=judged.reason,
    )


def judge_drift(refusal: str | None, wide: "Interval", narrow: "Interval", null: Null, gap: float) -> Verdict:
    """The verdict on a multiple of noise: what :func:`verdict` says of its excess over 1, in multiples again.

    ``wide`` and ``narrow``: the interval over seeds and that which decides equivalence; ``null``: the range of noise.
    """
    low, high, low90, high90 = (end - 1 for end in (wide.low, wide.high, narrow.low, narrow.high))
    # An interval wholly below noise shows no drift beyond it, and more seeds would not help: its gap does not matter.
    found = verdict(
        refusal=refusal,
        low=low,
        high=high,
        low90=low90,
        high90=high90,
        margin=MARGIN,
        null_low=null.low - 1,
        null_high=null.high - 1,
        gap=0.0 if high < 0 else gap,
        side="above",
        unit=TIMES,
    )
    is_missing = np.isnan(wide.low)
    span, bound, inner = (f"{each.low:.3f} to {each.high:.3f}" for each in (wide, null, narrow))
    reasons = {
        "equivalent": f"the 90 % interval {inner} lies within 1 ± {MARGIN:g} {TIMES}",
        "supported": f"the interval {span} {TIMES} lies above 1 and the null {bound}",
        "under-powered": f"the smallest detectable excess is {gap:.3g} {TIMES}, above the margin of {MARGIN:g}",
        "not supported": f"the interval {span} {TIMES} does not lie above 1 and the null {bound}",
    }
    is_as_found = found.name == "not identifiable" or is_missing
    return Verdict(found.name, found.reason if is_as_found else reasons[found.name])


def offset_cards(evidence: Evidence) -> Iterable[Card]:
    """Per arm whose tables moved: the share of their squared drift that offsets between them explain."""
    level = float(evidence.settings["level"])
    for title, label, runs in _arms(evidence):
        lines = evidence.gauge[evidence.gauge["run"].isin(runs)]
        if not len(lines):
            continue
        found = over_seeds(lines["gauge_share"].to_numpy(dtype=float), level)
        yield Card(
            **NOTHING,
            id=f"offset: {title} / {label}",
            claim=f"The offset that the tables share moved in one of them rather than another under {label}, {title}",
            kind="offset",
            estimator="gauge share: share of the tables' squared drift that offsets between them explain",
            version=OFFSET_VERSION,
            unit="1",
            value=found.estimate,
            interval=Span(found.low, found.high, level),
            null=Null("tables that moved without any common offset"),
            num_seeds=len(lines),
            num_items=None,
            q=NAN,
            source="1 - (squared drift of n centred tables + ‖Δm‖²/n)/(that of the tables), weighted by use; ours",
            inputs=evidence.inputs(GAUGE_FILES, runs),
            verdict="not identifiable",
            reason=OFFSET,
        )


def over_seeds(values: NDArray[np.float64], level: float) -> "Interval":
    """The mean over the seeds that have a value with Student's t interval; its ends NaN with fewer than two."""
    from toolkit.analysis.comparison.intervals import seeds_interval

    return seeds_interval(values[~np.isnan(values)], level)


def _detectable(interval: "Interval", alpha: float) -> float:
    from toolkit.analysis.comparison.detectable import detectable_gap

    return detectable_gap(interval, alpha=alpha)


def _arms(evidence: Evidence) -> list[tuple[str, str, list[str]]]:
    return [(group.title, arm.label, arm.names) for group in evidence.groups for arm in group.arms]


def _mean(values: Any) -> float:
    defined = np.asarray(values, dtype=float)
    defined = defined[~np.isnan(defined)]
    return float(defined.mean()) if len(defined) else NAN
