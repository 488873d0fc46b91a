"""Freezing the components that a regime names, and where a model has its embedding parameters.

The named regimes, and the components of each family, are data: ``REGIMES`` and ``FAMILIES`` in ``families.py``."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.families import (
    ADAPTER,
    EMBEDDING_PARAMETERS,
    FAMILIES,
    LORA,
    OLD_ROWS,
    REGIMES,
    ModelFamily,
    component_of,
    held_name,
    matches,
)
from toolkit.naming import unknown
from toolkit.snapshots.logs import BY_ADAPTER
from toolkit.snapshots.snapshot import to_array


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Where a model keeps its embedding parameters."""

    backbone: nn.Module
    """The module whose parameter names are those of ``family``: a BertModel, whatever is wrapped around it."""
    family: ModelFamily
    lookups: tuple[nn.Module, ...]
    """What is called with the token ids: the embedding module, else the modules that hold the word table (T5's are one
    for its encoder and one for its decoder)."""
    parameters: dict[str, nn.Parameter]
    """Canonical name to the live parameter; a parameter that the model lacks is left out."""
    padding_row: int | None
    """The row of the word table that stands for padding and gets no gradient."""
    adapted: Mapping[str, Callable[[], torch.Tensor]] = field(default_factory=dict)
    """Canonical name of a table that an adapter changes to what computes it; its parameter is the base's, frozen."""

    @property
    def why_not_replayed(self) -> str:
        """Why no update of the adapted tables can be worked out from a log; empty where none is adapted."""
        return f"{', '.join(self.adapted)}: {BY_ADAPTER}" if self.adapted else ""

    def values(self) -> dict[str, NDArray[np.float32]]:
        """Canonical name to a copy of the parameter as it is now: under the active adapters, and with the rows held.

        Under FSDP2 every process must call this, because the shards are gathered.
        """
        return {name: to_array(self._now(name)) for name in self.parameters}

    def _now(self, name: str) -> torch.Tensor:
        """The parameter as the model uses it now: under its adapters, and with the rows held."""
        if name in self.adapted:
            return self.adapted[name]()
        owner = _module_at(self.backbone, self.family.embedding_parameters[name].rpartition(".")[0])
        return getattr(owner, "whole_table", self.parameters[name])  # of `new_tokens.HeldTable`

    @property
    def position_offset(self) -> int:
        """The position row of the first token."""
        is_known = self.padding_row is not None
        return self.family.first_position(self.padding_row) if is_known else 0


SAVE_IT = "save the adapter after training and compare: python -m toolkit drift BASE ADAPTER"


