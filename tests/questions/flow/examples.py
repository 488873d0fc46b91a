"""The question's tables, reports and slow functions, for the tests of the core."""

import pandas as pd

from tests.questions.examples import Inputs, experiment
from toolkit.questions.flow.command import FlowCommand
from toolkit.questions.flow.measure import FlowSettings, measure_flow

SETTINGS = FlowSettings(num_positions=8, num_blocks=3, shift=4, num_texts=20, num_tokens=200)
REPORTS = {
    "flow": lambda out: FlowCommand(places=("nowhere",), out=out).run(),
    "where_position_goes.py": experiment("where_position_goes", "--out", "OUT", "--runs", "nowhere"),
}
SLOW = ("measure_flow",)
SMALL = ["--positions", "4", "--blocks", "3", "--shift", "2", "--num-texts", "4"]
COMMANDS = {
    "flow of runs": ["flow", "{run}", "{model}", *SMALL],
    "flow of texts": ["flow", "{model}", *SMALL, "--texts", "{texts}"],
}
NOT_OF_A_DECODER = (
    ("flow MODEL", "error: not applicable: MODEL is of the family Llama, whose embedding layer is not LayerNorm"),
    ("flow RUN", "whose embedding layer is not LayerNorm of the sum of its tables' rows"),
)


def tables(inputs: Inputs) -> dict[str, pd.DataFrame]:
    return {f"measure_flow.{name}": table for name, table in measure_flow(inputs.runs, settings=SETTINGS).items()}
