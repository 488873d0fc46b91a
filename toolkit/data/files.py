"""Any source of examples as a :class:`Table`, and what is taken of it, by one reader for all.

Sources are files (see READERS), folders that ``datasets`` saved, and data sets of the hub.
"""

import contextlib
import csv
import gzip
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.data.labels import FLOAT, Names, RawSplit, RawTask, hold_out, joined, labels_of, plain_text
from toolkit.data.tokens import is_list, read_conll, read_conllu, split_of_lists, word_column
from toolkit.memory import is_hub_reachable, unreachable_hub
from toolkit.naming import first_few, lookup, meant_by, reading, reason_of, refuse_first, unknown
from toolkit.snapshots.files import check_content

DEFAULT_TEXT_COLUMNS = ("text", "sentence")
"""Tried in order when --text-columns is not given."""

NAMED = 50
"""Columns that a refusal names at most."""
MEND = "mend it, or save it again as UTF-8 text"

LINE = "line"
"""Name of a table's index where that is the line of the file that each row begins on, the header's being 1."""


def _text_of(path: Path) -> str:
    """UTF-8 text, compressed or not, with or without the mark that some programs begin a file with.

    ValueError for UTF-16 without its mark, of which every second byte is zero, and for a run of zeros, which a copy or
    a download leaves that was cut short.
    """
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rb") as file:
        content: bytes = file.read()
    is_utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff") or 4 * content.count(b"\0") > len(content)
    faults = {
        "it is a zip file, as .xlsx is: save the table as CSV UTF-8": content.startswith(b"PK\3\4"),
        "it is UTF-16, or no text: save it as UTF-8": is_utf16,
        "it holds a run of zeros, as a copy or a download that was cut short: get it again": b"\0\0\0" in content,
    }
    refuse_first(faults)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        told = f"line {number} holds the byte {error.object[error.start]:#x}, which is not UTF-8 (Windows-1252?)"
        raise ValueError(f"{told}: save it as UTF-8 (Excel: CSV UTF-8)") from None


QUOTED = re.compile(r'(?:(?<=[\t\r\n])|^)"((?:[^"]|"")*)"(?=[\t\r\n]|$)')
"""A cell in quotation marks, as quoting writes it."""


def _read_tsv(text: str, quotes: str = "unsure") -> pd.DataFrame:
    """A mark is a character like any other, as in GLUE's files, unless ``quotes`` is ``strip``.

    ``unsure``: ValueError for a file whose marks are all such as quoting puts around cells, as pandas and Excel do, and
    around most cells, or some with a mark, a tab or a line break in them: as characters they would cut texts in pieces.
    """
    _refuse_labels(text)
    if quotes == "strip":
        return _read_rows(text, "\t", csv.QUOTE_MINIMAL)
    cells, is_doubted = QUOTED.findall(text) if quotes == "unsure" else [], False
    if cells:
        with contextlib.suppress(ValueError):  # of marks that are not as quoting writes them
            num_rows = len(_read_rows(text, "\t", csv.QUOTE_MINIMAL))
            is_doubted = 2 * len(cells) > num_rows or any(re.search('""|[\t\r\n]', cell) for cell in cells)
    doubt = (
        f"{len(cells)} cells stand in quotation marks, as quoting writes them: pass --tsv-quotes strip to take the "
        "marks off, --tsv-quotes keep where they belong to the texts, or save the file as .jsonl"
    )
    refuse_first({doubt: is_doubted})
    return _read_rows(text, "\t", csv.QUOTE_NONE)


TAGGED = re.compile(r"^\S.*[\t ](O|[BIESLU]-\S+)[\t\r ]*$", re.MULTILINE)
"""A line of a word and, last, its tag."""


LABELLED = re.compile(r"^__label__\S", re.MULTILINE)
"""How a line begins in which fastText and flair keep a label."""


