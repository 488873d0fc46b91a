"""The question's tables, reports and mistakes, for the tests of the core."""

import pandas as pd

from tests.questions.examples import Inputs
from toolkit.questions.positions.command import PositionsCommand
from toolkit.questions.positions.measure import cosine_by_lag, measure_positions, position_table
from toolkit.questions.positions.resemblance import find_waves

REPORTS = {
    "positions": lambda out: PositionsCommand(model="nowhere", out=out).run(),
}
MISTAKES = (
    (["positions", "--default-lenght", "3", "m"], r"'--default-lenght' \(did you mean '--default-length'\?\)$"),
)
COMMANDS = {
    "positions of a run": ["positions", "{run}"],
    "positions of a checkpoint": ["positions", "{model}"],
}
NOT_OF_A_DECODER = (("positions MODEL", "error: this model has no position_embeddings: there is nothing to measure"),)


def tables(inputs: Inputs) -> dict[str, pd.DataFrame]:
    positions = position_table(inputs.runs[0])
    return {
        "measure_positions": measure_positions(inputs.runs[0], num_draws=5),
        "find_waves": find_waves(positions),
        "cosine_by_lag": cosine_by_lag(positions),
    }
