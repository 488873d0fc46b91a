"""A tiny config in, a study of half-second runs out, and an executor that carries runs out in this process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from toolkit.config import RunConfig
from toolkit.reporting.page import Answer, Report
from toolkit.studies.executors import Event, Executor, ExecutorOptions, Job
from toolkit.studies.study import Comparison, Study

CONDITIONS = {"full": {"freeze": "none"}, "frozen": {"freeze": "embeddings"}, "features": {"freeze": "backbone"}}
GRID = {"full": [{}, {"learning_rate": 1e-2}], "features": [{}, {"head_learning_rate": 1e-2}]}


def make_study(config: RunConfig, **changes: Any) -> Study:
    """Two conditions, one task, two seeds of ``config``; ``changes`` are fields of the study."""
    given = {f.name: getattr(config, f.name) for f in fields(RunConfig) if getattr(config, f.name) != f.default}
    values: dict[str, Any] = {
        "title": "Tiny",
        "question": "Does it matter?",
        "conditions": {name: CONDITIONS[name] for name in ("full", "features")},
        "tasks": {"toy": {}},
        "seeds": range(2),
        "comparisons": [Comparison("full", "features")],
        "margin_points": 2.0,
        "common": {**given, "epochs": 1},
    }
    return Study(**{**values, **changes})


class InProcess(Executor):
    """Carries runs out one after the other, without processes; ``before`` is called with each job first."""

    def __init__(self, before: Callable[[Job], None] = lambda job: None, workers: int = 1) -> None:
        self.before, self.options = before, ExecutorOptions(workers=workers)
        self.started: list[str] = []

    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None]) -> None:
        from toolkit.pipeline import finetune
        from toolkit.training.optimizer import NonFiniteLossError

        for job in jobs:
            self.started.append(job.name)
            on_event(Event(job.name, "running"))
            began = time.monotonic()
            try:
                self.before(job)
                finetune(config_of(job))
            except (ValueError, NonFiniteLossError) as error:
                on_event(Event(job.name, "failed", str(error), 1.0))
            else:
                on_event(Event(job.name, "finished", seconds=time.monotonic() - began))


def config_of(job: Job) -> RunConfig:
    """The config that a job's command names."""
    return RunConfig.from_json(Path(job.command[job.command.index("--config") + 1]).read_text())


class Recorded:
    """Stands in for ``write_report``: keeps what it is called with, and has ``answers``."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.answers: tuple[Answer, ...] = ()

    def __call__(self, runs: Sequence[Path], out: Path, **options: Any) -> Report:
        self.calls.append({"runs": list(runs), "out": out, **options})
        return Report(Path(out) / "report.md", self.answers)
