"""Conditions: runs that differ in nothing but the seed, grouped by model and task, and paired for comparison.

A group is all runs of one model and one task; a condition is those of its runs that differ in nothing but the seed.
What a task is a study says itself: it may read the same data in two ways.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.comparison.intervals import by_cluster
from toolkit.comparison.runs import ReportedRun as ReportedRun
from toolkit.comparison.runs import canonical_name as canonical_name
from toolkit.comparison.runs import (
    count_at_chance,
    count_failed,
    counted_score,
    item_scores,
    judged_by,
    read_reported,
    reported_first,
)
from toolkit.config import MLM, RunConfig, fields_that
from toolkit.families import EMBEDDING_PARAMETERS, LORA
from toolkit.naming import distinct, names_of, select
from toolkit.snapshots.store import SMALL_FILES, Run, runs_of

SPOKEN = {
    "none": "full fine-tuning",
    "embeddings": "embeddings frozen",
    "backbone": "feature extraction",
    LORA: "LoRA",
}
"""Regime label to the words for it, where the field has words."""

Labels = Mapping[str, str]
"""Name of a run directory to the label of its condition."""

_SIZE_SETTING = "max_train_examples"
LOOP, PROVEN = "training_loop", "frozen"
"""Settings of runs of another loop: which one, and what is proven frozen."""


@dataclass(frozen=True)
class Condition:
    """Runs of one group that differ in their seed only."""

    label: str
    runs: tuple[ReportedRun, ...]
    base: str
    """The label without the number of training examples; the same for all sizes of one condition."""

    @property
    def is_full(self) -> bool:
        """Whether nothing is frozen, training starts at the checkpoint, and model and labels are as they came.

        Of runs of another loop: whether nothing is proven frozen.
        """
        if self.runs[0].is_recorded:
            return self.runs[0].regime == "none"
        config = self.runs[0].config
        changed = config.head_epochs or config.reinject_positions or config.shuffle_labels or config.train_rows != "all"
        starts = config.init == config.positions == "checkpoint"
        return self.runs[0].regime == "none" and starts and not changed

    @property
    def is_feature_extraction(self) -> bool:
        return self.runs[0].regime == "backbone" and self.runs[0].setting("objective") != MLM

    @property
    def is_shuffled(self) -> bool:
        """Whether its runs learned shuffled labels."""
        return bool(self.runs[0].setting("shuffle_labels"))

    @property
    def size(self) -> int | None:
        """The number of training examples that its runs were asked for; None for all. Conditions are paired by it."""
        return _size_asked(self.runs[0])

    @property
    def num_train_examples(self) -> int | None:
        """Training examples of its runs (of the least, where removing near-duplicates left some fewer).

        To be read, not to be matched: :attr:`size` is the same for all conditions of one size.
        """
        return min((run.num_train_examples for run in self.runs if run.num_train_examples is not None), default=None)

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.runs]

    @property
    def num_failed(self) -> int | None:
        """Runs that are no better than the majority class, or whose headline score is undefined; None: not known."""
        return count_failed(self.runs)

    @property
    def num_at_chance(self) -> int | None:
        """Runs that are not above the majority class by more than chance; None in regression."""
        return count_at_chance(self.runs)

    def has(self, parameter: str) -> bool:
        """Whether the model has this embedding parameter."""
        # A word table of which only new rows are trained moves without any adapter, so that its hash decides nothing.
        return all(parameter in run.parameters for run in self.runs)

    @property
    def is_tied(self) -> bool:
        """Whether its word table is the output layer too, by which any row may get a gradient."""
        return "word_embeddings" in (self.runs[0].part("model").get("tied") or ())

    @property
    def adapts_embeddings(self) -> bool:
        """Whether adapters train any of its tables, of which all rows then share a factor."""
        run = self.runs[0]
        whole_parameters = [
            name for name in run.parameters if name != "word_embeddings" or run.setting("train_rows") == "all"
        ]
        return run.setting("lora") is not None and not all(map(self.is_proven_frozen, whole_parameters))

    def is_proven_frozen(self, parameter: str) -> bool:
        """Whether every run's manifest holds equal hashes of the parameter before and after training."""
        return all(run.frozen.get(parameter, False) for run in self.runs)


