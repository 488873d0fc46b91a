"""Feature distortion: laws and yardsticks of each number, planted causes, and runs in which nothing can have moved."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ortho_group

import distortion
from distortion import FROZEN, PARTS, feature_movement, head_alignment, measure_distortion, start_gradients
from tests.refusals import check_refusals, check_refused
from tests.test_schema import holds
from toolkit.config import RunConfig, recipe_of
from toolkit.data.batches import evaluation_batches, make_batch
from toolkit.data.tasks import load_task
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.heads import example_losses
from toolkit.models.lora import put_adapters
from toolkit.models.regimes import Regime, apply_regime
from toolkit.models.tuned import load_untuned
from toolkit.pipeline import finetune
from toolkit.schema import COLUMNS, columns_of
from toolkit.snapshots.store import Run
from toolkit.training.encoding import encode_task


def values(before: np.ndarray, after: np.ndarray) -> tuple[float, ...]:
    return tuple(value for value, _ in feature_movement(before, after).values())


def features(seed: int = 0, num: int = 2000, hidden: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num, hidden)) + 3


def test_nothing_moved_and_everything_drawn_anew() -> None:
    before = features()
    distance, relative, shared = values(before, before)
    assert distance == relative == 0
    assert np.isnan(shared)
    _, relative, shared = values(before, features(1))
    assert relative == pytest.approx(2**0.5, rel=0.02)  # the yardstick
    assert shared < 0.01


def test_a_translation_is_shared_by_all_texts_and_as_long_as_it_is() -> None:
    before, shift = features(), np.arange(12.0)
    distance, relative, shared = values(before, before + shift)
    assert distance == pytest.approx(np.linalg.norm(shift))
    assert shared == pytest.approx(1)
    assert relative == pytest.approx(distance / np.sqrt(((before - before.mean(0)) ** 2).sum(axis=1).mean()))


def test_rotating_and_scaling_both_changes_no_relative_number() -> None:
    before, after = features(), features(1) + 0.5
    turned = 7 * ortho_group.rvs(12, random_state=0)
    assert values(before @ turned, after @ turned)[1:] == pytest.approx(values(before, after)[1:])


def test_features_without_spread_are_refused() -> None:
    value, note = feature_movement(np.ones((3, 2)), np.zeros((3, 2)))["relative_feature_distance"]
    assert np.isnan(value)
    assert "no spread" in note


def test_alignment_sees_the_direction_of_heads_and_nothing_else() -> None:
    generator = np.random.default_rng(0)
    x, head, other = generator.normal(size=(4000, 12)), generator.normal(size=(12, 3)), generator.normal(size=(12, 3))
    start = x @ head
    unseen = 5 + generator.normal(size=(1, 3)) + generator.normal(size=(4000, 1))  # biases, and what softmax cancels
    assert head_alignment(start, 3 * start + unseen)[0] == pytest.approx(1)
    assert head_alignment(start, -start + unseen)[0] == pytest.approx(-1)
    white = [h - h.mean(axis=1, keepdims=True) for h in (head, other)]
    cosine = (white[0] * white[1]).sum() / np.linalg.norm(white[0]) / np.linalg.norm(white[1])
    assert head_alignment(start, x @ other)[0] == pytest.approx(cosine, abs=0.03)  # Σ = 1: the plain cosine
    value, note = head_alignment(start, np.ones((4000, 3)))
    assert np.isnan(value)
    assert "one answer" in note
    assert head_alignment(start[:, :1], 2 * start[:, :1] + 1)[0] == pytest.approx(1)  # one output: nothing to centre


def test_random_heads_are_aligned_by_chance_only() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(500, 100))
    found = [head_alignment(x @ one, x @ other)[0] for one, other in generator.normal(size=(200, 2, 100, 2))]
    assert abs(np.mean(found)) < 0.03
    assert np.std(found) == pytest.approx(0.1, rel=0.2)  # 1/√100


@pytest.fixture(scope="module")
def runs(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    config = replace(tiny_config, output_dir=str(tmp_path_factory.mktemp("runs")), save_model=True)
    config = replace(config, head_learning_rate=0.05, epochs=3, test_file=(), ood_file=tiny_config.test_file)
    changes = {
        "full": {},
        "LP-FT": {"head_epochs": 60},
        "probe": {"freeze": "backbone"},
        "embeddings": {"freeze": "embeddings", "positions": "shuffled"},
    }
    return {name: finetune(replace(config, **own)) for name, own in changes.items()}


@pytest.fixture(scope="module")
def table(runs: dict[str, Run]) -> pd.DataFrame:
    found = measure_distortion(list(runs.values()))
    return found.assign(condition=found["run"].map({run.path.name: name for name, run in runs.items()}))


def value(table: pd.DataFrame, arm: str, measure: str, place: str) -> float:
    (found,) = table[(table.condition == arm) & (table.measure == measure) & (table.place == place)]["value"]
    return float(found)


def test_one_value_per_line_and_what_is_out_of_distribution(table: pd.DataFrame, runs: dict[str, Run]) -> None:
    assert not table.duplicated(["run", "measure", "place"]).any()
    columns = columns_of("measure_distortion")
    assert list(table.columns) == [*columns, "condition"]
    assert not [name for name in columns if not holds(COLUMNS[name], table[name])]
    for place, lines in table.groupby("place")["is_out_of_distribution"]:
        assert lines.isna().all() if place in PARTS else (lines == (place == "ood")).all()
    assert (table["value"].isna() == (table["reason"] != "")).all()
    assert not measure_distortion([runs["probe"]], out_of_distribution=())["is_out_of_distribution"].any()


def test_what_is_frozen_does_not_move_and_what_is_trained_does(table: pd.DataFrame) -> None:
    for split in ("validation", "ood"):
        assert value(table, "probe", "feature_distance", split) == 0
        assert value(table, "full", "relative_feature_distance", split) > 0.01
    gradients = {arm: [value(table, arm, "gradient_norm", part) for part in PARTS] for arm in table.condition.unique()}
    assert np.isnan(gradients["probe"][:2]).all()
    assert np.isnan(gradients["embeddings"][0])
    assert (np.array([*gradients["full"], *gradients["LP-FT"], gradients["probe"][2]]) > 0).all()
    assert set(table[table["value"].isna() & (table.measure == "gradient_norm")]["reason"]) == {FROZEN}


def test_training_the_head_first_aligns_it_and_shrinks_its_gradient(table: pd.DataFrame) -> None:
    """The positive control: sixty epochs of the head against none, on the same features."""
    for split in ("validation", "ood"):
        assert value(table, "LP-FT", "head_alignment", split) > value(table, "full", "head_alignment", split)
        assert value(table, "LP-FT", "ceiling_loss", split) == value(table, "full", "ceiling_loss", split)
    assert value(table, "LP-FT", "gradient_norm", "head") < 0.5 * value(table, "full", "gradient_norm", "head")


def test_the_start_is_the_one_that_the_run_had(runs: dict[str, Run], table: pd.DataFrame) -> None:
    """Epoch 0's recorded loss, also after the head stage, which had to be repeated."""
    for arm, run in runs.items():
        first = run.scores[run.scores.epoch == 0].set_index("split")["loss"]
        for split in ("validation", "ood"):
            assert value(table, arm, "start_loss", split) == pytest.approx(first[split], abs=1e-4)


