"""Examples as they came, and their labels as classes or targets, with every reason to refuse them."""

import hashlib
import json
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.naming import cut, first_few, reading, refuse_first

Names = Mapping[str, tuple[str, ...]]
"""Column of ``datasets.ClassLabel``, or of lists of them, to what its numbers 0, 1, ... are called."""

PER_EXAMPLE = ("texts", "labels", "words", "clusters")
"""The fields of a :class:`RawSplit` that hold something of each example."""


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

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, chosen: NDArray[np.int64]) -> "RawSplit":
        """The examples at some places, in that order."""
        return replace(self, **{name: taken(getattr(self, name), chosen) for name in PER_EXAMPLE})

    def named_as(self, names: tuple[str, ...] | None) -> "RawSplit":
        """With its own names in place of numbers where another split's numbers mean other names."""
        if self.names is None or self.names == names or self.labels is None:
            return self
        own = dict(enumerate(self.names))
        named = [tuple(own.get(x, x) for x in label) if self.words else own.get(label, label) for label in self.labels]  # type: ignore[attr-defined, call-overload]
        return replace(self, labels=named)

    def sha256(self) -> str:
        """Of the texts and labels, in order, whatever files they are kept in."""
        rows = zip(self.texts, self.labels or repeat(None), strict=False)
        lines = (json.dumps([*texts, label], default=float) + "\n" for texts, label in rows)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def joined(parts: Sequence[RawSplit]) -> RawSplit:
    """The examples of several files, as one split; labels, words and clusters only where all files have them.

    All else is that of the first; a file that numbers its classes otherwise has their names in place of numbers.
    """
    parts = [part.named_as(parts[0].names) for part in parts]
    every = {name: [getattr(part, name) for part in parts] for name in PER_EXAMPLE}
    held = {name: None if None in own else list(chain.from_iterable(own)) for name, own in every.items()}
    return replace(parts[0], **held)  # type: ignore[arg-type]


def taken(examples: Any, chosen: NDArray[np.int64]) -> Any:
    """Those at some places, in that order, as they are kept: in an array, a list or a tuple; None of None."""
    if examples is None:
        return None
    return examples[chosen] if isinstance(examples, np.ndarray) else type(examples)(examples[i] for i in chosen)


def hold_out(split: Any, num_held: int, seed: Any) -> tuple[Any, Any]:
    """Of a RawSplit, or a Split, all examples but ``num_held``, which are drawn with a seed, and these: both
    in their old order."""
    order = np.random.default_rng(seed).permutation(len(split))
    return split.take(np.sort(order[num_held:])), split.take(np.sort(order[:num_held]))


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


MARKS = (-100, -1, "-100", "-1", "-", "_", "NULL", "null", "NaN", "nan", "NA", "N/A", "n/a", "<NA>")
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
    raise ValueError(f"{source}: a {what} is a {type(cell).__name__}; take a column of texts or numbers")


def labels_of(cells: list[object], source: str, names: tuple[str, ...] | None) -> list[object] | None:
    """Labels as they came, None where one is missing; None as a whole for targets that are all -1, which the hub writes
    where they are withheld.

    ``names``: what the numbers are called; -1 is none of them. ValueError for another number that has no name.
    """
    labels = [_label(cell, source) for cell in cells]
    if labels and all(isinstance(label, float) and label == -1 for label in labels):
        return None
    labels = labels if names is None else [None if label in (-1, "-1") else label for label in labels]
    strange = (i for i, x in enumerate(labels) if names and x not in names and _is_number(x))
    nameless = [i for i in strange if not 0 <= float(str(labels[i])) < len(names or ())]
    if nameless:
        raise ValueError(
            f"{source}: a label is the number of none of its {len(names or ())} names: {_rows(labels, nameless)}"
        )
    return labels


def _label(cell: object, source: str) -> object:
    if isinstance(cell, list | tuple | set | np.ndarray | dict):
        is_nested = isinstance(cell, dict) or any(isinstance(x, list | tuple | dict | np.ndarray) for x in cell)
        what = "spans of a text: write its words and a tag for each" if is_nested else "several labels of a text"
        raise ValueError(f"{source}: a label is a {type(cell).__name__} ({what}), which is not supported: {cell!r:.60}")
    cell = float(cell) if isinstance(cell, Decimal) else cell
    is_number = isinstance(cell, int | float | np.number | np.bool_) and not pd.isna(cell)
    return cell if is_number else plain_text(cell, source, "label")


