"""Finished runs of several sizes in, score against the number of training examples out, with differences per size."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.arms import Group, Labels, arrange
from toolkit.analysis.comparison.compare import compare_groups
from toolkit.analysis.comparison.estimates import Settings
from toolkit.analysis.comparison.pairs import Pairs
from toolkit.analysis.comparison.summaries import STATISTICS, summarise_groups
from toolkit.snapshots.store import Run

LEAD = (
    "group",
    "model",
    "task",
    "split",
    "is_reported_split",
    "score",
    "arm",
    "base",
    "num_train_examples",
    "num_seeds",
    "num_failed",
)
DIFFERENCES = ("difference_points", "low_points", "high_points", "p", "q", "verdict", "note")
COLUMNS = (*LEAD, *STATISTICS, "against", "num_paired_seeds", *DIFFERENCES)


def data_efficiency(
    runs: Sequence[Run | str | Path],
    *,
    labels: Labels | None = None,
    pairs: Pairs | None = None,
    margin_points: float = 1.0,
    level: float = 0.95,
) -> pd.DataFrame:
    """One line per group, split, arm, size and, where the arm is the second of a pair, arm that it is set ``against``.

    The headline score at the last epochs: its statistics over seeds (shares), then the difference *against minus this
    arm* at the same size in points, with interval, p and q as in :func:`toolkit.compare`, NaN for an arm that nothing
    is set against. Groups whose runs have one number of training examples only are left out: no lines without two.
    """
    return efficiency_of_groups(arrange(runs, labels), pairs, Settings(margin_points=margin_points, level=level))


def efficiency_of_groups(
    groups: Sequence[Group], pairs: Pairs | None = None, settings: Settings | None = None
) -> pd.DataFrame:
    """:func:`data_efficiency` of groups that are arranged already."""
    several = [group for group in groups if len({arm.size for arm in group.arms}) > 1]
    if not several:
        return pd.DataFrame(columns=list(COLUMNS))
    summary = summarise_groups(several)
    # A pair may name arms of a group that has one size only, which is not in this table.
    known = {name for group in several for arm in group.arms for name in (arm.label, arm.base)}
    own = None if pairs is None else [pair for pair in pairs if known.issuperset(pair)]
    return curves(summary, compare_groups(several, own, settings))


def curves(summary: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    """The lines of :func:`data_efficiency` from its two tables."""
    points = summary[summary["is_headline"]]
    differences = compared[compared["is_headline"].astype(bool)]
    names = {"second": "arm", "first": "against", "num_seeds": "num_paired_seeds"}
    differences = differences.rename(columns=names)[["group", "split", *names.values(), *DIFFERENCES]]
    table = points.merge(differences, on=["group", "split", "arm"], how="left", sort=False)
    table = table.assign(**{name: table[name].fillna("") for name in ("against", "verdict", "note")})
    table["num_paired_seeds"] = table["num_paired_seeds"].astype(float).replace(0, np.nan)
    return table[list(COLUMNS)].reset_index(drop=True)
