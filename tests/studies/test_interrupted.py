"""An interrupted study goes on: what is finished is kept, what is not is run again, and the results are the same.

Apart from what a run cost (seconds, memory) and the commit of the working tree, which its manifest names, every value
in every file of every run is that of an uninterrupted study; its report is made of these files alone.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from tests.studies import warm
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
from tests.studies import warm
from tests.studies.tiny_studies import GRID, make_study
from toolkit.config import RunConfig

STUDY = make_study(RunConfig(**{fields!r}), grid=GRID, seeds=(0,))
"""
NUM_RUNS = 6
NUM_KILLS = int(os.environ.get("KILLS", "6"))
EXECUTORS = {"threads": (), "submitit": ("--executor", "slurm", "--cluster", "local")}
MEASURED = ("cost.csv", "last_scores.csv", "runs.csv")
"""Tables that hold seconds, and hashes of files that do."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[psutil.Popen, str]]:
    """The process in whose forks commands run, and its socket."""
    place = tmp_path_factory.mktemp("served") / "socket"
    with psutil.Popen([sys.executable, warm.__file__, "serve", str(place)], env=ENVIRONMENT) as process:
        while not place.exists():
            time.sleep(0.1)
        yield process, str(place)
        process.kill()


ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(place: str, folder: Path, executor: str) -> "subprocess.Popen[bytes]":
    """The command, two runs at a time; what it prints is added to a file."""
    words = ["study", "study.py", "--workers", "2", "--out", "report", *EXECUTORS[executor]]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(warm.command(place, *words), cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log)


def tables_of(folder: Path) -> dict[str, bytes]:
    paths = (folder / "report" / "tables").glob("*.csv")
    return {path.name: path.read_bytes() for path in paths if path.name not in MEASURED}


@pytest.fixture(scope="module")
def whole(
    served: tuple[psutil.Popen, str], tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, float]:
    """The folder of a study that nobody disturbed, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("whole")
    fields = {k: v for k, v in asdict(tiny_config).items() if k not in ("output_dir", "overwrite")}
    (folder / "study.py").write_text(STUDY_FILE.format(fields=fields))
    began = time.monotonic()
    assert start(served[1], folder, "threads").wait(300) == 0, (folder / "log").read_text()
    return folder, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_study_whose_processes_are_killed_at_random(
    executor: str, served: tuple[psutil.Popen, str], whole: tuple[Path, float], tmp_path: Path
) -> None:
    """The study, a worker, or what it started; with submitit its tasks, which outlive the study, too."""
    chance, (known, took), num_kills = random.Random(executor), whole, list[int]()
    while sum(num_kills) < NUM_KILLS:  # as many as one study bears before it is finished, and then another
        folder = tmp_path / str(len(num_kills))
        folder.mkdir()
        (folder / "study.py").write_bytes((known / "study.py").read_bytes())
        process, seen = start(served[1], folder, executor), dict[Path, int]()
        num_kills.append(0)
        while len(seen) < NUM_RUNS:
            time.sleep(took * chance.uniform(0, 0.2))
            seen |= when_finished(folder / "runs")
            if process.poll() is not None:
                process = start(served[1], folder, executor)
            elif below := served[0].children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(chance.choice([process.pid, *(each.pid for each in below)])).kill()
                    num_kills[-1] += 1
        process.wait(300)
        assert start(served[1], folder, executor).wait(300) == 0, (folder / "log").read_text()
        runs = folder / "runs"
        assert len(when_finished(runs)) == NUM_RUNS
        assert seen.items() <= when_finished(runs).items(), "run again when finished"
        assert contents(runs) == contents(known / "runs")
        assert tables_of(folder) == tables_of(known)
        assert not [path for path in runs.glob("[!.]*/**/*") if ".tmp" in path.name]
    print(f"{executor}: kills of each study {num_kills}; one that nobody disturbs takes {took:.1f} s")


@pytest.mark.slow
def test_reports_made_while_a_study_runs_hold_whole_runs_alone(
    served: tuple[psutil.Popen, str], whole: tuple[Path, float], tmp_path: Path
) -> None:
    """And a dry run counts those that are finished."""
    text, runs, counts = (whole[0] / "study.py").read_text(), tmp_path / "runs", list[int]()
    (tmp_path / "study.py").write_text(text.replace("grid=GRID, seeds=(0,)", "seeds=range(4)"))
    study = start(served[1], tmp_path, "threads")
    while study.poll() is None or not counts:
        before, options = names_of(runs), {"cwd": tmp_path, "env": ENVIRONMENT, "capture_output": True, "text": True}
        places = [f"runs/{path.name}" for path in runs.glob("[!.]*")]
        done = subprocess.run(warm.command(served[1], "report", *places, "--out", "page"), **options, check=False)
        if done.returncode:
            assert (before, done.stdout.splitlines()[-1][:7]) == (set(), "error: "), done.stdout
            assert "Traceback" not in done.stdout
            continue
        reported = set(pd.read_csv(tmp_path / "page" / "tables" / "runs.csv")["run"])
        assert before <= reported <= names_of(runs)
        counts.append(len(reported))
        for words in (["verify", "page"], ["study", "study.py", "--dry-run"]):
            subprocess.run(warm.command(served[1], *words), **options, check=True)
    print(f"{len(counts)} reports, of so many runs: {counts}")
    assert study.wait() == 0


def names_of(runs: Path) -> set[str]:
    """The finished runs."""
    return {path.parent.name for path in when_finished(runs)}
