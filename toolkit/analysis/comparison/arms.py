"""Run directories in, groups of comparable arms out.

A group is all runs of one model and one task; an arm is those of its runs that differ in nothing but the seed.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from toolkit.config import NOT_IN_DIGEST, RunConfig
from toolkit.families import EMBEDDING_PARAMETERS, FAMILIES
from toolkit.naming import distinct, names_of, shorten
from toolkit.snapshots.store import Run, open_run

SPOKEN = {"none": "none (full fine-tuning)", "backbone": "backbone (feature extraction)"}
"""Regime label to the words for it, where the field has words."""

_SOURCE = ("model", "task", "train_file", "validation_file", "dataset", "dataset_config")
"""Fields that say what is learned from what: runs that differ here are in different groups."""


@dataclass(frozen=True)
class ReportedRun:
    """One finished run and what every table says of it."""

    run: Run
    name: str

    @cached_property
    def config(self) -> RunConfig:
        """The config with absolute paths shortened: a report must not tell where somebody keeps their files."""
        config = self.run.config
        shown: dict[str, Any] = {k: shorten(getattr(config, k)) for k in ("model", "train_file", "validation_file")}
        pairs = (entry.partition("=") for entry in config.test_file)
        return replace(config, **shown, test_file=tuple(f"{name}={shorten(path)}" for name, _, path in pairs))

    @property
    def model(self) -> str:
        return str(shorten(self.part("model").get("name") or self.config.model))

    @property
    def task(self) -> str:
        return str(self.part("task").get("name") or self.config.task)

    @property
    def regime(self) -> str:
        return str(self.part("regime").get("label") or self.config.freeze)

    @property
    def is_regression(self) -> bool:
        return self.part("task").get("kind") == "regression" or "pearson" in self.run.scores

    @property
    def score(self) -> str:
        """The headline score of the task."""
        return str(self.part("task").get("score") or ("pearson" if self.is_regression else "accuracy"))

    @property
    def reported_split(self) -> str:
        """The split whose score stands for the run; without a manifest entry the first that was scored."""
        return str(self.part("task").get("reported_split") or next(iter(self.run.scores["split"]), "validation"))

    @property
    def last_epoch(self) -> float:
        return self.run.trajectory.snapshots[-1].epoch

    def part(self, key: str) -> dict[str, Any]:
        """A section of the manifest, empty when it is absent."""
        value = self.run.manifest.get(key)
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


@dataclass(frozen=True)
class Arm:
    """Runs of one group that differ in their seed only."""

    label: str
    runs: tuple[ReportedRun, ...]

    @property
    def is_full(self) -> bool:
        return self.runs[0].regime == "none"

    @property
    def is_feature_extraction(self) -> bool:
        return self.runs[0].regime == "backbone"

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.runs]

    def has(self, parameter: str) -> bool:
        """Whether the model has this embedding parameter."""
        return all(parameter in run.run.trajectory.parameters for run in self.runs)

    def is_proven_frozen(self, parameter: str) -> bool:
        """Whether every run's manifest holds equal hashes of the parameter before and after training."""
        return all(run.frozen.get(parameter, False) for run in self.runs)


@dataclass(frozen=True)
class Group:
    """All arms of one model and one task: what may stand in one comparison."""

    title: str
    arms: tuple[Arm, ...]

    @property
    def runs(self) -> tuple[ReportedRun, ...]:
        return tuple(run for arm in self.arms for run in arm.runs)


def arrange(runs: Sequence[Run | str | Path]) -> tuple[Group, ...]:
    """Open runs and sort them into groups and arms; ValueError for none, an unfinished one or the same one twice."""
    if not runs:
        raise ValueError("no runs to report on: pass at least one run directory")
    opened = [run if isinstance(run, Run) else open_run(run) for run in runs]
    for run in opened:
        if not run.is_finished:
            raise ValueError(
                f"{run.path.resolve().name} is unfinished (no manifest.json): run it again, or leave it out"
            )
    reported = [ReportedRun(run, name) for run, name in zip(opened, names_of(run.path for run in opened), strict=True)]
    groups: dict[tuple[object, ...], list[ReportedRun]] = {}
    for item in reported:
        groups.setdefault(_source(item), []).append(item)
    titles = distinct(f"{members[0].model} on {members[0].task}" for members in groups.values())
    return tuple(Group(title, _arms(members)) for title, members in zip(titles, groups.values(), strict=True))


def _source(item: ReportedRun) -> tuple[object, ...]:
    """Model, task and data of a run; files are known by their sha256, wherever they lay."""
    hashes, config = item.part("task").get("data_sha256") or {}, item.run.config
    files = (hashes.get("train") or config.train_file, hashes.get("validation") or config.validation_file)
    return (config.model, item.task, config.dataset, config.dataset_config, *files)


def _arms(members: list[ReportedRun]) -> tuple[Arm, ...]:
    """Arms in the order: full fine-tuning, embeddings frozen, other regimes by name, feature extraction."""
    arms: dict[tuple[str, tuple[tuple[str, object], ...]], list[ReportedRun]] = {}
    for item in members:
        arms.setdefault((item.regime, tuple(settings(item.config).items())), []).append(item)
    order = {"none": 0, "embeddings": 1, "backbone": 3}
    keys = sorted(arms, key=lambda key: (order.get(key[0], 2), key[0], str(key[1])))
    result = []
    for regime, own in keys:
        others = [dict(values) for name, values in keys if name == regime]
        varied = [f"{k.replace('_', ' ')} {v}" for k, v in own if any(other[k] != v for other in others)]
        runs = sorted(arms[regime, own], key=lambda item: item.config.seed)
        for first, second in pairwise(runs):
            if first.config.seed == second.config.seed:
                raise ValueError(f"{first.name} and {second.name} are the same run (config and seed): pass one of them")
        result.append(Arm(", ".join([SPOKEN.get(regime, f"{regime} (frozen)"), *varied]), tuple(runs)))
    return tuple(result)


def settings(config: RunConfig) -> dict[str, object]:
    """Every field that makes two runs of one model, task and regime different, except the seed."""
    left_out = (*_SOURCE, *NOT_IN_DIGEST, "freeze", "seed")
    return {k: v for k, v in asdict(config).items() if k not in left_out}


def differing_settings(first: Arm, second: Arm) -> list[str]:
    """The settings, the regime apart, in which two arms differ, as far as they do anything in both."""
    one, other = settings(first.runs[0].config), settings(second.runs[0].config)
    idle = {"learning_rate"} if first.is_feature_extraction or second.is_feature_extraction else set()
    names = [field.name for field in fields(RunConfig) if field.name in one and field.name not in idle]
    return [name for name in names if one[name] != other[name]]


def canonical_name(name: str) -> str:
    """The canonical name of an embedding parameter that is named as in its model; any other name as it is."""
    if name in EMBEDDING_PARAMETERS:
        return name
    for family in FAMILIES.values():
        for canonical, native in family.embedding_parameters.items():
            if name == native or name.endswith("." + native):
                return canonical
    return name
