"""A dry run tells what a study costs and what it can see; its estimates are right, and nothing of it is left."""

import io
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.studies.tiny_studies import ARMS, GRID, InProcess, Recorded, config_of, make_study
from toolkit.comparison.intervals import detectable_gap_planned
from toolkit.config import RunConfig
from toolkit.studies import trial as module
from toolkit.studies.executors import Executor, ExecutorOptions, Job
from toolkit.studies.plan import PlannedRun, plan_runs
from toolkit.studies.progress import makespan
from toolkit.studies.runner import EXECUTORS, make_jobs, plan_study, run_study
from toolkit.studies.study import Study
from toolkit.studies.trial import (
    DISCORDANCES,
    SEED_SDS,
    STOPPING_EPOCHS,
    TRIAL_STEPS,
    Trial,
    dry_run,
    estimate,
    planned_gaps,
)

FACTOR = 1.6
"""Estimates are right within this factor, on a machine that other things slow down at times."""


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def shown(study: Study, folder: Path, *, workers: int = 1, limit: int | None = None) -> str:
    console = quiet()
    dry_run(study, executor=InProcess(workers=workers), output_dir=folder / "runs", console=console, limit=limit)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def cells_of(text: str, *words: str) -> list[str]:
    """The cells of the first table row that holds all of the words."""
    line = next(line for line in text.splitlines() if "│" in line and all(word in line for word in words))
    return [cell.strip() for cell in line.split("│")[1:-1]]


def words_of(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def seconds_taken(runs: tuple[PlannedRun, ...], executor: Executor) -> float:
    """By the runs themselves, all together."""
    began = time.monotonic()
    executor.run(make_jobs(runs), lambda event: None)
    assert all(run.is_finished for run in runs)
    return time.monotonic() - began


def seconds_estimated(runs: tuple[PlannedRun, ...], executor: Executor) -> float:
    seconds, _ = estimate(runs, executor, runs[0].path.parent, quiet())
    return makespan((seconds[run.name] for run in runs), executor.options.workers)


def long_study(config: RunConfig, epochs: int) -> Study:
    """Training and scoring take most of its runs' time."""
    arms = {"full": {}, "features": {"freeze": "backbone", "head_training": "epochs"}, "head first": {"head_epochs": 2}}
    return make_study(replace(config, epochs=None), arms=arms, seeds=(0,), common=_common(config, epochs))


def _common(config: RunConfig, epochs: int) -> dict[str, Any]:
    return {**make_study(config).common, "epochs": epochs}


@pytest.fixture
def counted_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Seconds are numbers that modules read: no machine is slow on such a clock, and no import takes any time."""
    seconds = 0.0

    def count(module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal seconds
        seconds += sum(each.numel() for each in inputs if isinstance(each, torch.Tensor)) / 1e5

    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: seconds)
    hook = torch.nn.modules.module.register_module_forward_hook(count)
    yield
    hook.remove()


@pytest.mark.slow  # trains each
@pytest.mark.usefixtures("counted_time")
def test_the_estimate_is_what_the_runs_then_take(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a planted error, the epochs of a run not counted, is far outside of what counts as right."""
    runs = plan_runs(long_study(tiny_config, 5).final_cells({}), tmp_path / "runs")
    estimated = seconds_estimated(runs, InProcess())
    taken = seconds_taken(runs, InProcess())
    assert estimated == pytest.approx(taken, rel=0.1)
    seconds_of = Trial.seconds_of
    monkeypatch.setattr(Trial, "seconds_of", lambda self, config: seconds_of(self, replace(config, epochs=1)))
    assert seconds_estimated(runs, InProcess()) / taken < 1 / FACTOR


@pytest.mark.slow
def test_the_estimate_holds_for_real_launches(tiny_config: RunConfig, tmp_path: Path) -> None:
    runs = plan_runs(long_study(tiny_config, 60).final_cells({}), tmp_path / "runs")
    executor = EXECUTORS["local"](ExecutorOptions(workers=2))
    assert 1 / FACTOR < seconds_estimated(runs, executor) / seconds_taken(runs, executor) < FACTOR


MEASURED = Trial(
    seconds=100.0, training=12.0, evaluation=5.0, num_evaluations=2, num_steps=12, num_examples=96.0, num_train=1000,
    num_scored=500,
)  # fmt: skip
"""A step, of 8 examples, takes a second; 78 seconds are neither training nor scoring."""


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"epochs": 3}, 78 + 3 * 125 + 4 * 5),
        ({"epochs": 6}, 78 + 6 * 125 + 7 * 5),
        ({"epochs": 3, "max_steps": 12}, 78 + 12 + 2 * 5),
        ({"epochs": 3, "max_steps": 130}, 78 + 130 + 3 * 5),
        ({"epochs": 3, "max_steps": 10_000}, 78 + 3 * 125 + 4 * 5),
        ({"epochs": 2, "max_train_examples": 200}, 78 + 2 * 25 + 3 * 5),
        ({"epochs": 2, "selection_fraction": 0.2}, 78 + 2 * 100 + 3 * 2),
        (
            {"freeze": "backbone", "head_training": "early-stopping"},
            78 + STOPPING_EPOCHS * 125 + (STOPPING_EPOCHS + 1) * 5,
        ),
    ],
)
def test_steps_and_scorings_are_those_of_the_run(changes: dict[str, Any], seconds: float) -> None:
    assert MEASURED.seconds_of(RunConfig(**changes)) == pytest.approx(seconds)


