"""optimizer.json: what the optimizer did at each step, enough to replay the update of any row."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.lookup import REMEDY, parse_object

FORMAT = 1
"""Version of optimizer.json; a reader refuses another."""
ADAMW = "torch.optim.AdamW"
SGD = "torch.optim.SGD"
"""Without momentum, and with decoupled decay if any: a step is w ← (1 - lr·decay)·w - lr·g."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerLog:
    """The optimizer as it ran: hyperparameters, and the schedule and clipping of every optimizer step."""

    algorithm: str
    """Class of the optimizer: ADAMW or SGD where it is exactly that, which can be replayed, or another text."""
    is_fused: bool
    """Whether torch's fused kernel did the update, as it does on a CPU. On CUDA, by its source, that kernel rounds the
    decay otherwise: runs there use the plain update, so that their decay can be replayed exactly."""
    betas: tuple[float, float]
    """NaN, as ``eps``, where the optimizer has none."""
    eps: float
    weight_decay: Mapping[str, float]
    """Trainable parameter (canonical name for the five embedding parameters, full name for the rest) to its decay.
    A frozen parameter is absent: nothing is applied to it."""
    learning_rates: NDArray[np.float64]
    """(steps,) learning rate of the backbone at each step; NaN where the backbone is frozen."""
    head_learning_rates: NDArray[np.float64]
    """(steps,) learning rate of the head at each step; NaN where it was not recorded."""
    clipping_factors: NDArray[np.float64]
    """(steps,) by what the gradients were multiplied after their norms were recorded; 1 where they were not clipped,
    or were clipped before (as in the runs of ``toolkit.record``)."""
    precision: str
    """Compute precision, ``no`` (fp32) or ``bf16``; the weights and the update are fp32."""

    @property
    def num_steps(self) -> int:
        return len(self.learning_rates)

    @property
    def is_adamw(self) -> bool:
        """Whether it is torch's AdamW: others of that name, subclasses among them, may update otherwise."""
        return self.algorithm == ADAMW

    @property
    def is_sgd(self) -> bool:
        """Whether it is torch's SGD without momentum, which moves no row after its last gradient."""
        return self.algorithm == SGD

    def to_json(self) -> str:
        """The text of optimizer.json; NaN is stored as null."""
        values = {
            "format": FORMAT,
            "algorithm": self.algorithm,
            "is_fused": self.is_fused,
            "betas": _without_nan(self.betas),
            "eps": _without_nan([self.eps])[0],
            "precision": self.precision,
            "weight_decay": dict(self.weight_decay),
            "learning_rates": _without_nan(self.learning_rates.tolist()),
            "head_learning_rates": _without_nan(self.head_learning_rates.tolist()),
            "clipping_factors": self.clipping_factors.tolist(),
        }
        return json.dumps(values) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "optimizer.json") -> "OptimizerLog":
        """Inverse of :meth:`to_json`; ValueError for another format or a damaged file."""
        values = parse_object(text, source)
        if values.pop("format", None) != FORMAT:
            raise ValueError(f"{source} has another format than {FORMAT}: update the toolkit")
        try:
            for name in ("learning_rates", "head_learning_rates", "clipping_factors"):
                values[name] = np.array(_numbers(name, values[name], name != "clipping_factors"), dtype=np.float64)
                if len(values[name]) != len(values["learning_rates"]):
                    raise ValueError(f"{len(values[name])} {name}, {len(values['learning_rates'])} learning_rates")
            values["betas"] = tuple(_numbers("betas", values["betas"], True))
            (values["eps"],) = _numbers("eps", [values["eps"]], True)
            _numbers("weight_decay", list(values["weight_decay"].values()), False)
            kinds = {"algorithm": str, "precision": str, "is_fused": bool, "weight_decay": dict}
            if len(values["betas"]) != 2 or not all(isinstance(values[name], kind) for name, kind in kinds.items()):
                raise ValueError("two betas, two names, is_fused and weight_decay belong there")
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{source} is not an optimizer log ({error!r}): {REMEDY}") from None


def _numbers(name: str, values: list[Any], has_gaps: bool) -> list[float]:
    """Inverse of :func:`_without_nan`; ValueError for anything but finite numbers and, with ``has_gaps``, null."""
    for value in values:
        is_number = type(value) in (int, float) and np.isfinite(value)
        if not (is_number or (has_gaps and value is None)):
            raise ValueError(f"{name} holds {value!r}")
    return [float("nan") if value is None else value for value in values]


def _without_nan(numbers: Iterable[float]) -> list[float | None]:
    """JSON knows no NaN: null stands for it."""
    return [None if np.isnan(x) else x for x in numbers]
