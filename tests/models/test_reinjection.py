"""Positions added again before each layer: against a forward pass written out, and against finite differences."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.by_hand import logits
from tests.models.test_positions import WITH_TABLE, outputs_of
from toolkit.config import RunConfig
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.positions import Reinjection, prepare_positions
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.pipeline import finetune


def load(tiny_model: Callable[[str], Path], model_type: str, **changes: Any) -> Loaded:
    loaded = load_classifier(str(tiny_model(model_type)), pooling="mean", num_outputs=2, dropout=0.0)
    with torch.no_grad():  # random rows of a tiny model are small beside its words: make all parts count
        for name, parameter in loaded.model.backbone.named_parameters():
            if "LayerNorm" in name or "layer_norm" in name or name.endswith("bias"):
                parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
            if "position_embeddings" in name:
                parameter *= 5
    loaded.model.double().eval()
    return prepare_positions(loaded, replace(RunConfig(max_length=20), **changes))


def texts() -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 60, (4, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    ids[2, 7:], mask[2, 7:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("model_type", WITH_TABLE)
def test_the_part_is_what_the_positions_are_of_the_first_layers_input(
    model_type: str, tiny_model: Callable[[str], Path]
) -> None:
    """Input of layer 0 = part of the positions + what it is for rows of 0 at the same sd, so that parts add up.

    The second is had without the formula: LN(w + s) is LN(e)'s other parts times sd(e) / sd(w + s), and the bias.
    """
    loaded = load(tiny_model, model_type)
    backbone, grabbed = loaded.model.backbone, {}
    hooks = Reinjection(backbone, loaded.family)
    norm = backbone.get_submodule(loaded.family.embedding_parameters["LayerNorm.weight"].removesuffix(".weight"))
    norm.register_forward_hook(lambda m, a, o: grabbed.update(total=a[0], part=hooks._part))

    def on_layer(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        grabbed.setdefault("states", args[0] if args else kwargs["hidden_states"])

    first = next(m for n, m in backbone.named_modules() if n.endswith(("layer.0", "layer_groups.0")))
    first.register_forward_pre_hook(on_layer, with_kwargs=True)
    batch = texts() | {"attention_mask": torch.ones(4, 12, dtype=torch.int64)}
    with torch.no_grad():
        backbone(**batch)
        whole, part, sigma = grabbed["states"], grabbed["part"], (grabbed["total"].var(-1, False) + norm.eps).sqrt()
        dict(backbone.named_parameters())[loaded.family.embedding_parameters["position_embeddings"]].zero_()
        grabbed.clear()
        backbone(**batch)
        assert not grabbed["part"].any()
        without = (grabbed["total"].var(-1, False) + norm.eps).sqrt()
        project = _projection_after(backbone, model_type)
        bias = project(norm.bias.expand(1, 1, -1))
        rest = (grabbed["states"] - bias) * (without / sigma).unsqueeze(-1) + bias
    torch.testing.assert_close(part + rest, whole, atol=1e-12, rtol=1e-10)
    assert part.norm() > 0.1 * whole.norm()  # the control: there is something to be added


def _projection_after(backbone: Any, model_type: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The projection that stands between the embeddings' LayerNorm and the first layer; itself where there is none."""
    if model_type == "electra":
        return backbone.embeddings_project
    return backbone.encoder.embedding_hidden_mapping_in if model_type == "albert" else lambda x: x


