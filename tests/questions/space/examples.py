"""The question's tables and slow functions, for the tests of the core."""

import numpy as np
import pandas as pd

from tests.questions.examples import Inputs, W
from toolkit.questions.space.agreement import measure_agreement
from toolkit.questions.space.functional import functional_drift
from toolkit.questions.space.geometry import measure_geometry
from toolkit.questions.space.similarity import compare_rows, measure_similarity
from toolkit.questions.space.updates import measure_updates

SLOW = ("functional_drift", "measure_similarity")


def tables(inputs: Inputs) -> dict[str, pd.DataFrame]:
    run = inputs.runs[0]
    first, last = (np.asarray(run.trajectory.snapshots[i].tensors["position_embeddings"]) for i in (0, -1))
    return {
        "functional_drift": functional_drift(run),
        "measure_geometry": measure_geometry(run, W, num_null=2),
        "measure_updates": measure_updates(run, W, num_null=2),
        "measure_similarity": measure_similarity(run, W, num_null=2),
        "measure_agreement": measure_agreement(inputs.runs, W, num_null=3),
        "compare_rows": compare_rows(first, last, num_null=2),
    }
