"""A loaded model in, the modules of its embedding layer out; what a family does not have is None."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from toolkit.models.classifier import Loaded


@dataclass(frozen=True, slots=True)
class Parts:
    """The embedding layer, module by module."""

    embeddings: nn.Module
    """The module as a whole: token ids in, (examples, tokens, width) vectors out."""
    word: nn.Embedding
    position: nn.Embedding | None
    segment: nn.Embedding | None
    layer_norm: nn.LayerNorm
    inner_projection: nn.Linear | None
    """Between the sum and LayerNorm (DeBERTa-v2 with narrow embeddings)."""
    outer_projection: nn.Linear | None
    """After the module, at the door of the encoder (ELECTRA and ALBERT)."""
    relative: nn.Embedding | None
    """The encoder's table of relative distances (DeBERTa-v2)."""
    is_rotary: bool
    """Whether the attention turns queries and keys by the angle of their places (ModernBERT)."""
    convolution: nn.Module | None
    """A convolution over neighbours in the encoder (large DeBERTa-v2 models)."""

    @property
    def tables(self) -> dict[str, nn.Embedding]:
        """Canonical name to table, of those that the model has."""
        tables = {
            "word_embeddings": self.word,
            "position_embeddings": self.position,
            "token_type_embeddings": self.segment,
        }
        return {name: table for name, table in tables.items() if table is not None}

    @property
    def num_segments(self) -> int:
        """Rows of the segment table; 0 where there is none."""
        return 0 if self.segment is None else self.segment.num_embeddings


def find_parts(loaded: Loaded) -> Parts:
    """The embedding layer of a model of any family."""
    backbone = loaded.model.backbone
    found = {
        canonical: _module(backbone, name.rpartition(".")[0])
        for canonical, name in loaded.family.embedding_parameters.items()
    }
    pattern = loaded.family.components.get("projection", ("",))[0].removesuffix(".*")
    projection = _module(backbone, pattern) if pattern else None
    is_inner = pattern.startswith("embeddings.")
    encoder = getattr(backbone, "encoder", None)
    return Parts(
        embeddings=backbone.get_submodule("embeddings"),
        word=found["word_embeddings"],
        position=found.get("position_embeddings"),
        segment=found.get("token_type_embeddings"),
        layer_norm=found["LayerNorm.weight"],
        inner_projection=projection if is_inner else None,
        outer_projection=None if is_inner else projection,
        relative=getattr(encoder, "rel_embeddings", None),
        is_rotary=hasattr(backbone, "rotary_emb"),
        convolution=getattr(encoder, "conv", None),
    )


def _module(backbone: nn.Module, name: str) -> Any:
    """A submodule, or None where the config left it out (the attribute is missing or None)."""
    try:
        return backbone.get_submodule(name)
    except AttributeError:
        return None


def why_absent(loaded: Loaded, parameter: str) -> str:
    """Why a model has no such embedding parameter, as one clause; empty when it has it."""
    parts = find_parts(loaded)
    if parameter in parts.tables:
        return ""
    name = loaded.family.name
    if parameter == "position_embeddings":
        inside = "rotary angles" if parts.is_rotary else "relative distances" if parts.relative is not None else ""
        where = f"positions are {inside} in the attention" if inside else f"{name} was built without positions"
        return f"not applicable: {where}"
    if parameter == "token_type_embeddings":
        is_known = parameter in loaded.family.embedding_parameters
        return f"not applicable: {name} {'was built without' if is_known else 'has no'} segments"
    if parameter == "LayerNorm.bias" and parts.layer_norm.bias is None:
        return f"not applicable: {name} was built without this bias"
    return ""
