"""Every source of data gives the same kind of Task; every reason to refuse data is found."""

import csv
import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import check_refusals, check_refused, refused
from toolkit.config import RunConfig
from toolkit.data.builtin import BUILTIN_TASKS, BUILTIN_TOKEN_TASKS
from toolkit.data.files import GLUE, read_file
from toolkit.data.labels import encode_labels
from toolkit.data.tasks import load_task, task_name
from toolkit.reporting.run_screen import cluster_lines, columns_line

TEXTS = ['a "quoted" word', "tab-free, comma", "naïve café", "null", "NaN", "None"]
LABELS = ["yes", "no", "yes", "no", "yes", "no"]


TABLES = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".csv.gz")


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".tsv":
        rows = [frame.columns.tolist(), *frame.to_numpy().tolist()]
        path.write_text("\n".join("\t".join(map(str, row)) for row in rows) + "\n", encoding="utf-8")
    elif path.suffix in (".csv", ".gz"):
        frame.to_csv(path, index=False)
    elif path.suffix == ".json":
        path.write_text(json.dumps(frame.to_dict("records")), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in frame.to_dict("records")), encoding="utf-8")
    else:
        frame.to_parquet(path)
    return path


@given(texts=st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")).filter(str.strip), max_size=5))
def test_a_plain_text_file_is_a_text_a_line(texts: list[str]) -> None:
    """Whatever signs are in one; empty lines are none, and there are no labels to train on."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.txt"
        path.write_text("\ufeff" + "".join(f"{text}\n \n" for text in texts), encoding="utf-8")
        split = read_file(path, (), "label")
        assert split.texts == [(text,) for text in texts]
        assert split.labels is None
        check_refusals(
            ("unknown column 'sentence'; choose from: text", lambda: read_file(path, ("sentence",), None)),
            (
                r"has no labels|has no examples|is empty",
                lambda: load_task(RunConfig(train_file=str(path), validation_file=str(path))),
            ),
        )


MISSING = pd.DataFrame({"text": ["fine", None], "label": [0, 1]})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.tsv", b"", r"data\.tsv cannot be read \(it is empty\)"),
        ("data.csv", b'text,label\n"open,1\n', r"data\.csv cannot be read \(line 2: "),
        ("data.jsonl", b'{"text": "a", "label": 1}\n{"text": \n', r"line 2 is not JSON"),
        ("data.jsonl", b'["a", 1]\n', r"line 1 must be an object"),
        ("data.parquet", b"not parquet", r"data\.parquet cannot be read"),
        (
            "data.tsv",
            b"text\tlabel\n\xff\xfe\t1\n",
            r"\.tsv cannot be read .line 2 holds the byte 0xff, which is not UTF-8",
        ),
        ("data.jsonl", b"[" * 100_000, r"line 1 is not JSON"),
        ("data.tsv", b"text\tlabel\tlabel\na\t1\t0\n", r"header names the column 'label' twice"),
        ("data.csv", b"text,text,label\na,b,0\n", r"header names the column 'text' twice"),
        ("data.rtf", b"text\n", r"unknown kind of data file '\.rtf'"),
        (
            "data.tsv",
            b"words\tlabel\na\t1\n",
            r"has no column text or sentence: pass --text-columns \(it has: words, label\)",
        ),
        # More fields than columns.
        (
            "data.tsv",
            b"text\tlabel\nhello\t world\t1\nfine\t day\t0\n",
            "rows have more fields than the header|Expected 2",
        ),
        ("data.csv", b"text,label\nhello, world,1\nfine, day,0\n", "rows have more fields than the header|Expected 2"),
        # A quoted field that does not end as one.
        (
            "data.csv",
            b'text,label\na,1\n"b,1\nc,0\n"d,1\n',
            r"line 3: a quotation mark opens a field there .* up to line 5",
        ),
        ("data.csv", b'text,label\na,1\n"b,1\nc,0\n', r"line 3: a quotation mark opens a field"),
        ("data.csv", b'text,label\n"b" c,1\n', r"line 2: a quotation mark opens a field"),
        (
            "data.csv",
            b'text,label\n"b,1\nc,0\n"d, e",1\n',
            r"line 2: a quotation mark opens a field there .* up to line 4",
        ),
        # Cells that are no texts or labels.
        ("data.jsonl", b'{"text": ["a", "b"], "label": 1}', "a text is a list"),
        ("data.jsonl", b'{"text": "a", "label": [1, 2]}', "a label is a list"),
        (
            "data.jsonl",
            MISSING.to_json(orient="records", lines=True).encode(),
            r"'train', row 2: a text is missing \(NaN\)",
        ),
        ("data.parquet", MISSING.to_parquet(), r"'train', row 2: a text is missing \(NaN\)"),
        ("data.tsv", b"label\ttext\n0\tfine\n1\n", r"row 2: a text is missing|row 2: the text is empty"),
        (
            "data.jsonl",
            b'{"text": "a", "label": 1}\n{"text": "b \\ud800", "label": 0}\n',
            r"'train', row 2: a text holds half a character",
        ),
    ],
)
def test_files_that_cannot_be_read_or_learned_from(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    check_refused(message, load_task, RunConfig(train_file=str(path), validation_file=str(path)))


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".conll", ".txt", ".csv.gz"])
def test_a_file_that_ends_in_zeros_was_cut_short(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"data{suffix}"
    content = b"text\tlabel\n" * 1000 + bytes(9)
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    check_refused(r"data[\w.]+ cannot be read .it holds a run of zeros.*: get it again", read_file, path, (), "label")


@pytest.mark.parametrize(
    ("train", "validation", "names", "expected"),
    [
        # Classes are ordered as numbers or letters.
        ([10, 9, 2, 10], [2, 10], ("2", "9", "10"), [0, 2]),
        (["b", "a"], ["b"], ("a", "b"), [1]),
        # A split that happens to hold only the label 1 is not read as integers when training has words.
        (["1", "none"], ["1", "1"], ("1", "none"), [0, 0]),
        # Numbers and texts of numbers are one kind.
        ([0, "1", 1], [1, "0"], ("0", "1"), [1, 0]),
        # Classes may be named by numbers and words.
        (["1", "2", "none", "1"], ["none"], ("1", "2", "none"), [2]),
        (["cat", "dog", "2.5"], ["cat"], ("2.5", "cat", "dog"), [1]),
        (["inf", "cat", "1"], ["inf"], ("1", "cat", "inf"), [2]),
        (["nan", "inf"], ["nan"], ("inf", "nan"), [1]),
        # Targets are kept.
        ([5, 2.5, 3], [3], (), [3.0]),
        (["5", "2.5"], ["3"], (), [3.0]),
        ([0.0, 2.5], [1.0, 3], (), [1.0, 3.0]),
        ([0.5, "1.5", "2"], [1], (), [1.0]),
        ([0.5, 1.0, 2.0], ["1.5", "2"], (), [1.5, 2.0]),  # a typed file and one of text
    ],
)
def test_training_decides_how_labels_are_read(
    train: list[object], validation: list[object], names: tuple[str, ...], expected: list[float]
) -> None:
    kind, texts, labels = encode_labels({"train": train, "validation": validation, "test": [None, None]})
    assert ((kind, texts), labels["validation"].tolist()) == (
        ("classification" if names else "regression", names),
        expected,
    )
    assert labels["test"] is None


def test_nullable_columns_are_read(tmp_path: Path) -> None:
    nullable = pd.DataFrame(
        {"text": pd.array(["a", None], dtype="string"), "label": pd.array([1, None], dtype="Int64")}
    )
    split = read_file(write(nullable, tmp_path / "data.parquet"), (), "label")
    assert (split.texts, split.labels) == ([("a",), (None,)], [1, None])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation_file": "v.tsv"}, "--validation-file goes with --train-file"),
        ({"dataset": "a/b", "test_file": ("t=t.tsv",)}, "--test-file goes with --train-file"),
        ({"dataset": "a/b", "ood_file": ("t=t.tsv",)}, "--ood-file goes with --train-file"),
        ({"task_name": "mine"}, "--task-name goes with --train-file or --dataset"),
        ({"dataset_config": "x"}, "--dataset-config goes with --dataset"),
        ({"label_column": "y"}, "--label-column goes with --train-file or --dataset"),
        ({"tsv_quotes": "strip"}, "--tsv-quotes goes with --train-file or --dataset"),
        ({"cluster_column": "x"}, "--cluster-column goes with --train-file or --dataset"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(changes: dict[str, Any], message: str) -> None:
    check_refused(message, load_task, RunConfig(**changes))


def test_a_draw_of_one_label_is_refused() -> None:
    check_refused("1 training examples drawn have one label only", load_task, RunConfig(max_train_examples=1))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"train": [1, 1]}, "every training label is 1"),
        ({"train": ["a", "a"]}, "every training label is 'a'"),
        ({"train": [0.5, 0.5]}, "every training label is 0.5"),
        ({"train": None}, "'train' has no labels"),
        ({"train": [0, 1], "validation": None}, "'validation' has no labels"),
        ({"train": [0, 1], "validation": [2]}, "'validation' has the label 2, which training lacks"),
        ({"train": ["a", "b", " "]}, "'train', row 3: the label is missing"),
        ({"train": [0, 1], "test": [0, None]}, "'test', row 2: the label is missing"),
        ({"train": [0.1, 0.2], "validation": ["x"]}, "labels that are not numbers"),
        ({"train": ["0.1", "0.2"], "validation": ["1", "nan"]}, r"labels that are not numbers.*: row 2 \('nan'\)"),
        ({"train": [0.1, 0.2], "validation": [float("inf")]}, "infinite"),
        ({"train": ["0.1", "1e999"]}, r"'train' has an infinite label: row 2 \(inf\)"),
        ({"train": list(range(2000))}, "2,000 classes in 2,000 training examples: .* --label-kind classes"),
        ({"train": ["0", "01", "1"]}, "the labels 01 and 1, which are one integer"),
    ],
)
def test_labels_that_cannot_be_learned(raw: dict[str, Any], message: str) -> None:
    check_refused(message, encode_labels, raw)


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("word", ["nan", "-inf", "N/A"])
def test_one_word_among_targets_makes_no_classification(suffix: str, word: str, tmp_path: Path) -> None:
    labels = [str(i / 40) if suffix == ".parquet" else i / 40 for i in range(40)]  # a column of parquet has one type
    frame = pd.DataFrame({"text": "a", "label": pd.Series([*labels[:39], word], dtype=object)})
    split = read_file(write(frame, tmp_path / f"data{suffix}"), (), "label")
    with pytest.raises(
        ValueError, match=rf"'train' has .* not finite numbers \(row 40 \('{word}'\)\) where most are floats"
    ):
        encode_labels({"train": split.labels})


@pytest.mark.parametrize("word", ["nan", "Infinity"])
def test_no_number_as_text_beside_integers_is_no_class(word: str) -> None:
    with pytest.raises(ValueError, match=rf"row 2 \('{word}'\), row 3 .* and 1 more\) where the others are numbers"):
        encode_labels({"train": ["1", *4 * [word]]})


@pytest.mark.parametrize(
    ("texts", "label", "message"),
    [
        (("text", "label"), "label", "'label' is the label column and a text column"),
        ((), "text", "'text' is the label column and a text column"),
        (("text", "text"), "label", "--text-columns names 'text' twice"),
    ],
)
def test_columns_that_nothing_can_be_learned_from(
    texts: tuple[str, ...], label: str, message: str, tmp_path: Path
) -> None:
    path = str(
        write(pd.DataFrame({"text": list("abcd"), "label": [0, 1, 0, 1], "id": list("wxyz")}), tmp_path / "data.csv")
    )
    check_refused(
        message, load_task, RunConfig(train_file=path, validation_file=path, text_columns=texts, label_column=label)
    )


@pytest.mark.parametrize(("num_classes", "is_doubted"), [(40, True), (39, True), (20, True), (13, False)])
def test_a_column_of_names_of_rows_is_doubted_and_one_example_per_class_is_not(
    num_classes: int, is_doubted: bool, tmp_path: Path
) -> None:
    """A run of one shot per class, of few classes, is somebody's question; forty of forty are hardly classes."""
    frame = pd.DataFrame(
        {"text": [f"text {i}" for i in range(40)], "label": [f"c{i % num_classes}" for i in range(40)]}
    )
    path, few = str(write(frame, tmp_path / "data.csv")), str(write(frame[:4], tmp_path / "few.csv"))
    others = [str(write(own[::-1], tmp_path / f"other{len(own)}.csv")) for own in (frame, frame[:4])]
    load_task(RunConfig(train_file=few, validation_file=others[1]))
    config = RunConfig(train_file=path, validation_file=others[0])
    with refused(rf"there are {num_classes} classes in 40 .*--label-kind classes") if is_doubted else nullcontext():
        load_task(config)
    assert len(load_task(replace(config, label_kind="classes")).label_names) == num_classes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["no", "yes"] * 6 + ["yes"], "2 classes (no: 6, yes: 7), f1 of yes"),
        (["a pair", "not a pair"] * 6, "2 classes (not a pair: 6, a pair: 6), f1 of a pair"),
        (["Non-toxic", "toxic", "toxic"] * 6, "2 classes (Non-toxic: 6, toxic: 12), f1 of toxic"),
        ([3, 4] * 6, "2 classes (3: 6, 4: 6), f1 of 4"),
        ([1.0, 5.5] * 6, "numbers, 1 to 5.5"),
        ([*"abcdef", "g" * 50], "7 classes (a: 1, b: 1, c: 1, d: 1, e: 1 and 2 more)"),
        (["x" * 50, "y"], f"2 classes ({'x' * 39}…: 1, y: 1), f1 of y"),
    ],
    ids=["words", "denied", "denied by a prefix", "integers", "floats", "many", "long"],
)
def test_what_was_taken_as_texts_and_labels_is_said(labels: list[object], said: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"first": "a", "second": "b", "stars": labels})
    frame["first"] = [f"text {i}" for i in range(len(frame))]
    path = str(write(frame, tmp_path / "data.csv"))
    config = RunConfig(train_file=path, validation_file=path, text_columns=("first", "second"), label_column="stars")
    assert columns_line(load_task(config)) == f"texts: first, second; labels: stars, {said}"


