"""Functional drift and its split: Shapley against permutations, coalitions against a plain formula, planted drift."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from tests.analysis.fixed_gauge import corpus_of, fix_gauge
from tests.refusals import check_refused
from toolkit.analysis.gauge import measure_gauge
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.questions.space.functional import functional_drift
from toolkit.snapshots.logs import Design, Exposure, TableExposure
from toolkit.snapshots.snapshot import Snapshot, Trajectory

W, P, S = TABLES
GAMMA, BETA = EMBEDDING_PARAMETERS[3:]
SIZES = {W: 14, P: 9, S: 2}
HIDDEN = 8
OFFSET, NORM, PAIR = "common offset", "LayerNorm", "inseparable rows"


def make_design(is_pair=True, has_cls=True, num_texts=80) -> Design:
    """Texts of one or two segments; [CLS] (1) stands at position 0 only, or there is none."""
    rng, rows = np.random.default_rng(1), []
    for _ in range(num_texts):
        lengths = rng.integers(1, 4, 2)
        words = [1 if has_cls else 2, *rng.integers(2, 13, lengths[0]), 2, *rng.integers(2, 13, lengths[1]), 2]
        rows += [(word, i, int(is_pair and i > lengths[0] + 1)) for i, word in enumerate(words)]
    distinct, counts = np.unique(np.array(rows, np.int32), axis=0, return_counts=True)
    return Design(TABLES, distinct, counts)


def narrow(design, tables):
    distinct, places = np.unique(design.combinations[:, : len(tables)], axis=0, return_inverse=True)
    return Design(tables, distinct, np.bincount(places, design.counts).astype(np.int64))


def draw(seed, scale=1.0):
    rng = np.random.default_rng([5, seed])
    state = {name: rng.normal(0.1, scale, (SIZES[name], HIDDEN)) for name in TABLES}
    return state | {GAMMA: rng.uniform(0.5, 1.5, HIDDEN), BETA: rng.normal(size=HIDDEN)}


def only(state, names):
    return {name: state[name] for name in names}


def trajectory(*states, design, keep_design=True):
    tables = {}
    for i, name in enumerate(design.tables):
        counts = np.bincount(design.combinations[:, i], design.counts)
        rows = np.flatnonzero(counts).astype(np.int32)
        step = TableExposure.of_step(rows, counts[rows].astype(np.int32), np.ones(len(rows), np.float32))
        tables[name] = TableExposure.join([step])
    exposure = Exposure(tables, design if keep_design else None)
    return Trajectory([Snapshot(i, i, s) for i, s in enumerate(states)], None, lambda: exposure)


def values_of(table, epoch=1):
    return table[table.epoch == epoch].set_index("component").value


def normalised(rows, eps=1e-12):
    return (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + eps)


def output(state, design, eps=1e-12):
    """(combinations, hidden) the embedding output as a plain formula."""
    total = sum(state[name][column] for name, column in zip(design.tables, design.combinations.T, strict=True))
    return normalised(total, eps) * state.get(GAMMA, 1) + state.get(BETA, 0)


def drift(a, b, design, eps=1e-12):
    before, after = (output(state, design, eps) for state in (a, b))
    return design.counts @ np.sum((after - before) ** 2, 1) / (design.counts @ np.sum(before**2, 1))


def value_of_coalition(players, a, b, design):
    """v(S): rows taken from the fixed gauge of either state, one combination after the other."""
    counts = {n: np.bincount(design.combinations[:, i], design.counts, SIZES[n]) for i, n in enumerate(design.tables)}
    corpus = corpus_of(counts, design)
    fixed = [fix_gauge(only(state, design.tables), corpus) for state in (a, b)]
    norms = [(state.get(GAMMA, 1), state.get(BETA, 0)) for state in (a, b)]
    change, size = 0.0, 0.0
    for rows, count in zip(design.combinations.tolist(), design.counts, strict=True):
        is_alone = rows[0] == 1 and rows[1] == 0
        sums = []
        for chosen in ((), players):
            total = fixed[OFFSET in chosen].offset.copy()
            for name, row in zip(design.tables, rows, strict=True):
                owner = PAIR if is_alone and name in (W, P) else name
                total += fixed[owner in chosen].tables[name][row]
            weight, bias = norms[NORM in chosen]
            sums.append(normalised(total[None])[0] * weight + bias)
        change += count * np.sum((sums[1] - sums[0]) ** 2)
        size += count * np.sum(sums[0] ** 2)
    return change / size


def by_permutations(players, value):
    """Shapley's definition: the mean gain of a player over all orders of arrival."""
    totals, orders = dict.fromkeys(players, 0.0), list(permutations(players))
    known = {}
    for order in orders:
        for i, player in enumerate(order):
            gain = 0.0
            for members, sign in ((order[: i + 1], 1), (order[:i], -1)):
                key = frozenset(members)
                known[key] = known[key] if key in known else value(key)
                gain += sign * known[key]
            totals[player] += gain / len(orders)
    return totals


