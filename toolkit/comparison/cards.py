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
from toolkit.comparison.intervals import (
    Interval,
    benjamini_hochberg,
    defined_mean,
    detectable_gap,
    is_constant,
    seeds_interval,
)
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
    q, names = values.get("q", NAN), (*JSONS, *FILES[kind])
    return Card(
        kind=kind,
        num_claims=None if math.isnan(q) else num_claims,
        is_discovery=None if math.isnan(q) else q < data.settings.alpha,
        inputs=data.evidence.inputs([f"{FOLDER}/{name}" for name in names], runs),
        **values,
    )


def _judged(found: Verdict) -> dict[str, str]:
    return {"verdict": found.name, "reason": found.reason}


LABEL_SOURCES = {
    ONE: "over seeds, on these items, for the one permutation that all of them learned",
    PER_SEED: "on these items, with an interval that a new permutation would lie in",
}


def label_cards(data: ReportData) -> Iterable[Card]:
    """Per condition with a control, and embedding parameter: agreement of seeds first, then how far rows moved."""
    num_claims, runs = int(data.labels["q"].notna().sum()), data.evidence.runs
    for line in chosen_lines(data.labels).to_dict("records"):
        is_own = (runs["group"] == line["group"]) & runs["condition"].isin([line["condition"], line["control"]])
        measure = MEASURES[str(line["measure"])]
        yield _contrast_card(data, "labels", measure, line, runs.loc[is_own, "run"], num_claims)


def _contrast_card(
    data: ReportData, kind: str, measure: Measure, line: Mapping[Any, Any], runs: Iterable[str], num_claims: int
) -> Card:
    """What real labels add to a measure: a judged line of :func:`toolkit.compare_with_shuffled`, or one like it."""
    pairing = "paired by seed" if line["is_paired"] else "Welch's, unpaired"
    return _card(
        data,
        kind,
        runs,
        num_claims,
        group=str(line["group"]),
        subject=(str(line["condition"]), str(line["parameter"]), str(line["measure"])),
        claim=f"{measure.claim.format(parameter=line['parameter'])} under {line['condition']}, {line['group']}",
        estimator=f"{line['measure']}: {measure.how}",
        unit=measure.unit,
        value=float(line["value"]),
        interval=Span(float(line["low"]), float(line["high"]), data.settings.level),
        equivalence=Span(float(line["low90"]), float(line["high90"]), EQUIVALENCE_LEVEL),
        margin=float(line["margin"]),
        null=Null(f"the same runs on shuffled labels: {line['control']}"),
        num_seeds=min(int(line["num_seeds"]), int(line["num_seeds_shuffled"])),
        detectable_gap=float(line["detectable_gap"]),
        q=float(line["q"]),
        source="real labels minus shuffled ones (of ratios: how much further), "
        f"{LABEL_SOURCES[str(line['permutation'])]}; {pairing}; pairs of seeds by the jackknife (Efron & Stein "
        "1981); ours",
        verdict=str(line["verdict"]),
        reason=str(line["reason"]),
    )


def chosen_lines(table: pd.DataFrame) -> pd.DataFrame:
    """Of each condition, parameter and measure with a card the line against the best of its controls (CONTROLS)."""
    parts = []
    for _, own in table.groupby(["group", "condition", "parameter"], sort=False):
        for measure, permutations in CONTROLS.items():
            lines = own[own["measure"] == measure]
            found = [lines[lines["permutation"] == permutation] for permutation in permutations]
            parts += [part.iloc[:1] for part in [part for part in found if len(part)][:1]]
    return pd.concat(parts) if parts else table.iloc[:0]


