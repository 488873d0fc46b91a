"""What the tables and arrays of a run directory hold, checked once, where they are opened; ValueError says what not.

A manifest says that a file is as it was written, but not every run has one, and not every one was written by us.
"""

import csv
from collections.abc import Callable, Collection, Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolkit.families import TABLES
from toolkit.naming import REMEDY
from toolkit.snapshots.logs import INPUT_ONLY, PARTS, Exposure, TableExposure

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
    is_whole = len(known) == len(table) == table["epoch"].nunique() * table["split"].nunique()
    _refuse(path, (not is_whole, "does not have each split once per epoch"))
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
    odd = [x for x in table.get("scores", ()) if not isinstance(x, np.ndarray) or x.dtype.kind != "f"]
    _refuse(path, (odd, "has scores that are not lists of numbers"))
    _check_epochs(path, table, epochs)
    return table


def _refuse(path: Path, *faults: tuple[object, str]) -> None:
    """ValueError with the first of the faults of a file that there is, each with what says so."""
    for is_there, what in faults:
        if is_there:
            raise ValueError(f"{path} {what}: {REMEDY}")


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
        raise ValueError(f"{path} cannot be read ({' '.join(str(error).split())[:200]}): {REMEDY}") from None
    columns = tuple(dict.fromkeys([*needed, *map(str, table)])) if columns is None else columns
    missing = [name for name in columns if name in needed and name not in table]
    unknown = [name for name in table if name not in columns]
    _refuse(
        path,
        (missing, f"lacks the column {''.join(missing[:1])}"),
        (unknown, f"has a column {next(iter(unknown), '')!r} that no run has"),
        (table.empty, "has no rows"),
    )
    whole = [name for name in table if name in needed and name not in ("label", "prediction")]
    for name in table:
        is_text = name in ("split", *texts) or table[name].dtype.kind in "iuf"
        _refuse(
            path,
            (name in whole and table[name].isna().any(), f"has a row without {name}"),
            (not is_text, f"has {name} values that are not numbers"),
        )
    return table[[name for name in columns if name in table]]


def _check_epochs(path: Path, table: "pd.DataFrame", epochs: Collection[int] | None) -> None:
    found = set(np.ceil(table["epoch"].to_numpy(np.float64)).tolist())
    shown = ["{" + ", ".join(f"{epoch:g}" for epoch in sorted(each)) + "}" for each in (found, epochs or ())]
    is_other = epochs is not None and found != set(epochs)
    _refuse(path, (is_other, f"has the epochs {shown[0]}, the snapshots {shown[1]}"))


def check_steps(path: Path, found: int, num_steps: int, *, is_least: bool) -> None:
    """ValueError unless a file has as many optimizer steps as the last snapshot, or ``is_least`` at least these."""
    is_other = found < num_steps or (found > num_steps and not is_least)
    _refuse(path, (is_other, f"has {found} optimizer steps, the last snapshot {num_steps}"))


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
    odd = [name for name, tensor in tensors.items() if tensor.dtype not in KINDS.get(name, ()) or tensor.ndim != 1]
    found = "".join(f"{name}, {tensors[name].dtype.name} of {tensors[name].ndim} dimensions" for name in odd[:1])
    _refuse(path, (odd, f"holds {found}, which no run has"))
    present = {name.partition(".")[0] for name in tensors}
    wanted = [f"{name}.{part}" for name in TABLES if name in present for part in PARTS]
    wanted += [name for name in ("design.counts",) if "design" in present]
    missing = [name for name in wanted if name not in tensors]
    marked = [name.partition(".")[2] for name in tensors if name.startswith(f"{INPUT_ONLY}.")]
    unknown = [name for name in num_rows if not may_lack and name not in present and name not in marked]
    design = {name: tensor for name, tensor in tensors.items() if name.startswith("design.")}
    told = [name for name in TABLES if name in present or f"design.{name}" in design]
    strange = [name for name in told if name not in num_rows]
    beyond = [
        name
        for name in told
        for rows in (tensors.get(f"{name}.rows", ()), design.get(f"design.{name}", ()))
        if len(rows) and not 0 <= np.min(rows) <= np.max(rows) < num_rows.get(name, np.inf)
    ]
    unborne = [name for name in marked if name in present or f"design.{name}" not in design]
    _refuse(
        path,
        (missing, f"lacks {''.join(missing[:1])}"),
        (unknown, f"lacks the rows of {''.join(unknown[:1])}"),
        (len(design) == 1, "counts combinations of no table"),
        (len(set(map(len, design.values()))) > 1, "has combinations and counts of different lengths"),
        (strange, f"has rows of {''.join(strange[:1])}, which the snapshots lack"),
        (beyond, f"has rows of {''.join(beyond[:1])} beyond its {num_rows.get(''.join(beyond[:1]))} rows"),
        (unborne, f"says that of {''.join(unborne[:1])} the input is known, which its other arrays do not bear out"),
        (any((own < 1).any() for name, own in tensors.items() if name.endswith(".counts")), "has counts below 1"),
    )
    exposure = Exposure.from_tensors(tensors)
    for name, table in exposure.tables.items():
        _check_table(path, name, table)
    counts = {table.num_steps for table in exposure.tables.values()}
    _refuse(path, (len(counts) > 1, "has another number of steps for each table"))
    return exposure


def _check_table(path: Path, name: str, table: TableExposure) -> None:
    offsets, rows = table.offsets, table.rows
    lengths = {len(rows), len(table.counts), len(table.norms)}
    divide = len(offsets) and offsets[0] == 0 and (np.diff(offsets) >= 0).all() and lengths == {int(offsets[-1])}
    _refuse(path, (not divide, f"has offsets of {name} that do not divide its rows, counts and norms into steps"))
    is_first = np.zeros(len(rows) + 1, bool)
    is_first[offsets] = True
    _refuse(
        path,
        ((np.diff(rows)[~is_first[1 : len(rows)]] <= 0).any(), f"has steps whose rows of {name} do not ascend"),
        ((table.norms < 0).any(), f"has norms of {name} below 0"),
    )
