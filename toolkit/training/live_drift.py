"""A live word on the embedding parameters as they train: how far they are, how large a step is, and what is wrong."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.snapshots.logs import Exposure
from toolkit.snapshots.snapshot import sums_of_squares

MOST_ROWS = 4096
"""Of a table, looked at in a step at most."""
LARGE_LOST_SHARE = 0.5
"""Share of updates lost to rounding from which there is a warning."""
IN_FLOAT32 = "keep the weights in float32 and compute in half precision (autocast), or raise the learning rate"


def drift_and_norms(reference: Mapping[str, NDArray[Any]], tensors: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """``norm/<parameter>`` and ``drift/<parameter>``: ‖E‖ and ‖E - E⁰‖ / ‖E⁰‖ over all values (Frobenius norms).

    Drift is NaN where E⁰ is 0.
    """
    values = {}
    for name, now in tensors.items():
        of_change, of_reference, of_now = sums_of_squares(reference[name], now)
        values[f"norm/{name}"] = math.sqrt(of_now)
        values[f"drift/{name}"] = math.sqrt(of_change / of_reference) if of_reference else math.nan
    return values


class StepSize(NamedTuple):
    """What one optimizer step did to one parameter, of its rows with a gradient (MOST_ROWS of them at most)."""

    step: int
    parameter: str
    update_to_weight: float
    """Norm of the update over norm of the weights before; NaN where these are 0, or where it is not finite."""
    lost_to_rounding: float
    """Share of the values with a gradient that are as they were."""

    def series(self) -> dict[str, float]:
        """Its two numbers for a tracker."""
        return {f"{kind}/{self.parameter}": getattr(self, kind) for kind in self._fields[2:]}


def as_columns(sizes: Iterable[StepSize]) -> dict[str, list[Any]]:
    """``step_sizes`` of a manifest; NaN is stored as null, since JSON has none."""
    columns = zip(*sizes, strict=True) if (sizes := list(sizes)) else ((),) * len(StepSize._fields)
    named = zip(StepSize._fields, columns, strict=True)
    return {name: [None if value != value else value for value in column] for name, column in named}


class LiveDrift:
    """Looks at a step now and then, and warns of each thing once.

    A step is looked at before and after its update, where its number is a power of two, in at most MOST_ROWS rows with
    a gradient: so it costs nearly nothing. Parameters that processes share out (DTensor) are left alone.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        shown: str = "",
        gradient_of: Callable[[str], torch.Tensor | None] | None = None,
    ) -> None:
        """``parameters``: canonical name to the live parameter; ``shown``: what warnings call the run;
        ``gradient_of``: name to its gradient, where the parameter's own ``.grad`` does not hold it."""
        self._parameters, self._shown = parameters, shown
        self._gradient_of = gradient_of or (lambda name: parameters[name].grad)
        self._step = 0
        self._before: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        """Of each parameter looked at: its rows, their values before the update, and which of these have a gradient."""
        self._warned: set[tuple[str, str]] = set()
        self._trainable, self._has_gradient = set[str](), set[str]()
        self._rates: dict[str, list[float]] = {}
        """Of each parameter that was trainable at a step that was looked at, its learning rates there; NaN for one
        that cannot be told, and nothing where the optimizer did not hold it."""
        self.values: dict[str, float] = {}
        """Of the last step that was looked at: ``update_to_weight/<parameter>``, norm of the update over norm of the
        weights, of the rows with a gradient; ``lost_to_rounding/<parameter>``, the share of their values with a
        gradient that the update left as they were."""
        self.sizes: list[StepSize] = []
        """The same of all steps that were looked at."""

    def before_update(
        self,
        step: int,
        groups: Iterable[Mapping[str, Any]] = (),
        values: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Note what step number ``step``, from 1, of an optimizer with these parameter groups will change.

        What it does not hold, or holds at a rate of 0, takes no step. Without groups all that is trainable does.
        ``values``: name to the parameter before the update, where that has been made and gradients are kept.
        """
        groups = list(groups)
        trainable = {name: p for name, p in self._parameters.items() if p.requires_grad}
        self._trainable |= trainable.keys()
        # Powers of two alone: the first steps are seen closely, and a long training pays next to nothing.
        if step & (step - 1):
            return
        self._step = step
        rates = {id(p): _number(group.get("lr")) for group in groups for p in group["params"]}
        for name, parameter in trainable.items():
            rates_so_far = self._rates.setdefault(name, [])
            rates_so_far += [rates[id(parameter)]] if id(parameter) in rates else []
            gradient = self._gradient_of(name)
            if gradient is None or hasattr(parameter, "full_tensor"):
                continue
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            rows = gradient.reshape(len(gradient), -1).any(dim=1).nonzero()[:, 0]
            if len(rows):
                self._has_gradient.add(name)
            if len(rows) and (not groups or rates.get(id(parameter))):
                rows = rows[:: math.ceil(len(rows) / MOST_ROWS)]  # evenly, of many
                before = parameter.detach() if values is None else values[name]
                self._before[name] = rows, before[rows], gradient[rows] != 0

    def copy_values(self) -> dict[str, torch.Tensor]:
        """Name to a copy of each parameter that is trained, for :meth:`before_update`."""
        return {name: p.detach().clone() for name, p in self._parameters.items() if p.requires_grad}

    def after_update(self) -> list[StepSize]:
        """The sizes of the step: what was noted compared with what the update made of it, before anything changes."""
        sizes = []
        for name, (rows, before, has_gradient) in self._before.items():
            now = self._parameters[name].detach()[rows]
            size = before.double().norm().item()
            ratio = (now.double() - before.double()).norm().item() / size if size else math.nan
            ratio = ratio if math.isfinite(ratio) else math.nan
            lost = float(((now == before) & has_gradient).sum() / has_gradient.sum())
            sizes.append(step_size := StepSize(self._step, name, ratio, lost))
            self.values |= step_size.series()
            if lost >= LARGE_LOST_SHARE and before.dtype in (torch.float16, torch.bfloat16) and (now != before).any():
                text = f"{lost:.0%} of the values with a gradient did not change in a step: the update is below the "
                self._warn([name], "rounding", f"{text}spacing of {_dtype_name(before)}; {IN_FLOAT32}")
        self._before = {}
        self.sizes += sizes
        return sizes

    def warn_of_stillness(self, moved: Sequence[str]) -> None:
        """Warn of trainable parameters that have not moved at all, and of frozen ones that have; ``moved``: those that
        have changed so far."""
        names_by_reason: dict[str, list[str]] = {}
        for name, parameter in self._parameters.items():
            if parameter.requires_grad and name in self._rates and name not in moved:
                if reason := self._why_still(name):
                    names_by_reason.setdefault(f"trainable, but exactly as before training: {reason}", []).append(name)
            elif not parameter.requires_grad and name in moved and name not in self._trainable:
                reason = "frozen (requires_grad is False), but changed: something writes to it"
                names_by_reason.setdefault(reason, []).append(name)
        for reason, names in names_by_reason.items():
            self._warn(names, "stillness", reason)

    def warn_of_idle_adapters(self, still: Sequence[str]) -> None:
        """Warn of ``still``, the tables that have an adapter and yet are as before training."""
        reason = (
            "has an adapter, but is exactly as before training: is that frozen, not the active one, in no optimizer "
            "that stepped, or of rows that no text uses?"
        )
        self._warn(still, "stillness", reason)

    def _why_still(self, name: str) -> str:
        """Why a trainable parameter has not moved; empty where it is too early to tell (warm-up may begin at 0)."""
        rates = self._rates[name]
        if not rates:
            return "no optimizer that stepped holds it; make the optimizer after the parameter is made trainable"
        if not any(rates):
            return "the learning rate was 0 all along" if len(rates) > 1 else ""
        if name not in self._has_gradient:
            return "no gradient was seen to reach it; is it detached, unused, or behind frozen code?"
        return f"every update was lost to the rounding of {_dtype_name(self._parameters[name])}; {IN_FLOAT32}"

    def warn_of_l2(
        self,
        algorithm: str,
        weight_decay: Mapping[str, float],
        exposure: Exposure | None,
        reference: Mapping[str, NDArray[Any]],
        tensors: Mapping[str, NDArray[Any]],
    ) -> None:
        """Warn of a word table whose unexposed rows move because decay goes through Adam's moments."""
        name = "word_embeddings"
        if algorithm.partition(" ")[0] != "torch.optim.Adam" or not weight_decay.get(name) or exposure is None:
            return
        if name not in exposure.tables or name not in tensors or (name, "L2") in self._warned:
            return
        is_unexposed = exposure.tables[name].step_counts(len(tensors[name])) == 0
        before, now = reference[name][is_unexposed], tensors[name][is_unexposed]
        shares = np.linalg.norm(now - before, axis=1) / np.maximum(np.linalg.norm(before, axis=1), np.finfo(float).tiny)
        if (shares > 0).any():
            self._warn(
                [name],
                "L2",
                f"{np.count_nonzero(shares):,} rows that no text used move, by {np.median(shares[shares > 0]):.2%} "
                "at the median so far: Adam's weight_decay is added to the gradient (L2) and moves every row by up to "
                "the learning rate a step; take AdamW, or leave the word table out of decay",
            )

    def _warn(self, names: Sequence[str], kind: str, text: str) -> None:
        new_names = [name for name in names if (name, kind) not in self._warned]
        self._warned |= {(name, kind) for name in new_names}
        if new_names:
            warnings.warn(f"{self._shown}: {', '.join(new_names)}: {text}", stacklevel=4)


def _number(value: Any) -> float:
    """A learning rate; NaN for what an optimizer sets itself."""
    return math.nan if value is None else float(value)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
