"""Layer drift on tiny runs: what cannot have moved has not, what was planted is found, where it was planted."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.probes.layers.layer_drift import (
    BEFORE_AND_AFTER,
    COLUMNS,
    MEASURES,
    SEED_AND_SEED,
    compare_layers,
    measure_layer_drift,
)
from toolkit.snapshots.store import Run


@pytest.fixture(scope="module")
def train(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    folder = str(tmp_path_factory.mktemp("runs"))

    def make(**changes: object) -> Run:
        config = replace(tiny_config, output_dir=folder, save_model=True, dropout=0.0, **changes)  # type: ignore[arg-type]
        return finetune(config, reuse_finished=True)

    return make


def test_frozen_layers_do_not_move_and_those_above_do(train: Callable[..., Run]) -> None:
    run = train(freeze="embeddings,layers.0", learning_rate=0.05)
    table = measure_layer_drift([run])
    assert tuple(table.columns) == COLUMNS
    assert set(table.texts) == {"validation", "ood"}
    assert set(table.comparison) == {BEFORE_AND_AFTER}
    assert set(table.layer) == {0, 1, 2, 3}
    for measure in MEASURES:
        values = table[table.measure == measure].set_index(["texts", "layer"]).value
        for name in ("validation", "ood"):
            assert values[name, 0] == pytest.approx(1, abs=1e-6)
            assert values[name, 1] == pytest.approx(1, abs=1e-6)
            assert values[name, 3] < 0.9


def test_seeds_are_compared_within_an_arm(train: Callable[..., Run]) -> None:
    runs = [train(seed=seed) for seed in (0, 1)] + [train(shuffle_labels=True)]
    table = measure_layer_drift(runs, {"own": [("the film was good",), ("bad",), ("a doctor",), ("good good",)]})
    assert set(table.texts) == {"own"}
    assert (table.num_texts == 4).all()
    pairs = table[table.comparison == SEED_AND_SEED]
    assert set(zip(pairs["first"], pairs["second"], strict=True)) == {("seed 0", "seed 1")}
    assert not pairs.is_shuffled.any()
    assert table[table.is_shuffled].arm.nunique() == 1
    assert table[~table.is_shuffled].arm.nunique() == 1
    assert table.low.isna().all()  # four texts give a value and no interval


def test_random_starts_are_each_their_own(train: Callable[..., Run]) -> None:
    runs = [train(seed=seed, init="random", freeze="backbone") for seed in (0, 1)]
    table = measure_layer_drift(runs).set_index(["comparison", "measure"]).value
    assert table[BEFORE_AND_AFTER, "debiased CKA"].to_numpy() == pytest.approx(1, abs=1e-6)  # frozen
    assert table[SEED_AND_SEED, "debiased CKA"].max() < 0.99


def test_a_layer_that_was_replaced_is_the_one_that_differs() -> None:
    rng = np.random.default_rng(0)
    first = {"texts": [rng.normal(size=(40, 6)) for _ in range(4)]}
    second = {"texts": [layer.copy() for layer in first["texts"]]}
    second["texts"][2] = rng.normal(size=(40, 6))
    for name, layer, measure, value, low, high, num_texts, refusal in compare_layers(first, second):
        assert (name, num_texts, refusal) == ("texts", 40, "")
        if layer == 2:
            assert abs(value) < 0.35, measure
        else:
            assert value == pytest.approx(1)
            assert low == pytest.approx(1)
            assert high == pytest.approx(1)


def test_texts_are_reduced_to_what_was_asked(train: Callable[..., Run]) -> None:
    assert set(measure_layer_drift([train()], max_texts=10).num_texts) == {10}
    with pytest.raises(ValueError, match="at least 4 texts"):
        measure_layer_drift([train()], {"few": [("good",)]})


def test_a_run_without_its_model_is_named(tiny_config: RunConfig, tmp_path: Path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1))
    with pytest.raises(ValueError, match="--save-model"):
        measure_layer_drift([run])


def test_every_position_table_has_its_own_before(train: Callable[..., Run]) -> None:
    runs = [train(freeze="backbone"), train(freeze="backbone", positions="zero")]
    runs += [train(freeze="backbone", positions="shuffled", seed=seed) for seed in (0, 1)]
    table = measure_layer_drift(runs)
    before_and_after = table[(table.comparison == BEFORE_AND_AFTER) & (table.measure == "debiased CKA")].value
    assert before_and_after.to_numpy() == pytest.approx(1, abs=1e-6)  # nothing was trained but the head
