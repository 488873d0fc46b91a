"""Differences between conditions: the smallest detectable gap first, then the difference, then the tests."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.intervals import detectable_gap_planned
from toolkit.comparison.report_data import ReportData
from toolkit.reporting.cells import NOT_APPLICABLE, interval, points
from toolkit.reporting.charts import Chart, Charts, altair, around_zero, data_of, intervals, panels, themed, tips
from toolkit.reporting.page import Block, FoldBlock, NoteBlock, Section, chart_blocks, folds, table_block
from toolkit.reporting.topics.caveats import (
    against_probe_block,
    covered,
    deciding,
    headline,
    largest_size,
    linear_probes,
    pair_caveats,
    reach_points,
    task_names,
)
from toolkit.reporting.verdict_words import LEGEND_WORDS

VERDICT_MARKS = {
    "supported": ("#D55E00", "circle"),
    "equivalent": ("#009E73", "diamond"),
    "not supported": ("#0072B2", "square"),
    "the other way": ("#CC79A7", "triangle-left"),
    "under-powered": ("#767B84", "triangle-up"),
    "not judged": ("#767B84", "cross"),
    "not measurable here": ("#767B84", "triangle-down"),
}
"""Verdict to colour and shape of its mark: either tells it."""


def differences_chart(comparison: pd.DataFrame, *, width: int = 420, is_one_panel: bool = False) -> Chart | None:
    """The chart of :func:`toolkit.plot_differences` from its table, with a panel per pair; None without a difference.

    ``width``: of a panel, in pixels, while there are few. A line of a panel (its ``place``) is a task and a split.
    """
    table = largest_size(headline(comparison))
    table = table[table["difference_points"].notna()]
    if table.empty:
        return None
    differences = _drawn_differences(table)
    if is_one_panel and differences["pair"].nunique() > 1:
        differences = differences.assign(place=differences["place"] + ": " + differences["pair"], pair="")
    lines = list(dict.fromkeys(differences["place"]))
    pairs = list(dict.fromkeys(differences["pair"]))
    margin = float(differences["margin"].max())
    scale = _points_scale(differences, margin, reach=max(map(reach_points, table["score"])))
    x = altair.X("difference:Q", scale=scale, title="difference (points)", axis=altair.Axis(tickCount=6))
    colour, shape = _verdict_look(differences["verdict"])
    tip_fields = tips(
        pair="difference",
        place="task and split",
        difference=("points", "+.2f"),
        interval="interval",
        verdict="verdict",
        over="seeds",
    )
    columns = 2 if len(pairs) > 2 or (len(pairs) > 1 and len(lines) > 6) else 1
    line_height = 24 if len(lines) <= 8 else 17
    panel_width = 330 if is_one_panel else width if columns == 1 else 245
    size = {"width": panel_width, "height": max(line_height * len(lines), 50)}
    charts = []
    titles = []
    for i, (pair, pair_differences) in enumerate(differences.groupby("pair", sort=False)):
        axis = altair.Axis(domain=False, ticks=False, labels=not i % columns, labelLimit=420 if is_one_panel else 170)
        y = altair.Y("place:N", sort=lines, scale=altair.Scale(domain=lines), title=None, axis=axis)
        base = altair.Chart(data_of(pair_differences)).encode(y=y, tooltip=tip_fields)
        spans, *tips_of_spans = intervals(base, x, color=colour)
        front = [
            spans.transform_filter("datum.num_seeds > 1"),
            spans.transform_filter("datum.num_seeds == 1").mark_rule(strokeWidth=2, strokeDash=[2, 2]),
            *tips_of_spans,
            base.mark_point(filled=True, size=40, opacity=1).encode(x=x, color=colour, shape=shape),
        ]
        charts.append(altair.layer(*around_zero(scale, margin), *front, **size))
        titles.append(textwrap.wrap(str(pair), 38 if columns > 1 else 64))
    return panels(charts, columns, titles=titles) if len(charts) > 1 else themed(charts[0].properties(title=titles[0]))


def _points_scale(differences: pd.DataFrame, margin: float, reach: float) -> Any:
    """The scale of points that all panels share: every interval as far as the score can reach, 0, and the margin."""
    # A difference without an interval, as of F1 from one seed, counts itself: it may be outside all others.
    values = differences[["low", "high", "difference"]].to_numpy(dtype=float)
    ends = [max(float(np.nanmin(values)), -reach), min(float(np.nanmax(values)), reach), 0.0]
    if not math.isnan(margin):
        ends += [-1.3 * margin, 1.3 * margin]
    return altair.Scale(domain=[min(ends), max(ends)], nice=True, clamp=True)


def _verdict_look(verdicts: "pd.Series[str]") -> tuple[Any, Any]:
    """Colour, with its legend, and shape of a mark by its verdict."""
    names = [name for name in VERDICT_MARKS if name in set(verdicts)]
    colours = [VERDICT_MARKS[name][0] for name in names]
    shapes = [VERDICT_MARKS[name][1] for name in names]
    label_tests = " : ".join(f"datum.label == '{name}' ? '{text}'" for name, text in LEGEND_WORDS.items())
    legend = altair.Legend(title=None, labelExpr=f"{label_tests} : datum.label")
    return (
        altair.Color("verdict:N", scale=altair.Scale(domain=names, range=colours), legend=legend),
        altair.Shape("verdict:N", scale=altair.Scale(domain=names, range=shapes), title="Verdict"),
    )


def _drawn_differences(table: pd.DataFrame) -> pd.DataFrame:
    """The differences as they are drawn, each with the interval of its verdict: 90 % for equivalent and else 95 %."""
    records: list[dict[str, Any]] = []
    tasks = task_names(table)
    has_many = tasks.nunique() > 1  # else every line would begin alike
    for task, record in zip(tasks, table.to_dict("records"), strict=True):
        low, high, level = deciding(record)
        first_label, second_label = (str(record.get(f"{side}_base") or record[side]) for side in ("first", "second"))
        records.append(
            {
                "pair": f"{first_label} minus {second_label}",  # a panel
                "place": f"{task}: {record['split']}" if has_many else str(record["split"]),  # a line of it
                "difference": record["difference_points"],
                "low": low,
                "high": high,
                "interval": f"{low:+.2f} to {high:+.2f} ({level} %)" if low == low else "none",
                "margin": record["margin_points"],
                "verdict": str(record.get("verdict") or "not supported"),
                "num_seeds": int(record["num_seeds"]),
                "over": "one seed: items only" if record["num_seeds"] == 1 else f"{record['num_seeds']:.0f} seeds",
            }
        )
    return pd.DataFrame(records)


DIFFERENCE = (
    "pair split detectable_gap_points difference interval verdict first_mean second_mean interval90 margin_points "
    "num_seeds num_items score note"
)
"""The smallest detectable gap stands before what was found."""
TESTS = "pair split p q sign_flip_p smallest_p mcnemar noise_floor_points score"


ASSUMED = {"discordance": 0.10, "seed_sd": 0.01}
"""Of a comparison of which nothing is known yet: the share of items on which exactly one of two runs is right, and how
much the true difference varies between seeds (a standard deviation, a share)."""
PLANNED = (
    "Smallest difference in accuracy that 80 % power finds, in points: {}. So much is known before any result, at "
    "two-sided alpha .05 and as assumed: exactly one of two conditions is right on 10 % of the items, the same ones in "
    "every seed, and the true difference varies between seeds by 1 point (standard deviation)."
)


def planned_gaps_text(sizes: Mapping[str, tuple[int, int]]) -> str:
    """The smallest difference that comparisons of so many seeds and items find, with what it assumes; '' without any.

    ``sizes``: name to its seeds and items; those without a seed or two items are left out.
    """
    gaps = [
        f"{name} {100 * detectable_gap_planned(seeds, items, **ASSUMED):.1f} (seeds {seeds}, items {items:,})"
        for name, (seeds, items) in sizes.items()
        if seeds > 0 and items > 1
    ]
    return PLANNED.format(", ".join(gaps)) if gaps else ""


def estimand(data: ReportData) -> str:
    """What a seed is in these runs, and what their intervals do not cover."""
    is_sampled = any(run.setting("max_train_examples") is not None for run in data.runs)
    and_examples = ", and the training examples that were drawn" if is_sampled else ""
    text = f"A seed is the initialisation of the head, the order of the data and dropout, together{and_examples}."
    if data.tuning is None or data.tuning.empty:
        return text
    num_seeds = int(data.tuning["num_seeds"].iloc[0])
    seeds_text = f"{num_seeds} seed{'' if num_seeds == 1 else 's'} each"
    return f"{text} Settings were chosen on part of train with {seeds_text}: the intervals do not cover that choice."


MOVED_OUT = (
    " The 90 % interval decides equivalence alone: where few items differ its end that is farther from 0 is moved out "
    "by an exact bound, so that it can lie beyond the 95 % one."
)


def comparison_section(data: ReportData, charts: Charts) -> Section | None:
    """The smallest detectable gap, then the difference with its intervals, then every test."""
    if data.comparison.empty:
        return None
    table = largest_size(shown_comparison(data.comparison, data.seeds))
    table = table.assign(pair=_pair_names(table["first_base"], table["second_base"]))
    bodies: list[Sequence[Block]] = []
    for group in data.groups:
        differences = table[table["group"] == group.title]
        tests_table = table_block(differences, TESTS, f"Tests on {group.title}")
        tests = FoldBlock(title=f"All tests: {group.title}", blocks=(tests_table,))
        bodies.append([table_block(differences, DIFFERENCE, f"Differences on {group.title}"), tests])
    units = covered(headline(table))
    num_claims = headline(data.comparison)["q"].notna().sum()
    intervals_text = f", with the interval that decided over {units}" if units else ", without intervals"
    caption = (
        f"Difference between two conditions on each split{intervals_text}; the margin is shaded. The interval is of "
        "90 % for equivalent, else of 95 %; a dotted one is over items only. All panels have one scale."
    )
    figure = chart_blocks(charts, "differences", caption, "Forest plot of the differences between conditions")
    lead = (
        "First condition minus second on the same items at the last epoch, paired by seed, in points (hundredths of "
        "the score). The smallest detectable gap stands before the difference: a smaller one could not have been "
        "found. "
        f"q is over the {num_claims} score claims of this report. {estimand(data)}"
    )
    is_moved_out = (table["low90_points"] < table["low_points"]) | (table["high90_points"] > table["high_points"])
    lead += MOVED_OUT if is_moved_out.any() else ""
    probes = against_probe_block(linear_probes([tables.group for tables in data.details]))
    # Seeds that one side of a pair lacks, and pairs that differ in more than the regime.
    sentences = pair_caveats(data)
    notes = (NoteBlock(text="\n\n".join(sentences)),) if sentences else ()
    blocks = (*figure, *folds([group.title for group in data.groups], bodies), *probes, *notes)
    return Section(id="comparison", title="Comparison", lead=lead, blocks=blocks)


def shown_comparison(table: pd.DataFrame, seeds: pd.DataFrame) -> pd.DataFrame:
    """``toolkit.compare`` with the columns as they are read: pairs, intervals as texts, McNemar over seeds."""
    texts = {
        "interval": list(map(interval, table["low_points"], table["high_points"])),
        "interval90": list(map(interval, table["low90_points"], table["high90_points"])),
    }
    texts["note"] = table["note"].where(table["verdict"] != "", table["reason"]).tolist()  # of what was not compared
    texts["difference"] = [points(value) for value in table["difference_points"]]
    counts = mcnemar_counts(seeds)
    keys = zip(table["group"], table["first"], table["second"], table["split"], strict=True)
    texts["mcnemar"] = [counts.get(key, NOT_APPLICABLE) for key in keys]
    return table.assign(pair=_pair_names(table["first"], table["second"]), **texts)


def _pair_names(first: pd.Series, second: pd.Series) -> list[str]:
    """The name of each pair of conditions: first minus second."""
    return [f"{first_label} minus {second_label}" for first_label, second_label in zip(first, second, strict=True)]


def mcnemar_counts(seeds: pd.DataFrame) -> Mapping[tuple[object, ...], str]:
    """Group, pair and split to ``2 of 5``: the seeds whose exact McNemar p is below .05, of those that have one."""
    with_p = seeds[seeds["mcnemar_p"].notna()]
    p_by_key = with_p.groupby(["group", "first", "second", "split"], sort=False)["mcnemar_p"]
    return {tuple(key): f"{int((p < 0.05).sum())} of {len(p)}" for key, p in p_by_key}
