"""A run that is started again or replaced: killed at any moment, a whole one is there, and nobody's file goes."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.planted_folder import contents
from tests.refusals import check_refusals
from toolkit.config import RunConfig
from toolkit.reporting.folder import check_out
from toolkit.snapshots.ownership import (
    JOURNAL,
    MANIFEST,
    WRITTEN,
    Owned,
    atomic_path,
    check_replaceable,
    read_list,
    seal,
    sha256_of_file,
)
from toolkit.snapshots.run_writer import RunWriter, check_startable, start_run
from toolkit.snapshots.store import open_run, verify_run
from toolkit.snapshots.unfinished import RunLock, try_lock

KILLED = 9
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def write_run(path: Path, value: float, *, overwrite: bool = False) -> RunWriter:
    """A whole run of two snapshots and a model, of which one file is taken away again."""
    writer = start_run(path, overwrite=overwrite)
    writer.write_config(RunConfig())
    for epoch in range(2):
        writer.write_snapshot(epoch, epoch, {"LayerNorm.bias": np.full(4, value + epoch, np.float32)})
    writer.write_snapshot(2, 2, {"LayerNorm.bias": np.zeros(4, np.float32)})
    writer.discard_snapshot(2, 2)

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(str(value))
        (folder / "more").mkdir()
        (folder / "more" / "tokenizer.json").write_text("{}")

    writer.write_folder("model", write)
    writer.finish({"value": value})
    return writer


def check_refused_and_untouched(folder: Path, *cases: tuple[str, Callable[[], object]]) -> None:
    """Each call ends in a refusal that says so, and all that lies below the folder is as it was."""
    before = contents(folder)
    check_refusals(*cases)
    assert contents(folder) == before


def starts(said: str, path: Path, *, overwrite: bool = True) -> list[tuple[str, Callable[[], object]]]:
    """Cases of a refusal: a run is started there, and it is asked whether one could be."""
    return [(said, partial(start, path, overwrite=overwrite)) for start in (start_run, check_startable)]


def run_killed(change: Callable[[], object], num_changes: int) -> bool:
    """Call ``change`` in a process that is gone before its next change of a file; whether it was killed."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == KILLED
    count = iter(range(num_changes))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        is_written = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (event in CHANGES or is_written) and next(count, None) is None:
            os._exit(KILLED)

    try:
        sys.addaudithook(hook)
        change()
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks of this process")
@pytest.mark.slow  # a process for each moment
@pytest.mark.parametrize("has_old", [False, True])
def test_a_run_that_is_killed_at_any_moment_leaves_the_old_one_whole_and_starts_again(
    has_old: bool, tmp_path: Path
) -> None:
    write_run(tmp_path / "old", 1.0)
    num_changes, seen = 0, set[float]()
    while True:
        folder = tmp_path / str(num_changes)
        folder.mkdir()
        path = folder / "run"
        if has_old:
            shutil.copytree(tmp_path / "old", path)
        was_killed = run_killed(lambda path=path: write_run(path, 2.0, overwrite=has_old), num_changes)
        whole = [place for place in (path, folder / ".run.swap" / "new") if (place / MANIFEST).exists()]
        assert all(verify_run(place) == [] for place in whole)
        assert whole or not has_old
        seen |= {open_run(place).manifest["value"] for place in whole}
        if not was_killed:
            break
        # The same command again; it may have been killed when all was done.
        is_done = not has_old and path in whole
        with pytest.raises(ValueError, match="holds a finished run") if is_done else contextlib.nullcontext():
            write_run(path, 3.0, overwrite=has_old)
        assert verify_run(path) == []
        assert [place.name for place in folder.iterdir()] == ["run"]
        num_changes += 1
    assert num_changes > 30
    assert seen == ({1.0, 2.0} if has_old else {2.0})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks of this process")
