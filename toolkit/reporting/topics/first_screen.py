"""The first screen of a comparison: a tile per condition, one picture, and three questions with their answers."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.cards import over_seeds
from toolkit.comparison.conditions import Condition
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.runs import STILL_FALLING, last_fall
from toolkit.comparison.shuffled_labels import ONE
from toolkit.comparison.verdicts import REFUSALS
from toolkit.config import MLM
from toolkit.families import EMBEDDING_PARAMETERS, LORA
from toolkit.reporting.cells import NOT_APPLICABLE, UNDEFINED, number
from toolkit.reporting.charts import COLOURS, Chart, altair, data_of, log_axis, look_of, tips
from toolkit.reporting.page import CANNOT_TELL, OPEN_VERDICTS, Answer, ChartBlock, Part, Tile, Tone, picture
from toolkit.reporting.topics.caveats import (
    FEW_SEEDS,
    below_floor,
    deciding,
    headline,
    largest_size,
    linear_probes,
    task_names,
)
from toolkit.reporting.topics.comparison import differences_chart, planned_gaps_text
from toolkit.reporting.topics.scores import LEAST_SEEDS

MOST_TILES = 6
MOST_PAIRS = 2
"""Comparisons that are answered on the first screen, and drawn there."""
SHORT = {"word_embeddings": "words", "position_embeddings": "positions", "token_type_embeddings": "segments"}
"""Embedding table to what its rows are."""
WHOLE = {"word_embeddings": "words (all rows)"}
"""What the picture calls them, where tiles tell the rows seen in training apart."""
WORDS = "word_embeddings"
NOT_MEASURABLE = REFUSALS[2]
HELD = " (added rows only)"
NO_SCORES = "no scores"
LEVEL = 0.95
WIDTH = 265
"""Pixels of a panel: beside the answers, and on a phone as it is."""

FREEZING = "Does freezing the embeddings change the score?"
EXTRACTION = "Is feature extraction as good as full fine-tuning?"
PROBED = "How far is full fine-tuning ahead of a cross-validated head on frozen features?"
MOVED = "Did the embeddings move?"
MOVED_TITLE = "How far the embeddings moved"
OF_NOISE = (
    "Drift of words seen in training over that of random steps of equal size: {times} (1: noise alone{differ}). By "
    "itself this does not show that anything was learned."
)
RATES_DIFFER = "; other learning rates on other tasks"
ADDED = "Do real labels move words otherwise than shuffled ones?"
FINDABLE = "How small a difference could these runs find?"
REST = "What is not shown up here?"
BEATEN = "Is every condition better than counting words?"
OPEN = "What can these runs not tell?"
OPEN_OF_DATA = "What can these data not tell?"


def tiles_of(data: ReportData) -> tuple[Tile, ...]:
    """One tile per condition: its score with an interval over seeds, and how far words, positions, segments moved."""
    return tuple(_tile(data, name, COLOURS[i % len(COLOURS)]) for i, name in enumerate(conditions(data)[:MOST_TILES]))


def conditions(data: ReportData) -> list[str]:
    """The names of the conditions, whatever the number of their training examples: in this order they have colours."""
    return list(dict.fromkeys(condition.base for condition in _conditions(data)))


def _conditions(data: ReportData) -> Iterable[Condition]:
    """The conditions of the most training examples of every group."""
    return (condition for tables in data.details for condition in tables.group.conditions)


def _tile(data: ReportData, name: str, colour: str) -> Tile:
    """The tile of one condition: its score, the range over tasks where there are several, and what moved."""
    scores = list(_scores(data, name).values())
    means = [f"{np.mean(values):.3f}" for values in scores]
    score_names = set(data.scores["score"])
    detail = score_names.pop() if len(score_names) == 1 else "score"
    value = means[0] if len(scores) == 1 else f"{min(means)} to {max(means)}" if scores else NO_SCORES
    detail += f", {len(scores)} tasks" if len(scores) > 1 else "".join(map(_sureness, scores))
    return Tile(title=name, value=value, detail=detail * bool(scores), lines=_tile_lines(data, name), colour=colour)


def _sureness(values: np.ndarray[Any, Any]) -> str:
    """The interval of a mean over seeds, where there are enough that differ, and how many runs it is of."""
    interval = over_seeds(values, LEVEL) if (len(values) >= LEAST_SEEDS and np.ptp(values) > 0) else None
    return (f", {number(interval.low)} to {number(interval.high)}" if interval else "") + f", runs: {len(values)}"


def _scores(data: ReportData, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Task to the headline score on the reported split of every seed of a condition."""
    table = largest_size(data.scores[data.scores["is_reported_split"].astype(bool)])
    condition_scores = table[table["base"] == name]
    return {
        str(task): task_scores["value"].to_numpy(np.float64)
        for task, task_scores in condition_scores.groupby(task_names(condition_scores), sort=False)
    }


