"""The parameters in a checkpoint's weight files: found by name, memory-mapped, converted on use."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from toolkit.families import (
    BESIDE_WEIGHTS,
    COPIES,
    EMBEDDING_PARAMETERS,
    FAMILIES,
    GAMMA_BETA,
    OUTPUT_TABLES,
    TABLES,
    ModelFamily,
    component_of,
    matches,
)
from toolkit.naming import read_json, reading, refuse_first
from toolkit.snapshots.files import NamedTensors, WidenedRows, map_tensor, read_header, widen
from toolkit.snapshots.snapshot import check_finite
from toolkit.snapshots.tokenizer_files import Fetch

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
"""Stored types that are read, and what they are called."""

WIDENED: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "BF16": widen,
    "F16": lambda values: values.astype(np.float32),
}
"""Half-precision types, and how values of each become fp32."""

Entry = tuple[str, tuple[int, ...], int]

ADAPTED = (".lora_", ".base_layer.", ".modules_to_save.", ".original_module.", ".parametrizations.")
"""Parts of the names that peft gives to what it adds, or puts aside, and torch to what a weight is computed from."""
MERGE = (
    "merge the adapter into the model (peft: model.merge_and_unload()), or take the parametrization off "
    "(torch.nn.utils.parametrize.remove_parametrizations), and save that"
)
TRANSPARENT = re.compile(r"(?<=\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What torch.compile, FSDP1 and activation checkpointing put into the names below a module that they wrap alone."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where the embedding parameters stand in a checkpoint's weight files."""

    names: Mapping[str, str]
    """Canonical name to the name in the file."""
    families: tuple[ModelFamily, ...]
    """The families that use these names: one where the config says so, several that names cannot tell apart."""
    prefix: str
    """What stands before the names of the backbone's parameters, without what TRANSPARENT wrappers put into them."""
    output: str = ""
    """The name in the file of an output layer that is a table of its own; empty where there is none."""


