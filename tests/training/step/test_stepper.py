"""Our step is the plain step: the same losses, norms, updates, exposure and records, for every family."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.by_hand import begin
from tests.conftest import FAMILY_CONFIGS
from tests.training.steppers import PlainStepper, StepperOfGraphs
from toolkit.config import RunConfig
from toolkit.data.batches import training_batches
from toolkit.models.classifier import load_classifier
from toolkit.models.positions import prepare_positions
from toolkit.models.regimes import apply_regime, list_components, locate_embeddings, parse_regime
from toolkit.training.accelerators import build_accelerator
from toolkit.training.graphs import padded_length
from toolkit.training.shortcuts import StandIn
from toolkit.training.step import Stepper
from toolkit.training.step_recorder import Recorder
from toolkit.training.weights import halved_names

REGIMES = ("none", "embeddings", "encoder", "word_embeddings,layers.0")
NUM_STEPS = 6


class Training:
    """NUM_STEPS steps of one kind of stepper."""

    def __init__(self, kind: type, config: RunConfig, *, is_settled: bool = False, gain: float = 1.0) -> None:
        """``gain``: of the layers' weight matrices; those of a tiny random model hardly reach its outputs otherwise."""
        accelerator, (loaded, data) = build_accelerator(config), begin(config)
        self.model = loaded.model
        with torch.no_grad():
            for name, parameter in self.model.backbone.named_parameters():
                parameter *= gain if "layer." in name and parameter.ndim > 1 else 1.0
        self.frozen = apply_regime(
            self.model, parse_regime(config.freeze, tuple(list_components(self.model, loaded.family))), loaded.family
        )
        self.before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        prepare_positions(loaded, config)
        self.recorder = Recorder(locate_embeddings(self.model).parameters)
        self.stepper = kind(accelerator, self.model, data, config, NUM_STEPS, self.recorder)
        self.logs = []
        self.stepper.report = self.logs.append
        torch.manual_seed(3)
        batches = training_batches(data.splits["train"].lengths, config.batch_size, seed=0, epoch=0)
        for step in range(NUM_STEPS):
            self.stepper.take(batches[step % len(batches)], step)
            if is_settled:
                self.stepper.settle()
        self.stepper.settle()
        self.stepper.release()
        self.after = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def logged(self, field: str) -> np.ndarray:
        return np.array([getattr(log, field) for log in self.logs])


@pytest.fixture(scope="module")
def config(tiny_config: RunConfig) -> RunConfig:
    return replace(tiny_config, dropout=0.0, weight_decay=0.1)


def _check_equal(fast: Training, plain: Training, *, tolerance: float) -> None:
    for field in ("loss", "gradient_norm", "learning_rate"):
        assert np.allclose(fast.logged(field), plain.logged(field), rtol=tolerance, atol=tolerance)
    assert fast.after.keys() == plain.after.keys()
    for name, expected in plain.after.items():
        if name.endswith("key.bias"):
            # Softmax takes no notice of it: its gradient is 0 but for rounding, of which Adam makes up to 3.2 rates.
            for training in (fast, plain):
                moves = (training.after[name] - training.before[name]).abs()
                assert (moves <= 3.2 * training.logged("learning_rate").sum()).all()
        else:
            assert torch.allclose(fast.after[name], expected, atol=tolerance), name
        is_moved = not torch.equal(fast.after[name], fast.before[name])
        assert is_moved == (not torch.equal(expected, plain.before[name])), name
    words = locate_embeddings(fast.model).parameters["word_embeddings"]
    (name,) = (name for name, p in fast.model.named_parameters() if p is words)
    is_unseen = torch.ones(len(words), dtype=torch.bool)
    exposures = fast.recorder.exposure().tables, plain.recorder.exposure().tables
    is_unseen[exposures[1]["word_embeddings"].rows] = False
    assert is_unseen.sum() > 20
    assert torch.equal(fast.after[name][is_unseen], plain.after[name][is_unseen])  # decay alone: bit for bit
    assert exposures[0].keys() == exposures[1].keys()
    for own, other in zip(*(tables.values() for tables in exposures), strict=True):
        for part in ("offsets", "rows", "counts"):
            assert np.array_equal(getattr(own, part), getattr(other, part)), part
        assert np.allclose(own.norms, other.norms, rtol=1e-2, atol=tolerance, equal_nan=True)
    assert np.allclose(fast.recorder.clipping_factors, plain.recorder.clipping_factors, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_without_dropout_in_fp32_it_is_the_plain_step_up_to_rounding(tiny_model, config, family):
    own = replace(config, model=str(tiny_model(family)))
    _check_equal(Training(Stepper, own), Training(PlainStepper, own), tolerance=2e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_decay": 0.5, "embedding_learning_rate": 3e-3},
        {"layer_decay": 0.5, "embedding_learning_rate": 3e-3, "freeze": "word_embeddings"},
        {"gradient_accumulation_steps": 4},
        *({"freeze": regime} for regime in REGIMES),
    ],
)
def test_in_every_regime_with_parts_of_a_batch_and_at_rates_of_their_own(config, changes):
    own = replace(config, **changes)
    fast, plain = Training(Stepper, own), Training(PlainStepper, own)
    _check_equal(fast, plain, tolerance=2e-5)
    assert all(torch.equal(fast.after[name], fast.before[name]) for name in fast.frozen)
    for training in (fast, plain):  # what is logged is what moved the embeddings
        assert max(training.recorder.learning_rates) == pytest.approx(own.embedding_learning_rate or own.learning_rate)