def tried(study: Study, folder: Path, workers: int = 1) -> list[RunConfig]:
    """The configs of the trials, none of which is carried out."""
    configs: list[RunConfig] = []

    class Stop(Exception): ...

    class Noting(Executor):
        def run(self, jobs: Any, on_event: Any) -> None:
            configs.extend(map(config_of, jobs))
            raise Stop

    with pytest.raises(Stop):
        estimate(plan_study(study, folder).runs, Noting(ExecutorOptions(workers=workers)), folder, quiet())
    assert not list(folder.iterdir())
    return configs


def test_every_kind_is_tried_once_with_a_few_steps(tiny_config: RunConfig, tmp_path: Path) -> None:
    """A kind is what decides the time: not seeds, rates, weights, nor whether a setting is being chosen."""
    arms = {**ARMS, "fast": {"learning_rate": 1e30}, "random": {"init": "random"}, "head first": {"head_epochs": 2}}
    configs = tried(make_study(tiny_config, arms=arms), tmp_path)
    assert [(c.freeze, c.head_epochs) for c in configs] == [
        ("none", 0), ("embeddings", 0), ("backbone", 0), ("none", 2),
    ]  # fmt: skip
    assert {(c.max_steps, c.learning_rate) for c in configs} == {(TRIAL_STEPS, RunConfig().learning_rate)}
    assert len(tried(make_study(tiny_config, grid=GRID), tmp_path)) == 2
    sizes = tried(make_study(tiny_config, sizes=(4, 8, 16, 32)), tmp_path)
    assert sorted(c.max_train_examples or 0 for c in sizes) == [8, 8, 32, 32], "the largest of each class"


def test_as_many_trials_run_side_by_side_as_there_are_workers(tiny_config: RunConfig, tmp_path: Path) -> None:
    assert len(tried(make_study(tiny_config), tmp_path, workers=3)) == 3
    assert len(tried(make_study(tiny_config), tmp_path, workers=9)) == 4, "no more than the study's runs"


RECIPES: dict[str, tuple[dict[str, object], ...]] = {
    "order": ({"features": "mix"}, {"features": "all-concat", "head": "mlp"}),
    "pair": ({"pair_encoding": "separate"},),
    "roles": ({"head": "bilstm"},),
}


@pytest.mark.slow  # trains each
@pytest.mark.parametrize("task", RECIPES)
def test_every_form_of_features_can_be_tried(tiny_config: RunConfig, tmp_path: Path, task: str) -> None:
    stopping = {"freeze": "backbone", "head_training": "early-stopping"}
    arms = {str(i): {**stopping, **recipe} for i, recipe in enumerate(({}, *RECIPES[task]))}
    common = {"model": tiny_config.model, "max_length": 40, "batch_size": 16}
    tasks = {task: {"task": task, "max_train_examples": 20}}
    study = make_study(tiny_config, arms=arms, tasks=tasks, common=common, comparisons=[], seeds=(0,))
    runs = plan_study(study, tmp_path).runs
    estimated, _ = estimate(runs, InProcess(), tmp_path, quiet())
    assert set(estimated) == {run.name for run in runs}
    assert all(0 < seconds < 600 for seconds in estimated.values())