class FileTensors(NamedTensors):
    """Parameters of a checkpoint by name, as fp32: fp32 is mapped, half-precision tables are :class:`WidenedRows`,
    other types are converted on each use."""

    def __init__(self, entries: Mapping[str, tuple[Path, Entry]]) -> None:
        self._names = self._entries = dict(entries)

    def __getitem__(self, name: str) -> np.ndarray:
        path, entry = self._entries[name]
        if entry[0] in WIDENED and len(entry[1]) == 2:
            return WidenedRows(map_tensor(path, entry), WIDENED[entry[0]])  # type: ignore[return-value]
        with np.errstate(over="ignore"):  # an fp64 beyond fp32 becomes infinite, and that is refused
            return self.stored(name).astype(np.float32, copy=False)

    def stored(self, name: str) -> np.ndarray:
        """A parameter in the type that it is stored in, mapped; bf16, which numpy lacks, as the equal fp32."""
        path, entry = self._entries[name]
        tensor = map_tensor(path, entry)
        return widen(tensor) if entry[0] == "BF16" else tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter, without reading it."""
        return self._entries[name][1][1]

    def dtype(self, name: str) -> str:
        """The type that a parameter is stored in."""
        return DTYPES[self._entries[name][1][0]]


def locate(names: Iterable[str], family: ModelFamily | None, shown: str) -> Location:
    """Find the embedding parameters among the names of a checkpoint's tensors, whatever stands before them.

    The family's exact name must be a whole dotted ending, and all parameters must share what stands before it.
    ValueError when there are none, or several sets of them (two towers), or one of them is wrapped by an adapter.
    """
    called = _unwrapped(names)
    names = tuple(name for name in called if not _is_copy(name, called))
    found = {known.name: _by_prefix(names, known) for known in FAMILIES.values() if family in (None, known)}
    fitting = [
        known
        for known in FAMILIES.values()
        if (own := found.get(known.name))
        # What sets a family apart from others must be there, under any of the prefixes.
        and (family or not known.mark or any(matches(prefix + known.mark, name) for prefix in own for name in names))
    ]
    prefixes = sorted({prefix for known in fitting for prefix in found[known.name]})
    wanted = "any supported family" if family is None else f"{family.name} models"
    remedy = MERGE if any(part in name for part in ADAPTED for name in names) else "is it a whole checkpoint?"
    towers = f"embedding tables under several prefixes: {', '.join(map(repr, prefixes))}; save the one to compare"
    refuse_first(
        {
            f"{shown} holds no embedding tables by the names of {wanted}: {remedy}": not fitting,
            f"{shown} holds {towers}": len(prefixes) > 1,
        }
    )
    prefix = prefixes[0]
    most = max(len(found[known.name][prefix]) for known in fitting)
    families = _most_fitting([f for f in fitting if len(found[f.name][prefix]) == most], names, prefix)
    tensors = found[families[0].name][prefix]
    if doubled := [name for name, several in tensors.items() if len(several) > 1]:
        raise ValueError(f"{shown} holds {doubled[0]} twice: as {' and as '.join(tensors[doubled[0]])}")
    for canonical, parameter in families[0].embedding_parameters.items():
        module = prefix + parameter.rpartition(".")[0] + "."
        wrapped = [name for name in names if name.startswith(module) and any(part in name for part in ADAPTED)]
        if wrapped and canonical not in tensors:  # it would pass for one that is not there
            raise ValueError(f"{shown} holds {canonical} as {wrapped[0]}: {MERGE}")
    # Beside the backbone, or (T5) in it.
    outside = prefix[: prefix.rstrip(".").rfind(".") + 1]
    outputs = (place + own for own in OUTPUT_TABLES for place in (outside, prefix))
    output = next((called[name] for name in outputs if name in called), "")
    return Location({name: called[several[0]] for name, several in tensors.items()}, families, prefix, output)


def find_backbone(names: Collection[str], location: Location, shown: str) -> tuple[dict[str, str], list[str]]:
    """Every parameter of the backbone, by its name in the family's AutoModel, to its name in the file; and the rest.

    Embedding parameters come first, then the order of the file. ``LayerNorm.gamma`` and ``beta`` are read as what they
    are called now. ValueError when one is there twice or under an adapter's name.
    """
    family, prefix = location.families[0], location.prefix
    found: dict[str, str] = {}
    rest = []
    for name, called in _unwrapped(names).items():
        if name.startswith(prefix) and any(part in name for part in ADAPTED):
            raise ValueError(f"{shown} holds {name}: {MERGE}")
        own = _renamed(name.removeprefix(prefix)) if name.startswith(prefix) else ""
        if any(matches(pattern, own) for pattern in BESIDE_WEIGHTS) or _is_copy(called, names):
            continue
        if not _is_known(family, own):
            rest.append(called)
        elif own in found:
            raise ValueError(f"{shown} holds {own} twice: as {found[own]} and as {called}")
        else:
            found[own] = called
    first = [own for own in family.embedding_parameters.values() if own in found]
    return {own: found[own] for own in dict.fromkeys([*first, *found])}, rest


def _is_copy(name: str, names: Collection[str]) -> bool:
    """Whether a tensor is another name of a word table that stands there under its own."""
    return any(name.endswith(copy) and name.removesuffix(copy) + own in names for copy, own in COPIES.items())


def _unwrapped(names: Iterable[str]) -> dict[str, str]:
    """Names without what TRANSPARENT wrappers put into them to the names in the file."""
    names = tuple(names)
    called = {TRANSPARENT.sub("", name): name for name in names}
    # Two of a name: neither is taken for the other.
    return called if len(called) == len(names) else {name: name for name in names}


def _renamed(name: str) -> str:
    old = next((old for old in GAMMA_BETA if name.endswith(old)), None)
    return name if old is None else name.removesuffix(old) + GAMMA_BETA[old]


def _is_known(family: ModelFamily, parameter: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(component_of(family, parameter))
    return False


def _by_prefix(names: Iterable[str], family: ModelFamily) -> dict[str, dict[str, list[str]]]:
    """Prefix -> canonical name -> the tensors of that name; only prefixes under which there is a table."""
    endings = {f".{name}": canonical for canonical, name in family.embedding_parameters.items()}
    found: dict[str, dict[str, list[str]]] = {}
    for name in names:
        called = f".{_renamed(name)}"
        for ending, canonical in endings.items():
            if called.endswith(ending):
                prefix = called.removesuffix(ending[1:])[1:]
                found.setdefault(prefix, {}).setdefault(canonical, []).append(name)
    return {prefix: tensors for prefix, tensors in found.items() if tensors.keys() & set(TABLES)}


def _most_fitting(families: Sequence[ModelFamily], names: Sequence[str], prefix: str) -> tuple[ModelFamily, ...]:
    """The families that have a place for the most tensors under the prefix; those that a prefix names come first."""
    called = prefix.rstrip(".").rpartition(".")[2]
    named = [family for family in families if called in family.model_types]
    own_names = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    # What a family does not know is another one's layer, or a head.
    unplaced = [sum(not _is_known(family, own) for own in own_names) for family in named or families]
    return tuple(f for f, num in zip(named or families, unplaced, strict=True) if num == min(unplaced))


def open_weights(
    source: Fetch | Path,
    family: ModelFamily | None,
    shown: str,
    missing: Callable[[], str],
    *,
    with_output: bool = False,
) -> tuple[FileTensors, Location, FileTensors, Mapping[str, "FindEntry"]]:
    """The embedding parameters, the output layer where it is a table of its own and at hand, and what else is there:
    the name of every tensor, without what stands before those of the backbone, to what finds it.

    ``source``: one safetensors file, or a checkpoint's files; ``missing``: what to say when these hold no weights. Only
    the shards that hold embedding parameters are fetched, and with ``with_output`` those of what else is asked for, if
    they are there (else it is not found). ValueError, one line, when there are no weights, a file is damaged, a shard
    is missing, or a tensor is not of a floating-point type.
    """
    names, entry = _list_tensors(source, shown, missing, is_at_hand=with_output)
    location = locate(names, family, shown)
    entries = {name: entry(location.names[name]) for name in EMBEDDING_PARAMETERS if name in location.names}
    at_hand = partial(_at_hand, entry if with_output else lambda _: None)
    lies = at_hand(location.output) if location.output else None
    # Tied weights may be stored under both names: then the output is the word table.
    if lies is not None and lies == entries.get("word_embeddings"):
        location, lies = replace(location, output=""), None
    whole = {TRANSPARENT.sub("", called).removeprefix(location.prefix): partial(at_hand, called) for called in names}
    tensors = FileTensors(entries)
    _check_shapes(tensors, location.families, shown)
    return tensors, location, FileTensors({location.output: lies} if lies else {}), whole


FindEntry = Callable[[], tuple[Path, Entry] | None]
"""Where a tensor lies; None where its shard is not there."""


def _at_hand(find: Callable[[str], tuple[Path, Entry] | None], called: str) -> tuple[Path, Entry] | None:
    with contextlib.suppress(ValueError):  # of a shard that is not there: it is no part of what is measured
        return find(called)
    return None


def open_backbone(
    source: Fetch | Path, family: ModelFamily | None, shown: str, missing: Callable[[], str]
) -> tuple[FileTensors, Location, list[str]]:
    """Every parameter of the backbone (:func:`find_backbone`), and the names of what else the checkpoint holds.

    ``source``, ``missing`` and ValueError as in :func:`open_weights`, and where a tensor holds NaN or infinity.
    """
    names, entry = _list_tensors(source, shown, missing, is_at_hand=True)
    location = locate(names, family, shown)
    found, rest = find_backbone(names, location, shown)
    tensors = FileTensors({own: entry(called) for own, called in found.items()})
    check_stored(tensors, shown)
    check_finite(tensors, shown)
    return tensors, location, rest


def _list_tensors(
    source: Fetch | Path, shown: str, missing: Callable[[], str], *, is_at_hand: bool
) -> tuple[Collection[str], Callable[[str], tuple[Path, Entry]]]:
    """The names of the tensors, and where the tensor of a name lies.

    Of one file, or of what transformers would load of a checkpoint: an index counts where there is no single file,
    since ``save_pretrained`` leaves that of an earlier save beside it.

    Of an index the loader takes only which shards there are, and reads each by name: what two of them hold is the last
    one's. So it is here where all shards are ``is_at_hand``; else the index is believed, which saves their download.
    """
    path = source if isinstance(source, Path) else source(SINGLE)
    if path is not None:
        metadata, header = read_header(path)
        # safetensors.torch.save_model writes tied weights once and notes the other names in the metadata.
        header = {name: header[kept] for name, kept in metadata.items() if kept in header} | header
        return header, lambda called: (path, header[called])
    fetch: Fetch = source  # type: ignore[assignment]  # a Path is never None
    listed = _shards(fetch, shown, missing)
    places = dict(listed)
    for shard in sorted(set(listed.values())) if is_at_hand else ():
        held: Collection[str] = [name for name, place in listed.items() if place == shard]
        with contextlib.suppress(ValueError):  # of one that is damaged, or a pointer: it may hold nothing of these
            held = held if (path := fetch(shard)) is None else read_header(path)[1]
        places |= dict.fromkeys(held, shard)
    return places, lambda called: _in_shard(fetch, places[called], called, shown)


def _shards(fetch: Fetch, shown: str, missing: Callable[[], str]) -> dict[str, str]:
    """Tensor to shard, as an index has them; ValueError where there is none."""
    if (index := fetch(INDEX)) is None:
        raise ValueError(missing())
    with reading(f"{shown}: {INDEX}", "names no shards (weight_map)"):
        return {name: str(shard) for name, shard in read_json(index)["weight_map"].items()}


def whole_shards(fetch: Fetch) -> list[Path]:
    """The shards that an index names, by name; none where there is no index, one is missing, or it is damaged."""
    with contextlib.suppress(ValueError):
        found = [fetch(name) for name in sorted(set(_shards(fetch, INDEX, str).values()))]
        return [path for path in found if path is not None] if all(found) else []
    return []


def _in_shard(fetch: Fetch, shard: str, called: str, shown: str) -> tuple[Path, Entry]:
    if (path := fetch(shard)) is None:
        raise ValueError(f"{shown} lacks the shard {shard}, which its index names: copy it there or save again")
    header = read_header(path)[1]
    if called not in header:
        raise ValueError(f"{shown}: the index says that {shard} holds {called}, which it does not: save it again")
    return path, header[called]


def _check_shapes(tensors: FileTensors, families: Sequence[ModelFamily], shown: str) -> None:
    """Types, sizes and shapes, before anything is computed from them."""
    check_stored(tensors, shown)
    for name in tensors:
        shape = tensors.shape(name)
        if len(shape) != (2 if name in TABLES else 1) or 0 in shape:
            expected = "(rows, hidden)" if name in TABLES else "(hidden,)"
            raise ValueError(f"{shown}: {name} has the shape {shape}; expected {expected}")
    # Where tables are narrower than the layers (DeBERTa-v2), the LayerNorm may stand after the projection; where words
    # alone are projected (MobileBERT), the other tables do.
    is_of_words = all("projection" in family.components and not family.is_plain_sum for family in families)
    tables = TABLES[1:] if is_of_words else TABLES
    for group in (tables, EMBEDDING_PARAMETERS[len(TABLES) :]):
        hidden = {name: tensors.shape(name)[-1] for name in tensors if name in group}
        if len(set(hidden.values())) > 1:
            listed = ", ".join(f"{name} {size}" for name, size in hidden.items())
            raise ValueError(f"{shown}: the embedding parameters differ in hidden size ({listed}): is it one model?")


def check_stored(tensors: FileTensors, shown: str) -> None:
    """ValueError where a tensor is not of a floating-point type."""
    for name, (_, (dtype, *_)) in tensors._entries.items():
        if dtype not in DTYPES:
            # F8_E4M3, F8_E5M2, F4 ...: floats, but of so few bits that a scale beside them belongs to the value.
            what = "a format that is not supported" if dtype.startswith("F") else "which is not a floating-point weight"
            kinds = " or ".join(DTYPES.values())
            raise ValueError(f"{shown} stores {name} as {dtype}, {what}: dequantise it and save it as {kinds}")
