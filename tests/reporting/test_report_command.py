"""The command that a report prints makes the same report again: the same runs, and no other ones."""

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.refusals import check_refusals
from toolkit.cli import main
from toolkit.comparison.verify import check_report, verify_report
from toolkit.naming import command_path
from toolkit.pipeline import finetune
from toolkit.reporting.comparison_report import write_report

pytestmark = pytest.mark.usefixtures("undrawn")


def printed(out: str) -> str:
    """The report's own command in the text of a report."""
    return command_in(Path(out, "report.md").read_text())


def command_in(text: str) -> str:
    return re.search(r"^python -m toolkit report .*$", text, re.M)[0]


def expanded(command: str) -> list[str]:
    """A printed command as a shell reads it, from "report" on."""
    return subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[3:]


def repeat(out: str) -> None:
    """Carry out the printed command, into the folder "again"."""
    words = expanded(printed(out))
    words[words.index("--out") + 1] = "again"
    with pytest.raises(SystemExit, match="0"):
        main(words)


@pytest.fixture
def runs(make_run, monkeypatch):
    """More than are listed, which is few here: two regimes, one of them with two seeds."""
    monkeypatch.setattr("toolkit.reporting.comparison_report.MANY_RUNS", 2)
    made = [make_run("backbone", 0, right=0.6), make_run("none", 0, right=0.9), make_run("none", 2)]
    return sorted(made, key=lambda run: run.path.name)


def test_alone_in_their_folder_they_are_a_pattern(runs):
    write_report([run.path for run in runs], "out", margin_points=2.5, question="Why not?", title="Two regimes")
    assert printed("out").split(" --out")[0] == "python -m toolkit report runs/*"
    repeat("out")
    assert Path("again/cards.json").read_bytes() == Path("out/cards.json").read_bytes()


def commands(runs, out="out", **options) -> tuple[str, str, list[str]]:
    """What a report would say of how it was made, its own command there and what a shell makes of that."""
    with patch("toolkit.reporting.comparison_report.publish_evidence", lambda evidence, *_: evidence.page["command"]):
        text = write_report(runs, out, **options)
    return text, command_in(text), expanded(command_in(text))


def test_among_other_runs_they_are_listed(runs, make_run):
    """One more seed of the same condition lies between them: no pattern tells these from it."""
    make_run("none", 1)
    _, own, words = commands(runs)
    paths = [f"runs/{run.path.name}" for run in runs]
    assert shlex.split(own)[4:-2] == paths
    assert words == ["report", *paths, "--out", "out"]


def test_a_pattern_is_quoted(runs):
    places = [Path("runs").rename("my runs; [x]") / run.path.name for run in runs[:1]]
    places += [places[0].parent / run.path.name for run in runs[1:]]
    _, own, words = commands(places)
    assert own.split(" --out")[0] == "python -m toolkit report 'my runs; [x]'/*"
    assert words == ["report", *map(str, places), "--out", "out"]


def test_an_unfinished_run_or_another_order_is_no_pattern(runs, make_run):
    make_run("none", 8, is_finished=False)
    for order in (1, -1):
        assert "*" not in commands(runs[::order])[1]


def test_few_runs_are_listed_and_what_no_flag_says_is_said(runs):
    text, own, _ = commands(runs[:2])
    assert own.startswith(f"python -m toolkit report runs/{runs[0].path.name} runs/")
    assert "named in Python" not in text
    labels = {run.path.name: f"condition {i}" for i, run in enumerate(runs[:2])}
    assert "# conditions or pairs were named in Python" in commands(runs[:2], labels=labels)[0]


def test_a_folder_of_runs_is_told_how_to_be_passed(runs, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["report", "runs", "--out", "r"])
    assert "runs holds 3 run directories: pass runs/*\n" in capsys.readouterr().err
    others = [Path(f"{number}.txt") for number in range(5)]
    for other in others:
        other.touch()
    told = r"So are 3 more\. runs holds 3 run directories: pass runs/\*$"
    check_refusals(
        (told, lambda: write_report([*others, "runs"], "r")),  # wherever in the list it stands
        ("expected a list of run directories; got runs alone", lambda: write_report("runs", "r")),
    )
    assert not Path("r").exists()


def test_a_report_by_another_score_says_so_and_is_made_again_from_its_evidence(make_run):
    runs = [make_run(r, s, is_regression=True).path for r in ("none", "backbone") for s in range(3)]
    with pytest.raises(SystemExit, match="0"):
        main(["report", *map(str, runs), "--out", "out", "--score", "spearman"])
    assert printed("out").endswith("--score spearman")
    assert "spearman" in Path("out/report.md").read_text()
    found = check_report("out")
    assert (found.num_runs, found.differences, verify_report("out")) == (6, [], [])
    with pytest.raises(SystemExit, match="0"):
        main(["report", "--from", "out", "--out", "again"])
    assert Path("again/cards.json").read_text() == Path("out/cards.json").read_text()


