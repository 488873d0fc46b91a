"""Texts in, their tokens as a model reads them out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from toolkit.data.batches import EncodedTask
from toolkit.data.files import read_file
from toolkit.data.tasks import Split, Task, check_texts
from toolkit.models.classifier import Loaded
from toolkit.training.encoding import encode_task

TEXTS = "train"
"""The only split of what :func:`encode_texts` returns; the name that every task has."""


def encode_texts(loaded: Loaded, texts: Sequence[tuple[str, ...]], max_length: int | None = None) -> EncodedTask:
    """Texts without labels as one split, TEXTS; longer ones than ``max_length`` tokens are truncated and counted.

    ``texts``: one or two texts each, all alike. ``max_length``: None takes what the model reads at most. ValueError
    when there are none, when singles and pairs are mixed, or for a length that the model does not have.
    """
    if not texts or len({len(text) for text in texts}) > 1 or len(texts[0]) not in (1, 2):
        raise ValueError(f"texts must be singles or pairs, all alike, and at least one; got {len(texts)} of them")
    split = Split(ids=np.arange(len(texts)), texts=tuple(texts), labels=None)
    task = Task(
        name="texts",
        kind="classification",
        label_names=(),
        splits={TEXTS: split},
        reported_split=TEXTS,
        score="accuracy",
        file_hashes={},
    )
    return encode_task(task, loaded, max_length or min(loaded.max_length or 512, 512))


def read_texts(entries: Sequence[str], text_columns: tuple[str, ...] = ()) -> dict[str, list[tuple[str, ...]]]:
    """``NAME=PATH`` entries to named lists of texts, singles or pairs; ValueError for a bad entry, file or text."""
    texts: dict[str, list[tuple[str, ...]]] = {}
    for entry in entries:
        name, separator, path = entry.partition("=")
        if not (separator and name and path):
            raise ValueError(f"--texts takes NAME=PATH, got {entry!r}")
        if name in texts:
            raise ValueError(f"--texts: the name {name!r} is taken; choose another")
        texts[name] = read_file(Path(path), text_columns, None).texts
        check_texts(name, texts[name])
    return texts
