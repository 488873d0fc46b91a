"""Heads on cached features against a loop written by hand; early stopping; texts of a pair that are read apart."""

import inspect
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional

from tests.by_hand import begin
from tests.by_hand import logits as answers_of
from tests.refusals import check_refusals, check_refused
from tests.training.recorded_texts import totals
from tests.training.test_linear_probe import OneScale, encoded
from toolkit import finetune
from toolkit.config import RunConfig, TrainingConfig, digest, resolve_head_training
from toolkit.data.batches import make_batch, training_batches
from toolkit.models.heads import build_head, constant_loss, entry_of, example_losses
from toolkit.models.positions import prepare_positions
from toolkit.models.tuned import load_tuned
from toolkit.questions.models import stream_states
from toolkit.reporting import run_screen
from toolkit.training import features as features_module
from toolkit.training.evaluation import extract_features
from toolkit.training.features import (
    HELD_OUT_SHARE,
    LEAST_HELD_OUT,
    hold_out,
    keep_the_better,
    standardised,
    train_head_until_it_stops,
)
from toolkit.training.resume import Resumer
from toolkit.training.step_recorder import Recorder


def run(config, folder, **changes):
    return finetune(replace(config, output_dir=str(folder), **changes), screen=run_screen)


def logits(finished, epoch):
    own = finished.predictions.query("epoch == @epoch and split == 'validation'").sort_values("id")
    return np.stack(own["scores"].to_list())


def by_hand(config):
    """What a run needs, by transformers and torch alone.

    Returns (float64 features of train and of validation (sides, examples, layers, hidden), labels of train, the fresh
    head of the run's draw, lengths of train).
    """
    (loaded, data), found = begin(config), []
    loaded.model.eval()
    for name in ("train", "validation"):
        texts = data.task.splits[name].texts
        columns = [[t[side] for t in texts] for side in range(len(texts[0]))]
        sides = []
        for group in [[c] for c in columns] if config.pair_encoding == "separate" else [columns]:
            batch = loaded.tokenizer(*group, padding=True, return_tensors="pt")
            with torch.no_grad():
                states = loaded.model.backbone(**batch, output_hidden_states=True).hidden_states
            mask = batch["attention_mask"].unsqueeze(-1)
            sides.append(torch.stack([(x * mask).sum(1) / mask.sum(1) for x in states], 1))
        found.append(torch.stack(sides, 1).double())
    train = data.splits["train"]
    return *found, torch.from_numpy(train.labels), loaded.model.head, train.lengths


def train_by_hand(function, parameters, x, labels, batches, rates, *, is_regression=False):
    """AdamW as its paper has it, written out; weights (more than one dimension) decay by .01."""
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    for step, (rows, rate) in enumerate(zip(batches, rates, strict=True), start=1):
        out = function(x[rows])
        y = labels[rows]
        loss = ((out[:, 0] - y) ** 2).mean() if is_regression else functional.cross_entropy(out, y)
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        factor = min(1.0, 1.0 / (float(norm) + 1e-6))
        with torch.no_grad():
            for p, g, (m, v) in zip(parameters, gradients, moments, strict=True):
                g = g * factor
                if p.ndim > 1:
                    p.mul_(1 - rate * 0.01)
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.999).add_(g * g, alpha=0.001)
                p.sub_(rate * (m / (1 - 0.9**step)) / (torch.sqrt(v / (1 - 0.999**step)) + 1e-8))


def functions_of(config, head):
    """The head written by hand, in float64, over (sides, examples, layers, hidden), and its parameters."""
    given = {name: p.detach().double().clone().requires_grad_() for name, p in head.named_parameters()}

    def vector(layers):
        if config.features != "mix":
            return layers[:, -1]
        shares = torch.exp(given["mix.weights"]) / torch.exp(given["mix.weights"]).sum()
        return given["mix.gamma"] * (layers * shares[:, None]).sum(1)

    def inputs(x):
        sides = [vector(x[:, side]) for side in range(x.shape[1])]
        if len(sides) == 1:
            return sides[0]
        u, v = sides
        return torch.cat([u, v, (u - v).abs(), u * v], 1)

    def outputs(z):
        if "weight" in given:
            return z @ given["weight"].T + given["bias"]
        z = z @ given["layers.0.weight"].T + given["layers.0.bias"]
        if config.head == "mlp":
            z = torch.tanh(z) @ given["layers.3.weight"].T + given["layers.3.bias"]
        return z

    return inputs, outputs, list(given.values()), given


