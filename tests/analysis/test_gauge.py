"""The gauge against the definition: what the embedding output cannot show, what it can, and the share between them."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.analysis.fixed_gauge import corpus_of, fix_gauge, gauge_share
from tests.refusals import check_refused
from toolkit.analysis.gauge import measure_gauge
from toolkit.analysis.tokens_in_use import reference_corpus
from toolkit.families import TABLES
from toolkit.snapshots.logs import Design, Exposure, TableExposure
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary

W, P, S = TABLES
SIZES = {W: 14, P: 9, S: 3}  # the last row of each table is never used
HIDDEN = 8
TOKENS = ("[PAD]", "[CLS]", "[SEP]", *"abcdefghijk")


def make_design(seed=0, num_texts=80) -> Design:
    """Pairs of texts: [CLS] a b [SEP] c [SEP], the second of each in segment 1."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(num_texts):
        lengths = rng.integers(1, 4, 2)
        words = [1, *rng.integers(3, 13, lengths[0]), 2, *rng.integers(3, 13, lengths[1]), 2]
        rows += [(word, i, int(i > lengths[0] + 1)) for i, word in enumerate(words)]
    distinct, counts = np.unique(np.array(rows, np.int32), axis=0, return_counts=True)
    return Design(TABLES, distinct, counts)


DESIGN = make_design()


def counts_of(design, tables=TABLES, sizes=SIZES):
    return {n: np.bincount(design.combinations[:, TABLES.index(n)], design.counts, sizes[n]) for n in tables}


def draw(seed, tables=TABLES, scale=1.0):
    rng = np.random.default_rng([7, seed])
    return {name: rng.normal(0.1, scale, (SIZES[name], HIDDEN)) for name in tables}


def corpus(tables=TABLES, design=DESIGN):
    distinct, places = np.unique(design.combinations[:, : len(tables)], axis=0, return_inverse=True)
    return corpus_of(
        counts_of(design, tables), Design(tables, distinct, np.bincount(places, design.counts).astype(np.int64))
    )


def crossed(tables=TABLES):
    """A corpus whose rows all occurred together, so that SCIENCE.md's offsets are all its null directions."""
    rng = np.random.default_rng(3)
    return corpus_of({name: rng.integers(1, 9, SIZES[name]) for name in tables})


def output(tables, design=DESIGN, eps=1e-12):
    """(combinations, hidden) LayerNorm without weights, as a plain formula."""
    total = sum(tables[name][design.combinations[:, i]] for i, name in enumerate(tables))
    return (total - total.mean(1, keepdims=True)) / np.sqrt(total.var(1, keepdims=True) + eps)


def move(tables, **changes):
    return {name: tables[name] + changes.get(short, 0) for short, name in zip("WPS", tables, strict=False)}


def invisible(tables, seed=0):
    """Each kind of change that SCIENCE.md says no behaviour can show."""
    rng = np.random.default_rng([8, seed])
    c, k = rng.normal(size=(2, HIDDEN))
    cls, first = np.zeros((SIZES[W], HIDDEN)), np.zeros((SIZES[P], HIDDEN))
    cls[1], first[0] = k, -k
    return {
        "offset of positions": move(tables, W=c, P=-c),
        "offset of segments": move(tables, W=c, S=-c),
        "alpha times ones": {n: t + rng.normal(size=(len(t), 1)) for n, t in tables.items()},
        "[CLS] and position 0": move(tables, W=cls, P=first),
        "scale": {name: 1.7 * table for name, table in tables.items()},
    }


def share_by_the_formula(a, b, corpus):
    """SCIENCE.md's formula, term by term."""
    fixed, total, offset = 0.0, 0.0, 0.0
    for name, f in corpus.frequencies.items():
        before, after = (t[name] - t[name].mean(1, keepdims=True) for t in (a, b))
        primes = [rows - f @ rows for rows in (before, after)]
        fixed += f @ np.sum((primes[1] - primes[0]) ** 2, axis=1)
        total += f @ np.sum((after - before) ** 2, axis=1)
        offset = offset + f @ after - f @ before
    return 1 - (fixed + offset @ offset / len(corpus.tables)) / total


