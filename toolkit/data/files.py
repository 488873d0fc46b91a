"""Reading data files (.tsv without quoting, .csv, .jsonl, .parquet, .conll, .txt) and data sets of the hub."""

import contextlib
import csv
import hashlib
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.data.labels import FLOAT, RawSplit, RawTask
from toolkit.data.tokens import holds_lists, read_conll, split_of_lists
from toolkit.memory import is_hub_reachable, unreachable_hub
from toolkit.naming import lookup, unknown

DEFAULT_TEXT_COLUMNS = ("text", "sentence")
"""Tried in order when --text-columns is not given."""

LINE = "line"
"""Name of a table's index where that is the line of the file that each row begins on, the header's being 1."""


def _read_table(path: Path, delimiter: str, quoting: Any) -> pd.DataFrame:
    """Cells as text, indexed by the line of the file that each row begins on; None where a row is too short.

    ValueError for a row with more fields than the header, a quoted field that does not end as one (a stray quotation
    mark, which would swallow the rows up to the next), and a column that the header names twice.
    """
    lines: list[int] = []
    rows: list[list[str | None]] = []
    with open(path, encoding="utf-8-sig", newline="") as file, _any_length():
        reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
        header: list[str] = []
        first = 1
        while True:
            try:
                row = next(reader, None)
            except csv.Error:
                raise ValueError(
                    f"line {first}: a quotation mark opens a field there that does not end as one up to line "
                    f"{reader.line_num}: write a mark inside a quoted text twice, or save the file as .jsonl"
                ) from None
            if row is None:
                break
            if not row or (len(row) == 1 and row[0] and not row[0].strip()):  # an empty line; "" is an empty text
                pass
            elif not header:
                header = [name or f"Unnamed: {i}" for i, name in enumerate(row)]
            elif len(row) > len(header):
                raise ValueError(f"line {first}: rows have more fields than the header has columns ({len(header)})")
            else:
                lines.append(first)
                rows.append([*row, *[None] * (len(header) - len(row))])
            first = reader.line_num + 1
    if not header:
        raise ValueError("it is empty")
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise ValueError(f"its header names the column {twice[0]!r} twice: rename or drop one of them")
    return pd.DataFrame(rows, columns=header, index=pd.Index(lines, name=LINE), dtype=object)


@contextlib.contextmanager
def _any_length() -> Iterator[None]:
    """Let the csv module read fields of more than 128 KiB."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


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


def _read_lines(path: Path) -> pd.DataFrame:
    """A text a line, which has no label; lines without any are passed over."""
    with open(path, encoding="utf-8-sig") as file:
        lines = {number: line.rstrip("\n") for number, line in enumerate(file, 1) if line.strip()}
    return pd.DataFrame({"text": list(lines.values())}, index=pd.Index(lines, name=LINE), dtype=object)


READERS: Mapping[str, Callable[[Path], pd.DataFrame]] = {
    # No quoting: a quotation mark is a character like any other, as in GLUE's files.
    ".tsv": lambda path: _read_table(path, "\t", csv.QUOTE_NONE),
    ".csv": lambda path: _read_table(path, ",", csv.QUOTE_MINIMAL),
    ".jsonl": _read_jsonl,
    ".parquet": pd.read_parquet,
}


CONLL = ".conll"
"""A word and its tag a line: it has no columns with names."""
TXT = ".txt"
"""Texts without labels."""
KINDS = (*READERS, CONLL, TXT)


def check_file(path: Path) -> None:
    """ValueError where there is no file, or none of a kind that :func:`read_file` knows."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: pass a data file ({', '.join(KINDS)})")
    if not path.is_file():
        hint = "" if path.is_absolute() else ": a relative path starts from the folder that you are in"
        raise ValueError(f"no file at {path}{hint}")
    lookup(dict.fromkeys(KINDS), path.suffix.lower(), "kind of data file")
    if path.suffix.lower() != ".parquet":  # in which a run of zeros may be a hole
        _check_whole(path)


