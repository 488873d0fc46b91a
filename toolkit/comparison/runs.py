"""One run as comparisons see it: config, manifest, scores and last answers."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.comparison.influence import SCORES as SCORES_OF_ITEMS
from toolkit.comparison.influence import influence_of_entities
from toolkit.comparison.recorded import TASK_NOT_GIVEN, facts_of_recording
from toolkit.comparison.recorded import canonical_name as canonical_name
from toolkit.config import RunConfig
from toolkit.data.tokens import spelled_alike
from toolkit.families import EMBEDDING_PARAMETERS, LORA
from toolkit.naming import shorten, shown_path, unknown
from toolkit.snapshots.formats import HEADLINES, SCORE_COLUMNS, SCORES
from toolkit.snapshots.store import Run

STAGES = ("seconds_training", "seconds_features", "seconds_head_stage")
"""What a manifest calls the seconds of each stage of training; evaluation and baselines are none."""

CORRELATIONS = ("matthews", "pearson", "spearman")
"""Scores that are undefined, or 0 by convention, where every item gets the same answer."""

LOWER_IS_BETTER = frozenset(
    ["loss", "perplexity", "ppl", "error", "mse", "mae", "rmse", "wer", "cer", "nll", "brier", "ece", "entropy"]
)
"""Words in the names of scores that no run is judged by: higher counts as better."""

ENTITY_SCORES = ("precision", "recall", "f1")
RANGES = (
    dict.fromkeys(("accuracy", "macro_f1", *ENTITY_SCORES), (0.0, 1.0))
    | dict.fromkeys(CORRELATIONS, (-1.0, 1.0))
    | {"r2": (-np.inf, 1.0), "loss": (0.0, np.inf)}
)


def range_of(score: str) -> tuple[float, float]:
    """The least and the greatest value that a score can have; any where its name does not say (perplexity)."""
    return RANGES.get(score, (-np.inf, np.inf))


SAME_SCORE, SAME_ROUNDED = 1e-6, 0.0051
"""A score that is this far from what the answers give is another one of the same name; an accuracy may be rounded to
two digits."""

CLUSTER = "cluster"
"""Column of the number of the cluster that an item is of."""

CHANCE_LEVEL = 0.95
"""Of the interval of an accuracy that decides whether it is above the majority class's."""


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """One run as plain data, from its directory (:func:`read_reported`) or from a report's evidence."""

    name: str
    known_config: RunConfig | None
    """Its config as it was found, with the paths of its machine where it comes from a directory; None of a run of
    another training loop, which has none."""
    manifest: Mapping[str, Any]
    """Its manifest, or as much of it as is kept; empty for an unfinished run."""
    scores: pd.DataFrame
    predictions: pd.DataFrame
    """Its answers to the labelled splits at its last epoch: epoch, split, id (and word, and the number of the cluster
    that the item is of, where its split has any), label, prediction."""
    given_task: str | None = None
    """What its study calls its task; None outside of studies."""
    directory: Run | None = None
    """Where it can be measured; None for a run that is known by a report's evidence alone."""
    known_ends: tuple[tuple[str, ...], float] | None = None
    """Its embedding parameters and its last epoch; None: they are read from its snapshots."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """The sha256 of its config.json and manifest.json, where they were taken."""
    command: str = ""
    """What repeats it, where that is known."""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """What is known in place of a config of a run of another loop (:func:`facts_of_recording`); empty of ours."""

    @property
    def run(self) -> Run:
        """Its directory; ValueError where there is none to measure."""
        if self.directory is None:
            raise ValueError(f"{self.name} is known by a report's evidence alone: it has no directory to measure")
        return self.directory

    @property
    def directory_name(self) -> str:
        """The name of its directory, by which labels refer to it."""
        return self.name if self.directory is None else self.directory.path.resolve().name

    @cached_property
    def config(self) -> RunConfig:
        """The config with absolute paths shortened: a report must not tell where somebody keeps their files.

        ValueError for a run of another loop: what may be either is read by :meth:`setting`.
        """
        if self.known_config is None:
            raise ValueError(f"{self.name} was recorded in another training loop and has no RunConfig: leave it out")
        return with_paths(self.known_config, shown_path)

    @property
    def is_recorded(self) -> bool:
        """Whether another training loop made it."""
        return self.known_config is None

    def setting(self, name: str) -> Any:
        """A field of its config; None, for not known, of a run of another loop."""
        return None if self.known_config is None else getattr(self.config, name)

    @property
    def seed(self) -> int | None:
        """Its seed; None where it is not known."""
        return self.recorded.get("seed") if self.is_recorded else self.config.seed

    @property
    def learning_rate(self) -> float:
        """The highest rate of the backbone that was asked for; NaN where that is not known."""
        rate = self.recorded["arguments"].get("learning_rate") if self.is_recorded else self.config.learning_rate
        return float(rate) if isinstance(rate, int | float) else np.nan

    @property
    def condition(self) -> str | None:
        """The condition that a recording was given; None without one, and for runs of ours."""
        return self.recorded.get("condition")

    @property
    def checkpoint(self) -> str:
        """The checkpoint that training started from, as it was named."""
        return str(self.recorded.get("model")) if self.known_config is None else self.known_config.model

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The embedding parameters that its model has."""
        return tuple(self.run.trajectory.parameters) if self.known_ends is None else self.known_ends[0]

    @property
    def last_epoch(self) -> float:
        return self.run.trajectory.snapshots[-1].epoch if self.known_ends is None else self.known_ends[1]

    @property
    def model(self) -> str:
        return str(shorten(self.part("model").get("name") or self.checkpoint))

    @property
    def task(self) -> str:
        """The name of its task; TASK_NOT_GIVEN where none was given."""
        named = self.recorded.get("task") or TASK_NOT_GIVEN if self.is_recorded else self.config.task
        return str(self.given_task or self.part("task").get("name") or named)

    @property
    def weights(self) -> str | None:
        """The sha256 of the checkpoint's weights, or the hub's commit.

        None where that was not kept, and of a start at random, which read no weights.
        """
        model = self.part("model")
        return None if self.setting("init") == "random" else model.get("weights_sha256") or model.get("revision")

    @property
    def data_sha256(self) -> dict[str, str]:
        """Role (train, validation, a test split) to the sha256 of its data file; empty without files."""
        return self.part("task").get("data_sha256") or {}

    @property
    def linear_probe(self) -> dict[str, dict[str, float | None]]:
        """Split to the scores of the best linear head on the frozen features; empty where none was fitted."""
        return self.part("linear_probe")

    @property
    def floors(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Floor to split to the scores of what needs no fine-tuning; empty under shuffled labels."""
        return self.part("floors")

    @property
    def regime(self) -> str:
        """Its regime; of a run of another loop what its hashes prove to have been frozen."""
        if label := self.part("regime").get("label"):
            return str(label)
        if self.is_recorded:
            return LORA if self.recorded.get("adapters") else "none"
        return LORA if self.config.lora else self.config.freeze

    @cached_property
    def end_scores(self) -> dict[str, dict[str, dict[str, Any]]]:
        """``first`` and ``last`` to split to the record of its scores at that epoch: comparisons look them up a lot.

        Another loop may score each split at epochs of its own, in several records, and none before training.
        """
        epochs = self.scores["epoch"]
        if self.is_recorded:
            last_epochs = epochs.groupby(self.scores["split"]).transform("max")
            tables = {
                "first": self.scores[epochs <= self.recorded["first_epoch"]],
                "last": self.scores[epochs == last_epochs],
            }
            return {
                name: {
                    record["split"]: record for record in table.groupby("split").last().reset_index().to_dict("records")
                }
                for name, table in tables.items()
            }
        ends = {"first": epochs.min(), "last": epochs.max()}
        records_by_end = {name: self.scores[epochs == epoch].to_dict("records") for name, epoch in ends.items()}
        return {name: {record["split"]: record for record in records} for name, records in records_by_end.items()}

    @cached_property
    def is_regression(self) -> bool:
        """Whether its labels are numbers; of another loop, which may not say so, whether any is a fraction."""
        labels = self.predictions["label"] if self.is_recorded else pd.Series(dtype=float)
        has_fractions = pd.api.types.is_float_dtype(labels) and bool((labels % 1 != 0).any())
        return self.part("task").get("kind") == "regression" or "pearson" in self.scores or has_fractions

    @property
    def is_token_task(self) -> bool:
        return self.part("task").get("kind") == "tokens" or "word" in self.predictions

    @property
    def score(self) -> str:
        """The headline score of the task; empty where a run of another loop has none."""
        named = self.part("task").get("score")
        if self.is_recorded:  # another loop may name one that is better when lower
            return str(named if named in self.headlines else next(iter(self.headlines), ""))
        return str(named or ("pearson" if self.is_regression else "accuracy"))

    @cached_property
    def headlines(self) -> tuple[str, ...]:
        """The scores that it can be judged by: of another loop's names those that are not better when lower."""
        foreign_names = [str(name) for name in self.scores if self.is_recorded and name not in SCORE_COLUMNS]
        names = [
            *HEADLINES,
            *(name for name in foreign_names if LOWER_IS_BETTER.isdisjoint(re.split(r"[^a-z]+", name.lower()))),
        ]
        scored = [name for name in names if has_score(self.scores, name)]
        # Precision or recall alone says little: the headline is one of them only where there is nothing else.
        return tuple(sorted(scored, key=lambda name: self.is_recorded and name in ("precision", "recall")))

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits that it can be compared on: those with answers and, of another loop, those with a score."""
        is_scored = self.scores[[name for name in self.headlines if self.is_recorded]].notna().any(axis=1)
        return tuple(dict.fromkeys([*self.answers, *self.scores.loc[is_scored, "split"]]))

    def num_items(self, split: str) -> float:
        """Items of a split; NaN where that is not known."""
        recorded_count = self.end_scores["last"].get(split, {}).get("num_examples", np.nan)
        return len(self.answers[split]) if split in self.answers else float(recorded_count)

    @property
    def reported_split(self) -> str:
        """The split whose score stands for the run; without a manifest entry the first that was scored."""
        return str(self.part("task").get("reported_split") or next(iter(self.scores["split"]), "validation"))

    @property
    def out_of_distribution(self) -> tuple[str, ...]:
        """Its splits that are out of the distribution of the training data (:func:`splits_out_of_distribution`)."""
        return splits_out_of_distribution(self.part("task"), self.scores["split"])

    @property
    def num_train_examples(self) -> int | None:
        """The training examples that the manifest counted or a recording says, else the limit of the config."""
        splits = self.part("task").get("splits") or {}
        counted = (splits.get("train") or {}).get("num_examples")
        counted = self.recorded.get("num_train_examples") if counted is None else counted
        return int(counted) if counted is not None else self.setting("max_train_examples")

    def part(self, key: str) -> dict[str, Any]:
        """A section of the manifest, empty when it is absent."""
        value = self.manifest.get(key)
        return value if isinstance(value, dict) else {}

    @property
    def seconds(self) -> float:
        """Seconds of its stages of training together; NaN where none was recorded."""
        cost = self.part("cost")
        stages = [float(cost[name]) for name in STAGES if name in cost]
        return sum(stages) if stages else np.nan

    def lead(self) -> dict[str, Any]:
        """The leading columns of every table of several runs."""
        return {"run": self.name, "model": self.model, "task": self.task, "regime": self.regime, "seed": self.seed}

    @cached_property
    def frozen(self) -> dict[str, bool]:
        """Every frozen parameter, by canonical name where it has one: are its hashes before and after equal?"""
        parameters: dict[str, dict[str, str]] = self.part("frozen").get("parameters") or {}
        is_unchanged = {
            canonical_name(key): hashes.get("before") == hashes.get("after") is not None
            for key, hashes in parameters.items()
        }
        # Of another loop's model an adapter may change what a frozen parameter gives.
        proven = self.part("regime").get("frozen_components", ()) if self.is_recorded else is_unchanged
        return {
            name: is_same
            for name, is_same in is_unchanged.items()
            if name in proven or name not in EMBEDDING_PARAMETERS
        }

    @cached_property
    def answers(self) -> dict[str, pd.DataFrame]:
        """Labelled split to its predictions at the last epoch, by id (and word): label, prediction, and cluster."""
        items = ["id", "word"] if "word" in self.predictions else "id"
        parts = self.predictions.groupby("split", sort=False, observed=True)
        return {str(split): part.set_index(items) for split, part in parts}

    def clusters(self, split: str) -> pd.Series | None:
        """The cluster of each answer to a split, by its index: of a word its sentence, unless clusters of these were
        kept; None where every item is one of its own."""
        answers = self.answers[split]
        if CLUSTER in answers and answers[CLUSTER].notna().all():
            return answers[CLUSTER]
        return answers.index.to_series().str[0] if answers.index.nlevels > 1 else None

    def holds_one_class(self, split: str) -> bool:
        """Whether all items of a labelled split have one label: an accuracy there shows no learning."""
        answers = self.answers.get(split)
        return not self.is_regression and answers is not None and answers["label"].nunique() == 1

    @cached_property
    def is_failed(self) -> bool | None:
        """Whether it learned nothing that the reported split shows; None where that is not known.

        That is an accuracy no better than always giving the most frequent label of train, one answer to every item or,
        in any task, a headline score that is undefined although the labels differ. Not known where the split has no
        labels, or one for all items, or as of :meth:`shows_nothing_learned`.
        """
        answers = self.answers.get(self.reported_split)
        if answers is None or answers["label"].nunique() < 2:
            return None
        is_undefined = bool(np.isnan(last_score(self, self.reported_split)))
        if is_undefined or self.is_regression:
            return is_undefined
        return self.shows_nothing_learned(self.reported_split)

    def shows_nothing_learned(self, split: str) -> bool | None:
        """Whether answers to a split of a classification are no better than train's majority, or all one answer.

        None where all items have one label, and where the label that is most frequent in train is not known and might
        be one that would have been right as often.
        """
        if self.holds_one_class(split):
            return None
        num_right, num_majority, _ = self.counts_of_right(split)
        is_level: bool | None = num_right <= num_majority
        if np.isnan(num_majority):
            is_level = None if num_right <= self.answers[split]["label"].value_counts().max() else False
        return True if self.answers[split]["prediction"].nunique() == 1 else is_level

    @cached_property
    def is_at_chance(self) -> bool | None:
        """Whether its accuracy on the reported split could be the majority class's with other items.

        The lower end of the exact 95 % interval of a binomial share (Clopper & Pearson 1934) is at or below
        :meth:`majority_rate`, which is taken as known. So is every run of a classification that failed, and one that
        tosses coins, which fails in half of the cases only. Items in clusters count as no more than these. None in
        regression, in a token task, whose words are no independent items, without labels, with one for all items, and
        where the rate is not known.
        """
        if not self._shows_learning or self.is_token_task:
            return None
        num_right, num_majority, num_items = self.counts_of_right(self.reported_split)
        clusters = self.clusters(self.reported_split)
        num_units = num_items if clusters is None else clusters.nunique()
        is_level = least_share(num_right * num_units // num_items, num_units) <= num_majority / num_items
        return None if np.isnan(num_majority) else is_level or bool(self.is_failed)

    def majority_rate(self, split: str) -> float:
        """The accuracy on a split of always giving the most frequent label of train, the first of several.

        NaN in regression, without labels, and where nobody noted that label: a run of another loop, or an older one
        whose floors were not recorded either.
        """
        label, answers = self.part("task").get("commonest_label"), self.answers.get(split)
        if label is not None and answers is not None:
            return float((answers["label"] == label).mean())
        recorded_rate = ((self.floors.get("majority") or {}).get(split) or {}).get("accuracy")
        return np.nan if recorded_rate is None else float(recorded_rate)

    def counts_of_right(self, split: str) -> tuple[int, float, int]:
        """Of a labelled split of a classification: right answers, items of train's most frequent label (NaN where that
        is not known), items."""
        answers = self.answers[split]
        num_majority = float(np.round(self.majority_rate(split) * len(answers)))
        return int((answers["label"] == answers["prediction"]).sum()), num_majority, len(answers)

    @property
    def _shows_learning(self) -> bool:
        """Whether right answers on the reported split could show what was learned.

        Not in regression, nor where all items have one label, of which every run that says so is right throughout.
        """
        split = self.reported_split
        return not self.is_regression and split in self.answers and not self.holds_one_class(split)


def with_paths(config: RunConfig, show: Callable[[str], str]) -> RunConfig:
    """A config with its absolute paths, but that of the output, as ``show`` gives them."""
    shortened: dict[str, Any] = {
        field_name: shorten(getattr(config, field_name), show)
        for field_name in ("model", "train_file", "validation_file", "add_tokens")
    }
    for flag in ("test_file", "ood_file"):
        pairs = (entry.partition("=") for entry in getattr(config, flag))
        shortened[flag] = tuple(f"{name}={shorten(path, show)}" for name, _, path in pairs)
    return replace(config, **shortened)


def splits_out_of_distribution(task: Mapping[str, Any], splits: Iterable[str]) -> tuple[str, ...]:
    """Which ``splits`` are out of the distribution of the training data, by the manifest's section ``task``.

    Its entry ``out_of_distribution`` says so: the splits that a built-in task or MNLI marks, and those of --ood-file.
    """
    marked = task.get("out_of_distribution", ())
    return tuple(split for split in dict.fromkeys(splits) if split in marked)


def read_reported(run: Run, name: str, given_task: str | None = None, *, has_answers: bool = True) -> ReportedRun:
    """A run of a directory; its scores and answers are empty where it is unfinished, or ``has_answers`` is False."""
    manifest = run.manifest if run.is_finished else {}
    config, recorded = (None, facts_of_recording(run)) if run.is_recorded else (run.config, {})
    scores = pd.DataFrame({"epoch": pd.Series(dtype=float), "split": pd.Series(dtype=str)})
    answers = scores.assign(id=[], label=[], prediction=[])
    is_known = run.is_finished and has_answers
    if is_known and (not run.is_recorded or run.has("scores.csv")):
        scores = run.scores
    if is_known and (not run.is_recorded or run.has("predictions.parquet")):
        table = run.predictions
        # Comparisons are of the last epoch, and of items that have a label.
        last = table[(table["epoch"] == table["epoch"].max()) & table["label"].notna()]
        answers = last[answer_columns(table)].reset_index(drop=True)
    return ReportedRun(name, config, manifest, scores, answers, given_task, run, recorded=recorded)


def answer_columns(predictions: pd.DataFrame) -> list[str]:
    """The columns of predictions that comparisons rest on."""
    optional = [name for name in ("word", CLUSTER) if name in predictions]
    return ["epoch", "split", "id", *optional, "label", "prediction"]


def judged_by(runs: Sequence[ReportedRun], score: str | None) -> list[ReportedRun]:
    """The runs with ``score`` as their headline score, those of each task that has it; None: as they are.

    A run in which it is undefined throughout goes with the others of its task. ValueError where no task has it, and for
    one that is better when it is lower.
    """
    if score is None:
        return list(runs)
    headlines_of_runs = [run.headlines for run in runs]
    tasks = {run.task for run, headlines in zip(runs, headlines_of_runs, strict=True) if score in headlines}
    if not tasks:
        choices = tuple(dict.fromkeys(name for headlines in headlines_of_runs for name in headlines))
        raise ValueError(f"no run can be judged by {score}: {unknown(str(score), 'score', choices)}")
    return [
        replace(run, manifest={**run.manifest, "task": {**run.part("task"), "score": score}})
        if run.task in tasks and score in run.scores
        else run
        for run in runs
    ]


def score_names(runs: Iterable[ReportedRun]) -> list[str]:
    """The scores of some runs in the order of every table, those by other loops' names last."""
    columns = list(dict.fromkeys(str(name) for run in runs for name in run.scores))
    return [*(name for name in SCORES if name in columns), *(name for name in columns if name not in SCORE_COLUMNS)]


