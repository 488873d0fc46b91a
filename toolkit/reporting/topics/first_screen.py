"""The first screen of a comparison: a tile per condition, one picture, and three questions with their answers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Arm
from toolkit.comparison.cards import over_seeds
from toolkit.comparison.recorded import TASK_NOT_GIVEN
from toolkit.comparison.report_data import GroupTables, ReportData
from toolkit.comparison.shuffled_labels import ONE
from toolkit.comparison.verdicts import REFUSALS
from toolkit.config import MLM
from toolkit.families import EMBEDDING_PARAMETERS, LORA
from toolkit.reporting.cells import NOT_APPLICABLE, UNDEFINED, listing, number
from toolkit.reporting.charts import COLOURS, SHAPES, Chart, altair, around_zero, data_of, intervals, log_axis, tips
from toolkit.reporting.page import Answer, ChartBlock, Tile
from toolkit.reporting.topics.caveats import headline, largest_size, reach_points, task_names
from toolkit.reporting.topics.scores import LEAST_SEEDS

MOST_TILES = 6
MOST_PAIRS = 2
"""Comparisons that are answered on the first screen, and drawn there."""
SHORT = {"word_embeddings": "words", "position_embeddings": "positions", "token_type_embeddings": "segments"}
"""Embedding table to what its rows are."""
WHOLE = {"word_embeddings": "words (all rows)"}
"""What the picture calls them, where tiles tell the rows seen in training apart."""
NOT_MEASURABLE = REFUSALS[2]
HELD = " (added rows only)"
NO_SCORES = "no scores"
LEVEL = 0.95
WIDTH = 265
"""Pixels of a panel: beside the answers, and on a phone as it is."""

FREEZING = "Does freezing the embeddings change the score?"
EXTRACTION = "Is feature extraction as good as full fine-tuning?"
MOVED = "Did the embeddings move?"
RATES_DIFFER = " (other learning rates on other tasks)"
ADDED = "Do real labels move words otherwise than shuffled ones?"
REST = "What is not shown up here?"
OPEN = "What can these runs not tell?"


def tiles_of(data: ReportData) -> tuple[Tile, ...]:
    """One tile per condition: its score with an interval over seeds, and how far words, positions, segments moved."""
    names = conditions(data)
    return tuple(_tile(data, name, COLOURS[i % len(COLOURS)]) for i, name in enumerate(names[:MOST_TILES]))


def conditions(data: ReportData) -> list[str]:
    """What the arms are called, whatever the number of their training examples: in this order they have colours."""
    return list(dict.fromkeys(arm.base for arm in _arms(data)))


def _arms(data: ReportData) -> Iterable[Arm]:
    return (arm for tables in data.details for arm in tables.group.arms)


def _tile(data: ReportData, name: str, colour: str) -> Tile:
    scores = _scores(data, name)
    means = [float(np.mean(values)) for values in scores.values()]
    of_what = set(data.scores["score"])
    score = of_what.pop() if len(of_what) == 1 else "score"
    if not scores:
        return Tile(title=name, value=NO_SCORES, detail="", lines=_lines(data, name), colour=colour)
    value, detail = f"{min(means):.3f} to {max(means):.3f}", f"{score}, {len(scores)} tasks"
    if len(scores) == 1:
        (values,) = scores.values()
        noun = "seed" if _has_seeds(data) else "run"
        value, detail = f"{means[0]:.3f}", f"{data.scores['score'].iloc[0]}, {_sureness(values, noun)}"
    return Tile(title=name, value=value, detail=detail, lines=_lines(data, name), colour=colour)


def _sureness(values: np.ndarray[Any, Any], noun: str) -> str:
    """The interval of a mean over seeds, or of how few there are; ``noun``: seed, or run where these are not known."""
    if len(values) < LEAST_SEEDS:
        return f"{len(values)} {noun}{'s' * (len(values) > 1)}"
    if np.ptp(values) == 0:
        return f"all {len(values)} {noun}s"
    found = over_seeds(values, LEVEL)
    return f"{number(found.low)} to {number(found.high)}, {len(values)} {noun}s"


def _scores(data: ReportData, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Task to the headline score on the reported split of every seed of a condition."""
    table = largest_size(data.scores[data.scores["is_reported_split"].astype(bool)])
    own = table[table["base"] == name]
    return {str(task): lines["value"].to_numpy(np.float64) for task, lines in own.groupby(task_names(own), sort=False)}


