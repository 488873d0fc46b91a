"""Conditions compared on the same items, paired by seed: over all seeds, and seed by seed.

Differences have the two-way interval over seeds and items, or over seeds and the clusters that items come in: those of
an accuracy as they are, those of a score that is no mean over items by the influence of each item on it. Where no
answers are at hand, or they do not give the score, the interval is over seeds only. Their q rests on p values that
share what all of them say of seeds (multiplicity.py).
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.measures import Array
from toolkit.comparison.conditions import (
    NO_SEED,
    NO_SPLIT,
    OTHER_ITEMS,
    ConditionPair,
    Group,
    Labels,
    Pairs,
    Runs,
    arrange,
    check_pairs,
    clusters_of,
    have_same_items,
    noise_floor,
    pair_conditions,
)
from toolkit.comparison.intervals import (
    HELD,
    ROUNDING,
    Interval,
    detectable_gap,
    held_near_0,
    interval_of,
    is_constant,
    mcnemar,
    mean_squares,
    p_value,
    seeds_interval,
    sign_flip,
    smallest_p,
    two_way_interval,
    weigh_items,
)
from toolkit.comparison.multiplicity import benjamini_hochberg, moderated_p
from toolkit.comparison.runs import ENTITY_SCORES, counted_score, item_scores, last_score
from toolkit.comparison.verdicts import Verdict, among, verdict
from toolkit.naming import refuse_first
from toolkit.schema import columns_of, with_columns

COLLAPSED = "every run of both conditions failed: nothing was learned that could differ"
ONE_CLASS = "the split holds one class: an answer that never changes would be right on all of it"
AT_CHANCE = "no run of either condition is above the majority class by more than chance"


POINTS = 100.0
EQUIVALENCE_LEVEL = 0.90
"""Two one-sided tests at .05 are a 90 % interval."""
NOT_FAILED_COLUMNS = (
    "num_seeds_not_failed",
    "difference_points_not_failed",
    "low_points_not_failed",
    "high_points_not_failed",
)
"""What :func:`estimate_not_failed` gives: the difference over the pairs of runs of which neither failed."""
SQUARE_COLUMNS = ("ms_seed", "ms_item", "ms_residual")
"""Mean squares of the two-way table of a difference in points; NaN where there is no such table, or no spread in it."""
SCORES_OF_ANSWERS = ("f1", "macro_f1", "matthews")
"""Scores that are no mean over items, of answers each of which is right or wrong."""
NO_MEAN = "no mean over items: the interval covers seeds, and items only as far as they vary with them"
OTHER_ITEMS_PER_SEED = "each seed has its own items: the interval is over seeds"
OTHER_ACCURACY = "the answers that were kept give another accuracy than was scored: the interval is over seeds"
NO_ANSWERS = "no predictions are at hand: the interval is over seeds, and whether the items are the same is not known"
CLUSTERED = "the unit is the cluster that items come in: {:,} of them"
TWO_CONDITIONS = "runs of two conditions of one model and task"
NO_SEEDS = "seeds not given: runs are paired in the order of their names"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a comparison is made; the defaults are those of :func:`toolkit.compare`."""

    margin_points: float = 1.0
    level: float = 0.95
    alpha: float = 0.05

    def __post_init__(self) -> None:
        share, size = (1.0, "between 0 and 1"), (np.inf, "above 0 and finite")
        limits = {"level": share, "alpha": share, "margin_points": size}
        for name, (most, words) in limits.items():
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number) or not 0 < value < most:
                raise ValueError(f"{name} must be {words}; got {value!r}")


Lines = list[dict[str, Any]]


def lines_of_pairs(settings: Settings) -> Callable[[ConditionPair], Lines]:
    """:func:`compare_pair` with these settings, which works out each pair once."""
    return cache(lambda pair: compare_pair(pair, settings))


