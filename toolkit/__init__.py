"""The embedding drift toolkit: how far a model's embeddings moved in fine-tuning, why, and whether it mattered.

It measures change of a model, not of incoming data. Names are imported on first use: ``import toolkit`` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from toolkit.analysis.adam import replay_decay as replay_decay
    from toolkit.analysis.causes import decompose as decompose
    from toolkit.analysis.causes import explain as explain
    from toolkit.analysis.changes import measure_changes as measure_changes
    from toolkit.analysis.drift import measure_drift as measure_drift
    from toolkit.analysis.drift import measure_rows as measure_rows
    from toolkit.analysis.drift import write_rows as write_rows
    from toolkit.analysis.functional import functional_drift as functional_drift
    from toolkit.analysis.gauge import measure_gauge as measure_gauge
    from toolkit.analysis.gauge import measure_gauge_rows as measure_gauge_rows
    from toolkit.analysis.geometry import GEOMETRY as GEOMETRY
    from toolkit.analysis.geometry import measure_geometry as measure_geometry
    from toolkit.analysis.measures import MEASURES as MEASURES
    from toolkit.analysis.neighbours import compare_changed as compare_changed
    from toolkit.analysis.neighbours import measure_neighbours as measure_neighbours
    from toolkit.analysis.neighbours import most_changed as most_changed
    from toolkit.analysis.neighbours import neighbours as neighbours
    from toolkit.analysis.nulls import sign_noise as sign_noise
    from toolkit.analysis.positions import measure_positions as measure_positions
    from toolkit.analysis.precision import guard_precision as guard_precision
    from toolkit.analysis.precision import movable_share as movable_share
    from toolkit.analysis.regression import regress_drift as regress_drift
    from toolkit.analysis.segments import measure_segments as measure_segments
    from toolkit.analysis.similarity import SIMILARITIES as SIMILARITIES
    from toolkit.analysis.similarity import measure_similarity as measure_similarity
    from toolkit.analysis.tokens_in_use import measure_design as measure_design
    from toolkit.analysis.updates import measure_agreement as measure_agreement
    from toolkit.analysis.updates import measure_updates as measure_updates
    from toolkit.analysis.weight_drift import measure_weight_drift as measure_weight_drift
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
    from toolkit.comparison.verdicts import Card as Card
    from toolkit.comparison.verify import verify_report as verify_report
    from toolkit.config import RunConfig as RunConfig
    from toolkit.data.tasks import TASKS as TASKS
    from toolkit.families import REGIMES as REGIMES
    from toolkit.pipeline import finetune as finetune
    from toolkit.probes.anatomy import open_model as open_model
    from toolkit.probes.anatomy import take_apart as take_apart
    from toolkit.probes.distortion import measure_distortion as measure_distortion
    from toolkit.probes.flow import measure_flow as measure_flow
    from toolkit.probes.layer_drift import measure_layer_drift as measure_layer_drift
    from toolkit.probes.transplants import measure_transplants as measure_transplants
    from toolkit.reporting.comparison_report import write_report as write_report
    from toolkit.reporting.render_latex import export_table as export_table
    from toolkit.reporting.run_reports import write_drift_report as write_drift_report
    from toolkit.reporting.run_reports import write_position_report as write_position_report
    from toolkit.reporting.topics.causes import plot_exposure as plot_exposure
    from toolkit.reporting.topics.changes import plot_change as plot_change
    from toolkit.reporting.topics.comparison import plot_differences as plot_differences
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
    from toolkit.snapshots.store import verify_run as verify_run
    from toolkit.studies.study import Comparison as Comparison
    from toolkit.studies.study import Study as Study
    from toolkit.training.callback import EmbeddingSnapshotCallback as EmbeddingSnapshotCallback
    from toolkit.training.recording import Recording as Recording
    from toolkit.training.recording import record as record

_HOMES = {
    "Card": "toolkit.comparison.verdicts",
    "Comparison": "toolkit.studies.study",
    "EmbeddingSnapshotCallback": "toolkit.training.callback",
    "GEOMETRY": "toolkit.analysis.geometry",
    "MEASURES": "toolkit.analysis.measures",
    "REGIMES": "toolkit.families",
    "Recording": "toolkit.training.recording",
    "Run": "toolkit.snapshots.store",
    "RunConfig": "toolkit.config",
    "SIMILARITIES": "toolkit.analysis.similarity",
    "Snapshot": "toolkit.snapshots.snapshot",
    "Study": "toolkit.studies.study",
    "TASKS": "toolkit.data.tasks",
    "Trajectory": "toolkit.snapshots.snapshot",
    "associate_drift": "toolkit.comparison.drift_and_score",
    "compare": "toolkit.comparison.compare",
    "compare_changed": "toolkit.analysis.neighbours",
    "compare_seeds": "toolkit.comparison.compare",
    "compare_with_shuffled": "toolkit.comparison.shuffled_labels",
    "data_efficiency": "toolkit.comparison.summaries",
    "decompose": "toolkit.analysis.causes",
    "drift_table": "toolkit.comparison.drift_table",
    "explain": "toolkit.analysis.causes",
    "export_table": "toolkit.reporting.render_latex",
    "finetune": "toolkit.pipeline",
    "functional_drift": "toolkit.analysis.functional",
    "guard_precision": "toolkit.analysis.precision",
    "import_checkpoints": "toolkit.snapshots.importers",
    "join_drift": "toolkit.comparison.drift_and_score",
    "last_scores": "toolkit.comparison.summaries",
    "make_cards": "toolkit.comparison.cards",
    "measure_agreement": "toolkit.analysis.updates",
    "measure_changes": "toolkit.analysis.changes",
    "measure_cost": "toolkit.comparison.cost",
    "measure_design": "toolkit.analysis.tokens_in_use",
    "measure_distortion": "toolkit.probes.distortion",
    "measure_drift": "toolkit.analysis.drift",
    "measure_flow": "toolkit.probes.flow",
    "measure_gauge": "toolkit.analysis.gauge",
    "measure_gauge_rows": "toolkit.analysis.gauge",
    "measure_geometry": "toolkit.analysis.geometry",
    "measure_layer_drift": "toolkit.probes.layer_drift",
    "measure_neighbours": "toolkit.analysis.neighbours",
    "measure_positions": "toolkit.analysis.positions",
    "measure_rows": "toolkit.analysis.drift",
    "measure_segments": "toolkit.analysis.segments",
    "measure_similarity": "toolkit.analysis.similarity",
    "measure_transplants": "toolkit.probes.transplants",
    "measure_updates": "toolkit.analysis.updates",
    "measure_weight_drift": "toolkit.analysis.weight_drift",
    "most_changed": "toolkit.analysis.neighbours",
    "movable_share": "toolkit.analysis.precision",
    "neighbours": "toolkit.analysis.neighbours",
    "open_model": "toolkit.probes.anatomy",
    "open_run": "toolkit.snapshots.store",
    "plot_change": "toolkit.reporting.topics.changes",
    "plot_cost": "toolkit.reporting.topics.scores",
    "plot_data_efficiency": "toolkit.reporting.topics.scores",
    "plot_differences": "toolkit.reporting.topics.comparison",
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
    "regress_drift": "toolkit.analysis.regression",
    "relative_quality": "toolkit.comparison.relative",
    "replay_decay": "toolkit.analysis.adam",
    "side_by_side": "toolkit.comparison.summaries",
    "sign_noise": "toolkit.analysis.nulls",
    "summarise_floors": "toolkit.comparison.summaries",
    "summarise_scores": "toolkit.comparison.summaries",
    "take_apart": "toolkit.probes.anatomy",
    "verify_report": "toolkit.comparison.verify",
    "verify_run": "toolkit.snapshots.store",
    "write_drift_report": "toolkit.reporting.run_reports",
    "write_position_report": "toolkit.reporting.run_reports",
    "write_report": "toolkit.reporting.comparison_report",
    "write_rows": "toolkit.analysis.drift",
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