def _lines(data: ReportData, name: str) -> tuple[tuple[str, str], ...]:
    """How many runs failed, and how far words, positions and segments moved; one line where none of them moved."""
    named = [arm for arm in _arms(data) if arm.base == name]
    num_failed, num_runs = sum(arm.num_failed for arm in named), sum(len(arm.runs) for arm in named)
    return ((("failed", f"{num_failed} of {num_runs} runs"),) if num_failed else ()) + _moves(data, name)


def _moves(data: ReportData, name: str) -> tuple[tuple[str, str], ...]:
    texts = {SHORT[parameter]: _moved(data, name, parameter) for parameter in SHORT}
    rows = "added rows, " * _is_held(data, name)
    trained = (("trained", rows + TRAINED[kind]),) if (kind := _kinds(data)[name]) in TRAINED else ()
    distinct = set(texts.values()) - {NOT_APPLICABLE}
    if len(distinct) == 1 and (same := distinct.pop()).startswith("0"):
        return (*trained, ("embeddings moved", same))
    of = " of norm" if len(data.details) == 1 else ""  # beside a range over tasks there is no room
    lines = [(f"{what} moved", text + of * text.endswith("%")) for what, text in texts.items()]
    if seen := _of_seen(data, name, "word_embeddings"):
        lines.insert(1, ("those seen in training", seen))
    return (*trained, *lines)


OWN_HEAD = "own head"
TRAINED = {
    "full": "every parameter",
    "embeddings": "all but the embeddings",
    LORA: "adapters and a new head",
    "backbone": "only a new head",
    OWN_HEAD: "only the masked-LM head",
}
"""What a condition is to what is trained under it."""


def _moved(data: ReportData, name: str, parameter: str) -> str:
    """Relative drift of a parameter in per cent, the range over tasks where there are several; what it is of."""
    drifts, is_frozen = _drifts(data, name, parameter)
    if not drifts:
        return NOT_APPLICABLE
    if not any(drifts):
        return "0, bit-identical" if is_frozen else "0 exactly"
    return _range(drifts) + HELD * (parameter == "word_embeddings" and _is_held(data, name))


def _is_held(data: ReportData, name: str) -> bool:
    """Whether a condition trains of the word table the added rows alone."""
    named = [arm for arm in _arms(data) if arm.base == name]
    return all(arm.runs[0].setting("train_rows") == "new" for arm in named)


def _drifts(data: ReportData, name: str, parameter: str) -> tuple[list[float], bool]:
    """Relative drift under a condition on each task, and whether every run proves that the parameter was frozen."""
    arms = [
        (tables, arm) for tables in data.details for arm in tables.group.arms if arm.base == name and arm.has(parameter)
    ]
    return [_relative(*each, parameter) for each in arms], all(arm.is_proven_frozen(parameter) for _, arm in arms)


def _relative(tables: GroupTables, arm: Arm, parameter: str) -> float:
    """Mean over seeds of the relative drift of the whole parameter at the last epoch; 0 where nothing moved."""
    return _mean(tables.relative_drift(arm, parameter))


def _of_seen(data: ReportData, name: str, parameter: str) -> str:
    """:func:`_moved` of the rows that training exposed alone: a table is mostly rows that no text used.

    Empty where nothing moved or added rows alone could, and where it is not known on every task which rows these are.
    """
    if not any(_drifts(data, name, parameter)[0]) or _moved(data, name, parameter).endswith(HELD):
        return ""
    arms = [(tables, arm) for tables in data.details for arm in tables.group.arms if arm.base == name]
    drifts = [_mean(tables.relative_drift(arm, parameter, of="exposed_")) for tables, arm in arms if arm.has(parameter)]
    if any(map(math.isnan, drifts)):
        return ""
    return _range(drifts)


