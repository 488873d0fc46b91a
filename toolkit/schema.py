"""The columns of every table: what each is called, what it means, and which table has it in which order.

A name means one thing wherever it stands. Docstrings, headings and tool-tips are made from what is written here. A
question brings the tables that it alone has, and the columns of these; what two of them share stands here.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from toolkit.naming import lookup

TEXT, NUMBER, COUNT, FLAG, VALUES = "text", "number", "count", "flag", "values"
"""What a cell holds: a text, empty where there is nothing to say; a float, NaN where it is undefined; a whole number,
NA where it is unknown; yes or no; a tuple of floats."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of any table that has it."""

    name: str
    meaning: str
    """What the number is and how it was computed: the tool-tip of a report, a line of ``help()``."""
    kind: str = NUMBER
    unit: str = ""
    label: str = ""
    """The heading in a report: the name in plain words where nothing else is given."""
    digits: int = 3
    """Significant digits that a report shows."""

    def __post_init__(self) -> None:
        if not self.label:
            plain = self.name.removeprefix("num_").removeprefix("is_").replace("_", " ")
            object.__setattr__(self, "label", plain)


def _by_name(*columns: Column) -> dict[str, Column]:
    """Name to column; ValueError for a name that stands twice."""
    by_name = {column.name: column for column in columns}
    if len(by_name) < len(columns):
        raise ValueError("a column stands twice in the schema: one name has one meaning")
    return by_name


P_VALUES = frozenset(["p", "q", "sign_flip_p", "smallest_p", "mcnemar_p"])
"""Columns of p values, which pages print as < 0.001 where they are."""

