"""The cards of a report: one per claim, each with the verdict that its numbers allow."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.drift import ALL_ROWS, WHOLE
from toolkit.analysis.strata import ADDED, ADDED_UNSEEN
from toolkit.comparison.compare import EQUIVALENCE_LEVEL, judge_together
from toolkit.comparison.conditions import (
    NOT_COMPARED,
    Condition,
    ConditionPair,
    Group,
    differing_settings,
    of_largest_size,
)
from toolkit.comparison.drift_and_score import LEAST_TASKS
from toolkit.comparison.evidence import FOLDER, JSONS, PREDICTIONS, Evidence, making, read_evidence
from toolkit.comparison.intervals import Interval, defined_mean, detectable_gap, is_constant, seeds_interval
from toolkit.comparison.multiplicity import benjamini_hochberg
from toolkit.comparison.report_data import ReportData, at_last_epoch
from toolkit.comparison.shuffled_labels import (
    ADDED_ROWS,
    MEASURES,
    ONE,
    PER_SEED,
    Measure,
    contrast_medians,
    controls_of,
    judge,
)
from toolkit.comparison.verdicts import NAN, VERDICTS, Card, Null, Span, Verdict, among, verdict
from toolkit.config import MLM
from toolkit.families import OLD_ROWS

CONTROLS: Mapping[str, tuple[str, ...]] = {"agreement": (ONE, PER_SEED), "median_drift": (PER_SEED, ONE)}
"""Measure to the permutations of the labels that it is held against, the one that can decide it first
(shuffled_labels.py)."""

FILES: Mapping[str, tuple[str, ...]] = {
    "score": (PREDICTIONS, "scores.csv"),
    "forbid": (PREDICTIONS, "scores.csv"),
    "labels": ("labels.csv",),
    "drift": ("drift.csv", "seeds.csv"),
    "offset": ("gauge.csv",),
    "tokens": ("strata.parquet",),
    "association": (PREDICTIONS, "scores.csv", "drift.csv"),
}
"""Kind of card to the tables of the evidence that it rests on."""


def _card(data: ReportData, kind: str, runs: Iterable[str], num_claims: int | None = None, **values: Any) -> Card:
    """A card of some ``kind`` on some runs, by the report's settings; its q, if it has one, is over ``num_claims``."""
    q = values.get("q", NAN)
    files = [f"{FOLDER}/{name}" for name in (*JSONS, *FILES[kind])]
    return Card(
        kind=kind,
        num_claims=None if math.isnan(q) else num_claims,
        is_discovery=None if math.isnan(q) else q < data.settings.alpha,
        inputs=data.evidence.inputs(files, runs),
        **values,
    )


def _verdict_fields(judged: Verdict) -> dict[str, str]:
    return {"verdict": judged.name, "reason": judged.reason}


LABEL_SOURCES = {
    ONE: "over seeds, on these items, for the one permutation that all of them learned",
    PER_SEED: "on these items, with an interval that a new permutation would lie in",
}


def label_cards(data: ReportData) -> Iterable[Card]:
    """Per condition with a control, and embedding parameter: agreement of seeds first, then how far rows moved."""
    num_claims = int(data.labels["q"].notna().sum())
    runs = data.evidence.runs
    for record in choose_controls(data.labels).to_dict("records"):
        conditions = [record["condition"], record["control"]]
        is_compared = (runs["group"] == record["group"]) & runs["condition"].isin(conditions)
        measure = MEASURES[str(record["measure"])]
        yield _contrast_card(data, "labels", measure, record, runs.loc[is_compared, "run"], num_claims)