def _check_whole(path: Path) -> None:
    """ValueError for a text with a hole, which is read as zeros: gigabytes of nothing take memory and minutes."""
    if not hasattr(os, "SEEK_HOLE"):
        return
    with open(path, "rb") as file, contextlib.suppress(OSError):  # of a file system that knows no holes
        hole, size = os.lseek(file.fileno(), 0, os.SEEK_HOLE), os.fstat(file.fileno()).st_size
        if hole < size:
            raise ValueError(
                f"{path} holds nothing from byte {hole:,} on, though it is {size:,} bytes long: a copy or download "
                "that was cut short? get it again"
            )


def read_file(path: Path, text_columns: tuple[str, ...], label_column: str | None) -> RawSplit:
    """Read one split; ValueError for a file that is missing or unreadable and for columns that it lacks."""
    check_file(path)
    kind = path.suffix.lower()
    try:
        if kind == CONLL:
            return read_conll(path)
        frame = _read_lines(path) if kind == TXT else READERS[kind](path)
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read {path}: {error}: save it as UTF-8 text, not compressed") from None
    except (ValueError, OSError) as error:  # pandas' and pyarrow's errors are ValueErrors or OSErrors
        raise ValueError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    except (LookupError, TypeError, AttributeError) as error:  # but where what parquet holds for pandas is damaged
        raise ValueError(f"cannot read {path}: it is damaged ({type(error).__name__}: {error})") from None
    return split_of_frame(frame, text_columns, label_column, str(path))


def split_of_frame(
    frame: pd.DataFrame, text_columns: tuple[str, ...], label_column: str | None, source: str
) -> RawSplit:
    """Texts and labels of a table; a table without the label column, or None for it, is a split without labels.

    ValueError for a column that is missing, or named twice: a model that reads its label has nothing to learn; for a
    row that is the header again, and for a text that holds whole rows.
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
    _check_header_once(frame, names, label_column, source)
    _check_no_rows_inside(frame, names, label_column, source)
    texts = [
        tuple(_text(cell, source) for cell in row)
        for row in zip(*(frame[name].tolist() for name in names), strict=True)
    ]
    labels = _labels(frame[label_column].tolist(), source) if label_column in columns else None
    taken_from = f"texts: {', '.join(names)}; labels: {label_column}"
    return RawSplit(texts, labels, columns, taken_from)  # type: ignore[arg-type]


def _check_header_once(frame: pd.DataFrame, names: tuple[str, ...], label_column: str | None, source: str) -> None:
    """ValueError for a row that holds the columns' names: files that were joined end to end."""
    columns = (*names, label_column) if label_column in frame.columns else tuple(frame.columns)
    if len(columns) < 2:  # one column may well hold its own name
        return
    is_header = np.ones(len(frame), dtype=bool)
    for column in columns:
        name = _plain(str(column))
        is_header &= np.array([isinstance(x, str) and _plain(x) == name for x in frame[column].tolist()], dtype=bool)
    if is_header.any():
        raise ValueError(
            f"{source}, {_place(frame, int(np.argmax(is_header)))} is the header again "
            f"({int(is_header.sum())} such rows): drop it (files joined end to end?)"
        )


def _check_no_rows_inside(frame: pd.DataFrame, names: tuple[str, ...], label_column: str | None, source: str) -> None:
    """ValueError for a text of a csv of which every line reads as a row, its label among those of the other rows.

    So it comes out of a csv with two stray quotation marks: what lies between them is one quoted field. Line breaks
    in a text are no reason: lines of prose have other numbers of commas, and no labels where these belong. A table
    from elsewhere, made of such a csv or not, is warned of only: there is no mark left to take out. So are lines whose
    labels no other row has and that share them: a whole class between the marks, or a text that holds a table.
    """
    columns = list(frame.columns)
    if len(columns) < 2:
        return
    broken = np.zeros(len(frame), dtype=bool)
    for name in names:
        broken |= np.array([isinstance(x, str) and "\n" in x for x in frame[name].tolist()], dtype=bool)
    if not broken.any():
        return
    telling = [label_column] if label_column in columns else [column for column in columns if column not in names]
    fits = [(columns.index(column), _fit(frame[column].tolist())) for column in telling]
    for i in np.flatnonzero(broken).tolist():
        lines = ",".join(str(cell) for cell in frame.iloc[i].tolist()).split("\n")
        rows = [line.split(",") for line in lines if line.strip()]
        if len(rows) < 2 or any(len(row) != len(columns) for row in rows):
            continue
        unknown = [[row[k] for row in rows if not fit(row[k])] for k, fit in fits]
        is_known = not any(unknown)
        if all(map(_is_shared, unknown)):
            found = f"{source}, {_place(frame, i)} holds {len(rows)} lines, each of which reads as a row of its own"
            if frame.index.name != LINE or not is_known:
                warnings.warn(f"{found}: was it made from a csv with stray quotation marks?", stacklevel=2)
                return
            raise ValueError(
                f"{found}: take out the two stray quotation marks, or, if one text is meant, save the file as .jsonl"
            )


