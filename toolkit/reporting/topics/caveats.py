"""What a reader of a comparison must know: which lines count, what probes reached, questions and their answers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.cards import NO_CONTROL, over_seeds
from toolkit.comparison.conditions import Condition, Group, ReportedRun, differing_settings, pair_conditions, settings
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.runs import last_score, range_of, reported_first
from toolkit.comparison.verdicts import REFUSALS, VERDICTS, Card, Span
from toolkit.reporting.cells import UNDEFINED, listing, number, p_value, points
from toolkit.reporting.page import Block, FoldBlock, NoteBlock, Section, TextBlock, rows_block, table_block
from toolkit.reporting.verdict_words import DECIDING_VERDICTS, answer_of, question_of
from toolkit.schema import columns_of, with_columns


def headline(comparison: pd.DataFrame) -> pd.DataFrame:
    """The records of a comparison on headline scores: accuracy may stand beside another one."""
    return comparison[comparison["is_headline"].astype(bool)]


def largest_size(table: pd.DataFrame) -> pd.DataFrame:
    """The records of the most training examples of each group, where its runs differ in it.

    By ``size``, what the runs were asked for (none is all of them), where the table has it.
    """
    if "size" in table:
        # None asks for all examples, which no number exceeds.
        sizes_asked = pd.to_numeric(table["size"]).astype("Float64").fillna(np.inf).astype(float)
        return table[sizes_asked == sizes_asked.groupby(table["group"], sort=False).transform("max")]
    sizes = pd.to_numeric(table["num_train_examples"]).astype(float)
    greatest = sizes.groupby(table["group"], sort=False).transform("max")
    # Near-duplicates are removed per seed, so that conditions of one size may differ by a few examples.
    return table[sizes.isna() | (sizes > 0.9 * greatest)]


def covered(comparison: pd.DataFrame) -> str:
    """What the intervals of some comparisons are over: ``seeds and items``, ``seeds (f1)``; '' where there are none.

    A score whose answers are not known, or one whose items differ between seeds, has an interval over seeds.
    """
    scores_by_units: dict[str, list[str]] = {}
    for record in comparison[comparison["low_points"].notna()].to_dict("records"):
        scores_by_units.setdefault(_units_text(record), []).append(str(record["score"]))
    if len(scores_by_units) < 2:
        return "".join(scores_by_units)
    distinct_scores = {units: list(dict.fromkeys(scores)) for units, scores in scores_by_units.items()}
    return " or ".join(f"{units} ({listing(scores)})" for units, scores in distinct_scores.items())


def _units_text(record: Mapping[Any, Any]) -> str:
    """What the interval of one comparison is over."""
    if pd.isna(record["num_units"]):
        return "seeds"
    units = "items" if record["num_units"] == record["num_items"] else "clusters of items"
    return f"seeds and {units}" if record["num_seeds"] > 1 else f"{units} only"


def deciding(comparison: Mapping[Any, Any]) -> tuple[float, float, int]:
    """Low and high end of the interval that decided a comparison, in points, and its level in per cent."""
    is_equal = comparison.get("verdict") == "equivalent"  # which two tests at 5 % decide: an interval of 90 %
    if is_equal:
        return float(comparison["low90_points"]), float(comparison["high90_points"]), 90
    return float(comparison["low_points"]), float(comparison["high_points"]), 95


def reach_points(score: str) -> float:
    """The greatest difference that two values of a score can have, in points: correlations may be below 0, R² any."""
    low, high = range_of(score)
    return 100 * (high - low)


def task_names(table: pd.DataFrame) -> pd.Series:
    """The name of each record's task, with the model where there are several."""
    names = table["group"].astype(str)
    return names.str.removeprefix(f"{table['model'].iloc[0]} on ") if table["model"].nunique() == 1 else names


GAPS = ("full_minus_reached_points", "full_minus_linear_probe_points")
PROBE_COLUMNS = ("group", "condition", "split", "score", "reached", "linear_probe", *GAPS)