INTEGER = r"[+-]?\d+"
FLOAT = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
HOLE = r"(?i:[+-]?(nan|inf|infinity))"
"""A number that is not there, as text."""

MAX_CLASSES = 1000
"""More distinct labels than this in training are taken for a mistake in --label-column."""


EncodedLabels = tuple[Literal["classification", "regression"], tuple[str, ...], Mapping[str, NDArray[Any] | None]]
"""The kind of a task; class names in order of their index (of integers the numeric one, of texts that of the alphabet,
but what denies the other of two first: not_duplicate, duplicate; of tags O first), () in regression; and of each split
int64 class indices or float64 targets, None where it has no labels."""


def encode_labels(
    raw: Mapping[str, list[object] | None],
    names: tuple[str, ...] | None = None,
    kind: str = "auto",
    what: str = "label",
) -> EncodedLabels:
    """Encode the labels of all splits, or the ``tag`` of each word, after those of ``train``.

    Floats make it a regression, integers and strings a classification; ``kind`` says ``classes`` or ``targets`` where
    they are not written so. ``names`` are the classes 0, 1, ... where the source knows them. ValueError for missing
    labels, one label only, a label that training lacks, words beside numbers that read as targets, true beside 1, and
    two spellings of one class.
    """
    names = None if kind == "targets" else names
    present = {split: _named(split, labels, names) for split, labels in raw.items()}
    rows_without_label = {split: rows_without(labels) for split, labels in present.items()}
    refuse_first(
        {
            line: True
            for split, rows in rows_without_label.items()
            for line in partly_missing(split, rows, present[split])
        }
    )
    present = {split: None if rows_without_label[split] else labels for split, labels in present.items()}
    train = present["train"] or []
    for split, labels in present.items():
        if kind == "auto" and split != "train" and labels and set(labels) <= set(MARKS) - set(train):
            warnings.warn(f"every {what} of split {split!r} is {_shown(labels[0])}: taken as withheld", stacklevel=2)
            present[split] = None
    for split in ("train", "validation"):
        if split in present and not present[split]:
            raise ValueError(f"split {split!r} has no {what}s: check --label-column")
    if names is None and what == "label":
        numbers = {split: labels and [_as_number(label) for label in labels] for split, labels in present.items()}
        read = numbers["train"] or []
        _check_numbers(read)
        are_numbers = all(map(_is_number, read))
        if kind == "targets" or (kind == "auto" and are_numbers and any(map(_is_float, read))):
            return "regression", (), _encode_targets(numbers, kind)
        present = numbers if are_numbers else present
    return "classification", *_encode_classes(present, names, kind, what)


def _named(split: str, labels: list[object] | None, names: tuple[str, ...] | None) -> list[object] | None:
    """Labels with names in place of their numbers; ValueError for texts that are names and numbers alike."""
    if not names or labels is None:
        return labels
    called: dict[Any, str] = dict(enumerate(names))
    texts = {label for label in labels if isinstance(label, str)}
    numbers = {text: called[float(text)] for text in texts if _matches(FLOAT, text) and float(text) in called}
    are_names, are_numbers = texts <= set(names), texts <= numbers.keys()
    if are_names and are_numbers and any(text != name for text, name in numbers.items()):
        raise ValueError(
            f"split {split!r} has labels such as {min(texts)!r}, which are numbers of classes and names of "
            f"others ({', '.join(names[:5])}): write them as integers"
        )
    called |= numbers if are_numbers and not are_names else {}
    return [called.get(label, label) for label in labels]


MANY, FEW_ROWS = 20, 3
"""With at least so many examples, fewer than so many of the median class are hardly classes."""
FEW = 3
"""With at most this many different whole numbers as labels, a regression on them is probably a mistake."""
SEPARATORS = r"\s*[,;|]\s*"
NUMBER_AS_WORD = r"[+-]?\d+([.,]\d+)?\s*%|[+-]?\d+,\d+|\u2212\d+(\.\d+)?"
OUTSIDE = "O"
"""The tag of a word that belongs to no entity."""