COLUMNS: dict[str, Column] = _by_name(
    # What a line is about, in the order of every table.
    Column("run", "Name of the run's directory; of a model that is no run, what it was called.", TEXT),
    Column("model", "The checkpoint that was trained.", TEXT),
    Column(
        "group",
        "Runs of one model and task; models that were looked at with the same texts.",
        TEXT,
        "",
        "model and task",
    ),
    Column("task", "What the model was trained for.", TEXT),
    Column("condition", "Runs that differ in nothing but the seed.", TEXT),
    Column("base", "The condition without its number of training examples: one for all sizes.", TEXT, "", "condition"),
    Column("control", "The condition that learned shuffled labels at the same settings.", TEXT),
    Column("permutation", "Of the control's labels: one for all seeds, or another per seed.", TEXT),
    Column("size", "Training examples that were asked for; NA for all.", COUNT),
    Column("seed", "Of the run; NA where it is not known, and for a model that is no run.", COUNT),
    Column("first", "The first of the two that the line compares or pairs: a run, a model or a component.", TEXT),
    Column("second", "The second of the two.", TEXT),
    Column("against", "What the condition is held against.", TEXT),
    Column("epoch", "Epochs of training behind the snapshot; 0 is before training."),
    Column("step", "Optimizer steps behind the snapshot.", COUNT),
    Column("parameter", "Name of a parameter, or of what is made of its rows.", TEXT),
    Column("component", "A part of the model: a parameter, a layer, or what several of them share.", TEXT),
    Column("layer", "1 is the first; 0: what it reads; -1: the sum before LayerNorm; NA: in no layer.", COUNT),
    Column("stage", "A place in the forward pass, in words.", TEXT),
    Column("stratum", "Rows that belong together, by the steps that showed them; a name for chosen rows.", TEXT),
    Column("row", "Row of the table, counted from 0; NA for a sum of rows.", COUNT),
    Column("token", "Text of the row, or of the token; empty where there is none.", TEXT),
    Column("split", "The part of the data that was scored. The reported split comes first.", TEXT),
    Column("is_reported_split", "Whether it is the split that the task reports.", FLAG),
    # What was measured, beside what chance gives.
    Column("measure", "What was measured.", TEXT),
    Column("statistic", "Summary of the measure over the rows; value: of the parameter as one vector.", TEXT),
    Column("score", "What is compared; accuracies and coefficients are fractions of 1.", TEXT),
    Column("is_headline", "Whether it is the score that the task is judged by; accuracy may stand beside it.", FLAG),
    Column("value", "The measured number, in ``unit`` where the table has one."),
    Column("low", "Lower end of the value's interval: 95 %, unless the table says otherwise."),
    Column("high", "Upper end of it."),
    Column("low90", "Lower end of the value's 90 % interval."),
    Column("high90", "Upper end of it."),
    Column("value_before", "The value before training."),
    Column("null", "Mean of the value under the null."),
    Column("null_low", "2.5 % quantile of the null."),
    Column("null_high", "97.5 % quantile of the null."),
    Column("null_sd", "Standard deviation of the null."),
    Column("null_median", "Median of the null."),
    Column("unit", "Of the value; 1 is a pure number.", TEXT),
    Column("reason", "Why a number of the line is missing, or the verdict is what it is; else empty.", TEXT),
    Column("note", "What must be known beside the numbers.", TEXT),
    # Counts.
    Column("num_rows", "Rows that the line is about.", COUNT),
    Column("num_undefined", "Rows of them, or seeds, without a value.", COUNT),
    Column("num_exposed_rows", "Rows that training showed.", COUNT),
    Column("num_steps", "Optimizer steps that showed the row; of several runs their mean."),
    Column("num_tokens", "Tokens that used the row.", COUNT),
    Column("num_items", "Examples of the split that were scored.", COUNT),
    Column("num_seeds", "Runs that differ in nothing but the seed.", COUNT),
    Column("num_runs", "Runs that the line holds for.", COUNT),
    Column("num_seeds_shuffled", "Seeds of the control.", COUNT),
    Column("num_seeds_not_failed", "Seeds in which neither run failed.", COUNT),
    # Drift of rows, as the measures of MEASURES.
    Column("norm", "‖Δ‖ of the row.", NUMBER, "weight units"),
    Column("relative", "‖Δ‖ / ‖E⁰‖ of the row.", NUMBER, "1"),
    Column("cosine_distance", "1 - cosine of the row before and after.", NUMBER, "1"),
    Column("angle_degrees", "Angle between before and after.", NUMBER, "degrees"),
    Column("radial", "⟨Δ, E⁰⟩ / ‖E⁰‖: growth of the row; weight decay makes it negative.", NUMBER, "weight units"),
    Column("tangential", "Length of the part of Δ across E⁰.", NUMBER, "weight units"),
    Column("max_abs", "Largest |Δ| of one coordinate.", NUMBER, "weight units"),
    Column("l1", "Σ|Δ| over the coordinates.", NUMBER, "weight units"),
    Column("path_efficiency", "‖Δ‖ over the length of the way through the ends of epochs: 1 is straight.", NUMBER, "1"),
    Column("relative_drift", "‖Δ‖ / ‖E⁰‖ of all values together.", NUMBER),
    Column("offset_free_drift", "‖Δ‖ / ‖E⁰‖ of the rows that training showed, without their mean change."),
    Column("has_moved", "Whether any bit of the parameter differs.", FLAG),
    Column("precision", "Coarsest of fp32, fp16, bf16 that holds all values.", TEXT),
    # Why rows moved.
    Column("last_step", "Last step that showed the row, counted from 1; 0 if none.", COUNT),
    Column("drift", "‖Δ‖ of the row.", NUMBER, "weight units"),
    Column("decay", "Norm of what replayed weight decay did.", NUMBER, "weight units"),
    Column("update", "Norm of the rest: what the optimizer's updates did.", NUMBER, "weight units"),
    Column("cause", "Why the row moved.", TEXT),
    Column("num_did_not_move", "Rows that did not move.", COUNT),
    Column("num_weight_decay_alone", "Rows that are where decay leaves them, bit for bit.", COUNT),
    Column("num_momentum_after_its_last_exposure", "Rows shown before the reference epoch and not since.", COUNT),
    Column("num_gradient", "Rows that gradients moved.", COUNT),
    Column("num_unexplained", "Rows never shown that decay does not explain.", COUNT),
    Column("num_exposure_unknown", "Rows that updates moved, where it is not known in which steps.", COUNT),
    Column("decay_share", "Σ‖decay‖² as a share of Σ‖Δ‖²."),
    Column("update_share", "Σ‖update‖² as a share of Σ‖Δ‖²."),
    Column("unexplained_share", "Σ‖update‖² / Σ‖Δ‖² of rows never shown: 0 where decay explains all."),
    Column("ratio", "drift / null."),
    Column("z", "(drift - null) / null_sd; NaN where the null hardly varies."),
    Column("has_norms", "Whether the sizes of the row's gradients were recorded.", FLAG),
    Column("direction_mean", "Mean of a second null: random directions.", NUMBER, "weight units"),
    Column("direction_sd", "Its standard deviation.", NUMBER, "weight units"),
    Column("direction_ratio", "drift / direction_mean."),
    Column("learning_rate", "The largest up to the epoch; NaN where unknown, or frozen."),
    Column(
        "update_to_weight",
        "Norm of one optimizer step's update over norm of the weights before it, of the rows with a gradient; "
        "undefined where the weights are 0.",
        label="update / weight",
    ),
    Column(
        "lost_to_rounding",
        "Share of the values with a gradient that this one step left as they were: its update is below the spacing of "
        "the weights.",
        label="share of this step lost to rounding",
    ),
    # What will move, before a step is taken.
    Column("adapter", "Of peft: is one, has one; empty where there is none.", TEXT),
    Column("requires_grad", "Whether it can be trained; empty where only some can.", FLAG),
    Column(
        "optimizer_groups",
        "The parameter groups that hold it, each as optimizer.group, counted from 0; not known without an optimizer.",
        TEXT,
    ),
    Column("learning_rates", "The different rates of these groups, as they are now.", VALUES),
    Column("weight_decays", "Their different weight decays.", VALUES),
    Column("dtype", "What its values are stored in.", TEXT),
    Column("tied_to", "Its names in other modules, which move with it.", TEXT),
    Column("will_move", "yes, by decay only, no, or not known.", TEXT, label="will it move?"),
    Column(
        "reason_kind",
        "Kind of the reason: trains, trainable, kept gradient, momentum, kept zeros, frozen, frozen but held, adapted, "
        "not held, rate 0, no gradient, unused, rounding, loss; of a number that is not given: not applicable, not "
        "recorded, not measurable here, not identifiable.",
        TEXT,
    ),
    # What no output can show.
    Column("frequencies", "Where the frequencies of rows come from.", TEXT),
    # Words and their neighbours.
    Column("rank", "Place in the list, from 1.", COUNT),
    Column("row_before", "Row of the neighbour before training.", COUNT),
    Column("neighbour_before", "Its text.", TEXT),
    Column("similarity_before", "Cosine before training: with this neighbour, or the mean over all k."),
    Column("is_lost", "Whether it is no neighbour any more.", FLAG),
    Column("row_after", "Row of the neighbour after training.", COUNT),
    Column("neighbour_after", "Its text.", TEXT),
    Column("similarity_after", "Cosine with it after training."),
    Column("is_new", "Whether it was none before.", FLAG),
    Column("times_old_length", "The row's length over the median length of the words that were there.", NUMBER, "1"),
    Column("old_length_low", "5 % of the words that were there are shorter; over their median length.", NUMBER, "1"),
    Column("old_length_high", "5 % of the words that were there are longer; over their median length.", NUMBER, "1"),
    Column("nearest_old", "Its nearest words of those that were there, each with its cosine, nearest first.", TEXT),
    Column("overlap", "Share of the k neighbours before that are among those after."),
    Column("similarity_change", "Change of the mean cosine with the k neighbours before."),
    Column("random_overlap", "Mean overlap when each row moves as far in a random direction."),
    Column("excess", "random_overlap - overlap."),
    Column("percentile", "Of the excess, among words of like exposure."),
    Column("jaccard", "Jaccard index of two runs' lists."),
    Column("jaccard_permuted", "Its mean when words of like exposure are exchanged."),
    Column("jaccard_random", "Its mean when every row moves as far in a random direction."),
    Column(
        "spearman",
        "Spearman's rank correlation of drift and gain over tasks.",
        NUMBER,
        "",
        "Spearman correlation",
    ),
    # What several questions have.
    Column("is_out_of_distribution", "Whether the split is; NA for a part of the model.", FLAG),
    Column("df", "Degrees of freedom."),
    Column("change", "What was done, and with what result compared.", TEXT),
    Column("share", "Part of the table's whole, as a fraction; NaN where it is not clear from 0."),
    Column("length", "Euclidean length of the row.", NUMBER, "weight units"),
    # Scores and their comparison.
    Column("pair", "The first condition minus the second, on the same items, paired by seed.", TEXT),
    Column(
        "num_failed",
        "Runs that are no better than the majority class on the reported split, or give it one answer, or have an "
        "undefined score. They are included in the first columns and left out of those that say so.",
        COUNT,
    ),
    Column("first_score", "Score of the first condition's run.", label="first"),
    Column("second_score", "Score of the second condition's run.", label="second"),
    Column("num_only_first_right", "Items that only the first condition's run gets right.", COUNT),
    Column("num_only_second_right", "Items that only the second condition's run gets right.", COUNT),
    Column(
        "mcnemar_p",
        "Two-sided binomial test: do items that only one run gets right fall evenly to both sides?",
        label="exact McNemar p",
    ),
    Column("num_train_examples", "Examples that the run was trained on.", COUNT, label="training examples"),
    Column(
        "majority_rate",
        "Accuracy of always giving train's most frequent label; undefined where that is not known.",
        label="majority class",
    ),
    Column(
        "is_failed",
        "Whether the run is no better than the majority class, gives every item one answer, or has an undefined score; "
        "missing where that is not known.",
        FLAG,
    ),
    Column(
        "num_at_chance",
        "Runs that are not above the majority class by more than chance (exact 95 % interval); NA in regression.",
        COUNT,
    ),
    Column("mean", "Mean over all seeds at the last epoch."),
    Column("sd", "Sample standard deviation over seeds (divided by seeds less one).", digits=2),
    Column("median", "Median over all seeds."),
    Column("min", "The least of all seeds.", label="least"),
    Column("max", "The greatest of all seeds.", label="greatest"),
    Column("mean_not_failed", "Mean over the seeds that did not fail.", label="mean, not failed"),
    Column("sd_not_failed", "Standard deviation over the seeds that did not fail.", label="sd, not failed", digits=2),
    Column(
        "real_mean", "Mean over seeds of the measure under real labels; of ratios the geometric mean.", label="real"
    ),
    Column("shuffled_mean", "Its mean under shuffled labels, at the same settings.", label="shuffled"),
    Column("is_paired", "Whether both conditions have the same seeds.", FLAG),
    Column("first_mean", "Mean score of the first condition over its paired seeds.", label="first"),
    Column("second_mean", "Mean score of the second condition over its paired seeds.", label="second"),
    Column("difference_points", "First minus second, hundredths of the score.", NUMBER, "points", "difference"),
    Column(
        "num_units",
        "Of what the interval is over beside seeds: items or, where it is less than these, the clusters that they come "
        "in; NA where the interval is over seeds alone.",
        COUNT,
    ),
    Column("low_points", "Lower end of the difference's interval over seeds and items: 95 %, or the level asked for."),
    Column("high_points", "Upper end of it."),
    Column(
        "low90_points",
        "Lower end of the difference's 90 % interval, which decides equivalence: where few items differ its end that "
        "is farther from 0 is moved out by an exact bound, and may lie beyond that of 95 %.",
    ),
    Column("high90_points", "Upper end of it."),
    Column("ms_seed", "Mean square between seeds in the table of differences, seeds times items.", unit="points²"),
    Column("ms_item", "Mean square between items in that table.", unit="points²"),
    Column("ms_residual", "Mean square of its residual.", unit="points²"),
    Column("difference_points_not_failed", "The difference over the pairs of runs of which neither failed."),
    Column("low_points_not_failed", "Lower end of its interval."),
    Column("high_points_not_failed", "Upper end of it."),
    Column(
        "difference",
        "First minus second in hundredths of the score, on the same items and paired by seed: the mean over seeds.",
        unit="points",
    ),
    Column(
        "interval",
        "Two-way interval of a paired mean difference over seeds and items: Student's t with the variance of both "
        "and Satterthwaite's degrees of freedom, not below seeds less one. A score that is no mean over items is made "
        "one by the influence of each item; where its answers are not known: Student's t over the seeds. For one seed: "
        "items only. Items that come in clusters count as these.",
        TEXT,
        "points",
        "95 % interval",
    ),
    Column(
        "interval90",
        "The same at 90 %: it lies within the margin exactly when both one-sided tests reject at 5 %.",
        TEXT,
        "points",
        "90 % interval",
    ),
    Column(
        "detectable_gap_points",
        "The true difference that this many seeds and items would find with probability .8 at level .05.",
        NUMBER,
        "points",
        "smallest detectable gap",
    ),
    Column(
        "noise_floor_points",
        "Mean absolute difference between two seeds of one condition: what chance alone does.",
        NUMBER,
        "points",
        "difference between two seeds of one condition",
    ),
    Column("p", "Two-sided p of the value: of a t test, or over tasks of a permutation test."),
    Column("q", "Benjamini and Hochberg's false discovery rate over the p values of all comparisons of one kind."),
    Column(
        "sign_flip_p",
        "Share of all ways to flip the signs of the seeds' differences that are as far from 0: exact up to 16 seeds.",
        label="sign-flip p",
    ),
    Column(
        "smallest_p",
        "The least p that sign flips can reach with this many seeds: 2 / 2^seeds. Above .05 the test cannot reject.",
        label="smallest possible",
    ),
    Column(
        "mcnemar",
        "Seeds whose exact McNemar test rejects: do the items that only one of the two models gets right fall "
        "evenly to both sides? It covers the items of one seed and not other seeds.",
        TEXT,
        label="McNemar p < .05",
    ),
    Column("margin", "Values inside ± this are called equivalent."),
    Column("detectable_gap", "The true value that these seeds would find with probability .8."),
    Column("margin_points", "Differences inside ± this are called equivalent.", NUMBER, "points", "margin"),
    Column(
        "verdict",
        "The first that holds of: not applicable, not recorded, not measurable here; not identifiable (no data "
        "could tell); not judged (under three seeds, or drift beside sign noise, which is only described); equivalent "
        "(90 % interval inside the margin, even if it excludes 0); supported (interval excludes 0, and q is below the "
        "level); the other way (of a claim with a direction, the same below 0); under-powered (smallest detectable gap "
        "above the margin); not supported.",
        TEXT,
    ),
    Column("num_parameters", "Parameters, each a number, of the model or of what the line is about.", COUNT),
    Column("num_trainable", "Parameters that the optimizer may change.", COUNT, "", "trainable parameters"),
    Column("num_trainable_ratio", "Share of full fine-tuning's trainable parameters.", label="of full", digits=2),
    Column("seconds", "Training, making features and the head's stage, mean over seeds; without evaluation."),
    Column(
        "seconds_ratio",
        "Share of full fine-tuning's seconds; shared machines distort it.",
        NUMBER,
        "",
        "time of full",
        2,
    ),
    Column("peak_memory_mib", "Greatest memory of the process, mean over seeds.", NUMBER, "MiB", "peak memory"),
    Column("examples_per_second", "Training examples per second of training."),
    Column("devices", "Devices, processes, threads and precision of the runs.", TEXT),
    Column("score_mean", "Mean over seeds on the reported split at the last epoch.", label="mean score"),
    Column(
        "times_noise",
        "Drift of the rows that training showed, without their common offset, divided by what random gradient "
        "signs of the same steps would have moved them: 1 is noise. Alone it is no sign of learning (shuffled labels "
        "gave as much on SST-2 and TREC), and it falls as the learning rate rises: compare it at equal rates only.",
        label="times its noise",
    ),
    Column(
        "drift_percent",
        "100·‖Δ‖/‖E⁰‖ of the whole parameter, or of the word's row, at the last epoch.",
        NUMBER,
        "%",
        "drift",
    ),
    Column("exposed_percent", "The same of the rows that got a gradient.", NUMBER, "%", "drift of exposed rows"),
    Column("unexposed_percent", "The same of all other rows.", NUMBER, "%", "of unexposed rows"),
    Column("drift_percent_sd", "Standard deviation of it over seeds."),
    Column("exposed_percent_sd", "Standard deviation of it over seeds."),
    Column("unexposed_percent_sd", "Standard deviation of it over seeds."),
    Column("times_noise_sd", "Standard deviation of it over seeds."),
    Column("is_frozen", "Every run's manifest proves the parameter bit-identical.", FLAG),
    Column("gain_reason", "Why the score minus frozen is missing; empty where it is not.", TEXT),
    Column("gain_verdict", "Of the score minus frozen, at the margin.", TEXT, label="verdict on the gain"),
    Column(
        "gain_points",
        "Score of the run minus that of the run of the same seed with its embeddings frozen: what the drift bought.",
        NUMBER,
        "points",
        "score minus frozen",
    ),
    Column(
        "num_near_duplicates",
        "Training examples removed because they nearly repeat an item of the split (Jaccard similarity of word "
        "pairs, .8 or more): least and greatest of the runs, which draw other training examples.",
        COUNT,
        label="near-duplicates",
    ),
    Column("setting", "Place in the grid; every condition tries as many settings.", COUNT),
    Column("is_chosen", "Whether the setting was chosen.", FLAG),
    Column(
        "is_at_edge",
        "Chosen, and the score still rose towards an end of the grid: a value beyond it may do better.",
        FLAG,
        label="at the edge",
    ),
    Column("mean_score", "On the split held out of train, at the last epoch."),
    Column("fields", "What the setting sets.", TEXT, label="settings"),
    Column("reached", "Mean score of the trained head at the last epoch."),
    Column(
        "linear_probe",
        "Mean score of the linear head that cross-validation finds on the same frozen features (strength chosen by "
        "accuracy, of a regression by squared error): a yardstick, no strict bound; a trained head may beat it.",
    ),
    Column("majority", "Always the most frequent training label; in regression the mean of the targets."),
    Column(
        "bag_of_words",
        "TF-IDF of single words and a logistic regression (in regression a ridge), its strength by cross-validation, "
        "fitted to the same training examples; of a pair u, v, |u - v| and u * v of its two bags. In a token task the "
        "most frequent tag of each word form.",
    ),
    Column(
        "above_bag_of_words_points",
        "The condition's mean minus that of the bag of words.",
        NUMBER,
        "points",
        "above bag of words",
    ),
    Column(
        "full_minus_reached_points",
        "Full fine-tuning minus the trained head, over seeds of both.",
        NUMBER,
        "points",
        "full minus reached",
    ),
    Column(
        "full_minus_linear_probe_points",
        "Full fine-tuning minus the linear head that cross-validation finds on the same features. Beside it low_points "
        "and high_points are the ends of its 95 % interval, over seeds alone.",
        NUMBER,
        "points",
        "full minus probe",
    ),
    Column("num_tasks", "Tasks behind the correlation.", COUNT),
)

