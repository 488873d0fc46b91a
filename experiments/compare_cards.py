"""Every difference between the cards of two reports: python experiments/compare_cards.py OLD NEW.

Each place is a cards.json, a report's folder, or such a path at a revision of git (HEAD~1:reports/pooling). The exit
code is 1 where an estimate, an interval, a null or a smallest detectable gap differs, or a card is in one of them only;
other verdicts, reasons and claims are named and leave it 0.
"""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

NUMBERS = ("value", "interval", "equivalence", "null", "detectable_gap")
WORDS = ("verdict", "claim", "reason", "q", "version")
DIGITS = 1e-9
"""Relative: cards are written to ten digits."""


def read_cards(place: str) -> dict[str, dict[str, Any]]:
    """The cards at a place, by id."""
    revision, colon, path = place.partition(":")
    is_file = Path(place).exists() or not colon
    name = place if is_file else path
    name = name if name.endswith(".json") else f"{name.rstrip('/')}/cards.json"
    if is_file:
        text = Path(name).read_text(encoding="utf-8")
    else:
        text = subprocess.run(
            ["git", "show", f"{revision}:./{name}"], capture_output=True, text=True, check=True
        ).stdout
    return {card["id"]: card for card in json.loads(text)["cards"]}


def is_same(one: Any, other: Any) -> bool:
    """Whether two values of a card are equal, numbers to DIGITS."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=DIGITS, abs_tol=DIGITS)
    return bool(one == other)


def compare(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> tuple[list[str], bool]:
    """One line per difference, and whether a number differs."""
    lines = [f"only in the first: {name}" for name in old if name not in new] + [
        f"only in the second: {name}" for name in new if name not in old
    ]
    differs = bool(lines)
    for name in (name for name in old if name in new):
        for field in (*NUMBERS, *WORDS):
            was, now = old[name].get(field), new[name].get(field)
            if not is_same(was, now):
                lines.append(f"{name}: {field} {was!r} -> {now!r}")
                differs |= field in NUMBERS
    return lines, differs


def main(old: Positional[str], new: Positional[str]) -> int:
    """Print every difference; 1 where a number differs.

    Args:
        old: cards.json, a report's folder, or REVISION:PATH of one
        new: the same
    """
    cards = read_cards(old)
    lines, differs = compare(cards, read_cards(new))
    print("\n".join(lines) if lines else f"all {len(cards)} cards are the same")
    return int(differs)


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
