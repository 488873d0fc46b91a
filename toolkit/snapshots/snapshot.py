"""Snapshot and Trajectory: the embedding parameters at each moment of one run, mapped lazily."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.naming import Described, check_format, first_few, reading
from toolkit.snapshots.files import CHECKED_ROWS as CHECKED_ROWS
from toolkit.snapshots.files import NamedTensors, map_tensor, read_header
from toolkit.snapshots.logs import Exposure

if TYPE_CHECKING:
    import pandas as pd
    import torch

Epochs = float | Iterable[float] | None
"""The epoch or epochs that a table over time is of; None for every snapshot."""

FORMAT = "1"
"""Version of the snapshot files; a reader refuses another."""


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot(Described):
    """The embedding parameters at a moment."""

    epoch: float
    """Epochs done: whole at the end of an epoch, a fraction between two."""
    step: int
    """Optimizer steps done."""
    tensors: Mapping[str, np.ndarray]
    """Canonical name to fp32 array: tables (rows, hidden), LayerNorm (hidden,). A parameter that the model lacks is
    left out."""
    name: str = ""
    """What to call it where its epoch says little: the checkpoint it was imported from."""

    @property
    def is_epoch_end(self) -> bool:
        return float(self.epoch).is_integer()

    def facts(self) -> dict[str, str]:
        """When it was taken and the shape of each parameter, in words."""
        named = {"name": self.name} if self.name else {}
        return named | {"epoch": f"{self.epoch:g}", "step": f"{self.step:,}"} | self.shapes()

    def shapes(self) -> dict[str, str]:
        """Parameter to its shape: ``30,522 x 384``."""
        present = (name for name in EMBEDDING_PARAMETERS if name in self.tensors)
        return {name: " x ".join(f"{size:,}" for size in self.tensors[name].shape) for name in present}


@dataclass(frozen=True, repr=False)
class Trajectory(Described):
    """The snapshots of one run in order, with what is known of the run that made them."""

    snapshots: Sequence[Snapshot]
    """In the order in which they were taken, at least one."""
    vocabulary: "Vocabulary | None" = None
    """Row to token text; None where no tokenizer was at hand."""
    read_exposure: Callable[[], Exposure | None] | None = None
    """Reads the exposure when it is first asked for; None where there is none to read."""
    position_offset: int = 0
    """The position row of the first token (RoBERTa: padding_idx + 1)."""
    layer_norm_eps: float | None = 1e-12
    """What the embedding LayerNorm adds to the variance; BERT's, where the run does not say; None where there is no
    LayerNorm."""
    appended: "Appended | None" = None
    """Of checkpoints, the tokens that the last one has beyond the first; None where there are none."""
    in_part: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of checkpoints, what is not compared as a whole: a parameter, in rows (0 where not all have it), or
    ``snapshots``, to how many are compared and how many there are."""
    inferred: Mapping[str, np.ndarray] | None = None
    """Table to what was inferred of each row's exposure, where none was recorded: exposed, unexposed, cannot tell."""

    def facts(self) -> dict[str, str]:
        """Its snapshots and the shape of each parameter, in words."""
        first, last = self.snapshots[0], self.snapshots[-1]
        return {"snapshots": f"{len(self.snapshots)}, epochs {first.epoch:g} to {last.epoch:g}", **first.shapes()}

    @cached_property
    def exposure(self) -> Exposure | None:
        """The run's exposure, read on first use; None when it was not recorded."""
        return self.read_exposure() if self.read_exposure else None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The embedding parameters that this model has, in the order of every table."""
        return tuple(name for name in EMBEDDING_PARAMETERS if name in self.snapshots[0].tensors)

    def at_or_last(self, epoch: float | None) -> Snapshot:
        """The last snapshot for None, else as :meth:`at`."""
        return self.snapshots[-1] if epoch is None else self.at(epoch)

    def chosen(self, epochs: Epochs) -> list[Snapshot]:
        """Every snapshot for None, else that of the epoch or those of the epochs, each as :meth:`at`."""
        if epochs is None:
            return list(self.snapshots)
        return [self.at(epoch) for epoch in (epochs if isinstance(epochs, Iterable) else [epochs])]

    def at(self, epoch: float) -> Snapshot:
        """The snapshot of an epoch; ValueError with the epochs at hand when there is none.

        0 is the first one of any trajectory: where training went on from a checkpoint, that is where it began.
        """
        if not isinstance(epoch, Real):
            raise ValueError(f"an epoch is a number; got {epoch!r}")
        found = [each for each in self.snapshots if each.epoch == epoch] if epoch else self.snapshots
        if not found:
            at_hand = ", ".join(f"{snapshot.epoch:g}" for snapshot in self.snapshots)
            raise ValueError(f"no snapshot of epoch {epoch:g}; at hand: {at_hand}")
        return found[0]

    def compared(self, *names: str) -> str:
        """Of parameters, or of ``snapshots``, how much is compared: ``64 of 65 rows``; empty where that is all."""
        found = {name: self.in_part[name] for name in names if name in self.in_part}
        words = {"snapshots": "snapshots"} | {name: f"rows of {name}" for name in EMBEDDING_PARAMETERS}
        return ", ".join(f"{num:,} of {asked:,} {words[name]}" for name, (num, asked) in found.items())

    def drift(self, epoch: float | None = None) -> "pd.Series":
        """How far each embedding parameter moved by an epoch (None: the last), in % of the norm that it had at first.

        0 only where every value was compared and is what it was. NaN where that is undefined: a parameter that was 0
        and is no more, one that is not finite, what was compared in part and did not move there, a snapshot alone.
        """
        import pandas as pd

        first, last = self.snapshots[0].tensors, self.at_or_last(epoch).tensors
        found = {name: percent_moved(*sums_of_squares(first[name], last[name])[:2]) for name in self.parameters}
        shares = pd.Series(found, dtype=float, name="drift_percent").rename_axis("parameter")
        is_known = (shares != 0) | ~shares.index.isin(list(self.in_part))
        return shares.where(is_known & (len(self) > 1))

    def name_row(self, parameter: str, row: int) -> str:
        """What a reader calls a row; see :func:`name_row`."""
        return name_row(parameter, row, self.vocabulary, self.position_offset)

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self.snapshots)

    def __len__(self) -> int:
        return len(self.snapshots)


def sums_of_squares(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """(3,) float64 of one parameter: Σ(E - E⁰)², ΣE⁰² and ΣE² over all values, some rows at a time."""
    sums = np.zeros(3)
    for start in range(0, len(now), CHECKED_ROWS):
        old, new = (np.asarray(rows[start : start + CHECKED_ROWS], np.float64) for rows in (before, now))
        with np.errstate(invalid="ignore"):  # of a run that diverged
            sums += np.square(new - old).sum(), np.square(old).sum(), np.square(new).sum()
    return sums


def percent_moved(change: float, reference: float) -> float:
    """‖Δ‖ in % of ‖E⁰‖, from their squares: 0 where nothing moved, NaN where what moved was 0 or is not finite."""
    if not change:
        return 0.0
    return 100 * math.sqrt(change / reference) if reference and math.isfinite(change) else math.nan


@dataclass(frozen=True, slots=True)
class Appended:
    """Tokens that were added to a checkpoint, which has no rows for them, or spare ones that stand for nothing."""

    tokens: tuple[str, ...]
    rows: np.ndarray
    """(tokens,) their rows in the later checkpoint's word table."""
    read: Callable[[], Any]
    """The compared rows of the later checkpoint and, behind them, these: (rows + tokens, hidden) fp32, read when asked
    for."""
    read_start: Callable[[], np.ndarray]
    """Reads the rows of these numbers in the first checkpoint, (tokens, hidden) fp32; NaN where it has none."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Row to token text, special tokens marked, so that analysis needs no tokenizer."""

    tokens: tuple[str, ...]
    """One text per row of the word table; rows beyond the tokenizer's vocabulary are empty strings."""
    special_rows: frozenset[int]
    """Rows of special tokens, [PAD] among them."""
    pad_row: int | None
    added_rows: frozenset[int] = frozenset()
    """Rows of tokens that the run added to its checkpoint, or whoever recorded it did."""

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.tokens):,} tokens, {len(self.special_rows)} special)"

    def to_dict(self) -> dict[str, object]:
        """As stored in vocabulary.json."""
        added = {"added_rows": sorted(self.added_rows)} if self.added_rows else {}
        return added | {
            "format": int(FORMAT),
            "tokens": list(self.tokens),
            "special_rows": sorted(self.special_rows),
            "pad_row": self.pad_row,
        }


