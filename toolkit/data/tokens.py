"""Token tasks: CoNLL files, columns of word and tag lists, and the encoding of tags."""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from io import StringIO
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.data.labels import MANY, OUTSIDE, Names, RawSplit, encode_labels, has_entities, marks_span, plain_text
from toolkit.naming import refuse_first, unknown

DEFAULT_WORD_COLUMNS = ("tokens", "words", "form", "1")
"""Tried in order when --text-columns is not given; the last two are of .conllu and .conll."""
DEFAULT_TAG_COLUMNS = ("ner_tags", "tags", "labels", "pos_tags", "upos")
"""Tried in order, and then the last column of .conll, when the column that --label-column names is not there."""
DOCUMENT = "-DOCSTART-"
"""What stands in a CoNLL-2003 file where a new document begins: no word."""
HEADS = ("word", "words", "token", "tokens", "form", "text")
"""What the column of words is called in a first line that names the columns, in small letters."""
UNTAGGED = -100
"""In place of a tag: the word is read, but neither trained on nor scored (torch's ``ignore_index``)."""


def read_conll(text: str) -> pd.DataFrame:
    """Sentences in CoNLL's columns, a word a line, an empty line after each: a column of lists for each of the file's.

    They are called by their numbers from 1, as texts; the first and the last are the words and the tags unless flags
    say otherwise. Columns are parted by tabs where a line has any, else by spaces. Lines that begin with -DOCSTART- are
    left out, and so are comments: lines with # at the start of a sentence that have other columns, none in the last,
    a name = value, or that begin a document or a paragraph.
    ValueError for another line with another number of columns than the first one, or with one alone.
    """
    lines = [line.strip(" \r\n") for line in StringIO(text, newline="")]
    cells = [line.split("\t") if "\t" in line else re.split(" +", line) for line in lines]
    written = [own for line, own in zip(lines, cells, strict=True) if line.strip() and own[0] != DOCUMENT]
    if not written:
        raise ValueError("it is empty")
    num_columns = len(next((own for own in written if own[0][:1] != "#"), written[0]))
    sentences: list[list[list[str]]] = [[]]
    for number, (line, own) in enumerate(zip(lines, cells, strict=True), 1):
        if not line.strip() or own[0] == DOCUMENT:
            sentences.append([])
            continue
        is_whole = len(own) == num_columns and own[-1] != ""
        if not sentences[-1] and line[0] == "#" and (not is_whole or re.match("# (new(doc|par)\\b|.*=)", line)):
            continue
        if len(own) < 2 or len(own) != num_columns:
            expected = "a word and its tag" if num_columns < 2 else f"{num_columns} columns, as in the first line"
            raise ValueError(f"line {number} has {len(own)} columns where {expected} should be")
        if not all(cell.strip() for cell in (own[0], own[-1])):
            raise ValueError(f"line {number} lacks its word or its tag")
        sentences[-1].append([cell.strip() for cell in own])
    rows = [list(zip(*sentence, strict=True)) for sentence in sentences if sentence]
    return pd.DataFrame(rows, columns=[str(k + 1) for k in range(num_columns)], dtype=object)


def read_conllu(text: str) -> pd.DataFrame:
    """Sentences of Universal Dependencies, by ``conllu``: lists of form, lemma, upos, xpos, head, deprel and of what
    else a file names in its first line (``# global.columns``, as CoNLL-U Plus has it), in small letters.

    Words are what was written: lines of several words (3-4) and empty nodes (3.1) are left out.
    """
    import conllu

    sentences = [
        [word for word in own if isinstance(word["id"], int)] for own in conllu.parse_incr(StringIO(text, newline=""))
    ]
    kept = [own for own in sentences if own]
    columns = [name for name in (kept[0][0] if kept else ("form",)) if name not in ("id", "feats", "deps", "misc")]
    return pd.DataFrame({name: [tuple(word.get(name) for word in own) for own in kept] for name in columns})


