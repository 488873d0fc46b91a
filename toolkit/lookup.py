"""A table and a name in, the table's entry out, or an error that names the choices and the nearest match."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

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


def unknown(name: str, kind: str, choices: tuple[str, ...]) -> str:
    """One line that says which ``kind`` is unknown, what was probably meant, and everything that is known."""
    holding = [choice for choice in choices if len(name) > 2 and name in choice]  # cka: debiased_cka rather than svcca
    nearest = sorted(holding, key=len)[:1] or get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    return f"unknown {kind} {name!r}{hint}; choose from: {', '.join(choices)}"