def _is_shared(cells: Sequence[str]) -> bool:
    """Whether they read as labels of their own: half as many as cells at most, and none empty or with space around."""
    return 2 * len(set(cells)) <= len(cells) and all(cell and cell == cell.strip() for cell in cells)


def _fit(cells: list[object]) -> Callable[[str], bool]:
    """Whether a text may be one more cell of a column: one of its values or, where these are mostly numbers of their
    own (targets, names of rows), any number."""
    values = {_plain(str(cell)) for cell in cells}
    if 2 * len(values) > len(cells) and all(re.fullmatch(FLOAT, value) for value in values):
        return lambda text: re.fullmatch(FLOAT, text.strip()) is not None
    return lambda text: _plain(text) in values


def _plain(cell: str) -> str:
    return cell.removeprefix("\ufeff").strip().casefold()


def _place(frame: pd.DataFrame, row: int) -> str:
    """``row 3``, counted from 1 below the header, with the line of the file where that is known."""
    return f"row {row + 1}" + (f" (line {frame.index[row]})" if frame.index.name == LINE else "")


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


GLUE_REPOSITORY = "nyu-mll/glue"


@dataclass(frozen=True, slots=True)
class GlueTask:
    """Columns and headline score of one GLUE task."""

    text_columns: tuple[str, ...]
    score: str = "accuracy"
    out_of_distribution: tuple[str, ...] = ()


GLUE: Mapping[str, GlueTask] = {
    "sst2": GlueTask(("sentence",)),
    "cola": GlueTask(("sentence",), score="matthews"),
    "mrpc": GlueTask(("sentence1", "sentence2")),
    "stsb": GlueTask(("sentence1", "sentence2"), score="pearson"),
    "qqp": GlueTask(("question1", "question2")),
    "mnli": GlueTask(("premise", "hypothesis"), out_of_distribution=("validation_mismatched", "test_mismatched")),
    "qnli": GlueTask(("question", "sentence")),
    "rte": GlueTask(("sentence1", "sentence2")),
}
"""GLUE tasks (Wang et al. 2018) with their text columns; label names and splits come from the hub.

The mismatched splits of MultiNLI are of other genres than its training data (Williams et al. 2018)."""

HELD_OUT_FRACTION = 10
"""A dataset without a validation split holds out every tenth training example (drawn with a fixed seed)."""


def read_glue(name: str) -> RawTask:
    """Read one GLUE task; MNLI has two validation and two test splits, and GLUE's tests have no labels."""
    glue = GLUE[name]
    raw = read_dataset(GLUE_REPOSITORY, name, glue.text_columns, "label")
    return replace(raw, score=glue.score, out_of_distribution=glue.out_of_distribution)


