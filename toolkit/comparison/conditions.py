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
    counted_score,
    item_scores,
    judged_by,
    read_reported,
    reported_first,
)
from toolkit.config import MLM, RunConfig, fields_that
from toolkit.families import EMBEDDING_PARAMETERS, LORA
from toolkit.naming import distinct, names_of, unknown
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

_SIZE = "max_train_examples"
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
        return _size(self.runs[0])

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
    def num_failed(self) -> int:
        """Runs that are no better than the majority class, or whose headline score is undefined."""
        return sum(run.is_failed for run in self.runs)

    @property
    def num_at_chance(self) -> int | None:
        """Runs that are not above the majority class by more than chance; None in regression."""
        return count_at_chance(self.runs)

    def has(self, parameter: str) -> bool:
        """Whether the model has this embedding parameter."""
        return all(parameter in run.parameters for run in self.runs)

    @property
    def is_tied(self) -> bool:
        """Whether its word table is the output layer too, by which any row may get a gradient."""
        return "word_embeddings" in (self.runs[0].part("model").get("tied") or ())

    @property
    def adapts_embeddings(self) -> bool:
        """Whether adapters train any of its tables, of which all rows then share a factor."""
        run = self.runs[0]
        others = [name for name in run.parameters if name != "word_embeddings" or run.setting("train_rows") == "all"]
        return run.setting("lora") is not None and not all(map(self.is_proven_frozen, others))

    def is_proven_frozen(self, parameter: str) -> bool:
        """Whether every run's manifest holds equal hashes of the parameter before and after training."""
        return all(run.frozen.get(parameter, False) for run in self.runs)


@dataclass(frozen=True)
class Group:
    """All conditions of one model and one task: what may stand in one comparison."""

    title: str
    conditions: tuple[Condition, ...]

    @property
    def runs(self) -> tuple[ReportedRun, ...]:
        return tuple(run for condition in self.conditions for run in condition.runs)


Runs = Sequence[Run | str | Path | Group]
"""Runs or paths of their directories; or groups that :func:`arrange` made, which have their labels already."""


def led_by(group: Group, condition: Condition) -> dict[str, Any]:
    """What a line of a table about one condition begins with."""
    lead = {
        "group": group.title,
        "model": condition.runs[0].model,
        "task": condition.runs[0].task,
        "condition": condition.label,
    }
    return lead | {"base": condition.base, "size": condition.size, "num_train_examples": condition.num_train_examples}


def of_largest_size(group: Group) -> Group:
    """The conditions of the most training examples: drift is shown of these, data efficiency of all."""
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
    given = [each for each in runs if isinstance(each, Group)] if isinstance(runs, Sequence) else []
    if given:
        return tuple(given)
    opened = runs_of(runs)  # type: ignore[arg-type]
    if not opened:
        raise ValueError("no runs to report on: pass at least one run directory")
    for run in opened:
        if not run.is_finished:
            raise ValueError(
                f"{run.path.resolve().name} is unfinished (no manifest.json): run it again, or leave it out"
            )
        run.check(*SMALL_FILES)
    names, tasks = names_of(run.path for run in opened), tasks or {}
    read = [read_reported(r, name, tasks.get(r.path.resolve().name)) for r, name in zip(opened, names, strict=True)]
    return arrange_reported(judged_by(read, score), labels)


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
    """What each run was learned from: model, task and data; weights and data are known by what they hold.

    What is not known (of a built-in task) is as in the others, if these are of one kind.
    """
    found: list[Source] = []
    # A recording knows a folder by its last part.
    named = {Path(item.checkpoint).name: item.checkpoint for item in runs if not item.is_recorded}
    for item in runs:
        hashes, model = item.data_sha256, named.get(item.checkpoint, item.checkpoint)
        train_file, validation_file = item.setting("train_file"), item.setting("validation_file")
        of_hub = [own for split, own in hashes.items() if split.startswith("validation") and not train_file]
        source: Source = (
            {"model": model, "weights": item.weights, "task": item.task}
            | {name: item.setting(name) for name in ("dataset", "dataset_config")}
            | {name: item.recorded.get(name) for name in ("rows", "width")}
        )
        source["train_data"] = hashes.get("train") or train_file
        source["validation_data"] = " ".join(of_hub) or hashes.get("validation") or validation_file
        found.append(source)
    data = "task", "dataset", "dataset_config"
    of_model = [(name, ("model",)) for name in ("weights", "rows", "width")]
    for name, same in (*of_model, ("train_data", data), ("validation_data", data)):
        known: dict[tuple[object, ...], set[object]] = {}
        for source in found:
            known.setdefault(tuple(source[part] for part in same), set()).add(source[name])
        for source in found:
            others = known[tuple(source[part] for part in same)] - {None}
            if source[name] is None and len(others) == 1:
                (source[name],) = others
    return found


