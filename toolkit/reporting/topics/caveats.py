"""What a reader of a comparison must know: which lines count, what linear probes reached, and what weakens a claim."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Arm, Group, ReportedRun, differing_settings, pair_arms, settings
from toolkit.comparison.compare import NO_MEAN, OTHER_ITEMS_PER_SEED
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.runs import CORRELATIONS, last_score, reported_first
from toolkit.reporting.cells import listing, number, points
from toolkit.reporting.page import Block, NoteBlock, table_block
from toolkit.schema import columns_of, with_columns


def headline(comparison: pd.DataFrame) -> pd.DataFrame:
    """The lines of a comparison that are about the headline score: accuracy may stand beside another one."""
    return comparison[comparison["is_headline"].astype(bool)]


def largest_size(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of the most training examples of each group, where its runs differ in it.

    By ``size``, what the runs were asked for (none is all of them), where the table has it.
    """
    if "size" in table:
        asked = pd.to_numeric(table["size"]).astype("Float64").fillna(np.inf).astype(float)
        return table[asked == asked.groupby(table["group"], sort=False).transform("max")]
    sizes = pd.to_numeric(table["num_train_examples"]).astype(float)
    greatest = sizes.groupby(table["group"], sort=False).transform("max")
    # Near-duplicates are removed per seed, so that arms of one size may differ by a few examples.
    return table[sizes.isna() | (sizes > 0.9 * greatest)]


def covered(comparison: pd.DataFrame) -> str:
    """What the intervals of these lines are over: ``seeds and items``, ``seeds (f1)``; '' where there are none.

    A score that is no mean over items, or one whose items differ between seeds, has an interval over seeds.
    """
    scores: dict[str, list[str]] = {}
    for line in comparison[comparison["low_points"].notna()].to_dict("records"):
        is_over_seeds = str(line.get("note", "")).startswith((NO_MEAN, OTHER_ITEMS_PER_SEED))
        over = "seeds" if is_over_seeds else "seeds and items" if line["num_seeds"] > 1 else "items only"
        scores.setdefault(over, []).append(str(line["score"]))
    if len(scores) < 2:
        return "".join(scores)
    return " or ".join(f"{over} ({listing(list(dict.fromkeys(own)))})" for over, own in scores.items())


def reach_points(score: str) -> float:
    """The greatest difference that two values of a score can have, in points: correlations may be below 0."""
    return 200.0 if score in CORRELATIONS else 100.0


def task_names(table: pd.DataFrame) -> pd.Series:
    """What to call the task of each line: with the model where there are several."""
    names = table["group"].astype(str)
    if table["model"].nunique() != 1:
        return names
    return names.str.removeprefix(f"{table['model'].iloc[0]} on ")


GAPS = ("full_minus_reached_points", "full_minus_linear_probe_points")
SHOWN = ("group", "condition", "split", "score", "reached", "linear_probe", *GAPS)


@with_columns
def linear_probes(groups: Sequence[Group]) -> pd.DataFrame:
    """One line per group, feature-extraction arm and split that has a recorded linear probe.

    Of the headline score, means over the seeds that recorded one. ``full_minus_...`` is over the seeds that both
    conditions have, NaN without full fine-tuning of the same size. Of several of these it is the one that differs from
    the features' in the fewest settings (the same pooling, say). A probe is of the training loss with its strength
    chosen within train: on held-out data a head may come out above it.
    """
    lines = [
        {"group": group.title} | line
        for group in groups
        for arm in group.arms
        if arm.is_feature_extraction
        for line in _lines(arm, _full_beside(arm, group))
    ]
    return pd.DataFrame(lines, columns=columns_of("linear_probes")).astype({"size": "Int64"})


def probe_score(run: ReportedRun, split: str, score: str) -> float:
    """The linear probe that a run recorded, NaN without one."""
    value = (run.linear_probe.get(split) or {}).get(score)
    return np.nan if value is None else float(value)


def _full_beside(arm: Arm, group: Group) -> Arm | None:
    own = settings(arm.runs[0])

    def num_other(full: Arm) -> int:
        return sum(own[name] != value for name, value in settings(full.runs[0]).items())

    return min((one for one in group.arms if one.is_full and one.size == arm.size), key=num_other, default=None)


def _lines(arm: Arm, full: Arm | None) -> Iterable[dict[str, Any]]:
    first = arm.runs[0]
    for split in reported_first(first.answers, [first.reported_split]):
        own = [run for run in arm.runs if not np.isnan(probe_score(run, split, first.score))]
        if own:
            yield {
                "model": first.model,
                "task": first.task,
                "condition": arm.base or arm.label,
                "against": (full.base or full.label) if full else "",
                "size": arm.size,
                "split": split,
                "is_reported_split": split == first.reported_split,
                "is_out_of_distribution": split in first.out_of_distribution,
                "score": first.score,
                "num_seeds": len(own),
            } | _numbers(own, full, split)