def test_outputs_are_those_of_a_forward_pass_written_out(tiny_model: Callable[[str], Path]) -> None:
    backbone, batch = load(tiny_model, "bert", reinject_positions=True).model.backbone, texts()
    embeddings, mask = backbone.embeddings, batch["attention_mask"].bool()[:, None, None, :]
    with torch.no_grad():
        found = backbone(**batch).last_hidden_state
        rows = embeddings.position_embeddings.weight[:12]
        total = embeddings.word_embeddings(batch["input_ids"]) + rows + embeddings.token_type_embeddings.weight[0]
        centred = total - total.mean(-1, keepdim=True)
        sigma = (centred.square().mean(-1, keepdim=True) + embeddings.LayerNorm.eps).sqrt()
        part = embeddings.LayerNorm.weight * (rows - rows.mean(-1, keepdim=True)) / sigma
        plain = load(tiny_model, "bert").model.backbone  # without hooks
        states = embeddings.LayerNorm.weight * centred / sigma + embeddings.LayerNorm.bias
        for index, layer in enumerate(plain.encoder.layer):
            output = layer(states + part if index else states, torch.where(mask, 0.0, -torch.inf).double())
            states = output[0] if isinstance(output, tuple) else output
    torch.testing.assert_close(found[mask[:, 0, 0]], states[mask[:, 0, 0]], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("model_type", WITH_TABLE)
def test_a_table_of_zeros_or_constants_changes_nothing_and_any_other_does(
    model_type: str, tiny_model: Callable[[str], Path]
) -> None:
    outputs = {}
    for kind in ("zero", "checkpoint"):
        for again in (False, True):
            with torch.inference_mode():
                loaded = load(tiny_model, model_type, positions=kind, reinject_positions=again)
                outputs[kind, again] = outputs_of(loaded, texts())
    assert torch.equal(outputs["zero", False], outputs["zero", True])
    assert (outputs["checkpoint", False] - outputs["checkpoint", True]).abs().max() > 1e-5


@pytest.mark.parametrize("model_type", WITH_TABLE)
def test_gradients_are_those_of_finite_differences(model_type: str, tiny_model: Callable[[str], Path]) -> None:
    loaded = load(tiny_model, model_type, reinject_positions=True)
    batch = texts()
    names, parameters = loaded.family.embedding_parameters, dict(loaded.model.backbone.named_parameters())
    labels = torch.tensor([0, 1, 0, 1])

    def loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs_of(loaded, batch) * 20, labels)

    loss().backward()
    for key in ("position_embeddings", "word_embeddings", "LayerNorm.weight"):
        parameter = parameters[names[key]]
        gradient = parameter.grad.clone()
        direction = torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        if key != "LayerNorm.weight":
            direction[: loaded.position_offset + (key == "word_embeddings")] = 0  # padding rows get no gradient
        slopes = []
        with torch.no_grad():
            for step in (1e-5, -1e-5):
                parameter += step * direction
                slopes.append(float(loss()))
                parameter -= step * direction
        assert float((gradient * direction).sum()) == pytest.approx((slopes[0] - slopes[1]) / 2e-5, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("freeze", "table"), [("none", "sinusoidal"), ("embeddings", "checkpoint"), ("backbone", "shuffled")]
)
def test_a_saved_run_is_read_back_with_its_hooks(
    freeze: str, table: str, tiny_config: RunConfig, tmp_path: Path
) -> None:
    config = replace(tiny_config, freeze=freeze, positions=table, reinject_positions=True, save_model=True)
    run = finetune(replace(config, output_dir=str(tmp_path)))
    assert run.manifest["positions"]["is_reinjected"]
    predictions = run.predictions[run.predictions.split == "validation"]
    for loaded, epoch in ((load_untuned(run), 0), (load_tuned(run), 2)):
        recorded = np.stack(predictions[predictions.epoch == epoch].sort_values("id").scores.to_list())
        np.testing.assert_allclose(logits(loaded, run), recorded, atol=1e-5)
    bare = load_classifier(str(run.path / "model"), pooling="mean", num_outputs=2)
    bare.model.eval().head.load_state_dict(load_tuned(run).model.head.state_dict())
    assert not np.allclose(logits(bare, run), recorded, atol=1e-4)  # the control


def test_models_can_be_copied_and_the_hooks_taken_off(tiny_model: Callable[[str], Path]) -> None:
    loaded = load(tiny_model, "bert")
    backbone = loaded.model.backbone
    plain = backbone(**texts())[0]
    hooks = Reinjection(backbone, loaded.family)
    again = backbone(**texts())[0]
    copy = deepcopy(backbone)
    assert torch.equal(copy(**texts())[0], again)
    with torch.no_grad():
        copy.embeddings.position_embeddings.weight.zero_()
    assert torch.equal(backbone(**texts())[0], again)  # the copy's hooks read the copy's table
    assert not torch.equal(copy(**texts())[0], again)
    hooks.remove()
    assert torch.equal(backbone(**texts())[0], plain)
    assert not torch.equal(plain, again)