@dataclass(frozen=True)
class Group:
    """All conditions of one model and one task: only these are compared with each other."""

    title: str
    conditions: tuple[Condition, ...]

    @property
    def runs(self) -> tuple[ReportedRun, ...]:
        return tuple(run for condition in self.conditions for run in condition.runs)


Runs = str | Sequence[Run | str | Path | Group]
"""Runs or paths of their directories, or a pattern of these such as ``"runs/*"``; or groups that :func:`arrange` made,
which have their labels already."""


def led_by(group: Group, condition: Condition) -> dict[str, Any]:
    """The leading columns of a table's record of one condition."""
    lead = {
        "group": group.title,
        "model": condition.runs[0].model,
        "task": condition.runs[0].task,
        "condition": condition.label,
    }
    return lead | {"base": condition.base, "size": condition.size, "num_train_examples": condition.num_train_examples}


def of_largest_size(group: Group) -> Group:
    """The group with its conditions of the most training examples alone: pages show the drift of these."""
    greatest = max((condition.size or float("inf")) for condition in group.conditions)
    return Group(
        group.title, tuple(condition for condition in group.conditions if (condition.size or float("inf")) == greatest)
    )


def arrange(
    runs: Runs, labels: Labels | None = None, tasks: Labels | None = None, score: str | None = None
) -> tuple[Group, ...]:
    """Open runs and sort them into groups and conditions; groups that are arranged already stay as they are.

    Without ``labels`` a condition is named after its regime and what else varies. With them (run directory name to
    label) the runs of one label in one group must agree in all settings but the seed and the number of training
    examples. ``tasks``: run directory name to what its task is called, by default what its data are called; ``score``:
    as in :func:`toolkit.compare`. ValueError for no runs, one that is not in a list, an unfinished one, the same one
    twice, one without a label, or a label for other settings, and for a run whose scores or answers have changed since
    it finished.
    """
    groups = [item for item in runs if isinstance(item, Group)] if isinstance(runs, Sequence) else []
    if groups:
        return tuple(groups)
    opened = runs_of(runs)  # type: ignore[arg-type]
    if not opened:
        raise ValueError("no runs to report on: pass at least one run directory")
    for run in opened:
        if not run.is_finished:
            raise ValueError(
                f"{run.path.resolve().name} is unfinished (no manifest.json): run it again, or leave it out"
            )
        # Numbers that were edited since must not enter a comparison.
        run.check(*SMALL_FILES)
    names, tasks = names_of(run.path for run in opened), tasks or {}
    reported = [
        read_reported(opened_run, name, tasks.get(opened_run.path.resolve().name))
        for opened_run, name in zip(opened, names, strict=True)
    ]
    groups = list(arrange_reported(judged_by(reported, score), labels))
    _check_trainings(opened)
    return tuple(groups)


def _check_trainings(runs: Sequence[Run]) -> None:
    """ValueError where two runs are of one training, as a copy of a folder is: it would count as two seeds."""
    in_order = sorted(runs, key=lambda run: run.training)  # the beginning of a training comes right before it
    for first, second in pairwise(in_order):
        if second.training[: len(first.training)] == first.training:
            names = " and ".join(str(run.path) for run in (first, second))
            raise ValueError(f"{names} are of one training, which counts once: pass one of them")


def arrange_reported(reported: Sequence[ReportedRun], labels: Labels | None = None) -> tuple[Group, ...]:
    """:func:`arrange` of runs that are read already, from run directories or from a report's evidence.

    Runs of one source (model, task and data, see :func:`_sources`) are one group.
    """
    by_source: dict[tuple[object, ...], list[ReportedRun]] = {}
    for run, source in zip(reported, _sources(reported), strict=True):
        by_source.setdefault(tuple(source.values()), []).append(run)
    titles = distinct(f"{members[0].model} on {members[0].task}" for members in by_source.values())
    conditions_of_groups = (
        _conditions(runs) if labels is None else _labelled_conditions(runs, labels) for runs in by_source.values()
    )
    return tuple(Group(title, conditions) for title, conditions in zip(titles, conditions_of_groups, strict=True))


