"""Bases that are none: what rows tell is found where it was planted, and of a true base nothing is said."""

import json
import re

import numpy as np
import pytest

import toolkit
from toolkit.snapshots.bases import doubts_on_base
from toolkit.snapshots.snapshot import Snapshot, Trajectory

NUM_ROWS, HIDDEN = 400, 32


def table(seed=0):
    return np.random.default_rng(seed).normal(0, 0.04, (NUM_ROWS, HIDDEN)).astype(np.float32)


def tuned(start, exposed, seed=1, size=0.004, decay=1e-5):
    """A table after some steps: rows that texts used moved, and all were decayed."""
    change = np.zeros_like(start)
    change[exposed] = np.random.default_rng(seed).normal(0, size, (len(exposed), HIDDEN))
    return ((start + change) * (1 - decay)).astype(np.float32)


def trajectory(*tables):
    return Trajectory([Snapshot(i, i, {"word_embeddings": each}, f"m{i}") for i, each in enumerate(tables)])


BASE, USED, OTHER, EVERY_ROW = table(), np.arange(2, 100), np.arange(50, 150), np.arange(NUM_ROWS)
BASE[1] = 0  # as the row of [PAD]
FIRST = tuned(BASE, USED)
LAST = tuned(FIRST, USED, 2)
SIBLING = tuned(BASE, OTHER, 3, decay=0)


@pytest.mark.parametrize(
    "tables",
    [
        (BASE, FIRST, LAST),
        (BASE, tuned(BASE, USED, decay=0), tuned(tuned(BASE, USED, decay=0), USED, 2, decay=0)),
        (BASE, tuned(BASE, np.arange(395), size=0.2), tuned(BASE, np.arange(395), 2, size=0.4)),
        (BASE, BASE, BASE),
        (BASE, FIRST),
    ],
    ids=["decay", "no decay", "rate too high", "frozen", "one checkpoint"],
)
def test_a_true_base_is_in_no_doubt(tables):
    assert doubts_on_base(trajectory(*tables), range(len(tables))) == []


@pytest.mark.parametrize(
    ("base", "refusal"),
    [
        (table(9), "none is the same up to weight decay"),
        (tuned(LAST, OTHER, 4), "weight decay only shortens"),
    ],
    ids=["another model", "another training, that went on longer"],
)
def test_what_cannot_be_the_base_is_refused(base, refusal):
    with pytest.raises(ValueError, match=refusal):
        doubts_on_base(trajectory(base, FIRST, LAST), [0, 1, 2])


def test_another_training_of_the_same_base_is_told_by_rows_that_never_move_again():
    (doubt,) = doubts_on_base(trajectory(SIBLING, FIRST, LAST), [0, 1, 2])
    assert doubt.startswith("50 of 148 rows")
    # Within one pass over the texts rows may be used early and not again.
    assert doubts_on_base(trajectory(SIBLING, FIRST, LAST), [0, 0.5, 1]) == []


@pytest.mark.parametrize("epochs", [(), [0, 1, 2], [0, 0.5, 1]])
def test_another_training_that_was_decayed_as_much_is_told_by_decay_that_begins_late(epochs):
    """A checkpoint of another seed, saved at the same step: what neither used is decayed alike in both."""
    sibling = tuned(BASE, OTHER, 3)
    (doubt,) = doubts_on_base(trajectory(sibling, FIRST, LAST), epochs)
    assert re.match(r"2\d\d rows are as m0 has them in m1, bit for bit", doubt)
    # Where nothing was decayed it says nothing.
    assert not [text for text in doubts_on_base(trajectory(sibling, FIRST, FIRST), epochs) if "bit for bit" in text]


def test_where_every_row_moved_the_base_is_in_doubt():
    (doubt,) = doubts_on_base(trajectory(BASE, tuned(BASE, EVERY_ROW), tuned(BASE, EVERY_ROW, 2)), [0, 1, 2])
    assert doubt.startswith("no row")


def test_a_base_of_another_name_is_named(tiny_model, tmp_path):
    """As transformers wrote it before its version 5."""
    for step in (2, 4):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        for path in tiny_model("bert").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": "someone/bert-other"}))
    with pytest.warns(UserWarning, match="may not be the same model"):
        (run,) = toolkit.open_runs(tmp_path / "run", base=tiny_model("bert"))
    (doubt,) = run.doubts
    assert re.search("bert-other.*not be the same model", doubt)
    assert doubt in run.recorded["notes"]