@pytest.mark.parametrize("name", [*BUILTIN_TASKS, *BUILTIN_TOKEN_TASKS])
def test_of_a_builtin_task_the_labels_of_train_are_counted(name: str) -> None:
    task = load_task(RunConfig(task=name))
    start, found = columns_line(task).split("; labels: ")
    assert start == {"pair": "texts: 2 per example", "roles": "words: each with a tag"}.get(
        name, "texts: 1 per example"
    )
    labels = task.splits["train"].labels
    counts = Counter((np.concatenate(labels) if name == "roles" else labels).tolist())
    named = ", ".join(f"{label}: {counts[i]:,}" for i, label in enumerate(task.label_names))
    assert (
        found.partition(", f1 of ")[0]
        == f"{len(task.label_names)} {'tags' if name == 'roles' else 'classes'} ({named})"
    )


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize(
    ("targets", "is_doubted"), [([0.0, 1.0], True), ([0.0, 1.0, 2.0, 3.0], False), ([0.0, 1.5], False)]
)
def test_a_regression_on_what_looks_like_classes_is_said_or_refused(
    targets: list[float], is_doubted: bool, suffix: str, tmp_path: Path
) -> None:
    """pandas writes the classes 0 and 1 as 0.0 and 1.0 once a label was missing."""
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(40)], "label": targets * (40 // len(targets))})
    paths = [str(write(own, tmp_path / f"{name}{suffix}")) for own, name in ((frame, "a"), (frame[::-1], "b"))]
    config = RunConfig(train_file=paths[0], validation_file=paths[1])
    if is_doubted:
        check_refused(r"labels are 0\.0, 1\.0: .* --label-kind classes or --label-kind targets$", load_task, config)
    else:
        assert load_task(config).kind == "regression"
    meant = load_task(replace(config, label_kind="targets"))
    assert (meant.kind, meant.score, meant.splits["validation"].labels.tolist()) == (
        "regression",
        "pearson",
        frame["label"].tolist()[::-1],
    )
    if not all(target.is_integer() for target in targets):
        with refused(r"split 'train' has labels that are numbers and not whole, row 2"):
            load_task(replace(config, label_kind="classes"))
        return
    classes = load_task(replace(config, label_kind="classes"))
    assert (classes.label_names, classes.splits["train"].labels.tolist()) == (
        tuple(str(int(target)) for target in targets),
        frame["label"].tolist(),
    )


def test_integers_may_be_meant_as_targets_and_words_may_not() -> None:
    kind, _, labels = encode_labels({"train": [1, 5, 3], "validation": ["2"]}, kind="targets")
    assert (
        (kind, labels["validation"].tolist()),
        encode_labels({"train": ["1", "5"]}, kind="targets")[0],
        encode_labels({"train": [1, 0, 2]}, ("poor", "fair", "good"), kind="targets")[:2],
    ) == (("regression", [2.0]), "regression", ("regression", ()))
    with pytest.raises(ValueError, match=r"'train' has labels that are not numbers, as targets are: row 2 \('good'\)"):
        encode_labels({"train": ["1", "good"]}, kind="targets")


def stray(rows: list[str], first: int, last: int) -> list[str]:
    """The rows of a csv with two stray quotation marks: where one text begins, and where a later one ends."""
    out = list(rows)
    out[first] = '"' + out[first]
    text, _, label = out[last].rpartition(",")
    out[last] = f'{text}",{label}'
    return out


def test_damaged_facts_of_pandas_in_a_parquet_file_are_one_line(tmp_path: Path) -> None:
    """pyarrow meets them with a KeyError, which is none of its own errors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "data.parquet"
    facts = {b"pandas": b'{"index_columns": [], "column": []}'}
    pq.write_table(pa.table({"text": ["a"], "label": [1]}).replace_schema_metadata(facts), path)
    check_refused(r"data\.parquet cannot be read \(KeyError", read_file, path, (), "label")


@pytest.mark.parametrize(("first", "last", "is_said"), [(20, 29, True), (20, 22, True), (0, 39, False)])
def test_a_class_that_stray_marks_swallow_whole_is_said(
    first: int, last: int, is_said: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """No other row has its label, so that a text which holds a table looks the same: a warning, no refusal."""
    rows = [f"text number {i},{'rare' if first <= i < last else ('good', 'bad')[i % 2]}" for i in range(40)]
    (tmp_path / "bad.csv").write_text(
        "\n".join(["text,label", *(stray(rows, first, last) if is_said else rows)]) + "\n"
    )
    assert len(read_file(tmp_path / "bad.csv", (), "label").texts) == (40 - (last - first) if is_said else 40)
    assert [str(w.message).partition(": was")[0].split("row ", 1)[1] for w in recwarn] == (
        [f"{first + 1} (line {first + 2}) holds {last - first + 1} lines, each of which reads as a row of its own"]
        if is_said
        else []
    )


def test_a_swallowing_mark_in_other_columns_and_orders(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    rows = [f"{i},{i % 2},some text {i}" for i in range(40)]
    rows[4] = '4,0,"some text 4'
    rows[9] = '9,1,some text 9"'
    for columns, label in (("id,label,text", "label"), ("id,other,text", "label")):
        path.write_text("\n".join([columns, *rows]) + "\n")
        check_refused(r"row 5 \(line 6\) holds 6 lines", read_file, path, (), label)


# No letters of the labels: a text whose lines are rows is two texts, whatever wrote it.
PROSE = st.text(st.sampled_from('ab ,"\n\r\té;'), max_size=40)


@given(st.lists(st.tuples(PROSE, st.sampled_from(["yes", "no"]), PROSE), min_size=1, max_size=12))
def test_what_pythons_csv_module_writes_is_read_as_it_was(rows: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label", "other"), *rows])
        split = read_file(path, ("text", "other"), "label")
    assert (split.texts, split.labels) == ([(text, other) for text, _, other in rows], [label for _, label, _ in rows])


@given(st.lists(PROSE.filter(lambda text: text.strip()), min_size=1, max_size=12), st.data())
def test_no_pair_of_stray_marks_loses_a_row_in_silence(texts: list[str], data: st.DataObject) -> None:
    """One mark more at the start of a text and one at the end of another: refused, or every text is there."""
    texts = ["".join(char for char in text if char not in '",\n\r') for text in texts]
    rows = [f"{text},{'yes' if i % 2 else 'no'}" for i, text in enumerate(texts)]
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first, len(rows) - 1))
    rows = stray(rows, first, last)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_text("\n".join(["text,label", "a,yes", "b,no", *rows]) + "\n")
        if first == last:
            assert len(read_file(path, (), "label").texts) == 2 + len(rows)
        else:
            check_refused(
                rf"row {first + 3} \(line {first + 4}\) holds {last - first + 1} lines", read_file, path, (), "label"
            )


def test_long_and_broken_texts_of_a_csv_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    texts = [
        "x" * 300_000,
        "Dear all,\nhello, you\nbye",
        'he said "no, 1"\n"yes", 0',
        "Top reasons:\n1, food\n2, service",
    ]
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((text, i % 2) for i, text in enumerate(texts))])
    assert [text for (text,) in read_file(path, (), "label").texts] == texts


def test_rows_inside_a_text_of_another_kind_of_file_are_said(tmp_path: Path) -> None:
    """A parquet file made of such a csv lost the rows before we saw it, and there is no mark left to take out."""
    rows = [("a", "no"), ("text 1,yes\ntext 2,no\ntext 3", "yes")]
    for suffix in (".jsonl", ".parquet"):
        path = write(pd.DataFrame(rows, columns=["text", "label"]), tmp_path / f"data{suffix}")
        with pytest.warns(
            UserWarning, match=r"row 2 holds 3 lines, each of which reads as a row of its own: was it made"
        ):
            assert len(read_file(path, (), "label").texts) == 2


@pytest.mark.parametrize("suffix", TABLES)
def test_a_header_in_the_middle_is_refused_with_its_row(suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"text": ["a", "b", "Text ", "c"], "label": ["x", "y", "label", "x"], "id": ["1", "2", "id", "3"]}
    )
    path = write(frame, tmp_path / f"data{suffix}")
    for label in ("label", "nothing"):
        check_refused(
            r"data\.[\w.]+, row 3( \(line 4\))? is the header again \(1 such rows\)", read_file, path, (), label
        )
    words = write(pd.DataFrame({"text": ["text", "a"], "label": ["x", "y"]}), tmp_path / f"words{suffix}")
    assert read_file(words, (), "label").texts == [("text",), ("a",)]  # a word that a column is called by is a word


@pytest.fixture
def of_hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A function: what any data set of the hub is."""
    monkeypatch.setattr("toolkit.data.files._files_of", lambda *_, **__: ({}, None))  # nor are its files asked for
    return lambda made: monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: made)