def _range(drifts: Sequence[float]) -> str:
    low, high = _percent(min(drifts)), _percent(max(drifts))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _mean(drift: np.ndarray[Any, Any]) -> float:
    return float(np.nanmean(drift)) if not np.isnan(drift).all() else math.nan


def _percent(share: float) -> str:
    return UNDEFINED if math.isnan(share) else f"{100 * share:.2g}"


def compared_of(data: ReportData) -> str:
    """What was trained, on what and how often, in one sentence."""
    models = list(dict.fromkeys(str(run.model) for run in data.runs))
    tasks = list(dict.fromkeys(str(run.task) for run in data.runs))
    on = f" on {_quoted(tasks) if len(tasks) < 4 else f'{len(tasks)} tasks'}"
    on = f" ({TASK_NOT_GIVEN})" if tasks == [TASK_NOT_GIVEN] else on
    counts, noun = sorted({len(arm.runs) for arm in data.arms}), "seed" if _has_seeds(data) else "run"
    seeds = (
        f"{' to '.join(map(str, counts[:: len(counts) - 1 or 1]))} {noun}s each"
        if counts != [1]
        else f"one {noun} each"
    )
    ways = conditions(data)
    how = f"in {len(ways)} conditions, {seeds}" if len(ways) > 1 else f"in one condition ({ways[0]}), {seeds}"
    return f"{listing(models)} was trained{on} {how}: {len(data.runs)} run{'s' * (len(data.runs) > 1)}."


def _has_seeds(data: ReportData) -> bool:
    return all(run.seed is not None for run in data.runs)


def _quoted(tasks: Sequence[str]) -> str:
    """Tasks in quotation marks: one may be called order, or pair, and would be read as a word of the sentence."""
    return listing([f"“{task}”" for task in tasks])


def answers_of(data: ReportData) -> tuple[Answer, ...]:
    """Whether the embeddings moved, of each of the first pairs whether they score alike, and what stays open."""
    lines = compared(data)
    pairs = list(dict.fromkeys(zip(lines["first_base"], lines["second_base"], strict=True)))
    kinds = _kinds(data)
    answers = [
        _answer(lines[(lines["first_base"] == one) & (lines["second_base"] == other)], one, other, kinds)
        for one, other in pairs[:MOST_PAIRS]
    ]
    return (*_drift_answer(data), *_labels_answer(data), *answers, *_rest(data, len(pairs)), _open(data))


def _rest(data: ReportData, num_pairs: int) -> tuple[Answer, ...]:
    """What there is beside the tiles and the answers; nothing where they are all."""
    names, more = conditions(data)[MOST_TILES:], num_pairs - MOST_PAIRS
    parts = [f"{more} more {'pairs' if more > 1 else 'pair'} of conditions, under “How sure this is”"] * (more > 0)
    parts += [f"tiles of {len(names)} more condition{'s' * (len(names) > 1)} ({_quoted(names)})"] * bool(names)
    return (Answer(question=REST, verdict="", text=f"{', and '.join(parts)}."),) if parts else ()


def _open(data: ReportData) -> Answer:
    """What no run here can say, and how many comparisons stay undecided."""
    table = largest_size(headline(data.comparison)) if len(data.comparison) else data.comparison
    verdicts = table["verdict"].isin(["supported", "equivalent"]) if len(table) else pd.Series([], dtype=bool)
    parts = ["Whether this holds for other models or tasks."]
    if not any(run.setting("shuffle_labels") for run in data.runs):
        has_labels = any(run.setting("objective") != MLM for run in data.runs)
        had = "is known to have had" if any(run.is_recorded for run in data.runs) else "had"
        parts.append(
            "How much of the movement is learning" + (f": no run {had} shuffled labels." if has_labels else ".")
        )
    parts += _at_ceiling(data)
    if num_open := int((~verdicts).sum()):
        parts.append(f"{num_open} of {len(verdicts)} comparisons stay undecided.")
    return Answer(question=OPEN, verdict="", text=" ".join(parts))