def _tile_lines(data: ReportData, name: str) -> tuple[tuple[str, str], ...]:
    """How many runs failed, what was trained, and how far words, positions and segments moved."""
    conditions, kind, drifts = (
        [condition for condition in _conditions(data) if condition.base == name],
        _kinds(data)[name],
        drifts_of(data),
    )
    table_drifts = drifts[(drifts["condition"] == name) & drifts["parameter"].isin(SHORT)]
    num_failed, num_runs = (
        sum(condition.num_failed or 0 for condition in conditions),
        sum(len(condition.runs) for condition in conditions),
    )
    facts = [("failed", f"{num_failed} of {num_runs} runs")] if num_failed else []
    facts += (
        [("trained", "added rows, " * bool(table_drifts["is_held"].all()) + TRAINED[kind])] if kind in TRAINED else []
    )
    if (table_drifts["drift"] == 0).all():
        return (*facts, ("embeddings moved", _drift_text(table_drifts)))
    unit = " of norm" if len(data.details) == 1 else ""  # beside a range over tasks there is no room
    for parameter, rows_name in SHORT.items():
        facts.append((f"{rows_name} moved", _drift_text(table_drifts[table_drifts["parameter"] == parameter], unit)))
        if parameter == WORDS and (seen := _seen_drift_text(table_drifts)):
            facts.append(("those seen in training", seen))
    return tuple(facts)


OWN_HEAD = "own head"
TRAINED = {
    "full": "every parameter",
    "embeddings": "all but the embeddings",
    LORA: "adapters and a new head",
    "backbone": "only a new head",
    OWN_HEAD: "only the masked-LM head",
}
"""What a condition is to what is trained under it."""


def drifts_of(data: ReportData) -> pd.DataFrame:
    """A record per task, condition and embedding parameter: how far it moved at the last epoch, as shares.

    ``drift`` and ``exposed`` (of the rows that training exposed alone) are means over seeds of the relative drift;
    ``is_frozen``: every run proves it; ``is_held``: the condition trains of the word table the added rows alone.
    """
    records = [
        {
            "task": tables.group.title,
            "condition": condition.base,
            "parameter": parameter,
            "drift": _mean(tables.relative_drift(condition, parameter)),
            "exposed": _mean(tables.relative_drift(condition, parameter, of="exposed_")),
            "is_frozen": condition.is_proven_frozen(parameter),
            "is_held": condition.runs[0].setting("train_rows") == "new",
        }
        for tables in data.details
        for condition in tables.group.conditions
        for parameter in EMBEDDING_PARAMETERS
        if condition.has(parameter)
    ]
    return pd.DataFrame(records, columns=["task", "condition", "parameter", "drift", "exposed", "is_frozen", "is_held"])


def _drift_text(drifts: pd.DataFrame, unit: str = "") -> str:
    """Relative drift in per cent, the range over tasks where there are several, and the ``unit`` that follows it."""
    if drifts.empty:
        return NOT_APPLICABLE
    if (drifts["drift"] == 0).all():
        return "0, bit-identical" if drifts["is_frozen"].all() else "0 exactly"
    is_held = drifts["is_held"].all() and (drifts["parameter"] == WORDS).all()
    return _range_text(drifts["drift"]) + (HELD if is_held else unit)


def _seen_drift_text(drifts: pd.DataFrame) -> str:
    """The drift of the rows that training exposed alone: a table is mostly rows that no text used.

    Empty where nothing moved or added rows alone could, and where it is not known on every task which rows these are.
    """
    words = drifts[(drifts["parameter"] == WORDS)]
    is_known = (words["drift"] != 0).any() and not words["is_held"].all() and words["exposed"].notna().all()
    return _range_text(words["exposed"]) if is_known else ""


