"""What a caller hands to a recording, checked when it is handed over: training may take hours after that."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.naming import refuse_first
from toolkit.snapshots.formats import HEADLINES

KEYS = ("epoch", "step", "split", "num_examples", "train_loss")
"""Columns of scores.csv that are no scores of a split."""

ROUNDING = 1e-6
"""By which a share in single precision may exceed 1."""


def named_folder(run_dir: str | Path) -> Path:
    """Where a run goes; ValueError for an empty text, such as of a variable that is not set: it would mean ``.``."""
    if run_dir == "":
        raise ValueError("run_dir must be a name or path; got ''")
    return Path(run_dir)


def check_tokens(tokens: Sequence[Any]) -> list[str]:
    """``added_tokens`` as a list of texts, of an AddedToken its own; ValueError for what is no list.

    Of one text the letters would be taken for tokens.
    """
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise ValueError(f"added_tokens must be a list of tokens; got {tokens!r}")
    return [getattr(token, "content", token) for token in tokens]


def check_objects(model: Any, tokenizer: Any) -> None:
    """ValueError for a name in place of the model or of the tokenizer."""
    faults = {
        f"record() takes the model itself, a torch.nn.Module; got {model!r:.60}": not isinstance(model, nn.Module),
        f"tokenizer must be the tokenizer itself, or None; got {tokenizer!r:.60}": tokenizer is not None
        and not hasattr(tokenizer, "get_vocab"),
    }
    refuse_first(faults)


def checked_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a run, a seed of numpy as an int; ValueError for a condition, a task or a seed of another kind."""
    seed = facts.get("seed")
    faults = {
        f"{name} must be a text or None; got {facts.get(name)!r}": not isinstance(facts.get(name), str | None)
        for name in ("condition", "task")
    }
    is_whole = isinstance(seed, numbers.Integral) and not isinstance(seed, bool)
    faults[f"seed must be a whole number or None; got {seed!r}"] = seed is not None and not is_whole
    refuse_first(faults)
    return dict(facts) | ({"seed": int(seed)} if is_whole else {})  # type: ignore[arg-type]


def check_epoch(epoch: Any) -> None:
    """ValueError for what is no finite number."""
    is_number = isinstance(epoch, numbers.Real) and math.isfinite(epoch)
    refuse_first({f"epoch must be a finite number; got {epoch!r}": not is_number})


def fault_of_score(name: str, value: float) -> str:
    """Why a score cannot be kept; empty where it can."""
    if name in KEYS:
        return f"{name} is a column of scores.csv that is no score: give the score another name"
    if name in HEADLINES and value > 1 + ROUNDING:
        return f"{name} is at most 1, got {value:g}: give a share, not %"
    return ""


def as_array(values: Any) -> NDArray[Any]:
    """Values of a list, an array, a Series or a tensor on any device."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    array = np.asarray(values if hasattr(values, "__array__") else list(values))
    return array.astype(np.int64) if array.dtype == bool else array


def answers_table(split: str, ids: Any, labels: Any, predictions: Any, clusters: Any) -> pd.DataFrame:
    """The lines of a split in predictions.parquet: ``id``, ``label``, ``prediction`` and, where given, ``cluster``.

    ValueError unless all have one length above 0, ids are whole numbers or texts, each once, labels and predictions one
    number for each item, and each item has a cluster.
    """
    columns = {"ids": as_array(ids), "labels": as_array(labels), "predictions": as_array(predictions)}
    if clusters is not None:
        if pd.isna(pd.Series(list(clusters), dtype=object)).any():
            raise ValueError("clusters holds a missing id: give each item the id of its cluster, or one of its own")
        columns["clusters"] = pd.factorize(np.asarray(clusters))[0]
    shapes = ", ".join(f"{name} {column.shape}" for name, column in columns.items())
    items = columns["ids"].tolist()
    kinds_of_ids, num_distinct = {type(each) for each in items}, len({repr(each) for each in items})
    are_numbers = all(columns[name].dtype.kind in "iuf" for name in ("labels", "predictions"))
    faults = {
        f"ids, labels and predictions of {split!r} need one value for each item; got the shapes {shapes}": (
            len({column.shape for column in columns.values()}) > 1 or columns["ids"].ndim != 1
        ),
        f"{split!r} has no items": not items,
        f"labels and predictions of {split!r} must be numbers: of classes their places, 0, 1, ...": not are_numbers,
        f"ids of {split!r} must be whole numbers, or all texts": kinds_of_ids not in ({int}, {str}),
        f"ids of {split!r} holds one id twice: give each item its own": num_distinct < len(items),
    }
    refuse_first(faults)
    names = {"ids": "id", "labels": "label", "predictions": "prediction", "clusters": "cluster"}
    return pd.DataFrame({"split": split} | {names[name]: column for name, column in columns.items()})
