"""Data mean what their writers meant: each form of the same rows is one task, and what is in doubt is refused."""

import csv
import gzip
import itertools
import json
import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hub import Hub, files_of
from tests.refusals import check_refused, leave, refused
from toolkit.cli import finetune_main
from toolkit.config import RunConfig
from toolkit.data.files import read_file
from toolkit.data.splits import Task
from toolkit.data.tasks import load_task
from toolkit.reporting.run_screen import columns_line, example_lines
from toolkit.training.evaluation import compute_scores

WORDS = [["John", "ran"], ["she", "saw", "Mary"], ["Mary", "ran"], ["they", "ran"]]
TAGS = [[1, 0], [0, 0, 1], [1, 0], [0, 0]]
TEXTS = [f"text number {i}" for i in range(24)]
THREE = ["neg", "neutral", "pos"]
CLASSES = datasets.ClassLabel(names=THREE)
NER = datasets.List(datasets.ClassLabel(names=["O", "B-PER"]))


def dataset(rows: dict[str, list[Any]], **features: Any) -> datasets.Dataset:
    """What a parquet file of the hub holds: a column without a feature here has the one that its values have."""
    made = datasets.Dataset.from_dict(rows)
    return made.cast(datasets.Features({**made.features, **features})) if features else made


SHAPES: dict[str, tuple[datasets.Dataset, dict[str, Any], Any]] = {
    "text": (dataset({"text": TEXTS, "label": THREE * 8}), {}, (THREE, [0, 1, 2])),
    "pair": (  # not in the order of the file
        dataset({"a": TEXTS, "b": TEXTS[::-1], "label": THREE * 8}),
        {"text_columns": ("b", "a")},
        (THREE, [0, 1, 2]),
    ),
    "regression": (dataset({"text": TEXTS, "label": [i / 4 for i in range(24)]}), {}, ([], [0.0, 0.25, 0.5])),
    "tags as names": (
        dataset({"tokens": WORDS, "ner_tags": [[["O", "B-PER"][k] for k in row] for row in TAGS]}),
        {},
        (["O", "B-PER"], TAGS[:3]),
    ),
    "tags as integers": (dataset({"tokens": WORDS, "ner_tags": TAGS}), {}, (["0", "1"], TAGS[:3])),
    "tags as ClassLabel": (
        dataset({"tokens": WORDS, "ner_tags": TAGS}, ner_tags=NER),
        {},
        (["O", "B-PER"], TAGS[:3]),
    ),
    "ClassLabel": (dataset({"text": TEXTS, "label": [2, 0, 1] * 8}, label=CLASSES), {}, (THREE, [2, 0, 1])),
    "ignore marks": (
        dataset({"tokens": WORDS, "ner_tags": [[-100, 0], *TAGS[1:]]}, ner_tags=NER),
        {},
        (["O", "B-PER"], [[-100, 0], *TAGS[1:3]]),
    ),
    "holes": (dataset({"text": TEXTS, "label": [*THREE * 7, "neg", "pos", None]}), {}, "row 24: the label is missing"),
    "booleans": (dataset({"text": TEXTS, "label": [True, False] * 12}), {}, (["False", "True"], [1, 0, 1])),
    "many classes": (
        dataset({"text": TEXTS * 4, "label": [f"c{i // 4:02}" for i in range(96)]}),
        {},
        ([f"c{i:02}" for i in range(24)], [0, 0, 0]),
    ),
    "several labels": (dataset({"text": TEXTS, "label": [["a"], ["a", "b"]] * 12}), {}, "several labels of a text"),
    "two spellings": (
        dataset({"text": TEXTS, "label": [0, 1, 2] * 8}, label=datasets.ClassLabel(names=["neg", "pos", "Pos"])),
        {},
        r"the labels '(pos|Pos)' and '(pos|Pos)', which are one but for .* \(16 and 16 times\)",
    ),
    "a header inside": (
        dataset({"text": [*TEXTS[:23], "text"], "label": [*THREE * 7, "neg", "pos", "label"]}),
        {},
        r"row 24 is the header again \(1 such rows\)",
    ),
    "binary columns": (
        dataset({"text": [x.replace("n", "é").encode() for x in TEXTS], "label": [x.encode() for x in THREE * 8]}),
        {},
        (THREE, [0, 1, 2]),
    ),
}


def by_files(folder: Path, made: datasets.Dataset) -> dict[str, Any]:
    for name in ("train", "validation"):
        made.to_parquet(folder / f"{name}.parquet")
    return {"train_file": str(folder / "train.parquet"), "validation_file": str(folder / "validation.parquet")}


def by_folder(folder: Path, made: datasets.Dataset) -> dict[str, Any]:
    by_files(folder, made)
    return {"dataset": str(folder)}


def by_saved_folder(folder: Path, made: datasets.Dataset) -> dict[str, Any]:
    datasets.DatasetDict(train=made, validation=made).save_to_disk(folder / "saved")
    return {"dataset": str(folder / "saved")}


def by_saved_splits(folder: Path, made: datasets.Dataset) -> dict[str, Any]:
    made.save_to_disk(folder / "one")
    return {"train_file": str(folder / "one"), "validation_file": str(folder / "one")}


DOORS = (by_files, by_folder, by_saved_folder, by_saved_splits)


@pytest.mark.filterwarnings("ignore:.* stand in train", "ignore:.*mark no spans")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_rows_are_one_task_by_every_door(
    shape: str, door: Callable[[Path, datasets.Dataset], dict[str, Any]], tmp_path: Path
) -> None:
    made, flags, expected = SHAPES[shape]
    config = RunConfig(**door(tmp_path, made), **flags)
    if isinstance(expected, str):
        check_refused(expected, load_task, config)
        return
    task = load_task(config)
    names, labels = expected
    train = task.splits["train"]
    assert list(task.label_names) == names
    assert [label.tolist() for label in train.labels[:3]] == labels  # type: ignore[index]
    column = flags.get("text_columns", ("tokens" if "tags" in shape or shape == "ignore marks" else "text",))
    cells = [made[name][0] for name in column]
    cells = [" ".join(x) if isinstance(x, list) else x.decode() if isinstance(x, bytes) else x for x in cells]
    assert train.texts[0] == tuple(cells)
    assert train.words is None or [list(words) for words in train.words] == WORDS
    assert task.score == {"regression": "pearson"}.get(shape, "f1" if "B-PER" in names else "accuracy")


