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
from toolkit.comparison.verdicts import LEAST_SEEDS
from toolkit.config import MLM
from toolkit.families import EMBEDDING_PARAMETERS, LORA
from toolkit.naming import NOT_MEASURABLE
from toolkit.reporting.cells import NOT_APPLICABLE, UNDEFINED, number
from toolkit.reporting.charts import COLOURS, Chart, altair, data_of, log_axis, look_of, tips
from toolkit.reporting.page import Answer, ChartBlock, Part, Tile, picture
from toolkit.reporting.topics.caveats import (
    below_floor,
    deciding,
    headline,
    largest_size,
    linear_probes,
    task_names,
)
from toolkit.reporting.topics.comparison import differences_chart, planned_gaps_text
from toolkit.reporting.verdict_words import (
    CANNOT_TELL,
    FEW_SEEDS,
    OPEN_VERDICTS,
    SHUFFLED_LABELS_WORDS,
    score_words,
)

MOST_TILES = 6
"""Conditions that have a tile, and a mark in the picture; more are named in an answer."""
MOST_PAIRS = 2
"""Comparisons that are answered on the first screen, and drawn there."""
ROW_NAMES = {"word_embeddings": "words", "position_embeddings": "positions", "token_type_embeddings": "segments"}
"""Embedding table to what its rows are."""
WHOLE_TABLE_NAMES = {"word_embeddings": "words (all rows)"}
"""What the picture calls a table of whose rows the tiles tell apart those seen in training."""
WORDS = "word_embeddings"
ADDED_ROWS_ONLY = " (added rows only)"
"""Stands in place of the unit where a condition trained no other row of the word table."""
NO_SCORES = "no scores"
INTERVAL_LEVEL = 0.95
PANEL_WIDTH = 265
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
    names = conditions(data)[:MOST_TILES]
    return tuple(_tile(data, name, COLOURS[i % len(COLOURS)]) for i, name in enumerate(names))


def conditions(data: ReportData) -> list[str]:
    """The names of the conditions, whatever the number of their training examples: in this order they have colours."""
    return list(dict.fromkeys(condition.base for condition in _conditions(data)))


def _conditions(data: ReportData) -> Iterable[Condition]:
    """The conditions of the most training examples of every group."""
    return (condition for tables in data.details for condition in tables.group.conditions)


def _tile(data: ReportData, name: str, colour: str) -> Tile:
    """The tile of one condition: its score, the range over tasks where there are several, and what moved."""
    scores_of_tasks = list(_scores(data, name).values())
    means = [f"{np.mean(scores):.3f}" for scores in scores_of_tasks]
    score_names = set(data.scores["score"])
    score_name = score_names.pop() if len(score_names) == 1 else "score"
    if not scores_of_tasks:
        value, detail = NO_SCORES, ""
    elif len(scores_of_tasks) == 1:
        value = means[0]
        detail = score_name + _interval_and_runs_text(scores_of_tasks[0])
    else:
        value = f"{min(means)} to {max(means)}"
        detail = f"{score_name}, {len(scores_of_tasks)} tasks"
    return Tile(title=name, value=value, detail=detail, lines=_tile_facts(data, name), colour=colour)


def _interval_and_runs_text(scores: np.ndarray[Any, Any]) -> str:
    """The interval of a mean over seeds, where there are enough that differ, and how many runs it is of."""
    has_interval = len(scores) >= LEAST_SEEDS and np.ptp(scores) > 0
    interval = over_seeds(scores, INTERVAL_LEVEL) if has_interval else None
    return (f", {number(interval.low)} to {number(interval.high)}" if interval else "") + f", runs: {len(scores)}"


