"""What a user opened in, every table of its drift report out, each from one function of the analysis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from toolkit.analysis.causes.causes import explain
from toolkit.analysis.causes.regression import regress_drift
from toolkit.analysis.causes.sign_noise import sign_noise
from toolkit.analysis.changes.changes import measure_changes
from toolkit.analysis.gauge.design import measure_design
from toolkit.analysis.gauge.functional import functional_drift
from toolkit.analysis.gauge.gauge import measure_gauge
from toolkit.analysis.geometry.agreement import measure_agreement
from toolkit.analysis.geometry.geometry import measure_geometry
from toolkit.analysis.geometry.updates import measure_updates
from toolkit.analysis.neighbours.neighbours import most_changed
from toolkit.analysis.positions.segments import measure_segments
from toolkit.analysis.rows.drift import measure_drift
from toolkit.analysis.similarity.similarity import measure_similarity
from toolkit.families import TABLES
from toolkit.reporting.sources import Opened
from toolkit.snapshots.store import Source


@dataclass(frozen=True)
class DriftTables:
    """Every table of one drift report, by the name of its CSV file, and why others are missing."""

    opened: Opened
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def epoch(self) -> float:
        """The last snapshot's epoch: every table but the trajectory's is of it."""
        return float(self.opened.trajectory.snapshots[-1].epoch)

    def get(self, name: str) -> pd.DataFrame | None:
        """A table, None when it is missing."""
        return self.frames.get(name)


def collect(
    opened: Opened, known: Mapping[str, pd.DataFrame], on_table: Callable[[str], None] = lambda name: None
) -> DriftTables:
    """Compute every table but those ``known``; one that does not apply is left out, with the analysis' own reason.

    ``on_table`` is told the name of each table before it is computed.
    """
    tables = DriftTables(opened)
    for name, compute in _plan(opened, tables.epoch).items():
        if name in known:
            tables.frames[name] = known[name]
            continue
        on_table(name)
        try:
            tables.frames[name] = compute()
        except ValueError as error:  # every analysis says in one line why it does not apply
            tables.missing[name] = str(error)
    return tables


def _plan(opened: Opened, epoch: float) -> Mapping[str, Callable[[], pd.DataFrame]]:
    """Table name to what computes it, in the order of the report."""
    source: Source = opened.runs[0] if opened.is_run else opened.trajectory
    tables = [name for name in TABLES if name in opened.trajectory.parameters]
    plan: dict[str, Callable[[], pd.DataFrame]] = {
        "changes": lambda: measure_changes(source),
        "drift": lambda: measure_drift(source),
    }
    if opened.is_run:
        plan |= {
            "causes": lambda: _joined(tables, lambda name: explain(source, name, epoch)),
            "sign_noise": lambda: sign_noise(source, "word_embeddings", epoch),
            "regression": lambda: regress_drift(source, "word_embeddings", epoch=epoch),
        }
    plan |= {
        "gauge": lambda: measure_gauge(source),
        "design": lambda: measure_design(source),
        "functional": lambda: functional_drift(source),
        "similarity": lambda: pd.concat(
            [measure_similarity(source, name, epoch) for name in tables if name != "token_type_embeddings"]
        ),
        "geometry": lambda: pd.concat(
            [measure_geometry(source, "word_embeddings", epoch=at, by_stratum=False) for at in (0, epoch)]
        ),
        "updates": lambda: pd.concat(
            [measure_updates(source, name, epoch) for name in tables if name != "token_type_embeddings"]
        ),
        "neighbours": lambda: most_changed(list(opened.runs) or source, epoch),
        "segments": lambda: measure_segments(source),
    }
    if len(opened.runs) > 1:
        plan["agreement"] = lambda: _agreement(opened, tables, epoch)
    return plan


def _agreement(opened: Opened, tables: list[str], epoch: float) -> pd.DataFrame:
    frame = pd.concat([measure_agreement(opened.runs, name, epoch) for name in tables if name != TABLES[2]])
    shown = dict(zip((run.path.name for run in opened.runs), opened.names, strict=True))
    return frame.assign(run_a=frame["run_a"].replace(shown), run_b=frame["run_b"].replace(shown))


def _joined(names: list[str], table: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    """One table for several parameters, with the parameter in front."""
    frames = [table(name) for name in names]
    for name, frame in zip(names, frames, strict=True):
        frame.insert(0, "parameter", name)
        frame["stratum"] = frame["stratum"].astype(str)  # each parameter has categories of its own
    return pd.concat(frames, ignore_index=True)


def lines_of(frame: pd.DataFrame | None, **where: Any) -> pd.DataFrame:
    """The lines of a table that have these values; an empty table for None."""
    if frame is None:
        return pd.DataFrame()
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame
