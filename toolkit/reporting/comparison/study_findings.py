"""The numbers of a report in, what it found out: an answer in short, each pair on each task by name, then drift.

Real data come first; the built-in tasks, whose label is carried by one thing alone, and splits from elsewhere are told
apart from them. What was looked for and not found is said like anything else.
"""

import pandas as pd

from toolkit.analysis.comparison.arms import Group
from toolkit.analysis.comparison.verdicts import REFUSALS
from toolkit.reporting.comparison.data import ReportData
from toolkit.reporting.comparison.drift_answers import drift_answer, moved_sentence
from toolkit.reporting.comparison.findings import findings
from toolkit.reporting.comparison.linear_probes import linear_probes, probe_sentence
from toolkit.reporting.comparison.pair_sentences import in_brief, in_full, in_short
from toolkit.reporting.comparison.selections import (
    counted_tasks,
    covered,
    has_several_models,
    headline,
    is_from_elsewhere,
    largest_size,
    task_names,
)
from toolkit.reporting.markdown import listing

MOST = 8
MOST_PAIRS = 4
"""Pairs that have a sentence of their own; more are in the comparison."""


def report_findings(data: ReportData) -> list[str]:
    """About eight sentences, each with its numbers, in the order in which a reader asks."""
    margin = margin_of(data.comparison)
    missed = probe_sentence(linear_probes([own.group for own in data.details]), margin, data.comparison)
    compared = score_findings(data.comparison, controlled_tasks(data.groups))
    sentences = [*compared[:1], *([missed] if missed else []), *compared[1:]]
    if len(data.details) == 1:
        moved = moved_sentence(data.joined, data.labels)
        sentences += [moved] if moved else []
        return sentences + findings(data.details[0])[: max(MOST - len(sentences), 2)]
    answer = drift_answer(data.joined, data.association, data.labels)
    return sentences + ([answer] if answer else [])


def controlled_tasks(groups: tuple[Group, ...]) -> set[str]:
    """Titles of the groups whose task is built in: its manifest says what carries the label."""
    return {group.title for group in groups if group.runs[0].part("task").get("carrier")}


def margin_of(comparison: pd.DataFrame) -> float:
    """The margin of the comparisons, 1 point where there are none."""
    return float(comparison["margin_points"].max()) if len(comparison.dropna(subset=["margin_points"])) else 1.0


def score_findings(comparison: pd.DataFrame, controlled: set[str]) -> list[str]:
    """What was found of scores: in short, each pair on real data, on controlled tasks, and on data from elsewhere."""
    table = findings_table(comparison)
    if table.empty:
        return []
    is_controlled, is_elsewhere = table["group"].isin(controlled), table["split"].map(is_from_elsewhere)
    is_reported = table["is_reported_split"].astype(bool)
    real, built_in = table[is_reported & ~is_controlled], table[is_reported & is_controlled]
    main, rest = (real, built_in) if len(real) else (built_in, real)
    kind = "" if built_in.empty else "real " if len(real) else "controlled "
    answer = _answer(main, kind)
    sentences = [*([answer] if answer else []), *_each_pair(main)]
    if len(rest):
        what = f"On the controlled (built-in) {_tasks(rest)}"
        sentences.append(f"{what}, in points: {_in_brief(rest)}.")
    for own in (~is_controlled, is_controlled):
        lines = table[is_elsewhere & ~is_reported & own]
        where = f" on the controlled {_tasks(lines)}" if own is is_controlled else ""
        sentences += [_elsewhere(lines, where)] if len(lines) else []
    return sentences


def findings_table(comparison: pd.DataFrame) -> pd.DataFrame:
    """Headline scores of the most training examples that could be compared, with the ``name`` of each task."""
    if comparison.empty:
        return comparison
    table = largest_size(headline(comparison))
    table = table[table["difference_points"].notna()]
    return table.assign(name=task_names(table)) if len(table) else table


def _pairs(table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    keys = ["first_base", "second_base"]
    return [(str(first), str(second), own) for (first, second), own in table.groupby(keys, sort=False)]


def _answer(table: pd.DataFrame, kind: str) -> str:
    """The answer in short, without intervals, and what the numbers are; '' where no pair has one."""
    tasks = list(dict.fromkeys(table["name"]))
    where = f"on {tasks[0] if len(tasks) == 1 else counted_tasks(table, len(tasks), kind)}"
    by_first: dict[str, list[tuple[str, pd.DataFrame]]] = {}
    for first, second, own in _pairs(table)[:MOST_PAIRS]:
        if not own["verdict"].isin(REFUSALS).all():
            by_first.setdefault(first, []).append((second, own))
    text = "; ".join(in_short(first, pairs) for first, pairs in by_first.items())
    return f"In short, {where} {text}. Scores: {_what(table)}." if text else ""


def _what(table: pd.DataFrame) -> str:
    scores, seeds = list(dict.fromkeys(table["score"])), int(table["num_seeds"].max())
    score = scores[0] if len(scores) == 1 else "headline score"
    splits = list(dict.fromkeys(table["split"]))
    split = f"on {splits[0]}" if len(splits) == 1 else "on the reported splits"
    over = covered(table)
    intervals = f"every interval is over {over}" if over else "no interval"
    return f"{score} {split}, {seeds} seed{'s' if seeds > 1 else ''}; {intervals}"


def _each_pair(table: pd.DataFrame) -> list[str]:
    pairs = _pairs(table)
    sentences = [in_full(first, second, own) for first, second, own in pairs[:MOST_PAIRS]]
    left = len(pairs) - MOST_PAIRS
    if left > 0:
        sentences[-1] += f" {left} more pair{'s are' if left > 1 else ' is'} in the comparison."
    return sentences


def _tasks(table: pd.DataFrame) -> str:
    column = "task" if has_several_models(table) else "name"
    names = list(dict.fromkeys(str(name) for name in table[column]))
    return f"task{'s' if len(names) > 1 else ''} {listing(names)}"


def _in_brief(table: pd.DataFrame) -> str:
    by_first: dict[str, list[str]] = {}
    for first, second, own in _pairs(table)[:MOST_PAIRS]:
        by_first.setdefault(first, []).append(in_brief(second, own))
    return "; ".join(f"{first} {'; '.join(parts)}" for first, parts in by_first.items())


def _elsewhere(table: pd.DataFrame, where: str) -> str:
    """Splits that are not of the distribution of the training data, by name; with the task where names repeat."""
    # A split of one name may belong to several tasks, as every built-in one has its `ood`.
    is_shared = table.groupby("split")["group"].transform("nunique") > 1
    named = [
        name if shared else split if table["group"].nunique() == 1 else f"{split} ({name})"
        for split, name, shared in zip(table["split"], table["name"], is_shared, strict=True)
    ]
    shared = list(dict.fromkeys(table.loc[is_shared, "split"]))
    tell = f" ({listing(shared)})" if shared else ""
    return f"Out of distribution{where}{tell}, in points: {_in_brief(table.assign(name=named))}."