_NULL = "null null_low null_high null_sd"
_MEASURES = "norm relative cosine_distance angle_degrees radial tangential max_abs l1"
_CONDITION = "group model task condition base size num_train_examples"
_SCORED = "split is_reported_split score"
_OVER_SEEDS = "mean sd median min max"

TABLES: dict[str, tuple[str, ...]] = {
    name: tuple(columns.split())
    for name, columns in {
        "measure_drift": "epoch step parameter stratum measure statistic value unit num_rows num_undefined",
        "top_words": "token drift_percent num_steps num_tokens row",
        "measure_rows": f"row token stratum num_steps num_tokens {_MEASURES} path_efficiency",
        "measure_added_rows": (
            "epoch step row token num_steps num_tokens norm relative length times_old_length old_length_low "
            "old_length_high nearest_old reason"
        ),
        "decompose": ("row token stratum num_steps last_step drift decay update cause"),
        "explain": (
            "stratum num_rows num_did_not_move num_weight_decay_alone num_momentum_after_its_last_exposure "
            "num_gradient num_unexplained num_exposure_unknown decay_share update_share unexplained_share"
        ),
        "sign_noise": (
            f"row token stratum num_steps drift {_NULL} null_median ratio z has_norms direction_mean direction_sd "
            "direction_ratio"
        ),
        "what_trains": (
            "component adapter num_parameters share requires_grad optimizer_groups learning_rates weight_decays dtype "
            "tied_to will_move reason_kind reason note"
        ),
        "measure_step_sizes": "step parameter update_to_weight lost_to_rounding",
        "measure_gauge": "epoch step parameter measure value unit num_rows frequencies reason note",
        "measure_design": "measure value reason note",
        "neighbours": (
            "rank row_before neighbour_before similarity_before is_lost row_after neighbour_after similarity_after "
            "is_new"
        ),
        "most_changed": (
            "rank row token stratum num_steps overlap similarity_change random_overlap "
            "excess percentile num_runs jaccard jaccard_permuted jaccard_random"
        ),
        "measure_segments": "epoch step parameter measure value unit reason note",
        "compare": (
            f"group model task first second size num_train_examples {_SCORED} is_headline num_seeds num_items "
            "num_units first_mean second_mean difference_points low_points high_points df p low90_points high90_points "
            "ms_seed ms_item ms_residual sign_flip_p smallest_p margin_points "
            "detectable_gap_points num_seeds_not_failed difference_points_not_failed low_points_not_failed "
            "high_points_not_failed noise_floor_points q "
            "verdict reason note"
        ),
        "compare_seeds": (
            "group model task first second seed split num_items score first_score second_score difference_points "
            "num_only_first_right num_only_second_right mcnemar_p q reason"
        ),
        "last_scores": f"run {_CONDITION} seed {_SCORED} value value_before is_failed seconds",
        "summarise_scores": (
            f"{_CONDITION} {_SCORED} is_headline num_seeds num_failed num_at_chance num_undefined majority_rate "
            f"{_OVER_SEEDS} mean_not_failed sd_not_failed"
        ),
        "summarise_floors": (
            f"{_CONDITION} {_SCORED} num_seeds mean majority bag_of_words above_bag_of_words_points reason note"
        ),
        "measure_cost": (
            f"{_CONDITION} num_seeds num_failed num_at_chance num_parameters num_trainable "
            "seconds peak_memory_mib examples_per_second num_trainable_ratio "
            "seconds_ratio split score score_mean devices reason note"
        ),
        "linear_probes": (
            "group model task condition against size split is_reported_split is_out_of_distribution score num_seeds "
            "reached linear_probe full_minus_reached_points full_minus_linear_probe_points low_points "
            "high_points"
        ),
        "measure_beyond_noise": (
            "parameter num_rows num_exposed_rows relative_drift offset_free_drift null null_low "
            "null_high times_noise has_moved reason_kind reason"
        ),
        "drift_table": (
            "model task condition parameter drift_percent drift_percent_sd exposed_percent exposed_percent_sd "
            "unexposed_percent unexposed_percent_sd times_noise times_noise_sd num_seeds is_frozen"
        ),
        "join_drift": (
            f"run {_CONDITION} seed learning_rate is_failed epoch parameter is_frozen num_exposed_rows relative_drift "
            "offset_free_drift times_noise split score value value_before gain_points gain_verdict "
            "gain_reason reason note"
        ),
        "associate_drift": "model base parameter num_tasks num_runs spearman p q reason",
        "label_statistics": "group condition run second parameter measure value reason",
        "compare_with_shuffled": (
            "group condition control permutation parameter measure real_mean shuffled_mean value low high low90 high90 "
            "margin detectable_gap unit p q num_seeds num_seeds_shuffled is_paired verdict reason"
        ),
        "choose": "task condition setting fields num_seeds num_items split score mean_score is_chosen is_at_edge",
    }.items()
}
"""A function, and where it returns several tables the name of each, to its columns in order."""