def test_what_a_user_adds_meanwhile_survives_every_kill(tmp_path: Path) -> None:
    """A note in the folder of a killed run keeps it from being started again: nothing of either is removed."""
    for num_changes in range(0, 30, 3):
        path = tmp_path / str(num_changes) / "run"
        assert run_killed(lambda path=path: write_run(path, 1.0), num_changes)
        path.mkdir(exist_ok=True, parents=True)
        (path / "notes.txt").write_text("mine")
        said = r"holds .*notes\.txt"
        check_refused_and_untouched(path, *starts(said, path), *starts(said, path, overwrite=False))


def put_behind_a_link(place: Path) -> None:
    place.symlink_to(place.rename(place.parents[1] / place.name))


OF_A_USERS: dict[str, Callable[[Path], object]] = {
    "added": lambda run: (run / "notes.txt").write_text("mine"),
    "changed": lambda run: (run / "config.json").write_text('{"mine": 1}'),
    "link": lambda run: put_behind_a_link(run / "config.json"),
    "folder": lambda run: (run / "snapshots" / "kept").mkdir(),
    "link of a folder": lambda run: put_behind_a_link(run / "snapshots"),
    "manifest of another tool": lambda run: (run / MANIFEST).write_text('{"format": 1, "files": ["app.js"]}'),
}


@pytest.mark.parametrize("kind", OF_A_USERS)
def test_a_finished_run_with_something_of_a_users_is_not_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, 1.0)
    OF_A_USERS[kind](path)
    check_refused_and_untouched(tmp_path, *starts(r"; nothing there was touched$", path))


def test_an_unfinished_run_is_removed_by_its_own_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    writer = start_run(path)
    writer.write_config(RunConfig())
    writer.release()
    assert list(read_list(path, JOURNAL).files) == ["config.json"]
    (path / "snapshots").mkdir()
    (path / "snapshots" / "epoch-000.safetensors").write_text("mine, for all that anybody knows")
    check_refusals(("holds snapshots/, which its run did not write", lambda: start_run(path)))
    (path / "snapshots" / "epoch-000.safetensors").unlink()
    (path / "snapshots").rmdir()
    start_run(path).release()
    assert not list(path.iterdir())


def test_what_no_list_names_is_left_alone(tmp_path: Path) -> None:
    """Nothing says that its files are a run's: config.json is also what every model has."""
    write_run(tmp_path / "run", 1.0)
    (tmp_path / "run" / MANIFEST).unlink()
    check_refused_and_untouched(
        tmp_path, (r"holds no run, but config\.json.*; nothing there was touched$", lambda: start_run(tmp_path / "run"))
    )


def test_a_file_that_appears_while_a_run_is_written_is_neither_replaced_nor_its_own(tmp_path: Path) -> None:
    writer = start_run(tmp_path / "run")
    (writer.path / JOURNAL).write_text("mine")
    check_refusals((r"unfinished\.json is there already", lambda: writer.write_config(RunConfig())))
    (writer.path / JOURNAL).unlink()
    writer.write_config(RunConfig())
    for name in ("notes.txt", "scores.csv"):
        (writer.path / name).write_text("mine")
    check_refusals((r"scores\.csv is there already", lambda: writer._own("scores.csv")))
    writer.finish({})
    assert list(open_run(writer.path).manifest["files"]) == ["config.json"]
    assert (writer.path / "scores.csv").read_text() == (writer.path / "notes.txt").read_text() == "mine"


def test_an_old_run_that_is_changed_while_its_successor_is_written_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, 1.0)
    writer = start_run(path, overwrite=True)
    writer.write_config(RunConfig())
    (path / "notes.txt").write_text("mine")
    with pytest.warns(
        UserWarning, match=r"notes\.txt was not written by the run that was replaced: it is kept in .*\.run\.replaced-1"
    ):
        writer.finish({"value": 2.0})
    assert (open_run(path).manifest["value"], writer.path) == (2.0, path)
    assert (tmp_path / ".run.replaced-1/notes.txt").read_text() == "mine"
    assert open_run(tmp_path / ".run.replaced-1").manifest["value"] == 1.0
    assert sorted(place.name for place in tmp_path.iterdir()) == [".run.replaced-1", "run"]


