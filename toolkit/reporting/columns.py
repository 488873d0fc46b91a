"""Names of columns in, how a report shows and explains them out: what each number is and how it was computed."""

from collections.abc import Mapping

from toolkit.reporting.cells import Column

COLUMNS: Mapping[str, Column] = {
    "group": Column(label="model and task"),
    "task": Column(label="task"),
    "split": Column(label="split", how="The part of the data that was scored. The reported split comes first."),
    "arm": Column(label="condition", how="Runs of one model and task that differ in their seed only."),
    "base": Column(label="condition", how="Runs of one model and task that differ in their seed only."),
    "pair": Column(label="pair", how="The first condition minus the second, on the same items, paired by seed."),
    "score": Column(label="score", how="What is compared; accuracies and coefficients are fractions of 1."),
    "num_seeds": Column(label="seeds", how="Runs that differ in nothing but the seed."),
    "num_failed": Column(
        label="failed",
        how="Runs whose accuracy on the reported split is the majority class's or less. They are included in the "
        "first columns and left out of those that say so.",
    ),
    "seed": Column(label="seed"),
    "first_score": Column(label="first", how="Score of the first condition's run."),
    "second_score": Column(label="second", how="Score of the second condition's run."),
    "num_only_first_right": Column(
        label="only first right", how="Items that only the first condition's run gets right."
    ),
    "num_only_second_right": Column(
        label="only second right", how="Items that only the second condition's run gets right."
    ),
    "mcnemar_p": Column(
        label="exact McNemar p",
        how="Two-sided binomial test: do items that only one run gets right fall evenly to both sides?",
    ),
    "num_items": Column(label="items", how="Examples of the split that both conditions answered."),
    "num_train_examples": Column(label="training examples"),
    "majority_rate": Column(
        label="majority class", how="Accuracy of always giving the most frequent label of the split."
    ),
    "mean": Column(label="mean", how="Mean over all seeds at the last epoch."),
    "sd": Column(label="sd", how="Sample standard deviation over seeds (divided by seeds less one).", digits=2),
    "median": Column(label="median", how="Median over all seeds."),
    "min": Column(label="least", how="The least of all seeds."),
    "max": Column(label="greatest", how="The greatest of all seeds."),
    "mean_not_failed": Column(label="mean, not failed", how="Mean over the seeds that did not fail."),
    "sd_not_failed": Column(
        label="sd, not failed", how="Standard deviation over the seeds that did not fail.", digits=2
    ),
    "first_mean": Column(label="first", how="Mean score of the first condition over its paired seeds."),
    "second_mean": Column(label="second", how="Mean score of the second condition over its paired seeds."),
    "difference_points": Column(label="difference", unit="points", how="First minus second, hundredths of the score."),
    "difference": Column(
        label="difference",
        unit="points",
        how="First minus second in hundredths of the score, on the same items and paired by seed: the mean over seeds.",
    ),
    "interval": Column(
        label="95 % interval",
        unit="points",
        how="Two-way interval of a paired mean difference over seeds and items: Student's t with the variance of both "
        "and Satterthwaite's degrees of freedom, not below seeds less one. For a score that is no mean over items: "
        "Student's t over the seeds. For one seed: items only, and none for such a score.",
    ),
    "interval90": Column(
        label="90 % interval",
        unit="points",
        how="The same at 90 %: it lies within the margin exactly when both one-sided tests reject at 5 %.",
    ),
    "bootstrap_interval": Column(
        label="bootstrap interval",
        unit="points",
        how="Hierarchical percentile bootstrap: seeds drawn with replacement, then items, both conditions together. "
        "Secondary: it covers too little with few seeds.",
    ),
    "detectable_gap_points": Column(
        label="smallest detectable gap",
        unit="points",
        how="The true difference that this many seeds and items would find with probability .8 at level .05.",
    ),
    "noise_floor_points": Column(
        label="noise floor",
        unit="points",
        how="Mean absolute difference between two seeds of one condition: what chance alone does.",
    ),
    "p": Column(label="p", how="Two-sided p of the two-way t test that the difference is 0."),
    "q": Column(
        label="q",
        how="Benjamini and Hochberg's false discovery rate over the p values of all comparisons of this report.",
    ),
    "sign_flip_p": Column(
        label="sign-flip p",
        how="Share of all ways to flip the signs of the seeds' differences that are as far from 0: exact up to 16 "
        "seeds.",
    ),
    "smallest_p": Column(
        label="smallest possible",
        how="The least p that sign flips can reach with this many seeds: 2 / 2^seeds. Above .05 the test cannot "
        "reject.",
    ),
    "mcnemar": Column(
        label="McNemar p < .05",
        how="Seeds whose exact McNemar test rejects: do the items that only one of the two models gets right fall "
        "evenly to both sides? It covers the items of one seed and not other seeds.",
    ),
    "tost_p": Column(label="equivalence p", how="The greater p of the two one-sided tests against the margin."),
    "margin_points": Column(label="margin", unit="points", how="Differences inside ± this are called equivalent."),
    "verdict": Column(
        label="verdict",
        how="The first that holds of: not applicable, not recorded, not measurable here; not identifiable (no data "
        "could tell); not judged (under three seeds, or drift beside sign noise, which is only described); equivalent "
        "(90 % interval inside the margin, even if it excludes 0); supported (interval excludes 0, and q is below the "
        "level); under-powered (smallest detectable gap above the margin); not supported.",
    ),
    "note": Column(label="note"),
    "num_trainable": Column(label="trainable parameters", how="Parameters that the optimizer may change."),
    "num_trainable_ratio": Column(label="of full", how="Share of full fine-tuning's trainable parameters.", digits=2),
    "seconds": Column(
        label="seconds", how="Training, making features and the head's stage, mean over seeds; without evaluation."
    ),
    "seconds_ratio": Column(
        label="time of full", how="Share of full fine-tuning's seconds; shared machines distort it.", digits=2
    ),
    "peak_memory_mib": Column(label="peak memory", unit="MiB", how="Greatest memory of the process, mean over seeds."),
    "examples_per_second": Column(label="examples per second", how="Training examples per second of training."),
    "score_mean": Column(label="mean score", how="Mean over seeds on the reported split at the last epoch."),
    "parameter": Column(label="parameter"),
    "times_noise": Column(
        label="times its noise",
        how="Drift of the rows that training showed, without their common offset, divided by what random gradient "
        "signs of the same steps would have moved them: 1 is noise. Alone it is no sign of learning (shuffled labels "
        "gave as much on SST-2 and TREC), and it falls as the learning rate rises: compare it at equal rates only.",
    ),
    "gain_verdict": Column(label="verdict on the gain", how="Of the score minus frozen, at the margin."),
    "relative_drift": Column(
        label="relative drift", how="‖Δ‖ / ‖E⁰‖ of the whole parameter at the last epoch.", digits=3
    ),
    "gain_points": Column(
        label="score minus frozen",
        unit="points",
        how="Score of the run minus that of the run of the same seed with its embeddings frozen: what the drift "
        "bought.",
    ),
    "num_near_duplicates": Column(
        label="near-duplicates",
        how="Training examples removed because they nearly repeat an item of the split (Jaccard similarity of word "
        "pairs, .8 or more): least and greatest of the runs, which draw other training examples.",
    ),
    "is_removed": Column(label="removed"),
    "num_runs": Column(label="runs"),
    "setting": Column(label="setting", how="Place in the grid; every condition tries as many settings."),
    "is_chosen": Column(label="chosen"),
    "is_at_edge": Column(
        label="at the edge",
        how="Chosen, and the score still rose towards an end of the grid: a value beyond it may do better.",
    ),
    "mean_score": Column(label="mean score", how="On the split held out of train, at the last epoch."),
    "fields": Column(label="settings"),
    "reached": Column(label="reached", how="Mean score of the trained head at the last epoch."),
    "linear_probe": Column(
        label="linear probe",
        how="Mean score of the linear head that cross-validation finds on the same frozen features (strength chosen by "
        "log loss, of a regression by squared error): a yardstick, no strict bound; a trained head may beat it.",
    ),
    "majority": Column(
        label="majority", how="Always the most frequent training label; in regression the mean of the targets."
    ),
    "bag_of_words": Column(
        label="bag of words",
        how="TF-IDF of single words and a logistic regression (in regression a ridge), its strength by "
        "cross-validation, fitted to the same training examples; of a pair u, v, |u - v| and u * v of its two bags. In "
        "a token task the most frequent tag of each word form.",
    ),
    "untouched": Column(
        label="untouched model",
        how="Cosine of the two texts by the checkpoint before training; only where targets say how alike they are.",
    ),
    "above_bag_of_words": Column(
        label="above bag of words", unit="points", how="The condition's mean minus that of the bag of words."
    ),
    "full_minus_reached": Column(
        label="full minus reached", unit="points", how="Full fine-tuning minus the trained head, over seeds of both."
    ),
    "full_minus_linear_probe": Column(
        label="full minus probe",
        unit="points",
        how="Full fine-tuning minus the linear head that cross-validation finds on the same features.",
    ),
    "spearman": Column(label="Spearman correlation", how="Over tasks, one point each: the mean over seeds."),
    "num_tasks": Column(label="tasks"),
    "model": Column(label="model"),
    "regime": Column(label="regime", how="What is frozen; runs that differ in nothing but the seed are one regime."),
    "drift_percent": Column(label="drift", unit="%", how="100·‖Δ‖/‖E⁰‖ of the whole parameter at the last epoch."),
    "exposed_percent": Column(label="drift of exposed rows", unit="%", how="The same of the rows that got a gradient."),
    "unexposed_percent": Column(label="of unexposed rows", unit="%", how="The same of all other rows."),
    "is_frozen": Column(label="frozen", how="Every run's manifest proves the parameter bit-identical."),
}
"""Tables of a report use these wherever they have a column of the name."""