def test_gradients_are_those_of_autograd_in_one_piece(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs["full"]
    monkeypatch.setattr(distortion, "evaluation_batches", lambda lengths: evaluation_batches(lengths, 24))
    loaded = load_untuned(run)
    data = encode_task(load_task(run.config), loaded, run.config.max_length)
    apply_regime(loaded.model, Regime("none", frozenset()), loaded.family)
    found = start_gradients(loaded, data, np.arange(64))  # in three parts of unequal size
    split = load_task(run.config).splits["train"]
    batch = loaded.tokenizer([t[0] for t in split.texts], padding=True, return_tensors="pt")
    outputs = loaded.model(**{k: batch[k] for k in ("input_ids", "attention_mask")})
    torch.nn.functional.cross_entropy(outputs, torch.from_numpy(split.labels)).backward()
    squares = dict.fromkeys(PARTS, 0.0)
    for name, parameter in loaded.model.named_parameters():
        part = "head" if name.startswith("head") else "embeddings" if ".embeddings." in name else "body"
        squares[part] += float(parameter.grad.double().square().sum())
    assert found == pytest.approx({part: square**0.5 for part, square in squares.items()}, rel=1e-4)


def test_mistakes(runs: dict[str, Run], tiny_config: RunConfig, tmp_path: Path) -> None:
    check_refusals(
        ("expected a list of run directories; got runs/one alone", lambda: measure_distortion("runs/one")),
        ("no runs", lambda: measure_distortion([])),
        (
            "out_of_distribution: unknown split 'oood'",
            lambda: measure_distortion([runs["full"]], out_of_distribution=("oood",)),
        ),
        (
            "out_of_distribution: unknown split 'oood'",
            lambda: measure_distortion([runs["full"]], out_of_distribution="oood"),
        ),
    )
    bare = finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1))
    check_refused("--save-model", measure_distortion, [bare])


