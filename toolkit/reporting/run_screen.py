"""What the terminal shows of a run."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

from toolkit.comparison.runs import STILL_FALLING, last_fall
from toolkit.comparison.summaries import FLOORS
from toolkit.data.splits import Task, flat
from toolkit.data.tokens import UNTAGGED
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.models.regimes import layer_ranges
from toolkit.naming import cut, first_few
from toolkit.progress import open_console
from toolkit.snapshots.snapshot import Snapshot
from toolkit.snapshots.store import Run

UNDEFINED = "undefined: was 0"
BLOCK_ROWS = 2048
"""Rows that are measured at a time."""


NAMED, LONGEST, NUM_SHOWN, WIDEST = 5, 40, 3, 90
"""Classes that a line names at most, letters of each (a column of texts, or of numbers of rows, has many), examples
that are shown, and letters of each."""


def print_task(task: Task, rows: Iterable[tuple[str, int, int, int, float]], max_length: int) -> None:
    """Print what was taken as texts and labels, three examples, the splits of a task, and what carries the label.

    Each row is (split, examples, truncated, pairs with an empty text, share of unknown tokens).
    """
    header = ("split", "examples", f"truncated to {max_length} tokens", "with an empty text", "unknown tokens")
    table = _table(*header, title=escape(f"Task {task.name}"))
    for split, *counts, share_unknown in rows:
        share = "not applicable" if math.isnan(share_unknown) else f"{share_unknown:.2%}"
        table.add_row(escape(split), *(f"{count:,}" for count in counts), share)
    console = open_console()
    for sentence in (columns_line(task), *cluster_lines(task), *example_lines(task)):
        console.print(escape(" ".join(sentence.split())), soft_wrap=True)
    console.print(table)
    if task.carrier:
        console.print(f"What carries the label: {escape(task.carrier)}")


def columns_line(task: Task) -> str:
    """One line on what was read as texts and labels of train, with counts: a wrong column shows here at once."""
    train = task.splits["train"]
    if train.labels is None:
        return f"{task.taken_from or f'texts: {len(train.texts[0])} per example'}; learned: tokens masked in them"
    texts = "words: each with a tag" if train.words else f"texts: {len(train.texts[0])} per example"
    lead = f"{task.taken_from}, " if task.taken_from else f"{texts}; labels: "
    if task.kind == "regression":
        return f"{lead}numbers, {train.labels.min():g} to {train.labels.max():g}"
    counts = np.bincount(flat(train.labels), minlength=len(task.label_names)).tolist()
    class_counts = first_few([f"{cut(name, LONGEST)}: {counts[i]:,}" for i, name in enumerate(task.label_names)], NAMED)
    f1 = f", f1 of {cut(task.label_names[1], LONGEST)}" if (task.kind, len(counts)) == ("classification", 2) else ""
    return f"{lead}{len(counts)} {'tags' if task.kind == 'tokens' else 'classes'} ({class_counts}){f1}"


def cluster_lines(task: Task) -> list[str]:
    """A line for each scored split whose examples come in clusters, which are the units of its intervals."""
    return [
        f"{name}: {len(split):,} examples in {split.num_units:,} clusters ({task.clusters_of}): units of intervals"
        for name, split in task.splits.items()
        if name != "train" and split.num_units < len(split)
    ]


def example_lines(task: Task) -> list[str]:
    """The first examples of train, a line each: what a model reads, and what it is to say."""
    train, lines = task.splits["train"], []
    for i in range(min(NUM_SHOWN, len(train))):
        label = None if train.labels is None else train.labels[i]
        if train.words is not None and label is not None:
            tags = ("not tagged" if k == UNTAGGED else task.label_names[k] for k in label)
            tagged = (f"{word}/{tag}" for word, tag in zip(train.words[i], tags, strict=True))
            lines.append(cut(" ".join(tagged), WIDEST))
            continue
        texts = " | ".join(cut(text, WIDEST // len(train.texts[i])) for text in train.texts[i])
        named = "" if label is None else f" -> {task.label_names[label] if task.label_names else f'{label:g}'}"
        lines.append(texts + named)
    return lines


def print_components(title: str, answer: str, components: pd.DataFrame) -> None:
    """Print what will train: the answer in a line, and a table of the components from :func:`toolkit.what_trains`.

    Layers with the same fate share a line, and a column in which nothing is said is left out.
    """
    is_layer = components["component"].str.startswith("layers.")
    fates = ["adapter", "learning_rates", "weight_decays", "tied_to", "will_move", "reason", "note"]
    grouped = components.groupby([components["component"].where(~is_layer, "layers"), *fates], sort=False)
    shown = grouped.agg({"component": _layers_text, "num_parameters": "sum", "share": "sum"}).reset_index(fates)
    columns = {
        "component": shown["component"].map(escape),
        "adapter": shown["adapter"],
        "parameters": shown["num_parameters"].map("{:,}".format),
        "share": shown["share"].map("{:.2%}".format),
        "rate": shown["learning_rates"].map(_numbers),
        "decay": shown["weight_decays"].map(_numbers),
        "tied to": shown["tied_to"].map(escape),
        "will it move?": shown["will_move"],
        "why": shown["reason"],
    }
    columns = {name: column for name, column in columns.items() if column.any()}
    table = _table(*columns, title=escape(title))
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    console = open_console()
    console.print(escape(answer), soft_wrap=True)
    console.print(table)
    for note, names in shown[shown["note"] != ""].groupby("note", sort=False)["component"]:
        console.print(escape(f"{', '.join(names)}: {note}."), soft_wrap=True)


def _layers_text(components: pd.Series) -> str:
    """The name of one component, or several layers as ``layers.0-5``."""
    if len(components) == 1:
        return str(components.iloc[0])
    return ",".join(layer_ranges([int(name.removeprefix("layers.")) for name in components]))


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def _table(*header: str, **options: Any) -> Table:
    """A table whose cells are broken, and not cut, where the terminal is too narrow for them."""
    table = Table(*header, **options)
    for column in table.columns:
        column.overflow = "fold"
    return table


def epoch_line(score: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The headline score of every split at an epoch's end, and what is read beside it: ``epoch 1: accuracy validation
    0.840 (f1 0.875); train loss 0.432``."""
    texts = []
    for row in rows:
        others = [name for name in ("perplexity", "f1") if name != score and not math.isnan(row.get(name, math.nan))]
        other_scores = ", ".join(f"{name} {row[name]:.4g}" for name in others)
        texts.append(f"{row['split']} {_number(row[score])}" + (f" ({other_scores})" if others else ""))
    epoch, loss = rows[0]["epoch"], rows[0]["train_loss"]
    when = "before training" if epoch == 0 else f"epoch {epoch:.3g}"
    return f"{when}: {score} {', '.join(texts)}" + ("" if math.isnan(loss) else f"; train loss {loss:.3f}")