def _numbers(runs: Sequence[ReportedRun], full: Arm | None, split: str) -> dict[str, float]:
    score = runs[0].score
    table = pd.DataFrame(
        {
            "reached": [last_score(run, split, score) for run in runs],
            "linear_probe": [probe_score(run, split, score) for run in runs],
        },
        index=[run.config.seed for run in runs],
    )
    others = {run.config.seed: last_score(run, split, score) for run in full.runs} if full else {}
    table["full"] = pd.Series(others, dtype=float).reindex(table.index)
    numbers = {"reached": table["reached"].mean(), "linear_probe": table["linear_probe"].mean()}
    numbers["missed_points"] = 100 * (table["linear_probe"] - table["reached"]).mean()
    for name in ("reached", "linear_probe"):
        numbers[f"full_minus_{name}_points"] = 100 * (table["full"] - table[name]).mean()
    return {name: float(value) for name, value in numbers.items()}


def short_of_probe(table: pd.DataFrame, margin_points: float) -> list[str]:
    """A sentence per task on which the trained head stays below its linear probe by more than the margin.

    Only reported splits count, and only tasks where the head beats the probe on no split of the same distribution: one
    that is beaten is no yardstick for what training lost.
    """
    is_beaten = (table["missed_points"] < 0) & ~table["is_out_of_distribution"].astype(bool)
    beaten = set(zip(table.loc[is_beaten, "group"], table.loc[is_beaten, "condition"], strict=True))
    is_short = table["is_reported_split"].astype(bool) & (table["missed_points"] > margin_points)
    return [
        f"{line['group']}: the trained head of {line['condition']} reaches {number(line['reached'])} where the linear "
        f"head that cross-validation finds on the same features reaches {number(line['linear_probe'])}: that much of a "
        "difference to full fine-tuning is the head's training, not its features."
        for line in table[is_short].to_dict("records")
        if (line["group"], line["condition"]) not in beaten
    ]


def against_probe_block(table: pd.DataFrame) -> tuple[Block, ...]:
    """Full fine-tuning minus the linear probe beside full minus reached, every task; nothing without linear probes."""
    if table.empty or table["full_minus_linear_probe_points"].isna().all():
        return ()
    shown = table.assign(**{name: [points(value) for value in table[name]] for name in GAPS})
    arms = listing(list(dict.fromkeys(table["against"])))
    caption = f"Features or optimisation: {arms} minus the trained head, and minus the linear head of cross-validation"
    above = table[table["missed_points"] < -1]
    if above.empty:
        return (table_block(shown, SHOWN, caption),)
    where = listing(list(dict.fromkeys(task_names(table).loc[above.index])))
    text = (
        f"On {where} the trained head comes out above the recorded linear probe by more than a point: it is a "
        "yardstick, no bound."
    )
    return (table_block(shown, SHOWN, caption), NoteBlock(text=text))


NOT_KEPT = (
    "The evidence of this report is of an earlier version. It did not keep how single rows moved (the words' map, "
    "strata, positions, tokens), drift over epochs and its yardstick, linear probes, costs, and versions and machines."
)
MINILM = (
    "The embedded model minilm (all-MiniLM-L6-v2) is a BERT that was tuned on single sentences, through the mean of "
    "their tokens. Features of single sentences look better by it than raw BERT's would, those of pairs read as one "
    "sequence worse: a claim about BERT needs a second, raw backbone."
)
UNSTABLE_POINTS = 20
"""A chosen setting is called unstable if it scored more than this above the final runs (ours)."""


def caveats(data: ReportData) -> list[str]:
    """What has to be read with any number of the report: failed runs, settings, model, seeds."""
    said = (broken_freezes, failures, below_floor, unstable, edge_warning)
    sentences = [text for text in (say(data) for say in said) if text]
    sentences += short_of_probe(linear_probes([own.group for own in data.details]), _margin(data))
    sentences += [*data.left_out, *([] if data.is_whole else [NOT_KEPT])]
    if any(str(run.model) == "minilm" for run in data.runs):
        sentences.append(MINILM)
    if data.num_seeds == 1:
        over = covered(headline(data.comparison))
        what = "intervals cover the items and say nothing of other seeds" if over else "nothing is said of other seeds"
        sentences.append(f"Every condition has one seed: {what}.")
    return sentences


def broken_freezes(data: ReportData) -> str:
    """Parameters that a run froze and that changed all the same, by its hashes or its snapshots; '' without any."""
    drift = data.evidence.drift
    drift = drift[drift["has_moved"].astype(bool)]
    moved = set(zip(drift["run"], drift["parameter"], strict=True))
    found = []
    for run in data.runs:
        names = [name for name, is_equal in run.frozen.items() if not is_equal or (run.name, name) in moved]
        found += [f"{run.name}: {', '.join(names)}"] if names else []
    return f"WARNING: these parameters were frozen and have changed all the same: {'; '.join(found)}." if found else ""


def _margin(data: ReportData) -> float:
    """The margin of the comparisons, 1 point where there are none."""
    margins = data.comparison["margin_points"].dropna() if len(data.comparison) else data.comparison
    return float(margins.max()) if len(margins) else 1.0