def _scores(data: ReportData, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Task to the headline score on the reported split of every seed of a condition."""
    table = largest_size(data.scores[data.scores["is_reported_split"].astype(bool)])
    condition_scores = table[table["base"] == name]
    return {
        str(task): task_scores["value"].to_numpy(np.float64)
        for task, task_scores in condition_scores.groupby(task_names(condition_scores), sort=False)
    }


def _tile_facts(data: ReportData, name: str) -> tuple[tuple[str, str], ...]:
    """(name, value) of each fact: how many runs failed, what was trained, how far words, positions, segments moved."""
    conditions_of_name = [condition for condition in _conditions(data) if condition.base == name]
    kind = _kinds(data)[name]
    drifts = drifts_of(data)
    table_drifts = drifts[(drifts["condition"] == name) & drifts["parameter"].isin(ROW_NAMES)]
    num_failed = sum(condition.num_failed or 0 for condition in conditions_of_name)
    num_runs = sum(len(condition.runs) for condition in conditions_of_name)
    facts = [("failed", f"{num_failed} of {num_runs} runs")] if num_failed else []
    if kind in TRAINED:
        facts.append(("trained", "added rows, " * bool(table_drifts["is_held"].all()) + TRAINED[kind]))
    if (table_drifts["drift"] == 0).all():
        return (*facts, ("embeddings moved", _drift_text(table_drifts)))
    unit = " of norm" if len(data.details) == 1 else ""  # beside a range over tasks there is no room
    for parameter, rows_name in ROW_NAMES.items():
        facts.append((f"{rows_name} moved", _drift_text(table_drifts[table_drifts["parameter"] == parameter], unit)))
        if parameter == WORDS and (seen := _seen_drift_text(table_drifts)):
            facts.append(("those seen in training", seen))
    return tuple(facts)


OWN_HEAD = "own head"
"""The kind of a condition that trains the masked-LM head alone, which the checkpoint brought with it."""
TRAINED = {
    "full": "every parameter",
    "embeddings": "all but the embeddings",
    LORA: "adapters and a new head",
    "backbone": "only a new head",
    OWN_HEAD: "only the masked-LM head",
}
"""Kind of condition (see :func:`_kinds`) to what is trained under it."""


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
    return _range_text(drifts["drift"]) + (ADDED_ROWS_ONLY if is_held else unit)


def _seen_drift_text(drifts: pd.DataFrame) -> str:
    """The drift of the rows that training exposed alone: a table is mostly rows that no text used.

    Empty where nothing moved or added rows alone could, and where it is not known on every task which rows these are.
    """
    words = drifts[(drifts["parameter"] == WORDS)]
    is_known = (words["drift"] != 0).any() and not words["is_held"].all() and words["exposed"].notna().all()
    return _range_text(words["exposed"]) if is_known else ""


def _range_text(drifts: "pd.Series[float]") -> str:
    """The least and the greatest drift in per cent, once where both read alike; NaN as undefined."""
    end_texts = [UNDEFINED if end != end else f"{100 * end:.2g}" for end in (drifts.min(), drifts.max())]
    return f"{' to '.join(dict.fromkeys(end_texts))} %"


def _mean(drift: np.ndarray[Any, Any]) -> float:
    """The mean of the seeds that have a value; NaN of none."""
    return float(np.nanmean(drift)) if not np.isnan(drift).all() else math.nan


def compared_of(data: ReportData) -> str:
    """The models, tasks, conditions and numbers of runs of a report, in one text."""
    models = dict.fromkeys(str(run.model) for run in data.runs)
    tasks = dict.fromkeys(str(run.task) for run in data.runs)
    names = conditions(data)
    nums_runs = sorted({len(condition.runs) for condition in data.conditions})
    facts = {
        "Trained": ", ".join(models),
        "On": ", ".join(tasks) if len(tasks) < 4 else f"{len(tasks)} tasks",
        f"Conditions ({len(names)})": ", ".join(names[:MOST_TILES]),
        "Runs of each": ", ".join(map(str, nums_runs)),
        "Runs": str(len(data.runs)),
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
    # Units are items, or the clusters in which items came.
    num_units = comparisons["num_units"].fillna(comparisons["num_items"]).astype(int)
    in_clusters = comparisons["task_name"] + " (at most: items in clusters, which count as one each)"
    names = comparisons["task_name"].where(num_units == comparisons["num_items"], in_clusters)
    seeds_and_units = zip(comparisons["num_seeds"].astype(int), num_units, strict=True)
    # Of each task the pair of conditions with the most seeds, which comes last.
    sizes = dict(zip(names, seeds_and_units, strict=True))
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
        _probe_part(f"{task}, {record['condition']}", record)
        for task, record in zip(task_names(table), table.to_dict("records"), strict=True)
    )
    text = (
        "Full fine-tuning minus the linear head that cross-validation within train finds on the features of a "
        "condition; intervals are over seeds. How the condition trained its own head has no part in it."
    )
    return [Answer(question=PROBED, text=text, parts=parts)] if parts else []


def _probe_part(name: str, record: Mapping[Any, Any]) -> Part:
    """What one task says: full fine-tuning minus the linear probe, in points, and its interval over seeds."""
    points_text = f"{record['full_minus_linear_probe_points']:+.1f} points"
    has_few_seeds = record["num_seeds"] < LEAST_SEEDS
    has_interval = record["low_points"] == record["low_points"] and not has_few_seeds
    return Part(
        name=name,
        verdict=FEW_SEEDS.get(record["num_seeds"], points_text),
        text=_span_text(record["low_points"], record["high_points"], 95) if has_interval else points_text,
        tone="open" if has_few_seeds else "",
    )


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
    sentences = ["Whether this holds for other models or tasks."]
    if not any(run.setting("shuffle_labels") for run in data.runs):
        has_labels = any(run.setting("objective") != MLM for run in data.runs)
        verb = "is known to have had" if any(run.is_recorded for run in data.runs) else "had"
        sentences.append(
            "How much of the movement is learning" + (f": no run {verb} shuffled labels." if has_labels else ".")
        )
    sentences += [*_at_ceiling(data), *_still_falling(data)]
    is_judged = table["verdict"] != "not judged" if len(table) else is_decided
    num_undecided = int((is_judged & ~is_decided).sum())
    num_not_judged = int((~is_judged).sum())
    for num, verb in ((num_undecided, CANNOT_TELL), (num_not_judged, "are not judged: three seeds are needed")):
        sentences += [f"{num} of {len(is_decided)} comparisons {verb}."] if num else []
    return Answer(question=OPEN, verdict="", text=" ".join(sentences))


def _at_ceiling(data: ReportData) -> list[str]:
    """A sentence on the tasks where two conditions or more leave nothing to gain; nothing without any.

    An equal score there may hide a difference.
    """
    num_at_ceiling: Counter[str] = Counter()
    for name in conditions(data):
        for task, scores in _scores(data, name).items():
            num_at_ceiling[task] += int(scores.mean() >= CEILING)
    saturated = [task for task, num_conditions in num_at_ceiling.items() if num_conditions > 1]
    return [f"What harder tasks would show: nothing is left to gain on: {', '.join(saturated)}."] if saturated else []


def _still_falling(data: ReportData) -> list[str]:
    """A sentence on the conditions whose loss still fell in the last epoch; nothing without any.

    Beside others they are shown too low.
    """
    runs = [(condition.base, run) for condition in _conditions(data) for run in condition.runs]
    num_runs = Counter(name for name, _ in runs)
    num_falling = Counter(
        name
        for name, run in runs
        if last_fall(run.scores, run.reported_split, run.setting("head_training")) > STILL_FALLING
    )
    if not num_falling:
        return []
    names = ", ".join(f"{number} of {num_runs[name]} runs of {name}" for name, number in num_falling.items())
    return [
        f"What more epochs would give: the loss on the reported split fell by more than {STILL_FALLING:.0%} in the last"
        f" epoch, in {names}. Beside what has converged these are shown too low."
    ]


def compared(data: ReportData) -> pd.DataFrame:
    """Headline comparisons on the reported splits, those with full fine-tuning first, frozen embeddings before all."""
    table = largest_size(headline(data.comparison)) if len(data.comparison) else data.comparison
    if table.empty:
        return table
    table = table[table["is_reported_split"].astype(bool)]
    kinds = _kinds(data)
    rank_of_kinds = {("full", "embeddings"): 0, ("full", "backbone"): 1}
    pairs = zip(table["first_base"], table["second_base"], strict=True)
    ranks = [rank_of_kinds.get((kinds.get(first, ""), kinds.get(second, "")), 2) for first, second in pairs]
    return table.assign(task_name=task_names(table), rank=ranks).sort_values("rank", kind="stable")


def _kinds(data: ReportData) -> dict[str, str]:
    """Condition to its kind: ``full``, else its regime, or '' where it changes more than what is frozen."""
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
    drifts = drifts[drifts["parameter"].isin(ROW_NAMES)]
    moved = drifts[drifts["drift"] != 0]
    if moved.empty:
        text = "Every embedding parameter is what it was at the first snapshot."
        return Answer(question=MOVED, verdict="no", text=text, tone="same")
    # Of the first condition alone: tiles and picture show the others.
    name = str(moved["condition"].iloc[0])
    condition_drifts = drifts[drifts["condition"] == name]
    movements = {
        ROW_NAMES[str(parameter)]: f"by {_drift_text(parameter_drifts)}"
        for parameter, parameter_drifts in condition_drifts.groupby("parameter", sort=False)
    }
    if seen_drift := _seen_drift_text(condition_drifts):
        movements["words"] += f" (those seen in training: {seen_drift})"
    joined = data.joined[(data.joined["base"] == name) & (data.joined["parameter"] == WORDS)]
    means = joined.groupby("group", sort=False)["times_noise"].mean().dropna()
    differ = RATES_DIFFER if joined["learning_rate"].nunique() > 1 else ""
    return moved_answer(f"Under {name}, in", movements, list(means), differ)


def moved_answer(start: str, movements: Mapping[str, str], times_noise: Sequence[float], differ: str = "") -> Answer:
    """That the embeddings moved: what moved by how much, and the least and the most of its multiples of its noise.

    ``movements``: what the rows are, to "by so much"; ``differ``: what else in the noise is not alike.
    """
    text = f"{start or 'In'} % of their norm: {', '.join(f'{rows_name} {by}' for rows_name, by in movements.items())}."
    if times_noise:
        end_texts = [f"{value:.1f}" for value in (min(times_noise), max(times_noise))]
        text += f" {OF_NOISE.format(times=' to '.join(dict.fromkeys(end_texts)), differ=differ)}"
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
        word = SHUFFLED_LABELS_WORDS.get(str(record["verdict"]), CANNOT_TELL)
        texts_by_word.setdefault(word, []).append(f"{task} {record['real_mean']:.2f} for {record['shuffled_mean']:.2f}")
    tasks_text = "; ".join(f"{word}: {', '.join(texts)}" for word, texts in texts_by_word.items())
    text = "Mean cosine between the moves of a word in two seeds, real labels for one shuffling of them all. "
    num_tasks = {word: len(texts) for word, texts in texts_by_word.items()}
    return (Answer(question=ADDED, verdict=_counts_text(num_tasks), text=f"{text}{tasks_text}."),)


def _counts_text(num_tasks: Mapping[str, int]) -> str:
    """``worse on 4 of 7 tasks, cannot tell on 3 of 7 tasks``; the word alone where all tasks share it."""
    if len(num_tasks) == 1:
        return next(iter(num_tasks))
    total = sum(num_tasks.values())
    commonest_first = sorted(num_tasks.items(), key=lambda item: -item[1])
    return ", ".join(f"{word} on {num} of {total} tasks" for word, num in commonest_first)


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
    questions = {("full", "embeddings"): FREEZING, ("full", "backbone"): EXTRACTION}
    kinds_of_pair = (kinds.get(first, ""), kinds.get(second, ""))
    question = questions.get(kinds_of_pair, f"How does {second} score beside {first}?")
    records = comparisons.to_dict("records")
    words_of_tasks = [score_words(record) for record in records]
    scores = ", ".join(dict.fromkeys(map(_score_name, records)))
    parts = tuple(
        Part(
            name=str(record["task_name"]),
            verdict=words.word if words.tone == "same" else words.sized,
            text=_difference_text(record, num_runs),
            tone=words.tone,
        )
        for record, words in zip(records, words_of_tasks, strict=True)
    )
    verdict = words_of_tasks[0].sized
    tone = words_of_tasks[0].tone
    text = f"{first} minus {second}, in points of {scores}"
    # One task stands in the sentence, several in lines of their own.
    if len(parts) == 1:
        text, parts = f"{text}: {parts[0].name} {parts[0].text}", ()
    else:
        counts = Counter(words.word for words in words_of_tasks)
        text += f"; the same is within ±{records[0]['margin_points']:#.3g}" * (
            "equivalent" in set(comparisons["verdict"])
        )
        verdict = _counts_text(counts)
        tone = tone if len(counts) == 1 else ""
    return Answer(question=question, verdict=verdict, text=f"{text}.", tone=tone, parts=parts)


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
    captions = {PARAMETERS_PICTURED: parameters is not None, DIFFERENCES_PICTURED: bool(pairs)}
    return picture("first_screen", chart, " ".join(text for text, is_drawn in captions.items() if is_drawn))


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
    table["parameter"] = table["parameter"].replace(ROW_NAMES | WHOLE_TABLE_NAMES)
    if not (table["drift"] > 0).any():
        return None
    parameters = list(dict.fromkeys(table["parameter"]))
    moved = table[table["drift"] > 0]  # what is 0 has no place on a logarithmic axis
    drawn_names = [name for name in names if name in set(moved["condition"])]
    axis = log_axis(moved["drift"])
    mark_size = 70 if len(drawn_names) == 1 else 32
    chart = altair.Chart(data_of(moved)).mark_point(filled=True, size=mark_size, opacity=1)
    if len(drawn_names) > 1:  # or equal drifts would hide one another
        chart = chart.encode(
            yOffset=altair.YOffset("condition:N", sort=drawn_names, scale=altair.Scale(paddingOuter=0.4))
        )
    chart = chart.encode(
        x=altair.X("drift:Q", scale=axis.scale(), axis=axis.axis(), title="moved by, in % of its norm (log scale)"),
        y=altair.Y("parameter:N", sort=parameters, title=None, axis=altair.Axis(domain=False, ticks=False, grid=True)),
        tooltip=tips(condition="condition", parameter="parameter", task="task", drift=("relative drift (%)", ".3g")),
        **look_of(names, drawn_names, None, "condition", columns=1)["points"],
    )
    height = max(18, 6 * len(drawn_names)) * len(parameters)
    return chart.properties(width=PANEL_WIDTH, height=height, title=MOVED_TITLE)


def plot_pairs(data: ReportData) -> list[Chart]:
    """The differences of each of the first pairs on the reported splits, under its name."""
    table = compared(data)
    table = table[table["difference_points"].notna()] if len(table) else table
    differences_by_pair = table.groupby(["first_base", "second_base"], sort=False) if len(table) else ()
    charts = {
        pair: differences_chart(differences, width=PANEL_WIDTH)
        for pair, differences in islice(differences_by_pair, MOST_PAIRS)
    }
    return [
        chart.properties(title=[str(first), f"minus {second}"])
        for (first, second), chart in charts.items()
        if chart is not None
    ]