def word_column(frame: pd.DataFrame, text_columns: tuple[str, ...]) -> str | None:
    """The column of lists of words that flags name, or that is found; None where there is none: no token task."""
    column = next((name for name in (text_columns or DEFAULT_WORD_COLUMNS) if name in frame.columns), None)
    return column if column is not None and len(frame) > 0 and is_list(frame[column].iloc[0]) else None


def split_of_lists(
    frame: pd.DataFrame, names: Names, text_columns: tuple[str, ...], label_column: str | None, source: str
) -> RawSplit:
    """Words and tags of a table of lists; without a column of tags it is a split without labels.

    ValueError for a column that is missing, a row that is no list, for as many tags as words not being there, and,
    where no flag names the column of the words, for what counts the words or tags them instead.
    """
    columns = tuple(str(column) for column in frame.columns)
    if len(text_columns) > 1:
        raise ValueError(f"{source}: a token task has one column of word lists; got --text-columns {text_columns}")
    of_words = word_column(frame, text_columns)
    candidates = (label_column, *DEFAULT_TAG_COLUMNS, str(len(columns))) if label_column == "label" else (label_column,)
    of_tags = next((name for name in candidates if name in columns), None)
    if of_tags is None and label_column not in (None, "label"):
        raise ValueError(f"{source}: {unknown(str(label_column), 'column', columns)}")
    words = [_items(cell, source, i, "word") for i, cell in enumerate(frame[of_words])]
    if not text_columns:
        _doubt_words(words, str(of_words), source, columns)
    tags = None
    if of_tags is not None:
        tags = [_items(cell, source, i, "tag") for i, cell in enumerate(frame[of_tags])]
        for i, (row, own) in enumerate(zip(words, tags, strict=True)):
            if len(row) != len(own):
                raise ValueError(
                    f"{source}, row {i + 1}: {len(row)} words and {len(own)} tags: each word needs its tag"
                )
        if columns[0] == "1":  # of .conll, which says of no column what it holds
            _doubt_columns(frame, str(of_words), of_tags, source, is_named=label_column != "label")
    texts = [(" ".join(map(str, row)),) for row in words]
    kept_words, taken_from = [tuple(map(str, row)) for row in words], f"words: {of_words}; labels: {of_tags}"
    return RawSplit(texts, tags, columns, taken_from, kept_words, names=names.get(str(of_tags)))  # type: ignore[arg-type]


def _doubt_words(words: Sequence[Sequence[object]], column: str, source: str, columns: Sequence[str]) -> None:
    """ValueError for a column that holds the numbers of words, or of rows of a vocabulary, or tags."""
    flat = [word for row in words for word in row]
    often, count = (Counter(map(str, flat)).most_common(1) or [("", 0)])[0]
    num_counted = sum(str(word) == str(k) for row in words for k, word in enumerate(row, 1))
    if len(columns) > 2:  # beside a column of words and one of tags: 0, 1, 2; numbers through the file; 1-1, 1-2
        num_counted = max(num_counted, sum(re.fullmatch(r"\d+([-.:]\d+)*", str(word)) is not None for word in flat))
    num_tags = sum(word == OUTSIDE or marks_span(str(word)) for word in flat)
    doubts = (
        (2 * sum(not isinstance(word, str) for word in flat) > len(flat), "numbers"),
        (2 * num_counted > len(flat), "the numbers of words (1, 2, 3)"),
        (2 * num_tags > len(flat), "tags, not words"),
        (
            len(flat) >= MANY and 2 * count > len(flat),
            f"{often} in place of {count:,} of {len(flat):,} words (withheld?)",
        ),
    )
    instead = f"pass --text-columns {column} if it is meant, or the column of the words (columns: {', '.join(columns)})"
    refuse_first({f"{source}: the column {column} holds {what}: {instead}": is_so for is_so, what in doubts})