def _at_ceiling(data: ReportData) -> list[str]:
    """Tasks on which two conditions or more leave nothing to gain: an equal score there may hide a difference."""
    scores = [_scores(data, name) for name in conditions(data)]
    tasks = dict.fromkeys(task for own in scores for task in own)
    full = [task for task in tasks if sum(own[task].mean() >= CEILING for own in scores if task in own) > 1]
    if not full:
        return []
    return [f"What harder tasks would show: nothing is left to gain on {_quoted(full)}."]


def compared(data: ReportData) -> pd.DataFrame:
    """Headline comparisons on the reported splits, those with full fine-tuning first, frozen embeddings before all."""
    table = largest_size(headline(data.comparison)) if len(data.comparison) else data.comparison
    if table.empty:
        return table
    table = table[table["is_reported_split"].astype(bool)]
    kinds = _kinds(data)
    rank = {("full", "embeddings"): 0, ("full", "backbone"): 1}
    pairs = zip(table["first_base"], table["second_base"], strict=True)
    places = [rank.get((kinds.get(one, ""), kinds.get(other, "")), 2) for one, other in pairs]
    return table.assign(task_name=task_names(table), place=places).sort_values("place", kind="stable")


def _kinds(data: ReportData) -> dict[str, str]:
    """Condition to ``full``, or to its regime; what else a condition changes makes it neither."""
    return {arm.base: "full" if arm.is_full else _regime_of(arm) if _is_plain(arm) else "" for arm in _arms(data)}


def _regime_of(arm: Arm) -> str:
    regime = arm.runs[0].regime
    return OWN_HEAD if regime == "backbone" and not arm.is_feature_extraction else regime


def _is_plain(arm: Arm) -> bool:
    if arm.runs[0].is_recorded:
        return True
    config = arm.runs[0].config
    return config.init == config.positions == "checkpoint" and not (config.shuffle_labels or config.reinject_positions)


def _drift_answer(data: ReportData) -> tuple[Answer, ...]:
    trained = [name for name in conditions(data) if any(any(_drifts(data, name, each)[0]) for each in SHORT)]
    if not trained:
        return (Answer(question=MOVED, verdict="no", text="Every embedding parameter is what it was before training."),)
    name = trained[0]
    moved = {SHORT[each]: found for each in SHORT if (found := _moved(data, name, each)) != NOT_APPLICABLE}
    if seen := _of_seen(data, name, "word_embeddings"):
        moved["words"] += f" (those seen in training: {seen})"
    parts = [f"{what} by {found}" for what, found in moved.items()]
    texts = [f"Under {name}, in % of their norm: {', '.join(parts)}."]
    own = data.joined[(data.joined["base"] == name) & (data.joined["parameter"] == "word_embeddings")]
    means = own.groupby("group", sort=False)["times_noise"].mean().dropna()
    if len(means):
        ends = list(dict.fromkeys(f"{value:.1f}" for value in (means.min(), means.max())))
        texts.append(
            f"Words seen in training moved {' to '.join(ends)} times as far as random steps of equal size"
            f"{RATES_DIFFER if own['learning_rate'].nunique() > 1 else ''}. This by itself does not show that anything "
            "was learned."
        )
    return (Answer(question=MOVED, verdict="yes", text=" ".join(texts)),)


def _labels_answer(data: ReportData) -> tuple[Answer, ...]:
    """Whether real labels make seeds agree more than shuffled ones; nothing where no labels were shuffled for all."""
    table = data.labels
    if table.empty:
        return ()
    is_own = (
        (table["measure"] == "agreement") & (table["parameter"] == "word_embeddings") & (table["permutation"] == ONE)
    )
    lines = table[is_own].assign(model=[str(name).split(" on ")[0] for name in table.loc[is_own, "group"]])
    if lines.empty:
        return ()
    found: dict[str, list[str]] = {}
    for task, line in zip(task_names(lines), lines.to_dict("records"), strict=True):
        word = WORDS[""].get(str(line["verdict"]), "undecided")
        found.setdefault(word, []).append(f"{task} {line['real_mean']:.2f} for {line['shuffled_mean']:.2f}")
    parts = "; ".join(f"{word}: {', '.join(own)}" for word, own in found.items())
    text = f"Mean cosine between the moves of a word in two seeds, real labels for one shuffling of them all. {parts}."
    return (Answer(question=ADDED, verdict=_counted(found), text=text),)


