"""What looks into a run reads the data that it was trained on, or nothing."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.questions.conftest import CHANGED
from tests.refusals import check_refused
from toolkit.cli import parse_config
from toolkit.config import RunConfig
from toolkit.models.tuned import check_model
from toolkit.pipeline import finetune
from toolkit.questions.models import task_of
from toolkit.snapshots.store import Run, open_run


def test_data_that_have_changed_are_refused(changed_run: Run) -> None:
    """With the labels turned round, everything that is scored would be wrong without a word."""
    check_refused(CHANGED, task_of, changed_run)


def test_a_run_without_its_model_says_what_makes_it_again_with_one(tiny_config: RunConfig, tmp_path: Path) -> None:
    """A command that can be pasted, where the run was made and where it was moved to."""
    run = finetune(replace(tiny_config, output_dir=str(tmp_path / "my runs"), max_steps=1))
    config, moved = run.config, tmp_path / "elsewhere" / run.path.name
    moved.parent.mkdir()
    for path in (run.path, moved):
        with pytest.raises(ValueError, match="make it again with one, by python finetune") as refused:
            check_model(open_run(path if path.exists() else run.path.rename(path)))
        again = parse_config(shlex.split(str(refused.value).partition("finetune.py ")[2]))
        assert again == replace(config, save_model=True, overwrite=True, output_dir=str(path.parent))


def test_a_dataset_of_the_hub_that_has_changed_is_refused(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs have one name whatever it held: a run of other data must not be taken for one of these."""
    import datasets

    def publish(*texts: str) -> None:
        split = datasets.Dataset.from_dict({"text": list(texts), "label": [0, 1] * 4})
        made = datasets.DatasetDict(train=split, validation=split)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: made)

    fields: dict[str, Any] = {"train_file": None, "validation_file": None, "test_file": (), "dataset": "owner/name"}
    config = replace(tiny_config, **fields, output_dir=str(tmp_path), max_steps=1)
    publish(*"abcdefgh")
    run = finetune(config)
    assert task_of(run).data_hashes == run.manifest["task"]["data_sha256"]
    assert finetune(config, reuse_finished=True).path == run.path
    publish(*"abcdefgx")
    for look in (lambda: task_of(run), lambda: finetune(config, reuse_finished=True)):
        check_refused(r"have changed since it was trained \(train, validation\)", look)
