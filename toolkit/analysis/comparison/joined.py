"""Finished runs in, drift joined with score out: per run what moved and what forbidding it cost, and across tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.arms import Arm, Group, Labels, arrange, differing_settings
from toolkit.analysis.comparison.associations import associate_drift as associate_drift
from toolkit.analysis.comparison.pairs import OTHER_ITEMS, are_same_items
from toolkit.analysis.comparison.reported import ReportedRun, last_score
from toolkit.analysis.rows.blocks import iterate_blocks
from toolkit.analysis.rows.measures import MEASURES
from toolkit.analysis.rows.row_pass import RowPass
from toolkit.analysis.rows.strata import count_rows, table_exposure
from toolkit.analysis.rows.whole import whole_values
from toolkit.snapshots.store import Run

COLUMNS = (
    "group",
    "model",
    "task",
    "arm",
    "base",
    "num_train_examples",
    "run",
    "seed",
    "is_failed",
    "epoch",
    "parameter",
    "is_frozen",
    "norm",
    "relative",
    "num_rows_seen",
    "share_beyond_decay",
    "split",
    "score",
    "first_score",
    "last_score",
    "gain_points",
    "note",
)

NOT_TRAINED = "no embedding parameter was trained"


def join_drift(
    runs: Sequence[Run | str | Path], labels: Labels | None = None, split: str | None = None
) -> pd.DataFrame:
    """One line per run and embedding parameter: how far it moved by the last epoch, and what that did to the score.

    ``norm`` ‖Eᵗ - E⁰‖ in weight units, ``relative`` the same over ‖E⁰‖ (a share). ``share_beyond_decay``: of the rows
    seen in training, the share whose relative drift is above that of every row never seen, which decay alone moved; NaN
    without exposure, without a never-seen row, and for a LayerNorm vector. Ours. ``gain_points``: the headline score on
    the reported split (or on ``split``) minus that of the run of the same seed and number of examples whose embeddings
    were frozen: what forbidding the drift cost. NaN with a ``note`` where there is none, or where the start (fresh
    weights, a head stage) is another; other settings that differ are named in the note.
    """
    return join_groups(arrange(runs, labels), split)


def join_groups(groups: Sequence[Group], split: str | None = None) -> pd.DataFrame:
    """:func:`join_drift` of groups that are arranged already."""
    lines = [line for group in groups for arm in group.arms for line in _lines(group, arm, split)]
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _lines(group: Group, arm: Arm, split: str | None) -> list[dict[str, Any]]:
    partner, note = _frozen_partner(group, arm)
    lines = []
    for run in arm.runs:
        chosen = split or run.reported_split
        lead: dict[str, Any] = {
            "group": group.title,
            "arm": arm.label,
            "base": arm.base,
            "num_train_examples": arm.num_train_examples,
        }
        lead |= {"model": run.model, "task": run.task, "run": run.name, "seed": run.config.seed}
        lead |= {"is_failed": run.is_failed, "epoch": run.last_epoch, "split": chosen, "score": run.score}
        lead |= {f"{at}_score": last_score(run, chosen, at=at) for at in ("first", "last")}
        lead |= _gain(run, partner, chosen, note)
        lines += [lead | _drift(run, parameter) for parameter in run.run.trajectory.parameters]
    return lines


def _frozen_partner(group: Group, arm: Arm) -> tuple[Arm | None, str]:
    """The arm of the same size and start with frozen embeddings that agrees in most settings, and what differs."""
    if all(all(name in run.frozen for name in run.run.trajectory.parameters) for run in arm.runs):
        return None, NOT_TRAINED
    config = arm.runs[0].config
    found = [
        other
        for other in group.arms
        if other.runs[0].regime == "embeddings"
        and other.size == arm.size
        and (other.runs[0].config.init, other.runs[0].config.head_epochs) == (config.init, config.head_epochs)
    ]
    if not found:
        return None, "no runs with frozen embeddings from the same start"
    best = min(found, key=lambda other: len(differing_settings(arm, other)))
    names = [name.replace("_", " ") for name in differing_settings(arm, best)]
    return best, f"differs from {best.label} also in {', '.join(names)}" if names else ""


def _gain(run: ReportedRun, partner: Arm | None, split: str, note: str) -> dict[str, Any]:
    if partner is None:
        return {"gain_points": np.nan, "note": note}
    other = next((each for each in partner.runs if each.config.seed == run.config.seed), None)
    if other is None:
        return {"gain_points": np.nan, "note": f"no run of this seed under {partner.label}"}
    if split not in run.answers or split not in other.answers:
        return {"gain_points": np.nan, "note": f"no labelled split {split}"}
    if not are_same_items(run.answers[split], other.answers[split]):
        return {"gain_points": np.nan, "note": OTHER_ITEMS}
    return {"gain_points": 100 * (last_score(run, split) - last_score(other, split)), "note": note}


def _drift(run: ReportedRun, parameter: str) -> dict[str, Any]:
    """Drift of one parameter between the first and the last snapshot, in one pass over its rows."""
    trajectory = run.run.trajectory
    pair = (trajectory.at(0), trajectory.snapshots[-1])
    num_rows, exposure = count_rows(trajectory, parameter), table_exposure(trajectory, parameter)
    row_pass = RowPass({"relative": MEASURES["relative"]}, num_rows)
    for rows, (before, after) in iterate_blocks(pair, parameter, scratch=row_pass.scratch):
        row_pass.add(rows, before, after)
    line: dict[str, Any] = {"parameter": parameter, "is_frozen": parameter in run.frozen}
    line |= whole_values(*row_pass.squares())
    if exposure is None:
        return line | {"num_rows_seen": np.nan, "share_beyond_decay": np.nan}
    is_seen, relative = exposure.step_counts(num_rows) > 0, row_pass.values()["relative"]
    unseen, seen = relative[~is_seen & ~np.isnan(relative)], relative[is_seen & ~np.isnan(relative)]
    share = float(np.mean(seen > unseen.max())) if len(unseen) and len(seen) else np.nan
    return line | {"num_rows_seen": int(is_seen.sum()), "share_beyond_decay": share}