def trajectory(*states, design=DESIGN, keep_design=True, tables=TABLES, exposure=True, vocabulary=True):
    tables_of = {}
    for name, counts in counts_of(design).items():
        rows = np.flatnonzero(counts).astype(np.int32)
        step = TableExposure.of_step(rows, counts[rows].astype(np.int32), np.ones(len(rows), np.float32))
        tables_of[name] = TableExposure.join([step])
    recorded = Exposure(
        {name: tables_of[name] for name in tables}, corpus(tables, design).design if keep_design else None
    )
    return Trajectory(
        [Snapshot(epoch, epoch, state) for epoch, state in enumerate(states)],
        Vocabulary(TOKENS, frozenset({0, 1, 2}), 0) if vocabulary else None,
        (lambda: recorded) if exposure else None,
    )


def values_of(table, epoch=1):
    return table[table.epoch == epoch].set_index(["parameter", "measure"]).value


@pytest.mark.parametrize("seed", range(3))
def test_no_output_shows_what_is_invisible_and_shows_the_control(seed):
    tables = draw(seed)
    for name, moved in invisible(tables, seed).items():
        eps = 0 if name == "scale" else 1e-12  # a common scale is invisible up to eps
        assert np.abs(output(moved, eps=eps) - output(tables, eps=eps)).max() <= 1e-12, name
        assert not np.allclose(moved[W], tables[W]), name
    assert np.abs(output(move(tables, W=0.1 * tables[W])) - output(tables)).max() > 0.01


@pytest.mark.parametrize("tables", [TABLES, TABLES[:2]])
def test_fixed_gauge_adds_up_to_the_same_sums_with_means_of_0(tables):
    of, state = corpus(tables), draw(4, tables)
    fixed = fix_gauge(state, of)
    combinations = of.design.combinations
    sums = sum(state[name][column] for name, column in zip(tables, combinations.T, strict=True))
    again = sum(fixed.tables[name][column] for name, column in zip(tables, combinations.T, strict=True))
    assert np.allclose(again + fixed.offset, sums - sums.mean(1, keepdims=True), rtol=0, atol=1e-13)
    for name in tables:
        used = of.frequencies[name] > 0
        assert np.abs(of.frequencies[name][used] @ fixed.tables[name][used]).max() < 1e-14
        assert np.isnan(fixed.tables[name][~used]).all()
    assert np.abs(fixed.tables[P][0]).max() < 1e-15  # all of position 0 is in [CLS]
    # Without inseparable rows it is the plain formula.
    for name, rows in fix_gauge(state, crossed(tables)).tables.items():
        projected = state[name] - state[name].mean(1, keepdims=True)
        assert np.allclose(rows, projected - crossed(tables).frequencies[name] @ projected, rtol=0, atol=1e-14)


STATES = st.tuples(*[
    arrays(np.float64, (size, 4), elements=st.floats(-8, 8, width=32).map(float))
    for _ in range(2)
    for size in (5, 3, 2)
])  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(STATES, st.integers(2, 3), st.integers(0, 2**32 - 1))
def test_gauge_share_is_the_formula_and_a_share(rows, num_tables, seed):
    a, b = (dict(zip(TABLES[:num_tables], state, strict=False)) for state in (rows[:3], rows[3:]))
    rng = np.random.default_rng(seed)
    of = corpus_of({name: rng.integers(1, 100, len(a[name])) for name in a})
    share = gauge_share(a, b, of)
    moved = sum(of.frequencies[n] @ np.var(b[n] - a[n], axis=1) for n in a)
    if moved == 0:
        assert np.isnan(share)
    elif not np.isnan(share):
        assert 0 <= share <= 1
        assert share == pytest.approx(share_by_the_formula(a, b, of), abs=1e-9)
    else:
        assert moved < 1e-25


