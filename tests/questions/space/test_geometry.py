"""The geometry of a table: oracles beside the streamed forms, laws of every statistic, controls, nulls and refusals."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refused
from toolkit.questions.space import geometry
from toolkit.questions.space.geometry import (
    GEOMETRY,
    Cloud,
    accumulate_moments,
    measure_geometry,
    measure_null,
)
from toolkit.snapshots.files import map_tensor, read_header
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary


def _cloud(rows: np.ndarray, centre: bool = False, block_rows: int = 7) -> Cloud:
    return Cloud(lambda: (rows[i : i + block_rows] for i in range(0, len(rows), block_rows)), centre=centre)


def _value(name: str, rows: np.ndarray, centre: bool = False) -> float:
    return GEOMETRY[name].function(_cloud(rows, centre, 1024))


def _trajectory(*tables: np.ndarray, **known: object) -> Trajectory:
    return Trajectory(
        [Snapshot(i, i, {"word_embeddings": table.astype(np.float32)}) for i, table in enumerate(tables)], **known
    )


@st.composite
def tables(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, p = draw(st.tuples(st.integers(3, 30), st.integers(2, 8)))
    rows = rng.normal(size=(n, p)) * rng.lognormal(0, 1, p) + draw(st.floats(-3, 3))
    rows[draw(st.lists(st.integers(0, n - 1), max_size=1))] = 0
    return rows


def _plain(rows: np.ndarray, centre: bool) -> dict[str, float]:
    """The statistics over pairs and single directions, one at a time: the oracle."""
    if centre:
        rows = rows - rows.mean(axis=0)
    units = [row / np.linalg.norm(row) for row in rows if np.linalg.norm(row) > 1e-12]
    contributions = np.mean(
        [units[i] * units[j] for i in range(len(units)) for j in range(len(units)) if i != j], axis=0
    )
    lengths = np.linalg.norm(rows, axis=1).mean()
    directions = np.linalg.svd(rows)[2]
    sums = [np.sum(np.exp(rows @ c / lengths)) for c in (*directions, *-directions)]
    return {
        "average_cosine": contributions.sum(),
        "partition_ratio": min(sums) / max(sums),
    }


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables(), st.integers(1, 40))
def test_every_statistic_against_its_definition(rows, block_rows):
    clouds = {"raw": _cloud(rows, block_rows=block_rows)}
    clouds["centred"] = clouds["raw"].recentred()
    for variant, cloud in clouds.items():
        expected = _plain(rows, variant == "centred")
        for name, value in expected.items():
            assert GEOMETRY[name].function(cloud) == pytest.approx(value, rel=1e-6, abs=1e-9), (name, variant)
    assert clouds["raw"].num_without_direction == np.sum(~rows.any(axis=1))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables(), st.integers(1, 40))
def test_moments_do_not_depend_on_the_blocks(rows, block_rows):
    moments = accumulate_moments(rows[i : i + block_rows] for i in range(0, len(rows), block_rows))
    assert np.allclose(moments.mean, rows.mean(axis=0), rtol=1e-12, atol=1e-12)
    assert np.allclose(moments.scatter, np.cov(rows, rowvar=False) * (len(rows) - 1), rtol=1e-9, atol=1e-9)
    assert np.allclose(_cloud(rows, block_rows=block_rows).products, rows.T @ rows, rtol=1e-9, atol=1e-9)


def test_moments_keep_their_digits_beside_a_large_mean():
    rows = np.random.default_rng(0).normal(size=(500, 4))
    scatter = accumulate_moments([rows[:100] + 1e7, rows[100:] + 1e7]).scatter
    assert np.allclose(scatter, np.cov(rows, rowvar=False) * 499, rtol=1e-6, atol=1e-4)
    assert not accumulate_moments([np.full((300, 3), 0.1), np.full((7, 3), 0.1)]).scatter.any()


@pytest.mark.parametrize("name", GEOMETRY)
def test_contract(name):
    statistic = GEOMETRY[name]
    assert statistic.name == name
    assert statistic.source
    assert statistic.description.endswith(".")
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(200, 6)) * [3, 1, 1, 1, 1, 0.5] + 0.7
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    for variant in statistic.variants:
        centre = variant == "centred"
        value = _value(name, rows, centre)
        assert 0 <= value <= 6 or name == "average_cosine"
        assert _value(name, 4 * rows, centre) == pytest.approx(value, rel=1e-9), "depends on the scale"
        assert _value(name, rng.permutation(rows), centre) == pytest.approx(value, rel=1e-9), "depends on the order"
        if centre:
            assert _value(name, rows + 5, centre) == pytest.approx(value, rel=1e-6), "depends on the mean"
        assert _value(name, rows @ rotation, centre) == pytest.approx(value, rel=1e-6), "depends on the axes"


def test_a_common_direction_is_found_and_an_isotropic_cloud_has_none():
    noise = np.random.default_rng(0).normal(size=(2000, 32))
    shift = np.zeros(32)
    shift[5] = 4.0
    planted = noise + shift
    # cos = |m|²/(|m|² + p) of a mean m beside unit noise
    assert _value("average_cosine", planted) == pytest.approx(16 / (16 + 32), abs=0.02)
    assert abs(_value("average_cosine", noise)) < 0.001
    assert abs(_value("average_cosine", planted, True)) < 0.001
    assert _value("partition_ratio", planted) < 0.4 < 0.97 < _value("partition_ratio", noise)
    assert _value("partition_ratio", planted, True) > 0.97


def test_the_partition_ratio_needs_both_signs_and_does_not_overflow():
    rows = np.abs(np.random.default_rng(0).normal(size=(300, 1))) @ np.ones((1, 4))
    ratio = _value("partition_ratio", rows)
    assert ratio == pytest.approx(_plain(rows, False)["partition_ratio"])
    assert ratio < 0.2
    long = np.random.default_rng(0).normal(size=(3000, 4)) * 1e-6
    long[0] = 1.0
    assert 0 <= _value("partition_ratio", long) < 1e-100


def _embedded_words() -> tuple[np.ndarray, np.ndarray]:
    """The word rows of the embedded model, and which of them are [unused]."""
    from toolkit.models.checkpoints import find_checkpoint

    folder = Path(find_checkpoint("minilm").location)
    path = folder / "model.safetensors"
    words = map_tensor(path, read_header(path)[1]["embeddings.word_embeddings.weight"])
    tokens = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert len(words) == len(tokens)
    return words, np.array([token.startswith("[unused") for token in tokens])


def test_average_cosine_of_the_embedded_model():
    """SCIENCE.md section 3: unused rows .81, all rows .018. All 994 unused rows have .822; the first 999 rows .815."""
    words, is_unused = _embedded_words()
    for rows, expected in ((words[is_unused], 0.822), (words[:999], 0.8145), (words, 0.0181)):
        assert _value("average_cosine", rows.astype(np.float64)) == pytest.approx(expected, abs=5e-4)
        assert abs(_value("average_cosine", rows.astype(np.float64), True)) < 0.005


def test_the_null_is_a_gaussian_of_the_same_shape():
    null = measure_null(240, 12, 40, 0)
    rng = np.random.default_rng(99)
    drawn = [rng.normal(size=(240, 12)) for _ in range(40)]
    for name, variant in null:
        values = [_value(name, rows, variant == "centred") for rows in drawn]
        mean, deviation = null[name, variant]
        error = np.hypot(deviation, np.std(values)) / np.sqrt(40)
        assert abs(mean - np.mean(values)) < 4 * error, (name, variant)
        assert 0.5 < deviation / np.std(values) < 2, (name, variant)
    assert measure_null(240, 12, 40, 0) is null, "not kept"
    assert np.isnan(measure_null(30, 4, 0, 0)["isoscore", "centred"]).all()


def test_table(make_trajectory: Callable[..., Trajectory], monkeypatch):
    monkeypatch.setattr(geometry, "MIN_ROWS", 3)
    trajectory = make_trajectory()
    table = measure_geometry(trajectory)
    assert list(dict.fromkeys(table.epoch)) == [s.epoch for s in trajectory], "every snapshot, as of all such tables"
    assert table.stratum.iloc[0] == "all rows"
    assert not table.duplicated(["epoch", "stratum", "measure", "variant"]).any()
    assert (table.value.isna() == (table.reason != "")).all(), "NaN without a reason"
    assert (table.null.isna() >= table.value.isna()).all()
    lines = table.set_index(["epoch", "stratum", "measure", "variant"])
    rows = trajectory.at(0).tensors["word_embeddings"].astype(np.float64)
    line = lines.loc[0, "all rows", "average_cosine", "raw"]
    plain = pytest.approx(_plain(rows, False)["average_cosine"])
    assert (line.value, line.num_rows, line.num_undefined) == (plain, 12, 1)  # row 5 is 0
    assert lines.loc[(3, "all rows", "effective_rank", "centred"), "num_undefined"] == 0
    assert "1 row(s), fewer than 3" in lines.loc[(0, "[PAD]", "effective_rank", "raw"), "reason"]
    assert "IsoScore needs 120 at hidden 6" in lines.loc[(0, "all rows", "isoscore", "centred"), "reason"]
    one = measure_geometry(trajectory, epochs=1.5, by_stratum=False, num_null=0)
    assert set(zip(one.epoch, one.stratum, strict=True)) == {(1.5, "all rows")}
    assert one.null.isna().all()


def test_a_vector_has_no_geometry(make_trajectory: Callable[..., Trajectory]):
    refusal = r"LayerNorm.bias is one vector.*choose from: word_embeddings"
    check_refused(refusal, measure_geometry, make_trajectory(), "LayerNorm.bias")


def test_a_run_that_diverged_is_an_error_and_no_refusal():
    rows = np.ones((20, 3))
    rows[4, 1] = np.nan
    check_refused("holds NaN or infinity", measure_geometry, _trajectory(rows), num_null=0)


def test_equal_rows_are_refused_where_nothing_is_left():
    table = measure_geometry(_trajectory(np.full((40, 2), 0.1)), by_stratum=False, num_null=0).set_index(
        ["measure", "variant"]
    )
    assert table.value["average_cosine", "raw"] == pytest.approx(1)
    assert "all rows are equal" in table.reason["effective_rank", "centred"]
    assert "0 row(s) with a direction" in table.reason["average_cosine", "centred"]
    assert table.num_undefined["average_cosine", "centred"] == 40


def test_strata_separate_what_a_mean_over_the_table_hides():
    rows = np.random.default_rng(0).normal(size=(600, 24))
    rows[:100] = rows[0] + 0.2 * rows[:100]  # unused rows that are nearly one vector
    tokens = tuple(f"[unused{i}]" if i < 100 else f"w{i}" for i in range(600))
    table = measure_geometry(_trajectory(rows, vocabulary=Vocabulary(tokens, frozenset(), None)), num_null=0)
    value = table[table.variant == "raw"].set_index(["measure", "stratum"]).value["average_cosine"]
    assert value["[unused]"] > 0.9
    assert abs(value["exposure unknown"]) < 0.01
    assert value["all rows"] < 0.05


@pytest.mark.parametrize("rows", [(40, 30), (30, 40)])
def test_snapshots_of_other_shapes_are_refused(rows):
    tables = [np.random.default_rng(0).normal(size=(n, 8)).astype(np.float32) for n in rows]
    trajectory = Trajectory([Snapshot(i, i, {"word_embeddings": table}) for i, table in enumerate(tables)])
    check_refused("snapshots of one model are needed", measure_geometry, trajectory)