def _range_text(drifts: "pd.Series[float]") -> str:
    """The least and the greatest drift in per cent, once where they are equal."""
    ends = dict.fromkeys(UNDEFINED if end != end else f"{100 * end:.2g}" for end in (drifts.min(), drifts.max()))
    return f"{' to '.join(ends)} %"


def _mean(drift: np.ndarray[Any, Any]) -> float:
    """The mean of the seeds that have a value; NaN of none."""
    return float(np.nanmean(drift)) if not np.isnan(drift).all() else math.nan


def compared_of(data: ReportData) -> str:
    """The models, tasks, conditions and numbers of runs of a report, in one text."""
    runs, labels = data.runs, conditions(data)
    names = {name: dict.fromkeys(str(getattr(run, name)) for run in runs) for name in ("model", "task")}
    counts = dict.fromkeys(str(number) for number in sorted({len(condition.runs) for condition in data.conditions}))
    facts = {
        "Trained": ", ".join(names["model"]),
        "On": ", ".join(names["task"]) if len(names["task"]) < 4 else f"{len(names['task'])} tasks",
        f"Conditions ({len(labels)})": ", ".join(labels[:MOST_TILES]),
        "Runs of each": ", ".join(counts),
        "Runs": str(len(runs)),
    }
    return ". ".join(f"{name}: {text}" for name, text in facts.items()) + "."


def _findable_answer(data: ReportData) -> list[Answer]:
    """The answer on how small a difference so many seeds and items find; nothing without accuracies."""
    comparisons = compared(data)
    if comparisons.empty:
        return []
    comparisons = comparisons[(comparisons["score"] == "accuracy") & comparisons["num_items"].notna()].sort_values(
        "num_seeds", kind="stable"
    )
    units = comparisons["num_units"].fillna(comparisons["num_items"]).astype(int)
    in_clusters = comparisons["task_name"] + " (at most: items in clusters, which count as one each)"
    names = comparisons["task_name"].where(units == comparisons["num_items"], in_clusters)
    # Of each task the pair of conditions with the most seeds, which comes last.
    sizes = dict(zip(names, zip(comparisons["num_seeds"].astype(int), units, strict=True), strict=True))
    text = planned_gaps_text(sizes)
    return [Answer(question=FINDABLE, text=text)] if text else []


def answers_of(data: ReportData) -> tuple[Answer, ...]:
    """Whether the embeddings moved, of each of the first pairs whether they score alike, and what stays open."""
    comparisons = compared(data)
    pairs = list(dict.fromkeys(zip(comparisons["first_base"], comparisons["second_base"], strict=True)))
    kinds = _kinds(data)
    num_runs = {
        (group.title, condition.label): len(condition.runs) for group in data.groups for condition in group.conditions
    }
    answers = [
        _comparison_answer(
            comparisons[(comparisons["first_base"] == first) & (comparisons["second_base"] == second)],
            first,
            second,
            kinds,
            num_runs,
        )
        for first, second in pairs[:MOST_PAIRS]
    ]
    answers += _probe_answer(data)
    below = below_floor(data)
    answers += [Answer(question=BEATEN, verdict="no", text=below, tone="apart")] if below else []
    return (
        _drift_answer(data),
        *_labels_answer(data),
        *answers,
        *_rest_answer(data, pairs[MOST_PAIRS:]),
        *_findable_answer(data),
        _open_answer(data),
    )


def _probe_answer(data: ReportData) -> list[Answer]:
    """Full fine-tuning minus the linear probe of the same features, on reported splits; nothing without both."""
    table = largest_size(linear_probes([tables.group for tables in data.details])).query(
        "is_reported_split.astype('bool') and full_minus_linear_probe_points.notna()"
    )
    parts = tuple(
        Part(
            name=f"{task}, {record['condition']}",
            verdict=FEW_SEEDS.get(record["num_seeds"], f"{record['full_minus_linear_probe_points']:+.1f} points"),
            text=_span_text(record["low_points"], record["high_points"], 95)
            if record["low_points"] == record["low_points"] and record["num_seeds"] >= LEAST_SEEDS
            else f"{record['full_minus_linear_probe_points']:+.1f} points",
            tone="open" if record["num_seeds"] < LEAST_SEEDS else "",
        )
        for task, record in zip(task_names(table), table.to_dict("records"), strict=True)
    )
    text = (
        "Full fine-tuning minus the linear head that cross-validation within train finds on the features of a "
        "condition; intervals are over seeds. How the condition trained its own head has no part in it."
    )
    return [Answer(question=PROBED, text=text, parts=parts)] if parts else []


