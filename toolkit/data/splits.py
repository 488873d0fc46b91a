"""A task: named splits of examples with their encoded labels, and how they are scored."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.data.labels import taken
from toolkit.data.tokens import UNTAGGED

Kind = Literal["classification", "regression", "tokens", "masked"]


@dataclass(frozen=True, slots=True)
class Split:
    """Examples of one split."""

    ids: NDArray[np.int64]
    """(examples,) row of each example in its source, counted from 0."""
    texts: tuple[tuple[str, ...], ...]
    """Per example its one or two texts."""
    labels: NDArray[Any] | None
    """(examples,) int64 index into the label names, or float64 for regression; of a token task objects, each the
    (words,) int64 tags of an example; None when the split has no labels."""
    words: tuple[tuple[str, ...], ...] | None = None
    """Per example its words, of a token task."""
    clusters: NDArray[np.int64] | None = None
    """(examples,) number of the cluster of each, in the order of appearance; None where every one is on its own."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def num_units(self) -> int:
        """Clusters of its examples; as many as examples where every one is on its own."""
        return len(self) if self.clusters is None else len(np.unique(self.clusters))

    @property
    def num_repeated_texts(self) -> int:
        """Examples whose texts an earlier one has."""
        return len(self) - len(set(self.texts))

    def take(self, chosen: NDArray[np.int64]) -> "Split":
        """The examples at some places, in that order."""
        return Split(*(taken(getattr(self, own.name), chosen) for own in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is learned and how it is scored."""

    name: str
    kind: Kind
    label_names: tuple[str, ...]
    """Class names in the order of the outputs; empty for regression."""
    splits: Mapping[str, Split]
    """``train`` first, then every split that is scored, in order."""
    reported_split: str
    """The split whose score stands for the run."""
    score: str
    """The headline score: accuracy, matthews, pearson, f1."""
    file_hashes: Mapping[str, str]
    """Role to sha256 of each data file; empty unless the data are files. They are part of the run's name."""
    split_hashes: Mapping[str, str] = field(default_factory=dict)
    """Split to sha256 of what it holds, of a dataset of the hub; else empty."""
    commits: Mapping[str, str] = field(default_factory=dict)
    """``@REVISION`` of a dataset of the hub to its commit; else empty."""
    num_near_duplicates: Mapping[str, int] | None = None
    """Scored split to the training examples removed as they nearly repeat one of its items; None: not looked for."""
    carrier: str | None = None
    """For a built-in task: what carries the label, by construction."""
    out_of_distribution: tuple[str, ...] = ()
    """The splits that are not of the distribution of the training data, as the task or the user says."""
    taken_from: str = ""
    """Of a table: ``texts: COLUMNS; labels: COLUMN``."""
    clusters_of: str = "first text"
    """What examples of one cluster share."""

    @property
    def num_outputs(self) -> int:
        return len(self.label_names) or 1

    @property
    def data_hashes(self) -> Mapping[str, str]:
        """What the data are known by: of files or of splits; empty for a built-in task."""
        return {**self.file_hashes, **self.split_hashes, **self.commits}

    def check_data(self, known: Mapping[str, str], run: str) -> None:
        """ValueError where the data are not those of a ``run``, ``known`` by their hashes."""
        # Not by commits: a branch moves on, and may hold the same rows.
        changed = [
            name for name in (*self.file_hashes, *self.split_hashes) if known.get(name) != self.data_hashes[name]
        ]
        if changed:
            raise ValueError(
                f"the data of {run} have changed since it was trained ({', '.join(changed)}): put them back, or run "
                "again"
            )


def flat(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels of examples, or the tags of all their words that have one."""
    if labels.dtype != object:
        return labels
    tags: NDArray[Any] = np.concatenate(labels)
    return np.asarray(tags[tags != UNTAGGED])
