"""A dry run tells what a study costs and what it can see, and neither runs nor writes anything."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.studies.tiny_studies import GRID, InProcess, make_study
from toolkit.analysis.comparison.detectable import detectable_gap_planned
from toolkit.config import RunConfig
from toolkit.studies import calibration
from toolkit.studies.dry_run import DISCORDANCES, SEED_SD, dry_run, plan_study, planned_gaps
from toolkit.studies.plan import plan_runs
from toolkit.studies.rates import Rates
from toolkit.studies.runner import run_study
from toolkit.studies.study import Study


@pytest.fixture(autouse=True)
def _nothing_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a launch took 100 s and the rest next to nothing."""
    monkeypatch.setattr(calibration, "startup_seconds", lambda config, threads: 100.0)
    monkeypatch.setattr(calibration, "measure_rates", lambda *_: Rates(0.0, 0.0, 0.0, 0.0, False))


def shown(study: Study, folder: Path, **options: int) -> str:
    console = Console(file=io.StringIO(), width=120)
    dry_run(study, output_dir=folder / "runs", console=console, **options)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def cells_of(text: str, *words: str) -> list[str]:
    """The cells of the first table row that holds all of the words."""
    line = next(line for line in text.splitlines() if "│" in line and all(word in line for word in words))
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_runs_time_and_detectable_gap_are_printed_and_nothing_is_written(
    tiny_config: RunConfig, tmp_path: Path
) -> None:
    study = make_study(tiny_config, seeds=range(4), hypothesis="It does not.")
    text = shown(study, tmp_path, workers=2, limit=3)
    assert text.splitlines()[:3] == ["Tiny", "Question: Does it matter?", "Expected: It does not."]
    assert cells_of(text, "final", "full")[:6] == ["final", "toy", "full", "4", "0", "4"]
    assert "8 runs, 0 finished, 8 to do: about 7 min, 2 at a time, and the report." in text, "8 x 100 s in two queues"
    assert "With --limit 3: 3 of them, about 3 min" in text
    gaps = [f"{100 * detectable_gap_planned(4, 24, share, SEED_SD):.1f}" for share in (0.05, 0.10, 0.20)]
    assert cells_of(text, "validation") == ["toy", "validation", "24", "4", *gaps]
    assert "Margin of equivalence: 2 points." in text.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_the_gaps_are_those_of_the_studys_seeds_and_items(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.studies.dry_run.planned_gaps", lambda seeds, items: [seeds, items, 0.0])
    text = shown(make_study(tiny_config, seeds=range(7), grid=GRID), tmp_path)
    assert cells_of(text, "validation")[2:] == ["24", "7", "7.0", "24.0", "0.0"]
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
            study, executor=executor, limit=4 - len(executor.started) or 1, out=tmp_path, output_dir=tmp_path / "runs"
        )
    assert executor.started[4] == planned.final[0].name
    assert plan_runs(study.tuning_cells(), tmp_path / "runs")[0].is_finished


def test_a_mistake_shows_before_anything_is_timed(tiny_config: RunConfig, tmp_path: Path) -> None:
    long = make_study(replace(tiny_config, max_length=4000))
    with pytest.raises(ValueError, match=r"--max-length 4000 is more than the 48 positions"):
        shown(long, tmp_path)


def test_planned_gaps_shrink_with_items_and_seeds() -> None:
    few, many = planned_gaps(3, 400), planned_gaps(8, 4000)
    assert all(a > b for a, b in zip(few, many, strict=True))
    assert few == [100 * detectable_gap_planned(3, 400, share, SEED_SD) for share in DISCORDANCES] == sorted(few)
    assert len(few) == len(DISCORDANCES)
    assert all(gap != gap for gap in planned_gaps(3, 1)), "one item: undefined"
