"""Planted changes are told by their kind, mixtures are called none of the pure kinds."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refusals
from tests.snapshots.test_unnamed_files import PLANTED, check_flipped, check_planted
from tests.snapshots.test_unnamed_files import path as path
from toolkit.analysis.precision import FORMATS, FormatFinder
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.questions.changes.finders import roundoff
from toolkit.questions.changes.measure import KINDS, measure_changes
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary

W, P, S, WEIGHT, BIAS = EMBEDDING_PARAMETERS
ROWS = {W: 700, P: 48, S: 2}
COLUMNS_OF_TABLES = 24
TOKENS = tuple(f"t{i}" for i in range(ROWS[W]))


def base_tensors(seed: int = 0, columns: int = COLUMNS_OF_TABLES, rows: dict[str, int] = ROWS) -> dict[str, np.ndarray]:
    """Tables as trained models have them: a common mean, columns and rows of unequal scale, [PAD] at 0."""
    rng = np.random.default_rng([2, seed])
    tensors = {}
    for name, n in rows.items():
        scales = 0.05 * np.exp(0.3 * rng.normal(size=(n, 1)) + 0.8 * rng.normal(size=columns))
        tensors[name] = rng.normal(size=(n, columns)) * scales + 0.03 * rng.normal(size=columns)
    tensors[W][0] = 0
    tensors |= {WEIGHT: rng.normal(1, 0.2, columns), BIAS: rng.normal(0, 0.1, columns)}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


BASE = base_tensors()


def changes_of(before=BASE, **after):
    """The table for a base with some parameters replaced, by parameter; LayerNorm's dot is written ``_``."""
    replaced = {name.replace("LayerNorm_", "LayerNorm."): np.asarray(t, np.float32) for name, t in after.items()}
    snapshots = [Snapshot(0, 0, before), Snapshot(1, 1, {**before, **replaced})]
    table = measure_changes(Trajectory(snapshots, Vocabulary(TOKENS, frozenset({0}), 0)))
    assert list(table["parameter"]) == list(EMBEDDING_PARAMETERS)
    assert set(table["kind"]) <= KINDS.keys()
    return table.set_index("parameter")


def noisy(table, share, seed=0):
    """Isotropic noise of a relative size, added in float64 and stored in fp32."""
    rng = np.random.default_rng([3, seed])
    wide = table.astype(np.float64)
    return wide + rng.normal(size=table.shape) * share * np.sqrt(np.mean(wide**2))


def turned(table, angle, seed=0):
    """A rotation by one angle in random planes, computed in float64."""
    columns = table.shape[1]
    basis = np.linalg.qr(np.random.default_rng([4, seed]).normal(size=(columns, columns)))[0]
    turn = np.eye(columns)
    for i in range(0, columns - 1, 2):
        turn[i : i + 2, i : i + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return table.astype(np.float64) @ (basis @ turn @ basis.T)


def cast(table, dtype):
    """What torch's half precision leaves of the values, as fp32."""
    import torch

    return torch.from_numpy(np.asarray(table, np.float32)).to(getattr(torch, dtype)).to(torch.float32).numpy()


VECTOR = np.random.default_rng(5).normal(size=COLUMNS_OF_TABLES) * 0.05


# Positive controls: each kind is found where it was planted, and its size is what was planted.


def test_nothing_changed() -> None:
    table = changes_of()
    assert set(zip(table["kind"], table["value"], table["num_moved"], strict=True)) == {("identical", 0, 0)}


def test_identical_means_bits() -> None:
    signed = BASE[W].copy()
    signed[0, 3] = -0.0
    line = changes_of(word_embeddings=signed).loc[W]
    assert (line["num_moved"], line["relative_drift"], line["kind"] == "identical") == (1, 0, False)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.003, 3.1), st.integers(0, 50), st.booleans())
def test_rotations_and_their_angle(angle: float, seed: int, is_fp32: bool) -> None:
    turn = turned(np.eye(COLUMNS_OF_TABLES), angle, seed).astype(np.float32)
    words = BASE[W] @ turn if is_fp32 else turned(BASE[W], angle, seed)
    table = changes_of(word_embeddings=words, position_embeddings=turned(BASE[P], angle, seed))
    for name in (W, P):
        line = table.loc[name]
        assert (line["kind"], "a rotation" in line["detail"]) == ("rotation", True)
        assert line["value"] == pytest.approx(np.degrees(angle), rel=1e-3)
    assert "others are bit-identical" not in table.loc[W, "detail"]  # [PAD] is 0 and stays so under any map