def _conditions(members: list[ReportedRun]) -> tuple[Condition, ...]:
    """Conditions in the order: full, LP-FT, embeddings frozen, other regimes by name, feature extraction, random init.

    A run of another loop is in none with one of ours: what the two have in common is not known.
    """
    conditions: dict[tuple[str, str, tuple[tuple[str, object], ...]], list[ReportedRun]] = {}
    for item in members:
        spoken = item.condition or _spoken(item)
        conditions.setdefault((item.regime, spoken, tuple(settings(item).items())), []).append(item)
    keys = sorted(conditions, key=lambda key: _place(key[0], dict(key[2])))
    sizes = {_size(item) for item in members}
    result = []
    for key in keys:
        words = [key[1]]
        others = [dict(values) for _, spoken, values in keys if spoken == key[1]]
        alike = [other for other in others if (LOOP in other) == (LOOP in dict(key[2]))]
        for name, value in key[2]:
            apart = [dict(values) for *_, values in keys] if name == LOOP else alike
            if name != _SIZE and value is not None and any(other.get(name) != value for other in apart):
                said = name.replace("_", " ")
                words.append(f"{said} {value}" if not isinstance(value, bool) else said if value else "")
        result.append(_condition(", ".join(filter(None, words)), conditions[key], has_size=len(sizes) > 1))
    return tuple(result)


def _labelled_conditions(members: list[ReportedRun], labels: Labels) -> tuple[Condition, ...]:
    """Conditions in the order in which their labels first appear, the smallest size first."""
    conditions: dict[tuple[str, int | None], list[ReportedRun]] = {}
    firsts: dict[str, ReportedRun] = {}
    for item in members:
        if item.directory_name not in labels:
            raise ValueError(
                f"no label for {item.directory_name}: labels must name the condition of every run, or be left out"
            )
        label = labels[item.directory_name]
        conditions.setdefault((label, _size(item)), []).append(item)
        first = firsts.setdefault(label, item)
        one, other = ({**settings(each), "freeze": each.regime} for each in (first, item))
        if names := [LOOP] if (LOOP in one) != (LOOP in other) else _apart(one, other):
            differs = ", ".join(f"{name.replace('_', ' ')} {one.get(name)} and {other.get(name)}" for name in names)
            raise ValueError(
                f"{first.name} and {item.name} both have the label {label!r} and differ in {differs}: "
                "runs of one label may differ in the seed only"
            )
    order = list(dict.fromkeys(labels.values()))
    keys = sorted(conditions, key=lambda key: (order.index(key[0]), key[1] or math.inf))
    has_size = len({size for _, size in keys}) > 1
    return tuple(_condition(label, conditions[label, size], has_size=has_size) for label, size in keys)


def _condition(base: str, members: list[ReportedRun], *, has_size: bool) -> Condition:
    """A condition with its runs in the order of their seeds, where known; ValueError when two are the same."""
    runs = tuple(sorted(members, key=lambda item: (item.seed is None, item.seed or 0, item.name)))
    for first, second in pairwise(runs):
        if first.seed == second.seed is not None:
            remedy = ", or record runs with a seed= or condition= of their own" if first.is_recorded else ""
            what = "config and seed" if not first.is_recorded else f"condition {base!r} and seed {first.seed}"
            raise ValueError(f"{first.name} and {second.name} are the same run ({what}): pass one of them{remedy}")
    size = _size(runs[0])
    words = "all training examples" if size is None else f"{size:,} training examples"
    return Condition(f"{base}, {words}" if has_size else base, runs, base)