def marks_span(tag: str) -> bool:
    return tag[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") and len(tag) > 2


def has_entities(names: Collection[str]) -> bool:
    """Whether tags mark entities: O, and others that begin with B-, I-, E-, S-, L- or U-."""
    marked = [name for name in names if name != OUTSIDE]
    return bool(marked) and all(map(marks_span, marked))


def _doubt_classes(present: Mapping[str, list[str] | None], what: str) -> None:
    """ValueError, which --label-kind classes says no to, for labels or tags that may be none, or none of classes."""
    train, is_tag = present["train"] or [], what == "tag"
    rows = Counter(train)
    marks = set(MARKS).intersection(chain.from_iterable(labels or () for labels in present.values()))
    found = {k: [i for i, label in enumerate(labels or (), 1) if label in marks] for k, labels in present.items()}
    counts = [
        f"{split}: {len(rows):,} of {len(present[split] or ()):,}, row {first_few([str(row) for row in rows])}"
        for split, rows in found.items()
        if rows
    ]
    # A tag may well have a comma, or be made of others: features, say.
    parts = {} if is_tag else {label: re.split(SEPARATORS, label) for label in rows}
    occurs = Counter(part for own in parts.values() for part in set(own))
    several = [label for label, own in parts.items() if len(own) > 1 and all(occurs[part] > 1 for part in own)]
    lists = [label for label in parts if re.fullmatch(r"\[.*\]", label, re.DOTALL)]
    marks_text, several_text = (" and ".join(sorted(map(_shown, own))[:3]) for own in (marks, several))
    owner, remedy = ("a word", "write -100 for it") if is_tag else ("an example", "drop these rows")
    most = max(len(train) / 2, MANY) if is_tag else MAX_CLASSES
    doubts = (
        (
            marks and len(rows.keys() - marks) > 1,
            f"{marks_text} as a {what} often says that {owner} has none ({', '.join(counts)}): {remedy}",
        ),
        (several, f"the label {several_text} is made of others: several labels of a text are not supported"),
        (
            lists,
            f"the label {''.join(map(repr, lists[:1]))} is a list written as text: several labels of a text are not "
            "supported, and words with tags are read from .jsonl or .parquet",
        ),
        (
            any(_matches(NUMBER_AS_WORD, x) for x in parts)
            and all(_matches(f"{FLOAT}|{NUMBER_AS_WORD}", x) for x in parts),
            f"labels such as {_shown(train[0])} read as numbers: write them as such, with a point and without %",
        ),
        (
            len(rows) > min(most, MAX_CLASSES)
            or (not is_tag and len(train) >= MANY and np.median(list(rows.values())) < FEW_ROWS),
            f"there are {len(rows):,} {'tags on' if is_tag else 'classes in'} {len(train):,} "
            f"{'words' if is_tag else 'training examples'}: is --label-column the right one (floats mean regression)?",
        ),
        (
            not is_tag and OUTSIDE in rows and has_entities(rows),
            f"the labels are tags of words ({first_few(sorted(rows), 5)}), and each word is a text: save it as .conll, "
            "or as .jsonl with a list of words and one of tags per sentence",
        ),
    )
    refuse_first({f"{doubt}; if these are classes, pass --label-kind classes": is_so for is_so, doubt in doubts})


def _check_numbers(train: list[object]) -> None:
    """ValueError where labels that are not numbers would silently turn targets into classes.

    Most labels are numbers, some of them floats: then a word is a mistake. So is nan or inf as text beside any number.
    Integers beside other words (1, 2, none) are names of classes.
    """
    strange = [i for i, label in enumerate(train) if not _is_number(label)]
    is_regression = any(map(_is_float, train)) and 2 * len(strange) < len(train)
    are_holes = len(strange) < len(train) and all(_matches(HOLE, train[i]) for i in strange)
    if strange and (is_regression or are_holes):
        beside = "most are floats, which mean regression" if is_regression else "the others are numbers"
        raise ValueError(
            f"split 'train' has labels that are not finite numbers ({_rows(train, strange)}) where {beside}: "
            "correct or drop these rows, or, if the labels name classes, write all of them as words"
        )


def _as_number(label: object) -> object:
    """A text that is a float as that; anything else as it is, the text of an integer too.

    Of all labels or of none: a split in which only some of training's occur must not be read otherwise.
    """
    return float(str(label)) if _matches(FLOAT, label) and not _matches(INTEGER, label) else label


def _check_spellings(present: Mapping[str, list[str] | None], names: Sequence[str], what: str, kind: str) -> None:
    """ValueError where labels look alike to a reader, though datasets, pandas and scikit-learn tell them apart: one
    word but for case, white space, Unicode's form or letters of other alphabets, which --label-kind classes says is two
    (``:D`` and ``:d``), or one integer; and where true or false, which have no names, stand beside 1 or 0."""
    spellings: dict[object, dict[str, int]] = {_normal(name): {name: 0} for name in names}
    for label, count in Counter(chain.from_iterable(labels or () for labels in present.values())).items():
        counts = spellings.setdefault(_normal(label), {})
        counts[label] = counts.get(label, 0) + count
    alike = [(meant, counts) for meant, counts in spellings.items() if len(counts) > 1]
    of_integers = [counts for meant, counts in alike if isinstance(meant, int)]
    of_words = [counts for meant, counts in alike if not isinstance(meant, int)] if kind == "auto" else []
    one_way = "write one class in one way"
    faults = {
        f"there are the {what}s {_named_alike(of_words, f'one but for {SPELLING}')}: {one_way}; if these are several, "
        f"{TAKEN}": of_words,
        f"there are the {what}s {_named_alike(of_integers, 'one integer')}: {one_way}, or as words that differ in "
        "more": of_integers,
        "the labels true or false stand beside 1 or 0, which may mean the same: write each class in one way": (
            not names and spellings.keys() & {"true", "false"} and spellings.keys() & {0, 1}
        ),
    }
    refuse_first(faults)


def _named_alike(groups: Sequence[Mapping[str, int]], what: str) -> str:
    """``'good' and 'Good', which are one but for case (204 and 6 times)``, of each group."""
    texts = [
        f"{' and '.join(map(_shown, counts))}, which are {what} ({' and '.join(map(str, counts.values()))} times)"
        for counts in groups
    ]
    return "; ".join(texts[:MOST_GROUPS]) + (f" and {len(texts) - MOST_GROUPS} more" if texts[MOST_GROUPS:] else "")


MOST_GROUPS = 3
"""Labels that are written in several ways of which a refusal names the ways."""


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


@lru_cache(1 << 16)  # a column has few labels, many times each
def _matches(pattern: str, label: object) -> bool:
    return isinstance(label, str) and re.fullmatch(pattern, label.strip()) is not None


def _rows(labels: list[object], rows: list[int]) -> str:
    """``row 3 ('nan'), row 7 ('N/A') and 5 more``, counted from 1 below the header."""
    return first_few([f"row {i + 1} ({_shown(labels[i])})" for i in rows])


def _is_number(label: object) -> bool:
    """Whether it is a number, or the text of an integer."""
    return (isinstance(label, int | float | np.number) and not isinstance(label, bool)) or _matches(INTEGER, label)


def rows_without(labels: list[object] | None) -> list[int]:
    """The rows whose label is missing."""
    return [i for i, label in enumerate(labels or ()) if pd.isna(label) or not str(label).strip()]


def partly_missing(split: str, rows: Sequence[int], labels: Sequence[object] | None) -> list[str]:
    """What to say of a split whose ``rows`` alone have no label; nothing of one with all labels, or without any."""
    is_part = 0 < len(rows) < len(labels or ())
    rows_text = first_few([str(row + 1) for row in rows], SHOWN_ROWS)
    return [f"split {split!r}, row {rows_text}: the label is missing"] if is_part else []


SHOWN_ROWS = 10
"""Rows that a refusal names at most."""


def _is_float(label: object) -> bool:
    return isinstance(label, float | np.floating)


def _encode_targets(present: Mapping[str, list[object] | None], kind: str) -> dict[str, NDArray[Any] | None]:
    targets: dict[str, Any] = dict.fromkeys(present)
    for split, labels in [(split, labels) for split, labels in present.items() if labels is not None]:
        if strange := [i for i, label in enumerate(labels) if not _is_number(label)]:
            raise ValueError(
                f"split {split!r} has labels that are not numbers, as targets are: {_rows(labels, strange)}"
            )
        targets[split] = np.array(labels, np.float64)
        if infinite := np.flatnonzero(~np.isfinite(targets[split])).tolist():
            raise ValueError(f"split {split!r} has an infinite label: {_rows(labels, infinite)}")
    train, values = targets["train"], np.unique(targets["train"])
    are_few = len(train) >= MANY and len(values) <= FEW and (values == np.round(values)).all()
    faults = {
        f"every training label is {values[0]:g}: there is nothing to learn": len(values) == 1,
        f"the labels are {', '.join(str(float(x)) for x in values[:FEW])}: floats mean regression, but so few and "
        "whole they look like classes (pandas writes integers so beside a missing one): say which with --label-kind "
        "classes or --label-kind targets": kind == "auto" and are_few,
    }
    refuse_first(faults)
    return targets


NOT = r"(?i:not?|non|un)[\W_]*"
"""How the name of a class begins that denies the other one: not_duplicate, non-toxic, unrelated."""


def _is_asked(label: str, distinct: Collection[str]) -> bool:
    """Whether a class is the one of two that is asked about, which comes second, as in GLUE: F1 is of that."""
    return len(distinct) == 2 and any(re.fullmatch(NOT + re.escape(label), other) for other in distinct)


def _encode_classes(
    labelled: Mapping[str, list[object] | None], names: tuple[str, ...] | None, kind: str, what: str
) -> tuple[tuple[str, ...], dict[str, NDArray[Any] | None]]:
    for split, labels in labelled.items():
        if broken := [i for i, x in enumerate(labels or ()) if isinstance(x, float) and not x.is_integer()]:
            raise ValueError(
                f"split {split!r} has {what}s that are numbers and not whole, {_rows(labels or [], broken)}: write "
                "classes as words"
            )
    present = {k: None if labels is None else [_text(label) for label in labels] for k, labels in labelled.items()}
    train = present["train"] or []
    distinct = set(train)
    _check_spellings(present, names or (), what, kind)
    if len(distinct) == 1:
        raise ValueError(f"every training {what} is {_shown(train[0])}: there is nothing to learn")
    if kind == "auto" and names is None:
        _doubt_classes(present, what)
    are_integers = what == "label" and all(_matches(INTEGER, text) for text in distinct)

    def place(text: str) -> tuple[Any, ...]:
        return (int(text),) if are_integers else (what == "tag" and text != OUTSIDE, _is_asked(text, distinct), text)

    texts = [*(names or ()), *sorted(distinct.difference(names or ()), key=place)]
    texts += _check_unseen(present, texts, what, kind)
    index = {text: i for i, text in enumerate(texts)}
    encoded = {k: None if own is None else np.array([index[x] for x in own], np.int64) for k, own in present.items()}
    return tuple(texts), encoded


def _text(label: object) -> str:
    """What a class is called: pandas writes integers as floats beside a missing one."""
    text = str(int(label)) if isinstance(label, float) else str(label)
    return text.strip() if _matches(INTEGER, text) else text


MOST_UNSEEN = 0.1
"""Of a split's labels: more that training lacks are no rare class but another column, or another way to write them."""


def _check_unseen(present: Mapping[str, list[str] | None], known: Sequence[str], what: str, kind: str) -> list[str]:
    """The labels that only scored splits have, and that nothing declares (as those ``known``): each is counted as an
    error, and said; ValueError where a split has many."""
    new: dict[str, None] = {}
    seen = set(present["train"] or ())
    for split, labels in present.items():
        strange = [label for label in labels or () if label not in seen]
        if not strange:
            continue
        listed = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        line = f"split {split!r} has the {what} {_shown(strange[0])}, which training lacks (it has: {listed})"
        of_all = f"{len(strange):,} of {len(labels or ()):,}"
        if len(strange) > MOST_UNSEEN * len(labels or ()):
            raise ValueError(f"{line}; such are {of_all}: are they written as in training?")
        warnings.warn(f"{line}: such, {of_all}, cannot be learned and count as errors", stacklevel=2)
        new |= dict.fromkeys(label for label in strange if label not in known)
    return list(new)


def _shown(label: object) -> str:
    """A number as such, whether it is one or its text; any other text in quotation marks."""
    return cut(repr(label) if isinstance(label, str) and not _matches(INTEGER, label) else str(label))
