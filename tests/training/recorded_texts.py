"""Four short texts, a tiny classifier that reads them, and the rows that they use, counted by hand."""

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import toolkit
from toolkit.families import TABLES
from toolkit.models.regimes import locate_embeddings

TEXTS = ["the film was good", "good", "the bad film was not good and the film", "bad was the end"]


def load(folder: Path) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def encode(tokenizer: Any, texts: list[str]) -> dict[str, torch.Tensor]:
    return dict(tokenizer(texts, padding=True, return_tensors="pt"))


def count(model: Any, batches: list[dict[str, torch.Tensor]]) -> dict[str, Counter[int]]:
    """Rows of every real token, of the tables that the model has, by the plain rules: [PAD] is none, positions count
    real tokens from the offset."""
    offset, counts = locate_embeddings(model).position_offset, {name: Counter() for name in TABLES}
    for batch in batches:
        for ids, segments in zip(batch["input_ids"], batch["token_type_ids"], strict=True):
            real = [(int(i), int(s)) for i, s in zip(ids, segments, strict=True) if i != 0]
            counts["word_embeddings"].update(word for word, _ in real)
            counts["position_embeddings"].update(offset + place for place in range(len(real)))
            counts["token_type_embeddings"].update(segment for _, segment in real)
    return {name: found for name, found in counts.items() if name in locate_embeddings(model).parameters}


def totals(run: toolkit.Run, name: str) -> dict[int, int]:
    found = run.trajectory.exposure.tables[name].token_counts(len(run.trajectory.snapshots[0].tensors[name]))
    return {row: int(n) for row, n in enumerate(found) if n}


def totals_of_tables(run: toolkit.Run) -> dict[str, dict[int, int]]:
    return {name: totals(run, name) for name in TABLES if name in run.trajectory.parameters}


def inputs(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Segments only where the model has more than one: RoBERTa's table has one row, some have none."""
    segments = locate_embeddings(model).parameters.get("token_type_embeddings")
    return {k: v for k, v in batch.items() if k != "token_type_ids" or (segments is not None and len(segments) > 1)}


def start(model: Any, path: Path, **options: Any) -> Any:
    """A recording of a loop that begins with these weights."""
    recording = toolkit.record(model, path, **options)
    recording.snapshot(epoch=0, step=0)
    return recording


def ended(recording: Any, **moment: Any) -> Any:
    """The run of a recording whose last snapshot is of this ``epoch``, and of this ``step`` where it is given."""
    recording.snapshot(**moment)
    return recording.finish()


def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """A step of training as a loop of anybody's takes it."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def recorded(model: Any, tokenizer: Any, optimizer: Any, path: Path, *texts: list[str]) -> Any:
    """A recording, yet to be finished, of a step on each of these (on TEXTS where none is named), and epoch 1's end."""
    recording = start(model.train(), path)
    for each in texts or (TEXTS,):
        update(optimizer, model(**encode(tokenizer, each)).logits.sum())
    recording.snapshot(epoch=1)
    return recording