RECIPES = [
    {"features": "mix"},
    {"head": "mlp"},
    {"features": "mix", "head": "mlp", "pair_encoding": "separate"},
    {"pair_encoding": "separate"},
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: "-".join(map(str, r.values())))
def test_a_head_of_some_epochs_is_the_loop_written_by_hand(tiny_pairs, tmp_path, recipe):
    config = replace(tiny_pairs, freeze="backbone", dropout=0.0, epochs=3, head_learning_rate=0.01, seed=3, **recipe)
    finished = run(config, tmp_path)
    x, held, labels, head, lengths = by_hand(config)
    inputs, outputs, parameters, _ = functions_of(config, head)
    batches = [torch.from_numpy(b) for e in range(3) for b in training_batches(lengths, 16, seed=3, epoch=e)]
    rise = math.ceil(0.1 * len(batches))
    rates = [0.01 * ((s + 1) / rise if s < rise else (len(batches) - s) / (len(batches) - rise)) for s in range(12)]
    np.testing.assert_allclose(logits(finished, 0), outputs(inputs(held)).detach(), rtol=1e-5, atol=1e-6)
    train_by_hand(lambda x: outputs(inputs(x)), parameters, x, labels, batches, rates)
    np.testing.assert_allclose(logits(finished, 3), outputs(inputs(held)).detach(), rtol=1e-4, atol=1e-4)
    assert np.abs(logits(finished, 3) - logits(finished, 0)).max() > 0.05  # there was something to learn


@pytest.mark.parametrize("recipe", [{}, *RECIPES], ids=lambda r: "-".join(map(str, r.values())) or "default")
def test_early_stopping_is_the_loop_written_by_hand(tiny_pairs, tmp_path, recipe, monkeypatch):
    monkeypatch.setattr(features_module, "MOST_EPOCHS", 6)
    monkeypatch.setattr(features_module, "MOST_STEPS", 1)
    monkeypatch.setattr(features_module, "linear_probe", lambda *_: None)  # so that the trained head is kept
    config = replace(tiny_pairs, freeze="backbone", dropout=0.0, head_training="early-stopping", seed=2, **recipe)
    config = replace(config, head_learning_rate=0.01, save_model=True)
    finished = run(config, tmp_path)
    x, validation, labels, head, lengths = by_hand(config)
    inputs, outputs, parameters, named = functions_of(config, head)
    held = hold_out(labels.numpy(), len(x), 2)
    kept = np.setdiff1d(np.arange(len(x)), held)
    with torch.no_grad():
        z = inputs(x[kept])
    mean, scale = z.mean(0), z.std(0, correction=0)
    first = "" if "weight" in named else "layers.0."
    per_epoch = math.ceil(len(kept) / 16)
    losses, answers = [], []

    def function(x):
        return outputs((inputs(x) - mean) / scale)

    batches = [kept[b] for e in range(6) for b in training_batches(lengths[kept], 16, seed=2, epoch=e)]
    rates = [0.01 * min(1.0, (s + 1) / math.ceil(0.1 * per_epoch)) for s in range(len(batches))]
    for epochs in range(1, 7):  # from the start each time, so that AdamW's moments are those of an unbroken run
        inputs, outputs, parameters, named = functions_of(config, head)
        with torch.no_grad():
            named[first + "bias"] += named[first + "weight"] @ mean
            named[first + "weight"] *= scale
        steps = epochs * per_epoch
        train_by_hand(function, parameters, x, labels, [torch.from_numpy(b) for b in batches[:steps]], rates[:steps])
        losses.append(functional.cross_entropy(function(x[held]), labels[held]).item())
        answers.append(function(validation).detach().numpy())
    stopped = finished.manifest["head_training"]
    np.testing.assert_allclose(stopped["held_out_losses"], losses[: stopped["epochs_tried"]], rtol=1e-3, atol=1e-4)
    best = stopped["epochs"]
    np.testing.assert_allclose(logits(finished, best), answers[best - 1], rtol=1e-3, atol=1e-3)
    # The head that was kept reads features as they are.
    again = answers_of(load_tuned(finished), finished)
    np.testing.assert_allclose(again, logits(finished, best), rtol=1e-4, atol=1e-5)
    model = finished.manifest["model"]
    said = (model["features"], model["pair_encoding"], model["head"].split()[0].rstrip(","))
    assert said == (config.features, config.pair_encoding, config.head)


