"""Agreement of updates between runs: a plain loop, the exact law of permutations, planted agreement and none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refusals
from tests.snapshots.test_unnamed_files import PLANTED, check_flipped, check_planted
from tests.snapshots.test_unnamed_files import path as path
from toolkit.families import TABLES
from toolkit.questions.space.agreement import compare_updates, measure_agreement
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


def _run(before: np.ndarray, update: np.ndarray, **known: object) -> Trajectory:
    tables = (before, before + update)
    return Trajectory([Snapshot(i, i, {"word_embeddings": table}) for i, table in enumerate(tables)], **known)


def _all_rows(runs: list[Trajectory], **options: object):
    table = measure_agreement(runs, **options)
    return table[table.stratum == "all rows"].set_index("measure")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(2, 8))
def test_against_a_loop_and_its_invariances(seed, n, p):
    rng = np.random.default_rng(seed)
    update, other = rng.normal(size=(2, n, p))
    update[0] = 0
    found = compare_updates(update, other, 0)
    assert (found.num_rows, found.num_defined) == (n, n - 1)
    assert found.cosines[0] == pytest.approx(
        sum(_cosine(a, b) for a, b in zip(update[1:], other[1:], strict=True)), abs=1e-12
    )
    assert found.products[0] / np.sqrt(np.prod(found.squares)) == pytest.approx(_cosine(update, other), abs=1e-12)
    rotation = np.linalg.qr(rng.normal(size=(p, p)))[0]
    turned = compare_updates(8 * update @ rotation, other @ rotation / 2, 0)
    assert turned.cosines[0] == pytest.approx(found.cosines[0], abs=1e-9)
    assert turned.products[0] == pytest.approx(4 * found.products[0], abs=1e-9)
    assert compare_updates(other, update, 0).cosines[0] == pytest.approx(found.cosines[0], abs=1e-12)
    assert compare_updates(update, 3 * update, 0).cosines[0] == pytest.approx(n - 1)
    assert compare_updates(update, -update, 0).cosines[0] == pytest.approx(1 - n)


def _permutation_law(update: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Mean and SD of Σ a_iπ(i) over all permutations (W. Hoeffding, A combinatorial central limit theorem, 1951)."""
    products = update @ other.T
    n = len(products)
    centred = products - products.mean(axis=0) - products.mean(axis=1)[:, None] + products.mean()
    return products.sum() / n, np.sqrt(np.sum(centred**2) / (n - 1))


def test_the_permutations_follow_their_exact_law():
    update, other = np.random.default_rng(0).normal(np.eye(5)[0], 1, size=(2, 3000, 5))  # more rows than one block
    found = compare_updates(update, other, 400)
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (update, other)]
    for drawn, (mean, deviation) in (
        (found.products[1:], _permutation_law(update, other)),
        (found.cosines[1:], _permutation_law(*units)),
    ):
        assert abs(drawn.mean() - mean) < 4 * deviation / np.sqrt(400)
        assert drawn.std() == pytest.approx(deviation, rel=0.15)


def test_planted_agreement_is_found_and_independent_updates_are_inside_the_null():
    before = np.random.default_rng(0).normal(size=(300, 16))
    outside = []
    for seed in range(30):
        rng = np.random.default_rng([1, seed])
        # All rows share a drift, as they do where a position or a segment moves: no agreement of the rows.
        common = rng.normal(size=16)
        updates = rng.normal(size=(2, 300, 16)) * rng.lognormal(0, 0.7, (2, 300, 1)) + common
        table = _all_rows([_run(before, update) for update in updates], seed=seed)
        assert (table.null > 0.1).all(), "the null keeps what all rows share"
        outside += list((table.value < table.null_low) | (table.value > table.null_high))
    assert np.mean(outside) < 0.15
    rng = np.random.default_rng(2)
    shared = 0.5 * rng.normal(size=(300, 16))
    table = _all_rows([_run(before, shared + rng.normal(size=(300, 16))) for _ in range(2)])
    assert (table.value > table.null_high + 0.1).all()
    assert table.value["whole_cosine"] == pytest.approx(0.25 / 1.25, abs=0.04)
    assert (table.null.abs() < 0.02).all()


def test_permutation_stays_within_strata(make_exposure):
    """Two kinds of rows that move in opposite directions, whatever the row: agreement of kinds, none of rows."""
    rng = np.random.default_rng(0)
    exposure = make_exposure({TABLES[0]: [list(range(100))]})  # rows 0 to 99 seen once, the others never
    sign = np.where(np.arange(200) < 100, 1.0, -1.0)[:, None]
    before = rng.normal(size=(200, 8))
    table = measure_agreement(
        [_run(before, 2 * sign + rng.normal(size=(200, 8)), read_exposure=lambda: exposure) for _ in range(2)]
    )
    assert list(dict.fromkeys(table.stratum)) == ["all rows", "seen in 0 steps", "seen in 1 step"]
    assert (table.value > 0.6).all()
    assert ((table.null_low - 0.02 < table.value) & (table.value < table.null_high + 0.02)).all()