def name_row(parameter: str, row: int, vocabulary: Vocabulary | None, position_offset: int = 0) -> str:
    """What a reader calls a row: the token (quoted), the position or the segment, else ``row 7`` or ``entry 7``."""
    if parameter == "word_embeddings" and vocabulary is not None and any(vocabulary.tokens[row : row + 1]):
        return repr(vocabulary.tokens[row])
    if parameter == "position_embeddings" and row >= position_offset:
        return f"position {row - position_offset}"
    kind = {"token_type_embeddings": "segment"}.get(parameter, "row" if parameter in TABLES else "entry")
    return f"{kind} {row}"


NAMED_ROWS = 5


def name_undefined(parameter: str, tensor: np.ndarray, vocabulary: Vocabulary | None, position_offset: int = 0) -> str:
    """Which values of a parameter, (rows, hidden) or (hidden,), are NaN or infinite; '' where all are finite.

    Such as ``(1 of 11720 values) in row 9 ('good')``.
    """
    num_rows, *others = tensor.shape or (1,)
    table = tensor if tensor.ndim == 2 else np.asarray(tensor).reshape(num_rows, math.prod(others))
    counts = [
        np.count_nonzero(~np.isfinite(table[start : start + CHECKED_ROWS]), axis=1)
        for start in range(0, len(table), CHECKED_ROWS)
    ]
    num_bad = np.concatenate([np.zeros(0, np.int64), *counts])
    rows = np.flatnonzero(num_bad)
    if not len(rows):
        return ""
    names = {row: name_row(parameter, row, vocabulary, position_offset) for row in rows.tolist()}
    listed = [name if name.endswith(f" {row}") else f"row {row} ({name})" for row, name in names.items()]
    return f"({num_bad.sum()} of {table.size} values) in {first_few(listed, NAMED_ROWS)}"


