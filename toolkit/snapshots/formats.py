"""What the tables and arrays of a run directory hold, checked once, where they are opened; ValueError says what not.

A manifest says that a file is as it was written, but not every run has one, and not every one was written by us.
"""

import csv
from collections.abc import Callable, Collection, Mapping
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolkit.families import TABLES
from toolkit.naming import reading, refuse_damaged, refuse_first
from toolkit.snapshots.csv_tables import unquoted
from toolkit.snapshots.logs import INPUT_ONLY, PARTS, Exposure

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


def read_scores(path: Path, epochs: Collection[int] | None) -> "pd.DataFrame":
    """scores.csv; ``epochs``: those that it must have, each named by the epoch that it is the end of."""
    import pandas as pd

    def read(path: Path) -> pd.DataFrame:
        text = path.read_text(encoding="utf-8")
        if not text.endswith("\n") or len({len(line) for line in csv.reader(StringIO(text))}) != 1:
            raise ValueError("its last line is cut, or its lines differ in length")
        return unquoted(pd.read_csv(path))

    table = _read_table(path, read, SCORE_COLUMNS, ("epoch", "step", "split", "num_examples"))
    known = table.groupby(["epoch", "split"]).size()
    is_full = len(known) == len(table) == table["epoch"].nunique() * table["split"].nunique()
    refuse_damaged(path, {"does not have each split once per epoch": not is_full} | _faults_of_epochs(table, epochs))
    return table


def read_recorded_scores(path: Path) -> "pd.DataFrame":
    """scores.csv of another training loop: it scores what and when it likes, and calls scores as it likes."""
    import pandas as pd

    def read(path: Path) -> pd.DataFrame:
        # A split may be called nan.
        return unquoted(pd.read_csv(path, dtype={"split": str}, keep_default_na=False, na_values=[""]))

    table = _read_table(path, read, None, ("epoch", "split"))
    return table.reindex(columns=list(dict.fromkeys(["epoch", "step", "split", "num_examples", *table])))


def read_predictions(path: Path, epochs: Collection[int] | None) -> "pd.DataFrame":
    """predictions.parquet; see :func:`read_scores`."""
    import pandas as pd

    needed = tuple({*PREDICTION_COLUMNS} - {"word", "cluster", "scores"})
    table = _read_table(path, partial(pd.read_parquet, partitioning=None), PREDICTION_COLUMNS, needed, {"id", "scores"})
    lists = table.get("scores", ())
    is_listed = all(isinstance(scores, np.ndarray) and scores.dtype.kind == "f" for scores in lists)
    refuse_damaged(path, {"has scores that are not lists of numbers": not is_listed} | _faults_of_epochs(table, epochs))
    return table


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
    missing = [name for name in columns if name in needed and name not in table]
    unknown = [name for name in table if name not in columns]
    holes = [name for name in needed if name not in ("label", "prediction", *missing) and table[name].isna().any()]
    odd = [name for name in table if name not in ("split", *texts) and table[name].dtype.kind not in "iuf"]
    faults = {
        f"lacks the column {', '.join(missing)}": missing,
        f"has a column {', '.join(map(repr, unknown))} that no run has": unknown,
        "has no rows": table.empty,
        f"has a row without {', '.join(holes)}": holes,
        f"has {', '.join(odd)} values that are not numbers": odd,
    }
    refuse_damaged(path, faults)
    return table[[name for name in columns if name in table]]


def _faults_of_epochs(table: "pd.DataFrame", epochs: Collection[int] | None) -> dict[str, bool]:
    found = set(np.ceil(table["epoch"].to_numpy(np.float64)).tolist())
    shown = ["{" + ", ".join(f"{epoch:g}" for epoch in sorted(each or ())) + "}" for each in (found, epochs)]
    is_other = epochs is not None and found != set(epochs)
    return {f"has the epochs {shown[0]}, the snapshots {shown[1]}": is_other}


INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))
KINDS: Mapping[str, tuple[np.dtype[Any], ...]] = {
    **{f"{name}.{part}": INTEGERS for name in TABLES for part in PARTS},
    **{f"{name}.norms": (np.dtype(np.float32),) for name in TABLES},
    **{f"design.{name}": INTEGERS for name in (*TABLES, "counts")},
    **{f"{INPUT_ONLY}.{name}": INTEGERS for name in TABLES},
}
"""Every array that exposure.safetensors may hold, and the types that it may have."""


def read_exposure(
    path: Path, tensors: Mapping[str, NDArray[Any]], num_rows: Mapping[str, int], *, may_lack: bool
) -> Exposure:
    """What the arrays of exposure.safetensors say; ``num_rows``: of each table that the model has.

    ``may_lack``: it is of another training loop, in which not every table's exposure can be known.
    """
    with reading(path, "is not the exposure of a run"):
        exposure = Exposure.from_tensors(tensors)  # a KeyError where a table lacks a part
        others = sorted(exposure.to_tensors().keys() ^ tensors.keys())  # what was read is what would be written
        odd = [name for name, each in tensors.items() if each.dtype not in KINDS.get(name, ()) or each.ndim != 1]
        design = [each for name, each in tensors.items() if name.startswith("design.")]
        unknown = num_rows.keys() - exposure.tables.keys() - {*exposure.input_only} if not may_lack else ()
        faults: dict[str, object] = {
            f"it holds or lacks {', '.join(others)}, alone": others,
            f"it holds {', '.join(odd)} in a type or dimensions that no run has": odd,
            f"it lacks the rows of {', '.join(unknown)}": unknown,
            "of a table it tells by step, and by the input alone": exposure.tables.keys() & {*exposure.input_only},
            "its combinations and counts differ in length": len({len(each) for each in design}) > 1,
        }
        refuse_first(faults)  # what follows takes these to be mended
        keys = {key: name for name in TABLES for key in (f"{name}.rows", f"design.{name}") if key in tensors}
        beyond = [
            key
            for key, name in keys.items()
            if name not in num_rows or ((tensors[key] < 0) | (tensors[key] >= num_rows[name])).any()
        ]
        few = [key for key, counts in tensors.items() if key.endswith(".counts") and (counts < 1).any()]
        faults = {
            f"it has rows in {', '.join(beyond)} that the snapshots lack": beyond,
            f"it has counts below 1 in {', '.join(few)}": few,
        }
        for name, table in exposure.tables.items():
            lengths, offsets = {len(table.rows), len(table.counts), len(table.norms)}, table.offsets
            is_divided = len(offsets) and offsets[0] == 0 and (np.diff(offsets) >= 0).all() and lengths == {offsets[-1]}
            falls = np.flatnonzero(np.diff(table.rows) <= 0) + 1  # where alone a step may begin
            faults |= {
                f"its offsets of {name} do not divide rows, counts and norms into steps": not is_divided,
                f"its steps have rows of {name} that do not ascend": not np.isin(falls, offsets).all(),
                f"it has norms of {name} below 0": (table.norms < 0).any(),
            }
        num_steps = {table.num_steps for table in exposure.tables.values()}
        refuse_first(faults | {"it has another number of steps for each table": len(num_steps) > 1})
    return exposure
