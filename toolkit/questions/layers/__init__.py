"""Which layers moved (weights), which changed (states), and what was forgotten?"""

from toolkit.questions import declare
from toolkit.schema import COUNT, FLAG, NUMBER, TEXT, Column

COLUMNS = (
    Column("num_values", "Numbers in all.", COUNT),
    Column("num_texts", "Texts that were read.", COUNT),
    Column("part", "What a parameter is within its layer, or a row within a token's sum.", TEXT),
    Column("is_shuffled", "Whether the condition was trained on shuffled labels.", FLAG),
    Column("comparison", "What is held against what.", TEXT),
    Column("texts", "Name of the texts that the models read.", TEXT),
    Column("decoder", "The word table by which a masked-LM head scores words: the tuned one, or that before.", TEXT),
    Column("value_after", "The value after it, where ``value`` is the difference."),
    Column("by_frequency", "What knowing only how often each word is masked in these texts would give."),
    Column("shape", "Of the tensor, as 384x1536.", TEXT),
    Column("norm_before", "‖W⁰‖, Frobenius, in float64."),
    Column("norm_change", "‖Δ‖, likewise."),
    Column("most_layer", "The layer of the greatest mean relative drift.", COUNT),
    Column("least_layer", "The layer of the least.", COUNT),
    Column("top_to_bottom", "Relative drift of the top third of the layers over the bottom third's (geometric means)."),
    Column("trend", "flat, more at the bottom, more at the top, not decided, not judged or not applicable.", TEXT),
    Column("median_angle_degrees", "Median of the angle over the layer's matrices.", NUMBER, "degrees"),
    Column("is_identical", "Whether no bit differs.", FLAG),
    Column("similarity", "Similarity of the condition's models to those before training."),
    Column("other_similarity", "What it is held against: similarity of its seeds, or of the other condition."),
    Column("between_seeds", "By how much two seeds of one condition differ in similarity, on average."),
)
TABLES = {
    "measure_weight_drift": (
        "layer component part parameter shape num_values norm_before norm_change relative_drift angle_degrees "
        "is_identical reason note"
    ),
    "measure_weight_drift.layer": (
        "layer component num_values norm_before norm_change relative_drift median_angle_degrees is_identical "
        "reason note"
    ),
    "measure_layer_drift": (
        "group condition is_shuffled comparison first second texts layer measure value low high num_texts reason"
    ),
    "measure_layers.means": (
        "group condition is_shuffled comparison texts layer measure value low high num_seeds num_texts reason note"
    ),
    "measure_layers.contrasts": (
        "group condition comparison against texts layer measure similarity other_similarity value low high "
        "between_seeds num_seeds num_texts reason note"
    ),
    "measure_forgetting": (
        "run group condition is_shuffled seed texts decoder measure value low high value_before value_after "
        "by_frequency unit reason note num_texts"
    ),
    "average_weights": (
        "group condition is_shuffled layer component num_values norm_before norm_change relative_drift low high "
        "median_angle_degrees is_identical num_seeds reason note"
    ),
    "find_trends": (
        "group condition is_shuffled most_layer least_layer top_to_bottom low high p q num_seeds trend reason"
    ),
}
QUESTION = declare(
    "layers",
    readme=(
        (
            "Which layers moved (weights), which changed (states)?",
            "`layers RUNS`\\*, `layers BEFORE AFTER`",
            "`measure_layer_drift`, `measure_weight_drift`",
        ),
        (
            "What did fine-tuning forget (masked-LM loss)?",
            "`layers RUNS`\\*, of a checkpoint with that head",
            "`measure_forgetting`",
        ),
    ),
    public={"measure_weight_drift": "weights", "measure_forgetting": "forgetting", "measure_layer_drift": "states"},
    commands={"layers": "LayersCommand"},
    columns=COLUMNS,
    tables=TABLES,
)
