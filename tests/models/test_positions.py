"""What stands in for a position table: laws of each kind, and what a run that starts from it leaves behind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import FAMILY_CONFIGS
from tests.refusals import check_refused
from toolkit.config import RunConfig
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.positions import POSITION_TABLES, derangement, position_rows, prepare_positions
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.pipeline import finetune
from toolkit.snapshots.files import sha256_of_array

WITH_TABLE = [name for name in FAMILY_CONFIGS if name != "modernbert"]


def table_of(loaded: Loaded) -> np.ndarray:
    name = loaded.family.embedding_parameters["position_embeddings"]
    return dict(loaded.model.backbone.named_parameters())[name].detach().numpy().copy()


def outputs_of(loaded: Loaded, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(examples, 2) what the classifier gives with mean pooling, in the dtype of its weights: its own is fp32."""
    states, mask = loaded.model.backbone(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
    return loaded.model.head((states * mask).sum(dim=1) / mask.sum(dim=1))


def learned(num: int = 40, hidden: int = 16) -> np.ndarray:
    generator = np.random.default_rng(0)
    return (generator.normal(size=(num, hidden)) * generator.lognormal(size=(num, 1))).astype(np.float32)


@given(st.integers(2, 40), st.integers(0, 1000))
def test_shuffled_rows_are_the_same_rows_and_none_is_in_its_place(num_reached: int, seed: int) -> None:
    rows = learned()
    shuffled = position_rows("shuffled", rows, num_reached=num_reached, seed=seed)
    np.testing.assert_array_equal(np.unique(shuffled[:num_reached], axis=0), np.unique(rows[:num_reached], axis=0))
    np.testing.assert_array_equal(shuffled[num_reached:], rows[num_reached:])  # no text comes there
    assert (shuffled[:num_reached] != rows[:num_reached]).any(axis=1).all()


def test_every_order_without_a_fixed_place_is_as_likely() -> None:
    """Four things have nine of them; 1,800 draws of each 200 ± 13."""
    found = [tuple(derangement(4, seed)) for seed in range(1800)]
    counts = {order: found.count(order) for order in set(found)}
    assert len(counts) == 9
    assert all(abs(count - 200) < 60 for count in counts.values())


def test_a_seed_is_one_order_and_another_seed_another() -> None:
    assert (derangement(128, 1) == derangement(128, 1)).all()
    assert (derangement(128, 1) != derangement(128, 2)).any()
    check_refused("at least two rows to shuffle; --max-length reaches 1", derangement, 1)


def test_sinusoidal_rows_are_waves_of_the_size_of_the_rows_that_they_replace() -> None:
    rows = learned()
    table = position_rows("sinusoidal", rows, num_reached=8).astype(np.float64)
    norms = np.linalg.norm(table, axis=1)
    np.testing.assert_allclose(norms, np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1).mean()), rtol=1e-6)
    gram = table @ table.T / norms[0] ** 2
    for lag in range(1, 40):  # Σ cos(lag·ω): only the distance matters
        expected = np.cos(lag * 10_000.0 ** (-2 * np.arange(8) / 16)).mean()
        np.testing.assert_allclose(np.diagonal(gram, lag), expected, atol=1e-6)
    np.testing.assert_allclose(table[0, 1::2], norms[0] / np.sqrt(8), rtol=1e-6)  # cosines of 0
    check_refused("even hidden size", position_rows, "sinusoidal", rows[:, :15], num_reached=8)


def test_zero_rows_are_zero_and_an_unknown_kind_is_refused() -> None:
    assert not position_rows("zero", learned(), num_reached=8).any()
    rows = learned()
    assert position_rows("checkpoint", rows, num_reached=8) is rows
    check_refused(
        r"unknown positions 'sinusoid' \(did you mean 'sinusoidal'\?\)", position_rows, "sinusoid", rows, num_reached=8
    )


