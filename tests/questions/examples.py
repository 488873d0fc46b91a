"""What the tests of the core need of each question: tests/questions/NAME/examples.py, where the file is there.

A question that has tables gives ``tables``, a function of :class:`Inputs` to table to frame: every table of the schema
is made by somebody. All else may be left out. ``REPORTS``: name to what makes a report in the folder that it is given.
``MISTAKES``: a command line, and a pattern of the line that says what is wrong with it. ``SLOW``: names of functions
that show progress. ``OF_A_DECODER``, ``NOT_OF_A_DECODER``: command lines, and for the latter what the refusal says.
"""

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from toolkit.config import RunConfig
from toolkit.questions import QUESTIONS
from toolkit.snapshots.store import Run

ROOT = Path(__file__).parents[2]
W = "word_embeddings"
GONE = Path("nowhere")
"""Given as what is to be reported on: who looks for it has not looked at the folder first."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What tables are made of: trained once, and small."""

    config: RunConfig
    """Of the runs: a task of text pairs, the model is kept."""
    runs: list[Run]
    """Two, that differ in their seed."""
    shuffled: list[Run]
    """The same on shuffled labels."""
    tiny_model: Callable[[str], Path]
    masked_lm: Callable[[str], Path]
    """Family to the folder of an untrained model: without a head, and with that of masked words."""


def examples(name: str) -> list[Any]:
    """What every question that has examples calls ``name`` there."""
    rooms = [room for room in QUESTIONS if (ROOT / "tests" / "questions" / room / "examples.py").is_file()]
    modules = [import_module(f"tests.questions.{room}.examples") for room in rooms]
    return [getattr(module, name) for module in modules if hasattr(module, name)]


def experiment(name: str, *words: str) -> Callable[[Path], object]:
    """An experiment's script, given a folder of its report."""

    def call(out: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EMBEDDING_DRIFT_DEBUG", "1")  # what is refused is raised, and not said in a line
            patch.setattr(sys, "argv", [name, *(str(out) if word == "OUT" else word for word in words)])
            patch.syspath_prepend(ROOT / "experiments")  # where a script's neighbours are found
            runpy.run_path(str(ROOT / "experiments" / f"{name}.py"), run_name="__main__")

    return call


def commands_of_questions() -> dict[str, list[str]]:
    """Kind of page to the words of a call; of every command of every question.

    Places in braces are ``run``, ``other`` (another seed of it), ``model``, ``tuned`` (of ``run``) and ``texts``.
    """
    return {kind: words for commands in examples("COMMANDS") for kind, words in commands.items()}
