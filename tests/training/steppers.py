"""A step without any of what makes ours fast, and ours as a GPU takes it, on a CPU."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedTask, make_batch, parts_of_batch
from toolkit.models.classifier import Classifier
from toolkit.models.heads import example_losses
from toolkit.training.live_drift import LiveDrift
from toolkit.training.optimizer import (
    StepLog,
    build_optimizer,
    check_finite,
    clipping_factor,
    embedding_rate,
    group_parameters,
    learning_rate_factors,
)
from toolkit.training.step import Stepper
from toolkit.training.step_recorder import Recorder


class PlainStepper:
    """The step as Accelerate, torch.optim and autograd take it, parameter by parameter: what ours is held against."""

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
        self.report = lambda log: None
        self.model.train()

    def take(self, indices: NDArray[np.int64], step: int) -> None:
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
        self.report(StepLog(step + 1, loss, self.config.learning_rate * factor, norm))

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
            tables, rows = self.recorder.tables, self.recorder.rows_of(self.data, indices)
            gradients = {name: tables[name].grad for name in rows.rows if tables[name].grad is not None}
            norms = {name: gradient[rows.rows[name][0]].norm(dim=1).numpy() for name, gradient in gradients.items()}
            self.recorder.record_batch(rows, norms)
            self.live.before_update(step + 1)
        norm = float(self.accelerator.clip_grad_norm_(self.parameters, self.config.max_gradient_norm))
        check_finite(norm, step)
        rates = (self.embedding_rate * factor, self.config.head_rate * factor)
        self.recorder.record_rates(*rates, clipping_factor(norm, self.config.max_gradient_norm))
        return norm

    def settle(self) -> None:
        """No-op."""

    def release(self) -> None:
        """No-op."""


class AsIfCaptured:
    """Replays like CUDA graphs: work on memory of its own, the same for all inputs of one key."""

    def __init__(self) -> None:
        self.memory: dict[Any, dict[str, torch.Tensor]] = {}
        self.num_runs = 0

    def run(self, key: Any, inputs: Any, work: Any, warm_up: Any) -> Any:
        static = self.memory.setdefault(key, {name: torch.zeros_like(tensor) for name, tensor in inputs.items()})
        assert static.keys() == inputs.keys()
        for name, tensor in inputs.items():
            static[name].copy_(tensor)
        self.num_runs += 1
        return work(static)


class StepperOfGraphs(Stepper):
    """Fills every batch up and keeps its memory, as graphs need it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.graphs: Any = AsIfCaptured()
        self.memory = self.graphs.memory