def _rest_answer(data: ReportData, pairs: Sequence[tuple[str, str]]) -> tuple[Answer, ...]:
    """The answer that names pairs and conditions beyond the first screen; nothing where it shows all."""
    other_pairs = [f"{first} minus {second}" for first, second in pairs]
    left_out = {"Pairs, under “How sure this is”": other_pairs, "Tiles": conditions(data)[MOST_TILES:]}
    sentences = [f"{kind}: {len(names)} more ({', '.join(names)})." for kind, names in left_out.items() if names]
    return (Answer(question=REST, verdict="", text=" ".join(sentences)),) if sentences else ()


def _open_answer(data: ReportData) -> Answer:
    """The answer on what no run here can say, and how many comparisons cannot tell."""
    table = largest_size(headline(data.comparison)) if len(data.comparison) else data.comparison
    is_decided = table["verdict"].isin(["supported", "equivalent"]) if len(table) else pd.Series([], dtype=bool)
    parts = ["Whether this holds for other models or tasks."]
    if not any(run.setting("shuffle_labels") for run in data.runs):
        has_labels = any(run.setting("objective") != MLM for run in data.runs)
        verb = "is known to have had" if any(run.is_recorded for run in data.runs) else "had"
        parts.append(
            "How much of the movement is learning" + (f": no run {verb} shuffled labels." if has_labels else ".")
        )
    parts += [*_at_ceiling(data), *_still_falling(data)]
    is_judged = table["verdict"] != "not judged" if len(table) else is_decided
    for num, verb in (
        (int((is_judged & ~is_decided).sum()), CANNOT_TELL),
        (int((~is_judged).sum()), "are not judged: three seeds are needed"),
    ):
        parts += [f"{num} of {len(is_decided)} comparisons {verb}."] if num else []
    return Answer(question=OPEN, verdict="", text=" ".join(parts))


def _at_ceiling(data: ReportData) -> list[str]:
    """Tasks on which two conditions or more leave nothing to gain: an equal score there may hide a difference."""
    scores = [_scores(data, name) for name in conditions(data)]
    tasks = dict.fromkeys(task for scores_of_condition in scores for task in scores_of_condition)
    saturated = [
        task
        for task in tasks
        if sum(
            scores_of_condition[task].mean() >= CEILING for scores_of_condition in scores if task in scores_of_condition
        )
        > 1
    ]
    return [f"What harder tasks would show: nothing is left to gain on: {', '.join(saturated)}."] if saturated else []


def _still_falling(data: ReportData) -> list[str]:
    """Conditions whose loss still fell in the last epoch: beside others they are shown too low."""
    falling = Counter(
        condition.base
        for condition in _conditions(data)
        for run in condition.runs
        if last_fall(run.scores, run.reported_split, run.setting("head_training")) > STILL_FALLING
    )
    total = Counter(condition.base for condition in _conditions(data) for _ in condition.runs)
    names = ", ".join(f"{number} of {total[name]} runs of {name}" for name, number in falling.items())
    start = (
        f"What more epochs would give: the loss on the reported split fell by more than {STILL_FALLING:.0%} in the last"
    )
    return [f"{start} epoch, in {names}. Beside what has converged these are shown too low."] if falling else []


def compared(data: ReportData) -> pd.DataFrame:
    """Headline comparisons on the reported splits, those with full fine-tuning first, frozen embeddings before all."""
    table = largest_size(headline(data.comparison)) if len(data.comparison) else data.comparison
    if table.empty:
        return table
    table = table[table["is_reported_split"].astype(bool)]
    kinds = _kinds(data)
    rank = {("full", "embeddings"): 0, ("full", "backbone"): 1}
    pairs = zip(table["first_base"], table["second_base"], strict=True)
    places = [rank.get((kinds.get(first, ""), kinds.get(second, "")), 2) for first, second in pairs]
    return table.assign(task_name=task_names(table), place=places).sort_values("place", kind="stable")