PARAMETERS: Mapping[str, str] = {
    "source": "A run, the path of a run directory, a trajectory, or imported checkpoints.",
    "sources": "Runs, paths of run directories, trajectories or imported checkpoints; at least two.",
    "parameter": "Name of an embedding parameter, such as ``word_embeddings``.",
    "epoch": "Epoch of the snapshot; None is the last one.",
    "epochs": "Epoch or epochs of the snapshots; None takes every snapshot.",
    "reference_epoch": "Epoch of the snapshot that changes are counted from.",
    "log": "Optimizer log of the run; needed where ``source`` is a trajectory, which has none.",
    "measures": "Names of entries of MEASURES, or a mapping of the same kind.",
    "k": "Number of nearest neighbours of each word.",
    "order": "``excess`` (beyond what random drifts of that size lose) or ``overlap`` (whether or not any drift would "
    "lose it).",
    "is_centred": "Subtract the mean of the words first, so that an offset that all words share changes no neighbour.",
    "num_draws": "Number of random drifts of the observed size that the loss is compared with; at least 2.",
    "num_null": "Number of draws of the null.",
    "seed": "Seed of every random draw.",
}
"""What help() says of a parameter that several functions take, where a function's docstring does not say it."""


def add(columns: Iterable[Column], tables: Mapping[str, str]) -> None:
    """Columns and tables of a question, or of an experiment; ValueError where a name has another meaning already."""
    for column in columns:
        if COLUMNS.setdefault(column.name, column) != column:
            raise ValueError(f"the column {column.name!r} is in the schema with another meaning: choose another name")
    TABLES.update({name: tuple(listed.split()) for name, listed in tables.items()})