Source = dict[str, object]


def _sources(runs: Sequence[ReportedRun]) -> list[Source]:
    """The source of each run: its model, task and data, by name and, where it is known, by the hash of what they hold.

    A fact that a run lacks (of a built-in task, say) is that of the runs it matches otherwise, where all of these
    agree.
    """
    sources: list[Source] = []
    # A recording knows a folder by its last part.
    checkpoint_by_name = {Path(run.checkpoint).name: run.checkpoint for run in runs if not run.is_recorded}
    for run in runs:
        hashes, model = run.data_sha256, checkpoint_by_name.get(run.checkpoint, run.checkpoint)
        train_file, validation_file = run.setting("train_file"), run.setting("validation_file")
        hub_digests = [digest for split, digest in hashes.items() if split.startswith("validation") and not train_file]
        source: Source = (
            {"model": model, "weights": run.weights, "task": run.task}
            | {name: run.setting(name) for name in ("dataset", "dataset_config")}
            | {name: run.recorded.get(name) for name in ("rows", "width")}
        )
        source["train_data"] = hashes.get("train") or train_file
        source["validation_data"] = " ".join(hub_digests) or hashes.get("validation") or validation_file
        sources.append(source)
    data_facts = "task", "dataset", "dataset_config"
    model_facts = [(name, ("model",)) for name in ("weights", "rows", "width")]
    for name, match_on in (*model_facts, ("train_data", data_facts), ("validation_data", data_facts)):
        known_values: dict[tuple[object, ...], set[object]] = {}
        for source in sources:
            known_values.setdefault(tuple(source[part] for part in match_on), set()).add(source[name])
        for source in sources:
            candidates = known_values[tuple(source[part] for part in match_on)] - {None}
            if source[name] is None and len(candidates) == 1:
                (source[name],) = candidates
    return sources


def _conditions(members: list[ReportedRun]) -> tuple[Condition, ...]:
    """Conditions in the order: full, LP-FT, embeddings frozen, other regimes by name, feature extraction, random init.

    A run of another loop is in none with one of ours: what the two have in common is not known.
    """
    runs_by_key: dict[tuple[str, str, tuple[tuple[str, object], ...]], list[ReportedRun]] = {}
    for run in members:
        name_of_condition = run.condition or _name_of_condition(run)
        runs_by_key.setdefault((run.regime, name_of_condition, tuple(settings(run).items())), []).append(run)
    keys = sorted(runs_by_key, key=lambda key: _sort_key(key[0], dict(key[2])))
    sizes = {_size_asked(run) for run in members}
    conditions = []
    for key in keys:
        _, name_of_condition, condition_settings = key
        # A setting is named in the label only where conditions of the same name differ in it.
        label_parts = [name_of_condition]
        namesakes = [dict(values) for _, name, values in keys if name == name_of_condition]
        comparable = [candidate for candidate in namesakes if (LOOP in candidate) == (LOOP in dict(condition_settings))]
        for name, value in condition_settings:
            compared = [dict(values) for *_, values in keys] if name == LOOP else comparable
            if name != _SIZE_SETTING and value is not None and any(other.get(name) != value for other in compared):
                spelled = name.replace("_", " ")
                label_parts.append(f"{spelled} {value}" if not isinstance(value, bool) else spelled if value else "")
        conditions.append(_condition(", ".join(filter(None, label_parts)), runs_by_key[key], has_size=len(sizes) > 1))
    return tuple(conditions)