def locate_embeddings(model: nn.Module) -> Embeddings:
    """Find the one backbone of a supported family inside ``model``; ValueError when there is none, or several.

    It is found by ``config.model_type`` and by its parameter names, so that heads, wrappers of several processes and
    sentence-transformers around it do not matter.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch.nn.Module, the model itself; got {type(model).__name__}")
    backbones = list(find_backbones(model))
    if not backbones:
        supported = ", ".join(model_type for family in FAMILIES.values() for model_type in family.model_types)
        raise ValueError(
            f"{type(model).__name__} holds no backbone of a supported family (model types: {supported}) "
            "with embedding parameters that can be read (no parametrization or FSDP1 on them, nor the embeddings "
            "compiled alone; FSDP2, DDP, torch.compile of the whole model and, of peft's ways to adapt tables, LoRA, "
            f"DoRA and trainable tokens are understood; of others, {SAVE_IT})"
        )
    if len(backbones) > 1:
        names = ", ".join(repr(name) for name, _, _ in backbones)
        raise ValueError(f"{type(model).__name__} holds {len(backbones)} backbones ({names}): pass one of them")
    _, backbone, family = backbones[0]
    located = {key: find_parameter(backbone, name) for key, name in family.embedding_parameters.items()}
    for key, name in family.embedding_parameters.items():
        if located[key] is None and hasattr(_module_at(backbone, name.rpartition(".")[0]), "base_layer"):
            raise ValueError(f"{key} of {type(model).__name__} is adapted in a way that cannot be read live: {SAVE_IT}")
    parameters = {key: at.parameter for key, at in located.items() if at}
    adapted = {key: at.effective for key, at in located.items() if at and at.effective}
    words = located["word_embeddings"]
    assert words is not None
    # Of ``embeddings.word_embeddings.weight`` the table's own path, and that of the module that it is in.
    table_path = family.embedding_parameters["word_embeddings"].rpartition(".")[0]
    module_path = table_path.rpartition(".")[0]
    if family.has_decoder and (words.effective or words.module is not backbone.get_submodule(table_path)):
        raise ValueError(f"{type(model).__name__}: an adapter on the table that encoder and decoder share is not read")
    if module_path:
        lookups = [_module_at(backbone, module_path) or backbone]
    else:
        lookups = [words.module] if words.effective else _lookups_of(backbone, words.parameter)
    return Embeddings(backbone, family, tuple(lookups), parameters, words.padding_row, adapted)


def _lookups_of(backbone: nn.Module, table: nn.Parameter) -> list[nn.Module]:
    """The modules that look rows of a table up."""
    return [m for m in backbone.modules() if isinstance(m, nn.Embedding) and m.weight is table]


@dataclass(frozen=True, slots=True)
class LocatedParameter:
    """An embedding parameter, and the module in which it is at work."""

    module: nn.Module
    parameter: nn.Parameter
    effective: Callable[[], torch.Tensor] | None
    """Of a table that an adapter changes, what computes it; then ``parameter`` is the base's."""

    @property
    def padding_row(self) -> int | None:
        """The padding row as the table says it, or the table beneath an adapter."""
        table: Any = self.module if self.effective is None else _adapter_of(self.module).get_base_layer()
        row: int | None = getattr(table, "padding_idx", None)
        return row


def find_parameter(backbone: nn.Module, name: str) -> LocatedParameter | None:
    """The parameter at a name in the family's AutoModel, through what peft puts there; None where it cannot be read."""
    module_path, _, leaf = name.rpartition(".")
    module = _module_at(backbone, module_path)
    if module is None:
        return None
    parameter = dict(module.named_parameters(recurse=False, remove_duplicate=False)).get(leaf)
    if parameter is not None:
        return LocatedParameter(module, parameter, None)
    layer = _adapter_of(module)
    if hasattr(layer, "trainable_tokens_delta"):
        return LocatedParameter(
            module, layer.get_base_layer().weight, lambda: layer.get_merged_weights(layer.active_adapters)
        )
    if hasattr(layer, "lora_embedding_A"):
        return LocatedParameter(module, layer.get_base_layer().weight, lambda: with_adapters(layer))
    return None


def _adapter_of(module: nn.Module) -> Any:
    """The adapter layer of peft; where single rows are adapted, it is inside a wrapper."""
    return getattr(module, "token_adapter", module)


def with_adapters(layer: Any) -> torch.Tensor:
    """The base's weight and what the active adapters make of it, one after another, as far as it is not merged yet.

    Where LoRA adds 0 the base's bits stay, those of -0 too, which the sum would lose. DoRA then brings each column to
    its trained length from that which base and addition have (Liu et al. 2024, arXiv 2402.09353, eq. 5): all rows move.
    """
    base: torch.Tensor = layer.get_base_layer().weight
    weight = base
    magnitudes = layer.lora_magnitude_vector or {}  # of DoRA alone
    active = [name for name in layer.active_adapters if name in {*layer.lora_A, *layer.lora_embedding_A}]
    for name in active if not layer.merged else []:
        added = layer.get_delta_weight(name)
        weight = torch.where(added == 0, weight, weight + added)
        if name in magnitudes:
            lengths = torch.linalg.vector_norm(base + added, dim=0)
            weight = (weight * (magnitudes[name].weight / lengths)).to(base.dtype)
    return weight


def has_adapters(model: nn.Module) -> bool:
    """Whether LoRA is anywhere in a model."""
    return any(ADAPTER in name for name, _ in model.named_parameters())


def word_table(backbone: nn.Module) -> Any:
    """The module that holds the word table, beneath an adapter too."""
    embedding: Any = backbone.get_input_embeddings()  # type: ignore[operator]
    return getattr(embedding, "base_layer", embedding)


