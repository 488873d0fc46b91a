"""Estimates follow the work that a run has to do, every kind is timed once, and nothing is left behind."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.studies.tiny_studies import ARMS, make_study
from toolkit.config import RunConfig
from toolkit.studies import calibration
from toolkit.studies.calibration import DATA, MODEL, NO_INFLUENCE, Calibration, calibrate, makespan, threads_per_run
from toolkit.studies.plan import PlannedRun, plan_runs
from toolkit.studies.rates import Rates
from toolkit.studies.study import Comparison


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """No launch (as if it took 7 s), and the configs whose rates were measured."""
    configs: list[RunConfig] = []
    measure = calibration.measure_rates

    def measure_and_note(config: RunConfig, *others: Any) -> Rates:
        configs.append(config)
        return measure(config, *others)

    monkeypatch.setattr(calibration, "startup_seconds", lambda config, threads: 7.0)
    monkeypatch.setattr(calibration, "measure_rates", measure_and_note)
    monkeypatch.setattr(calibration, "neighbours", lambda *_: nullcontext())
    return configs


def runs_of(config: RunConfig, folder: Path, **changes: Any) -> tuple[PlannedRun, ...]:
    return plan_runs(make_study(config, **changes).final_cells({}), folder / "runs")


def seconds(known: Calibration, runs: tuple[PlannedRun, ...]) -> dict[str, float]:
    """Arm to the estimate of its first seed."""
    return {run.cell.arm: known.estimates[run.name].seconds for run in runs if run.cell.seed == 0}


def test_every_kind_is_timed_once_and_nothing_is_left(
    tiny_config: RunConfig, tmp_path: Path, timed: list[RunConfig]
) -> None:
    arms = {**ARMS, "fast": {"learning_rate": 1e-2}, "random": {"init": "random"}, "head first": {"head_epochs": 2}}
    runs = runs_of(tiny_config, tmp_path, arms=arms)
    threads = torch.get_num_threads()
    known = calibrate(runs, workers=2)
    assert [config.freeze for config in timed] == ["none", "embeddings", "backbone"]
    assert set(known.estimates) == {run.name for run in runs}
    assert all(each.is_measured and each.seconds > 7.0 for each in known.estimates.values())
    assert known.num_items[runs[0].name] == {"validation": 24, "ood": 24}
    assert not list(tmp_path.iterdir())
    assert torch.get_num_threads() == threads
    by_arm = seconds(known, runs)
    assert by_arm["full"] == by_arm["random"] == by_arm["fast"] < by_arm["head first"]


@pytest.mark.parametrize(("workers", "expected"), [(1, 0), (3, 2), (9, 3)])
def test_what_is_timed_has_as_many_runs_beside_it_as_it_will_have(
    workers: int,
    expected: int,
    tiny_config: RunConfig,
    tmp_path: Path,
    timed: list[RunConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four runs can have three beside them; those take longest that train the backbone."""
    told: list[str] = []

    @contextmanager
    def stand_in(configs: Sequence[RunConfig], number: int, threads: int) -> Iterator[None]:
        assert {config.freeze for config in configs} == {"none"}
        assert (number, threads) == (expected, threads_per_run(workers))
        told.append("begin")
        yield
        told.append("end")

    measure = calibration.measure_rates
    monkeypatch.setattr(calibration, "neighbours", stand_in)
    monkeypatch.setattr(calibration, "startup_seconds", lambda *_: told.append("start-up") or 7.0)
    monkeypatch.setattr(calibration, "measure_rates", lambda *given: told.append("rates") or measure(*given))
    calibrate(runs_of(tiny_config, tmp_path), workers=workers)
    assert told == ["begin", "start-up", "rates", "rates", "end"]