@with_columns
def compare(
    runs: Runs,
    *,
    pairs: Pairs | None = None,
    margin_points: float = 1.0,
    level: float = 0.95,
    alpha: float = 0.05,
    labels: Labels | None = None,
    score: str | None = None,
) -> pd.DataFrame:
    """One line per group, labelled split and pair of conditions of one size; points are hundredths.

    The difference is first minus second, on the same items, paired by seed, at the last epochs. The interval is over
    seeds and items, of a score that is no mean over items (f1, matthews, pearson, r2) to first order in the influence
    of each item; items in clusters count as clusters. In classification an accuracy line stands beside another
    headline. ``p`` is the test of that interval, but where it is over items: what says how much seeds differ is there
    learned from all lines of one score (:func:`~toolkit.comparison.multiplicity.moderated_p`), so that p may be below
    .05 where the interval holds 0, and above it where it does not; a claim is supported where both exclude 0. ``q`` is
    over one family, all lines of headline scores of this call (the accuracy lines beside other headline scores are a
    family of their own). A correlation that is undefined because a run gives every item one answer counts as 0; one
    that is undefined for another reason leaves its seed out. ``..._not_failed`` is from defined scores only: NaN when
    fewer than two pairs of runs are left, the same when all are.

    On a split whose items all have one label the claim is not measurable, nor where every run failed: the difference is
    given and no verdict rests on it.

    ``pairs``: labels (first, second); by default full fine-tuning against each other one, or all pairs without it.
    ``labels``: run directory name to condition. ``score``: the headline score of all runs that have it, such as r2 or
    macro_f1; None: each task's own. One paired seed gives an interval over items and no p. Without predictions, as of
    other loops, every interval is over seeds alone; where seeds are not known, runs are paired in the order of their
    names. Elsewhere: McNemar's test per seed (:func:`toolkit.compare_seeds`), the spread of each condition
    (:func:`toolkit.summarise_scores`) and its cost (:func:`toolkit.measure_cost`). What cannot be compared is NaN with
    a ``reason``. ValueError for an unknown label and for settings out of range.

    Examples
    --------
    >>> line = toolkit.compare(runs).iloc[0]
    >>> line["first"], line["second"], line["score"], int(line["num_seeds"])
    ('full fine-tuning', 'embeddings frozen', 'accuracy', 3)
    """
    settings = Settings(margin_points=margin_points, level=level, alpha=alpha)
    if pairs is not None:
        two_each = [pair for pair in pairs if not isinstance(pair, str) and len(set(pair)) == 2]
        is_so = len(two_each) == len(pairs) > 0
        refuse_first({f"pairs holds pairs of two labels, such as [('full', 'frozen')]; got {pairs!r}": not is_so})
    groups = arrange(runs, labels, score=score)
    table = compare_groups(groups, pairs, settings)
    if table.empty:
        conditions = ", ".join(
            f"{condition.label} on {group.title}" for group in groups for condition in group.conditions
        )
        has_pairs = any(len(group.conditions) > 1 for group in groups)
        needed = "runs with scores of one split, of which more is better" if has_pairs else TWO_CONDITIONS
        warnings.warn(f"nothing to compare: pass {needed}; got {conditions}", stacklevel=2)
    return table


def compare_groups(
    groups: Sequence[Group],
    pairs: Pairs | None = None,
    settings: Settings | None = None,
    *,
    lines_of: Callable[[ConditionPair], Lines] | None = None,
) -> pd.DataFrame:
    """:func:`compare` of groups that are arranged already; ``lines_of`` gives a pair's records, by these settings."""
    check_pairs(groups, pairs)
    settings = settings or Settings()
    lines_of = lines_of or lines_of_pairs(settings)
    records = [
        {"group": group.title} | record
        for group in groups
        for pair in pair_conditions(group, pairs)
        for record in lines_of(pair)
    ]
    counts = ("size", "num_units", "num_seeds_not_failed")
    table = pd.DataFrame(records, columns=columns_of("compare")).astype(dict.fromkeys(counts, "Int64"))
    return judge_together(table, settings.alpha) if len(table) else table