def read_dataset(name: str, config: str | None, text_columns: tuple[str, ...], label_column: str | None) -> RawTask:
    """Read a dataset of the hub, ``NAME`` or ``NAME@REVISION``; ValueError when it cannot be read, saying what to pass
    instead. The commit of a revision stands among the hashes, as ``@REVISION``."""
    dataset, commits = _load(name, config)
    splits, label_names, rank = {}, None, {"train": 0, "validation": 1}
    names = [split_name for split_name in dataset if split_name != "unsupervised"]
    for split_name in sorted(names, key=lambda split_name: rank.get(split_name.split("_")[0], 2)):
        split = dataset[split_name]
        feature = split.features.get(label_column)
        label_names = label_names or (tuple(feature.names) if hasattr(feature, "names") else None)
        raw = split_of_frame(split.to_pandas(), text_columns, label_column, f"{name} ({split_name})")
        labels = _without_withheld(raw.labels, is_class=label_names is not None)
        splits[split_name] = RawSplit(raw.texts, labels, taken_from=raw.taken_from)
    if not any(split_name.startswith("validation") for split_name in splits):
        splits = _hold_out(splits)
    hashes = {split_name: _sha256(split) for split_name, split in splits.items()}
    return RawTask(splits, label_names, hashes=hashes | commits)


def _sha256(split: RawSplit) -> str:
    """Of the texts and labels, in order, whatever files the hub keeps them in."""
    hashed = hashlib.sha256()
    for texts, label in zip(split.texts, split.labels or repeat(None), strict=False):
        hashed.update(json.dumps([*texts, label], default=float).encode() + b"\n")
    return hashed.hexdigest()


def _load(name: str, config: str | None) -> tuple[Any, dict[str, str]]:
    """The dataset, and the commit of the revision that the name asks for: ``@REVISION`` to it."""
    import datasets
    from datasets.packaged_modules.webdataset.webdataset import WebDataset
    from huggingface_hub import resolve_revision

    instead = "pass --train-file and --validation-file, or a built-in task: polarity, order, pair, roles"
    was_offline, is_online = datasets.config.HF_HUB_OFFLINE, is_hub_reachable()
    # Without this the library retries for half a minute, or many, before it looks into its cache.
    datasets.config.HF_HUB_OFFLINE = was_offline or not is_online
    decoders, kept = WebDataset.DECODERS, dict(WebDataset.DECODERS)
    decoders.pop("pth", None)  # of the files in a .tar, those that would be unpickled
    # A path with the sign, of a dataset's folder, has no revision.
    location, _, revision = (name, "", "") if Path(name).exists() else name.partition("@")
    pinned: dict[str, str] = {}
    commits: dict[str, str] = {}
    try:
        if revision:
            found = resolve_revision(location, repo_type="dataset", revision=revision, local_files_only=not is_online)
            commits[f"@{revision}"] = commit = found.resolved
            # A cache of its own: where the hub is away the library reads whatever commit it kept last.
            pinned = {"revision": commit, "cache_dir": str(Path(datasets.config.HF_DATASETS_CACHE) / commit)}
        dataset = datasets.load_dataset(location, config, **pinned)
    except Exception as error:  # the library raises a dozen unrelated types for "cannot be had"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0] if is_online else unreachable_hub()
        raise ValueError(f"cannot read the dataset {name!r} from the hub ({reason}); {instead}") from None
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline
        decoders.update(kept)
    if "train" not in dataset:
        raise ValueError(f"the dataset {name!r} has no train split (it has: {', '.join(dataset)})")
    return dataset, commits


def _without_withheld(labels: list[object] | None, *, is_class: bool) -> list[object] | None:
    """The hub writes -1 where a label is withheld: for a class always, for a target where the whole split has it."""
    if labels is None or all(label == -1 for label in labels):
        return None
    return [None if label == -1 else label for label in labels] if is_class else labels


def _hold_out(splits: dict[str, RawSplit]) -> dict[str, RawSplit]:
    train = splits["train"]
    order = np.random.default_rng(0).permutation(len(train.texts))
    cut = max(1, len(order) // HELD_OUT_FRACTION)
    held, kept = np.sort(order[:cut]), np.sort(order[cut:])

    def take(rows: Any) -> RawSplit:
        labels = None if train.labels is None else [train.labels[i] for i in rows]
        return replace(train, texts=[train.texts[i] for i in rows], labels=labels)

    return {"train": take(kept), "validation": take(held), **{k: v for k, v in splits.items() if k != "train"}}
