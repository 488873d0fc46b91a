"""The compact drift table of a paper: how far each embedding parameter moved under each regime."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.blocks import Scratch, iterate_blocks
from toolkit.analysis.measures import dots
from toolkit.comparison.arms import Arm, Group, Labels, arrange
from toolkit.comparison.parameter_noise import exposed_rows, measure_beyond_noise
from toolkit.comparison.runs import ReportedRun
from toolkit.families import TABLES
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Trajectory
from toolkit.snapshots.store import Run

PARTS = ("exposed_relative_drift", "unexposed_relative_drift")
"""‖Δ‖ / ‖E⁰‖ of the rows that training exposed, and of the others."""
VALUES = ("drift_percent", "exposed_percent", "unexposed_percent", "times_noise")


@with_columns
def drift_table(runs: "Sequence[Run | str | Path] | Run | str | Path", labels: Labels | None = None) -> pd.DataFrame:
    """One line per model, task, condition and embedding parameter at the last epoch, means over seeds; for a paper.

    Parameters
    ----------
    runs
        Finished run directories.
    labels
        Run directory name to what its condition is called.

    Returns
    -------
    pandas.DataFrame
        Means over seeds; rows are those of the tables: NaN for LayerNorm, without exposure, and where there is no such
        row; ``times_noise`` is NaN where it is refused.
        :func:`toolkit.export_table` writes it as LaTeX, Markdown or HTML.

    Raises
    ------
    ValueError
        No runs, an unfinished one, or the same one twice.
    """
    own = [runs] if isinstance(runs, Run | str | Path) else runs
    return drift_table_of_groups(arrange(own, labels))


def drift_table_of_groups(groups: Sequence[Group], drift: pd.DataFrame | None = None) -> pd.DataFrame:
    """:func:`drift_table` of groups that are arranged already.

    ``drift``: :func:`drift_of` each of their runs, led by the run's name, where it is known.
    """
    lines = [line for group in groups for arm in group.arms for line in _of_arm(arm, drift)]
    return pd.DataFrame(lines, columns=columns_of("drift_table"))


def _of_arm(arm: Arm, drift: pd.DataFrame | None) -> list[dict[str, Any]]:
    """A line per parameter of an arm."""
    by_run = pd.concat([_of_run(run, drift) for run in arm.runs])
    lines = []
    for parameter, own in by_run.groupby("parameter", sort=False):
        line: dict[str, Any] = {"model": arm.runs[0].model, "task": arm.runs[0].task, "condition": arm.label}
        line |= {"parameter": parameter, "num_seeds": len(own), "is_frozen": arm.is_proven_frozen(str(parameter))}
        for value in VALUES:
            values = own[value].to_numpy(np.float64)
            values = values[~np.isnan(values)]
            line[value] = values.mean() if len(values) else math.nan
            line[f"{value}_sd"] = values.std(ddof=1) if len(values) > 1 else math.nan
        lines.append(line)
    return lines


def _of_run(run: ReportedRun, drift: pd.DataFrame | None) -> pd.DataFrame:
    """parameter and VALUES of one run."""
    own = drift_of(run) if drift is None else drift[drift["run"] == run.name]
    # Evidence of format 1 has no PARTS.
    own = own.reindex(columns=["parameter", "relative_drift", "times_noise", "reason", *PARTS])
    return own[["parameter"]].assign(
        times_noise=own["times_noise"].where(own["reason"] == ""),
        drift_percent=100 * own["relative_drift"],
        exposed_percent=100 * own[PARTS[0]],
        unexposed_percent=100 * own[PARTS[1]],
    )


def drift_of(run: ReportedRun) -> pd.DataFrame:
    """:func:`measure_beyond_noise` of a run, and PARTS."""
    own = measure_beyond_noise(run.run)
    parts = [_exposed_and_rest(run.run.trajectory, name) for name in own["parameter"]]
    return own.assign(**dict(zip(PARTS, zip(*parts, strict=True), strict=True)))


def _exposed_and_rest(trajectory: Trajectory, parameter: str) -> tuple[float, float]:
    """PARTS of one parameter; NaN for LayerNorm, without exposure, and where there is no such row."""
    exposed = exposed_rows(trajectory, parameter)
    if parameter not in TABLES or exposed is None:
        return math.nan, math.nan
    ends = (trajectory.snapshots[0], trajectory.snapshots[-1])
    is_exposed = np.zeros(len(ends[0].tensors[parameter]), bool)
    is_exposed[exposed] = True
    sums: Mapping[bool, np.ndarray[Any, Any]] = {True: np.zeros(2), False: np.zeros(2)}
    for rows, (before, after) in iterate_blocks(ends, parameter, scratch=Scratch()):
        after -= before
        for kind, total in sums.items():
            own = is_exposed[rows] == kind
            total += dots(after, after)[own].sum(), dots(before, before)[own].sum()
    return tuple(math.sqrt(change / size) if size > 0 else math.nan for change, size in sums.values())  # type: ignore[return-value]
