"""An Anatomy in, plain values for JSON out."""

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd

from toolkit.probes.anatomy.anatomy import Anatomy

VERSION = 2
"""Of the keys below; it grows when one of them changes its meaning."""


def as_document(anatomy: Anatomy) -> dict[str, Any]:
    """What ``--json`` prints: every table a list of objects, keyed by its columns (:mod:`toolkit.schema`).

    ``version``; ``model``; ``family``; ``differences`` (sentences); ``sentence`` (texts, tokens, words, positions,
    segments: rows per token, token_type_ids: the tokenizer's); ``parameters``, ``tokens``, ``layer_sum``, ``one_hot``
    (tables of the modules of these names); ``gradients`` (scalar, parameters, rows, num_padding, padding_row,
    unmasked_padding_norm); ``special_tokens`` (table, others, names); ``segments`` (token_type_ids, num_rows, changes,
    note); ``permutation`` (order, table). What does not apply is null with a note beside it, or has no line; what is
    undefined is null. There are no NaN literals.
    """
    found: dict[str, Any] = _plain(anatomy)
    return {"version": VERSION} | found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, pd.DataFrame):
        return [
            {str(column): _plain(cell) for column, cell in zip(value.columns, line, strict=True)}
            for line in value.astype(object).itertuples(index=False, name=None)
        ]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | tuple | list):
        return [_plain(each) for each in value]
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value