def gradients_of(loaded: Loaded, run: Run) -> dict[str, torch.Tensor]:
    """Those of the mean loss over the training split in one piece, in eval mode, of every parameter that has one."""
    data = encode_task(load_task(run.config), loaded, run.config.max_length)
    split = data.splits["train"]
    logits = loaded.model.eval()(**make_batch(split, np.arange(len(split)), data))
    example_losses("classes", logits, torch.from_numpy(split.labels)).mean().backward()
    return {name: p.grad for name, p in loaded.model.named_parameters() if p.grad is not None}


ADAPTED: dict[str, Any] = {"lora": ("query", "value"), "lora_rank": 2}


def test_adapters_are_the_body_and_the_embeddings_below_them_are_frozen(tiny_config: RunConfig, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="the extra 'peft' is not installed")
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), learning_rate=1e-2, save_model=True, **ADAPTED))
    lines = measure_distortion([run]).set_index(["measure", "place"])
    gradients = lines.loc["gradient_norm", "value"]
    assert lines["regime"].eq("lora").all()
    assert np.isnan(gradients["embeddings"])
    start = load_classifier(run.config.model, **recipe_of(run.config), num_outputs=2, seed=run.config.seed, dropout=0.0)
    put_adapters(start, run.config)
    own = [gradient.square().sum() for name, gradient in gradients_of(start, run).items() if "lora_" in name]
    assert gradients["body"] == pytest.approx(float(torch.stack(own).sum().sqrt()), rel=1e-4)


@pytest.mark.parametrize("own", [{}, ADAPTED], ids=["rows alone", "beside adapters"])
def test_the_gradient_of_held_rows_counts_nowhere(own: dict[str, Any], tiny_config: RunConfig, tmp_path: Path) -> None:
    """That of the added rows is an independent model's, whose table is one parameter."""
    if own:
        pytest.importorskip("peft", reason="the extra 'peft' is not installed")
    tokens, train, validation = (tmp_path / name for name in ("new.txt", "train.tsv", "validation.tsv"))
    tokens.write_text("blorp\nzwick\n")
    lines = [f"the {noun} was {word} .\t{word}" for noun in ("film", "doctor", "story") for word in ("blorp", "zwick")]
    for path, times in ((train, 3), (validation, 2)):
        path.write_text("\n".join(["text\tlabel", *lines * times]) + "\n")
    files = {"train_file": str(train), "validation_file": str(validation), "test_file": (), "text_columns": ()}
    own = own or {"freeze": "position_embeddings,token_type_embeddings,LayerNorm.weight,LayerNorm.bias,encoder"}
    config = replace(tiny_config, **files, **own, add_tokens=str(tokens), train_rows="new", seed=3, epochs=1)
    run = finetune(replace(config, output_dir=str(tmp_path / "runs"), save_model=True))
    found = measure_distortion([run]).set_index(["measure", "place"]).loc["gradient_norm", "value"]["embeddings"]
    start = load_untuned(run)
    gradients_of(start, run)
    gradient, first = start.model.backbone.get_input_embeddings().weight.grad, run.manifest["added_tokens"]["first_row"]
    assert found == pytest.approx(float(gradient[first : first + 2].norm()), rel=1e-6)
    assert found != pytest.approx(float(gradient.norm()), rel=1e-4)


def test_what_tells_masked_tokens_has_no_features_that_a_fresh_head_reads(
    masked_lm: Callable[[str], Path], tiny_config: RunConfig, tmp_path: Path
) -> None:
    own = {"model": str(masked_lm("bert")), "objective": "mlm", "head_training": "epochs", "output_dir": str(tmp_path)}
    run = finetune(replace(tiny_config, **own, max_steps=1, save_model=True))
    check_refused("tells masked tokens: distortion is of features", measure_distortion, [run])


def test_data_that_have_changed_are_refused(tiny_config: RunConfig, tmp_path: Path) -> None:
    """With the labels turned round, every loss would be wrong without a word."""
    copied = tmp_path / "validation.tsv"
    copied.write_bytes(Path(tiny_config.validation_file).read_bytes())
    config = replace(tiny_config, validation_file=str(copied), output_dir=str(tmp_path / "runs"))
    run = finetune(replace(config, max_steps=1, save_model=True))
    first, *lines = copied.read_text().splitlines()
    copied.write_text("\n".join([first, *(line[:-1] + str(1 - int(line[-1])) for line in lines)]) + "\n")
    check_refused(r"the data of .* have changed since it was trained \(validation\)", measure_distortion, [run])
