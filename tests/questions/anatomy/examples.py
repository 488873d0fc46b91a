"""The question's tables, for the tests of the core."""

from operator import attrgetter

import pandas as pd

from tests.questions.examples import Inputs
from toolkit.questions.anatomy import TABLES
from toolkit.questions.anatomy.measure import take_apart
from toolkit.questions.models import open_model

COMMANDS = {
    "anatomy of a run": ["anatomy", "{run}", "--text", "the film is good ."],
    "anatomy of a checkpoint": ["anatomy", "{model}", "--text", "/a text=/no path"],
}
NOT_OF_A_DECODER = (
    ("anatomy MODEL --text good", "error: not applicable: MODEL is of the family Llama, whose embedding layer is not"),
    ("anatomy RUN --text good", "whose embedding layer is not LayerNorm of the sum of its tables' rows"),
)


def tables(inputs: Inputs) -> dict[str, pd.DataFrame]:
    found = take_apart(open_model(str(inputs.tiny_model("bert"))), "the film is good .", "the doctor saw a teacher .")
    return {name: attrgetter(name.removeprefix("take_apart."))(found) for name in TABLES}
