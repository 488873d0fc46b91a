"""A checkpoint in, a Classifier out: backbone in fp32, a pooling, and one linear head."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from toolkit.families import ModelFamily, family_of
from toolkit.models.checkpoints import Source, find_checkpoint

HEAD_DESCRIPTION = "linear"
"""The head, as manifests name it: one linear layer, no dropout of its own, computed in fp32."""


class Classifier(nn.Module):
    """A backbone, a pooling and a linear head."""

    def __init__(self, backbone: nn.Module, pooling: str, num_outputs: int, generator: torch.Generator) -> None:
        """``generator`` draws the head's weights: normal, with the backbone's ``initializer_range``; bias 0."""
        super().__init__()
        config: Any = backbone.config
        self.backbone = backbone
        self.pooling = pooling
        self.head = nn.Linear(config.hidden_size, num_outputs)
        with torch.no_grad():
            self.head.weight.normal_(0.0, getattr(config, "initializer_range", 0.02), generator=generator)
            self.head.bias.zero_()

    def features(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(examples, hidden) fp32 pooled vectors of a batch of (examples, longest) id tensors."""
        return self.pool(self.backbone(**batch), batch["attention_mask"])

    def pool(self, output: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        """(examples, hidden) fp32 pooled vectors from the backbone's output, whatever computed that."""
        if self.pooling == "pooler":
            pooled: torch.Tensor = output.pooler_output
            return pooled.float()
        states: torch.Tensor = output.last_hidden_state.float()
        if self.pooling == "cls":
            return states[:, 0]
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return (states * mask).sum(dim=1) / mask.sum(dim=1)

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        """(examples, outputs) fp32 logits, or values in regression."""
        return self.classify(self.backbone(**batch), batch["attention_mask"])

    def classify(self, output: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        """(examples, outputs) fp32 logits, or values, from the backbone's output, whatever computed that."""
        features = self.pool(output, attention_mask)
        # The head is a few thousand weights: fp32 costs nothing and keeps logits exact under autocast.
        with torch.autocast(features.device.type, enabled=False):
            logits: torch.Tensor = self.head(features)
        return logits


@dataclass(frozen=True, slots=True)
class Loaded:
    """A classifier with what belongs to it."""

    model: Classifier
    tokenizer: Any
    family: ModelFamily
    source: Source
    position_offset: int
    """Position row of a text's first token."""
    max_length: int | None
    """Longest text the position table (or the config) allows; None when nothing limits it."""
    positions: Mapping[str, Any] | None = None
    """What was done to the position table, for the manifest; None where that is not known or there is no table."""


def load_classifier(
    name: str, *, pooling: str, num_outputs: int, init: str = "checkpoint", seed: int = 0, dropout: float | None = None
) -> Loaded:
    """Load a checkpoint and put a fresh head on it.

    The pooler is built only for ``pooling="pooler"``: unused it would get no gradient. ValueError for a name that
    cannot be had, an unsupported architecture, a pooling that the family lacks, or a checkpoint with missing tensors.
    """
    source = find_checkpoint(name).pinned()
    config = source.read_config()
    family = family_of(config.model_type)
    kind = getattr(config, "position_embedding_type", "absolute")
    if kind != "absolute" and "position_embeddings" in family.embedding_parameters:  # ModernBERT has any text there
        raise ValueError(
            f"{name} was made with position_embedding_type {kind!r}, which transformers 5 ignores, so that it would "
            "compute something else than it was trained to: take a checkpoint with absolute positions"
        )
    if pooling == "pooler" and not family.has_pooler:
        raise ValueError(f"--pooling pooler: {family.name} has no pooler; choose from: mean, cls")
    if dropout is not None:
        _set_dropout(config, dropout)
    options = {"add_pooling_layer": pooling == "pooler"} if family.has_pooler else {}
    backbone = _random_backbone(config, seed, options) if init == "random" else source.read_backbone(config, options)
    tokenizer = source.read_tokenizer()
    if tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer of {name} has no padding token")
    if family.position_start == "after_padding" and config.pad_token_id is None:
        raise ValueError(f"the config.json of {name} has no pad_token_id, after which {family.name} counts positions")
    generator = torch.Generator().manual_seed(seed)
    offset = config.pad_token_id + 1 if family.position_start == "after_padding" else 0
    limit = getattr(config, "max_position_embeddings", None)
    return Loaded(
        Classifier(backbone, pooling, num_outputs, generator),
        tokenizer,
        family,
        source,
        offset,
        limit - offset if limit else None,
    )


def _set_dropout(config: Any, probability: float) -> None:
    """Set every dropout probability of a config, whatever the family calls it."""
    for field in vars(config):
        if "dropout" in field and isinstance(getattr(config, field), int | float) and field != "classifier_dropout":
            setattr(config, field, probability)


def _random_backbone(config: Any, seed: int, options: dict[str, Any]) -> nn.Module:
    from transformers import AutoModel

    with _seeded(seed):
        backbone: nn.Module = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False, **options)
    return backbone


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Run a block under a seed of its own and put torch's generator back as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """No dropout inside the block; the mode is put back after it."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
