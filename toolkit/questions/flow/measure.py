"""Where position goes, layer by layer: the variance ledger, decoding and counterfactuals of checkpoints and runs."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from toolkit.analysis.measures import Array
from toolkit.comparison.conditions import Labels, arrange
from toolkit.comparison.measure import together
from toolkit.config import RunConfig, check_seed
from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches
from toolkit.data.files import read_file
from toolkit.data.splits import Task
from toolkit.data.tasks import check_texts, load_task
from toolkit.models.classifier import Loaded, in_eval_mode, load_classifier
from toolkit.models.positions import PositionRows, position_rows
from toolkit.models.tuned import HEAD_FILE, check_model, load_tuned, load_untuned, name_of_start
from toolkit.naming import distinct, lookup, shorten, shown_path
from toolkit.progress import counted, shows_progress
from toolkit.questions.flow.decoding import NUM_TOKENS, decode_positions
from toolkit.questions.flow.ledger import (
    NUM_BLOCKS,
    NUM_POSITIONS,
    Stages,
    Units,
    bounds,
    columns_beside_model,
    cross,
    forward_stages,
    position_ledger,
    stage_name,
    unit_values,
)
from toolkit.questions.models import (
    ANSWERED,
    TEXTS,
    check_one_sequence_each,
    find_parts,
    replaced,
    task_of,
    task_of_texts,
)
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.backbones import NO_FUNCTION, is_run
from toolkit.snapshots.store import Run, listed, open_run
from toolkit.training.encoding import encode_task
from toolkit.training.evaluation import compute_scores, predict

Record = dict[str, object]
NO_MEAN = "no interval: no mean over texts"


class OutputChanges:
    """Per text and stage, squared sizes ("") and changes under each counterfactual; the logits as they are."""

    def __init__(self, num_texts: int) -> None:
        self.num_texts = num_texts
        self.state_sums: list[NDArray[np.float64]] = []
        """Per stage (hidden,): the sum of the states as they are, over all tokens."""
        self.num_tokens = 0
        self.changes: dict[str, list[NDArray[np.float64]]] = {}
        """Counterfactual, or "" for the states as they are, to (texts,) squared sizes per stage."""
        self.logits: dict[str, NDArray[np.float32]] = {}

    def add(self, name: str, chosen: NDArray[np.int64], stages: Stages, before: Stages | None = None) -> None:
        """The states of some texts under a counterfactual, or as they are (without ``before``)."""
        squares = self.changes.setdefault(name, [np.zeros(self.num_texts) for _ in stages.layers])
        if not self.state_sums:
            self.state_sums = [np.zeros(layer.shape[2]) for layer in stages.layers]
        for stage, layer in enumerate(stages.layers):
            states = layer.double() if before is None else layer.double() - before.layers[stage].double()
            states = states * stages.mask.unsqueeze(-1)  # padding counts nothing
            squares[stage][chosen] = states.square().sum(dim=(1, 2)).cpu().numpy()
            if before is None:
                self.state_sums[stage] += states.sum(dim=(0, 1)).cpu().numpy()
        self.num_tokens += int(stages.mask.sum()) if before is None else 0
        logits = stages.logits.cpu().numpy()
        self.logits.setdefault(name, np.zeros((self.num_texts, logits.shape[1]), np.float32))[chosen] = logits

    def state_records(self) -> Iterator[Record]:
        """One record per change and stage."""
        sizes = self.changes[""]
        for name in filter(None, self.changes):
            stages = zip(self.changes[name], sizes, self.state_sums, strict=True)
            for layer, (change, size, state_sum) in enumerate(stages, start=-1):  # the sum before LayerNorm is -1
                spread = size.sum() - (state_sum @ state_sum) / self.num_tokens  # Σ|h - mean h|²
                key: Record = {"counterfactual": name, "layer": layer, "stage": stage_name(layer)}
                yield key | {"measure": "state"} | _ratio_record(change, size, spread)

    def output_records(self, kind: str, score: str, labels: NDArray[np.generic] | None) -> Iterator[Record]:
        """Three records per change: logits, predictions (of classes) and the score (with labels)."""
        logits_before = self.logits[""].astype(np.float64)
        size = np.square(logits_before).sum(axis=1)
        spread = np.square(logits_before - logits_before.mean(axis=0)).sum()
        answers_before = predict(kind, self.logits[""])
        for name in filter(None, self.changes):
            key: Record = {"counterfactual": name}
            change = np.square(self.logits[name].astype(np.float64) - logits_before).sum(axis=1)
            yield key | {"measure": "logits"} | _ratio_record(change, size, spread)
            answers = predict(kind, self.logits[name])
            if kind == "classification":
                has_changed = (answers_before != answers).astype(np.float64)
                yield key | {"measure": "predictions", "unit": "share"} | _mean_record(has_changed)
            if labels is not None:
                score_before, score_after = (compute_scores(kind, labels, self.logits[n])[score] for n in ("", name))
                cells: Record = {"value": score_after - score_before, "unit_values": (), "reason": NO_MEAN}
                if score == "accuracy":
                    cells = _mean_record((answers == labels).astype(np.float64) - (answers_before == labels))
                yield key | {"measure": "score", "reference": score_before, "unit": score} | cells


def _ratio_record(change: Array, size: Array, spread: float) -> Record:
    """sqrt(Σ change / Σ size) over texts, (texts,) each; the reference, of unrelated states: sqrt(2·spread / Σ size).

    ``spread``: the squared distances of all states to their mean, of which that of two unrelated ones is twice.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(np.sqrt(change.sum() / size.sum()))
        left_out = np.sqrt((change.sum() - change) / (size.sum() - size))
        reference = float(np.sqrt(2 * spread / size.sum()))
    units = unit_values([value, *left_out])
    return {"value": value, **bounds(units), "reference": reference, "unit": "1", "reason": ""}


