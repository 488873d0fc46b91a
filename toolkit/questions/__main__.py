"""Bring the public stub and the README's table up to date with the questions: ``python -m toolkit.questions``."""

import re
from pathlib import Path

from toolkit.naming import unknown
from toolkit.progress import show
from toolkit.questions import load_questions
from toolkit.snapshots import files

STUB = Path(__file__).parents[1] / "__init__.pyi"
README = Path(__file__).parents[2] / "README.md"
ROW_BEFORE = "| Which words have new neighbours?"
ROW_AFTER = "| Is a run or report as it was written?"
"""The rows of the core between which those of the questions stand."""
IMPORT_OF_QUESTION = re.compile(r"from \.questions\.\w+\.\w+ import ")
IMPORT = re.compile(r"from (\S+) import (\w+)")
"""Module and name."""


def stub_of(text: str) -> str:
    """The stub with a line per public name of every question, in the order of the linter."""
    head, imports, tail = re.fullmatch(r"(.*?\n\n)((?:from [^\n]*\n)+)(.*)", text, re.S).groups()  # type: ignore[union-attr]
    lines = [line for line in imports.splitlines() if not IMPORT_OF_QUESTION.match(line)]
    lines += [
        f"from .questions.{question.name}.{module} import {name} as {name}"
        for question in load_questions()
        for name, module in question.public.items()
    ]
    ordered = sorted(lines, key=_import_order)
    return head + "".join(f"{line}\n" for line in ordered) + tail


def _import_order(line: str) -> tuple[str, bool, str]:
    """What the linter sorts imports by: the module, then constants before other names."""
    module, name = IMPORT.match(line).groups()  # type: ignore[union-attr]
    return module, not name.isupper(), name


def readme_of(text: str) -> str:
    """The README with the rows of every question; ValueError where the rows around them are not there."""
    lines = text.splitlines(keepends=True)
    starts = (ROW_BEFORE, ROW_AFTER)
    indices = {start: i for i, line in enumerate(lines) for start in starts if line.startswith(start)}
    if missing := set(starts) - indices.keys():
        raise ValueError(unknown(missing.pop(), "row of the README", tuple(indices)))
    rows = [f"| {' | '.join(cells)} |\n" for question in load_questions() for cells in question.readme]
    return "".join([*lines[: indices[ROW_BEFORE] + 1], *rows, *lines[indices[ROW_AFTER] :]])


if __name__ == "__main__":
    for path, rewrite in ((STUB, stub_of), (README, readme_of)):
        files.write_text(path, rewrite(path.read_text(encoding="utf-8")), may_replace=True)
        show(f"{path.name} has the names and rows of {len(load_questions())} questions")
