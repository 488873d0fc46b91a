"""A trajectory in, what its tokens can tell apart out: rank deficiency of the design, and its inseparable rows."""

import math

import numpy as np
import pandas as pd

from toolkit.analysis.gauge.corpus import reference_corpus
from toolkit.analysis.gauge.incidence import null_space
from toolkit.snapshots.exposure import Design
from toolkit.snapshots.store import Source, trajectory_of

COLUMNS = ("quantity", "value", "note")
"""Columns of :func:`measure_design`."""

ROW_COLUMNS = ("group", "parameter", "row", "token", "frequency", "note")
"""Columns of :func:`inseparable_rows`."""

UNKNOWN_DESIGN = "no design was recorded: not known"


def rank_deficiency(design: Design) -> int:
    """Used rows of all tables - rank of the incidence matrix of the combinations: exact, from a graph (ours).

    0 with one table, the number of connected components of the graph of rows with two. Where everything occurred with
    everything, k tables have k - 1.
    """
    sizes = design.combinations.max(axis=0, initial=0) + 1
    return null_space(design, dict(zip(design.tables, sizes.tolist(), strict=True))).num_directions


def measure_design(source: Source) -> "pd.DataFrame":
    """How many directions the run's tokens leave free, one quantity per line, columns COLUMNS.

    ``num_tokens``, ``num_combinations`` (distinct), ``num_used_rows`` over all tables, ``rank``, ``rank_deficiency``,
    ``rank_deficiency_crossed`` (what is left where everything occurred with everything: the least there can be) and
    ``num_inseparable_groups``. Without a recorded design the rank is not known: NaN, and a note.
    """
    corpus = reference_corpus(trajectory_of(source))
    design = corpus.design
    used = sum(int(np.count_nonzero(values)) for values in corpus.frequencies.values())
    values = dict.fromkeys(("num_tokens", "num_combinations", "num_used_rows", "rank", "rank_deficiency"), math.nan)
    notes = dict.fromkeys(values, "" if design else UNKNOWN_DESIGN)
    if design:
        deficiency = corpus.null_space().num_directions
        found = (int(design.counts.sum()), len(design.counts), used, used - deficiency, deficiency)
        values = dict(zip(values, map(float, found), strict=True))
    elif corpus.frequency_source != "uniform":
        values["num_used_rows"], notes["num_used_rows"] = used, ""
    values["rank_deficiency_crossed"] = len(corpus.tables) - 1
    values["num_inseparable_groups"] = corpus.num_groups - 1
    notes["num_inseparable_groups"] = corpus.note
    return pd.DataFrame([(n, float(v), notes.get(n, "")) for n, v in values.items()], columns=list(COLUMNS))


def inseparable_rows(source: Source) -> "pd.DataFrame":
    """The rows that no token shared with the rest of the first two tables, one per line, columns ROW_COLUMNS.

    Rows of one ``group`` occurred with each other only, such as [CLS] and position 0: the group's word rows could move
    by any vector and its position rows back by it. Groups are numbered from 1 by falling number of tokens;
    ``frequency`` is the share of the table's tokens. Without a recorded design the vocabulary tells, and ``note`` says
    so.
    """
    trajectory = trajectory_of(source)
    corpus = reference_corpus(trajectory)
    lines = []
    for group in range(1, corpus.num_groups):
        for table in corpus.tables[:2]:
            for row in np.flatnonzero(corpus.groups[table] == group).tolist():
                is_word = table == "word_embeddings" and trajectory.vocabulary is not None
                token = trajectory.vocabulary.tokens[row] if is_word and trajectory.vocabulary else ""
                lines.append((group, table, row, token, corpus.frequencies[table][row], corpus.note))
    return pd.DataFrame(lines, columns=list(ROW_COLUMNS))
