"""Trained once a session: runs that kept their models; and what the tests of the core have."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.conftest import make_exposure as make_exposure
from tests.analysis.conftest import make_trajectory as make_trajectory
from tests.comparison.conftest import logged as logged
from tests.comparison.conftest import read_logged as read_logged
from tests.comparison.conftest import shared_logged as shared_logged
from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.snapshots.store import Run

GetRun = Callable[..., Run]
CHANGED = r"the data of .* have changed since it was trained \(validation\)"


@pytest.fixture(scope="session")
def runs(tiny_pairs: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two seeds of full fine-tuning, and one run with frozen embeddings."""
    folder = str(tmp_path_factory.mktemp("drift"))
    full = [finetune(replace(tiny_pairs, seed=seed, output_dir=folder)) for seed in (0, 1)]
    return [*full, finetune(replace(tiny_pairs, freeze="embeddings", output_dir=folder))]


@pytest.fixture
def changed_run(tiny_config: RunConfig, tmp_path: Path) -> Run:
    """A finished run with its model, in whose validation file every label was turned round afterwards."""
    files = {}
    for name in ("train_file", "validation_file"):
        files[name] = str(tmp_path / f"{name}.tsv")
        Path(files[name]).write_bytes(Path(getattr(tiny_config, name)).read_bytes())
    config = replace(tiny_config, **files, output_dir=str(tmp_path / "runs"), max_steps=1, save_model=True)  # type: ignore[arg-type]
    run = finetune(config)
    lines = Path(files["validation_file"]).read_text().splitlines()
    flipped = [line[:-1] + str(1 - int(line[-1])) for line in lines[1:]]
    Path(files["validation_file"]).write_text("\n".join([lines[0], *flipped]) + "\n")
    return run


@pytest.fixture(scope="session")
def masked_run(
    masked_lm: Callable[[str], Path],
    tiny_files: Callable[[str], dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """A finished run that learned masked tokens, with its model."""
    return finetune(
        RunConfig(
            model=str(masked_lm("bert")),
            objective="mlm",
            epochs=1,
            batch_size=16,
            precision="no",
            learning_rate=1e-2,
            max_length=40,
            save_model=True,
            output_dir=str(tmp_path_factory.mktemp("masked")),
            **tiny_files("polarity"),
        )
    )


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
