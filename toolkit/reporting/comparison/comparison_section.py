"""The numbers of a report in, its section on differences between arms out: gap first, then difference, then tests."""

from collections.abc import Mapping, Sequence

import pandas as pd

from toolkit.comparison.report_data import ReportData
from toolkit.reporting.cells import NOT_APPLICABLE, interval, points
from toolkit.reporting.charts import Charts
from toolkit.reporting.comparison.caveats import pair_caveats
from toolkit.reporting.comparison.linear_probes import against_probe_block, linear_probes
from toolkit.reporting.comparison.selections import covered, headline, largest_size
from toolkit.reporting.page import Block, FoldBlock, NoteBlock, Section, chart_blocks, folds, table_block

DIFFERENCE = (
    "pair",
    "split",
    "detectable_gap_points",
    "difference",
    "interval",
    "verdict",
    "first_mean",
    "second_mean",
    "interval90",
    "margin_points",
    "num_seeds",
    "num_items",
    "score",
    "note",
)
"""The smallest detectable gap stands before what was found."""
TESTS = (
    "pair",
    "split",
    "p",
    "q",
    "sign_flip_p",
    "smallest_p",
    "mcnemar",
    "tost_p",
    "bootstrap_interval",
    "noise_floor_points",
    "score",
)


def estimand(data: ReportData) -> str:
    """What a seed is in these runs, and what their intervals do not cover."""
    draws = any(run.config.max_train_examples is not None for run in data.runs)
    drawn = ", and the training examples that were drawn" if draws else ""
    text = f"A seed is the initialisation of the head, the order of the data and dropout, together{drawn}."
    if data.tuning is None or data.tuning.empty:
        return text
    seeds = int(data.tuning["num_seeds"].iloc[0])
    chosen = f"{seeds} seed{'' if seeds == 1 else 's'} each"
    return f"{text} Settings were chosen on part of train with {chosen}: the intervals do not cover that choice."


def comparison_section(data: ReportData, charts: Charts) -> Section | None:
    """The smallest detectable gap, then the difference with its intervals, then every test."""
    if data.comparison.empty:
        return None
    table = largest_size(shown_comparison(data.comparison, data.seeds))
    table = table.assign(pair=_minus(table["first_base"], table["second_base"]))
    bodies: list[Sequence[Block]] = []
    for group in data.groups:
        own = table[table["group"] == group.title]
        seeds = data.seeds[(data.seeds["group"] == group.title) & data.seeds["first"].isin(own["first"])]
        tested = table_block(own, TESTS, f"Tests on {group.title}")
        tests = FoldBlock(title=f"All tests: {group.title}", blocks=(tested,))
        each = FoldBlock(title=f"Seed by seed: {group.title}", blocks=(_seed_by_seed(seeds, group.title),))
        bodies.append([table_block(own, DIFFERENCE, f"Differences on {group.title}"), tests, each])
    over = covered(headline(table))
    spans = f", with the interval that decided over {over}" if over else ", without intervals"
    caption = (
        f"Difference between two conditions on each split{spans}; the margin is shaded. The interval is of 90 % for "
        "equivalent, else of 95 %; a dotted one is over items only. All panels have one scale."
    )
    figure = chart_blocks(charts, "differences", caption, "Forest plot of the differences between conditions")
    lead = (
        "First condition minus second on the same items at the last epoch, paired by seed, in points (hundredths of "
        "the score). The smallest detectable gap stands before the difference: a smaller one could not have been "
        "found. "
        f"q takes into account how many comparisons this report makes. {estimand(data)}"
    )
    features = against_probe_block(linear_probes([own.group for own in data.details]))
    blocks = (*figure, *folds([group.title for group in data.groups], bodies), *features, *caveats_of_pairs(data))
    return Section(id="comparison", title="Comparison", lead=lead, blocks=blocks)


def shown_comparison(table: pd.DataFrame, seeds: pd.DataFrame) -> pd.DataFrame:
    """``toolkit.compare`` with the columns as they are read: pairs, intervals as texts, McNemar over seeds."""
    spans = {"interval": ("low_points", "high_points"), "interval90": ("low90_points", "high90_points")}
    spans["bootstrap_interval"] = ("bootstrap_low_points", "bootstrap_high_points")
    texts = {
        name: [interval(low, high) for low, high in zip(table[ends[0]], table[ends[1]], strict=True)]
        for name, ends in spans.items()
    }
    texts["difference"] = [points(value) for value in table["difference_points"]]
    counts = mcnemar_counts(seeds)
    keys = zip(table["group"], table["first"], table["second"], table["split"], strict=True)
    return table.assign(
        pair=_minus(table["first"], table["second"]), mcnemar=[counts.get(key, NOT_APPLICABLE) for key in keys], **texts
    )


def _minus(first: pd.Series, second: pd.Series) -> list[str]:
    return [f"{one} minus {other}" for one, other in zip(first, second, strict=True)]


def mcnemar_counts(seeds: pd.DataFrame) -> Mapping[tuple[object, ...], str]:
    """Group, pair and split to ``2 of 5``: the seeds whose exact McNemar p is below .05, of those that have one."""
    tested = seeds[seeds["mcnemar_p"].notna()]
    keys = ["group", "first", "second", "split"]
    return {
        tuple(key): f"{int((part < 0.05).sum())} of {len(part)}"
        for key, part in tested.groupby(keys, sort=False)["mcnemar_p"]
    }


def _seed_by_seed(seeds: pd.DataFrame, title: str) -> Block:
    table = seeds.assign(pair=_minus(seeds["first"], seeds["second"]))
    names = ["pair", "split", "seed", "num_items", "first_score", "second_score", "difference_points"]
    names += ["num_only_first_right", "num_only_second_right", "mcnemar_p", "q", "note"]
    return table_block(table, names, f"Exact McNemar test of every seed on {title}; it covers items, not seeds")


def caveats_of_pairs(data: ReportData) -> tuple[Block, ...]:
    """Seeds that one side of a pair lacks, and pairs that differ in more than the regime."""
    sentences = pair_caveats(data)
    return (NoteBlock(text="\n\n".join(sentences)),) if sentences else ()
