"""Which rows get a gradient: laws of the sum, the rows of the text and no others, freezing, padding."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.conftest import FAMILY_CONFIGS
from toolkit.models.classifier import Loaded
from toolkit.models.regimes import apply_regime, list_components, parse_regime
from toolkit.questions.anatomy.measure import NUM_PADDING, Anatomy, _differentiate, measure_gradients
from toolkit.questions.models import find_parts, in_float64, read_sentence

Opened = Callable[[str], Loaded]
families = pytest.mark.parametrize("model_type", FAMILY_CONFIGS)


@families
def test_the_rows_of_the_text_and_no_others_get_a_gradient(
    opened: Opened, anatomy_of: Callable[[str], Anatomy], model_type: str
) -> None:
    loaded, found = opened(model_type), anatomy_of(model_type)
    gradients, sentence = found.gradients, found.sentence
    tables = gradients.parameters[gradients.parameters.num_rows.notna()]
    assert list(tables.parameter) == list(find_parts(loaded).tables)
    assert (tables.num_used == tables.num_with_gradient).all()
    assert gradients.parameters.requires_grad.all()
    assert (gradients.parameters.gradient_norm > 0).all()
    for parameter, rows in {"word_embeddings": sentence.words, "position_embeddings": sentence.positions}.items():
        lines = gradients.rows[gradients.rows.parameter == parameter]
        if rows is not None:
            assert set(lines.row[lines.gradient_norm > 0]) == set(rows)
            assert (lines.num_tokens[lines.gradient_norm > 0] > 0).all()
            assert lines.num_tokens.sum() == len(sentence)


@families
def test_gradients_are_those_of_plain_backward(opened: Opened, model_type: str) -> None:
    loaded = opened(model_type)
    sentence = read_sentence(loaded, "the film is good .")
    found = measure_gradients(loaded, sentence).parameters.set_index("parameter").gradient_norm
    backbone = loaded.model.backbone
    ids = torch.as_tensor(sentence.words)[None]
    states = backbone(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    direction = torch.as_tensor(np.random.default_rng(0).standard_normal(states.shape[1])).float()
    (states.mean(dim=0) @ direction).backward()
    for name, parameter in loaded.family.embedding_parameters.items():
        if name in found:
            truth = backbone.get_parameter(parameter).grad
            assert found[name] == pytest.approx(float(truth.norm()), rel=1e-3)  # type: ignore[union-attr]
    backbone.zero_grad()


@families
def test_the_tables_share_one_gradient(opened: Opened, model_type: str) -> None:
    """Every part enters by addition, so that the rows of each table sum to the same vector."""
    loaded = opened(model_type)
    sentence = read_sentence(loaded, "the film is good .", "the doctor saw a teacher .")
    with in_float64(loaded):
        found = _differentiate(loaded, sentence, len(sentence), 0)
    sums = [found[name].sum(axis=0) for name in find_parts(loaded).tables]  # type: ignore[union-attr]
    for each in sums[1:]:
        np.testing.assert_allclose(each, sums[0], atol=1e-12 * np.abs(sums[0]).max())


@families
def test_padding_gets_none_and_padding_idx_is_why(
    opened: Opened, anatomy_of: Callable[[str], Anatomy], model_type: str
) -> None:
    gradients = anatomy_of(model_type).gradients
    assert gradients.num_padding == NUM_PADDING
    padding = gradients.rows[gradients.rows.reason.str.contains("padding")]
    assert len(padding) == (1 if model_type == "modernbert" else 2 if model_type == "roberta" else 3)
    assert (padding.gradient_norm == 0).all()
    dropped = padding[padding.reason == "padding_idx: its gradient is dropped"]  # RoBERTa's position table has one too
    assert list(dropped.parameter) == ["word_embeddings", *["position_embeddings"] * (model_type == "roberta")]
    assert gradients.padding_row == 0
    loaded = opened(model_type)
    word = find_parts(loaded).word
    word.padding_idx = None
    try:
        control = measure_gradients(loaded, anatomy_of(model_type).sentence)
    finally:
        word.padding_idx = 0
    rows = control.rows[control.rows.parameter == "word_embeddings"].set_index("row")
    assert (control.padding_row, rows.gradient_norm[0]) == (None, 0)
    assert rows.reason[0] == "padding only: behind the mask"


def test_single_sentences_leave_segment_one_at_zero(opened: Opened) -> None:
    loaded = opened("bert")
    rows = measure_gradients(loaded, read_sentence(loaded, "the film is good .")).rows
    segments = rows[rows.parameter == "token_type_embeddings"].set_index("row")
    assert segments.gradient_norm[0] > 0 == segments.gradient_norm[1]
    assert segments.reason[1] == "no token of this text uses it"


@pytest.mark.parametrize(("freeze", "frozen"), [("position_embeddings", 1), ("embeddings", 5), ("backbone", 5)])
def test_frozen_parameters_have_no_gradient(opened: Opened, freeze: str, frozen: int) -> None:
    loaded = opened("bert")
    leaves = tuple(list_components(loaded.model, loaded.family))
    apply_regime(loaded.model, parse_regime(freeze, leaves), loaded.family)
    try:
        gradients = measure_gradients(loaded, read_sentence(loaded, "the film is good ."))
    finally:
        loaded.model.requires_grad_(True)
    is_frozen = ~gradients.parameters.requires_grad
    assert is_frozen.sum() == frozen
    assert gradients.parameters.gradient_norm[is_frozen].isna().all()
    assert (gradients.parameters.gradient_norm[~is_frozen] > 0).all()
    assert (gradients.rows.reason[gradients.rows.parameter == "position_embeddings"] == "frozen").all()


def test_a_text_that_fills_the_table_has_no_room_for_padding(opened: Opened) -> None:
    loaded = opened("roberta")
    sentence = read_sentence(loaded, "good " * 45)
    assert len(sentence) == loaded.max_length == 47
    gradients = measure_gradients(loaded, sentence)
    assert gradients.num_padding == 0