def test_the_head_that_is_kept_is_scikit_learns_whatever_the_labels_of_scored_splits(tiny_config, tmp_path):
    config = replace(tiny_config, freeze="backbone", head_training="early-stopping", save_model=True)
    table = pd.read_csv(config.validation_file, sep="\t").assign(label=lambda own: 1 - own["label"])
    table.to_csv(tmp_path / "others.tsv", sep="\t", index=False)
    other = replace(config, validation_file=str(tmp_path / "others.tsv"), test_file=())
    one, two = (run(each, tmp_path / str(i)) for i, each in enumerate((config, other)))
    told = one.manifest["head_training"]
    assert (told["chosen"], told) == ("convex", two.manifest["head_training"])
    assert len({(each.path / "model" / "head.safetensors").read_bytes() for each in (one, two)}) == 1
    x, validation, labels, _, _ = by_hand(config)
    held = hold_out(y := labels.numpy(), len(x), config.seed)
    scale = StandardScaler() if told["convex"]["is_standardised"] else OneScale()
    own = make_pipeline(scale, LogisticRegression(C=told["convex"]["strength"], tol=1e-8, max_iter=9999))
    inputs, scored = x[:, 0, -1].numpy(), validation[:, 0, -1].numpy()
    values = own.fit(np.delete(inputs, held, axis=0), np.delete(y, held)).decision_function(inputs[held])
    assert told["convex"]["held_out_loss"] == pytest.approx(
        np.logaddexp(0, values * (1 - 2 * y[held])).mean(), rel=1e-3
    )
    for found in (logits(one, told["epochs"]), answers_of(load_tuned(one), one)):
        expected = own.fit(inputs, y).decision_function(scored)
        np.testing.assert_allclose(np.diff(found)[:, 0], expected, rtol=1e-2, atol=1e-2)


def test_an_early_stopped_run_holds_the_best_head_and_the_steps_to_it(tiny_config, tmp_path):
    config = replace(tiny_config, freeze="backbone", head_training="auto", epochs=None, head_learning_rate=0.05)
    finished = run(config, tmp_path)
    stopped = finished.manifest["head_training"]
    assert finished.config.head_training == stopped["mode"] == "early-stopping"
    assert stopped["num_held_out"] == 20  # of 64: a tenth would be 6
    losses, best = stopped["held_out_losses"], stopped["epochs"]
    assert len(losses) == stopped["epochs_tried"] <= stopped["most_epochs"]
    assert losses[best - 1] <= min(losses) * 1.001 + 1e-12
    assert len(losses) == (best + stopped["patience"] if stopped["has_stopped"] else stopped["most_epochs"])
    per_epoch = math.ceil(44 / 16)
    assert (stopped["patience"], stopped["most_epochs"]) == (math.ceil(200 / per_epoch), 1000)
    steps = best * per_epoch
    assert sorted(finished.scores["epoch"].unique()) == [0, best]
    assert [(s.epoch, s.step) for s in finished.trajectory.snapshots] == [(0, 0), (best, steps)]
    assert finished.trajectory.exposure.tables["word_embeddings"].num_steps == steps
    assert finished.optimizer_log.head_learning_rates[1:].tolist() == [0.05] * (steps - 1)


def test_a_head_whose_task_is_solved_stops(tiny_config, tmp_path):
    """A separable task has a smaller loss for ever: by more than a thousandth within the patience, and not worth it."""
    (tmp_path / "words.csv").write_text("text,label\n" + "the chicken was wonderful,1\nthe chicken was stale,0\n" * 40)
    files = {"train_file": str(tmp_path / "words.csv"), "validation_file": str(tmp_path / "words.csv")}
    config = replace(tiny_config, task="polarity", **files, freeze="backbone", head_learning_rate=0.02)
    stopped = run(config, tmp_path, head_training="early-stopping").manifest["head_training"]
    losses = np.array(stopped["held_out_losses"])
    assert losses[-1] < 0.99 * losses[stopped["epochs"] - 1]
    assert stopped["epochs_tried"] < stopped["most_epochs"] / 2


