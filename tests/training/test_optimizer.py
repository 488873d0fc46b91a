"""Parameter groups, the schedule, and the optimizer as the log describes it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from toolkit.analysis.adam import replay_decay
from toolkit.config import RunConfig
from toolkit.data.batches import training_batches
from toolkit.models.classifier import load_classifier
from toolkit.pipeline import finetune
from toolkit.training.loop import Plan
from toolkit.training.optimizer import (
    build_optimizer,
    clipping_factor,
    embedding_rate,
    group_parameters,
    learning_rate_factors,
)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict(
            {"embedding": nn.Embedding(5, 4), "LayerNorm": nn.LayerNorm(4), "dense": nn.Linear(4, 4)}
        )
        self.head = nn.Linear(4, 2)


def built(model: nn.Module, **changes: Any) -> tuple[Any, torch.optim.Optimizer]:
    """The parameter groups of a model, and its optimizer."""
    config = RunConfig(**changes)
    groups = group_parameters(model, config)
    return groups, build_optimizer(model, groups, config, torch.device("cpu"))


def test_every_trainable_parameter_is_in_exactly_one_group() -> None:
    model = Small()
    model.backbone["dense"].weight.requires_grad_(False)
    groups, optimizer = built(model, weight_decay=0.1)
    names = [name for group in groups for name in group.names]
    assert sorted(names) == sorted(n for n, p in model.named_parameters() if p.requires_grad)
    decay = {name: group.weight_decay for group in groups for name in group.names}
    assert decay["backbone.embedding.weight"] == decay["head.weight"] == 0.1
    assert decay["backbone.LayerNorm.weight"] == decay["backbone.dense.bias"] == decay["head.bias"] == 0.0
    for group in optimizer.param_groups:  # the moments and the eps of AdamW's paper
        assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_sgd_is_a_loop_written_by_hand_to_the_bit(decay: float) -> None:
    torch.manual_seed(0)
    model = Small()
    by_hand = {name: p.detach().clone() for name, p in model.named_parameters()}
    groups, optimizer = built(model, optimizer="sgd", weight_decay=decay, learning_rate=0.2, head_learning_rate=0.7)
    assert type(optimizer) is torch.optim.SGD
    generator = torch.Generator().manual_seed(1)
    for step in range(7):
        for group, own in zip(optimizer.param_groups, groups, strict=True):
            group["lr"] = (0.7 if own.is_head else 0.2) / (1 + step)
        for own in groups:
            for name in own.names:
                parameter = model.get_parameter(name)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
                rate = (0.7 if own.is_head else 0.2) / (1 + step)
                by_hand[name] = (by_hand[name] * (1 - rate * own.weight_decay)).add(parameter.grad, alpha=-rate)
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), by_hand[name]), name
    assert not any(state.get("momentum_buffer") is not None for state in optimizer.state.values())


@given(st.integers(1, 500), st.floats(0, 1))
def test_schedule_rises_then_falls_and_is_never_zero(num_steps: int, warmup: float) -> None:
    factors = learning_rate_factors(num_steps, warmup)
    assert (len(factors), factors.max()) == (num_steps, pytest.approx(1.0))
    assert (factors > 0).all()
    peak = int(factors.argmax())
    assert (np.diff(factors[: peak + 1]) > 0).all()
    assert (np.diff(factors[peak:]) <= 1e-12).all()


def test_schedule_by_hand() -> None:
    np.testing.assert_allclose(
        learning_rate_factors(10, 0.2), [0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    )
    np.testing.assert_allclose(learning_rate_factors(4, 0.0), [1, 3 / 4, 2 / 4, 1 / 4])


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3))
def test_clipping_factor_is_what_torch_multiplies_by(norm: float, limit: float) -> None:
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.tensor([norm], dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([parameter], limit)
    assert float(parameter.grad) == pytest.approx(norm * clipping_factor(norm, limit), rel=1e-9)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 4), st.none() | st.integers(1, 60))
def test_plan_counts_steps(num_examples: int, batch_size: int, epochs: int, max_steps: int | None) -> None:
    config = RunConfig(epochs=epochs, batch_size=batch_size, max_steps=max_steps, snapshot_steps=3)
    plan, per_epoch = Plan.of(config, np.full(num_examples, 9)), -(-num_examples // batch_size)
    assert plan.epoch_steps == (per_epoch,) * epochs
    assert plan.num_steps == min(epochs * per_epoch, max_steps or 10**9)
    for step in range(plan.num_steps + 1):
        is_end = step % per_epoch == 0 or step == plan.num_steps
        assert (plan.epochs_done(step), plan.is_epoch_end(step)) == (step / per_epoch, is_end)
    assert [s for s in range(1, 10) if plan.is_snapshot(s)] == [3, 6, 9]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=200).map(np.array),
    st.integers(1, 200),
    st.none() | st.integers(1, 9),
)
def test_a_plan_counts_the_batches_that_a_budget_of_tokens_cuts(
    lengths: np.ndarray, num_tokens: int, max_steps: int | None
) -> None:
    plan = Plan.of(RunConfig(epochs=3, batch_size=8, batch_tokens=num_tokens, max_steps=max_steps), lengths)
    sizes = [len(training_batches(lengths, 8, num_tokens, seed=0, epoch=epoch)) for epoch in range(3)]
    assert plan.epoch_steps == tuple(sizes)
    assert plan.num_steps == min(sum(sizes), max_steps or 10**9)
    done = [plan.epochs_done(step) for step in range(sum(sizes) + 1)]
    assert done == pytest.approx(
        [0, *(epoch + (i + 1) / size for epoch, size in enumerate(sizes) for i in range(size))]
    )
    assert [done[end] for end in np.cumsum(sizes)] == [1, 2, 3]


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "electra", "modernbert", "mpnet", "llama", "gpt2"])
@pytest.mark.parametrize("own", [None, 5e-3])
def test_a_layer_learns_slower_than_the_one_above_it(
    model_type: str, own: float | None, tiny_model: Callable[[str], Path]
) -> None:
    """The oracle reads the number of the layer, of which there are three, in the parameter's name."""
    loaded = load_classifier(str(tiny_model(model_type)), pooling="mean", num_outputs=2)
    config = RunConfig(learning_rate=1e-3, layer_decay=0.5, embedding_learning_rate=own, head_learning_rate=0.1)
    groups = group_parameters(loaded.model, config)
    rates = {name: group.rate for group in groups for name in group.names}
    assert sorted(rates) == sorted(n for n, p in loaded.model.named_parameters() if p.requires_grad)
    embeddings = {f"backbone.{name}" for name in loaded.family.embedding_parameters.values()}
    for name, rate in rates.items():
        number = re.search(r"\.(\d+)\.", name)
        if name.startswith("head"):
            expected = 0.1
        elif name in embeddings:
            expected = own or 1e-3 / 8
        elif "embeddings_project" in name:
            expected = 1e-3 / 8
        else:
            expected = 1e-3 / 2 ** (2 - int(number[1])) if number else 1e-3
        assert rate == pytest.approx(expected, rel=1e-12), name
    assert embedding_rate(loaded.model, groups) == pytest.approx(own or 1e-3 / 8, rel=1e-12)


