"""Counterfactual positions: the rows they promise, the model put back bit for bit, the changes by hand."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import FAMILY_CONFIGS
from tests.questions.opened import opened
from tests.refusals import check_refusals
from toolkit.data.batches import make_batch
from toolkit.data.builtin import BUILTIN_TASKS
from toolkit.models.classifier import Loaded
from toolkit.questions.flow.ledger import unit_values
from toolkit.questions.flow.measure import COUNTERFACTUALS, OutputChanges, measure_counterfactuals, replaced_positions
from toolkit.questions.models import TEXTS
from toolkit.sinusoid import sinusoidal_table

SINGLES = tuple(BUILTIN_TASKS["order"].build()["validation"].texts[:16])
TinyModel = Callable[[str], Path]


def table_of(loaded: Loaded) -> torch.Tensor:
    return dict(loaded.model.backbone.named_parameters())[loaded.family.embedding_parameters["position_embeddings"]]


@pytest.mark.parametrize("model_type", [name for name in FAMILY_CONFIGS if name != "modernbert"])
def test_each_replaces_the_rows_as_it_says_and_puts_them_back(tiny_model: TinyModel, model_type: str) -> None:
    loaded, _ = opened(tiny_model(model_type), SINGLES)
    before = table_of(loaded).detach().clone()
    start, longest = loaded.position_offset, 10
    own = before[start:].numpy()
    for name in COUNTERFACTUALS:
        with replaced_positions(loaded, name, longest=longest, shift=3):
            rows = table_of(loaded).detach().clone().numpy()[start:]
            assert np.array_equal(table_of(loaded)[:start].detach(), before[:start])
        assert torch.equal(table_of(loaded), before)
        used = rows[:longest]
        if name == "shifted":
            assert np.array_equal(used, own[3 : longest + 3])
        elif name == "permuted":
            assert np.array_equal(np.sort(used, axis=0), np.sort(own[:longest], axis=0))
            assert (used != own[:longest]).any(axis=1).all()
        elif name == "sinusoid":
            wave = sinusoidal_table(*own.shape)
            scale = (wave * rows).sum() / (wave * wave).sum()
            np.testing.assert_allclose(rows, scale * wave, atol=1e-6)
            assert np.square(rows).sum() == pytest.approx(np.square(own).sum(), rel=1e-5)
        elif name == "mean":
            np.testing.assert_allclose(used, np.tile(own[:longest].mean(axis=0), (longest, 1)), atol=1e-7)
        else:
            assert not used.any()


def test_the_table_is_put_back_after_an_error(tiny_model: TinyModel) -> None:
    loaded, _ = opened(tiny_model("bert"), SINGLES)
    before = table_of(loaded).detach().clone()
    with pytest.raises(RuntimeError), replaced_positions(loaded, "zero", longest=5):
        raise RuntimeError
    assert torch.equal(table_of(loaded), before)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_changes_are_those_of_two_forward_passes(tiny_model: TinyModel, pooling: str) -> None:
    loaded, data = opened(tiny_model("bert"), SINGLES, pooling=pooling)
    with torch.no_grad():
        loaded.model.head.weight.mul_(50)
    split = data.splits[TEXTS]
    table = measure_counterfactuals(loaded, data, split, has_head=True, shift=4)
    batch = make_batch(split, np.arange(len(split)), data)
    with torch.inference_mode():
        before = loaded.model.backbone(**batch, output_hidden_states=True).hidden_states
        first = loaded.model(**batch)
        ids = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"]) + 4
        after = loaded.model.backbone(**batch, position_ids=ids, output_hidden_states=True).hidden_states
        with replaced_positions(loaded, "shifted", longest=int(split.lengths.max()), shift=4):
            second = loaded.model(**batch)
    mask = batch["attention_mask"].bool()
    own = table[table.counterfactual == "shifted"]
    for layer, (old, new) in enumerate(zip(before, after, strict=True)):
        expected = float((new - old)[mask].norm() / old[mask].norm())
        line = own[(own.measure == "state") & (own.layer == layer)].iloc[0]
        reference = 2**0.5 * float((old[mask] - old[mask].mean(dim=0)).norm() / old[mask].norm())
        assert (line["value"], line["reference"]) == pytest.approx((expected, reference), rel=1e-4)
        assert line["low"] < line["value"] < line["high"]
        assert (np.mean(line["unit_values"]), len(line["unit_values"])) == pytest.approx((line["value"], len(SINGLES)))
    logits = own[own.measure == "logits"].iloc[0]
    assert logits["value"] == pytest.approx(float((second - first).norm() / first.norm()), rel=1e-4)
    change, size = (second - first).square().sum(dim=1).numpy(), first.square().sum(dim=1).numpy()
    kept = [np.arange(len(size)) != i for i in range(len(size))]
    left_out = [float(np.sqrt(change[keep].sum() / size[keep].sum())) for keep in kept]
    expected = unit_values([logits["value"], *left_out])
    np.testing.assert_allclose(sorted(logits["unit_values"]), sorted(expected), atol=0.01 * float(np.std(expected)))
    predictions, is_other = own[own.measure == "predictions"].iloc[0], (second.argmax(1) != first.argmax(1)).double()
    assert predictions["value"] == pytest.approx(float(is_other.mean()))
    assert sorted(predictions["unit_values"]) == sorted(is_other.tolist())


def test_the_units_of_a_score_are_right_afterwards_minus_right_before():
    changes = OutputChanges(5)
    before = [[2.0, 0], [2, 0], [0, 2], [0, 2], [2, 0]]
    after = [[0.0, 2], [2, 0], [2, 0], [0, 2], [2, 0]]
    changes.logits, changes.changes = {"": np.float32(before), "zero": np.float32(after)}, {"zero": []}
    labels = np.array([0, 0, 0, 1, 1])
    line = next(
        each for each in changes.output_records("classification", "accuracy", labels) if each["unit"] == "accuracy"
    )
    assert line["unit_values"] == (-1, 0, 1, 0, 0)
    assert (line["value"], line["reference"]) == (0, 0.6)
    *_, other = changes.output_records("classification", "macro_f1", labels)
    assert (other["unit_values"], other["reason"]) == ((), "no interval: no mean over texts")


def test_a_table_of_equal_rows_moves_only_under_what_changes_the_offset(tiny_model: TinyModel) -> None:
    """The negative control: where positions say nothing, shifting, permuting and averaging them does nothing."""
    loaded, data = opened(tiny_model("bert"), SINGLES)
    with torch.no_grad():
        table_of(loaded)[:] = table_of(loaded)[3].clone()
    most = measure_counterfactuals(loaded, data, data.splits[TEXTS], shift=4).groupby("counterfactual")["value"].max()
    assert (most[["shifted", "permuted", "mean"]] < 1e-6).all()
    assert (most[["zero", "sinusoid"]] > 0.1).all()


def test_a_model_without_a_table_is_not_applicable_and_never_0(tiny_model: TinyModel) -> None:
    loaded, data = opened(tiny_model("modernbert"), SINGLES)
    (line,) = measure_counterfactuals(loaded, data, data.splits[TEXTS], has_head=True).itertuples()
    assert (np.isnan(line.value), "not applicable" in line.reason) == (True, True)
    replacing = replaced_positions(loaded, "zero", longest=3)
    check_refusals((r"not applicable: .* has no position table", replacing.__enter__))


def test_a_shift_beyond_the_table_is_one_line(tiny_model: TinyModel) -> None:
    loaded, data = opened(tiny_model("bert"), SINGLES)
    measure = partial(measure_counterfactuals, loaded, data, data.splits[TEXTS], shift=45)
    check_refusals(
        ("position rows, the model has 48: pass a smaller --shift", measure),
        ("unknown counterfactual 'zeros'", replaced_positions(loaded, "zeros", longest=3).__enter__),
    )