@pytest.mark.parametrize("model_type", WITH_TABLE)
@pytest.mark.parametrize("kind", [kind for kind in POSITION_TABLES if kind != "checkpoint"])
def test_only_rows_that_stand_for_places_change(model_type: str, kind: str, tiny_model: Callable[[str], Path]) -> None:
    loaded = load_classifier(str(tiny_model(model_type)), pooling="mean", num_outputs=2)
    others = {name: p.detach().clone() for name, p in loaded.model.named_parameters() if "position_emb" not in name}
    before = table_of(loaded)
    prepared = prepare_positions(loaded, RunConfig(positions=kind, max_length=20, seed=3))
    after, first = table_of(prepared), 1 if model_type == "roberta" else 0
    np.testing.assert_array_equal(after[:first], before[:first])  # RoBERTa's padding row
    np.testing.assert_array_equal(after[first:], position_rows(kind, before[first:], num_reached=20, seed=3))
    assert (after != before).any()
    assert prepared.positions == {
        "table": kind,
        "is_reinjected": False,
        "first_row": first,
        "num_reached": 20,
        "checkpoint_sha256": sha256_of_array(before),
        "start_sha256": sha256_of_array(after),
    }
    for name, parameter in prepared.model.named_parameters():
        if name in others:
            assert torch.equal(parameter, others[name])


@pytest.mark.parametrize("changes", [{"positions": "zero"}, {"reinject_positions": True}])
def test_a_model_without_a_table_says_not_applicable(
    changes: dict[str, object], tiny_model: Callable[[str], Path]
) -> None:
    loaded = load_classifier(str(tiny_model("modernbert")), pooling="mean", num_outputs=2)
    check_refused(
        r"^--[a-z -]+: not applicable, .* \(ModernBERT\) has no position table$",
        prepare_positions,
        loaded,
        replace(RunConfig(), **changes),
    )
    assert prepare_positions(loaded, RunConfig()).positions is None


@pytest.mark.parametrize("kind", ["zero", "checkpoint"])
def test_without_positions_the_order_of_the_words_changes_no_output(
    kind: str, tiny_model: Callable[[str], Path]
) -> None:
    """Attention without positions does not see order and the mean does not either; with positions it is seen."""
    loaded = load_classifier(str(tiny_model("bert")), pooling="mean", num_outputs=2)
    with torch.no_grad():
        loaded.model.backbone.embeddings.position_embeddings.weight *= 10  # tiny random rows: make them count
    prepare_positions(loaded, RunConfig(positions=kind, max_length=20))
    loaded.model.double().eval()
    ids = torch.randint(5, 60, (6, 12), generator=torch.Generator().manual_seed(0))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        outputs = [
            outputs_of(loaded, {"input_ids": x, "attention_mask": torch.ones_like(x)}) for x in (ids, ids[:, order])
        ]
    difference = float((outputs[0] - outputs[1]).abs().max())
    assert difference < 1e-14 if kind == "zero" else difference > 1e-5


@pytest.mark.parametrize("freeze", ["none", "embeddings", "backbone"])
def test_a_run_starts_from_the_table_and_says_which_it_replaced(
    freeze: str, tiny_config: RunConfig, tmp_path: Path
) -> None:
    config = replace(tiny_config, freeze=freeze, positions="shuffled", output_dir=str(tmp_path), save_model=True)
    run = finetune(config)
    own = table_of(load_classifier(config.model, pooling="mean", num_outputs=2))
    first, last = (np.array(run.trajectory.snapshots[i].tensors["position_embeddings"]) for i in (0, -1))
    np.testing.assert_array_equal(first, position_rows("shuffled", own, num_reached=40, seed=config.seed))
    assert run.manifest["positions"]["checkpoint_sha256"] == sha256_of_array(own)
    assert run.manifest["positions"]["start_sha256"] == sha256_of_array(first)
    assert (first == last).all() == (freeze != "none")
    np.testing.assert_array_equal(table_of(load_untuned(run)), first)
    np.testing.assert_array_equal(table_of(load_tuned(run)), last)


def test_the_digest_tells_interventions_apart_and_defaults_name_the_table(
    tiny_config: RunConfig, tmp_path: Path
) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1))
    facts = run.manifest["positions"]
    assert facts["table"] == "checkpoint"
    assert facts["checkpoint_sha256"] == facts["start_sha256"]
    assert finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1, positions="zero")).path != run.path