def test_a_reflection_is_named_and_a_column_swap_is_an_orthogonal_map() -> None:
    table = changes_of(word_embeddings=BASE[W][:, [1, 0, *range(2, COLUMNS_OF_TABLES)]])
    assert (table.loc[W, "kind"], "with a reflection" in table.loc[W, "detail"]) == ("rotation", True)


def test_no_rotation_is_claimed_for_fewer_rows_than_columns() -> None:
    base = base_tensors(columns=64, rows={W: 700, P: 48, S: 2})
    table = changes_of(base, position_embeddings=turned(base[P], 0.5))
    assert table.loc[P, "kind"] == "general"
    assert "no orthogonal map was fitted" in table.loc[P, "note"]


def test_rows_are_named_with_their_size() -> None:
    one, some = BASE[W].copy(), BASE[W].copy()
    one[7] *= 1.5
    some[[5, 90, 91]] += np.random.default_rng(0).normal(size=(3, COLUMNS_OF_TABLES)) * [[3], [1], [0.1]]
    line = changes_of(word_embeddings=one).loc[W]
    assert (line["kind"], line["num_moved"]) == ("one row", 1)
    assert line["value"] == pytest.approx(0.5, rel=1e-6)
    assert "'t7' (50 %)" in line["detail"]
    line = changes_of(word_embeddings=some).loc[W]
    assert (line["kind"], line["num_moved"]) == ("some rows", 3)
    assert line["detail"].startswith("3 of 700 rows; farthest 't5' (")
    long, short = BASE[W].copy(), BASE[W].copy()
    long[5] *= 100
    short[5], short[90] = 110 * BASE[W][5], 1.5 * BASE[W][90]  # the first moved by a tenth of its norm, and farther
    line = changes_of({**BASE, W: long}, word_embeddings=short).loc[W]
    assert line["detail"] == "2 of 700 rows; farthest 't90' (50 %)"
    every = changes_of(word_embeddings=BASE[W] * np.random.default_rng(0).uniform(1, 2, BASE[W].shape))
    assert every.loc[W, "detail"].startswith("699 of 700 rows, all but 't0'; farthest '")
    pad, position = BASE[W].copy(), BASE[P].copy()
    pad[0, :2] = 3, 4
    position[2] += 1
    table = changes_of(word_embeddings=pad, position_embeddings=position)
    assert ("'t0' (from 0 to 5)" in table.loc[W, "detail"], np.isnan(table.loc[W, "value"])) == (True, True)
    assert "position 2" in table.loc[P, "detail"]
    ends = BASE[WEIGHT].copy()
    ends[3] += 1
    assert changes_of(LayerNorm_weight=ends).loc[WEIGHT, "kind"] == "one entry"
    ends[7] -= 0.3
    assert changes_of(LayerNorm_weight=ends).loc[WEIGHT, "kind"] == "some entries"


@settings(max_examples=40, deadline=None)
@given(st.floats(-2, 2).filter(lambda c: abs(c - 1) > 1e-4 and abs(c) > 1e-3), st.booleans(), st.integers(0, 9))
def test_scaling_and_its_factor(factor: float, is_fp32: bool, seed: int) -> None:
    base = base_tensors(seed)
    times = np.float32(factor) if is_fp32 else factor
    after = {name: base[name] * times if is_fp32 else base[name].astype(np.float64) * times for name in base}
    table = changes_of(base, **{name.replace(".", "_"): tensor for name, tensor in after.items()})
    assert list(table["kind"]) == ["scaling"] * 5
    np.testing.assert_allclose(table["value"], factor - 1, rtol=1e-3, atol=1e-6)
    assert not table["detail"].str.contains("bit-identical").any()


def test_a_table_of_zeros_is_a_scaling_by_zero() -> None:
    line = changes_of(word_embeddings=BASE[W] * 0).loc[W]
    assert (line["kind"], line["value"]) == ("scaling", -1)


