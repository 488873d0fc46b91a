"""What a terminal is given: no text of a user's data, files or checkpoints can give it a command."""

import io
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
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
from toolkit.reporting.comparison_report import write_tables
from toolkit.reporting.folder import write_csvs

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


def test_no_table_of_a_report_begins_a_formula(tmp_path: Path) -> None:
    table = pd.DataFrame({"condition": ["=HYPERLINK(1)", "@SUM(1)", "fine"], "value": [-1.0, 2.0, 3.0]})
    write_tables(tmp_path / "report", {"runs": table}, "title")
    write_csvs(tmp_path / "others", {"runs": table})
    for folder in tmp_path.iterdir():
        assert [line[0] for line in (folder / "runs.csv").read_text().splitlines()[1:]] == ["'", "'", "f"], folder


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


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 3906816 bytes."),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_too_little_memory_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(Mock(side_effect=error)) == 2
    assert capsys.readouterr().err == f"error: out of memory: {error}\n"


@pytest.mark.usefixtures("undrawn")
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


def numbers_of(entry: Callable[[list[str]], object], words: list[str], encoding: str) -> list[str]:
    """Every number that a command prints on a terminal with such letters, but for its seconds."""
    stream = io.TextIOWrapper(raw := io.BytesIO(), encoding, write_through=True)
    with redirect_stdout(stream):
        assert not leave(entry, words)
    text = re.sub(r"Took \S+|\\u[0-9a-f]{4}|\\x[0-9a-f]{2}", "", raw.getvalue().decode(encoding))
    return re.findall(r"\d[\d.,]*", text)


@pytest.mark.usefixtures("undrawn")
def test_a_terminal_that_lacks_letters_gets_every_number(tiny_config: RunConfig, tmp_path: Path) -> None:
    data, runs = tmp_path / "dät.tsv", tmp_path / "runs"
    data.write_text("text\tlabel\n" + "".join(f"good film {i}\t{'öχ'[i % 2]}\n" for i in range(12)), encoding="utf-8")
    flags = ["--model", tiny_config.model, "--train-file", str(data), "--validation-file", str(data), "--overwrite"]
    flags += ["--epochs", "1", "--max-length", "40", "--precision", "no", "--output-dir", str(runs)]
    for name in ("finetune", "drift", "report", "verify"):
        out = ["--out", str(tmp_path / "Übersicht")] if name == "report" else []
        words = flags if name == "finetune" else [name, *map(str, runs.iterdir()), *out]
        entry = finetune_main if name == "finetune" else main
        assert numbers_of(entry, words, "ascii") == numbers_of(entry, words, "utf-8") != [], name
