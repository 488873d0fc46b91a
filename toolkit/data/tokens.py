"""Token tasks: CoNLL files, columns of word and tag lists, and the encoding of tags."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.data.labels import RawSplit, split_of_words
from toolkit.naming import unknown

DEFAULT_WORD_COLUMNS = ("tokens", "words")
"""Tried in order when --text-columns is not given."""
DEFAULT_TAG_COLUMNS = ("ner_tags", "tags", "labels", "pos_tags")
"""Tried in order when the column that --label-column names is not there."""
OUTSIDE = "O"
"""The tag of a word that belongs to no entity."""
DOCUMENT = "-DOCSTART-"
"""What stands in a CoNLL-2003 file where a new document begins: no word."""


def read_conll(path: Path) -> RawSplit:
    """Read one split in CoNLL's columns: a word a line, its tag in the last column, an empty line after a sentence.

    The word is the first column; columns between are left out, as are lines that begin with -DOCSTART-. Columns are
    parted by tabs where a line has any, else by spaces. ValueError for a line with another number of columns than the
    first one, or with one alone.
    """
    sentences: list[tuple[list[str], list[str]]] = [([], [])]
    num_columns = 0
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            cells = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
            if not line.strip() or cells[0] == DOCUMENT:
                sentences.append(([], []))
                continue
            num_columns = num_columns or len(cells)
            if len(cells) < 2 or len(cells) != num_columns:
                expected = "a word and its tag" if num_columns < 2 else f"{num_columns} columns, as in the first line"
                raise ValueError(f"line {number} has {len(cells)} columns where {expected} should be")
            if not all(cell.strip() for cell in (cells[0], cells[-1])):
                raise ValueError(f"line {number} lacks its word or its tag")
            sentences[-1][0].append(cells[0].strip())
            sentences[-1][1].append(cells[-1].strip())
    kept = [(tuple(words), tuple(tags)) for words, tags in sentences if words]
    return split_of_words([words for words, _ in kept], [tags for _, tags in kept])


def holds_lists(frame: pd.DataFrame, text_columns: tuple[str, ...]) -> bool:
    """Whether a table's examples are lists of words: a token task."""
    names = text_columns or DEFAULT_WORD_COLUMNS
    column = next((name for name in names if name in frame.columns), None)
    return column is not None and len(frame) > 0 and _is_list(frame[column].iloc[0])


def split_of_lists(
    frame: pd.DataFrame, text_columns: tuple[str, ...], label_column: str | None, source: str
) -> RawSplit:
    """Words and tags of a table of lists; without a tag column it is a split without labels.

    ValueError for a column that is missing, a row that is no list, and for as many tags as words not being there.
    """
    columns = tuple(str(column) for column in frame.columns)
    if len(text_columns) > 1:
        raise ValueError(f"{source}: a token task has one column of word lists; got --text-columns {text_columns}")
    word_column = next(name for name in (text_columns or DEFAULT_WORD_COLUMNS) if name in columns)
    candidates = (label_column, *DEFAULT_TAG_COLUMNS) if label_column == "label" else (label_column,)
    tag_column = next((name for name in candidates if name in columns), None)
    if tag_column is None and label_column not in (None, "label"):
        raise ValueError(f"{source}: {unknown(str(label_column), 'column', columns)}")
    words = [_items(cell, source, i, "word") for i, cell in enumerate(frame[word_column])]
    tags = None
    if tag_column is not None:
        tags = [_items(cell, source, i, "tag") for i, cell in enumerate(frame[tag_column])]
        for i, (row, own) in enumerate(zip(words, tags, strict=True)):
            if len(row) != len(own):
                raise ValueError(
                    f"{source}, row {i + 1}: {len(row)} words and {len(own)} tags: each word needs its tag"
                )
    split = split_of_words([tuple(map(str, row)) for row in words], tags)
    return replace(split, columns=columns, taken_from=f"words: {word_column}; labels: {tag_column}")


def has_entities(names: Sequence[str]) -> bool:
    """Whether tags mark entities: O, and others that begin with B-, I-, E-, S-, L- or U-."""
    marked = [name for name in names if name != OUTSIDE]
    return bool(marked) and all(name[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") and len(name) > 2 for name in marked)


def encode_tags(
    raw: Mapping[str, RawSplit], names: tuple[str, ...] | None
) -> tuple[tuple[str, ...], dict[str, NDArray[Any] | None]]:
    """Tag names and, per split, an object array (examples,) of int64 arrays (words,) that index them.

    ``names`` are the tags 0, 1, ... where the source knows them; else O comes first and the others follow in the order
    of the alphabet. ValueError for a split whose tags training lacks, for words without tags in training or validation,
    and for training with one tag only.
    """
    for split in ("train", "validation"):
        if split in raw and raw[split].labels is None:
            raise ValueError(f"split {split!r} has no tags: check --label-column")
    train = {tag for tags in raw["train"].labels or () for tag in tags}  # type: ignore[attr-defined]
    if names is None:
        texts = tuple(sorted({str(tag) for tag in train}, key=lambda tag: (tag != OUTSIDE, tag)))
        index: dict[Any, int] = {text: i for i, text in enumerate(texts)}
    else:
        texts, index = names, {i: i for i in range(len(names))} | {name: i for i, name in enumerate(names)}
    known = {index[tag if tag in index else str(tag)] for tag in train}
    if len(known) == 1:
        raise ValueError(f"every training tag is {texts[next(iter(known))]!r}: there is nothing to learn")
    encoded: dict[str, NDArray[Any] | None] = {}
    for split, own in raw.items():
        encoded[split] = None if own.labels is None else _encode(split, own.labels, index, known, texts)
    return texts, encoded


def _encode(
    split: str, labels: Sequence[object], index: Mapping[Any, int], known: set[int], texts: tuple[str, ...]
) -> NDArray[Any]:
    arrays = []
    for i, tags in enumerate(labels):
        places = [index.get(tag if tag in index else str(tag)) for tag in tags]  # type: ignore[attr-defined]
        for tag, place in zip(tags, places, strict=True):  # type: ignore[call-overload]
            if place is None or place not in known:
                shown = texts[place] if place is not None else tag
                listed = ", ".join(texts[k] for k in sorted(known)[:8]) + (", ..." if len(known) > 8 else "")
                raise ValueError(f"split {split!r}, row {i + 1} has the tag {shown!r}, which training lacks ({listed})")
        arrays.append(np.array(places, dtype=np.int64))
    return as_objects(arrays)


def as_objects(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """(arrays,) objects, also where all are of one length, of which numpy would make a table."""
    objects = np.empty(len(arrays), dtype=object)
    for i, array in enumerate(arrays):
        objects[i] = array
    return objects


def _is_list(cell: object) -> bool:
    return isinstance(cell, list | tuple | np.ndarray)


def _items(cell: object, source: str, row: int, what: str) -> tuple[Any, ...]:
    if not _is_list(cell):
        raise ValueError(f"{source}, row {row + 1}: expected a list of {what}s; got {cell!r:.60}")
    items = tuple(item.item() if isinstance(item, np.generic) else item for item in cell)  # type: ignore[attr-defined]
    if any(item is None or item == "" or item != item for item in items):
        raise ValueError(f"{source}, row {row + 1}: a {what} is missing")
    return items