def _mean_record(of_texts: Array) -> Record:
    """A mean over texts of -1, 0 and 1: the texts are the units themselves."""
    units: Units = tuple(of_texts.tolist())
    return {"value": float(of_texts.mean()), **bounds(units, is_share=True), "reason": ""}


SHIFT = 16
"""Rows by which the counterfactual ``shifted`` moves."""


def _shifted(rows: PositionRows, longest: int, shift: int, seed: int) -> PositionRows:
    """Each position gets the row ``shift`` places on; ValueError where the longest text would run out of rows."""
    if longest + shift > len(rows):
        raise ValueError(
            f"a text of {longest} tokens shifted by {shift} needs {longest + shift} position rows, the model has "
            f"{len(rows)}: pass a smaller --shift, or shorter texts"
        )
    return np.concatenate([rows[shift:], rows[:shift]])


COUNTERFACTUALS: Mapping[str, Callable[[PositionRows, int, int, int], PositionRows]] = {
    "shifted": _shifted,
    "permuted": lambda rows, longest, _, seed: position_rows("shuffled", rows, num_reached=longest, seed=seed),
    "sinusoid": lambda rows, longest, *_: position_rows("sinusoidal", rows, num_reached=longest),
    "mean": lambda rows, longest, *_: np.tile(rows[:longest].astype(np.float64).mean(axis=0), (len(rows), 1)),
    "zero": lambda rows, longest, *_: position_rows("zero", rows, num_reached=longest),
}
"""Name to the rows that stand in for the table's, from a text's first position on, given the tokens of the longest text
(the rows in use), the shift and a seed: row i + shift for row i; the rows in use in an order that leaves none in its
place; the sinusoid of equal mean square norm; the mean row in use everywhere, which takes order away and leaves the
offset that all positions share; zeros, which take both."""


@contextlib.contextmanager
def replaced_positions(
    loaded: Loaded, counterfactual: str, *, longest: int, shift: int = SHIFT, seed: int = 0
) -> Iterator[None]:
    """The model reads other position rows inside the block and has its own back, bit for bit, after it.

    ValueError for a model without a position table, an unknown counterfactual, or a shift beyond the table.
    """
    table = find_parts(loaded).position
    if table is None:
        raise ValueError(f"not applicable: {loaded.source.name} ({loaded.family.name}) has no position table")
    values = table.weight.detach().clone()
    first_row = loaded.position_offset
    make_rows = lookup(COUNTERFACTUALS, counterfactual, "counterfactual")
    rows = make_rows(values[first_row:].cpu().numpy(), longest, shift, seed).astype(np.float32)
    values[first_row:] = torch.from_numpy(rows).to(values)
    with replaced(table.weight, values):
        yield


