"""The seam: what is written is read back bit for bit, lazily, or refused with one clear line."""

import errno
import fcntl
import gc
import hashlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from torch import nn

from tests.refusals import check_refusals, check_refused
from tests.run_directories import write_run as write_whole_run
from toolkit.config import RunConfig
from toolkit.snapshots.files import disk_errors, map_tensor, read_header, sha256_of_array, write_tensors, write_with
from toolkit.snapshots.importers import import_checkpoints
from toolkit.snapshots.logs import Exposure, OptimizerLog, TableExposure
from toolkit.snapshots.ownership import Owned
from toolkit.snapshots.run_writer import RunWriter, facts_of, start_run
from toolkit.snapshots.snapshot import Trajectory, Vocabulary
from toolkit.snapshots.store import Run, open_run, runs_of, verify_run

RNG = np.random.default_rng(0)
WORDS, POSITIONS = RNG.normal(size=(7, 4)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)


def write_run(path: Path, position_offset: int = 0) -> RunWriter:
    """Four snapshots: words move once and then return to where they were; positions never move."""
    writer = start_run(path)
    writer.facts = facts_of(position_offset, 1e-12)
    writer.write_config(RunConfig())
    writer.write_vocabulary(Vocabulary(("[PAD]", "a", "<b>", "ü", "", "", ""), frozenset({0}), 0))
    for epoch, words in enumerate((WORDS, WORDS + 1, WORDS + 1, WORDS)):
        writer.write_snapshot(epoch, epoch * 10, {"word_embeddings": words, "position_embeddings": POSITIONS})
    return writer


def flip_last_bit(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_snapshots_come_back_and_equal_tensors_are_stored_once(tmp_path: Path) -> None:
    write_run(tmp_path / "run").finish({})
    run = open_run(tmp_path / "run")
    assert run.is_finished
    for snapshot, words in zip(run.trajectory, (WORDS, WORDS + 1, WORDS + 1, WORDS), strict=True):
        np.testing.assert_array_equal(snapshot.tensors["word_embeddings"], words)
        np.testing.assert_array_equal(snapshot.tensors["position_embeddings"], POSITIONS)
    stored = [set(load_file(path)) for path in sorted((run.path / "snapshots").iterdir())]
    assert (stored, (run.trajectory.parameters, run.trajectory.at(2).step)) == (
        [{"word_embeddings", "position_embeddings"}, {"word_embeddings"}, set(), set()],
        (("word_embeddings", "position_embeddings"), 20),
    )
    check_refusals((r"no snapshot of epoch 9; at hand: 0, 1, 2, 3", lambda: run.trajectory.at(9)))
    assert run.vocabulary.tokens[2:4] == ("<b>", "ü")


def test_tensors_are_memory_mapped_and_read_only(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    tensor = open_run(tmp_path / "run").trajectory.at(0).tensors["word_embeddings"]
    assert isinstance(tensor, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tensor[0] = 0


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.float16]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    )
)
def test_mapping_agrees_with_the_library(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray) -> None:
    """safetensors' own reader is the oracle."""
    path = tmp_path_factory.mktemp("t") / "x.safetensors"
    write_tensors(path, {"a": array, "b": array[::-1]}, {"k": "v"})
    metadata, entries = read_header(path)
    assert metadata == {"k": "v"}
    for name, expected in load_file(path).items():
        found = map_tensor(path, entries[name])
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o700])
def test_tensors_can_be_read_by_whoever_may_read_their_folder(tmp_path: Path, mode: int) -> None:
    """The library makes a file that only its owner can open: a colleague could not look at a run."""
    tmp_path.chmod(mode)
    write_tensors(tmp_path / "some.safetensors", {"x": np.zeros(2)}, {})
    assert (tmp_path / "some.safetensors").stat().st_mode & 0o777 == mode & 0o666


def test_equal_tensors_and_metadata_give_equal_bytes(tmp_path: Path) -> None:
    """The library's own, but for the order of the metadata, of which it takes another each time."""
    metadata = {name: f'"{name}"\n\t\x01\x7f\\é\u2028😀' for name in "zyxwvutsrq"}
    tensors: dict[str, np.ndarray] = {"words": WORDS, "positions": POSITIONS, "none": WORDS[:0], "one": np.array(1)}
    tensors |= {np.dtype(kind).name: WORDS.astype(kind).T for kind in ("?", "u1", "i1", "i2", "u2", "f2", "i4", "f8")}
    path, theirs = tmp_path / "x.safetensors", tmp_path / "theirs"
    digest = write_tensors(path, tensors, metadata)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    for known in ({}, {"one": "alone"}):  # an order that is the only one
        write_tensors(tmp_path / f"{len(known)}", tensors, known)
        save_file({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}, theirs, known)
        assert (tmp_path / f"{len(known)}").read_bytes() == theirs.read_bytes()
    assert (read_header(path)[0], list(read_header(path)[0])) == (metadata, sorted(metadata))
    with safe_open(path, "np") as file:
        assert file.metadata() == metadata
        np.testing.assert_array_equal(file.get_tensor("words"), WORDS)
        np.testing.assert_array_equal(file.get_tensor("positions"), POSITIONS)


