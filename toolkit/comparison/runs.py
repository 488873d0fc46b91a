"""One run as comparisons see it: config, manifest, scores and last answers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd

from toolkit.config import RunConfig
from toolkit.families import EMBEDDING_PARAMETERS, FAMILIES, LORA
from toolkit.naming import shorten, shown_path, unknown
from toolkit.snapshots.formats import HEADLINES
from toolkit.snapshots.store import Run

CORRELATIONS = ("matthews", "pearson", "spearman")
"""Scores that are undefined, or 0 by convention, where every item gets the same answer."""

CHANCE_LEVEL = 0.95
"""Of the interval of an accuracy that decides whether it is above the majority class's."""


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """What every table says of one run: plain data, from its directory (:func:`read_reported`) or from evidence."""

    name: str
    known_config: RunConfig
    """Its config as it was found, with the paths of its machine where it comes from a directory."""
    manifest: Mapping[str, Any]
    """Its manifest, or as much of it as is kept; empty for an unfinished run."""
    scores: pd.DataFrame
    predictions: pd.DataFrame
    """Its answers to the labelled splits at its last epoch: epoch, split, id (and word), label, prediction."""
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

    @property
    def run(self) -> Run:
        """Its directory; ValueError where there is none to measure."""
        if self.directory is None:
            raise ValueError(f"{self.name} is known by a report's evidence alone: it has no directory to measure")
        return self.directory

    @property
    def directory_name(self) -> str:
        """What labels know it by."""
        return self.name if self.directory is None else self.directory.path.resolve().name

    @cached_property
    def config(self) -> RunConfig:
        """The config with absolute paths shortened: a report must not tell where somebody keeps their files."""
        return with_paths(self.known_config, shown_path)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The embedding parameters that its model has."""
        return tuple(self.run.trajectory.parameters) if self.known_ends is None else self.known_ends[0]

    @property
    def last_epoch(self) -> float:
        return self.run.trajectory.snapshots[-1].epoch if self.known_ends is None else self.known_ends[1]

    @property
    def model(self) -> str:
        return str(shorten(self.part("model").get("name") or self.config.model))

    @property
    def task(self) -> str:
        return str(self.given_task or self.part("task").get("name") or self.config.task)

    @property
    def weights(self) -> str | None:
        """What the checkpoint is known by beside its name: the sha256 of its weights or the hub's commit.

        None where that was not kept, and of a start at random, which read no weights.
        """
        model = self.part("model")
        return None if self.config.init == "random" else model.get("weights_sha256") or model.get("revision")

    @property
    def data_sha256(self) -> dict[str, str]:
        """Role (train, validation, a test split) to the sha256 of its data file; empty without files."""
        return self.part("task").get("data_sha256") or {}

    @property
    def linear_probe(self) -> dict[str, dict[str, float | None]]:
        """Split to the scores of the best linear head on the frozen features; empty where none was looked for."""
        return self.part("linear_probe")

    @property
    def floors(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Floor to split to the scores of what needs no fine-tuning; empty under shuffled labels."""
        return self.part("floors")

    @property
    def regime(self) -> str:
        return str(self.part("regime").get("label") or (LORA if self.config.lora else self.config.freeze))

    @cached_property
    def end_scores(self) -> dict[str, dict[str, dict[str, Any]]]:
        """``first`` and ``last`` to split to the line of its scores at that epoch: comparisons look them up a lot."""
        epochs = self.scores["epoch"]
        ends = {"first": epochs.min(), "last": epochs.max()}
        lines = {name: self.scores[epochs == epoch].to_dict("records") for name, epoch in ends.items()}
        return {name: {line["split"]: line for line in own} for name, own in lines.items()}

    @property
    def is_regression(self) -> bool:
        return self.part("task").get("kind") == "regression" or "pearson" in self.scores

    @property
    def is_token_task(self) -> bool:
        return self.part("task").get("kind") == "tokens" or "word" in self.predictions

    @property
    def score(self) -> str:
        """The headline score of the task."""
        return str(self.part("task").get("score") or ("pearson" if self.is_regression else "accuracy"))

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
        """The training examples that the manifest counted, else the limit of the config, else None."""
        splits = self.part("task").get("splits") or {}
        counted = (splits.get("train") or {}).get("num_examples")
        return int(counted) if counted is not None else self.config.max_train_examples

    def part(self, key: str) -> dict[str, Any]:
        """A section of the manifest, empty when it is absent."""
        value = self.manifest.get(key)
        return value if isinstance(value, dict) else {}

    def lead(self) -> dict[str, Any]:
        """The leading columns of every table of several runs."""
        config = self.config
        return {"run": self.name, "model": self.model, "task": self.task, "regime": self.regime, "seed": config.seed}

    @cached_property
    def frozen(self) -> dict[str, bool]:
        """Every frozen parameter, by canonical name where it has one: are its hashes before and after equal?"""
        parameters: dict[str, dict[str, str]] = self.part("frozen").get("parameters") or {}
        return {canonical_name(k): v.get("before") == v.get("after") is not None for k, v in parameters.items()}

    @cached_property
    def answers(self) -> dict[str, pd.DataFrame]:
        """Labelled split to its predictions at the last epoch, by id (and word): columns label and prediction."""
        items = ["id", "word"] if "word" in self.predictions else "id"
        parts = self.predictions.groupby("split", sort=False, observed=True)
        return {str(split): part.set_index(items) for split, part in parts}

    def holds_one_class(self, split: str) -> bool:
        """Whether every item of a labelled split has one label, so that an accuracy there tells nothing of learning."""
        return not self.is_regression and self.answers[split]["label"].nunique() == 1

    @cached_property
    def is_failed(self) -> bool:
        """Whether it learned nothing that the reported split shows.

        That is an accuracy no better than always giving the most frequent label of that split, or, in any task, a
        headline score that is undefined although the labels differ: a correlation of one answer to every item. False
        where the split has no labels, or one for all items: nothing shows there what was learned.
        """
        own = self.answers.get(self.reported_split)
        if own is None:
            return False
        is_undefined = bool(np.isnan(last_score(self, self.reported_split))) and own["label"].nunique() > 1
        if is_undefined or not self._shows_learning:
            return is_undefined
        num_right, num_majority, _ = self.counts_of_right(self.reported_split)
        return num_right <= num_majority

    @cached_property
    def is_at_chance(self) -> bool | None:
        """Whether its accuracy on the reported split could be the majority class's with other items.

        The lower end of the exact 95 % interval of a binomial share (Clopper & Pearson 1934) is at or below the rate of
        the most frequent label, which is taken as known. So is every run of a classification that failed, and one that
        tosses coins, which fails in half of the cases only. None, for not applicable, in regression, in a token task,
        whose words are no independent items, without labels and with one for all items.
        """
        if not self._shows_learning or self.is_token_task:
            return None
        num_right, num_majority, num_items = self.counts_of_right(self.reported_split)
        return least_share(num_right, num_items) <= num_majority / num_items

    def counts_of_right(self, split: str) -> tuple[int, int, int]:
        """Of a labelled split of a classification: right answers, items of the most frequent label, items."""
        own = self.answers[split]
        return int((own["label"] == own["prediction"]).sum()), int(own["label"].value_counts().max()), len(own)

    @property
    def _shows_learning(self) -> bool:
        """Whether right answers on the reported split could show what was learned.

        Not in regression, nor where all items have one label, of which every run that says so is right throughout.
        """
        split = self.reported_split
        return not self.is_regression and split in self.answers and not self.holds_one_class(split)


