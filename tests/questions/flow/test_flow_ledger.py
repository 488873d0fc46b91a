"""The crossed design is crossed, and the ledger reads it: exact before LayerNorm, silent where nothing is, planted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import sem, t

from tests.conftest import FAMILY_CONFIGS
from tests.refusals import check_refusals
from toolkit.data.builtin import BUILTIN_TASKS
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.questions.flow.ledger import CrossedDesign, cross, position_ledger

SINGLES = tuple(BUILTIN_TASKS["polarity"].build()["validation"].texts[:40])
PAIRS = tuple(BUILTIN_TASKS["pair"].build()["validation"].texts[:40])
TinyModel = Callable[[str], Path]


def loaded_and_design(folder: Path, texts=SINGLES, **numbers) -> tuple[Loaded, CrossedDesign]:
    loaded = load_classifier(str(folder), pooling="mean", num_outputs=2)
    numbers = {"num_positions": 8, "num_blocks": 4} | numbers
    return loaded, cross(loaded, texts, **numbers)


def omega(ledger, factor: str, layer: int) -> float:
    return float(ledger[(ledger.factor == factor) & (ledger.layer == layer)].omega_squared.iloc[0])


@pytest.mark.parametrize("texts", [SINGLES, PAIRS])
def test_every_token_of_a_block_stands_at_every_position_once_per_segment(tiny_model: TinyModel, texts) -> None:
    _, design = loaded_and_design(tiny_model("bert"), texts)
    indices = np.arange(design.num_sequences)
    position, content, segment = design.cells(indices)
    seen = set(zip(position.ravel(), content.ravel(), segment.ravel(), strict=True))
    assert len(seen) == position.size == 8 * 32 * len(texts[0])
    split = design.to_split()
    assert (split.tokens.reshape(len(indices), -1)[:, design.frame.slots] == design.blocks.ravel()[content]).all()
    assert (split.segments.reshape(len(indices), -1)[:, design.frame.slots] == segment).all()


def test_the_frame_is_that_of_the_tokenizer(tiny_model: TinyModel) -> None:
    loaded, design = loaded_and_design(tiny_model("bert"), PAIRS)
    words = "the film is good"
    encoded = loaded.tokenizer(words, words)
    assert (design.frame.segments == encoded["token_type_ids"]).all()
    rest = np.delete(np.arange(len(design.frame.tokens)), design.frame.slots)
    assert (design.frame.tokens[rest] == np.array(encoded["input_ids"])[rest]).all()


def test_the_sum_before_layer_norm_has_the_shares_of_the_tables(tiny_model: TinyModel) -> None:
    loaded, design = loaded_and_design(tiny_model("bert"))
    backbone = loaded.model.backbone.double()
    words = backbone.embeddings.word_embeddings.weight[design.blocks.ravel()].detach().numpy()
    rows = backbone.embeddings.position_embeddings.weight[1:9].detach().numpy()
    variances = np.array([table.var(axis=0).sum() for table in (rows, words)])
    ledger = position_ledger(loaded, design)
    assert [omega(ledger, factor, -1) for factor in ("position", "content")] == pytest.approx(
        variances / variances.sum(), abs=1e-9
    )


def test_shuffled_states_read_0_and_chance(tiny_model: TinyModel) -> None:
    loaded, design = loaded_and_design(tiny_model("bert"), num_blocks=8)
    ledgers = [position_ledger(loaded, design, seed=seed) for seed in range(5)]
    lines = np.stack([ledger[ledger.factor == "position"][["shuffled_omega", "shuffled_eta"]] for ledger in ledgers])
    chance = 7 / (64 * 8 - 1)
    assert ledgers[0][ledgers[0].factor == "position"].eta_chance.iloc[0] == pytest.approx(chance)
    assert abs(lines[..., 0].mean()) < 0.01
    assert lines[..., 1].mean() == pytest.approx(chance, abs=0.01)


@pytest.mark.parametrize("kept", ["position_embeddings", "word_embeddings", "token_type_embeddings"])
def test_a_model_of_one_table_gives_all_to_it_at_the_input(tiny_model: TinyModel, kept: str) -> None:
    loaded, design = loaded_and_design(tiny_model("bert"), PAIRS)
    names = ("position_embeddings", "word_embeddings", "token_type_embeddings")
    with torch.no_grad():
        for name in names:
            if name != kept:
                getattr(loaded.model.backbone.embeddings, name).weight.zero_()
    ledger = position_ledger(loaded, design)
    for name, factor in zip(names, ("position", "content", "segment"), strict=True):
        assert [omega(ledger, factor, layer) for layer in (-1, 0)] == pytest.approx([float(name == kept)] * 2, abs=1e-5)


def test_without_positions_no_layer_has_any_but_what_the_frame_and_the_order_bring(tiny_model: TinyModel) -> None:
    """Attention without positions is permutation-equivariant, and every rotation holds the same tokens."""
    loaded, design = loaded_and_design(tiny_model("bert"))
    with torch.no_grad():
        loaded.model.backbone.double().embeddings.position_embeddings.weight.zero_()
    ledger = position_ledger(loaded, design)
    assert all(omega(ledger, "position", layer) == pytest.approx(0, abs=1e-12) for layer in range(-1, 4))
    assert all(omega(ledger, "content", layer) == pytest.approx(1, abs=1e-12) for layer in range(-1, 4))


def test_the_interval_is_that_of_its_blocks(tiny_model: TinyModel) -> None:
    loaded, design = loaded_and_design(tiny_model("bert"))
    ledger = position_ledger(loaded, design)
    assert (ledger.unit_values.map(len) == 4 * (ledger.omega_squared.notna() | (ledger.factor == "residual"))).all()
    for line in ledger[ledger.omega_squared.notna()].itertuples():
        assert np.mean(line.unit_values) == pytest.approx(line.omega_squared)
        assert line.high - line.low == pytest.approx(2 * sem(line.unit_values) * t.ppf(0.975, 3))
    residual = ledger[ledger.factor == "residual"]
    assert np.array(residual.unit_values.to_list()).mean(axis=1) == pytest.approx(residual.eta_squared, abs=1e-12)


@pytest.mark.parametrize(("num_blocks", "note"), [(1, "no error term and no interval: one block"), (2, "no interval")])
def test_few_blocks_say_what_they_cannot_give(tiny_model: TinyModel, num_blocks: int, note: str) -> None:
    loaded, design = loaded_and_design(tiny_model("bert"), num_blocks=num_blocks)
    own = position_ledger(loaded, design).query("factor == 'position'")
    assert own.low.isna().all()
    assert own.omega_squared.isna().all() == (num_blocks == 1)
    assert own.reason.str.startswith(note).all()


@pytest.mark.parametrize("model_type", FAMILY_CONFIGS)
def test_every_family(tiny_model: TinyModel, model_type: str) -> None:
    """What a family lacks is not applicable, never 0."""
    loaded, design = loaded_and_design(tiny_model(model_type), PAIRS)
    loaded.model.backbone.double()
    ledger = position_ledger(loaded, design)
    assert sorted(ledger.layer.unique()) == [-1, 0, 1, 2, 3]
    assert abs(ledger[(ledger.factor == "residual") & (ledger.layer == -1)].eta_squared.iloc[0]) < 1e-12
    has_segments = model_type in ("bert", "electra", "albert")
    segments = ledger[ledger.factor == "segment"]
    assert segments.omega_squared.notna().all() == has_segments
    assert has_segments or segments.reason.str.startswith("not applicable").all()
    inputs = ledger[(ledger.factor == "position") & (ledger.layer <= 0)]
    if model_type == "modernbert":
        assert inputs.omega_squared.isna().all()
        assert inputs.reason.str.contains("no position table").all()
    else:
        assert (inputs.omega_squared > 0.01).all()
    assert ledger[(ledger.factor == "position") & (ledger.layer > 0)].omega_squared.notna().all()


def test_single_texts_have_no_segment_factor(tiny_model: TinyModel) -> None:
    loaded, design = loaded_and_design(tiny_model("bert"))
    lines = position_ledger(loaded, design).query("factor == 'segment'")
    assert lines.omega_squared.isna().all()
    assert (lines.reason == "not applicable: single texts use one segment").all()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"num_positions": 1}, "at least 2 positions"),
        ({"num_positions": 7}, "an even number for pairs"),
        ({"num_positions": 60}, "more than the 48 positions"),
        ({"num_positions": 40, "texts": PAIRS[:1]}, "too few for blocks of 40"),
    ],
)
def test_what_cannot_be_crossed_is_one_line(tiny_model: TinyModel, numbers, message: str) -> None:
    check_refusals((message, lambda: loaded_and_design(tiny_model("bert"), **{"texts": PAIRS, **numbers})))


def test_the_mode_of_the_model_is_put_back(tiny_model: TinyModel) -> None:
    loaded, design = loaded_and_design(tiny_model("bert"))
    loaded.model.train()
    first = position_ledger(loaded, design)
    assert loaded.model.training
    assert first.equals(position_ledger(loaded, design))  # no dropout