@pytest.mark.parametrize("called", ["validation", "val", "dev"])
def test_a_saved_folder_is_its_own_list_of_files_and_its_validation_split_is_one(called: str, tmp_path: Path) -> None:
    """A ``map`` leaves its cache, of the same columns, beside the data; another library's cache has other columns."""
    made, flags, _ = SHAPES["text"]
    folder = tmp_path / "saved"
    datasets.DatasetDict({"train": made, called: made.select(range(9))}).save_to_disk(folder)
    datasets.load_from_disk(folder)["train"].map(lambda row: {"text": row["text"].upper()})
    assert len(list((folder / "train").glob("*.arrow"))) == 2
    task = load_task(RunConfig(dataset=str(folder), **flags))
    assert ({name: len(split) for name, split in task.splits.items()}, task.splits["train"].texts) == (
        {"train": 24, "validation": 9},
        tuple((text,) for text in TEXTS),
    )
    (folder / "train" / "state.json").write_text("{")
    check_refused("cannot read the dataset .*saved' \\((?!the hub)", load_task, RunConfig(dataset=str(folder), **flags))


LABELLED = [{"text": text, "label": label} for text, label in zip(TEXTS, THREE * 8, strict=True)]


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def loaded(path: str, **flags: Any) -> Task:
    return load_task(RunConfig(train_file=path, validation_file=path, **flags))


def tsv(rows: list[tuple[str, str]], quoting: Any = csv.QUOTE_NONE) -> str:
    """As pandas writes it."""
    return str(pd.DataFrame(rows, columns=["text", "label"]).to_csv(sep="\t", index=False, quoting=quoting))


CONLLU = (
    "# text = John sleeps.\n1-2\tJohns\t_\t_\t_\t_\t_\t_\t_\t_\n1\tJohn\tJohn\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n"
    "2\tsleeps\tsleep\tVERB\tVBZ\t_\t0\troot\t_\tSpaceAfter=No\n2.1\tgone\t_\tVERB\t_\t_\t_\t_\t_\t_\n"
    "3\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_\n\n"
)
PLUS = "# global.columns = ID UPOS FORM NER:TAG\n1\tPROPN\tJohn\tB-PER\n2\tVERB\tsleeps\tO\n\n"
NUMBERED = "1\tJohn\tPROPN\t_\n2\tsleeps\tVERB\tSpaceAfter=No\n3\t.\tPUNCT\t_\n\n" * 4
TAG_FIRST = "O\tshow\nB-Rating\tfive\nO\tme\n\n" * 4
COMMENTED = "# id 5239 domain=train\nJohn _ _ B-PER\n#begins _ _ O\n\n#begin document x\nran _ _ O\n\n"


@pytest.mark.filterwarnings("ignore:.* stand in train")
@pytest.mark.parametrize(
    ("name", "content", "flags", "words", "names"),
    [
        ("a.conllu", CONLLU, {}, ("John", "sleeps", "."), ("PROPN", "PUNCT", "VERB")),
        ("a.conllu", CONLLU, {"label_column": "deprel"}, ("John", "sleeps", "."), ("nsubj", "punct", "root")),
        (
            "a.conll",
            NUMBERED,
            {"text_columns": ("2",), "label_column": "3"},
            ("John", "sleeps", "."),
            ("PROPN", "PUNCT", "VERB"),
        ),
        (
            "a.conll",
            TAG_FIRST,
            {"text_columns": ("2",), "label_column": "1"},
            ("show", "five", "me"),
            ("O", "B-Rating"),
        ),
        ("a.conll", COMMENTED, {}, ("John", "#begins"), ("O", "B-PER")),
        ("a.iob2", "John\tB-PER\n#\tO\n\n#\tO\n", {}, ("John", "#"), ("O", "B-PER")),
        (
            "a.bio",
            "#\thttp://x.y\t[2010]\t\n1\tJohn\tB-PER\tO\n2\t#\tO\tO\n\n",
            {"text_columns": ("2",), "label_column": "3"},
            ("John", "#"),
            ("O", "B-PER"),
        ),
        ("a.conllup", PLUS, {"label_column": "ner:tag"}, ("John", "sleeps"), ("O", "B-PER")),
        ("a.cupt", PLUS, {}, ("John", "sleeps"), ("PROPN", "VERB")),
        ("a.conll", "10\u00a0000 B-N\nmen O\n", {}, ("10\u00a0000", "men"), ("O", "B-N")),
        ("a.conll", "a B-X\nb -100\nc O\n", {}, ("a", "b", "c"), ("O", "B-X")),
        ("a.conll", "# newdoc\n# newpar\na B-X\n# O\n", {}, ("a", "#"), ("O", "B-X")),
        ("a.conll", "# B-X\nnewdoc O\n", {}, ("#", "newdoc"), ("O", "B-X")),
        ("a.conll", "John O NN\nran O VB\n\n", {}, ("John", "ran"), ("NN", "VB")),
        (
            "a.jsonl",
            json.dumps({"text": "a b", "tokens": ["a", "b"], "label": ["O", "B-X"]}),
            {},
            ("a", "b"),
            ("O", "B-X"),
        ),
    ],
)
def test_words_and_tags_are_taken_from_the_columns_that_hold_them(
    name: str, content: str, flags: dict[str, Any], words: tuple[str, ...], names: tuple[str, ...], tmp_path: Path
) -> None:
    task = loaded(write(tmp_path / name, content), **flags)
    assert ((task.splits["train"].words or ((),))[0], task.label_names) == (words, names)