NUM_TEXTS = 200
"""Texts that the counterfactuals read."""


def measure_counterfactuals(
    loaded: Loaded,
    data: EncodedTask,
    split: EncodedSplit,
    *,
    has_head: bool = False,
    shift: int = SHIFT,
    num_texts: int = NUM_TEXTS,
    seed: int = 0,
) -> pd.DataFrame:
    """How far states, logits, predictions and the score move under each counterfactual.

    ``measure`` state: sqrt(sum |h' - h|² / sum |h|²) over real tokens, one line per stage; ``reference`` is the same
    for a state replaced by that of a random other token, so that a value reads as a share of "unrelated". With a
    trained head (``has_head``): logits likewise (reference: those of another text), predictions (share that changed),
    and score (the task's headline score afterwards minus before; reference: before). Intervals: 95 % of Student's t
    over texts, of a ratio by the jackknife; none for scores that are not a mean over texts. ``unit_values`` (texts,) is
    what they come from: of accuracy, right afterwards minus right before. ``num_texts``: the first of the split in a
    random order. A model without a position table has one line that says not applicable. Definitions are ours.
    """
    columns = columns_beside_model("counterfactuals")
    if find_parts(loaded).position is None:
        reason = "not applicable: the model has no position table"
        return pd.DataFrame([{"measure": "state", "reason": reason}], columns=columns)
    texts = np.random.default_rng([*b"flow", seed]).permutation(len(split))[:num_texts]
    longest = int(split.lengths[texts].max())
    changes = OutputChanges(len(texts))
    with in_eval_mode(loaded.model):
        for batch in counted([*evaluation_batches(split.lengths[texts])], "counterfactuals"):
            before = forward_stages(loaded, split, texts[batch], data)
            changes.add("", batch, before)
            for name in COUNTERFACTUALS:
                with replaced_positions(loaded, name, longest=longest, shift=shift, seed=seed):
                    after = forward_stages(loaded, split, texts[batch], data)
                changes.add(name, batch, after, before)
    records = list(changes.state_records())
    if has_head:
        labels = None if split.labels is None else split.labels[texts]
        records += changes.output_records(data.task.kind, data.task.score, labels)
    return pd.DataFrame(records, columns=columns).assign(num_texts=len(texts))


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

    task: Task
    """With one split, TEXTS, so that nothing else is tokenized."""
    split: str
    """What that split is called: one that no run was trained on."""
    max_length: int

    def encode(self, loaded: Loaded) -> tuple[EncodedTask, EncodedSplit]:
        """Its texts as a model reads them."""
        data = encode_task(self.task, loaded, min(self.max_length, loaded.max_length or self.max_length))
        check_one_sequence_each(data.splits[TEXTS])
        return data, data.splits[TEXTS]


