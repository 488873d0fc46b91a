"""A live word on the embedding parameters as they train: how far they are, how large a step is, and what is wrong."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.snapshots.logs import Exposure

ROWS = 4096
"""Of a table, read at a time."""
MUCH_LOST = 0.5
"""Share of updates lost to rounding from which there is a warning."""

IN_FLOAT32 = "keep the weights in float32 and compute in half precision (autocast), or raise the learning rate"


def relative_drift(reference: Mapping[str, NDArray[Any]], tensors: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """``drift/<parameter>``: ‖E - E⁰‖ / ‖E⁰‖ over all values of a parameter (Frobenius norms); NaN where E⁰ is 0."""
    found = {}
    for name, now in tensors.items():
        squares = np.zeros(2)
        for start in range(0, len(now), ROWS):
            before = reference[name][start : start + ROWS].astype(np.float64)
            squares += np.square(now[start : start + ROWS] - before).sum(), np.square(before).sum()
        found[f"drift/{name}"] = math.sqrt(squares[0] / squares[1]) if squares[1] else math.nan
    return found


class LiveDrift:
    """Looks at a step now and then, and warns of each thing once.

    A step is looked at before and after its update, where its number is a power of two: copies of the rows with a
    gradient cost nothing then. Parameters that processes share out (DTensor) are left alone.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], shown: str) -> None:
        """``parameters``: canonical name to the live parameter; ``shown``: what warnings call the run."""
        self._parameters, self._shown = parameters, shown
        self._before: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._said: set[tuple[str, str]] = set()
        self._has_gradient: set[str] = set()
        self.values: dict[str, float] = {}
        """Of the last step that was looked at: ``update_to_weight/<parameter>``, norm of the update over norm of the
        weights, of the rows with a gradient; ``lost_to_rounding/<parameter>``, the share of their values with a
        gradient that the update left as they were."""

    def before_update(self, step: int) -> None:
        """Copy what step number ``step``, from 1, will change, if it is one to look at."""
        if step & (step - 1):
            return
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            if gradient is None or not parameter.requires_grad or hasattr(parameter, "full_tensor"):
                continue
            has_gradient = (gradient.to_dense() if gradient.is_sparse else gradient) != 0
            rows = has_gradient.reshape(len(has_gradient), -1).any(dim=1).nonzero()[:, 0]
            if len(rows):
                self._has_gradient.add(name)
                self._before[name] = rows, parameter.detach()[rows], has_gradient[rows]

    def after_update(self) -> None:
        """Hold the copies against what the update made of them; call it before anything else changes."""
        for name, (rows, before, has_gradient) in self._before.items():
            now = self._parameters[name].detach()[rows]
            change, size = now.double() - before.double(), before.double().norm().item()
            self.values[f"update_to_weight/{name}"] = change.norm().item() / size if size else math.nan
            lost = ((change == 0) & has_gradient).sum() / has_gradient.sum()
            self.values[f"lost_to_rounding/{name}"] = float(lost)
            if lost >= MUCH_LOST and change.any():
                self._warn(
                    [name],
                    "rounding",
                    f"{float(lost):.0%} of the values with a gradient did not change in a step: the update is below "
                    f"the spacing of {_called(before)}; {IN_FLOAT32}",
                )
        self._before = {}

    def warn_of_stillness(self, moved: Sequence[str], held: Mapping[str, float], rates: Sequence[float]) -> None:
        """Warn of trainable parameters that have not moved at all, and of frozen ones that have.

        ``moved``: those that have changed so far; ``held``: those that the optimizer holds; ``rates``: its learning
        rate at each step so far.
        """
        if not rates:
            return
        found: dict[str, list[str]] = {}
        for name, parameter in self._parameters.items():
            if parameter.requires_grad and name not in moved:
                why = f"trainable, but exactly as before training: {self._why_still(name, held, rates)}"
                found.setdefault(why, []).append(name)
            elif not parameter.requires_grad and name in moved and name not in held:
                why = "frozen (requires_grad is False), but changed: something writes to it"
                found.setdefault(why, []).append(name)
        for why, names in found.items():
            self._warn(names, "stillness", why)

    def _why_still(self, name: str, held: Mapping[str, float], rates: Sequence[float]) -> str:
        if name not in held:
            return "no optimizer holds it; make the optimizer after the parameter is made trainable"
        if not any(rate > 0 for rate in rates):
            return "the learning rate was 0 all along"
        if name not in self._has_gradient:
            return "no gradient was seen to reach it; is it detached, unused, or behind frozen code?"
        dtype = _called(self._parameters[name])
        return (
            f"every update was lost to the rounding of {dtype}; keep the weights in float32, or raise the learning rate"
        )

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
        if name not in exposure.tables or name not in tensors or (name, "L2") in self._said:
            return
        is_unexposed = exposure.tables[name].step_counts(len(tensors[name])) == 0
        before, now = (own[name][is_unexposed] for own in (reference, tensors))
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
        new = [name for name in names if (name, kind) not in self._said]
        self._said |= {(name, kind) for name in new}
        if new:
            warnings.warn(f"{self._shown}: {', '.join(new)}: {text}", stacklevel=4)


def _called(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
