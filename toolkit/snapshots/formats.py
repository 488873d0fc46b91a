"""What the tables and arrays of a run directory hold, checked once, where they are opened; ValueError says what not.

A manifest says that a file is as it was written, but not every run has one, and not every one was written by us.
"""

import csv
from collections.abc import Callable, Collection, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolkit.families import TABLES
from toolkit.naming import REMEDY
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
PREDICTION_COLUMNS = ("epoch", "split", "id", "word", "label", "prediction", "scores")


def read_scores(path: Path, epochs: Collection[int] | None) -> "pd.DataFrame":
    """scores.csv; ``epochs``: those that it must have, each named by the epoch that it is the end of."""
    import pandas as pd

    def read(path: Path) -> pd.DataFrame:
        if not (text := path.read_text(encoding="utf-8")).endswith("\n"):
            raise ValueError("its last line is cut")
        if len({len(line) for line in csv.reader(StringIO(text))}) > 1:
            raise ValueError("its lines differ in length")
        return pd.read_csv(path)

    table = _read_table(path, read, SCORE_COLUMNS, ("epoch", "step", "split", "num_examples"))
    known = table.groupby(["epoch", "split"]).size()
    if len(known) != len(table) or len(known) != table["epoch"].nunique() * table["split"].nunique():
        raise _damaged(path, "does not have each split once per epoch")
    _check_epochs(path, table, epochs)
    return table


def read_recorded_scores(path: Path) -> "pd.DataFrame":
    """scores.csv of another training loop: it scores what and when it likes, and calls scores as it likes."""
    import pandas as pd

    def read(path: Path) -> pd.DataFrame:
        # A split may be called nan.
        return pd.read_csv(path, dtype={"split": str}, keep_default_na=False, na_values=[""])

    table = _read_table(path, read, None, ("epoch", "split"))
    return table.reindex(columns=list(dict.fromkeys(["epoch", "step", "split", "num_examples", *table])))


def read_predictions(path: Path, epochs: Collection[int] | None) -> "pd.DataFrame":
    """predictions.parquet; see :func:`read_scores`."""
    import pandas as pd

    known = set(PREDICTION_COLUMNS)
    table = _read_table(path, pd.read_parquet, PREDICTION_COLUMNS, tuple(known - {"word", "scores"}), {"id", "scores"})
    if "scores" in table and not all(isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in table["scores"]):
        raise _damaged(path, "has scores that are not lists of numbers")
    _check_epochs(path, table, epochs)
    return table


def _damaged(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} {what}: {REMEDY}")


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
    try:
        table = read(path)
    except Exception as error:  # pandas and pyarrow have a dozen types of their own
        raise _damaged(path, f"cannot be read ({' '.join(str(error).split())[:200]})") from None
    columns = tuple(dict.fromkeys([*needed, *map(str, table)])) if columns is None else columns
    if missing := [name for name in columns if name in needed and name not in table]:
        raise _damaged(path, f"lacks the column {missing[0]}")
    if unknown := [name for name in table if name not in columns]:
        raise _damaged(path, f"has a column {unknown[0]!r} that no run has")
    if table.empty:
        raise _damaged(path, "has no rows")
    for name in table:
        is_whole = name in needed and name not in ("label", "prediction")
        if is_whole and table[name].isna().any():
            raise _damaged(path, f"has a row without {name}")
        if name not in ("split", *texts) and table[name].dtype.kind not in "iuf":
            raise _damaged(path, f"has {name} values that are not numbers")
    return table[[name for name in columns if name in table]]


def _check_epochs(path: Path, table: "pd.DataFrame", epochs: Collection[int] | None) -> None:
    found = set(np.ceil(table["epoch"].to_numpy(np.float64)).tolist())
    if epochs is not None and found != set(epochs):
        shown = ["{" + ", ".join(f"{epoch:g}" for epoch in sorted(each)) + "}" for each in (found, epochs)]
        raise _damaged(path, f"has the epochs {shown[0]}, the snapshots {shown[1]}")


def check_steps(path: Path, found: int, num_steps: int, *, is_least: bool) -> None:
    """ValueError unless a file has as many optimizer steps as the last snapshot, or ``is_least`` at least these."""
    if found < num_steps or (found > num_steps and not is_least):
        raise _damaged(path, f"has {found} optimizer steps, the last snapshot {num_steps}")


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
    for fault in _faults_of(tensors, num_rows, may_lack):
        raise _damaged(path, fault)
    return Exposure.from_tensors(tensors)


def _faults_of(tensors: Mapping[str, NDArray[Any]], num_rows: Mapping[str, int], may_lack: bool) -> Iterator[str]:
    """What is wrong with the arrays of exposure.safetensors; what follows a fault takes it to be mended."""
    for name, tensor in tensors.items():
        if tensor.dtype not in KINDS.get(name, ()) or tensor.ndim != 1:
            yield f"holds {name}, {tensor.dtype.name} of {tensor.ndim} dimensions, which no run has"
    present = {name.partition(".")[0] for name in tensors}
    wanted = [f"{name}.{part}" for name in TABLES if name in present for part in PARTS]
    wanted += [name for name in ("design.counts",) if "design" in present]
    yield from (f"lacks {name}" for name in wanted if name not in tensors)
    marked = [name.partition(".")[2] for name in tensors if name.startswith(f"{INPUT_ONLY}.")]
    unknown = [name for name in num_rows if name not in present and name not in marked and not may_lack]
    yield from (f"lacks the rows of {name}" for name in unknown)
    design = {name: tensor for name, tensor in tensors.items() if name.startswith("design.")}
    if len(design) == 1:
        yield "counts combinations of no table"
    if len({len(tensor) for tensor in design.values()}) > 1:
        yield "has combinations and counts of different lengths"
    for name in (name for name in TABLES if name in present or f"design.{name}" in design):
        if name not in num_rows:
            yield f"has rows of {name}, which the snapshots lack"
        rows = [tensors[key] for key in (f"{name}.rows", f"design.{name}") if key in tensors]
        if any(len(each) and not (each.min() >= 0 and each.max() < num_rows[name]) for each in rows):
            yield f"has rows of {name} beyond its {num_rows[name]} rows"
    odd = [name for name in marked if name in present or f"design.{name}" not in design]
    yield from (f"says that of {name} the input is known, which its other arrays do not bear out" for name in odd)
    if any((counts < 1).any() for name, counts in tensors.items() if name.endswith(".counts")):
        yield "has counts below 1"
    tables = Exposure.from_tensors(tensors).tables
    for name, table in tables.items():
        lengths = {len(table.rows), len(table.counts), len(table.norms)}
        offsets = table.offsets
        if not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any() or lengths != {int(offsets[-1])}:
            yield f"has offsets of {name} that do not divide its rows, counts and norms into steps"
        is_first = np.zeros(len(table.rows) + 1, bool)
        is_first[offsets] = True
        if (np.diff(table.rows)[~is_first[1 : len(table.rows)]] <= 0).any():
            yield f"has steps whose rows of {name} do not ascend"
        if (table.norms < 0).any():
            yield f"has norms of {name} below 0"
    if len({table.num_steps for table in tables.values()}) > 1:
        yield "has another number of steps for each table"