@with_columns
def linear_probes(groups: Sequence[Group]) -> pd.DataFrame:
    """A record per group, feature-extraction condition and split that has a recorded linear probe.

    Of the headline score, means over the seeds that recorded one. ``full_minus_...`` is over the seeds that both
    conditions have, NaN without full fine-tuning of the same size. Of several of these it is the one that differs from
    the features' in the fewest settings (the same pooling, say). A probe is of the training loss with its strength
    chosen within train: on held-out data a head may come out above it.
    """
    records = [
        {"group": group.title} | record
        for group in groups
        for condition in group.conditions
        if condition.is_feature_extraction
        for record in _probe_records(condition, _closest_full(condition, group))
    ]
    return pd.DataFrame(records, columns=columns_of("linear_probes")).astype({"size": "Int64"})


def probe_score(run: ReportedRun, split: str, score: str) -> float:
    """The linear probe that a run recorded, NaN without one."""
    value = (run.linear_probe.get(split) or {}).get(score)
    return np.nan if value is None else float(value)


def _closest_full(condition: Condition, group: Group) -> Condition | None:
    """Full fine-tuning of the same size that differs from a condition in the fewest settings; None without it."""
    settings_of_condition = settings(condition.runs[0])

    def num_differing(full: Condition) -> int:
        return sum(settings_of_condition.get(name) != value for name, value in settings(full.runs[0]).items())

    return min(
        (candidate for candidate in group.conditions if candidate.is_full and candidate.size == condition.size),
        key=num_differing,
        default=None,
    )


def _probe_records(condition: Condition, full: Condition | None) -> Iterable[dict[str, Any]]:
    """A record per split on which runs of a condition recorded a linear probe."""
    first = condition.runs[0]
    for split in reported_first(first.answers, [first.reported_split]):
        probed_runs = [run for run in condition.runs if not np.isnan(probe_score(run, split, first.score))]
        if probed_runs:
            yield {
                "model": first.model,
                "task": first.task,
                "condition": condition.base,
                "against": full.base if full else "",
                "size": condition.size,
                "split": split,
                "is_reported_split": split == first.reported_split,
                "is_out_of_distribution": split in first.out_of_distribution,
                "score": first.score,
                "num_seeds": len(probed_runs),
            } | _probe_numbers(probed_runs, full, split)


def _probe_numbers(runs: Sequence[ReportedRun], full: Condition | None, split: str) -> dict[str, float]:
    """Mean scores of a condition and of its probe, full fine-tuning minus each, and the interval of the latter."""
    score = runs[0].score
    table = pd.DataFrame(
        {
            "reached": [last_score(run, split, score) for run in runs],
            "linear_probe": [probe_score(run, split, score) for run in runs],
        },
        index=[run.config.seed for run in runs],
    )
    full_scores = {run.config.seed: last_score(run, split, score) for run in full.runs} if full else {}
    table["full"] = pd.Series(full_scores, dtype=float).reindex(table.index)
    above_probe = 100 * (table["full"] - table["linear_probe"])  # in points, a value per seed
    interval = over_seeds(above_probe.to_numpy(np.float64), 0.95)  # no run keeps the probe's answers to single items
    return {
        "reached": float(table["reached"].mean()),
        "linear_probe": float(table["linear_probe"].mean()),
        "full_minus_reached_points": float((100 * (table["full"] - table["reached"])).mean()),
        "full_minus_linear_probe_points": float(above_probe.mean()),
        "low_points": interval.low,
        "high_points": interval.high,
    }


def against_probe_block(table: pd.DataFrame) -> tuple[Block, ...]:
    """The linear probe beside what was reached, and full fine-tuning minus each; nothing without linear probes."""
    with_texts = table.assign(**{name: [points(value) for value in table[name]] for name in GAPS})
    caption = "Features or optimisation: full fine-tuning minus the head that was kept, and minus a cross-validated one"
    return () if table.empty else (table_block(with_texts, PROBE_COLUMNS, caption),)


MINILM = (
    "The embedded model minilm (all-MiniLM-L6-v2) is a BERT that was tuned on single sentences, through the mean of "
    "their tokens. Features of single sentences look better by it than raw BERT's would, those of pairs read as one "
    "sequence worse: a claim about BERT needs a second, raw backbone."
)