@pytest.mark.parametrize(
    "raw",
    [
        {"train": [True, 1, 0]},
        {"train": [True, False], "validation": [1, 0]},
        {"train": [1, 0], "validation": [True, False]},
        {"train": ["true", "1", "0"]},
        {"train": ["True", "0", "x"]},
        {"train": [True, "0"]},
        {"train": ["false", 0, 1]},
        {"train": [np.True_, 0]},
    ],
)
def test_truths_beside_numbers_are_refused(raw: dict[str, list[object]]) -> None:
    check_refused(r"stand beside .*, which may mean the same: write each class in one way", encode_labels, raw)


@pytest.mark.parametrize("train", [[True, False], ["true", "false"], ["true", "2"], ["yes", "1"]])
def test_truths_alone_are_classes(train: list[object]) -> None:
    assert len(encode_labels({"train": train, "validation": train})[1]) == 2
    for text, said in (("true", "one but for case"), ("True", "every training label is 'True'")):
        check_refused(said, encode_labels, {"train": [True, text]})


def test_scores_on_the_training_file_are_doubted(tiny_config: RunConfig) -> None:
    with pytest.warns(UserWarning, match="64 of 64 rows of 'validation' stand in train"):
        load_task(
            replace(
                tiny_config,
                validation_file=tiny_config.train_file,
                test_file=(f"again={tiny_config.train_file}", f"test={tiny_config.validation_file}"),
            )
        )