@pytest.mark.parametrize(
    ("text", "code"),
    [("I/O error: No space left on device (os error 28)", errno.ENOSPC), ("Error while serializing", errno.EIO)],
)
def test_a_disk_error_of_safetensors_is_one_of_the_system(text: str, code: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left|while serializing") as raised, disk_errors(tmp_path / "x"):
        raise SafetensorError(text)
    assert raised.value.errno == code


def test_a_tensor_whose_file_is_gone_is_refused(tmp_path: Path) -> None:
    (write_run(tmp_path / "run").path / "snapshots" / "epoch-000.safetensors").unlink()
    tensors = open_run(tmp_path / "run").trajectory.snapshots[0].tensors
    check_refusals(
        (r"keeps position_embeddings in epoch-000.safetensors, which has none", lambda: tensors["position_embeddings"])
    )


def test_a_write_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        write_with(path, fail, Owned(tmp_path, "a list", {"x": ()}))
    assert (path.read_text(), [entry.name for entry in tmp_path.iterdir()]) == ("old", ["x"])


def test_a_finished_run_is_refused_an_unfinished_one_starts_again(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    assert not open_run(tmp_path / "run").is_finished
    start_run(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())
    write_run(tmp_path / "run").finish({})
    check_refusals(("--overwrite", lambda: start_run(tmp_path / "run")))
    start_run(tmp_path / "run", overwrite=True)
    assert verify_run(tmp_path / "run") == []
    (tmp_path / "file").write_text("")
    check_refusals(
        ("is a file where a run directory should go", lambda: start_run(tmp_path / "file")),
        (
            "file is a file where the folder of runs should go: pass another --output",
            lambda: start_run(tmp_path / "file" / "more" / "run"),
        ),
        ("null is a file where the folder of runs should go", lambda: start_run(Path(os.devnull) / "run")),
    )


HOLD = """
import sys, time
from pathlib import Path
from toolkit.snapshots.run_writer import start_run
writer = start_run(Path(sys.argv[1]))
writer.write_recorded_config({})
print("writing", flush=True)
time.sleep(60)
"""


def test_a_run_directory_may_be_a_link(tmp_path: Path) -> None:
    write_run(tmp_path / "runs").finish({})
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    start_run(tmp_path / "link", overwrite=True).release()
    assert verify_run(tmp_path / "runs") == []
    writer = start_run(tmp_path / "link", overwrite=True)
    writer.write_config(RunConfig())
    writer.finish({})
    assert (tmp_path / "link").is_symlink()
    assert (
        sorted(entry.name for entry in (tmp_path / "runs").iterdir()),
        sorted(entry.name for entry in tmp_path.iterdir()),
    ) == (["config.json", "manifest.json"], ["link", "runs"])


def test_a_run_that_another_process_writes_is_left_alone_until_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"writing\n"
        check_refused(
            r"another process is writing .*run: wait until it has ended, or end it", start_run, path, overwrite=True
        )
        assert (path / "config.json").exists()
        other.kill()
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == [".run.lock", "run"]
    write_run(path).finish({})
    assert ([entry.name for entry in tmp_path.iterdir()], verify_run(path)) == (["run"], [])


def test_a_process_takes_a_run_over_from_its_own_writer(tmp_path: Path) -> None:
    """What an exception left behind may live on in a notebook's traceback; it must not finish what is not its own."""
    left = write_run(tmp_path / "run")
    again = write_run(tmp_path / "run")
    check_refused("was started again while it was being written", left.finish, {})
    left.release()
    del left
    gc.collect()
    assert (tmp_path / ".run.lock").exists()
    again.finish({})
    dropped = write_run(tmp_path / "other")
    del dropped
    gc.collect()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["other", "run"]


def test_where_there_are_no_locks_a_run_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    write_run(tmp_path / "run").finish({})
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["config.json", "snapshots/epoch-000.safetensors"])
def test_a_run_that_lost_a_file_is_not_finished(name: str, tmp_path: Path) -> None:
    writer = write_run(tmp_path / "run")
    (writer.path / name).unlink()
    check_refusals((rf"has lost {name} while it was being written: run it again", lambda: writer.finish({})))
    assert not open_run(writer.path).is_finished


def test_what_is_no_run_is_answered_with_what_to_pass(tmp_path: Path) -> None:
    empty, report = tmp_path / "empty", tmp_path / "report"
    empty.mkdir()
    report.mkdir()
    (report / "files.json").write_text("{}")
    run = write_run(tmp_path / "run").path
    check_refusals(
        ("no run directory at", lambda: open_run(tmp_path / "gone")),
        (r"no run directory at .*/\*: open_runs takes patterns", lambda: open_run(tmp_path / "*")),
        ("is not a run directory", lambda: open_run(empty)),
        (r"holds runs, and is none: pass .*/\* to open_runs", lambda: open_run(tmp_path)),
        ("takes the path of one run; got list: open_runs takes several", lambda: open_run([run])),  # type: ignore[arg-type]
        ("expected a folder, a file or a hub id; got Identity", lambda: import_checkpoints([nn.Identity()])),  # type: ignore[list-item]
        ("report is a report and no model: report --from makes", lambda: import_checkpoints([report])),
    )


def test_hashes_tell_zero_signs_shapes_and_types_apart() -> None:
    """Bit-identical means bits: -0.0 is not 0.0, and a NaN equals itself."""
    arrays = [np.zeros(4, np.float32), -np.zeros(4, np.float32), np.zeros((2, 2), np.float32), np.zeros(4, np.int32)]
    assert len({sha256_of_array(array) for array in arrays}) == 4
    nan = np.array([np.nan], np.float32)
    assert sha256_of_array(nan) == sha256_of_array(nan.copy())
    wide = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert sha256_of_array(wide.T) == sha256_of_array(np.ascontiguousarray(wide.T))


steps_of = st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=8)


