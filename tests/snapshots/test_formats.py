"""Every file of a run directory in every damaged form that a reader once took for a whole one."""

import csv
import json
import os
import random
import re
from collections.abc import Callable
from gzip import BadGzipFile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyarrow.lib import ArrowInvalid, ArrowKeyError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from tests.comparison.conftest import write_logged_run
from tests.exits import exit_code_of
from tests.refusals import check_refusals, refused
from tests.run_directories import rehash
from toolkit.comparison.verdicts import load_cards
from toolkit.naming import UnreadableError, reading
from toolkit.snapshots import ownership
from toolkit.snapshots.files import read_header
from toolkit.snapshots.ownership import MANIFEST, read_list
from toolkit.snapshots.store import Run, open_run, verify_run

NUM_FLIPS = int(os.environ.get("FLIPS", "200"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small finished run with a file of every kind."""
    return write_logged_run(tmp_path, "none", 0).path


Arrays = dict[str, Any]
Change = Callable[[Any], Any]


def text_of(path: Path) -> str:
    return (path / MANIFEST).read_text()


# --- the manifest ----------------------------------------------------------------------------------------------------


def test_any_flipped_byte_of_any_file_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its model too, which is larger than what is read at a time."""
    generator = random.Random(0)
    monkeypatch.setattr(ownership, "PIECE_BYTES", 2**19)
    (path / "model").mkdir()
    for name, size in (("model/model.safetensors", 5 * 2**18), ("model/head.safetensors", 99)):
        (path / name).write_bytes(generator.randbytes(size))
        rehash(path, name)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    for number in range(NUM_FLIPS):
        file = files[number % len(files)]  # in turn: most bytes are those of the snapshots
        content = file.read_bytes()
        place, bits = generator.randrange(len(content)), generator.randrange(1, 256)
        file.write_bytes(content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :])
        lines = verify_run(path)
        assert len(lines) == 1, (file, place, bits)
        assert file.name in lines[0], (file, place, bits)
        file.write_bytes(content)
    assert verify_run(path) == []


def test_every_byte_of_the_head_of_a_manifest_counts_whatever_it_becomes(path: Path) -> None:
    """The key and the number that say that there is a hash must not be what hides that there is one."""
    content = (path / MANIFEST).read_bytes()
    for place in range(content.index(b"\n", 40) + 4):
        for byte in set(range(256)) - {content[place]}:
            (path / MANIFEST).write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
            check_refusals((rf"{MANIFEST} ", lambda: open_run(path).manifest))
            assert read_list(path, MANIFEST) is None, "what it names is not known to be ours"


CHANGED_MANIFESTS: dict[str, Callable[[str], str]] = {
    "a number": lambda text: text.replace("12.5", "12.6"),
    "a hash of a file": lambda text: text.replace('"config.json": "', '"config.json": "0', 1),
    "spaces": lambda text: json.dumps(json.loads(text)),
    "no hash of its own": lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "sha256"}),
    "a hash of none": lambda text: json.dumps(json.loads(text) | {"sha256": None}),
}


@pytest.mark.parametrize("change", CHANGED_MANIFESTS)
def test_a_changed_manifest_is_refused_and_named_by_verify(change: str, path: Path, capsys) -> None:
    changed = CHANGED_MANIFESTS[change](text_of(path))
    assert changed != text_of(path)
    (path / MANIFEST).write_text(changed)
    said = f"{path / MANIFEST} is not as it was written (its own sha256 says so): restore it or make it again"
    check_refusals((f"^{re.escape(said)}$", lambda: open_run(path).scores))
    assert (exit_code_of("verify", path), capsys.readouterr().out) == (1, said + "\n")


@pytest.mark.parametrize(
    ("version", "said"),
    [(1, "an older format than 2: make it again, or read it as it was made"), (3, "a newer format than 2: update the")],
)
def test_a_manifest_of_another_version_is_refused(version: int, said: str, path: Path) -> None:
    (path / MANIFEST).write_text(text_of(path).replace('"format": 2', f'"format": {version}'))
    check_refusals((f"^{path / MANIFEST} has {said}", lambda: open_run(path).scores))
    assert read_list(path, MANIFEST) is None, "what it names is not known to be ours"


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]", b'{"format": "x", "files": {}}', b"\xff"])
def test_a_manifest_that_is_none_is_named(content: bytes, path: Path) -> None:
    (path / MANIFEST).write_bytes(content)
    check_refusals((rf"{path / MANIFEST}.*: restore it or make it again$", lambda: open_run(path).manifest))


