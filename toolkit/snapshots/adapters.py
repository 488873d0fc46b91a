"""Adapters as peft saves them: which embedding parameters they train, and what these are on top of a base.

Read from the two files that ``save_pretrained`` writes. What is computed, in fp32, is what peft 0.21 merges
(``tuners/lora/layer.py`` and ``dora.py``, ``tuners/trainable_tokens/layer.py``).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.families import COPIES, FAMILIES, OUTPUT_TABLES, ModelFamily
from toolkit.naming import reading, refuse_first
from toolkit.snapshots.files import NamedTensors, read_header
from toolkit.snapshots.snapshot import CHECKED_ROWS, check_finite
from toolkit.snapshots.weights import FileTensors, FindEntry, check_stored

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

PARTS = {
    "lora_embedding_A": "A",
    "lora_embedding_B": "B",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
    "trainable_tokens_delta": "rows",
    "token_adapter.trainable_tokens_delta": "rows",
}
"""What peft adds to a module, by its name below it, and its role."""
TRAINED = {"modules_to_save.": "modules_to_save", "ln_tuning_layers.": "LN tuning"}
WHOLE = (*TRAINED, "", "base_layer.", "token_adapter.base_layer.")
"""Where below a module a parameter that is saved whole may stand, the one in use first."""
ADDED = re.compile(r"\.(lora_|ia3_|hada_|lokr_|b?oft_|vera_|ln_tuning_layers\.|trainable_tokens_|token_adapter\.)")
"""How what peft adds below a module begins."""
LEAD = "base_model.model."
TABLE_MODULES = {name.split(".")[-2] for family in FAMILIES.values() for name in family.embedding_parameters.values()}
"""What embedding tables and their LayerNorm are called, each by the last part of its module."""
PLAIN = re.compile(r"(\^?)((?:[\w-]|\\\.|\.\*|\.){0,500})")
"""Of the keys of alpha_pattern those that a name can be held against in bounded time: no groups, no counts."""
ASIDE = re.compile(r"original_module\..+|(token_adapter\.)?trainable_tokens_original")
"""What is put aside and takes no part."""
MERGE_IT = "merge it (peft: model.merge_and_unload()), save that and pass it"
BASE = "pass the base that it was trained on"


@dataclass(slots=True)
class Change:
    """What an adapter makes of one embedding parameter."""

    module: str
    """Its module, as the base model calls it."""
    parts: dict[str, str] = field(default_factory=dict)
    """Role, or one of WHOLE, to the name of the tensor in the adapter's file.

    Scale · (B A)ᵀ, of A (r, rows) and B (hidden, r), is added; magnitude (hidden,) are DoRA's norms of the columns;
    rows replace those that ``indices`` names; one of WHOLE stands in place of the base's.
    """
    scale: float = 0.0
    """alpha / r, or alpha / √r (rslora)."""
    indices: NDArray[np.int64] | None = None

    @property
    def where(self) -> str:
        """Of what is saved whole, the place in use."""
        return next((infix for infix in WHOLE if infix in self.parts), "")

    @property
    def whole(self) -> str:
        """The tensor there; empty where there is none."""
        return self.parts.get(self.where, "")


class AdaptedTensors(NamedTensors):
    """A base's parameters as an adapter changes them: computed when asked for, in blocks of rows, and never kept."""

    def __init__(
        self,
        base: Mapping[str, np.ndarray],
        own: FileTensors,
        changes: Mapping[str, Change],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        """``shapes``: of the parameters that change."""
        self._names = self._base = base
        self._own, self._changes, self.shapes = own, changes, shapes
        trained = {c: change.parts.get("A", change.whole) for c, change in changes.items()}
        self.dtypes = {c: own.dtype(name) for c, name in trained.items() if name}
        """Type in which what is trained is stored; where single rows are, that of the base counts."""

    def __getitem__(self, name: str) -> np.ndarray:
        change = self._changes.get(name, Change(""))
        tensor = self._own[change.whole] if change.whole else self._base[name]
        if "A" in change.parts:
            tensor = self._adapted(tensor, change)
        if change.indices is not None:
            tensor = np.array(tensor)
            tensor[change.indices] = self._own[change.parts["rows"]]
        return tensor

    def _adapted(self, table: np.ndarray, change: Change) -> np.ndarray:
        a, b = (np.asarray(self._own[change.parts[role]]) for role in "AB")
        out, squares = np.empty(table.shape, np.float32), np.zeros(table.shape[1])
        for start in range(0, len(table), CHECKED_ROWS):
            part = slice(start, start + CHECKED_ROWS)
            added = (a[:, part].T @ b.T) * np.float32(change.scale)
            np.add(table[part], added, out=out[part])
            np.copyto(out[part], table[part], where=added == 0)  # its bits, those of -0 too
            if "magnitude" in change.parts:
                squares += np.square(out[part], dtype=np.float64).sum(axis=0)
        if "magnitude" in change.parts:
            out *= (self._own[change.parts["magnitude"]] / np.sqrt(squares)).astype(np.float32)
        return out


def _find(names: Iterable[str], families: Sequence[ModelFamily], shown: str) -> dict[str, Change]:
    """What a file holds of each embedding parameter, by its canonical name."""
    known = {own: canonical for family in families for canonical, own in family.embedding_parameters.items()}
    known |= {copy: known[own] for copy, own in COPIES.items() if own in known}
    modules = {own.rpartition(".")[0] for own in known}
    found: dict[str, Change] = {}
    for name in names:
        for module in modules:
            before, is_there, rest = f".{name.removeprefix(LEAD)}".rpartition(f".{module}.")
            if not is_there or ASIDE.fullmatch(rest):
                continue
            place, leaf = f"{before}.{module}"[1:], rest.rpartition(".")[2]
            role = PARTS.get(rest, rest.removesuffix(leaf))
            canonical = known.get(f"{module}.{'weight' if rest in PARTS else leaf}")
            if canonical is None or (rest not in PARTS and role not in WHOLE):
                raise ValueError(f"{shown} holds {name}, a way to adapt a table that is not read here: {MERGE_IT}")
            one = found.setdefault(canonical, Change(place))
            if one.module != place:
                raise ValueError(f"{shown} adapts {canonical} as {one.module} and as {place}: {MERGE_IT}")
            one.parts[role] = name
    return found


def _place_of(module: str) -> str:
    """A module from its numbered layer on, or an embedding table's own name; empty for what may be a head.

    What stands before it depends on the class that a model was loaded as.
    """
    parts = module.split(".")
    first = next((i for i, part in enumerate(parts[:-1]) if part.isdecimal()), None)
    if first is not None:
        return ".".join(parts[max(first - 1, 0) :])
    return parts[-1] if parts[-1] in TABLE_MODULES else ""


def check_base(path: Path, base: Mapping[str, FindEntry], shown: str, name: str) -> None:
    """ValueError where an adapter was trained on modules that the base lacks, or has in another size.

    ``path``: its adapter_model.safetensors; ``base``: the name of each tensor of the base to what finds it, None
    where it is not at hand. Heads are not looked at, as a base need not have one. peft refuses the same when it loads.
    """
    there = {
        _place_of(own.rpartition(".")[0]): own for own in sorted(base, key=lambda own: own.endswith(".weight"))
    } | {_place_of(copy.rpartition(".")[0]): own for copy, own in COPIES.items() if own in base}
    for own, (_, shape, _) in read_header(path)[1].items():
        module = ADDED.split(own.removeprefix(LEAD), maxsplit=1)
        if len(module) == 1 or not (place := _place_of(module[0])):
            continue
        if place not in there:
            raise ValueError(f"{shown} was trained on {module[0]}, which {name} has not: {BASE}")
        size = held[1][1] if (held := base[there[place]]()) else ()
        # LoRA's A is (rank, in) and B (out, rank) of a matrix that is (out, in), or (in, out) as GPT-2 stores it.
        width = {"lora_A": shape[-1:], "lora_B": shape[:1]}.get(own.split(".")[-2])
        if width and len(size) == len(shape) == 2 and width[0] not in size:
            raise ValueError(f"{shown}: {own} has the shape {shape}, and {place} of {name} is {size}: {BASE}")


def open_adapter(
    path: Path,
    settings: Mapping[str, Any],
    base: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    families: Sequence[ModelFamily],
    shown: str,
) -> tuple[AdaptedTensors, str, bool]:
    """The embedding parameters of ``base`` (of these ``shapes``) under an adapter; in words, what is trained; and
    whether that is LoRA of the word table or of the output layer, each of which changes where the other does not.

    ``path``: its adapter_model.safetensors; ``settings``: its adapter_config.json. ValueError, one line, when it does
    not fit the base, is damaged, or changes an embedding parameter in a way that is not known here.
    """
    entries = {name: (path, entry) for name, entry in read_header(path)[1].items()}
    found = _find(entries, families, shown)
    changes = {canonical: found[canonical] for canonical in shapes if canonical in found}
    if changes and all(family.has_decoder for family in families):
        raise ValueError(f"{shown} adapts a table that encoder and decoder share, which is not read here: {MERGE_IT}")
    own = FileTensors({name: entries[name] for change in changes.values() for name in change.parts.values()})
    check_stored(own, shown)
    check_finite(own, shown)
    sizes = {c: own.shape(change.whole) if change.whole else shapes[c] for c, change in changes.items()}
    said: dict[str, list[str]] = {}
    for canonical, change in changes.items():
        _read_settings(change, settings, own, shown)
        _check_fit(change, canonical, sizes[canonical], own, shown)
        said.setdefault(_in_words(settings, change, own), []).append(canonical)
    trained = [words.format(", ".join(parameters)) for words, parameters in said.items()]
    beside = [n for n in entries if any(f".{table.removesuffix('weight')}" in f".{n}" for table in OUTPUT_TABLES)]
    return (
        AdaptedTensors(base, own, changes, sizes),
        "; ".join(trained or ["the adapter trains no embedding parameter"])
        + ("; the output layer is adapted beside it" if beside else ""),
        "A" in changes.get("word_embeddings", Change("")).parts or any(".lora_" in name for name in beside),
    )


def _read_settings(change: Change, settings: Mapping[str, Any], own: FileTensors, shown: str) -> None:
    """The scale and the rows of a change; ValueError for what is not read here."""
    parts, module = change.parts, change.module
    copied, is_lora = _copied(settings, module), bool({"A", "B"} & parts.keys())
    is_whole_lora = {"A", "B"} <= parts.keys() and "rows" not in parts and settings.get("peft_type") == "LORA"
    faults = {
        f"{shown}: modules_to_save names {' and '.join(copied[:2])} around it: peft trains a copy of the inner one "
        "that the model does not use; name the tables alone": len(copied) > 1,
        f"{shown} adapts {module} by {', '.join(sorted(parts))} together: {MERGE_IT}": is_lora and not is_whole_lora,
        f"{shown} was started by LoftQ, which changes its base's table: {MERGE_IT}": is_lora
        and settings.get("init_lora_weights") == "loftq",
    }
    refuse_first(faults)
    if is_lora:
        change.scale = _scale(settings, module, own.shape(parts["A"])[0], shown)
    change.indices = _indices(settings, module, shown) if "rows" in parts else None


def _copied(settings: Mapping[str, Any], module: str) -> list[str]:
    """Which of a module and those that it lies in are trained as copies (modules_to_save)."""
    listed = tuple(map(str, settings.get("modules_to_save") or ()))
    within = (module.rsplit(".", i)[0] for i in range(module.count(".") + 1))
    return [place for place in within if place.endswith(listed)]


def _scale(settings: Mapping[str, Any], module: str, rank: int, shown: str) -> float:
    """What LoRA multiplies by; alpha is that of the first pattern that the module's name ends with, or of all."""
    with reading(f"{shown}: {SETTINGS}", f"gives no lora_alpha for {module}"):
        patterns = (settings.get("alpha_pattern") or {}).items()
        alpha = next((alpha for key, alpha in patterns if _is_meant(key, module)), settings["lora_alpha"])
        scale = float(alpha) / (sqrt(rank) if settings.get("use_rslora") else rank)
        if not abs(scale) < float(np.finfo(np.float32).max):
            raise ValueError(f"it is {scale}")
        return scale


def _is_meant(key: str, module: str) -> bool:
    """Whether peft takes a key of alpha_pattern to mean a module: it matches the end of its name from a dot on.

    A regular expression may take for ever, so one that is more than names, dots, ``.*`` and ``^`` is refused.
    """
    if (plain := PLAIN.fullmatch(key)) is None:
        raise ValueError(f"alpha_pattern {key[:80]!r} is no plain name: {MERGE_IT}")
    # The dot of a regular expression is any character, and one that is escaped a dot.
    glob = plain[2].replace("\\.", "\0").replace(".*", "*").replace(".", "?").replace("\0", ".")
    return fnmatchcase(module, glob) or (not plain[1] and fnmatchcase(module, f"*.{glob}"))


def _indices(settings: Mapping[str, Any], module: str, shown: str) -> NDArray[np.int64]:
    """The rows that are trained, in the order of what stands in for them."""
    rows = settings.get("trainable_token_indices")
    rows = next((own for key, own in rows.items() if module.endswith(key)), None) if isinstance(rows, dict) else rows
    rows = settings.get("token_indices") if rows is None else rows
    if not isinstance(rows, list) or not all(type(row) is int and 0 <= row < 2**63 for row in rows):
        raise ValueError(f"{shown}: {SETTINGS} does not list the trained rows of {module}: restore it")
    return np.array(rows, np.int64)


def _check_fit(change: Change, canonical: str, size: tuple[int, ...], own: FileTensors, shown: str) -> None:
    """ValueError where an adapter's tensors have not the shapes that a parameter of this size asks for."""
    rank = own.shape(change.parts["A"])[0] if "A" in change.parts else 0
    num_rows = len(change.indices) if change.indices is not None else 0
    shapes = {"A": (rank, size[0]), "B": (*size[1:], rank), "magnitude": size[1:], "rows": (num_rows, *size[1:])}
    for role in (role for role in shapes if role in change.parts):
        name, shape = change.parts[role], shapes[role]
        if own.shape(name) != shape or 0 in shape:
            raise ValueError(
                f"{shown}: {name} has the shape {own.shape(name)}, not {shape}, for {canonical} of {size}: {BASE}"
            )
    if change.indices is not None and change.indices.max() >= size[0]:
        raise ValueError(
            f"{shown} trains row {change.indices.max()} of {canonical}, which has {size[0]:,} rows: {BASE}"
        )


def _in_words(settings: Mapping[str, Any], change: Change, own: FileTensors) -> str:
    """What an adapter trains of a parameter, or at least holds; ``{}`` stands for the parameter."""
    if "A" in change.parts:
        kind = "DoRA" if "magnitude" in change.parts else "LoRA"
        return f"{kind} of rank {own.shape(change.parts['A'])[0]} on {{}}"
    if change.indices is not None:
        return f"{len(change.indices)} row{'s' * (len(change.indices) > 1)} of {{}} (trainable_token_indices)"
    how = TRAINED.get(change.where, "modules_to_save" if _copied(settings, change.module) else "")
    if not how and change.whole.endswith(".bias") and settings.get("bias") != "none":
        how = "bias"
    return f"the whole of {{}} ({how})" if how else "{}, which is saved whole, trained or not"