def _kinds(data: ReportData) -> dict[str, str]:
    """Condition to ``full``, or to its regime; what else a condition changes makes it neither."""
    return {
        condition.base: "full" if condition.is_full else _regime_of(condition) if _is_plain(condition) else ""
        for condition in _conditions(data)
    }


def _regime_of(condition: Condition) -> str:
    """The regime of a condition; feature extraction through the masked-LM head is one of its own."""
    regime = condition.runs[0].regime
    return OWN_HEAD if regime == "backbone" and not condition.is_feature_extraction else regime


def _is_plain(condition: Condition) -> bool:
    """Whether a condition changes nothing but what is frozen, as far as that is known."""
    if condition.runs[0].is_recorded:
        return True
    config = condition.runs[0].config
    return config.init == config.positions == "checkpoint" and not (config.shuffle_labels or config.reinject_positions)


def _drift_answer(data: ReportData) -> Answer:
    """Whether the embeddings moved, and how far under the first condition that moved them."""
    drifts = drifts_of(data)
    drifts = drifts[drifts["parameter"].isin(SHORT)]
    moved = drifts[drifts["drift"] != 0]
    if moved.empty:
        text = "Every embedding parameter is what it was at the first snapshot."
        return Answer(question=MOVED, verdict="no", text=text, tone="same")
    # Of the first condition alone: tiles and picture show the others.
    name = str(moved["condition"].iloc[0])
    condition_drifts = drifts[drifts["condition"] == name]
    movements = {
        SHORT[str(parameter)]: f"by {_drift_text(parameter_drifts)}"
        for parameter, parameter_drifts in condition_drifts.groupby("parameter", sort=False)
    }
    if seen_drift := _seen_drift_text(condition_drifts):
        movements["words"] += f" (those seen in training: {seen_drift})"
    joined = data.joined[(data.joined["base"] == name) & (data.joined["parameter"] == WORDS)]
    means = joined.groupby("group", sort=False)["times_noise"].mean().dropna()
    differ = RATES_DIFFER if joined["learning_rate"].nunique() > 1 else ""
    return moved_answer(f"Under {name}, in", movements, list(means), differ)


def moved_answer(start: str, found: Mapping[str, str], times_noise: Sequence[float], differ: str = "") -> Answer:
    """That the embeddings moved: what moved by how much, and the least and the most of its multiples of its noise."""
    text = f"{start or 'In'} % of their norm: {', '.join(f'{rows_name} {by}' for rows_name, by in found.items())}."
    if times_noise:
        ends = dict.fromkeys(f"{value:.1f}" for value in (min(times_noise), max(times_noise)))
        text += f" {OF_NOISE.format(times=' to '.join(ends), differ=differ)}"
    return Answer(question=MOVED, verdict="yes", text=text, tone="apart")


def _labels_answer(data: ReportData) -> tuple[Answer, ...]:
    """Whether real labels make seeds agree more than shuffled ones; nothing where no labels were shuffled for all."""
    table = data.labels
    if table.empty:
        return ()
    # Only against one permutation for all seeds has agreement a verdict.
    is_shown = (
        (table["measure"] == "agreement") & (table["parameter"] == "word_embeddings") & (table["permutation"] == ONE)
    )
    models = {group.title: group.runs[0].model for group in data.groups}
    agreement = table[is_shown].assign(model=table["group"].map(models))
    if agreement.empty:
        return ()
    texts_by_word: dict[str, list[str]] = {}
    for task, record in zip(task_names(agreement), agreement.to_dict("records"), strict=True):
        word_by_verdict = {"equivalent": "no", "supported": "yes", "the other way": "less alike than shuffled ones"}
        word = word_by_verdict.get(str(record["verdict"]), CANNOT_TELL)
        texts_by_word.setdefault(word, []).append(f"{task} {record['real_mean']:.2f} for {record['shuffled_mean']:.2f}")
    parts = "; ".join(f"{word}: {', '.join(texts)}" for word, texts in texts_by_word.items())
    text = f"Mean cosine between the moves of a word in two seeds, real labels for one shuffling of them all. {parts}."
    return (
        Answer(
            question=ADDED, verdict=_counts_text({word: len(texts) for word, texts in texts_by_word.items()}), text=text
        ),
    )


