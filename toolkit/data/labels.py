"""Examples as they came, and their labels as classes or targets, with every reason to refuse them."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


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


INTEGER = r"[+-]?\d+"
FLOAT = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"

TRUTHS = ("true", "false")

MAX_CLASSES = 1000
"""More distinct labels than this in training are taken for a mistake in --label-column."""


@dataclass(frozen=True, slots=True)
class EncodedLabels:
    """One task's labels."""

    kind: Literal["classification", "regression"]
    names: tuple[str, ...]
    """Class names in order of their index: numeric order for integers, alphabetical for strings; () in regression."""
    labels: Mapping[str, NDArray[Any] | None]
    """Split to int64 class indices or float64 targets; None for a split without labels."""


def encode_labels(
    raw: Mapping[str, list[object] | None], names: tuple[str, ...] | None = None, kind: str = "auto"
) -> EncodedLabels:
    """Encode the labels of all splits after those of ``train``.

    Floats make it a regression, integers and strings a classification; ``kind`` says ``classes`` or ``targets`` where
    they are not written so. ``names`` are the classes 0, 1, ... where the source knows them. ValueError for missing
    labels, one label only, a label that training lacks, words beside numbers that read as targets, true beside 1, and
    two spellings of one class.
    """
    present = {split: _refuse_partly_missing(split, labels) for split, labels in raw.items()}
    train = present["train"]
    if train is None:
        raise ValueError("split 'train' has no labels: check --label-column")
    if present.get("validation", train) is None:
        raise ValueError("split 'validation' has no labels: check --label-column")
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
    _check_spellings(written, names)
    return _encode_classes(present, train, names)


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
    if is_regression or all(_is_hole(train[i]) for i in strange):
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
    if labels is None:
        return None
    broken = [i for i, label in enumerate(labels) if _is_float(label) and not float(label).is_integer()]  # type: ignore[arg-type]
    if broken:
        raise ValueError(
            f"--label-kind classes: split {split!r} has numbers that are not whole, {_rows(labels, broken)}: write "
            "these classes as words"
        )
    return [int(label) if _is_float(label) else label for label in labels]  # type: ignore[call-overload]


def _check_truth(present: Mapping[str, list[object] | None]) -> None:
    """ValueError where true or false stand beside 1 or 0: Python takes True and 1 for one, and a text for another."""
    truths: dict[str, None] = {}
    numbers: dict[str, None] = {}
    distinct = {(type(label), label): label for labels in present.values() for label in labels or ()}
    for label in distinct.values():
        if isinstance(label, bool | np.bool_) or (isinstance(label, str) and label.strip().casefold() in TRUTHS):
            truths[_shown(label)] = None
        elif (_is_number(label) and label in (0, 1)) or (_matches(INTEGER, label) and int(str(label)) in (0, 1)):
            numbers[_shown(label)] = None
    if truths and numbers:
        raise ValueError(
            f"the labels {' and '.join(truths)} stand beside {' and '.join(numbers)}, which may mean the same: write "
            "each class in one way"
        )


def _check_spellings(train: list[object], names: tuple[str, ...] | None) -> None:
    """ValueError where two labels are one word or one integer but for case, white space or Unicode's form: as classes
    they would be two."""
    counts = Counter(names[label] if names and isinstance(label, int) else label for label in train)
    spelling: dict[object, object] = {}
    for label in counts:
        other = spelling.setdefault(_normal(label), label)
        # A number and its text are one label where all are numbers: a typed file beside one of text.
        is_typed = _is_number(other) != _is_number(label) and str(other).strip() == str(label).strip()
        if other is not label and not is_typed:
            kind = "one integer" if _matches(INTEGER, label) else "one but for case, white space or Unicode's form"
            raise ValueError(
                f"split 'train' has the labels {_shown(other)} and {_shown(label)}, which are {kind} ({counts[other]} "
                f"and {counts[label]} times): write one class in one way, or two classes as words that differ in more"
            )