# --- what is checked when a run is read ------------------------------------------------------------------------------

READERS: dict[str, Callable[[Run], Any]] = {
    "config.json": lambda run: run.config,
    "scores.csv": lambda run: run.scores,
    "predictions.parquet": lambda run: run.predictions,
    "optimizer.json": lambda run: run.optimizer_log,
    "vocabulary.json": lambda run: run.vocabulary,
    "exposure.safetensors": lambda run: run.trajectory.exposure,
    "snapshots/epoch-000.safetensors": lambda run: run.trajectory,  # whose header tells of all of them
    "snapshots/epoch-003.safetensors": lambda run: run.trajectory.snapshots[-1].tensors["word_embeddings"],
}


@pytest.mark.parametrize("name", READERS)
def test_the_first_read_of_a_file_hashes_it_and_its_size_is_checked_always(name: str, path: Path) -> None:
    content = (path / name).read_bytes()
    READERS[name](open_run(path))
    for changed, is_seen_without in ((content[:-1] + b"?", False), (content + b" ", True)):
        (path / name).write_bytes(changed)
        check_refusals((rf"is not as its manifest says \(changed: {name}\)", lambda: READERS[name](open_run(path))))
        assert open_run(path, verify=False).differences(name) == ([f"changed: {name}"] if is_seen_without else [])
    (path / name).unlink()
    for verify in (True, False):
        check_refusals((rf"\(missing: {name}\)", lambda verify=verify: READERS[name](open_run(path, verify=verify))))


# --- files that are as the manifest says, and were not written by us --------------------------------------------------


def arrays(change: Callable[[Arrays], object], **metadata: str | None) -> Callable[[Path], None]:
    """Change the arrays of a safetensors file, and its metadata: None takes an entry away."""

    def apply(path: Path) -> None:
        known = (read_header(path)[0] | metadata).items()
        values = load_file(path)
        change(values)
        save_file(values, path, {name: text for name, text in known if text is not None})

    return apply


def replaced(name: str, change: Change) -> Callable[[Path], None]:
    return arrays(lambda values: values.update({name: np.ascontiguousarray(change(values[name].copy()))}))


def at(place: Any, value: Any) -> Change:
    def apply(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return apply


def json_of(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))

    return apply