def _contrast_card(
    data: ReportData, kind: str, measure: Measure, record: Mapping[Any, Any], runs: Iterable[str], num_claims: int
) -> Card:
    """The card of what real labels add to a measure: of a judged record of :func:`toolkit.compare_with_shuffled`.

    Or of one with the same keys, as of the rows of added tokens.
    """
    pairing = "paired by seed" if record["is_paired"] else "Welch's, unpaired"
    return _card(
        data,
        kind,
        runs,
        num_claims,
        group=str(record["group"]),
        subject=(str(record["condition"]), str(record["parameter"]), str(record["measure"])),
        claim=f"{measure.claim.format(parameter=record['parameter'])} under {record['condition']}, {record['group']}",
        estimator=f"{record['measure']}: {measure.how}",
        unit=measure.unit,
        value=float(record["value"]),
        interval=Span(float(record["low"]), float(record["high"]), data.settings.level),
        equivalence=Span(float(record["low90"]), float(record["high90"]), EQUIVALENCE_LEVEL),
        margin=float(record["margin"]),
        null=Null(f"the same runs on shuffled labels: {record['control']}"),
        num_seeds=min(int(record["num_seeds"]), int(record["num_seeds_shuffled"])),
        detectable_gap=float(record["detectable_gap"]),
        q=float(record["q"]),
        source="real labels minus shuffled ones (of ratios: how much further), "
        f"{LABEL_SOURCES[str(record['permutation'])]}; {pairing}; pairs of seeds by the jackknife (Efron & Stein "
        "1981); ours",
        verdict=str(record["verdict"]),
        reason=str(record["reason"]),
    )


def choose_controls(table: pd.DataFrame) -> pd.DataFrame:
    """The records that get a card: per condition, parameter and measure the one against its best control (CONTROLS)."""
    chosen = []
    for _, contrasts in table.groupby(["group", "condition", "parameter"], sort=False):
        for measure, permutations in CONTROLS.items():
            of_measure = contrasts[contrasts["measure"] == measure]
            # The permutation that can decide it comes first in CONTROLS; the sort keeps the order of equals.
            ranks = of_measure["permutation"].map(permutations.index)
            chosen.append(of_measure.loc[ranks.sort_values(kind="stable").index[:1]])
    return pd.concat(chosen) if chosen else table


def association_cards(data: ReportData) -> Iterable[Card]:
    """One card per model, condition and parameter: do tasks on which it moved further gain more from its moving?

    The verdict is that of the permutation test, by its q at the report's alpha; the interval is description.
    """
    settings, joined = data.settings, data.joined
    num_claims = int(data.association["p"].notna().sum())
    for record in data.association.to_dict("records"):
        runs = joined.loc[(joined["model"] == record["model"]) & (joined["base"] == record["base"]), "run"]
        rho, q, num_tasks = float(record["spearman"]), float(record["q"]), int(record["num_tasks"])
        yield _card(
            data,
            "association",
            dict.fromkeys(runs),
            num_claims,
            subject=(str(record["model"]), str(record["base"]), str(record["parameter"])),
            claim=f"Tasks on which {record['parameter']} moved further beyond noise gained more, or less, from drift "
            f"under {record['base']}, {record['model']}",
            estimator="Spearman rank correlation over tasks of drift, as a multiple of its noise, with gain",
            unit="1",
            value=rho,
            interval=Span(*spearman_interval(rho, num_tasks, settings.level), settings.level),
            null=Null("no association between tasks: every order of the tasks is as likely"),
            num_seeds=int(record["num_runs"]),
            num_items=num_tasks,
            q=q,
            source="one point per task, the means over its seeds; verdict by q of the two-sided permutation test "
            "(exact up to eight tasks); the interval tanh(atanh r ± z·√((1 + r²/2)/(n - 3))) is description: Bonett & "
            "Wright 2000",
            **_verdict_fields(
                judge_association(str(record["reason"]), float(record["p"]), settings.alpha, q, num_claims, num_tasks)
            ),
        )


def judge_association(
    refusal: str, p: float, alpha: float, q: float = math.nan, num_claims: int = 1, num_tasks: int = LEAST_TASKS
) -> Verdict:
    """Refused, supported where the permutation p and its ``q`` are below ``alpha``, or not supported.

    Too few tasks make the claim not applicable; any other refusal says that it cannot be measured on these tasks.
    """
    if refusal or math.isnan(p):
        name = "not applicable" if num_tasks < LEAST_TASKS else "not measurable here"
        return Verdict(name, refusal or "the permutation test gave no p")
    if p < alpha:
        return among(Verdict("supported", f"the permutation p of {p:.3g} is below {alpha:g}"), q, num_claims, alpha)
    return Verdict("not supported", f"the permutation p of {p:.3g} is not below {alpha:g}")


