"""Cards on drift: whether it is beyond noise, and offsets that two tables share."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.comparison.estimates import EQUIVALENCE_LEVEL
from toolkit.comparison.evidence import FOLDER, Evidence
from toolkit.comparison.parameter_noise import SHARED
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.verdicts import NAN, NOTHING, Card, Null, Span, Verdict, among, verdict

if TYPE_CHECKING:
    from toolkit.comparison.intervals import Interval

VERSION = 4
"""Of the estimators of drift cards; 1 had no margin, 2 had no q, judged two seeds and called drift beyond sign noise
supported, 3 called its multiple the same under shuffled labels everywhere and named one control of two."""
OFFSET_VERSION = 1

DRIFT_FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", "drift.csv", "seeds.csv"))
GAUGE_FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", "gauge.csv"))

NO_NOISE = "drift or its noise is undefined, as where all rows start at 0: there is no multiple of noise to judge"
RECORD_GAPS = ("recorded", "has no optimizer.json", "the optimizer log has", " ends at step ")
"""Words of the refusals that say what a run did not keep."""

TIMES = "times its noise"
SIGN_NOISE = "the same optimizer steps and gradient sizes with random signs, rows independent"
DESCRIBED = "not judged"
"""The verdict of a card that describes: its number cannot tell what the claim would be about."""
VERDICTS_ON_NOISE = ("equivalent", "supported", "under-powered", "not supported")
"""What the rules say of drift beside sign noise, of which none says that anything was learned."""
NOT_LEARNING = "a multiple of sign noise alone does not show that anything was learned"
HAS_CONTROL = "what real labels add to it stands under Real against shuffled labels in this report"
NO_CONTROL = (
    "shuffled labels, which can only be memorised, gave as large a multiple on SST-2 and TREC, though not on the "
    "built-in task order (reports/shuffled_labels). To know it here, repeat every seed on shuffled labels: with "
    "--shuffle-labels (another permutation per seed), the control for how far rows move, and with --shuffle-labels "
    "--label-seed 0 (one permutation for all), the control for whether seeds agree"
)
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


def drift_cards(data: ReportData) -> Iterable[Card]:
    """Per arm and embedding parameter that moved in any of its runs; q over all of them that have a p."""
    from toolkit.comparison.tests import benjamini_hochberg

    evidence = data.evidence
    claims = list(_claims(evidence))
    q = benjamini_hochberg([claim.p for claim in claims])
    num_claims = int(np.isfinite(q).sum())
    for claim, own in zip(claims, q, strict=True):
        yield _drift_card(evidence, claim, float(own), num_claims)


@dataclass(frozen=True)
class _Claim:
    """One parameter of one arm: what its runs say, before it is held against the other claims."""

    title: str
    label: str
    runs: list[str]
    lines: pd.DataFrame
    refusal: Verdict | None
    wide: "Interval"
    narrow: "Interval"
    null: Null
    p: float


def _claims(evidence: Evidence) -> Iterable[_Claim]:
    level = float(evidence.settings["level"])
    for title, label, runs in _arms(evidence):
        moved = evidence.drift[evidence.drift["run"].isin(runs) & evidence.drift["has_moved"].astype(bool)]
        for parameter in moved["parameter"].unique():
            lines = moved[moved["parameter"] == parameter]
            refusals = [text for text in lines["reason"] if text]
            ends = lines[["null_low", "null_high"]].to_numpy(dtype=float) / _noise(lines)[:, None]
            null = Null(SIGN_NOISE, *((NAN, NAN) if refusals else (float(ends[:, 0].min()), float(ends[:, 1].max()))))
            times = lines["times_noise"].to_numpy(dtype=float)
            wide, narrow = (over_seeds(times, at) for at in (level, EQUIVALENCE_LEVEL))
            refusal = refusal_of(refusals[0]) if refusals else None
            if refusal is None and np.isnan(times).all():
                refusal = Verdict("not measurable here", NO_NOISE)
            yield _Claim(title, label, runs, lines, refusal, wide, narrow, null, p_beyond(wide, null))


def p_beyond(interval: "Interval", null: Null) -> float:
    """p of the claim that a multiple of noise lies above 1 and the null: below .05 where its 95 % interval does.

    2·P(T > (mean - b)/√V), at most 1, b the larger of 1 and the null's upper end; NaN where any of these is unknown.
    """
    from scipy.stats import t

    bound = max(1.0, null.high)
    if math.isnan(null.high) or math.isnan(interval.df) or not interval.variance > 0:
        return NAN
    return min(1.0, float(2 * t.sf((interval.estimate - bound) / math.sqrt(interval.variance), interval.df)))


def refusal_of(text: str) -> Verdict:
    """A refusal of `measure_beyond_noise` as a verdict: a gauge, a gap in the records, or no measure for this run."""
    if text == SHARED:
        return Verdict("not identifiable", text)
    is_gap = any(words in text for words in RECORD_GAPS)
    return Verdict("not recorded" if is_gap else "not measurable here", text)


def _drift_card(evidence: Evidence, claim: _Claim, q: float, num_claims: int) -> Card:
    title, label, lines, wide, narrow = claim.title, claim.label, claim.lines, claim.wide, claim.narrow
    parameter, level = str(lines["parameter"].iloc[0]), float(evidence.settings["level"])
    alpha = float(evidence.settings["alpha"])
    num_seeds = int(lines["times_noise"].notna().sum())
    gap = _detectable(wide, alpha)
    judged = judge_drift(claim.refusal, wide, narrow, claim.null, gap, num_seeds, q, num_claims, alpha)
    if judged.name in VERDICTS_ON_NOISE:
        has_control = ((evidence.labels["group"] == title) & (evidence.labels["condition"] == label)).any()
        judged = Verdict(DESCRIBED, f"{judged.reason}; {NOT_LEARNING}: {HAS_CONTROL if has_control else NO_CONTROL}")
    beside = evidence.seeds
    mask = (beside["group"] == title) & (beside["condition"] == label) & (beside["parameter"] == parameter)
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
        null=claim.null,
        noise_floor=_mean(beside.loc[mask, "distance"]) / _mean(_noise(lines)),
        num_seeds=len(lines),
        num_items=None,
        detectable_gap=gap,
        q=q,
        is_discovery=None if math.isnan(q) else q < alpha,
        source=SOURCE,
        inputs=evidence.inputs(DRIFT_FILES, claim.runs),
        verdict=judged.name,
        reason=judged.reason,
    )


def judge_drift(
    refusal: Verdict | None,
    wide: "Interval",
    narrow: "Interval",
    null: Null,
    gap: float,
    num_seeds: int,
    q: float = NAN,
    num_claims: int = 1,
    alpha: float = 0.05,
) -> Verdict:
    """The verdict on a multiple of noise: what :func:`verdict` says of its excess over 1, in multiples again.

    ``wide`` and ``narrow``: the interval over seeds and that which decides equivalence; ``null``: the range of noise.
    """
    low, high, low90, high90 = (end - 1 for end in (wide.low, wide.high, narrow.low, narrow.high))
    # An interval wholly below noise shows no drift beyond it, and more seeds would not help: its gap does not matter.
    found = verdict(
        num_seeds=num_seeds,
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
    span, bound, inner = (f"{each.low:.3f} to {each.high:.3f}" for each in (wide, null, narrow))
    apart_from_1 = " and excludes 1" if low90 > 0 or high90 < 0 else ""
    reasons = {
        "equivalent": f"the 90 % interval {inner} lies within 1 ± {MARGIN:g} {TIMES}{apart_from_1}",
        "supported": f"the interval {span} {TIMES} lies above 1 and the null {bound}",
        "under-powered": f"the smallest detectable excess is {gap:.3g} {TIMES}, above the margin of {MARGIN:g}",
        "not supported": f"the interval {span} {TIMES} does not lie above 1 and the null {bound}",
    }
    if found.name not in reasons or np.isnan(wide.low):
        return found
    return among(Verdict(found.name, reasons[found.name]), q, num_claims, alpha)


def offset_cards(data: ReportData) -> Iterable[Card]:
    """Per arm whose tables moved: the share of their squared drift that offsets between them explain."""
    evidence, level = data.evidence, data.settings.level
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
    from toolkit.comparison.intervals import seeds_interval

    return seeds_interval(values[~np.isnan(values)], level)


def _detectable(interval: "Interval", alpha: float) -> float:
    from toolkit.comparison.intervals import detectable_gap

    return detectable_gap(interval, alpha=alpha)


def _arms(evidence: Evidence) -> list[tuple[str, str, list[str]]]:
    return [(group.title, arm.label, arm.names) for group in evidence.groups for arm in group.arms]


def _noise(lines: pd.DataFrame) -> NDArray[np.float64]:
    """How far noise would have moved the rows of each run; NaN where it would not have."""
    null: NDArray[np.float64] = lines["null"].where(lines["null"] > 0).to_numpy(dtype=float)
    return null


def _mean(values: Any) -> float:
    defined = np.asarray(values, dtype=float)
    defined = defined[~np.isnan(defined)]
    return float(defined.mean()) if len(defined) else NAN