@pytest.mark.parametrize("size", [0.01, 100.0])
def test_training_stops_and_is_kept_by_the_rule_whatever_the_size_of_the_targets(size):
    """The rule in a loop by hand: a loss counts as lower by a thousandth, and by 1e-4 of the best constant's."""
    rng, given_config = np.random.default_rng(0), {"batch_size": 4, "warmup_fraction": 0.2, "max_gradient_norm": 1e9}
    config = RunConfig(**given_config, head="mlp", weight_decay=0.0, head_learning_rate=0.05 * size)
    features = {name: rng.standard_normal((100, 3)).astype(np.float32) for name in ("train", "validation")}
    labels = {name: size * (own @ [1.0, 2.0, 3.0]) for name, own in features.items()}
    data, logs, facts = encoded("regression", labels, 1), [], {}
    recorder, resumer = Recorder({"word_embeddings": torch.zeros(200, 1)}), Resumer(None, None, None, None, {})
    resumer._accelerator = accelerator = SimpleNamespace(device=torch.device("cpu"), num_processes=1)
    model = SimpleNamespace(head=nn.Linear(3, 1))
    nn.init.zeros_(model.head.weight)  # and so all is a multiple of the size
    nn.init.zeros_(model.head.bias)
    moments = train_head_until_it_stops(
        *(accelerator, model, features, data, config, recorder, lambda log, _: logs.append(log), facts, resumer)
    )
    first, last = ((moment, moment.compute_outputs()["validation"]) for moment in moments)
    best, lowest, held = 0, np.inf, labels["train"][hold_out(None, 100, config.seed)]
    for epoch, loss in enumerate(facts["held_out_losses"], start=1):
        assert epoch <= min(best + 10, 200)
        if loss < 0.999 * lowest and loss < lowest - 1e-4 * held.var():
            best, lowest = epoch, loss
    assert (facts["epochs"], facts["epochs_tried"]) == (best, epoch)
    assert 1 < best == epoch - 10 < 190
    assert [log.step for log in logs] == list(range(1, 20 * epoch + 1))
    rates = 0.05 * size * np.minimum(np.arange(1, len(logs) + 1) / 4, 1)
    np.testing.assert_allclose([log.learning_rate for log in logs], rates)
    np.testing.assert_allclose(recorder.head_learning_rates, rates[: 20 * best])
    assert (first[0].epoch, first[0].step, last[0].epoch, last[0].step) == (0, 0, best, 20 * best)
    assert last[0].train_loss == pytest.approx(np.mean([log.loss for log in logs[20 * (best - 1) : 20 * best]]))
    kept = np.square(last[1][:, 0] - labels["validation"]).mean()
    assert kept < 0.5 * np.square(first[1][:, 0] - labels["validation"]).mean()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.floats(-3, 3), st.integers(0, 99))
def test_no_constant_answer_has_a_lower_loss_than_the_best_one(labels, shift, seed):
    labels = np.array(labels)
    counts = torch.from_numpy(np.bincount(labels, minlength=5)).float()
    logits = (counts / counts.sum()).log().clamp(min=-60).expand(len(labels), 5)
    best = constant_loss("classification", labels)
    assert example_losses("classification", logits, torch.from_numpy(labels)).mean().item() == pytest.approx(
        best, abs=1e-5
    )
    other = logits + torch.from_numpy(np.random.default_rng(seed).normal(size=5)).float()
    assert example_losses("tokens", other, torch.from_numpy(labels)).mean().item() >= best - 1e-5
    mean = torch.full((len(labels), 1), labels.mean())
    least = constant_loss("regression", labels.astype(np.float32))
    assert example_losses("regression", mean, torch.from_numpy(labels)).mean().item() == pytest.approx(least, abs=1e-5)
    assert example_losses("regression", mean + shift, torch.from_numpy(labels)).mean().item() >= least - 1e-5


def test_the_held_out_examples_are_in_no_batch(tiny_config, tmp_path):
    finished = run(replace(tiny_config, freeze="backbone", head_training="early-stopping"), tmp_path)
    split = begin(finished.config)[1].splits["train"]
    held = hold_out(split.labels, len(split), finished.config.seed)
    epochs = finished.manifest["head_training"]["epochs"]
    expected = Counter()
    for example in set(range(len(split))) - set(held.tolist()):
        expected.update(split.tokens[split.offsets[example] : split.offsets[example + 1]].tolist() * epochs)
    assert totals(finished, "word_embeddings") == expected


