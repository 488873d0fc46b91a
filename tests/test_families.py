"""The leaf components of every family partition the parameters of its real model."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel

from tests.conftest import DECODERS, ENCODERS, FAMILY_CONFIGS, OTHERS, sizes_of
from tests.refusals import check_refusals, check_refused
from toolkit.families import FAMILIES, component_of, family_of


def backbone_of(model_type: str, **changes: object) -> object:
    return AutoModel.from_config(AutoConfig.for_model(model_type, **sizes_of(model_type, vocab_size=40) | changes))


TYPES = [model_type for family in FAMILIES.values() for model_type in family.model_types]
LIKE = {model_type: family.model_types[0] for family in FAMILIES.values() for model_type in family.model_types}
"""Model type to the first of its family, whose sizes any of them takes."""


@pytest.mark.parametrize("model_type", TYPES)
def test_every_parameter_belongs_to_exactly_one_leaf(model_type: str) -> None:
    family = family_of(model_type)
    leaves = {f"^{re.escape(name)}$" for name in family.embedding_parameters.values()}
    leaves |= {
        "^" + re.escape(pattern).replace(r"\{K\}", r"\d+").replace(r"\*", ".+") + "$"
        for patterns in family.components.values()
        for pattern in patterns
    }
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **sizes_of(LIKE[model_type], vocab_size=40)))
    assert family.embedding_parameters["word_embeddings"] in {name for name, _ in model.named_parameters()}
    for name, _ in model.named_parameters():
        assert sum(bool(re.match(leaf, name)) for leaf in leaves) == 1, name
        component_of(family, name)


@pytest.mark.parametrize("model_type", FAMILY_CONFIGS)
def test_embedding_parameters_are_those_of_the_embedding_module(model_type: str) -> None:
    """An oracle that knows no names: tables are the nn.Embedding inputs, LayerNorm the norm inside ``embeddings``."""
    from torch import nn

    model = backbone_of(model_type)
    module = model.embeddings
    expected = {
        f"embeddings.{path}.{name}"
        for path, child in module.named_modules()
        if isinstance(child, nn.Embedding | nn.LayerNorm)
        for name, _ in child.named_parameters(recurse=False)
    }
    names = {name for name, _ in model.named_parameters()}
    assert {name for name in family_of(model_type).embedding_parameters.values() if name in names} == expected


COUNTS = {
    "bert": 5,
    "roberta": 5,
    "distilbert": 4,
    "electra": 5,
    "albert": 5,
    "deberta-v2": 4,
    "modernbert": 2,
    "mpnet": 4,
    "mobilebert": 5,
    "esm": 1,
    "llama": 1,
    "qwen3": 1,
    "gemma3_text": 1,
    "gpt2": 2,
    "gpt_neox": 1,
    "t5": 1,
}
ESM: list[tuple[str, dict[str, object], int]] = [
    ("esm", {"position_embedding_type": "absolute", "emb_layer_norm_before": True}, 4),
    ("esm", {"position_embedding_type": "absolute", "emb_layer_norm_before": False}, 2),
    ("esm", {"position_embedding_type": "rotary", "emb_layer_norm_before": True}, 3),
]
"""What an ESM has depends on its config."""


@pytest.mark.parametrize(
    ("model_type", "changes", "number"), [*((name, {}, COUNTS[name]) for name in [*FAMILY_CONFIGS, *OTHERS]), *ESM]
)
def test_number_of_embedding_parameters(model_type: str, changes: dict[str, object], number: int) -> None:
    names = {name for name, _ in backbone_of(model_type, **changes).named_parameters()}
    assert len(names & set(family_of(model_type).embedding_parameters.values())) == number


@pytest.mark.parametrize("model_type", DECODERS)
def test_the_table_is_what_a_decoder_reads(model_type: str) -> None:
    """hidden_states[0] of transformers is the oracle: the rows of the ids, and GPT-2's positions."""
    import torch

    model, ids = backbone_of(model_type).eval(), torch.tensor([[3, 5, 5, 39]])
    named = dict(model.named_parameters())
    tables = {key: named[name].detach() for key, name in family_of(model_type).embedding_parameters.items()}
    scale = model.config.hidden_size**0.5 if model_type == "gemma3_text" else 1.0
    expected = tables["word_embeddings"][ids] * scale
    if "position_embeddings" in tables:
        expected = expected + tables["position_embeddings"][:4]
    torch.testing.assert_close(model(input_ids=ids, output_hidden_states=True).hidden_states[0], expected)
    assert family_of(model_type).is_causal


def test_albert_with_two_groups_has_two_layers() -> None:
    model = backbone_of("albert", num_hidden_groups=2, num_hidden_layers=4)
    family = family_of("albert")
    leaves = {component_of(family, name) for name, _ in model.named_parameters()}
    assert {leaf for leaf in leaves if leaf.startswith("layers")} == {"layers.0", "layers.1"}


def test_an_unknown_parameter_is_refused() -> None:
    check_refusals(
        (r"assigns to no component", lambda: component_of(FAMILIES["bert"], "encoder.layer.0")),
        (r"assigns to no component", lambda: component_of(FAMILIES["bert"], "embeddings.word_embeddings.weight.extra")),
    )


def test_an_unsupported_architecture_lists_the_supported_ones() -> None:
    check_refused(r"unsupported architecture 'opt'; supported model types: bert, roberta", family_of, "opt")


@pytest.mark.parametrize("model_type", [*FAMILY_CONFIGS, *ENCODERS])
def test_position_rows_are_those_the_module_looks_up(model_type: str, tiny_model: Callable[[str], Path]) -> None:
    """Exposure takes positions from the family's rule; the real module's own look-up is the oracle."""
    import torch

    from toolkit.models.classifier import load_classifier

    loaded = load_classifier(str(tiny_model(model_type)), pooling="mean", num_outputs=2)
    table = getattr(loaded.model.backbone.embeddings, "position_embeddings", None)
    if table is None:
        names = {name for name, _ in loaded.model.backbone.named_parameters()}
        assert loaded.family.embedding_parameters.get("position_embeddings") not in names
        return
    seen: list[torch.Tensor] = []
    table.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].detach().clone()))
    batch = loaded.tokenizer(["the nurse", "the nurse saw the dog"], padding=True, return_tensors="pt")
    loaded.model.features({k: batch[k] for k in ("input_ids", "attention_mask")})
    mask = batch["attention_mask"].bool()
    for example, real in zip(seen[0].expand(mask.shape), mask, strict=True):
        length = int(real.sum())
        assert example[real].tolist() == list(range(loaded.position_offset, loaded.position_offset + length))
