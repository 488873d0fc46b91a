"""Reports without figures, and the parts of a report."""

from collections.abc import Callable

import pytest

from tests.run_directories import MakeRun
from toolkit.analysis.comparison.arms import arrange
from toolkit.reporting.comparison.data import ReportData, gather
from toolkit.snapshots.store import Run

ARMS = {"full fine-tuning": "none", "embeddings frozen": "embeddings", "feature extraction": "backbone"}


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, for tests of the text: drawing is what takes the time."""
    monkeypatch.setattr("toolkit.reporting.comparison.report.draw", lambda tables: {})
    monkeypatch.setattr("toolkit.reporting.comparison.report.draw_scores", lambda *tables: {})


@pytest.fixture
def study(make_run: MakeRun) -> Callable[..., tuple[list[Run], dict[str, str]]]:
    """``study(tasks, num_seeds, right={arm: share})`` gives runs of three arms and their labels."""

    def make(
        tasks: tuple[str, ...] = ("toy",), num_seeds: int = 3, right: dict[str, float] | None = None, **oddities: object
    ) -> tuple[list[Run], dict[str, str]]:
        share = {"full fine-tuning": 0.95, "embeddings frozen": 0.95, "feature extraction": 0.7} | (right or {})
        runs, labels = [], {}
        for task in tasks:
            for label, regime in ARMS.items():
                for seed in range(num_seeds):
                    run = make_run(regime, seed, task=task, right=share[label], **oddities)
                    runs.append(run)
                    labels[run.path.name] = label
        return runs, labels

    return make


@pytest.fixture
def data_of() -> Callable[..., ReportData]:
    """The numbers of a report on some runs."""
    return lambda runs, labels=None, **options: gather(arrange(runs, labels), **options)