@pytest.mark.parametrize("pooling", ["cls", "pooler"])
def test_pairs_of_which_one_state_is_read(tiny_pairs, pooling, monkeypatch):
    """The gain makes the top layer matter, and that nothing but its first token is computed is seen."""
    shapes = []
    watch = torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: shapes.append(x.shape) or watch(self, x))
    own = replace(tiny_pairs, dropout=0.0, pooling=pooling)
    fast = Training(Stepper, own, gain=10)
    assert sum(shape[1] == 1 for shape in shapes if len(shape) == 3) == 4 * NUM_STEPS  # query, output, up and down
    _check_equal(fast, Training(PlainStepper, own, gain=10), tolerance=1e-4)


@pytest.mark.parametrize("freeze", ["encoder", "layers.0-1", "word_embeddings,layers.2"])
def test_frozen_weights_in_half_precision_are_those_of_the_model(config, freeze):
    """Compared with autocast's step: wrong frozen copies would show in the losses and in every update."""
    own = replace(config, freeze=freeze, precision="bf16")
    fast, plain = Training(Stepper, own, gain=10), Training(PlainStepper, own, gain=10)
    assert np.allclose(fast.logged("loss"), plain.logged("loss"), atol=5e-4)
    updates = [
        torch.cat([(run.after[n] - run.before[n]).flatten() for n in run.after if n not in run.frozen])
        for run in (fast, plain)
    ]
    assert torch.cosine_similarity(*updates, dim=0) > 0.98
    assert np.allclose(fast.logged("gradient_norm"), plain.logged("gradient_norm"), rtol=0.01)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("family", ["bert", "electra", "albert"])
def test_positions_are_added_again_in_half_precision_too(tiny_model, config, family, precision):
    """ELECTRA and ALBERT project what is added again, with a weight that half precision has a copy of."""
    for pooling in ("mean", "cls"):
        own = replace(config, model=str(tiny_model(family)), precision=precision, pooling=pooling)
        own = replace(own, reinject_positions=True)
        fast, plain = Training(Stepper, own), Training(PlainStepper, own)
        assert np.allclose(fast.logged("loss"), plain.logged("loss"), atol=0.01)


def test_an_interruption_while_it_gets_ready_leaves_nothing_behind(config, monkeypatch):
    monkeypatch.setattr("toolkit.training.shortcuts.use_attention", Mock(side_effect=KeyboardInterrupt))
    training = object.__new__(Training)
    with pytest.raises(KeyboardInterrupt):
        training.__init__(Stepper, config)
    training.stepper.release()
    assert {n: p.shape for n, p in training.model.named_parameters()} == {
        n: p.shape for n, p in training.before.items()
    }
    assert not any(isinstance(vars(module).get("forward"), StandIn) for module in training.model.modules())