def test_clusters_are_those_of_a_column_or_of_the_first_text_of_pairs(tmp_path: Path) -> None:
    """As numbers in the order of appearance: the ids may name people. Training examples need none."""
    frame = pd.DataFrame({"text": TEXTS, "other": list("aabbcc"), "label": [0, 1] * 3, "from": list("xyxzzx")})
    others = {"train": frame.drop(columns="from"), "gap": frame.replace("z", None), "blank": frame.replace("z", " ")}
    for name, own in ({"held": frame} | others).items():
        write(own, tmp_path / f"{name}.jsonl")
    files = {"train_file": str(tmp_path / "train.jsonl"), "validation_file": str(tmp_path / "held.jsonl")}
    named, held = RunConfig(**files, cluster_column="from"), {}
    for key, columns in (("one", ("other",)), ("pair", ("other", "text")), ("alone", ("text", "other"))):
        held[key] = load_task(RunConfig(**files, text_columns=columns)).splits["validation"]
    held["named"] = (task := load_task(named)).splits["validation"].take(np.arange(1, 6))
    found = {key: None if own.clusters is None else own.clusters.tolist() for key, own in held.items()}
    assert found == {"one": None, "pair": [0, 0, 1, 1, 2, 2], "alone": None, "named": [1, 0, 2, 2, 0]}
    assert (held["one"].num_repeated_texts, held["alone"].num_repeated_texts) == (3, 0)
    assert cluster_lines(task) == ["validation: 6 examples in 3 clusters (from): units of intervals"]
    check_refusals(
        ("'validation': unknown column 'form' .did you", lambda: load_task(replace(named, cluster_column="form"))),
        ("'train': unknown column 'from'", lambda: load_task(replace(named, selection_fraction=0.5))),
        ("gap.jsonl, row 4 has no", lambda: load_task(replace(named, validation_file=str(tmp_path / "gap.jsonl")))),
        ("blank.jsonl, row 4 has no", lambda: load_task(replace(named, validation_file=str(tmp_path / "blank.jsonl")))),
    )