def _labelled_conditions(members: list[ReportedRun], labels: Labels) -> tuple[Condition, ...]:
    """Conditions in the order in which their labels first appear, the smallest size first."""
    runs_by_label: dict[tuple[str, int | None], list[ReportedRun]] = {}
    first_by_label: dict[str, ReportedRun] = {}
    for run in members:
        if run.directory_name not in labels:
            raise ValueError(
                f"no label for {run.directory_name}: labels must name the condition of every run, or be left out"
            )
        label = labels[run.directory_name]
        runs_by_label.setdefault((label, _size_asked(run)), []).append(run)
        first = first_by_label.setdefault(label, run)
        # The seed is no setting, and sizes are conditions of their own: all else has to agree.
        expected, actual = ({**settings(compared), "freeze": compared.regime} for compared in (first, run))
        if names := [LOOP] if (LOOP in expected) != (LOOP in actual) else _differing_names(expected, actual):
            differs = ", ".join(
                f"{name.replace('_', ' ')} {expected.get(name)} and {actual.get(name)}" for name in names
            )
            raise ValueError(
                f"{first.name} and {run.name} both have the label {label!r} and differ in {differs}: "
                "runs of one label may differ in the seed only"
            )
    order = list(dict.fromkeys(labels.values()))
    keys = sorted(runs_by_label, key=lambda key: (order.index(key[0]), key[1] or math.inf))
    has_size = len({size for _, size in keys}) > 1
    return tuple(_condition(label, runs_by_label[label, size], has_size=has_size) for label, size in keys)


def _condition(base: str, members: list[ReportedRun], *, has_size: bool) -> Condition:
    """A condition with its runs in the order of their seeds, where these are known; ValueError for one run twice."""
    runs = tuple(sorted(members, key=lambda run: (run.seed is None, run.seed or 0, run.name)))
    for first, second in pairwise(runs):
        if first.seed == second.seed is not None:
            remedy = ", or record runs with a seed= or condition= of their own" if first.is_recorded else ""
            identity = "config and seed" if not first.is_recorded else f"condition {base!r} and seed {first.seed}"
            raise ValueError(f"{first.name} and {second.name} are the same run ({identity}): pass one of them{remedy}")
    size = _size_asked(runs[0])
    size_text = "all training examples" if size is None else f"{size:,} training examples"
    return Condition(f"{base}, {size_text}" if has_size else base, runs, base)


def _size_asked(run: ReportedRun) -> int | None:
    """The number of training examples that a run was asked for; None for all of them, and where it is not known."""
    size: int | None = run.setting(_SIZE_SETTING)
    return size


def _name_of_condition(run: ReportedRun) -> str:
    """The name of a run's condition: its regime or adapters, then its start, held word rows and shuffled labels.

    Of a run of another loop the regime or the adapters alone are known.
    """
    regime = run.regime
    if run.is_recorded:
        adapted = ", ".join(run.recorded.get("adapters", ()))
        return f"adapters on {adapted}" if adapted else SPOKEN.get(regime, f"{regime} (frozen)")
    config = run.config
    name = config.adapters or SPOKEN.get(regime, f"{regime} (frozen)")
    if regime == "backbone" and config.objective == MLM:
        name = "head alone"  # the checkpoint's own, on states that are made anew in each step
    if config.head_epochs:  # LP-FT: linear probing, then fine-tuning (Kumar et al. 2022)
        stage = f"head first, {config.head_epochs} epoch{'s' if config.head_epochs > 1 else ''}"
        name = f"LP-FT: {stage}" if regime == "none" else f"{name}, {stage}"
    if config.init == "random":
        is_plain = regime == "none" and not (config.adapters or config.head_epochs)
        name = "random init" if is_plain else f"{name}, random init"
    if config.train_rows == "new" and not config.lora:
        name += ", old word rows held"
    return f"{name}, {shuffling(config)}" if config.shuffle_labels else name


def shuffling(config: RunConfig) -> str:
    """The name of a condition's shuffled labels: another permutation per seed, or one for all seeds."""
    seed = config.label_seed
    return "shuffled labels (another permutation per seed)" if seed is None else f"shuffled labels (label seed {seed})"


def _sort_key(regime: str, values: Mapping[str, Any]) -> tuple[object, ...]:
    """The key that conditions are sorted by: numbers as numbers (1e-05 before 0.0001), before what is none."""
    rank = {"none": 1 if values.get("head_epochs") else 0, "embeddings": 2, "backbone": 4}.get(regime, 3)
    ranked = []
    for name, value in values.items():
        if name != _SIZE_SETTING:
            is_number = isinstance(value, int | float)
            ranked.append((name, not is_number, float(value) if is_number else 0.0, "" if is_number else str(value)))
    return (
        values.get("init") == "random",
        LOOP in values,
        rank,
        regime,
        ranked,
        values.get(_SIZE_SETTING) or math.inf,
    )