@pytest.mark.parametrize(
    ("tables", "has_cls", "norm"),
    [(TABLES, True, (GAMMA, BETA)), (TABLES, False, ()), (TABLES[:2], True, (GAMMA,)), (TABLES[:1], False, (GAMMA,))],
)
def test_split_against_permutations_of_plain_coalitions(tables, has_cls, norm):
    design = narrow(make_design(has_cls=has_cls), tables)
    a, b = (only(draw(seed), (*tables, *norm)) for seed in (0, 1))
    table = functional_drift(trajectory(a, b, design=design))
    values = values_of(table)
    players = (*tables, *([PAIR] if has_cls else []), OFFSET, *([NORM] if norm else []))
    assert tuple(values.index) == ("embedding output", *players)
    expected = by_permutations(players, lambda chosen: value_of_coalition(chosen, a, b, design))
    assert values.iloc[1:].to_dict() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert values["embedding output"] == pytest.approx(drift(a, b, design), rel=1e-12)
    assert values.iloc[1:].sum() == pytest.approx(values.iloc[0], abs=1e-12)  # efficiency
    assert (values_of(table, 0) == 0).all()


def test_a_pure_gauge_is_no_functional_drift_and_no_part_of_it():
    design, a = make_design(), draw(2)
    rng = np.random.default_rng(3)
    c, k = rng.normal(size=(2, HIDDEN))
    b = a | {W: a[W] + 2 * c + rng.normal(size=(SIZES[W], 1)), P: a[P] - 3 * c, S: a[S] + c}
    b[W][1] += k
    b[P][0] -= k
    assert functional_drift(trajectory(a, b, design=design), 1).value.abs().max() <= 1e-24
    assert np.abs(output(a, design) - output(b, design)).max() <= 1e-12
    control = values_of(functional_drift(trajectory(a, a | {W: 1.1 * a[W]}, design=design), 1))
    assert control[W] > 0.5 * control["embedding output"] > 1e-4


def test_a_common_scale_is_no_functional_drift_but_moves_components_and_is_pointed_out():
    design, a = make_design(), draw(2)
    table = functional_drift(trajectory(a, a | {name: 1.2 * a[name] for name in TABLES}, design=design), 1)
    assert (table.value[0] <= 1e-20, abs(table.value[1:].sum()) <= 1e-12) == (True, True)
    assert table.note.str.startswith("a common scale of the tables").all()
    assert (functional_drift(trajectory(a, draw(3), design=design), 1).note == "").all()


@pytest.mark.parametrize(
    ("share", "is_warned"), [(0.0, False), (0.09, False), (0.11, True), (-0.09, False), (-0.5, True)]
)
def test_a_common_scale_is_pointed_out_from_a_tenth_of_the_roots_of_the_drift(share, is_warned):
    """The same drift and the same output, whatever the scale: only what it is beside the drift decides."""
    design, a = make_design(), draw(2)
    b = a | {name: a[name] + 0.01 * draw(3)[name] for name in TABLES}
    source = trajectory(a, b, design=design)
    plain, gauge = functional_drift(source, 1).iloc[0], measure_gauge(source, 1).set_index(["parameter", "measure"])
    factor = (1 + share * np.sqrt(plain.value)) / gauge.value["all tables", "common_scale"]
    table = functional_drift(trajectory(a, b | {name: factor * b[name] for name in TABLES}, design=design), 1)
    assert table.value[0] == pytest.approx(plain.value)
    assert table.note.str.contains("a common scale of the tables").tolist() == [is_warned] * len(table)


def planted(name, state, design, rng):
    """A change of one component of the fixed gauge alone: weighted mean 0, and 0 in rows that stand alone."""
    changed = {key: value.copy() for key, value in state.items()}
    if name == OFFSET:
        changed[W] += 0.3 * rng.normal(size=HIDDEN)
    elif name == NORM:
        changed[GAMMA] *= rng.uniform(0.7, 1.3, HIDDEN)
        changed[BETA] += 0.3 * rng.normal(size=HIDDEN)
    else:
        f = np.bincount(design.combinations[:, design.tables.index(name)], design.counts, SIZES[name])
        f[1 if name == W else 0] *= name == S
        move = rng.normal(size=state[name].shape) * (f > 0)[:, None]
        changed[name] += move - (f @ move / f.sum()) * (f > 0)[:, None]
    return changed