def association_cards(data: ReportData) -> Iterable[Card]:
    """Across tasks, per model, condition and parameter: do tasks on which it moved further gain more from its moving?

    The verdict is that of the permutation test, by its q at the report's alpha; the interval is description.
    """
    settings, joined = data.settings, data.joined
    num_claims = int(data.association["p"].notna().sum())
    for line in data.association.to_dict("records"):
        runs = joined.loc[(joined["model"] == line["model"]) & (joined["base"] == line["base"]), "run"]
        rho, q, num_tasks = float(line["spearman"]), float(line["q"]), int(line["num_tasks"])
        yield _card(
            data,
            "association",
            dict.fromkeys(runs),
            num_claims,
            subject=(str(line["model"]), str(line["base"]), str(line["parameter"])),
            claim=f"Tasks on which {line['parameter']} moved further beyond noise gained more, or less, from drift "
            f"under {line['base']}, {line['model']}",
            estimator="Spearman rank correlation over tasks of drift, as a multiple of its noise, with gain",
            unit="1",
            value=rho,
            interval=Span(*spearman_interval(rho, num_tasks, settings.level), settings.level),
            null=Null("no association between tasks: every order of the tasks is as likely"),
            num_seeds=int(line["num_runs"]),
            num_items=num_tasks,
            q=q,
            source="one point per task, the means over its seeds; verdict by q of the two-sided permutation test "
            "(exact up to eight tasks); the interval tanh(atanh r ± z·√((1 + r²/2)/(n - 3))) is description: Bonett & "
            "Wright 2000",
            **_judged(
                judge_association(str(line["reason"]), float(line["p"]), settings.alpha, q, num_claims, num_tasks)
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

    most = 1 - 12 / (num_points * (num_points**2 - 1))
    kept = min(max(rho, -most), most)
    half = float(norm.ppf((1 + level) / 2)) * math.sqrt((1 + kept**2 / 2) / (num_points - 3))
    return math.tanh(math.atanh(kept) - half), math.tanh(math.atanh(kept) + half)


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
    """One card per line of a headline score in :func:`toolkit.compare`."""
    conditions = {(group.title, condition.label): condition for group in data.groups for condition in group.conditions}
    headlines = data.comparison[data.comparison["is_headline"].astype(bool)]
    num_claims = int(headlines["q"].notna().sum())
    for line in headlines.to_dict("records"):
        members = [conditions[line["group"], line[side]] for side in ("first", "second")]
        claim = f"{line['first']} and {line['second']} score differently ({line['score']}) on {line['split']}"
        yield _difference_card(line, "score", f"{claim}, {line['group']}", members, data, num_claims)


def forbid_cards(data: ReportData) -> Iterable[Card]:
    """Full fine-tuning against frozen embeddings on the reported split, one card per task and size that has both.

    With the q of the line of the comparison on the same two conditions, either way round; a pair that was not to be
    compared has the q that it would have had in it.
    """
    headlines = data.comparison[data.comparison["is_headline"].astype(bool)]
    for group in data.groups:
        for pair in _forbidding(group):
            labels = [pair.first.label, pair.second.label]
            is_own = (headlines["group"] == group.title) & headlines["is_reported_split"].astype(bool)
            known = headlines.loc[is_own & headlines["first"].isin(labels) & headlines["second"].isin(labels), "q"]
            for line in data.lines_of(pair):
                if not (line["is_headline"] and line["is_reported_split"]):
                    continue
                line = {"difference_points": NAN, "p": NAN, "reason": ""} | line | {"group": group.title}
                own = pd.DataFrame([line], columns=headlines.columns)
                others = headlines if len(known) else pd.concat([headlines, own.dropna(axis="columns", how="all")])
                family = judge_together(others.reset_index(drop=True), data.settings.alpha)
                q = float(known.iloc[0] if len(known) else family["q"].iloc[-1])
                alone = Verdict(str(line["verdict"]), str(line["reason"]))
                num_claims = int(family["p"].count())
                judged = among(alone, q, num_claims, data.settings.alpha)
                claim = (
                    f"With the embeddings free and forbidden to drift the scores differ ({line['score']}) on "
                    f"{line['split']}, {group.title} ({pair.first.label} against {pair.second.label})"
                )
                judged_line = line | {"q": q} | _judged(judged)
                yield _difference_card(judged_line, "forbid", claim, [pair.first, pair.second], data, num_claims)


def _forbidding(group: Group) -> list[ConditionPair]:
    """Conditions that differ in whether the embeddings are frozen, and in as little else as any of either kind."""
    frozen = []
    for condition in group.conditions:
        own = condition.runs[0]
        is_plain = own.setting("init") in (None, "checkpoint") and not own.setting("head_epochs")
        if own.regime == "embeddings" and is_plain:
            frozen.append(condition)
    pairs = [
        ConditionPair(one, other)
        for one in group.conditions
        for other in frozen
        if one.is_full and one.size == other.size
    ]
    apart = [len(differing_settings(pair.first, pair.second)) for pair in pairs]
    fewest: dict[Condition, int] = {}
    for pair, num in zip(pairs, apart, strict=True):
        for side in (pair.first, pair.second):
            fewest[side] = min(num, fewest.get(side, num))
    return [pair for pair, num in zip(pairs, apart, strict=True) if num == fewest[pair.first] == fewest[pair.second]]


def _difference_card(
    line: dict[str, Any], kind: str, claim: str, conditions: Sequence[Condition], data: ReportData, num_claims: int
) -> Card:
    """One line of a comparison as a card; a difference that could not be worked out is refused."""

    def points(name: str) -> float:
        value = line.get(name)
        return NAN if value is None else float(value)

    settings, note, units = data.settings, str(line["note"]), line.get("num_units")
    is_clustered = not pd.isna(units) and units < line["num_items"]
    estimator = OVER_SEEDS if pd.isna(units) else CLUSTERED if is_clustered else TWO_WAY
    source = SOURCES[estimator] if line["score"] == "accuracy" or pd.isna(units) else f"{LINEAR}{SOURCES[estimator]}"
    told = {"verdict": str(line["verdict"]), "reason": str(line["reason"])}
    if math.isnan(points("difference_points")):  # what is missing is not what cannot be known
        why = f"{NOT_COMPARED}: {note}" if line["verdict"] else told["reason"]
        told = {"verdict": "not measurable here", "reason": why}
    return _card(
        data,
        kind,
        [name for condition in conditions for name in condition.names],
        num_claims,
        group=str(line["group"]),
        subject=(str(line["split"]), str(line["score"]), f"{line['first']} - {line['second']}"),
        claim=claim,
        estimator=estimator,
        unit="points",
        value=points("difference_points"),
        interval=Span(points("low_points"), points("high_points"), settings.level),
        equivalence=Span(points("low90_points"), points("high90_points"), EQUIVALENCE_LEVEL),
        margin=settings.margin_points,
        null=Null("no difference"),
        noise_floor=points("noise_floor_points"),
        num_seeds=int(line["num_seeds"]),
        num_items=None if np.isnan(line["num_items"]) else int(line["num_items"]),
        detectable_gap=points("detectable_gap_points"),
        q=points("q"),
        source=source,
        **told,
    )


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
    """Per condition and embedding parameter that moved in any of its runs; q over all of them that have a p."""
    claims = []
    for group in data.groups:
        for condition in group.conditions:
            drift = data.evidence.drift
            moved = drift[drift["run"].isin(condition.names) & drift["has_moved"].astype(bool)]
            for _, lines in moved.groupby("parameter", sort=False):
                wide = over_seeds(lines["times_noise"].to_numpy(dtype=float), data.settings.level)
                null = Null(SIGN_NOISE, NAN, NAN)
                if not any(lines["reason"]):
                    ends = lines[["null_low", "null_high"]].to_numpy(dtype=float) / _noise(lines)[:, None]
                    null = Null(SIGN_NOISE, float(ends[:, 0].min()), float(ends[:, 1].max()))
                claims.append((group, condition, lines, wide, null))
    q = benjamini_hochberg([p_beyond(wide, null) for *_, wide, null in claims])
    num_claims = int(np.isfinite(q).sum())
    for claim, own in zip(claims, q, strict=True):
        yield _drift_card(data, *claim, float(own), num_claims)


def _noise(lines: pd.DataFrame) -> NDArray[np.float64]:
    """How far noise would have moved the rows of each run; NaN where it would not have."""
    null: NDArray[np.float64] = lines["null"].where(lines["null"] > 0).to_numpy(dtype=float)
    return null


def _drift_card(
    data: ReportData,
    group: Group,
    condition: Condition,
    lines: pd.DataFrame,
    wide: Interval,
    null: Null,
    q: float,
    num_claims: int,
) -> Card:
    settings, parameter = data.settings, str(lines["parameter"].iloc[0])
    times = lines["times_noise"].to_numpy(dtype=float)
    narrow, gap = over_seeds(times, EQUIVALENCE_LEVEL), detectable_gap(wide, alpha=settings.alpha)
    reasons = zip(lines["reason_kind"], lines["reason"], strict=True)
    refusals = [Verdict(str(kind), str(reason)) for kind, reason in reasons if kind]
    if not refusals and np.isnan(times).all():
        refusals = [Verdict("not measurable here", NO_NOISE)]
    num_seeds, refusal = int((~np.isnan(times)).sum()), refusals[0] if refusals else None
    judged = judge_drift(refusal, wide, narrow, null, gap, num_seeds, q, num_claims, settings.alpha)
    labels, seeds = (
        table[(table["group"] == group.title) & (table["condition"] == condition.label)]
        for table in (data.evidence.labels, data.evidence.seeds)
    )
    is_open = judged.name in VERDICTS_ON_NOISE
    has_labels = condition.runs[0].setting("objective") != MLM
    if is_open:
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
        noise_floor=defined_mean(distances) / defined_mean(_noise(lines)),
        num_seeds=len(lines),
        detectable_gap=gap,
        q=q,
        source=SOURCE,
        needs_control=is_open and has_labels and not len(labels),
        **_judged(judged),
    )


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
    """The verdict on a multiple of noise: what :func:`verdict` says of its excess over 1, in multiples again.

    ``wide`` and ``narrow``: the interval over seeds and that which decides equivalence; ``null``: the range of noise.
    """
    low, high, low90, high90 = (end - 1 for end in (wide.low, wide.high, narrow.low, narrow.high))
    # An interval wholly below 1 shows no drift beyond noise, and more seeds would not help: its gap does not matter.
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
        "the other way": f"the interval {span} {TIMES} lies below 1 and the null {bound}",
        "under-powered": f"the smallest detectable excess is {gap:.3g} {TIMES}, above the margin of {MARGIN:g}",
        "not supported": f"the interval {span} {TIMES} does not lie above 1 and the null {bound}",
    }
    if found.name not in reasons or np.isnan(wide.low):
        return found
    return among(Verdict(found.name, reasons[found.name]), q, num_claims, alpha)


