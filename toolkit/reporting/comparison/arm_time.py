"""Arms that trained for different numbers of epochs in, one time for all of them out: what a figure can show."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from toolkit.reporting.comparison.tables import GroupTables
from toolkit.reporting.panels import label_of, set_epochs

MUCH_LONGER = 2
"""Where one arm has more than this many times the epochs of another, time is the share of each arm's own epochs."""


def _last_epochs(tables: GroupTables) -> "pd.Series[float]":
    """Run to its last epoch with scores."""
    return tables.scores.groupby("run")["epoch"].max()


def _has_own_time(tables: GroupTables) -> bool:
    last = _last_epochs(tables)
    return bool(len(last) and last.max() > MUCH_LONGER * last.min())


def in_time(tables: GroupTables, lines: pd.DataFrame) -> pd.DataFrame:
    """The lines with ``epoch`` as the axis shows it: a few epochs beside dozens would all be one spot at its start."""
    if not _has_own_time(tables):
        return lines
    return lines.assign(epoch=100 * lines["epoch"] / lines["run"].map(_last_epochs(tables)))


def set_time(tables: GroupTables, axes: Any, epochs: Iterable[float]) -> None:
    if _has_own_time(tables):
        set_epochs(axes, (50.0, 100.0), label="of the arm's epochs (%)")
    else:
        set_epochs(axes, epochs)


def names_in_time(tables: GroupTables) -> list[str]:
    """The arms, each with its epochs where these differ much."""
    if not _has_own_time(tables):
        return [label_of(arm, 46) for arm in tables.group.arms]
    last = _last_epochs(tables)
    return [label_of(arm, 46, f"{last[arm.names].max():.3g}\u00a0epochs") for arm in tables.group.arms]