def spearman_interval(rho: float, num_points: int, level: float) -> tuple[float, float]:
    """tanh(atanh r ± z·√((1 + r²/2)/(n - 3))): Bonett & Wright 2000; NaN under four points.

    A perfect order counts as one swap of neighbours short of it (ours): its own interval would have no width.
    """
    if math.isnan(rho) or num_points < 4:
        return NAN, NAN
    from scipy.stats import norm

    largest_rho = 1 - 12 / (num_points * (num_points**2 - 1))
    clipped_rho = min(max(rho, -largest_rho), largest_rho)
    half_width = float(norm.ppf((1 + level) / 2)) * math.sqrt((1 + clipped_rho**2 / 2) / (num_points - 3))
    return math.tanh(math.atanh(clipped_rho) - half_width), math.tanh(math.atanh(clipped_rho) + half_width)


TWO_WAY = "two-way interval over seeds and items"
CLUSTERED = "two-way interval over seeds and clusters of items"
OVER_SEEDS = "t interval over seeds, on these items"
ONE_FAMILY = "q: Benjamini-Hochberg over all compared pairs of the report"
SHARED_SPREAD = "p by a seed variance that all compared pairs of one score share (Ignatiadis & Sen 2023, changed)"
LINEAR = "by the influence of each item on the score (Hampel 1974): "
SOURCES = {
    TWO_WAY: "mean paired difference, first minus second, ± t·√V, V = max(MS_seed + MS_item - MS_res, "
    "MS_seed)/(KN); ours; for equivalence not below Clopper and Pearson's bound for as many items; "
    f"{SHARED_SPREAD}; {ONE_FAMILY}",
    CLUSTERED: "mean paired difference, first minus second, ± t·√V, V = max(MS_seed + MS_cluster - MS_res, "
    f"MS_seed)/(KC) of C clusters' linearised sums (Cochran 1977); ours; {SHARED_SPREAD}; {ONE_FAMILY}",
    OVER_SEEDS: f"mean paired difference, first minus second, ± t·s/√K over K seeds; {ONE_FAMILY}",
}


def make_cards(source: ReportData | Evidence | str | Path) -> list[Card]:
    """Every card of a report from its evidence alone: the same evidence gives the same cards.

    Kinds, in order: *score*, per pair of conditions, task and split: the two score differently (two-sided; which is
    higher is in the sign of the value, first minus second); *forbid*, per task on the reported split: free and frozen
    embeddings score differently, so that "equivalent" means that forbidding the drift costs nothing; *labels*, per
    condition that was also run on shuffled labels and embedding parameter: seeds moved it more alike, and it moved
    further, than there; *drift*, per condition and embedding parameter that moved: how many times further than random
    gradient signs would move it, which is description; *offset*, per condition: what the tables share moved in one of
    them, which no data can tell; *tokens*, per condition that added tokens: rows of those that training showed moved,
    further than with shuffled labels (where it was run on them too), and so did rows that were there; *association*,
    per condition and parameter: tasks on which it moved further gained more, refused under six tasks. What was frozen
    has no card: its hashes prove it. ValueError when the evidence cannot be read.
    """
    if isinstance(source, str | Path):
        with making(source):
            return make_cards(read_evidence(source))
    data = source if isinstance(source, ReportData) else ReportData(source)
    return [card for make in KINDS for card in make(data)]


def score_cards(data: ReportData) -> Iterable[Card]:
    """One card per record of a headline score in :func:`toolkit.compare`."""
    conditions = {(group.title, condition.label): condition for group in data.groups for condition in group.conditions}
    headlines = data.comparison[data.comparison["is_headline"].astype(bool)]
    num_claims = int(headlines["q"].notna().sum())
    for record in headlines.to_dict("records"):
        compared = [conditions[record["group"], record[side]] for side in ("first", "second")]
        claim = f"{record['first']} and {record['second']} score differently ({record['score']}) on {record['split']}"
        yield _difference_card(record, "score", f"{claim}, {record['group']}", compared, data, num_claims)


