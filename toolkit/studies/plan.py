"""The run directories that a study needs, which of them are finished, and which setting each condition takes.

No model is loaded: the names of a model's parameters, which say what a regime freezes, come from its config alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.comparison.runs import has_score
from toolkit.config import RunConfig, fields_that, resolve_head_training, run_name
from toolkit.families import ModelFamily, family_of
from toolkit.naming import meant_by, unknown
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.files import sha256_of_file
from toolkit.snapshots.formats import HEADLINES
from toolkit.snapshots.store import DIVERGED, MANIFEST, Run, open_run
from toolkit.studies.study import Cell, Study

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
    for cached in (_family, _leaves, _source):  # in a notebook a folder may be another by now
        cached.cache_clear()
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
    """ValueError where the checkpoint of a finished run has another config.json or tokenizer by now."""
    if not run.is_finished:
        return
    try:
        model_facts = open_run(run.path).manifest["model"]
    except (ValueError, KeyError):  # a damaged manifest: the report says so
        return
    _source(run.config.model).check_settings(model_facts, run.name)


def describe(cell: Cell) -> str:
    """A cell in words: ``sst2, embeddings frozen, seed 1``."""
    facts = [cell.task, cell.condition, f"seed {cell.seed}"]
    facts += [f"{cell.size} examples"] if cell.size is not None else []
    facts += [f"setting {cell.setting + 1}"] if cell.stage == "tuning" and cell.setting is not None else []
    return ", ".join(facts)


def run_path(resolved: RunConfig) -> Path:
    """The directory in which ``toolkit.finetune`` puts the run of a resolved config: nothing is trained or written."""
    return Path(resolved.output_dir) / run_name(
        resolved, {**_data_hashes(resolved), **_source(resolved.model).digest_entry()}
    )


def resolve(config: RunConfig) -> RunConfig:
    """``config`` with the regime's canonical label, the task's name and this machine's precision, as runs keep it."""
    from toolkit.data.tasks import task_name
    from toolkit.models.lora import with_own_names
    from toolkit.training.accelerators import resolve_precision

    if config.lora:
        config = with_own_names(config, _family(config.model))
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
def _family(model: str) -> ModelFamily:
    """The family of a checkpoint, by its config; ValueError where it cannot be found."""
    from toolkit.models.checkpoints import find_checkpoint

    return family_of(find_checkpoint(model).read_config().model_type)


@lru_cache
def _leaves(model: str, pooling: str) -> tuple[str, ...]:
    """The leaf components of a classifier; ValueError for a checkpoint that cannot be found."""
    import torch
    from torch import nn
    from transformers import AutoModel

    from toolkit.models.checkpoints import find_checkpoint
    from toolkit.models.regimes import BACKBONE, HEAD, list_components

    config = find_checkpoint(model).read_config()
    family = _family(model)
    options = {"add_pooling_layer": pooling == "pooler"} if family.has_pooler else {}
    with torch.device("meta"):
        backbone = AutoModel.from_config(config, trust_remote_code=False, **options)
        classifier = nn.ModuleDict({BACKBONE.rstrip("."): backbone, HEAD.rstrip("."): nn.Linear(1, 1)})
    return tuple(list_components(classifier, family))


@lru_cache
def _source(model: str) -> "Source":
    """What a checkpoint is read from, with its revision; ValueError where it cannot be found."""
    from toolkit.models.checkpoints import find_checkpoint

    return find_checkpoint(model).pinned()


def _data_hashes(config: RunConfig) -> dict[str, str]:
    """Role to sha256 of each data file, as ``load_task`` gives them, and of the file of tokens to add."""
    from toolkit.data.tasks import file_roles

    roles = file_roles(config) if config.train_file else {}
    roles |= {"add_tokens": Path(config.add_tokens)} if config.add_tokens else {}
    return {role: _hash_of_file(path) for role, path in roles.items()}


def _hash_of_file(path: Path) -> str:
    """The sha256 of a data file; ValueError where there is none."""
    if not path.is_file():
        raise ValueError(
            f"no file at {path}{meant_by(path)}, which the study names: its first lines may say where the data belong"
        )
    return _hash_of_version(path, path.stat().st_mtime_ns, path.stat().st_size)


@lru_cache
def _hash_of_version(path: Path, changed: int, size: int) -> str:
    """The sha256 of a file that was ``changed`` (ns) last then and has this ``size``.

    A study names each file in dozens of runs: it is read once, unless it changes in between.
    """
    return sha256_of_file(path)