def offset_cards(data: ReportData) -> Iterable[Card]:
    """Per condition whose tables moved: the share of their squared drift that offsets between them explain."""
    gauge, level = data.evidence.gauge, data.settings.level
    for group, condition in ((own, condition) for own in data.groups for condition in own.conditions):
        lines = gauge[gauge["run"].isin(condition.names)]
        if not len(lines):
            continue
        found, where = (
            over_seeds(lines["gauge_share"].to_numpy(dtype=float), level),
            f"{condition.label}, {group.title}",
        )
        yield _card(
            data,
            "offset",
            condition.names,
            group=group.title,
            subject=(condition.label,),
            claim=f"The offset that the tables share moved in one of them rather than another under {where}",
            estimator="gauge share: share of the tables' squared drift that offsets between them explain",
            unit="1",
            value=found.estimate,
            interval=Span(found.low, found.high, level),
            null=Null("tables that moved without any common offset"),
            num_seeds=len(lines),
            source="1 - (squared drift of n centred tables + ‖Δm‖²/n)/(that of the tables), weighted by use; ours",
            verdict="not identifiable",
            reason=OFFSET,
        )


STILL = 0.001
"""Relative drift of a row up to which it counts as where it was: a thousandth of its length."""
MOVING_ONLY = "that they moved does not show that they learned anything: "
BESIDE_SHUFFLED = "whether real labels moved them further than shuffled ones stands beside it"
WITHOUT_SHUFFLED = "to know that, repeat every seed with --shuffle-labels"
BIT_IDENTICAL = (
    "in each of these seeds every old row is as it was, bit for bit: its manifest has the same sha256 of them before "
    "and after training"
)
TOKEN_CLAIMS = {
    "new": "The rows of added tokens that training showed moved under {}",
    "old": "The row of the checkpoint that changed most moved under {}",
}


