"""A report replaces what an earlier one wrote into its folder, and touches nothing else there."""

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.refusals import check_refusals, check_refused
from tests.reporting.conftest import contents
from toolkit.reporting.folder import LOCK, WRITTEN, check_out, report_folder, written_files
from toolkit.snapshots import ownership
from toolkit.snapshots.files import sha256_of_file
from toolkit.snapshots.ownership import temporary_folder


def write(out: Path, texts: dict[str, str]) -> None:
    with report_folder(out) as folder:
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the test's report goes, in a temporary current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def refused_write(out: Path, said: str) -> None:
    """A report that is refused, and what lies in its folder stays as it was."""
    before = contents(out)
    check_refused(said, write, out, {"report.md": "refused"})
    assert contents(out) == before


def test_a_file_in_the_way_is_named_without_the_folders_of_a_machine(out: Path) -> None:
    out.mkdir()
    (out / "mine").write_text("")
    in_the_way = r"^out/mine is a file where the report's folder should go: pass another --out"
    check_refusals(
        (in_the_way, lambda: check_out(out / "mine")),
        (in_the_way, lambda: check_out(out / "mine" / "new" / "report")),
        (r"^out holds mine, and no files\.json of a report: pass another --out", lambda: check_out(out)),
    )
    check_out(out.parent / "new")


def test_files_are_replaced_removed_and_named(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(out, {"report.md": "1", "tables/b.csv": "2"})
    synced: list[tuple[Path, bool, bool]] = []
    monkeypatch.setattr(
        ownership,
        "sync",
        lambda path: synced.append((path, (out / "tables").exists(), '"before"' in (out / WRITTEN).read_text())),
    )
    write(out, {"report.md": "3"})
    assert (out, False, True) in synced, "after a power cut a removed file were back, and on no list"
    assert contents(out).keys() == {"report.md", WRITTEN}
    assert not (out / "tables").exists(), "an empty folder of the report's own"
    assert (out / "report.md").read_text() == "3"
    assert written_files(out) == {"report.md": sha256_of_file(out / "report.md")}


def test_what_somebody_changed_is_theirs(out: Path) -> None:
    write(out, {"report.md": "1", "tables/b.csv": "2"})
    (out / "tables/b.csv").write_text("edited")
    before = contents(out)
    for texts in ({"report.md": "1"}, {"report.md": "3", "tables/b.csv": "4"}):
        check_refused(r"^out holds tables/b\.csv, not as an earlier report wrote it: move that away", write, out, texts)
        assert contents(out) == before


def test_a_report_that_fails_leaves_the_folder_as_it_was(out: Path) -> None:
    write(out, {"report.md": "1", "index.html": "2"})
    before = contents(out)

    def fail(place: Path) -> None:
        with report_folder(place) as folder:
            (folder / "report.md").write_text("half")
            raise ValueError("no such task")

    new = out.parent / "new"
    check_refusals(("no such task", lambda: fail(out)), ("no such task", lambda: fail(new)))
    assert contents(out) == before
    assert not new.exists()


def write_killed(out: Path, texts: dict[str, str], num_moved: int) -> None:
    """A report that is killed when it has put so many of its files in place."""
    replace, moves = Path.replace, iter(range(num_moved))

    def killed(self: Path, target: Path) -> Path:
        if self.parent.name.startswith(".unfinished-") and next(moves, None) is None:
            raise KeyboardInterrupt
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed)
        write(out, texts)


def test_a_killed_report_leaves_nothing_for_the_next_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, {"report.md": "1"})
    (out / ".unfinished-x").mkdir()
    (out / ".unfinished-x" / "d").write_text("mine")
    with temporary_folder(out) as left:  # SIGKILL would leave what is copied here
        (left / "half").write_text("4")
        shutil.copytree(left, tmp_path / "left")
    shutil.copytree(tmp_path / "left", left)
    write(out, {"report.md": "5"})
    assert contents(out).keys() == {"report.md", WRITTEN, ".unfinished-x/d"}
    assert (out / ".unfinished-x" / "d").read_text() == "mine"


def test_two_reports_at_a_time_are_one_and_a_refusal(out: Path) -> None:
    with report_folder(out) as folder:
        (folder / "report.md").write_text("1")
        check_refused(r"^another process is writing .*out: wait until it has ended", write, out, {"report.md": "2"})
    assert contents(out).keys() == {"report.md", WRITTEN}
    assert (out / "report.md").read_text() == "1"


def test_a_folder_with_no_more_than_a_killed_reports_lock_takes_a_report(out: Path) -> None:
    out.mkdir()
    (out / LOCK).touch()
    write(out, {"report.md": "1"})
    assert contents(out).keys() == {"report.md", WRITTEN}
    (out / LOCK).write_text("mine")
    refused_write(out, r"it is not a lock file of this toolkit: move it away")


def test_a_list_of_another_tool_that_appears_meanwhile_is_not_replaced(out: Path) -> None:
    def write_both() -> None:
        with report_folder(out) as folder:
            (folder / "report.md").write_text("1")
            (out / WRITTEN).write_text("mine")

    check_refusals((r"files\.json is there already", write_both))
    assert contents(out) == {WRITTEN: b"mine"}


@pytest.mark.parametrize("num_moved", range(7))
def test_a_report_that_was_killed_again_and_again_is_made_in_the_end(num_moved: int, tmp_path: Path) -> None:
    """Killed after any number of its moves, twice, each time in another report: every file is still known as ours."""
    out = tmp_path / "out"
    write(out, {"report.md": "1", "index.html": "1", "tables/c.csv": "1"})
    (out / "mine").write_text("mine")
    for text in ("2", "3"):
        write_killed(out, {"report.md": text, "tables/c.csv": text, "figures/d.png": text}, num_moved)
    write(out, {"report.md": "4", "cards.json": "4"})
    assert contents(out).keys() == {"report.md", "cards.json", "mine", WRITTEN}
    assert written_files(out).keys() == {"report.md", "cards.json"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "files": 3}', '{"format": 99, "files": {"index.html": "x"}}']
)
def test_a_list_that_cannot_be_read_removes_nothing(out: Path, text: str) -> None:
    out.mkdir()
    (out / WRITTEN).write_text(text)
    (out / "index.html").write_text("x")
    refused_write(out, r"no files\.json of a report")
