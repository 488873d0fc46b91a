"""Decay, low rank, casts of some rows, swaps and NaN: each with a pair that almost looks like it."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

import toolkit
from tests.questions.changes.test_changes import (
    BASE,
    BIAS,
    COLUMNS_OF_TABLES,
    ROWS,
    WEIGHT,
    P,
    S,
    W,
    base_tensors,
    cast,
)
from tests.questions.changes.test_changes import changes_of as table_of
from tests.refusals import check_refused
from toolkit.config import RunConfig
from toolkit.questions.changes.finders import Pair, survey_pair
from toolkit.questions.changes.fits import is_repeated_shrinking
from toolkit.questions.changes.inferred_exposure import EXPOSED, tell_rows
from toolkit.questions.changes.measure import measure_changes
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary

LONGEST = 110
"""Characters of a detail: four lines of the terminal's table at 80 columns."""


def changes_of(before=BASE, **after):
    table = table_of(before, **after)
    assert (table["detail"].str.len() <= LONGEST).all(), list(table["detail"])
    assert (table["detail"].str.count(";") <= 1).all(), list(table["detail"])
    return table


def decayed(table: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Weight decay as AdamW does it: a product in fp32 per step."""
    for rate in rates:
        table = table * np.float32(1 - rate)
    return table


def subtracted(table: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Weight decay as others write it: a product and a difference in fp32 per step."""
    for rate in rates:
        table = table - np.float32(rate) * table
    return table


def schedule(num_steps: int, peak: float) -> np.ndarray:
    """lr·decay per step: a warm-up and a linear way to 0, which crosses the rate at which fp32 stops moving."""
    steps = np.arange(num_steps)
    return peak * np.minimum((steps + 1) / max(1, num_steps // 10), 1 - steps / num_steps)


def trained(table: np.ndarray, size: float = 1e-2, seed: int = 0) -> np.ndarray:
    """Each row in its own direction and by its own length, as training moves rows."""
    rng = np.random.default_rng([5, seed])
    rows = rng.standard_t(3, size=table.shape) * np.exp(0.5 * rng.normal(size=(len(table), 1)))
    scale = size * np.linalg.norm(table, axis=1, keepdims=True) / math.sqrt(table.shape[1])
    return (table + scale * rows).astype(np.float32)


# Decay.


@pytest.mark.slow  # many tables
@settings(max_examples=30, deadline=None)
@given(st.integers(60, 400), st.floats(-6.3, -3), st.integers(0, 99))
@example(400, -6.6, 0)
@example(60, -3.453125, 0)  # a value that falls below 1 while its neighbour does not
def test_decay_is_told_by_its_roundings_and_its_sum(num_steps: int, exponent: float, seed: int) -> None:
    rates = schedule(num_steps, 10**exponent)
    base = base_tensors(seed)
    table = changes_of(base, **{name.replace(".", "_"): decayed(base[name], rates) for name in (W, P, S, WEIGHT)})
    total = -math.fsum(np.log(np.float64(np.float32(1 - rate))) for rate in rates)
    for name in (W, P, S, WEIGHT):
        line = table.loc[name]
        num_rows = np.sum(np.atleast_2d(base[name].T).T.any(axis=1))
        assert (line["kind"], line["num_decayed"]) == ("decay", num_rows), (name, line["detail"])
        # A step moves a value by two thirds of to twice what it should, and values differ in that.
        assert 2 / 3 <= line["value"] / total == line["sum_lr_decay"] / total <= 2, name
    if exponent > -4:
        assert table.loc[W, "sum_lr_decay"] == pytest.approx(total, rel=2e-3)


def test_decay_of_torch_is_told_from_training() -> None:
    """AdamW itself: rows without a gradient decay; the rows that batches show are the ones that are not counted."""
    import torch

    base = base_tensors()[W]
    embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(base.copy()), freeze=False)
    optimizer = torch.optim.AdamW(embedding.parameters(), lr=1e-3, weight_decay=0.01)
    rng = np.random.default_rng(0)
    shown = rng.integers(1, 40, (50, 8))
    for rows in torch.from_numpy(shown):
        optimizer.zero_grad()
        (embedding(rows) * torch.from_numpy(rng.normal(size=(8, 24)).astype(np.float32))).sum().backward()
        optimizer.step()
    rows = np.unique(shown)
    line = changes_of(word_embeddings=embedding.weight.detach().numpy()).loc[W]
    assert (line["kind"], line["num_decayed"], line["num_moved"]) == ("decay and training", 699 - len(rows), 699)
    assert line["sum_lr_decay"] == pytest.approx(50 * 1e-5, rel=2e-2)
    assert line["detail"].startswith(
        f"decay on {699 - len(rows)} of 700 rows, training on {len(rows)}; Σ lr·decay = 0.000"
    )
    delta = embedding.weight.detach().numpy().astype(np.float64)[rows] - base[rows]
    assert line["value"] == pytest.approx(np.linalg.norm(delta) / np.linalg.norm(base[rows].astype(np.float64)))


LONG = schedule(200, 1e-4)


def one_value_off(table: np.ndarray) -> np.ndarray:
    after = decayed(table, LONG)
    after[9, 3] += np.float32(0.01) * (after[9, 3] - table[9, 3])
    return after


NEARLY_DECAY = {
    "one value a hundredth off": one_value_off,
    "two sums": lambda t: np.where(np.arange(len(t))[:, None] % 2, decayed(t, LONG), decayed(t, 0.99 * LONG)),
    "a sum of each row": lambda t: t * (1 - 1e-3 * np.random.default_rng(0).uniform(0.9, 1.1, (len(t), 1))),
    "a sum of each column": lambda t: t * (1 - 1e-3 * np.random.default_rng(0).uniform(0.9, 1.1, t.shape[1])),
    "decay and noise of 1e-6": lambda t: decayed(t, LONG) * (1 + 1e-6 * np.random.default_rng(0).normal(size=t.shape)),
    "growth": lambda t: decayed(t, -LONG),
    "one amount off every value": lambda t: t - np.sign(t) * np.minimum(np.abs(t), 1e-5),
    "squeezed": lambda t: np.tanh(t),
    "decay of squares": lambda t: t - 0.01 * np.sign(t) * t**2,
}


@pytest.mark.parametrize("name", NEARLY_DECAY)
@pytest.mark.parametrize("parameter", [W, P])
def test_what_is_nearly_decay_is_not(name: str, parameter: str) -> None:
    line = changes_of(**{parameter: np.asarray(NEARLY_DECAY[name](BASE[parameter]), np.float32)}).loc[parameter]
    assert line["kind"] != "decay", line["detail"]
    if name == "one value a hundredth off":  # of one row, which is no multiple of what it was
        assert (line["kind"], line["num_decayed"]) == ("decay and training", 47 if parameter == P else 698)
    else:
        assert math.isnan(line["sum_lr_decay"])


def test_a_single_product_is_a_scaling_and_says_what_it_cannot_tell() -> None:
    table = changes_of(
        word_embeddings=BASE[W] * np.float32(0.5),
        position_embeddings=BASE[P] * np.float32(0.999),
        LayerNorm_weight=BASE[WEIGHT] * np.float32(1.001),
    )
    assert list(table.loc[[W, P, WEIGHT], "kind"]) == ["scaling"] * 3
    assert table.loc[P, "detail"] == "times 0.999000013; weight decay with Σ lr·decay = 0.001 would say the same"
    assert not table.loc[[W, WEIGHT], "detail"].str.contains("decay").any()
    # Many products that come to one half are no single one; two large ones are no decay, two small ones are.
    for rates, kind in (([0.0034] * 200, "decay"), ([0.3, 0.3], "scaling"), ([1e-3, 2e-3], "decay")):
        assert changes_of(word_embeddings=decayed(BASE[W], np.array(rates))).loc[W, "kind"] == kind


MIXED = {
    "rows of a true scaling": (lambda t: t * np.float32(0.5), "general"),
    "rows of two sums": (lambda t: NEARLY_DECAY["two sums"](t), "general"),
    "rows that hardly trained": (lambda t: trained(t, 1e-5), "general"),
    "rows that stayed": (lambda t: t, "some rows"),
    "rows that decayed": (lambda t: decayed(t, LONG), "decay and training"),
    "rows of a few steps of decay": (lambda t: decayed(t, LONG[:12]), "decay and training"),
}


@pytest.mark.parametrize("name", MIXED)
def test_rows_beside_trained_ones(name: str) -> None:
    base = {**BASE, W: BASE[W][1:]}
    others, kind = MIXED[name]
    line = changes_of(base, word_embeddings=np.concatenate([trained(base[W][:100]), others(base[W][100:])])).loc[W]
    assert (line["kind"], line["num_decayed"] == 599) == (kind, kind == "decay and training"), line["detail"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 12))
def test_the_law_of_shrinking_against_every_pair_of_values(seed: int, num_off: int, num_steps: int) -> None:
    """Slow and by the definition: of any two values, the larger significand leaves no less and gave no less."""
    rng = np.random.default_rng(seed)
    before = (rng.normal(size=40) * 10.0 ** rng.integers(-3, 3, 40)).astype(np.float32)
    after = decayed(before, 10 ** rng.uniform(-7, -2.5, num_steps))
    for i in rng.integers(0, 40, num_off):
        after[i] = np.nextafter(after[i], after[i] * 2)
    pairs = [(*math.frexp(abs(x)), abs(y)) for x, y in zip(before.tolist(), after.tolist(), strict=True)]
    points = [(m, math.ldexp(y, -e)) for m, e, y in pairs]  # significand in [.5, 1) and what is left of it
    holds = all(m > rest for m, rest in points) and all(
        rest <= other <= 2 * rest
        and m - rest <= n - other + (2.0**-22 if rest < 0.5 else 0)
        and n - other <= 2 * (m - rest + (2.0**-22 if rest < 0.5 else 0))
        for m, rest in points
        for n, other in points
        if m <= n
    )
    block = np.arange(40), before[:, None].astype(np.float64), after[:, None].astype(np.float64)
    assert is_repeated_shrinking([block]) == holds
    assert holds or num_off


@pytest.mark.slow  # many tables
@pytest.mark.parametrize("rate", [3e-7, 3e-6, 1e-5, 1e-3])
def test_decay_written_as_a_difference_is_decay(rate: float) -> None:
    """Of a full table's values some lose a spacing less than a smaller one does (asserted: that is the hard part)."""
    before = (2 - np.arange(2**21, 0, -1) / 2**23).astype(np.float32)[:, None]
    after = subtracted(before, [rate] * 100)
    assert 0 < (np.diff((before.astype(np.float64) - after)[:, 0]) < 0).sum() < len(before) / 1000

    def holds(after: np.ndarray) -> bool:
        return is_repeated_shrinking([(np.arange(len(before)), before.astype(np.float64), after.astype(np.float64))])

    assert holds(after)
    for name in (W, P, WEIGHT):
        line = changes_of(**{name: subtracted(BASE[name], schedule(200, 1e-4))}).loc[name]
        assert line["kind"] == "decay", line["detail"]
    # Neighbours: one value in a million off by two spacings, or values that were rounded up or down by chance.
    one_off = after.copy()
    one_off[10**6] += np.float32(2**-22)
    assert not holds(one_off)
    ups = np.random.default_rng(0).random(after.shape) < 1e-4
    assert not holds(np.where(ups, np.nextafter(after, np.float32(2)), after))


def test_what_a_row_leaves_of_its_best_factor() -> None:
    words = BASE[W].copy()
    words[1:] = decayed(words[1:], LONG)
    words[200:260] = trained(BASE[W][200:260])
    (table,) = tell_rows([Pair(Snapshot(0, 0, BASE), Snapshot(1, 1, {W: words}), W)])
    assert table.factors.shape == table.misfits.shape == (700,)
    assert np.isnan([table.factors[0], table.misfits[0]]).all()  # [PAD] is 0 and has no factor
    np.testing.assert_array_equal(np.flatnonzero(table.exposure == EXPOSED), np.arange(200, 260))
    for row in (1, 210, 699):
        a, b = BASE[W][row].astype(np.float64), words[row].astype(np.float64)
        (factor,), (squares,), *_ = np.linalg.lstsq(a[:, None], b, rcond=None)
        assert table.factors[row] == pytest.approx(factor, rel=1e-12)
        assert table.misfits[row] == pytest.approx(math.sqrt(squares) / np.linalg.norm(a), rel=1e-6)


# Low rank.


def adapter(rows: int, columns: int, rank: int, seed: int, size: float = 0.01) -> np.ndarray:
    rng = np.random.default_rng([7, seed])
    left, right = rng.normal(size=(rows, rank)), rng.normal(size=(rank, columns))
    return (size * left.astype(np.float32)) @ right.astype(np.float32)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(0, 99), st.floats(-4, 0))
