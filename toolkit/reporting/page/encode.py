"""The words of a run in, JSON that a page can hold out: numbers as base64 of small integers, texts that end no script.

Sizes of drift keep four digits (a logarithmic scale of 65,535 steps), cosines and coordinates an even scale of as many.
"""

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.reporting.page.model import WordMap, WordsRun

_NUM_LEVELS = 65_534
_UNDEFINED = 65_535


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element, whatever texts it holds; NaN is null."""
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def encode_run(run: WordsRun) -> str:
    """The JSON of one run; templates/words.js reads it."""
    similarity = {"before_similarity": run.before_similarity, "after_similarity": run.after_similarity}
    arrays = {
        **{name: _whole(getattr(run, name)) for name in ("words", "rows", "num_steps", "num_tokens")},
        **{name: _whole(getattr(run, name) + 1) for name in ("before", "after")},  # 0: none
        **{name: _logarithmic(getattr(run, name)) for name in ("norm_before", "norm", "angle_degrees")},
        **{name: _even(values) for name, values in similarity.items()},
    }
    facts = {
        "label": run.label,
        "vocabulary": run.vocabulary,
        "epochs": run.epochs,
        "num_words": len(run.words),
        "num_neighbours": run.before.shape[1],
        "maps": [_map(each) for each in run.maps],
        "note": run.note,
    }
    return script_json(facts | {"arrays": arrays})


def _map(drawn: WordMap) -> Mapping[str, Any]:
    start = drawn.coordinates[:1]
    facts = {"title": drawn.title, "how": drawn.how, "word_shares": drawn.word_shares, "drift_share": drawn.drift_share}
    return facts | {"start": _even(start), "moves": _even(drawn.coordinates[1:] - start, has_zero=True)}


def _whole(values: NDArray[np.int64] | None) -> Mapping[str, Any] | None:
    if values is None:
        return None
    kind = "uint16" if values.max(initial=0) < 2**16 else "uint32"
    return {"kind": kind, "data": _base64(values.astype(f"<{kind[0]}{int(kind[4:]) // 8}"))}


def _logarithmic(values: NDArray[np.float64]) -> Mapping[str, Any]:
    """Values from 0: 0 stays exactly 0, others are within a factor of exp(range / 131,066) of what they were."""
    is_positive = np.isfinite(values) & (values > 0)
    logs = np.log(values, out=np.zeros(values.shape), where=is_positive)
    low, high = _range(logs[is_positive])
    levels = 1 + np.rint((logs - low) / (high - low or 1.0) * (_NUM_LEVELS - 1))
    codes = np.where(is_positive, levels, np.where(values == 0, 0, _UNDEFINED))
    return {"kind": "logarithmic", "low": low, "high": high, "data": _base64(codes.astype("<u2"))}


def _even(values: NDArray[np.float64], *, has_zero: bool = False) -> Mapping[str, Any]:
    """Values within range / 131,068 of what they were; with ``has_zero`` 0 is the middle level, and stays exactly 0."""
    is_finite = np.isfinite(values)
    low, high = _range(values[is_finite])
    if has_zero:
        high = max(abs(low), abs(high))
        low = -high
    levels = np.rint((np.where(is_finite, values, low) - low) / (high - low or 1.0) * _NUM_LEVELS)
    return {
        "kind": "even",
        "low": low,
        "high": high,
        "data": _base64(np.where(is_finite, levels, _UNDEFINED).astype("<u2")),
    }


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
