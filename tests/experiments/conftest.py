"""Experiments are scripts: their tests import them as they import one another. Afterwards the schema is as it was."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.questions import load_questions
from toolkit.schema import COLUMNS, TABLES

sys.path.append(str(Path(__file__).parents[2] / "experiments"))
load_questions()
KNOWN = [(known, set(known)) for known in (COLUMNS, TABLES)]
import distortion  # noqa: E402, F401

ADDED = [(known, {name: known.pop(name) for name in known.keys() - names}) for known, names in KNOWN]
"""What they add to the schema; tests that count its columns are collected, and may run, in the same process."""


@pytest.fixture(scope="module", autouse=True)
def _with_their_columns() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for known, own in ADDED:
            for name, added in own.items():
                patch.setitem(known, name, added)
        yield
