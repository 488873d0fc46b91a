"""A dry run tells which runs a study needs and what it can see, and leaves nothing."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.refusals import check_refused
from tests.studies.tiny_studies import GRID, InProcess, Recorded, make_study
from toolkit.comparison.intervals import detectable_gap_planned
from toolkit.config import RunConfig
from toolkit.studies import dry_run as module
from toolkit.studies.dry_run import (
    DISCORDANCES,
    SEED_SDS,
    dry_run,
    planned_gaps,
)
from toolkit.studies.runner import plan_study, run_study
from toolkit.studies.study import Study


def shown(study: Study, folder: Path, *, limit: int | None = None) -> str:
    stream = io.StringIO()
    dry_run(study, output_dir=folder / "runs", console=Console(file=stream, width=120), limit=limit)
    return stream.getvalue()


def cells_of(text: str, *words: str) -> list[str]:
    """The cells of the first table row that holds all of the words."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return next(cells for cells in lines if all(word in cells for word in words))


def words_of(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def test_regression_has_no_items_of_accuracy(tiny_config: RunConfig, tmp_path: Path) -> None:
    data = tmp_path / "v.tsv"
    data.write_text("text\tlabel\n" + "".join(f"word {i}\t{i / 10}\n" for i in range(20)))
    config = replace(tiny_config, train_file=str(data), validation_file=str(data), test_file=())
    assert "not applicable: no accuracy" in shown(make_study(config, seeds=(0,)), tmp_path)


def test_runs_and_detectable_gap_are_printed_and_nothing_is_left(tiny_config: RunConfig, tmp_path: Path) -> None:
    text = shown(make_study(tiny_config, seeds=range(4), hypothesis="It does not."), tmp_path, limit=3)
    assert words_of(text).startswith("Tiny Question: Does it matter? Expected: It does not. ")
    assert cells_of(text, "final", "full") == ["final", "toy", "full", "4", "0", "0", "4"]
    assert "In all: runs 8, finished 0, to do 8." in words_of(text)
    for seed_sd in SEED_SDS:
        gaps = [f"{100 * detectable_gap_planned(4, 24, share, seed_sd):.1f}" for share in DISCORDANCES]
        own = ["toy", "validation", "24", "4", f"{100 * seed_sd:.0f}"]
        assert cells_of(text, "validation", f"{100 * seed_sd:.0f}") == [*own, *gaps]
    assert "Margin of equivalence: 2 points." in words_of(text)
    assert all(gap != gap for gap in planned_gaps(3, 1, 0.01)), "one item: undefined"
    gap = f"{100 * detectable_gap_planned(4, 24, 0.1, 0.01):.1f}"
    assert f"80 % power finds, in points: toy {gap} (seeds 4, items 24). So much is known" in words_of(text)
    assert (" train " in text, "headline" in text) == (False, False)  # nothing is claimed on train
    assert not list(tmp_path.iterdir())


def test_finished_runs_cost_nothing_more(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.reporting.comparison_report.write_report", Recorded())
    study = make_study(tiny_config)
    options: dict[str, Any] = {"out": tmp_path / "r", "output_dir": tmp_path / "runs"}
    run_study(study, executor=InProcess(), limit=3, **options)
    before = sorted(tmp_path.rglob("*"))
    text = shown(study, tmp_path)
    assert cells_of(text, "final", "full") == ["final", "toy", "full", "2", "2", "0", "0"]
    assert cells_of(text, "final", "features")[3:] == ["2", "1", "0", "1"]
    assert "In all: runs 4, finished 3, to do 1." in words_of(text)
    assert sorted(tmp_path.rglob("*")) == before
    run_study(study, executor=InProcess(), limit=1, **options)
    text = shown(study, tmp_path)
    assert "In all: runs 4, finished 4, to do 0." in words_of(text)
    assert cells_of(text, "validation")[:4] == ["toy", "validation", "24", "2"]


def test_a_study_with_a_grid_counts_its_tuning(tiny_config: RunConfig, tmp_path: Path) -> None:
    study, executor = make_study(tiny_config, grid=GRID, seeds=(0,)), InProcess()
    text = shown(study, tmp_path)
    assert cells_of(text, "tuning", "full")[3:] == ["2", "0", "0", "2"]
    assert "In all: runs 6, finished 0, to do 6." in words_of(text)
    assert "the first setting of each condition, until tuning has chosen" in text
    assert "selection" not in text, "nothing is claimed on the split that settings are chosen on"
    run_study(study, executor=executor, limit=4, out=tmp_path / "r", output_dir=tmp_path / "runs")
    planned = plan_study(study, tmp_path / "runs")
    assert planned.is_chosen
    assert "until tuning has chosen" not in shown(study, tmp_path)
    run_study(study, executor=executor, limit=1, out=tmp_path / "r", output_dir=tmp_path / "runs")
    assert executor.started[4] == planned.final[0].name


def test_another_headline_score_than_the_tables_is_named(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = module.read_data
    monkeypatch.setattr(module, "read_data", lambda config: replace(read(config), score="matthews"))
    for named, score in (({}, "matthews"), ({"score": "macro_f1"}, "macro_f1")):
        assert f"headline score is another on toy ({score})" in words_of(
            shown(make_study(tiny_config, **named), tmp_path)
        )


@pytest.mark.parametrize("limit", [0, -3])
def test_the_limit_is_checked_as_when_it_runs(tiny_config: RunConfig, tmp_path: Path, limit: int) -> None:
    message = rf"^--limit must be at least 1; got {limit}$"
    check_refused(message, shown, make_study(tiny_config), tmp_path, limit=limit)
