"""The embedding drift toolkit: how far a model's embeddings moved in fine-tuning, why, and whether it mattered.

It measures change of a model, not of incoming data. Names are imported on first use: ``import toolkit`` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.analysis.agreement import measure_agreement as measure_agreement
    from toolkit.analysis.causes import decompose as decompose
    from toolkit.analysis.causes import explain as explain
    from toolkit.analysis.changes import measure_changes as measure_changes
    from toolkit.analysis.design import measure_design as measure_design
    from toolkit.analysis.drift import measure_drift as measure_drift
    from toolkit.analysis.functional import functional_drift as functional_drift
    from toolkit.analysis.gauge import measure_gauge as measure_gauge
    from toolkit.analysis.gauge import measure_gauge_rows as measure_gauge_rows
    from toolkit.analysis.geometry import measure_geometry as measure_geometry
    from toolkit.analysis.geometry_table import GEOMETRY as GEOMETRY
    from toolkit.analysis.measures import MEASURES as MEASURES
    from toolkit.analysis.neighbours import measure_neighbours as measure_neighbours
    from toolkit.analysis.neighbours import most_changed as most_changed
    from toolkit.analysis.neighbours import neighbours as neighbours
    from toolkit.analysis.nulls import replay_decay as replay_decay
    from toolkit.analysis.positions import measure_positions as measure_positions
    from toolkit.analysis.precision import guard_precision as guard_precision
    from toolkit.analysis.precision import movable_share as movable_share
    from toolkit.analysis.regression import regress_drift as regress_drift
    from toolkit.analysis.rows import measure_rows as measure_rows
    from toolkit.analysis.rows import write_rows as write_rows
    from toolkit.analysis.segments import measure_segments as measure_segments
    from toolkit.analysis.sign_noise import sign_noise as sign_noise
    from toolkit.analysis.similarity import SIMILARITIES as SIMILARITIES
    from toolkit.analysis.similarity import measure_similarity as measure_similarity
    from toolkit.analysis.updates import measure_updates as measure_updates
    from toolkit.config import RunConfig as RunConfig
    from toolkit.data.tasks import TASKS as TASKS
    from toolkit.models.regimes import REGIMES as REGIMES
    from toolkit.pipeline import finetune as finetune
    from toolkit.reporting.drift_figures import draw as draw
    from toolkit.reporting.drift_report import write_drift_report as write_drift_report
    from toolkit.reporting.position_report import write_position_report as write_position_report
    from toolkit.reporting.report import write_report as write_report
    from toolkit.snapshots.importers import import_checkpoints as import_checkpoints
    from toolkit.snapshots.snapshot import Snapshot as Snapshot
    from toolkit.snapshots.snapshot import Trajectory as Trajectory
    from toolkit.snapshots.store import Run as Run
    from toolkit.snapshots.store import open_run as open_run
    from toolkit.snapshots.store import verify_run as verify_run
    from toolkit.training.callback import EmbeddingSnapshotCallback as EmbeddingSnapshotCallback
    from toolkit.training.recording import Recording as Recording
    from toolkit.training.recording import record as record

_HOMES = {
    "EmbeddingSnapshotCallback": "toolkit.training.callback",
    "GEOMETRY": "toolkit.analysis.geometry_table",
    "MEASURES": "toolkit.analysis.measures",
    "REGIMES": "toolkit.models.regimes",
    "Recording": "toolkit.training.recording",
    "Run": "toolkit.snapshots.store",
    "RunConfig": "toolkit.config",
    "SIMILARITIES": "toolkit.analysis.similarity",
    "Snapshot": "toolkit.snapshots.snapshot",
    "TASKS": "toolkit.data.tasks",
    "Trajectory": "toolkit.snapshots.snapshot",
    "decompose": "toolkit.analysis.causes",
    "draw": "toolkit.reporting.drift_figures",
    "explain": "toolkit.analysis.causes",
    "finetune": "toolkit.pipeline",
    "functional_drift": "toolkit.analysis.functional",
    "guard_precision": "toolkit.analysis.precision",
    "import_checkpoints": "toolkit.snapshots.importers",
    "measure_agreement": "toolkit.analysis.agreement",
    "measure_changes": "toolkit.analysis.changes",
    "measure_design": "toolkit.analysis.design",
    "measure_drift": "toolkit.analysis.drift",
    "measure_gauge": "toolkit.analysis.gauge",
    "measure_gauge_rows": "toolkit.analysis.gauge",
    "measure_geometry": "toolkit.analysis.geometry",
    "measure_neighbours": "toolkit.analysis.neighbours",
    "measure_positions": "toolkit.analysis.positions",
    "measure_rows": "toolkit.analysis.rows",
    "measure_segments": "toolkit.analysis.segments",
    "measure_similarity": "toolkit.analysis.similarity",
    "measure_updates": "toolkit.analysis.updates",
    "most_changed": "toolkit.analysis.neighbours",
    "movable_share": "toolkit.analysis.precision",
    "neighbours": "toolkit.analysis.neighbours",
    "open_run": "toolkit.snapshots.store",
    "record": "toolkit.training.recording",
    "regress_drift": "toolkit.analysis.regression",
    "replay_decay": "toolkit.analysis.nulls",
    "sign_noise": "toolkit.analysis.sign_noise",
    "verify_run": "toolkit.snapshots.store",
    "write_drift_report": "toolkit.reporting.drift_report",
    "write_position_report": "toolkit.reporting.position_report",
    "write_report": "toolkit.reporting.report",
    "write_rows": "toolkit.analysis.rows",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'toolkit' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