def forbid_cards(data: ReportData) -> Iterable[Card]:
    """Full fine-tuning against frozen embeddings on the reported split, one card per task and size that has both.

    With the q of the line of the comparison on the same two conditions, either way round; a pair that was not to be
    compared has the q that it would have had in it.
    """
    headlines = data.comparison[data.comparison["is_headline"].astype(bool)]
    for group in data.groups:
        for pair in _forbidding_pairs(group):
            labels = [pair.first.label, pair.second.label]
            is_of_group = (headlines["group"] == group.title) & headlines["is_reported_split"].astype(bool)
            is_of_pair = is_of_group & headlines["first"].isin(labels) & headlines["second"].isin(labels)
            known_q = headlines.loc[is_of_pair, "q"]
            for record in data.lines_of(pair):
                if not (record["is_headline"] and record["is_reported_split"]):
                    continue
                record = {"difference_points": NAN, "p": NAN, "reason": ""} | record | {"group": group.title}
                family = headlines
                if known_q.empty:  # a pair that was not to be compared, as one more of the family
                    line = pd.DataFrame([record], columns=headlines.columns)
                    family = pd.concat([headlines, line.dropna(axis="columns", how="all")])
                family = judge_together(family.reset_index(drop=True), data.settings.alpha)
                q = float(family["q"].iloc[-1] if known_q.empty else known_q.iloc[0])
                num_claims = int(family["p"].count())
                verdict_alone = Verdict(str(record["verdict"]), str(record["reason"]))
                judged = among(verdict_alone, q, num_claims, data.settings.alpha)
                claim = (
                    f"With the embeddings free and forbidden to drift the scores differ ({record['score']}) on "
                    f"{record['split']}, {group.title} ({pair.first.label} against {pair.second.label})"
                )
                judged_record = record | {"q": q} | _verdict_fields(judged)
                yield _difference_card(judged_record, "forbid", claim, [pair.first, pair.second], data, num_claims)


def _forbidding_pairs(group: Group) -> list[ConditionPair]:
    """Pairs of a condition with free embeddings and one with frozen ones that differ in the fewest settings."""
    frozen = []
    for condition in group.conditions:
        run = condition.runs[0]
        is_plain = run.setting("init") in (None, "checkpoint") and not run.setting("head_epochs")
        if run.regime == "embeddings" and is_plain:
            frozen.append(condition)
    pairs = [
        ConditionPair(free_condition, frozen_condition)
        for free_condition in group.conditions
        for frozen_condition in frozen
        if free_condition.is_full and free_condition.size == frozen_condition.size
    ]
    num_differing = [len(differing_settings(pair.first, pair.second)) for pair in pairs]
    # Of several partners a condition is compared with those that differ from it in the fewest settings.
    fewest_by_condition: dict[Condition, int] = {}
    for pair, num_settings in zip(pairs, num_differing, strict=True):
        for member in (pair.first, pair.second):
            fewest_by_condition[member] = min(num_settings, fewest_by_condition.get(member, num_settings))
    return [
        pair
        for pair, num_settings in zip(pairs, num_differing, strict=True)
        if num_settings == fewest_by_condition[pair.first] == fewest_by_condition[pair.second]
    ]


def _difference_card(
    record: dict[str, Any], kind: str, claim: str, conditions: Sequence[Condition], data: ReportData, num_claims: int
) -> Card:
    """The card of one record of a comparison; a difference that could not be worked out is refused."""

    def points(name: str) -> float:
        value = record.get(name)
        return NAN if value is None else float(value)

    settings = data.settings
    estimator, source = _estimator_of(record)
    judged = Verdict(str(record["verdict"]), str(record["reason"]))
    if math.isnan(points("difference_points")):  # what is missing is not what cannot be known
        reason = f"{NOT_COMPARED}: {record['note']}" if judged.name else judged.reason
        judged = Verdict("not measurable here", reason)
    return _card(
        data,
        kind,
        [name for condition in conditions for name in condition.names],
        num_claims,
        group=str(record["group"]),
        subject=(str(record["split"]), str(record["score"]), f"{record['first']} - {record['second']}"),
        claim=claim,
        estimator=estimator,
        unit="points",
        value=points("difference_points"),
        interval=Span(points("low_points"), points("high_points"), settings.level),
        equivalence=Span(points("low90_points"), points("high90_points"), EQUIVALENCE_LEVEL),
        margin=settings.margin_points,
        null=Null("no difference"),
        noise_floor=points("noise_floor_points"),
        num_seeds=int(record["num_seeds"]),
        num_items=None if np.isnan(record["num_items"]) else int(record["num_items"]),
        detectable_gap=points("detectable_gap_points"),
        q=points("q"),
        source=source,
        **_verdict_fields(judged),
    )


