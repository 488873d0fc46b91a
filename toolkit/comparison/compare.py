"""Arms compared on the same items, paired by seed: over all seeds, and seed by seed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.arms import (
    NO_SEED,
    NO_SPLIT,
    OTHER_ITEMS,
    Arm,
    ArmPair,
    Group,
    Labels,
    Pairs,
    arrange,
    check_pairs,
    have_same_items,
    noise_floor,
    pair_arms,
)
from toolkit.comparison.estimates import (
    NOT_FAILED,
    Array,
    Settings,
    estimate_from_items,
    estimate_from_seeds,
    estimate_not_failed,
)
from toolkit.comparison.runs import ReportedRun, counted_score
from toolkit.comparison.tests import mcnemar
from toolkit.comparison.verdicts import Verdict, among
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run

COLLAPSED = "every run of both conditions failed: nothing was learned that could differ"
ONE_CLASS = "the split holds one class: an answer that never changes would be right on all of it"
AT_CHANCE = "no run of either condition is above the majority class by more than chance"

INTEGERS = ("size", "num_seeds_not_failed", "num_at_chance_first", "num_at_chance_second")
"""Counts that may be missing (Int64, NA)."""


@with_columns
def compare(
    runs: Sequence[Run | str | Path],
    *,
    pairs: Pairs | None = None,
    margin_points: float = 1.0,
    level: float = 0.95,
    alpha: float = 0.05,
    labels: Labels | None = None,
    num_draws: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """One line per group, labelled split and pair of conditions of one size; points are hundredths.

    The difference is first minus second, on the same items, paired by seed, at the last epochs. The interval of an
    accuracy is over seeds and items; of a score that is no mean over items (matthews, pearson) it is a t interval over
    seeds, and an accuracy line stands beside it in classification. ``p`` is the test of that interval. ``q`` is over
    one family, all lines of headline scores of this call (the accuracy lines beside other headline scores are a family
    of their own). A correlation that is undefined because a run gives every item one answer counts as 0; one that is
    undefined for another reason leaves its seed out. ``..._not_failed`` is from defined scores only: NaN when fewer
    than two pairs of runs are left, the same when all are.

    On a split whose items all have one label the claim is not measurable, nor where every run failed: the difference is
    given and no verdict rests on it.

    ``pairs``: labels (first, second); by default full fine-tuning against each other one, or all pairs without it.
    ``labels``: run directory name to condition. One paired seed gives an interval over items and no p. Elsewhere:
    McNemar's test per seed (:func:`toolkit.compare_seeds`), the spread of each condition
    (:func:`toolkit.summarise_scores`) and its cost (:func:`toolkit.measure_cost`). ``num_draws``: of the bootstrap, 0
    for none. What cannot be compared is NaN with a ``reason``. ValueError for an unknown label and for settings out of
    range.
    """
    settings = Settings(margin_points=margin_points, level=level, alpha=alpha, num_draws=num_draws, seed=seed)
    return compare_groups(arrange(runs, labels), pairs, settings)


class PairLines:
    """The lines of pairs of arms (:func:`compare_pair`), those of each pair worked out once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._known: dict[tuple[Arm, Arm], list[dict[str, Any]]] = {}

    def of(self, pair: ArmPair) -> list[dict[str, Any]]:
        key = pair.first, pair.second
        if key not in self._known:
            self._known[key] = compare_pair(pair, self.settings)
        return self._known[key]


def compare_groups(
    groups: Sequence[Group],
    pairs: Pairs | None = None,
    settings: Settings | None = None,
    *,
    lines: PairLines | None = None,
) -> pd.DataFrame:
    """:func:`compare` of groups that are arranged already; ``lines``: where pairs are known, with its settings."""
    check_pairs(groups, pairs)
    known = lines or PairLines(settings or Settings())
    found = [
        {"group": group.title} | line for group in groups for pair in pair_arms(group, pairs) for line in known.of(pair)
    ]
    table = pd.DataFrame(found, columns=columns_of("compare")).astype(dict.fromkeys(INTEGERS, "Int64"))
    return judge_together(table, known.settings.alpha) if len(table) else table