def _refuse_labels(text: str) -> None:
    """ValueError where most lines are words with tags, which under another name are texts, or texts with their labels
    before them."""
    tags, num_lines = TAGGED.findall(text), len(re.findall(r"^\S", text, re.MULTILINE))
    has_tags = "O" in tags and len(set(tags)) > 1 and 2 * len(tags) > num_lines
    has_labels = 2 * len(LABELLED.findall(text)) > num_lines
    faults = {
        "most of its lines end in a tag (O, B-...): give words with tags a name that ends in .conll": has_tags,
        "most of its lines begin with a label (__label__...): save labels and texts as columns": has_labels,
    }
    refuse_first(faults)


def _read_csv(text: str) -> pd.DataFrame:
    """Parted by what a first line ``sep=;`` names (so Excel is told), else by commas or, where the header has none, by
    its ; (so Excel writes it in many countries) or tabs."""
    if told := re.match("sep=(.)(?=\r?\n)", text):
        return _read_rows(text[told.end() :], told[1], csv.QUOTE_MINIMAL)
    marks = (mark for mark in ",;\t" if mark in text.partition("\n")[0])
    return _read_rows(text, next(marks, ","), csv.QUOTE_MINIMAL)


def _read_rows(text: str, delimiter: str, quoting: Any) -> pd.DataFrame:
    """Cells as text, indexed by the line of the file that each row begins on; None where a row is too short.

    ValueError for a row with more fields than the header, a quoted field that does not end as one (a stray quotation
    mark, which would swallow the rows up to the next), a carriage return that cuts a row in two, and a column that the
    header names twice.
    """
    lines: list[int] = []
    rows: list[list[str | None]] = []
    header: list[str] = []
    first = 1
    csv.field_size_limit(2**31 - 1)  # not 128 KiB, which a document exceeds
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    try:
        for row in reader:
            if not row or (len(row) == 1 and row[0] and not row[0].strip()):  # an empty line; "" is an empty text
                pass
            elif not header:
                header = [name.strip("\ufeff") or f"Unnamed: {i}" for i, name in enumerate(row)]
            elif len(row) > len(header):
                raise ValueError(f"line {first}: rows have more fields than the header has columns ({len(header)})")
            else:
                lines.append(first)
                rows.append([*row, *[None] * (len(header) - len(row))])
            first = reader.line_num + 1
    except csv.Error:
        raise ValueError(
            f"line {first}: a quotation mark opens a field there that does not end as one up to line "
            f"{reader.line_num}: write a mark inside a quoted text twice, or save the file as .jsonl"
        ) from None
    if not header:
        raise ValueError("it is empty")
    short = next((line for line, row in zip(lines, rows, strict=True) if None in row), 0)
    if short and "\n" in text and re.search(r"\r(?!\n)", text):
        raise ValueError(f"line {short} ends at a carriage return, before its last column: take it out of the text")
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise ValueError(f"its header names the column {twice[0]!r} twice: rename or drop one of them")
    return pd.DataFrame(rows, columns=header, index=pd.Index(lines, name=LINE), dtype=object)


def _read_jsonl(text: str) -> pd.DataFrame:
    rows = []
    for number, line in enumerate(StringIO(text, newline=""), 1):
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


def _read_json(text: str) -> pd.DataFrame:
    """A list of objects, an object of columns (each a list or, as pandas writes it, by row) or of one row, or an object
    a line, as .jsonl has them."""
    content, end = json.JSONDecoder().raw_decode(text := text.strip())
    if end < len(text):
        return _read_jsonl(text)
    if isinstance(content, dict) and not any(isinstance(x, list | dict) for x in content.values()):
        content = [content]
    parts, kind = (content.values(), list | dict) if isinstance(content, dict) else (content, dict)
    is_table = isinstance(content, list | dict) and all(isinstance(part, kind) for part in parts)
    refuse_first({"it must be a list of objects with fields, or an object of columns of one length": not is_table})
    return pd.DataFrame(content, dtype=object)


def _read_lines(text: str) -> pd.DataFrame:
    """A text a line, which has no label; lines without any are passed over."""
    _refuse_labels(text)
    lines = {number: line.rstrip("\r\n") for number, line in enumerate(StringIO(text), 1) if line.strip()}
    return pd.DataFrame({"text": list(lines.values())}, index=pd.Index(lines, name=LINE), dtype=object)