def test_scaling_of_a_constant_vector_is_an_offset_as_well() -> None:
    ones = {**BASE, WEIGHT: np.ones(COLUMNS_OF_TABLES, np.float32)}
    line = changes_of(ones, LayerNorm_weight=ones[WEIGHT] * 0.9).loc[WEIGHT]
    assert (line["kind"], "a common offset says the same" in line["detail"]) == ("scaling", True)
    zeros = {**BASE, BIAS: np.zeros(COLUMNS_OF_TABLES, np.float32)}
    line = changes_of(zeros, LayerNorm_bias=zeros[BIAS] - 0.25).loc[BIAS]
    assert (line["kind"], line["value"]) == ("common offset", -0.25)


@settings(max_examples=40, deadline=None)
@given(st.floats(-5, 1), st.booleans(), st.integers(0, 9), st.sampled_from([(W, P), (W, S), (P, S)]))
def test_offsets_and_the_gauge(exponent: float, is_fp32: bool, seed: int, names: tuple[str, str]) -> None:
    stored = np.float32 if is_fp32 else np.float64
    vector = (np.random.default_rng([6, seed]).normal(size=COLUMNS_OF_TABLES) * 10**exponent).astype(stored)
    wide = {name: tensor.astype(stored) for name, tensor in BASE.items()}
    a, b = names
    table = changes_of(**{a: wide[a] - vector, b: wide[b] + vector})
    for name in names:
        assert table.loc[name, ["kind", "unit"]].tolist() == ["common offset", "weight units"]
        assert table.loc[name, "value"] == pytest.approx(np.linalg.norm(vector), rel=1e-3)
        assert f"offset moved from {a} to {b}: a gauge change, which no behaviour shows" in table.loc[name, "detail"]
    # Offsets that do not cancel are no gauge change, however equal in length.
    table = changes_of(**{a: wide[a] - vector, b: wide[b] - vector})
    assert set(table.loc[list(names), "kind"]) == {"common offset"}
    assert not table["detail"].str.contains("gauge").any()


def test_a_gauge_change_over_three_tables() -> None:
    numbers = changes_of(LayerNorm_weight=BASE[WEIGHT] + 0.125, LayerNorm_bias=BASE[BIAS] - 0.125)
    assert set(numbers.loc[[WEIGHT, BIAS], "kind"]) == {"common offset"}
    assert not numbers["detail"].str.contains("gauge").any()  # only what is added up can cancel
    other = VECTOR[::-1] * 0.5
    table = changes_of(**{W: BASE[W] + VECTOR, P: BASE[P] + other, S: BASE[S] - VECTOR - other})
    assert table.loc[[W, P, S], "detail"].str.contains("cancel: a gauge change").all()


def test_an_offset_of_some_rows_is_said_to_be_of_some_rows_and_is_no_gauge_change() -> None:
    words = BASE[W].copy()
    words[1:] -= VECTOR.astype(np.float32)  # [PAD] left at 0
    table = changes_of(word_embeddings=words, position_embeddings=BASE[P] + VECTOR)
    assert (table.loc[W, "kind"], "on 699 of 700 rows" in table.loc[W, "detail"]) == ("common offset", True)
    assert not table["detail"].str.contains("gauge").any()


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(ROWS[P])))
def test_permuted_positions(order: list[int]) -> None:
    line = changes_of(position_embeddings=BASE[P][order]).loc[P]
    num_elsewhere = sum(i != j for i, j in enumerate(order))
    kind = "permuted rows" if num_elsewhere else "identical"
    assert line[["kind", "value", "num_moved"]].tolist() == [kind, num_elsewhere, num_elsewhere]


