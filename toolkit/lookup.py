"""Entries of tables by name, with errors that name the choices and the nearest match; counts in words; JSON files."""

import json
import operator
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar


def at_least(name: str, value: Any, minimum: int) -> int:
    """``value`` as an int; ValueError with the argument's ``name`` unless it is whole (numpy's too) and large enough.

    A float is refused even where it is whole: what divided two counts is seldom a count.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}; got {value!r}")
    return number


class NewerFormatError(ValueError):
    """A file is of a later version of this toolkit: it may well be whole."""


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
            raise NewerFormatError(f"{source} has a newer format than {newest}: update the toolkit")
    return values


def _parse(text: str | bytes, source: str | Path) -> Any:
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise ValueError(f"{source} is not JSON ({error}): {REMEDY}") from None


T = TypeVar("T")


class Table(dict[str, T]):
    """Named entries that show as their names: a table that is an argument's default would fill the screen of help()."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


def lookup(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return ``table[name]``; raise ValueError with the nearest match and all choices when there is none."""
    if name in table:
        return table[name]
    raise ValueError(unknown(name, kind, tuple(table)))


def select(table: Mapping[str, T], chosen: Mapping[str, T] | Iterable[str], kind: str) -> dict[str, T]:
    """The entries of a mapping, or those of ``table`` with the given names (or the one name)."""
    if isinstance(chosen, Mapping):
        return dict(chosen)
    return {name: lookup(table, name, kind) for name in ((chosen,) if isinstance(chosen, str) else chosen)}


def unknown(name: str, kind: str, choices: tuple[str, ...]) -> str:
    """One line that says which ``kind`` is unknown, what was probably meant, and everything that is known."""
    holding = [choice for choice in choices if len(name) > 2 and name in choice]  # cka: debiased_cka rather than svcca
    nearest = sorted(holding, key=len)[:1] or get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    return f"unknown {kind} {name!r}{hint}; choose from: {', '.join(choices)}"
