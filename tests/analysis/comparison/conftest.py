"""Runs of three arms with optimizer logs, and the report evidence that is made of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.analysis.adam_runs import make_log
from tests.run_directories import write_run
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.snapshots.store import MANIFEST, Run, RunWriter, open_run

ARMS = (("none", 0.9), ("embeddings", 0.89), ("backbone", 0.6))


def write_logged_run(folder: Path, regime: str, seed: int, rate: float = 1e-4, **oddities) -> Run:
    """A finished run with the log of an AdamW whose noise is ``rate``·√steps a coordinate."""
    run = write_run(folder, regime, seed, **oddities)
    writer = RunWriter(run.path)
    trained = () if regime in ("embeddings", "backbone") else EMBEDDING_PARAMETERS
    writer.write_optimizer_log(make_log([rate] * 30, weight_decay=dict.fromkeys(trained, 0.0)))
    facts = json.loads((run.path / MANIFEST).read_text())
    writer.finish({k: v for k, v in facts.items() if k not in ("files", "format")})
    return open_run(run.path)


@pytest.fixture
def logged(tmp_path, monkeypatch) -> Callable[..., list[Run]]:
    """A function: three arms of ``seeds`` runs each below ./runs of a temporary current directory."""
    monkeypatch.chdir(tmp_path)

    def make(seeds: int = 3, **oddities) -> list[Run]:
        return [
            write_logged_run(tmp_path / "runs", regime, seed, right=right, **oddities)
            for regime, right in ARMS
            for seed in range(seeds)
        ]

    return make
