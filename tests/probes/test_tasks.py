"""A probe reads the data that its run was trained on, or nothing."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.run_directories import write_manifest
from toolkit.cli import parse_config
from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.probes.distortion import measure_distortion
from toolkit.probes.embedding_layer import task_of
from toolkit.probes.flow import open_subjects
from toolkit.probes.layer_drift import measure_layer_drift
from toolkit.probes.transplant_games import play_run
from toolkit.snapshots.store import Run, open_run

PROBES: tuple[Callable[[Run], Any], ...] = (
    task_of,
    play_run,
    lambda run: measure_layer_drift([run]),
    lambda run: measure_distortion([run]),
    lambda run: open_subjects([run.path]),
)


def test_data_that_have_changed_are_refused(tiny_config: RunConfig, tmp_path: Path) -> None:
    """With the labels turned round, everything that a probe scores would be wrong without a word."""
    files = {}
    for name in ("train_file", "validation_file"):
        files[name] = str(tmp_path / f"{name}.tsv")
        Path(files[name]).write_bytes(Path(getattr(tiny_config, name)).read_bytes())
    config = replace(tiny_config, **files, output_dir=str(tmp_path / "runs"), max_steps=1, save_model=True)  # type: ignore[arg-type]
    run = finetune(config)
    task = task_of(run)
    assert task.data_hashes == run.manifest["task"]["data_sha256"]
    lines = Path(files["validation_file"]).read_text().splitlines()
    flipped = [line[:-1] + str(1 - int(line[-1])) for line in lines[1:]]
    Path(files["validation_file"]).write_text("\n".join([lines[0], *flipped]) + "\n")
    for probe in PROBES:
        with pytest.raises(ValueError, match=r"the data of .* have changed since it was trained \(validation\)"):
            probe(run)
    manifest = json.loads((run.path / "manifest.json").read_text())
    del manifest["task"]["data_sha256"]
    write_manifest(run.path, manifest)
    task_of(open_run(run.path))  # from before hashes were kept: nothing says that they changed


def test_flow_asks_for_kept_models_before_it_looks_at_any(tiny_config: RunConfig, tmp_path: Path) -> None:
    config = replace(tiny_config, output_dir=str(tmp_path), max_steps=1)
    with pytest.raises(ValueError, match="holds no model"):
        open_subjects([finetune(config).path])
    open_subjects([finetune(replace(config, freeze="backbone")).path])  # whose body is the one from before


def test_a_run_without_its_model_says_what_makes_it_again_with_one(tiny_config: RunConfig, tmp_path: Path) -> None:
    """A command that can be pasted, where the run was made and where it was moved to."""
    run = finetune(replace(tiny_config, output_dir=str(tmp_path / "my runs"), max_steps=1))
    config, moved = run.config, tmp_path / "elsewhere" / run.path.name
    moved.parent.mkdir()
    for path in (run.path, moved):
        with pytest.raises(ValueError, match="make it again with one, by python finetune") as refused:
            open_subjects([path if path.exists() else run.path.rename(path)])
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
        with pytest.raises(ValueError, match=r"have changed since it was trained \(train, validation\)"):
            look()