def left_to_do(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs that are not finished and have not diverged, in order."""
    return [run for run in runs if not (run.is_finished or run.has_diverged)]


@dataclass(frozen=True)
class Data:
    """The facts of a task's data that a study needs."""

    sizes: Mapping[str, int]
    """Split to its number of examples; of train, before any are drawn, held out or removed."""
    kind: str
    """As :class:`toolkit.data.tasks.Task` has it."""
    score: str
    """The headline score of the task."""
    scores: tuple[str, ...]
    """What its runs can be judged by."""


def check_score(study: Study, runs: Iterable[PlannedRun]) -> None:
    """ValueError where no task of ``runs`` has the study's score: before they are run, not when their report is made.

    Reads the data of a study that names a score, and of no other.
    """
    if study.score is None:
        return
    scores: dict[str, None] = {}
    for run in {run.cell.task: run for run in runs}.values():
        scores |= dict.fromkeys(read_data(run.config).scores)
        if study.score in scores:
            return
    if scores:
        raise ValueError(f"no task of the study has that score: {unknown(study.score, 'score', tuple(scores))}")


def read_data(config: RunConfig) -> Data:
    """The facts of a run's data, read once."""
    data_config = RunConfig(**{name: getattr(config, name) for name in fields_that(say=("data", "examples"))})
    return _read_version(data_config, tuple(_data_hashes(data_config).values()))


@lru_cache
def _read_version(config: RunConfig, hashes: tuple[str, ...]) -> Data:
    """:func:`read_data` of a config of data fields, whose files have these hashes; kept for as long as they do."""
    from toolkit.data.tasks import load_task
    from toolkit.training.evaluation import scores_of

    task = load_task(config)
    sizes = {name: len(split) for name, split in task.splits.items()}
    scores = scores_of(task.kind, task.num_outputs)
    return Data(sizes, task.kind, task.score, tuple(name for name in HEADLINES if name in scores))


SELECTION = "selection"
"""The split that ``--selection-fraction`` holds out of train."""


@with_columns
def choose(study: Study, runs: Mapping[Cell, Run | None]) -> pd.DataFrame:
    """One line per task, condition and setting: its mean score on ``selection`` at the last epoch; the best is chosen.

    The first of equal ones wins, so that a grid should begin with the setting one would take unseen. A run whose
    score is undefined, or that diverged (None), counts as the worst. ValueError when a tuning run is missing, or
    scored anything but ``selection``: a choice that has seen the reported split would spoil the claim.
    """
    records = []
    for task in study.tasks:
        scores_of_task = [run.scores for cell, run in runs.items() if cell.task == task and run is not None]
        has_wanted = study.score is not None and any(has_score(scores, study.score) for scores in scores_of_task)
        wanted_score = study.score if has_wanted else None  # else each run's own
        for condition in study.grid:
            tries = [
                _try_record(study, runs, task, condition, index, wanted_score)
                for index in range(len(study.tries(task, condition)))
            ]
            means = np.array([record["mean_score"] for record in tries], dtype=np.float64)
            # A try that diverged, or whose score is undefined, counts as the worst.
            means = np.where(np.isnan(means), -np.inf, means)
            best = int(np.argmax(means))
            at_edge = is_at_edge(study.settings_of(task, condition), means, best)
            records += [
                {**record, "is_chosen": index == best, "is_at_edge": index == best and at_edge}
                for index, record in enumerate(tries)
            ]
    return pd.DataFrame(records, columns=columns_of("choose"))


def is_at_edge(settings: Sequence[Mapping[str, Any]], scores: NDArray[np.float64], chosen: int) -> bool:
    """Whether the score still rises towards an end of the grid: a value beyond it may do better (definition ours).

    True when some numeric field of the chosen setting has the least or greatest value tried, and the chosen score is
    strictly above the best one at the next value of that field, among settings that agree in the other fields if there
    are any. No end: a least value of 0 (no field goes below), and a field with one value. ``settings``: per try the
    value of every field that the grid names; ``scores``: (tries,) float64, -inf for the worst.
    """
    chosen_setting = settings[chosen]
    for name, value in chosen_setting.items():
        values = sorted({setting[name] for setting in settings if _is_number(setting[name])})
        if not _is_number(value) or len(values) < 2:
            continue
        next_inward = {values[-1]: values[-2]} | ({values[0]: values[1]} if values[0] != 0 else {})
        if value not in next_inward:
            continue
        # Where the grid is no full product, no neighbour may agree in all other fields: then all of them count.
        neighbours = [index for index, setting in enumerate(settings) if setting[name] == next_inward[value]]
        agreeing = [index for index in neighbours if {**settings[index], name: value} == chosen_setting]
        if scores[chosen] > max(scores[index] for index in agreeing or neighbours):
            return True
    return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _try_record(
    study: Study, runs: Mapping[Cell, Run | None], task: str, condition: str, index: int, wanted_score: str | None
) -> dict[str, Any]:
    """The record of one setting of a condition on a task: its mean score over tuning seeds, NaN where one diverged."""
    runs_of_try = [
        run for cell, run in runs.items() if (cell.task, cell.condition, cell.setting) == (task, condition, index)
    ]
    if len(runs_of_try) != len(study.tuning_seeds):
        raise ValueError(
            f"{task}, {condition}: setting {index} has {len(runs_of_try)} of {len(study.tuning_seeds)} tuning runs"
        )
    selection_scores = [_selection_score(run, wanted_score) for run in runs_of_try if run is not None]
    has_diverged = len(selection_scores) < len(runs_of_try)
    score_name, num_items, _ = selection_scores[0] if selection_scores else ("", 0, np.nan)
    fields_text = (
        ", ".join(f"{key} {value}" for key, value in study.tries(task, condition)[index].items()) or "as it is"
    )
    return {
        "task": task,
        "condition": condition,
        "setting": index,
        "fields": f"{fields_text} (diverged)" if has_diverged else fields_text,
        "num_seeds": len(runs_of_try),
        "num_items": num_items,
        "split": SELECTION,
        "score": score_name,
        "mean_score": np.nan if has_diverged else float(np.mean([score for _, _, score in selection_scores])),
    }


def _selection_score(run: Run, wanted_score: str | None) -> tuple[str, int, float]:
    """Name of the score, items, and the score at the last epoch; ValueError if it saw any other split."""
    task = run.manifest["task"]
    scored_splits = set(run.scores["split"])
    if scored_splits != {SELECTION} or task["reported_split"] != SELECTION:
        raise ValueError(f"{run.path.name} scored {sorted(scored_splits)}: tuning may see {SELECTION} only")
    last = run.scores[run.scores["epoch"] == run.scores["epoch"].max()]
    name = wanted_score or task["score"]
    return name, int(last["num_examples"].iloc[0]), float(last[name].iloc[0])


def chosen_settings(table: pd.DataFrame) -> dict[tuple[str, str], int]:
    """(task, condition) to the index of its chosen setting."""
    return {(record.task, record.condition): int(record.setting) for record in table[table["is_chosen"]].itertuples()}
