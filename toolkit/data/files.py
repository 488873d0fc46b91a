"""A data file in, its texts and labels out: .tsv (no quoting), .csv, .jsonl, .parquet, .conll."""

import csv
import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.data.raw import RawSplit
from toolkit.data.tokens import holds_lists, read_conll, split_of_lists
from toolkit.lookup import lookup, unknown

DEFAULT_TEXT_COLUMNS = ("text", "sentence")
"""Tried in order when --text-columns is not given."""


def _read_tsv(path: Path) -> pd.DataFrame:
    # No quoting: a quotation mark is a character like any other, as in GLUE's files.
    return _read_table(path, sep="\t", quoting=csv.QUOTE_NONE)


def _read_csv(path: Path) -> pd.DataFrame:
    return _read_table(path)


def _read_table(path: Path, **options: Any) -> pd.DataFrame:
    """Cells as text.

    ValueError for a row with more fields than the header, which pandas would shift or cut, and for a column that the
    header names twice, of which it would take the first.
    """
    options = {"dtype": str, "keep_default_na": False, "encoding": "utf-8", "index_col": False, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(path, **options)
        except pd.errors.ParserWarning:
            raise ValueError("rows have more fields than the header has columns") from None
    header = [name for name in pd.read_csv(path, header=None, nrows=1, **options).iloc[0] if name]
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise ValueError(f"its header names the column {twice[0]!r} twice: rename or drop one of them")
    return frame


def _read_jsonl(path: Path) -> pd.DataFrame:
    rows = []
    with open(path, encoding="utf-8-sig") as file:  # with or without the mark that some programs begin a file with
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number} is not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"line {number} must be an object with fields")
            rows.append(row)
    # dtype=object keeps integers beside missing values integers.
    return pd.DataFrame(rows, dtype=object)


def _read_parquet(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path)


READERS: Mapping[str, Callable[[Path], pd.DataFrame]] = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


CONLL = ".conll"
"""A word and its tag a line: it has no columns with names."""


def read_file(path: Path, text_columns: tuple[str, ...], label_column: str | None) -> RawSplit:
    """Read one split; ValueError for a file that is missing or unreadable and for columns that it lacks."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: pass a data file ({', '.join((*READERS, CONLL))})")
    if not path.is_file():
        hint = "" if path.is_absolute() else ": a relative path starts from the folder that you are in"
        raise ValueError(f"no file at {path}{hint}")
    kind = path.suffix.lower()
    read = lookup({**READERS, CONLL: pd.DataFrame}, kind, "kind of data file")
    try:
        if kind == CONLL:
            return read_conll(path)
        frame = read(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read {path}: {error}: save it as UTF-8 text, not packed") from None
    except (ValueError, OSError) as error:  # pandas' and pyarrow's errors are ValueErrors or OSErrors
        raise ValueError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    return split_of_frame(frame, text_columns, label_column, str(path))


def split_of_frame(
    frame: pd.DataFrame, text_columns: tuple[str, ...], label_column: str | None, source: str
) -> RawSplit:
    """Texts and labels of a table; a table without the label column, or None for it, is a split without labels.

    ValueError for a column that is missing, or named twice: a model that reads its label has nothing to learn.
    """
    columns = tuple(str(column) for column in frame.columns)
    if holds_lists(frame, text_columns):
        return split_of_lists(frame, text_columns, label_column, source)
    names = text_columns or tuple(name for name in DEFAULT_TEXT_COLUMNS if name in columns)[:1]
    if not names:
        raise ValueError(f"{source} has no column text or sentence: pass --text-columns (it has: {', '.join(columns)})")
    for name in names:
        if name not in columns:
            raise ValueError(f"{source}: {unknown(name, 'column', columns)}")
    if len(set(names)) < len(names):
        raise ValueError(f"--text-columns names {names[0]!r} twice: a pair needs two columns, a single text one")
    if label_column in names:
        raise ValueError(
            f"{label_column!r} is the label column and a text column: change --label-column or --text-columns"
        )
    texts = [
        tuple(_text(cell, source) for cell in row)
        for row in zip(*(frame[name].tolist() for name in names), strict=True)
    ]
    labels = _labels(frame[label_column].tolist(), source) if label_column in columns else None
    return RawSplit(texts, labels, columns)  # type: ignore[arg-type]


def _text(cell: object, source: str) -> str | None:
    """A cell as text; None when it is missing (None, NaN). A number is taken as its text."""
    if isinstance(cell, str):
        return cell
    if not pd.api.types.is_scalar(cell):
        raise ValueError(f"{source}: a text is a {type(cell).__name__}; pass a column of plain texts")
    return None if pd.isna(cell) else str(cell)


def _labels(cells: list[object], source: str) -> list[object]:
    """Labels as they came, None where one is missing."""
    for cell in cells:
        if not pd.api.types.is_scalar(cell):
            raise ValueError(f"{source}: a label is a {type(cell).__name__}; labels are integers, strings or floats")
    return [None if pd.isna(cell) else cell for cell in cells]