def failures(data: ReportData) -> str:
    """Runs that failed, and those that do not beat the majority class by more than chance; '' for one task without."""
    failed, chance = _by_arm(data, "is_failed"), _by_arm(data, "is_at_chance")
    count, num_failed = len(data.runs), sum(run.is_failed for run in data.runs)
    text = f"None of {count} runs failed"
    if failed:
        text = (
            f"{num_failed} of {count} runs failed (majority class or worse, or undefined, on the reported split): "
            f"{listing(failed)}"
        )
    if chance:
        is_all = all(run.is_at_chance for run in data.runs if run.is_failed)
        among = ", the failed ones included," if failed and is_all else ""
        text += (
            f". {sum(bool(run.is_at_chance) for run in data.runs)} of {count} runs{among} do not beat always giving "
            f"the most frequent label by more than chance: {listing(chance)}"
        )
    return f"{text}." if failed or chance or len(data.groups) > 1 else ""


def below_floor(data: ReportData) -> str:
    """Arms whose mean score on a split is below a bag of words that was fitted to the same examples; '' for none."""
    own = largest_size(data.floors)
    own = own[own["above_bag_of_words_points"] < -1e-9]  # and not by the rounding of a mean
    parts = [
        f"{line['base']} ({number(line['mean'])}) is below a bag of words ({number(line['bag_of_words'])}) on "
        f"{name} {line['split']}"
        for name, line in zip(task_names(own), own.to_dict("records"), strict=True)
    ]
    return f"{_sentence('; '.join(parts))}." if parts else ""


def _by_arm(data: ReportData, quality: str) -> list[str]:
    """``feature extraction 5 (pair)`` for every arm that has runs of this quality."""
    arms = [(arm.base or arm.label, arm.runs) for group in data.groups for arm in group.arms]
    found = [(label, run.task) for label, runs in arms for run in runs if bool(getattr(run, quality, False))]
    several = len(data.groups) > 1
    parts = []
    for label in dict.fromkeys(label for label, _ in found):
        tasks = [task for each, task in found if each == label]
        where = f" ({listing(list(dict.fromkeys(tasks)))})" if several else ""
        parts.append(f"{label} {len(tasks)}{where}")
    return parts


def unstable(data: ReportData) -> str:
    """Arms whose chosen setting scored far better when it was chosen than in the final runs; '' without any."""
    table = data.tuning
    if table is None or "mean_score" not in table:
        return ""
    chosen = table[table["is_chosen"].astype(bool)]
    scores = {(line["task"], line["condition"]): line for line in chosen.to_dict("records")}
    parts = []
    for arm in (arm for own in data.details for arm in own.group.arms):  # of the most training examples
        first, label = arm.runs[0], arm.base or arm.label
        line = scores.get((first.task, label))
        if line is None or line.get("score", first.score) != first.score:
            continue
        final, count = float(np.mean([last_score(run, run.reported_split) for run in arm.runs])), len(arm.runs)
        if 100 * (line["mean_score"] - final) > UNSTABLE_POINTS:
            runs = f"mean of {count} final runs" if count > 1 else "the final run"
            scored = f"{number(line['mean_score'])} when it was chosen, {number(final)} on {first.reported_split}"
            parts.append(f"{label} on {first.task} ({scored}, {runs})")
    return f"Chosen, and unstable: {'; '.join(parts)}." if parts else ""


def edge_warning(data: ReportData) -> str:
    """Arms whose chosen setting is the last of its grid on a side where the score still rose; '' without any."""
    table = data.tuning
    if table is None or "is_at_edge" not in table:
        return ""
    is_at_edge = table["is_at_edge"].fillna(False).astype(bool) & table["is_chosen"].astype(bool)
    tasks = (
        table[is_at_edge].groupby("condition", sort=False)["task"].agg(lambda own: listing([str(task) for task in own]))
    )
    if tasks.empty:
        return ""
    parts = [f"{arm} on {own}" for arm, own in tasks.items()]
    return f"Chosen at the edge of a grid, which may do better: {'; '.join(parts)}."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def pair_caveats(data: ReportData) -> list[str]:
    """Sentences on pairs that differ in more than the regime, and on seeds that one side of a pair lacks."""
    differing: dict[tuple[str, str, str], list[str]] = {}
    for group in data.groups:
        compared = data.seeds.loc[data.seeds["group"] == group.title, ["first", "second"]].drop_duplicates()
        for pair in pair_arms(group, [(str(a), str(b)) for a, b in compared.to_numpy()]):
            names = [name.replace("_", " ") for name in differing_settings(pair.first, pair.second)]
            one, other = (side.base or side.label for side in (pair.first, pair.second))
            if names:
                differing.setdefault((one, other, listing(names)), []).append(group.title)
    sentences = []
    for (one, other, said), titles in differing.items():
        where = f" ({listing(list(dict.fromkeys(titles)))})" if len(set(titles)) < len(data.groups) else ""
        sentences.append(f"{one} and {other} differ, besides the regime, in {said}{where}.")
    for line in data.seeds[data.seeds["split"] == ""].itertuples():
        sentences.append(f"Seed {line.seed} of {line.first} and {line.second} is not compared: {line.reason}.")
    return sentences