def text(change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda path: path.write_text(change(path.read_text())) and None


def frame(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    return lambda path: change(pd.read_parquet(path)).to_parquet(path, index=False)


WORDS, FIRST, LAST = "word_embeddings", "snapshots/epoch-000.safetensors", "snapshots/epoch-003.safetensors"
NO_VALUES = {
    "config.json": ("{", "[]", "[" * 100_000, '{"format": "2"}'),
    "vocabulary.json": ("{", "{}", '{"tokens": [], "special_rows": ["a"]}'),
    "optimizer.json": ("[]", '{"format": 1}', '{"format": 1, "betas": 3}'),
    "scores.csv": ("", "a,b\n1,2\n", "epoch,split\n", "epoch,split\nx,test\n"),
    "predictions.parquet": ("", "PAR1"),
}
"""Name of a file to contents that are of another kind altogether."""
DAMAGES: dict[tuple[str, str], tuple[Callable[[Path], Any], str]] = {
    ("exposure.safetensors", "a tensor gone"): (
        arrays(lambda a: a.pop(f"{WORDS}.norms")),
        f"KeyError: '{WORDS}.norms'",
    ),
    ("exposure.safetensors", "offsets gone"): (
        arrays(lambda a: a.pop(f"{WORDS}.offsets")),
        f"KeyError: '{WORDS}.offsets'",
    ),
    ("exposure.safetensors", "a table gone"): (
        arrays(lambda a: [a.pop(name) for name in [*a] if name.startswith(WORDS)]),
        f"lacks the rows of {WORDS}",
    ),
    ("exposure.safetensors", "two dimensions"): (
        replaced(f"{WORDS}.counts", lambda a: a[None]),
        "is not the exposure of a run",
    ),
    ("exposure.safetensors", "shorter"): (
        replaced(f"{WORDS}.counts", lambda a: a[:-1]),
        "is not the exposure of a run",
    ),
    ("exposure.safetensors", "offsets that fall"): (
        replaced(f"{WORDS}.offsets", at(1, 10**6)),
        "is not the exposure of a run",
    ),
    ("exposure.safetensors", "offsets that start late"): (
        replaced(f"{WORDS}.offsets", at(0, 1)),
        "is not the exposure of a run",
    ),
    ("exposure.safetensors", "no offsets"): (
        replaced(f"{WORDS}.offsets", lambda a: a[:0]),
        "is not the exposure of a run",
    ),
    ("exposure.safetensors", "a row beyond"): (replaced(f"{WORDS}.rows", at(-1, 60)), "is not the exposure of a run"),
    ("exposure.safetensors", "a row before"): (replaced(f"{WORDS}.rows", at(0, -1)), "is not the exposure of a run"),
    ("exposure.safetensors", "a row twice"): (replaced(f"{WORDS}.rows", at(1, 2)), "is not the exposure of a run"),
    ("exposure.safetensors", "combinations alone"): (
        arrays(lambda a: a.update({"design.counts": np.ones(1, np.int64)})),
        "is not the exposure of a run",
    ),
    ("optimizer.json", "no decay"): (json_of(lambda v: v.update(weight_decay=[])), "not an optimizer log"),
    ("optimizer.json", "an entry gone"): (json_of(lambda v: v.pop("precision")), "TypeError"),
    (LAST, "no step"): (arrays(lambda a: None, step=None), "does not say when it was taken"),
    (LAST, "no epoch"): (arrays(lambda a: None, epoch=None), "does not say when it was taken"),
    (LAST, "a step of text"): (arrays(lambda a: None, step="x"), "does not say when it was taken"),
    (LAST, "held by one that has none"): (
        arrays(lambda a: a.pop(WORDS), **{f"held_by.{WORDS}": "epoch-003.safetensors"}),
        "which has none",
    ),
    ("vocabulary.json", "a special row beyond"): (json_of(lambda v: v["special_rows"].append(60)), "texts and rows"),
    ("vocabulary.json", "a padding row beyond"): (json_of(lambda v: v.update(pad_row=60)), "texts and rows"),
    ("scores.csv", "text"): (text(lambda t: t.replace("0.5,", "half,", 1)), "has loss values that are not numbers"),
    ("scores.csv", "a step of text"): (
        text(lambda t: t.replace(",20,", ",twenty,")),
        "has step, num_examples values that",
    ),
    ("predictions.parquet", "text"): (
        frame(lambda f: f.assign(prediction=f["prediction"].astype(str))),
        "has prediction values that are not numbers",
    ),
    ("predictions.parquet", "truth"): (
        frame(lambda f: f.assign(prediction=f["prediction"] == 1)),
        "has prediction values that are not numbers",
    ),
    ("predictions.parquet", "epochs of text"): (frame(lambda f: f.assign(epoch="3")), "has epoch values that are not"),
    ("predictions.parquet", "a column gone"): (frame(lambda f: f.drop(columns="label")), "lacks the column label"),
    **{
        (name, f"no values {i}"): (lambda path, content=content: path.write_text(content), "")
        for name, contents in NO_VALUES.items()
        for i, content in enumerate(contents)
    },
    **{
        (f"{name}.json", "no UTF-8"): (lambda path: path.write_bytes(b"\xff" + path.read_bytes()), "is not JSON (")
        for name in ("config", "optimizer", "vocabulary")
    },
    ("predictions.parquet", "cut bytes"): (lambda path: path.write_bytes(path.read_bytes()[:-20]), "cannot be read"),
}


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_file_in_another_form_is_refused_where_it_is_opened(name: str, damage: str, path: Path) -> None:

    def read() -> None:
        READERS[name](open_run(path))
        _ = open_run(path).trajectory  # where the vocabulary meets the word table

    read()
    apply, said = DAMAGES[name, damage]
    apply(path / name)
    rehash(path, name)
    check_refusals((f"^{re.escape(str(path / name))}.*{re.escape(said)}.*: restore it or make it again$", read))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("vocabulary.json", json_of(lambda v: v.update(format=9)), "newer format than 1: update the toolkit"),
        ("exposure.safetensors", arrays(lambda a: None, format="0"), "older format than 1: make it again"),
        (FIRST, arrays(lambda a: None, format="9"), "newer format than 1: update the toolkit"),
    ],
)
def test_a_file_of_another_version_is_refused(name: str, change: Callable[[Path], Any], said: str, path: Path) -> None:
    change(path / name)
    rehash(path, name)
    check_refusals((rf"{name} has an? {said}", lambda: READERS[name](open_run(path))))


