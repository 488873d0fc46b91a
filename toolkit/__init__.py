"""The embedding drift toolkit: how far a model's embeddings moved in fine-tuning, why, and whether it mattered.

It measures change of a model, not of incoming data. Names are imported on first use: ``import toolkit`` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from toolkit.analysis.causes.causes import decompose as decompose
    from toolkit.analysis.causes.causes import explain as explain
    from toolkit.analysis.causes.nulls import replay_decay as replay_decay
    from toolkit.analysis.causes.precision import guard_precision as guard_precision
    from toolkit.analysis.causes.precision import movable_share as movable_share
    from toolkit.analysis.causes.regression import regress_drift as regress_drift
    from toolkit.analysis.causes.sign_noise import sign_noise as sign_noise
    from toolkit.analysis.changes.changes import measure_changes as measure_changes
    from toolkit.analysis.gauge.design import measure_design as measure_design
    from toolkit.analysis.gauge.functional import functional_drift as functional_drift
    from toolkit.analysis.gauge.gauge import measure_gauge as measure_gauge
    from toolkit.analysis.gauge.gauge import measure_gauge_rows as measure_gauge_rows
    from toolkit.analysis.geometry.agreement import measure_agreement as measure_agreement
    from toolkit.analysis.geometry.geometry import measure_geometry as measure_geometry
    from toolkit.analysis.geometry.geometry_table import GEOMETRY as GEOMETRY
    from toolkit.analysis.geometry.updates import measure_updates as measure_updates
    from toolkit.analysis.neighbours.neighbours import compare_changed as compare_changed
    from toolkit.analysis.neighbours.neighbours import measure_neighbours as measure_neighbours
    from toolkit.analysis.neighbours.neighbours import most_changed as most_changed
    from toolkit.analysis.neighbours.neighbours import neighbours as neighbours
    from toolkit.analysis.positions.positions import measure_positions as measure_positions
    from toolkit.analysis.positions.segments import measure_segments as measure_segments
    from toolkit.analysis.rows.drift import measure_drift as measure_drift
    from toolkit.analysis.rows.measures import MEASURES as MEASURES
    from toolkit.analysis.rows.rows import measure_rows as measure_rows
    from toolkit.analysis.rows.rows import write_rows as write_rows
    from toolkit.analysis.similarity.similarity import SIMILARITIES as SIMILARITIES
    from toolkit.analysis.similarity.similarity import measure_similarity as measure_similarity
    from toolkit.analysis.weights.weight_drift import measure_weight_drift as measure_weight_drift
    from toolkit.comparison.card import Card as Card
    from toolkit.comparison.cards import make_cards as make_cards
    from toolkit.comparison.compare import compare as compare
    from toolkit.comparison.compare import compare_seeds as compare_seeds
    from toolkit.comparison.cost import measure_cost as measure_cost
    from toolkit.comparison.drift_and_score import associate_drift as associate_drift
    from toolkit.comparison.drift_and_score import join_drift as join_drift
    from toolkit.comparison.drift_table import drift_table as drift_table
    from toolkit.comparison.relative import relative_quality as relative_quality
    from toolkit.comparison.shuffled_labels import compare_with_shuffled as compare_with_shuffled
    from toolkit.comparison.summaries import data_efficiency as data_efficiency
    from toolkit.comparison.summaries import last_scores as last_scores
    from toolkit.comparison.summaries import side_by_side as side_by_side
    from toolkit.comparison.summaries import summarise_floors as summarise_floors
    from toolkit.comparison.summaries import summarise_scores as summarise_scores
    from toolkit.comparison.verify import verify_report as verify_report
    from toolkit.config import RunConfig as RunConfig
    from toolkit.data.tasks import TASKS as TASKS
    from toolkit.families import REGIMES as REGIMES
    from toolkit.pipeline import finetune as finetune
    from toolkit.probes.anatomy.anatomy import take_apart as take_apart
    from toolkit.probes.anatomy.opening import open_model as open_model
    from toolkit.probes.distortion import measure_distortion as measure_distortion
    from toolkit.probes.flow.flow import measure_flow as measure_flow
    from toolkit.probes.layers.layer_drift import measure_layer_drift as measure_layer_drift
    from toolkit.probes.transplants.transplants import measure_transplants as measure_transplants
    from toolkit.reporting.comparison.report import write_report as write_report
    from toolkit.reporting.drift_report import write_drift_report as write_drift_report
    from toolkit.reporting.position_report import write_position_report as write_position_report
    from toolkit.reporting.render_latex import export_table as export_table
    from toolkit.reporting.topics.causes import plot_exposure as plot_exposure
    from toolkit.reporting.topics.changes import plot_change as plot_change
    from toolkit.reporting.topics.differences import plot_differences as plot_differences
    from toolkit.reporting.topics.drift import plot_drift as plot_drift
    from toolkit.reporting.topics.drift import plot_position_drift as plot_position_drift
    from toolkit.reporting.topics.drift import plot_word_drift as plot_word_drift
    from toolkit.reporting.topics.drift_and_score import plot_drift_and_score as plot_drift_and_score
    from toolkit.reporting.topics.relative import plot_relative_quality as plot_relative_quality
    from toolkit.reporting.topics.scores import plot_cost as plot_cost
    from toolkit.reporting.topics.scores import plot_data_efficiency as plot_data_efficiency
    from toolkit.reporting.topics.scores import plot_scores as plot_scores
    from toolkit.reporting.topics.scores import plot_scores_over_epochs as plot_scores_over_epochs
    from toolkit.reporting.topics.words_chart import plot_words as plot_words
    from toolkit.snapshots.importers import import_checkpoints as import_checkpoints
    from toolkit.snapshots.snapshot import Snapshot as Snapshot
    from toolkit.snapshots.snapshot import Trajectory as Trajectory
    from toolkit.snapshots.store import Run as Run
    from toolkit.snapshots.store import open_run as open_run
    from toolkit.snapshots.verify import verify_run as verify_run
    from toolkit.studies.study import Comparison as Comparison
    from toolkit.studies.study import Study as Study
    from toolkit.training.callback import EmbeddingSnapshotCallback as EmbeddingSnapshotCallback
    from toolkit.training.recording import Recording as Recording
    from toolkit.training.recording import record as record

_HOMES = {
    "Card": "toolkit.comparison.card",
    "Comparison": "toolkit.studies.study",
    "EmbeddingSnapshotCallback": "toolkit.training.callback",
    "GEOMETRY": "toolkit.analysis.geometry.geometry_table",
    "MEASURES": "toolkit.analysis.rows.measures",
    "REGIMES": "toolkit.families",
    "Recording": "toolkit.training.recording",
    "Run": "toolkit.snapshots.store",
    "RunConfig": "toolkit.config",
    "SIMILARITIES": "toolkit.analysis.similarity.similarity",
    "Snapshot": "toolkit.snapshots.snapshot",
    "Study": "toolkit.studies.study",
    "TASKS": "toolkit.data.tasks",
    "Trajectory": "toolkit.snapshots.snapshot",
    "associate_drift": "toolkit.comparison.drift_and_score",
    "compare": "toolkit.comparison.compare",
    "compare_changed": "toolkit.analysis.neighbours.neighbours",
    "compare_seeds": "toolkit.comparison.compare",
    "compare_with_shuffled": "toolkit.comparison.shuffled_labels",
    "data_efficiency": "toolkit.comparison.summaries",
    "decompose": "toolkit.analysis.causes.causes",
    "drift_table": "toolkit.comparison.drift_table",
    "explain": "toolkit.analysis.causes.causes",
    "export_table": "toolkit.reporting.render_latex",
    "finetune": "toolkit.pipeline",
    "functional_drift": "toolkit.analysis.gauge.functional",
    "guard_precision": "toolkit.analysis.causes.precision",
    "import_checkpoints": "toolkit.snapshots.importers",
    "join_drift": "toolkit.comparison.drift_and_score",
    "last_scores": "toolkit.comparison.summaries",
    "make_cards": "toolkit.comparison.cards",
    "measure_agreement": "toolkit.analysis.geometry.agreement",
    "measure_changes": "toolkit.analysis.changes.changes",
    "measure_cost": "toolkit.comparison.cost",
    "measure_design": "toolkit.analysis.gauge.design",
    "measure_distortion": "toolkit.probes.distortion",
    "measure_drift": "toolkit.analysis.rows.drift",
    "measure_flow": "toolkit.probes.flow.flow",
    "measure_gauge": "toolkit.analysis.gauge.gauge",
    "measure_gauge_rows": "toolkit.analysis.gauge.gauge",
    "measure_geometry": "toolkit.analysis.geometry.geometry",
    "measure_layer_drift": "toolkit.probes.layers.layer_drift",
    "measure_neighbours": "toolkit.analysis.neighbours.neighbours",
    "measure_positions": "toolkit.analysis.positions.positions",
    "measure_rows": "toolkit.analysis.rows.rows",
    "measure_segments": "toolkit.analysis.positions.segments",
    "measure_similarity": "toolkit.analysis.similarity.similarity",
    "measure_transplants": "toolkit.probes.transplants.transplants",
    "measure_updates": "toolkit.analysis.geometry.updates",
    "measure_weight_drift": "toolkit.analysis.weights.weight_drift",
    "most_changed": "toolkit.analysis.neighbours.neighbours",
    "movable_share": "toolkit.analysis.causes.precision",
    "neighbours": "toolkit.analysis.neighbours.neighbours",
    "open_model": "toolkit.probes.anatomy.opening",
    "open_run": "toolkit.snapshots.store",
    "plot_change": "toolkit.reporting.topics.changes",
    "plot_cost": "toolkit.reporting.topics.scores",
    "plot_data_efficiency": "toolkit.reporting.topics.scores",
    "plot_differences": "toolkit.reporting.topics.differences",
    "plot_drift": "toolkit.reporting.topics.drift",
    "plot_drift_and_score": "toolkit.reporting.topics.drift_and_score",
    "plot_exposure": "toolkit.reporting.topics.causes",
    "plot_position_drift": "toolkit.reporting.topics.drift",
    "plot_relative_quality": "toolkit.reporting.topics.relative",
    "plot_scores": "toolkit.reporting.topics.scores",
    "plot_scores_over_epochs": "toolkit.reporting.topics.scores",
    "plot_word_drift": "toolkit.reporting.topics.drift",
    "plot_words": "toolkit.reporting.topics.words_chart",
    "record": "toolkit.training.recording",
    "regress_drift": "toolkit.analysis.causes.regression",
    "relative_quality": "toolkit.comparison.relative",
    "replay_decay": "toolkit.analysis.causes.nulls",
    "side_by_side": "toolkit.comparison.summaries",
    "sign_noise": "toolkit.analysis.causes.sign_noise",
    "summarise_floors": "toolkit.comparison.summaries",
    "summarise_scores": "toolkit.comparison.summaries",
    "take_apart": "toolkit.probes.anatomy.anatomy",
    "verify_report": "toolkit.comparison.verify",
    "verify_run": "toolkit.snapshots.verify",
    "write_drift_report": "toolkit.reporting.drift_report",
    "write_position_report": "toolkit.reporting.position_report",
    "write_report": "toolkit.reporting.comparison.report",
    "write_rows": "toolkit.analysis.rows.rows",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("embedding-drift-toolkit")
    if name not in _HOMES:
        raise AttributeError(f"module 'toolkit' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
