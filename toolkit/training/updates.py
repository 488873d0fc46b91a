"""What optimizers do to the embedding parameters of a recorded loop: whose steps, how, and what moved by none."""

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from toolkit.snapshots.files import sha256_of_array
from toolkit.snapshots.logs import NOT_REPLAYED, OptimizerLog
from toolkit.snapshots.snapshot import to_array
from toolkit.training.step_recorder import LOGS, Recorder

UNKNOWN_MODE = (
    "the optimizer has a train() and an eval() and does not say which it is in: whether the snapshots are the weights "
    "that are trained or those that are saved is not known"
)
NAN = float("nan")
UNKNOWN_SETTINGS: Mapping[str, Any] = {"algorithm": "", "weight_decay": {}}
"""What is known of the settings of an optimizer that torch does not know."""


class Updates:
    """Follows whichever optimizer holds the embedding parameters, and says what one log can describe of it.

    Parameters that change while no optimizer that was seen to step holds them were moved by steps that were not seen.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], adapted: Collection[str] = ()) -> None:
        """``parameters``: canonical name to the live parameter; ``adapted``: those that adapters change, whose factors
        any optimizer may hold."""
        self._parameters, self._adapted = parameters, adapted
        self._holder: Any = lambda: None
        """Weakly, the optimizer that held trainable embedding parameters last."""
        self._seen: list[Any] = []
        """Weakly, every optimizer of the model."""
        self._step_of_holder = 0
        self._first: Mapping[str, Any] | None = None
        self._last: Mapping[str, Any] | None = None
        """Settings in the first step, and in the last one."""
        self._moved: set[str] = set()
        """What steps since the last snapshot may have moved."""
        self._trained = {name for name, p in parameters.items() if p.requires_grad}
        self._frozen_since: dict[str, tuple[int, str]] = {}
        self.steps_before = 0
        """Steps that the optimizer had taken when recording began."""
        self.problem: str | None = None
        """Why updates cannot be replayed; None while they can."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Algorithm and weight decay by parameter at the first step; of neither anything before it."""
        return self._first or self._last or UNKNOWN_SETTINGS

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Every optimizer of the model that was seen to step and is still there."""
        return [optimizer for reference in self._seen if (optimizer := reference()) is not None]

    def note_step(self, optimizer: torch.optim.Optimizer | None, recorder: Recorder, *, is_first: bool) -> None:
        """Note an optimizer's part in the step that ``recorder`` counted last, before its update.

        ``is_first``: no other optimizer has had a part in it. None: one that torch does not know, which may hold
        anything.
        """
        if is_first:
            self._check_last()
            self._first, self._last = self._first or self._last, None
        if optimizer is None:
            self._moved |= self._parameters.keys()
            self._last = self._last or UNKNOWN_SETTINGS
            return
        is_new = not any(seen is optimizer for seen in self.optimizers)
        if is_new:
            self._seen = [weakref.ref(seen) for seen in (*self.optimizers, optimizer)]
        group_by_name = {
            name: group
            for name, parameter in self._parameters.items()
            for group in optimizer.param_groups
            if any(parameter is p for p in group["params"])
        }
        self._moved |= group_by_name.keys() | set(self._adapted)
        trained = {name: group for name, group in group_by_name.items() if self._parameters[name].requires_grad}
        rates = {_number(group["lr"]) for group in trained.values() or optimizer.param_groups}
        if trained:
            recorder.learning_rates[-1] = rates.pop()
            if rates:
                self._refuse("the embedding parameters have different learning rates")
        elif not self._trained:  # frozen: the rate of all else, where it has one
            is_one = len(rates) == 1 and (is_first or recorder.learning_rates[-1] in rates)
            recorder.learning_rates[-1] = rates.pop() if is_one else NAN
        if trained and not self._follow(optimizer, list(trained), recorder.num_steps, is_new=is_new):
            return
        if trained or self._last is None:
            self._last = _settings_of(optimizer, trained)

    def _follow(self, optimizer: torch.optim.Optimizer, names: list[str], step: int, *, is_new: bool) -> bool:
        """Whether this optimizer holds the embedding parameters from now on, and not within another, whose groups it
        shares."""
        previous = self._holder()
        has_stepped = self._step_of_holder > 0
        group_ids = set() if previous is None else {id(group) for group in previous.param_groups}
        is_inner = previous is not optimizer and any(id(group) in group_ids for group in optimizer.param_groups)
        if is_inner and self._step_of_holder == step:
            return False
        if not has_stepped and self._first is None:
            nums_taken = [optimizer.state[p].get("step", 0) for p in self._parameters.values() if p in optimizer.state]
            self.steps_before = max((int(_number(num_taken)) for num_taken in nums_taken), default=0)
            if self.steps_before:
                problem = f"had taken {self.steps_before} steps before recording began, whose moments are not known"
                self._refuse(f"the optimizer {problem}")
        elif previous is not optimizer and not is_inner and (is_new or previous is not None):
            does_step_too = self._step_of_holder in (step, step - 1) and previous is not None
            why = (
                "held by another optimizer than the one logged, which steps too"
                if does_step_too
                else f"held from step {step} on by another optimizer, made anew or in its first turn"
            )
            self._refuse(f"{', '.join(names)}: {why}")
        self._holder, self._step_of_holder = weakref.ref(optimizer), step
        return True

    def _check_last(self) -> None:
        """Hold the settings of the last step against those of the first."""
        if self._last is UNKNOWN_SETTINGS:
            self._refuse("the optimizer is no torch.optim.Optimizer, and its settings are not known")
        # As text, in which an undefined number equals itself.
        elif self._last is not None and self._first is not None and repr(self._last) != repr(self._first):
            self._refuse("the optimizer, its weight decay or what it updates changed during training")

    def _refuse(self, why: str) -> None:
        self.problem = self.problem or f"{why}: {NOT_REPLAYED}"

    def note_frozen(self, step: int) -> None:
        """Remember what was trained and is frozen now, as it is before step ``step`` + 1."""
        for name, parameter in self._parameters.items():
            if parameter.requires_grad:
                self._trained.add(name)
                self._frozen_since.pop(name, None)
            elif name in self._trained:
                self._trained.remove(name)
                self._frozen_since[name] = step, sha256_of_array(to_array(parameter))

    def moved_though_frozen(self, tensors: Mapping[str, Any]) -> Iterator[str]:
        """A sentence for each parameter that was frozen after it had been trained, and has moved since."""
        for name, (step, digest) in self._frozen_since.items():
            if sha256_of_array(tensors[name]) != digest:
                reason = "something writes to it"
                if self._parameters[name].grad is not None:
                    reason = (
                        "its gradient is 0 and not None, so that the optimizer goes on with its moments and decay: set "
                        "it to None"
                    )
                yield f"{name}: frozen since step {step}, moved since ({reason})"

    def unseen(self, changed: Iterable[str]) -> list[str]:
        """Which of the parameters that changed since the last snapshot no step that was seen can have moved."""
        names = [name for name in changed if name not in self._moved]
        if names:
            self._refuse(f"{', '.join(names)}: changed, but not by the optimizer that was logged")
        self._moved = set()
        return names

    @contextmanager
    def as_saved(self) -> Iterator[None]:
        """Inside, the parameters are what is evaluated and saved: of schedule-free optimizers, the average.

        Afterwards every bit is as it was: the way there and back would round. ``train_mode`` is what these optimizers
        keep in their groups (Defazio et al. 2024, arXiv 2405.15682; the package schedulefree).
        """
        with torch.no_grad(), ExitStack() as stack:
            optimizer: Any
            for optimizer in self.optimizers:
                if not (callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))):
                    continue
                if not all("train_mode" in group for group in optimizer.param_groups):
                    self.problem = self.problem or UNKNOWN_MODE
                elif any(group["train_mode"] for group in optimizer.param_groups):
                    parameters = [p for group in optimizer.param_groups for p in group["params"]]
                    stack.callback(_put_back, optimizer, parameters, [p.detach().clone() for p in parameters])
                    optimizer.eval()
            yield

    def optimizer_log(self, recorder: Recorder, dtype: torch.dtype) -> OptimizerLog | None:
        """The log of the steps so far; None without steps, or when one log cannot describe them."""
        self._check_last()  # each step is else checked when the next begins
        settings = self._first or self._last  # of a single step there is only the last
        if settings is None or self.problem:
            return None
        logs: dict[str, Any] = {name: np.array(getattr(recorder, name), np.float64) for name in LOGS}
        precision = "no" if dtype == torch.float32 else str(dtype).removeprefix("torch.")
        return OptimizerLog(**settings, **logs, precision=precision)


def _put_back(optimizer: Any, parameters: list[nn.Parameter], values: list[torch.Tensor]) -> None:
    optimizer.train()
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def _settings_of(optimizer: torch.optim.Optimizer, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a log keeps of an optimizer; ``groups``: those of the embedding parameters that it trains."""
    settings: Mapping[str, Any] = next(iter(groups.values()), optimizer.defaults)
    betas = settings.get("betas")
    return {
        "algorithm": _algorithm(optimizer, list(groups.values()) or [optimizer.defaults]),
        "is_fused": any(bool(group.get("fused")) for group in groups.values()),
        "betas": tuple(map(_number, betas if isinstance(betas, tuple | list) else (None, None))),
        "eps": _number(settings.get("eps")),
        "weight_decay": {name: _number(group.get("weight_decay", 0.0)) for name, group in groups.items()},
    }


def _algorithm(optimizer: torch.optim.Optimizer, groups: list[Any]) -> str:
    """The name of an optimizer's class, and in brackets those options by which its update is another.

    ``torch.optim.AdamW`` or ``torch.optim.SGD`` alone are exactly these, with the update that is replayed; SGD with
    momentum is another, as is SGD with decay, which it adds to the gradient.
    """
    optimizer_class = type(optimizer)
    module = optimizer_class.__module__
    name = f"{'torch.optim' if module.startswith('torch.optim.') else module}.{optimizer_class.__name__}"
    is_sgd = optimizer_class is torch.optim.SGD
    options = ("momentum", "weight_decay", "maximize") if is_sgd else ("amsgrad", "maximize")
    switched_on = [
        option for option in options if any(group.get(option, optimizer.defaults.get(option)) for group in groups)
    ]
    return f"{name} ({', '.join(switched_on)})" if switched_on else name


def _number(value: Any) -> float:
    """A number, or a tensor of one, as a float; NaN for anything else that an optimizer may keep there."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return NAN