def test_names_of_file_tasks(tmp_path: Path) -> None:
    (tmp_path / "reviews").mkdir()
    for name, expected in (("reviews/train.tsv", "reviews"), ("reviews/spring.csv", "spring")):
        assert task_name(RunConfig(train_file=str(tmp_path / name))) == expected


def test_max_train_examples_draws_with_the_seed() -> None:
    full, small, again, other = (
        load_task(RunConfig(max_train_examples=n, seed=seed)).splits["train"]
        for n, seed in ((None, 0), (100, 0), (100, 0), (100, 1))
    )
    assert len(full) == 2000
    assert small.ids.tolist() == again.ids.tolist() != other.ids.tolist()
    assert (small.texts, small.labels.tolist()) == (
        tuple(full.texts[i] for i in small.ids),
        full.labels[small.ids].tolist(),
    )


@pytest.mark.parametrize("name", BUILTIN_TASKS)
def test_builtin_tasks_load(name: str) -> None:
    task = load_task(RunConfig(task=name))
    assert (list(task.splits), task.reported_split, task.out_of_distribution) == (
        ["train", "validation", "test", "ood"],
        "validation",
        ("ood",),
    )
    assert task.carrier


def test_what_is_out_of_distribution_is_said_and_not_guessed(tiny_config: RunConfig) -> None:
    held = str(tiny_config.validation_file)
    config = replace(tiny_config, test_file=(f"ood={held}", f"blind={held}"), ood_file=(f"far={held}",))
    task = load_task(config)
    assert (
        list(task.splits),
        task.out_of_distribution,
        load_task(replace(config, selection_fraction=0.5)).out_of_distribution,
    ) == (["train", "validation", "ood", "blind", "far"], ("far",), ())
    for taken in ("ood", "validation", "far"):
        with pytest.raises(ValueError, match=f"--ood-file: the name '{taken}' is taken"):
            load_task(replace(config, ood_file=(*config.ood_file, f"{taken}={held}")))


