"""Files that a run's manifest does not name, or names otherwise, are never analysed: one line says which, and why."""

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolkit
from tests.exits import exit_code_of
from tests.refusals import check_refusals, check_refused
from tests.run_directories import write_run
from tests.snapshots.test_store import flip_last_bit
from tests.snapshots.test_store import write_run as write_words
from toolkit.reporting.sources import open_sources
from toolkit.snapshots import files
from toolkit.snapshots.importers import import_checkpoints
from toolkit.snapshots.snapshot import FORMAT
from toolkit.snapshots.store import SNAPSHOT, open_run, verify_run

PLANTED = (
    "epoch-009.safetensors",
    "step-00000007.safetensors",
    "epoch-001.tmp.safetensors",
    "x.tmp",
    ".epoch-001.safetensors.12.tmp.safetensors",
    ".notes.txt.12.tmp",
    "other.safetensors",
    ".hidden",
    "notes.txt",
)
"""Names of files that somebody else put among the snapshots of a run that has none of them."""

READERS: dict[str, Callable[[Path], Any]] = {
    "trajectory": lambda path: open_run(path).trajectory,
    "drift": toolkit.measure_drift,
    "rows": lambda path: toolkit.measure_rows(open_run(path), "word_embeddings"),
    "gauge": toolkit.measure_gauge,
    "import": lambda path: import_checkpoints([path]),
    "import of one": lambda path: import_checkpoints([path / "snapshots" / "epoch-000.safetensors"]),
    "page": lambda path: open_sources([path]),
    "score and drift": lambda path: toolkit.join_drift([path]),
    "check": lambda path: open_run(path).check("snapshots/"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_run(tmp_path, "none", 0, epochs=2).path


def plant(path: Path, name: str, times: float = 1.5) -> Path:
    """A whole snapshot, far from the others, under a name of its own."""
    first = open_run(path).trajectory.at(0).tensors
    tensors = {k: np.array(first[k]) * np.float32(times) for k in first}
    file = path / "snapshots" / name
    metadata = {"format": FORMAT, "epoch": "1.5", "step": "15"}
    made = file.with_name("epoch-999.safetensors")
    files.write_tensors(made, tensors, metadata)
    return made.replace(file)


def check_planted(read: Callable[[Path], Any], path: Path, name: str) -> None:
    """What reads a run does so, and refuses it with a snapshot that somebody else planted."""
    read(path)
    plant(path, name)
    check_refusals((rf"not in the manifest: snapshots/{re.escape(name)}\W.*: move it away", lambda: read(path)))


def check_flipped(read: Callable[[Path], Any], file: Path) -> None:
    """What reads a run refuses it with one bit of one of its files flipped."""
    flip_last_bit(file)
    check_refusals((rf"changed: snapshots/{file.name}\): restore it, or run again", lambda: read(file.parents[1])))


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_among_the_snapshots_that_the_manifest_does_not_name_is_refused(
    reader: str, name: str, path: Path
) -> None:
    check_planted(READERS[reader], path, name)


@pytest.mark.parametrize("name", PLANTED)
def test_verify_names_it_and_the_commands_refuse_it(name: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(path, name)
    assert verify_run(path) == [f"not in the manifest: snapshots/{name}"]
    for code, *command in ((2, "drift", path), (2, "report", path, "--out", f"{path}-r"), (1, "verify", path)):
        assert exit_code_of(*command) == code, command
        assert f"snapshots/{name}" in "".join(capsys.readouterr()), command


def test_a_planted_file_that_is_passed_itself_is_refused(path: Path) -> None:
    planted = plant(path, "epoch-009.safetensors")
    with pytest.raises(ValueError, match=r"not in the manifest: snapshots/epoch-009\.safetensors"):
        import_checkpoints([path / "snapshots" / "epoch-000.safetensors", planted])


def test_a_folder_among_the_snapshots_is_refused_and_named_by_verify(path: Path) -> None:
    (path / "snapshots" / "more").mkdir()
    check_refusals((r"not in the manifest: snapshots/more/\): move it away", lambda: open_run(path).trajectory))
    assert verify_run(path) == ["not in the manifest: snapshots/more/"]


@pytest.mark.parametrize("reader", READERS)
def test_a_flipped_bit_is_refused_by_whatever_reads_that_file(reader: str, path: Path) -> None:
    file = path / "snapshots" / ("epoch-000.safetensors" if reader == "import of one" else "epoch-002.safetensors")
    if reader == "trajectory":
        trajectory = open_run(path).trajectory  # its headers alone: no value has been read yet
        check_flipped(lambda _: trajectory.snapshots[-1].tensors["word_embeddings"], file)
    else:
        check_flipped(READERS[reader], file)


def test_a_holder_that_changed_is_refused_by_what_it_holds(tmp_path: Path) -> None:
    """A tensor that came back to what it was is stored once; a later snapshot shows it from the earlier one's file."""
    path = tmp_path / "run"
    write_words(path).finish({})
    flip_last_bit(path / "snapshots" / "epoch-001.safetensors")
    last = open_run(path).trajectory.at(2)
    assert last.tensors["position_embeddings"].shape == (3, 4)  # of epoch 0
    check_refusals((r"changed: snapshots/epoch-001\.safetensors", lambda: last.tensors["word_embeddings"]))


def test_a_snapshot_that_is_gone_is_not_passed_over(path: Path) -> None:
    (path / "snapshots" / "epoch-001.safetensors").unlink()
    check_refusals(
        (r"missing: snapshots/epoch-001\.safetensors\): restore it, or run again", lambda: toolkit.measure_drift(path))
    )
    (path / "snapshots" / "epoch-001.safetensors").symlink_to("nowhere")
    check_refusals((r"missing: snapshots/epoch-001\.safetensors", lambda: toolkit.measure_drift(path)))


def test_a_log_that_the_manifest_does_not_name_is_no_log_of_the_run(path: Path) -> None:
    """optimizer.json decides what the causes of drift are said to be."""
    assert open_run(path).optimizer_log is None
    (path / "optimizer.json").write_text("{}")
    check_refusals((r"not in the manifest: optimizer\.json\): move it away", lambda: open_run(path).optimizer_log))


def test_a_note_of_the_users_is_named_by_verify_and_does_not_stop_an_analysis(path: Path) -> None:
    before = toolkit.measure_drift(path)
    for name in ("notes.txt", "a.tmp", "plots/x.png", "plots/y.tmp.png"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("mine")
    assert toolkit.measure_drift(path).equals(before)
    assert verify_run(path) == [f"not in the manifest: {name}" for name in ("a.tmp", "notes.txt", "plots/")]


LEFT = (".epoch-001.safetensors.123.tmp", ".epoch-002.safetensors.123456789012345678.tmp")


@pytest.mark.parametrize("is_finished", [True, False])
def test_leftovers_of_the_writer_lie_there_unread(is_finished: bool, tmp_path: Path) -> None:
    path = write_run(tmp_path, "none", 0, epochs=2, is_finished=is_finished).path
    before = toolkit.measure_drift(path)
    for name in LEFT:
        (path / "snapshots" / name).write_text("half")
    (path / ".scores.csv.123.tmp").write_text("half")
    assert toolkit.measure_drift(path).equals(before)
    if is_finished:
        assert verify_run(path) == []
        (path / ".notes.txt.123.tmp").write_text("half")  # a name that no file of a run has
        assert verify_run(path) == ["not in the manifest: .notes.txt.123.tmp"]


@pytest.mark.parametrize("name", [name for name in PLANTED if not SNAPSHOT.fullmatch(name)])
def test_an_unfinished_run_has_files_of_our_names_only(name: str, tmp_path: Path) -> None:
    path = write_run(tmp_path, "none", 0, epochs=2, is_finished=False).path
    toolkit.measure_drift(path)
    plant(path, name)
    said = r"is no snapshot \(epoch-NNN or step-NNNNNNNN.*move it away$"
    check_refusals((f"^{re.escape(str(path / 'snapshots' / name))} {said}", lambda: toolkit.measure_drift(path)))


def test_an_unfinished_run_is_what_its_list_names(tmp_path: Path) -> None:
    path = write_run(tmp_path, "none", 0, epochs=1, is_finished=False).path
    before = toolkit.measure_drift(path)
    for planted in (plant(path, "epoch-005.safetensors"), path / "optimizer.json"):
        planted.touch()
        with pytest.raises(ValueError, match=rf"{planted.name} is not named in the run's unfinished\.json: move it a"):
            _ = (open_run(path).trajectory, open_run(path).optimizer_log)
        planted.rename(tmp_path / planted.name)
        assert toolkit.measure_drift(path).equals(before)
    (path / "unfinished.json").unlink()  # as in a copy of less than all files
    (tmp_path / "epoch-005.safetensors").rename(path / "snapshots" / "epoch-005.safetensors")
    assert "epoch-005.safetensors" in open_run(path).snapshot_names()


def test_a_link_is_judged_by_what_it_leads_to(tmp_path: Path) -> None:
    """git-annex, DVC and stores that keep equal files once put links there; the sha256 of the content decides."""
    path = write_run(tmp_path, "none", 0, epochs=2).path
    before = toolkit.measure_drift(path)
    file, store = path / "snapshots" / "epoch-001.safetensors", tmp_path / "store"
    file.rename(store)
    file.symlink_to(store)
    assert toolkit.measure_drift(path).equals(before)
    assert (import_checkpoints([file]).trajectory.snapshots[0].step, verify_run(path)) == (10, [])
    store.write_bytes(store.read_bytes()[:-1] + b"\x07")
    check_refusals((r"changed: snapshots/epoch-001\.safetensors", lambda: toolkit.measure_drift(path)))
    (path / "manifest.json").unlink()  # nothing says what it should lead to
    check_refused(
        r"epoch-001\.safetensors is no snapshot \(.* in an unfinished run no link\)", toolkit.measure_drift, path
    )


def test_a_whole_folder_may_be_a_link(tmp_path: Path) -> None:
    path = write_run(tmp_path, "none", 0, epochs=2).path
    (path / "snapshots").rename(tmp_path / "elsewhere")
    (path / "snapshots").symlink_to(tmp_path / "elsewhere")
    assert verify_run(path) == []
    toolkit.measure_drift(path)
    (tmp_path / "elsewhere" / "x").write_text("mine")
    assert verify_run(path) == ["not in the manifest: snapshots/x"]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are hashed from now on, one after the other."""
    found: list[str] = []
    real = files.sha256_of_file
    monkeypatch.setattr(files, "sha256_of_file", lambda file: found.append(file.name) or real(file))
    return found


def test_a_file_is_hashed_once_whoever_asks_at_the_same_time(
    path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLED_NS", -(10**12))
    with ThreadPoolExecutor(4) as pool:
        digests = set(pool.map(files.known_sha256, [path / "scores.csv"] * 4))
    assert (digests, hashed) == ({hashlib.sha256((path / "scores.csv").read_bytes()).hexdigest()}, ["scores.csv"])


def test_each_file_is_hashed_once_however_many_measures_read_it(
    path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLED_NS", -(10**12))  # written just now, and known to be left alone
    run = open_run(path)
    run.check("snapshots/")
    for _ in range(3):
        toolkit.measure_drift(run)
        toolkit.measure_rows(path, "word_embeddings")
        toolkit.measure_gauge(open_run(path))
        _ = (open_run(path).scores, open_run(path).vocabulary)
    assert sorted(hashed) == sorted(set(hashed))
    assert {"epoch-000.safetensors", "epoch-001.safetensors", "epoch-002.safetensors", "scores.csv"} <= set(hashed)
    hashed.clear()
    assert verify_run(path) == []  # which was asked to look again
    assert len(hashed) == sum(file.is_file() for file in path.rglob("*")) - 1


def test_only_what_is_read_is_hashed(path: Path, hashed: list[str]) -> None:
    trajectory = open_run(path).trajectory
    _ = (trajectory.parameters, [snapshot.epoch for snapshot in trajectory])
    assert {name for name in hashed if name.startswith("epoch")} == {"epoch-000.safetensors"}
    _ = trajectory.at(2).tensors["word_embeddings"]
    assert {name for name in hashed if name.startswith("epoch")} == {"epoch-000.safetensors", "epoch-002.safetensors"}


def test_values_that_change_between_two_reads_are_noticed(path: Path) -> None:
    """A notebook keeps its run open for hours; the same size, and written again at once."""
    run = open_run(path)
    before = toolkit.measure_drift(run)
    assert toolkit.measure_drift(run).equals(before)
    flip_last_bit(path / "snapshots" / "epoch-002.safetensors")
    check_refusals((r"changed: snapshots/epoch-002\.safetensors", lambda: toolkit.measure_drift(run)))


@given(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40))
def test_a_temporary_file_is_one_by_its_whole_name(name: str) -> None:
    """Whatever is put into a name, only the exact form of the writer's passes, and only of a snapshot's name."""
    assert files.of_temporary(f".{name}.77.tmp") == name
    for other in (name, f".{name}.77.tmp.safetensors", f"{name}.77.tmp", f".{name}.tmp", f".{name}.7x.tmp"):
        of = files.of_temporary(other)
        assert of is None or re.fullmatch(rf"\.{re.escape(of)}\.[0-9]+\.tmp", other)
