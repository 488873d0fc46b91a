"""Bring the public stub and the README's table up to date with the questions: ``python -m toolkit.questions``."""

import re
from pathlib import Path

from toolkit.naming import unknown
from toolkit.progress import show
from toolkit.questions import load_questions
from toolkit.snapshots import files

STUB = Path(__file__).parents[1] / "__init__.pyi"
README = Path(__file__).parents[2] / "README.md"
BEFORE, AFTER = "| Which words have new neighbours?", "| Is a run or report as it was written?"
"""The rows of the core between which those of the questions stand."""
ROOM = re.compile(r"from \.questions\.\w+\.\w+ import ")
HOME = re.compile(r"from (\S+) import (\w+)")


def stub_of(text: str) -> str:
    """The stub with a line per public name of every question, in the order of the linter."""
    head, imports, tail = re.fullmatch(r"(.*?\n\n)((?:from [^\n]*\n)+)(.*)", text, re.S).groups()  # type: ignore[union-attr]
    lines = [line for line in imports.splitlines() if not ROOM.match(line)] + [
        f"from .questions.{question.name}.{module} import {name} as {name}"
        for question in load_questions()
        for name, module in question.public.items()
    ]
    homes = {line: HOME.match(line).groups() for line in lines}  # type: ignore[union-attr]
    ordered = sorted(lines, key=lambda line: (homes[line][0], not homes[line][1].isupper(), homes[line][1]))
    return head + "".join(f"{line}\n" for line in ordered) + tail


def readme_of(text: str) -> str:
    """The README with the rows of every question; ValueError where the rows around them are not there."""
    lines = text.splitlines(keepends=True)
    places = {start: i for i, line in enumerate(lines) for start in (BEFORE, AFTER) if line.startswith(start)}
    if missing := {BEFORE, AFTER} - places.keys():
        raise ValueError(unknown(missing.pop(), "row of the README", tuple(places)))
    rows = [f"| {' | '.join(cells)} |\n" for question in load_questions() for cells in question.readme]
    return "".join([*lines[: places[BEFORE] + 1], *rows, *lines[places[AFTER] :]])


if __name__ == "__main__":
    for path, made in ((STUB, stub_of), (README, readme_of)):
        files.write_text(path, made(path.read_text(encoding="utf-8")), may_replace=True)
        show(f"{path.name} has the names and rows of {len(load_questions())} questions")