@example(1, 0, -4.0)  # a row that was 0, and has hardly a rounding of its own
def test_low_rank_and_its_rank(rank: int, seed: int, exponent: float) -> None:
    base = base_tensors(seed)
    words, positions = (base[name] + adapter(*base[name].shape, rank, seed, 10**exponent) for name in (W, P))
    some = base[W].copy()
    some[50:350] = words[50:350]
    for after, num_moved in ((words, 700), (some, 300)):
        line = changes_of(base, word_embeddings=after, position_embeddings=positions).loc[W]
        assert (line["kind"], line["num_directions"], line["num_moved"]) == ("low rank", rank, num_moved), line[
            "detail"
        ]
        assert f"rank {rank} of 24" in line["detail"]
        assert ("on 300 of 700 rows" in line["detail"]) == (num_moved == 300)


def one_row_off(table: np.ndarray) -> np.ndarray:
    after = table + adapter(*table.shape, 3, 0)
    after[5] += 6 * np.spacing(after[5]) * np.random.default_rng(0).choice([-1, 1], table.shape[1])
    return after


def steep(shape: tuple[int, int], ratio: float = 0.7) -> np.ndarray:
    rng = np.random.default_rng(8)
    left, right = (np.linalg.qr(rng.normal(size=(n, shape[1])))[0] for n in shape)
    return (left * 3 * ratio ** np.arange(shape[1])) @ right.T


