"""Which components are frozen, as data, and where a model has its embedding module."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from toolkit.families import EMBEDDING_PARAMETERS, FAMILIES, REGIMES, ModelFamily, component_of, matches
from toolkit.naming import unknown


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

    @property
    def position_offset(self) -> int:
        """The position row of the first token."""
        is_known = self.padding_row is not None
        return self.family.first_position(self.padding_row) if is_known else 0


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
    place = words.rpartition(".")[0]
    lookups = [backbone.get_submodule(place)] if place else _holders(backbone, parameters["word_embeddings"])
    return Embeddings(backbone, family, tuple(lookups), parameters, getattr(table, "padding_idx", None))


def _holders(backbone: nn.Module, table: nn.Parameter) -> list[nn.Module]:
    """The modules that look rows of a table up."""
    return [m for m in backbone.modules() if isinstance(m, nn.Embedding) and m.weight is table]


def _backbones(model: nn.Module) -> Iterator[tuple[str, nn.Module, ModelFamily]]:
    for name, module in model.named_modules():
        model_type = getattr(getattr(module, "config", None), "model_type", None)
        for family in FAMILIES.values():
            if model_type in family.model_types:
                names = {key for key, _ in module.named_parameters(remove_duplicate=False)}
                if family.embedding_parameters["word_embeddings"] in names:
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
    parts: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        leaf = "head" if name.startswith(HEAD) else component_of(family, name.removeprefix(BACKBONE))
        parts.setdefault(leaf, []).append(name)
    return {leaf: tuple(parts[leaf]) for leaf in sorted(parts, key=_rank)}


def _rank(leaf: str) -> tuple[int, int]:
    if leaf.startswith("layers."):
        return len(EMBEDDING_PARAMETERS) + 1, int(leaf.removeprefix("layers."))
    order = (*EMBEDDING_PARAMETERS, "projection", "layers", "encoder_other", "decoder", "pooler", "head")
    return order.index(leaf), 0


def _unions(leaves: tuple[str, ...]) -> dict[str, frozenset[str]]:
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
    if word in unions:
        return set(unions[word])
    if word in leaves:
        return {word}
    if match := re.fullmatch(r"layers\.(\d+)-(\d+)", word):
        first, last = int(match[1]), min(int(match[2]), len(leaves))  # no model has a layer of that number
        wanted = [f"layers.{k}" for k in range(first, last + 1)]
        missing = [leaf for leaf in wanted if leaf not in leaves]
        if wanted and not missing:
            return set(wanted)
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
    words: list[str] = []
    rest = set(frozen)
    for name in ("backbone", "embeddings", "encoder"):
        if unions[name] and unions[name] <= rest:
            words.append(name)
            rest -= unions[name]
    numbers = sorted(int(leaf.removeprefix("layers.")) for leaf in rest if leaf.startswith("layers."))
    words += [leaf for leaf in leaves if leaf in rest and not leaf.startswith("layers.")]
    return ",".join(words + _ranges(numbers))


def _ranges(numbers: list[int]) -> list[str]:
    """[0, 1, 2, 5] -> layers.0-2, layers.5."""
    words: list[str] = []
    for i, number in enumerate(numbers):
        if i and numbers[i - 1] == number - 1:
            continue
        end = next(n for n in numbers[i:] if n + 1 not in numbers)
        words.append(f"layers.{number}" if end == number else f"layers.{number}-{end}")
    return words


def apply_regime(model: nn.Module, regime: Regime, family: ModelFamily) -> tuple[str, ...]:
    """Switch gradients off for the frozen components, and on for the rest; the names frozen.

    Call it before ``accelerator.prepare``: freezing later passes on one process and breaks DDP on two. What takes no
    part in the forward pass is frozen under any regime: it gets no gradient, which DDP waits for.
    """
    frozen = {n for leaf, names in list_components(model, family).items() if leaf in regime.frozen for n in names}
    for name, parameter in model.named_parameters():
        if any(matches(pattern, name.removeprefix(BACKBONE)) for pattern in family.unused):
            frozen.add(name)
        parameter.requires_grad_(name not in frozen)
    return tuple(sorted(frozen))