def columns_of(table: str) -> list[str]:
    """Names of a table's columns in order, such as ``measure_drift``'s; ValueError for an unknown table."""
    return list(lookup(TABLES, table, "table"))


F = TypeVar("F", bound=Callable[..., Any])


def with_columns(function: F) -> F:
    """The same function, whose help() has the parameters of PARAMETERS and ends with the columns of its tables."""
    name = function.__name__
    paragraphs = [_with_parameters(function)]
    for table in (each for each in TABLES if each == name or each.startswith(f"{name}.")):
        title = "Columns" if table == name else f"Columns of {table.removeprefix(f'{name}.')}"
        paragraphs.append("\n".join([title, "-" * len(title), *map(_described, TABLES[table])]))
    function.__doc__ = "\n\n".join(paragraphs)
    return function


def _with_parameters(function: Callable[..., Any]) -> str:
    """The docstring with every parameter in order: those that it lacks by PARAMETERS, where that has all of them."""
    text = inspect.getdoc(function) or ""
    # The text before the section Parameters, that of the section, and the sections behind it.
    before, section, after = re.fullmatch(
        r"(.*?)(?:\n\nParameters\n-+\n(.*?))?((?:\n\n\w+\n---.*)?)", text, re.S
    ).groups()  # type: ignore[union-attr]
    blocks = re.split(r"\n(?=\S)", section) if section else []  # of one parameter, or of several: "low, high"
    block_by_name = {name: block for block in blocks for name in block.partition("\n")[0].split(", ")}
    names = list(inspect.signature(function).parameters)
    if not all(name in block_by_name or name in PARAMETERS for name in names):
        return text
    all_blocks = [
        block_by_name.get(name) or f"{name}\n{textwrap.indent(textwrap.fill(PARAMETERS[name], 112), '    ')}"
        for name in names
    ]
    return "\n".join([f"{before}\n\nParameters\n----------", *dict.fromkeys(all_blocks)]) + after


def _described(name: str) -> str:
    column = COLUMNS[name]
    text = f"{name} ({column.unit})" if column.unit else name
    return textwrap.fill(f"{text}: {column.meaning}", 100, subsequent_indent="    ")