def test_independent_drift_of_many_rows_has_little_gauge():
    rng = np.random.default_rng(9)
    sizes = {W: 4000, P: 500, S: 2}
    state = {name: rng.normal(size=(size, 16)) for name, size in sizes.items()}
    of = corpus_of({name: np.ones(size) for name, size in sizes.items()})
    apart = {name: rows + 0.1 * rng.normal(size=rows.shape) * (name != S) for name, rows in state.items()}
    assert gauge_share(state, apart, of) < 0.005
    planted = move(apart, W=0.5, P=np.array([1.0, -1.0] * 8), S=np.array([-1.0, 1.0] * 8))
    assert gauge_share(state, planted, of) > 0.98


def test_measure_gauge_of_what_no_output_shows():
    state = draw(10)
    moved = invisible(state, 1)
    table = measure_gauge(trajectory(state, *moved.values()))
    assert set(table.frequencies) == {"run's tokens"}
    assert (table.note[table.epoch > 0] == "").sum() > 0
    for epoch, name in enumerate(moved, start=1):
        values = values_of(table, epoch)
        assert values["all tables", "common_scale"] == pytest.approx(1.7 if name == "scale" else 1, rel=1e-12), name
        for parameter in (*TABLES, "common offset", "[CLS] + position 0"):
            assert values[parameter, "scaled_drift"] <= 1e-11, (name, parameter)
            fixed = values[parameter, "gauge_fixed_drift"]
            assert fixed > 0.1 if name == "scale" else fixed <= 1e-11, (name, parameter)
        assert values[W, "raw_drift"] > 0.1
    # SCIENCE.md's formula knows the offsets only: it sees [CLS] and position 0 move.
    plain = table[table.measure == "gauge_share"].set_index("epoch").value
    assert np.isnan(plain[[0, 3]]).all()  # nothing moved, or nothing but along 1
    assert np.allclose(plain[[1, 2]], 1, rtol=0, atol=1e-12)
    assert plain[4] < 0.5
    assert (table[table.measure == "num_null_directions"].value == 3).all()


def test_measure_gauge_is_the_plain_formula():
    a, b = draw(11), draw(12)
    values, of = values_of(measure_gauge(trajectory(a, b))), corpus()
    sums = {}
    for name in TABLES:
        f, delta = of.frequencies[name], b[name] - a[name]
        assert values[name, "raw_drift"] == pytest.approx(np.sqrt(f @ np.sum(delta**2, axis=1)))
        assert values[name, "pi_drift"] == pytest.approx(np.sqrt(f @ np.var(delta, axis=1) * HIDDEN))
    for key, state in (("a", a), ("b", b)):
        total = sum(state[name][column] for name, column in zip(TABLES, DESIGN.combinations.T, strict=True))
        sums[key] = np.sqrt(np.average(total.var(axis=1), weights=DESIGN.counts))
    scale = sums["b"] / sums["a"]
    overall = values["all tables"]
    assert (overall["rms"], overall["common_scale"]) == pytest.approx((sums["b"], scale), rel=1e-12)
    before, after = fix_gauge(a, of), fix_gauge(b, of)
    for name in TABLES:
        for quantity, divisor in (("gauge_fixed_drift", 1), ("scaled_drift", scale)):
            squares = np.sum((after.tables[name] / divisor - before.tables[name]) ** 2, axis=1)
            expected = np.sqrt(np.nansum(of.frequencies[name] * squares))
            assert values[name, quantity] == pytest.approx(expected, rel=1e-10), (name, quantity)
    assert values["common offset", "gauge_fixed_drift"] == pytest.approx(np.linalg.norm(after.offset - before.offset))
    pair = {"raw_drift": b[W][1] + b[P][0] - a[W][1] - a[P][0]}
    pair["pi_drift"] = pair["raw_drift"] - pair["raw_drift"].mean()
    pair["gauge_fixed_drift"] = after.tables[W][1] - before.tables[W][1]
    pair["scaled_drift"] = after.tables[W][1] / scale - before.tables[W][1]
    expected = {quantity: np.linalg.norm(vector) for quantity, vector in pair.items()}
    assert values["[CLS] + position 0"][[*expected]].to_dict() == pytest.approx(expected, rel=1e-10)
    assert overall["gauge_share"] == pytest.approx(share_by_the_formula(a, b, of), rel=1e-10)