def judge_together(table: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """The table of pairs that were judged alone, with q and the verdicts that hold among all of them.

    q is over the records of headline scores and over those beside them, as two families. p of those with SQUARE_COLUMNS
    is worked out anew from all of one family and one score, whose seeds are taken to differ alike.
    """
    table = table.assign(p=table["p"].astype(float))
    # These p values rest on a seed variance that all differences of one score share; others stay as they are.
    two_way = table[table[list(SQUARE_COLUMNS)].notna().all(axis=1)]
    for _, family in two_way.groupby(["is_headline", "score"]):
        squares = family[list(SQUARE_COLUMNS)].to_numpy(float) / POINTS**2
        differences = family["difference_points"].to_numpy(float) / POINTS
        num_seeds, num_units = family[["num_seeds", "num_units"]].to_numpy(float).T
        table.loc[family.index, "p"] = moderated_p(differences, squares, num_seeds, num_units)
    p = table["p"].groupby(table["is_headline"].astype(bool))
    q = p.transform(lambda p_values: benjamini_hochberg(p_values.to_numpy()))
    family_sizes = p.transform("count")  # without those that have no p
    verdicts_alone = map(Verdict, table["verdict"], table["reason"])
    judged = [
        among(alone, claim_q, int(num_claims), alpha)
        for alone, claim_q, num_claims in zip(verdicts_alone, q, family_sizes, strict=True)
    ]
    return table.assign(
        q=q, verdict=[verdict.name for verdict in judged], reason=[verdict.reason for verdict in judged]
    )


def compare_pair(pair: ConditionPair, settings: Settings) -> Lines:
    """The records of one pair: each labelled split, the headline score and, where that is another, accuracy.

    Each is judged alone, without a q: that needs all pairs.
    """
    conditions = (pair.first, pair.second)
    run = pair.first.runs[0]
    if not any(any_run.splits for condition in conditions for any_run in condition.runs):
        return []  # nobody scored any of them
    key: dict[str, Any] = {
        "model": run.model,
        "task": run.task,
        "first": pair.first.label,
        "second": pair.second.label,
        "num_seeds": len(pair.runs),
        "size": pair.first.size,
        "num_train_examples": pair.first.num_train_examples,
    }
    has_accuracy = not run.is_regression and (not run.is_recorded or "accuracy" in run.headlines)
    scores = [run.score, *(["accuracy"] if has_accuracy and run.score != "accuracy" else [])]
    if not pair.splits:
        key |= {"split": run.reported_split, "is_reported_split": True, "score": scores[0], "is_headline": True}
        return [key | {"num_items": 0, "reason": NO_SPLIT if pair.runs else NO_SEED, "verdict": "", "note": ""}]
    failed_conditions = [condition for condition in conditions if condition.num_failed == len(condition.runs)]
    has_collapsed = len(failed_conditions) == len(conditions)
    # What to know of a verdict on conditions that learned nothing; where both failed, that is what refuses it.
    notes = [] if has_collapsed else [f"every run of {condition.label} failed" for condition in failed_conditions]
    if not has_collapsed and all(condition.num_at_chance == len(condition.runs) for condition in conditions):
        notes = [AT_CHANCE]
    any_run, _ = pair.runs[0]
    records = []
    for split in pair.splits:
        one_class = ONE_CLASS if any_run.holds_one_class(split) else ""
        refusal = COLLAPSED if has_collapsed else one_class
        split_facts = {"split": split, "is_reported_split": split == run.reported_split}
        split_facts["num_items"] = any_run.num_items(split)
        for score in scores:
            record = _compare_score(pair, split, score, settings) | {"is_headline": score == run.score}
            if refusal and record["verdict"]:  # the numbers stay; what was not compared says so already
                record |= {"verdict": "not measurable here", "reason": refusal}
            record |= {name: "; ".join(filter(None, (record[name], *notes))) for name in ("note", "reason")}
            records.append(key | split_facts | record)
    return records


def _compare_score(pair: ConditionPair, split: str, score: str, settings: Settings) -> dict[str, Any]:
    """The record of one score of one split: means, estimates and noise floor; a reason alone where items differ."""
    record: dict[str, Any] = {"score": score, "reason": pair.note_on_items(split), "verdict": "", "note": ""}
    if record["reason"]:
        return record
    record["noise_floor_points"] = 100 * noise_floor(pair, split, score)
    recorded, counted = pair.scores(split, score, last_score), pair.scores(split, score)
    values = pair.unit_scores(split, score)
    if values is not None and score == "accuracy":
        recorded = counted = values.mean(axis=2)
    is_known = ~np.isnan(recorded).any(axis=0)
    is_counted = ~np.isnan(counted).any(axis=0)
    differences = counted[0] - counted[1]
    if values is not None and is_counted.any():
        item_differences = values[0] - values[1]
        # Equal answers throughout bound an accuracy, and no other score, by the number of items.
        if score == "accuracy" or not is_constant(item_differences[is_counted], 1.0):
            differences = item_differences
    if differences.ndim == 1:
        why = "" if values is not None else _why_over_seeds(pair, split, score)
        record |= estimate_from_seeds(differences, settings, why)
    else:
        record |= estimate_from_items(differences, settings, *_items_beneath(pair, split, score, differences))
        record["num_units"] = differences.shape[1]
        if differences.shape[1] < pair.runs[0][0].num_items(split):
            record["note"] = "; ".join(filter(None, (record["note"], CLUSTERED.format(differences.shape[1]))))
    num_constant = int((np.isnan(recorded) & ~np.isnan(counted)).sum())
    if num_constant:
        note = f"{num_constant} of {counted.size} runs give every item one answer: their correlation counts as 0"
        record["note"] = "; ".join(filter(None, (record["note"], note)))
    record["note"] = "; ".join(filter(None, (record["note"], "" if pair.has_seeds else NO_SEEDS)))
    first_scores, second_scores = counted[:, is_counted]  # of the seeds in which both are defined
    first_mean, second_mean = (
        (float(first_scores.mean()), float(second_scores.mean())) if is_counted.any() else (np.nan, np.nan)
    )
    record |= {"num_seeds": len(first_scores), "first_mean": first_mean, "second_mean": second_mean}
    if num_constant or pair.is_failed.any():
        return record | estimate_not_failed(differences[is_known & ~pair.is_failed], settings, score == "accuracy")
    return record | {name: record.get(name.removesuffix("_not_failed"), np.nan) for name in NOT_FAILED_COLUMNS}


def _items_beneath(pair: ConditionPair, split: str, score: str, differences: Array) -> tuple[Array, ...]:
    """The (seeds, items) differences of single items beneath those of a score, and of their accuracy; () of numbers.

    Of a word alone no entity is right or wrong: of entities they are those of sentences, right where every word is.
    """
    has_right = score in ("accuracy", *SCORES_OF_ANSWERS, *ENTITY_SCORES)
    right = pair.unit_scores(split, "accuracy", in_clusters=False) if has_right else None
    needs_influence = right is not None and score != "accuracy"
    items = pair.unit_scores(split, score, in_clusters=False) if needs_influence else right
    if right is None or items is None:
        return ()
    if not (pair.runs[0][0].is_token_task and score in ENTITY_SCORES):
        return items[0] - items[1], right[0] - right[1]
    sentences: Any = clusters_of([run for runs in pair.runs for run in runs], split)
    words = pd.DataFrame(right.reshape(-1, right.shape[2]).T, index=pair.runs[0][0].answers[split].index)
    exact = words.groupby(sentences.reindex(words.index).to_numpy()).min().to_numpy().T
    return differences, np.subtract(*exact.reshape(2, right.shape[1], -1))


@with_columns
def compare_seeds(runs: Runs, *, pairs: Pairs | None = None, labels: Labels | None = None) -> pd.DataFrame:
    """One line per group, split, pair of conditions and seed.

    A p value covers the items of that split and no other seeds; of items in clusters the test is of the clusters that
    one run has more of right and those that the other has. ``q`` is the Benjamini-Hochberg value over the family
    of all McNemar tests of this call. ``pairs`` and ``labels`` as in :func:`toolkit.compare`.
    """
    groups = arrange(runs, labels)
    check_pairs(groups, pairs)
    records = [
        {"group": group.title, "first": pair.first.label, "second": pair.second.label} | record
        for group in groups
        for pair in pair_conditions(group, pairs)
        for record in _records_of_seeds(pair)
    ]
    table = pd.DataFrame(records, columns=columns_of("compare_seeds"))
    table["q"] = benjamini_hochberg(table["mcnemar_p"].to_numpy(dtype=float))
    return table.astype({"seed": "Int64" if table["seed"].isna().any() else int}) if records else table


def _records_of_seeds(pair: ConditionPair) -> Lines:
    """A record per pair of runs and split that both have, and one per seed that one condition lacks; ordered by seed.

    Where the two runs scored other items, or one is missing, the record has a reason in place of scores.
    """
    records = []
    for first, second in pair.runs:
        key = {"model": first.model, "task": first.task, "seed": first.seed, "score": first.score}
        for split in (split for split in first.splits if split in second.splits):
            record = key | {"split": split, "num_items": first.num_items(split), "reason": ""}
            if not have_same_items(first, second, split):
                records.append(record | {"reason": OTHER_ITEMS})
                continue
            first_score, second_score = counted_score(first, split), counted_score(second, split)
            record |= {
                "first_score": first_score,
                "second_score": second_score,
                "difference_points": 100 * (first_score - second_score),
            }
            has_items = split in first.answers and split in second.answers
            # Words of a sentence are no independent items.
            if has_items and not (first.is_regression or first.is_token_task):
                ids = first.answers[split].index
                right: Any = [item_scores(run, split, "accuracy", ids) for run in (first, second)]
                differences = np.subtract(*right)
                num_only_first, num_only_second = (int((sign * differences > 0).sum()) for sign in (1, -1))
                record |= {"num_only_first_right": num_only_first, "num_only_second_right": num_only_second}
                clusters = clusters_of((first, second), split)
                if clusters is not None:  # each counts once, whatever its size, for the run that has more of it right
                    differences = np.bincount(pd.factorize(clusters.reindex(ids))[0], differences)
                record |= {"mcnemar_p": mcnemar(*(int((sign * differences > 0).sum()) for sign in (1, -1)))}
            records.append(record)
    for condition, other_condition in ((pair.first, pair.second), (pair.second, pair.first)):
        of_seed = f"run of this seed under {other_condition.label}"
        of_order = f"run of {other_condition.label} is left"
        missing: dict[str, Any] = {"split": "", "reason": f"no {of_seed if pair.has_seeds else of_order}"}
        for run in (run for run in condition.runs if all(run not in paired for paired in pair.runs)):
            records.append({"model": run.model, "task": run.task, "seed": run.seed} | missing)
    return sorted(records, key=lambda record: (record["seed"] is None, record["seed"] or 0))


def _why_over_seeds(pair: ConditionPair, split: str, score: str) -> str:
    """Why an interval is over seeds alone, where the answers do not give the score of each item."""
    if not pair.has_answers(split):
        return NO_ANSWERS
    reference = pair.runs[0][0]
    are_same = all(have_same_items(reference, first_run, split) for first_run, _ in pair.runs)
    if not are_same:
        return OTHER_ITEMS_PER_SEED
    return OTHER_ACCURACY if score == "accuracy" else NO_MEAN


def estimate_from_items(
    differences: Array, settings: Settings, items: Array | None = None, right: Array | None = None
) -> dict[str, Any]:
    """The estimates of :func:`toolkit.compare` from (seeds, items) differences, each -1, 0 or 1 or any real share.

    With one seed the interval is over items, and no p rests on it; under three seeds there is no verdict. Seeds of NaN
    are left out and counted. Of a score that is no mean over items a difference is that of what each item weighs in it
    (:func:`toolkit.comparison.runs.item_scores`); of items in clusters that of the clusters. ``items``: the (seeds,
    items) differences beneath, of single items, and ``right``: those of their accuracy. Of both equivalence has its
    exact bound (:func:`toolkit.comparison.intervals.weigh_items`).
    """
    all_differences = differences
    is_known = ~np.isnan(all_differences).any(axis=1)
    differences = all_differences[is_known]
    # Sums over a cluster of what cancels there are 0 but for rounding.
    wide, narrow = (two_way_interval(differences, level, size=1.0) for level in (settings.level, EQUIVALENCE_LEVEL))
    if items is not None and wide.variance > 0:
        right = items if right is None else right
        wide, narrow = (
            weigh_items(interval, items[is_known], right[is_known] != 0, differences.shape[1])
            for interval in (wide, narrow)
        )
    # The bound moves every end a little: what is worth a word is that it decided.
    is_equivalent_by_t, is_equivalent = (
        max(-interval.low, interval.high) < settings.margin_points / POINTS
        for interval in (narrow, held_near_0(narrow))
    )
    is_held = is_equivalent_by_t and not is_equivalent
    note = "; ".join(filter(None, (wide.note, HELD * is_held, _note_on_undefined(differences, all_differences))))
    record = _judged_record(wide, narrow, differences.mean(axis=1), settings) | {"note": note}
    if min(differences.shape) < 2 or not wide.variance > 0:
        return record
    squares = zip(SQUARE_COLUMNS, mean_squares(differences), strict=True)
    return record | {name: POINTS**2 * square for name, square in squares}


def _note_on_undefined(defined: Array, differences: Array) -> str:
    """A note on how many seeds were left out; empty for none."""
    num_undefined = len(differences) - len(defined)
    return f"undefined in {num_undefined} of {len(differences)} seeds" if num_undefined else ""


def estimate_from_seeds(differences: Array, settings: Settings, note: str = NO_MEAN) -> dict[str, Any]:
    """The estimates of :func:`toolkit.compare` from (seeds,) differences of a score; NaN ones are left out and counted.

    A run that collapsed must not be among the NaN: what it lost would not count (counted_score makes it 0). For scores
    that the answers do not give, where items differ between seeds, and where no answers are at hand: ``note`` says
    which.
    """
    defined = differences[~np.isnan(differences)]
    notes = [note, *filter(None, [_note_on_undefined(defined, differences)])]
    if not len(defined):
        record: dict[str, Any] = {
            "difference_points": np.nan,
            "margin_points": settings.margin_points,
            "verdict": "not measurable here",
            "note": "; ".join(filter(None, notes)),
        }
        return record | {"reason": "; ".join(notes[1:]) or "no seed"}
    wide, narrow = (seeds_interval(defined, level) for level in (settings.level, EQUIVALENCE_LEVEL))
    notes += [wide.note] if np.isnan(wide.low) else []  # why there is none; what one covers is in the note above
    return _judged_record(wide, narrow, defined, settings) | {"note": "; ".join(filter(None, notes))}


def estimate_not_failed(differences: Array, settings: Settings, is_accuracy: bool = True) -> dict[str, Any]:
    """NOT_FAILED_COLUMNS from (pairs, items) or (pairs,) differences of pairs of runs of which neither failed.

    NaN is left out; with fewer than two pairs all but their number is NaN. Equal answers throughout bound an accuracy
    by the number of items, and no other score.
    """
    if differences.size and not is_accuracy and is_constant(differences, 1.0):
        differences = differences.reshape(len(differences), -1)[:, 0]
    defined = differences[~np.isnan(differences)] if differences.ndim == 1 else differences
    if len(defined) < 2:
        return dict.fromkeys(NOT_FAILED_COLUMNS, np.nan) | {NOT_FAILED_COLUMNS[0]: len(defined)}
    interval = interval_of(defined, settings.level)
    values = (len(defined), POINTS * interval.estimate, POINTS * interval.low, POINTS * interval.high)
    return dict(zip(NOT_FAILED_COLUMNS, values, strict=True))


def _judged_record(wide: Interval, narrow: Interval, by_seed: Array, settings: Settings) -> dict[str, Any]:
    """A record with its verdict, judged alone, from the intervals at both levels and the (seeds,) differences."""
    num_seeds = len(by_seed)
    by_seed = np.where(np.abs(by_seed) <= ROUNDING, 0.0, by_seed)
    narrow = held_near_0(narrow)
    low, high = POINTS * wide.low, POINTS * wide.high
    low90, high90 = POINTS * narrow.low, POINTS * narrow.high
    gap = POINTS * detectable_gap(wide, alpha=settings.alpha)
    judged = verdict(
        num_seeds=num_seeds,
        low=low,
        high=high,
        low90=low90,
        high90=high90,
        margin=settings.margin_points,
        gap=gap,
        do_seeds_differ=not is_constant(by_seed, 1.0),
    )
    return {
        "difference_points": POINTS * wide.estimate,
        "low_points": low,
        "high_points": high,
        "df": wide.df,
        "p": p_value(wide) if num_seeds > 1 else np.nan,
        "low90_points": low90,
        "high90_points": high90,
        "sign_flip_p": sign_flip(by_seed),
        "smallest_p": smallest_p(num_seeds),
        "margin_points": settings.margin_points,
        "detectable_gap_points": gap,
        "verdict": judged.name,
        "reason": judged.reason,
    } | dict.fromkeys(SQUARE_COLUMNS, np.nan)
