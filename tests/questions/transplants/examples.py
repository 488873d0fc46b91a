"""The question's tables, reports, mistakes and slow functions, for the tests of the core."""

import pandas as pd

from tests.questions.examples import GONE, Inputs, experiment
from toolkit.questions.transplants.command import TransplantCommand
from toolkit.questions.transplants.games import TransplantSettings
from toolkit.questions.transplants.measure import measure_transplants

REPORTS = {
    "transplant": lambda out: TransplantCommand(runs=(GONE,), out=out).run(),
    "transplants.py": experiment("transplants", "--planted", "--out", "OUT", "--runs", "nowhere"),
}
MISTAKES = ((["transplant", "gone", "--coordinates", "round"], r"invalid choice 'round'.*\('fixed', 'raw'\)"),)
SLOW = ("measure_transplants",)
COMMANDS = {
    "transplants": ["transplant", "{run}", "--max-examples", "6", "--num-draws", "0", "--num-reverse-draws", "0"],
}
NOT_OF_A_DECODER = (
    ("transplant RUN", "no LayerNorm follows the embeddings of this model: transplant in raw coordinates"),
)


def tables(inputs: Inputs) -> dict[str, pd.DataFrame]:
    found = measure_transplants(inputs.runs, TransplantSettings(num_draws=2)).tables
    return {f"measure_transplants.{name}": table for name, table in found.items()}
