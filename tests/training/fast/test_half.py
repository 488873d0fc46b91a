"""Scores in half precision are as near to fp32 as autocast's; in fp32 they are the model's own, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from toolkit.data.tasks import load_task
from toolkit.models.classifier import load_classifier
from toolkit.models.locate import locate_embeddings
from toolkit.training.accelerators import build_accelerator
from toolkit.training.encoding import encode_task
from toolkit.training.evaluation import evaluate, run_over, scorer
from toolkit.training.fast.half import HalfBackbone, halved_names

FAMILIES = ("bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "modernbert")


@pytest.fixture(scope="module")
def scored(tiny_model, tiny_config):
    """A function: family and precision to outputs of `evaluate` and of the model itself under autocast."""

    def score(family, precision):
        config = replace(tiny_config, model=str(tiny_model(family)), precision=precision)
        accelerator, task = build_accelerator(config), load_task(config)
        model = load_classifier(config.model, pooling="mean", num_outputs=task.num_outputs).model
        data = encode_task(task, load_classifier(config.model, pooling="mean", num_outputs=2), config.max_length)
        split = data.splits["validation"]
        plain = run_over(accelerator, model, lambda batch: model(**batch), split, data)
        return evaluate(accelerator, model, data)["validation"], plain

    return score


@pytest.mark.parametrize("family", FAMILIES)
def test_scores(scored, family):
    fast, exact = scored(family, "no")
    assert np.array_equal(fast, exact)
    half, autocast = scored(family, "bf16")
    error, usual = np.abs(half - exact).max(), np.abs(autocast - exact).max()
    assert 0 < error < max(3 * usual, 2e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_fp32_the_copies_give_the_backbones_own_states(tiny_model, family):
    """Casting to fp32 is no change: what is left of the half-precision path must be exact."""
    model = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2).model.eval()
    embeddings = locate_embeddings(model)
    parameters = dict(embeddings.backbone.named_parameters())
    copies = {name: parameters[name].detach().clone() for name in halved_names(embeddings)}
    ids = torch.tensor([[1, 9, 8, 12, 2], [1, 30, 2, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    with torch.inference_mode():
        states = HalfBackbone(embeddings, copies, torch.float32)(**batch).last_hidden_state
        assert torch.equal(states, model.backbone(**batch).last_hidden_state)
        for copy in copies.values():
            copy.zero_()
        assert not torch.equal(HalfBackbone(embeddings, copies, torch.float32)(**batch).last_hidden_state, states)
    assert not any(module._forward_hooks for module in [embeddings.module])


def test_a_scorer_keeps_the_weights_of_its_moment(tiny_config):
    config = replace(tiny_config, precision="bf16")
    accelerator, task = build_accelerator(config), load_task(config)
    model = load_classifier(config.model, pooling="mean", num_outputs=task.num_outputs).model.eval()
    batch = {"input_ids": torch.tensor([[1, 9, 8, 2]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    with torch.inference_mode():
        score = scorer(accelerator, model)
        before = score(batch)
        weight = model.backbone.encoder.layer[0].intermediate.dense.weight
        weight += 1
        assert torch.equal(score(batch), before)
        assert not torch.equal(scorer(accelerator, model)(batch), before)