def with_paths(config: RunConfig, show: Callable[[str], str]) -> RunConfig:
    """A config with its absolute paths, but that of the output, as ``show`` gives them."""
    shown: dict[str, Any] = {
        k: shorten(getattr(config, k), show) for k in ("model", "train_file", "validation_file", "add_tokens")
    }
    for flag in ("test_file", "ood_file"):
        pairs = (entry.partition("=") for entry in getattr(config, flag))
        shown[flag] = tuple(f"{name}={shorten(path, show)}" for name, _, path in pairs)
    return replace(config, **shown)


def splits_out_of_distribution(task: Mapping[str, Any], splits: Iterable[str]) -> tuple[str, ...]:
    """Which ``splits`` are out of the distribution of the training data, by the manifest's section ``task``.

    Its entry ``out_of_distribution`` says so: the splits that a built-in task or MNLI marks, and those of --ood-file.
    """
    known = task.get("out_of_distribution", ())
    return tuple(split for split in dict.fromkeys(splits) if split in known)


def read_reported(run: Run, name: str, given_task: str | None = None, *, has_answers: bool = True) -> ReportedRun:
    """A run of a directory; its scores and answers are empty where it is unfinished, or ``has_answers`` is False."""
    manifest = run.manifest if run.is_finished else {}
    if not (run.is_finished and has_answers):
        nothing = pd.DataFrame({"epoch": pd.Series(dtype=float), "split": pd.Series(dtype=str)})
        return ReportedRun(name, run.config, manifest, nothing, nothing.assign(label=[]), given_task, run)
    table = run.predictions
    last = table[(table["epoch"] == table["epoch"].max()) & table["label"].notna()]
    items = ["id", "word"] if "word" in table else ["id"]
    answers = last[["epoch", "split", *items, "label", "prediction"]].reset_index(drop=True)
    return ReportedRun(name, run.config, manifest, run.scores, answers, given_task, run)


