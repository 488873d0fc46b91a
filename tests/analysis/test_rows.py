"""The pass over the rows of a table against each measure's definition."""

import numpy as np
import pytest

from tests.refusals import check_refused
from toolkit.analysis.blocks import RowPass, Scratch, iterate_blocks
from toolkit.analysis.drift import top_words
from toolkit.analysis.measures import MEASURES
from toolkit.snapshots.snapshot import Snapshot, Trajectory


def _in_one_pass(before, after, measures=MEASURES, block_rows=3):
    row_pass = RowPass(measures, len(before))
    for start in range(0, len(before), block_rows):
        part = slice(start, min(start + block_rows, len(before)))
        row_pass.add(part, before[part], after[part])
    return row_pass.values()


@pytest.mark.parametrize("n", [1, 2, 10])
def test_top_words_are_those_that_moved_furthest_for_their_norm(n):
    """A long row that moved more in weight units stands behind, rows that had no norm last; others are left out."""
    before = np.array([[3, 4], [30, 40], [0, 2], [0, 0], [1, 0]], np.float32)
    after = before + np.array([[0, 0.5], [0, 1], [1, 0], [1, 1], [0, 0]], np.float32)
    snapshots = [Snapshot(k, k, {"word_embeddings": table}) for k, table in enumerate((before, after))]
    table = top_words(Trajectory(snapshots), n)
    assert table["row"].tolist() == [2, 0, 1, 3][:n]
    np.testing.assert_allclose(table["drift_percent"], [50, 10, 2, np.nan][:n])
    assert table["num_steps"].isna().all()
    still = Trajectory([snapshots[0], Snapshot(1, 1, snapshots[0].tensors)])
    with pytest.warns(UserWarning, match="no word moved: were the word embeddings frozen"):
        assert top_words((still,), n).empty


@pytest.mark.parametrize("factor", [0.5, 2.0, -1.0, 0.0])
def test_a_row_that_is_scaled_exactly_has_no_tangential_part(factor):
    before = np.random.default_rng(6).normal(size=(20, 48))
    values, turned = _in_one_pass(before, factor * before), 180 if factor < 0 else 0
    assert not values["tangential"].any()
    if factor:
        assert (values["angle_degrees"] == turned).all()
        assert np.allclose(values["cosine_distance"], turned / 90, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", MEASURES)
def test_a_choice_of_measures_does_not_change_any(name):
    before, after = np.random.default_rng(7).normal(size=(2, 10, 6))
    alone = _in_one_pass(before, after, {name: MEASURES[name]}, block_rows=4)
    assert list(alone) == [name]
    assert np.array_equal(alone[name], _in_one_pass(before, after)[name])


def test_blocks_are_new_memory_unless_scratch_is_given(make_trajectory):
    pair = make_trajectory().snapshots[:2]
    kept = [blocks for _, blocks in iterate_blocks(pair, "word_embeddings", 5)]
    for place, snapshot in enumerate(pair):
        assert np.array_equal(np.concatenate([blocks[place] for blocks in kept]), snapshot.tensors["word_embeddings"])
    for (_, reused), fresh in zip(iterate_blocks(pair, "word_embeddings", 5, scratch=Scratch()), kept, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(reused, fresh, strict=True))
        assert all(block.ctypes.data % 64 == 0 for block in (*reused, *fresh))


def test_values_beyond_the_range_of_sums_are_still_finite():
    table = np.array([[1.7e308, 1.7e308], [0.0, 1.0]])
    snapshot = Snapshot(0, 0, {"word_embeddings": table})
    assert np.array_equal(next(iterate_blocks([snapshot], "word_embeddings"))[1][0], table)


@pytest.mark.parametrize("row", [[0, np.inf], [-np.inf, 0], [np.inf, -np.inf], [np.nan, 1], [-np.nan, np.inf]])
def test_what_is_not_finite_is_refused(row):
    snapshot = Snapshot(0, 0, {"word_embeddings": np.array([[1.0, 2.0], row])})
    check_refused(
        "word_embeddings holds NaN or infinity at epoch 0", next, iterate_blocks([snapshot], "word_embeddings")
    )