def test_data_of_ones_own_have_the_name_that_they_are_given(tiny_config: RunConfig) -> None:
    assert load_task(replace(tiny_config, task_name="my reviews")).name == "my reviews"
    with pytest.raises(ValueError, match="--task order and data of your own are two sources"):
        load_task(replace(tiny_config, task_name="mine", task="order"))


@pytest.mark.parametrize("name", GLUE)
def test_glue_tasks_through_the_real_library(name: str, of_hub: Callable[[Any], None]) -> None:
    """The hub is replaced by tables of its form; everything after the download is the real code."""
    columns, kinds = GLUE[name][0], {"mnli": ("_matched", "_mismatched")}.get(name, ("",))
    size = 3 if name == "mnli" else 2
    label = datasets.Value("float32") if name == "stsb" else datasets.ClassLabel(num_classes=size)
    features = datasets.Features({**dict.fromkeys(columns, datasets.Value("string")), "label": label})
    labels = [i % size + (i / 8 if name == "stsb" else 0) for i in range(6)]
    splits = {f"test{kind}": [-1] * 6 for kind in kinds} | {"train": labels} | {f"validation{k}": labels for k in kinds}
    rows = {column: [f"{column} {i}" for i in range(6)] for column in columns}
    made = {k: datasets.Dataset.from_dict(rows | {"label": own}, features) for k, own in splits.items()}
    of_hub(datasets.DatasetDict(made))
    task = load_task(RunConfig(task=name))
    assert next(iter(task.splits)) == "train"
    assert {k: split.labels is None for k, split in task.splits.items()} == {k: k.startswith("test") for k in splits}
    assert (task.kind, task.score, task.out_of_distribution, task.reported_split) == (
        "regression" if name == "stsb" else "classification",
        {"cola": "matthews", "stsb": "pearson"}.get(name, "accuracy"),
        ("validation_mismatched", "test_mismatched") if name == "mnli" else (),
        f"validation{kinds[0]}",
    )
    assert columns_line(task).startswith(f"texts: {', '.join(columns)}; labels: label, ")


