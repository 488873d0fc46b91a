"""The logs of a run: the rows that each optimizer step used, as CSR, and optimizer.json, enough to replay them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolkit.families import TABLES
from toolkit.naming import parse_object, reading

PARTS = {"offsets": np.int64, "rows": np.int32, "counts": np.int32, "norms": np.float32}
INPUT_ONLY = "input_only"
"""Of tensors that hold nothing: their names name the tables."""
JOINED = 64
"""Steps after which their arrays are put together. Small arrays that every step left behind would lie between the large
ones that steps allocate and free: memory falls to pieces, and steps grow slower (experiments/benchmarks/NOTES.md)."""
WAITING = 1_000_000
"""Tokens that are counted at once: a long run does not keep every token of every epoch."""


@dataclass(frozen=True, slots=True)
class TableExposure:
    """Every step's rows of one embedding table, compressed by step."""

    offsets: NDArray[np.int64]
    """(steps + 1,): step s, counted from 0, owns entries offsets[s] to offsets[s + 1]."""
    rows: NDArray[np.int32]
    """Of each step the distinct rows of real (unpadded) tokens, ascending."""
    counts: NDArray[np.int32]
    """Tokens that used each row."""
    norms: NDArray[np.float32]
    """Euclidean norm of each row's gradient before clipping (in a run of ``toolkit.record``: as the optimizer got it);
    NaN where the parameter had none (frozen)."""

    @classmethod
    def of_step(cls, rows: NDArray[np.int32], counts: NDArray[np.int32], norms: NDArray[np.float32]) -> "TableExposure":
        """The rows of one step."""
        return cls(np.array([0, len(rows)], np.int64), rows, counts, norms)

    @classmethod
    def join(cls, parts: Sequence["TableExposure"]) -> "TableExposure":
        """Exposures of consecutive steps, end to end."""
        offsets = np.concatenate([[0], *(np.diff(part.offsets) for part in parts)]).cumsum().astype(np.int64)
        names = ("rows", "counts", "norms")
        whole = (np.concatenate([np.empty(0, PARTS[x]), *(getattr(part, x) for part in parts)]) for x in names)
        return cls(offsets, *whole)

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

    def _end(self, last_step: int | None) -> int:
        return int(self.offsets[self.num_steps if last_step is None else min(last_step, self.num_steps)])


class TableLog:
    """The rows of one table, step after step. Small arrays are put together, not kept: see JOINED."""

    def __init__(self, before: TableExposure | None = None) -> None:
        """``before``: of the steps that came before."""
        self._joined: list[TableExposure] = [] if before is None else [before]
        self._recent: list[TableExposure] = []

    def add(self, step: TableExposure) -> None:
        self._recent.append(step)
        if len(self._recent) == JOINED:
            self._joined.append(TableExposure.join(self._recent))
            self._recent = []

    def exposure(self) -> TableExposure:
        """Everything added so far."""
        # Kept as one: a run that saves its state each epoch asks again and again.
        self._joined = [TableExposure.join([*self._joined, *self._recent])]
        self._recent = []
        return self._joined[0]


@dataclass(frozen=True, slots=True)
class Design:
    """Which rows of the tables were added up in one place: the distinct combinations, and how often each occurred."""

    tables: tuple[str, ...]
    """Canonical names of the embedding tables, one per column of ``combinations``."""
    combinations: NDArray[np.int32]
    """(combinations, tables): the row of each table, distinct and in ascending order."""
    counts: NDArray[np.int64]
    """(combinations,) real tokens of the whole run that had them."""


class DesignCounter:
    """Counts combinations of rows, one batch of tokens after the other."""

    def __init__(self, tables: tuple[str, ...], counted: Design | None = None) -> None:
        """``counted``: what was counted before."""
        self._counted = counted or Design(tables, np.empty((0, len(tables)), np.int32), np.empty(0, np.int64))
        self._waiting = np.empty((WAITING, len(tables)), np.int32)
        self._num_waiting = 0

    def add(self, rows: NDArray[np.int32]) -> None:
        """(tokens, tables) the rows of some real tokens."""
        end = self._num_waiting + len(rows)
        if end > len(self._waiting):
            self._merge(rows)
        else:
            self._waiting[self._num_waiting : end] = rows
            self._num_waiting = end

    def _merge(self, *more: NDArray[np.int32]) -> None:
        tables, counts = self._counted.tables, self._counted.counts
        both = np.concatenate([self._counted.combinations, self._waiting[: self._num_waiting], *more])
        weights = np.concatenate([counts, np.ones(len(both) - len(counts), np.int64)])
        keys, sizes = np.zeros(len(both), np.int64), both.max(axis=0, initial=0) + 1
        for column, size in zip(both.T, sizes, strict=True):  # a number per combination, in the same order: sorted fast
            keys = keys * int(size) + column
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        totals = np.bincount(place.reshape(-1), weights, len(first)).astype(np.int64)
        self._counted = Design(tables, both[first], totals)
        self._num_waiting = 0

    def design(self) -> Design:
        """Everything counted so far."""
        self._merge()
        return self._counted


