"""The parts of the layer, per family: parameters, rows, the sum and its proof, one-hot, against the real modules."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.conftest import FAMILY_CONFIGS
from tests.questions.anatomy.conftest import PAIR, TEXT
from tests.questions.anatomy.test_anatomy_order import zeroed
from tests.refusals import check_refused
from toolkit.models.classifier import Loaded
from toolkit.questions.anatomy import measure as anatomy
from toolkit.questions.anatomy.measure import Anatomy, compare_one_hot, decompose_tokens, list_parameters, prove_sum
from toolkit.questions.models import find_parts, in_float64, make_inputs, open_model, run_model

Opened = Callable[[str], Loaded]
AnatomyOf = Callable[[str], Anatomy]
families = pytest.mark.parametrize("model_type", [*FAMILY_CONFIGS, "mpnet"])

ABSENT = {
    "distilbert": ["token_type_embeddings"],
    "mpnet": ["token_type_embeddings"],
    "deberta-v2": ["token_type_embeddings"],
    "modernbert": ["position_embeddings", "token_type_embeddings", "LayerNorm.bias"],
}


@families
def test_the_parameter_table_counts_the_backbone(opened: Opened, anatomy_of: AnatomyOf, model_type: str) -> None:
    backbone, table = opened(model_type).model.backbone, anatomy_of(model_type).parameters
    named = list(backbone.named_parameters())
    whole = table[table.parameter == "all"].iloc[0]
    assert (whole.num_values, whole.number) == (backbone.num_parameters(), len(named))  # type: ignore[operator]
    parts = table[table.parameter != "all"]
    assert parts.num_values.sum() == whole.num_values
    assert parts.share.sum() == pytest.approx(1, abs=1e-12)
    absent = parts[parts.num_values.isna()]
    assert list(absent.parameter) == ABSENT.get(model_type, [])
    assert (absent.reason.str.startswith("not applicable") & absent.share.isna()).all()
    for line in parts[parts.name != ""].itertuples():
        name, parameter = named[line.number - 1]
        sizes = [n for n in (line.num_rows, line.num_columns) if n is not pd.NA]
        assert (name, list(parameter.shape)) == (line.name, sizes)
    assert len(table[table.parameter == "pooler"]) == (model_type in ("bert", "roberta", "albert", "mpnet"))


@families
def test_rows_are_those_that_the_modules_are_asked_for(opened: Opened, anatomy_of: AnatomyOf, model_type: str) -> None:
    loaded, sentence = opened(model_type), anatomy_of(model_type).sentence
    asked: dict[str, list[int]] = {}

    def remember(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: asked.update({name: inputs[0].flatten().tolist()})

    hooks = [t.register_forward_hook(remember(name)) for name, t in find_parts(loaded).tables.items()]
    loaded.model.backbone(**make_inputs(loaded, sentence))
    for hook in hooks:
        hook.remove()
    rows = {
        "word_embeddings": sentence.words,
        "position_embeddings": sentence.positions,
        "token_type_embeddings": sentence.segments,
    }
    assert asked == {name: list(values) for name, values in rows.items() if values is not None}
    if model_type == "roberta":
        assert (sentence.positions[0], set(sentence.segments)) == (1, {0})  # type: ignore[index, arg-type]


@families
def test_parts_add_up_to_what_layer_norm_is_given(opened: Opened, anatomy_of: AnatomyOf, model_type: str) -> None:
    loaded, found = opened(model_type), anatomy_of(model_type)
    parts, seen = find_parts(loaded), []
    module = parts.inner_projection or parts.layer_norm
    hook = module.register_forward_hook(lambda m, inputs, output: seen.append(inputs[0][0]))
    with in_float64(loaded):
        run_model(loaded, found.sentence)
    hook.remove()
    truth = seen[0].numpy()
    sums = found.tokens[found.tokens.part == "sum"]
    np.testing.assert_allclose(sums.length, np.linalg.norm(truth, axis=1), rtol=1e-12)
    for index, lines in found.tokens[found.tokens.part != "sum"].groupby("index"):
        assert lines.share.sum() == pytest.approx(1, abs=1e-12)
        vectors = [anatomy.look_up(loaded, found.sentence)[part][index] for part in lines.part]
        np.testing.assert_allclose(
            lines.share, [v @ truth[index] / (truth[index] @ truth[index]) for v in vectors], atol=1e-12
        )
        np.testing.assert_allclose(lines.length, [np.linalg.norm(v) for v in vectors], rtol=1e-12)
    tables = {"word": True, "position": parts.position is not None, "segment": parts.segment is not None}
    assert set(found.tokens.part) == {"sum", *(name for name, exists in tables.items() if exists)}


@families
def test_the_sum_is_the_modules_output_and_no_less_is(anatomy_of: AnatomyOf, model_type: str) -> None:
    proof = anatomy_of(model_type).layer_sum
    whole, controls = proof[proof.left_out == ""], proof[proof.left_out != ""]
    assert list(whole.computed_in) == ["float32", "float64"]
    assert whole.is_equal.all()
    assert whole.largest_difference.iloc[0] < 1e-5
    assert whole.largest_difference.iloc[1] < 1e-13
    assert "LayerNorm" in set(controls.left_out)
    assert not controls.is_equal.any()
    assert (controls.largest_difference > 1e-2).all()


def test_a_planted_fault_shows_in_the_proof(
    opened: Opened, anatomy_of: AnatomyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, sentence = opened("bert"), anatomy_of("bert").sentence
    norm = find_parts(loaded).layer_norm
    monkeypatch.setattr(anatomy, "as_array", lambda tensor: 1.001 * tensor.detach().double().numpy())
    assert not prove_sum(loaded, sentence).is_equal[:2].any()
    monkeypatch.undo()
    monkeypatch.setattr(norm, "forward", lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5))
    assert not prove_sum(loaded, sentence).is_equal[1]  # a module that uses another eps
    monkeypatch.undo()
    assert prove_sum(loaded, sentence).is_equal[:2].all()


def test_a_part_that_adds_nothing_is_seen_as_such(opened: Opened, anatomy_of: AnatomyOf) -> None:
    loaded, sentence = opened("bert"), anatomy_of("bert").sentence
    with zeroed([find_parts(loaded).segment]):  # type: ignore[list-item]
        proof, shares = prove_sum(loaded, sentence).set_index("left_out"), decompose_tokens(loaded, sentence)
    assert proof.is_equal["segment"]
    assert not proof.is_equal["position"]
    assert (shares[shares.part == "segment"].share == 0).all()


@families
def test_one_hot_times_the_table_is_the_look_up(
    opened: Opened, anatomy_of: AnatomyOf, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = anatomy_of(model_type).one_hot
    assert list(found.parameter) == list(find_parts(opened(model_type)).tables)
    assert (found.largest_difference == 0).all()
    word = find_parts(opened(model_type)).word
    looked_up = type(word).forward
    monkeypatch.setattr(word, "forward", lambda ids: looked_up(word, ids) * (1 + 2**-20))
    assert compare_one_hot(opened(model_type), anatomy_of(model_type).sentence).largest_difference[0] > 0


@families
def test_the_model_is_left_as_it_was(opened: Opened, anatomy_of: AnatomyOf, model_type: str) -> None:
    from toolkit.models.checkpoints import find_checkpoint
    from toolkit.questions.anatomy.measure import take_apart

    loaded = opened(model_type)
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    loaded.model.backbone.train()
    take_apart(loaded, TEXT, PAIR)
    assert loaded.model.backbone.training
    loaded.model.backbone.eval()
    for name, tensor in loaded.model.state_dict().items():
        assert (tensor.dtype, torch.equal(tensor, before[name])) == (before[name].dtype, True)
    assert all(p.grad is None for p in loaded.model.parameters())
    assert find_checkpoint(loaded.source.name) == loaded.source


def test_a_name_in_place_of_a_model_says_what_to_pass() -> None:
    from toolkit.questions.anatomy.measure import take_apart

    check_refused(r"expected a model; got minilm: pass open_model\('minilm'\)", take_apart, "minilm", "a film")
    check_refused(
        r"expected a model; got Identity\(\): pass open_model\(NAME\)", take_apart, torch.nn.Identity(), "a film"
    )


def test_a_component_of_which_a_part_is_trained_is_neither(tiny_model: Callable[[str], Path]) -> None:
    loaded = open_model(tiny_model("bert"))
    for name, p in loaded.model.backbone.named_parameters():
        p.requires_grad = "query" in name or "position" in name
    states = list_parameters(loaded).set_index("parameter")["requires_grad"]
    assert (states["word_embeddings"], states["position_embeddings"], states["layers"]) == (False, True, None)