def _size(run: ReportedRun) -> int | None:
    """The number of training examples that a run was asked for; None for all, and where nobody could say."""
    size: int | None = run.setting(_SIZE)
    return size


def _spoken(run: ReportedRun) -> str:
    """What a run's condition is called: its regime or adapters, then what else sets it apart.

    That is its start (a head stage, fresh weights), old word rows that are held, and shuffled labels. Of a run of
    another loop the regime or the adapters alone are told.
    """
    regime = run.regime
    if run.is_recorded:
        adapted = ", ".join(run.recorded.get("adapters", ()))
        return f"adapters on {adapted}" if adapted else SPOKEN.get(regime, f"{regime} (frozen)")
    config = run.config
    words = config.adapters or SPOKEN.get(regime, f"{regime} (frozen)")
    if regime == "backbone" and config.objective == MLM:
        words = "head alone"  # the checkpoint's own, on states that are made anew in each step
    if config.head_epochs:  # LP-FT: linear probing, then fine-tuning (Kumar et al. 2022)
        stage = f"head first, {config.head_epochs} epoch{'s' if config.head_epochs > 1 else ''}"
        words = f"LP-FT: {stage}" if regime == "none" else f"{words}, {stage}"
    if config.init == "random":
        is_plain = regime == "none" and not (config.adapters or config.head_epochs)
        words = "random init" if is_plain else f"{words}, random init"
    if config.train_rows == "new" and not config.lora:
        words += ", old word rows held"
    return f"{words}, {shuffling(config)}" if config.shuffle_labels else words


def shuffling(config: RunConfig) -> str:
    """Which labels the runs of a condition with shuffled labels share: one permutation, or none."""
    seed = config.label_seed
    return "shuffled labels (another permutation per seed)" if seed is None else f"shuffled labels (label seed {seed})"


def _place(regime: str, own: Mapping[str, Any]) -> tuple[object, ...]:
    """By what a condition is sorted: numbers as numbers (1e-05 before 0.0001), before what is none."""
    rank = {"none": 1 if own.get("head_epochs") else 0, "embeddings": 2, "backbone": 4}.get(regime, 3)
    others = []
    for name, value in own.items():
        if name != _SIZE:
            is_number = isinstance(value, int | float)
            others.append((name, not is_number, float(value) if is_number else 0.0, "" if is_number else str(value)))
    return (own.get("init") == "random", LOOP in own, rank, regime, others, own.get(_SIZE) or math.inf)


def without_numbers() -> set[str]:
    """Fields that no embedding depends on, up to rounding."""
    return {each.name for each in fields(RunConfig)} - {*fields_that(affect="numbers")}


def settings(item: ReportedRun) -> dict[str, object]:
    """Every field that makes two runs of one model, task and regime different, except the seed.

    A test file is its split's name and the start of its sha256, where that is known; that a split is out of
    distribution changes no number. Of a run of another loop: its condition, what is proven frozen, and the arguments
    that it is known to have had.
    """
    if item.is_recorded:
        given = {name: value for name, value in item.recorded["arguments"].items() if value is not None}
        known = {name: value if isinstance(value, int | float) else str(value) for name, value in given.items()}
        loop = {LOOP: item.recorded.get("recorded_by") or "another loop", PROVEN: item.regime}
        return {**loop, **known} if item.condition else {LOOP: loop[LOOP], **known}
    left_out = (*fields_that(affect="place", say=("data", "model")), "freeze", "seed", "ood_file")
    found = {k: v for k, v in asdict(item.config).items() if k not in left_out}
    files = []
    for entry in (*item.config.test_file, *item.config.ood_file):
        name, sha256 = entry.partition("=")[0], item.data_sha256.get(entry.partition("=")[0])
        files.append(f"{name} {sha256[:8]}" if sha256 else entry)
    added = item.part("added_tokens").get("sha256")
    tokens = f"{Path(item.config.add_tokens).name} {added[:8]}" if item.config.add_tokens and added else "none"
    return found | {"test_file": ", ".join(sorted(files)) or "none", "add_tokens": tokens}


