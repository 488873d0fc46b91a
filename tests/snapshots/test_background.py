"""What is written while training goes on: in order, whole before the run is let go, and its error is not lost."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from toolkit.snapshots.run_writer import BackgroundWriter, start_run
from toolkit.snapshots.store import open_run, verify_run


def full_disk() -> None:
    raise OSError(28, "No space left on device")


def test_the_caller_goes_on_while_something_is_written() -> None:
    background, may_end = BackgroundWriter(), threading.Event()
    found: list[bool] = []
    background.start(lambda: found.append(may_end.wait(60)))  # False, a minute later, if nobody did
    background.check()  # which does not wait either
    may_end.set()
    background.wait()
    assert found == [True]


def test_things_are_written_one_after_the_other() -> None:
    background = BackgroundWriter()
    written: list[int] = []

    def write(number: int) -> None:
        time.sleep(0.01 * (3 - number))  # the first takes longest
        written.append(number)

    for number in range(3):
        background.start(lambda number=number: write(number))  # type: ignore[misc]
    background.wait()
    assert written == [0, 1, 2]


@pytest.mark.parametrize("call", ["check", "wait", "start"])
def test_an_error_comes_at_the_next_call_and_once(call: str) -> None:
    background = BackgroundWriter()
    background.start(full_disk)
    calls = {"check": background.check, "wait": background.wait, "start": lambda: background.start(full_disk)}
    while not (background._last and background._last.done()):
        time.sleep(0.001)
    with pytest.raises(OSError, match="No space left"):
        calls[call]()
    background.wait()  # nothing was started, and the error has been told


def test_a_run_is_neither_finished_nor_released_before_its_files_are_written(tmp_path: Path) -> None:
    for end in ("finish", "release"):
        writer, has_written = start_run(tmp_path / end), threading.Event()

        def write(has_written: threading.Event = has_written) -> None:
            time.sleep(0.2)
            has_written.set()

        writer.background.start(write)
        writer.finish({}) if end == "finish" else writer.release()
        assert has_written.is_set()


def test_a_run_whose_last_file_could_not_be_written_is_not_finished(tmp_path: Path) -> None:
    writer = start_run(tmp_path / "run")
    writer.background.start(full_disk)
    with pytest.raises(OSError, match="No space left"):
        writer.finish({})
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_the_manifest_holds_the_hash_of_each_file_as_it_was_written(tmp_path: Path) -> None:
    """A snapshot that changes before the run is finished is found out afterwards."""
    for damage in (False, True):
        writer = start_run(tmp_path / str(damage))
        path = writer.write_snapshot(0, 0, {"LayerNorm.bias": np.zeros(4, np.float32)})
        if damage:
            path.write_bytes(path.read_bytes()[:-1] + b"\1")
        writer.write_divergence("a file that is no snapshot")
        writer.finish({})
        assert (verify_run(writer.path) == []) == (not damage)
        assert list(open_run(writer.path).manifest["files"]) == ["diverged.json", "snapshots/epoch-000.safetensors"]