@pytest.mark.parametrize("name", [*TABLES, OFFSET, NORM])
def test_drift_of_one_component_is_its_own_and_nobody_elses(name):
    design, a = make_design(), draw(4)
    values = values_of(
        functional_drift(trajectory(a, planted(name, a, design, np.random.default_rng(5)), design=design), 1)
    )
    assert values["embedding output"] > 1e-3
    assert values[name] == pytest.approx(values["embedding output"], rel=1e-9)
    assert values.drop([name, "embedding output"]).abs().max() <= 1e-12


def test_segments_have_no_part_in_single_sentences():
    assert values_of(functional_drift(trajectory(draw(8), draw(9), design=make_design(is_pair=False)), 1))[S] == 0
    assert values_of(functional_drift(trajectory(draw(8), draw(9), design=make_design()), 1))[S] > 1e-3


def test_eps_is_that_of_the_model():
    design = make_design()
    a, b = draw(10, 0.01), draw(11, 0.01)
    source = trajectory(a, b, design=design)
    tables = {eps: functional_drift(replace(source, layer_norm_eps=eps), 1) for eps in (1e-12, 1e-5)}
    for eps, table in tables.items():
        assert table.value[0] == pytest.approx(drift(a, b, design, eps), rel=1e-12)
    assert tables[1e-12].value[0] != pytest.approx(tables[1e-5].value[0], rel=1e-3)


def test_the_embedding_output_is_torchs():
    import torch

    design, state = make_design(), draw(12)
    total = sum(state[name][column] for name, column in zip(TABLES, design.combinations.T, strict=True))
    gamma, beta = (torch.from_numpy(state[name]) for name in (GAMMA, BETA))
    expected = torch.nn.functional.layer_norm(torch.from_numpy(total), (HIDDEN,), gamma, beta, 1e-5)
    assert np.allclose(output(state, design, 1e-5), expected.numpy(), rtol=1e-12, atol=1e-14)


def test_a_sample_is_seeded_named_and_near_the_whole():
    design, states = make_design(num_texts=400), (draw(13), draw(14))
    source = trajectory(*states, design=design)
    whole = functional_drift(source, 1)
    assert set(whole["sample"]) == {"all combinations of the run"}
    sampled = functional_drift(source, 1, max_combinations=60, seed=2)
    assert sampled["sample"][0] == f"60 tokens drawn from {len(design.counts)} combinations with seed 2"
    assert sampled.equals(functional_drift(source, 1, max_combinations=60, seed=2))
    assert not np.array_equal(sampled.value, functional_drift(source, 1, max_combinations=60, seed=3).value)
    assert sampled.value[0] == pytest.approx(whole.value[0], rel=0.2)
    assert sampled.value[1:].sum() == pytest.approx(sampled.value[0], abs=1e-12)
    independent = functional_drift(trajectory(*states, design=design, keep_design=False), 1)
    assert independent["sample"].str.startswith("tables drawn independently").all()
    assert independent.note.str.contains("no design was recorded").all()
    message = "max_combinations must be a whole .* 1; got 0"
    check_refused(message, functional_drift, source, 1, max_combinations=0)


def test_every_epoch_is_measured_from_the_reference():
    states, design = [draw(seed) for seed in (15, 16, 17)], make_design()
    source = trajectory(*states, design=design)
    for reference, epoch in ((0, 1), (0, 2), (1, 2)):
        assert functional_drift(source, epoch, reference_epoch=reference).value[0] == pytest.approx(
            drift(states[reference], states[epoch], design)
        )
    assert set(functional_drift(source).epoch) == {0, 1, 2}


def test_a_projection_before_layer_norm_is_refused():
    states = [draw(seed) | {GAMMA: np.ones(2 * HIDDEN), BETA: np.zeros(2 * HIDDEN)} for seed in (15, 16)]
    table = functional_drift(trajectory(*states, design=make_design()))
    assert table.component.tolist() == ["embedding output"] * 2
    assert table.value.isna().all()
    assert table.reason.str.startswith("the sums are projected before LayerNorm").all()


def test_a_run_that_diverged_is_refused():
    design, a = make_design(), draw(18)
    for name in (W, GAMMA):
        b = a | {name: np.where(np.arange(len(a[name])) == 3, np.nan, a[name].T).T}
        check_refused(f"{name} holds NaN or infinity at epoch 1", functional_drift, trajectory(a, b, design=design), 1)


@pytest.mark.parametrize(("before", "hidden"), [(0.0, HIDDEN), (0.5, HIDDEN), (0.3, 7), (0.3, 1)])
def test_a_reference_without_output_is_undefined(before, hidden):
    """Every row is one number: nothing is left when its mean is taken away."""
    start = {name: np.full((SIZES[name], hidden), before) for name in TABLES}
    end = {name: table + np.random.default_rng(19).normal(size=table.shape) for name, table in start.items()}
    table = functional_drift(trajectory(start, end, design=make_design()), 1)
    assert table.value.isna().all()
    assert table.reason.str.startswith("undefined: the embedding output of the reference is 0").all()
