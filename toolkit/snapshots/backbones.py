"""Every parameter of two backbones, memory-mapped, from two checkpoints or a run that kept its model."""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.families import ModelFamily, component_of, family_of
from toolkit.naming import first_few, read_object, reading, refuse_first
from toolkit.snapshots.adapters import MERGE_IT
from toolkit.snapshots.files import check_content, known_sha256
from toolkit.snapshots.importers import (
    UNREADABLE,
    Place,
    check_sizes,
    common_families,
    find_adapter,
    find_file,
    find_places,
    notes_on_order,
    rounding_notes,
    shown_names,
)
from toolkit.snapshots.store import SNAPSHOTS, Run, runs_of
from toolkit.snapshots.tokenizer_files import find_embedded, read_settings
from toolkit.snapshots.weights import SINGLE, FileTensors, open_backbone, whole_shards

NO_FUNCTION = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"})
"""Fields of config.json that do not change what the model computes (weights are always loaded in fp32)."""
PER_CALL = frozenset({"truncation", "padding"})
"""Parts of tokenizer.json that hold what the last call before saving asked for."""
OVERRULING = ("add_prefix_space", "do_lower_case", "strip_accents", "tokenize_chinese_chars")
"""Fields of tokenizer_config.json that transformers 5 puts above what tokenizer.json says."""
SEPARATE = ("vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "*.model")
"""Files that are read where there is no tokenizer.json; ``*.model`` is sentencepiece's."""


def hash_weights(folder: Path) -> str | None:
    """Over the safetensors files that a folder's weights are read from; None when it has none."""
    fetch = partial(find_file, folder)
    single = fetch(SINGLE)
    return _hash_files([single] if single else whole_shards(fetch) or sorted(folder.glob("*.safetensors")))


def hash_config(folder: Path) -> str | None:
    """Over the fields of config.json, but those of NO_FUNCTION, in whatever order; None when there is none."""
    return _hash_object(folder / "config.json", lambda name, _: name not in NO_FUNCTION)


def hash_tokenizer(folder: Path) -> str | None:
    """Over the files that tokens and their rows come from; None when there are none.

    tokenizer.json holds all of them and is the one file that transformers saves again, so that beside it the others
    do not count; with it go the fields of OVERRULING.
    """
    whole = _hash_object(folder / "tokenizer.json", lambda name, _: name not in PER_CALL)
    files = whole or _hash_files(path for pattern in SEPARATE for path in sorted(folder.glob(pattern)))
    settings = _hash_object(
        folder / "tokenizer_config.json", lambda name, value: name in OVERRULING and value is not None
    )
    return files and _hash_text(f"{files}{settings or _hash_text('{}')}")


def _hash_object(path: Path, counts: Callable[[str, Any], bool]) -> str | None:
    """Over those fields of a JSON object that count; ValueError for a damaged file."""
    if not path.is_file():
        return None
    fields = {name: value for name, value in read_object(check_content(path)).items() if counts(name, value)}
    return _hash_text(json.dumps(fields, sort_keys=True))


def _hash_files(paths: Iterable[Path]) -> str | None:
    digests = [known_sha256(check_content(path)) for path in paths]
    return _hash_text("".join(digests)) if digests else None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Backbone:
    """One checkpoint's backbone."""

    name: str
    tensors: FileTensors
    families: tuple[ModelFamily, ...]
    """Those that its names fit; one where its config says so."""
    left_out: tuple[str, ...] = ()
    """Tensors that are not part of the backbone: a head, buffers."""
    held: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of what a run started from: the embedding parameters that its snapshot before training holds, by their names
    here; they count instead of those in ``tensors``."""

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """Name in the family's AutoModel to shape, embedding parameters first."""
        return {name: self.held[name].shape if name in self.held else self.tensors.shape(name) for name in self.tensors}

    def values(self, name: str) -> np.ndarray:
        """A parameter in the type that it is stored in (bf16 as the equal fp32), mapped where it can be."""
        return self.held[name] if name in self.held else self.tensors.stored(name)


@dataclass(frozen=True, slots=True)
class BackbonePair:
    """What is compared, and what must be known beside any number from it."""

    before: Backbone
    after: Backbone
    family: ModelFamily
    notes: tuple[str, ...]


def is_run(place: object) -> bool:
    """Whether a place is a run directory: the folder of a checkpoint has a config.json too, and no snapshots."""
    return isinstance(place, Run) or (isinstance(place, str | Path) and (Path(place) / SNAPSHOTS).is_dir())


def open_backbones(before: "Run | str | Path", after: "Run | str | Path | None" = None) -> BackbonePair:
    """Open two checkpoints, or (``before`` alone) a run made with ``--save-model`` and what it started from.

    A place is what :func:`toolkit.snapshots.importers.import_checkpoints` takes, but holds one checkpoint; of a run
    directory it is the model that the run ended with. Of a run that stands alone the embedding parameters before
    training are those of its first snapshot (``--positions`` may have replaced some), the rest those of its checkpoint.
    ValueError with one line when a place holds no weights or several checkpoints, a run kept no model or started from
    random weights, or the two are of different architectures or sizes.
    """
    if after is None:
        if not is_run(before):
            raise ValueError(f"{before} is one checkpoint: pass a second one, or a run made with --save-model")
        (run,) = runs_of([before])
        return _pair(_start_of(run), open_place(find_tuned(run), f"{run.path.resolve().name} (after)"))
    places = [_place(place) for place in (before, after)]
    names = shown_names(places)
    pair = _pair(*(open_place(place, name) for place, name in zip(places, names, strict=True)))
    notes = [note for place in places for note in place.notes]
    return replace(pair, notes=(*notes_on_order(places, names), *notes, *pair.notes))


def how_to_keep_one(run: Run) -> str:
    """What to do about a run that kept no model."""
    if run.is_recorded:
        return "a recorded run keeps none: pass the two checkpoints themselves"
    folder = run.path.parent
    is_moved = Path(run.config.output_dir).resolve() != folder.resolve()
    place = f" --output-dir {shlex.quote(str(folder))}" if is_moved else ""
    command = f"python finetune.py --config {shlex.quote(str(run.path))}{place} --save-model --overwrite"
    return f"make it again with one, by {command}"


def find_tuned(run: Run) -> Place:
    """Where the model lies that a run ended with; ValueError when it kept none, or has changed since it finished."""
    if not (run.path / "model").is_dir():
        raise ValueError(f"{run.path} holds no model: {how_to_keep_one(run)}")
    _ = run.manifest  # ValueError for an unfinished run
    run.check("model/")
    return _single(find_places(run.path / "model"), str(run.path / "model"))


def _start_of(run: Run) -> Backbone:
    """What a run started from, checked against its manifest."""
    config, known, name = run.config, run.manifest["model"], f"{run.path.resolve().name} (before)"
    commit, sha256 = known.get("revision"), known.get("weights_sha256")
    folder = Path(config.model).expanduser()
    # The embedded model, which is verified whenever it is found.
    is_embedded = find_embedded(config.model) is not None
    is_here = is_embedded or folder.is_dir()
    start = f"{run.path.name} started from"
    faults = {
        f"{start} random weights, which no checkpoint holds: nothing to compare": config.init == "random",
        f"no checkpoint at {config.model}, which {start}: put it back": not (is_here or commit),
        f"the weights of {config.model} are not those that {start}: put these back, or run again": (
            is_here and not is_embedded and sha256 not in (None, hash_weights(folder))
        ),
    }
    refuse_first(faults)
    place = config.model if is_here else f"{config.model.partition('@')[0]}@{commit}"
    run.check("snapshots/")
    opened = open_place(_place(place), name)
    first, own_names = run.trajectory.at(0).tensors, opened.families[0].embedding_parameters
    held = {own: first[name] for name, own in own_names.items() if name in first and own in opened.tensors}
    return replace(opened, held=held)


def _place(place: "Run | str | Path") -> Place:
    """The one checkpoint at a place; of a run, the model that it ended with."""
    if is_run(place):
        (run,) = runs_of([place])
        return replace(find_tuned(run), parts=run.path.resolve().parts[1:])
    return _single(find_places(place), str(place))  # type: ignore[arg-type]


def _single(found: list[Place], text: str) -> Place:
    faults = {
        f"{text} holds {len(found)} checkpoints: pass one of them": len(found) > 1,
        f"{text} is a snapshot of embedding parameters only: pass a run made with --save-model": found[0].is_ours,
    }
    refuse_first(faults)
    return found[0]


def open_place(place: Place, name: str) -> Backbone:
    """Every parameter of the backbone at a place; ValueError for an adapter, and where no weights can be read."""
    if find_adapter(place) is not None:
        raise ValueError(f"{name} is an adapter, not a model: {MERGE_IT}")
    with reading(name, UNREADABLE, ValueError):
        model_type = read_settings(place.fetch("config.json")).get("model_type")
        family = family_of(model_type) if isinstance(model_type, str) else None
        tensors, location, left_out = open_backbone(place.file or place.fetch, family, name, place.missing)
    return Backbone(name, tensors, location.families, tuple(left_out))


def _pair(before: Backbone, after: Backbone) -> BackbonePair:
    """The two, checked to be of one architecture and size, with notes."""
    family = common_families({side.name: side.families for side in (before, after)})[0]
    _check_layers(before, after, family)
    sides = [(side.name, side.parameters) for side in (before, after)]
    check_sizes(sides[0], sides[1], family.embedding_parameters["word_embeddings"])
    return BackbonePair(before, after, family, tuple(_notes(before, after)))


def _check_layers(before: Backbone, after: Backbone, family: ModelFamily) -> None:
    """ValueError where a layer, or a parameter in a layer, is in one of the two only."""
    names = [
        {name for name in side.parameters if component_of(family, name).startswith("layers.")}
        for side in (before, after)
    ]
    if not names[0] | names[1]:
        raise ValueError(f"{before.name} and {after.name} hold no layers: are they whole checkpoints?")
    if differing := sorted(names[0] ^ names[1]):
        lacking = after if differing[0] in names[0] else before
        raise ValueError(f"{lacking.name} lacks {differing[0]}: is it a whole checkpoint, and of the same size?")


def _notes(before: Backbone, after: Backbone) -> Iterator[str]:
    for side in (before, after):
        if side.left_out:
            yield f"not compared, as no part of the backbone: {first_few(side.left_out)} of {side.name}"
        types = {side.tensors.dtype(name) for name in side.tensors if name not in side.held}  # what is held is fp32
        yield from rounding_notes(side.name, types, "smaller changes cannot be distinguished from that")