def _doubt_columns(frame: pd.DataFrame, of_words: str, of_tags: str, source: str, *, is_named: bool) -> None:
    """ValueError for a first line that names the columns, and where tags of spans stand in another column than the last
    one, which no flag ``is_named``."""
    counts = {str(name): Counter(str(x) for cell in frame[name] for x in cell) for name in frame.columns}
    word, tag = (str(frame[name].iloc[0][0]) for name in (of_words, of_tags))
    others = [own for own in counts[of_tags] if own != tag]
    is_alone = counts[of_tags][tag] == 1 and tag != OUTSIDE and not marks_span(tag)
    if is_alone and (has_entities(others) or word.lower() in HEADS):
        raise ValueError(f"{source}: its first line reads as the names of columns ({word}, {tag}): take it out")
    spans = [name for name, own in counts.items() if name not in (of_words, of_tags) and has_entities([*own])]
    if spans and not is_named and not has_entities([*counts[of_tags]]) and set(counts[of_tags]) != {OUTSIDE}:
        raise ValueError(
            f"{source}: tags of spans (B-...) stand in the column {spans[-1]}, and none in the last one: pass "
            f"--label-column {spans[-1]}, or {of_tags} if that is meant"
        )


def spelled_alike(names: Sequence[str]) -> NDArray[np.object_]:
    """Tag names as seqeval reads them: of BILOU and BIOES, which mean the same, it knows the signs of the second."""
    same = {"L-": "E-", "U-": "S-"}
    return np.array([same.get(name[:2], name[:2]) + name[2:] for name in names], dtype=object)


def encode_tags(
    raw: Mapping[str, RawSplit], names: tuple[str, ...] | None, kind: str = "auto"
) -> tuple[tuple[str, ...], dict[str, NDArray[Any] | None]]:
    """Tag names and, per split, an object array (examples,) of int64 arrays (words,) that index them.

    :func:`encode_labels` of all words; of those that are not UNTAGGED, or -1 where the source names its tags.
    """
    none = {UNTAGGED, str(UNTAGGED), *([-1] if names else [])}
    flat: dict[str, Any] = {k: own.labels and [*chain.from_iterable(own.labels)] for k, own in raw.items()}  # type: ignore[arg-type]
    tagged = {k: tags and [tag for tag in tags if tag not in none] for k, tags in flat.items()}
    _, texts, indices = encode_labels(tagged, names, kind, "tag")
    counts = Counter(tagged["train"])
    often, count = (counts.most_common(1) or [("", 0)])[0]
    if (2 * count > counts.total() or OUTSIDE in texts) and not has_entities(texts):
        warnings.warn(
            f"the tags ({', '.join(texts[:5])}) mark no spans, as B- and I- do, so that words are scored and entities "
            f"are not counted; {count / counts.total():.0%} of the words are {often}",
            stacklevel=2,
        )
    encoded: dict[str, NDArray[Any] | None] = dict.fromkeys(raw)
    for split, own in indices.items():
        if own is not None:
            tags = np.full(len(flat[split]), UNTAGGED)
            tags[[tag not in none for tag in flat[split]]] = own
            encoded[split] = by_example(tags, raw[split].labels)  # type: ignore[arg-type]
    return texts, encoded


def by_example(tags: NDArray[Any], examples: Iterable[Sized]) -> NDArray[Any]:
    """(examples,) objects: the tags of all words, of each of the examples those of its own."""
    parts = np.split(tags, np.cumsum([len(own) for own in examples])[:-1])
    return np.fromiter(parts, dtype=object, count=len(parts))  # np.array makes a table where all are of one length


def is_list(cell: object) -> bool:
    return isinstance(cell, list | tuple | np.ndarray)


def _items(cell: object, source: str, row: int, what: str) -> tuple[Any, ...]:
    if not is_list(cell):
        raise ValueError(f"{source}, row {row + 1}: expected a list of {what}s; got {cell!r:.60}")
    items = tuple(item.item() if isinstance(item, np.generic) else item for item in cell)  # type: ignore[attr-defined]
    items = tuple(plain_text(item, source, what) if isinstance(item, bytes) else item for item in items)
    if any(item is None or item == "" or item != item for item in items):
        raise ValueError(f"{source}, row {row + 1}: a {what} is missing")
    return items
