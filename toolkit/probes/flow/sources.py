"""Names of checkpoints and runs in, the models to look into and the texts to look at them with out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from toolkit.comparison.arms import Group, Labels, arrange
from toolkit.config import RunConfig
from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.data.files import read_file
from toolkit.data.tasks import Split, Task, check_texts, load_task
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.tuned import HEAD_FILE, check_model, load_tuned, load_untuned, name_of_start
from toolkit.naming import shown_path
from toolkit.probes.states import one_sequence_each
from toolkit.probes.tasks import task_of
from toolkit.snapshots.store import Run, open_run
from toolkit.training.encoding import encode_task

PRETRAINED = "pretrained"
RANDOM = "random weights"
"""The null line: fresh weights of the same shape, never trained."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One model to look into."""

    condition: str
    name: str
    """Distinct within its group: the run's, or the checkpoint's."""
    seed: int | None
    load: Callable[[], Loaded]
    has_head: bool
    """Whether its head was trained on the group's task."""


@dataclass(frozen=True, slots=True)
class TextSource:
    """What every model of a group is looked at with."""

    title: str
    task: Task
    split: str
    """The split of the task whose texts are read: one that no run was trained on."""
    max_length: int

    def encode(self, loaded: Loaded) -> tuple[EncodedTask, EncodedSplit]:
        """Its texts as a model reads them."""
        length = min(self.max_length, loaded.max_length or self.max_length)
        task = _only(self.task, self.split)
        data = encode_task(task, loaded, length)
        one_sequence_each(data.splits["train"])
        return data, data.splits["train"]

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        return self.task.splits[self.split].texts


def open_subjects(
    places: Sequence[str | Path],
    *,
    texts: Path | None = None,
    text_columns: tuple[str, ...] = (),
    task: str = RunConfig().task,
    labels: Labels | None = None,
) -> list[tuple[TextSource, list[Subject]]]:
    """Group what was named: runs by model and task, each group with its pretrained and random models beside them.

    Checkpoints alone make one group, looked at with ``texts`` (a data file; ``text_columns``: one or
    two) or a built-in ``task``; among runs they stand in
    every group. Runs are looked at with the texts of their reported split, or ``texts``. ValueError for nothing named,
    a run that kept no model, or texts that cannot be read.
    """
    if not places:
        raise ValueError("nothing to look into: pass a checkpoint (minilm, a folder, a hub id) or run directories")
    runs = [open_run(place) for place in places if _is_run(place)]
    for run in runs:
        if run.manifest["task"].get("kind") == "tokens":
            raise ValueError(
                f"{run.path}: flow compares one answer per text, and this run tags words: look at its body instead, "
                f"{run.path / 'model'} (kept by --save-model), with the sentences of a file (--texts)"
            )
    checkpoints = [str(place) for place in places if not _is_run(place)]
    own = None if texts is None else _read_texts(texts, text_columns)
    if not runs:
        source = own or _task_texts(load_task(RunConfig(task=task)), RunConfig(task=task))
        return [(source, [*_checkpoints(checkpoints), _random(checkpoints[0])])]
    found = []
    for group in arrange(runs, labels):
        run = group.runs[0].run
        source = own or _task_texts(task_of(run), run.config)
        found.append((source, [*_of_group(group), *_checkpoints(checkpoints)]))
    return found


def _is_run(place: str | Path) -> bool:
    return (Path(place) / "snapshots").is_dir()


def _of_group(group: Group) -> list[Subject]:
    first = group.runs[0].run
    pretrained = Subject(PRETRAINED, first.config.model, None, lambda: _load(name_of_start(first)), has_head=False)
    tuned = [
        Subject(arm.label, item.name, item.config.seed, _loader(item.run), has_head=_has_model(item.run))
        for arm in group.arms
        for item in arm.runs
    ]
    return [pretrained, *tuned, _random(first.config.model)]


def _loader(run: Run) -> Callable[[], Loaded]:
    """The tuned model; of feature extraction that kept none, the body, which is the one from before."""
    if not _has_model(run) and run.manifest.get("regime", {}).get("label", run.config.freeze) == "backbone":
        return lambda: load_untuned(run)
    check_model(run)  # now, not after the models before it were looked at
    return lambda: load_tuned(run)


def _has_model(run: Run) -> bool:
    return (run.path / "model" / HEAD_FILE).is_file()


def _checkpoints(names: Sequence[str]) -> list[Subject]:
    return [
        Subject(shown_path(name) if Path(name).is_dir() else name, name, None, _checkpoint_loader(name), False)
        for name in dict.fromkeys(names)
    ]


def _checkpoint_loader(name: str) -> Callable[[], Loaded]:
    return lambda: _load(name)


def _random(name: str) -> Subject:
    return Subject(RANDOM, f"{RANDOM} ({shown_path(name)})", None, lambda: _load(name, "random"), has_head=False)


def _load(name: str, init: str = "checkpoint") -> Loaded:
    loaded = load_classifier(name, pooling="mean", num_outputs=2, init=init)
    loaded.model.eval()
    return loaded


def _task_texts(task: Task, config: RunConfig) -> TextSource:
    return TextSource(task.name, task, task.reported_split, config.max_length)


def _only(task: Task, split: str) -> Task:
    """A task with one split, under the name that every task has, so that nothing else is tokenized."""
    return replace(task, splits={"train": task.splits[split]})


def _read_texts(path: Path, columns: tuple[str, ...]) -> TextSource:
    """A data file's texts as a task without labels."""
    raw = read_file(path, columns, None)
    if not raw.texts:
        raise ValueError(f"{path} has no text: nothing to look at the model with")
    check_texts(path.name, raw.texts)
    texts = tuple(raw.texts)
    split = Split(ids=np.arange(len(texts)), texts=texts, labels=None)
    task = Task(
        name=path.stem,
        kind="classification",
        label_names=(),
        splits={"train": split},
        reported_split="train",
        score="accuracy",
        file_hashes={},
    )
    return TextSource(path.stem, task, "train", RunConfig().max_length)