def _read_parquet(path: Path) -> tuple[pd.DataFrame, Names]:
    """The names of its classes too, where ``datasets`` wrote them into the file."""
    import pyarrow.parquet as pq

    frame, schema = pd.read_parquet(path, partitioning=None), pq.read_schema(path)
    if b"huggingface" not in (schema.metadata or {}):
        return frame, {}
    import datasets

    return frame, _class_names(datasets.Features.from_arrow_schema(schema))


def _class_names(features: Mapping[str, Any]) -> Names:
    """Of columns of ``ClassLabel``, and of lists of them."""
    inner = {column: getattr(feature, "feature", feature) for column, feature in features.items()}
    return {column: tuple(feature.names) for column, feature in inner.items() if hasattr(feature, "names")}


def _make_floats(frame: pd.DataFrame, features: Mapping[str, Any]) -> None:
    """Numbers where texts are said to be floats: targets, then, no classes."""
    for column, feature in features.items():
        if column in frame and str(getattr(feature, "dtype", "")).startswith("float"):
            frame[column] = [float(x) if isinstance(x, str) and x.strip() else x for x in frame[column].tolist()]


SAVED = ("dataset_dict.json", "state.json")
"""What ``save_to_disk`` writes into the folder of a DatasetDict and of a Dataset."""


def _read_saved(folder: Path) -> tuple[pd.DataFrame, Names]:
    import datasets

    dataset = datasets.load_from_disk(str(folder))
    if isinstance(dataset, datasets.DatasetDict):
        raise ValueError(f"it holds the splits {', '.join(dataset)}: pass the folder of one, or --dataset {folder}")
    return dataset.to_pandas(), _class_names(dataset.features)


READERS: dict[str, Callable[..., pd.DataFrame]] = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    **dict.fromkeys((".conll", ".iob", ".iob2", ".bio"), read_conll),
    **dict.fromkeys((".conllu", ".conllup", ".cupt"), read_conllu),
    ".txt": _read_lines,
}
"""Kind of file of text, of which a .gz is read too, to what reads it."""
PARQUET = ".parquet"
KINDS = (*READERS, PARQUET)