def _yardsticks(first: Snapshot) -> dict[str, float]:
    """Parameter to the relative drift that it would have if it were re-initialised."""
    from toolkit.analysis.blocks import reinitialise

    return {name: reinitialise(first, name, 0, BLOCK_ROWS)["relative"] for name in first.tensors}


def print_result(run: Run, seconds: float) -> None:
    """Scores per epoch, drift per embedding parameter, what was frozen, doubts, and where the run is.

    ``seconds``: what all of it took.
    """
    console = open_console()
    console.print(_score_table(run))
    for sentence in [*_head_sentences(run), *_floor_sentences(run), *_fall_sentences(run)]:
        console.print(escape(sentence))
    drift = _whole_drift(run)
    console.print(_drift_table(run, drift, _yardsticks(run.trajectory.snapshots[0])))
    console.print(f"Frozen: {_frozen_text(run)}")
    for doubt in _doubts(run, drift):
        console.print(f"Did this run fail? {escape(doubt)}")
    console.print(f"Took {timedelta(seconds=round(seconds))}. Run: {escape(str(run.path))}", soft_wrap=True)
    console.print(
        f"Next: python -m toolkit report {escape(shlex.quote(str(run.path.parent)))}/* --out my_report", soft_wrap=True
    )


def _frozen_text(run: Run) -> str:
    """What a run froze, of how many parameters; that they are as they were, the run has proved by then."""
    num_frozen = len(run.manifest["frozen"]["parameters"])
    if not num_frozen:
        return "nothing."
    label = run.manifest["regime"]["label"]
    if run.config.lora:
        label = f"all but {'added rows, ' * (run.config.train_rows == 'new')}adapters and head"
    elif run.config.train_rows == "new":
        label = "old word rows" if label == "none" else f"{label}, old word rows"
    return f"{label} ({num_frozen} parameters), bit-identical before and after (sha256)."


