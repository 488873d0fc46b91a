"""Which rows stood together, counted batch by batch: as if all tokens were counted at once."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from toolkit.families import TABLES
from toolkit.snapshots.exposure import DesignCounter

tokens = st.tuples(st.sampled_from([0, 1, 7, 250_001]), st.sampled_from([0, 3, 8191]), st.integers(0, 1))
batches_of_tokens = st.lists(st.lists(tokens, max_size=12), max_size=8)


@given(batches_of_tokens, st.integers(1, 3), st.booleans())
def test_combinations_are_counted_whatever_the_batches(batches, num_tables, is_merged_often):
    counter = DesignCounter(TABLES[:num_tables])
    for batch in batches:
        columns = np.array(batch, np.int64).reshape(-1, 3).T
        counter.add(dict(zip(TABLES, columns, strict=True)))
        if is_merged_often:
            counter.design()
    design = counter.design()
    expected = Counter(token[:num_tables] for batch in batches for token in batch)
    assert design.tables == TABLES[:num_tables]
    assert [tuple(line) for line in design.combinations.tolist()] == sorted(expected)
    assert design.counts.tolist() == [expected[key] for key in sorted(expected)]
    assert (design.combinations.dtype, design.counts.dtype) == (np.int32, np.int64)