def test_regression_has_no_items_of_accuracy(tiny_config: RunConfig, tmp_path: Path) -> None:
    data = tmp_path / "v.tsv"
    data.write_text("text\tlabel\n" + "".join(f"word {i}\t{i / 10}\n" for i in range(20)))
    config = replace(tiny_config, train_file=str(data), validation_file=str(data), test_file=())
    assert "not applicable: no accuracy" in shown(make_study(config, seeds=(0,)), tmp_path)


@pytest.fixture
def hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each run took 100 s."""
    monkeypatch.setattr(Trial, "seconds_of", lambda self, config: 100.0)


@pytest.mark.usefixtures("hundred")
def test_runs_time_and_detectable_gap_are_printed_and_nothing_is_left(tiny_config: RunConfig, tmp_path: Path) -> None:
    study = make_study(tiny_config, seeds=range(4), hypothesis="It does not.")
    text = shown(study, tmp_path, workers=2, limit=3)
    assert text.splitlines()[:3] == ["Tiny", "Question: Does it matter?", "Expected: It does not."]
    assert cells_of(text, "final", "full") == ["final", "toy", "full", "4", "0", "4", "2 min", "7 min"]
    assert "8 runs, 0 finished, 8 to do: about 7 min, 2 at a time, and the report." in text, "8 x 100 s in two queues"
    assert "With --limit 3: 3 of them, about 3 min" in text
    for seed_sd in SEED_SDS:
        gaps = [f"{100 * detectable_gap_planned(4, 24, share, seed_sd):.1f}" for share in DISCORDANCES]
        own = ["toy", "validation", "24", "4", f"{100 * seed_sd:.0f}"]
        assert cells_of(text, "validation", f" {100 * seed_sd:.0f} │") == [*own, *gaps]
    assert "Margin of equivalence: 2 points." in words_of(text)
    assert "headline" not in text
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("hundred")
def test_finished_runs_cost_nothing_more(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.reporting.comparison_report.write_report", Recorded())
    study = make_study(tiny_config)
    options: dict[str, Any] = {"out": tmp_path / "r", "output_dir": tmp_path / "runs"}
    run_study(study, executor=InProcess(), limit=3, **options)
    before = sorted(tmp_path.rglob("*"))
    text = shown(study, tmp_path)
    assert cells_of(text, "final", "full") == ["final", "toy", "full", "2", "2", "0", "", ""]
    assert cells_of(text, "final", "features")[3:6] == ["2", "1", "1"]
    assert "4 runs, 3 finished, 1 to do: about 2 min, one at a time" in text
    assert sorted(tmp_path.rglob("*")) == before
    run_study(study, executor=InProcess(), limit=1, **options)
    text = shown(study, tmp_path)
    assert "All 4 runs are finished" in text
    assert "Trying" not in text
    assert cells_of(text, "validation")[:4] == ["toy", "validation", "24", "2"]


@pytest.mark.usefixtures("hundred")
def test_a_study_with_a_grid_counts_its_tuning(tiny_config: RunConfig, tmp_path: Path) -> None:
    study, executor = make_study(tiny_config, grid=GRID, seeds=(0,)), InProcess()
    text = shown(study, tmp_path)
    assert cells_of(text, "tuning", "full")[3:6] == ["2", "0", "2"]
    assert "6 runs, 0 finished, 6 to do: about 10 min" in text
    assert "the first setting of each arm, until tuning has chosen" in text
    assert "selection" not in text, "nothing is claimed on the split that settings are chosen on"
    run_study(study, executor=executor, limit=4, out=tmp_path / "r", output_dir=tmp_path / "runs")
    planned = plan_study(study, tmp_path / "runs")
    assert planned.is_chosen
    assert "until tuning has chosen" not in shown(study, tmp_path)
    run_study(study, executor=executor, limit=1, out=tmp_path / "r", output_dir=tmp_path / "runs")
    assert executor.started[4] == planned.final[0].name


def test_a_trial_that_fails_is_one_line(tiny_config: RunConfig, tmp_path: Path) -> None:
    long = make_study(replace(tiny_config, max_length=4000))
    message = r"^a trial run of toy, full, seed \d failed: --max-length 4000 is more than the 48 positions.*$"
    with pytest.raises(ValueError, match=message):
        shown(long, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_dry_run_has_left_is_removed_by_the_next(tiny_config: RunConfig, tmp_path: Path) -> None:
    """Two at the same time leave each other alone, and what is no folder of ours stays."""
    study, others = make_study(tiny_config, seeds=(0,)), list[bool]()
    mine = tmp_path / "runs" / ".study" / ".unfinished-chapter"
    mine.mkdir(parents=True)
    (mine / "notes").write_text("mine")

    def look(job: Job) -> None:
        with module._trial_folder(tmp_path / "runs"):
            others.append(Path(config_of(job).output_dir).is_dir())

    estimate(plan_study(study, tmp_path / "runs").runs, InProcess(look), tmp_path / "runs", quiet())
    assert others == [True, True]
    with module._trial_folder(tmp_path / "runs") as folder:
        (folder / "run").mkdir()
        left = folder.rename(folder.with_name(".unfinished-left"))
        folder.mkdir()
    assert left.is_dir()
    with module._trial_folder(tmp_path / "runs"):
        assert not left.exists()
    assert [path.name for path in mine.parent.iterdir()] == [mine.name]


def test_the_gaps_are_those_of_the_studys_seeds_and_items(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "planned_gaps", lambda *given: given)
    text = shown(make_study(tiny_config, seeds=range(7)), tmp_path)
    assert SEED_SDS == (0.01, 0.03)
    assert cells_of(text, "validation", " 1 │")[2:] == ["24", "7", "1", "7.0", "24.0", "0.0"]
    assert cells_of(text, "validation", " 3 │")[2:5] == ["24", "7", "3"]


def test_planned_gaps_shrink_with_items_seeds_and_agreement() -> None:
    few, many = planned_gaps(3, 400, 0.01), planned_gaps(8, 4000, 0.01)
    assert all(a > b for a, b in zip(few, many, strict=True))
    assert few == [100 * detectable_gap_planned(3, 400, share, 0.01) for share in DISCORDANCES] == sorted(few)
    assert all(gap != gap for gap in planned_gaps(3, 1, 0.01)), "one item: undefined"
    agreed, apart = (planned_gaps(5, 872, seed_sd) for seed_sd in SEED_SDS)
    assert all(a < b for a, b in zip(agreed, apart, strict=True))


def test_another_headline_score_than_the_tables_is_named(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = module.Compared.of
    monkeypatch.setattr(module.Compared, "of", lambda run: replace(of(run), score="matthews"))
    assert "headline score is another on toy (matthews)" in words_of(shown(make_study(tiny_config), tmp_path))
    named = make_study(tiny_config, score="macro_f1")
    assert "headline score is another on toy (macro_f1)" in words_of(shown(named, tmp_path))


@pytest.mark.parametrize("limit", [0, -3])
def test_the_limit_is_checked_as_when_it_runs(tiny_config: RunConfig, tmp_path: Path, limit: int) -> None:
    message = rf"^--limit must be at least 1; got {limit}$"
    with pytest.raises(ValueError, match=message):
        shown(make_study(tiny_config), tmp_path, limit=limit)
    options: dict[str, Any] = {"executor": InProcess(), "out": tmp_path, "output_dir": tmp_path / "runs"}
    with pytest.raises(ValueError, match=message):
        run_study(make_study(tiny_config), limit=limit, **options)


def test_sizes_beyond_the_data_are_said_and_not_trained_twice(tiny_config: RunConfig, tmp_path: Path) -> None:
    """Train has 64 examples: 80 and 100 would train on the same ones, whatever order they are given in."""

    def refuse(job: Job) -> None:
        raise ValueError("not in this test")

    study, executor = make_study(tiny_config, seeds=(0,), sizes=(100, 32, 80)), InProcess(refuse)
    text = words_of(shown(study, tmp_path))
    assert "toy has 64 training examples: size 100 would repeat size 80 and is left out." in text
    assert "toy has 64 training examples: size 80 is all of them." in text
    assert "4 runs, 0 finished, 4 to do" in text
    with pytest.raises(ValueError, match="4 runs failed"):
        run_study(study, executor=executor, out=tmp_path / "r", output_dir=tmp_path / "runs")
    final = plan_study(study, tmp_path / "runs").final
    assert executor.started == [run.name for run in final]
    assert [run.config.max_train_examples for run in final] == [32, 32, 80, 80]
    assert not plan_study(make_study(tiny_config, sizes=(32, 64)), tmp_path / "runs").notes
    assert len(plan_study(make_study(tiny_config, sizes=(32, 64)), tmp_path / "runs").final) == 8


def test_without_sizes_no_data_are_read_for_them(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.studies.plan.num_train", lambda config: 1 / 0)
    assert len(plan_study(make_study(tiny_config), tmp_path / "runs").final) == 4


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
