"""Groups in, what a better head would have given feature extraction out: the linear probe beside what it reached.

Feature extraction loses to full fine-tuning by its features or by the training of its head; the linear probe, the
linear head that cross-validation finds on the same features, tells the two apart where no trained head beats it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Arm, Group, ReportedRun, settings
from toolkit.comparison.reported import last_score, reported_first
from toolkit.reporting.cells import listing, number, points
from toolkit.reporting.comparison.selections import task_names
from toolkit.reporting.page import Block, NoteBlock, table_block

COLUMNS = (
    "group", "model", "task", "arm", "full", "size", "split", "is_reported_split", "is_out_of_distribution", "score",
    "num_seeds", "reached",
    "linear_probe", "missed_points", "full_minus_reached_points", "full_minus_linear_probe_points",
)  # fmt: skip
SHOWN = ("group", "arm", "split", "score", "reached", "linear_probe", "full_minus_reached", "full_minus_linear_probe")


def linear_probes(groups: Sequence[Group]) -> pd.DataFrame:
    """One line per group, feature-extraction arm and split that has a recorded linear probe, columns COLUMNS.

    Of the headline score, means over the seeds that recorded one: ``reached``, ``linear_probe`` (shares) and
    ``missed_points`` = linear probe minus reached in points. ``full_minus_...``: full fine-tuning of the same size
    minus either, over the seeds that both arms have; NaN without it. Of several such arms it is the one that differs
    from the features' in the fewest settings (the same pooling, say). A probe is of the training loss with its strength
    chosen within train: on held-out data a head may come out above it.
    """
    lines = [
        {"group": group.title} | line
        for group in groups
        for arm in group.arms
        if arm.is_feature_extraction
        for line in _lines(arm, _full_beside(arm, group))
    ]
    return pd.DataFrame(lines, columns=list(COLUMNS))


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
                "arm": arm.base or arm.label,
                "full": (full.base or full.label) if full else "",
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
    beaten = set(zip(table.loc[is_beaten, "group"], table.loc[is_beaten, "arm"], strict=True))
    is_short = table["is_reported_split"].astype(bool) & (table["missed_points"] > margin_points)
    return [
        f"{line['group']}: the trained head of {line['arm']} reaches {number(line['reached'])} where the linear head "
        f"that cross-validation finds on the same features reaches {number(line['linear_probe'])}: that much of a "
        "difference to full fine-tuning is the head's training, not its features."
        for line in table[is_short].to_dict("records")
        if (line["group"], line["arm"]) not in beaten
    ]


def against_probe_block(table: pd.DataFrame) -> tuple[Block, ...]:
    """Full fine-tuning minus the linear probe beside full minus reached, every task; nothing without linear probes."""
    if table.empty or table["full_minus_linear_probe_points"].isna().all():
        return ()
    names = ("full_minus_reached", "full_minus_linear_probe")
    shown = table.assign(**{name: [points(value) for value in table[f"{name}_points"]] for name in names})
    arms = listing(list(dict.fromkeys(table["full"])))
    caption = f"Features or optimisation: {arms} minus the trained head, and minus the linear head of cross-validation"
    above = table[table["missed_points"] < -1]
    if above.empty:
        return (table_block(shown, SHOWN, caption),)
    where = listing(list(dict.fromkeys(task_names(table).loc[above.index])))
    text = f"On {where} the trained head comes out above the recorded linear probe by more than a point"
    text += ": it is a yardstick, no bound."
    return (table_block(shown, SHOWN, caption), NoteBlock(text=text))