def _estimator_of(record: Mapping[str, Any]) -> tuple[str, str]:
    """How the difference of one record of a comparison was estimated, and the formula; by its ``num_units``."""
    num_units = record.get("num_units")
    if pd.isna(num_units):
        return OVER_SEEDS, SOURCES[OVER_SEEDS]
    estimator = CLUSTERED if num_units < record["num_items"] else TWO_WAY
    return estimator, SOURCES[estimator] if record["score"] == "accuracy" else f"{LINEAR}{SOURCES[estimator]}"


NO_NOISE = "drift or its noise is undefined, as where all rows start at 0: there is no multiple of noise to judge"
TIMES = "times its noise"
SIGN_NOISE = "the same optimizer steps and gradient sizes with random signs, rows independent"
DESCRIBED = "not judged"
"""The verdict of a card that describes: its number cannot tell what the claim would be about."""
VERDICTS_ON_NOISE = VERDICTS[VERDICTS.index("equivalent") :]
"""What the rules say of drift beside sign noise, of which none says that anything was learned."""
NOT_LEARNING = "a multiple of sign noise alone does not show that anything was learned"
HAS_CONTROL = "what real labels add to it stands under Real against shuffled labels in this report"
NO_CONTROL = (
    "shuffled labels, which can only be memorised, gave as large a multiple on SST-2 and TREC, though not on the "
    "built-in task order (reports/shuffled_labels). To know it here, repeat every seed on shuffled labels: with "
    "--shuffle-labels (another permutation per seed), the control for how far rows move, and with --shuffle-labels "
    "--label-seed 0 (one permutation for all), the control for whether seeds agree"
)
NO_LABELS = "masked tokens have no labels to shuffle, and no other control was run"
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
    """One card per condition and embedding parameter that moved in any run; q is over all that have a p."""
    claims = []
    for group in data.groups:
        for condition in group.conditions:
            drift = data.evidence.drift
            moved = drift[drift["run"].isin(condition.names) & drift["has_moved"].astype(bool)]
            for _, parameter_drift in moved.groupby("parameter", sort=False):
                wide = over_seeds(parameter_drift["times_noise"].to_numpy(dtype=float), data.settings.level)
                claims.append((group, condition, parameter_drift, wide, _range_of_noise(parameter_drift)))
    q = benjamini_hochberg([p_beyond(wide, null) for *_, wide, null in claims])
    num_claims = int(np.isfinite(q).sum())
    for claim, claim_q in zip(claims, q, strict=True):
        yield _drift_card(data, *claim, float(claim_q), num_claims)


def _range_of_noise(drift: pd.DataFrame) -> Null:
    """The widest range over runs of drift under sign noise, as a multiple of each run's noise; NaN where unknown."""
    if any(drift["reason"]):
        return Null(SIGN_NOISE, NAN, NAN)
    ends = drift[["null_low", "null_high"]].to_numpy(dtype=float) / _noise_by_run(drift)[:, None]
    return Null(SIGN_NOISE, float(ends[:, 0].min()), float(ends[:, 1].max()))


def _noise_by_run(drift: pd.DataFrame) -> NDArray[np.float64]:
    """How far noise would have moved the rows of each run; NaN where it would not have."""
    null: NDArray[np.float64] = drift["null"].where(drift["null"] > 0).to_numpy(dtype=float)
    return null


