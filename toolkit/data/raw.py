"""Texts and labels as they came, split by split: what every source of data hands over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RawSplit:
    """Texts and labels of one split as they came."""

    texts: list[tuple[str, ...]]
    """Per example its one or two texts; a missing one is None."""
    labels: list[object] | None
    """Per example an int, str or float, None where it is missing; None as a whole when there is no label column."""
    columns: tuple[str, ...] = ()
    """Of the table that it was read from, where there was one."""
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
