"""Planted right answers in, runs whose predictions and scores hold just these out; and runs in, their cards out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from toolkit.comparison.cards import make_cards
from toolkit.comparison.evidence import Evidence, save_evidence
from toolkit.comparison.measure import measure
from toolkit.comparison.verdicts import CARDS, save_cards
from toolkit.snapshots.files import sha256_of_file
from toolkit.snapshots.ownership import WRITTEN, files_in, seal
from toolkit.snapshots.store import Run, open_run


def plant(path: Path, right: Any, *, ids: Any = None, labels: Any = None, clusters: Any = None) -> Run:
    """The run at ``path``, as if it had answered ``right`` (bool per item) at its last epoch."""
    right = np.asarray(right, bool)
    labels = np.arange(len(right)) % 2 if labels is None else np.asarray(labels)
    frame = {"id": np.arange(len(right)) if ids is None else ids, "label": labels}
    frame |= {} if clusters is None else {"cluster": clusters}
    table = pd.DataFrame(frame | {"prediction": np.where(right, labels, 1 - labels)})
    run = open_run(path)
    object.__setattr__(run, "predictions", table.assign(epoch=3.0, split="validation"))
    object.__setattr__(run, "scores", pd.DataFrame([{"epoch": 3.0, "split": "validation", "accuracy": right.mean()}]))
    return run


def write_evidence(runs: Any, labels: Any, folder: Any, **options: Any) -> Evidence:
    """Measure runs and write ``folder``/evidence."""
    return save_evidence(measure(runs, labels, **options), folder)


def write_cards(runs, folder, **options):
    """Write ``folder``/evidence and ``folder``/cards.json, as a report does; the cards."""
    evidence = write_evidence(runs, None, folder, **options)
    cards = make_cards(evidence)
    save_cards(cards, folder, evidence.hashes)
    return cards


def sign_again(report: Path) -> None:
    """Let cards.json and files.json say what the files of a report are now: as if they had been written so."""
    cards = json.loads((report / CARDS).read_text())
    cards.get("evidence", {}).update({name: sha256_of_file(report / name) for name in cards.get("evidence", {})})
    (report / CARDS).write_text(json.dumps(cards))
    hashes = {name: sha256_of_file(path) for name, path in files_in(report).items() if name != WRITTEN}
    (report / WRITTEN).write_text(seal({"files": hashes}))


def agree(line: Any, **expected: Any) -> None:
    """A line of a table says what is expected of each column: numbers nearly, NaN where NaN is, all else exactly."""
    nearly = {
        name: pytest.approx(value, rel=1e-9, nan_ok=True) if isinstance(value, float) else value
        for name, value in expected.items()
    }
    assert {name: line[name] for name in expected} == nearly
