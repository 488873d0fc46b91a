"""Studies of three conditions, and the numbers of a report on them."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.run_directories import MakeRun, SharedRuns
from toolkit.comparison.measure import measure
from toolkit.comparison.report_data import ReportData
from toolkit.snapshots.store import Run, open_run

CONDITIONS = {"full fine-tuning": "none", "embeddings frozen": "embeddings", "feature extraction": "backbone"}
Study = Callable[..., tuple[list[Run], dict[str, str]]]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path in there."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def study_of(
    make: MakeRun,
    tasks: tuple[str, ...] = ("toy",),
    num_seeds: int = 3,
    right: Mapping[str, float] | None = None,
    **oddities: object,
) -> tuple[list[Run], dict[str, str]]:
    """Runs of three conditions, and their labels."""
    share = {"full fine-tuning": 0.95, "embeddings frozen": 0.95, "feature extraction": 0.7} | dict(right or {})
    runs, labels = [], {}
    for task in tasks:
        for label, regime in CONDITIONS.items():
            for seed in range(num_seeds):
                run = make(regime, seed, task=task, right=share[label], **oddities)
                runs.append(run)
                labels[run.path.name] = label
    return runs, labels


def with_tables(data: ReportData, **tables: Any) -> ReportData:
    """The same numbers with some tables that are others."""
    changed = copy.copy(data)
    changed.__dict__.update(tables)
    return changed


@pytest.fixture
def study(make_run: MakeRun) -> Study:
    """``study(tasks, num_seeds, right={condition: share})`` gives runs of three conditions and their labels."""
    return lambda *args, **options: study_of(make_run, *args, **options)


@pytest.fixture(scope="session")
def read_study(read_run: MakeRun) -> Study:
    """As ``study``, for tests that change nothing and name no place."""
    return lambda *args, **options: study_of(read_run, *args, **options)


@pytest.fixture(scope="session")
def data_of(shared_runs: SharedRuns) -> Callable[..., ReportData]:
    """The numbers of a report on some runs: computed once for runs that are only read, so change nothing in them."""
    known: dict[str, ReportData] = {}

    def get(runs: Sequence[Run], labels: Mapping[str, str] | None = None, **options: Any) -> ReportData:
        if not all(run.path.is_relative_to(shared_runs.folder) for run in runs):
            return ReportData(measure(runs, labels, **options))
        key = repr(([run.path for run in runs], labels, options))
        if key not in known:
            known[key] = ReportData(measure([open_run(run.path) for run in runs], labels, **options))
        return known[key]

    return get