def _counted(found: Mapping[str, Sequence[Any]]) -> str:
    """``no on 4 of 7 tasks, undecided on 3``; the word alone where all tasks have one."""
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    if len(ranked) == 1:
        return ranked[0][0]
    (word, own), *others = ranked
    total = sum(len(each) for each in found.values())
    return ", ".join([f"{word} on {len(own)} of {total} tasks", *(f"{other} on {len(each)}" for other, each in others)])


WORDS = {
    FREEZING: {"equivalent": "no", "supported": "yes"},
    EXTRACTION: {"equivalent": "yes", "supported": "no"},
    "": {"equivalent": "no", "supported": "yes"},
}
"""Question to what a verdict means as its answer; any other verdict is undecided, or not judged."""
CEILING = 0.995
"""A mean score from which on less than one example in two hundred is left to gain."""


def _answer(lines: pd.DataFrame, first: str, second: str, kinds: dict[str, str]) -> Answer:
    kind = (kinds.get(first), kinds.get(second))
    question = {("full", "embeddings"): FREEZING, ("full", "backbone"): EXTRACTION}.get(kind, "")  # type: ignore[arg-type]
    found: dict[str, list[dict[Any, Any]]] = {}
    for line in lines.to_dict("records"):
        word = WORDS[question].get(str(line["verdict"]), "")
        if question == EXTRACTION and word == "no" and line["difference_points"] < 0:
            word = "better"
        kept = {"not judged": few_seeds(line), NOT_MEASURABLE: NOT_MEASURABLE}
        word = word or kept.get(str(line["verdict"]), "undecided")
        found.setdefault(word, []).append(line)
    asked = question or f"Do {first} and {second} score differently?"
    if len(lines) == 1:
        ((word, (line,)),) = found.items()
        return Answer(question=asked, verdict=_with_size(word, line, question), text=_alone(line, first, second))
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    verdict = _counted(found)
    parts = [f"{word}: {', '.join(map(_among, own))}" for word, own in ranked]
    said = "; ".join(parts)
    scores = set(map(_score, lines.to_dict("records")))
    unit = f"points of {scores.pop()}" if len(scores) == 1 else "points"
    text = f"{first} minus {second}, in {unit}. {said[:1].upper()}{said[1:]}."
    return Answer(question=asked, verdict=verdict, text=text)


def _with_size(word: str, line: dict[Any, Any], question: str) -> str:
    """An answer with its size: "no" alone is good news under one question and bad news under another."""
    if line["verdict"] == "equivalent":
        margin = f"{line['margin_points']:g}"
        return f"{word}, within ±{margin} point{'s' * (margin != '1')}"
    if line["verdict"] != "supported":
        return word
    value = line["difference_points"]
    if question == EXTRACTION:
        return f"{word}, {abs(value):.1f} points {'worse' if value > 0 else 'more'}"
    if question == FREEZING:
        return f"{word}, it {'costs' if value > 0 else 'gains'} {abs(value):.1f} points"
    return f"{word}, by {value:+.1f} points"


def few_seeds(line: dict[Any, Any]) -> str:
    """What stands for a verdict where too few seeds allow none."""
    return "one seed: not judged" if line["num_seeds"] == 1 else "two seeds: not judged"


def _among(line: dict[Any, Any]) -> str:
    """The difference on one of several tasks; its interval is in the picture, where it has one."""
    value = line["difference_points"]
    alone = f" ({_no_interval(line)})" if math.isnan(line["low_points"]) else ""
    return f"{line['task_name']} {f'{value:+.1f}{alone}' if value == value else NOT_MEASURABLE}"


