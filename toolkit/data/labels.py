"""Examples as they came, and their labels as classes or targets, with every reason to refuse them."""

import hashlib
import json
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain, repeat
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.naming import cut, first_few, reading, refuse_first


@dataclass(frozen=True, slots=True)
class RawSplit:
    """Texts and labels of one split as they came."""

    texts: list[tuple[str, ...]]
    """Per example its one or two texts; a missing one is None."""
    labels: list[object] | None
    """Per example an int, str or float, None where it is missing; None as a whole when there is no label column."""
    columns: tuple[str, ...] = ()
    """Of the table that it was read from, where there was one."""
    taken_from: str = ""
    """``texts: COLUMNS; labels: COLUMN`` of that table, as the screen says it."""
    words: list[tuple[str, ...]] | None = None
    """Of a token task: per example its words. Its text is them with spaces between, its label a tuple of their tags."""
    clusters: list[str] | None = None
    """Per example the id of what it comes from with others; None where no column says so."""
    names: tuple[str, ...] | None = None
    """What the labels, or tags, 0, 1, ... are called, where the source says so."""

    def named_as(self, names: tuple[str, ...] | None) -> "RawSplit":
        """With its own names in place of numbers where another split's numbers mean other names."""
        if self.names is None or self.names == names or self.labels is None:
            return self
        own = dict(enumerate(self.names))
        named = [tuple(own.get(x, x) for x in label) if self.words else own.get(label, label) for label in self.labels]  # type: ignore[attr-defined, call-overload]
        return replace(self, labels=named)

    def sha256(self) -> str:
        """Of the texts and labels, in order, whatever files they are kept in."""
        hashed = hashlib.sha256()
        for texts, label in zip(self.texts, self.labels or repeat(None), strict=False):
            hashed.update(json.dumps([*texts, label], default=float).encode() + b"\n")
        return hashed.hexdigest()


def joined(parts: Sequence[RawSplit]) -> RawSplit:
    """The examples of several files, as one split; labels, words and clusters only where all files have them.

    All else is that of the first; a file that numbers its classes otherwise has their names in place of numbers.
    """
    parts = [part.named_as(parts[0].names) for part in parts]
    every = {name: [getattr(part, name) for part in parts] for name in ("texts", "labels", "words", "clusters")}
    held = {name: None if None in own else list(chain.from_iterable(own)) for name, own in every.items()}
    return replace(parts[0], **held)  # type: ignore[arg-type]


def split_of_words(words: list[tuple[str, ...]], tags: Sequence[object] | None) -> RawSplit:
    """A split of a token task."""
    return RawSplit([(" ".join(row),) for row in words], None if tags is None else list(tags), words=words)


@dataclass(frozen=True, slots=True)
class RawTask:
    """The splits of one source, ``train`` first and at least one whose name begins with ``validation``."""

    splits: Mapping[str, RawSplit]
    label_names: tuple[str, ...] | None = None
    """Names of integer labels 0, 1, ... where the source knows them."""
    score: str | None = None
    """The headline score where the source has a habit."""
    carrier: str | None = None
    out_of_distribution: tuple[str, ...] = ()
    """The splits that are not of the distribution of the training data, as the source or the user says."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Split to the sha256 of its texts and labels, of a dataset of the hub: what its name stands for can change."""
    commits: Mapping[str, str] = field(default_factory=dict)
    """``@REVISION`` to the commit that it stood for, where a dataset of the hub was asked for at one."""


MARKS = (-100, -1, "-100", "-1", "-", "NULL", "null", "NaN", "nan", "NA", "N/A", "n/a", "<NA>")
"""What is written in place of a label that was withheld, that a loss is to leave out, or that nobody agreed on, and
what databases and pandas write for one that is not there."""