def test_swapped_rows_are_named_and_equal_rows_do_not_confuse() -> None:
    order = np.arange(ROWS[W])
    order[[4, 9]] = 9, 4
    assert changes_of(word_embeddings=BASE[W][order]).loc[W, "detail"] == "'t4' and 't9' are swapped"
    doubled = {**BASE, P: BASE[P].copy()}
    doubled[P][1] = doubled[P][0]
    assert changes_of(doubled, position_embeddings=doubled[P][::-1]).loc[P, "kind"] == "permuted rows"
    nearly = BASE[P][::-1].copy()
    nearly[3, 3] = np.nextafter(nearly[3, 3], np.float32(9))
    assert changes_of(position_embeddings=nearly).loc[P, "kind"] == "general"


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.floats(-6, 0.5), st.integers(0, 10_000), st.integers(16, 80), st.integers(16, 40))
def test_noise_is_none_of_the_kinds(exponent: float, seed: int, rows: int, columns: int) -> None:
    base = base_tensors(seed, columns, {W: 300, P: rows, S: 2})
    table = changes_of(base, **{name: noisy(base[name], 10**exponent, seed) for name in (W, P)})
    assert list(table.loc[[W, P], "kind"]) == ["general", "general"]
    assert table.loc[W, "value"] == pytest.approx(10**exponent, rel=0.05)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_casts_to_half_precision(name: str, dtype: str) -> None:
    half = {k: cast(t, dtype) for k, t in BASE.items()}
    table = changes_of(**{k.replace(".", "_"): t for k, t in half.items()})
    assert set(table["kind"]) == {"cast"}
    assert table["detail"].str.contains(f"rounded to {name}").all()
    same = changes_of(half)
    assert set(same["kind"]) == {"identical"}
    assert same["note"].str.contains("no drift is no verdict on half-precision weights").all()
    back = changes_of(half, **{k.replace(".", "_"): t for k, t in BASE.items()})
    assert not set(back["kind"]) & {"cast", "identical"}
    assert back["note"].str.contains(f"the change is finer than {name}").all()
    # Trained on from half precision in fp32: what matters is the format of the new values.
    table = changes_of(half, word_embeddings=noisy(half[W], 1e-5), position_embeddings=half[P] * np.float32(0.9999))
    assert list(table.loc[[W, P], "kind"]) == ["general", "scaling"]
    assert list(table.loc[[W, P], "note"].str.contains("is finer than")) == [False, True]
    # Within half precision: a scaling is still told, with its own roundings.
    scaled, moved = half[W] * 0.5 * 1.5, noisy(half[W], 0.05)
    for after, kind in ((scaled, "scaling"), (moved, "general")):
        assert changes_of(half, word_embeddings=cast(after, dtype)).loc[W, "kind"] == kind


def test_a_few_roundings_are_told_apart_from_nothing() -> None:
    table = changes_of(
        word_embeddings=BASE[W] * np.float32(1 + 2**-23), LayerNorm_bias=BASE[BIAS] * np.float32(1 + 2**-23)
    )
    assert table.loc[W, "kind"] == table.loc[BIAS, "kind"] == "rounding"
    # Six roundings of every entry in random directions lie within the tolerances of a scaling, and are none.
    near_one = {**BASE, WEIGHT: np.random.default_rng(1).uniform(1, 1.1, COLUMNS_OF_TABLES).astype(np.float32)}
    steps = np.random.default_rng(0).choice([-3, 3], COLUMNS_OF_TABLES)
    jittered = near_one[WEIGHT] + steps * np.spacing(near_one[WEIGHT])
    assert changes_of(near_one, LayerNorm_weight=jittered).loc[WEIGHT, "kind"] == "general"
    # So does noise of that size, in rows of one length, within those of a rotation.
    even = {**BASE, W: np.random.default_rng(2).normal(size=(700, COLUMNS_OF_TABLES)).astype(np.float32)}
    assert changes_of(even, word_embeddings=noisy(even[W], 4e-7)).loc[W, "kind"] == "general"


# Negative controls: mixtures, and structure that resembles a kind.


MIXTURES = {
    "scaling and noise of 1e-6": lambda t: noisy(t * 0.99, 1e-6),
    "offset and noise of 1e-6": lambda t: noisy(t + VECTOR, 1e-6),
    "rotation and noise of 1e-5": lambda t: noisy(turned(t, 0.1), 1e-5),
    "rotation and scaling": lambda t: turned(t, 0.1) * 1.001,
    "rotation and offset": lambda t: turned(t, 0.1) + VECTOR * 1e-3,
    "scaling and offset": lambda t: t * 0.99 + VECTOR * 1e-3,
    "scaling, and one row otherwise": lambda t: t * np.where(np.arange(len(t)) == 5, 1.001, 1.01)[:, None],
    "offset, and one row otherwise": lambda t: t + VECTOR * np.where(np.arange(len(t)) == 5, 1.01, 1)[:, None],
    "two factors": lambda t: t * np.where(np.arange(len(t)) % 2, 0.99, 0.98)[:, None],
    "a factor of each row": lambda t: t * (1 + 1e-3 * np.random.default_rng(0).normal(size=(len(t), 1))),
    "a factor of each column": lambda t: t * (1 + 1e-3 * np.random.default_rng(0).normal(size=t.shape[1])),
    "permutation and noise of 1e-6": lambda t: noisy(t[::-1], 1e-6),
    "permutation and scaling": lambda t: t[::-1] * 1.01,
}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("parameter", [W, P])
def test_mixtures_are_none_of_their_parts(name: str, parameter: str) -> None:
    base = {**BASE, W: BASE[W][1:]}  # without [PAD], so that every row moves
    line = changes_of(base, **{parameter: MIXTURES[name](base[parameter].astype(np.float64))}).loc[parameter]
    if name == "offset, and one row otherwise":  # otherwise in length alone: its change is of one direction
        assert (line["kind"], line["num_directions"]) == ("low rank", 1)
        return
    assert line["kind"] == "general", line["detail"]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99), st.floats(0, 1))
