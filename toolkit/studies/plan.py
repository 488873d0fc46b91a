"""The run directories that a study needs, and which of them are finished.

No model is loaded: the names of a model's parameters, which say what a regime freezes, come from its config alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.config import RunConfig, fields_that, resolve_head_training, run_name
from toolkit.snapshots.files import sha256_of_file
from toolkit.snapshots.store import DIVERGED, MANIFEST, open_run
from toolkit.studies.study import Cell

if TYPE_CHECKING:
    from toolkit.models.checkpoints import Source


@dataclass(frozen=True)
class PlannedRun:
    """One cell of a study and the run directory that it has or will have."""

    cell: Cell
    config: RunConfig
    """Resolved: repeating it on other hardware gives the same directory."""
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_finished(self) -> bool:
        """Whether the manifest, which is written last, is there."""
        return (self.path / MANIFEST).exists()

    @property
    def has_diverged(self) -> bool:
        """Whether its training stopped because the loss was not finite: running it again would not help."""
        return (self.path / DIVERGED).exists() and not self.is_finished


def plan_runs(cells: Iterable[Cell], output_dir: str | Path) -> tuple[PlannedRun, ...]:
    """The runs of ``cells`` below ``output_dir``, in their order.

    ValueError for a config that cannot work, as far as that shows before data are read, for two cells that would be
    the same run, and for a finished run whose checkpoint has another config.json or tokenizer now.
    """
    runs: dict[str, PlannedRun] = {}
    for cell in cells:
        config = resolve(replace(cell.config, output_dir=str(output_dir), overwrite=False))
        run = PlannedRun(cell, config, run_path(config))
        _check_settings(run)
        if run.name in runs:
            raise ValueError(f"{describe(runs[run.name].cell)} and {describe(cell)} are the same run: change one")
        runs[run.name] = run
    return tuple(runs.values())


def _check_settings(run: PlannedRun) -> None:
    if not run.is_finished:
        return
    try:
        known = open_run(run.path).manifest["model"]
    except (ValueError, KeyError):  # a damaged manifest: the report says so
        return
    _source(run.config.model).check_settings(known, run.name)


def describe(cell: Cell) -> str:
    """A cell in words: ``sst2, embeddings frozen, seed 1``."""
    words = [cell.task, cell.arm, f"seed {cell.seed}"]
    words += [f"{cell.size} examples"] if cell.size is not None else []
    words += [f"setting {cell.setting + 1}"] if cell.stage == "tuning" and cell.setting is not None else []
    return ", ".join(words)


def run_path(resolved: RunConfig) -> Path:
    """The directory in which ``toolkit.finetune`` puts the run of a resolved config: nothing is trained or written."""
    return Path(resolved.output_dir) / run_name(
        resolved, {**_data_hashes(resolved), **_source(resolved.model).digest_entry()}
    )


def resolve(config: RunConfig) -> RunConfig:
    """``config`` with the regime's canonical label, the task's name and this machine's precision, as runs keep it."""
    from toolkit.data.tasks import task_name
    from toolkit.training.accelerators import resolve_precision

    label = _regime_label(config.freeze, config.model, config.pooling)
    return replace(
        resolve_head_training(config, is_frozen=label == "backbone"),
        freeze=label,
        task=task_name(config),
        precision=resolve_precision(config.precision),  # type: ignore[arg-type]
    )


def _regime_label(freeze: str, model: str, pooling: str) -> str:
    """The canonical name of a regime, from the leaf components of a model that is built without weights."""
    from toolkit.models.regimes import parse_regime

    return parse_regime(freeze, _leaves(model, pooling)).label


@lru_cache
def _leaves(model: str, pooling: str) -> tuple[str, ...]:
    """The leaf components of a classifier; ValueError for a checkpoint that cannot be found."""
    import torch
    from torch import nn
    from transformers import AutoModel

    from toolkit.families import family_of
    from toolkit.models.checkpoints import find_checkpoint
    from toolkit.models.regimes import BACKBONE, HEAD, list_components

    config = find_checkpoint(model).read_config()
    family = family_of(config.model_type)
    options = {"add_pooling_layer": pooling == "pooler"} if family.has_pooler else {}
    with torch.device("meta"):
        parts = {BACKBONE: AutoModel.from_config(config, trust_remote_code=False, **options), HEAD: nn.Linear(1, 1)}
    return tuple(list_components(nn.ModuleDict({k.rstrip("."): part for k, part in parts.items()}), family))


@lru_cache
def _source(model: str) -> "Source":
    from toolkit.models.checkpoints import find_checkpoint

    return find_checkpoint(model).pinned()


def _data_hashes(config: RunConfig) -> dict[str, str]:
    """Role to sha256 of each data file, as ``load_task`` gives them."""
    from toolkit.data.tasks import file_roles

    return {role: _hash(path) for role, path in file_roles(config).items()} if config.train_file else {}


def _hash(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"no file at {path}, which the study names: its first lines may say where the data belong")
    return _hash_of_version(path, path.stat().st_mtime_ns, path.stat().st_size)


@lru_cache
def _hash_of_version(path: Path, changed: int, size: int) -> str:
    """A study names each file in dozens of runs: it is read once, unless it changes in between."""
    return sha256_of_file(path)


def left_to_do(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs that are not finished and have not diverged, in order."""
    return [run for run in runs if not (run.is_finished or run.has_diverged)]


def without_repeats(cells: Sequence[Cell]) -> list[Cell]:
    """The cells without those whose size is more than train has, where a smaller one has all of train already.

    Reads the data of a study with sizes, and of no other. ValueError where they cannot be read.
    """
    whole: dict[tuple[object, ...], int] = {}
    for cell in cells:
        if cell.size is not None and cell.size >= num_train(cell.config):
            whole[_but_for_size(cell)] = min(cell.size, whole.get(_but_for_size(cell), cell.size))
    return [cell for cell in cells if cell.size is None or cell.size <= whole.get(_but_for_size(cell), cell.size)]


def notes_on(cells: Sequence[Cell]) -> list[str]:
    """One sentence per task and size that is more than train has: what is trained instead."""
    kept = set(without_repeats(cells))
    notes = {}
    for cell in cells:
        if cell.size is not None and cell.size > (number := num_train(cell.config)):
            known = min(c.size for c in kept if _but_for_size(c) == _but_for_size(cell) and (c.size or 0) >= number)  # type: ignore[type-var]
            lead = f"{cell.task} has {number:,} training examples: size {cell.size:,}"
            same = "is all of them" if cell in kept else f"would repeat size {known:,} and is left out"
            notes[cell.task, cell.size] = f"{lead} {same}."
    return list(notes.values())


def _but_for_size(cell: Cell) -> tuple[object, ...]:
    """What two cells share if they differ in nothing but the size."""
    return (cell.stage, cell.task, cell.arm, cell.seed, cell.setting)


def num_train(config: RunConfig) -> int:
    """Examples of train before any are drawn, held out or removed; the data are read once."""
    return _num_train(RunConfig(**{name: getattr(config, name) for name in fields_that(say=("data", "examples"))}))


@lru_cache
def _num_train(config: RunConfig) -> int:
    from toolkit.data.tasks import load_task

    return len(load_task(config).splits["train"])
