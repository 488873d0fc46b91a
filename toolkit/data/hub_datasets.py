"""A dataset of the hub in, its splits out; GLUE's tasks by name."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from toolkit.data.files import split_of_frame
from toolkit.data.raw import RawSplit, RawTask
from toolkit.hub import is_hub_reachable

GLUE_REPOSITORY = "nyu-mll/glue"


@dataclass(frozen=True, slots=True)
class GlueTask:
    """Columns and headline score of one GLUE task."""

    text_columns: tuple[str, ...]
    score: str = "accuracy"
    out_of_distribution: tuple[str, ...] = ()


GLUE: Mapping[str, GlueTask] = {
    "sst2": GlueTask(("sentence",)),
    "cola": GlueTask(("sentence",), score="matthews"),
    "mrpc": GlueTask(("sentence1", "sentence2")),
    "stsb": GlueTask(("sentence1", "sentence2"), score="pearson"),
    "qqp": GlueTask(("question1", "question2")),
    "mnli": GlueTask(("premise", "hypothesis"), out_of_distribution=("validation_mismatched", "test_mismatched")),
    "qnli": GlueTask(("question", "sentence")),
    "rte": GlueTask(("sentence1", "sentence2")),
}
"""GLUE tasks (Wang et al. 2018) with their text columns; label names and splits come from the hub.

The mismatched splits of MultiNLI are of other genres than its training data (Williams et al. 2018)."""

HELD_OUT_FRACTION = 10
"""A dataset without a validation split holds out every tenth training example (drawn with a fixed seed)."""


def read_glue(name: str) -> RawTask:
    """Read one GLUE task; MNLI has two validation and two test splits, and GLUE's tests have no labels."""
    glue = GLUE[name]
    raw = read_dataset(GLUE_REPOSITORY, name, glue.text_columns, "label")
    return replace(raw, score=glue.score, out_of_distribution=glue.out_of_distribution)


def read_dataset(name: str, config: str | None, text_columns: tuple[str, ...], label_column: str) -> RawTask:
    """Read a dataset of the hub; ValueError when it cannot be had, saying what to pass instead."""
    dataset = _load(name, config)
    splits, label_names = {}, None
    for split_name in _ordered(tuple(dataset)):
        split = dataset[split_name]
        feature = split.features.get(label_column)
        label_names = label_names or (tuple(feature.names) if hasattr(feature, "names") else None)
        raw = split_of_frame(split.to_pandas(), text_columns, label_column, f"{name} ({split_name})")
        splits[split_name] = RawSplit(raw.texts, _without_withheld(raw.labels, is_class=label_names is not None))
    if not any(split_name.startswith("validation") for split_name in splits):
        splits = _hold_out(splits)
    return RawTask(splits, label_names, hashes={split_name: _sha256(split) for split_name, split in splits.items()})


def _sha256(split: RawSplit) -> str:
    """Of the texts and labels, in order, whatever files the hub keeps them in."""
    hashed = hashlib.sha256()
    for texts, label in zip(split.texts, split.labels or repeat(None), strict=False):
        hashed.update(json.dumps([*texts, label], default=float).encode() + b"\n")
    return hashed.hexdigest()


def _load(name: str, config: str | None) -> Any:
    import datasets

    instead = "pass --train-file and --validation-file, or a built-in task: polarity, order, pair"
    was_offline = datasets.config.HF_HUB_OFFLINE
    # Without this the library retries for half a minute before it looks into its cache.
    datasets.config.HF_HUB_OFFLINE = was_offline or not is_hub_reachable()
    try:
        dataset = datasets.load_dataset(name, config)
    except Exception as error:  # the library raises a dozen unrelated types for "cannot be had"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"cannot read the dataset {name!r} from the hub ({reason}); {instead}") from None
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline
    if "train" not in dataset:
        raise ValueError(f"the dataset {name!r} has no train split (it has: {', '.join(dataset)})")
    return dataset


def _ordered(names: tuple[str, ...]) -> list[str]:
    """Train, then validation splits, then the rest; splits for unsupervised use are left out."""
    rank = {"train": 0, "validation": 1}
    kept = [name for name in names if name != "unsupervised"]
    return sorted(kept, key=lambda name: rank.get(name.split("_")[0], 2))


def _without_withheld(labels: list[object] | None, *, is_class: bool) -> list[object] | None:
    """The hub writes -1 where a label is withheld: for a class always, for a target where the whole split has it."""
    if labels is None or all(label == -1 for label in labels):
        return None
    return [None if label == -1 else label for label in labels] if is_class else labels


def _hold_out(splits: dict[str, RawSplit]) -> dict[str, RawSplit]:
    train = splits["train"]
    order = np.random.default_rng(0).permutation(len(train.texts))
    cut = max(1, len(order) // HELD_OUT_FRACTION)
    held, kept = np.sort(order[:cut]), np.sort(order[cut:])

    def take(rows: Any) -> RawSplit:
        labels = None if train.labels is None else [train.labels[i] for i in rows]
        return RawSplit([train.texts[i] for i in rows], labels)

    return {"train": take(kept), "validation": take(held), **{k: v for k, v in splits.items() if k != "train"}}
