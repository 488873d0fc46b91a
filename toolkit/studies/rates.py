"""A kind of run in, the seconds of its steps and of scoring out, timed on a few batches of a sample."""

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.config import RunConfig
from toolkit.studies.jobs import SHARED_THREADS, launch_command
from toolkit.studies.samples import Batches, Sample, batches_of, padded_tokens, spread

TIMED_BATCHES = 4
"""Batches of each kind that are timed, after one that is not."""

PROBE_EXAMPLES = 400
"""Training examples on which the linear probe is timed. Its time depends on how hard they are to
separate more than on their number, so that it is taken as it is for any number."""

GUESSED_EPOCHS = 40
"""Of a head until early stopping stops: between a dozen and MOST_EPOCHS of toolkit.training.features, seconds each."""

START_TEXTS = "text\tlabel\n" + "good film\t1\nbad film\t0\n" * 4
"""The task whose whole run is the start-up of any run."""


@dataclass(frozen=True)
class Rates:
    """Seconds per piece of work of one kind of run."""

    training: float
    """Per padded token of training; 0 where only the head is trained."""
    scoring: float
    """Per padded token of scoring and of extracting features."""
    head: float
    """Per optimizer step of the head alone, on cached features."""
    probe: float
    """For the linear probe; 0 unless the backbone is frozen."""
    is_frozen_backbone: bool

    def seconds_of(self, config: RunConfig, sample: Sample) -> float:
        """A run's seconds, its start-up apart."""
        work = sample.workload(config)
        per_epoch = steps_per_epoch(sample, config, work.num_train)
        num_steps = min(config.num_epochs * per_epoch, config.max_steps or math.inf)
        if config.head_training == "early-stopping":
            num_steps = GUESSED_EPOCHS * per_epoch
        train = mean_tokens(sample, config, is_training=True)
        scoring = self.scoring * work.num_scored * mean_tokens(sample, config, is_training=False)
        features = self.scoring * work.num_train * train
        reading = sample.seconds_reading + sample.seconds_encoding * (work.num_train + work.num_scored)
        if self.is_frozen_backbone:
            return reading + features + scoring + self.head * num_steps + self.probe
        num_scorings = 1 + math.ceil(num_steps / per_epoch)
        training = self.training * (num_steps / per_epoch) * work.num_train * train
        first = features + self.head * config.head_epochs * per_epoch if config.head_epochs else 0.0
        return reading + first + training + num_scorings * scoring


