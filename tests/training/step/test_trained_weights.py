"""Which weights a step takes, in which order, and that a stepper goes on from another's state with the same bits."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.by_hand import begin
from tests.training.step.test_stepper import NUM_STEPS, Training
from toolkit import finetune
from toolkit.config import RunConfig
from toolkit.data.batches import training_batches
from toolkit.models.regimes import apply_regime, list_components, locate_embeddings, parse_regime
from toolkit.training import step as step_module
from toolkit.training.accelerators import build_accelerator
from toolkit.training.optimizer import group_parameters
from toolkit.training.step import Stepper
from toolkit.training.step_recorder import Recorder


@pytest.fixture(scope="module")
def config(tiny_config: RunConfig) -> RunConfig:
    return replace(tiny_config, dropout=0.1, weight_decay=0.1)


def begun(config, change=lambda model: None):
    """A stepper that has taken no step, of a model that ``change`` has been at."""
    accelerator, (loaded, data) = build_accelerator(config), begin(config)
    change(loaded.model)
    model = loaded.model
    apply_regime(model, parse_regime(config.freeze, tuple(list_components(model, loaded.family))), loaded.family)
    return Stepper(accelerator, model, data, config, NUM_STEPS, Recorder(locate_embeddings(model).parameters))


def trained_names(stepper):
    return [name for group in stepper.groups for name in group.names]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_what_no_loss_reaches_is_neither_updated_nor_decayed(config, optimizer, precision):
    """In what comes of second-to-last states the block above has no part."""
    own = replace(config, features="second-to-last", optimizer=optimizer, precision=precision)
    trained = Training(Stepper, own)
    above = {name for name in trained.before if name.startswith("backbone.encoder.layer.2.")}
    assert len(above) == 16
    assert above.isdisjoint(trained_names(trained.stepper))
    assert above | set(trained_names(trained.stepper)) == trained.before.keys()
    assert sum(flat.values.numel() for flat in trained.stepper.flat) < sum(
        p.numel() for name, p in trained.before.items() if name not in above
    )  # of the word table some rows alone
    is_same = {name: torch.equal(trained.after[name], before) for name, before in trained.before.items()}
    assert {name for name, same in is_same.items() if same} == above


def test_a_stepper_looks_at_what_a_loss_reaches_without_a_trace(config):
    """No random bits are drawn of those that training draws, no gradient is left, and the model is in no other mode."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    stepper = begun(replace(config, dropout=0.5), lambda model: torch.manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in stepper.model.parameters())


def tie(model):
    """Another module reads the word table too, as an output layer would."""
    model.head.decoder = torch.nn.Linear(16, 8, bias=False)
    model.head.decoder.weight = model.backbone.embeddings.word_embeddings.weight


def scale(model):
    """What comes of the table may be something else than its rows, as Gemma's."""
    model.backbone.embeddings.word_embeddings.__class__ = type("Scaled", (torch.nn.Embedding,), {})


@pytest.mark.parametrize(
    ("change", "fields", "is_compact"),
    [
        (lambda model: None, {}, True),
        (tie, {}, False),
        (scale, {}, False),
        (lambda model: None, {"freeze": "word_embeddings"}, False),
        (lambda model: None, {"lora": ("word_embeddings",), "lora_rank": 2}, False),
        (lambda model: None, {"lora": ("query",), "lora_rank": 2}, False),  # of which the table is frozen
        (lambda model: None, {"train_rows": "new"}, False),
        (lambda model: None, {"objective": "mlm", "init": "random"}, False),
    ],
    ids=["plain", "tied", "scaled", "frozen", "adapted", "beside adapters", "new rows", "masked tokens"],
)
def test_a_word_table_is_cut_to_the_rows_in_use_where_nothing_else_uses_it(
    monkeypatch, config, tmp_path, change, fields, is_compact
):
    seen, compact = [], Stepper._compact_words
    monkeypatch.setattr(Stepper, "_compact_words", lambda self: seen.append(compact(self)) or seen[-1])
    if fields.keys() & {"lora", "train_rows", "objective"}:
        (tmp_path / "new.txt").write_text("fil\nbori\n")
        fields = fields | {"add_tokens": str(tmp_path / "new.txt")} if "train_rows" in fields else fields
        finetune(replace(config, max_steps=2, output_dir=str(tmp_path), **fields))
    else:
        begun(replace(config, **fields), change)
    assert [words is not None for words in seen] == [is_compact]