def _counts_text(num_tasks: Mapping[str, int]) -> str:
    """``worse on 4 of 7 tasks, cannot tell on 3 of 7 tasks``; the word alone where all tasks share it."""
    ranked, total = sorted(num_tasks.items(), key=lambda item: -item[1]), sum(num_tasks.values())
    return ranked[0][0] if len(ranked) == 1 else ", ".join(f"{word} on {num} of {total} tasks" for word, num in ranked)


SIZES: Mapping[str, tuple[str, str, Tone]] = {
    "equivalent": ("same score", "same score, within ±{margin:#.3g} points", "same"),
    "lower": ("worse", "{size:.1f} points worse", "apart"),
    "higher": ("better", "{size:.1f} points better", "apart"),
}
"""What a verdict says of the second condition, in a word, with its size, and of what kind it is: "no" alone would be
good news under one question and bad news under another. Lower and higher: its score, in a supported difference."""
CEILING = 0.995
"""A mean score from which on less than one example in two hundred is left to gain."""


def _comparison_answer(
    comparisons: pd.DataFrame,
    first: str,
    second: str,
    kinds: dict[str, str],
    num_runs: Mapping[tuple[str, str], int],
) -> Answer:
    """The answer to what one pair of conditions was compared for: the verdict, or how many tasks have which."""
    kind = (kinds.get(first), kinds.get(second))
    question = {("full", "embeddings"): FREEZING, ("full", "backbone"): EXTRACTION}.get(kind, "")  # type: ignore[arg-type]
    records = comparisons.to_dict("records")
    worded = [_worded_verdict(record) for record in records]
    scores = ", ".join(dict.fromkeys(map(_score_name, records)))
    parts = tuple(
        Part(
            name=str(record["task_name"]),
            verdict=word if tone == "same" else sized,
            text=_difference_text(record, num_runs),
            tone=tone,
        )
        for record, (word, sized, tone) in zip(records, worded, strict=True)
    )
    _, verdict, tone = worded[0]
    text = f"{first} minus {second}, in points of {scores}"
    # One task stands in the sentence, several in lines of their own.
    if len(parts) == 1:
        text, parts = f"{text}: {parts[0].name} {parts[0].text}", ()
    else:
        counts = Counter(word for word, *_ in worded)
        text += f"; the same is within ±{records[0]['margin_points']:#.3g}" * (
            "equivalent" in set(comparisons["verdict"])
        )
        verdict, tone = _counts_text(counts), tone if len(counts) == 1 else ""
    question = question or f"How does {second} score beside {first}?"
    return Answer(question=question, verdict=verdict, text=f"{text}.", tone=tone, parts=parts)


def _worded_verdict(record: dict[Any, Any]) -> tuple[str, str, Tone]:
    """The verdict on the second condition in a word, with its size where it is decided, and what kind it is."""
    verdict, value = str(record["verdict"]), record["difference_points"]
    other_words = {"not judged": FEW_SEEDS.get(record["num_seeds"], CANNOT_TELL), NOT_MEASURABLE: NOT_MEASURABLE}
    side = ("lower" if value > 0 else "higher") if verdict == "supported" else verdict
    word, sized, tone = SIZES.get(side, (other_words.get(verdict, CANNOT_TELL),) * 2 + ("open",))
    return word, sized.format(margin=record["margin_points"], size=abs(value)), tone


def _difference_text(record: dict[Any, Any], num_runs: Mapping[tuple[str, str], int]) -> str:
    """The difference on a task, the interval that decided, and the least gap that could have been found.

    ``num_runs``: group and condition to its runs, of which only the seeds that both conditions have are paired.
    """
    value, (low, high, level) = record["difference_points"], deciding(record)
    if value != value or record["verdict"] == NOT_MEASURABLE:
        return str(record["reason"] or NOT_MEASURABLE)
    # Only of a mean over items do the items say how sure it is, of another score the seeds do.
    why_none = f"no interval: {_score_name(record)}, {'one seed' if record['num_seeds'] < 2 else 'seeds alike'}"
    text = f"{value:+.1f} ({_span_text(low, high, level) if low == low else why_none})"
    num_seeds = record["num_seeds"]
    if num_seeds < max(num_runs.get((record["group"], record[side]), 0) for side in ("first", "second")):
        text += f" on the {num_seeds} seed{'s' * (num_seeds > 1)} that both have"
    gap = record["detectable_gap_points"]
    is_open = record["verdict"] in OPEN_VERDICTS and gap == gap
    return f"{text}, finds gaps from {gap:.1f}" if is_open else text