def test_any_shape_gives_a_kind(rows: int, columns: int, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    base = base_tensors(seed, columns, {W: rows, P: rows, S: 1})
    after = {name: table.copy() for name, table in base.items()}
    for name in (W, P, S):
        moved = rng.random(len(after[name])) < share
        after[name][moved] += rng.normal(size=(int(moved.sum()), columns)).astype(np.float32)
    table = changes_of(base, **{name: after[name] for name in (W, P, S)})
    for name in (W, P, S):
        line, expected = table.loc[name], int(np.sum((base[name] != after[name]).any(axis=1)))
        assert (line["num_moved"], line["kind"] == "identical") == (expected, expected == 0)


# Epochs, missing parameters, precision.


def test_missing_parameters_and_epochs() -> None:
    less = {name: BASE[name] for name in (W, WEIGHT, BIAS)}
    steps = [Snapshot(i, i, {**less, W: less[W] * np.float32(0.9**i)}, name=f"m{i}") for i in range(3)]
    trajectory = Trajectory(steps)
    broken = Trajectory([steps[0], Snapshot(1, 1, {**less, W: less[W] * np.float32(np.nan)})])
    table = measure_changes(trajectory).set_index("parameter")
    assert list(table["kind"]) == ["scaling", "not applicable", "not applicable", "identical", "identical"]
    texts = ["kind", "unit", "detail", "note"]
    assert table.loc[P].drop([*texts, "num_rows", "num_moved"]).isna().all()
    assert table.loc[W, "value"] == pytest.approx(-0.19, rel=1e-5)
    for reference, value in ((0, -0.1), (2, 1 / 0.9 - 1)):
        assert measure_changes(trajectory, 1, reference_epoch=reference)["value"][0] == pytest.approx(value, rel=1e-5)
    check_refusals(
        ("would be compared with itself", lambda: measure_changes(trajectory, reference_epoch=2)),
        ("would be compared with itself", lambda: measure_changes(Trajectory(steps[:1]))),
        ("holds NaN or infinity", lambda: measure_changes(broken)),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, min_value=-60000, max_value=60000), min_size=1))
def test_no_rounding_is_larger_than_said(values: list[float]) -> None:
    array = np.array(values)
    for form in FORMATS.values():
        assert (np.abs(form.round(array) - array) <= roundoff(form, array) * (1 + 1e-12)).all()


def test_precision_is_read_off_the_values() -> None:
    def found(*blocks: np.ndarray) -> str:
        finder = FormatFinder()
        for block in blocks:
            finder.add(block.astype(np.float64))
        return finder.format.name

    values = np.random.default_rng(0).normal(size=400).astype(np.float32).astype(np.float64)
    assert found(values) == "fp32"
    for name in ("fp16", "bf16"):
        rounded = FORMATS[name].round(values)
        assert (found(rounded[:200], rounded[200:]), found(rounded[:200], values[:1])) == (name, "fp32")
    # Ones and zeros fit every format and tell nothing.
    assert found(np.ones(400)) == found(np.zeros(400)) == "fp32"


@pytest.mark.parametrize("name", PLANTED)
def test_a_file_that_was_planted_among_the_snapshots_is_refused(name: str, path: Path) -> None:
    check_planted(measure_changes, path, name)


def test_a_flipped_bit_is_refused(path: Path) -> None:
    check_flipped(measure_changes, path / "snapshots" / "epoch-002.safetensors")