def test_columns_in_another_order_are_read_by_name(path: Path) -> None:
    for name in ("scores.csv", "predictions.parquet"):
        whole = READERS[name](open_run(path))
        shuffled = whole[whole.columns[::-1]]
        shuffled.to_csv(path / name, index=False) if name == "scores.csv" else shuffled.to_parquet(path / name)
        rehash(path, name)
        pd.testing.assert_frame_equal(READERS[name](open_run(path)), whole)


def test_cards_whose_format_is_a_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cards.json").write_text('{"format": "1", "evidence": {}, "cards": []}')
    check_refusals((r"^cards\.json lacks the integer 'format': restore", lambda: load_cards(tmp_path)))


X = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS: dict[str, Any] = {
    "whole": {"x": X, "y": X | {"data_offsets": [8, 16]}},
    "overlapping": {"x": X | {"shape": [4], "data_offsets": [0, 16]}, "y": X},
    "a hole": {"x": X, "y": X | {"shape": [1], "data_offsets": [12, 16]}},
    "bytes of none": {"x": X},
    "a type in small letters": {"x": X | {"dtype": "f32", "shape": [4], "data_offsets": [0, 16]}},
    "a type of none": {"x": X | {"dtype": "U9", "shape": [4], "data_offsets": [0, 16]}},
    "a number as metadata": {"__metadata__": {"step": 3}, "x": X, "y": X | {"data_offsets": [8, 16]}},
    "a place that is a text": {"x": X | {"data_offsets": ""}},
    "a list as metadata": {"__metadata__": [], "x": X, "y": X | {"data_offsets": [8, 16]}},
    "an offset below 0": {"x": X | {"shape": [2, 2], "data_offsets": [-16, 0]}},
    "a side below 0": {"x": X | {"shape": [-2, 2], "data_offsets": [0, 16]}},
    "a side that is a text": {"x": X | {"shape": ["2", 2], "data_offsets": [0, 16]}},
    "a side that is a fraction": {"x": X | {"shape": [2.0, 2], "data_offsets": [0, 16]}},
    "a side that is true": {"x": X | {"shape": [True, 4], "data_offsets": [0, 16]}},
    "sides whose product is beyond 64 bits": {"x": X | {"shape": [2**62, 2**62, 4], "data_offsets": [0, 16]}},
    "more values than bytes": {"x": X | {"shape": [2, 2], "data_offsets": [0, 4]}},
    "an end before its start": {"x": X | {"shape": [2, 2], "data_offsets": [16, 0]}},
    "an end beyond the file": {"x": X | {"shape": [2, 2], "data_offsets": [8, 24]}},
    "more bytes than values": {"x": X | {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 16]}},
    "no place": {"x": {"dtype": "F32", "shape": [2, 2]}},
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_is_whole_where_the_library_says_so(kind: str, tmp_path: Path) -> None:
    header = json.dumps(HEADERS[kind]).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    if kind == "whole":
        assert read_header(path)[1].keys() == {"x", "y"}
        return
    with pytest.raises(SafetensorError), safe_open(path, "numpy"):
        pass
    check_refusals((r"^[^\n]*is not a whole safetensors file [^\n]*$", lambda: read_header(path)))


# --- the wall around all of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        *(
            KeyError("a"),
            IndexError(),
            TypeError("two\nlines"),
            RecursionError("deep"),
            EOFError(),
            csv.Error("quoted"),
        ),
        *(SafetensorError("header"), BadGzipFile("no gzip"), ArrowInvalid("two\nlines"), ArrowKeyError("a")),
        UnicodeDecodeError("utf-8", b"\xff" * 1000, 0, 1, "bad"),
        ValueError(1000 * "[1, 2] "),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_fails_within_walls_is_one_short_line_that_names_the_innermost_file(error: Exception) -> None:
    with (
        refused(r"^a\.json cannot be read \(.{1,330}\): restore it or make it again$", UnreadableError),
        reading("the folder"),
        reading("a.json"),
    ):
        raise error


@pytest.mark.parametrize("error", [OSError(5, "Input/output error", "a.json"), MemoryError(), ValueError("mine")])
def test_what_is_said_already_passes_through_walls(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, reading("a.json", "is odd", ValueError):
        raise error
    assert caught.value is error
