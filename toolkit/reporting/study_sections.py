"""The numbers of a report in, its sections on scores out: arms, comparison, cost, sizes, drift joined with score."""

from collections.abc import Mapping, Sequence

import pandas as pd

from toolkit.reporting.blocks import figure_blocks, folds, rows_block, table_block, varying
from toolkit.reporting.cells import interval, mean_text, points
from toolkit.reporting.columns import COLUMNS
from toolkit.reporting.images import Images
from toolkit.reporting.markdown import NOT_APPLICABLE, number
from toolkit.reporting.page.model import Block, FoldBlock, NoteBlock, Section
from toolkit.reporting.report_data import ReportData
from toolkit.reporting.score_sections import pair_caveats
from toolkit.reporting.selections import largest_size
from toolkit.reporting.worth_sections import cost_section, drift_and_score_section, efficiency_section, tuning_section

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
SUMMARY = (
    "split",
    "base",
    "num_train_examples",
    "score",
    "num_seeds",
    "mean",
    "sd",
    "median",
    "min",
    "max",
    "num_failed",
    "mean_not_failed",
    "sd_not_failed",
)

MINILM = (
    "The embedded model minilm (all-MiniLM-L6-v2) is a BERT that was tuned on sentence pairs. That makes feature "
    "extraction look better than raw BERT would: a claim about BERT needs a second, raw backbone."
)


def study_sections(data: ReportData, images: Images) -> list[Section]:
    """Scores, comparison, cost, data efficiency, drift and score, tuning: those that there is something to say of."""
    sections = [scores_section(data, images), comparison_section(data, images), cost_section(data, images)]
    sections += [efficiency_section(data, images), drift_and_score_section(data, images), tuning_section(data)]
    return [section for section in sections if section is not None]


def caveats(data: ReportData) -> list[str]:
    """What has to be read with any number of the report."""
    sentences = list(data.left_out)
    if any(str(run.model) == "minilm" for run in data.runs):
        sentences.append(MINILM)
    if data.num_seeds == 1:
        sentences.append("Every arm has one seed: intervals cover the items and say nothing of other seeds.")
    return sentences


def scores_section(data: ReportData, images: Images) -> Section:
    """In and out of distribution side by side."""
    bodies: list[Sequence[Block]] = []
    for group in data.groups:
        own = data.summary[data.summary["group"] == group.title]
        title = f"Every score of {group.title}, over all seeds and over those that did not fail"
        details = table_block(varying(own), SUMMARY, title)
        bodies.append([_sides(own, group.title), FoldBlock(title=f"All scores: {group.title}", blocks=(details,))])
    text = "every seed a dot (hollow: the run failed), a bar at their mean"
    figure = figure_blocks(images, "scores_by_arm", f"Last score of every arm and split: {text}.", "Scores by arm")
    lead = (
        "Score at the last epoch, mean ± standard deviation over seeds. The reported split is in the distribution of "
        "the training data; the others are as their names say, tests of the same data or data from elsewhere."
    )
    blocks = (*figure, *folds([group.title for group in data.groups], bodies))
    return Section(id="scores", title="Scores, in and out of distribution", lead=lead, blocks=blocks)


def _sides(summary: pd.DataFrame, title: str) -> Block:
    """One line per arm, one column per split of the headline score, and the majority class's line."""
    own = largest_size(summary[summary["is_headline"].astype(bool)])
    reported = set(own.loc[own["is_reported_split"].astype(bool), "split"])
    splits = sorted(dict.fromkeys(own["split"]), key=lambda split: split not in reported)
    header = ["arm", "seeds", "failed", *(f"{split} (reported)" if split in reported else split for split in splits)]
    rows: list[list[object]] = []
    for arm, lines in own.groupby("base", sort=False):
        cells: dict[str, str] = {}
        for line in lines.to_dict("records"):
            cells[line["split"]] = mean_text(line["mean"], line["sd"])
        counts = [int(lines[name].iloc[0]) for name in ("num_seeds", "num_failed")]
        rows.append([arm, *counts, *(cells.get(split, NOT_APPLICABLE) for split in splits)])
    rates = own.groupby("split")["majority_rate"].first()
    if rates.notna().any():
        rows.append(["majority class", "", "", *(number(rates.get(split)) for split in splits)])
    score = str(own["score"].iloc[0]) if len(own) else "score"
    hows = {"failed": COLUMNS["num_failed"].how}
    return rows_block(header, rows, f"{score} of {title} at the last epoch", hows)


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


