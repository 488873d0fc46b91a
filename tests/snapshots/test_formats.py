"""Every file of a run directory in every damaged form that a reader once took for a whole one."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.comparison.conftest import write_logged_run
from toolkit.cli import main
from toolkit.snapshots.ownership import MANIFEST, read_list
from toolkit.snapshots.store import Run, open_run, verify_run

NUM_FLIPS = int(os.environ.get("FLIPS", "200"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small finished run with a file of every kind."""
    return write_logged_run(tmp_path, "none", 0).path


def text_of(path: Path) -> str:
    return (path / MANIFEST).read_text()


# --- the manifest ----------------------------------------------------------------------------------------------------


def test_any_flipped_byte_of_any_file_is_found(path: Path) -> None:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    generator = random.Random(0)
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
            with pytest.raises(ValueError, match=rf"{MANIFEST} "):
                _ = open_run(path).manifest
            assert read_list(path, MANIFEST) is None, "what it names is not known to be ours"


CHANGED_MANIFESTS: dict[str, Callable[[str], str]] = {
    "a number": lambda text: text.replace("12.5", "12.6"),
    "a hash of a file": lambda text: text.replace('"config.json": "', '"config.json": "0', 1),
    "spaces": lambda text: json.dumps(json.loads(text)),
    "the format before": lambda text: text.replace('"format": 2', '"format": 1'),
    "no hash of its own": lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "sha256"}),
    "a hash of none": lambda text: json.dumps(json.loads(text) | {"sha256": None}),
}


@pytest.mark.parametrize("change", CHANGED_MANIFESTS)
def test_a_changed_manifest_is_refused_and_named_by_verify(change: str, path: Path, capsys) -> None:
    changed = CHANGED_MANIFESTS[change](text_of(path))
    assert changed != text_of(path)
    (path / MANIFEST).write_text(changed)
    said = f"{path / MANIFEST} is not as it was written (its own sha256 says so): restore it or make it again"
    with pytest.raises(ValueError, match="own sha256") as refused:
        _ = open_run(path).scores
    assert str(refused.value) == said
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(path)])
    assert (stop.value.code, capsys.readouterr().out) == (1, said + "\n")


def test_a_manifest_of_the_version_before_is_read(path: Path) -> None:
    values = json.loads(text_of(path))
    older = {k: v for k, v in values.items() if k not in ("sha256", "sizes")} | {"format": 1}
    (path / MANIFEST).write_text(json.dumps(older, indent=2))
    assert verify_run(path) == []
    assert len(open_run(path).scores)
    assert read_list(path, MANIFEST) is not None


# --- what is checked when a run is read ------------------------------------------------------------------------------

READERS: dict[str, Callable[[Run], Any]] = {
    "config.json": lambda run: run.config,
    "scores.csv": lambda run: run.scores,
    "predictions.parquet": lambda run: run.predictions,
    "optimizer.json": lambda run: run.optimizer_log,
    "vocabulary.json": lambda run: run.vocabulary,
    "exposure.safetensors": lambda run: run.trajectory.exposure,
    "snapshots/epoch-003.safetensors": lambda run: run.trajectory.snapshots[-1].tensors["word_embeddings"],
}


@pytest.mark.parametrize("name", READERS)
def test_the_first_read_of_a_file_hashes_it_and_its_size_is_checked_always(name: str, path: Path) -> None:
    content = (path / name).read_bytes()
    READERS[name](open_run(path))
    for changed, is_seen_without in ((content[:-1] + b"?", False), (content + b" ", True)):
        (path / name).write_bytes(changed)
        with pytest.raises(ValueError, match=rf"is not as its manifest says \(changed: {name}\)"):
            READERS[name](open_run(path))
        lines = open_run(path, verify=False).differences(name)
        assert lines == ([f"changed: {name}"] if is_seen_without else [])