def _no_interval(line: dict[Any, Any]) -> str:
    """Why there is none: only of a mean over items do the items say how sure it is, of another score the seeds do."""
    return f"no interval: {_score(line)}, {'one seed' if line['num_seeds'] < 2 else 'seeds alike'}"


def _score(line: dict[Any, Any]) -> str:
    return str(line["score"]).replace("_", " ")


def _alone(line: dict[Any, Any], first: str, second: str) -> str:
    """The scores of both conditions, their difference, and the interval that decided."""
    value = line["difference_points"]
    if value != value or line["verdict"] == NOT_MEASURABLE:
        why = f": {line['reason']}" if line["reason"] else ""
        return f"{first} minus {second}{why}."
    is_equal = line["verdict"] == "equivalent"
    low, high = (line[f"{end}{'90' if is_equal else ''}_points"] for end in ("low", "high"))
    span = f"{90 if is_equal else 95} % interval {low:+.1f} to {high:+.1f}" if low == low else _no_interval(line)
    text = f"{first} minus {second}: {value:+.1f} points of {_score(line)} ({span})."
    if is_equal:
        text += f" Less than {line['margin_points']:g} either way counts as no difference."
    gap = line["detectable_gap_points"]
    if line["verdict"] in ("under-powered", "not supported") and gap == gap:
        text += f" These runs could find gaps from {gap:.1f} points on."
    return text


def picture_of(data: ReportData) -> ChartBlock | None:
    """How far each embedding parameter moved, above what the first comparisons found."""
    said = (
        (plot_parameters(data), MOVED_CAPTION, "Relative drift of the embedding parameters by condition."),
        (plot_pairs(data), PAIRS_CAPTION, "Differences of scores with intervals."),
    )
    known = [each for each in said if each[0] is not None]
    if not known:
        return None
    own = dict.fromkeys(("color", "shape", "yOffset"), "independent")
    parts, captions, alts = zip(*known, strict=True)
    chart = altair.vconcat(*parts, spacing=14, resolve=altair.Resolve(scale=own))
    return ChartBlock(name="first_screen", chart=chart, caption=" ".join(captions), alt=" ".join(alts))


MOVED_CAPTION = "Above: at the last epoch, mean over seeds; what did not move has no mark."
PAIRS_CAPTION = (
    "Below: 1 point is 0.01 of the score; lines are the intervals that decided (90 % for no difference, else 95 %); "
    "shaded: too small to matter."
)


def plot_parameters(data: ReportData) -> Chart | None:
    """A row per embedding parameter, a mark per condition and task: relative drift at the last epoch in per cent."""
    names = conditions(data)[:MOST_TILES]  # of all, so that a condition has one colour everywhere
    lines = [
        {
            "parameter": WHOLE.get(parameter, SHORT.get(parameter, parameter)),
            "condition": arm.base,
            "task": tables.group.title,
            "drift": 100 * _relative(tables, arm, parameter),
        }
        for tables in data.details
        for arm in tables.group.arms
        if arm.base in names
        for parameter in EMBEDDING_PARAMETERS
        if arm.has(parameter)
    ]
    table = pd.DataFrame(lines)
    if table.empty or not (table["drift"] > 0).any():
        return None
    rows, moved = list(dict.fromkeys(table["parameter"])), table[table["drift"] > 0]
    shown = [name for name in names if name in set(moved["condition"])]
    axis = log_axis(moved["drift"])
    chart = altair.Chart(data_of(moved)).mark_point(filled=True, size=70 if len(shown) == 1 else 32, opacity=1)
    if len(shown) > 1:  # or equal drifts would hide one another
        chart = chart.encode(yOffset=altair.YOffset("condition:N", sort=shown, scale=altair.Scale(paddingOuter=0.4)))
    title = f"How far {shown[0]} moved the embeddings" if len(shown) == 1 else "How far the embeddings moved"
    chart = chart.encode(
        x=altair.X("drift:Q", scale=axis.scale(), axis=axis.axis(), title="moved by, in % of its norm (log scale)"),
        y=altair.Y("parameter:N", sort=rows, title=None, axis=altair.Axis(domain=False, ticks=False, grid=True)),
        tooltip=tips(condition="condition", parameter="parameter", task="task", drift=("relative drift (%)", ".3g")),
        **_by(names, "condition", range(len(names)), shown),
    )
    return chart.properties(width=WIDTH, height=max(18, 6 * len(shown)) * len(rows), title=title)