def _module_at(backbone: nn.Module, path: str) -> nn.Module | None:
    """A module by its path, through the copies that peft trains in place of modules on the way."""
    module: Any = backbone
    for name in path.split("."):
        module = dict(module.named_children()).get(name)
        for kind, original in (("modules_to_save", "original_module"), ("ln_tuning_layers", "base_layer")):
            if isinstance(copies := getattr(module, kind, None), nn.ModuleDict):
                active = [copies[adapter] for adapter in module.active_adapters if adapter in copies]
                module = active[0] if active else getattr(module, original)
        if module is None:
            return None
    return module  # type: ignore[no-any-return]


def find_backbones(model: nn.Module) -> Iterator[tuple[str, nn.Module, ModelFamily]]:
    """The path, the module and the family of each backbone in a model whose word table can be read."""
    for name, module in model.named_modules():
        model_type = getattr(getattr(module, "config", None), "model_type", None)
        for family in FAMILIES.values():
            if model_type in family.model_types and find_parameter(
                module, family.embedding_parameters["word_embeddings"]
            ):
                yield name, module, family


def layer_norm_eps(backbone: nn.Module, family: ModelFamily) -> float | None:
    """The eps of the embedding LayerNorm; None when there is none, or it does not say."""
    name = family.embedding_parameters.get("LayerNorm.weight", "").rpartition(".")[0]
    eps = getattr(dict(backbone.named_modules()).get(name), "eps", None) if name else None
    return None if eps is None else float(eps)


BACKBONE = "backbone."
HEAD = "head."
"""Prefixes of the two halves of a classifier's parameter names."""


@dataclass(frozen=True, slots=True)
class Regime:
    """Which leaf components are frozen."""

    label: str
    """Canonical name: the first of REGIMES that freezes just this, else the components, comma-separated."""
    frozen: frozenset[str]


def list_components(model: nn.Module, family: ModelFamily) -> dict[str, tuple[str, ...]]:
    """Leaf component to its parameter names in ``model`` (a Classifier); the leaves partition the parameters.

    Ordered: the embedding parameters, projection, layers by number, encoder_other, decoder, pooler, head.
    """
    names_by_leaf: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        leaf = "head" if name.startswith(HEAD) else component_of(family, name.removeprefix(BACKBONE))
        names_by_leaf.setdefault(leaf, []).append(name)
    return {leaf: tuple(names_by_leaf[leaf]) for leaf in sorted(names_by_leaf, key=rank_of)}


def rank_of(leaf: str) -> tuple[int, int]:
    """Where a leaf component stands in every table."""
    if leaf.startswith("layers."):
        return len(EMBEDDING_PARAMETERS) + 1, int(leaf.removeprefix("layers."))
    order = (*EMBEDDING_PARAMETERS, "projection", "layers", "encoder_other", "decoder", "pooler", "head")
    return order.index(leaf), 0


def adapter_regime(components: Mapping[str, tuple[str, ...]]) -> Regime:
    """The regime of a model with adapters, of these components: those without one are frozen, but for the head and a
    word table whose added rows are trained.
    """
    adapted = {leaf for leaf, names in components.items() if any(ADAPTER in n or OLD_ROWS in n for n in names)}
    return Regime(LORA, frozenset(components.keys() - adapted - {"head"}))


