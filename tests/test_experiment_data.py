"""The data of the experiments are known by source, licence and sha256, written once, and all of them say where."""

import ast
import hashlib
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.questions import QUESTIONS

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
TABLE = EXPERIMENTS / "data.sha256"


def listed() -> dict[str, str]:
    """File to sha256, as ``sha256sum --check`` reads the table."""
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    pairs = [re.fullmatch(r"([0-9a-f]{64})  ((?:\w+/)+\w+\.tsv)", line) for line in lines]
    assert all(pairs)
    found = {pair[2]: pair[1] for pair in pairs if pair}
    assert len(found) == len(lines)
    return found


def scripts() -> list[Path]:
    return sorted(EXPERIMENTS.rglob("*.py"))


def is_served(path: Path) -> bool:
    """Whether the questions that a script asks are there: one that is deleted takes its experiments along."""
    return set(re.findall(r"toolkit\.questions\.(\w+)", path.read_text())) <= {*QUESTIONS, "models", "drift_report"}


def test_every_data_set_has_source_licence_and_how_it_is_made() -> None:
    comments = "\n".join(line for line in TABLE.read_text().splitlines() if line.startswith("#"))
    for name in {path.split("/")[0] for path in listed()}:
        own = re.search(rf"^# (?:\w+, )*{name}(?:, \w+)*: (.*?)(?=^# \S|\Z)", comments, re.M | re.S)
        assert own, name
        for word in ("source ", "made ", "licence "):
            assert f"#   {word}" in own[1], (name, word)


def test_every_file_that_an_experiment_reads_is_listed() -> None:
    known = listed()
    seen = set()
    for path in scripts():
        for found in re.findall(r"((?:\w+/)+\w+\.tsv)\b", path.read_text()):
            if found.split("/")[0] in {name.split("/")[0] for name in known}:
                assert found in known, f"{path.name}: {found}"
                seen.add(found)
    assert seen == set(known), "a file that nothing reads"


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.name)
def test_every_experiment_on_such_data_names_the_table(path: Path) -> None:
    text = path.read_text()
    if "shared/data" in text:
        assert "experiments/data.sha256" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum here")
def test_the_command_of_the_table_finds_a_changed_file(tmp_path: Path) -> None:
    """Its own form, with comments, on files of ours: those of the data sets are not part of the repository."""
    text = TABLE.read_text()
    for i, (name, sha256) in enumerate(listed().items()):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"file {i}\n")
        text = text.replace(sha256, hashlib.sha256(file.read_bytes()).hexdigest())
    (tmp_path / "table").write_text(text)

    def check() -> int:
        return subprocess.run(["sha256sum", "--check", "--quiet", "table"], cwd=tmp_path, check=False).returncode

    assert check() == 0
    file.write_text("another\n")
    assert check() != 0


WORDS = {
    "benchmarks/heads": (),
    "layer_drift": ("--out", "report"),
    "learning_rates": ("runs",),
    "position_tables": ("runs",),
    "raw_bert": ("--wheel", "nowhere.whl"),
    "reliability/own_features": (),
    "shuffled_labels": ("--out", "report"),
    "sst2_three_regimes": ("--data", "nowhere", "--out", "report"),
    "transplants": ("--data", "nowhere", "--out", "report"),
    "weight_drift": ("--out", "report"),
    "where_position_goes": ("--out", "report"),
}
"""How a script that reads data is called."""
SERVED = [name for name in WORDS if is_served(EXPERIMENTS / f"{name}.py")]


def run_script(name: str, patch: pytest.MonkeyPatch) -> object:
    """In this process, as from the command line; the exit code."""
    patch.setattr(sys, "argv", [f"{name}.py", *WORDS[name]])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(EXPERIMENTS / f"{name}.py"), run_name="__main__")
    return end.value.code


def test_every_script_that_reads_data_is_called_without_them() -> None:
    """But those that a study alone runs, and the benchmark that has a small set of its own."""
    paths = [path for path in scripts() if path.stem != "training" and "__main__" in path.read_text()]
    reading = [path for path in paths if re.search('shared/data|"--data"', path.read_text())]
    assert {path.relative_to(EXPERIMENTS).with_suffix("").as_posix() for path in reading} == set(WORDS)


@pytest.mark.parametrize("name", SERVED)
def test_where_data_are_missing_a_script_says_so_in_a_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBEDDING_DRIFT_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("POSITION_TABLES_SST2", "1")
    assert run_script(name, monkeypatch) == 2
    assert re.fullmatch(r"error: .*\bnowhere.*\n", capsys.readouterr().err)
    assert not (tmp_path / "report").exists()


@pytest.mark.skipif("weight_drift" not in SERVED, reason="its question is deleted")
def test_a_script_that_is_interrupted_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("step 45")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toolkit.pipeline.finetune", interrupt)
    monkeypatch.setattr("toolkit.cli.signal.signal", lambda *_: None)
    assert run_script("weight_drift", monkeypatch) == 130
    assert capsys.readouterr().err == "interrupted: the same command goes on with an unfinished run\n"