UNSTABLE_POINTS = 20
"""A chosen setting is called unstable if it scored more than this above the final runs (ours)."""


def caveats(data: ReportData) -> list[str]:
    """Sentences that belong to any number of the report: failed runs, settings, model, seeds."""
    checks = (broken_freezes, trained_on, sizes_apart, failures, below_floor, unstable, edge_warning, unnamed_clusters)
    sentences = [text for text in (check(data) for check in checks) if text]
    sentences += [*data.left_out, *data.evidence.page.get("not_kept", ())]
    if any(str(run.model) == "minilm" for run in data.runs):
        sentences.append(MINILM)
    if data.num_seeds == 1:
        units_text = covered(headline(data.comparison))
        limits = (
            "intervals cover the items and say nothing of other seeds"
            if units_text
            else "nothing is said of other seeds"
        )
        sentences.append(f"Every condition has one seed: {limits}.")
    return sentences


CLUSTERS = (
    "Items may come in clusters that nobody named: {}. They are taken as independent; if they are not, intervals are "
    "too narrow: name the clusters (--cluster-column of finetune.py, or clusters= of keep_predictions)."
)
LEAST_SHARE_IN_CLUSTERS = 0.05
"""Share of the items that share a cluster: fewer leave an interval as good as it is (ours)."""


OF_OTHER_SIZES = (
    "Runs of other numbers of training examples are no seeds of one another, and are compared among themselves: {}."
)


def sizes_apart(data: ReportData) -> str:
    """Conditions that differ in the number of training examples alone, with how many runs each has; '' without any."""
    by_base: dict[tuple[str, str], list[Condition]] = {}
    for group in data.groups:
        for condition in group.conditions:
            by_base.setdefault((group.title, condition.base), []).append(condition)
    texts = [
        f"{base} on {conditions[0].runs[0].task} ({listing([_runs_of_size(condition) for condition in conditions])})"
        for (_, base), conditions in by_base.items()
        if len(conditions) > 1
    ]
    return OF_OTHER_SIZES.format("; ".join(texts)) if texts else ""


def _runs_of_size(condition: Condition) -> str:
    """``2 runs of 1,000``."""
    size_text = "all" if condition.size is None else f"{condition.size:,}"
    return f"{len(condition.runs)} run{'' if len(condition.runs) == 1 else 's'} of {size_text}"


def unnamed_clusters(data: ReportData) -> str:
    """Splits whose ids or texts look as if items came in clusters that nobody named; '' without any."""
    suspects = []
    for run in data.runs:
        for split in [name for name in run.answers if run.clusters(name) is None and not run.setting("cluster_column")]:
            ids = run.answers[split].index.astype(str)
            splits = run.part("task").get("splits") or {}
            num_repeated = (splits.get(split) or {}).get("num_repeated_texts", 0)
            has_repeated = num_repeated >= LEAST_SHARE_IN_CLUSTERS * len(ids)
            # Of ids such as "document-3" what stands before the number: a cluster, where several ids begin alike.
            starts = ids.str.extract(r"^(.+)[-_]\d+$", expand=False).dropna()
            num_starts = starts.nunique()
            has_alike_starts = 1 < num_starts <= (1 - LEAST_SHARE_IN_CLUSTERS) * len(starts)
            if has_repeated or has_alike_starts:
                why = f"{num_repeated:,} repeat a text" if num_repeated else f"ids begin in {num_starts:,} ways"
                suspects.append(f"{run.task} {split} ({len(ids):,} items, {why})")
    return CLUSTERS.format("; ".join(dict.fromkeys(suspects))) if suspects else ""


TRAINED_ON = (
    "Scored items that stand in train word for word: {}. Scores there are partly of what was learned by heart; "
    "--remove-near-duplicates takes such rows out of train."
)