def test_labels_that_carry_nothing_stop_early_and_leave_a_run(tiny_config, tmp_path):
    config = replace(tiny_config, freeze="backbone", head_training="early-stopping", shuffle_labels=True)
    finished = run(config, tmp_path, head_learning_rate=0.3)
    stopped = finished.manifest["head_training"]
    assert stopped["has_stopped"]
    assert 1 <= stopped["epochs"] == stopped["epochs_tried"] - stopped["patience"] < 10


def test_the_screen_says_how_the_head_was_trained_and_how_far_it_is_from_the_probe(tiny_config, tmp_path, capsys):
    stopped = {"head_training": "early-stopping"}
    ways = {
        "best at epoch": stopped | {"head": "mlp"},
        "linear, fitted by cross-validation": stopped,
        "epochs of training: 2": {},
    }
    for told, own in ways.items():
        finished = run(replace(tiny_config, freeze="backbone", **own), tmp_path)
        shown = " ".join(capsys.readouterr().out.split())
        probe = finished.manifest["linear_probe"]["validation"]["accuracy"]
        assert f"Head: {told}" in shown
        assert f"linear probe {probe:.3f}" in shown or f"linear probe {probe:.4f}" in shown


@given(st.lists(st.integers(0, 3), min_size=2, max_size=300), st.integers(0, 2**32 - 1))
def test_a_tenth_is_held_out_and_each_class_gives_its_share(labels, seed):
    """Of fewer than 200 examples 20, or a third where that is less."""
    labels = np.array(labels)
    held = hold_out(labels, len(labels), seed)
    assert len(held) == max(1, round(0.1 * len(labels)), min(20, len(labels) // 3))
    assert (np.diff(held) > 0).all()
    for label in np.unique(labels):
        share = len(held) / len(labels) * (labels == label).sum()
        assert abs((labels[held] == label).sum() - share) <= 1.5
    assert np.array_equal(held, hold_out(labels, len(labels), seed))
    assert len(hold_out(None, len(labels), seed)) == len(held)


def test_the_help_says_how_many_are_held_out():
    text = " ".join(inspect.getsource(TrainingConfig).split())
    assert 1 / HELD_OUT_SHARE == 10
    fewer = int(LEAST_HELD_OUT / HELD_OUT_SHARE)
    assert f"That part is a tenth; of fewer than {fewer} examples {LEAST_HELD_OUT}, or a third of them" in text
    assert [len(hold_out(None, n, 0)) for n in (fewer + 50, fewer - 50, 3)] == [25, LEAST_HELD_OUT, 1]


def test_another_seed_holds_out_others():
    labels = np.arange(200) % 3
    assert not np.array_equal(hold_out(labels, 200, 0), hold_out(labels, 200, 1))
    check_refused("pass --head-training epochs", hold_out, None, 1, 0)


@pytest.mark.parametrize("options", [{}, {"num_mixed": 3}, {"num_mixed": 3, "is_paired": True}])
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_standardising_does_not_change_what_a_head_answers(options, kind):
    torch.manual_seed(0)
    config = type("Config", (), {"hidden_size": 4, "initializer_range": 0.3})()
    head = build_head(kind, config, width=12, num_outputs=2, generator=torch.Generator().manual_seed(1), **options)
    head.eval()
    width = 24 if options.get("is_paired") else 12
    features = torch.randn(50, width) * torch.logspace(-3, 2, width) + 5
    features[:, 3] = 7.0  # it never varies
    before, rows = head(features), np.arange(0, 50, 2)
    with standardised(head, features, rows):
        np.testing.assert_allclose(head(features).detach(), before.detach(), rtol=1e-3, atol=1e-3)
        layer, seen = entry_of(head), []
        handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        head(features[torch.from_numpy(rows)])
        handle.remove()
        deviations = seen[0].std(0, correction=0)
        assert ((deviations - 1).abs() < 1e-2).sum() >= len(deviations) - 4
        assert torch.isfinite(seen[0]).all()
    np.testing.assert_allclose(head(features).detach(), before.detach(), rtol=1e-3, atol=1e-3)


def test_what_varies_by_rounding_only_is_not_blown_up():
    """Thresholds beside a mean of 1,000: a deviation of 1e-5 is rounding, one of 1 is not."""
    config = type("Config", (), {"hidden_size": 4, "initializer_range": 0.3})()
    head = build_head("linear", config, width=2, num_outputs=2, generator=torch.Generator().manual_seed(1))
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 2))).double()
    features = (1000 + noise * torch.tensor([1.0, 1e-5])).double()
    weight, seen = entry_of(head).weight.detach().clone(), []
    with standardised(head, features, np.arange(64)):
        ratio = entry_of(head).weight.detach() / weight
        handle = entry_of(head).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        head(features.float())
        handle.remove()
    np.testing.assert_allclose(ratio[:, 0], features[:, 0].std(correction=0), rtol=1e-4)
    np.testing.assert_allclose(ratio[:, 1], 1, rtol=1e-6)
    assert seen[0][:, 1].abs().max() < 1e-2