def has_score(scores: pd.DataFrame, name: str) -> bool:
    """Whether a run's scores hold a value of that name anywhere."""
    return name in scores and bool(scores[name].notna().any())


@cache
def least_share(num_right: int, num_items: int) -> float:
    """The lower end of the exact interval of CHANCE_LEVEL."""
    from scipy.stats import binomtest

    return float(binomtest(num_right, num_items).proportion_ci(CHANCE_LEVEL, "exact").low)


def count_failed(runs: Sequence[ReportedRun]) -> int | None:
    """Runs that learned nothing that shows; None where that is not known of one of them."""
    failed = [run.is_failed for run in runs]
    return None if None in failed else sum(map(bool, failed))


def count_at_chance(runs: Iterable[ReportedRun]) -> int | None:
    """Runs that are not above the majority class by more than chance; None where that does not apply to any of them."""
    are_at_chance = [run.is_at_chance for run in runs if run.is_at_chance is not None]
    return sum(are_at_chance) if are_at_chance else None


def reported_first(splits: Iterable[str], reported: Collection[str]) -> list[str]:
    """Each split once in its order, those that are ``reported`` first: the order of splits in every table."""
    return sorted(dict.fromkeys(splits), key=lambda split: split not in reported)


STILL_FALLING = 0.02
"""Share by which a loss may fall in the last epoch of a run that counts as converged (ours)."""