def trained_on(data: ReportData) -> str:
    """Splits of which items were trained on, with the most of any run; '' without any."""
    largest: dict[str, tuple[int, int]] = {}
    for run in data.runs:
        for split, facts in (run.part("task").get("splits") or {}).items():
            if count := facts.get("num_in_train", 0):
                name = f"{run.task} {split}"
                largest[name] = max(largest.get(name, (0, 0)), (count, facts["num_examples"]))
    texts = [f"{name} {count:,} of {num_items:,}" for name, (count, num_items) in largest.items()]
    return TRAINED_ON.format("; ".join(texts)) if texts else ""


def broken_freezes(data: ReportData) -> str:
    """Parameters that a run froze and that changed all the same, by its hashes or its snapshots; '' without any."""
    drift = data.evidence.drift
    drift = drift[drift["has_moved"].astype(bool)]
    moved = set(zip(drift["run"], drift["parameter"], strict=True))
    broken = []
    for run in data.runs:
        names = [name for name, is_equal in run.frozen.items() if not is_equal or (run.name, name) in moved]
        broken += [f"{run.name}: {', '.join(names)}"] if names else []
    if not broken:
        return ""
    return f"WARNING: these parameters were frozen and have changed all the same: {'; '.join(broken)}."


QUALITIES = {
    "is_failed": "Runs that failed (majority class or worse, one answer, or undefined, on the reported split)",
    "is_at_chance": "Runs that do not beat always giving the most frequent label by more than chance",
}
"""Attribute of a run to what runs are for which it is true."""


def failures(data: ReportData) -> str:
    """Runs that failed, and those that do not beat the majority class by more than chance; '' for one task without."""
    runs_by_quality = {quality: _with_quality(data, quality) for quality in QUALITIES}
    sentences = []
    for quality, runs in runs_by_quality.items():
        counts = [
            f"{condition} {len(tasks)} on {listing(tasks.unique())}"
            for condition, tasks in runs.groupby("condition", sort=False)["task"]
        ]
        total = f"{len(runs)} of {len(data.runs)}"
        sentences.append(f"{QUALITIES[quality]}: {'; '.join([total, *counts])}.")
    return " ".join(sentences) if len(data.groups) > 1 or any(map(len, runs_by_quality.values())) else ""


def _with_quality(data: ReportData, quality: str) -> pd.DataFrame:
    """Condition and task of every run that has a quality."""
    conditions = [condition for group in data.groups for condition in group.conditions]
    records = [
        (condition.base, run.task) for condition in conditions for run in condition.runs if getattr(run, quality, False)
    ]
    return pd.DataFrame(records, columns=["condition", "task"])


def below_floor(data: ReportData) -> str:
    """Conditions whose mean score is below a bag of words that was fitted to the same examples; '' for none."""
    below = largest_size(data.floors)
    below = below[below["above_bag_of_words_points"] < -1e-9]  # and not by the rounding of a mean
    texts = [
        f"{record['base']} on {task} {record['split']} ({number(record['mean'])} for {number(record['bag_of_words'])})"
        for task, record in zip(task_names(below), below.to_dict("records"), strict=True)
    ]
    return f"Below a bag of words: {'; '.join(texts)}." if texts else ""


def unstable(data: ReportData) -> str:
    """Conditions whose chosen setting scored far better when it was chosen than in the final runs; '' without any."""
    table = data.tuning
    if table is None or "mean_score" not in table:
        return ""
    chosen = table[table["is_chosen"].astype(bool)]
    record_by_condition = {(record["task"], record["condition"]): record for record in chosen.to_dict("records")}
    texts = []
    # ``details`` has the conditions of the most training examples.
    for condition in (condition for tables in data.details for condition in tables.group.conditions):
        first = condition.runs[0]
        record = record_by_condition.get((first.task, condition.base), {})
        final_score = float(np.mean([last_score(run, run.reported_split) for run in condition.runs]))
        is_same_score = record.get("score", first.score) == first.score
        # A condition of which nothing was chosen is never above its final runs.
        points_lost = 100 * (record.get("mean_score", -math.inf) - final_score)
        if is_same_score and points_lost > UNSTABLE_POINTS:
            scores = (
                f"{number(record['mean_score'])} when it was chosen, {number(final_score)} on {first.reported_split}"
            )
            texts.append(f"{condition.base} on {first.task} ({scores}, final runs: {len(condition.runs)})")
    return f"Chosen, and unstable: {'; '.join(texts)}." if texts else ""


