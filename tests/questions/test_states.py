"""The stream of hidden states against one plain forward pass, for every family."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import FAMILY_CONFIGS
from tests.questions.opened import opened
from tests.refusals import check_refused
from toolkit.questions.models import TEXTS, stream_states

WORDS = ["the film is good .", "a", "the teacher saw the doctor .", "good good good"]


@pytest.mark.parametrize("model_type", FAMILY_CONFIGS)
def test_states_are_those_of_each_text_alone(tiny_model: Callable[[str], Path], model_type: str) -> None:
    loaded, data = opened(tiny_model(model_type), [(text,) for text in WORDS])
    seen = set()
    for states in stream_states(loaded, data, data.splits[TEXTS], num_tokens=16):
        for row, index in enumerate(states.indices):
            seen.add(int(index))
            alone = loaded.tokenizer(WORDS[index], return_tensors="pt", return_token_type_ids=False)
            with torch.inference_mode():
                expected = loaded.model.backbone(**alone, output_hidden_states=True).hidden_states
            assert len(states.layers) == len(expected) == 4
            for layer, mean, truth in zip(states.layers, states.mean_of_tokens(), expected, strict=True):
                torch.testing.assert_close(layer[row][states.mask[row]], truth[0], atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(mean[row], truth[0].mean(dim=0), atol=1e-5, rtol=1e-5)
    assert seen == set(range(len(WORDS)))


def test_the_mode_is_put_back(tiny_model: Callable[[str], Path]) -> None:
    loaded, data = opened(tiny_model("bert"), [("good",), ("bad",)])
    loaded.model.backbone.train()
    next(stream_states(loaded, data, data.splits[TEXTS]))
    assert list(stream_states(loaded, data, data.splits[TEXTS]))
    assert loaded.model.backbone.training


@pytest.mark.parametrize("texts", [[], [("a",), ("a", "b")], [("a", "b", "c")]])
def test_texts_must_be_alike(tiny_model: Callable[[str], Path], texts: list[tuple[str, ...]]) -> None:
    check_refused("all single texts or all pairs", opened, tiny_model("bert"), texts)
