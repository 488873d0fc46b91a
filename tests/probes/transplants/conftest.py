"""Tiny runs that kept their models, trained once per test session."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.snapshots.store import Run

GetRun = Callable[..., Run]


@pytest.fixture(scope="session")
def tuned_run(
    tiny_config: RunConfig,
    tiny_pairs: RunConfig,
    tiny_model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> GetRun:
    """``tuned_run(task, model_type, **fields)``: a finished run with its model; task ``single`` or ``pair``."""
    folder = tmp_path_factory.mktemp("transplants")
    made: dict[str, Run] = {}

    def get(task: str = "single", model_type: str = "bert", **fields: Any) -> Run:
        key = repr((task, model_type, sorted(fields.items())))
        if key not in made:
            config = replace({"single": tiny_config, "pair": tiny_pairs}[task], model=str(tiny_model(model_type)))
            learned = {"epochs": 1, "learning_rate": 2e-2, "save_model": True, "output_dir": str(folder)}
            made[key] = finetune(replace(config, **(learned | fields)), reuse_finished=True)
        return made[key]

    return get