@pytest.mark.filterwarnings("ignore:.* stand in train")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps(LABELLED)),
        ("a.json", json.dumps({"text": TEXTS, "label": THREE * 8})),
        ("a.json", pd.DataFrame(LABELLED).to_json()),
        ("a.json", "\n".join(map(json.dumps, LABELLED))),
        ("a.csv", pd.DataFrame(LABELLED).to_csv(index=False, sep=";")),
        ("a.csv", "sep=;\r\n" + pd.DataFrame(LABELLED).to_csv(index=False, sep=";")),
        ("a.csv", "sep=|\n" + pd.DataFrame(LABELLED).to_csv(index=False, sep="|")),
        ("a.jsonl", "\n".join(json.dumps(row | {"tokens": row["text"].split()}) for row in LABELLED)),
        ("a.csv.gz", gzip.compress(pd.DataFrame(LABELLED).to_csv(sep="\t").encode("utf-8-sig"))),
        ("a.csv", pd.DataFrame(LABELLED).to_csv(index=False).encode("utf-8-sig") + b"\n"),
        ("a.csv", b"\xef\xbb\xbf" + pd.DataFrame(LABELLED).to_csv(index=False).encode("utf-8-sig")),
        ("a.tsv", pd.DataFrame(LABELLED).to_csv(index=False, sep="\t").encode("utf-8-sig")),
        ("a.jsonl", "\ufeff" + "\n".join(map(json.dumps, LABELLED))),
        ("a.json", "\n" + "\r\n\r\n".join(map(json.dumps, LABELLED)) + "\r\n"),
        ("a.csv.gz", gzip.compress(pd.DataFrame(LABELLED).to_csv(index=False).encode())),
        ("a.jsonl.gz", gzip.compress("\n".join(map(json.dumps, LABELLED)).encode())),
        ("a.TSV.GZ", gzip.compress(pd.DataFrame(LABELLED).to_csv(index=False, sep="\t").encode())),
    ],
)
def test_forms_of_files_that_people_have(name: str, content: str | bytes, tmp_path: Path) -> None:
    task = loaded(write(tmp_path / name, content))
    assert task.splits["train"].texts == tuple((text,) for text in TEXTS)
    assert [task.label_names[k] for k in task.splits["train"].labels] == THREE * 8  # type: ignore[union-attr]
    assert task.name == "a"