@pytest.mark.parametrize("own", [{"embedding_learning_rate": 1e-2}, {"layer_decay": 0.5}])
def test_what_the_log_says_replays_decay_to_the_bit(
    own: dict[str, float], tiny_config: RunConfig, tmp_path: Path
) -> None:
    """And the rate of the backbone, which it said before, does not."""
    run = finetune(replace(tiny_config, **own, weight_decay=0.1, output_dir=str(tmp_path)))
    first, last = (np.asarray(run.trajectory.snapshots[i].tensors["word_embeddings"]) for i in (0, -1))
    exposure, log = run.trajectory.exposure, run.optimizer_log
    unseen = exposure.tables["word_embeddings"].step_counts(len(first)) == 0
    np.testing.assert_array_equal(replay_decay(first[unseen], log, "word_embeddings"), last[unseen])
    rates = tiny_config.learning_rate * log.learning_rates / log.learning_rates.max()
    other = replay_decay(first[unseen], replace(log, learning_rates=rates), "word_embeddings")
    assert not np.array_equal(other, last[unseen])


@pytest.mark.parametrize("own", [{"embedding_learning_rate": 1e-2}, {"layer_decay": 0.5}])
def test_rates_of_the_backbone_are_no_matter_of_a_head_stage(
    own: dict[str, float], tiny_config: RunConfig, tmp_path: Path
) -> None:
    """LP-FT: the head that is trained first has none, and what follows starts from the same head."""
    runs = [
        finetune(replace(tiny_config, head_epochs=1, max_steps=1, output_dir=str(tmp_path), **changes))
        for changes in ({}, own)
    ]
    firsts = [run.predictions[run.predictions["epoch"] == 0].reset_index(drop=True) for run in runs]
    pd.testing.assert_frame_equal(*firsts)
    assert runs[1].optimizer_log.learning_rates[0] != runs[0].optimizer_log.learning_rates[0]
