"""The question's tables, for the tests of the core."""

import pandas as pd

from tests.questions.examples import Inputs
from toolkit.questions.changes.inferred_exposure import ancestral_rows_of, infer_from
from toolkit.questions.changes.measure import measure_changes


def tables(inputs: Inputs) -> dict[str, pd.DataFrame]:
    run = inputs.runs[0]
    inferred = infer_from(run.trajectory)
    return {
        "measure_changes": measure_changes(run),
        "infer_exposure.tables": inferred.tables,
        "infer_exposure.rows": inferred.rows,
        "find_ancestral_rows": ancestral_rows_of(run.trajectory),
    }
