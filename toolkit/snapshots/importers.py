"""Checkpoints of any origin in, one Trajectory of their embedding parameters out, with notes on what was compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolkit.families import EMBEDDING_PARAMETERS, ModelFamily, family_of
from toolkit.naming import Described
from toolkit.snapshots.align import Alignment, SelectedTensors, align_words
from toolkit.snapshots.embedded import find_embedded
from toolkit.snapshots.places import Place, Resolve, find_places, run_of_snapshot, shown_names
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary, name_undefined
from toolkit.snapshots.store import SNAPSHOTS, Run
from toolkit.snapshots.tokenizer_files import read_settings, read_tokenizer_files
from toolkit.snapshots.weights import open_file, open_weights

HALF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Largest share of a value by which storing it in a type of two bytes rounds it: half a unit in the last place."""


@dataclass(frozen=True, slots=True, repr=False)
class Imported(Described):
    """Checkpoints as a trajectory, and what must be said beside any number from them."""

    trajectory: Trajectory
    """One snapshot per checkpoint: epoch 0, 1, 2 ... in the given order, named."""
    notes: tuple[str, ...]
    """One sentence each: what was matched, left out, taken for granted, or stored with little precision."""
    dtypes: Mapping[str, tuple[str, ...]]
    """Parameter -> the type it is stored in, per checkpoint; the snapshots give fp32 always."""
    families: tuple[str, ...]
    """The architectures that the parameter names fit; one where a config.json says so, none for our own snapshots."""

    def facts(self) -> dict[str, str]:
        """The checkpoints, the shape of each parameter, and the notes."""
        names = {"checkpoints": ", ".join(snapshot.name for snapshot in self.trajectory)}
        shapes = self.trajectory.snapshots[0].shapes()
        return names | shapes | {f"note {i}": note for i, note in enumerate(self.notes, start=1)}


@dataclass(frozen=True, slots=True)
class _Opened:
    """One checkpoint, opened."""

    name: str
    step: int
    tensors: Mapping[str, np.ndarray]
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    vocabulary: Vocabulary | None
    families: tuple[ModelFamily, ...]
    """Empty for a snapshot of ours, which has canonical names."""
    position_offset: int | None
    layer_norm_eps: float
    """None where nothing tells."""


def import_checkpoints(places: Sequence[str | Path], *, resolve: Resolve | None = find_embedded) -> Imported:
    """Open checkpoints in the given order; nothing but their embedding parameters is read, and those are mapped.

    A place is the folder of a checkpoint (one safetensors file or shards), a folder of transformers.Trainer (its
    checkpoint-* folders, in order of the step) or a pattern such as ``out/checkpoint-*``, a single .safetensors file, a
    run directory (its epochs) or one of its snapshot files, a hub id with or without ``@revision``, or a name that
    ``resolve`` knows (default: ``minilm``, the embedded model).
    ValueError with one line when a place holds no weights that can be read, or the checkpoints cannot be compared.
    """
    if isinstance(places, str | Path):
        places = [places]
    found, notes = [], []
    for place in places:
        of_place, said = find_places(place, resolve)
        found += of_place
        notes += said
    if not found:
        raise ValueError("no checkpoints: pass at least one folder, safetensors file or hub id")
    opened = [_open(place, name) for place, name in zip(found, shown_names(found), strict=True)]
    families = _common_families(opened)
    parameters, said = _common_parameters(opened)
    notes += said
    _check_shapes(opened, parameters)
    words = _align(opened, parameters)
    offset, said = _position_offset(opened, families, parameters)
    snapshots = [
        Snapshot(i, one.step, SelectedTensors(one.tensors, parameters, rows), one.name)
        for i, (one, rows) in enumerate(zip(opened, words.rows, strict=True))
    ]
    return Imported(
        Trajectory(snapshots, words.vocabulary, position_offset=offset, layer_norm_eps=opened[0].layer_norm_eps),
        tuple(dict.fromkeys([*notes, *words.notes, *said, *_precision_notes(opened, parameters)])),
        {name: tuple(one.dtypes[name] for one in opened) for name in parameters},
        tuple(family.name for family in families),
    )


def _open(place: Place, name: str) -> _Opened:
    if place.is_ours and place.file is not None:
        return _open_ours(place.file, name)
    config = read_settings(place.fetch("config.json"))
    model_type = config.get("model_type")
    family = family_of(model_type) if isinstance(model_type, str) else None
    opened = open_file(place.file, family, name) if place.file else open_weights(place.fetch, family, name)
    if opened is None:
        raise ValueError(place.missing)
    tensors, location = opened
    size = tensors.shape("word_embeddings")[0] if "word_embeddings" in tensors else 0
    offset = None
    if family is not None:
        pad = config.get("pad_token_id")
        # 1 is what transformers takes where a config names no padding row.
        offset = 0 if family.position_start == "zero" else (pad if isinstance(pad, int) else 1) + 1
    vocabulary = read_tokenizer_files(place.fetch, size) if size else None
    _check_finite(tensors, name, vocabulary, offset or 0)
    return _Opened(
        name,
        place.step,
        tensors,
        {parameter: tensors.dtype(parameter) for parameter in tensors},
        {parameter: tensors.shape(parameter) for parameter in tensors},
        vocabulary,
        (family,) if family else location.families,
        offset,
        _eps(config),
    )