def last_fall(scores: pd.DataFrame, split: str, head_training: str | None) -> float:
    """The share by which the loss on a split fell in the last epoch, or in as much of it as lies behind a score.

    ``scores``: a run's, with ``epoch``, ``split`` and ``loss``. NaN where there are no two losses to tell by, and of a
    head that was trained until such a loss stopped falling, as ``head_training`` says.
    """
    split_scores = scores[scores["split"] == split].sort_values("epoch")
    split_scores = split_scores[split_scores["epoch"] > split_scores["epoch"].max() - 1 - 1e-6].get(
        "loss", pd.Series(dtype=float)
    )
    losses = split_scores.dropna().to_numpy(np.float64)
    is_known = len(losses) > 1 and losses[0] > 0 and head_training != "early-stopping"
    return float(1 - losses[-1] / losses[0]) if is_known else np.nan


def last_score(run: ReportedRun, split: str, score: str | None = None, *, at: str = "last") -> float:
    """A run's score (default: the headline score) on a split at its ``last`` or ``first`` epoch; NaN when absent."""
    return float(run.end_scores[at].get(split, {}).get(score or run.score, np.nan))


def counted_score(run: ReportedRun, split: str, score: str | None = None) -> float:
    """:func:`last_score` as comparisons count it: 0 for an undefined correlation of one answer to every item.

    Such a run has found no correlation. Left out, it would flatter its condition, whose other runs alone would count;
    the correlation of Matthews is 0 there by the same convention. NaN stays where the labels are all equal too, and
    where the score is absent for another reason.
    """
    value = last_score(run, split, score)
    answers = run.answers.get(split)
    if not np.isnan(value) or (score or run.score) not in CORRELATIONS or answers is None:
        return value
    return 0.0 if answers["prediction"].nunique() <= 1 < answers["label"].nunique() else value