NOT_LOW = {
    "a steep spectrum without an end": (lambda t: t + steep(t.shape), "general"),
    "noise of a hundred roundings beside it": (
        lambda t: t + adapter(*t.shape, 3, 0) + 1e-6 * np.random.default_rng(1).normal(size=t.shape),
        "general",
    ),
    "twelve roundings of one row beside it": (one_row_off, "general"),
    "three changed rows": (lambda t: np.concatenate([trained(t[:3]), t[3:]]), "some rows"),
    "seven directions of 24": (lambda t: t + adapter(*t.shape, 7, 0), "general"),
    "one vector added to all": (lambda t: t + adapter(1, t.shape[1], 1, 0), "common offset"),
}


@pytest.mark.parametrize("name", NOT_LOW)
def test_what_is_nearly_low_rank_is_not(name: str) -> None:
    base = {**BASE, W: BASE[W][1:]}
    after, kind = NOT_LOW[name]
    line = changes_of(base, word_embeddings=after(base[W].astype(np.float32))).loc[W]
    assert (line["kind"], math.isnan(line["num_directions"])) == (kind, True), line["detail"]


def test_a_turn_in_one_plane_has_rank_two_and_is_a_rotation() -> None:
    turn = block_diag([[0.8, -0.6], [0.6, 0.8]], np.eye(COLUMNS_OF_TABLES - 2))
    assert changes_of(word_embeddings=BASE[W].astype(np.float64) @ turn).loc[W, "kind"] == "rotation"


