"""The training loop: moments of fine-tuning, one after another; the caller saves."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedTask, epoch_batches
from toolkit.models.classifier import Classifier
from toolkit.training.evaluation import evaluate
from toolkit.training.optimizer import StepLog, check_outputs
from toolkit.training.resume import Resumer, Trainer
from toolkit.training.step import Stepper
from toolkit.training.step_recorder import Recorder


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of training at which the caller may save."""

    epoch: float
    """Epochs done; a fraction between two."""
    step: int
    """Optimizer steps done."""
    is_epoch_end: bool
    """Whether this is epoch 0 or the end of an epoch (or of training)."""
    train_loss: float
    """Mean loss of the steps since the last epoch end; NaN at epoch 0."""
    compute_outputs: Callable[[], Mapping[str, NDArray[np.float32]]] | None
    """Split to (examples, outputs) logits or values, computed when it is called: by every process, before the next
    moment. NonFiniteLossError when they are not finite. None between epochs."""


OnStep = Callable[[StepLog, float], None]
"""Called with the log of each step, when it is known, and the seconds of training since the last call."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How many optimizer steps a run takes, and which of them are snapshots."""

    epoch_steps: tuple[int, ...]
    """Steps of each epoch: the same, unless a budget of tokens cuts the batches."""
    num_steps: int
    snapshot_steps: int | str | None = None

    @classmethod
    def of(cls, config: RunConfig, lengths: NDArray[np.int64]) -> "Plan":
        """``lengths``: (examples,) tokens of the training examples."""
        if config.batch_tokens is None:
            steps = (-(-len(lengths) // config.batch_size),) * config.num_epochs
        else:
            steps = tuple(len(epoch_batches(lengths, config, epoch)) for epoch in range(config.num_epochs))
        return cls(steps, min(sum(steps), config.max_steps or sum(steps)), config.snapshot_steps)

    def epochs_done(self, step: int) -> float:
        """Epochs done after a number of steps; a fraction within an epoch."""
        ends = np.cumsum(self.epoch_steps)
        epoch = min(int(np.searchsorted(ends, step)), len(ends) - 1)
        size = self.epoch_steps[epoch]
        return float((epoch * size + step - (ends[epoch] - size)) / size)  # step / size where all epochs are alike

    def is_epoch_end(self, step: int) -> bool:
        """Whether an epoch, or training, ends with this step."""
        return step in (0, self.num_steps, *accumulate(self.epoch_steps))

    def is_snapshot(self, step: int) -> bool:
        """Whether a snapshot between epochs is due after this step."""
        if self.snapshot_steps is None:
            return False
        if self.snapshot_steps == "log":
            return step & (step - 1) == 0
        return step % int(self.snapshot_steps) == 0


def train(
    accelerator: Any,
    model: Classifier,
    data: EncodedTask,
    config: RunConfig,
    recorder: Recorder,
    on_step: OnStep,
    resumer: Resumer,
    facts: dict[str, Any],
) -> Iterator[Moment]:
    """Fine-tune ``model`` in place; yield epoch 0 first, then every epoch end and snapshot step.

    A run that was cut short goes on behind its last state, and yields what is left. Components are frozen before this
    is called. NonFiniteLossError names the step at which training diverged, by its
    gradient or by the outputs that are scored. ``facts``: what the manifest says of how steps ran is put here.
    """
    plan = Plan.of(config, data.splits["train"].lengths)
    stepper = Stepper(accelerator, model, data, config, plan.num_steps, recorder)
    outputs = partial(evaluate, accelerator, model, data)
    try:
        yield from run_epochs(plan, data, config, stepper, outputs, on_step, resumer)
    finally:
        facts["cuda_graph"] = stepper.graph_facts()
        stepper.release()


class TakesSteps(Trainer, Protocol):
    """A trainer that takes one step at a time."""

    data: EncodedTask
    """What its steps learn from, of which the loop puts that of each epoch there."""
    report: Callable[[StepLog], None]
    """Is given the log of each step, by `take` or later, and by `settle` at the latest."""

    def take(self, indices: NDArray[np.int64], step: int) -> Any:
        """One update on a batch; ``step`` counts from 0."""

    def settle(self) -> None:
        """Report all steps that were taken, and leave the model as others know it."""


def run_epochs(
    plan: Plan,
    data: EncodedTask,
    config: RunConfig,
    stepper: TakesSteps,
    outputs: Callable[[], Mapping[str, NDArray[np.float32]]],
    on_step: OnStep,
    resumer: Resumer,
) -> Iterator[Moment]:
    """Have ``stepper`` take every batch and yield the moments, whatever it is that trains."""

    def checked(step: int) -> Mapping[str, NDArray[np.float32]]:
        check_outputs(answers := outputs(), step)
        return answers

    reported = time.perf_counter()

    def report(log: StepLog) -> None:
        nonlocal reported
        now = time.perf_counter()
        losses.append(log.loss)
        on_step(log, now - reported)
        reported = now

    losses: list[float] = resumer.restore(stepper).get("losses", np.empty(0)).tolist()
    stepper.report = report
    lengths, step, end = data.splits["train"].lengths, resumer.step, 0
    if not step:
        yield Moment(0, 0, True, float("nan"), partial(checked, 0))
    for epoch, size in enumerate(plan.epoch_steps):
        start, end = end, min(end + size, plan.num_steps)
        if step >= end:
            continue
        batches = epoch_batches(lengths, config, epoch)[step - start : end - start]
        if data.masking is not None:
            stepper.data = data.of_epoch(config.seed, epoch)
        reported = time.perf_counter()
        for indices in batches:
            stepper.take(indices, step)
            step += 1
            is_snapshot = plan.is_snapshot(step) and not plan.is_epoch_end(step)
            if step == end or is_snapshot:
                stepper.settle()
            if step == end:
                break  # somebody who asks for the run to end now gets the scores of the epoch too
            if is_snapshot:
                yield Moment(plan.epochs_done(step), step, False, float("nan"), None)
                reported = time.perf_counter()  # what others do with a moment is no training
            started = time.perf_counter()
            resumer.after_step(step, stepper, losses=losses)
            reported += time.perf_counter() - started
        yield Moment(plan.epochs_done(step), step, True, float(np.mean(losses)), partial(checked, step))
        losses.clear()
        resumer.after_epoch(step, stepper, losses=losses)
