"""What stood together, and the rows of each step, noted bit by bit: as if all were counted at once."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.families import TABLES
from toolkit.snapshots import logs
from toolkit.snapshots.logs import JOINED, DesignCounter, TableExposure, TableLog

tokens = st.tuples(st.sampled_from([0, 1, 7, 250_001]), st.sampled_from([0, 3, 8191]), st.integers(0, 1))
batches_of_tokens = st.lists(st.lists(tokens, max_size=12), max_size=8)


@given(batches_of_tokens, st.integers(1, 3), st.booleans(), st.sampled_from([1, 9, 1000]))
def test_combinations_are_counted_whatever_the_batches(batches, num_tables, is_merged_often, num_waiting):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "WAITING", num_waiting)
        counter = DesignCounter(TABLES[:num_tables])
    for batch in batches:
        counter.add(np.array(batch, np.int32).reshape(-1, 3)[:, :num_tables])
        if is_merged_often:
            counter.design()
    design = counter.design()
    expected = Counter(token[:num_tables] for batch in batches for token in batch)
    assert design.tables == TABLES[:num_tables]
    assert [tuple(line) for line in design.combinations.tolist()] == sorted(expected)
    assert design.counts.tolist() == [expected[key] for key in sorted(expected)]
    assert (design.combinations.dtype, design.counts.dtype) == (np.int32, np.int64)


@pytest.mark.parametrize("num_steps", [0, 1, JOINED - 1, JOINED, 2 * JOINED + 3])
def test_a_log_gives_every_step_however_many_were_put_together(num_steps: int) -> None:
    rng = np.random.default_rng(num_steps)
    steps = []
    for _ in range(num_steps):
        rows = np.flatnonzero(rng.random(20) < 0.3).astype(np.int32)
        counts = rng.integers(1, 4, len(rows), dtype=np.int32)
        steps.append(TableExposure.of_step(rows, counts, rng.random(len(rows), np.float32)))
    log, counter = TableLog(), DesignCounter(("word_embeddings",))

    for step in steps:
        log.add(step)
        counter.add(np.repeat(step.rows, step.counts)[:, None])

    found, offsets = log.exposure(), np.cumsum([0, *(len(step.rows) for step in steps)])
    parts = ((np.empty(0, np.int32), "rows"), (np.empty(0, np.int32), "counts"), (np.empty(0, np.float32), "norms"))
    expected = TableExposure(
        offsets, *(np.concatenate([empty, *(getattr(step, part) for step in steps)]) for empty, part in parts)
    )
    for part in ("offsets", "rows", "counts", "norms"):
        assert np.array_equal(getattr(found, part), getattr(expected, part)), part
        assert getattr(found, part).dtype == getattr(expected, part).dtype, part
    half = TableExposure.join(steps[: num_steps // 2])
    assert all(
        np.array_equal(getattr(found, x)[: len(getattr(half, x))], getattr(half, x)) for x in ("offsets", "rows")
    )
    design = counter.design()
    used = np.bincount(np.repeat(expected.rows, expected.counts), minlength=20)
    assert np.array_equal(design.combinations[:, 0], np.flatnonzero(used))
    assert np.array_equal(design.counts, used[used > 0])