def add_notes(place: Path) -> None:
    place.mkdir(exist_ok=True)
    (place / "notes.txt").write_text("mine")


IN_THE_WAY: dict[str, Callable[[Path], object]] = {
    "notes": add_notes,
    "a copy of the run": lambda place: shutil.copytree(place.with_name("run"), place),
    "notes in one of ours": lambda place: (
        start_run(place.with_name("run"), overwrite=True).release(),
        add_notes(place),
    ),
}


@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_a_folder_of_a_users_beside_a_run_is_not_taken_for_its_successor(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, 1.0)
    IN_THE_WAY[kind](tmp_path / ".run.swap")
    cases = starts("holds a finished run", path, overwrite=False)
    check_refused_and_untouched(tmp_path, *cases, *starts(r"\.run\.swap is in the way .*move it away", path))


@pytest.mark.parametrize("name", [".run.old", ".run.new", ".run.bak"])
def test_a_users_copy_of_a_run_beside_it_outlives_the_run(name: str, tmp_path: Path) -> None:
    """Every file in it is one that its manifest names; it is the user's all the same."""
    path = tmp_path / "run"
    write_run(path, 1.0)
    shutil.copytree(path, tmp_path / name)
    before = contents(tmp_path / name)
    check_refused_and_untouched(tmp_path, ("holds a finished run", lambda: start_run(path)))
    write_run(path, 2.0, overwrite=True)
    assert (open_run(path).manifest["value"], contents(tmp_path / name)) == (2.0, before)


def test_a_run_has_one_lock_through_every_link(tmp_path: Path) -> None:
    writer = start_run(tmp_path / "real")
    writer.write_config(RunConfig())
    writer.release()
    (tmp_path / "link").symlink_to("real")
    with (tmp_path / ".real.lock").open("wb") as held:
        assert try_lock(held)
        said = r"another process is writing .*link"
        check_refused_and_untouched(tmp_path, (said, lambda: start_run(tmp_path / "link")))
    start_run(tmp_path / "link").release()


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_lies_in_no_other(is_finished: bool, tmp_path: Path) -> None:
    """The outer one's manifest does not name it, so that its reader would refuse both."""
    outer = start_run(tmp_path / "outer")
    outer.write_config(RunConfig())
    if is_finished:
        outer.finish({})
    (tmp_path / "link").symlink_to("outer")
    for place in (outer.path / "inner", outer.path / "more" / "inner", tmp_path / "link" / "inner"):
        check_refused_and_untouched(tmp_path, *starts(r"inner would lie inside the run .*outer: pass another", place))


def test_a_run_is_written_where_it_was_started_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        write_run(Path("run"), 1.0)
    there = contents(tmp_path / "there")
    for overwrite in (True, False):
        monkeypatch.chdir(tmp_path / "here")
        writer = start_run(Path("run" if overwrite else "other"), overwrite=overwrite)
        writer.write_config(RunConfig())
        monkeypatch.chdir(tmp_path / "there")
        writer.write_config(RunConfig(seed=1))
        writer.finish({"value": 2.0})
        assert (open_run(writer.path).manifest["value"], contents(tmp_path / "there")) == (2.0, there)


NO_LOCKS: dict[str, Callable[[Path], object]] = {
    "diary": lambda place: place.write_text("mine"),
    "link": lambda place: place.symlink_to("mine"),
    "folder": lambda place: place.mkdir(),
}