def open_subjects(
    places: Sequence[str | Path],
    *,
    texts: Path | None = None,
    text_columns: tuple[str, ...] = (),
    task: str = RunConfig().task,
    labels: Labels | None = None,
) -> list[tuple[TextSource, list[Subject]]]:
    """Group what was named: runs by model and task, each group with its pretrained and random models beside them.

    Checkpoints alone make one group; among runs they stand in every group. The rest is as of :func:`measure_flow`.
    ValueError for nothing named, a run that kept no model, or texts that cannot be read.
    """
    if not places:
        raise ValueError("no model is named: pass a checkpoint (minilm, a folder, a hub id) or run directories")
    runs = [open_run(place) for place in places if is_run(place)]
    for run in runs:
        if (kind := run.manifest["task"].get("kind")) in ANSWERED:
            raise ValueError(
                f"{run.path}: flow compares one answer per text, and this run {ANSWERED[kind]}: look at its body "
                f"instead, {run.path / 'model'} (kept by --save-model), with the sentences of a file (--texts)"
            )
    file_source = None if texts is None else _read_source(texts, text_columns)
    names = list(dict.fromkeys(str(place) for place in places if not is_run(place)))
    shown_names = distinct(shown_path(name) if Path(name).is_dir() else name for name in names)
    checkpoints = [
        Subject(shown_name, shown_name, None, partial(_load, name), has_head=False)
        for shown_name, name in zip(shown_names, names, strict=True)
    ]
    # Checkpoints alone bring no texts: those of a built-in task are read.
    if not runs:
        source = file_source or _source_of(load_task(RunConfig(task=task)), RunConfig(task=task))
        return [(source, [*checkpoints, _random_subject(names[0])])]
    groups = []
    for group in arrange(runs, labels):
        first_run = group.runs[0].run
        load_start = partial(_load, name_of_start(first_run))
        pretrained = Subject(PRETRAINED, shorten(first_run.config.model), None, load_start, has_head=False)
        tuned = [
            Subject(
                condition=condition.label,
                name=reported.name,
                seed=reported.config.seed,
                load=_loader(reported.run),
                has_head=_has_model(reported.run),
            )
            for condition in group.conditions
            for reported in condition.runs
        ]
        source = file_source or _source_of(task_of(first_run), first_run.config)
        groups.append((source, [pretrained, *tuned, _random_subject(first_run.config.model), *checkpoints]))
    return groups


def _read_source(path: Path, text_columns: tuple[str, ...]) -> TextSource:
    """The texts of a file; ValueError where it has none."""
    texts = read_file(path, text_columns, None).texts
    if not texts:
        raise ValueError(f"{path} has no text for the model to read")
    check_texts(path.name, texts)
    return TextSource(task_of_texts(texts, path.stem), TEXTS, RunConfig().max_length)


def _random_subject(name: str) -> Subject:
    """The null model: the architecture of a checkpoint with fresh weights."""
    return Subject(RANDOM, f"{RANDOM} ({shown_path(name)})", None, lambda: _load(name, "random"), has_head=False)


def _loader(run: Run) -> Callable[[], Loaded]:
    """What loads a run's tuned model; feature extraction that kept none has the body from before."""
    if not _has_model(run) and run.manifest.get("regime", {}).get("label", run.config.freeze) == "backbone":
        return lambda: load_untuned(run)
    check_model(run)  # now, not after the models before it were looked at
    return lambda: load_tuned(run)


def _has_model(run: Run) -> bool:
    """Whether a run kept its tuned model, with the head (--save-model)."""
    return (run.path / "model" / HEAD_FILE).is_file()


def _load(name: str, init: str = "checkpoint") -> Loaded:
    """A checkpoint in eval mode, with its weights or with random ones (``init``), and a head that nobody trained."""
    loaded = load_classifier(name, pooling="mean", num_outputs=2, init=init)
    loaded.model.eval()
    return loaded