def test_dropout_of_a_head_is_the_runs_own_and_off_while_scoring(tiny_config, tmp_path):
    config = replace(tiny_config, freeze="backbone", head="mlp", dropout=0.5, head_learning_rate=0.05)
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        runs.append(run(config, tmp_path / str(seed)))
    (one, two), other = runs, run(config, tmp_path / "none", dropout=0.0)
    np.testing.assert_array_equal(logits(one, 2), logits(two, 2))
    np.testing.assert_array_equal(logits(one, 0), logits(other, 0))
    assert not np.allclose(logits(one, 2), logits(other, 2), atol=1e-3)


# --- which way a head is trained --------------------------------------------------------------------------------------


def test_auto_is_early_stopping_of_a_frozen_backbone_only():
    config = RunConfig()
    assert resolve_head_training(config, is_frozen=True).head_training == "early-stopping"
    plain = resolve_head_training(config, is_frozen=False)
    assert (plain.head_training, plain.epochs, config.num_epochs) == ("epochs", 3, 3)
    kept = replace(config, head_training="epochs", epochs=9)
    assert resolve_head_training(kept, is_frozen=True) == kept
    early = replace(config, head_training="early-stopping")
    check_refusals(
        ("--max-steps 5 is not for", lambda: resolve_head_training(replace(early, max_steps=5), is_frozen=True)),
        ("needs --freeze backbone", lambda: resolve_head_training(early, is_frozen=False)),
    )


@pytest.mark.parametrize(
    ("changes", "given_words"),
    [({"epochs": 30}, "--epochs 30"), ({"epochs": 3}, "--epochs 3"), ({"max_steps": 5}, "--max-steps 5")],
)
def test_epochs_that_would_not_be_trained_are_refused_in_one_line(changes, given_words):
    config = RunConfig(freeze="backbone", **changes)
    check_refused(f"^{given_words} with a frozen backbone", resolve_head_training, config, is_frozen=True)
    assert resolve_head_training(config, is_frozen=False).head_training == "epochs"


def test_early_stopping_names_other_runs_than_epochs_which_are_what_runs_had_before_it():
    old = RunConfig(freeze="backbone", epochs=30, head_training="epochs")
    new = resolve_head_training(RunConfig(freeze="backbone"), is_frozen=True)
    assert digest(new, {}) != digest(replace(new, head_training="epochs"), {})
    assert digest(replace(old, head_training="auto"), {}) == digest(old, {})
    assert RunConfig.from_json(new.to_json()) == new


# --- two texts of a pair, each alone ----------------------------------------------------------------------------------


def test_texts_apart_start_at_the_first_position_of_segment_0_and_are_both_counted(tiny_pairs, tmp_path):
    finished = run(tiny_pairs, tmp_path, pair_encoding="separate", epochs=1)
    loaded, data = begin(tiny_pairs)
    words, places = Counter(), Counter()
    for example in data.task.splits["train"].texts:
        for text in example:
            ids = loaded.tokenizer(text)["input_ids"]
            words.update(ids)
            places.update(range(len(ids)))
    segments = {0: sum(words.values())}
    expected = {"word_embeddings": words, "position_embeddings": places, "token_type_embeddings": segments}
    assert {name: totals(finished, name) for name in expected} == expected