def test_a_tied_table_learns_from_both_that_read_it(config):
    """The rows that no text uses have a gradient from the other side alone: a small table would leave them."""

    def tie_outputs(model):
        tie(model)
        forward = model.head.forward
        model.head.forward = lambda features, *others: (
            forward(features, *others) + model.head.decoder(features).sum(1)[:, None] * torch.tensor([1.0, -1.0])
        )

    stepper = begun(replace(config, weight_decay=0.0), tie_outputs)
    table = stepper.model.backbone.embeddings.word_embeddings.weight
    before = table.detach().clone()
    steps(stepper, 0, 2)
    assert (table != before).any(dim=1).all()


def steps(stepper, start, end):
    """Those from ``start`` to ``end``, with random bits that depend on the first alone; the losses of them."""
    losses, stepper.report = [], lambda log: losses.append((log.step, log.loss, log.gradient_norm))
    torch.manual_seed(start)
    lengths, size = stepper.data.splits["train"].lengths, stepper.config.batch_size
    batches = training_batches(lengths, size, seed=0, epoch=0)
    for step in range(start, end):
        stepper.take(batches[step % len(batches)], step)
    stepper.settle()
    return losses


WAYS = [
    {},
    {"optimizer": "sgd"},
    {"precision": "bf16"},
    {"precision": "bf16", "optimizer": "sgd", "pooling": "cls"},
    {"features": "second-to-last"},
    {"freeze": "word_embeddings,layers.0"},
    {"freeze": "encoder", "layer_decay": 0.5},
    {"gradient_accumulation_steps": 2},
]


@pytest.mark.parametrize("changes", WAYS, ids=str)
def test_from_its_state_another_stepper_goes_on_with_the_same_bits(config, changes):
    own = replace(config, **changes)
    first, second = begun(own), begun(replace(own, seed=1))  # whose own weights must not matter
    steps(first, 0, 3)
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    assert all(name == "rest" or name.partition(".")[0].isdecimal() for name in state)
    expected = steps(first, 3, NUM_STEPS)
    with torch.no_grad():
        for name, parameter in second.model.named_parameters():  # frozen ones are the run's to restore
            if name not in trained_names(second):
                parameter.copy_(dict(first.model.named_parameters())[name])
    steps(second, 0, 1)  # moments that must not matter either
    second.restore(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in second.state().items())
    assert steps(second, 3, NUM_STEPS) == expected
    for stepper in (first, second):
        stepper.release()
    weights = [dict(stepper.model.named_parameters()) for stepper in (first, second)]
    assert [name for name in weights[0] if not torch.equal(weights[0][name], weights[1][name])] == []
    assert expected != steps(begun(own), 3, NUM_STEPS)


@pytest.mark.parametrize("changes", WAYS, ids=str)
def test_groups_hold_their_weights_in_the_order_of_the_model(config, changes):
    """So that a state means the same in every process, and a sum over a group is one sum."""
    stepper = begun(replace(config, **changes))
    names, trained = trained_names(stepper), set(trained_names(stepper))
    groups = group_parameters(stepper.model, stepper.config)
    assert names == [name for group in groups for name in group.names if name in trained]
    assert len(names) == len(trained)
    for group, flat in zip(stepper.groups, stepper.flat, strict=True):
        order = [name for name in group.names if name in flat.copies]
        assert list(flat.gradients) == [*order, *(name for name in group.names if name not in flat.copies)]


REASONS = [
    ({}, ""),
    ({"precision": "bf16"}, ""),
    ({"freeze": "embeddings", "pooling": "cls"}, ""),
    ({"gradient_accumulation_steps": 2, "batch_tokens": 200}, ""),
    ({"optimizer": "sgd"}, "SGD"),
    ({"reinject_positions": True}, "positions are added again by hooks"),
    ({"features": "mix"}, "a family or a way of reading it that was not tried"),
]


@pytest.mark.parametrize(("changes", "reason"), REASONS, ids=str)
def test_why_steps_are_not_replayed_from_graphs(monkeypatch, config, changes, reason):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "steps are not replayed")  # nobody without a GPU misses them
        stepper = begun(replace(config, **changes))
    assert stepper.why_not_captured == "no CUDA device"
    assert stepper.graph_facts() is None
    stepper.device = SimpleNamespace(type="cuda")
    assert stepper.graph_facts() == {"share_of_steps": 0, "reason": "no CUDA device"}
    stepper.num_replayed, stepper.num_steps = 3, 4
    assert stepper.graph_facts() == {"share_of_steps": 0.75, "reason": "no CUDA device"}
    assert stepper._why_not_captured() == reason
    monkeypatch.setattr(step_module, "MAY_CAPTURE", False)
    assert stepper._why_not_captured() == "turned off"
    monkeypatch.undo()
    stepper.accelerator = SimpleNamespace(num_processes=2, mixed_precision="no")
    assert stepper._why_not_captured() == "several processes"