def _source_of(task: Task, config: RunConfig) -> TextSource:
    """The reported split of a task."""
    only_split = replace(task, splits={TEXTS: task.splits[task.reported_split]})
    return TextSource(only_split, task.reported_split, config.max_length)


Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """How closely to look."""

    num_positions: int = NUM_POSITIONS
    """Positions of the crossed design."""
    num_blocks: int = NUM_BLOCKS
    """Blocks of tokens that it rotates."""
    shift: int = SHIFT
    """Rows by which the shifted counterfactual moves."""
    num_texts: int = NUM_TEXTS
    """Texts that the counterfactuals read."""
    num_tokens: int = NUM_TOKENS
    """Tokens, at most, that the decoding probe fits on, and is scored on."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)


@shows_progress("flow of position")
@with_columns
def measure_flow(
    places: Sequence[Run | str | Path],
    *,
    texts: Path | None = None,
    text_columns: tuple[str, ...] = (),
    task: str = RunConfig().task,
    labels: Labels | None = None,
    settings: FlowSettings | None = None,
) -> Tables:
    """Where position goes in the forward pass of models, beside the pretrained and a random one.

    Parameters
    ----------
    places
        Runs, paths of run directories, or checkpoints (``minilm``, folders, hub ids).
    texts
        Data file with the texts to read; None takes the reported split of each run's task.
    text_columns
        Columns of that file: one or two.
    task
        Built-in task whose texts are read where only checkpoints are named.
    labels
        Name of a run's directory to the name of its condition.
    settings
        How closely to look (:class:`toolkit.questions.flow.measure.FlowSettings`); None takes the defaults.

    Returns
    -------
    dict of pandas.DataFrame
        ``ledger`` (shares of the variance), ``decoding`` (bits that a linear probe reads), ``counterfactuals`` (what
        changes with other position rows) and ``models`` (what was looked at, and with what; one line per model).

        Models whose bodies compute the same (feature extraction's is the pretrained one) share one measurement of
        ``ledger`` and ``decoding``; ``counterfactuals``, which read the head, are of each. Columns whose names end in
        ``values`` hold tuples of one value per block or text, from which intervals over seeds and differences of
        models are made.
    """
    paths = [place.path if isinstance(place, Run) else place for place in listed(places)]
    settings = settings or FlowSettings()
    frames: dict[str, list[pd.DataFrame]] = {}
    for source, subjects in open_subjects(paths, texts=texts, text_columns=text_columns, task=task, labels=labels):
        tables_by_body: dict[str, Tables] = {}
        for subject in counted(subjects, f"models on {source.task.name}"):
            loaded = subject.load()
            fingerprint = _fingerprint(loaded)
            tables = _measure(loaded, source, settings, tables_by_body.get(fingerprint), has_head=subject.has_head)
            tables_by_body[fingerprint] = tables
            models = tables["models"].assign(has_head=subject.has_head, split=source.split, body=fingerprint)
            for name, table in (tables | {"models": models}).items():
                key = {
                    "run": subject.name,
                    "group": source.task.name,
                    "condition": subject.condition,
                    "seed": pd.array([subject.seed] * len(table), dtype="Int64"),
                }
                frames.setdefault(name, []).append(table.assign(**key)[columns_of(f"measure_flow.{name}")])
    return {name: together(tables) for name, tables in frames.items()}


def _measure(
    loaded: Loaded, source: TextSource, settings: FlowSettings, body_tables: Tables | None, *, has_head: bool
) -> Tables:
    """The tables of one model, without the columns that name it.

    ``body_tables``: those of another model with the same body, on these texts, which need not be measured again.
    """
    data, split = source.encode(loaded)
    tables = dict(body_tables or {})
    if body_tables is None:
        texts = source.task.splits[TEXTS].texts
        design = cross(
            loaded, texts, num_positions=settings.num_positions, num_blocks=settings.num_blocks, seed=settings.seed
        )
        facts = {
            "family": loaded.family.name,
            "num_positions": design.num_positions,
            "num_contents": design.num_contents,
            "num_segments": design.num_arrangements,
            "num_sequences": design.num_sequences,
            "note": design.note,
        }
        tables["ledger"] = position_ledger(loaded, design, seed=settings.seed)
        tables["decoding"] = decode_positions(loaded, data, split, num_tokens=settings.num_tokens, seed=settings.seed)
        tables["models"] = pd.DataFrame([facts])
    tables["counterfactuals"] = measure_counterfactuals(
        loaded, data, split, has_head=has_head, shift=settings.shift, num_texts=settings.num_texts, seed=settings.seed
    )
    return tables


def _fingerprint(loaded: Loaded) -> str:
    """Eight hex digits of the sha256 over what a forward pass of the body is made of: weights, config and hooks."""
    backbone: Any = loaded.model.backbone
    fields = {name: value for name, value in backbone.config.to_dict().items() if name not in NO_FUNCTION}
    is_reinjected = bool((loaded.positions or {}).get("is_reinjected"))
    digest = hashlib.sha256(json.dumps([fields, is_reinjected], sort_keys=True, default=str).encode())
    for name, tensor in sorted(backbone.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]