def edge_warning(data: ReportData) -> str:
    """Conditions whose chosen setting is at an end of its grid where the score still rose; '' without any."""
    table = data.tuning
    if table is None or "is_at_edge" not in table:
        return ""
    is_at_edge = table["is_at_edge"].fillna(False).astype(bool) & table["is_chosen"].astype(bool)
    texts = [
        f"{condition} on {listing(tasks.map(str))}"
        for condition, tasks in table[is_at_edge].groupby("condition", sort=False)["task"]
    ]
    return f"Chosen at the edge of a grid, which may do better: {'; '.join(texts)}." if texts else ""


def pair_caveats(data: ReportData) -> list[str]:
    """Sentences on pairs that differ in more than the regime, and on seeds that one side of a pair lacks."""
    # First condition, second condition, and the settings in which they differ, to the groups in which they do.
    titles_by_difference: dict[tuple[str, str, str], list[str]] = {}
    for group in data.groups:
        compared = data.seeds.loc[data.seeds["group"] == group.title, ["first", "second"]].drop_duplicates()
        labels = [(str(first), str(second)) for first, second in compared.to_numpy()]
        for pair in pair_conditions(group, labels):
            names = [name.replace("_", " ") for name in differing_settings(pair.first, pair.second)]
            if names:
                difference = (pair.first.base, pair.second.base, listing(names))
                titles_by_difference.setdefault(difference, []).append(group.title)
    sentences = []
    for (first_base, second_base, names_text), titles in titles_by_difference.items():
        where = f" ({listing(list(dict.fromkeys(titles)))})" if len(set(titles)) < len(data.groups) else ""
        sentences.append(f"{first_base} and {second_base} differ, besides the regime, in {names_text}{where}.")
    for record in data.seeds[data.seeds["split"] == ""].itertuples():
        run_text = "A run" if pd.isna(record.seed) else f"Seed {record.seed}"
        sentences.append(f"{run_text} of {record.first} and {record.second} is not compared: {record.reason}.")
    return sentences


CLAIM_NAMES = {"forbid": "score", "labels": "shuffled-label", "tokens": "added-token"}
"""Kind of card to what the claims are called that its q is over, where they are not called by its kind."""
CLAIMS_HOWS = {
    "answer": "yes: the 95 % interval excludes 0 and q is below .05; no, the other way: so it does, on the other side. "
    "No: the 90 % interval lies within the margin. All only from three seeds on.",
    "interval": "The interval that decided: 90 % where the answer is no, within a margin; else 95 %.",
    "q": "Bounds the share of findings by chance among the claims of one kind in this report with no greater q.",
    "smallest gap": "What these data would have found with 80 % power.",
}


def verdicts_frame(cards: Sequence[Card]) -> pd.DataFrame:
    """A record per card, for tables/verdicts: numbers in the card's unit."""
    fields = "margin detectable_gap noise_floor q num_seeds num_items reason estimator kind"
    records = [
        {
            "question": question_of(card),
            "answer": answer_of(card),
            "claim": card.claim,
            "verdict": card.verdict,
            "value": card.value,
            "low": card.deciding.low,
            "high": card.deciding.high,
            "level": card.deciding.level,
            "unit": card.unit,
            **{name: getattr(card, name) for name in fields.split()},
            "group": card.group,
            "id": card.id,
        }
        for card in cards
    ]
    return (
        pd.DataFrame(records).astype({"num_items": "Int64"}) if records else pd.DataFrame(columns=["claim", "verdict"])
    )


def span_of(card: Card) -> str:
    """The interval that decided, with its level."""
    interval = card.deciding
    if interval.low != interval.low or interval.high != interval.high:
        return UNDEFINED
    return f"{number(interval.low)} to {number(interval.high)} ({100 * interval.level:.0f} %)"


