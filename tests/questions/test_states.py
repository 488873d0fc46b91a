"""The stream of hidden states against one plain forward pass, for every family."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import FAMILY_CONFIGS
from toolkit.models.classifier import load_classifier
from toolkit.questions.models import TEXTS, encode_texts, stream_states

WORDS = ["the film is good .", "a", "the teacher saw the doctor .", "good good good"]


@pytest.mark.parametrize("model_type", FAMILY_CONFIGS)
def test_states_are_those_of_each_text_alone(tiny_model: Callable[[str], Path], model_type: str) -> None:
    loaded = load_classifier(str(tiny_model(model_type)), pooling="mean", num_outputs=2)
    data = encode_texts(loaded, [(text,) for text in WORDS])
    seen = set()
    for states in stream_states(loaded, data, data.splits[TEXTS], num_tokens=16):
        for row, index in enumerate(states.indices):
            seen.add(int(index))
            alone = loaded.tokenizer(WORDS[index], return_tensors="pt", return_token_type_ids=False)
            with torch.inference_mode():
                expected = loaded.model.backbone(**alone, output_hidden_states=True).hidden_states
            assert len(states.layers) == len(expected) == 4
            for layer, truth in zip(states.layers, expected, strict=True):
                torch.testing.assert_close(layer[row][states.mask[row]], truth[0], atol=1e-5, rtol=1e-5)
            means = [layer[row] for layer in states.mean_of_tokens()]
            for mean, truth in zip(means, expected, strict=True):
                torch.testing.assert_close(mean, truth[0].mean(dim=0), atol=1e-5, rtol=1e-5)
    assert seen == set(range(len(WORDS)))


def test_the_mode_is_put_back(tiny_model: Callable[[str], Path]) -> None:
    loaded = load_classifier(str(tiny_model("bert")), pooling="mean", num_outputs=2)
    data = encode_texts(loaded, [("good",), ("bad",)])
    loaded.model.backbone.train()
    next(stream_states(loaded, data, data.splits[TEXTS]))
    assert list(stream_states(loaded, data, data.splits[TEXTS]))
    assert loaded.model.backbone.training


@pytest.mark.parametrize("texts", [[], [("a",), ("a", "b")], [("a", "b", "c")]])
def test_texts_must_be_alike(tiny_model: Callable[[str], Path], texts: list[tuple[str, ...]]) -> None:
    loaded = load_classifier(str(tiny_model("bert")), pooling="mean", num_outputs=2)
    with pytest.raises(ValueError, match="all single texts or all pairs"):
        encode_texts(loaded, texts)