@dataclass(frozen=True, slots=True)
class Exposure:
    """The rows of each embedding table that each optimizer step of a run exposed."""

    tables: Mapping[str, TableExposure]
    """Canonical parameter name to its exposure; a table that the model lacks is left out."""
    design: Design | None = None
    """What stood together; None when it was not recorded."""
    input_only: tuple[str, ...] = ()
    """Tables that also serve as an output layer, by which any of their rows may get a gradient at any step: of them
    the design has the rows that the input used, and ``tables`` nothing."""

    def input_tokens(self, name: str, num_rows: int) -> NDArray[np.int64] | None:
        """(num_rows,) tokens of the input that used each row of a table in ``input_only``; None for another."""
        if name not in self.input_only or self.design is None:
            return None
        rows = self.design.combinations[:, self.design.tables.index(name)]
        return np.bincount(rows, self.design.counts, num_rows).astype(np.int64)

    def to_tensors(self) -> dict[str, np.ndarray]:
        """Flat named arrays, as stored in exposure.safetensors."""
        tensors = {f"{name}.{part}": getattr(table, part) for name, table in self.tables.items() for part in PARTS}
        if self.design is not None:
            rows = zip(self.design.tables, self.design.combinations.T, strict=True)
            tensors |= {f"design.{name}": column for name, column in rows} | {"design.counts": self.design.counts}
        return tensors | {f"{INPUT_ONLY}.{name}": np.empty(0, np.int32) for name in self.input_only}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> "Exposure":
        """Inverse of :meth:`to_tensors`."""
        # A file keeps its tensors in the order of their names; ours is that of every table.
        names = [name for name in TABLES if any(f"{name}.{part}" in tensors for part in PARTS)]
        tables = {name: TableExposure(*(tensors[f"{name}.{part}"] for part in PARTS)) for name in names}
        if "design.counts" not in tensors:
            return cls(tables)
        columns = {name: tensors[f"design.{name}"] for name in TABLES if f"design.{name}" in tensors}
        design = Design(tuple(columns), np.stack(list(columns.values()), axis=1), tensors["design.counts"])
        return cls(tables, design, tuple(name for name in columns if f"{INPUT_ONLY}.{name}" in tensors))


FORMAT = 1
"""Version of optimizer.json; a reader refuses another."""
NOT_REPLAYED = "updates cannot be replayed"
BY_ADAPTER = f"trained by an adapter, not as a table: {NOT_REPLAYED}"
"""Why the optimizer of an adapted table is not logged: it moves the adapter's factors, of which one moves all rows."""
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
    """(steps,) learning rate of the embedding parameters at each step, or, where these are frozen, the highest of the
    backbone; NaN where all of that is frozen."""
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
    def is_replayable(self) -> bool:
        """Whether its updates are known: torch's AdamW (others of that name, subclasses among them, may update
        otherwise) and plain SGD."""
        return self.algorithm == ADAMW or self.is_sgd

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
    def from_json(cls, text: str | bytes, source: str | Path = "optimizer.json") -> "OptimizerLog":
        """Inverse of :meth:`to_json`; ValueError for another format or a damaged file."""
        values = parse_object(text, source, {"format": int}, version=FORMAT)
        del values["format"]
        with reading(source, "is not an optimizer log"):
            for name in ("learning_rates", "head_learning_rates", "clipping_factors", "betas", "eps"):
                values[name] = np.array(values[name], np.float64)  # which takes null for NaN
            values |= {"betas": tuple(values["betas"].tolist()), "eps": float(values["eps"])}
            values["weight_decay"] = {name: float(decay) for name, decay in values["weight_decay"].items()}
            return cls(**values)


def _without_nan(numbers: Iterable[float]) -> list[float | None]:
    """JSON knows no NaN: null stands for it."""
    return [None if np.isnan(x) else x for x in numbers]