def _span_text(low: float, high: float, level: int) -> str:
    """An interval in points, with its level in per cent."""
    return f"{level} %: {low:+.1f} to {high:+.1f}"


def _score_name(record: dict[Any, Any]) -> str:
    return str(record["score"]).replace("_", " ")


def picture_of(data: ReportData) -> ChartBlock | None:
    """How far each embedding parameter moved, above what the first comparisons found."""
    parameters, pairs = plot_parameters(data), plot_pairs(data)
    charts = [*([parameters] if parameters is not None else []), *pairs]
    separate_scales = dict.fromkeys(("color", "shape", "yOffset"), "independent")
    chart = altair.vconcat(*charts, spacing=14, resolve=altair.Resolve(scale=separate_scales)) if charts else None
    parts = ((PARAMETERS_PICTURED, parameters is not None), (DIFFERENCES_PICTURED, bool(pairs)))
    return picture("first_screen", chart, " ".join(text for text, is_drawn in parts if is_drawn))


PARAMETERS_PICTURED = (
    "How far the embedding parameters moved: at the last epoch, mean over seeds; what did not move has no mark."
)
DIFFERENCES_PICTURED = (
    "Differences of scores: 1 point is 0.01 of the score; lines are intervals (90 % where these decided that there is "
    "no difference, else 95 %); shaded: too small to matter."
)


def plot_parameters(data: ReportData) -> Chart | None:
    """A row per embedding parameter, a mark per condition and task: relative drift at the last epoch in per cent."""
    names = conditions(data)[:MOST_TILES]  # of all, so that a condition has one colour everywhere
    table = drifts_of(data)
    table = table[table["condition"].isin(names)].assign(drift=100 * table["drift"])
    table["parameter"] = table["parameter"].replace(SHORT | WHOLE)
    if not (table["drift"] > 0).any():
        return None
    rows, moved = list(dict.fromkeys(table["parameter"])), table[table["drift"] > 0]
    drawn = [name for name in names if name in set(moved["condition"])]
    axis = log_axis(moved["drift"])
    chart = altair.Chart(data_of(moved)).mark_point(filled=True, size=70 if len(drawn) == 1 else 32, opacity=1)
    if len(drawn) > 1:  # or equal drifts would hide one another
        chart = chart.encode(yOffset=altair.YOffset("condition:N", sort=drawn, scale=altair.Scale(paddingOuter=0.4)))
    chart = chart.encode(
        x=altair.X("drift:Q", scale=axis.scale(), axis=axis.axis(), title="moved by, in % of its norm (log scale)"),
        y=altair.Y("parameter:N", sort=rows, title=None, axis=altair.Axis(domain=False, ticks=False, grid=True)),
        tooltip=tips(condition="condition", parameter="parameter", task="task", drift=("relative drift (%)", ".3g")),
        **look_of(names, drawn, None, "condition", columns=1)["points"],
    )
    return chart.properties(width=WIDTH, height=max(18, 6 * len(drawn)) * len(rows), title=MOVED_TITLE)


def plot_pairs(data: ReportData) -> list[Chart]:
    """The differences of each of the first pairs on the reported splits, under its name."""
    table = compared(data)
    table = table[table["difference_points"].notna()] if len(table) else table
    pairs = table.groupby(["first_base", "second_base"], sort=False) if len(table) else ()
    drawn = {
        pair: differences_chart(pair_differences, width=WIDTH) for pair, pair_differences in islice(pairs, MOST_PAIRS)
    }
    return [
        chart.properties(title=[str(first), f"minus {second}"])
        for (first, second), chart in drawn.items()
        if chart is not None
    ]
