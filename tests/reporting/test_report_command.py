"""The command that a report prints makes the same report again: the same runs, and no other ones."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from toolkit.cli import main
from toolkit.comparison.verify import verify_report
from toolkit.reporting.comparison.report import write_report

pytestmark = pytest.mark.usefixtures("undrawn")


def printed(out: str) -> str:
    """The report's own command in the text of a report."""
    return re.search(r"^python -m toolkit report .*$", Path(out, "report.md").read_text(), re.M)[0]


def repeat(out: str) -> None:
    """Let a shell expand the printed command, and carry it out into the folder "again"."""
    words = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {printed(out)}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[3:]
    words[words.index("--out") + 1] = "again"
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0


@pytest.fixture
def runs(make_run, monkeypatch):
    """More than are listed, which is few here: two regimes, one of them with two seeds."""
    monkeypatch.setattr("toolkit.reporting.comparison.again.MANY_RUNS", 2)
    made = [make_run("backbone", 0, right=0.6), make_run("none", 0, right=0.9), make_run("none", 2)]
    return sorted(made, key=lambda run: run.path.name)


def test_alone_in_their_folder_they_are_a_pattern(runs):
    write_report([run.path for run in runs], "out", margin_points=2.5, question="Why not?", title="Two regimes")
    assert printed("out").split(" --out")[0] == "python -m toolkit report runs/*"
    repeat("out")
    assert Path("again/cards.json").read_bytes() == Path("out/cards.json").read_bytes()


def test_beside_other_runs_the_pattern_is_of_these_only(runs, make_run):
    """A run of another model in the same folder would be a group of its own in the repeated report."""
    make_run(model="other")
    write_report([run.path for run in runs], "out")
    assert printed("out").split(" --out")[0] == "python -m toolkit report runs/tiny_toy_freeze-*"
    repeat("out")
    assert Path("again/cards.json").read_bytes() == Path("out/cards.json").read_bytes()


def test_among_other_runs_they_are_listed(runs, make_run):
    """One more seed of the same arm lies between them: no pattern tells these from it."""
    make_run("none", 1)
    write_report([run.path for run in runs], "out")
    assert shlex.split(printed("out"))[4:-2] == [f"runs/{run.path.name}" for run in runs]
    repeat("out")
    assert Path("again/cards.json").read_bytes() == Path("out/cards.json").read_bytes()


def test_an_unfinished_run_or_another_order_is_no_pattern(runs, make_run):
    make_run("none", 8, is_finished=False)
    write_report([run.path for run in runs], "out")
    assert "*" not in printed("out")
    write_report([run.path for run in runs[::-1]], "out")
    assert "*" not in printed("out")


def test_what_a_shell_would_take_apart_is_quoted(runs):
    Path("runs").rename("my runs; [x]")
    write_report(sorted(Path("my runs; [x]").iterdir()), "out")
    assert printed("out").split(" --out")[0] == "python -m toolkit report 'my runs; [x]'/*"
    repeat("out")
    assert Path("again/cards.json").read_bytes() == Path("out/cards.json").read_bytes()


def test_few_runs_are_listed_and_what_no_flag_says_is_said(runs):
    text = write_report(runs[:2], "out").read_text()
    assert printed("out").startswith(f"python -m toolkit report runs/{runs[0].path.name} runs/")
    assert "named in Python" not in text
    labels = {run.path.name: f"arm {i}" for i, run in enumerate(runs[:2])}
    assert "# arms or pairs were named in Python" in write_report(runs[:2], "out", labels=labels).read_text()


def test_a_folder_of_runs_is_told_how_to_be_passed(runs, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["report", "runs", "--out", "r"])
    assert stop.value.code == 2
    assert "runs holds 3 run directories: pass runs/*\n" in capsys.readouterr().err
    others = [Path(f"{number}.txt") for number in range(5)]
    for other in others:
        other.touch()
    with pytest.raises(ValueError, match=r"So are 3 more\. runs holds 3 run directories: pass runs/\*$"):
        write_report([*others, "runs"], "r")  # wherever in the list it stands
    with pytest.raises(ValueError, match="expected a list of run directories; got runs alone"):
        write_report("runs", "r")
    assert not Path("r").exists()


def test_a_report_as_it_was_written_passes_and_an_edited_page_does_not(runs):
    write_report(runs, "out")
    assert verify_report("out") == []
    with Path("out/index.html").open("a") as file:
        file.write(" ")
    assert verify_report("out") == ["changed: index.html"]
