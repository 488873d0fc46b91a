"""The numbers of a report in, what it found out: plain sentences on every pair of arms, and on each task."""

from collections.abc import Mapping

import pandas as pd

from toolkit.analysis.comparison.verdicts import VERDICTS
from toolkit.reporting.cells import interval
from toolkit.reporting.findings import findings
from toolkit.reporting.markdown import listing
from toolkit.reporting.report_data import ReportData
from toolkit.reporting.selections import headline, largest_size

MOST_SPLITS = 5


def report_findings(data: ReportData) -> list[str]:
    """What was compared first, then what moved: of one task in full, of several in ranges."""
    sentences = pair_findings(data.comparison)
    if len(data.details) == 1:
        return sentences + findings(data.details[0])
    return sentences + [text for text in (_drift(data), _association(data), _failed(data)) if text]


def pair_findings(comparison: pd.DataFrame) -> list[str]:
    """One sentence per pair: every split of one task, or the verdicts counted over tasks and kinds of split."""
    if comparison.empty:
        return []
    table = largest_size(headline(comparison))
    table = table[table["difference_points"].notna()]
    pairs = table.groupby(["first_base", "second_base"], sort=False)
    if table["group"].nunique() == 1:
        return [_one_task(str(first), str(second), own) for (first, second), own in pairs]
    return [_tasks(str(first), str(second), own) for (first, second), own in pairs]


def _one_task(first: str, second: str, table: pd.DataFrame) -> str:
    seeds = int(table["num_seeds"].iloc[0])
    parts = [
        f"{line['split']} {line['difference_points']:+.2f} "
        f"[{interval(line['low_points'], line['high_points'])}], {line['verdict']}"
        for line in table.head(MOST_SPLITS).to_dict("records")
    ]
    scope = (
        f"{seeds} seeds, 95 % interval over seeds and items" if seeds > 1 else "one seed, 95 % interval over items only"
    )
    more = f" and {len(table) - MOST_SPLITS} more splits" if len(table) > MOST_SPLITS else ""
    score = table["score"].iloc[0]
    return f"{first} minus {second}, {score} in points ({scope}): {'; '.join(parts)}{more}."


def _tasks(first: str, second: str, table: pd.DataFrame) -> str:
    """Verdicts counted and the range of the differences, on reported splits and on the others."""
    is_reported = table["is_reported_split"].astype(bool)
    parts = []
    for name, own in (("on the reported splits", table[is_reported]), ("on the other splits", table[~is_reported])):
        if len(own):
            low, high = own["difference_points"].min(), own["difference_points"].max()
            parts.append(f"{name} {low:+.2f} to {high:+.2f} points ({_counted(own['verdict'])})")
    return f"{first} minus {second}, {table['group'].nunique()} tasks: {'; '.join(parts)}."


def _counted(verdicts: pd.Series) -> str:
    counts: Mapping[str, int] = verdicts.value_counts().to_dict()
    return f"of {len(verdicts)}: {', '.join(f'{counts[name]} {name}' for name in VERDICTS if name in counts)}"


def _drift(data: ReportData) -> str:
    """How far the word embeddings moved, over tasks, in the first arm in which they did."""
    table = data.joined
    table = table[(table["parameter"] == "word_embeddings") & (table["relative"] > 0)]
    if table.empty:
        return "No embedding parameter moved in any run."
    base = table["base"].iloc[0]
    means = 100 * table[table["base"] == base].groupby("group", sort=False)["relative"].mean()
    few = f"{means.idxmin()} {means.min():.2f} %, {means.idxmax()} {means.max():.2f} %"
    return f"Under {base} the word embeddings moved least and most, relative to their norm before training, on: {few}."


def _association(data: ReportData) -> str:
    """What can be said of drift against gain over tasks."""
    table = data.association
    if table.empty:
        return ""
    defined = table[table["spearman"].notna()]
    if defined.empty:
        return f"Does drift predict gain across tasks? {str(table['note'].iloc[0]).capitalize()}."
    words = defined[defined["parameter"] == "word_embeddings"]
    line = (words if len(words) else defined).iloc[0]
    return (
        f"Across {int(line['num_tasks'])} tasks, drift of {line['parameter']} and gain under {line['base']} have a "
        f"rank correlation of {line['spearman']:+.2f} (permutation p = {line['p']:.3f})."
    )


def _failed(data: ReportData) -> str:
    failed = [run.name for run in data.runs if run.is_failed]
    if not failed:
        return f"None of {len(data.runs)} runs failed."
    counts: dict[str, int] = {}
    for arm in data.arms:
        counts[arm.base or arm.label] = counts.get(arm.base or arm.label, 0) + arm.num_failed
    parts = [f"{label} {count}" for label, count in counts.items() if count]
    count = f"{len(failed)} of {len(data.runs)} runs failed"
    return f"{count} (majority class or worse on the reported split): {listing(parts)}."
