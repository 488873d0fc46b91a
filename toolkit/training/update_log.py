"""The steps of anybody's optimizer in, the log of those that update the embedding parameters out."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from toolkit.snapshots.optimizer_log import OptimizerLog

NOT_REPLAYED = "updates cannot be replayed"


class UpdateLog:
    """The hyperparameters and learning rates of the optimizer that updates the embedding parameters."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._optimizer: torch.optim.Optimizer | None = None
        self._first: dict[str, Any] | None = None
        self._rates: list[float] = []
        self.problem: str | None = None

    @property
    def num_steps(self) -> int:
        return len(self._rates)

    def concerns(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
        """Whether a step of this optimizer is a step of the run: the first one that updates what is of interest.

        One that updates embedding parameters beside it is a problem: the log would call frozen what it moves.
        """
        if self._optimizer is None:
            trainable = [p for p in self._parameters.values() if p.requires_grad]
            wanted = {id(p) for p in trainable or model.parameters()}
            own = {id(p) for group in optimizer.param_groups for p in group["params"]}
            self._optimizer = None if own.isdisjoint(wanted) else optimizer
        if self._optimizer is not None and optimizer is not self._optimizer:
            self._note_another(optimizer, self._optimizer)
        return optimizer is self._optimizer

    def _note_another(self, optimizer: torch.optim.Optimizer, followed: torch.optim.Optimizer) -> None:
        """Note a step of another optimizer; a wrapper such as SAM shares its groups with the one that it wraps."""
        shared = {id(group) for group in followed.param_groups}
        own = {id(p) for group in optimizer.param_groups if id(group) not in shared for p in group["params"]}
        names = [name for name, p in self._parameters.items() if p.requires_grad and id(p) in own]
        if names:
            self.problem = (
                f"{', '.join(names)}: held by another optimizer than the one logged, which steps too: {NOT_REPLAYED}"
            )

    def note_moved(self, moved: Iterable[str]) -> None:
        """Note parameters that changed although the logged optimizer does not hold them: by no optimizer, as it seems.

        One that is trainable, in no optimizer and never changes is frozen, as the log has it.
        """
        held = self._first["weight_decay"] if self._first else {}
        names = [name for name in moved if name not in held]
        if names and self.problem is None:
            self.problem = f"{', '.join(names)}: changed, but not by the optimizer that was logged: {NOT_REPLAYED}"

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Note one step of an optimizer, before it."""
        groups = {
            name: group
            for name, parameter in self._parameters.items()
            for group in optimizer.param_groups
            if any(parameter is p for p in group["params"]) and parameter.requires_grad
        }
        rates = {_number(group["lr"]) for group in groups.values()}
        self._rates.append(rates.pop() if rates else float("nan"))
        if rates:
            self.problem = f"the embedding parameters have different learning rates: {NOT_REPLAYED}"
        settings = next(iter(groups.values()), optimizer.defaults)
        betas = settings.get("betas")
        if self._first is None and (taken := _steps_taken(optimizer, self._parameters)):
            self.problem = (
                f"the optimizer had taken {taken} steps before recording began, whose moments are not known: "
                f"{NOT_REPLAYED}"
            )
        first = {
            "algorithm": _algorithm(optimizer, list(groups.values()) or [optimizer.defaults]),
            "is_fused": any(bool(group.get("fused")) for group in groups.values()),
            "betas": tuple(map(_number, betas if isinstance(betas, tuple | list) else (None, None))),
            "eps": _number(settings.get("eps")),
            "weight_decay": {name: _number(group.get("weight_decay", 0.0)) for name, group in groups.items()},
        }
        # As text, in which an undefined number equals itself.
        if self._first is not None and repr(first) != repr(self._first):
            self.problem = f"the optimizer, its weight decay or what it updates changed during training: {NOT_REPLAYED}"
        self._first = self._first or first

    def optimizer_log(self, dtype: torch.dtype) -> OptimizerLog | None:
        """The log of the steps so far; None without steps, or when one log cannot describe them."""
        if self._first is None or self.problem:
            return None
        rates = np.array(self._rates, dtype=np.float64)
        none = np.full(len(rates), np.nan)
        precision = "no" if dtype == torch.float32 else str(dtype).removeprefix("torch.")
        ones = np.ones(len(rates))  # the recorded norms are those after clipping
        return OptimizerLog(
            **self._first, learning_rates=rates, head_learning_rates=none, clipping_factors=ones, precision=precision
        )


def _number(value: Any) -> float:
    """A number, or a tensor of one, as a float; NaN for anything else that an optimizer may keep there."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _steps_taken(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> int:
    """Steps that the optimizer's state counts for any of the parameters: it may have been loaded, or used before."""
    steps = [optimizer.state[p].get("step", 0) for p in parameters.values() if p in optimizer.state]
    return max((int(_number(step)) for step in steps), default=0)


def _algorithm(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> str:
    """``torch.optim.AdamW`` or ``torch.optim.SGD`` for exactly these with the update that is replayed, another text for
    anything else: SGD with momentum, or with decay, which it adds to the gradient.
    """
    kind = type(optimizer)
    name = f"{'torch.optim' if kind.__module__.startswith('torch.optim.') else kind.__module__}.{kind.__name__}"
    keys = ("momentum", "weight_decay", "maximize") if kind is torch.optim.SGD else ("amsgrad", "maximize")
    variants = [key for key in keys if any(group.get(key, optimizer.defaults.get(key)) for group in groups)]
    return f"{name} ({', '.join(variants)})" if variants else name
