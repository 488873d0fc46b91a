"""What Ray adds to the laws of executors: tasks whose worker dies are run again."""

import threading
from pathlib import Path

import psutil
import pytest

from tests.refusals import check_refused
from tests.studies.counted_jobs import (
    counted_job,
    is_alive,
    num_completed,
    num_started,
    pid_of,
    release,
    run_all,
    states,
    wait_until,
)
from toolkit.studies.executors import ExecutorOptions
from toolkit.studies.runner import EXECUTORS

pytest.importorskip("ray", reason="the extra 'ray' is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("retries", [1, 0])
def test_a_worker_is_killed_in_mid_run(tmp_path: Path, retries: int) -> None:
    held, good = counted_job(tmp_path / "held", hold=True), counted_job(tmp_path / "good")
    first: list[int] = []

    def kill() -> None:
        first.append(pid_of(held))
        worker = psutil.Process(first[0]).parent()
        assert "ray::" in worker.name()
        worker.kill()
        wait_until(lambda: not is_alive(first[0]))
        release(held)

    thread = threading.Thread(target=kill)
    thread.start()
    events = run_all(EXECUTORS["ray"](ExecutorOptions(workers=2, retries=retries)), [held, good])
    thread.join()
    end = ["retried", "running", "finished"] if retries else ["failed"]
    assert states(events["held"]) == ["waiting", "running", *end]
    assert (num_started(held), num_completed(held)) == (1 + retries, retries)
    assert retries or events["held"][-1].detail.startswith("its process was lost")
    assert states(events["good"]) == ["waiting", "running", "finished"]


@pytest.mark.slow
def test_more_gpus_than_there_are_is_said_at_once(tmp_path: Path) -> None:
    check_refused(
        r"--gpus-per-run 64: Ray finds \d+ GPUs",
        EXECUTORS["ray"](ExecutorOptions(gpus_per_run=64)).run,
        [counted_job(tmp_path / "a")],
        lambda event: None,
    )


def test_nothing_to_do_starts_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("started a cluster for nothing"))
    job = counted_job(tmp_path / "a")
    (tmp_path / "a" / "completed").write_text("x")
    assert states(run_all(EXECUTORS["ray"](ExecutorOptions()), [job])["a"]) == ["waiting", "finished"]
