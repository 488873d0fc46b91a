"""An interrupted study goes on: what is finished is kept, what is not is run again, and the results are the same.

Apart from what a run cost (seconds, memory) and the commit of the working tree, which its manifest names, every value
in every file of every run is that of an uninterrupted study; its report is made of these files alone.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.studies.tiny_studies import GRID, InProcess, Recorded, make_study
from toolkit.config import RunConfig
from toolkit.snapshots.files import map_tensor, read_header, sha256_of_array, sha256_of_file
from toolkit.studies.runner import run_study
from toolkit.training.saver import Saver

ROOT = Path(__file__).parents[2]


def contents(runs: Path) -> set[tuple[str, str, str]]:
    """Every file of every finished run: (run, file, sha256 of what it holds)."""
    names = {path.parent for path in runs.glob("*/manifest.json")}
    paths = [path for run in names for path in run.rglob("*") if path.is_file()]
    paths = [path for path in paths if path.name != "config.json"]  # it names the parent of the runs, another one here
    return {(path.relative_to(runs).parts[0], path.relative_to(runs).as_posix(), hash_of(path)) for path in paths}


OF_ITS_OWN = ("cost", "git_commit", "files", "sizes", "sha256")
"""What a manifest says that another run of the same config does not; config.json is among the files that it hashes."""


def hash_of(path: Path) -> str:
    """Of a safetensors file the tensors and the metadata, which the library writes in an order that changes."""
    if path.name == "manifest.json":
        return json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k not in OF_ITS_OWN})
    if path.suffix != ".safetensors":
        return sha256_of_file(path)
    metadata, entries = read_header(path)
    tensors = {name: sha256_of_array(map_tensor(path, entry)) for name, entry in entries.items()}
    return json.dumps([metadata, tensors], sort_keys=True)


def when_finished(runs: Path) -> dict[Path, int]:
    """Manifest to the time at which it was written."""
    return {path: path.stat().st_mtime_ns for path in runs.glob("*/manifest.json")}


@pytest.fixture(scope="module")
def uninterrupted(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str, str]]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.reporting.comparison_report.write_report", Recorded())
        study = make_study(tiny_config, grid=GRID, seeds=(0,))
        run_study(study, executor=InProcess(), out=folder / "r", output_dir=folder / "runs")
    return contents(folder / "runs")


@pytest.mark.parametrize("moments", [(2, 6), *(pytest.param(own, marks=pytest.mark.slow) for own in ((1,), (4, 3, 8)))])
def test_a_study_that_is_broken_off_goes_on(
    moments: tuple[int, ...],
    tiny_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: set[tuple[str, str, str]],
) -> None:
    """Broken off at a moment of saving, before or after the file is there, again and again."""
    monkeypatch.setattr("toolkit.reporting.comparison_report.write_report", Recorded())
    save, left = Saver.save_outputs, list(moments)
    count = 0

    def save_or_break(self: Saver, *args: Any) -> Any:
        nonlocal count
        count += 1
        if left and count == left[0]:
            left.pop(0)
            count = 0
            if len(left) % 2:
                save(self, *args)
            raise KeyboardInterrupt
        return save(self, *args)

    monkeypatch.setattr(Saver, "save_outputs", save_or_break)
    study, executor = make_study(tiny_config, grid=GRID, seeds=(0,)), InProcess()
    options: dict[str, Any] = {"executor": executor, "out": tmp_path / "r", "output_dir": tmp_path / "runs"}
    finished: dict[Path, int] = {}
    for _ in moments:
        with pytest.raises(KeyboardInterrupt):
            run_study(study, **options)
        finished |= when_finished(tmp_path / "runs")
    assert run_study(study, **options)
    assert contents(tmp_path / "runs") == uninterrupted
    assert finished.items() <= when_finished(tmp_path / "runs").items(), "run again when finished"
    assert len(executor.started) == 6 + len(moments)


STUDY_FILE = """
from tests.studies.tiny_studies import GRID, make_study
from toolkit.config import RunConfig

STUDY = make_study(RunConfig(**{fields!r}), grid=GRID, seeds=(0,))
"""
NUM_RUNS = 6
NUM_KILLED_STUDIES = int(os.environ.get("KILLED_STUDIES", "1"))


def start(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    """The real command, two runs at a time; what it prints is added to a file."""
    words = ["study", "study.py", "--workers", "2", "--out", f"{name}/report", "--output-dir", f"{name}/runs"]
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "toolkit", *words],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def finish(folder: Path, name: str) -> None:
    code = start(folder, name).wait(900)
    assert code == 0, (folder / f"{name}.log").read_text()
    assert (folder / name / "report" / "index.html").is_file()


def kill_somebody(process: "subprocess.Popen[bytes]", chance: random.Random) -> None:
    """SIGKILL to the study itself or, as often, to any process below it."""
    below = psutil.Process(process.pid).children(recursive=True)
    number = chance.choice(below).pid if below and chance.random() < 0.5 else process.pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_study_whose_processes_are_killed_at_random(tiny_config: RunConfig, tmp_path: Path) -> None:
    fields = {k: v for k, v in asdict(tiny_config).items() if k not in ("output_dir", "overwrite")}
    (tmp_path / "study.py").write_text(STUDY_FILE.format(fields=fields))
    began = time.monotonic()
    finish(tmp_path, "whole")
    took = time.monotonic() - began
    chance, seen = random.Random(0), dict[Path, int]()
    runs = tmp_path / "broken" / "runs"
    for _ in range(NUM_KILLED_STUDIES):
        process = start(tmp_path, "broken")
        while process.poll() is None:
            time.sleep(chance.uniform(0.1, 0.3) * took)
            if process.poll() is None:
                kill_somebody(process, chance)
                time.sleep(0.1)
        seen |= when_finished(runs)
    finish(tmp_path, "broken")
    assert (tmp_path / "broken.log").read_text().count("Report: broken/report/report.md") >= 1
    assert len(when_finished(runs)) == NUM_RUNS
    assert seen.items() <= when_finished(runs).items(), "run again when finished"
    assert contents(runs) == contents(tmp_path / "whole" / "runs")
    assert not [path for path in runs.glob("[!.]*/**/*") if ".tmp" in path.name]