def _unions(leaves: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Name of a union, as ``--freeze`` takes it, to its leaves in a model that has these leaves."""
    embeddings = frozenset(leaf for leaf in leaves if leaf in EMBEDDING_PARAMETERS)
    backbone = frozenset(leaf for leaf in leaves if leaf != "head")
    return {"embeddings": embeddings, "encoder": backbone - embeddings - {"pooler"}, "backbone": backbone}


def parse_regime(text: str, leaves: tuple[str, ...]) -> Regime:
    """The regime that a ``--freeze`` value names, for a model with these leaf components.

    ``text`` is a comma-separated list of leaves, unions, ranges (``layers.0-3``) and named regimes (see REGIMES).
    ValueError for an unknown component, one that the model lacks, or when nothing is left to train.
    """
    unions = _unions(leaves)
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError(f"--freeze is empty: pass {', '.join(REGIMES)} or components")
    if len(words) > 1 and (idle := [word for word in words if REGIMES.get(word) == ()]):
        raise ValueError(f"unknown regime or component {idle[0]!r} beside others: leave it out, or pass it alone")
    frozen: set[str] = set()
    for word in words:
        for part in REGIMES.get(word, (word,)):
            frozen |= _leaves_of(part, leaves, unions)
    if frozen == set(leaves):
        raise ValueError(f"--freeze {text} leaves nothing to train")
    return Regime(_label(frozenset(frozen), leaves, unions), frozenset(frozen))


def _leaves_of(word: str, leaves: tuple[str, ...], unions: Mapping[str, frozenset[str]]) -> set[str]:
    """The leaves that one word of ``--freeze`` names: a union, a leaf or a range of layers."""
    if word in unions:
        return set(unions[word])
    if word in leaves:
        return {word}
    if match := re.fullmatch(r"layers\.(\d+)-(\d+)", word):
        first, last = int(match[1]), min(int(match[2]), len(leaves))  # no model has a layer of that number
        in_range = [f"layers.{layer}" for layer in range(first, last + 1)]
        missing = [leaf for leaf in in_range if leaf not in leaves]
        if in_range and not missing:
            return set(in_range)
        layers = [leaf for leaf in leaves if leaf.startswith("layers.")]
        order = ", and the lower one comes first" if first > last else ""
        raise ValueError(f"--freeze {word}: the model has the layers {layers[0]} to {layers[-1]}{order}")
    choices = tuple(dict.fromkeys((*REGIMES, *unions, *leaves)))
    if word in (*EMBEDDING_PARAMETERS, "projection", "encoder_other", "decoder", "pooler"):
        raise ValueError(f"--freeze {word}: not applicable, this model has none; choose from: {', '.join(choices)}")
    raise ValueError(unknown(word, "regime or component", choices))


def _label(frozen: frozenset[str], leaves: tuple[str, ...], unions: Mapping[str, frozenset[str]]) -> str:
    """One name per set of frozen leaves, so that two spellings of a regime are one run."""
    for name, parts in REGIMES.items():
        with contextlib.suppress(ValueError):  # names a component that this model lacks
            if frozen == frozenset().union(*(_leaves_of(part, leaves, unions) for part in parts)):
                return name
    names: list[str] = []
    remaining = set(frozen)
    for name in ("backbone", "embeddings", "encoder"):
        if unions[name] and unions[name] <= remaining:
            names.append(name)
            remaining -= unions[name]
    numbers = sorted(int(leaf.removeprefix("layers.")) for leaf in remaining if leaf.startswith("layers."))
    names += [leaf for leaf in leaves if leaf in remaining and not leaf.startswith("layers.")]
    return ",".join(names + layer_ranges(numbers))


def layer_ranges(numbers: list[int]) -> list[str]:
    """[0, 1, 2, 5] -> layers.0-2, layers.5."""
    ranges: list[str] = []
    for i, number in enumerate(numbers):
        if i and numbers[i - 1] == number - 1:
            continue
        end = next(other for other in numbers[i:] if other + 1 not in numbers)
        ranges.append(f"layers.{number}" if end == number else f"layers.{number}-{end}")
    return ranges


def apply_regime(model: nn.Module, regime: Regime, family: ModelFamily) -> tuple[str, ...]:
    """Switch gradients off for the frozen components, and on for the rest; the names frozen.

    Call it before ``accelerator.prepare``: freezing later passes on one process and breaks DDP on two. What takes no
    part in the forward pass is frozen under any regime: it gets no gradient, which DDP waits for. So are old rows that
    are held, and of a model with adapters all of the backbone but these and added rows.
    """
    is_adapted = has_adapters(model)
    parameters = dict(model.named_parameters())
    frozen = {n for leaf, names in list_components(model, family).items() if leaf in regime.frozen for n in names}
    for name, parameter in parameters.items():
        is_unused = any(matches(pattern, name.removeprefix(BACKBONE)) for pattern in family.unused)
        is_base = is_adapted and name.startswith(BACKBONE) and ADAPTER not in name and held_name(name) not in parameters
        if is_unused or is_base or name.endswith(f".{OLD_ROWS}"):
            frozen.add(name)
        parameter.requires_grad_(name not in frozen)
    return tuple(sorted(frozen))
