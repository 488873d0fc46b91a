"""Planned runs in, how long each will take out: a few steps of every kind of run are timed, nothing is kept.

An estimate, not a promise: what is timed has the threads that it will have, and beside it the machine is as busy as it
will be, since runs that share cores and memory slow one another down.
"""

import heapq
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from toolkit.config import RECIPE, RunConfig
from toolkit.studies.attempts import share_threads
from toolkit.studies.neighbours import neighbours
from toolkit.studies.plan import PlannedRun
from toolkit.studies.rates import Rates, measure_rates, startup_seconds
from toolkit.studies.samples import Models, Sample, take_sample

NO_INFLUENCE = ("seed", "epochs", "head_epochs", "max_steps", "learning_rate", "head_learning_rate", "weight_decay",
    "warmup_fraction", "max_gradient_norm", "init", "positions", "reinject_positions", "dropout", "snapshot_steps",
    "shuffle_labels", "label_seed", "max_train_examples", "selection_fraction", "head_training", "output_dir",
    "overwrite", "save_model", "log_with", "task_name")  # fmt: skip
"""Fields that change neither the seconds of a step nor those of scoring an example."""

DATA = ("task", "train_file", "validation_file", "test_file", "ood_file", "dataset", "dataset_config",
    "text_columns", "label_column", "label_kind", "remove_near_duplicates")  # fmt: skip
"""Fields that say what is read."""

MODEL = ("model", *RECIPE, "max_length", "batch_size")
"""Fields that, beside the data, decide what a sample holds."""


@dataclass(frozen=True)
class Estimate:
    """What one run will take, start-up included."""

    seconds: float
    is_measured: bool
    """Whether its own kind was timed; else the budget was spent, and the rates of a like kind stand in."""


@dataclass(frozen=True)
class Calibration:
    """What is known of a study's runs before any is run."""

    estimates: Mapping[str, Estimate]
    """Run name to what it will take."""
    num_items: Mapping[str, Mapping[str, int]]
    """Run name to the items of each split on which an accuracy will be computed; empty in regression."""
    scores: Mapping[str, str]
    """Run name to its headline score."""
    seconds: float
    """What the calibration itself took."""


def calibrate(runs: Sequence[PlannedRun], *, workers: int = 1, budget_seconds: float = 20.0) -> Calibration:
    """Time every kind of run that a study holds; writes below temporary directories only.

    Beside what is timed, ``workers`` less one processes do the same kinds of work (:mod:`toolkit.studies.neighbours`),
    or fewer where there are fewer runs. ``budget_seconds``: after this a kind of run is timed only if none of its model
    and regime has been; the rates of the same regime on another task stand in for the others. ValueError for a model or
    data that cannot be read.
    """
    import torch

    threads, before, started = threads_per_run(workers), torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(threads)
    try:
        stopwatch = _Stopwatch(runs)
        stopwatch.take_samples()  # first, so that a mistake in the data is told before other processes meet it
        with neighbours(_laborious(runs), min(workers, len(runs)) - 1, threads):
            estimates = stopwatch.estimates(threads, budget_seconds)
        return Calibration(estimates, stopwatch.num_items(), stopwatch.scores(), time.perf_counter() - started)
    finally:
        torch.set_num_threads(before)


def _laborious(runs: Sequence[PlannedRun]) -> list[RunConfig]:
    """One config per kind of run that trains the backbone, or of every kind where none does.

    Runs that take long are what a run mostly has beside it.
    """
    kinds = {_pick(run.config, _influential()): run.config for run in runs}
    return [config for config in kinds.values() if config.freeze != "backbone"] or list(kinds.values())


def threads_per_run(workers: int) -> int:
    """The CPU threads that each of several runs gets from the local executor."""
    environment = os.environ | share_threads(workers)
    return max(1, int(environment["OMP_NUM_THREADS"].split(",")[0]))


def makespan(seconds: Iterable[float], workers: int) -> float:
    """How long a queue of runs takes when each worker that becomes free takes the next one."""
    ends = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


class _Stopwatch:
    """Samples and rates of a study's runs, each made once."""

    def __init__(self, runs: Sequence[PlannedRun]) -> None:
        self.runs, self.deadline = runs, 0.0
        self.models = Models()
        self.samples: dict[tuple[object, ...], Sample] = {}
        self.rates: dict[tuple[object, ...], Rates] = {}

    def take_samples(self) -> None:
        """Read every model and task."""
        # A sample knows the size of its task only if it was taken for the largest training set.
        for run in sorted(self.runs, key=lambda run: -(run.config.max_train_examples or 10**12)):
            self._sample(run.config)

    def estimates(self, threads: int, budget_seconds: float) -> dict[str, Estimate]:
        """Run name to what it will take."""
        self.deadline = time.perf_counter() + budget_seconds
        started = {run.config.model: 0.0 for run in self.runs}
        for run in self.runs:
            started[run.config.model] = started[run.config.model] or startup_seconds(run.config, threads)
        return {run.name: self._estimate(run.config, started[run.config.model]) for run in self.runs}

    def num_items(self) -> dict[str, dict[str, int]]:
        """Run name to its labelled splits of a classification and their sizes."""
        result = {}
        for run in self.runs:
            sample = self._sample(run.config)
            splits = sample.data.splits if sample.data.task.kind == "classification" else {}
            labelled = [name for name, split in splits.items() if name != "train" and split.labels is not None]
            result[run.name] = {name: sample.num_examples[name] for name in labelled}
        return result

    def scores(self) -> dict[str, str]:
        """Run name to its headline score."""
        return {run.name: self._sample(run.config).data.task.score for run in self.runs}

    def _estimate(self, config: RunConfig, start: float) -> Estimate:
        sample, kind = self._sample(config), _pick(config, _influential())
        like = self._like(config)
        is_measured = kind in self.rates or like is None or time.perf_counter() < self.deadline
        if is_measured and kind not in self.rates:
            self.rates[kind] = measure_rates(config, self.models.of(config, sample.data.task), sample)
        rates = self.rates[kind] if is_measured else like
        assert rates is not None
        return Estimate(start + rates.seconds_of(config, sample), is_measured)

    def _like(self, config: RunConfig) -> Rates | None:
        """Rates of a kind that differs in its data only, measured before."""
        names = [name for name in _influential() if name not in DATA]
        place = [_influential().index(name) for name in names]
        wanted = _pick(config, names)
        return next((rates for kind, rates in self.rates.items() if tuple(kind[i] for i in place) == wanted), None)

    def _sample(self, config: RunConfig) -> Sample:
        key = _pick(config, (*MODEL, *DATA))
        if key not in self.samples:
            self.samples[key] = take_sample(config, self.models)
        return self.samples[key]


def _influential() -> list[str]:
    return [field.name for field in fields(RunConfig) if field.name not in NO_INFLUENCE]


def _pick(config: RunConfig, names: Iterable[str]) -> tuple[object, ...]:
    return tuple(getattr(config, name) for name in names)