def plot_pairs(data: ReportData) -> Chart | None:
    """A row per task, a mark per pair: the difference in points with the interval that decided, and the margin."""
    table = compared(data)
    table = table[table["difference_points"].notna()] if len(table) else table
    if table.empty:
        return None
    pairs = list(dict.fromkeys(zip(table["first_base"], table["second_base"], strict=True)))[:MOST_PAIRS]
    reach = max(map(reach_points, table["score"]))
    lines = []
    for one, other in pairs:
        for line in table[(table["first_base"] == one) & (table["second_base"] == other)].to_dict("records"):
            level = 90 if line["verdict"] == "equivalent" else 95
            ending = "90_points" if level == 90 else "_points"
            low, high = (max(min(line[f"{end}{ending}"], reach), -reach) for end in ("low", "high"))
            text = f"{low:+.2f} to {high:+.2f} ({level} %)" if low == low else "none"
            lines.append(
                {
                    "pair": f"{one} minus {other}",
                    "task": line["task_name"],
                    "difference": line["difference_points"],
                    "low": low,
                    "high": high,
                    "interval": text,
                    "verdict": line["verdict"],
                }
            )
    shown = pd.DataFrame(lines)
    tasks, names = list(dict.fromkeys(shown["task"])), list(dict.fromkeys(shown["pair"]))
    everything = conditions(data)
    places = [everything.index(other) if other in everything else i for i, (_, other) in enumerate(pairs)]
    margin = float(pd.to_numeric(table["margin_points"]).max())
    ends = [0.0, *shown["low"].dropna(), *shown["high"].dropna(), *shown["difference"]]
    ends += [-1.2 * margin, 1.2 * margin] if margin == margin else []
    scale = altair.Scale(domain=[min(ends), max(ends)], nice=True)
    firsts = {one for one, _ in pairs}
    said = f"points that {firsts.pop()} scores more" if len(firsts) == 1 else "difference (points)"
    x = altair.X("difference:Q", scale=scale, title=said, axis=altair.Axis(tickCount=6))
    base = altair.Chart(data_of(shown)).encode(
        y=altair.Y("task:N", sort=tasks, title=None, axis=altair.Axis(domain=False, ticks=False)),
        yOffset=altair.YOffset("pair:N", sort=names, scale=altair.Scale(paddingOuter=0.5)),
        tooltip=tips(pair="pair", task="task", difference=("points", "+.2f"), interval="interval", verdict="verdict"),
    )
    look = _by(names, "pair", places, names)
    dots = base.mark_point(filled=True, size=42, opacity=1).encode(x=x, **look)
    layers = [*around_zero(scale, margin), *intervals(base, x, color=look["color"]), dots]
    height = max((24 if len(tasks) < 5 else 17) * len(tasks), 26 * len(pairs))
    return altair.layer(*layers, width=WIDTH, height=height, title="Difference in score")


def _by(names: Sequence[str], field: str, places: Iterable[int], shown: Sequence[str]) -> dict[str, Any]:
    """Colour and shape of series in their places, with a legend of those that are ``shown``, below each other."""
    chosen = list(places)
    legend = altair.Legend(title=None, columns=1, orient="bottom", offset=8, values=shown) if len(shown) > 1 else None
    colours = altair.Scale(domain=names, range=[COLOURS[i % len(COLOURS)] for i in chosen])
    shapes = altair.Scale(domain=names, range=[SHAPES[i % len(SHAPES)] for i in chosen])
    return {
        "color": altair.Color(f"{field}:N", scale=colours, legend=legend),
        "shape": altair.Shape(f"{field}:N", scale=shapes, legend=legend),
    }