def item_scores(run: ReportedRun, split: str, score: str, ids: pd.Index) -> NDArray[np.float64] | None:
    """(items,) the score plus the influence of each answer on it, in the order of ``ids``; their mean is the score.

    Of an accuracy 1 where an answer is right and 0 elsewhere; all NaN where the score is undefined. None where the
    answers do not give the score: it is not one of ours, or another loop means something else by its name.
    """
    split_answers, value, score_and_influence = run.answers[split].reindex(ids), counted_score(run, split, score), None
    if score == "accuracy":
        right: NDArray[np.float64] = (
            (split_answers["label"] == split_answers["prediction"]).fillna(False).to_numpy(dtype=float)
        )
        # Of another loop what was scored counts; ours scores these answers. A NaN contradicts nothing.
        is_another = run.is_recorded and abs(right.mean() - value) > SAME_ROUNDED
        return None if is_another else right
    if np.isnan(value) or split_answers[["label", "prediction"]].isna().any(axis=None):
        return np.full(len(ids), np.nan) if np.isnan(value) else None
    names = spelled_alike(run.part("task").get("label_names") or ())
    if run.is_token_task and score in ENTITY_SCORES and len(names):
        labels, predictions = (names[split_answers[side].to_numpy(dtype=int)] for side in ("label", "prediction"))
        score_and_influence = influence_of_entities(score, labels, predictions, ids.get_level_values(0).to_numpy())
    elif not run.is_token_task and score in SCORES_OF_ITEMS:
        score_and_influence = SCORES_OF_ITEMS[score](
            *(split_answers[side].to_numpy(dtype=float) for side in ("label", "prediction"))
        )
    if score_and_influence is None:
        return None
    # Another loop may mean something else by the same name: what the answers do not give is not used.
    recomputed, influence = score_and_influence
    return value + influence if np.isclose(recomputed, value, rtol=0, atol=SAME_SCORE) else None
