"""What the tables and arrays of a run directory hold, checked once, where they are opened; ValueError says what not.

A manifest says that a file is as it was written, but not every run has one, and not every one was written by us.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolkit.naming import reading, refuse_damaged, refuse_first
from toolkit.snapshots.csv_tables import unquoted
from toolkit.snapshots.logs import Exposure

if TYPE_CHECKING:
    import pandas as pd

SCORES = (
    *("accuracy", "macro_f1", "matthews", "precision", "recall", "f1", "pearson", "spearman", "r2"),
    *("perplexity", "loss"),
)
"""Scores in the order of every table; loss in nats, perplexity its exponential, the others as shares or
coefficients."""
HEADLINES = SCORES[:-2]
"""Scores that runs can be judged by: higher is better."""
SCORE_COLUMNS = ("epoch", "step", "split", "num_examples", "loss", *SCORES[:-1], "train_loss")
PREDICTION_COLUMNS = ("epoch", "split", "id", "word", "cluster", "label", "prediction", "scores")


def read_scores(path: Path, *, is_recorded: bool) -> "pd.DataFrame":
    """scores.csv; another training loop scores what and when it likes, and calls scores as it likes."""
    first = SCORE_COLUMNS[:4]
    if not is_recorded:
        return _read_table(path, _read_csv, SCORE_COLUMNS, first)
    table = _read_table(path, _read_csv, None, ("epoch", "split"))
    return table.reindex(columns=list(dict.fromkeys([*first, *table])))


def _read_csv(path: Path) -> "pd.DataFrame":
    import pandas as pd

    # A split may be called nan.
    return unquoted(pd.read_csv(path, dtype={"split": str}, keep_default_na=False, na_values=[""]))


def read_predictions(path: Path) -> "pd.DataFrame":
    """predictions.parquet."""
    import pandas as pd

    needed = tuple({*PREDICTION_COLUMNS} - {"word", "cluster", "scores"})
    return _read_table(path, partial(pd.read_parquet, partitioning=None), PREDICTION_COLUMNS, needed, {"id", "scores"})


def _read_table(
    path: Path,
    read: "Callable[[Path], pd.DataFrame]",
    columns: tuple[str, ...] | None,
    needed: tuple[str, ...],
    texts: Collection[str] = (),
) -> "pd.DataFrame":
    """A table of a run, its ``columns`` in our order; all but ``texts`` and the split must hold numbers.

    Without ``columns`` it may have any, in its own order.
    """
    with reading(path):
        table = read(path)
    columns = tuple(dict.fromkeys([*needed, *map(str, table)])) if columns is None else columns
    missing = [name for name in needed if name not in table]
    odd = [name for name in table if name not in ("split", *texts) and table[name].dtype.kind not in "iuf"]
    faults = {
        f"lacks the column {', '.join(missing)}": missing,
        "has no rows": table.empty,
        f"has {', '.join(odd)} values that are not numbers": odd,
    }
    refuse_damaged(path, faults)
    return table[[name for name in columns if name in table]]


def read_exposure(
    path: Path, tensors: Mapping[str, NDArray[Any]], num_rows: Mapping[str, int], *, may_lack: bool
) -> Exposure:
    """What the arrays of exposure.safetensors say; ``num_rows``: of each table that the model has.

    ``may_lack``: it is of another training loop, in which not every table's exposure can be known.
    """
    with reading(path, "is not the exposure of a run"):
        exposure = Exposure.from_tensors(tensors)  # a KeyError where a table lacks a part
        unknown = num_rows.keys() - exposure.tables.keys() - {*exposure.input_only} if not may_lack else ()
        refuse_first({f"it lacks the rows of {', '.join(unknown)}": unknown})
        for name, table in exposure.tables.items():
            # np.repeat refuses offsets that fall, and the sum lengths that differ.
            steps = np.repeat(np.arange(table.num_steps), np.diff(table.offsets))
            is_ascending = np.diff(steps * num_rows[name] + table.rows) > 0  # within a step, which may begin anywhere
            is_within = (table.rows >= 0) & (table.rows < num_rows[name])
            is_parallel = table.rows.shape == table.counts.shape == table.norms.shape
            is_whole = is_parallel and is_ascending.all() and is_within.all() and table.offsets[:1] == 0
            refuse_first({f"its steps do not hold rows of {name} in ascending order": not is_whole})
    return exposure
