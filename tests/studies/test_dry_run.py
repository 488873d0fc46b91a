"""A dry run tells what a study costs and what it can see, and neither runs nor writes anything."""

import io
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.studies.tiny_studies import GRID, InProcess, make_study
from toolkit.comparison.intervals import detectable_gap_planned
from toolkit.config import RunConfig
from toolkit.studies import calibration
from toolkit.studies.dry_run import DISCORDANCES, SEED_SDS, dry_run, plan_study, planned_gaps
from toolkit.studies.executors import Job
from toolkit.studies.plan import plan_runs
from toolkit.studies.rates import Rates
from toolkit.studies.runner import run_study
from toolkit.studies.study import Study


@pytest.fixture(autouse=True)
def _nothing_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a launch took 100 s and the rest next to nothing."""
    monkeypatch.setattr(calibration, "startup_seconds", lambda config, threads: 100.0)
    monkeypatch.setattr(calibration, "measure_rates", lambda *_: Rates(0.0, 0.0, 0.0, 0.0, False))
    monkeypatch.setattr(calibration, "neighbours", lambda *_: nullcontext())


def shown(study: Study, folder: Path, **options: int) -> str:
    console = Console(file=io.StringIO(), width=120)
    dry_run(study, output_dir=folder / "runs", console=console, **options)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def cells_of(text: str, *words: str) -> list[str]:
    """The cells of the first table row that holds all of the words."""
    line = next(line for line in text.splitlines() if "│" in line and all(word in line for word in words))
    return [cell.strip() for cell in line.split("│")[1:-1]]


def words_of(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def test_runs_time_and_detectable_gap_are_printed_and_nothing_is_written(
    tiny_config: RunConfig, tmp_path: Path
) -> None:
    study = make_study(tiny_config, seeds=range(4), hypothesis="It does not.")
    text = shown(study, tmp_path, workers=2, limit=3)
    assert text.splitlines()[:3] == ["Tiny", "Question: Does it matter?", "Expected: It does not."]
    assert cells_of(text, "final", "full")[:6] == ["final", "toy", "full", "4", "0", "4"]
    assert "8 runs, 0 finished, 8 to do: about 7 min, 2 at a time, and the report." in text, "8 x 100 s in two queues"
    assert "With --limit 3: 3 of them, about 3 min" in text
    for seed_sd in SEED_SDS:
        gaps = [f"{100 * detectable_gap_planned(4, 24, share, seed_sd):.1f}" for share in (0.05, 0.10, 0.20)]
        own = ["toy", "validation", "24", "4", f"{100 * seed_sd:.0f}"]
        assert cells_of(text, "validation", f" {100 * seed_sd:.0f} │") == [*own, *gaps]
    assert "Margin of equivalence: 2 points." in words_of(text)
    assert "headline" not in text
    assert not list(tmp_path.iterdir())


def test_the_gaps_are_those_of_the_studys_seeds_and_items(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.studies.dry_run.planned_gaps", lambda *given: given)
    text = shown(make_study(tiny_config, seeds=range(7), grid=GRID), tmp_path)
    assert SEED_SDS == (0.01, 0.03)
    assert cells_of(text, "validation", " 1 │")[2:] == ["24", "7", "1", "7.0", "24.0", "0.0"]
    assert cells_of(text, "validation", " 3 │")[2:5] == ["24", "7", "3"]
    assert "selection" not in text, "nothing is claimed on the split that settings are chosen on"


def test_finished_runs_cost_nothing_more(tiny_config: RunConfig, tmp_path: Path) -> None:
    study = make_study(tiny_config)
    run_study(study, executor=InProcess(), limit=3, out=tmp_path / "r", output_dir=tmp_path / "runs")
    before = sorted(tmp_path.rglob("*"))
    text = shown(study, tmp_path)
    assert cells_of(text, "final", "full") == ["final", "toy", "full", "2", "2", "0", "", ""]
    assert cells_of(text, "final", "features")[3:6] == ["2", "1", "1"]
    assert "4 runs, 3 finished, 1 to do: about 2 min, one at a time" in text
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("undrawn")
def test_a_finished_study_is_said_to_be_so_and_nothing_is_estimated(tiny_config: RunConfig, tmp_path: Path) -> None:
    study = make_study(tiny_config, seeds=(0,))
    assert "No run of the study was started, and nothing was written." in shown(study, tmp_path)
    run_study(study, executor=InProcess(), limit=2, out=tmp_path / "r", output_dir=tmp_path / "runs")
    text = shown(study, tmp_path)
    assert "All 2 runs are finished" in text
    assert "Estimated" not in text


def test_a_study_with_a_grid_counts_its_tuning(tiny_config: RunConfig, tmp_path: Path) -> None:
    study = make_study(tiny_config, grid=GRID, seeds=(0,))
    text = shown(study, tmp_path)
    assert cells_of(text, "tuning", "full")[3:6] == ["2", "0", "2"]
    assert "6 runs, 0 finished, 6 to do: about 10 min" in text
    assert "the first setting of each arm, until tuning has chosen" in text
    run_study(study, executor=InProcess(), limit=4, out=tmp_path / "r", output_dir=tmp_path / "runs")
    plan = plan_study(study, tmp_path / "runs")
    assert plan.is_chosen
    assert "until tuning has chosen" not in shown(study, tmp_path)


def test_the_plan_after_tuning_is_what_is_then_run(tiny_config: RunConfig, tmp_path: Path) -> None:
    study, executor = make_study(tiny_config, grid=GRID, seeds=(0,)), InProcess()
    for _ in range(2):
        planned = plan_study(study, tmp_path / "runs")
        run_study(
            study,
            executor=executor,
            limit=4 - len(executor.started) or 1,
            out=tmp_path / "report",
            output_dir=tmp_path / "runs",
        )
    assert executor.started[4] == planned.final[0].name
    assert plan_runs(study.tuning_cells(), tmp_path / "runs")[0].is_finished


def test_a_mistake_shows_before_anything_is_timed(tiny_config: RunConfig, tmp_path: Path) -> None:
    long = make_study(replace(tiny_config, max_length=4000))
    with pytest.raises(ValueError, match=r"--max-length 4000 is more than the 48 positions"):
        shown(long, tmp_path)


def test_planned_gaps_shrink_with_items_and_seeds() -> None:
    few, many = planned_gaps(3, 400, 0.01), planned_gaps(8, 4000, 0.01)
    assert all(a > b for a, b in zip(few, many, strict=True))
    assert few == [100 * detectable_gap_planned(3, 400, share, 0.01) for share in DISCORDANCES] == sorted(few)
    assert len(few) == len(DISCORDANCES)
    assert all(gap != gap for gap in planned_gaps(3, 1, 0.01)), "one item: undefined"


def test_gaps_shrink_with_the_seeds_agreement() -> None:
    agreed, apart = (planned_gaps(5, 872, seed_sd) for seed_sd in SEED_SDS)
    assert all(a < b for a, b in zip(agreed, apart, strict=True))


def test_another_headline_score_than_the_tables_is_named(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(self: calibration._Stopwatch) -> dict[str, str]:
        return {run.name: "matthews" if run.cell.task == "odd" else "accuracy" for run in self.runs}

    monkeypatch.setattr(calibration._Stopwatch, "scores", scores)
    study = make_study(tiny_config, tasks={"toy": {}, "odd": {"max_length": 20}})
    assert "headline score is another on odd (matthews), where it is only a guide." in words_of(shown(study, tmp_path))


@pytest.mark.parametrize("limit", [0, -3])
def test_the_limit_is_checked_as_when_it_runs(tiny_config: RunConfig, tmp_path: Path, limit: int) -> None:
    message = rf"^--limit must be at least 1; got {limit}$"
    with pytest.raises(ValueError, match=message):
        shown(make_study(tiny_config), tmp_path, limit=limit)
    options = {"executor": InProcess(), "out": tmp_path, "output_dir": tmp_path / "runs"}
    with pytest.raises(ValueError, match=message):
        run_study(make_study(tiny_config), limit=limit, **options)  # type: ignore[arg-type]


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
    monkeypatch.setattr("toolkit.studies.sizes.num_train", lambda config: 1 / 0)
    assert len(plan_study(make_study(tiny_config), tmp_path / "runs").final) == 4
