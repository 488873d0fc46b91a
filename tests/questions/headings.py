"""Rows of a page's table, by their headings."""

from collections.abc import Sequence
from typing import Any


def lines(rows: tuple[Sequence[str], Sequence[Sequence[Any]]]) -> list[dict[str, Any]]:
    """The cells of each row by heading; of two equal headings the second has a star."""
    header: list[str] = []
    for name in rows[0]:
        header.append(f"{name}*" if name in header else name)
    return [dict(zip(header, row, strict=True)) for row in rows[1]]
