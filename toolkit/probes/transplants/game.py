"""What is transplanted where, and what came of it: the settings of a game and its values, coalition by coalition."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.config import check_seed
from toolkit.lookup import lookup

COORDINATES = ("fixed", "raw")
DTYPES = ("float32", "float64")
DIRECTIONS = ("forward", "reverse")
UNITS = {"log-likelihood": "nats", "accuracy": "points"}
"""Value to its unit; accuracy in points, log-likelihood per item in nats."""

NUM_DRAWS, NUM_REVERSE_DRAWS = 5, 1
MAX_PROBE_EXAMPLES = 1000
Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is transplanted and where it is scored."""

    split: str | None = None
    """None: the reported split of the task."""
    max_examples: int | None = None
    """Items scored, drawn with ``seed``, the same for every run; None for all."""
    coordinates: str = "fixed"
    direction: str = "forward"
    num_draws: int = NUM_DRAWS
    """Random changes of each kind beside each single transplant, and beside all together; one pass for each."""
    num_reverse_draws: int = NUM_REVERSE_DRAWS
    """The same in the reverse, where a pass is one over the training items too, with a probe to fit."""
    dtype: str = "float32"
    max_probe_examples: int = MAX_PROBE_EXAMPLES
    """Training items that the probe of the reverse is fitted on, drawn with ``seed``."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        lookup(dict.fromkeys(COORDINATES), self.coordinates, "coordinates")
        lookup(dict.fromkeys(DIRECTIONS), self.direction, "direction")
        lookup(dict.fromkeys(DTYPES), self.dtype, "dtype")
        least = {"max_examples": self.max_examples, "max_probe_examples": self.max_probe_examples}
        for name, value in least.items():
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1; got {value}")
        for name, value in {"num_draws": self.num_draws, "num_reverse_draws": self.num_reverse_draws}.items():
            if value < 0:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 0; got {value}")

    @property
    def own_draws(self) -> int:
        """The number of draws in this direction."""
        return self.num_draws if self.direction == "forward" else self.num_reverse_draws


@dataclass(frozen=True, slots=True)
class GaugeCheck:
    """Largest absolute difference of any logit between the fixed gauge and the raw parameters."""

    difference: float
    control: float
    """The same with the words multiplied by 1.1, which no gauge allows."""


@dataclass(frozen=True, slots=True)
class Game:
    """One run's transplants."""

    players: tuple[str, ...]
    moving: int
    """The coalition of the players that have moved."""
    ids: NDArray[np.int64]
    """(items,) of the scored items."""
    split: str
    values: Values
    """Name of a value to (2^players, items); see :func:`toolkit.analysis.gauge.shapley.shapley_values`."""
    perturbed: Mapping[str, Values]
    """Kind of random change (``random``, ``rotated``; see :mod:`.changes`) to the name of a value to (players + 1,
    draws, items): each player alone replaced by a random change of its size, and last all of them together. NaN where
    a kind does not apply: a single vector that is rotated is a random one."""
    rms_changes: tuple[float, ...]
    gauge: GaugeCheck | None
    """None in raw coordinates and in reverse."""
    num_passes: int
    notes: tuple[str, ...]
    stillness: tuple[str, ...] = ()
    """Per player why it has not moved, if it has not; without these, because it is bit for bit what it was."""