def _drift_card(
    data: ReportData,
    group: Group,
    condition: Condition,
    drift: pd.DataFrame,
    wide: Interval,
    null: Null,
    q: float,
    num_claims: int,
) -> Card:
    """The card of one condition's drift in one embedding parameter, as a multiple of sign noise.

    ``drift``: its record of each run; ``wide``: the interval over seeds at the report's level; ``null``: the range of
    noise.
    """
    settings = data.settings
    parameter = str(drift["parameter"].iloc[0])
    times_noise = drift["times_noise"].to_numpy(dtype=float)
    narrow = over_seeds(times_noise, EQUIVALENCE_LEVEL)
    gap = detectable_gap(wide, alpha=settings.alpha)
    num_seeds = int((~np.isnan(times_noise)).sum())
    refusal = _refusal_of(drift)
    judged = judge_drift(refusal, wide, narrow, null, gap, num_seeds, q, num_claims, settings.alpha)
    labels, seeds = (
        table[(table["group"] == group.title) & (table["condition"] == condition.label)]
        for table in (data.evidence.labels, data.evidence.seeds)
    )
    # A multiple of noise does not show learning: the card describes, and names the control that could show it.
    is_description = judged.name in VERDICTS_ON_NOISE
    has_labels = condition.runs[0].setting("objective") != MLM
    if is_description:
        control = (HAS_CONTROL if len(labels) else NO_CONTROL) if has_labels else NO_LABELS
        judged = Verdict(DESCRIBED, f"{judged.reason}; {NOT_LEARNING}: {control}")
    distances = seeds.loc[seeds["parameter"] == parameter, "distance"]
    return _card(
        data,
        "drift",
        condition.names,
        num_claims,
        group=group.title,
        subject=(condition.label, parameter),
        claim=f"{parameter} moved further than random gradient signs would move it under {condition.label}, "
        f"{group.title}",
        estimator=f"drift of the rows that training showed, without their common offset; {OVER_SEEDS}",
        unit=TIMES,
        value=wide.estimate,
        interval=Span(wide.low, wide.high, settings.level),
        equivalence=Span(narrow.low, narrow.high, EQUIVALENCE_LEVEL),
        margin=MARGIN,
        null=null,
        noise_floor=defined_mean(distances) / defined_mean(_noise_by_run(drift)),
        num_seeds=len(drift),
        detectable_gap=gap,
        q=q,
        source=SOURCE,
        needs_control=is_description and has_labels and not len(labels),
        **_verdict_fields(judged),
    )


def _refusal_of(drift: pd.DataFrame) -> Verdict | None:
    """Why the drift of a parameter is not judged beside noise: the first run's reason that there is; else None."""
    reasons = zip(drift["reason_kind"], drift["reason"], strict=True)
    refusals = [Verdict(str(kind), str(reason)) for kind, reason in reasons if kind]
    if drift["times_noise"].isna().all():
        refusals.append(Verdict("not measurable here", NO_NOISE))
    return refusals[0] if refusals else None


def p_beyond(interval: Interval, null: Null, least: float = 1.0) -> float:
    """p of a multiple's lying above 1 and the null, or below both: below .05 where its 95 % interval does.

    2·P(T > d/√V), at most 1, d the distance of the mean from the range of ``least`` and the null, negative within it;
    NaN where any is unknown.
    """
    from scipy.stats import t

    if math.isnan(null.high) or math.isnan(interval.df) or not interval.variance > 0:
        return NAN
    apart = max(interval.estimate - max(least, null.high), min(least, null.low) - interval.estimate)
    return min(1.0, float(2 * t.sf(apart / math.sqrt(interval.variance), interval.df)))


