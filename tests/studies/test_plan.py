"""The run directories that a plan names are those that training makes, and naming them writes nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import check_refused
from tests.studies.tiny_studies import make_study
from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.studies.plan import describe, left_to_do, plan_runs, read_data, resolve, run_path

SPELLINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "a regime in parts": {"freeze": "LayerNorm.bias,layers.0,layers.1"},
    "two names of one regime": {"freeze": "word_embeddings,position_embeddings,token_type_embeddings,LayerNorm.weight,"
                                "LayerNorm.bias"},
    "precision of the machine": {"precision": "auto"},
    "head first, held-out selection": {"head_epochs": 1, "selection_fraction": 0.25, "max_train_examples": 40},
    "pooler": {"pooling": "pooler", "freeze": "pooler"},
    "a built-in task": {"task": "polarity", "train_file": None, "validation_file": None, "test_file": (),
                        "text_columns": (), "max_train_examples": 16, "max_steps": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_planned_directory_is_the_one_that_training_makes(
    name: str, tiny_config: RunConfig, tmp_path: Path
) -> None:
    config = replace(tiny_config, epochs=1, output_dir=str(tmp_path / "runs"), **SPELLINGS[name])
    planned = run_path(resolve(config))
    assert not (tmp_path / "runs").exists()
    assert finetune(config).path == planned


@pytest.mark.parametrize("family", ["distilbert", "electra", "albert", "modernbert"])
def test_other_families_have_other_components(
    family: str, tiny_config: RunConfig, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    config = replace(tiny_config, epochs=1, model=str(tiny_model(family)), output_dir=str(tmp_path), freeze="encoder")
    assert finetune(config).path == run_path(resolve(config))


def test_a_plan_knows_what_is_finished(tiny_config: RunConfig, tmp_path: Path) -> None:
    cells = make_study(tiny_config).final_cells({})
    runs = plan_runs(cells, tmp_path / "runs")
    assert [run.cell for run in runs] == cells
    assert left_to_do(runs) == list(runs)
    run = finetune(runs[2].config)
    assert run.path == runs[2].path
    assert left_to_do(runs) == [runs[0], runs[1], runs[3]]
    (run.path / "manifest.json").unlink()  # interrupted
    assert left_to_do(runs) == list(runs)


def test_a_data_file_that_was_exchanged_is_counted_again(tiny_config: RunConfig, tmp_path: Path) -> None:
    """In one process, as in a notebook."""
    file = tmp_path / "train.tsv"
    lines = Path(str(tiny_config.train_file)).read_text().splitlines(keepends=True)
    for number in (32, 48):
        file.write_text("".join(lines[: 1 + number]))
        assert read_data(replace(tiny_config, train_file=str(file))).sizes["train"] == number


def test_two_cells_that_are_one_run_are_refused(tiny_config: RunConfig, tmp_path: Path) -> None:
    """Otherwise a condition would be compared with itself and found equal."""
    study = make_study(tiny_config, conditions={"full": {}, "features": {"freeze": "none"}})
    check_refused(
        r"^toy, full, seed 0 and toy, features, seed 0 are the same run", plan_runs, study.final_cells({}), tmp_path
    )


def test_changed_data_are_another_run(tiny_config: RunConfig, tmp_path: Path) -> None:
    data = tmp_path / "v.tsv"
    data.write_text("text\tlabel\nfine\t1\ndull\t0\n")
    config = replace(tiny_config, validation_file=str(data))
    first = run_path(resolve(config))
    assert run_path(resolve(config)) == first
    data.write_text("text\tlabel\ngood\t1\ndull\t0\n")
    assert run_path(resolve(config)) != first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": "embedings"}, r"unknown regime or component 'embedings'"),
        ({"train_file": "gone.tsv"}, r"no file at gone\.tsv"),
        ({"model": "minilmm"}, r"unknown model 'minilmm'"),
    ],
)
def test_a_config_that_cannot_work_is_refused_before_anything_runs(
    changes: dict[str, Any], message: str, tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    study = make_study(tiny_config, conditions={"full": changes, "features": {"freeze": "backbone"}})
    check_refused(message, plan_runs, study.final_cells({}), tmp_path / "runs")
    assert not list(tmp_path.iterdir())


def test_a_cell_in_words(tiny_config: RunConfig) -> None:
    grid = {"full": [{}, {"learning_rate": 1e-2}], "features": [{}, {"head_learning_rate": 1e-2}]}
    study = make_study(tiny_config, sizes=(32, 64), grid=grid)
    assert describe(study.tuning_cells()[1]) == "toy, full, seed 1000, 64 examples, setting 2"
    assert describe(study.final_cells({})[0]) == "toy, full, seed 0, 32 examples"