def _eps(config: Mapping[str, object]) -> float:
    """The eps of the embedding LayerNorm: BERT's name for it, ModernBERT's, or BERT's value."""
    eps = config.get("layer_norm_eps", config.get("norm_eps"))
    return float(eps) if isinstance(eps, int | float) and eps >= 0 else 1e-12


def _open_ours(path: Path, name: str) -> _Opened:
    """A snapshot file of a run directory, with what the run knows."""
    run = Run(run_of_snapshot(path))
    trajectory, snapshot = run.trajectory, run.open_snapshot(path.name)
    run.check(SNAPSHOTS + path.name)
    tensors = snapshot.tensors
    vocabulary, offset, eps = trajectory.vocabulary, trajectory.position_offset, trajectory.layer_norm_eps
    _check_finite(tensors, name, vocabulary, offset)
    shapes = {parameter: tensors[parameter].shape for parameter in tensors}
    return _Opened(name, snapshot.step, tensors, dict.fromkeys(shapes, "float32"), shapes, vocabulary, (), offset, eps)


def _check_finite(tensors: Mapping[str, np.ndarray], shown: str, vocabulary: Vocabulary | None, offset: int) -> None:
    """ValueError where a parameter holds NaN or infinity: nothing can be said of such a checkpoint."""
    for name in tensors:
        if where := name_undefined(name, tensors[name], vocabulary, offset):
            raise ValueError(f"{shown}: {name} holds NaN or infinity {where}: leave it out")


def _common_families(opened: Sequence[_Opened]) -> tuple[ModelFamily, ...]:
    """The families that all checkpoints fit; ValueError when there is none."""
    told = [one for one in opened if one.families]
    for one in told[1:]:
        if not {f.name for f in one.families} & {f.name for f in told[0].families}:
            a, b = (" or ".join(f.name for f in o.families) for o in (told[0], one))
            raise ValueError(f"{told[0].name} is {a}, {one.name} is {b}: compare checkpoints of one architecture")
    if not told:
        return ()
    return tuple(f for f in told[0].families if all(f.name in {g.name for g in one.families} for one in told))


def _common_parameters(opened: Sequence[_Opened]) -> tuple[list[str], list[str]]:
    """The parameters that every checkpoint has, and a note on each that only some have, or that all should."""
    parameters, notes = [], []
    for name in EMBEDDING_PARAMETERS:
        without = [one.name for one in opened if name not in one.shapes]
        if not without:
            parameters.append(name)
        elif len(without) < len(opened) or name == "word_embeddings":  # which every architecture has
            notes.append(f"{name} is missing from {', '.join(without)} and left out")
    if not parameters:
        raise ValueError(f"{' and '.join(one.name for one in opened)} have no embedding parameter in common")
    return parameters, notes


def _check_shapes(opened: Sequence[_Opened], parameters: Sequence[str]) -> None:
    """ValueError where shapes differ in more than the number of words."""
    first = opened[0]
    for one in opened[1:]:
        for name in parameters:
            a, b = first.shapes[name], one.shapes[name]
            if (a[1:] != b[1:]) if name == "word_embeddings" else (a != b):
                raise ValueError(
                    f"{name} has the shape {a} in {first.name} but {b} in {one.name}: only checkpoints of one size can "
                    "be compared"
                )


def _align(opened: Sequence[_Opened], parameters: Sequence[str]) -> Alignment:
    if "word_embeddings" not in parameters:
        return Alignment((None,) * len(opened), None, ())
    sizes = [one.shapes["word_embeddings"][0] for one in opened]
    return align_words([one.name for one in opened], sizes, [one.vocabulary for one in opened])


def _position_offset(
    opened: Sequence[_Opened], families: Sequence[ModelFamily], parameters: Sequence[str]
) -> tuple[int, list[str]]:
    offsets = [one.position_offset for one in opened if one.position_offset is not None]
    if offsets:
        return offsets[0], []
    is_open = "position_embeddings" in parameters and any(f.position_start != "zero" for f in families)
    names = ", ".join(family.name for family in families)
    note = f"no config.json, and the names fit {names}: position rows are counted from 0 (RoBERTa's start later)"
    return 0, [note] if is_open else []


def _precision_notes(opened: Sequence[_Opened], parameters: Sequence[str]) -> Iterator[str]:
    for one in opened:
        types = {one.dtypes[name] for name in parameters}
        for name in sorted(types & HALF.keys()):
            yield (
                f"{one.name} stores weights as {name}, which rounds a value by up to {HALF[name]:.2%}: "
                "no drift is no verdict on half-precision weights"
            )
        if "float64" in types:
            yield f"{one.name} stores weights as float64: compared after rounding to float32"
