"""Exposure told by two checkpoints: the truth of real optimizers is found, row by row, or refused with its reason."""

import math
import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refusals
from tests.training.test_record import language_model, record_causal
from toolkit.families import TABLES
from toolkit.questions.changes import inferred_exposure
from toolkit.questions.changes.inferred_exposure import (
    EXPOSED,
    LEAST_MISFIT_RATIO,
    NUM_SIGNIFICANDS,
    OVERLAP,
    UNEXPOSED,
    UNKNOWN_CAUSE,
    UNTOLD,
    Curve,
    ancestral_rows_of,
    find_ancestral_rows,
    infer_exposure,
    infer_from,
    split_values,
)
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary
from toolkit.snapshots.store import Run

W, P, S = TABLES
ROWS = {W: 200, P: 64, S: 2}
HIDDEN = 48
LENGTH = 11
"""Tokens of the longest text."""
WORDS = np.arange(3, 60)
"""Rows that batches use; row 0 is padding."""


def make_tables(seed: int = 0) -> dict[str, torch.Tensor]:
    """Tables with a common mean and rows of unequal length."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.05 * torch.randn(n, HIDDEN, generator=generator) + 0.01 * torch.randn(HIDDEN, generator=generator)
        for name, n in ROWS.items()
    }


def train(
    make_optimizer,
    *,
    num_steps: int = 40,
    rate: float = 1e-3,
    is_tied: bool = False,
    num_segments: int = 1,
    dtype: torch.dtype = torch.float32,
    trained: tuple[str, ...] = TABLES,
    seed: int = 0,
    texts: int | None = None,
    words: np.ndarray = WORDS,
) -> tuple[Trajectory, dict[str, np.ndarray]]:
    """A sum of embeddings, trained on random texts by a real optimizer; and which rows its batches used."""
    parameters = {
        name: torch.nn.Parameter(table.to(dtype), name in trained) for name, table in make_tables(seed).items()
    }
    before = {name: table.detach().float().numpy().copy() for name, table in parameters.items()}
    optimizer = make_optimizer([table for name, table in parameters.items() if name in trained], lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 5) * (1 - step / num_steps)
    )
    generator = torch.Generator().manual_seed(seed + 1 if texts is None else texts)
    target = 0.1 * torch.randn(HIDDEN, generator=generator)  # far from where tanh is flat, and gradients are 0
    used = {name: np.zeros(n, bool) for name, n in ROWS.items()}
    for _ in range(num_steps):
        used_words = torch.from_numpy(words)[torch.randint(len(words), (4, LENGTH), generator=generator)]
        positions = torch.arange(LENGTH)
        segments = (positions >= 5).long() if num_segments == 2 else torch.zeros(LENGTH, dtype=torch.long)
        for name, rows in ((W, used_words), (P, positions), (S, segments)):
            used[name][rows.numpy()] = True
        states = torch.nn.functional.layer_norm(
            parameters[W][used_words] + parameters[P][positions] + parameters[S][segments], (HIDDEN,)
        )
        loss = torch.tanh(states @ target.to(dtype)).square().mean()
        if is_tied:
            loss = loss + torch.nn.functional.cross_entropy(
                (states @ parameters[W].T).flatten(0, 1), used_words.flatten()
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    after = {name: table.detach().float().numpy() for name, table in parameters.items()}
    tokens = Vocabulary(tuple(f"w{i}" for i in range(ROWS[W])), frozenset({0}), 0)
    return Trajectory([Snapshot(0, 0, before), Snapshot(1, num_steps, after)], tokens), used


def adamw(decay: float, **more):
    return lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=decay, **more)


def sgd(decay: float, momentum: float = 0.0):
    return lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, weight_decay=decay, momentum=momentum)


def found_of(inferred, name: str) -> np.ndarray:
    return inferred.rows.loc[inferred.rows["parameter"] == name, "exposure"].to_numpy()


def line_of(inferred, name: str = W):
    return inferred.tables.set_index("parameter").loc[name]


def with_rows(trajectory: Trajectory, name: str, rows: int | slice, values: np.ndarray) -> Trajectory:
    """The pair with other values in some rows of the second."""
    after = {key: np.array(table) for key, table in trajectory.snapshots[1].tensors.items()}
    after[name][rows] = values
    return Trajectory([trajectory.snapshots[0], Snapshot(1, 1, after)])


OPTIMIZERS = {
    "AdamW": (adamw, 1e-3, (0.0, 0.01, 0.1)),
    "AdamW, fused": (lambda decay: adamw(decay, fused=True), 1e-3, (0.0, 0.1)),
    "AdamW, amsgrad": (lambda decay: adamw(decay, amsgrad=True), 1e-3, (0.1,)),
    "SGD": (sgd, 0.5, (0.0, 0.01)),
    "SGD with momentum": (lambda decay: sgd(decay, 0.9), 0.1, (0.0, 0.01)),
}


@pytest.mark.parametrize("num_segments", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_exactly_the_rows_that_batches_used(name: str, num_segments: int) -> None:
    make, rate, decays = OPTIMIZERS[name]
    for decay, seed in [(decay, seed) for decay in decays for seed in range(2)]:
        trajectory, used = train(make(decay), rate=rate, num_segments=num_segments, seed=seed)
        inferred = infer_from(trajectory)
        assert (inferred.tables["reason"] == "").all(), (decay, seed)
        for table in TABLES:
            assert np.array_equal(found_of(inferred, table), np.where(used[table], EXPOSED, UNEXPOSED)), (decay, table)
        assert (inferred.longest_text, inferred.num_segments) == (LENGTH, num_segments)
        assert set(inferred.words["token"]) == {f"w{i}" for i in np.flatnonzero(used[W])}
        assert (np.diff(inferred.words["norm"]) <= 0).all()


@settings(max_examples=8)
@given(
    decay=st.floats(1e-3, 0.5),
    rate=st.floats(1e-5, 3e-3),
    num_steps=st.integers(2, 60),
    seed=st.integers(0, 99),
)
def test_whatever_the_schedule_no_row_is_called_what_it_is_not(decay, rate, num_steps, seed) -> None:
    trajectory, used = train(adamw(decay), rate=rate, num_steps=num_steps, seed=seed)
    inferred = infer_from(trajectory)
    assert num_false(inferred, used) == 0


@pytest.mark.parametrize("decay", [0.003, 0.03, 0.3])
@pytest.mark.parametrize("rate", [1e-5, 1e-4, 1e-3])
def test_the_interval_of_decay_holds_what_the_schedule_adds_up_to(decay: float, rate: float) -> None:
    num_steps = 50
    trajectory, _ = train(adamw(decay), rate=rate, num_steps=num_steps)
    steps = rate * decay * np.array([min(1, (i + 1) / 5) * (1 - i / num_steps) for i in range(num_steps)])
    line = line_of(infer_from(trajectory))
    total = -np.log1p(-steps[steps > 2.0**-25]).sum()  # what is below leaves nothing in fp32
    low, *inside, high = line["sum_lr_decay_low"], total, line["sum_lr_decay"], line["sum_lr_decay_high"]
    assert low <= min(inside) <= max(inside) <= high
    if total > 1e-4:
        assert line["sum_lr_decay"] == pytest.approx(total, rel=0.02)


def test_without_decay_the_sum_is_zero_and_rows_that_no_batch_used_are_the_same_bits() -> None:
    line = line_of(infer_from(train(adamw(0.0))[0]))
    assert line[["sum_lr_decay", "sum_lr_decay_low", "sum_lr_decay_high"]].tolist() == [0, 0, 0]
    assert line["misfit_unexposed"] == 0 < line["misfit_exposed"]


# What cannot be known is refused.


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("decay", [1e-4, 0.01, 0.1])
def test_l2_inside_adam_is_refused(decay: float, seed: int) -> None:
    inferred = infer_from(train(partial(torch.optim.Adam, weight_decay=decay), seed=seed)[0])
    assert line_of(inferred)["reason"] == UNKNOWN_CAUSE
    assert set(inferred.rows["exposure"]) == {UNTOLD}
    assert (math.isnan(inferred.longest_text), len(inferred.words)) == (True, 0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_table_tied_to_a_trained_output_layer_is_refused_and_positions_are_told(decay: float, seed: int) -> None:
    trajectory, used = train(adamw(decay), is_tied=True, seed=seed)
    inferred = infer_from(trajectory)
    assert (line_of(inferred)["reason"], set(found_of(inferred, W))) == (UNKNOWN_CAUSE, {UNTOLD})
    assert np.array_equal(found_of(inferred, P), np.where(used[P], EXPOSED, UNEXPOSED))


def num_false(inferred, used: dict[str, np.ndarray]) -> int:
    """Rows called exposed that no batch used, or unexposed that one did."""
    found = {name: found_of(inferred, name) for name in TABLES}
    return sum(int(np.where(used[name], found[name] == UNEXPOSED, found[name] == EXPOSED).sum()) for name in TABLES)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (sgd(0.1, 0.9), {"rate": 0.02}),
        (sgd(0.1, 0.9), {"rate": 0.02, "num_steps": 300}),
        (partial(torch.optim.Adam, weight_decay=1e-4, eps=1e-2), {"rate": 0.01, "num_steps": 300}),
        (sgd(0), {"rate": 1e-6, "is_tied": True}),
        (sgd(0), {"rate": 1e-7, "is_tied": True}),
        (sgd(0), {"rate": 1e-8, "is_tied": True, "num_steps": 100}),
    ],
    ids=["momentum", "momentum, long", "Adam, eps above L2", "tied, 1e-6", "tied, 1e-7", "tied, 1e-8"],
)
def test_where_exposed_rows_do_not_lie_apart_none_is_named(make, settings, monkeypatch) -> None:
    """All of them would be named without the rule, and some of the names would be false."""
    trajectory, used = train(make, **settings)
    line = line_of(inferred := infer_from(trajectory))
    assert line["reason"] == OVERLAP
    assert line["misfit_exposed"] < LEAST_MISFIT_RATIO * line["misfit_unexposed"]
    assert (set(found_of(inferred, W)), num_false(inferred, used)) == ({UNTOLD}, 0)
    assert f"exposed rows from {line['misfit_exposed']:.2g}" in repr(inferred)
    monkeypatch.setattr(inferred_exposure, "LEAST_MISFIT_RATIO", 0.0)
    assert num_false(infer_from(trajectory), used) > 0


@pytest.mark.parametrize(("case", "num_told"), [("clipped to 1e-8", 260), ("AdamW, eps 1", 0)])
def test_rows_of_which_many_values_left_decay_are_told_though_rounding_moved_others_farther(case, num_told) -> None:
    """At least 9 and at least 4 of 64 values in each row that texts used; misfits alone tell neither."""
    script = runpy.run_path(str(Path(__file__).parents[3] / "experiments" / "exposure_cases.py"))
    words, *_ = script["judge"]({**script["DEFAULTS"], **script["CASES"]["review, told rightly"][case]})
    assert words["misfit_exposed"] < LEAST_MISFIT_RATIO * words["misfit_unexposed"]
    assert (words["num_exposed_rows"], words["false_exposed"], words["false_unexposed"]) == (num_told, 0, 0)


def test_weights_trained_in_half_precision_are_refused() -> None:
    assert infer_from(train(adamw(0.1), dtype=torch.bfloat16)[0]).tables["reason"].str.contains("bf16").all()


def test_half_precision_before_is_no_reason_to_refuse() -> None:
    tables = {name: table.half().float() for name, table in make_tables().items()}
    decayed = {name: (table * np.float32(1 - 1e-3)).numpy() for name, table in tables.items()}
    decayed[W][5:9] += 0.01
    trajectory = Trajectory([Snapshot(0, 0, {n: t.numpy() for n, t in tables.items()}), Snapshot(1, 1, decayed)])
    assert np.array_equal(np.flatnonzero(found_of(infer_from(trajectory), W) == EXPOSED), np.arange(5, 9))


def test_a_kernel_that_rounds_its_last_columns_otherwise_is_allowed_for() -> None:
    """w - c·w with one rounding, as a fused multiply-add has it, and with two, as what is left of a vector has it."""
    halves = make_tables().items()  # of which many values are equal
    before = {name: table.half().float().numpy() for name, table in halves}
    after = {name: table.copy() for name, table in before.items()}
    for table in after.values():
        for step in range(1, 8):
            taken = np.float32(1e-4 * step)
            fused, rest = table[:, :40], table[:, 40:]
            fused[:] = (fused.astype(np.float64) * (1 - np.float64(taken))).astype(np.float32)
            rest[:] = rest - taken * rest
    after[W][5:9] += 0.01
    inferred = infer_from(Trajectory([Snapshot(0, 0, before), Snapshot(1, 1, after)]))
    assert np.array_equal(
        found_of(inferred, W), np.where(np.isin(np.arange(ROWS[W]), np.arange(5, 9)), EXPOSED, UNEXPOSED)
    )


def test_frozen_tables_tell_nothing() -> None:
    inferred = infer_from(train(adamw(0.1), trained=(P, S))[0])
    assert "frozen" in line_of(inferred)["reason"]
    assert line_of(inferred, P)["num_exposed_rows"] == LENGTH
    assert "frozen" in repr(inferred)


def test_another_vocabulary_is_refused() -> None:
    before, after = make_tables(), make_tables(1)
    for other in (after[W], before[W][torch.randperm(ROWS[W], generator=torch.Generator().manual_seed(0))]):
        snapshots = [Snapshot(0, 0, {W: before[W].numpy()}), Snapshot(1, 1, {W: other.numpy()})]
        assert "vocabulary" in line_of(infer_from(Trajectory(snapshots)))["reason"]


def test_a_table_of_which_only_new_rows_moved_is_refused_for_the_rows_that_moved() -> None:
    before, after = make_tables(), make_tables()
    after[W][-2:] = make_tables(7)[W][-2:]
    snapshots = [Snapshot(0, 0, {W: before[W].numpy()}), Snapshot(1, 1, {W: after[W].numpy()})]
    assert line_of(infer_from(Trajectory(snapshots)))["reason"].startswith("most of the rows that moved have nothing")


def test_rows_of_new_values_are_not_called_exposed() -> None:
    trajectory, used = train(adamw(0.1))
    inferred = infer_from(with_rows(trajectory, W, slice(100, 105), make_tables(7)[W][100:105].numpy()))
    expected = np.where(used[W], EXPOSED, UNEXPOSED).astype(object)
    expected[100:105] = UNTOLD
    assert np.array_equal(found_of(inferred, W), expected)
    assert "5 rows" in line_of(inferred)["note"]


def test_a_before_that_training_did_not_start_from_is_refused() -> None:
    trajectory, _ = train(adamw(0.1))
    rounded = {name: np.float16(table).astype(np.float32) for name, table in trajectory.snapshots[0].tensors.items()}
    assert (infer_from(Trajectory([Snapshot(0, 0, rounded), trajectory.snapshots[1]])).tables["reason"] != "").all()


def test_a_position_that_did_not_move_among_those_that_did_is_said() -> None:
    trajectory, _ = train(adamw(0.0))
    still = with_rows(trajectory, P, 4, trajectory.snapshots[0].tensors[P][4])
    assert line_of(infer_from(trajectory), P)["note"] == ""
    assert (
        line_of(infer_from(still), P)["note"]
        == "1 positions before the last exposed one did not move as trained ones do"
    )


def test_two_that_were_tuned_from_one_share_the_rows_that_neither_exposed() -> None:
    """Whichever comes first: decay differs, so that one of the two has grown."""
    (one, used), (other, used_by_other) = train(adamw(0.01), seed=3), train(adamw(0.1), rate=2e-3, seed=3, texts=9)
    for a, b, grown in ((one, other, False), (other, one, True)):
        inferred = infer_from(Trajectory([a.snapshots[1], b.snapshots[1]], a.vocabulary))
        for table in TABLES:
            assert np.array_equal(found_of(inferred, table) == UNEXPOSED, ~(used[table] | used_by_other[table]))
            assert ("grew" in line_of(inferred, table)["note"]) == grown


def test_of_several_descendants_each_row_is_shared_by_those_that_did_not_train_it() -> None:
    """Whatever decay each had; and the ancestor among them shares all that any of them left alone."""
    texts = [np.arange(3, 60), np.arange(40, 90), np.arange(3, 50), np.arange(0)]
    runs = [train(adamw(decay), texts=k, words=texts[k]) for k, decay in enumerate((0.01, 0.1, 0.0))]
    last = [Snapshot(k, 1, run.snapshots[1].tensors, f"m{k}") for k, (run, _) in enumerate(runs)]
    for descendants in (last, [*last, Snapshot(3, 1, runs[0][0].snapshots[0].tensors, "m3")], last[::-1], last[:2]):
        found = ancestral_rows_of(Trajectory(descendants, runs[0][0].vocabulary))
        assert (found["reason"] == "").all()
        for table in TABLES:
            used = {f"m{k}": used[table] for k, (_, used) in enumerate(runs)} | {"m3": np.zeros(ROWS[table], bool)}
            kept = [[s.name for s in descendants if not used[s.name][row]] for row in range(ROWS[table])]
            assert found.loc[found["parameter"] == table, "shared_by"].tolist() == [
                ", ".join(names) if len(names) > 1 else "" for names in kept
            ]


def test_two_groups_that_share_a_row_each_had_an_ancestor_each() -> None:
    first, second = (train(adamw(0.01), texts=k)[0].snapshots[1].tensors for k in range(2))
    others = [{name: table * np.float32(0.999) for name, table in tensors.items()} for tensors in (first, second)]
    for tensors in others:
        tensors[W][100] += 0.01
    four = [Snapshot(k, 1, own, f"m{k}") for k, own in enumerate((first, second, *others))]
    found = ancestral_rows_of(Trajectory(four)).query("parameter == 'word_embeddings'")["shared_by"]
    assert found[WORDS].tolist() == ["m0, m2; m1, m3"] * len(WORDS)
    assert (found[[0, 1, 70, 199]].tolist(), found[100]) == (["m0, m1, m2, m3"] * 4, "m0, m1; m2, m3")


def test_a_row_that_is_0_in_one_model_alone_is_shared_by_the_others() -> None:
    """Whichever comes first: decay leaves a 0 what it is."""
    runs = [train(adamw(decay), texts=k)[0] for k, decay in enumerate((0.01, 0.1, 0.0))]
    last = [Snapshot(k, 1, dict(run.snapshots[1].tensors), f"m{k}") for k, run in enumerate(runs)]
    last[0].tensors[W] = last[0].tensors[W].copy()  # type: ignore[index]
    last[0].tensors[W][150] = 0
    for descendants, expected in ((last, "m1, m2"), (last[::-1], "m2, m1")):
        assert ancestral_rows_of(Trajectory(descendants))["shared_by"][150] == expected
    assert found_of(infer_from(Trajectory(last[:2])), W)[[150, 0]].tolist() == [EXPOSED, UNEXPOSED]


def test_tables_that_tell_nothing_say_which_two_and_why() -> None:
    run, _ = train(adamw(0.1), is_tied=True)
    kept, tuned = run.snapshots
    found = ancestral_rows_of(Trajectory([replace(kept, name="base"), replace(tuned, name="tuned")]))
    words = found[found["parameter"] == W]
    same = ancestral_rows_of(Trajectory([replace(kept, name="base"), replace(kept, epoch=1, name="copy")]))
    for rows, said in ((words, ("", f"base and tuned: {UNKNOWN_CAUSE}")), (same, ("base, copy", ""))):
        assert set(zip(rows["shared_by"], rows["reason"], strict=True)) == {said}


def test_one_descendant_shares_rows_with_nobody() -> None:
    check_refusals(("pass at least 2 of them, not 1", lambda: find_ancestral_rows(["minilm"])))


# The curve.


@settings(max_examples=12)
@given(st.lists(st.floats(0.875, 1, width=32), min_size=1, max_size=40), st.integers(0, 99))
def test_a_curve_goes_through_every_chain_of_products(factors: list[float], seed: int) -> None:
    before = np.random.default_rng(seed).normal(size=(30, 40)).astype(np.float32)
    after = before.copy()
    for factor in factors:
        after = after * np.float32(factor)
    places, left, of_use = split_values(before.astype(np.float64), after.astype(np.float64))
    curve = Curve.through(places[of_use], left[of_use], 0)
    assert np.allclose(curve.shares, np.prod(np.float64(factors)), rtol=1e-6 * len(factors))


def test_no_curve_goes_through_values_of_which_one_moved() -> None:
    before = np.random.default_rng(0).normal(size=(300, 400)).astype(np.float32)
    after = before * np.float32(0.999)
    after[7, 11] *= np.float32(1.001)
    places, left, _ = split_values(before.astype(np.float64), after.astype(np.float64))
    assert Curve.through(places.ravel(), left.ravel(), 0) is None


def test_the_bounds_of_a_curve_wrap_at_powers_of_two() -> None:
    places, left = np.array([NUM_SIGNIFICANDS // 2], np.int32), np.array([NUM_SIGNIFICANDS // 2 - 10], np.int32)
    bounds = np.array(
        Curve.through(places, left, 0).bounds(np.array([0, NUM_SIGNIFICANDS // 2, NUM_SIGNIFICANDS - 1], np.int32))
    )
    assert (bounds - (NUM_SIGNIFICANDS // 2 - 10)).tolist() == [[-NUM_SIGNIFICANDS, 0, 0], [0, 0, NUM_SIGNIFICANDS]]


def test_a_curve_gives_its_own_values_back() -> None:
    before = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    places, left, _ = split_values(before.astype(np.float64), (before * np.float32(0.99)).astype(np.float64))
    assert (np.abs(left - np.stack(Curve.through(places, left, 1).bounds(places))) <= 1).all()


def test_a_logged_run_of_ours(read_run) -> None:
    run: Run = read_run()
    exposure = run.trajectory.exposure
    before, *_, after = sorted((run.path / "snapshots").glob("epoch-*.safetensors"))
    inferred = infer_exposure(before, after)
    for name in TABLES:
        if line_of(inferred, name)["reason"] == "":
            seen = exposure.tables[name].step_counts(line_of(inferred, name)["num_rows"]) > 0
            assert np.array_equal(found_of(inferred, name) == EXPOSED, seen)


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_exposure_is_not_inferred_of_a_tied_table_that_was_trained(model_type: str, tmp_path: Path) -> None:
    """Its output moves every row: of an untied one the same texts are read off the weights."""
    for is_tied in (True, False):
        model, folder = language_model(model_type, is_tied=is_tied), tmp_path / str(is_tied)
        model.save_pretrained(folder / "before")
        record_causal(model, folder / "run")
        model.save_pretrained(folder / "after")
        found = infer_exposure(folder / "before", folder / "after")
        words = found.rows[found.rows["parameter"] == "word_embeddings"]
        assert set(words["row"][words["exposure"] == "exposed"]) == (set() if is_tied else {7, 8, 10, 11, 12})
        assert bool(set(words["exposure"]) - {"cannot tell"}) != is_tied
