"""Finished runs of several sizes in, score against the number of training examples out, with differences per size."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Group, Labels, arrange
from toolkit.comparison.compare import compare_groups
from toolkit.comparison.estimates import Settings
from toolkit.comparison.pairs import Pairs
from toolkit.comparison.summaries import STATISTICS, summarise_groups
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
    "size",
    "num_train_examples",
    "num_seeds",
    "num_failed",
    "num_at_chance",
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

    ``size`` is the number of training examples that was asked for (NA for all). The headline score at the last epochs:
    its statistics over seeds (shares), then the difference *against minus this arm* at the same size in points, with
    interval, p and q as :func:`toolkit.compare` gives them of the same runs, NaN for an arm that nothing is set
    against. Groups whose runs were asked for one number of training examples only are
    left out, after q was worked out with them: no lines without two.
    """
    settings = Settings(margin_points=margin_points, level=level, num_draws=0)
    return efficiency_of_groups(arrange(runs, labels), pairs, settings)


def efficiency_of_groups(
    groups: Sequence[Group],
    pairs: Pairs | None = None,
    settings: Settings | None = None,
    *,
    comparison: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """:func:`data_efficiency` of groups that are arranged already.

    ``comparison``: what compare_groups gave of all of these groups, where that is known already.
    """
    several = [group for group in groups if len({arm.size for arm in group.arms}) > 1]
    if not several:
        return pd.DataFrame(columns=list(COLUMNS))
    compared = compare_groups(groups, pairs, settings) if comparison is None else comparison
    return curves(summarise_groups(several), compared)


def curves(summary: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    """The lines of :func:`data_efficiency` from its two tables; lines of ``compared`` on other groups are not used."""
    points = summary[summary["is_headline"]]
    differences = compared[compared["is_headline"].astype(bool)]
    names = {"second": "arm", "first": "against", "num_seeds": "num_paired_seeds"}
    differences = differences.rename(columns=names)[["group", "split", *names.values(), *DIFFERENCES]]
    table = points.merge(differences, on=["group", "split", "arm"], how="left", sort=False)
    table = table.assign(**{name: table[name].fillna("") for name in ("against", "verdict", "note")})
    table["num_paired_seeds"] = table["num_paired_seeds"].astype(float).replace(0, np.nan)
    return table[list(COLUMNS)].reset_index(drop=True)