def test_features_alone_have_their_like_beside_them(
    tiny_config: RunConfig, tmp_path: Path, timed: list[RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[str] = []
    monkeypatch.setattr(
        calibration, "neighbours", lambda configs, *_: nullcontext(beside.extend(c.freeze for c in configs))
    )
    calibrate(runs_of(tiny_config, tmp_path, arms={"features": {"freeze": "backbone"}}, comparisons=[]), workers=2)
    assert beside == ["backbone"]


def test_more_work_takes_longer(tiny_config: RunConfig, tmp_path: Path, timed: list[RunConfig]) -> None:
    """Twice the epochs: twice the steps, but the data are read, and the first scores taken, once."""
    arms = {"full": {}, "more": {"epochs": 2}, "most": {"epochs": 3}, "short": {"epochs": 3, "max_steps": 1}}
    runs = runs_of(tiny_config, tmp_path, arms=arms, comparisons=[])
    by_arm = seconds(calibrate(runs), runs)
    assert by_arm["short"] < by_arm["full"] < by_arm["more"] < by_arm["most"]
    assert by_arm["most"] - by_arm["more"] == pytest.approx(by_arm["more"] - by_arm["full"], rel=1e-6)
    sizes = runs_of(tiny_config, tmp_path, sizes=(32, 64), arms={"full": {}}, comparisons=[])
    known = calibrate(sizes).estimates
    small, large = (known[run.name].seconds for run in sizes[:2])
    assert small < large


def test_without_time_a_like_kind_stands_in(
    tiny_config: RunConfig, tmp_path: Path, timed: list[RunConfig], tiny_files: Callable[[str], dict[str, Any]]
) -> None:
    """Of each regime the first is timed whatever it takes; the same regime on another task is then not."""
    runs = runs_of(tiny_config, tmp_path, tasks={"a": {}, "b": tiny_files("order"), "c": tiny_files("pair")})
    known = calibrate(runs, budget_seconds=0.0)
    assert [config.freeze for config in timed] == ["none", "backbone"]
    measured = {run.cell.task for run in runs if known.estimates[run.name].is_measured}
    assert measured == {"a"}
    by_task = {run.cell.task: known.estimates[run.name].seconds for run in runs if run.cell.arm == "full"}
    assert by_task["c"] > by_task["b"], "pairs have more tokens"


def test_regression_has_no_items_of_accuracy(tiny_config: RunConfig, tmp_path: Path, timed: list[RunConfig]) -> None:
    data = tmp_path / "v.tsv"
    data.write_text("text\tlabel\n" + "".join(f"word {i}\t{i / 10}\n" for i in range(20)))
    config = replace(tiny_config, train_file=str(data), validation_file=str(data), test_file=())
    runs = runs_of(config, tmp_path)
    known = calibrate(runs)
    assert known.num_items == {run.name: {} for run in runs}
    assert all(each.seconds > 7.0 for each in known.estimates.values())


def test_a_run_is_timed_with_the_threads_that_it_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda number: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_per_run(workers) for workers in (1, 2, 3, 20)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads_per_run(3) == 5, "what the user has set"


def test_every_field_of_a_config_is_judged() -> None:
    """A new field of RunConfig must be said to have an influence on time, or none."""
    known = {*NO_INFLUENCE, *DATA, *MODEL, "freeze", "precision", "optimizer"}
    known |= {"gradient_accumulation_steps", "batch_tokens"}
    assert {field.name for field in fields(RunConfig)} == known


@given(st.lists(st.floats(0.1, 10.0), max_size=7), st.integers(1, 3))
def test_makespan_is_between_its_bounds_and_that_of_a_queue(seconds: list[float], workers: int) -> None:
    result = makespan(seconds, workers)
    assert result >= max([sum(seconds) / workers, *seconds, 0.0]) - 1e-9
    assert result <= sum(seconds) + 1e-9
    assert result == pytest.approx(slow_queue(seconds, workers))


def slow_queue(seconds: list[float], workers: int) -> float:
    """The same by stepping from event to event."""
    clock, waiting, running = 0.0, list(seconds), list[float]()
    while waiting or running:
        while waiting and len(running) < workers:
            running.append(clock + waiting.pop(0))
        clock = min(running)
        running.remove(clock)
    return clock


@pytest.mark.slow
def test_a_start_up_is_a_whole_launch_and_a_mistake_in_it_is_one_line(tiny_config: RunConfig, tmp_path: Path) -> None:
    from toolkit.studies.rates import startup_seconds

    assert 1.0 < startup_seconds(tiny_config, 1) < 300.0
    with pytest.raises(ValueError, match=r"^a trial run of ./gone failed: .*no folder at './gone'"):
        startup_seconds(replace(tiny_config, model="./gone"), 1)


def test_kinds_do_not_depend_on_the_order_of_runs(
    tiny_config: RunConfig, tmp_path: Path, timed: list[RunConfig]
) -> None:
    runs = runs_of(tiny_config, tmp_path)
    for order in (runs, runs[::-1]):
        timed.clear()
        assert set(calibrate(order).estimates) == {run.name for run in runs}
        assert sorted(config.freeze for config in timed) == ["backbone", "none"]


RECIPES: dict[str, tuple[dict[str, object], ...]] = {
    "order": ({"features": "mix"}, {"features": "all-concat", "head": "mlp"}),
    "pair": ({"pair_encoding": "separate"}, {"pair_encoding": "separate", "features": "mix"}),
    "roles": ({"features": "all-concat"}, {"head": "bilstm"}),
}


@pytest.mark.parametrize("task", RECIPES)
def test_every_form_of_features_is_timed_on_the_tasks_that_have_it(
    tiny_config: RunConfig, tmp_path: Path, timed: list[RunConfig], task: str
) -> None:
    arms = {str(i): {"freeze": "backbone", **recipe} for i, recipe in enumerate(({}, *RECIPES[task]))}
    tasks = {task: {"task": task, "max_train_examples": 20}}
    built_in = RunConfig(model=tiny_config.model, max_length=40, batch_size=16, head_training="epochs")
    comparisons = [Comparison("0", "1")]
    runs = runs_of(built_in, tmp_path, arms=arms, tasks=tasks, comparisons=comparisons)
    known = calibrate(runs, workers=1)
    assert len(timed) == 3
    assert all(each.is_measured and each.seconds > 7.0 for each in known.estimates.values())