def test_rows_that_the_runs_have_in_different_strata_are_apart(make_exposure):
    rng = np.random.default_rng(0)
    before = rng.normal(size=(60, 8))
    runs = []
    for seen in (range(40), range(20, 60)):
        exposure = make_exposure({TABLES[0]: [list(seen)]})
        runs.append(_run(before, rng.normal(size=(60, 8)), read_exposure=lambda exposure=exposure: exposure))
    sizes = measure_agreement(runs).groupby("stratum").num_rows.first()
    assert sizes.to_dict() == {"all rows": 60, "seen in 1 step": 20, "different strata": 40}


def test_table(make_trajectory: Callable[..., Trajectory]):
    first, second = make_trajectory(0), make_trajectory(1)
    second = Trajectory([first.snapshots[0], *second.snapshots[1:]], second.vocabulary, second.read_exposure)
    third = Trajectory([first.snapshots[0], *make_trajectory(2).snapshots[1:]], second.vocabulary, second.read_exposure)
    table = measure_agreement([first, second, third], epoch=2, num_null=5)
    assert set(table.epoch) == {2.0}
    assert list(dict.fromkeys(zip(table["first"], table["second"], strict=True))) == [
        ("run 0", "run 1"),
        ("run 0", "run 2"),
        ("run 1", "run 2"),
    ]
    lines = table[table["second"] == "run 1"].set_index(["stratum", "measure"])
    deltas = [
        run.at(2).tensors["word_embeddings"].astype(np.float64) - first.at(0).tensors["word_embeddings"]
        for run in (first, second)
    ]
    whole = lines.loc[("all rows", "whole_cosine")]
    assert (whole.value, whole.num_rows, whole.num_undefined) == (pytest.approx(_cosine(*deltas)), 12, 0)
    assert lines.num_undefined["all rows", "mean_cosine"] == 1  # row 11 does not move in the first run
    assert np.isfinite([whole.null, whole.null_sd, whole.null_low, whole.null_high]).all()
    pad = lines.loc[("[PAD]", "mean_cosine")]
    assert pad.reason == "no null: 1 row(s) to permute, fewer than 10"
    assert np.isnan([pad.value, pad.null]).tolist() == [False, True]
    vector = measure_agreement([first, second], "LayerNorm.bias")
    changes = [run.at(3).tensors["LayerNorm.bias"] - first.at(0).tensors["LayerNorm.bias"] for run in (first, second)]
    assert np.allclose(vector.value, _cosine(*changes), rtol=1e-5)


def test_a_parameter_that_did_not_move_has_no_agreement():
    before = np.random.default_rng(0).normal(size=(20, 4))
    table = measure_agreement([_run(before, np.zeros_like(before))] * 2)
    assert table.value.isna().all()
    assert (set(table.reason), set(table.num_undefined)) == ({"no row moved in both runs"}, {20})


def test_runs_that_cannot_be_compared_are_refused(make_trajectory: Callable[..., Trajectory], tmp_path: Path):
    before = np.random.default_rng(0).normal(size=(20, 4))
    run = _run(before, before)
    check_refusals(
        ("at least 2 are needed, got 1", lambda: measure_agreement([run])),
        (
            r"is \(20, 4\) in run 0 and \(19, 4\) in run 1",
            lambda: measure_agreement([run, _run(before[1:], before[1:])]),
        ),
        (
            "word_embeddings differs between run 0 and run 1 at epoch 0",
            lambda: measure_agreement([run, _run(before + 1e-7, before)]),
        ),
    )
    tokens = [tuple(f"{letter}{i}" for i in range(20)) for letter in "ab"]
    runs = [_run(before, before, vocabulary=Vocabulary(texts, frozenset(), None)) for texts in tokens]
    check_refusals(
        ("run 0 and run 1 have different vocabularies", lambda: measure_agreement(runs)),
        (
            "unknown embedding parameter of this run 'word_embedding'",
            lambda: measure_agreement([run, run], "word_embedding"),
        ),
        ("no run directory at", lambda: measure_agreement([run, tmp_path / "nowhere"])),
    )


@pytest.mark.parametrize("name", PLANTED)
def test_a_file_that_was_planted_among_the_snapshots_is_refused(name: str, path: Path) -> None:
    check_planted(lambda path: measure_agreement([path, path], "word_embeddings"), path, name)


def test_a_flipped_bit_is_refused(path: Path) -> None:
    check_flipped(
        lambda path: measure_agreement([path, path], "word_embeddings"), path / "snapshots" / "epoch-002.safetensors"
    )