def check_finite(
    tensors: Mapping[str, np.ndarray], shown: str, vocabulary: Vocabulary | None = None, position_offset: int = 0
) -> None:
    """ValueError where a tensor of a checkpoint holds NaN or infinity: nothing can be said of that."""
    for parameter in tensors:
        if where := name_undefined(parameter, tensors[parameter], vocabulary, position_offset):
            raise ValueError(f"{shown}: {parameter} holds NaN or infinity {where}: leave it out")


def check_metadata(metadata: Mapping[str, str], path: Path) -> None:
    """ValueError unless the metadata of a safetensors file name our format."""
    found = str(metadata.get("format"))
    check_format(int(found) if found.isdecimal() else found, int(FORMAT), path)


class MappedTensors(NamedTensors):
    """The tensors of one snapshot file, each mapped when it is asked for, wherever it is held.

    A tensor identical to that of an earlier snapshot is not stored again: the file's metadata names the file that
    holds it (``held_by.<name>``). ``check`` is called with the name of each file before a tensor of it is mapped.
    """

    def __init__(self, path: Path, check: Callable[[str], object] | None = None) -> None:
        self._path, self._check = path, check or (lambda _: None)
        metadata, self._entries = read_header(path)
        check_metadata(metadata, path)
        with reading(path, "does not say when it was taken"):
            self.epoch, self.step = float(metadata["epoch"]), int(metadata["step"])
        self._held_by = {k.removeprefix("held_by."): v for k, v in metadata.items() if k.startswith("held_by.")}
        self._names = [name for name in EMBEDDING_PARAMETERS if name in self]

    def __getitem__(self, name: str) -> np.ndarray:
        self._check(self._path.name)
        if name in self._entries:
            return map_tensor(self._path, self._entries[name])
        holder = self._path.with_name(self._held_by[name])
        self._check(holder.name)
        entries = read_header(holder)[1] if holder.exists() else {}
        with reading(self._path, f"keeps {name} in {holder.name}, which has none"):
            return map_tensor(holder, entries[name])

    def __contains__(self, name: object) -> bool:  # a mapping's own would check, map and throw away
        return name in self._entries or name in self._held_by


def to_array(parameter: "torch.Tensor") -> np.ndarray:
    """A detached fp32 copy of a parameter in CPU memory; a sharded one (DTensor) is gathered first."""
    import torch

    tensor: Any = parameter.detach()
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    array: np.ndarray = tensor.to(device="cpu", dtype=torch.float32, copy=True).numpy()
    return array


def check_word_rows(model: str, num_tokens: int, num_rows: int) -> None:
    """ValueError when a tokenizer's tokens are more than a word table's rows: it belongs to another model."""
    if num_tokens > num_rows:
        raise ValueError(
            f"the tokenizer of {model} has tokens beyond its {num_rows} word rows: take the model's own tokenizer, or "
            "resize the table"
        )


def read_vocabulary(tokenizer: Any, num_rows: int, added: Sequence[str] = ()) -> Vocabulary:
    """The token text of every row of a word table with ``num_rows`` rows, and the rows of ``added`` tokens.

    ``tokenizer``: one of transformers, or anything with its pad_token_id, all_special_ids, len(), convert_ids_to_tokens
    and get_vocab.

    ValueError for one of these that the tokenizer lacks.
    """
    rows = tokenizer.get_vocab() if added else {}
    if missing := [token for token in added if token not in rows]:
        raise ValueError(f"the tokenizer lacks the added token {missing[0]!r}: call tokenizer.add_tokens first")
    known = min(len(tokenizer), num_rows)
    texts = [*tokenizer.convert_ids_to_tokens(range(known)), *[None] * (num_rows - known)]
    special = frozenset(i for i in tokenizer.all_special_ids if i < num_rows)
    return Vocabulary(
        tuple(text or "" for text in texts), special, tokenizer.pad_token_id, frozenset(rows[token] for token in added)
    )