def _doubts(run: Run, drift: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Why the run may have learned nothing, or lost what it knew."""
    doubts = []
    score, split = run.manifest["task"]["score"], run.manifest["task"]["reported_split"]
    scores_of_split = run.scores[run.scores["split"] == split].sort_values("epoch")
    first, last = scores_of_split.iloc[0], scores_of_split.iloc[-1]
    if last["loss"] > first["loss"]:
        doubts.append(f"The loss on {split} is {last['loss']:.3g}, and was {first['loss']:.3g} before training.")
    floors = run.manifest.get("floors") or {}
    majority_scores = (floors.get("majority") or {}).get(split) or {}
    floor = majority_scores.get(score)
    if floor is not None and last[score] <= floor:
        doubts.append(f"Its {score} on {split}, {last[score]:.3f}, is no better than always giving the same answer.")
    moved_far = [name for name, values in drift.items() if values["relative"] > 1]
    if moved_far:
        doubts.append(f"Moved by more than its own length: {', '.join(moved_far)}. Is the learning rate too high?")
    return doubts


def _head_sentences(run: Run) -> list[str]:
    """How the head of a frozen backbone was trained, and how far it is from the linear probe; nothing for others."""
    score = run.manifest["task"]["score"]
    head = run.manifest.get("head_training") or {}
    probe_scores = run.manifest.get("linear_probe") or {}  # split to scores
    sentences = []
    if head.get("chosen") == "convex":
        convex = head["convex"]
        sentences = [
            f"Head: linear, fitted by cross-validation within train (inverse L2 strength {convex['strength']:g}). "
            f"Error on {head['num_held_out']} held-out training examples: {convex['held_out_error']:.4g}; of a trained "
            f"head, which must be better by more than noise to be kept: {head['held_out_error']:.4g}"
        ]
    elif head.get("mode") == "early-stopping":
        end = "it stopped falling" if head["has_stopped"] else f"not done after {head['most_epochs']} epochs"
        sentences = [
            f"Head: best at epoch {head['epochs']}, by the loss on {head['num_held_out']} held-out examples: {end}"
        ]
    elif run.manifest["regime"]["label"] == "backbone":
        sentences = [f"Head: epochs of training: {run.scores['epoch'].max():g}"]
    last = run.scores[run.scores["epoch"] == run.scores["epoch"].max()].set_index("split")[score]
    gaps = [
        f"{split} {_number(last[split])}, linear probe {_number(scores[score])}"
        for split, scores in probe_scores.items()
        if split in last.index
    ]
    return [*sentences, f"{score}: {'; '.join(gaps)}"] if gaps else sentences


def _floor_sentences(run: Run) -> list[str]:
    """The scores of the floors on the reported split, in one line; nothing for runs that recorded none."""
    task, floors = run.manifest["task"], run.manifest.get("floors") or {}
    score, split = task["score"], task["reported_split"]
    score_by_floor = {name: (scores_by_split.get(split) or {}).get(score) for name, scores_by_split in floors.items()}
    texts = [
        f"{FLOORS[name]} {value:.3f}" for name, value in score_by_floor.items() if name in FLOORS and value is not None
    ]
    return [f"Floors: {', '.join(texts)} ({score}, {split})"] if texts else []


def _fall_sentences(run: Run) -> list[str]:
    """Whether more epochs may score more, by the loss on the reported split; nothing of a head that was stopped."""
    split = run.manifest["task"]["reported_split"]
    fall = last_fall(run.scores, split, run.config.head_training)
    if not fall > STILL_FALLING:  # NaN: not known
        return []
    return [
        f"Not converged: the loss on {split} still fell by {fall:.1%} in the last epoch. Try more epochs before "
        "fine-tuning is compared with feature extraction"
    ]


def _score_table(run: Run) -> Table:
    """The headline score of every split and the training loss, a line per epoch."""
    score, scores = run.manifest["task"]["score"], run.scores
    wide = scores.pivot(index="epoch", columns="split", values=score)[scores["split"].unique()]
    losses = scores.groupby("epoch")["train_loss"].first()
    table = _table("epoch", "train loss", *map(escape, wide), title=f"{score} per epoch")
    for epoch, *values in wide.itertuples():
        table.add_row(f"{epoch:.3g}", *map(_number, (losses[epoch], *values)))
    return table


def _whole_drift(run: Run) -> dict[str, dict[str, float]]:
    """Parameter to the size of its change from the first snapshot to the last (:func:`whole_drift`)."""
    from toolkit.analysis.blocks import whole_drift

    first, last = run.trajectory.snapshots[0], run.trajectory.snapshots[-1]
    return {name: whole_drift(first, last, name, BLOCK_ROWS) for name in run.trajectory.parameters}


def _drift_table(run: Run, drift: Mapping[str, Mapping[str, float]], yardsticks: Mapping[str, float]) -> Table:
    """Every embedding parameter: whether it was trained, how far it moved, and the same if it were re-initialised."""
    frozen = dict.fromkeys(run.manifest["regime"]["frozen_components"], "frozen")
    frozen |= {"word_embeddings": "added rows"} if run.config.train_rows == "new" else {}
    trained = "by an adapter" if run.config.lora else "yes"
    table = _table(
        "parameter", "trainable", "moved, in % of its norm", "same, if re-initialised", title="Drift from epoch 0"
    )
    for name in EMBEDDING_PARAMETERS:
        if name not in drift:
            table.add_row(name, "not applicable", "", "")
            continue
        yardstick = UNDEFINED if math.isnan(yardsticks[name]) else f"{100 * yardsticks[name]:.0f} %"
        moved = _drift_text(drift[name]["norm"], drift[name]["relative"])
        table.add_row(name, frozen.get(name, trained), moved, yardstick)
    return table


def _drift_text(norm: float, relative: float) -> str:
    """Drift in % of the norm; exactly 0 where nothing moved, also of a parameter that was 0 before."""
    if norm == 0:
        return "0 exactly"
    return UNDEFINED if math.isnan(relative) else f"{100 * relative:.3g} %"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
