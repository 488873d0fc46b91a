"""Rows of each optimizer step in, their exposure out: steps, token counts and gradient norms, stored as CSR."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one table that one optimizer step used; three arrays of one length."""

    rows: NDArray[np.int32]
    """Distinct rows of real (unpadded) tokens, ascending."""
    counts: NDArray[np.int32]
    """Tokens that used each row."""
    norms: NDArray[np.float32]
    """Euclidean norm of each row's gradient before clipping; NaN where the parameter had none (frozen)."""


@dataclass(frozen=True, slots=True)
class TableExposure:
    """Every step's rows of one embedding table, compressed by step."""

    offsets: NDArray[np.int64]
    """(steps + 1,): step s, counted from 0, owns entries offsets[s] to offsets[s + 1]."""
    rows: NDArray[np.int32]
    counts: NDArray[np.int32]
    norms: NDArray[np.float32]

    @classmethod
    def from_steps(cls, steps: list[StepRows]) -> "TableExposure":
        """Concatenate the rows of consecutive optimizer steps."""
        offsets = np.zeros(len(steps) + 1, np.int64)
        np.cumsum([len(step.rows) for step in steps], out=offsets[1:])
        return cls(
            offsets,
            np.concatenate([np.empty(0, np.int32), *(step.rows for step in steps)]),
            np.concatenate([np.empty(0, np.int32), *(step.counts for step in steps)]),
            np.concatenate([np.empty(0, np.float32), *(step.norms for step in steps)]),
        )

    @property
    def num_steps(self) -> int:
        return len(self.offsets) - 1

    def step_counts(self, num_rows: int, last_step: int | None = None) -> NDArray[np.int64]:
        """(num_rows,) optimizer steps, up to ``last_step`` (default: all), that used each row."""
        return np.bincount(self.rows[: self._end(last_step)], minlength=num_rows)

    def token_counts(self, num_rows: int, last_step: int | None = None) -> NDArray[np.int64]:
        """(num_rows,) tokens, up to ``last_step`` (default: all), that used each row."""
        end = self._end(last_step)
        totals = np.bincount(self.rows[:end], weights=self.counts[:end], minlength=num_rows)
        return np.asarray(totals).astype(np.int64)

    def last_steps(self, num_rows: int, last_step: int | None = None) -> NDArray[np.int64]:
        """(num_rows,) the last step (counted from 1) that used each row; 0 where none did."""
        end = self._end(last_step)
        step_of_entry = np.repeat(np.arange(1, self.num_steps + 1), np.diff(self.offsets))[:end]
        last = np.zeros(num_rows, np.int64)
        np.maximum.at(last, self.rows[:end], step_of_entry)
        return last

    def _end(self, last_step: int | None) -> int:
        return int(self.offsets[self.num_steps if last_step is None else min(last_step, self.num_steps)])


@dataclass(frozen=True, slots=True)
class Exposure:
    """What each optimizer step of a run showed to each embedding table."""

    tables: Mapping[str, TableExposure]
    """Canonical parameter name to its exposure; a table that the model lacks is left out."""

    def to_tensors(self) -> dict[str, np.ndarray]:
        """Flat named arrays, as stored in exposure.safetensors."""
        return {
            f"{name}.{part}": getattr(table, part)
            for name, table in self.tables.items()
            for part in ("offsets", "rows", "counts", "norms")
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> "Exposure":
        """Inverse of :meth:`to_tensors`."""
        names = dict.fromkeys(name.rsplit(".", 1)[0] for name in tensors)
        parts = ("offsets", "rows", "counts", "norms")
        return cls({name: TableExposure(*(tensors[f"{name}.{part}"] for part in parts)) for name in names})