def test_a_report_of_which_some_tasks_have_the_score_is_verified(make_run):
    """Also where only runs of the others are at hand; a score that somebody edits in is a difference and no failure."""
    paths = [make_run(r, s).path for r in ("none", "backbone") for s in range(2)]
    tuned = [make_run(r, s, task="other", is_regression=True).path for r in ("none", "backbone") for s in range(2)]
    write_report([*paths, *tuned], "out", score="spearman")
    found = [check_report("out")]
    for path in tuned:
        shutil.rmtree(path)
    found.append(check_report("out"))
    assert [(each.differences, each.num_runs) for each in found] == [([], 8), ([], 4)]
    place = Path("out/evidence/settings.json")
    settings = json.loads(place.read_text())
    for wrong in ("loss", 3, ["accuracy"]):
        place.write_text(json.dumps(settings | {"score": wrong}))
        lines = verify_report("out")
        assert lines[0] == "changed: evidence/settings.json"
        assert any(line.startswith("not all could be recomputed: ") for line in lines)


def carry_out(text: str) -> list[str]:
    """Give the commands of a report, in this process, from where we are; their first words."""
    said = []
    for words in map(shlex.split, re.findall("^[^#].*$", text, re.M)):
        start = 4 if words[0] == "accelerate" else 3
        said.append(shlex.join(words[: start + 1]))
        with pytest.raises(SystemExit, match="0"):
            main(words[start:])
    return said


@pytest.mark.slow  # whole reports
def test_the_printed_commands_make_runs_and_report_again(tiny_config, tmp_path, monkeypatch):
    """From a folder that is not the repository's, with runs beside it and data given by absolute paths."""
    here = tmp_path / "work"
    here.mkdir()
    monkeypatch.chdir(here)
    data = shutil.copytree(Path(tiny_config.train_file).parent, tmp_path / "data")
    files = {"train_file": str(data / "train.tsv"), "validation_file": str(data / "validation.tsv")}
    shutil.copytree(tiny_config.model, tmp_path / "models" / "tiny")
    files |= {"test_file": (), "ood_file": (f"far={data / 'ood.tsv'}",), "model": "../models/tiny"}
    config = replace(tiny_config, **files, output_dir=str(tmp_path / "my runs"))
    runs = [finetune(replace(config, seed=seed)) for seed in (0, 1)]
    text = write_report([run.path for run in runs], "out", title="Two seeds").path.read_text()
    assert str(tmp_path) not in text
    (own,) = re.findall(r"```bash\n(# in the folder in which this report was made.*?)\n```", text, re.S)
    shutil.move(tmp_path / "my runs", tmp_path / "former")
    shutil.move("out", "was")
    assert carry_out(own) == ["accelerate launch --module toolkit finetune"] * 2 + ["python -m toolkit report"]
    assert [line.split(":")[0] for line in verify_report("out")] == []
    for name in ("scores.csv", "drift.csv"):
        assert Path("out/evidence", name).read_bytes() == Path("was/evidence", name).read_bytes()


@pytest.mark.parametrize(
    ("place", "path", "shown"),
    [
        ("a/b", "a/b/runs/x", "runs/x"),
        ("a/b", "a/b", "."),
        ("a/b", "a/runs", "../runs"),
        ("a/b", "c/runs", "../../c/runs"),
        ("a/b/c", "d/runs", "runs"),  # too far up
        (".", "/secret/place/runs", "runs"),
    ],
)
def test_a_path_of_a_command_is_found_from_the_folder_that_it_is_given_in(place, path, shown, tmp_path, monkeypatch):
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / place)
    assert command_path(tmp_path / path) == shown
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "somebody")
    assert command_path(tmp_path / "another" / "runs") == ("another/runs" if place == "." else "runs")


def test_commands_of_the_repository_say_so_and_where_in_it(make_run, tmp_path, monkeypatch):
    run = make_run()
    outside = commands([run.path])[0]
    assert outside.startswith("# in the folder in which this report was made")
    assert "\naccelerate launch --module toolkit finetune --" in outside
    (tmp_path / "finetune.py").touch()
    (tmp_path / "toolkit").mkdir()
    root = "# in the root of the repository\naccelerate launch finetune.py --"
    assert commands([run.path])[0].startswith(root)
    monkeypatch.chdir(tmp_path / "runs")
    text = commands([run.path], "../out")[0]
    assert text.startswith("# in runs of the repository\naccelerate launch --module toolkit finetune --")
    assert f" --output-dir .\npython -m toolkit report {run.path.name} --out ../out" in text