@pytest.mark.parametrize(
    "recipe",
    [{}, {"features": "all-concat"}, {"features": "mix"}, {"features": "layers.1"}, {"reinject_positions": True}],
)
@pytest.mark.parametrize("pair_encoding", ["joint", "separate"])
def test_the_first_gradient_of_fine_tuning_is_autograds_of_plain_code(tiny_pairs, tmp_path, recipe, pair_encoding):
    """Row norms that the run records at its one step, over the whole of train, against the loss written by hand."""
    config = replace(
        tiny_pairs, dropout=0.0, batch_size=64, max_steps=1, epochs=1, pair_encoding=pair_encoding, **recipe
    )
    finished = run(config, tmp_path)
    loaded, data = begin(config)
    loaded, train, vectors = prepare_positions(loaded, config), data.task.splits["train"], []
    columns = [[t[side] for t in train.texts] for side in (0, 1)]
    for group in [[c] for c in columns] if pair_encoding == "separate" else [columns]:
        batch = loaded.tokenizer(*group, padding=True, return_tensors="pt")
        output = loaded.model.backbone(**batch, output_hidden_states=True)
        mask = batch["attention_mask"].unsqueeze(-1)
        pooled = [(x * mask).sum(1) / mask.sum(1) for x in output.hidden_states]
        recipes = {"last": pooled[-1], "all-concat": torch.cat(pooled[1:], 1), "layers.1": pooled[2]}
        vectors.append((recipes | {"mix": torch.stack(pooled).mean(0)})[config.features])
    z = vectors[0]
    if pair_encoding == "separate":
        u, v = vectors
        z = torch.cat([u, v, (u - v).abs(), u * v], 1)
    head = loaded.model.head
    layer: nn.Linear = head if isinstance(head, nn.Linear) else head.layers[0]
    functional.cross_entropy(layer(z), torch.from_numpy(train.labels)).backward()
    for name, table in finished.trajectory.exposure.tables.items():
        expected = getattr(loaded.model.backbone.embeddings, name).weight.grad.norm(dim=1).numpy()
        np.testing.assert_allclose(table.norms, expected[table.rows], rtol=1e-3, atol=1e-7)
        assert np.count_nonzero(expected) == len(table.rows)


def test_batches_of_texts_apart_keep_their_budget_of_tokens(tiny_pairs):
    _, data = begin(replace(tiny_pairs, pair_encoding="separate"))
    split, seen = data.splits["train"], []
    for indices in training_batches(split.lengths, 16, 96, seed=0, epoch=0):
        batch = make_batch(split, indices, data)
        assert batch["input_ids"].shape[0] == 2 * len(indices)
        assert batch["input_ids"].numel() <= 96 or len(indices) == 1
        assert batch["input_ids"].numel() == len(indices) * int(split.lengths[indices].max())
        assert (batch["input_ids"][:, 0] == 1).all()  # [CLS]
        seen += indices.tolist()
    assert sorted(seen) == list(range(len(split)))


def test_states_of_texts_apart_are_refused_where_an_example_has_one_sequence(tiny_pairs):
    loaded, data = begin(replace(tiny_pairs, pair_encoding="separate"))
    check_refused("encoded separately", next, stream_states(loaded, data, data.splits["train"]))


def test_features_are_computed_on_the_device_of_the_run_and_of_the_splits_that_are_asked_for():
    model = nn.Linear(2, 2)
    model.features = None
    accelerator = SimpleNamespace(device=torch.device("meta"), mixed_precision="no", autocast=None)
    assert extract_features(accelerator, model, SimpleNamespace(splits={"train": None}), ()) == {}
    assert model.weight.is_meta


def test_words_that_are_all_held_out_leave_the_trained_head():
    """A token task holds sentences out whatever their tags: of 12 words the two of the other tag, which end no run."""
    tags, rows = np.repeat([0, 1], [10, 2]), np.arange(12)
    split = SimpleNamespace(labels=tags, rows_of=lambda own: own, sizes_of=np.ones_like)
    data = SimpleNamespace(splits={"train": split}, task=SimpleNamespace(kind="tokens"))
    probe = SimpleNamespace(choice={"strength": 1.0, "is_standardised": False})
    assert keep_the_better(nn.Linear(3, 2), probe, np.zeros((12, 3), np.float32), data, rows[:10], rows[10:]) == {}
