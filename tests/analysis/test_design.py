"""The rank deficiency against numpy's rank, its directions against the definition, and the tables made of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.fixed_gauge import corpus_of
from tests.refusals import check_refused
from toolkit.analysis.tokens_in_use import (
    count_null_directions,
    count_offsets,
    draw_combinations,
    measure_design,
    reference_corpus,
)
from toolkit.families import TABLES
from toolkit.snapshots.logs import Design, DesignCounter, Exposure


def design_of(combinations, counts=None) -> Design:
    distinct = np.unique(np.array(combinations, np.int32), axis=0)
    counts = np.ones(len(distinct), np.int64) if counts is None else np.array(counts)
    return Design(TABLES[: distinct.shape[1]], distinct, counts)


def incidence(design: Design, sizes: dict[str, int]) -> np.ndarray:
    """The dense incidence matrix: one row per combination, one column per row of any table."""
    blocks = [np.eye(sizes[name])[column] for name, column in zip(design.tables, design.combinations.T, strict=True)]
    return np.hstack(blocks)


def sizes_of(design: Design, unused: int = 2) -> dict[str, int]:
    """Rows per table, a few of them never used."""
    return dict(zip(design.tables, (design.combinations.max(axis=0) + 1 + unused).tolist(), strict=True))


def texts(pairs: bool, seed: int = 0, num_texts: int = 60) -> Design:
    """[CLS] word... [SEP] (word... [SEP] in segment 1), as a recorder counts them; words 3 to 14, [CLS] 1, [SEP] 2."""
    rng, counter = np.random.default_rng(seed), DesignCounter(TABLES)
    for _ in range(num_texts):
        first, second = (rng.integers(3, 15, rng.integers(1, 7)).tolist() for _ in range(2))
        words = [1, *first, 2] + ([*second, 2] if pairs else [])
        segments = [0] * (len(first) + 2) + ([1] * (len(second) + 1) if pairs else [])
        counter.add(np.array([words, list(range(len(words))), segments], np.int32).T)
    return counter.design()


def rank_deficiency(design: Design) -> int:
    return count_null_directions(design, sizes_of(design))


designs = st.integers(1, 3).flatmap(
    lambda k: st.lists(st.tuples(*[st.integers(0, 6), st.integers(0, 5), st.integers(0, 3)][:k]), min_size=1).map(
        design_of
    )
)


def _rank(matrix):
    return np.linalg.matrix_rank(matrix) if matrix.size else 0  # of which older versions of numpy find no maximum


@settings(max_examples=300, deadline=None, derandomize=True)
@given(designs)
def test_rank_deficiency_is_used_rows_minus_rank(design):
    sizes = sizes_of(design)
    matrix = incidence(design, sizes)
    used = matrix.any(axis=0)
    assert count_null_directions(design, sizes) == used.sum() - _rank(matrix)


def test_groups_alone_prove_all_null_directions_of_texts():
    for pairs in (False, True):
        design = texts(pairs)
        sizes = sizes_of(design)
        groups = corpus_of({name: _counts(design, name, sizes[name]) for name in TABLES}, design).groups
        assert count_offsets(groups) == count_null_directions(design, sizes) == 3


def _counts(design: Design, name: str, num_rows: int) -> np.ndarray:
    return np.bincount(design.combinations[:, design.tables.index(name)], design.counts, num_rows)


def test_directions_that_the_groups_do_not_explain_are_said(make_trajectory, make_exposure):
    separate = design_of([[2, 0, 0], [2, 1, 0], [4, 0, 0], [5, 2, 1], [5, 3, 1], [6, 2, 1]])
    note = reference_corpus(_with(separate, make_trajectory, make_exposure)[0]).note
    assert note == "1 more null directions than groups explain: the fixed gauge leaves them free"
    joined = design_of([[2, 0, 0], [2, 1, 0], [4, 0, 0], [5, 2, 1], [5, 2, 0], [6, 2, 1]])
    assert reference_corpus(_with(joined, make_trajectory, make_exposure)[0]).note == ""


def test_a_large_design_is_quick():
    rng = np.random.default_rng(0)
    design = design_of(
        np.stack([rng.integers(0, 20_000, 60_000), rng.integers(0, 512, 60_000), rng.integers(0, 2, 60_000)], axis=1)
    )
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    left, right = design.combinations[:, 0], 20_000 + design.combinations[:, 1]
    graph = coo_array((np.ones(len(left)), (left, right)), shape=(20_512, 20_512))
    labels = connected_components(graph, directed=False)[1]
    assert rank_deficiency(design) == len(np.unique(labels[np.r_[left, right]])) + 1


def _with(design, make_trajectory, make_exposure, seed=0):
    """A trajectory of three epochs whose exposure is the tokens of a design, kept or not."""
    steps = {name: [np.repeat(design.combinations[:, i], design.counts).tolist()] for i, name in enumerate(TABLES)}
    return [make_trajectory(seed, Exposure(make_exposure(steps).tables, kept)) for kept in (design, None)]


TINY = ((2, 0, 0), (4, 1, 0), (5, 1, 0), (4, 2, 0), (3, 2, 0), (3, 3, 0), (6, 3, 1), (7, 2, 1), (4, 3, 1))


def test_measure_design(make_trajectory, make_exposure):
    recorded, not_recorded = _with(design_of(TINY, [4, 2, 1, 1, 2, 1, 1, 1, 1]), make_trajectory, make_exposure)
    table = measure_design(recorded).set_index("measure")
    used = 6 + 4 + 2
    assert table.value.tolist() == [14, 9, used, used - 3, 3, 2, 1]
    assert (table.note == "").all()
    table = measure_design(not_recorded).set_index("measure")
    assert table.value[["num_tokens", "num_combinations", "rank", "rank_deficiency"]].isna().all()
    assert table.reason["rank_deficiency"] == "no design was recorded: not known"
    assert table.value["rank_deficiency_crossed"] == 2
    assert table.value["num_used_rows"] == used


def test_inseparable_rows_are_paired(make_trajectory, make_exposure):
    recorded, not_recorded = _with(design_of(TINY, [4, 2, 1, 1, 2, 1, 1, 1, 1]), make_trajectory, make_exposure)
    for trajectory, note in ((recorded, ""), (not_recorded, "as the vocabulary tells")):
        corpus = reference_corpus(trajectory)
        assert corpus.pairs == [(2, 0)]
        assert corpus.note.endswith(note)
        assert np.allclose([corpus.frequencies[TABLES[0]][2], corpus.frequencies[TABLES[1]][0]], 4 / 14)
    seen_elsewhere, without = _with(design_of([*TINY, (2, 3, 0)]), make_trajectory, make_exposure)
    for trajectory in (seen_elsewhere, without):  # [CLS] is seen twice, position 0 once
        assert reference_corpus(trajectory).pairs == []


def test_a_design_that_lacks_a_table_is_refused(make_trajectory, make_exposure):
    exposure = make_exposure({name: [[2, 3]] if name != TABLES[2] else [[0, 0]] for name in TABLES})
    design = Design(TABLES[:2], np.array([[2, 2], [3, 3]], np.int32), np.array([1, 1]))
    check_refused("lacks token_type_embeddings", measure_design, make_trajectory(0, Exposure(exposure.tables, design)))


def test_drawn_combinations_have_the_shares_of_the_corpus(make_trajectory, make_exposure):
    counts = np.array([4, 2, 1, 1, 2, 1, 1, 1, 1])
    recorded, not_recorded = (
        reference_corpus(t) for t in _with(design_of(TINY, counts), make_trajectory, make_exposure)
    )
    rows, shares, sample = draw_combinations(recorded, 9, 0)
    assert sample == "all combinations of the run"
    assert np.array_equal(rows, recorded.design.combinations)
    assert np.array_equal(shares, counts / 14)
    few, of_few, sample = draw_combinations(recorded, 8, 3)
    assert sample == "8 tokens drawn from 9 combinations with seed 3"
    assert {tuple(row) for row in few.tolist()} <= set(TINY)
    assert of_few.sum() == pytest.approx(1)
    assert np.array_equal(few, draw_combinations(recorded, 8, 3)[0])
    rows, shares, sample = draw_combinations(not_recorded, 20_000, 0)
    assert sample.startswith("tables drawn independently")
    assert ((rows[:, 0] == 2) == (rows[:, 1] == 0)).all()  # inseparable rows stay together
    for index, name in enumerate(TABLES):
        drawn = np.bincount(rows[:, index], shares, len(not_recorded.frequencies[name]))
        assert np.allclose(drawn, not_recorded.frequencies[name], atol=0.015), name


def test_without_exposure_frequencies_are_uniform_and_say_so(make_trajectory):
    corpus = reference_corpus(make_trajectory(read_exposure=None, position_offset=2))
    assert corpus.frequency_source == "uniform"
    assert corpus.note.startswith("uniform frequencies: no exposure was recorded")
    positions = corpus.frequencies["position_embeddings"]
    assert not positions[:2].any()  # RoBERTa's padding rows
    assert np.allclose(positions[2:], 1 / 7)
    words = corpus.frequencies["word_embeddings"]
    assert words[0] == 0  # [PAD]
    assert words[2] == pytest.approx(1 / 7)  # [CLS] as often as the first position
    assert np.allclose(words[[1, *range(3, 12)]], (6 / 7) / 10)
    assert corpus.pairs == [(2, 2)]
