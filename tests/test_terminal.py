"""What a terminal is given: no text of a user's data, files or checkpoints can give it a command."""

import re
import sys
import warnings
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tests.refusals import leave
from toolkit.cli import finetune_main, guarded, main
from toolkit.config import RunConfig
from toolkit.progress import open_console

EVIL = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\u2066\x9b31m"
COMMANDS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Controls of both sets, marks and overrides of direction, breaks: all but the line feed."""


@given(st.text(st.one_of(st.sampled_from(EVIL + "ab \t\r\n"), st.characters()), max_size=30))
def test_no_text_reaches_a_console_as_a_command(text: str) -> None:
    console = open_console()
    console.file = StringIO()
    table = Table("column", title=escape(text.strip() or "title"))
    table.add_row(Text(text))
    for shown in (Text(text), escape(text), table):
        console.print(shown)
    assert not COMMANDS.search(console.file.getvalue())


def test_richs_own_commands_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = open_console()
    console.file = StringIO()
    console.print(Text("red", style="red"))
    assert "\x1b[31mred\x1b[0m" in console.file.getvalue()


def test_errors_and_warnings_are_one_visible_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        # As Python does with a warning; pytest keeps those of a test to itself.
        sys.stderr.write(warnings.formatwarning(f"two\nlines of {EVIL}", UserWarning, "file.py", 1))
        raise ValueError(f"no file {EVIL}\nhere")

    assert guarded(fail) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" U+")[0] for line in lines] == ["warning: two lines of", "error: no file"]
    assert not any(COMMANDS.search(line) for line in lines)


def test_commands_show_names_of_data_without_their_commands(
    tiny_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A label, a file's name and a folder's name; the run, its drift, its report and its check."""
    data = tmp_path / f"data{EVIL.replace('/', '')}.tsv"
    rows = [f"good film {i}\t{'fine' if i % 2 else EVIL}" for i in range(12)]
    data.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    runs, out = tmp_path / "runs", tmp_path / f"report {EVIL}"
    flags = ["--model", tiny_config.model, "--train-file", str(data), "--validation-file", str(data)]
    flags += ["--epochs", "1", "--max-length", "40", "--precision", "no", "--output-dir", str(runs)]
    assert not leave(finetune_main, flags)
    (run,) = runs.iterdir()
    for command in (["report", str(run), "--out", str(out)], ["drift", str(run)], ["verify", str(run), str(out)]):
        assert not leave(main, command), command
    assert leave(main, ["verify", str(tmp_path / EVIL)]) == 2
    printed = capsys.readouterr()
    assert "texts: text; labels: label, 2 classes (" in printed.out
    for text in printed:
        assert "gnp.exe" in text
        found = COMMANDS.search(text := text.replace("\r", ""))  # with which progress bars return
        assert not found, text[max(0, found.start() - 200) : found.end() + 20]