@given(steps_of, st.integers(0, 8))
def test_exposure_against_a_count_by_hand(steps: list[list[int]], last: int) -> None:
    made = []
    for tokens in steps:
        rows, counts = np.unique(np.array(tokens, np.int32), return_counts=True)
        norms = np.ones(len(rows), np.float32)
        made.append(TableExposure.of_step(rows.astype(np.int32), counts.astype(np.int32), norms))
    table = TableExposure.join(made)
    table = Exposure.from_tensors(Exposure({"word_embeddings": table}).to_tensors()).tables["word_embeddings"]
    taken = steps[:last]
    for row in range(10):
        assert (table.step_counts(10, last)[row], table.token_counts(10, last)[row]) == (
            sum(row in tokens for tokens in taken),
            sum(tokens.count(row) for tokens in taken),
        )
    assert table.num_steps == len(steps)


def test_optimizer_log_round_trip() -> None:
    log = OptimizerLog(
        algorithm="torch.optim.AdamW",
        is_fused=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay={"word_embeddings": 0.01, "head.bias": 0.0},
        learning_rates=np.array([1e-5, np.nan]),
        head_learning_rates=np.array([1 / 3, 2e-3]),
        clipping_factors=np.array([1.0, 0.1]),
        precision="bf16",
    )
    again = OptimizerLog.from_json(log.to_json())
    for name in ("learning_rates", "head_learning_rates", "clipping_factors"):
        np.testing.assert_array_equal(getattr(again, name), getattr(log, name))
    assert again.weight_decay == log.weight_decay
    assert "NaN" not in log.to_json()
    newer = log.to_json().replace('"format": 1', '"format": 2')
    check_refusals(("newer format than 1: update the toolkit", lambda: OptimizerLog.from_json(newer)))


def test_a_file_that_is_missing_is_named_and_why_where_the_run_is_unfinished(tmp_path: Path) -> None:
    path = write_whole_run(tmp_path, "none", 0).path
    (path / "scores.csv").unlink()
    check_refusals((r"\(missing: scores\.csv\): restore it", lambda: open_run(path, verify=False).scores))
    (path / "manifest.json").unlink()
    check_refusals((r"scores\.csv is missing \(the run is unfinished: run it again\)$", lambda: open_run(path).scores))


def test_runs_are_taken_as_runs_or_paths_in_a_list(tmp_path):
    (tmp_path / "snapshots").mkdir()
    assert runs_of([tmp_path, str(tmp_path), Run(tmp_path)]) == runs_of(Run(tmp_path) for _ in range(3))
    said = f"expected a list of run directories; got {tmp_path} alone: put it in"
    check_refusals(
        *((said, partial(runs_of, alone)) for alone in (tmp_path, str(tmp_path), Run(tmp_path))),
        ("expected a list of run directories; got Trajectory alone", lambda: runs_of(Trajectory([]))),
        ("expected run directories; got Trajectory", lambda: runs_of([Trajectory([])])),
    )


# --- what a notebook shows --------------------------------------------------------------------------------------------


def test_a_run_and_its_trajectory_say_what_they_are(make_run, tmp_path):
    run = make_run("embeddings", 3, task="<b>toy")
    for told in ("finished", "tiny", "frozen: embeddings", "seed: 3", "accuracy on validation: 0.8"):
        assert told in repr(run)
    trajectory = run.trajectory
    assert repr(trajectory).startswith("Trajectory(snapshots: 4, epochs 0 to 3, word_embeddings: ")
    assert "&lt;b&gt;toy" in run._repr_html_()
    assert "<b>" not in run._repr_html_()
    assert trajectory._repr_html_().count("<tr>") == 1 + len(trajectory.parameters)


@pytest.mark.parametrize("name", ["config.json", "scores.csv", "manifest.json"])
def test_a_damaged_run_says_so_where_it_is_shown(make_run, name):
    run = make_run()
    (run.path / name).write_text("{")
    assert open_run(run.path).facts()["damaged"]
    for path in sorted(run.path.glob("*.*")):
        path.unlink()
    assert "unfinished" in repr(Run(run.path))
