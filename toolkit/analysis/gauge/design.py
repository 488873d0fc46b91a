"""A trajectory in, what its tokens can tell apart out: the rank deficiency of their design."""

import math

import numpy as np
import pandas as pd

from toolkit.analysis.gauge.corpus import reference_corpus
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Source, trajectory_of

UNKNOWN_DESIGN = "no design was recorded: not known"


@with_columns
def measure_design(source: Source) -> "pd.DataFrame":
    """How many directions the run's tokens leave free, one quantity per line.

    ``num_tokens``, ``num_combinations`` (distinct), ``num_used_rows`` over all tables, ``rank`` of their incidence
    matrix (exact, from a graph: ours), ``rank_deficiency`` (used rows - rank), ``rank_deficiency_crossed`` (what is
    left where everything occurred with everything: the least there can be) and ``num_inseparable_groups`` (rows that no
    token shared with the rest, such as [CLS] and position 0). Without a recorded design the rank is not known: NaN.
    """
    corpus = reference_corpus(trajectory_of(source))
    design = corpus.design
    used = sum(int(np.count_nonzero(values)) for values in corpus.frequencies.values())
    values = dict.fromkeys(("num_tokens", "num_combinations", "num_used_rows", "rank", "rank_deficiency"), math.nan)
    reasons = dict.fromkeys(values, "" if design else UNKNOWN_DESIGN)
    if design:
        deficiency = corpus.null_space().num_directions
        found = (int(design.counts.sum()), len(design.counts), used, used - deficiency, deficiency)
        values = dict(zip(values, map(float, found), strict=True))
    elif corpus.frequency_source != "uniform":
        values["num_used_rows"], reasons["num_used_rows"] = used, ""
    values["rank_deficiency_crossed"] = len(corpus.tables) - 1
    values["num_inseparable_groups"] = corpus.num_groups - 1
    notes = {"num_inseparable_groups": corpus.note}
    lines = [(n, float(v), reasons.get(n, ""), notes.get(n, "")) for n, v in values.items()]
    return pd.DataFrame(lines, columns=columns_of("measure_design"))