def test_without_inseparable_rows_there_are_the_offsets_alone():
    kept = DESIGN.combinations[:, 1] > 0
    without = Design(TABLES, DESIGN.combinations[kept], DESIGN.counts[kept])
    values = values_of(measure_gauge(trajectory(draw(11), draw(12), design=without)))
    assert values["all tables", "num_null_directions"] == 2


def test_fewer_tables():
    a, b = ({name: rows for name, rows in draw(seed).items() if name != S} for seed in (16, 17))
    values = values_of(measure_gauge(trajectory(a, b, tables=TABLES[:2])))
    assert values["all tables", "gauge_share"] == pytest.approx(
        share_by_the_formula(a, b, corpus(TABLES[:2])), rel=1e-10
    )
    a, b = ({W: state[W]} for state in (a, b))
    table = measure_gauge(trajectory(a, b, tables=TABLES[:1]), 1)
    values = values_of(table)
    assert np.isnan(values["all tables", "gauge_share"])
    assert table.set_index("measure").reason["gauge_share"] == "one table: no gauge between tables"
    assert values["all tables", "num_null_directions"] == 0
    assert values[W, "gauge_fixed_drift"] > 0
    check_refused(
        "a gauge needs embedding tables",
        reference_corpus,
        Trajectory([Snapshot(0, 0, {"LayerNorm.bias": np.zeros(3)})]),
    )


def test_a_projection_before_layer_norm_is_refused():
    norm = {"LayerNorm.weight": np.ones(2 * HIDDEN)}  # wider than the tables
    source = trajectory(draw(16) | norm, draw(17) | norm)
    table = measure_gauge(source)
    assert (table.reason + table.note).str.contains("the sums are projected before LayerNorm").all()
    assert table[table.measure.str.startswith("gauge_share")].value.isna().all()
    assert table[table.measure == "raw_drift"].value.notna().all()


def test_what_was_not_recorded_is_said():
    a, b = draw(18), draw(19)
    table = measure_gauge(trajectory(a, b, keep_design=False))
    assert set(table.frequencies) == {"run's tokens"}
    assert table.note.str.contains("no design was recorded; the first token and its position").all()
    uniform = measure_gauge(trajectory(a, b, exposure=False, vocabulary=False))
    assert set(uniform.frequencies) == {"uniform"}
    assert uniform.note.str.contains("no exposure was recorded").all()
    expected = share_by_the_formula(a, b, corpus_of({name: np.ones(SIZES[name]) for name in TABLES}))
    assert values_of(uniform)["all tables", "gauge_share"] == pytest.approx(expected, rel=1e-10)
    # Rows drawn independently, as a plain mean over all of them.
    total = b[W][:, None, None] + b[P][None, :, None] + b[S][None, None]
    assert values_of(uniform)["all tables", "rms"] == pytest.approx(np.sqrt(total.var(-1).mean()), rel=1e-12)


def test_independent_tables_keep_inseparable_rows_together():
    a, b = draw(18), draw(19)
    of = corpus()
    f, q, g = (of.frequencies[name] for name in TABLES)
    expected = 0.0
    for i in np.flatnonzero(f):
        for j in np.flatnonzero(q):
            if (i == 1) == (j == 0):
                together = f[i] if i == 1 else f[i] * q[j] / (1 - f[1])
                expected += sum(together * g[k] * np.var(b[W][i] + b[P][j] + b[S][k]) for k in (0, 1))
    assert values_of(measure_gauge(trajectory(a, b, keep_design=False)))["all tables", "rms"] == pytest.approx(
        np.sqrt(expected), rel=1e-12
    )


def test_every_epoch_has_the_same_frequencies_and_a_reference_can_be_chosen():
    states = [draw(seed) for seed in (20, 21, 22)]
    source = trajectory(*states)
    table = measure_gauge(source)
    assert table.epoch.unique().tolist() == [0, 1, 2]
    later = measure_gauge(source, 2, reference_epoch=1)
    pd.testing.assert_series_equal(values_of(later, 2), values_of(measure_gauge(trajectory(*states[1:]))))
    assert values_of(table, 0)[W, "raw_drift"] == 0