def kind_of(path: Path) -> str:
    """The kind of a data file: the ending of its name, without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def check_file(path: Path) -> None:
    """ValueError where there is no file, or none of a kind that :func:`read_file` knows."""
    if any((path / name).is_file() for name in SAVED):
        return
    if path.is_dir():
        raise ValueError(f"{path} is a folder: pass a data file ({', '.join(KINDS)}), or one that save_to_disk wrote")
    if not path.is_file():
        hint = meant_by(path) or (
            "" if path.is_absolute() else ": a relative path starts from the folder that you are in"
        )
        raise ValueError(f"no file at {path}{hint}")
    lookup(dict.fromkeys(KINDS), kind_of(path), "kind of data file")
    check_content(path)


def read_file(
    path: Path,
    text_columns: tuple[str, ...],
    label_column: str | None,
    tsv_quotes: str = "unsure",
    cluster_column: str | None = None,
    features: Mapping[str, Any] | None = None,
) -> RawSplit:
    """Read one split; ValueError for a file that is missing or unreadable and for columns that it lacks.

    ``tsv_quotes``: ``strip`` or ``keep`` the quotation marks around cells of a .tsv, or ``unsure``; ``features``: what
    a file of text is said to hold, where its dataset's card says so.
    """
    check_file(path)
    with reading(path, remedy=MEND):
        if path.is_dir() or kind_of(path) == PARQUET:
            frame, names = _read_saved(path) if path.is_dir() else _read_parquet(path)
        else:
            options = {"quotes": tsv_quotes} if kind_of(path) == ".tsv" else {}
            frame, names = READERS[kind_of(path)](_text_of(path), **options), {}
        _make_floats(frame, features or {})
    # The names of its classes that the file itself has count before those of a card.
    names = {**_class_names(features or {}), **names}
    return split_of(frame, names, text_columns, label_column, str(path), cluster_column)


def split_of(
    frame: pd.DataFrame,
    names: Names,
    text_columns: tuple[str, ...],
    label_column: str | None,
    source: str,
    cluster_column: str | None = None,
) -> RawSplit:
    """Texts and labels of a table, a row an example; of a token task its cells are lists. A table without the label
    column, or None for it, is a split without labels, and one without the cluster column a split without clusters.

    ValueError for a column that is missing, or named twice: a model that reads its label has nothing to learn; for a
    row that is the header again, and for a text that holds whole rows.
    """
    columns = tuple(str(column) for column in frame.columns)
    ids = frame[cluster_column].tolist() if cluster_column in columns else None
    clusters: Any = None if ids is None else [plain_text(cell, source, "cluster") for cell in ids]
    without_id = [i for i, cluster in enumerate(clusters or ()) if cluster is None or not cluster.strip()]
    if without_id:
        row = _place(frame, without_id[0])
        raise ValueError(f"{source}, {row} has no {cluster_column!r}: give each example the id of its cluster")
    has_texts = not text_columns and _are_texts_labelled(frame, label_column)
    if not has_texts and word_column(frame, text_columns) is not None:  # a token task: lists of words, and of tags
        return replace(split_of_lists(frame, names, text_columns, label_column, source), clusters=clusters)
    text_columns = text_columns or tuple(name for name in DEFAULT_TEXT_COLUMNS if name in columns)[:1]
    if not text_columns:
        also = " and --label-column" if label_column is not None and label_column not in columns else ""
        raise ValueError(
            f"{source} has no column text or sentence: pass --text-columns{also} (it has: {first_few(columns, NAMED)})"
        )
    refuse_first({f"{source}: {unknown(name, 'column', columns)}": name not in columns for name in text_columns})
    twice = f"--text-columns names {text_columns[0]!r} twice: a pair needs two columns, a single text one"
    both = f"{label_column!r} is the label column and a text column: change --label-column or --text-columns"
    refuse_first({twice: len(set(text_columns)) < len(text_columns), both: label_column in text_columns})
    _check_header_once(frame, text_columns, label_column, source)
    _check_no_rows_inside(frame, text_columns, label_column, source)
    texts = [
        tuple(plain_text(cell, source) for cell in row)
        for row in zip(*(frame[name].tolist() for name in text_columns), strict=True)
    ]
    class_names = names.get(str(label_column))
    labels = labels_of(frame[label_column].tolist(), source, class_names) if label_column in columns else None
    taken_from = f"texts: {', '.join(text_columns)}; labels: {label_column}"
    return RawSplit(texts, labels, columns, taken_from, clusters=clusters, names=class_names)  # type: ignore[arg-type]


def _are_texts_labelled(frame: pd.DataFrame, label_column: str | None) -> bool:
    """Whether there is a column of texts and a label for each row: lists of words beside them are the texts again."""
    has_texts = any(name in frame.columns for name in DEFAULT_TEXT_COLUMNS)
    return has_texts and label_column in frame.columns and len(frame) > 0 and not is_list(frame[label_column].iloc[0])


def _check_header_once(frame: pd.DataFrame, names: tuple[str, ...], label_column: str | None, source: str) -> None:
    """ValueError for a row that holds the columns' names: files that were joined end to end."""
    columns = [*names, label_column] if label_column in frame.columns else [*frame.columns]
    header = [_plain(str(column)) for column in columns]
    rows = zip(*(frame[column].tolist() for column in columns), strict=True)
    again = [i for i, row in enumerate(rows) if [_plain(str(cell)) for cell in row] == header]
    if again and len(columns) > 1:  # one column may well hold its own name
        raise ValueError(
            f"{source}, {_place(frame, again[0])} is the header again ({len(again)} such rows): drop it (files joined "
            "end to end?)"
        )