def without_numbers() -> set[str]:
    """Fields that no embedding depends on, up to rounding."""
    return {field.name for field in fields(RunConfig)} - {*fields_that(affect="numbers")}


def settings(run: ReportedRun) -> dict[str, object]:
    """Every field that makes two runs of one model, task and regime different, except the seed.

    A test file is its split's name and the start of its sha256, where that is known; that a split is out of
    distribution changes no number. Of a run of another loop: its condition, what is proven frozen, and the arguments
    that it is known to have had.
    """
    if run.is_recorded:
        arguments = {name: value for name, value in run.recorded["arguments"].items() if value is not None}
        simple = {name: value if isinstance(value, int | float) else str(value) for name, value in arguments.items()}
        loop = {LOOP: run.recorded.get("recorded_by") or "another loop", PROVEN: run.regime}
        return {**loop, **simple} if run.condition else {LOOP: loop[LOOP], **simple}
    # Where things go sets no runs apart; data and model are the group's, the regime stands beside these settings.
    left_out = (*fields_that(affect="place", say=("data", "model")), "freeze", "seed", "ood_file")
    values = {name: value for name, value in asdict(run.config).items() if name not in left_out}
    test_files = []
    for entry in (*run.config.test_file, *run.config.ood_file):
        split, _, _ = entry.partition("=")
        sha256 = run.data_sha256.get(split)
        test_files.append(f"{split} {sha256[:8]}" if sha256 else entry)
    tokens_sha256 = run.part("added_tokens").get("sha256")
    tokens = "none"
    if run.config.add_tokens and tokens_sha256:
        tokens = f"{Path(run.config.add_tokens).name} {tokens_sha256[:8]}"
    return values | {"test_file": ", ".join(sorted(test_files)) or "none", "add_tokens": tokens}


