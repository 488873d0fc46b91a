"""Strata as a partition: one for each row, the same at every epoch, against a rule written out row by row."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refusals
from toolkit.analysis.drift import measure_rows
from toolkit.analysis.strata import POSITION_STRATA, WORD_STRATA, assign_strata
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary

REPEATS = (0, 1, 2, 9, 10, 99, 100, 130)


def _trajectory(parameter, num_rows, exposure, **changes):
    tensors = {parameter: np.ones((num_rows, 2), np.float32)}
    return Trajectory([Snapshot(0, 0, tensors)], read_exposure=lambda: exposure, **changes)


def _word_rule(text, row, special, pad, steps):
    if row == pad:
        return "[PAD]"
    if row in special:
        return "other special"
    if text == "" or text.startswith("[unused"):
        return "[unused]"
    return next(name for limit, name in zip((0, 1, 9, 99, 9999), WORD_STRATA[3:], strict=False) if steps <= limit)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(REPEATS), st.sampled_from(("", "[unused7]", "word"))), min_size=3), st.data())
def test_word_strata(make_exposure, rows, data):
    special = data.draw(st.frozensets(st.integers(0, len(rows) - 1), max_size=3))
    pad = data.draw(st.sampled_from(sorted(special))) if special else None
    steps = [[row for row, (repeats, _) in enumerate(rows) if s < repeats] for s in range(max(REPEATS))]
    exposure = make_exposure({"word_embeddings": steps})
    vocabulary = Vocabulary(tuple(text for _, text in rows), special, pad)
    strata = assign_strata(
        _trajectory("word_embeddings", len(rows), exposure, vocabulary=vocabulary), "word_embeddings"
    )
    assert list(strata) == [_word_rule(text, row, special, pad, repeats) for row, (repeats, text) in enumerate(rows)]
    assert (strata.ordered, tuple(strata.categories)) == (True, WORD_STRATA)


def _position_rule(row, offset, longest):
    position = row - offset
    if position < 0:
        return "padding rows"
    if position > longest:
        return "positions beyond longest"
    if position == 0:
        return "position 0"
    return "positions 1-127" if position < 128 else "positions 128 to longest"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(3, 400), st.sampled_from((0, 2)), st.data())
def test_position_strata(make_exposure, num_rows, offset, data):
    lengths = data.draw(st.lists(st.integers(0, num_rows - offset), max_size=4))
    exposure = make_exposure({"position_embeddings": [[offset + i for i in range(length)] for length in lengths]})
    trajectory = _trajectory("position_embeddings", num_rows, exposure, position_offset=offset)
    strata = assign_strata(trajectory, "position_embeddings")
    longest = max(lengths, default=0) - 1
    assert list(strata) == [_position_rule(row, offset, longest) for row in range(num_rows)]
    assert tuple(strata.categories) == POSITION_STRATA


@pytest.mark.parametrize("used", [[0], [0, 1], [1], []])
def test_segment_strata(make_exposure, used):
    exposure = make_exposure({"token_type_embeddings": [used]})
    strata = assign_strata(_trajectory("token_type_embeddings", 2, exposure), "token_type_embeddings")
    assert list(strata) == [f"segment {row}" if row in used else "unused segment" for row in (0, 1)]
    assert {"segment 0", "segment 1", "unused segment"} <= set(strata.categories)


def test_a_vector_is_one_row(make_trajectory):
    assert list(assign_strata(make_trajectory(), "LayerNorm.bias")) == ["all"]


def test_strata_are_the_same_at_every_epoch(make_trajectory):
    trajectory = make_trajectory()
    for parameter in trajectory.parameters:
        of_run = list(assign_strata(trajectory, parameter))
        for snapshot in trajectory:
            assert list(measure_rows(trajectory, parameter, snapshot.epoch)["stratum"]) == of_run
    # A word first seen in step 4 (epoch 2) is in its final stratum from the start, with its exposure so far beside it.
    rows = measure_rows(trajectory, "word_embeddings", 1).set_index("token")
    assert rows.loc["good", ["stratum", "num_steps"]].tolist() == ["seen in 1 step", 0]


def test_without_exposure_or_vocabulary(make_trajectory):
    known = make_trajectory()
    nothing = Trajectory(known.snapshots)
    assert set(assign_strata(nothing, "word_embeddings")) == {"exposure unknown"}
    words = assign_strata(replace(nothing, vocabulary=known.vocabulary), "word_embeddings")
    assert [*words[:5], words[9]] == [
        *("[PAD]", "[unused]", "other special", "other special", "exposure unknown"),
        "exposure unknown",  # [unused] without a number is a word like any other
    ]
    assert list(assign_strata(nothing, "position_embeddings")) == ["position 0", *["exposure unknown"] * 8]
    roberta = assign_strata(replace(nothing, position_offset=2), "position_embeddings")
    assert list(roberta)[:4] == ["padding rows", "padding rows", "position 0", "exposure unknown"]
    assert set(assign_strata(nothing, "token_type_embeddings")) == {"exposure unknown"}
    assert set(assign_strata(replace(known, vocabulary=None), "word_embeddings")) == {
        *("seen in 0 steps", "seen in 1 step", "seen in 2-9 steps")
    }


def test_errors_say_what_does_not_fit(make_trajectory, make_exposure):
    trajectory, exposure = make_trajectory(), make_exposure({"word_embeddings": [[12]]})
    check_refusals(
        (
            "names row 12, but the table has 12 rows",
            lambda: assign_strata(replace(trajectory, read_exposure=lambda: exposure), "word_embeddings"),
        ),
        (r"did you mean 'word_embeddings'\?", lambda: assign_strata(trajectory, "word_embedding")),
        (
            "the vocabulary has 1 tokens, word_embeddings has 12 rows",
            lambda: assign_strata(
                replace(trajectory, vocabulary=Vocabulary(("a",), frozenset(), None)), "word_embeddings"
            ),
        ),
    )