def test_a_dataset_without_validation_holds_out_a_tenth(of_hub: Callable[[Any], None]) -> None:
    rows = {"text": [f"text {i}" for i in range(40)], "label": [i % 2 for i in range(40)]}
    of_hub(datasets.DatasetDict({name: datasets.Dataset.from_dict(rows) for name in ("train", "unsupervised")}))
    task = load_task(RunConfig(dataset="owner/name"))
    assert (
        {k: len(s) for k, s in task.splits.items()},
        len({t for s in task.splits.values() for t in s.texts}),
        task.name,
    ) == ({"train": 36, "validation": 4}, 40, "name")
    assert columns_line(task).startswith("texts: text; labels: label, 2 classes (0: ")


def test_a_dataset_of_the_hub_is_known_by_what_it_holds(of_hub: Callable[[Any], None]) -> None:
    texts, labels = [f"text {i}" for i in range(20)], [i % 2 for i in range(20)]
    known: dict[str, Any] = {}
    for change, (text, label) in {
        "": (texts, labels),
        "none of these": (texts, labels),  # another seed draws others, and a column that is not read differs
        "text": (["another", *texts[1:]], labels),
        "label": (texts, [1, *labels[1:]]),
        "order": (texts[::-1], labels[::-1]),
    }.items():
        train = datasets.Dataset.from_dict({"text": text, "label": label, "other": [change] * 20})
        of_hub(datasets.DatasetDict(train=train, validation=train.from_dict({"text": ["a", "b"], "label": [0, 1]})))
        task = load_task(RunConfig(dataset="owner/name", max_train_examples=10, seed=len(change)))
        assert (task.file_hashes, list(task.data_hashes)) == ({}, ["train", "validation"])
        known[change] = task.data_hashes
    assert (
        len({own["validation"] for own in known.values()}),
        known[""],
        len({own["train"] for own in known.values()}),
    ) == (1, known["none of these"], 4)