def test_one_row_is_a_table_too_and_a_line_is_told_where_a_first_line_names_the_mark(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", json.dumps({"text": "a", "label": "x"}, indent=1))
    assert read_file(Path(one), (), "label").texts == [("a",)]
    check_refused("line 3: a quotation mark", loaded, write(tmp_path / "a.csv", 'sep=;\ntext;label\n"a;b'))


def labelled(*labels: Any, times: int = 1) -> pd.DataFrame:
    many = list(labels) * times
    return pd.DataFrame({"text": [f"text {i}" for i in range(len(many))], "label": pd.Series(many, dtype=object)})


IN_DOUBT = [
    ("a.jsonl", labelled(0, 1, -100, times=10), "-100 as a label .*: 10 of 30", "classes"),
    ("a.csv", labelled(0, 1, 2, -1, times=10), "-1 as a label", "classes"),
    ("a.csv", labelled("entailment", "neutral", "-", times=10), "'-' as a label", "classes"),
    ("a.csv", labelled("['joy']", "['fear', 'joy']", times=10), "label .* is a list written as text", "classes"),
    ("a.jsonl", labelled("[1, 0]", "[0,\n 1]", times=10), "label .* is a list written as text", "classes"),
    ("a.csv", labelled("O", "B-geo", "O", times=10), "are tags of words .B-geo, O., and each", "classes"),
    ("a.jsonl", labelled("I-PER", "O", "S-PER", times=10), "are tags of words .I-PER, O, S-PER., and each", "classes"),
    ("a.csv", labelled("UNT", "TIN", "NULL", times=10), "'NULL' as a label often says .*: 10 of 30", "classes"),
    ("a.jsonl", labelled("joy", "fear", "nan", times=10), "'nan' as a label often", "classes"),
    ("a.jsonl", labelled("0", "1", "0,1", times=10), "label '0,1' is made of others", "classes"),
    ("a.csv", labelled("joy", "fear", "fear | joy", times=10), "label 'fear | joy' is made of others", "classes"),
    (
        "a.csv",
        labelled(*(f"{i}%" for i in range(0, 100, 10)), times=4),
        "labels such as '0%' read as numbers",
        "classes",
    ),
    ("a.csv", labelled("0,5", "1,5", "2,5", times=10), "labels such as '0,5' read as numbers", "classes"),
    ("a.csv", labelled("a,b", "b,c", "a,c", times=10), "label 'a,b'.* is made of others", "classes"),
    ("a.csv", labelled("1,5", "2,5", "3", "4", times=10), "labels such as '1,5' read as numbers", "classes"),
    ("a.csv", labelled("\u22121.5", "0.5", times=10), "read as numbers", "classes"),
    *(
        (name, labelled(*pair, "x", times=10), f"labels '{pair[0]}' and '{pair[1]}', which are one but for", "classes")
        for name in ("a.csv", "a.jsonl")
        for pair in (
            (":D", ":d"),
            ("pos", "pos "),
            ("a b", "a  b"),
            ("café", "cafe\u0301"),
            ("pos", "p\u043es"),
        )
    ),
    *(
        ("a.jsonl", labelled(*pair, "x", times=10), r"which are one but for .* \(20 and 20 times\)", "classes")
        for pair in (
            ("a-b", "a\u2011b"),
            ("pos", "\uff50os"),
            ("stra\u00dfe", "STRASSE"),
            ("pos ", "Pos"),
            ("pos", "\u200bpos"),
        )
    ),
    ("a.csv", labelled(*range(30)), "there are 30 classes in 30", "classes"),
    ("a.csv", labelled(*(f"c{i // 2}" for i in range(60))), "there are 30 classes in 60", "classes"),
]


@pytest.mark.filterwarnings("ignore:.* stand in train")
@pytest.mark.parametrize(("name", "frame", "said", "yes"), IN_DOUBT)
def test_a_label_in_doubt_is_refused_in_a_line_that_names_the_flag(
    name: str, frame: pd.DataFrame, said: str, yes: str, tmp_path: Path
) -> None:
    text = frame.to_csv(index=False) if name == "a.csv" else frame.to_json(orient="records", lines=True)
    path = write(tmp_path / name, text)
    check_refused(rf"{said}.* --label-kind {yes}$", loaded, path)
    assert set(loaded(path, label_kind=yes).label_names) == {str(label) for label in frame["label"]}


@pytest.mark.filterwarnings("ignore:.* stand in train")
@pytest.mark.parametrize(
    ("name", "content", "said", "flags"),
    [
        ("a.conll", NUMBERED, "column 1 holds the numbers of words .* --text-columns 1 if", {"text_columns": ("1",)}),
        ("a.conll", TAG_FIRST, "column 1 holds tags, not words: pass --text-columns 1 if", {"text_columns": ("1",)}),
        ("a.conll", "a X\nb _\nc Y\n", "'_' as a tag often says .* --label-kind classes$", {"label_kind": "classes"}),
        ("a.conll", "John B-PER +\nran O -\n\n", "column 2, .* --label-column 2, or 3", {"label_column": "3"}),
        (
            "a.conll",
            "".join(f"w{i} t{i}\n" for i in range(60)),
            "there are 60 tags on 60 words.* --label-kind classes$",
            {"label_kind": "classes"},
        ),
        (
            "a.jsonl",
            json.dumps({"tokens": [101, 2003, 102], "ner_tags": ["O", "B-X", "O"]}),
            "column tokens holds numbers: pass --text-columns tokens if",
            {"text_columns": ("tokens",)},
        ),
        ("a.tsv", 'text\tlabel\n"He said ""no"""\t0\nplain\t1\n', "--tsv-quotes strip", {"tsv_quotes": "keep"}),
        (
            "a.tsv",
            tsv([("two\nlines", "0"), ("plain", "1")], csv.QUOTE_MINIMAL),
            "1 cells stand in quotation marks.* --tsv-quotes strip",
            {"tsv_quotes": "strip"},
        ),
        ("a.tsv", tsv([("a", "0"), ("b", "1")], csv.QUOTE_ALL), "--tsv-quotes strip", {"tsv_quotes": "strip"}),
    ],
)
def test_words_tags_and_quotes_in_doubt_are_refused_likewise(
    name: str, content: str, said: str, flags: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / name, content)
    check_refused(said, loaded, path, **{"label_column": "4"} if content == NUMBERED else {})
    if content != NUMBERED:  # whose last column is no tag either
        assert loaded(path, **flags)


WITHHELD = "\n".join(f"{i + 1}\t_\t_\t{'NV'[i % 2]}" + "\t_" * 6 for i in range(20)) + "\n\n"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n"
TAGGED = "John NNP B-PER\nran VBD O\n\nshe PRP O\n"


@pytest.mark.filterwarnings("ignore:.* stand in train")
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        *((f"a{kind}", POINTER, "is a Git LFS pointer.*git lfs pull") for kind in (".conll", ".txt", ".parquet")),
        *((f"a{kind}", TAGGED.encode("utf-16-le"), "it is UTF-16.* save it as UTF-8") for kind in (".conll", ".txt")),
        *((f"a{kind}", TAGGED, "end in a tag .* name that ends in .conll") for kind in (".tsv", ".txt", ".txt.gz")),
        ("a.tsv", 'a\tO\n"\tO\n"\tB-X\r\n\n', "end in a tag"),
        ("a.txt", "__label__A x y\n__label__B z\n__label__A __label__B w\n", "begin with a label .__label__"),
        ("a.tsv", "__label__0.5\tx y\n__label__0.25\tz\n", "begin with a label .__label__"),
        ("a.conll", "WORD\tTAG\nin\tO\nNew York\tLOC\n\nto\tO\nRome\tLOC\n", "names of columns .WORD, TAG.: take"),
        ("a.conll", "Wort NER\nin O\nRom B-LOC\n", "first line reads as the names of columns .Wort, NER."),
        ("a.conllu", WITHHELD, "form holds _ in place of 20 of 20 words .* --text-columns form"),
        ("a.jsonl", json.dumps({"tokens": ["***"] * 11 + list("abcdefghi"), "tags": ["X"] * 20}), r"holds \*\*\* in"),
        ("a.jsonl", json.dumps({"text": "a b", "label": [[0, 1, "X"]]}), "label is a list .spans of a text"),
        ("a.json", json.dumps([{"text": "a b", "label": {"X": {"a": [[0, 1]]}}}]), "label is a dict .spans of"),
        ("a.parquet", [{"text": "a b", "label": [{"start": 0, "end": 1}]}], "label is a ndarray .spans of a text"),
    ],
)
def test_a_file_of_another_kind_is_refused_as_what_it_is(
    name: str, content: str | bytes | list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if isinstance(content, list):
        datasets.Dataset.from_list(content).to_parquet(path)
    elif name.endswith(".gz"):
        write(path, gzip.compress(str(content).encode()))
    else:
        write(path, content)
    check_refused(said, loaded, str(path), **{"objective": "mlm"} if ".txt" in name else {})


def test_what_is_no_doubt_is_read(tmp_path: Path) -> None:
    """Lone marks are characters, -1 and 1 the only two classes there are, and a whole split of -1 is withheld."""
    rows = [('"Great," he said', "0"), ('say "no"', "1"), ('"quoted once"', "0"), ("plain", "1"), ("plain too", "0")]
    path = write(tmp_path / "a.tsv", tsv(rows))
    held = write(tmp_path / "b.tsv", "text\tlabel\nx\t-1\ny\t-1\n")
    task = load_task(RunConfig(train_file=path, validation_file=path, test_file=(f"t={held}",)))
    assert [text for (text,) in task.splits["train"].texts] == [text for text, _ in rows]
    assert task.splits["t"].labels is None
    signs = write(tmp_path / "c.csv", labelled(-1, 1, times=10).to_csv(index=False))
    assert loaded(signs).label_names == ("-1", "1")


COUNTED = ["0 EU N B-X\n1 is N O\n\n", "4 EU N B-X\n5 is N O\n\n", "1-1 EU N B-X\n1-2 is N O\n\n"]


@pytest.mark.parametrize("sentence", COUNTED)
def test_words_counted_from_anywhere_are_no_words(sentence: str, tmp_path: Path) -> None:
    check_refused("column 1 holds the numbers of words", loaded, write(tmp_path / "a.conll", sentence * 3))


def test_tags_that_pandas_made_floats_of_and_marks_among_tags(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame({"tokens": WORDS, "ner_tags": [[-100.0, 0.0], *map(list, TAGS[1:])]}).to_parquet(path)
    with pytest.warns(UserWarning, match="mark no spans"):
        assert loaded(str(path)).label_names == ("0", "1")
    check_refused(
        "'NULL' as a tag often says that a word has none", loaded, write(tmp_path / "a.conll", "a X\nb NULL\nc Y\n\n")
    )


def test_names_that_are_numerals_are_not_taken_for_numbers(tmp_path: Path) -> None:
    """Of the names 1 and 2 the text 1 is a name and a number: it is refused; numbers, and other texts, are clear."""
    train = tmp_path / "a.parquet"
    dataset({"text": TEXTS, "label": [0, 1] * 12}, label=datasets.ClassLabel(names=["1", "2"])).to_parquet(train)

    def scored(labels: list[object]) -> list[int]:
        path = write(tmp_path / "b.jsonl", labelled(*labels).to_json(orient="records", lines=True))
        found = load_task(RunConfig(train_file=str(train), validation_file=path)).splits["validation"].labels
        return list(found)  # type: ignore[arg-type]

    assert (scored([0, 0, 1]), scored(["0", "0", "1"]), scored(["1", "2", "2"])) == ([0, 0, 1], [0, 0, 1], [0, 1, 1])
    check_refused("labels such as '1', which are numbers of classes and names of others", scored, ["1", "1"])
    broken = tmp_path / "c.parquet"
    made = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1, 5] * 8})
    made.cast(datasets.Features({**made.features, "label": datasets.ClassLabel(names=["a", "b"])})).to_parquet(broken)
    check_refused(r"a label is the number of none of its 2 names: row 3 \(5\)", loaded, str(broken))


