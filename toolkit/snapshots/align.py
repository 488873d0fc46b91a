"""The word tables of several checkpoints in, the rows that mean the same token out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.snapshots.snapshot import Vocabulary

Rows = NDArray[np.int64] | slice | None
"""Rows to take of a table: None for all of them as they are, a slice where they are the first ones."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which rows of each word table are compared with which."""

    rows: tuple[Rows, ...]
    """Per checkpoint, in the order of the first checkpoint's tokens."""
    vocabulary: Vocabulary | None
    """Of the compared rows."""
    notes: tuple[str, ...]


def align_words(names: Sequence[str], num_rows: Sequence[int], vocabularies: Sequence[Vocabulary | None]) -> Alignment:
    """Rows of equal tokens: every row where the vocabularies are one, else the tokens that all have, by their text.

    ``names``: what each checkpoint is called; ``num_rows``: rows of its word table. A checkpoint without vocabulary
    takes that of one with as many rows. ValueError when tables of different sizes lack a vocabulary, or share no token.
    """
    known, notes = _lend(names, num_rows, vocabularies)
    present = [v for v in known if v is not None]
    if len(set(num_rows)) > 1 and len(present) < len(names):
        without = next(name for name, v in zip(names, known, strict=True) if v is None)
        sizes = ", ".join(f"{name} {size:,}" for name, size in zip(names, num_rows, strict=True))
        raise ValueError(
            f"the word tables differ in size ({sizes} rows) and {without} has no vocabulary file to match tokens by: "
            "put its tokenizer.json or vocab.txt beside its weights"
        )
    if not present:
        if len(names) > 1:
            notes.append("no vocabulary files: word rows are compared by their number")
        return Alignment((None,) * len(names), None, tuple(notes))
    if len(present) < len(names) or all(v.tokens == present[0].tokens for v in present):
        return Alignment((None,) * len(names), present[0], tuple(notes))
    return _common(names, present, notes)


def _lend(
    names: Sequence[str], num_rows: Sequence[int], vocabularies: Sequence[Vocabulary | None]
) -> tuple[list[Vocabulary | None], list[str]]:
    known, notes = list(vocabularies), []
    lenders = {len(v.tokens): (name, v) for name, v in reversed(list(zip(names, vocabularies, strict=True))) if v}
    for i, (name, size) in enumerate(zip(names, num_rows, strict=True)):
        if known[i] is None and size in lenders:
            lender, known[i] = lenders[size]
            notes.append(f"{name} has no vocabulary file: taken to be that of {lender}, which has as many word rows")
    return known, notes


def _common(names: Sequence[str], vocabularies: Sequence[Vocabulary], notes: list[str]) -> Alignment:
    """The tokens that every vocabulary holds exactly once."""
    places = [_rows_of(vocabulary) for vocabulary in vocabularies]
    shared = [token for token in places[0] if all(token in place for place in places[1:])]
    if not shared:
        raise ValueError(f"the vocabularies of {' and '.join(names)} share no token: are these models related?")
    rows = [np.array([place[token] for token in shared], np.int64) for place in places]
    of_row = {int(row): i for i, row in enumerate(rows[0])}
    first = vocabularies[0]
    special = frozenset(of_row[row] for row in first.special_rows if row in of_row)
    pad = of_row.get(first.pad_row) if first.pad_row is not None else None
    left_out = ", ".join(f"{len(v.tokens) - len(shared):,} of {n}" for n, v in zip(names, vocabularies, strict=True))
    notes.append(f"word rows are compared by token: {len(shared):,} in common; rows left out: {left_out}")
    return Alignment(tuple(map(_simplest, rows)), Vocabulary(tuple(shared), special, pad), tuple(notes))


def _rows_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Token -> row; rows without a text, and texts that stand for several rows, cannot be matched."""
    rows: dict[str, int] = {}
    repeated = set()
    for row, token in enumerate(vocabulary.tokens):
        if token in rows:
            repeated.add(token)
        elif token:
            rows[token] = row
    return {token: row for token, row in rows.items() if token not in repeated}


def _simplest(rows: NDArray[np.int64]) -> Rows:
    """A slice costs no copy."""
    return slice(0, len(rows)) if np.array_equal(rows, np.arange(len(rows))) else rows


class SelectedTensors(Mapping[str, np.ndarray]):
    """Some parameters of a checkpoint, and some rows of its word table: taken when asked for, never kept."""

    def __init__(self, tensors: Mapping[str, np.ndarray], parameters: Sequence[str], rows: Rows) -> None:
        self._tensors, self._parameters, self._rows = tensors, parameters, rows

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._parameters:
            raise KeyError(name)
        tensor = self._tensors[name]
        return tensor if name != "word_embeddings" or self._rows is None else tensor[self._rows]

    def __repr__(self) -> str:
        return f"SelectedTensors({', '.join(self)})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)