@pytest.mark.parametrize(
    ("family", "pooling"),
    [*((family, "mean") for family in FAMILY_CONFIGS), ("bert", "cls"), ("electra", "cls"), ("bert", "pooler")],
)
def test_in_bf16_it_is_as_near_to_fp32_as_autocast_is(tiny_model, config, family, pooling):
    """Both round to 8 bits, in other places: neither may be several times further from fp32 than the other."""
    own = replace(config, model=str(tiny_model(family)), pooling=pooling)
    exact = Training(PlainStepper, own)
    half = [Training(kind, replace(own, precision="bf16")) for kind in (Stepper, PlainStepper)]
    errors = [
        sum(float((run.after[n] - expected).norm() ** 2) for n, expected in exact.after.items()) ** 0.5 for run in half
    ]
    moved = sum(float((exact.after[n] - exact.before[n]).norm() ** 2) for n in exact.after) ** 0.5
    assert 0 < errors[0] < max(3 * errors[1], 0.1 * moved)
    assert np.allclose(half[0].logged("loss"), exact.logged("loss"), atol=0.02)


def test_the_embedding_parameters_are_never_computed_with_in_half_precision(tiny_model):
    for family in FAMILY_CONFIGS:
        embeddings = locate_embeddings(load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2).model)
        halved = halved_names(embeddings, torch.device("cpu"))
        kept = {name for name, _ in embeddings.backbone.named_parameters()} - set(halved)
        assert set(embeddings.family.embedding_parameters.values()) & kept
        assert {id(p) for p in embeddings.parameters.values()} <= {
            id(p) for name, p in embeddings.backbone.named_parameters() if name in kept
        }


def test_settling_between_steps_changes_nothing_and_leaves_the_model_as_it_was_found(config):
    config = replace(config, pooling="cls")
    fast, settled = Training(Stepper, config), Training(Stepper, config, is_settled=True)
    assert all(torch.equal(fast.after[name], settled.after[name]) for name in fast.after)
    assert all(p.shape == settled.before[name].shape for name, p in settled.model.named_parameters())
    storages = [p.untyped_storage().data_ptr() for p in settled.model.parameters()]
    assert len(set(storages)) == len(storages)
    assert settled.model.backbone.config._attn_implementation != "embedding_drift"
    assert not any("forward" in vars(module) for module in settled.model.modules())


def test_dropout_is_drawn_anew_in_each_step_and_repeated_by_the_seed(config):
    noisy = replace(config, dropout=0.3)
    first, second, quiet = Training(Stepper, noisy), Training(Stepper, noisy), Training(Stepper, config)
    assert np.array_equal(first.logged("loss"), second.logged("loss"))
    assert not np.array_equal(first.logged("loss"), quiet.logged("loss"))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "mpnet"},
        {"model": "gpt2"},
        {"features": "second-to-last"},
        {"features": "second-to-last", "model": "modernbert"},
        {"features": "mix"},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "gradient_accumulation_steps": 2},
    ],
    ids=str,
)
def test_other_families_lower_layers_and_sgd(config, tiny_model, changes):
    """Of what no loss reaches, the blocks above the states that are read, nothing is decayed."""
    own = replace(config, **(changes | {"model": str(tiny_model(changes["model"]))} if "model" in changes else changes))
    _check_equal(Training(Stepper, own), Training(PlainStepper, own), tolerance=2e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"freeze": "embeddings"},
        {"gradient_accumulation_steps": 4},
        {"batch_size": 3},
        {"batch_size": 3, "batch_tokens": 40},
        {"max_train_examples": 60},
        {"pooling": "cls"},
        {"pooling": "last"},
    ],
    ids=str,
)
def test_batches_filled_up_for_graphs_are_the_same_steps(config, changes):
    own = replace(config, **changes)
    filled = Training(StepperOfGraphs, own)
    _check_equal(filled, Training(PlainStepper, own), tolerance=2e-5)
    assert filled.stepper.num_replayed == NUM_STEPS
    # No larger than it must be, and one graph for each shape of a batch.
    shapes = [(key[:2], memory["input_ids"].shape) for key, memory in filled.stepper.memory.items()]
    assert len({*shapes}) == len(shapes)
    sizes = {size for _, (size, _) in shapes}
    assert sizes == {8 if own.batch_tokens else own.batch_size // own.gradient_accumulation_steps}
    assert all(length == padded_length(length) for _, (_, length) in shapes)


def test_words_of_a_token_task_are_filled_up_too(config):
    own = {"batch_size": 8, "max_length": 24, "learning_rate": 1e-3, "weight_decay": 0.1, "dropout": 0.0}
    own = RunConfig(model=config.model, task="roles", max_train_examples=48, precision="no", **own)
    _check_equal(Training(StepperOfGraphs, own), Training(PlainStepper, own), tolerance=2e-5)