def token_cards(data: ReportData) -> Iterable[Card]:
    """Per condition with added tokens: how far the new rows that training showed moved, and the farthest old ones.

    Where the condition was also run with shuffled labels, a third card: whether real labels moved the new rows further.
    """
    if not len(strata := data.evidence.strata):
        return
    claims: list[tuple[Group, Condition, str, NDArray[np.float64], Null, bool]] = []
    contrasts: list[tuple[dict[str, Any], list[str]]] = []
    strata = at_last_epoch(strata[(strata["parameter"] == "word_embeddings") & (strata["measure"] == "relative")])
    is_new = (strata["stratum"] == ADDED) & (strata["statistic"] == "median")
    medians = dict(zip(strata.loc[is_new, "run"], strata.loc[is_new, "value"], strict=True))
    for group in map(of_largest_size, data.groups):
        for condition in (
            condition for condition in group.conditions if condition.runs[0].setting("add_tokens") is not None
        ):
            lines, controls = strata[strata["run"].isin(condition.names)], controls_of(group, condition)[-1:]
            unseen = lines.loc[(lines["stratum"] == ADDED_UNSEEN) & (lines["statistic"] == "max"), "value"]
            old = ~lines["stratum"].isin([ADDED, ADDED_UNSEEN, ALL_ROWS, WHOLE]) & (lines["statistic"] == "max")
            nulls = dict.fromkeys(TOKEN_CLAIMS, Null("rows that stay"))
            if unseen.notna().any():
                nulls["new"] = Null("the farthest added row that no text showed", 0, float(unseen.max()))
            largest = lines[old].groupby("run")["value"].max()
            for kind, found in (("new", medians), ("old", largest)):
                values = np.array([found.get(name, NAN) for name in condition.names])
                claims.append((group, condition, kind, values, nulls[kind], bool(controls)))
            for control in controls:
                lead = {"group": group.title, "condition": condition.label, "control": control.label}
                line = contrast_medians(
                    condition, control, medians, level=data.settings.level, alpha=data.settings.alpha
                )
                contrasts.append((lead | line, [*condition.names, *control.names]))
    p = [p_beyond(over_seeds(own, data.settings.level), null, 0.0) for *_, own, null, _ in claims]
    q = benjamini_hochberg([*p, *(line["p"] for line, _ in contrasts)])
    num_claims = int(np.isfinite(q).sum())
    for claim, own_q in zip(claims, q, strict=False):
        yield _token_card(data, *claim, float(own_q), num_claims)
    for (line, names), own_q in zip(contrasts, q[len(claims) :], strict=True):
        judged = judge(line | {"q": own_q, "num_claims": num_claims})
        line |= {"q": own_q, **_judged(judged)}
        yield _contrast_card(data, "tokens", ADDED_ROWS, line, names, num_claims)


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
    settings, known = data.settings, values[~np.isnan(values)]
    spans = [
        Span(own.low, own.high, own.level)
        for own in (over_seeds(values, x) for x in (settings.level, EQUIVALENCE_LEVEL))
    ]
    gap = detectable_gap(over_seeds(values, settings.level), alpha=settings.alpha)
    # Rows that are still in every run have no spread, and whatever moves one would have been seen.
    if len(known) > 1 and not known.any():
        spans, gap = [Span(0.0, 0.0, own.level) for own in spans], 0.0
    wide, narrow = spans
    judged = verdict(
        num_seeds=len(known),
        refusal=None if len(known) else Verdict("not measurable here", "no text showed an added token"),
        low=wide.low,
        high=wide.high,
        low90=narrow.low,
        high90=narrow.high,
        margin=STILL,
        null_low=null.low,
        null_high=null.high,
        gap=gap,
        q=q,
        num_claims=num_claims,
        alpha=settings.alpha,
        side="above",
        unit="of its length",
        do_seeds_differ=not len(known) or not is_constant(known),
    )
    is_held = all(
        any(is_equal for name, is_equal in run.frozen.items() if name.endswith(f".{OLD_ROWS}"))
        for run in condition.runs
    )
    is_proven = is_held or condition.is_proven_frozen("word_embeddings")
    if kind == "old" and is_proven and len(known) and not known.any():
        judged = Verdict("equivalent", BIT_IDENTICAL)
    elif kind == "new" and judged.name == "supported":
        more = BESIDE_SHUFFLED if has_control else WITHOUT_SHUFFLED
        judged = Verdict(judged.name, f"{judged.reason}; {MOVING_ONLY}{more}")
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
        margin=STILL,
        null=null,
        num_seeds=len(values),
        detectable_gap=gap,
        q=q,
        source=f"‖Δ‖/‖E⁰‖ of each row from epoch 0 to the last, ± t·s/√K over K seeds; {STILL:g} counts as still; ours",
        **_judged(judged),
    )


def over_seeds(values: NDArray[np.float64], level: float) -> Interval:
    """The mean over the seeds that have a value with Student's t interval; its ends NaN with fewer than two."""
    return seeds_interval(values[~np.isnan(values)], level)


KINDS = (score_cards, forbid_cards, label_cards, drift_cards, offset_cards, token_cards, association_cards)