def judge_together(table: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """Lines that were judged alone with their q, is_discovery, and what that leaves of their verdicts.

    q is over the lines of headline scores and over those beside them, as two families.
    """
    from toolkit.comparison.tests import benjamini_hochberg

    p = table["p"].astype(float).groupby(table["is_headline"].astype(bool))
    q, sizes = p.transform(lambda own: benjamini_hochberg(own.to_numpy())), p.transform("count")
    lines = zip(table["verdict"], table["reason"], q, sizes, strict=True)
    judged = [among(Verdict(name, reason), own, int(size), alpha) for name, reason, own, size in lines]
    names, reasons = ([getattr(one, part) for one in judged] for part in ("name", "reason"))
    return table.assign(q=q, is_discovery=q < alpha, verdict=names, reason=reasons)


def compare_pair(pair: ArmPair, settings: Settings) -> list[dict[str, Any]]:
    """The lines of one pair: each labelled split, the headline score and, where that is another, accuracy.

    Each is judged alone, without a q: that needs all pairs.
    """
    first = pair.first.runs[0]
    lead = _lead(pair)
    scores = [first.score, *([] if first.is_regression or first.score == "accuracy" else ["accuracy"])]
    if not pair.splits:
        lead |= {"split": first.reported_split, "is_reported_split": True, "score": scores[0], "is_headline": True}
        return [lead | {"num_items": 0, "reason": NO_SPLIT if pair.seeds else NO_SEED, "verdict": "", "note": ""}]
    lines = []
    for split in pair.splits:
        own = {"split": split, "is_reported_split": split == first.reported_split}
        own["num_items"] = len(pair.runs[0][0].answers[split])
        lines += [lead | own | {"is_headline": s == first.score} | _compared(pair, split, s, settings) for s in scores]
    one_class = {split for split in pair.splits if pair.runs[0][0].holds_one_class(split)}
    lines = [_refused(line, ONE_CLASS) if line["split"] in one_class else line for line in lines]
    if all(arm.num_failed == len(arm.runs) for arm in (pair.first, pair.second)):
        return [_refused(line, COLLAPSED) for line in lines]
    note = _note_on_failure(pair)
    if not note:
        return lines
    ends = [{k: "; ".join(filter(None, (line[k], note))) for k in ("note", "reason")} for line in lines]
    return [line | end for line, end in zip(lines, ends, strict=True)]


def _refused(line: dict[str, Any], reason: str) -> dict[str, Any]:
    """A line whose numbers stay and allow no verdict; one that was not compared says so already."""
    return (
        line | {"verdict": "not measurable here", "reason": reason, "is_equivalent": False} if line["verdict"] else line
    )


def _lead(pair: ArmPair) -> dict[str, Any]:
    run = pair.first.runs[0]
    lead: dict[str, Any] = {"model": run.model, "task": run.task, "num_seeds": len(pair.seeds)}
    lead |= {"size": pair.first.size, "num_train_examples": pair.first.num_train_examples}
    for name, arm in (("first", pair.first), ("second", pair.second)):
        lead |= {name: arm.label, f"num_failed_{name}": arm.num_failed, f"num_at_chance_{name}": arm.num_at_chance}
    return lead


def _note_on_failure(pair: ArmPair) -> str:
    """What to know of a verdict on arms that learned nothing; empty where some runs of both did."""
    arms = (pair.first, pair.second)
    if all(arm.num_at_chance == len(arm.runs) for arm in arms):
        return AT_CHANCE
    return "; ".join(f"every run of {arm.label} failed" for arm in arms if arm.num_failed == len(arm.runs))


def _compared(pair: ArmPair, split: str, score: str, settings: Settings) -> dict[str, Any]:
    """One score of one split: its means, estimates and noise floor; a reason alone where items differ."""
    line: dict[str, Any] = {"score": score, "reason": pair.note_on_items(split), "verdict": "", "note": ""}
    if line["reason"]:
        return line
    line["noise_floor_points"] = 100 * noise_floor(pair, split, score)
    right = pair.right_answers(split) if score == "accuracy" else None
    if right is not None:
        differences = right[0] - right[1]
        line |= _means(right.mean(axis=2)) | estimate_from_items(differences, settings)
        return line | _without_failed(pair, line, differences, settings)
    recorded, counted = pair.scores(split, score), pair.counted_scores(split, score)
    is_mean = score == "accuracy" and not pair.first.runs[0].is_token_task
    line |= _means(counted) | estimate_from_seeds(counted[0] - counted[1], settings, is_mean_over_items=is_mean)
    num_constant = int((np.isnan(recorded) & ~np.isnan(counted)).sum())
    if num_constant:
        note = f"{num_constant} of {counted.size} runs give every item one answer: their correlation counts as 0"
        line["note"] = f"{line['note']}; {note}"
    return line | _without_failed(pair, line, recorded[0] - recorded[1], settings, has_all=not num_constant)


def _means(scores: Array) -> dict[str, Any]:
    """Means of (2, seeds) scores over the seeds in which both are defined, and the number of these."""
    kept = scores[:, ~np.isnan(scores).any(axis=0)]
    first, second = kept.mean(axis=1) if kept.shape[1] else (np.nan, np.nan)
    return {"num_seeds": kept.shape[1], "first_mean": float(first), "second_mean": float(second)}


def _without_failed(
    pair: ArmPair, line: dict[str, Any], differences: Array, settings: Settings, *, has_all: bool = True
) -> dict[str, Any]:
    """NOT_FAILED of the (seeds, ...) differences; those of ``line`` where no run failed and every score counted."""
    if has_all and not pair.is_failed.any():
        return {name: line.get(name.removesuffix("_not_failed"), np.nan) for name in NOT_FAILED}
    return estimate_not_failed(differences[~pair.is_failed], settings)


@with_columns
def compare_seeds(
    runs: Sequence[Run | str | Path], *, pairs: Pairs | None = None, labels: Labels | None = None
) -> pd.DataFrame:
    """One line per group, split, pair of conditions and seed.

    A p value covers the items of that split and no other seeds. ``q`` is the Benjamini-Hochberg value over the family
    of all McNemar tests of this call. ``pairs`` and ``labels`` as in :func:`toolkit.compare`.
    """
    return compare_seeds_of_groups(arrange(runs, labels), pairs)


def compare_seeds_of_groups(groups: Sequence[Group], pairs: Pairs | None = None) -> pd.DataFrame:
    """:func:`compare_seeds` of groups that are arranged already."""
    from toolkit.comparison.tests import benjamini_hochberg

    check_pairs(groups, pairs)
    lines = [
        {"group": group.title, "first": pair.first.label, "second": pair.second.label} | line
        for group in groups
        for pair in pair_arms(group, pairs)
        for line in _lines_of_pair(pair)
    ]
    table = pd.DataFrame(lines, columns=columns_of("compare_seeds"))
    table["q"] = benjamini_hochberg(table["mcnemar_p"].to_numpy(dtype=float))
    return table.astype({"seed": int}) if lines else table


def _lines_of_pair(pair: ArmPair) -> list[dict[str, Any]]:
    """The lines of the pairs of runs and of the seeds that one arm lacks, in the order of the seeds."""
    lines = [line for first, second in pair.runs for line in compare_runs(first, second)]
    for arm, other in ((pair.first, pair.second), (pair.second, pair.first)):
        missing = f"no run of this seed under {other.label}"
        alone = [run for run in arm.runs if run.config.seed not in pair.seeds]
        lines += [_lead_of_run(run) | {"split": "", "reason": missing} for run in alone]
    return sorted(lines, key=lambda line: int(line["seed"]))


def _lead_of_run(run: ReportedRun) -> dict[str, Any]:
    return {"model": run.model, "task": run.task, "seed": run.config.seed}


def compare_runs(first: ReportedRun, second: ReportedRun) -> list[dict[str, Any]]:
    """One line per labelled split of both runs at their last epochs; a reason where the items are not the same."""
    lines = []
    for split, mine in first.answers.items():
        if split not in second.answers:
            continue
        other = second.answers[split]
        line = _lead_of_run(first) | {"split": split, "num_items": len(mine), "score": first.score, "reason": ""}
        if not have_same_items(first, second, split):
            line["reason"] = OTHER_ITEMS
        else:
            line |= _differences(first, second, split)
            if not (first.is_regression or first.is_token_task):  # words of a sentence are no independent items
                line |= _discordance(mine, other.loc[mine.index])
        lines.append(line)
    return lines


def _differences(first: ReportedRun, second: ReportedRun, split: str) -> dict[str, Any]:
    one, other = counted_score(first, split), counted_score(second, split)
    return {"first_score": one, "second_score": other, "difference_points": 100 * (one - other)}


def _discordance(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, Any]:
    one, other = (table["label"] == table["prediction"] for table in (first, second))
    only_first, only_second = int((one & ~other).sum()), int((other & ~one).sum())
    return {
        "num_only_first_right": only_first,
        "num_only_second_right": only_second,
        "accuracy_difference_points": 100 * (only_first - only_second) / len(first),
        "mcnemar_p": mcnemar(only_first, only_second),
    }
