"""Every difference between the cards of two reports: python experiments/compare_cards.py OLD NEW.

Each place is a cards.json, a report's folder, or such a path at a revision of git (HEAD~1:reports/pooling). The exit
code is 1 where an estimate, an interval, a null or a smallest detectable gap differs, or a card is in one of them only;
other verdicts, reasons and claims are named and leave it 0.
"""

import argparse
import json
import math
import subprocess
from pathlib import Path
from typing import Any

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
        shown = ["git", "show", f"{revision}:./{name}"]
        text = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
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
    lines = [f"only in the first: {name}" for name in old if name not in new]
    lines += [f"only in the second: {name}" for name in new if name not in old]
    differs = bool(lines)
    for name in (name for name in old if name in new):
        for field in (*NUMBERS, *WORDS):
            was, now = old[name].get(field), new[name].get(field)
            if not is_same(was, now):
                lines.append(f"{name}: {field} {was!r} -> {now!r}")
                differs |= field in NUMBERS
    return lines, differs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="cards.json, a report's folder, or REVISION:PATH of one")
    parser.add_argument("new", help="the same")
    arguments = parser.parse_args()
    old, new = (read_cards(place) for place in (arguments.old, arguments.new))
    lines, differs = compare(old, new)
    print("\n".join(lines) if lines else f"all {len(old)} cards are the same")
    return int(differs)


if __name__ == "__main__":
    raise SystemExit(main())