def plain_text(cell: object, source: str, what: str = "text") -> str | None:
    """A cell as text, None where it is missing; a number is taken as its text, and bytes are UTF-8."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bytes):
        with reading(source, f"has a {what} of bytes that are no UTF-8", remedy="decode the column"):
            return cell.decode()
    if isinstance(cell, int | float | Decimal | np.generic) or cell is None or cell is pd.NA or cell is pd.NaT:
        return None if pd.isna(cell) else str(cell)
    raise ValueError(f"{source}: a {what} is a {type(cell).__name__}; pass a column of plain texts")


def labels_of(cells: list[object], source: str, names: tuple[str, ...] | None) -> list[object] | None:
    """Labels as they came, None where one is missing; None as a whole for targets that are all -1, which the hub writes
    where they are withheld.

    ``names``: what the numbers are called; -1 is none of them. ValueError for another number that has no name.
    """
    labels = [_label(cell, source) for cell in cells]
    if labels and all(isinstance(label, float) and label == -1 for label in labels):
        return None
    labels = labels if names is None else [None if label in (-1, "-1") else label for label in labels]
    nameless = [i for i, x in enumerate(labels) if names and _is_number(x) and not 0 <= float(x) < len(names)]  # type: ignore[arg-type]
    if nameless:
        raise ValueError(
            f"{source}: a label is the number of none of its {len(names or ())} names: {_rows(labels, nameless)}"
        )
    return labels


def _label(cell: object, source: str) -> object:
    if isinstance(cell, Decimal):
        return float(cell)
    if isinstance(cell, str | int | float | np.number | np.bool_):
        return None if pd.isna(cell) else cell
    if isinstance(cell, list | tuple | set | np.ndarray | dict):
        is_nested = isinstance(cell, dict) or any(isinstance(x, list | tuple | dict | np.ndarray) for x in cell)
        what = "spans of a text: write its words and a tag for each" if is_nested else "several labels of a text"
        raise ValueError(f"{source}: a label is a {type(cell).__name__} ({what}), which is not supported: {cell!r:.60}")
    if cell is None or isinstance(cell, bytes) or cell is pd.NA or cell is pd.NaT:
        return plain_text(cell, source, "label")
    raise ValueError(f"{source}: a label is a {type(cell).__name__}; labels are integers, strings or floats")


INTEGER = r"[+-]?\d+"
FLOAT = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
HOLE = r"(?i:[+-]?(nan|inf|infinity))"
"""A number that is not there, as text."""

MAX_CLASSES = 1000
"""More distinct labels than this in training are taken for a mistake in --label-column."""


EncodedLabels = tuple[Literal["classification", "regression"], tuple[str, ...], Mapping[str, NDArray[Any] | None]]
"""The kind of a task; class names in order of their index (of integers the numeric one, of texts that of the alphabet,
but what denies the other of two first: not_duplicate, duplicate), () in regression; and of each split int64 class
indices or float64 targets, None where it has no labels."""


def encode_labels(
    raw: Mapping[str, list[object] | None], names: tuple[str, ...] | None = None, kind: str = "auto"
) -> EncodedLabels:
    """Encode the labels of all splits after those of ``train``.

    Floats make it a regression, integers and strings a classification; ``kind`` says ``classes`` or ``targets`` where
    they are not written so. ``names`` are the classes 0, 1, ... where the source knows them. ValueError for missing
    labels, one label only, a label that training lacks, words beside numbers that read as targets, true beside 1, and
    two spellings of one class.
    """
    present = {split: _refuse_partly_missing(split, _numbered(split, own, names)) for split, own in raw.items()}
    train = present["train"]
    for split, labels in present.items():
        if kind == "auto" and split != "train" and labels and set(labels) <= set(MARKS) - set(train or ()):
            warnings.warn(f"every label of split {split!r} is {_shown(labels[0])}: taken as withheld", stacklevel=2)
            present[split] = None
    for split in ("train", "validation"):
        if split in present and present[split] is None:
            raise ValueError(f"split {split!r} has no labels: check --label-column")
    assert train is not None
    _check_numbers(train)
    _check_truth(present)
    written = train
    convert = _converter(train)
    present = {split: None if labels is None else [convert(x) for x in labels] for split, labels in present.items()}
    if kind == "classes":
        present = {split: _as_integers(split, labels) for split, labels in present.items()}
    train = present["train"] or []
    has_numbers = all(_is_number(label) for label in train)
    if kind == "targets" and not has_numbers:
        strange = [i for i, label in enumerate(train) if not (_is_number(label) or _matches(FLOAT, label))]
        raise ValueError(f"--label-kind targets takes numbers, and split 'train' has others: {_rows(train, strange)}")
    if kind == "targets" or (has_numbers and any(_is_float(label) for label in train)):
        return _encode_targets(present)
    check_spellings(written, names, kind)
    if kind == "auto" and names is None:
        _doubt_classes(present, train)
    return _encode_classes(present, train, names, kind)


def _numbered(split: str, labels: list[object] | None, names: tuple[str, ...] | None) -> list[object] | None:
    """Labels that are texts as the numbers of their names; ValueError for texts that are names and numbers alike."""
    texts = {label for label in labels or () if isinstance(label, str)}
    if not texts or not names or labels is None:
        return labels
    places = {name: i for i, name in enumerate(names)}
    numbers = {text: int(text) for text in texts if _matches(INTEGER, text) and 0 <= int(text) < len(names)}
    if texts <= places.keys() and texts <= numbers.keys() and any(places[text] != numbers[text] for text in texts):
        raise ValueError(
            f"split {split!r} has labels such as {_shown(min(texts))}, which are numbers of classes and names of "
            f"others ({', '.join(names[:5])}): write them as integers"
        )
    known = places if texts <= places.keys() else numbers if texts <= numbers.keys() else places
    return [known.get(label, label) for label in labels]  # type: ignore[call-overload]


MANY, FEW_ROWS = 20, 3
"""With at least so many examples, fewer than so many of the median class are hardly classes."""
SEPARATORS = r"\s*[,;|]\s*"
NUMBER_AS_WORD = r"[+-]?\d+([.,]\d+)?\s*%|[+-]?\d+,\d+|\u2212\d+(\.\d+)?"


def _doubt_classes(present: Mapping[str, list[object] | None], train: list[object]) -> None:
    """ValueError, which --label-kind classes says no to, for labels that may be none, or none of classes."""
    distinct = set(train)
    marks = distinct.union(*(labels or () for labels in present.values())) & set(MARKS)
    found = {k: sum(label in marks for label in labels or ()) for k, labels in present.items()}
    counts = [f"{k}: {num:,} of {len(present[k] or ()):,}" for k, num in found.items() if num]
    parts = {label: re.split(SEPARATORS, label) for label in distinct if isinstance(label, str)}
    occurs = Counter(part for own in parts.values() for part in set(own))
    several = [label for label, own in parts.items() if len(own) > 1 and all(occurs[part] > 1 for part in own)]
    lists = [label for label in parts if re.fullmatch(r"\[.*\]", label, re.DOTALL)]
    median = np.median(list(Counter(train).values()))
    marks_text, several_text = (" and ".join(sorted(map(_shown, own))[:3]) for own in (marks, several))
    doubts = (
        (
            marks and len(distinct - marks) > 1,
            f"{marks_text} as a label often says that an example has none ({', '.join(counts)}): drop these rows",
        ),
        (several, f"the label {several_text} is made of others: several labels of a text are not supported"),
        (
            lists,
            f"the label {''.join(map(repr, lists[:1]))} is a list written as text: several labels of a text are not "
            "supported, and words with tags are read from .jsonl or .parquet",
        ),
        (
            any(_matches(NUMBER_AS_WORD, x) for x in distinct)
            and all(_is_number(x) or _matches(f"{FLOAT}|{NUMBER_AS_WORD}", x) for x in distinct),
            f"labels such as {_shown(train[0])} read as numbers: write them as such, with a point and without %",
        ),
        (
            len(train) >= MANY and median < FEW_ROWS and len(distinct) <= MAX_CLASSES,
            f"there are {len(distinct):,} classes in {len(train):,} training examples, most of them with fewer than "
            f"{FEW_ROWS} (is --label-column the right one? floats mean regression)",
        ),
    )
    refuse_first({f"{doubt}; if these are classes, pass --label-kind classes": is_so for is_so, doubt in doubts})


def _check_numbers(train: list[object]) -> None:
    """ValueError where labels that are not numbers would silently turn targets into classes.

    Most labels are numbers, some of them floats: then a word is a mistake. So is nan or inf as text beside any number.
    Integers beside other words (1, 2, none) are names of classes.
    """
    strange = [i for i, label in enumerate(train) if not (_is_number(label) or _matches(FLOAT, label))]
    if not 0 < len(strange) < len(train):
        return
    has_floats = any(_is_float(label) or (_matches(FLOAT, label) and not _matches(INTEGER, label)) for label in train)
    is_regression = has_floats and 2 * len(strange) < len(train)
    if is_regression or all(_matches(HOLE, train[i]) for i in strange):
        beside = "most are floats, which mean regression" if is_regression else "the others are numbers"
        raise ValueError(
            f"split 'train' has labels that are not finite numbers ({_rows(train, strange)}) where {beside}: "
            "correct or drop these rows, or, if the labels name classes, write all of them as words"
        )


def _converter(train: list[object]) -> Callable[[object], object]:
    """How to read labels that are text: as integers or floats where every training label is one, else as text.

    Training decides for every split: a split in which only some labels occur must not be read otherwise.
    """
    has_floats = any(_is_float(label) for label in train)  # of a typed file, beside which another is text
    patterns: tuple[tuple[str, Callable[[str], object]], ...] = ((INTEGER, int), (FLOAT, float))
    for pattern, convert in patterns[has_floats:]:
        if all(_is_number(label) or _matches(pattern, label) for label in train):
            return lambda label: convert(label) if _matches(pattern, label) else label  # type: ignore[arg-type]
    return str if all(isinstance(label, str) for label in train) else lambda label: label


def _as_integers(split: str, labels: list[object] | None) -> list[object] | None:
    """Labels with the floats among them as integers; ValueError for one that is not whole."""
    broken = [i for i, x in enumerate(labels or ()) if _is_float(x) and not float(x).is_integer()]  # type: ignore[arg-type]
    if labels and broken:
        raise ValueError(
            f"--label-kind classes: split {split!r} has numbers that are not whole, {_rows(labels, broken)}: write "
            "these classes as words"
        )
    return labels and [int(label) if _is_float(label) else label for label in labels]  # type: ignore[call-overload]


def _check_truth(present: Mapping[str, list[object] | None]) -> None:
    """ValueError where true or false stand beside 1 or 0: Python takes True and 1 for one, and a text for another."""
    distinct = {(type(label), label) for labels in present.values() for label in labels or ()}
    meant = {_normal(label) for _, label in distinct}
    if meant & {"true", "false"} and meant & {0, 1}:
        raise ValueError(
            "the labels true or false stand beside 1 or 0, which may mean the same: write each class in one way"
        )


def check_spellings(train: Sequence[object], names: tuple[str, ...] | None, kind: str) -> None:
    """ValueError where two labels look alike to a reader, though datasets, pandas and scikit-learn tell them apart: one
    word but for case, white space, Unicode's form or letters of other alphabets, which --label-kind classes says is two
    (``:D`` and ``:d``), or one integer."""
    counts = Counter(names[label] if names and isinstance(label, int) else label for label in train)
    spelling: dict[object, object] = {}
    for label in counts:
        other = spelling.setdefault(_normal(label), label)
        # A number and its text are one label where all are numbers: a typed file beside one of text.
        is_typed = _is_number(other) != _is_number(label) and str(other).strip() == str(label).strip()
        is_one = _matches(INTEGER, label) or str(label) == str(other)
        if other is not label and not is_typed and (kind == "auto" or is_one):
            how = "one integer" if _matches(INTEGER, label) else f"one but for {SPELLING}"
            rest = ", or two as words that differ in more" if is_one else f"; if these are two, {TAKEN}"
            raise ValueError(
                f"split 'train' has the labels {_shown(other)} and {_shown(label)}, which are {how} ({counts[other]} "
                f"and {counts[label]} times): write one class in one way{rest}"
            )


TAKEN = "pass --label-kind classes"
SPELLING = "case, white space, Unicode's form or letters of other alphabets"
LOOKALIKES = str.maketrans("авекмнорстухіјѕαβεζηικμνορτυχ’‘ʼ‐–—−", "abekmhopctyxijsabezhikmnoptyx'''----")  # noqa: RUF001
"""Letters of Cyrillic and Greek, small or capital, quotation marks and dashes that are drawn as one of ASCII."""


def _normal(label: object) -> object:
    """What the spellings of one class have in common."""
    if _matches(INTEGER, label):
        return int(str(label))
    if _is_number(label):
        return label
    text = unicodedata.normalize("NFKC", str(label)).casefold().translate(LOOKALIKES)
    visible = "".join(char for char in text if unicodedata.category(char) != "Cf")  # a zero-width space, say
    return " ".join(visible.split())


def _matches(pattern: str, label: object) -> bool:
    return isinstance(label, str) and re.fullmatch(pattern, label.strip()) is not None


def _rows(labels: list[object], rows: list[int]) -> str:
    """``row 3 ('nan'), row 7 ('N/A') and 5 more``, counted from 1 below the header."""
    return first_few([f"row {i + 1} ({_shown(labels[i])})" for i in rows])


def _is_number(label: object) -> bool:
    return isinstance(label, int | float | np.number) and not isinstance(label, bool)


def _refuse_partly_missing(split: str, labels: list[object] | None) -> list[object] | None:
    """None for a split without any label; ValueError for one where only some are missing."""
    missing = [i for i, label in enumerate(labels or ()) if pd.isna(label) or not str(label).strip()]
    if labels and 0 < len(missing) < len(labels):
        raise ValueError(
            f"split {split!r}, row {missing[0] + 1}: the label is missing (rows without one: {len(missing)})"
        )
    return None if missing else labels


def _is_float(label: object) -> bool:
    return isinstance(label, float | np.floating)


def _encode_targets(present: Mapping[str, list[object] | None]) -> EncodedLabels:
    targets: dict[str, NDArray[Any] | None] = dict.fromkeys(present)
    for split, labels in [(split, labels) for split, labels in present.items() if labels is not None]:
        if strange := [i for i, label in enumerate(labels) if not _is_number(label)]:
            raise ValueError(
                f"split {split!r} has labels that are not numbers, but training has floats: {_rows(labels, strange)}"
            )
        values = np.array([float(label) for label in labels])  # type: ignore[arg-type]
        if infinite := np.flatnonzero(~np.isfinite(values)).tolist():
            raise ValueError(f"split {split!r} has an infinite label: {_rows(labels, infinite)}")
        if split == "train" and np.ptp(values) == 0:
            raise ValueError(f"every training label is {values[0]:g}: there is nothing to learn")
        targets[split] = values
    return "regression", (), targets


NOT = r"(?i:not?|non|un)[\W_]*"
"""How the name of a class begins that denies the other one: not_duplicate, non-toxic, unrelated."""


def _is_asked(label: object, distinct: Sequence[object]) -> bool:
    """Whether a class is the one of two that is asked about, which comes second, as in GLUE: F1 is of that."""
    return len(distinct) == 2 and any(re.fullmatch(NOT + re.escape(str(label)), str(other)) for other in distinct)


def _encode_classes(
    present: Mapping[str, list[object] | None], train: list[object], names: tuple[str, ...] | None, kind: str
) -> EncodedLabels:
    distinct: list[Any] = list(set(train))
    order = (
        list(range(len(names)))
        if names
        else sorted(distinct, key=lambda label: (_is_asked(label, distinct), str(label)))
    )
    if not names and all(isinstance(label, int) for label in distinct):
        order = sorted(distinct)
    texts = names or tuple(map(str, order))
    if len(set(train)) == 1:
        raise ValueError(f"every training label is {_shown(train[0])}: there is nothing to learn")
    if len(order) > MAX_CLASSES:
        raise ValueError(f"training has {len(order)} distinct labels: check --label-column (floats mean regression)")
    order += check_unseen(present, set(train), dict(zip(order, texts, strict=True)), "label", kind)
    index = {label: i for i, label in enumerate(order)}
    encoded = {k: own and np.array([index[label] for label in own], dtype=np.int64) for k, own in present.items()}
    return "classification", (*texts, *map(str, order[len(texts) :])), encoded  # type: ignore[return-value]


MOST_UNSEEN = 0.1
"""Of a split's labels: more that training lacks are no rare class but another column, or another way to write them."""


