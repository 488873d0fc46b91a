"""The question's tables, reports and mistakes, for the tests of the core."""

import pandas as pd

from tests.questions.examples import GONE, Inputs
from toolkit.questions.reindexing.command import ReindexCommand
from toolkit.questions.reindexing.measure import measure_reindexing

REPORTS = {"reindex": lambda out: ReindexCommand(before="nowhere", after="neither", texts=GONE, out=out).run()}
MISTAKES = ((["reindex", "a"], "--texts PATH Data file of the texts whose vectors are stored;"),)
COMMANDS = {
    "reindex": ["reindex", "{model}", "{run}", "--texts", "{texts}", "--k", "3"],
}


def tables(inputs: Inputs) -> dict[str, pd.DataFrame]:
    pair = [str(inputs.tiny_model(name)) for name in ("bert", "roberta")]
    stored, columns = inputs.config.train_file, inputs.config.text_columns
    found = measure_reindexing(*pair, stored, text_columns=columns, k=3, num_null=2)
    return {f"measure_reindexing.{name}": table for name, table in found.items()}
