"""The training loop: moments of fine-tuning, one after another; the caller saves."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedTask, epoch_batches, make_batch, parts_of_batch
from toolkit.models.classifier import Classifier
from toolkit.models.heads import example_losses
from toolkit.training.evaluation import evaluate
from toolkit.training.fast_step import FastStepper, serves
from toolkit.training.going_on import GoingOn, Trainer
from toolkit.training.live_drift import LiveDrift
from toolkit.training.optimizer import (
    StepLog,
    build_optimizer,
    check_finite,
    check_outputs,
    clipping_factor,
    embedding_rate,
    group_parameters,
    learning_rate_factors,
    restore_state,
    state_of,
)
from toolkit.training.recorder import Recorder


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
"""Called after each step with its log and its seconds."""


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
    going_on: GoingOn,
) -> Iterator[Moment]:
    """Fine-tune ``model`` in place; yield epoch 0 first, then every epoch end and snapshot step.

    A run that was cut short goes on behind its last state, and yields what is left. Components are frozen before this
    is called. NonFiniteLossError names the step at which training diverged, by its
    gradient or by the outputs that are scored.
    """
    plan = Plan.of(config, data.splits["train"].lengths)
    stepper = build_stepper(accelerator, model, data, config, plan.num_steps, recorder)

    def outputs() -> Mapping[str, NDArray[np.float32]]:
        stepper.settle()
        return evaluate(accelerator, model, data)

    try:
        for moment in run_epochs(plan, data, config, recorder, stepper, outputs, on_step, going_on):
            stepper.settle()
            yield moment
    finally:
        stepper.release()


def build_stepper(
    accelerator: Any, model: Classifier, data: EncodedTask, config: RunConfig, num_steps: int, recorder: Recorder
) -> "Stepper | FastStepper":
    """What takes the optimizer steps of a run of ``num_steps``: the fast one for AdamW in a single CPU process.

    The plain one for what :func:`toolkit.training.fast_step.serves` leaves to it.
    """
    kind = FastStepper if config.optimizer == "adamw" and serves(accelerator, model) else Stepper
    return kind(accelerator, model, data, config, num_steps, recorder)


class TakesSteps(Trainer, Protocol):
    """A trainer that takes one step at a time."""

    data: EncodedTask
    """What its steps learn from, of which the loop puts that of each epoch there."""

    def take(self, indices: NDArray[np.int64], step: int) -> StepLog:
        """One update on a batch; ``step`` counts from 0."""


def run_epochs(
    plan: Plan,
    data: EncodedTask,
    config: RunConfig,
    recorder: Recorder,
    stepper: TakesSteps,
    outputs: Callable[[], Mapping[str, NDArray[np.float32]]],
    on_step: OnStep,
    going_on: GoingOn,
) -> Iterator[Moment]:
    """Have ``stepper`` take every batch and yield the moments, whatever it is that trains.

    ``recorder`` is given the coming batches; the stepper makes it record them.
    """

    def checked(step: int) -> Mapping[str, NDArray[np.float32]]:
        check_outputs(found := outputs(), step)
        return found

    losses: list[float] = going_on.restore(stepper).get("losses", np.empty(0)).tolist()
    lengths, step, end = data.splits["train"].lengths, going_on.step, 0
    if not step:
        yield Moment(0, 0, True, float("nan"), partial(checked, 0))
    for epoch, size in enumerate(plan.epoch_steps):
        start, end = end, min(end + size, plan.num_steps)
        if step >= end:
            continue
        batches = epoch_batches(lengths, config, epoch)[step - start : end - start]
        of_epoch = data
        if data.masking is not None:
            stepper.data = of_epoch = data.of_epoch(config.seed, epoch)
        recorder.expect(batches, of_epoch)
        for indices in batches:
            started = time.perf_counter()
            log = stepper.take(indices, step)
            step += 1
            losses.append(log.loss)
            on_step(log, time.perf_counter() - started)
            if step == end:
                break  # somebody who asks for the run to end now gets the scores of the epoch too
            if plan.is_snapshot(step) and not plan.is_epoch_end(step):
                yield Moment(plan.epochs_done(step), step, False, float("nan"), None)
            going_on.after_step(step, stepper, losses=losses)
        yield Moment(plan.epochs_done(step), step, True, float(np.mean(losses)), partial(checked, step))
        losses = []
        going_on.after_epoch(step, stepper, losses=losses)


class Stepper:
    """One optimizer step at a time over a global batch, whatever the number of processes and accumulation steps."""

    def __init__(
        self,
        accelerator: Any,
        model: Classifier,
        data: EncodedTask,
        config: RunConfig,
        num_steps: int,
        recorder: Recorder,
    ) -> None:
        self.accelerator, self.data, self.config, self.recorder = accelerator, data, config, recorder
        self.groups = group_parameters(model, config)
        self.factors = learning_rate_factors(num_steps, config.warmup_fraction)
        self.embedding_rate = embedding_rate(model, self.groups)
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = list(self.trained.values())
        self.live = LiveDrift(recorder.tables)
        optimizer = build_optimizer(model, self.groups, config, accelerator.device)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.model.train()

    def take(self, indices: NDArray[np.int64], step: int) -> StepLog:
        """Backward passes over this process's parts of a global batch, then one update; ``step`` counts from 0."""
        accelerator = self.accelerator
        factor = float(self.factors[step])
        for group, own in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["lr"] = own.rate * factor
        num_parts = accelerator.num_processes * accelerator.gradient_accumulation_steps
        loss_sum, norm = torch.zeros((), device=accelerator.device), 0.0
        parts = parts_of_batch(indices, num_parts)[accelerator.process_index :: accelerator.num_processes]
        split = self.data.splits["train"]
        num_rows = int(split.sizes_of(indices).sum())
        for part, weight in parts:
            with accelerator.accumulate(self.model):
                weights = np.repeat(weight, split.sizes_of(part))
                losses = self._losses(part) * torch.from_numpy(weights).to(accelerator.device)
                loss_sum += losses.detach().sum()
                # Accelerate divides by the accumulation steps and DDP by the processes; the sum over the global batch
                # divided by its answers is what we want.
                accelerator.backward(losses.sum() * (num_parts / num_rows))
                if accelerator.sync_gradients:
                    norm = self._clip(indices, factor, step)
                self.optimizer.step()
                self.optimizer.zero_grad()
        self.recorder.step_sizes += self.live.after_update()
        loss = float(accelerator.reduce(loss_sum, "sum")) / num_rows
        return StepLog(step + 1, loss, self.config.learning_rate * factor, norm)

    def _losses(self, indices: NDArray[np.int64]) -> torch.Tensor:
        """(rows,) loss of each example, or word."""
        split, device = self.data.splits["train"], self.accelerator.device
        batch = {k: v.to(device) for k, v in make_batch(split, indices, self.data).items()}
        assert split.labels is not None
        labels = torch.from_numpy(split.labels[split.rows_of(indices)]).to(device)
        return example_losses(self.data.task.kind, self.model(**batch), labels)

    def _clip(self, indices: NDArray[np.int64], factor: float, step: int) -> float:
        """Record the step and clip; NonFiniteLossError, on every process alike, when the gradient is not finite."""
        if self.accelerator.is_main_process:
            self.recorder.record_batch(indices)
            self.live.before_update(step + 1)
        norm = float(self.accelerator.clip_grad_norm_(self.parameters, self.config.max_gradient_norm))
        check_finite(norm, step)
        rates = (self.embedding_rate * factor, self.config.head_rate * factor)
        self.recorder.record_rates(*rates, clipping_factor(norm, self.config.max_gradient_norm))
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and moments of what is trained."""
        return state_of(self.trained, self.optimizer)

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up what :meth:`state` gave."""
        restore_state(self.trained, self.optimizer, state)

    def settle(self) -> None:
        """No-op: parameters are never swapped here."""

    def release(self) -> None:
        """No-op: the parameters keep their memory."""
