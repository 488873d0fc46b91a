"""Neighbours work while what they stand beside is timed, and end with it: by being asked, or with their parent."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from toolkit.config import RunConfig
from toolkit.studies import neighbours as module
from toolkit.studies.neighbours import READY, neighbours, work

TALKER = f"import os, sys; os.write(1, {READY!r}); sys.stdin.read()"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Neighbours that are ready at once and wait for their end; the processes."""
    processes: list[Any] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        processes.append(popen([sys.executable, "-c", TALKER, *command[3:]], **options))
        return processes[-1]

    monkeypatch.setattr(module.subprocess, "Popen", start)
    return processes


def test_they_are_there_while_it_is_open_and_gone_after(tiny_config: RunConfig, started: list[Any]) -> None:
    configs = [tiny_config, replace(tiny_config, freeze="embeddings")]
    with neighbours(configs, 2, 1):
        assert [process.poll() for process in started] == [None, None]
        first = [Path(process.args[3]).name for process in started]
        assert first == ["0.json", "1.json"], "each begins with another kind of run"
        folder = Path(started[0].args[3]).parent
        assert RunConfig.from_json((folder / "1.json").read_text()) == configs[1]
    assert [process.returncode for process in started] == [0, 0]
    assert not folder.exists()


def test_they_are_gone_when_what_they_stand_beside_fails(tiny_config: RunConfig, started: list[Any]) -> None:
    with pytest.raises(KeyError), neighbours([tiny_config], 1, 1):
        raise KeyError
    assert started[0].returncode == 0


def test_none_are_started_for_one_worker(tiny_config: RunConfig, started: list[Any]) -> None:
    with neighbours([tiny_config], 0, 1):
        assert not started


def test_they_time_every_kind_of_run_over_and_over(tiny_config: RunConfig) -> None:
    rates = work([tiny_config, replace(tiny_config, freeze="backbone")])
    first, second, third = (next(rates) for _ in range(3))
    assert (first["is_frozen_backbone"], second["is_frozen_backbone"], third["is_frozen_backbone"]) == (0, 1, 0)
    assert first["training"] > 0


@pytest.mark.slow
def test_a_real_one_works_and_ends_with_its_parent(tiny_config: RunConfig, tmp_path: Path) -> None:
    """Killed, the parent closes nothing in order: the system does."""
    (tmp_path / "c.json").write_text(tiny_config.to_json())
    code = (
        "import pathlib, time\nfrom toolkit.config import RunConfig\n"
        "from toolkit.studies.neighbours import neighbours\n"
        f"config = RunConfig.from_json(pathlib.Path({str(tmp_path / 'c.json')!r}).read_text())\n"
        "with neighbours([config], 1, 1): print('ready', flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (child,) = psutil.Process(parent.pid).children()
        before = child.cpu_times().user
        deadline = time.monotonic() + 60
        while child.cpu_times().user < before + 0.5:
            assert time.monotonic() < deadline, "it does not work"
            time.sleep(0.1)
    finally:
        parent.kill()
        parent.wait()
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running()


@pytest.mark.slow
def test_one_that_fails_is_one_line(tiny_config: RunConfig) -> None:
    gone, message = replace(tiny_config, model="./gone"), r"^a trial run beside .* failed: .*no folder at './gone'"
    with pytest.raises(ValueError, match=message) as caught, neighbours([gone], 1, 1):
        pass
    assert "\n" not in str(caught.value)