def test_shuffled_labels_keep_texts_and_counts_and_lose_the_relation(tiny_config: RunConfig) -> None:
    plain, shuffled = (load_task(replace(tiny_config, shuffle_labels=x)) for x in (False, True))
    before, after = plain.splits["train"], shuffled.splits["train"]
    assert before.texts == after.texts
    assert (np.bincount(before.labels) == np.bincount(after.labels)).all()
    assert 0.25 < (before.labels == after.labels).mean() < 0.75
    assert (plain.splits["validation"].labels == shuffled.splits["validation"].labels).all()
    assert (load_task(replace(tiny_config, shuffle_labels=True, seed=1)).splits["train"].labels != after.labels).any()


def labels_by_id(config: RunConfig) -> dict[int, int]:
    train = load_task(config).splits["train"]
    return dict(zip(train.ids.tolist(), train.labels.tolist(), strict=True))


@pytest.mark.parametrize("changes", [{}, {"max_train_examples": 40}, {"selection_fraction": 0.25}])
def test_with_a_label_seed_an_example_has_one_label_in_runs_of_every_seed(
    tiny_config: RunConfig, changes: dict[str, Any]
) -> None:
    """Runs of other seeds draw other examples: what two of them share must have the same target in both."""
    config = replace(tiny_config, shuffle_labels=True, label_seed=5, **changes)
    one, other = (labels_by_id(replace(config, seed=seed)) for seed in (0, 1))
    shared = one.keys() & other.keys()
    assert len(shared) > 20
    assert (one.keys() != other.keys()) == bool(changes)
    assert all(one[i] == other[i] for i in shared)
    whole = labels_by_id(replace(tiny_config, shuffle_labels=True, label_seed=5))
    assert all(one[i] == whole[i] for i in one)
    assert sorted(whole.values()) == sorted(labels_by_id(tiny_config).values())
    per_seed = [labels_by_id(replace(config, seed=seed, label_seed=None)) for seed in (0, 1)]
    assert any(per_seed[0][i] != per_seed[1][i] for i in shared)
    elsewhere = labels_by_id(replace(config, label_seed=6))
    assert any(elsewhere[i] != one[i] for i in one)
    if "selection_fraction" in changes:  # what settings are chosen by keeps its labels
        held = [load_task(replace(config, shuffle_labels=x, label_seed=5 if x else None)) for x in (False, True)]
        assert np.array_equal(*(task.splits["selection"].labels for task in held))


def test_a_label_seed_that_gives_every_example_one_label_is_refused(tiny_config: RunConfig) -> None:
    config = replace(tiny_config, shuffle_labels=True, max_train_examples=4)
    messages = []
    for seed in range(60):
        try:
            load_task(replace(config, label_seed=seed))
        except ValueError as error:
            messages.append(str(error))
    assert any("gives all 4 training examples one label: take another seed" in text for text in messages)


def test_rows_of_train_that_are_scored_and_rare_classes_are_said(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(30)], "label": ["a", "b"] * 13 + ["c"] * 4})
    train, held = (str(write(own, tmp_path / f"{name}.csv")) for name, own in (("t", frame), ("v", frame[20:26])))
    config = RunConfig(
        train_file=train, validation_file=held, test_file=(f"other={write(frame[:1], tmp_path / 'o.csv')}",)
    )
    with pytest.warns(UserWarning, match="in train") as heard:
        load_task(config)
    assert [str(warning.message).partition(": --remove")[0] for warning in heard] == [
        "6 of 6 rows of 'validation' stand in train word for word",
        "1 of 1 rows of 'other' stand in train word for word",
        "classes with fewer than 5 rows in train can hardly be learned: c: 4",
    ]
    with pytest.warns(UserWarning, match="rows in train can hardly be learned") as heard:
        load_task(replace(config, remove_near_duplicates=True))
    assert len(heard) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", [*BUILTIN_TASKS, *BUILTIN_TOKEN_TASKS])
def test_of_a_builtin_task_no_row_that_is_scored_stands_in_train(name: str) -> None:
    load_task(RunConfig(task=name))


@pytest.mark.parametrize(
    "content", ["x" * 10**6, ",".join(f"column {i}" for i in range(10**5)), "text,label\na,b\nc," + "d" * 10**6]
)
def test_a_refusal_quotes_little_of_a_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(content + "\n")
    with refused("") as caught:
        load_task(RunConfig(train_file=str(path), validation_file=str(path), label_kind="targets"))
    assert len(str(caught.value)) < 1500
