"""Texts that a page can hold: JSON that ends no script, and characters that can be seen."""

import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode's categories. Vega's expressions break off at a line separator."""


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element, whatever texts it holds; NaN is null."""
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def visible(text: str) -> str:
    """A text with invisible characters (control, format, lone surrogates, breaks but line feeds) as U+XXXX."""
    return "".join(f"U+{ord(c):04X}" if unicodedata.category(c) in _INVISIBLE and c != "\n" else c for c in text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