def _differing_names(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """The settings in which two runs of one kind differ, the number of training examples apart."""
    return [name for name in {**first, **second} if name != _SIZE_SETTING and first.get(name) != second.get(name)]


def differences_beside_seed(first: ReportedRun, second: ReportedRun) -> list[str]:
    """What two runs differ in, the seed apart, that bears on their embeddings: model, data, regime or settings.

    Weights and data only where both runs know them: an unfinished one has no hashes yet.
    """
    if first.is_recorded != second.is_recorded:
        return [LOOP]
    first_facts, second_facts = (
        _sources([run])[0] | {"condition": run.condition, "freeze": run.regime} | settings(run)
        for run in (first, second)
    )
    ignored = {*without_numbers(), *(() if first_facts["weights"] and second_facts["weights"] else ("weights",))}
    if first.is_recorded and not (first.manifest and second.manifest):  # what is frozen is known at the end
        ignored |= {"freeze", PROVEN}
    if bool(first.data_sha256) != bool(second.data_sha256):
        ignored |= {"train_data", "validation_data"}
    return [
        name
        for name in {**first_facts, **second_facts}
        if name not in ignored and first_facts.get(name) != second_facts.get(name)
    ]


def differing_settings(first: Condition, second: Condition) -> list[str]:
    """The settings, the regime apart, that differ between two conditions and have an effect in both."""
    first_settings, second_settings = settings(first.runs[0]), settings(second.runs[0])
    if first.runs[0].is_recorded or second.runs[0].is_recorded:
        names = (
            [LOOP]
            if (LOOP in first_settings) != (LOOP in second_settings)
            else _differing_names(first_settings, second_settings)
        )
        return [name for name in names if name != PROVEN]
    without_effect = set[str]()
    for condition in (first, second):
        frozen = {name for name in EMBEDDING_PARAMETERS if condition.is_proven_frozen(name)}
        without_effect |= {"learning_rate", "layer_decay"} if condition.is_feature_extraction else set()
        without_effect |= {"train_rows"} if "word_embeddings" in frozen else set()
        without_effect |= {"embedding_learning_rate"} if frozen and frozen >= {*condition.runs[0].parameters} else set()
    without_effect |= {"lora", "lora_rank", "lora_alpha"} if first.runs[0].regime != second.runs[0].regime else set()
    # Early stopping is a way to train a head alone: beside another regime it goes without saying.
    without_effect |= {"head_training"} if first.is_feature_extraction != second.is_feature_extraction else set()
    names = [
        field.name for field in fields(RunConfig) if field.name in first_settings and field.name not in without_effect
    ]
    return [name for name in names if first_settings[name] != second_settings[name]]


Pairs = Sequence[tuple[str, str]]
"""Labels of the conditions to be compared: the first minus the second."""

NOT_COMPARED = "not compared"
OTHER_ITEMS = f"{NOT_COMPARED}: other items or labels"
NO_SEED = f"{NOT_COMPARED}: no seed in common"
NO_SPLIT = f"{NOT_COMPARED}: no labelled split in common"


@dataclass(frozen=True)
class ConditionPair:
    """Two conditions of one group and size, first minus second."""

    first: Condition
    second: Condition

    @property
    def has_seeds(self) -> bool:
        """Whether the seed of every run is known."""
        return all(run.seed is not None for condition in (self.first, self.second) for run in condition.runs)

    @property
    def seeds(self) -> list[int | None]:
        """Of each pair of runs the seed of the first."""
        return [run.seed for run, _ in self.runs]

    @cached_property
    def runs(self) -> list[tuple[ReportedRun, ReportedRun]]:
        """Pairs of runs with the same seed, one of each condition, in order.

        Where a seed is not known, in the order of the conditions: replicates are independent, so that any pairing will
        do.
        """
        if not self.has_seeds:
            return list(zip(self.first.runs, self.second.runs, strict=False))
        first_by_seed, second_by_seed = (
            {run.seed: run for run in condition.runs} for condition in (self.first, self.second)
        )
        return [(run, second_by_seed[seed]) for seed, run in first_by_seed.items() if seed in second_by_seed]

    @property
    def splits(self) -> list[str]:
        """Labelled splits of every run, the reported one first."""
        runs = [run for pair in self.runs for run in pair]
        common = [name for name in runs[0].splits if all(name in run.splits for run in runs)] if runs else []
        return reported_first(common, [run.reported_split for run in runs[:1]])

    @property
    def is_failed(self) -> NDArray[np.bool_]:
        """(seeds,) whether either run of the pair failed."""
        return np.array(
            [bool(first_run.is_failed or second_run.is_failed) for first_run, second_run in self.runs], dtype=bool
        )

    def note_on_items(self, split: str) -> str:
        """Empty when the runs of each seed have the same items with the same labels; else what is wrong."""
        return (
            ""
            if all(have_same_items(first_run, second_run, split) for first_run, second_run in self.runs)
            else OTHER_ITEMS
        )

    def has_answers(self, split: str) -> bool:
        """Whether the answers of every run to a split are at hand."""
        return all(split in run.answers for runs in self.runs for run in runs)

    def unit_scores(self, split: str, score: str, *, in_clusters: bool = True) -> NDArray[np.float64] | None:
        """(2, seeds, units) the share of each unit in the score, of the first and the second; the mean is the score.

        Units are items, or, ``in_clusters``, the clusters that they come in. Of items an accuracy has 1 where the
        answer is right and 0 elsewhere, another score what :func:`item_scores` gives; all NaN where it is undefined.
        None when seeds have other items (a split that was drawn with the seed), so that items are no common factor,
        without the answers, and where these do not give the score.
        """
        reference = self.runs[0][0]
        if not self.has_answers(split) or not all(
            have_same_items(reference, first_run, split) for first_run, _ in self.runs
        ):
            return None
        ids = reference.answers[split].index
        first_scores = [item_scores(run, split, score, ids) for run, _ in self.runs]
        second_scores = [item_scores(run, split, score, ids) for _, run in self.runs]
        if any(values is None for values in (*first_scores, *second_scores)):
            return None
        scores = np.array([first_scores, second_scores], np.float64)
        clusters = clusters_of([run for runs in self.runs for run in runs], split) if in_clusters else None
        return scores if clusters is None else by_cluster(scores, clusters.reindex(ids))

    def scores(
        self, split: str, score: str, read: Callable[[ReportedRun, str, str], float] = counted_score
    ) -> NDArray[np.float64]:
        """(2, seeds) score of the first and of the second at their last epochs, as ``read`` gives them."""
        return np.array([[read(runs[side], split, score) for runs in self.runs] for side in (0, 1)])


def clusters_of(runs: Iterable[ReportedRun], split: str) -> "pd.Series | None":
    """The cluster of each item of a split that all runs have, from the first of them that knows it."""
    return next((clusters for run in runs if (clusters := run.clusters(split)) is not None), None)


def have_same_items(one: ReportedRun, other: ReportedRun, split: str) -> bool:
    """Whether two runs answered the same items of a split: ids are unique, equal as sets, and carry the same labels.

    Rows of another file can have the same numbers and labels: where both hashes of it are known, they must be equal.
    Of runs without answers no more than the number of items can tell.
    """
    hashes = {run.data_sha256.get(split) for run in (one, other)} - {None}
    if len(hashes) > 1:
        return False
    if split not in one.answers or split not in other.answers:
        return len({number for number in (one.num_items(split), other.num_items(split)) if number == number}) < 2
    first_answers, second_answers = one.answers[split], other.answers[split]
    if not (first_answers.index.is_unique and second_answers.index.is_unique) or len(first_answers) != len(
        second_answers
    ):
        return False
    if not first_answers.index.isin(second_answers.index).all():
        return False
    return bool((first_answers["label"] == second_answers.loc[first_answers.index, "label"]).all())


def pair_conditions(group: Group, pairs: Pairs | None = None) -> list[ConditionPair]:
    """Pairs of conditions of one size.

    ``pairs`` names labels, with or without the size; a pair of which the group lacks a condition is left out. By
    default full fine-tuning stands against each other condition; without it, or with nothing else, all pairs.
    """
    same_size_pairs = [
        ConditionPair(first_condition, second_condition)
        for first_condition, second_condition in combinations(group.conditions, 2)
        if first_condition.size == second_condition.size
    ]
    if pairs is None:
        with_one_full = [pair for pair in same_size_pairs if pair.first.is_full != pair.second.is_full]
        full_first = [pair if pair.first.is_full else ConditionPair(pair.second, pair.first) for pair in with_one_full]
        return full_first or same_size_pairs
    both_ways = [*same_size_pairs, *(ConditionPair(pair.second, pair.first) for pair in same_size_pairs)]
    return [
        pair
        for first_label, second_label in pairs
        for pair in both_ways
        if _is_named(pair.first, first_label) and _is_named(pair.second, second_label)
    ]


def _is_named(condition: Condition, label: str) -> bool:
    """Whether a label, with or without the size, is that of a condition."""
    return label in (condition.label, condition.base)


def check_pairs(groups: Sequence[Group], pairs: Pairs | None) -> None:
    """ValueError for a label that is no condition's in any group."""
    known_labels = dict.fromkeys(
        name for group in groups for condition in group.conditions for name in (condition.base, condition.label)
    )
    select(known_labels, (label for pair in pairs or () for label in pair), "condition")


def noise_floor(pair: ConditionPair, split: str, score: str) -> float:
    """Mean |difference| of a score between two seeds of one condition, over all such pairs of both; a share.

    NaN when neither condition has two seeds. What a difference between conditions must be compared with before anything
    else: it is what changing nothing but the seed does. Ours.
    """
    gaps = []
    for condition in (pair.first, pair.second):
        values = [counted_score(run, split, score) for run in condition.runs]
        gaps += [abs(first - second) for first, second in combinations(values, 2)]
    return float(np.nanmean(gaps)) if not np.isnan(gaps).all() else np.nan
