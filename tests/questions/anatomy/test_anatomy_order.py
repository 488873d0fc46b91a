"""[CLS], [SEP], segments and the order of tokens: what each family does, and what planted faults look like."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import FAMILY_CONFIGS
from toolkit.models.classifier import Loaded
from toolkit.questions.anatomy.measure import (
    Anatomy,
    _draw_order,
    compare_segments,
    compare_special_tokens,
    measure_permutation,
)
from toolkit.questions.models import find_parts, read_sentence

Opened = Callable[[str], Loaded]
AnatomyOf = Callable[[str], Anatomy]
families = pytest.mark.parametrize("model_type", [*FAMILY_CONFIGS, "mpnet"])
HAVE_SEGMENTS = ("bert", "electra", "albert")


@families
def test_cls_and_sep_are_equal_only_where_their_rows_are(anatomy_of: AnatomyOf, model_type: str) -> None:
    table = anatomy_of(model_type).special_tokens.table.set_index(["token", "other", "stage"]).is_equal
    has_positions, has_segments = model_type != "modernbert", model_type in HAVE_SEGMENTS
    expected = {
        ("[CLS]", "same place"): True,
        ("[CLS]", "next place"): True,
        ("[SEP]", "same place"): True,
        ("[SEP]", "next place"): not has_positions,
        ("[SEP]", "other end of the pair"): not has_positions,
        ("[SEP]", "other segment"): False if has_segments else None,
    }
    at_output = table.xs("embedding output", level="stage").to_dict()
    assert {pair: at_output.get(pair) for pair in expected} == expected
    stages = table.index.get_level_values("stage")
    assert table[stages == "word row"].all()
    assert not table[stages == "encoder output"].any()


def test_a_full_text_is_compared_with_a_shorter_one(opened: Opened) -> None:
    found = compare_special_tokens(opened("bert"), read_sentence(opened("bert"), "good " * 46))
    lengths = {name: len(text.split()) for name, text in found.others.items()}
    assert lengths == {"same place": 48, "next place": 47, "other segment": 48}
    assert not found.table.is_equal[(found.table.other == "next place") & (found.table.token == "[SEP]")].all()


def test_an_encoder_that_sees_no_context_is_found_out(opened: Opened) -> None:
    """Planted: attention that writes nothing leaves [CLS] the same behind the encoder too."""
    loaded = opened("bert")
    sentence = read_sentence(loaded, "the film is good .")
    with zeroed([m for n, m in loaded.model.backbone.named_modules() if n.endswith("attention.output.dense")]):
        table = compare_special_tokens(loaded, sentence).table
    after = table[(table.token == "[CLS]") & (table.stage == "encoder output")]
    assert len(after) == 2
    assert after.is_equal.all()


@contextmanager
def zeroed(modules: list[torch.nn.Module]) -> Iterator[None]:
    weights = [p for module in modules for p in module.parameters()]
    kept = [p.detach().clone() for p in weights]
    with torch.no_grad():
        for p in weights:
            p.zero_()
    yield
    with torch.no_grad():
        for p, before in zip(weights, kept, strict=True):
            p.copy_(before)


@families
def test_segments_matter_where_there_are_two(anatomy_of: AnatomyOf, model_type: str) -> None:
    segments = anatomy_of(model_type).segments
    assert segments.token_type_ids == (0,) * 7 + (1,) * 7
    if model_type in HAVE_SEGMENTS:
        assert (set(segments.changes.change), segments.note) == ({"swapped", "all 0"}, "")
        assert not segments.changes.is_equal.any()
        assert (segments.changes.relative_difference > 1e-3).all()
    else:
        assert segments.changes.empty
        assert segments.note.startswith("not applicable") or model_type == "roberta"
        assert segments.num_rows == (1 if model_type == "roberta" else 0)


def test_equal_segment_rows_change_nothing(opened: Opened, anatomy_of: AnatomyOf) -> None:
    loaded, sentence = opened("bert"), anatomy_of("bert").sentence
    with zeroed([find_parts(loaded).segment]):  # type: ignore[list-item]
        changes = compare_segments(loaded, sentence).changes
    assert (changes.relative_difference == 0).all()
    assert changes.is_equal.all()


def test_a_single_text_has_one_segment(opened: Opened) -> None:
    changes = compare_segments(opened("bert"), read_sentence(opened("bert"), "the film is good .")).changes
    assert set(changes.change) == {"swapped"}  # all 0 is what it is


STEPS = {
    "deberta-v2": ["", "position table", "relative distances", "convolution"],
    "modernbert": ["", "rotary angles and the local window"],
    "mpnet": ["", "position table", "relative distances"],
}


@families
def test_order_shows_only_through_positions(anatomy_of: AnatomyOf, model_type: str) -> None:
    found = anatomy_of(model_type).permutation
    assert sorted(found.order) == list(range(14))
    assert list(found.table.without) == STEPS.get(model_type, ["", "position table"])
    assert list(found.table.is_equal) == [False] * (len(found.table) - 1) + [True]
    assert found.table.relative_difference.iloc[-1] < 1e-12
    if model_type != "modernbert":
        assert found.table.relative_difference.iloc[0] > 0.1


def test_the_local_window_of_a_long_text_is_taken_away_too(opened: Opened) -> None:
    loaded = opened("modernbert")
    assert loaded.model.backbone.config.local_attention == 128  # type: ignore[union-attr]
    words = " ".join(["the film is good . a doctor saw"] * 25)
    unlimited = replace(loaded, max_length=None)
    assert list(measure_permutation(unlimited, read_sentence(unlimited, words)).table.is_equal) == [False, True]


def test_a_hidden_source_of_order_is_found_out(opened: Opened, anatomy_of: AnatomyOf) -> None:
    """Planted: something adds a ramp over places behind the table."""
    loaded, sentence = opened("bert"), anatomy_of("bert").sentence
    hook = find_parts(loaded).embeddings.register_forward_hook(
        lambda module, inputs, output: output + 1e-3 * torch.arange(output.shape[1])[None, :, None]
    )
    try:
        assert not measure_permutation(loaded, sentence).table.is_equal.any()
    finally:
        hook.remove()


def test_one_token_has_one_order() -> None:
    assert _draw_order(1, 0).tolist() == [0]


@pytest.mark.parametrize("length", [2, 3, 4, 9])
def test_the_order_is_another_one(length: int) -> None:
    straight = np.arange(length)
    for seed in range(20):
        order = _draw_order(length, seed)
        assert sorted(order) == list(straight)
        assert not np.array_equal(order, straight)
        assert length == 2 or not np.array_equal(order, straight[::-1])
