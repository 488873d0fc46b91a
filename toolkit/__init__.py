"""The embedding drift toolkit: how far a model's embeddings moved in fine-tuning, why, and whether it mattered.

It measures change of a model, not of incoming data. Names are imported on first use: ``import toolkit`` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.analysis.drift import measure_drift as measure_drift
    from toolkit.analysis.measures import MEASURES as MEASURES
    from toolkit.analysis.nulls import replay_decay as replay_decay
    from toolkit.analysis.rows import measure_rows as measure_rows
    from toolkit.analysis.rows import write_rows as write_rows
    from toolkit.config import RunConfig as RunConfig
    from toolkit.data.tasks import TASKS as TASKS
    from toolkit.models.regimes import REGIMES as REGIMES
    from toolkit.pipeline import finetune as finetune
    from toolkit.reporting.drift_figures import draw as draw
    from toolkit.reporting.report import write_report as write_report
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
    "MEASURES": "toolkit.analysis.measures",
    "REGIMES": "toolkit.models.regimes",
    "Recording": "toolkit.training.recording",
    "Run": "toolkit.snapshots.store",
    "RunConfig": "toolkit.config",
    "Snapshot": "toolkit.snapshots.snapshot",
    "TASKS": "toolkit.data.tasks",
    "Trajectory": "toolkit.snapshots.snapshot",
    "draw": "toolkit.reporting.drift_figures",
    "finetune": "toolkit.pipeline",
    "measure_drift": "toolkit.analysis.drift",
    "measure_rows": "toolkit.analysis.rows",
    "open_run": "toolkit.snapshots.store",
    "record": "toolkit.training.recording",
    "replay_decay": "toolkit.analysis.nulls",
    "verify_run": "toolkit.snapshots.store",
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
