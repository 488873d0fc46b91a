"""Whole-parameter drift and its yardstick, the re-initialisation: scale, seed, streams and LayerNorm."""

import numpy as np
import pytest

import toolkit
from toolkit.analysis.blocks import reinitialise
from toolkit.analysis.drift import measure_drift
from toolkit.snapshots.snapshot import Snapshot, Trajectory


def _snapshot(**tensors):
    return Snapshot(0, 0, {name.replace("_dot_", "."): np.asarray(t, np.float32) for name, t in tensors.items()})


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.04), (0.5, 0.04), (-3.0, 0.01)])
def test_a_table_is_redrawn_with_its_own_mean_and_deviation(mean, deviation):
    table = np.random.default_rng(5).normal(mean, deviation, (700, 60))
    values = reinitialise(_snapshot(word_embeddings=table), "word_embeddings", seed=0)
    # Two independent draws differ by a Gaussian of twice the variance.
    assert values["norm"] == pytest.approx(np.sqrt(2 * table.size) * deviation, rel=0.01)
    assert values["relative"] == pytest.approx(np.sqrt(2) * deviation / np.hypot(mean, deviation), rel=0.01)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_redraw_is_independent_of_a_model_made_with_the_same_seed(seed):
    values = reinitialise(
        _snapshot(word_embeddings=np.random.default_rng(seed).standard_normal((500, 40))), "word_embeddings", seed=seed
    )
    assert values["relative"] == pytest.approx(np.sqrt(2), rel=0.02)


def test_the_redraw_depends_on_the_seed_only():
    table = np.random.default_rng(5).normal(size=(90, 7))
    alone = _snapshot(position_embeddings=table)
    beside = _snapshot(word_embeddings=table, position_embeddings=table)
    value = reinitialise(alone, "position_embeddings", seed=3)
    assert value == reinitialise(alone, "position_embeddings", seed=3)
    assert value == reinitialise(beside, "position_embeddings", seed=3)
    assert value["norm"] == pytest.approx(
        reinitialise(alone, "position_embeddings", 3, block_rows=11)["norm"], rel=1e-12
    )
    others = [reinitialise(alone, "position_embeddings", seed=4), reinitialise(beside, "word_embeddings", seed=3)]
    assert all(abs(other["norm"] / value["norm"] - 1) > 1e-6 for other in others)


def test_layernorm_goes_back_to_ones_and_zeros():
    snapshot = _snapshot(LayerNorm_dot_weight=[1.5, 0.5, 1.0], LayerNorm_dot_bias=[3.0, 0.0, 4.0])
    weight, bias = (reinitialise(snapshot, f"LayerNorm.{name}", seed=0) for name in ("weight", "bias"))
    assert weight["norm"] == pytest.approx(np.sqrt(0.5))
    assert weight["relative"] == pytest.approx(np.sqrt(0.5 / 3.5))
    assert bias == {"norm": 5.0, "relative": 1.0}
    untrained = _snapshot(LayerNorm_dot_weight=np.ones(3), LayerNorm_dot_bias=np.zeros(3))
    assert reinitialise(untrained, "LayerNorm.weight", seed=0) == {"norm": 0.0, "relative": 0.0}
    of_bias = reinitialise(untrained, "LayerNorm.bias", seed=0)
    assert of_bias["norm"] == 0
    assert np.isnan(of_bias["relative"])


def test_the_table_shows_one_yardstick_beside_every_epoch(make_trajectory):
    trajectory = make_trajectory()
    table = measure_drift(trajectory, seed=3).query("statistic == 'reinitialised'")
    assert set(table["stratum"]) == {"whole parameter"}
    assert len(table) == len(trajectory) * len(trajectory.parameters) * 2
    for line in table.itertuples():
        assert line.value == reinitialise(trajectory.at(0), line.parameter, seed=3)[line.measure]
    of_words = table.query("parameter == 'word_embeddings'")
    assert (of_words["num_rows"] == 12).all()
    other = measure_drift(trajectory, seed=4).query("statistic == 'reinitialised' and parameter == 'word_embeddings'")
    assert (other["value"].to_numpy() != of_words["value"].to_numpy()).all()


def test_only_chosen_measures_have_whole_values():
    trajectory = Trajectory([_snapshot(word_embeddings=np.ones((3, 2)))])
    assert set(measure_drift(trajectory, ["l1"])["stratum"]) == {"exposure unknown", "all rows"}
    assert set(measure_drift(trajectory, ["l1", "norm"]).query("stratum == 'whole parameter'")["measure"]) == {"norm"}


def _moved_to(now, before, epochs=(0, 1), **known):
    """A trajectory whose LayerNorm.bias was ``before`` and is ``now``."""
    values = zip(epochs, (before, now), strict=False)
    return Trajectory([Snapshot(epoch, epoch, {"LayerNorm.bias": np.float32(own)}) for epoch, own in values], **known)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ((3.0, 4.0), (3.0, 4.0), 0.0),
        ((0.0, 0.0), (0.0, -0.0), 0.0),
        ((3.0, 4.5), (3.0, 4.0), 10.0),
        ((3.0, np.nextafter(np.float32(4), np.float32(5))), (3.0, 4.0), 100 * 2**-21 / 5),
        ((1e-45, 0.0), (0.0, 0.0), np.nan),
        ((np.nan, 4.0), (3.0, 4.0), np.nan),
        ((np.inf, 4.0), (np.inf, 4.0), np.nan),
    ],
)
def test_the_drift_of_a_run_is_in_percent_of_the_norm_and_0_only_where_nothing_moved(now, before, expected):
    assert _moved_to(now, before).drift()["LayerNorm.bias"] == pytest.approx(expected, nan_ok=True, rel=1e-9)
    alone, in_part = _moved_to(now, before, (0,)), _moved_to(now, before, in_part={"LayerNorm.bias": (2, 9)})
    assert np.isnan(alone.drift()["LayerNorm.bias"]), "one snapshot measures nothing"
    assert in_part.drift()["LayerNorm.bias"] == pytest.approx(expected or np.nan, nan_ok=True), "nor does a part of 0"


def test_the_drift_of_a_run_is_that_of_the_long_table(read_run):
    run = read_run("position_embeddings", zero=("LayerNorm.bias",))
    for epoch in (1, 2, None):
        own = run.drift(epoch)
        table = toolkit.measure_drift(run, ("norm", "relative"))
        table = table[(table["epoch"] == (3 if epoch is None else epoch)) & (table["statistic"] == "value")]
        wide = table.pivot(index="parameter", columns="measure", values="value").loc[own.index]
        assert own.to_numpy() == pytest.approx(100 * wide["relative"].where(wide["norm"] > 0, 0), nan_ok=True)
    assert own["position_embeddings"] == 0 < own["word_embeddings"]
    assert list(own.index) == list(run.trajectory.parameters)
    assert "word_embeddings" in str(own)
