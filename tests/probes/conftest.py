"""Measured or trained once a session: the anatomy of a tiny model of every family, and runs that kept their models."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolkit.config import RunConfig
from toolkit.models.classifier import Loaded
from toolkit.pipeline import finetune
from toolkit.probes.anatomy import Anatomy, take_apart
from toolkit.probes.embedding_layer import open_model
from toolkit.snapshots.store import Run

GetRun = Callable[..., Run]
TEXT, PAIR = "the film is good .", "the doctor saw a teacher ."


@pytest.fixture(scope="session")
def opened(tiny_model: Callable[[str], Path]) -> Callable[[str], Loaded]:
    """A function: model type to its tiny model, loaded once."""
    models: dict[str, Loaded] = {}

    def get(model_type: str) -> Loaded:
        if model_type not in models:
            models[model_type] = open_model(str(tiny_model(model_type)))
        return models[model_type]

    return get


@pytest.fixture(scope="session")
def anatomy_of(opened: Callable[[str], Loaded]) -> Callable[[str], Anatomy]:
    """A function: model type to the anatomy of its tiny model on the pair TEXT, PAIR."""
    found: dict[str, Anatomy] = {}

    def get(model_type: str) -> Anatomy:
        if model_type not in found:
            found[model_type] = take_apart(opened(model_type), TEXT, PAIR)
        return found[model_type]

    return get


@pytest.fixture(scope="session")
def tuned_run(
    tiny_config: RunConfig,
    tiny_pairs: RunConfig,
    tiny_model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> GetRun:
    """``tuned_run(task, model_type, **fields)``: a finished run with its model; task ``single``, ``pair`` or
    ``regression``, whose target is the length of a text of single."""
    folder = tmp_path_factory.mktemp("transplants")
    files = {}
    for name in ("train_file", "validation_file"):
        lines = Path(str(getattr(tiny_config, name))).read_text().splitlines()
        told = [f"{text}\t{len(text) / 10 - 3}" for text in (line.split("\t")[0] for line in lines[1:])]
        files[name] = str(folder / f"{name}.tsv")
        Path(files[name]).write_text("\n".join([lines[0], *told]) + "\n")
    regression = replace(tiny_config, **files, test_file=(), label_kind="targets")
    made: dict[str, Run] = {}

    def get(task: str = "single", model_type: str = "bert", **fields: Any) -> Run:
        key = repr((task, model_type, sorted(fields.items())))
        if key not in made:
            config = replace(
                {"single": tiny_config, "pair": tiny_pairs, "regression": regression}[task],
                model=str(tiny_model(model_type)),
            )
            learned = {"epochs": 1, "learning_rate": 2e-2, "save_model": True, "output_dir": str(folder)}
            made[key] = finetune(replace(config, **(learned | fields)), reuse_finished=True)
        return made[key]

    return get
