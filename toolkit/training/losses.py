"""A step's outputs and labels in, its losses and what was logged of it out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class StepLog:
    """What one optimizer step did."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float


class NonFiniteLossError(RuntimeError):
    """Training diverged; what is on disk is kept."""


def check_finite(norm: float, step: int) -> None:
    """NonFiniteLossError when the gradient norm of the step (counted from 0) is not finite.

    The norm, unlike a process's loss, is the same on every process, so that all stop together.
    """
    if not np.isfinite(norm):
        raise NonFiniteLossError(
            f"the loss or its gradient is not finite at step {step + 1}: training stopped, what is on disk is kept; "
            "lower the learning rate or pass --precision no"
        )


def check_outputs(outputs: Mapping[str, NDArray[np.float32]], step: int) -> None:
    """NonFiniteLossError when a split's outputs (examples, width) after so many steps are not finite.

    The last step has no next one whose gradient would show it, and the greatest of NaNs is a class like any other.
    """
    for split, values in outputs.items():
        if not np.isfinite(values).all():
            when, remedy = (
                (f"at step {step}", "lower the learning rate")
                if step
                else ("before training", "use another checkpoint")
            )
            raise NonFiniteLossError(
                f"the model's outputs for {split} are not finite {when}: training stopped, what is on disk is kept; "
                f"{remedy} or pass --precision no"
            )


def clipping_factor(norm: float, limit: float) -> float:
    """By what ``torch.nn.utils.clip_grad_norm_`` multiplies gradients of this norm."""
    return min(1.0, limit / (norm + 1e-6))


def example_losses(kind: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(rows,) cross-entropy in nats of each example or word, or squared error in regression."""
    if kind != "regression":
        return functional.cross_entropy(outputs, labels, reduction="none")
    return (outputs[:, 0] - labels.float()) ** 2


def constant_loss(kind: str, labels: NDArray[Any]) -> float:
    """Least mean of :func:`example_losses` of an answer that is the same for all rows.

    ``labels``: (rows,) classes, of which the entropy in nats is returned, or values, of which the variance.
    """
    if kind == "regression":
        return float(np.var(labels))
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-(shares * np.log(shares)).sum())