def _check_no_rows_inside(frame: pd.DataFrame, names: tuple[str, ...], label_column: str | None, source: str) -> None:
    """ValueError for a text of a csv of which every line reads as a row, its label among those of the other rows.

    So it comes out of a csv with two stray quotation marks: what lies between them is one quoted field. Line breaks
    in a text are no reason: lines of prose have other numbers of commas, and no labels where these belong. A table
    from elsewhere, made of such a csv or not, is warned of only: there is no mark left to take out. So are lines whose
    labels no other row has and that share them: a whole class between the marks, or a text that holds a table.
    """
    columns, cells = list(frame.columns), zip(*(frame[name].tolist() for name in names), strict=True)
    broken = [i for i, row in enumerate(cells) if any(isinstance(x, str) and "\n" in x for x in row)]
    telling = [label_column] if label_column in columns else [column for column in columns if column not in names]
    fits = [(columns.index(column), _fit(frame[column].tolist())) for column in telling if broken]
    for i in broken:
        lines = ",".join(str(cell) for cell in frame.iloc[i].tolist()).split("\n")
        rows = [line.split(",") for line in lines if line.strip()]
        if len(columns) < 2 or len(rows) < 2 or any(len(row) != len(columns) for row in rows):
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


GLUE_REPOSITORY = "nyu-mll/glue"


GLUE: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "sst2": (("sentence",), {}),
    "cola": (("sentence",), {"score": "matthews"}),
    "mrpc": (("sentence1", "sentence2"), {}),
    "stsb": (("sentence1", "sentence2"), {"score": "pearson"}),
    "qqp": (("question1", "question2"), {}),
    "mnli": (("premise", "hypothesis"), {"out_of_distribution": ("validation_mismatched", "test_mismatched")}),
    "qnli": (("question", "sentence"), {}),
    "rte": (("sentence1", "sentence2"), {}),
}
"""GLUE tasks (Wang et al. 2018) to their text columns, and to what is known of a :class:`RawTask` that the hub does not
say: it has the label names and splits. The headline score is accuracy unless another is named.

The mismatched splits of MultiNLI are of other genres than its training data (Williams et al. 2018)."""

HELD_OUT_FRACTION = 10
"""A dataset without a validation split holds out every tenth training example (drawn with a fixed seed)."""


VALIDATION = ("valid", "val", "dev")
"""What else the validation split is called; the first of them that is there is taken, where none begins so."""


def read_glue(name: str) -> RawTask:
    """Read one GLUE task; MNLI has two validation and two test splits, and GLUE's tests have no labels."""
    text_columns, facts = GLUE[name]
    return replace(read_dataset(GLUE_REPOSITORY, name, text_columns, "label"), **facts)


