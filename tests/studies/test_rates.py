"""Rates and a sample in, seconds out: one second per padded token makes the seconds a count of tokens."""

from dataclasses import replace

import pytest

from toolkit.config import RunConfig
from toolkit.data.batches import CHUNK_BATCHES, epoch_batches, evaluation_batches
from toolkit.data.tasks import load_task
from toolkit.studies.rates import Rates, mean_tokens
from toolkit.studies.samples import Models, Sample, Workload, padded_tokens, take_sample
from toolkit.training.loop import Plan

PER_TRAINED_TOKEN = Rates(training=1.0, scoring=0.0, head=0.0, probe=0.0, is_frozen_backbone=False)
PER_HEAD_STEP = Rates(training=0.0, scoring=0.0, head=1.0, probe=0.0, is_frozen_backbone=True)


@pytest.fixture
def sample(tiny_config: RunConfig) -> Sample:
    return replace(take_sample(tiny_config, Models()), seconds_reading=0.0, seconds_encoding=0.0)


@pytest.mark.parametrize("batch_tokens", [None, 60])
@pytest.mark.parametrize("epochs", [1, 3])
def test_seconds_are_those_of_the_tokens_and_steps_of_the_run(
    tiny_config: RunConfig, sample: Sample, epochs: int, batch_tokens: int | None
) -> None:
    """The sample is the whole of this small task, so the first epoch is counted exactly, and others nearly."""
    assert sample.num_examples["train"] <= CHUNK_BATCHES * tiny_config.batch_size
    config, lengths = (
        replace(tiny_config, epochs=epochs, batch_tokens=batch_tokens),
        sample.data.splits["train"].lengths,
    )
    tokens = sum(padded_tokens(lengths, epoch_batches(lengths, config, epoch)) for epoch in range(epochs))
    tolerance = 1e-9 if epochs == 1 else 0.03
    assert PER_TRAINED_TOKEN.seconds_of(config, sample) == pytest.approx(tokens, rel=tolerance)
    steps = Plan.of(config, lengths).num_steps
    assert PER_HEAD_STEP.seconds_of(config, sample) == pytest.approx(steps, rel=tolerance)
    stopped = replace(config, max_steps=2)
    share = 2 / Plan.of(replace(config, epochs=1), lengths).num_steps
    expected = share * padded_tokens(lengths, epoch_batches(lengths, config, 0))
    assert PER_TRAINED_TOKEN.seconds_of(stopped, sample) == pytest.approx(expected)
    assert PER_HEAD_STEP.seconds_of(stopped, sample) == 2


def test_more_examples_take_as_much_more(tiny_config: RunConfig, sample: Sample) -> None:
    ten_times = replace(sample, num_examples={name: 10 * n for name, n in sample.num_examples.items()})
    one, ten = (PER_TRAINED_TOKEN.seconds_of(tiny_config, own) for own in (sample, ten_times))
    assert ten == pytest.approx(10 * one)
    assert one > 0


@pytest.mark.parametrize(("changes", "times"), [({}, 2), ({"epochs": 3}, 4), ({"epochs": 3, "max_steps": 5}, 3)])
def test_a_run_scores_before_it_trains_and_after_each_epoch_begun(
    tiny_config: RunConfig, sample: Sample, changes: dict[str, int], times: int
) -> None:
    """Features of a frozen backbone are extracted once, of the training examples too."""
    config, splits = replace(tiny_config, **{"epochs": 1, **changes}), sample.data.splits
    scored = sum(
        padded_tokens(split.lengths, evaluation_batches(split.lengths))
        for name, split in splits.items()
        if name != "train"
    )
    assert Plan.of(replace(config, max_steps=None, epochs=1), splits["train"].lengths).num_steps == 4
    per_scored_token = replace(PER_TRAINED_TOKEN, training=0.0, scoring=1.0)
    assert per_scored_token.seconds_of(config, sample) == pytest.approx(times * scored)
    train = len(splits["train"]) * mean_tokens(sample, config, is_training=True)
    frozen = replace(per_scored_token, is_frozen_backbone=True)
    assert frozen.seconds_of(config, sample) == pytest.approx(train + scored)


@pytest.mark.parametrize("max_train_examples", [None, 50, 1000])
@pytest.mark.parametrize("selection_fraction", [0.0, 0.2, 0.33])
def test_the_workload_is_what_such_a_run_reads(
    tiny_config: RunConfig, sample: Sample, max_train_examples: int | None, selection_fraction: float
) -> None:
    config = replace(tiny_config, max_train_examples=max_train_examples, selection_fraction=selection_fraction)
    sizes = {name: len(split) for name, split in load_task(config).splits.items()}
    assert sample.workload(config) == Workload(sizes.pop("train"), sum(sizes.values()))