def _normal(label: object) -> object:
    """What the spellings of one class have in common."""
    if _matches(INTEGER, label):
        return int(str(label))
    if _is_number(label):
        return label
    text = unicodedata.normalize("NFKC", str(label)).casefold()
    shown = "".join(char for char in text if unicodedata.category(char) != "Cf")  # a zero-width space, say
    return " ".join(shown.split())


def _matches(pattern: str, label: object) -> bool:
    return isinstance(label, str) and re.fullmatch(pattern, label.strip()) is not None


def _is_hole(label: object) -> bool:
    """Whether a label is the text of a number that is not there, such as nan or inf."""
    try:
        return isinstance(label, str) and not math.isfinite(float(label))
    except ValueError:
        return False


def _rows(labels: list[object], rows: list[int]) -> str:
    """``row 3 ('nan'), row 7 ('N/A') and 5 more``, counted from 1 below the header."""
    shown = ", ".join(f"row {i + 1} ({_shown(labels[i])})" for i in rows[:3])
    return shown + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def _is_number(label: object) -> bool:
    return isinstance(label, int | float | np.number) and not isinstance(label, bool)


def _refuse_partly_missing(split: str, labels: list[object] | None) -> list[object] | None:
    """None for a split without any label; ValueError for one where only some are missing."""
    if labels is None:
        return None
    missing = [i for i, label in enumerate(labels) if _is_missing(label)]
    if not missing:
        return labels
    if len(missing) == len(labels):
        return None
    raise ValueError(f"split {split!r}, row {missing[0] + 1}: the label is missing (rows without one: {len(missing)})")


def _is_missing(label: object) -> bool:
    return (
        label is None
        or (isinstance(label, str) and not label.strip())
        or (isinstance(label, float) and math.isnan(label))
    )


def _is_float(label: object) -> bool:
    return isinstance(label, float | np.floating)


def _encode_targets(present: Mapping[str, list[object] | None]) -> EncodedLabels:
    targets: dict[str, NDArray[Any] | None] = {}
    for split, labels in present.items():
        if labels is None:
            targets[split] = None
            continue
        if strange := [i for i, label in enumerate(labels) if not _is_number(label)]:
            raise ValueError(
                f"split {split!r} has labels that are not numbers, but training has floats: {_rows(labels, strange)}"
            )
        values = np.array([float(label) for label in labels])  # type: ignore[arg-type]
        if infinite := np.flatnonzero(~np.isfinite(values)).tolist():
            raise ValueError(f"split {split!r} has an infinite label: {_rows(labels, infinite)}")
        targets[split] = values
    train = targets["train"]
    assert train is not None
    if np.ptp(train) == 0:
        raise ValueError(f"every training label is {train[0]:g}: there is nothing to learn")
    return EncodedLabels("regression", (), targets)


def _encode_classes(
    present: Mapping[str, list[object] | None], train: list[object], names: tuple[str, ...] | None
) -> EncodedLabels:
    if names is not None:
        order: list[object] = list(range(len(names)))
        texts = names
    else:
        distinct = set(train)
        order = sorted(distinct) if all(isinstance(x, int) for x in distinct) else sorted(distinct, key=str)  # type: ignore[type-var]
        texts = tuple(str(label) for label in order)
    if len(set(train)) == 1:
        raise ValueError(f"every training label is {_shown(train[0])}: there is nothing to learn")
    if len(order) > MAX_CLASSES:
        raise ValueError(f"training has {len(order)} distinct labels: check --label-column (floats mean regression)")
    index = {label: i for i, label in enumerate(order)}
    seen = set(train)
    encoded: dict[str, NDArray[Any] | None] = {}
    for split, labels in present.items():
        strange = next((label for label in labels or () if label not in seen), None)
        if strange is not None:
            known = ", ".join(str(x) for x in order[:8]) + (", ..." if len(order) > 8 else "")
            raise ValueError(f"split {split!r} has the label {_shown(strange)}, which training lacks (it has: {known})")
        encoded[split] = None if labels is None else np.array([index[label] for label in labels], dtype=np.int64)
    return EncodedLabels("classification", texts, encoded)


def _shown(label: object) -> str:
    return repr(label) if isinstance(label, str) else str(label)
