"""Finished runs in, drift joined with score out: per run what moved and what forbidding it cost, and across tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Arm, Group, Labels, arrange, differing_settings
from toolkit.comparison.associations import associate_drift as associate_drift
from toolkit.comparison.compare import PairLines
from toolkit.comparison.estimates import Settings
from toolkit.comparison.pairs import OTHER_ITEMS, ArmPair, have_same_items
from toolkit.comparison.parameter_noise import measure_beyond_noise
from toolkit.comparison.reported import ReportedRun, counted_score, last_score
from toolkit.comparison.summaries import splits_of
from toolkit.lookup import lookup
from toolkit.snapshots.store import Run

DRIFT = ("parameter", "num_exposed_rows", "drift", "times_noise", "drift_note", "relative_drift", "share_beyond_decay")
"""Columns that are those of ``parameter_noise.measure_beyond_noise``; drift_note is its refusal."""

COLUMNS = (
    "group",
    "model",
    "task",
    "arm",
    "base",
    "size",
    "num_train_examples",
    "run",
    "seed",
    "learning_rate",
    "is_failed",
    "epoch",
    *DRIFT,
    "is_frozen",
    "split",
    "score",
    "first_score",
    "last_score",
    "gain_points",
    "gain_verdict",
    "note",
)

NOT_TRAINED = "no embedding parameter was trained"


def join_drift(
    runs: Sequence[Run | str | Path],
    labels: Labels | None = None,
    split: str | None = None,
    *,
    margin_points: float = 1.0,
) -> pd.DataFrame:
    """One line per run and embedding parameter: how far it moved by the last epoch, and what that did to the score.

    ``drift``: of the rows that training showed, without their common offset, as a share of their norm; ``times_noise``:
    that divided by what random gradient signs would have moved them, which falls as the ``learning_rate`` rises: to be
    compared at equal rates only. NaN with a ``drift_note`` where it is refused. ``relative_drift`` and
    ``share_beyond_decay`` describe the whole parameter (formulas: parameter_noise.py). ``gain_points``: the headline
    score on the reported split (or on ``split``) minus that of the run of the same seed and ``size`` (examples asked
    for, NaN for all) whose embeddings were frozen: what forbidding the drift cost. NaN with a ``note`` where there is
    none, or where the start (fresh weights, a head stage) is another; other settings that differ are named in the note.
    ``gain_verdict``: that of :func:`toolkit.compare` on the two arms with ``margin_points``; empty without a frozen
    one. ValueError for a ``split`` that no run has.
    """
    groups = arrange(runs, labels)
    drift = pd.concat(
        [measure_beyond_noise(run.run).assign(run=run.name) for group in groups for run in group.runs],
        ignore_index=True,
    )
    lines = PairLines(Settings(margin_points=margin_points, num_draws=0))  # no verdict rests on the bootstrap
    return join_groups(groups, split, drift=drift, lines=lines)


def join_groups(
    groups: Sequence[Group], split: str | None = None, *, drift: pd.DataFrame, lines: PairLines
) -> pd.DataFrame:
    """:func:`join_drift` of groups that are arranged already, with `measure_beyond_noise` of their runs, led by the
    run's name."""
    if split is not None:
        lookup({name: group for group in groups for name in splits_of(group)}, split, "split")
    moved = drift.rename(columns={"refusal": "drift_note"})
    moved["times_noise"] = moved["times_noise"].where(moved["drift_note"] == "")
    beside = pd.DataFrame(
        [line for group in groups for arm in group.arms for line in _scores(group, arm, split, lines)]
    )
    table = beside.merge(moved[["run", *DRIFT]], on="run", validate="one_to_many")
    frozen = {run.name: run.frozen for group in groups for run in group.runs}
    is_frozen = [name in frozen[run] for run, name in zip(table["run"], table["parameter"], strict=True)]
    return table.assign(is_frozen=is_frozen)[list(COLUMNS)]


def _scores(group: Group, arm: Arm, split: str | None, known: PairLines) -> list[dict[str, Any]]:
    """One line per run of an arm: its scores, and its gain over the frozen arm that is most like it."""
    partner, note = _frozen_partner(group, arm)
    verdicts = {} if partner is None else _verdicts(known.of(ArmPair(arm, partner)))
    lines = []
    for run in arm.runs:
        chosen = split or run.reported_split
        lead: dict[str, Any] = {
            "group": group.title,
            "arm": arm.label,
            "base": arm.base,
            "size": np.nan if arm.size is None else arm.size,
            "num_train_examples": arm.num_train_examples,
        }
        lead |= {"model": run.model, "task": run.task, "run": run.name, "seed": run.config.seed}
        lead |= {
            "learning_rate": run.config.learning_rate,
            "is_failed": run.is_failed,
            "epoch": run.last_epoch,
            "split": chosen,
            "score": run.score,
        }
        lead |= {f"{at}_score": last_score(run, chosen, at=at) for at in ("first", "last")}
        lines.append(lead | _gain(run, partner, chosen, note) | {"gain_verdict": verdicts.get(chosen, "")})
    return lines


def _frozen_partner(group: Group, arm: Arm) -> tuple[Arm | None, str]:
    """The arm of the same size and start with frozen embeddings that agrees in most settings, and what differs."""
    if all(all(name in run.frozen for name in run.parameters) for run in arm.runs):
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


def _verdicts(lines: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Split to the verdict on the difference in the headline score."""
    return {str(line["split"]): str(line["verdict"]) for line in lines if line["is_headline"]}


def _gain(run: ReportedRun, partner: Arm | None, split: str, note: str) -> dict[str, Any]:
    if partner is None:
        return {"gain_points": np.nan, "note": note}
    other = next((each for each in partner.runs if each.config.seed == run.config.seed), None)
    if other is None:
        return {"gain_points": np.nan, "note": f"no run of this seed under {partner.label}"}
    if split not in run.answers or split not in other.answers:
        return {"gain_points": np.nan, "note": f"no labelled split {split}"}
    if not have_same_items(run, other, split):
        return {"gain_points": np.nan, "note": OTHER_ITEMS}
    return {"gain_points": 100 * (counted_score(run, split) - counted_score(other, split)), "note": note}