def _apart(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """In which settings, but the number of training examples, two runs of one kind differ."""
    return [name for name in {**one, **other} if name != _SIZE and one.get(name) != other.get(name)]


def differences_beside_seed(first: ReportedRun, second: ReportedRun) -> list[str]:
    """What else two runs differ in that bears on their embeddings: model, weights, task, data, regime, settings.

    Weights and data only where both runs know them: an unfinished one has no hashes yet.
    """
    if first.is_recorded != second.is_recorded:
        return [LOOP]
    one, other = (
        _sources([item])[0] | {"condition": item.condition, "freeze": item.regime} | settings(item)
        for item in (first, second)
    )
    left_out = {*without_numbers(), *(() if one["weights"] and other["weights"] else ("weights",))}
    if first.is_recorded and not (first.manifest and second.manifest):  # what is frozen is known at the end
        left_out |= {"freeze", PROVEN}
    if bool(first.data_sha256) != bool(second.data_sha256):
        left_out |= {"train_data", "validation_data"}
    return [name for name in {**one, **other} if name not in left_out and one.get(name) != other.get(name)]


def differing_settings(first: Condition, second: Condition) -> list[str]:
    """The settings, the regime apart, in which two conditions differ, as far as they do anything in both."""
    one, other = settings(first.runs[0]), settings(second.runs[0])
    if first.runs[0].is_recorded or second.runs[0].is_recorded:
        names = [LOOP] if (LOOP in one) != (LOOP in other) else _apart(one, other)
        return [name for name in names if name != PROVEN]
    idle = set[str]()
    for condition in (first, second):
        frozen = {name for name in EMBEDDING_PARAMETERS if condition.is_proven_frozen(name)}
        idle |= {"learning_rate", "layer_decay"} if condition.is_feature_extraction else set()
        idle |= {"train_rows"} if "word_embeddings" in frozen else set()
        idle |= {"embedding_learning_rate"} if frozen and frozen >= {*condition.runs[0].parameters} else set()
    idle |= {"lora", "lora_rank", "lora_alpha"} if first.runs[0].regime != second.runs[0].regime else set()
    # Early stopping is a way to train a head alone: beside another regime it goes without saying.
    idle |= {"head_training"} if first.is_feature_extraction != second.is_feature_extraction else set()
    names = [field.name for field in fields(RunConfig) if field.name in one and field.name not in idle]
    return [name for name in names if one[name] != other[name]]


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
        """The runs of the seeds that both conditions have, side by side, in order.

        Where a seed is not known, in the order of the conditions: replicates are independent, so that any pairing will
        do.
        """
        if not self.has_seeds:
            return list(zip(self.first.runs, self.second.runs, strict=False))
        ours, theirs = ({run.seed: run for run in condition.runs} for condition in (self.first, self.second))
        return [(run, theirs[seed]) for seed, run in ours.items() if seed in theirs]

    @property
    def splits(self) -> list[str]:
        """Labelled splits of every run, the reported one first."""
        runs = [run for pair in self.runs for run in pair]
        common = [name for name in runs[0].splits if all(name in run.splits for run in runs)] if runs else []
        return reported_first(common, [run.reported_split for run in runs[:1]])

    @property
    def is_failed(self) -> NDArray[np.bool_]:
        """(seeds,) whether either run of the pair failed."""
        return np.array([one.is_failed or other.is_failed for one, other in self.runs], dtype=bool)

    def note_on_items(self, split: str) -> str:
        """Empty when the runs of each seed have the same items with the same labels; else what is wrong."""
        return "" if all(have_same_items(one, other, split) for one, other in self.runs) else OTHER_ITEMS

    def has_answers(self, split: str) -> bool:
        """Whether the answers of every run to a split are at hand."""
        return all(split in run.answers for runs in self.runs for run in runs)

    def unit_scores(self, split: str, score: str, *, in_clusters: bool = True) -> NDArray[np.float64] | None:
        """(2, seeds, units) what each unit has of the score of the first and of the second; its mean is the score.

        Units are items, or, ``in_clusters``, the clusters that they come in. Of items an accuracy has 1 where the
        answer is right and 0 elsewhere, another score what :func:`item_scores` gives; all NaN where it is undefined.
        None when seeds have other items (a split that was drawn with the seed), so that items are no common factor,
        without the answers, and where these do not give the score.
        """
        reference = self.runs[0][0]
        if not self.has_answers(split) or not all(have_same_items(reference, one, split) for one, _ in self.runs):
            return None
        ids = reference.answers[split].index
        found = [[item_scores(runs[side], split, score, ids) for runs in self.runs] for side in (0, 1)]
        if any(values is None for side in found for values in side):
            return None
        clusters = clusters_of([run for runs in self.runs for run in runs], split)
        return (
            np.array(found)
            if clusters is None or not in_clusters
            else by_cluster(np.array(found), clusters.reindex(ids))
        )

    def scores(
        self, split: str, score: str, read: Callable[[ReportedRun, str, str], float] = counted_score
    ) -> NDArray[np.float64]:
        """(2, seeds) score of the first and of the second at their last epochs, as ``read`` gives them."""
        return np.array([[read(runs[side], split, score) for runs in self.runs] for side in (0, 1)])


def clusters_of(runs: Iterable[ReportedRun], split: str) -> "pd.Series | None":
    """The cluster of each item of a split that all runs have, from the first of them that knows it."""
    return next((found for run in runs if (found := run.clusters(split)) is not None), None)


def have_same_items(one: ReportedRun, other: ReportedRun, split: str) -> bool:
    """Whether two runs answered the same items of a split: ids are unique, equal as sets, and carry the same labels.

    Rows of another file can have the same numbers and labels: where both hashes of it are known, they must be equal.
    Of runs without answers no more than the number of items can tell.
    """
    known = {run.data_sha256.get(split) for run in (one, other)} - {None}
    if len(known) > 1:
        return False
    if split not in one.answers or split not in other.answers:
        return len({number for number in (one.num_items(split), other.num_items(split)) if number == number}) < 2
    first, second = one.answers[split], other.answers[split]
    if not (first.index.is_unique and second.index.is_unique) or len(first) != len(second):
        return False
    if not first.index.isin(second.index).all():
        return False
    return bool((first["label"] == second.loc[first.index, "label"]).all())


def pair_conditions(group: Group, pairs: Pairs | None = None) -> list[ConditionPair]:
    """Pairs of conditions of one size.

    ``pairs`` names labels, with or without the size; a pair of which the group lacks a condition is left out. By
    default full fine-tuning stands against each other condition; without it, or with nothing else, all pairs.
    """
    every = [ConditionPair(one, other) for one, other in combinations(group.conditions, 2) if one.size == other.size]
    if pairs is None:
        with_full = [pair for pair in every if pair.first.is_full != pair.second.is_full]
        return [pair if pair.first.is_full else ConditionPair(pair.second, pair.first) for pair in with_full] or every
    both = [*every, *(ConditionPair(pair.second, pair.first) for pair in every)]
    return [
        pair for one, other in pairs for pair in both if _is_named(pair.first, one) and _is_named(pair.second, other)
    ]


def _is_named(condition: Condition, label: str) -> bool:
    return label in (condition.label, condition.base)


def check_pairs(groups: Sequence[Group], pairs: Pairs | None) -> None:
    """ValueError for a label that no condition of any group has."""
    known = tuple(
        dict.fromkeys(
            name for group in groups for condition in group.conditions for name in (condition.base, condition.label)
        )
    )
    for label in (label for pair in pairs or () for label in pair):
        if label not in known:
            raise ValueError(unknown(label, "condition", known))


def noise_floor(pair: ConditionPair, split: str, score: str) -> float:
    """Mean |difference| of a score between two seeds of a condition, over all such pairs of both conditions; a share.

    NaN when neither condition has two seeds. What a difference between conditions must be compared with before anything
    else: it is what changing nothing but the seed does. Ours.
    """
    gaps = []
    for condition in (pair.first, pair.second):
        values = [counted_score(run, split, score) for run in condition.runs]
        gaps += [abs(one - other) for one, other in combinations(values, 2)]
    return float(np.nanmean(gaps)) if not np.isnan(gaps).all() else np.nan
