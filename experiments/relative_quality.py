"""Scores as a share of a reference's, measured and shown, for experiments/freeze_sweep.py."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit import schema
from toolkit.comparison.arms import ArmPair, Group, Labels, Runs, arrange, check_pairs, led_by, pair_arms
from toolkit.comparison.intervals import NO_SEED, Interval, seeds_interval, two_way_interval
from toolkit.comparison.summaries import check_table
from toolkit.reporting.cells import Column
from toolkit.reporting.charts import (
    REFERENCE,
    Chart,
    along,
    altair,
    data_of,
    draw,
    look_of,
    once,
    padded,
    panels,
    pick,
    tips,
)
from toolkit.reporting.page import Block, Page, Section, chart_blocks, table_block, texts_section

schema.add(
    (
        schema.Column("condition_mean", "Mean score of the condition over the paired seeds."),
        schema.Column("reference_mean", "Mean score, over these seeds, of the condition that it is held against."),
        schema.Column("relative_quality", "condition_mean / reference_mean."),
        schema.Column(
            "majority_quality",
            "Relative quality of always giving the most frequent label; NaN for other scores than accuracy.",
        ),
    ),
    {
        "relative_quality": (
            "group model task condition base size num_train_examples against split is_reported_split score num_seeds "
            "num_failed condition_mean reference_mean relative_quality low high majority_quality reason note"
        ),
    },
)

NOT_POSITIVE = "the reference's score is not above 0: no share of it"
UNDEFINED = "{} score is undefined in every seed: no ratio"
NEVER_BOTH = "no seed in which both scores are defined: no ratio"
ITSELF = "the reference itself: 1 by definition, so without interval"


@schema.with_columns
def relative_quality(runs: Runs, reference: str, *, level: float = 0.95, labels: Labels | None = None) -> pd.DataFrame:
    """One line per group, labelled split and condition: R = its mean score / the mean score of ``reference``.

    Same seeds and items for both. The reference has lines of its own: 1, without interval. The interval is R ± t·√V /
    reference's mean, with t and V those of :func:`toolkit.compare`'s interval of the linearised differences arm -
    R·reference, whose mean is 0: over seeds and items or, where the answers do not give the score, over seeds. (Taylor
    linearisation of a ratio of means, as in Cochran 1977, Sampling Techniques, chapter 6; with the two-way V it is
    ours.) The reference's own noise counts, other than in the difference divided by a fixed score.

    ``majority_quality``: R of always answering train's commonest class, which no arm should be praised for (NaN in
    regression, where that class was not noted, and for a score that it has none of). ``num_failed``: runs of the arm
    that failed, which count in R. NaN with a ``reason`` where there is no ratio. ``labels``: run directory name to arm.
    ValueError for a reference that no group has.
    """
    groups = arrange(runs, labels)
    check_pairs(groups, [(reference, reference)])
    lines = [line for group in groups for line in _relative_lines(group, reference, level)]
    table = pd.DataFrame(lines, columns=schema.columns_of("relative_quality"))
    return table.astype({"size": "Int64"}).fillna({"reason": "", "note": ""})


def _relative_lines(group: Group, reference: str, level: float) -> Iterator[dict[str, Any]]:
    for arm in group.arms:
        is_reference = reference in (arm.label, arm.base)
        pairs = [ArmPair(arm, arm)] if is_reference else pair_arms(group, [(arm.label, reference)])
        for pair in pairs:
            run = arm.runs[0]
            lead = led_by(group, arm) | {"against": pair.second.label, "score": run.score, "num_seeds": len(pair.seeds)}
            lead |= {"num_failed": sum(one.is_failed for one, _ in pair.runs)}
            if not pair.splits:
                yield lead | {"reason": NO_SEED}
            for split in pair.splits:
                own = {"split": split, "is_reported_split": split == run.reported_split}
                yield lead | own | _ratio(pair, split, run.score, level)


def _ratio(pair: ArmPair, split: str, score: str, level: float) -> dict[str, Any]:
    """R of one split with its interval, and what majority answers would be."""
    if reason := pair.note_on_items(split):
        return {"reason": reason}
    by_unit = pair.unit_scores(split, score)
    values, reason = both_defined(pair.scores(split, score) if by_unit is None else by_unit.mean(axis=2))
    if reason:
        return {"num_seeds": 0, "reason": reason}
    # Equal answers throughout bound an accuracy, and no other score, by the number of items.
    if by_unit is not None and (score == "accuracy" or (by_unit[0] != by_unit[1]).any()):
        values = by_unit[:, ~np.isnan(by_unit).any(axis=(0, 2))]
    first, second = (float(side.mean()) for side in values)
    found: dict[str, Any] = {"condition_mean": first, "reference_mean": second, "num_seeds": values.shape[1]}
    if not second > 0:
        return found | {"reason": NOT_POSITIVE}
    majority = pair.runs[0][0].majority_rate(split)
    found |= {"majority_quality": majority / second if score == "accuracy" else float("nan")}
    if pair.first is pair.second:
        return found | {"relative_quality": 1.0, "reason": ITSELF}
    interval = ratio_interval(values, level)
    told = {"reason" if np.isnan(interval.low) else "note": interval.note}
    return found | {"relative_quality": interval.estimate, "low": interval.low, "high": interval.high} | told


def both_defined(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], str]:
    """Those of the (2, seeds) scores of arm and reference where both are defined, and why there are none."""
    kept = scores[:, ~np.isnan(scores).any(axis=0)]
    if kept.size:
        return kept, ""
    for side, name in ((1, "the reference's"), (0, "the condition's")):
        if np.isnan(scores[side]).all():
            return kept, UNDEFINED.format(name)
    return kept, NEVER_BOTH


def ratio_interval(values: NDArray[np.float64], level: float = 0.95) -> Interval:
    """Ratio of the means of (2, seeds, items) or (2, seeds) scores, the second's above 0, with its interval.

    The interval of first - ratio·second over seeds (and items), divided by the second's mean; ``variance`` likewise.
    """
    first, second = (float(side.mean()) for side in values)
    linear = values[0] - first / second * values[1]
    size = float(np.abs(values[0]).max())  # the differences themselves may be rounding alone
    own = (seeds_interval if linear.ndim == 1 else two_way_interval)(linear, level, size=size)
    low, high = ((edge - own.estimate + first) / second for edge in (own.low, own.high))
    return replace(own, estimate=first / second, low=low, high=high, variance=own.variance / second**2)


CAPTION = (
    "Mean score of each condition as a share of the reference's, with its 95 % interval; dotted, in the colour of the "
    "split: always answering the commonest class."
)
DEFINITIONS = (
    "Relative quality: the condition's mean score over its seeds / the reference's, on the same seeds and items.",
    "Interval: 95 %, over new seeds and new items at once (two-way, Satterthwaite), or over new seeds where a score's "
    "answers are not known; of the linearised ratio, so that the reference's own noise counts. It is of one condition "
    "and one split: none is adjusted for how many there are.",
    "A failed run is at the majority class or below on the reported split; it counts in the mean.",
)
HEADER = "split condition relative_quality interval condition_mean num_seeds num_failed majority_quality reason note"


def plot_relative_quality(table: pd.DataFrame) -> Chart | None:
    """Each arm's score as a share of the reference's, with its interval: a panel per task, a mark per arm and split.

    ``table`` is :func:`relative_quality`'s; of validation and test the reported one is shown, and every other
    split. The dotted line is always answering the commonest class. None where there is no ratio of another arm.
    ValueError for another table.
    """
    check_table(table, schema.columns_of("relative_quality"), "relative_quality")
    table = shown_splits(table)
    table = table[table["relative_quality"].notna()]
    if table.empty or (table["condition"] == table["against"]).all():
        return None
    table = table.assign(condition=table["condition"].astype(str))
    arms, splits, groups = (list(dict.fromkeys(table[name].astype(str))) for name in ("condition", "split", "group"))
    table = _with_texts(table)
    picker = pick("split", splits) if len(splits) > 1 else None
    look = look_of(splits, splits, picker, "split")
    columns = min(len(groups), 3)
    scale = padded([*table["relative_quality"], *table["low"], *table["high"], *table["majority_quality"], 1])
    offset = altair.YOffset("split:N", sort=splits, scale=altair.Scale(domain=splits, paddingOuter=0.5))
    said = tips(
        condition="condition",
        split="split",
        relative_quality=("relative quality", ".3f"),
        interval="95 % interval",
        num_seeds="seeds",
        num_failed="failed runs",
    )
    size = {"width": {1: 420, 2: 235, 3: 150}[columns], "height": len(arms) * max(11 * len(splits) + 6, 20)}
    x = altair.X(
        "relative_quality:Q", scale=scale, title="relative quality", axis=altair.Axis(tickCount=4, format="~f")
    )
    names = ["condition", "split", "relative_quality", "low", "high", "interval", "num_seeds", "num_failed"]
    parts = []
    for i, group in enumerate(groups):
        own = table[table["group"].astype(str) == group]
        labels = altair.Axis(domain=False, ticks=False, labels=not i % columns, labelLimit=190)
        y = altair.Y("condition:N", sort=arms, scale=altair.Scale(domain=arms), title=None, axis=labels)
        marks = altair.Chart(data_of(own, names)).encode(y=y, yOffset=offset, tooltip=said)
        floors = own.groupby("split", sort=False)["majority_quality"].mean().dropna().reset_index()
        layers = [once().mark_rule(color=REFERENCE).encode(x=altair.datum(1, scale=scale))]
        if len(floors):
            rule = altair.Chart(data_of(floors)).mark_rule(strokeDash=[2, 2])
            words = tips(split="split", majority_quality=("majority class", ".3f"))
            layers.append(rule.encode(x=along(x, "majority_quality"), tooltip=words, **look["bars"]))
        layers += [
            marks.mark_rule(strokeWidth=1.6).encode(x=along(x, "low"), x2=altair.X2("high:Q"), **look["bars"]),
            marks.mark_point(filled=True, size=50).encode(x=x, **look["points"]),
        ]
        parts.append(altair.layer(*layers, **size))
    return panels(parts, columns, picker, groups)


def shown_splits(table: pd.DataFrame) -> pd.DataFrame:
    """The lines that are drawn: of validation and test only the reported one, and the others."""
    return table[~table["split"].isin(["validation", "test"]) | table["is_reported_split"].eq(True)]


def relative_page(
    table: pd.DataFrame, *, title: str | None = None, command: str = "", caveats: Sequence[str] = ()
) -> Page:
    """What :func:`relative_quality`'s table says; ``caveats``: what the runs do not, in sentences."""
    charts = draw({"relative_quality": lambda: plot_relative_quality(table)})
    blocks = [*chart_blocks(charts, "relative_quality", CAPTION, "Relative quality of each condition")]
    for group, own in table.groupby("group", sort=False):
        own = own.iloc[own["split"].map(list(own["split"].unique()).index).argsort(kind="stable")]
        blocks.append(relative_block(own, f"Relative quality on {group}"))
    sections = (
        Section(id="relative-quality", title="Relative quality", blocks=tuple(blocks)),
        texts_section("limits", "What this does not say", caveats),
        texts_section("definitions", "Definitions", DEFINITIONS),
    )
    shown = tuple(section for section in sections if section.blocks)
    return Page(title=title or "Relative quality", sections=shown, commands=command)


def relative_block(table: pd.DataFrame, caption: str) -> Block:
    """One group's arms and splits: the columns HEADER."""
    decimals = {
        name: ["undefined" if value != value else f"{value:.3f}" for value in table[name]]
        for name in ("relative_quality", "condition_mean", "majority_quality")
    }
    return table_block(
        _with_texts(table).assign(**decimals),
        HEADER,
        caption,
        interval=Column(label="95 % interval"),
        condition_mean="mean score",
        majority_quality="majority class",
    )


def _with_texts(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its intervals as texts."""
    ends = zip(table["low"], table["high"], strict=True)
    return table.assign(
        interval=["" if low != low or high != high else f"{low:.3f} to {high:.3f}" for low, high in ends]
    )