def check_unseen(
    present: Mapping[str, Sequence[object] | None],
    seen: Collection[object],
    known: Mapping[object, str],
    what: str,
    kind: str,
) -> list[object]:
    """The labels that only scored splits have, and that nothing declares (``known``, to what they are called): each is
    counted as an error, and said; ValueError where a split has many, or one that looks like another to a reader."""
    new: dict[object, None] = {}
    called = {_normal(text): text for text in known.values()}
    for split, labels in present.items():
        strange = [label for label in labels or () if label not in seen]
        if not strange:
            continue
        listed = ", ".join([*known.values()][:8]) + (", ..." if len(known) > 8 else "")
        line = f"split {split!r} has the {what} {_shown(strange[0])}, which training lacks (it has: {listed})"
        of_all = f"{len(strange):,} of {len(labels or ()):,}"
        alike = [label for label in strange if label not in known and _normal(label) in called]
        if alike and kind == "auto":
            raise ValueError(
                f"split {split!r} has the {what} {_shown(alike[0])}, which training writes as "
                f"{called[_normal(alike[0])]!r} (one but for {SPELLING}): write it so; if it is another, {TAKEN}"
            )
        if len(strange) > MOST_UNSEEN * len(labels or ()):
            raise ValueError(f"{line}; such are {of_all}: are they written as in training?")
        warnings.warn(f"{line}: such, {of_all}, cannot be learned and count as errors", stacklevel=2)
        new |= dict.fromkeys(label for label in strange if label not in known)
    return list(new)


def _shown(label: object) -> str:
    return cut(repr(label) if isinstance(label, str) else str(label))