def claims_block(cards: Sequence[Card], caption: str) -> Block:
    """Cards as a table: question, answer, and what it rests on; the caption says over which claims each q is."""
    if not cards:
        return TextBlock(text="These runs decide no question: what stays open, and why, stands below.")
    header = ["question", "answer", "estimate", "interval", "smallest gap", "q", "seeds"]
    rows = [
        [
            question_of(card),
            answer_of(card),
            f"{number(card.value)} {card.unit}".removesuffix(" 1") if card.value == card.value else UNDEFINED,
            span_of(card),
            number(card.detectable_gap),
            p_value(card.q),
            card.num_seeds,
        ]
        for card in map(_without_contradiction, cards)
    ]
    return rows_block(header, rows, f"{caption}{families_text(cards)}", CLAIMS_HOWS)


def families_text(cards: Sequence[Card]) -> str:
    """The numbers of claims that the q of some cards are over; empty where none has one."""
    # Reversed, as of one family the number that the first card gives is to stay.
    with_q = [card for card in reversed(cards) if card.num_claims is not None]
    num_by_family = {CLAIM_NAMES.get(card.kind, card.kind): card.num_claims for card in with_q}
    families = listing([f"the {number} {name} claim{'s' * (number != 1)}" for name, number in num_by_family.items()])
    return f"; q is over {families} of this report" if families else ""


def _without_contradiction(card: Card) -> Card:
    """The card without its numbers if they are multiples of a noise that was not recorded: its answer says so."""
    if card.verdict != "not recorded":
        return card
    return replace(card, value=math.nan, interval=Span(), detectable_gap=math.nan)


def described(cards: Sequence[Card]) -> dict[str, Block]:
    """Title of a group to its cards on drift: they describe, and stand with the drift."""
    cards_by_group: dict[str, list[Card]] = {}
    for card in cards:
        if card.kind in ("labels", "drift"):
            cards_by_group.setdefault(card.group, []).append(card)
    caption = "Drift beside noise, and beside shuffled labels, on "
    return {
        title: FoldBlock(title="Further than noise?", blocks=(claims_block(cards_of_group, f"{caption}{title}"),))
        for title, cards_of_group in cards_by_group.items()
    }


def decided(cards: Sequence[Card]) -> list[Card]:
    """The cards that decide their question, without those on a score that another card asks in better words."""
    asked_better = {(card.group, card.subject) for card in cards if card.kind == "forbid"}
    return [
        card
        for card in cards
        if card.verdict in DECIDING_VERDICTS
        and not (card.kind == "score" and (card.group, card.subject) in asked_better)
    ]


def limits_section(data: ReportData, cards: Sequence[Card]) -> Section:
    """The section on what these runs cannot tell: every open question once, and the caveats."""
    open_cards = [card for card in cards if card.verdict not in DECIDING_VERDICTS and card.kind != "drift"]
    open_cards = [card for card in open_cards if card.kind != "association" or card.verdict != "not applicable"]
    order = list(reversed(VERDICTS))  # from nearly decided to refused
    # What is refused for one reason is one line; every other open question is its own.
    cards_by_reason: dict[tuple[str, str], list[Card]] = {}
    for card in sorted(open_cards, key=lambda card: order.index(card.verdict)):
        reason_or_id = card.reason if card.verdict in (*REFUSALS, "not judged") else card.id
        cards_by_reason.setdefault((card.kind, reason_or_id), []).append(card)
    rows = []
    for first, *others in cards_by_reason.values():
        more = f" (and {len(others)} more like it)" if others else ""
        rows.append([question_of(first) + more, answer_of(first), "" if others else span_of(first), first.reason])
    header = ["question", "answer", "interval", "why"]
    open_questions = [rows_block(header, rows, "Questions that stay open")] if rows else []
    sentences = caveats(data)
    if any(card.needs_control for card in cards):
        sentences.append(f"Drift beside sign noise describes and shows no learning: {NO_CONTROL}.")
    warning = broken_freezes(data)
    notes = tuple(NoteBlock(text=text, is_warning=text == warning) for text in sentences)
    return Section(id="limits", title="What these runs cannot tell", blocks=(*notes, *open_questions))