def judged_by(runs: Sequence[ReportedRun], score: str | None) -> list[ReportedRun]:
    """The runs with ``score`` as their headline score, those of each task that has it; None: as they are.

    A run in which it is undefined throughout goes with the others of its task. ValueError where no task has it, and for
    one that is better when it is lower.
    """
    if score is None:
        return list(runs)
    known = [tuple(name for name in HEADLINES if has_score(run.scores, name)) for run in runs]
    tasks = {run.task for run, own in zip(runs, known, strict=True) if score in own}
    if not tasks:
        choices = tuple(dict.fromkeys(name for own in known for name in own))
        raise ValueError(f"no run can be judged by {score}: {unknown(str(score), 'score', choices)}")
    return [
        replace(run, manifest={**run.manifest, "task": {**run.part("task"), "score": score}})
        if run.task in tasks and score in run.scores
        else run
        for run in runs
    ]


def has_score(scores: pd.DataFrame, name: str) -> bool:
    """Whether a run's scores hold a value of that name anywhere."""
    return name in scores and bool(scores[name].notna().any())


@cache
def least_share(num_right: int, num_items: int) -> float:
    """The lower end of the exact interval of CHANCE_LEVEL."""
    from scipy.stats import binomtest

    return float(binomtest(num_right, num_items).proportion_ci(CHANCE_LEVEL, "exact").low)


def count_at_chance(runs: Iterable[ReportedRun]) -> int | None:
    """Runs that are not above the majority class by more than chance; None where that does not apply to any of them."""
    known = [run.is_at_chance for run in runs if run.is_at_chance is not None]
    return sum(known) if known else None


def reported_first(splits: Iterable[str], reported: Collection[str]) -> list[str]:
    """Each split once in its order, those that are ``reported`` first: the order of splits in every table."""
    return sorted(dict.fromkeys(splits), key=lambda split: split not in reported)


def last_score(run: ReportedRun, split: str, score: str | None = None, *, at: str = "last") -> float:
    """A run's score (default: the headline score) on a split at its ``last`` or ``first`` epoch; NaN when absent."""
    return float(run.end_scores[at].get(split, {}).get(score or run.score, np.nan))


def counted_score(run: ReportedRun, split: str, score: str | None = None) -> float:
    """:func:`last_score` as comparisons count it: 0 for an undefined correlation of one answer to every item.

    Such a run has found no correlation. Left out, it would flatter its arm, whose other runs alone would count; the
    correlation of Matthews is 0 there by the same convention. NaN stays where the labels are all equal too, and where
    the score is absent for another reason.
    """
    value, name, own = last_score(run, split, score), score or run.score, run.answers.get(split)
    if not np.isnan(value) or name not in CORRELATIONS or own is None:
        return value
    return 0.0 if own["prediction"].nunique() <= 1 < own["label"].nunique() else value


def canonical_name(name: str) -> str:
    """The canonical name of an embedding parameter that is named as in its model; any other name as it is."""
    if name in EMBEDDING_PARAMETERS:
        return name
    for family in FAMILIES.values():
        for canonical, native in family.embedding_parameters.items():
            if name == native or name.endswith("." + native):
                return canonical
    return name