def test_a_split_of_marks_is_withheld_aloud_and_not_where_they_are_classes(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", labelled(-1, 0, 1, times=10).to_csv(index=False))
    marks = write(tmp_path / "b.csv", labelled(-1, -1).to_csv(index=False))
    held = (f"t={marks}",)
    task = load_task(RunConfig(train_file=train, validation_file=train, test_file=held, label_kind="classes"))
    assert task.splits["t"].labels.tolist() == [0, 0]  # type: ignore[union-attr]
    plain = write(tmp_path / "c.csv", labelled("a", "b", times=10).to_csv(index=False))
    with pytest.warns(UserWarning, match="every label of split 't' is -1: taken as withheld"):
        assert load_task(RunConfig(train_file=plain, validation_file=plain, test_file=held)).splits["t"].labels is None


@given(st.lists(st.text(st.sampled_from('ab "\t\n'), min_size=1).filter(str.strip), min_size=2, max_size=8))
def test_a_quoted_tsv_is_stripped_to_what_pandas_wrote_or_refused(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    rows = [(text, str(i % 2)) for i, text in enumerate(texts)]
    path = write(tmp_path_factory.mktemp("tsv") / "a.tsv", tsv(rows, csv.QUOTE_MINIMAL))
    with pytest.warns(UserWarning, match="stand in train"):
        task = loaded(path, tsv_quotes="strip")
    assert [text for (text,) in task.splits["train"].texts] == texts


@pytest.mark.parametrize(("name", "mark"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_a_carriage_return_within_a_text_is_what_cuts_the_row(name: str, mark: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, f"text{mark}label\none{mark}0\ntwo\rparts{mark}1\n")
    check_refused(r"line 3 ends at a carriage return", loaded, path)
    old = write(tmp_path / f"old {name}", f"text{mark}label\rone{mark}0\rtwo{mark}1\r")
    with pytest.warns(UserWarning, match="stand in train"):
        assert loaded(old).splits["train"].texts == (("one",), ("two",))


@pytest.mark.filterwarnings("ignore:.* stand in train")
def test_numbers_dates_and_bytes_as_they_are_meant(tmp_path: Path) -> None:
    def of(labels: list[Any], texts: list[Any] = TEXTS[:4]) -> Task:
        path = tmp_path / "a.parquet"
        pd.DataFrame({"text": texts, "label": labels}).to_parquet(path)
        return loaded(str(path))

    assert of([Decimal("0"), Decimal("0.5"), Decimal("1.5"), Decimal("4")]).kind == "regression"
    check_refused("a label is a (Timestamp|date)", of, list(pd.date_range("2020-01-01", periods=4).date))
    check_refused("a text is a (Timestamp|date)", of, [0, 1, 0, 1], list(pd.date_range("2020-01-01", periods=4).date))
    check_refused("a text of bytes that are no UTF-8", of, [0, 1, 0, 1], [b"\xff", b"a", b"b", b"c"])


def test_a_label_that_training_lacks_is_an_error_or_too_many_are_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", labelled("a", "b", times=12).to_csv(index=False))
    some = write(tmp_path / "b.csv", labelled(*["a", "b"] * 12, "c").to_csv(index=False))
    with pytest.warns(
        UserWarning, match="'validation' has the label 'c'.* 1 of 25, cannot be learned and count as err"
    ):
        task = load_task(RunConfig(train_file=train, validation_file=some))
    assert task.label_names == ("a", "b", "c")
    assert task.splits["validation"].labels[-1] == 2  # type: ignore[index]
    for alike in ("A", "a ", "\u0430"):  # a Cyrillic one
        near = write(tmp_path / "d.csv", labelled(*["a", "b"] * 12, alike).to_csv(index=False))
        files = {"train_file": train, "validation_file": near}
        check_refused(
            rf"labels 'a' and '{alike}', which are one but for .* pass --label-kind classes$",
            load_task,
            RunConfig(**files),
        )
        with pytest.warns(UserWarning, match="1 of 25, cannot be learned"):
            assert len(load_task(RunConfig(**files, label_kind="classes")).label_names) == 3
    most = write(tmp_path / "c.csv", labelled("a", "c", times=4).to_csv(index=False))
    with refused("has the label 'c', which training lacks .*; such are 4 of 8: are they written as in training"):
        load_task(RunConfig(train_file=train, validation_file=most))
    tags = write(tmp_path / "a.conll", "John B-PER\nran O\n\nMary B-PER\nran O\n\n")
    more = write(tmp_path / "b.conll", "John B-PER\n" + "ran O\n" * 12 + "too I-PER\n")
    with pytest.warns(UserWarning, match="'validation' has the tag 'I-PER'"):
        assert load_task(RunConfig(train_file=tags, validation_file=more)).label_names == ("O", "B-PER", "I-PER")


def test_splits_that_number_their_classes_otherwise_are_matched_by_name(tmp_path: Path) -> None:
    paths = []
    for name, names in (("a", THREE), ("b", THREE[::-1])):
        made = dataset({"text": TEXTS, "label": THREE * 8}, label=datasets.ClassLabel(names=names))
        paths.append(str(tmp_path / f"{name}.parquet"))
        made.to_parquet(paths[-1])
    for split, own in (("train", paths), ("validation", paths[1:])):
        (tmp_path / "both" / split).mkdir(parents=True)
        for path in own:  # two files of one split
            shutil.copy(path, tmp_path / "both" / split)
    together = load_task(RunConfig(dataset=str(tmp_path / "both")))
    assert together.splits["train"].labels.tolist() == [0, 1, 2] * 16  # type: ignore[union-attr]
    task = load_task(RunConfig(train_file=paths[0], validation_file=paths[1]))
    for split in (*task.splits.values(), together.splits["validation"]):
        assert split.labels.tolist() == [0, 1, 2] * 8  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.* stand in train")
def test_tags_that_mark_no_spans_and_two_spellings_are_said(tmp_path: Path) -> None:
    numbered = json.dumps({"tokens": ["Ana", "foi", "a", "casa"], "ner_tags": [1, 0, 0, 0]})
    with pytest.warns(UserWarning, match=r"tags \(0, 1\) mark no spans.*75% of the words are 0"):
        loaded(write(tmp_path / "a.jsonl", numbered))
    with pytest.warns(UserWarning, match=r"tags \(\*, 1:VID\) mark no spans.*75% of the words are \*"):
        loaded(write(tmp_path / "c.conll", "Ana *\nfoi 1:VID\na *\ncasa *\n"))
    with pytest.warns(UserWarning, match=r"tags \(O, LOCAL, PESSOA\) mark no spans.*50% of the words are O"):
        loaded(write(tmp_path / "a.conll", "Ana PESSOA\nfoi O\na O\nLisboa LOCAL\n\n"))
    with refused("the tags 'O' and 'o', which are one but for case|'o' and 'O'"):
        loaded(write(tmp_path / "b.conll", "Ana B-PER\nfoi O\na o\n\n"))


@pytest.mark.parametrize(
    "rows", [["[deleted]"] * 11 + TEXTS[:9], [("a", "b")] * 13 + list(zip(TEXTS, TEXTS, strict=True))[:11]]
)
def test_texts_of_which_most_are_one_are_said(rows: list[Any], tmp_path: Path) -> None:
    pairs = [row if isinstance(row, tuple) else (row, "") for row in rows]
    frame = pd.DataFrame([(a, b, i % 2) for i, (a, b) in enumerate(pairs)], columns=["text", "other", "label"])
    path = write(tmp_path / "a.csv", frame.to_csv(index=False))
    with pytest.warns(UserWarning, match=r"'train': 1[13] of 2[04] texts are '(\[deleted\]|a \| b)': withheld"):
        loaded(path, **({"text_columns": ("text", "other")} if isinstance(rows[0], tuple) else {}))


def test_texts_of_which_half_are_one_are_not(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    rows = [*zip(10 * ["good"] + TEXTS[:10], 10 * ["a", "b"], strict=True)]
    loaded(write(tmp_path / "a.tsv", tsv(rows)))
    assert not any("withheld" in str(told.message) for told in recwarn)


def test_words_in_two_columns_are_refused(tmp_path: Path) -> None:
    rows = [{"tokens": ["good"], "words": ["bad"], "tags": ["O"]}] * 2
    path = write(tmp_path / "a.json", json.dumps(rows))
    check_refused("a token task has one column of word lists", loaded, path, text_columns=("tokens", "words"))


def test_three_examples_are_shown_before_training(tmp_path: Path) -> None:
    made, flags, _ = SHAPES["pair"]
    assert example_lines(load_task(RunConfig(**by_files(tmp_path, made), **flags))) == [
        f"{TEXTS[23 - i]} | {TEXTS[i]} -> {THREE[i]}" for i in range(3)
    ]
    made, flags, _ = SHAPES["ignore marks"]
    shown = example_lines(load_task(RunConfig(**by_files(tmp_path, made))))
    assert shown == ["John/not tagged ran/O", "she/O saw/O Mary/B-PER", "Mary/B-PER ran/O"]


Span = tuple[int, int, str]
"""First word, word after the last, type."""


def tagged(spans: list[Span], num_words: int, scheme: str) -> list[str]:
    """Spans of a sentence as tags: the definitions of IOB1, IOB2, BIOES and BILOU."""
    tags, last = ["O"] * num_words, {}
    for begin, end, kind in spans:
        for k in range(begin, end):
            is_first, is_last = k == begin, k == end - 1
            touches = last.get("end") == begin and last.get("kind") == kind
            sign = {
                "IOB1": "B" if is_first and touches else "I",
                "IOB2": "B" if is_first else "I",
                "BIOES": "S" if is_first and is_last else "B" if is_first else "E" if is_last else "I",
                "BILOU": "U" if is_first and is_last else "B" if is_first else "L" if is_last else "I",
            }[scheme]
            tags[k] = f"{sign}-{kind}"
        last = {"end": end, "kind": kind}
    return tags


@st.composite
def some_spans(draw: st.DrawFn) -> list[Span]:
    pairs = list(itertools.pairwise(sorted(draw(st.sets(st.integers(0, 8), max_size=9)))))
    return [(a, b, kind) for a, b in pairs if (kind := draw(st.sampled_from(["PER", "LOC", ""])))]


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES", "BILOU"])
@given(sentences=st.lists(st.tuples(some_spans(), some_spans()), min_size=1, max_size=4))
def test_entities_are_counted_alike_in_every_scheme(
    scheme: str, sentences: list[tuple[list[Span], list[Span]]]
) -> None:
    """F1 of spans, by an own count."""
    num_words = 8
    names = sorted({f"{sign}-{kind}" for sign in "BIESLU" for kind in ("PER", "LOC")} | {"O"})
    gold, predicted = (
        np.array([names.index(tag) for pair in sentences for tag in tagged(pair[k], num_words, scheme)]) for k in (0, 1)
    )
    offsets = np.arange(len(sentences) + 1) * num_words
    outputs = np.eye(len(names), dtype=np.float32)[predicted]
    found = compute_scores("tokens", gold, outputs, offsets=offsets, label_names=names)
    true, told = ({(i, *span) for i, pair in enumerate(sentences) for span in pair[k]} for k in (0, 1))
    both, total = len(true & told), len(true) + len(told)
    assert found["f1"] == pytest.approx(2 * both / total if total else 0)


@pytest.mark.filterwarnings("ignore")
def test_the_command_says_what_it_took(
    tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_files(tmp_path, SHAPES["tags as ClassLabel"][0])
    model = ["--model", str(tiny_model("bert")), "--max-length", "40", "--epochs", "1"]
    assert leave(finetune_main, [*model, "--dataset", str(tmp_path), "--output-dir", str(tmp_path / "runs")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    said = ("words: tokens; labels: ner_tags, 2 tags (O: 6, B-PER: 3)", "John/B-PER ran/O", "f1")
    assert [line for line in said if line not in shown] == []


def outcome(config: RunConfig) -> Any:
    """What a task is known by, or the refusal."""
    try:
        task = load_task(config)
    except ValueError as error:
        return str(error).rpartition(": ")[2]
    splits = [(k, v.texts, v.words, [x.tolist() for x in v.labels]) for k, v in task.splits.items()]  # type: ignore[union-attr]
    return task.kind, task.label_names, task.score, columns_line(task), example_lines(task), splits


def outcomes(configs: list[RunConfig]) -> list[Any]:
    return [outcome(config) for config in configs]


def rows(texts: list[str], labels: list[str], mark: str = ",", ends: str = "\n") -> str:
    """Twenty-four of them, as they stand in a .csv or a .tsv."""
    cells = (f"{texts[i % len(texts)]}{mark}{labels[i % len(labels)]}{ends}" for i in range(24))
    return f"text{mark}label{ends}" + "".join(cells)


FILES: dict[str, tuple[str, str]] = {
    "missing, by pandas": ("a.csv", rows(["NA", "null", "None", "nan", "n/a"], ["null", "b"])),
    "marks among labels": ("a.csv", rows(TEXTS, ["NA", "b", "c"])),
    "leading zeros": ("a.csv", rows(["007", "012", "3"], ["01", "02"])),
    "numbers as texts": ("a.csv", rows(["1e3", "1000", "2.50"], ["a", "b"])),
    "ones and floats": ("a.csv", rows(TEXTS, ["1.0", "1", "2.5"])),
    "truths": ("a.csv", rows(TEXTS, ["TRUE", "FALSE"])),
    "thousands": ("a.csv", rows(['"1,000"', '"2,000"'], ["a", "b"])),
    "windows": ("a.csv", "\ufeff" + rows(TEXTS, ["a", "b"], ends="\r\n")),
    "semicolons": ("a.csv", rows(TEXTS, ["a", "b"], ";")),
    "a first line for Excel": ("a.csv", "sep=;\n" + rows(TEXTS, ["a", "b"], ";")),
    "a comment": ("a.csv", "# of 2020\n" + rows(TEXTS, ["a", "b"])),
    "a blank text": ("a.csv", rows(["a", ""], ["a", "b"])),
    "a blank label": ("a.csv", rows(TEXTS, ["a", ""])),
    "a long row": ("a.csv", rows(TEXTS, ["a", "b"]) + "one, two,a\n"),
    "a header of two texts": ("a.csv", rows(TEXTS, ["a", "b"]).replace("text,label", "text,text")),
    "lone quotes": ("a.tsv", rows(['"Great," he said', 'say "no"', "plain", '"lone'], ["a", "b"], "\t")),
    "quoted": ("a.tsv", rows(['"one"', '"two"'], ["a", "b"], "\t")),
    "dates": (
        "a.jsonl",
        "\n".join(json.dumps({"text": f"2020-01-{i + 1:02}", "label": "ab"[i % 2]}) for i in range(24)),
    ),
    "tags": ("a.conll", "John B-PER\nran O\n\nshe O\nsaw O\n\n"),
    "gzip": ("a.csv.gz", rows(["NA", "b"], ["a", "b"])),
}
CARD = """---
dataset_info:
  features: [{name: text, dtype: string}, {name: label, dtype: %s}]
configs: [{config_name: default%s}]
---
"""
NAMES = "{class_label: {names: {'0': bad, '1': good}}}"
CARDS: dict[str, tuple[str, str, Any]] = {
    "names": (CARD % (NAMES, ""), rows(TEXTS, ["1", "0"]), (["bad", "good"], [1, 0])),
    "targets": (CARD % ("float32", ""), rows(TEXTS, ["4", "2", "3", "5"]), ([], [4.0, 2.0])),
    "no header": (CARD % ("string", ", names: [text, label]"), rows(TEXTS, ["b", "a"])[11:], (["a", "b"], [1, 0])),
}
"""What a card says of the files beside it, these, and the names and first labels."""


@pytest.mark.filterwarnings("ignore:.* stand in train")
def test_the_same_rows_are_one_task_by_the_hub(tmp_path: Path) -> None:
    """Read in a process of its own: the libraries take the hub's address when they are imported."""
    flags = [own for _, own, _ in SHAPES.values()] + [{}] * (len(FILES) + len(CARDS))
    folders, expected = [tmp_path / f"rows{i}" for i in range(len(flags))], []
    for folder in folders:
        folder.mkdir()
    for folder, (made, own, _) in zip(folders, SHAPES.values(), strict=False):
        expected.append(outcome(RunConfig(**by_files(folder, made), **own)))
    for folder, (name, content) in zip(folders[len(SHAPES) :], FILES.values(), strict=False):
        packed = gzip.compress(content.encode()) if name.endswith(".gz") else content
        train, validation = (write(folder / name.replace("a.", f"{x}."), packed) for x in ("train", "validation"))
        expected.append(outcome(RunConfig(train_file=train, validation_file=validation)))
        assert outcome(RunConfig(dataset=str(folder))) == expected[-1]
    for folder, (card, content, _) in zip(folders[len(expected) :], CARDS.values(), strict=True):
        for name, text in {"README.md": card, "train.csv": content, "validation.csv": content}.items():
            write(folder / name, text)
    configs = [RunConfig(dataset=f"own/{folder.name}", **own) for folder, own in zip(folders, flags, strict=True)]
    with Hub() as hub:
        for folder in folders:
            hub.add(f"own/{folder.name}", files_of(folder), kind="datasets")
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
        with patch.dict(os.environ, env), ProcessPoolExecutor(1, get_context("spawn")) as pool:
            os.environ.pop("HF_HUB_OFFLINE", None)
            found = pool.submit(outcomes, configs).result()
    by_card = [([*task[1]], task[5][0][3][:2]) for task in found[len(expected) :]]
    assert (dict(zip(CARDS, by_card, strict=True)), dict(zip([*SHAPES, *FILES], found, strict=False))) == (
        {name: told for name, (*_, told) in CARDS.items()},
        dict(zip([*SHAPES, *FILES], expected, strict=True)),
    )


MESSY = [("good", "pos"), ("", "neg"), ("fine", ""), (" ", "pos"), ("dull", "neg"), ("", ""), *[("so so", "pos")] * 20]


def test_every_row_that_must_be_mended_is_named_at_once(tmp_path: Path) -> None:
    """Of texts and labels, of train and of what is scored."""
    path = write(tmp_path / "a.csv", pd.DataFrame(MESSY, columns=["text", "label"]).to_csv(index=False))
    said = r"'train', row 2, 4, 6: the text is empty; .*'validation', row 2, 4, 6: .*'train', row 3, 6: the label is m"
    check_refused(f"{said}issing; .*'validation', row 3, 6: .*fill them or drop the rows", loaded, path)


@pytest.mark.filterwarnings("ignore:.* stand in train")
def test_every_spelling_and_every_mark_is_named_at_once(tmp_path: Path) -> None:
    labels = ["pos", "Pos", "pos ", "neg", "NEG", *["pos", "neg"] * 10]
    path = write(tmp_path / "a.csv", pd.DataFrame({"text": TEXTS[:4] * 6 + ["x"], "label": labels}).to_csv(index=False))
    said = r"'neg' and 'NEG', which are one but for .* \(22 and 2 times\)"
    check_refused(rf"'pos' and 'Pos' and 'pos ', which .* \(22 and 2 and 2 times\); {said}: write", loaded, path)
    labels = ["NULL", *["pos", "neg"] * 11, "NULL"]
    path = write(tmp_path / "b.csv", pd.DataFrame({"text": TEXTS, "label": labels}).to_csv(index=False))
    check_refused(r"'NULL' as a label .*\(train: 2 of 24, row 1, 24, validation: 2 of 24, row 1, 24\)", loaded, path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "text,label\ngut,1\nfür,0\n".encode("cp1252"),
            r"line 3 holds the byte 0xfc, which is not UTF-8 .Windows-1252",
        ),
        ("text,label\ngut,1\n".encode("utf-16"), "it is UTF-16"),
        ("text,label\ngut,1\n".encode("utf-16-le"), "it is UTF-16"),
        (b"PK\3\4\x14\0\6\0\x08\0\0\0!\0\x84\x9c", "it is a zip file, as .xlsx is: save the table as CSV UTF-8"),
    ],
    ids=["Windows", "UTF-16", "UTF-16 without its mark", "Excel"],
)
def test_what_is_not_utf_8_is_told_by_its_line_and_what_it_is(content: bytes, said: str, tmp_path: Path) -> None:
    check_refused(said, loaded, write(tmp_path / "a.csv", content))


def test_repeats_that_make_a_score_doubtful_are_told(tmp_path: Path) -> None:
    """Of the training examples that were drawn, not of the file; without any nothing is said."""
    rows = [(text, i % 2) for i, text in enumerate(TEXTS)]
    train, dev, again = (tmp_path / f"{name}.csv" for name in ("train", "dev", "again"))

    def told(of_train: list[tuple[str, int]], of_dev: list[tuple[str, int]], **flags: Any) -> list[str]:
        for path, own in ((train, of_train), (dev, of_dev), (again, of_dev)):
            pd.DataFrame(own, columns=["text", "label"]).to_csv(path, index=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            task = load_task(RunConfig(train_file=str(train), validation_file=str(dev), **flags))
        known = set(task.splits["train"].texts)
        num_known = sum(texts in known for texts in task.splits["validation"].texts)
        assert not num_known or any(f"{num_known} of " in str(one.message) for one in caught)
        return [str(one.message) for one in caught]

    assert told(rows, [("new", 0), ("other", 1)]) == []
    assert "stand in train word for word" in told(rows, rows[:6])[0]
    assert len(told(rows, rows[:12], max_train_examples=10)) == 1
    (line,) = told([*rows, (TEXTS[0], 1), (TEXTS[3], 0)], [("new", 0)])
    assert line == "2 texts stand in train with several labels: 'text number 0' and others"
    (line,) = told([*rows, rows[0], rows[0]], [("new", 0), ("other", 1)])
    assert line == f"2 of {len(rows) + 2} rows of train are an earlier one again, with its label"
    (line,) = told(rows, [("new", 0), ("other", 1)], test_file=(f"test={again}",))
    assert line == "the splits 'validation' and 'test' hold the same texts"