def read_dataset(
    name: str,
    config: str | None,
    text_columns: tuple[str, ...],
    label_column: str | None,
    tsv_quotes: str = "unsure",
    cluster_column: str | None = None,
) -> RawTask:
    """Read a dataset of the hub, ``NAME`` or ``NAME@REVISION``, a folder of files, or one that ``save_to_disk`` wrote.

    ValueError when it cannot be read, which says what to pass instead.
    """
    dataset, commits, features = _load(name, config)
    rank = {"train": 0, "validation": 1}
    others = () if any(own.startswith("validation") for own in dataset) else VALIDATION
    also = next((own for own in others if own in dataset), None)
    names = {"validation" if own == also else own: own for own in dataset if own != "unsupervised"}

    def split_called(own: str) -> RawSplit:
        if isinstance(held := dataset[own], list):
            flags = (text_columns, label_column, tsv_quotes, cluster_column, features)
            return joined([read_file(path, *flags) for path in held])
        columns = (text_columns, label_column, f"{name} ({own})", cluster_column)
        return split_of(held.to_pandas(), _class_names(held.features), *columns)

    splits = {
        split_name: split_called(own)
        for split_name, own in sorted(names.items(), key=lambda pair: rank.get(pair[0].split("_")[0], 2))
    }
    if not any(split_name.startswith("validation") for split_name in splits):
        train = splits["train"]
        kept, held = hold_out(train, max(1, len(train) // HELD_OUT_FRACTION), 0)
        splits = {"train": kept, "validation": held} | {k: own for k, own in splits.items() if k != "train"}
    return RawTask(splits, hashes={name: split.sha256() for name, split in splits.items()}, commits=commits)


def _load(name: str, config: str | None) -> tuple[Any, dict[str, str], Mapping[str, Any] | None]:
    """The dataset, or the files of its splits; the commit of the revision that the name asks for, ``@REVISION`` to it;
    and what the card says that the files hold."""
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
    features: Mapping[str, Any] | None = None
    try:
        if revision:
            found = resolve_revision(location, repo_type="dataset", revision=revision, local_files_only=not is_online)
            commits[f"@{revision}"] = commit = found.resolved
            # A cache of its own: where the hub is away the library reads whatever commit it kept last.
            pinned = {"revision": commit, "cache_dir": str(Path(datasets.config.HF_DATASETS_CACHE) / commit)}
        # By its list of files: a saved folder holds caches beside them, of which load_dataset would take the rows too.
        if (Path(name) / SAVED[0]).is_file():
            dataset = datasets.load_from_disk(name)
        else:
            dataset, features = _files_of(location, config, pinned, is_online=is_online)
            dataset = dataset or datasets.load_dataset(location, config, **pinned)
    except Exception as error:  # the library raises a dozen unrelated types for "cannot be had"
        is_told = is_online or Path(name).exists()
        reason = reason_of(error) if is_told else unreachable_hub()
        raise ValueError(f"cannot read the dataset {name!r} ({reason}); {instead}") from None
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline
        decoders.update(kept)
    if "train" not in dataset:
        raise ValueError(f"the dataset {name!r} has no train split (it has: {', '.join(dataset)})")
    return dataset, commits, features


Files = tuple[dict[str, list[Path]], Mapping[str, Any] | None]
"""Split to its files, and what the card says that they hold; empty where they are not read here."""


def _files_of(place: str, config: str | None, pinned: Mapping[str, str], *, is_online: bool) -> Files:
    """The files of a folder or of a hub id, as ``datasets`` sorts them: these are read as --train-file is.

    The library's readers take null for missing, 007 for 7 and quotation marks off a .tsv, and know no ; between cells;
    of several .parquet they take the names of the first one's classes for the numbers of all.
    """
    import datasets
    from huggingface_hub import snapshot_download

    if Path(place).is_dir() or is_online:
        return _known_files(datasets.load_dataset_builder(place, config, **pinned), place)
    with contextlib.suppress(Exception):  # nothing was fetched, or what the library keeps in a cache of its own
        kept = Path(
            snapshot_download(place, repo_type="dataset", revision=pinned.get("revision"), local_files_only=True)
        )
        if not any((kept.parents[1] / "blobs").glob("*.incomplete")):
            return _known_files(datasets.load_dataset_builder(str(kept), config), place)
    return {}, None


EVERY_CONFIG = ("name", "version", "data_dir", "data_files", "description", "features")
BY_THE_NAME = {"sep": "\t", "comment_prefix": "#"}
"""How a file is to be read, as ``datasets`` takes from the end of its name: our readers know."""


def _known_files(builder: Any, place: str) -> Files:
    """Empty where a file is of none of our kinds, or the card says how it is to be read."""
    from huggingface_hub import hf_hub_download

    settings, usual = builder.config, type(builder.config)()
    changed = {x.name: getattr(settings, x.name) for x in fields(settings) if x.name not in EVERY_CONFIG}
    is_plain = all(value in (getattr(usual, name), BY_THE_NAME.get(name)) for name, value in changed.items())
    listed, start = settings.data_files or {}, f"hf://datasets/{place}@"

    def at_hand(path: str) -> Path:
        commit, _, name = path.removeprefix(start).partition("/")
        is_there = not path.startswith(start)
        return Path(path if is_there else hf_hub_download(place, name, repo_type="dataset", revision=commit))

    every = [path.removeprefix(start) for paths in listed.values() for path in paths]
    if not is_plain or any("://" in path or kind_of(Path(path)) not in KINDS for path in every):
        return {}, None
    # Train last: without it a download that was cut short is no dataset.
    in_order = sorted(listed, key=lambda split: split == "train")
    return {str(split): [at_hand(path) for path in listed[split]] for split in in_order}, builder.info.features
