"""Runs of three conditions with optimizer logs, and the report evidence that is made of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.analysis.adam_runs import make_log
from tests.run_directories import STEPS_PER_EPOCH, SharedRuns, write_run
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.snapshots.store import Run

CONDITIONS = (("none", 0.9), ("embeddings", 0.89), ("backbone", 0.6))


def write_logged_run(folder: Path, regime: str, seed: int, rate: float = 1e-4, **oddities) -> Run:
    """A finished run with the log of an AdamW whose noise is ``rate``·√steps a coordinate."""
    trained = () if regime in ("embeddings", "backbone") else EMBEDDING_PARAMETERS
    rates = [rate] * oddities.get("epochs", 3) * STEPS_PER_EPOCH
    log = make_log(rates, weight_decay=dict.fromkeys(trained, 0.0))
    return write_run(folder, regime, seed, log=log, **oddities)


@pytest.fixture(scope="session")
def shared_logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRuns]:
    """Logged runs that are written once per session; whoever changes one fails the session."""
    runs = SharedRuns(tmp_path_factory.mktemp("logged"), write_logged_run)
    yield runs
    assert not runs.changed(), "a test changed a run that others read: let it take a copy"


@pytest.fixture(scope="session")
def read_logged(shared_logged: SharedRuns) -> Callable[..., list[Run]]:
    """A function: three conditions of ``seeds`` runs each, for tests that change nothing and name no place."""

    def get(seeds: int = 3, **oddities) -> list[Run]:
        return [
            shared_logged.get(regime, seed, right=right, **oddities)
            for regime, right in CONDITIONS
            for seed in range(seeds)
        ]

    return get


@pytest.fixture
def logged(shared_logged: SharedRuns, tmp_path: Path, monkeypatch) -> Callable[..., list[Run]]:
    """As ``read_logged``, the test's own below ./runs of a temporary current directory."""
    monkeypatch.chdir(tmp_path)

    def make(seeds: int = 3, **oddities) -> list[Run]:
        return [
            shared_logged.copy_into(tmp_path / "runs", regime, seed, right=right, **oddities)
            for regime, right in CONDITIONS
            for seed in range(seeds)
        ]

    return make