def judge_drift(
    refusal: Verdict | None,
    wide: Interval,
    narrow: Interval,
    null: Null,
    gap: float,
    num_seeds: int,
    q: float = NAN,
    num_claims: int = 1,
    alpha: float = 0.05,
) -> Verdict:
    """The verdict on a multiple of noise: that of :func:`verdict` on its excess over 1, with the numbers as multiples.

    ``wide`` and ``narrow``: the interval over seeds and that which decides equivalence; ``null``: the range of noise.
    """
    low, high, low90, high90 = (end - 1 for end in (wide.low, wide.high, narrow.low, narrow.high))
    # An interval wholly below 1 shows no drift beyond noise, and more seeds would not help: its gap does not matter.
    judged = verdict(
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
    wide_text, null_text, narrow_text = (f"{bounds.low:.3f} to {bounds.high:.3f}" for bounds in (wide, null, narrow))
    apart_from_1 = " and excludes 1" if low90 > 0 or high90 < 0 else ""
    reasons = {
        "equivalent": f"the 90 % interval {narrow_text} lies within 1 ± {MARGIN:g} {TIMES}{apart_from_1}",
        "supported": f"the interval {wide_text} {TIMES} lies above 1 and the null {null_text}",
        "the other way": f"the interval {wide_text} {TIMES} lies below 1 and the null {null_text}",
        "under-powered": f"the smallest detectable excess is {gap:.3g} {TIMES}, above the margin of {MARGIN:g}",
        "not supported": f"the interval {wide_text} {TIMES} does not lie above 1 and the null {null_text}",
    }
    if judged.name not in reasons or np.isnan(wide.low):
        return judged
    return among(Verdict(judged.name, reasons[judged.name]), q, num_claims, alpha)


def offset_cards(data: ReportData) -> Iterable[Card]:
    """One card per condition whose tables moved: the share of their squared drift explained by offsets between them."""
    gauge, level = data.evidence.gauge, data.settings.level
    conditions = [(group, condition) for group in data.groups for condition in group.conditions]
    for group, condition in conditions:
        gauge_shares = gauge[gauge["run"].isin(condition.names)]
        if not len(gauge_shares):
            continue
        share = over_seeds(gauge_shares["gauge_share"].to_numpy(dtype=float), level)
        yield _card(
            data,
            "offset",
            condition.names,
            group=group.title,
            subject=(condition.label,),
            claim=f"The offset that the tables share moved in one of them rather than another under {condition.label}, "
            f"{group.title}",
            estimator="gauge share: share of the tables' squared drift that offsets between them explain",
            unit="1",
            value=share.estimate,
            interval=Span(share.low, share.high, level),
            null=Null("tables that moved without any common offset"),
            num_seeds=len(gauge_shares),
            source="1 - (squared drift of n centred tables + ‖Δm‖²/n)/(that of the tables), weighted by use; ours",
            verdict="not identifiable",
            reason=OFFSET,
        )


STILL_SHARE = 0.001
"""Relative drift of a row up to which it counts as where it was: a thousandth of its length."""
MOVING_ONLY = "that they moved does not show that they learned anything: "
BESIDE_SHUFFLED = "whether real labels moved them further than shuffled ones stands beside it"
WITHOUT_SHUFFLED = "to know that, repeat every seed with --shuffle-labels"
BIT_IDENTICAL = (
    "in each of these seeds every old row is as it was, bit for bit: its manifest has the same sha256 of them before "
    "and after training"
)
ROWS_THAT_STAY = Null("rows that stay")
TOKEN_CLAIMS = {
    "new": "The rows of added tokens that training showed moved under {}",
    "old": "The row of the checkpoint that changed most moved under {}",
}


def token_cards(data: ReportData) -> Iterable[Card]:
    """Cards of each condition that added tokens: how far exposed new rows moved, and the farthest old one.

    Where the condition was also run with shuffled labels, a third card: whether real labels moved the new rows further.
    """
    if not len(strata := data.evidence.strata):
        return
    strata = at_last_epoch(strata[(strata["parameter"] == "word_embeddings") & (strata["measure"] == "relative")])
    is_new = (strata["stratum"] == ADDED) & (strata["statistic"] == "median")
    medians = dict(zip(strata.loc[is_new, "run"], strata.loc[is_new, "value"], strict=True))
    claims: list[tuple[Group, Condition, str, NDArray[np.float64], Null, bool]] = []
    contrasts: list[tuple[dict[str, Any], list[str]]] = []
    for group in map(of_largest_size, data.groups):
        for condition in group.conditions:
            if condition.runs[0].setting("add_tokens") is None:
                continue
            # The last control has a permutation per seed, where there is one: how far rows move is held against that.
            controls = controls_of(group, condition)[-1:]
            largest_old, null_of_new = _maxima_of_rows(strata[strata["run"].isin(condition.names)])
            for kind, by_run, null in (("new", medians, null_of_new), ("old", largest_old, ROWS_THAT_STAY)):
                values = np.array([by_run.get(name, NAN) for name in condition.names])
                claims.append((group, condition, kind, values, null, bool(controls)))
            for control in controls:
                key = {"group": group.title, "condition": condition.label, "control": control.label}
                record = contrast_medians(
                    condition, control, medians, level=data.settings.level, alpha=data.settings.alpha
                )
                contrasts.append((key | record, [*condition.names, *control.names]))
    p_values = [
        p_beyond(over_seeds(claim_values, data.settings.level), null, 0.0) for *_, claim_values, null, _ in claims
    ]
    q = benjamini_hochberg([*p_values, *(record["p"] for record, _ in contrasts)])
    num_claims = int(np.isfinite(q).sum())
    for claim, claim_q in zip(claims, q, strict=False):
        yield _token_card(data, *claim, float(claim_q), num_claims)
    for (record, names), claim_q in zip(contrasts, q[len(claims) :], strict=True):
        judged = judge(record | {"q": claim_q, "num_claims": num_claims})
        record |= {"q": claim_q, **_verdict_fields(judged)}
        yield _contrast_card(data, "tokens", ADDED_ROWS, record, names, num_claims)


def _maxima_of_rows(strata: pd.DataFrame) -> tuple["pd.Series[float]", Null]:
    """Run to how far its old row went that moved most, and the null of the exposed new ones.

    ``strata``: relative drift of the words of one condition at the end. The null is the farthest new row that no text
    showed.
    """
    maxima = strata[strata["statistic"] == "max"]
    old_maxima = maxima[~maxima["stratum"].isin([ADDED, ADDED_UNSEEN, ALL_ROWS, WHOLE])]
    unexposed_max = maxima.loc[maxima["stratum"] == ADDED_UNSEEN, "value"].max()
    null = ROWS_THAT_STAY
    if not math.isnan(unexposed_max):
        null = Null("the farthest added row that no text showed", 0, float(unexposed_max))
    return old_maxima.groupby("run")["value"].max(), null


def _token_card(
    data: ReportData,
    group: Group,
    condition: Condition,
    kind: str,
    values: NDArray[np.float64],
    null: Null,
    has_control: bool,
    q: float,
    num_claims: int,
) -> Card:
    """The card of how far one kind of rows, new or old, moved in a condition that added tokens."""
    settings = data.settings
    defined = values[~np.isnan(values)]
    interval, narrow_interval = over_seeds(values, settings.level), over_seeds(values, EQUIVALENCE_LEVEL)
    gap = detectable_gap(interval, alpha=settings.alpha)
    wide, narrow = (Span(bounds.low, bounds.high, bounds.level) for bounds in (interval, narrow_interval))
    # Rows that are still in every run have no spread, and whatever moves one would have been seen.
    if len(defined) > 1 and not defined.any():
        wide, narrow, gap = Span(0.0, 0.0, settings.level), Span(0.0, 0.0, EQUIVALENCE_LEVEL), 0.0
    judged = verdict(
        num_seeds=len(defined),
        refusal=None if len(defined) else Verdict("not measurable here", "no text showed an added token"),
        low=wide.low,
        high=wide.high,
        low90=narrow.low,
        high90=narrow.high,
        margin=STILL_SHARE,
        null_low=null.low,
        null_high=null.high,
        gap=gap,
        q=q,
        num_claims=num_claims,
        alpha=settings.alpha,
        side="above",
        unit="of its length",
        do_seeds_differ=not len(defined) or not is_constant(defined),
    )
    if kind == "old" and len(defined) and not defined.any() and _has_proof_of_old_rows(condition):
        judged = Verdict("equivalent", BIT_IDENTICAL)
    elif kind == "new" and judged.name == "supported":
        control_note = BESIDE_SHUFFLED if has_control else WITHOUT_SHUFFLED
        judged = Verdict(judged.name, f"{judged.reason}; {MOVING_ONLY}{control_note}")
    summary = (
        "median of the added rows that training showed" if kind == "new" else "largest of the rows that were there"
    )
    return _card(
        data,
        "tokens",
        condition.names,
        num_claims,
        group=group.title,
        subject=(condition.label, kind),
        claim=f"{TOKEN_CLAIMS[kind].format(condition.label)}, {group.title}",
        estimator=f"relative drift, {summary}; {OVER_SEEDS}",
        unit="1",
        value=defined_mean(values),
        interval=wide,
        equivalence=narrow,
        margin=STILL_SHARE,
        null=null,
        num_seeds=len(values),
        detectable_gap=gap,
        q=q,
        source=f"‖Δ‖/‖E⁰‖ of each row from epoch 0 to the last, ± t·s/√K over K seeds; {STILL_SHARE:g} counts as "
        "still; ours",
        **_verdict_fields(judged),
    )


def _has_proof_of_old_rows(condition: Condition) -> bool:
    """Whether hashes of every run prove that the rows that were there stayed as they were, alone or with all words."""
    hashes_of_runs = [
        [is_equal for name, is_equal in run.frozen.items() if name.endswith(f".{OLD_ROWS}")] for run in condition.runs
    ]
    return all(map(any, hashes_of_runs)) or condition.is_proven_frozen("word_embeddings")


def over_seeds(values: NDArray[np.float64], level: float) -> Interval:
    """The mean over the seeds that have a value with Student's t interval; its ends NaN with fewer than two."""
    return seeds_interval(values[~np.isnan(values)], level)


KINDS = (score_cards, forbid_cards, label_cards, drift_cards, offset_cards, token_cards, association_cards)
