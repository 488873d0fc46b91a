"""The embedding module of any supported model, and what it is called."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from toolkit.families import FAMILIES, ModelFamily


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Where a model keeps its embedding parameters."""

    backbone: nn.Module
    """The module whose parameter names are those of ``family``: a BertModel, whatever is wrapped around it."""
    family: ModelFamily
    module: nn.Module
    """The embedding module: what is called with the token ids."""
    parameters: dict[str, nn.Parameter]
    """Canonical name to the live parameter; a parameter that the model lacks is left out."""
    padding_row: int | None
    """The row of the word table that stands for padding and gets no gradient."""

    @property
    def position_offset(self) -> int:
        """The position row of the first token."""
        if self.family.position_start == "zero" or self.padding_row is None:
            return 0
        return self.padding_row + 1


def locate_embeddings(model: nn.Module) -> Embeddings:
    """Find the one backbone of a supported family inside ``model``; ValueError when there is none, or several.

    It is found by ``config.model_type`` and by its parameter names, so that heads, wrappers of several processes and
    sentence-transformers around it do not matter.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch.nn.Module, the model itself; got {type(model).__name__}")
    found = list(_backbones(model))
    if not found:
        supported = ", ".join(t for family in FAMILIES.values() for t in family.model_types)
        raise ValueError(
            f"{type(model).__name__} holds no backbone of a supported family (model types: {supported}) "
            "with unwrapped embedding parameters (no adapter, parametrization or FSDP1 on them, nor the embeddings "
            "compiled alone; FSDP2, DDP and torch.compile of the whole model are understood)"
        )
    if len(found) > 1:
        names = ", ".join(repr(name) for name, _, _ in found)
        raise ValueError(f"{type(model).__name__} holds {len(found)} backbones ({names}): pass one of them")
    _, backbone, family = found[0]
    named = dict(backbone.named_parameters(remove_duplicate=False))
    parameters = {key: named[name] for key, name in family.embedding_parameters.items() if name in named}
    words = family.embedding_parameters["word_embeddings"].removesuffix(".weight")
    table = backbone.get_submodule(words)
    module = backbone.get_submodule(words.rpartition(".")[0])
    return Embeddings(backbone, family, module, parameters, getattr(table, "padding_idx", None))


def _backbones(model: nn.Module) -> Iterator[tuple[str, nn.Module, ModelFamily]]:
    for name, module in model.named_modules():
        model_type = getattr(getattr(module, "config", None), "model_type", None)
        for family in FAMILIES.values():
            if model_type in family.model_types:
                names = {key for key, _ in module.named_parameters(remove_duplicate=False)}
                if family.embedding_parameters["word_embeddings"] in names:
                    yield name, module, family


def layer_norm_eps(backbone: nn.Module, family: ModelFamily) -> float | None:
    """The eps of the embedding LayerNorm; None when the module does not say."""
    module = backbone.get_submodule(family.embedding_parameters["LayerNorm.weight"].removesuffix(".weight"))
    eps = getattr(module, "eps", None)
    return None if eps is None else float(eps)
