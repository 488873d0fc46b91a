"""Scores in half precision are as near to fp32 as autocast's; in fp32 they are the model's own, bit for bit."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tests.by_hand import begin
from tests.conftest import FAMILY_CONFIGS
from toolkit.data.batches import evaluation_batches, make_batch
from toolkit.models.classifier import load_classifier
from toolkit.models.positions import prepare_positions
from toolkit.models.regimes import locate_embeddings
from toolkit.training.accelerators import build_accelerator
from toolkit.training.evaluation import evaluate, run_batches, run_over, scoring
from toolkit.training.weights import HalfWeights, halved_names


@pytest.fixture(scope="module")
def scored(tiny_model, tiny_config):
    """A function: family and precision to outputs of `evaluate` and of the model itself under autocast."""

    def score(family, precision):
        config = replace(tiny_config, model=str(tiny_model(family)), precision=precision)
        accelerator, (loaded, data) = build_accelerator(config), begin(config)
        model, split = loaded.model, data.splits["validation"]
        plain = run_over(accelerator, model, lambda batch: model(**batch), split, data)
        return evaluate(accelerator, model, data)["validation"], plain

    return score


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_scores(scored, family):
    fast, exact = scored(family, "no")
    assert np.array_equal(fast, exact)
    half, autocast = scored(family, "bf16")
    error, usual = np.abs(half - exact).max(), np.abs(autocast - exact).max()
    assert 0 < error < max(3 * usual, 2e-3)


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_in_fp32_the_copies_give_the_backbones_own_states(tiny_model, family):
    """Casting to fp32 is no change: what is left of the half-precision path must be exact."""
    model = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2).model.eval()
    embeddings = locate_embeddings(model)
    parameters = dict(embeddings.backbone.named_parameters())
    copies = {name: parameters[name].detach().clone() for name in halved_names(embeddings, torch.device("cpu"))}
    ids = torch.tensor([[1, 9, 8, 12, 2], [1, 30, 2, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    with torch.inference_mode():
        with HalfWeights(embeddings, copies):
            states = model.backbone(**batch).last_hidden_state
        assert torch.equal(states, model.backbone(**batch).last_hidden_state)
        for copy in copies.values():
            copy.zero_()
        with HalfWeights(embeddings, copies):
            assert not torch.equal(model.backbone(**batch).last_hidden_state, states)
        assert torch.equal(model.backbone(**batch).last_hidden_state, states)
    after = dict(embeddings.backbone.named_parameters())
    assert after.keys() == parameters.keys()
    assert all(after[name] is parameter for name, parameter in parameters.items())
    assert not any(module._forward_hooks for module in embeddings.lookups)


def test_scoring_leaves_the_model_as_it_was_also_after_an_error(tiny_config):
    config = replace(tiny_config, precision="bf16")
    accelerator, model = build_accelerator(config), begin(config)[0].model
    before, attention = dict(model.named_parameters()), model.backbone.config._attn_implementation
    values = {name: parameter.data.clone() for name, parameter in before.items()}
    with pytest.raises(IndexError), scoring(accelerator, model):  # noqa: PT012
        assert {p.dtype for p in model.backbone.encoder.parameters()} == {torch.bfloat16, torch.float32}
        model.backbone(input_ids=torch.tensor([[10**9]]))
    assert all(before[name] is parameter for name, parameter in model.named_parameters())
    assert all(torch.equal(values[name], parameter) for name, parameter in model.named_parameters())
    assert model.backbone.config._attn_implementation == attention
    assert not any(module._forward_hooks for module in model.modules())


def first_states(model, data, precision, indices):
    with torch.inference_mode(), precision():
        output = model.backbone(**make_batch(data.splits["train"], indices, data))
    return output.last_hidden_state[:, 0].float()


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_several_threads_compute_what_one_does(tiny_model, tiny_config, family, precision):
    config = replace(tiny_config, model=str(tiny_model(family)), precision=precision)
    accelerator, before, (loaded, data) = build_accelerator(config), torch.get_num_threads(), begin(config)
    model, split, found = loaded.model.train(), data.splits["train"], []
    batches = evaluation_batches(split.lengths, 64)
    assert len(batches) > 5
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            with scoring(accelerator, model) as precision:
                found.append(run_batches(accelerator, model, partial(first_states, model, data, precision), batches))
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        assert model.training
    assert [len(values) for values in found[0]] == [len(batch) for batch in batches]
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True))


def test_threads_share_no_batches_of_a_model_that_hands_something_on_nor_too_few(tiny_config, monkeypatch):
    config = replace(tiny_config, reinject_positions=True)
    accelerator, (loaded, data) = build_accelerator(config), begin(config)
    split = data.splits["train"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # or what follows would have them for good
    monkeypatch.setattr("toolkit.training.evaluation.ThreadPoolExecutor", None)

    def run(number):
        run_one = partial(first_states, loaded.model, data, accelerator.autocast)
        return run_batches(accelerator, loaded.model, run_one, evaluation_batches(split.lengths, 64)[:number])

    assert run(0) == []  # of several processes one may have none
    assert len(run(1)) == 1  # both threads work on it
    with pytest.raises(TypeError):
        run(2)
    prepare_positions(loaded, config)  # its hooks keep the positions of a forward pass for later layers
    assert len(run(2)) == 2
