"""JSON that somebody may have cut or edited in, its content out, or one line that names the file and what is wrong."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REMEDY = "restore it or make it again"
KINDS = {dict: "object", list: "list", int: "integer"}
"""Python's type of a field to JSON's word for it."""


def read_json(path: Path) -> Any:
    """The content of a JSON file; ValueError when it is damaged."""
    return _parse(path.read_bytes(), path)


def read_object(path: Path, fields: Mapping[str, type] | None = None, *, newest: int | None = None) -> dict[str, Any]:
    """The object that a JSON file holds; ValueError as of :func:`parse_object`."""
    return parse_object(path.read_bytes(), path, fields, newest=newest)


def parse_object(
    text: str | bytes, source: str | Path, fields: Mapping[str, type] | None = None, *, newest: int | None = None
) -> dict[str, Any]:
    """The object that the text of ``source`` holds.

    ``fields`` are those that must be there, each with a type of KINDS; ``newest`` is the highest ``format`` that the
    reader knows. ValueError for text that is not JSON, no object, or lacks a field, and for a newer format.
    """
    values = _parse(text, source)
    if not isinstance(values, dict):
        raise ValueError(f"{source} must hold one JSON object, not a {type(values).__name__}: {REMEDY}")
    for name, kind in (fields or {}).items():
        if not isinstance(values.get(name), kind):
            raise ValueError(f"{source} lacks the {KINDS[kind]} {name!r}: {REMEDY}")
    if newest is not None:
        found = values.get("format", newest)
        if not isinstance(found, int):
            raise ValueError(f"{source} has the format {found!r}, which is no integer: {REMEDY}")
        if found > newest:
            raise ValueError(f"{source} has a newer format than {newest}: update the toolkit")
    return values


def _parse(text: str | bytes, source: str | Path) -> Any:
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise ValueError(f"{source} is not JSON ({error}): {REMEDY}") from None