def test_what_rounding_leaves_of_singular_values() -> None:
    """The bound that find_low_rank takes several times, against roundings of unequal size."""
    rng = np.random.default_rng(0)
    for n, p in ((700, 24), (48, 24), (30, 200), (2000, 100)):
        bounds = np.exp(rng.normal(size=(n, 1)) + 0.5 * rng.normal(size=p))
        largest = np.linalg.svd(bounds * rng.uniform(-1, 1, (n, p)), compute_uv=False)[0]
        variances = bounds**2 / 3
        said = math.sqrt(variances.sum(axis=1).max()) + math.sqrt(variances.sum(axis=0).max())
        assert 0.4 * said < largest < 1.3 * said


# Casts of some rows, and signs of zero.


@pytest.mark.parametrize(("name", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_a_cast_says_of_how_many_rows(name: str, dtype: str) -> None:
    half, words = cast(BASE[W], dtype), BASE[W].copy()
    words[100:405] = half[100:405]
    line = changes_of(word_embeddings=words).loc[W]
    said = f"305 of 700 rows rounded to {name}; the others are bit-identical"
    assert (line["kind"], line["detail"]) == ("cast", said)
    # [PAD] is 0, and 0 it stays: no row contradicts.
    whole = changes_of(word_embeddings=half).loc[W]
    assert (whole["kind"], whole["num_moved"], " of " in whole["detail"]) == ("cast", 699, False)
    # Others were trained: no cast of the table, and the rows are counted.
    words[405:] = trained(BASE[W][405:])
    line = changes_of(word_embeddings=words).loc[W]
    assert (line["kind"], line["num_moved"]) == ("some rows", 600)
    assert f"600 of 700 rows, 305 of them rounded to {name}" in line["detail"]
    # One unit in the last place of one value beside it.
    nearly = half.copy()
    nearly[300, 5] = np.nextafter(nearly[300, 5], np.float32(9))
    line = changes_of(word_embeddings=nearly).loc[W]
    assert (line["kind"], f"698 of them rounded to {name}" in line["detail"]) == ("some rows", True)


def test_a_sign_of_zero_is_no_cast_and_not_bit_identical() -> None:
    words = BASE[W].copy()
    words[0, 3] = -0.0
    line = changes_of(word_embeddings=words).loc[W]
    said = ["equal in value", 1, 0, "identical in value; the sign of zero differs 1 times"]
    assert line[["kind", "num_moved", "value", "detail"]].tolist() == said
    words[100:405] = cast(BASE[W][100:405], "bfloat16")
    line = changes_of(word_embeddings=words).loc[W]
    assert (line["kind"], "305 of 700 rows" in line["detail"], line["num_moved"]) == ("cast", True, 306)


def test_a_single_value_that_is_round_by_chance_is_no_cast() -> None:
    ends = BASE[WEIGHT].copy()
    ends[3] = np.float32(np.float16(ends[3]))
    assert changes_of(LayerNorm_weight=ends).loc[WEIGHT, "kind"] == "one entry"


# Swapped rows and NaN, by name.


def test_swapped_rows_are_named_by_token_and_position() -> None:
    words, positions = BASE[W].copy(), BASE[P].copy()
    words[[4, 9]], positions[[2, 7]] = words[[9, 4]], positions[[7, 2]]
    table = changes_of(word_embeddings=words, position_embeddings=positions)
    assert table.loc[[W, P], ["kind", "detail"]].to_numpy().tolist() == [
        ["permuted rows", "'t4' and 't9' are swapped"],
        ["permuted rows", "position 2 and position 7 are swapped"],
    ]
    words[[11, 12, 13]] = words[[12, 13, 11]]
    assert changes_of(word_embeddings=words).loc[W, "detail"] == "5 of 700 rows stand elsewhere"
    # A bit of one of them beside it: moved, and named, but not swapped.
    words = BASE[W].copy()
    words[[4, 9]] = words[[9, 4]]
    words[9, 3] = np.nextafter(words[9, 3], np.float32(9))
    line = changes_of(word_embeddings=words).loc[W]
    assert (line["kind"], line["detail"].split("farthest ")[1][:4] in ("'t4'", "'t9'")) == ("some rows", True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_is_named_by_parameter_row_and_token(value: float) -> None:
    tokens = Vocabulary(tuple(f"t{i}" for i in range(ROWS[W])), frozenset({0}), 0)

    def refused(name: str, *places: tuple[int, ...]) -> str:
        broken = {**BASE, name: BASE[name].copy()}
        for place in places:
            broken[name][place] = value
        pair = Trajectory([Snapshot(0, 0, BASE), Snapshot(1, 1, broken, "tuned")], tokens, position_offset=2)
        with pytest.raises(ValueError, match="holds NaN or infinity") as refusal:
            measure_changes(pair)
        turned = replace(pair, snapshots=[Snapshot(0, 0, broken), Snapshot(1, 1, BASE)])
        check_refused("holds NaN or infinity at epoch 0", measure_changes, turned)
        return str(refusal.value)

    start, last = "holds NaN or infinity at epoch 1 (tuned)", ": the run diverged, leave it out"
    for name, places, said in (
        (W, [(7, 3)], "(1 of 16800 values) in row 7 ('t7')"),
        (P, [(9, 0), (9, 1)], "(2 of 1152 values) in row 9 (position 7)"),
        (S, [(1, 0)], "(1 of 48 values) in segment 1"),
        (BIAS, [(5,)], "(1 of 24 values) in entry 5"),
    ):
        assert refused(name, *places) == f"{name} {start} {said}{last}"
    rows = ", ".join(f"row {i} ('t{i}')" for i in range(1, 6))
    assert refused(W, *((i, 0) for i in range(1, 10))).endswith(f"(9 of 16800 values) in {rows} and 4 more{last}")


def test_the_change_of_the_table_is_found_to_be_of_low_rank(tiny_config: RunConfig, tmp_path: Path) -> None:
    learned = {"learning_rate": 1e-2, "weight_decay": 0.1, "save_model": True, "output_dir": str(tmp_path)}
    run = toolkit.finetune(replace(tiny_config, lora=(W,), lora_rank=1, **learned))
    found = measure_changes(toolkit.import_checkpoints([run.config.model, run.path / "model"])).set_index("parameter")
    assert (found.loc[W, "kind"], set(found.drop(W)["kind"])) == ("low rank", {"identical"})


def test_rows_that_moved_are_read_alone_and_in_full_blocks() -> None:
    """Each block costs a sum of columns x columns: a few rows of many blocks took hours of a table of 256,000."""
    before = np.random.default_rng(0).normal(size=(6400, 4)).astype(np.float32)
    after, moved = before.copy(), np.arange(0, 6400, 100)
    after[moved] += 1
    moments = (Snapshot(i, i, {"word_embeddings": own}) for i, own in enumerate((before, after)))
    found = survey_pair(Pair(*moments, "word_embeddings"))
    ((rows, a, b),) = found.moved_blocks()
    assert np.array_equal(rows, moved)
    assert np.array_equal(np.stack([a, b]), np.stack([before[moved], after[moved]]))