@pytest.mark.parametrize("kind", NO_LOCKS)
def test_a_file_of_a_users_is_no_lock(kind: str, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    NO_LOCKS[kind](tmp_path / ".run.lock")
    check_refused_and_untouched(tmp_path, ("move it away", lambda: RunLock(tmp_path / "run")))


OURS = {MANIFEST: "model/vocab.txt", JOURNAL: "snapshots/epoch-000.safetensors", WRITTEN: "tables/runs.csv"}


@pytest.mark.parametrize(
    "name",
    [
        *("thesis.tex", "model.txt", "data/train.csv", "tables", "tables/mine.xlsx", "figures/deep/x.png", ".git/HEAD"),
        *("../a", "/a", "tables/../../a", "model/../../a", "", ".", "model//a", "snapshots/../config.json"),
    ],
)
@pytest.mark.parametrize("list_name", OURS)
def test_a_list_that_names_what_no_command_writes_is_none_of_ours(name: str, list_name: str, tmp_path: Path) -> None:
    """Its own sha256 holds: whoever made it up can compute that."""
    (tmp_path / list_name).write_text(seal({"files": {OURS[list_name]: 64 * "0"}}))
    assert read_list(tmp_path, list_name) is not None
    (tmp_path / list_name).write_text(seal({"files": {OURS[list_name]: 64 * "0", name: 64 * "0"}}))
    assert read_list(tmp_path, list_name) is None


@pytest.mark.parametrize("list_name", OURS)
def test_a_list_that_was_edited_is_none_of_ours(list_name: str, tmp_path: Path) -> None:
    (tmp_path / list_name).write_text(seal({"files": {OURS[list_name]: 64 * "0"}}).replace(64 * "0", 64 * "1", 1))
    assert read_list(tmp_path, list_name) is None


def test_a_forged_list_removes_nothing_of_a_users(tmp_path: Path) -> None:
    """It came with the folder, and gives the right sha256 of a file of the user's, who trains and reports into it."""
    for list_name in OURS:
        folder = tmp_path / list_name
        folder.mkdir()
        (folder / "thesis.tex").write_text("mine")
        digest = sha256_of_file(folder / "thesis.tex")
        (folder / list_name).write_text(seal({"files": {OURS[list_name]: 64 * "0", "thesis.tex": digest}}))
        cases = (*starts("thesis.tex", folder), ("thesis.tex", partial(check_out, folder)))
        check_refused_and_untouched(tmp_path, *cases)


def test_only_a_run_that_is_being_written_names_files_without_their_content(tmp_path: Path) -> None:
    for list_name, name in OURS.items():
        (tmp_path / list_name).write_text(seal({"files": {name: None}}))
        assert (read_list(tmp_path, list_name) is not None) == (list_name == JOURNAL)
    (tmp_path / "snapshots").mkdir()
    (path := tmp_path / OURS[JOURNAL]).write_text("any")
    check_replaceable(path, read_list(tmp_path, JOURNAL))
    check_refusals(("is there already", lambda: check_replaceable(path)))


def test_a_file_that_another_thread_writes_while_one_looks_is_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked for after it had been asked whether it is ours: threads met it once in half an hour under load."""
    owned, holds = Owned(tmp_path, JOURNAL, {"a.json": ()}), Owned.holds

    def hold_and_write(owned: Owned, path: Path) -> bool:
        found = holds(owned, path)
        path.write_text("another's")
        return found

    monkeypatch.setattr(Owned, "holds", hold_and_write)
    check_replaceable(tmp_path / "a.json", owned)


def test_threads_that_write_one_file_leave_it_whole_and_no_error(tmp_path: Path) -> None:
    """One's clean-up took the other's temporary file of the same name away: a run that diverged lost its last word."""
    owned = Owned(tmp_path, JOURNAL, {"a.json": ()})

    def write(number: int) -> None:
        for _ in range(60):
            with atomic_path(tmp_path / "a.json", owned) as temporary:
                temporary.write_text(str(number))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write, number) for number in range(4)]:
            done.result()
    assert (tmp_path / "a.json").read_text() in "0123"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