def steps_per_epoch(sample: Sample, config: RunConfig, num_train: int) -> int:
    """Optimizer steps of an epoch of ``num_train`` examples; by the sample's where a budget of tokens cuts batches."""
    if config.batch_tokens is None:
        return -(-num_train // config.batch_size)
    split = sample.data.splits["train"]
    return math.ceil(num_train / len(split) * len(batches_of(split, config, is_training=True)))


def mean_tokens(sample: Sample, config: RunConfig, *, is_training: bool) -> float:
    """Padded tokens per example, in training batches of train or in scoring batches of the other splits."""
    splits = [split for name, split in sample.data.splits.items() if (name == "train") == is_training]
    tokens = sum(padded_tokens(s.lengths, batches_of(s, config, is_training=is_training)) for s in splits)
    return tokens / sum(len(split) for split in splits)


def measure_rates(config: RunConfig, loaded: Any, sample: Sample) -> Rates:
    """Time a few steps of a copy of ``loaded`` (a classifier with any head) under the regime of ``config``."""
    import torch

    from toolkit.models.regimes import BACKBONE, apply_regime, list_components, parse_regime
    from toolkit.training.accelerators import build_accelerator

    accelerator = build_accelerator(replace(config, log_with=None))
    model = deepcopy(loaded.model)
    model.head = model.make_head(num_outputs=sample.data.task.num_outputs, generator=torch.Generator().manual_seed(0))
    loaded = replace(loaded, model=model.to(accelerator.device))
    regime = parse_regime(config.freeze, tuple(list_components(loaded.model, loaded.family)))
    frozen = apply_regime(loaded.model, regime, loaded.family)
    is_frozen = all(name in frozen for name, _ in loaded.model.named_parameters() if name.startswith(BACKBONE))
    scoring = _time_scoring(accelerator, loaded.model, sample, config)
    head = _time_head(loaded.model, sample, config)
    probe = _time_probe(loaded.model, sample) if is_frozen else 0.0
    training = 0.0 if is_frozen else _time_training(accelerator, loaded, sample, config)
    return Rates(training, scoring, head, probe, is_frozen)


def _time_scoring(accelerator: Any, model: Any, sample: Sample, config: RunConfig) -> float:
    import torch

    from toolkit.training.evaluation import run_batches, scoring

    split = next(split for name, split in sample.data.splits.items() if name != "train")
    side_by_side = torch.get_num_threads()
    with scoring(accelerator, model) as backbone:

        def score(batch: dict[str, Any]) -> Any:
            return model.classify(*model.run(backbone, batch))

        def run(indices: NDArray[np.int64]) -> None:
            run_batches(accelerator, model, score, split, sample.data, [indices] * side_by_side)

        return _per_token(run, split.lengths, batches_of(split, config, is_training=False)) / side_by_side


def _time_training(accelerator: Any, loaded: Any, sample: Sample, config: RunConfig) -> float:
    from toolkit.training.loop import build_stepper
    from toolkit.training.recorder import Recorder

    train, backbone = sample.data.splits["train"], dict(loaded.model.backbone.named_parameters())
    names = loaded.family.embedding_parameters
    recorder = Recorder(sample.data, {k: backbone[name] for k, name in names.items() if name in backbone})
    stepper = build_stepper(accelerator, loaded.model, sample.data, config, 10**6, recorder)
    batches = batches_of(train, config, is_training=True)
    return _per_token(lambda indices: stepper.take(indices, 0), train.lengths, batches)


def _time_head(model: Any, sample: Sample, config: RunConfig) -> float:
    """Seconds per step on features that are drawn: their values do not matter here."""
    from toolkit.training.features import HeadStepper

    features, batches = _draw_features(model, sample.data.splits["train"].num_rows), range(10 * TIMED_BATCHES)
    stepper = HeadStepper(deepcopy(model.head), features, sample.data, config, np.ones(1), None)
    (indices,) = spread(batches_of(sample.data.splits["train"], config, is_training=True), 1)
    return _seconds(lambda: [stepper.take(indices, 0) for _ in batches]) / len(batches)


def _time_probe(model: Any, sample: Sample) -> float:
    from toolkit.training.features import linear_probe

    train = sample.data.splits["train"]
    number = min(PROBE_EXAMPLES, train.num_rows)
    labels = None if train.labels is None else train.labels[:number]
    data = replace(sample.data, splits={"train": replace(train, labels=labels)})
    return _seconds(lambda: linear_probe(model.head, {"train": _draw_features(model, number).numpy()}, data, 0))


def _draw_features(model: Any, number: int) -> Any:
    import torch

    return torch.randn(number, model.head.in_features, generator=torch.Generator().manual_seed(0))


def _per_token(function: Callable[[NDArray[np.int64]], object], lengths: NDArray[np.int64], batches: Batches) -> float:
    chosen = spread(batches, min(TIMED_BATCHES, len(batches)))
    function(chosen[-1])  # the first call also allocates
    return _seconds(lambda: [function(indices) for indices in chosen]) / padded_tokens(lengths, chosen)


def _seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def startup_seconds(config: RunConfig, threads: int) -> float:
    """How long a whole run takes whose training is one step on eight texts: launch, imports, model, files.

    The run goes to a temporary directory, which is removed. ValueError with its last line when it fails.
    """
    with tempfile.TemporaryDirectory(prefix="calibration-") as folder:
        data, place = Path(folder, "data.tsv"), Path(folder, "config.json")
        data.write_text(START_TEXTS)
        own = RunConfig(
            model=config.model,
            pooling=config.pooling,
            precision=config.precision,
            train_file=str(data),
            validation_file=str(data),
            max_length=min(config.max_length, 16),
            epochs=1,
            output_dir=folder,
        )
        place.write_text(own.to_json())
        started = time.perf_counter()
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | SHARED_THREADS
        done = subprocess.run(launch_command(place), env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise ValueError(f"a trial run of {config.model} failed: {last}")
        return time.perf_counter() - started