def comparison_section(data: ReportData, images: Images) -> Section | None:
    """The smallest detectable gap, then the difference with its intervals, then every test."""
    if data.comparison.empty:
        return None
    table = largest_size(shown_comparison(data.comparison, data.seeds))
    table = table.assign(
        pair=[f"{a} minus {b}" for a, b in zip(table["first_base"], table["second_base"], strict=True)]
    )
    bodies: list[Sequence[Block]] = []
    for group in data.groups:
        own = table[table["group"] == group.title]
        seeds = data.seeds[(data.seeds["group"] == group.title) & data.seeds["first"].isin(own["first"])]
        tested = table_block(own, TESTS, f"Tests on {group.title}")
        tests = FoldBlock(title=f"All tests: {group.title}", blocks=(tested,))
        each = FoldBlock(title=f"Seed by seed: {group.title}", blocks=(_seed_by_seed(seeds, group.title),))
        bodies.append([table_block(own, DIFFERENCE, f"Differences on {group.title}"), tests, each])
    caption = (
        "Difference between two arms on each split, with its 95 % and 90 % interval over seeds and items; the margin "
        "is shaded. A 90 % interval within it is equivalence. Each panel has its own scale."
    )
    figure = figure_blocks(images, "differences", caption, "Forest plot of the differences between arms")
    lead = (
        "First arm minus second on the same items at the last epoch, paired by seed, in points (hundredths of the "
        "score). The smallest detectable gap stands before the difference: what is smaller could not have been found. "
        f"q corrects for all comparisons of this report. {estimand(data)}"
    )
    blocks = (*figure, *folds([group.title for group in data.groups], bodies), *caveats_of_pairs(data))
    return Section(id="comparison", title="Comparison", lead=lead, blocks=blocks)


def shown_comparison(table: pd.DataFrame, seeds: pd.DataFrame) -> pd.DataFrame:
    """``toolkit.compare`` with the columns as they are read: pairs, intervals as texts, McNemar over seeds."""
    spans = {"interval": ("low_points", "high_points"), "interval90": ("low90_points", "high90_points")}
    spans["bootstrap_interval"] = ("bootstrap_low_points", "bootstrap_high_points")
    pairs = [f"{first} minus {second}" for first, second in zip(table["first"], table["second"], strict=True)]
    texts = {
        name: [interval(low, high) for low, high in zip(table[ends[0]], table[ends[1]], strict=True)]
        for name, ends in spans.items()
    }
    texts["difference"] = [points(value) for value in table["difference_points"]]
    counts = mcnemar_counts(seeds)
    keys = zip(table["group"], table["first"], table["second"], table["split"], strict=True)
    return table.assign(pair=pairs, mcnemar=[counts.get(key, NOT_APPLICABLE) for key in keys], **texts)


def mcnemar_counts(seeds: pd.DataFrame) -> Mapping[tuple[object, ...], str]:
    """Group, pair and split to ``2 of 5``: the seeds whose exact McNemar p is below .05, of those that have one."""
    tested = seeds[seeds["mcnemar_p"].notna()]
    keys = ["group", "first", "second", "split"]
    return {
        tuple(key): f"{int((part < 0.05).sum())} of {len(part)}"
        for key, part in tested.groupby(keys, sort=False)["mcnemar_p"]
    }


def _seed_by_seed(seeds: pd.DataFrame, title: str) -> Block:
    table = seeds.assign(pair=[f"{a} minus {b}" for a, b in zip(seeds["first"], seeds["second"], strict=True)])
    names = ["pair", "split", "seed", "num_items", "first_score", "second_score", "difference_points"]
    names += ["num_only_first_right", "num_only_second_right", "mcnemar_p", "q", "note"]
    return table_block(table, names, f"Exact McNemar test of every seed on {title}; it covers items, not seeds")


def caveats_of_pairs(data: ReportData) -> tuple[Block, ...]:
    """Seeds that one side of a pair lacks, and pairs that differ in more than the regime."""
    sentences = pair_caveats(data)
    return (NoteBlock(text="\n\n".join(sentences)),) if sentences else ()
