"""The cards of a report: one per claim, each with the verdict that its numbers allow."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.comparison.arms import NOT_COMPARED, Arm, ArmPair, Group, differing_settings
from toolkit.comparison.drift_and_score import TOO_FEW
from toolkit.comparison.drift_cards import drift_cards, offset_cards
from toolkit.comparison.estimates import EQUIVALENCE_LEVEL, NO_MEAN, OTHER_ITEMS_PER_SEED
from toolkit.comparison.evidence import FOLDER, JOINED, PREDICTIONS, Evidence, read_evidence
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.shuffled_labels import MEASURES, ONE, PER_SEED
from toolkit.comparison.verdicts import NAN, NOTHING, Card, Null, Span, Verdict, among

LABEL_VERSION = 1
LABEL_FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", "labels.csv"))

CONTROLS: Mapping[str, tuple[str, ...]] = {"agreement": (ONE, PER_SEED), "median_drift": (PER_SEED, ONE)}
"""Measure to the permutations of the labels that it is held against, the one that can decide it first
(shuffled_labels.py)."""

LABEL_SOURCES = {
    ONE: "over seeds, for the one permutation that all of them learned",
    PER_SEED: "with an interval that a new permutation would lie in",
}


def label_cards(data: ReportData) -> Iterable[Card]:
    """Per condition with a control, and embedding parameter: agreement of seeds first, then how far rows moved."""
    for line in chosen_lines(data.labels).to_dict("records"):
        yield _label_card(data.evidence, line, data.settings.alpha)


def chosen_lines(table: pd.DataFrame) -> pd.DataFrame:
    """Of each condition, parameter and measure with a card the line against the best of its controls (CONTROLS)."""
    parts = []
    for _, own in table.groupby(["group", "condition", "parameter"], sort=False):
        for measure, permutations in CONTROLS.items():
            lines = own[own["measure"] == measure]
            found = [lines[lines["permutation"] == permutation] for permutation in permutations]
            parts += [part.iloc[:1] for part in [part for part in found if len(part)][:1]]
    return pd.concat(parts) if parts else table.iloc[:0]


def _label_card(evidence: Evidence, line: Mapping[Any, Any], alpha: float) -> Card:
    measure, parameter, q = MEASURES[str(line["measure"])], str(line["parameter"]), float(line["q"])
    runs = evidence.runs[(evidence.runs["group"] == line["group"]) & evidence.runs["condition"].isin(_arms(line))]
    pairing = "paired by seed" if line["is_paired"] else "Welch's, unpaired"
    return Card(
        id=f"labels: {line['group']} / {line['condition']} / {parameter} / {line['measure']}",
        claim=f"{measure.claim.format(parameter=parameter)} under {line['condition']}, {line['group']}",
        kind="labels",
        estimator=f"{line['measure']}: {measure.how}",
        version=LABEL_VERSION,
        unit=measure.unit,
        value=float(line["value"]),
        interval=Span(float(line["low"]), float(line["high"]), float(evidence.settings["level"])),
        equivalence=Span(float(line["low90"]), float(line["high90"]), EQUIVALENCE_LEVEL),
        margin=float(line["margin"]),
        null=Null(f"the same runs on shuffled labels: {line['control']}"),
        noise_floor=NAN,
        num_seeds=min(int(line["num_seeds"]), int(line["num_seeds_shuffled"])),
        num_items=None,
        detectable_gap=float(line["detectable_gap"]),
        q=q,
        is_discovery=None if math.isnan(q) else q < alpha,
        source="real labels minus shuffled ones (of ratios: how much further), "
        f"{LABEL_SOURCES[str(line['permutation'])]}; {pairing}; pairs of seeds by the jackknife (Efron & Stein 1981); "
        "ours",
        inputs=evidence.inputs(LABEL_FILES, list(runs["run"])),
        verdict=str(line["verdict"]),
        reason=str(line["reason"]),
    )


def _arms(line: Mapping[Any, Any]) -> list[str]:
    return [str(line["condition"]), str(line["control"])]


ASSOCIATION_VERSION = 3
"""1 ranked tasks by the drift of whole parameters, and judged by the interval; 2 judged by p, whatever the number of
claims."""

ASSOCIATION_FILES = tuple(
    f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", PREDICTIONS, "scores.csv", "drift.csv")
)
FILES_OF_1 = tuple(f"{FOLDER}/{name}" for name in ("settings.json", JOINED))


def association_cards(data: ReportData) -> Iterable[Card]:
    """Across tasks, per model, arm and parameter: do tasks on which it moved further gain more from its moving?

    The verdict is that of the permutation test, by its q at the report's alpha; the interval is description.
    """
    lines, own = data.association, data.joined
    num_claims = int(lines["p"].notna().sum())
    for line in lines.to_dict("records"):
        runs = own.loc[(own["model"] == line["model"]) & (own["base"] == line["base"]), "run"]
        yield _association_card(data.evidence, line, list(dict.fromkeys(runs)), num_claims)


def _association_card(evidence: Evidence, line: Mapping[Any, Any], runs: list[str], num_claims: int) -> Card:
    level, rho, num_tasks = float(evidence.settings["level"]), float(line["spearman"]), int(line["num_tasks"])
    which, where = line["parameter"], f"{line['base']}, {line['model']}"
    q, alpha = float(line["q"]), float(evidence.settings["alpha"])
    judged = judge_association(str(line["reason"]), float(line["p"]), alpha, q, num_claims)
    return Card(
        **NOTHING,
        id=f"association: {line['model']} / {line['base']} / {line['parameter']}",
        claim=f"Tasks on which {which} moved further beyond noise gained more, or less, from drift under {where}",
        kind="association",
        estimator="Spearman rank correlation over tasks of drift, as a multiple of its noise, with gain",
        version=ASSOCIATION_VERSION,
        unit="1",
        value=rho,
        interval=Span(*spearman_interval(rho, num_tasks, level), level),
        null=Null("no association between tasks: every order of the tasks is as likely"),
        num_seeds=int(line["num_runs"]),
        num_items=num_tasks,
        q=q,
        is_discovery=None if math.isnan(q) else q < alpha,
        verdict=judged.name,
        reason=judged.reason,
        source="one point per task, the means over its seeds; verdict by q of the two-sided permutation test (exact up "
        "to eight tasks); the interval tanh(atanh r ± z·√((1 + r²/2)/(n - 3))) is description: Bonett & Wright 2000",
        inputs=evidence.inputs(ASSOCIATION_FILES if evidence.joined is None else FILES_OF_1, runs),
    )


def judge_association(refusal: str, p: float, alpha: float, q: float = math.nan, num_claims: int = 1) -> Verdict:
    """Refused, supported where the permutation p and its ``q`` are below ``alpha``, or not supported.

    Too few tasks make the claim not applicable; any other refusal says that it cannot be measured on these tasks.
    """
    if refusal or math.isnan(p):
        name = "not applicable" if refusal.endswith(TOO_FEW) else "not measurable here"
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


VERSION = 3
"""Of the estimators of score and forbid cards; 1 left out seeds whose correlation is undefined; 2 judged each claim
alone, two seeds too, and called "not identifiable" whatever was refused."""

FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", PREDICTIONS, "scores.csv"))

TWO_WAY = "two-way interval over seeds and items"
OVER_SEEDS = "t interval over seeds"
ONE_CLAIM = "q: Benjamini-Hochberg over all compared pairs of the report"
SOURCES = {
    TWO_WAY: "mean paired difference, first minus second, ± t·√V, V = max(MS_seed + MS_item - MS_res, "
    f"MS_seed)/(KN); ours; {ONE_CLAIM}",
    OVER_SEEDS: f"mean paired difference, first minus second, ± t·s/√K over K seeds; {ONE_CLAIM}",
}


def make_cards(source: ReportData | Evidence | str | Path) -> list[Card]:
    """Every card of a report from its evidence alone: the same evidence gives the same cards.

    Kinds, in order: *score*, per pair of arms, task and split: the two score differently (two-sided; which is higher is
    in the sign of the value, first minus second); *forbid*, per task on the reported split: free and frozen embeddings
    score differently, so that "equivalent" means that forbidding the drift costs nothing; *labels*, per arm that was
    also run on shuffled labels and embedding parameter: seeds moved it more alike, and it moved further, than there;
    *drift*, per arm and embedding parameter that moved: how many times further than random gradient signs would move
    it, which is description; *offset*, per arm: what the tables share moved in one of them, which no data can tell;
    *association*, per arm and parameter: tasks on which it moved further gained more, refused under six tasks. What was
    frozen has no card: its hashes prove it.
    ValueError when the evidence cannot be read.
    """
    if isinstance(source, ReportData):
        data = source
    else:
        data = ReportData(source if isinstance(source, Evidence) else read_evidence(source), num_draws=0)
    return [card for make in KINDS for card in make(data)]


def score_cards(data: ReportData) -> Iterable[Card]:
    """One card per line of a headline score in :func:`toolkit.compare`."""
    arms = {(group.title, arm.label): arm for group in data.groups for arm in group.arms}
    for line in data.comparison[data.comparison["is_headline"].astype(bool)].to_dict("records"):
        members = [arms[line["group"], line[side]] for side in ("first", "second")]
        claim = f"{line['first']} and {line['second']} score differently ({line['score']}) on {line['split']}"
        yield _card(line, "score", f"{claim}, {line['group']}", members, data)


def forbid_cards(data: ReportData) -> Iterable[Card]:
    """Full fine-tuning against frozen embeddings on the reported split, one card per task and size that has both.

    With the q of the same line of the comparison; a pair that was not to be compared has the q that it would have had
    in it.
    """
    for group in data.groups:
        for pair in _forbidding(group):
            for line in filter(_is_main, data.lines.of(pair)):
                own = {"difference_points": math.nan, "p": math.nan, "reason": "", **line, "group": group.title}
                claim = f"With the embeddings free and forbidden to drift the scores differ ({line['score']}) on "
                claim += f"{line['split']}, {group.title} ({pair.first.label} against {pair.second.label})"
                yield _card(_among(data, own), "forbid", claim, [pair.first, pair.second], data)


def _is_main(line: dict[str, Any]) -> bool:
    return bool(line["is_headline"] and line["is_reported_split"])


def _among(data: ReportData, line: dict[str, Any]) -> dict[str, Any]:
    """``line`` with its q and what that leaves of its verdict, among the claims of the comparison."""
    q, num_claims = _q_in(data.comparison, line)
    alone = Verdict(str(line["verdict"]), str(line["reason"]))
    judged = among(alone, q, num_claims, data.settings.alpha)
    return line | {"q": q, "verdict": judged.name, "reason": judged.reason}


def _q_in(table: pd.DataFrame, line: dict[str, Any]) -> tuple[float, int]:
    """The q of the line of ``table`` on the same two arms, either way round, or what ``line`` would have had in it.

    And of how many claims that q is.
    """
    from toolkit.comparison.tests import benjamini_hochberg

    family = list(table.loc[table["is_headline"].astype(bool), "p"].dropna())
    arms = {line["first"], line["second"]}
    for own in table.to_dict("records"):
        if _is_main(own) and own["group"] == line["group"] and {own["first"], own["second"]} == arms:
            return float(own["q"]), len(family)
    return float(benjamini_hochberg([*family, line["p"]])[-1]), len(family) + 1


def _forbidding(group: Group) -> list[ArmPair]:
    """Arms that differ in whether the embeddings are frozen, and in as little else as any other arm of either kind."""
    full = [arm for arm in group.arms if arm.is_full]
    frozen = [arm for arm in group.arms if arm.runs[0].regime == "embeddings" and _starts_plainly(arm)]
    pairs = [ArmPair(one, other) for one in full for other in frozen if one.size == other.size]
    apart = [len(differing_settings(pair.first, pair.second)) for pair in pairs]

    def fewest(side: Arm) -> int:
        return min(n for pair, n in zip(pairs, apart, strict=True) if side in (pair.first, pair.second))

    found = zip(pairs, apart, strict=True)
    return [pair for pair, n in found if n == fewest(pair.first) == fewest(pair.second)]


def _starts_plainly(arm: Arm) -> bool:
    config = arm.runs[0].config
    return config.init == "checkpoint" and not config.head_epochs


def _card(line: dict[str, Any], kind: str, claim: str, arms: Sequence[Arm], data: ReportData) -> Card:
    """One line of a comparison as a card; a difference that could not be worked out is refused."""

    def points(name: str) -> float:
        value = line.get(name)
        return math.nan if value is None else float(value)

    is_refused = math.isnan(points("difference_points"))
    is_crossed = line["score"] == "accuracy" and not any(
        n in str(line["note"]) for n in (OTHER_ITEMS_PER_SEED, NO_MEAN)
    )
    estimator = TWO_WAY if is_crossed else OVER_SEEDS
    settings, runs = data.settings, [run for arm in arms for run in arm.runs]
    return Card(
        id=f"{kind}: {line['group']} / {line['split']} / {line['score']} / {line['first']} - {line['second']}",
        claim=claim,
        kind=kind,
        estimator=estimator,
        version=VERSION,
        unit="points",
        value=points("difference_points"),
        interval=Span(points("low_points"), points("high_points"), settings.level),
        equivalence=Span(points("low90_points"), points("high90_points"), EQUIVALENCE_LEVEL),
        margin=settings.margin_points,
        null=Null("no difference"),
        noise_floor=points("noise_floor_points"),
        num_seeds=int(line["num_seeds"]),
        num_items=int(line["num_items"]),
        detectable_gap=points("detectable_gap_points"),
        q=points("q"),
        is_discovery=None if math.isnan(points("q")) else points("q") < settings.alpha,
        verdict="not measurable here" if is_refused else str(line["verdict"]),
        reason=_missing(str(line["note" if line["verdict"] else "reason"])) if is_refused else str(line["reason"]),
        source=SOURCES[estimator],
        inputs=data.evidence.inputs(FILES, [run.name for run in runs]),
    )


def _missing(note: str) -> str:
    """The note of a line without a difference, as the reason of a card: what is missing is not what cannot be known."""
    return note if note.startswith(NOT_COMPARED) else f"{NOT_COMPARED}: {note}"


KINDS = (score_cards, forbid_cards, label_cards, drift_cards, offset_cards, association_cards)
