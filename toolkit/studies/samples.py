"""A config in, a small encoded part of its task out, with the size of the whole: what a calibration times."""

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.config import RunConfig, recipe_of
from toolkit.data.batches import CHUNK_BATCHES, EncodedSplit, EncodedTask, epoch_batches, evaluation_batches
from toolkit.data.tasks import Split, Task, load_task

SCORED_EXAMPLES = 256
"""Examples of each scored split that a sample holds at most."""


@dataclass(frozen=True)
class Sample:
    """A part of a task, encoded, and the size of the whole."""

    data: EncodedTask
    num_examples: dict[str, int]
    """Split to the examples of the whole, as the config from which the sample was taken reads it."""
    seconds_reading: float
    """To read the data."""
    seconds_encoding: float
    """To encode one example."""

    def workload(self, config: RunConfig) -> "Workload":
        """How much a run has to do, if it reads no more than the config from which the sample was taken."""
        train = self.num_examples["train"]
        drawn = min(train, config.max_train_examples or train)
        held = round(config.selection_fraction * drawn)
        scored = sum(number for split, number in self.num_examples.items() if split != "train")
        return Workload(drawn - held, held or scored)


@dataclass(frozen=True)
class Workload:
    """How many examples a run trains on and scores."""

    num_train: int
    num_scored: int


class Models:
    """Classifiers, each read once; whoever trains one puts a head with the outputs of its task on a copy."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self.loaded: dict[tuple[object, ...], Any] = {}

    def of(self, config: RunConfig, task: Task) -> Any:
        """The classifier of a config, with a head of one output."""
        from toolkit.models.classifier import load_classifier

        recipe, is_token_task = recipe_of(config), task.kind == "tokens"
        key = (config.model, is_token_task, *recipe.values())
        if key not in self.loaded:
            loaded = load_classifier(config.model, **recipe, num_outputs=1, is_token_task=is_token_task)
            self.loaded[key] = loaded
        return self.loaded[key]


def take_sample(config: RunConfig, models: Models) -> Sample:
    """Read the task of a config, draw a part of it and encode that for its model.

    The part of train is as large as what training sorts by length at a time, so that batches are padded like real
    ones.
    """
    from toolkit.training.encoding import encode_task

    started = time.perf_counter()
    task = load_task(replace(config, selection_fraction=0.0))
    reading = time.perf_counter() - started
    loaded = models.of(config, task)
    sizes = {name: len(split) for name, split in task.splits.items()}
    limits = {"train": CHUNK_BATCHES * config.batch_size}
    drawn = {name: _draw(split, limits.get(name, SCORED_EXAMPLES)) for name, split in task.splits.items()}
    started = time.perf_counter()
    data = encode_task(replace(task, splits=drawn), loaded, config.max_length)
    encoding = (time.perf_counter() - started) / sum(len(split) for split in drawn.values())
    return Sample(data, sizes, reading, encoding)


def _draw(split: Split, limit: int) -> Split:
    return split.take(np.sort(np.random.default_rng(0).permutation(len(split))[:limit]))


Batches = list[NDArray[np.int64]]


def batches_of(split: EncodedSplit, config: RunConfig, *, is_training: bool) -> Batches:
    """The batches of a split in order of their padded size."""
    lengths = split.lengths
    batches = epoch_batches(lengths, replace(config, seed=0), 0) if is_training else evaluation_batches(lengths)
    return sorted(batches, key=lambda indices: padded_tokens(lengths, [indices]))


def padded_tokens(lengths: NDArray[np.int64], batches: Batches) -> int:
    """Tokens that a model reads in these batches, padding included: what its time is nearly proportional to."""
    return sum(len(indices) * int(lengths[indices].max()) for indices in batches)


def spread(batches: Batches, number: int) -> Batches:
    """``number`` of the batches, evenly over their order, the extremes left out."""
    places = (np.arange(number) + 0.5) / number * len(batches)
    return [batches[int(place)] for place in places]
