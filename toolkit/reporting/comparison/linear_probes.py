"""Groups in, what a better head would have given feature extraction out: the linear probe beside what it reached.

Feature extraction loses to full fine-tuning by its features or by the training of its head; the linear probe, the
linear head that cross-validation finds on the same features, tells the two apart where no trained head beats it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.arms import Arm, Group, ReportedRun, settings
from toolkit.analysis.comparison.reported import last_score, reported_first
from toolkit.analysis.comparison.verdicts import REFUSALS
from toolkit.reporting.blocks import table_block
from toolkit.reporting.cells import points, signed
from toolkit.reporting.comparison.pair_sentences import FEW_SEEDS, outcome
from toolkit.reporting.comparison.selections import headline, is_from_elsewhere, task_names
from toolkit.reporting.markdown import listing, number
from toolkit.reporting.page.model import Block, NoteBlock

COLUMNS = (
    "group", "model", "task", "arm", "full", "size", "split", "is_reported_split", "score", "num_seeds", "reached",
    "linear_probe", "missed_points", "full_minus_reached_points", "full_minus_linear_probe_points",
)  # fmt: skip
YARDSTICK = "the linear head that cross-validation finds on the same features"
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


def probe_sentence(table: pd.DataFrame, margin_points: float, comparison: pd.DataFrame | None = None) -> str:
    """What must be said first where feature extraction stayed below its linear probe by more than the margin; else ''.

    ``table``: that of :func:`linear_probes`. Only reported splits count, and only tasks where the trained head beats
    the probe on no split of the same distribution: one that is beaten is no yardstick for what training lost.
    ``comparison``: that of the report; a difference to full fine-tuning that it does not tell from 0 has no cause.
    """
    is_beaten = (table["missed_points"] < 0) & ~table["split"].map(is_from_elsewhere).astype(bool)
    beaten = set(zip(table.loc[is_beaten, "group"], table.loc[is_beaten, "arm"], strict=True))
    is_usable = [key not in beaten for key in zip(table["group"], table["arm"], strict=True)]
    is_short = table["is_reported_split"].astype(bool) & (table["missed_points"] > margin_points)
    own = table[is_short & pd.Series(is_usable, index=table.index, dtype=bool)]
    names = task_names(table).loc[own.index]
    told = _outcomes(comparison)
    without = pd.Series([_without_cause(line, told) for line in own.to_dict("records")], own.index, dtype=object)
    is_whole = own["full_minus_linear_probe_points"] <= margin_points
    parts = [(own[(without == "") & is_cause], "") for is_cause in (is_whole, ~is_whole)]
    parts += [(own[without == reason], reason) for reason in dict.fromkeys(without) if reason]
    return " ".join(_missed(part, names[part.index], margin_points, reason) for part, reason in parts if len(part))


def _outcomes(comparison: pd.DataFrame | None) -> dict[tuple[object, ...], dict[str, Any]]:
    """Group, split, an arm, another and size to the line of the comparison on the headline score, in either order."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    if comparison is None or comparison.empty:
        return found
    for line in headline(comparison).to_dict("records"):
        group, split, first, second = (line[name] for name in ("group", "split", "first_base", "second_base"))
        found[group, split, first, second, _size(line["size"])] = {str(name): value for name, value in line.items()}
        turned = {"difference_points": -line.get("difference_points", math.nan)}
        found[group, split, second, first, _size(line["size"])] = {str(k): v for k, v in (line | turned).items()}
    return found


def _size(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _without_cause(line: dict[Any, Any], told: dict[tuple[object, ...], dict[str, Any]]) -> str:
    """Why there is no difference to full fine-tuning that could have a cause; '' where there is one, or no full."""
    difference = line["full_minus_reached_points"]
    if difference != difference:
        return ""
    found = told.get((line["group"], line["split"], line["full"], line["arm"], _size(line.get("size"))))
    if found is not None and found["verdict"] in REFUSALS:
        return f"of a difference to {line['full']} nothing can be said ({found['reason']})"
    if difference <= 0:
        return f"{line['full']} is not ahead of what was reached, so there is no difference to explain"
    if found is not None and outcome(found) not in ("above", FEW_SEEDS):
        return f"{line['full']} is not told apart from what was reached, so no cause of a difference can be named"
    return ""


def _missed(own: pd.DataFrame, names: pd.Series, margin_points: float, without_cause: str) -> str:
    """Lines of one kind in one sentence: all within the margin of full at their probe, none, or without a cause."""
    parts: list[str] = []
    said = ""
    for name, line in zip(names, own.to_dict("records"), strict=True):
        lead = f"{line['arm']} reached " if line["arm"] != said else ""
        head = f" where {YARDSTICK} reaches " if not parts else " of "
        reached, probe = number(line["reached"]), number(line["linear_probe"])
        parts.append(f"on {name} {lead}{reached}{head}{probe}{_beside(line, is_first=line['arm'] != said)}")
        said = line["arm"]
    full = listing([name for name in dict.fromkeys(own["full"]) if name])
    text, to_full = "; ".join(parts), f"the difference to {full}" if full else "what it lacks"
    if without_cause:
        return f"{text[:1].upper()}{text[1:]}: {without_cause}."
    if (own["full_minus_linear_probe_points"].notna() & (own["full_minus_linear_probe_points"] <= margin_points)).all():
        return f"{text[:1].upper()}{text[1:]}: {to_full} is the head's optimisation."
    shares = own["missed_points"] / own["full_minus_reached_points"]
    if (shares > 2 / 3).all():
        tail = f"most of {to_full} is there optimisation"
    elif not (shares < 0.4).any():  # by the probe's own error an even share is not told from two fifths
        tail = f"{to_full} is there optimisation as much as features"
    else:
        tail = f"part of {to_full} is there optimisation"
    return f"{text[:1].upper()}{text[1:]}: {tail}."


def _beside(line: dict[Any, Any], *, is_first: bool) -> str:
    """Full fine-tuning minus either of the two."""
    if line["full_minus_linear_probe_points"] != line["full_minus_linear_probe_points"]:
        return ""
    reached, probe = (signed(line[f"full_minus_{name}_points"]) for name in ("reached", "linear_probe"))
    if not is_first:
        return f" ({reached}, {probe})"
    return f" ({line['full']} minus reached {reached} points, minus that head {probe})"


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
