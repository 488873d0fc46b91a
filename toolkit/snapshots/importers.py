"""Checkpoints of any origin as one Trajectory of their embedding parameters, with notes on what was compared."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolkit.families import EMBEDDING_PARAMETERS, FAMILIES, ModelFamily, family_of
from toolkit.memory import is_hub_reachable, unreachable_hub
from toolkit.naming import Described, first_few, meant_by, read_json, reading, reason_of, refuse_first
from toolkit.snapshots.adapters import SETTINGS, WEIGHTS, check_base, open_adapter
from toolkit.snapshots.files import NamedTensors, WidenedRows, check_content, read_header
from toolkit.snapshots.snapshot import (
    CHECKED_ROWS,
    NAMED_ROWS,
    Appended,
    Snapshot,
    Trajectory,
    Vocabulary,
    check_finite,
)
from toolkit.snapshots.store import CHECKPOINT, MAKE_AGAIN, MANIFEST, SNAPSHOT, SNAPSHOTS, WRITTEN, Run, checkpoints_in
from toolkit.snapshots.tokenizer_files import Fetch, find_embedded, read_settings, read_tokenizer_files
from toolkit.snapshots.weights import INDEX, SINGLE, FindEntry, open_weights, whole_shards

if TYPE_CHECKING:
    import pandas as pd

RowChoice = NDArray[np.int64] | slice | None
"""Rows to take of a table: None for all of them as they are, a slice where they are the first ones."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which rows of each word table are compared with which."""

    rows: tuple[RowChoice, ...]
    """Per checkpoint, in the order of the first checkpoint's tokens."""
    vocabulary: Vocabulary | None
    """Of the compared rows."""
    notes: tuple[str, ...]
    renamed: Mapping[int, str] = field(default_factory=dict)
    """Rows, of one number in each table, whose texts differ, to these: ``[unused1] → covid``."""


def align_words(names: Sequence[str], num_rows: Sequence[int], vocabularies: Sequence[Vocabulary | None]) -> Alignment:
    """Rows of equal tokens: every row where the vocabularies are one, else the tokens that all have, by their text.

    Of tables of one size most of whose rows have one text the others are rows too: where the texts of a row differ and
    none stands elsewhere it was renamed (``[unused1]`` became a word), and is compared with what it was.
    ``names``: what each checkpoint is called; ``num_rows``: rows of its word table. A checkpoint without vocabulary
    takes that of one with as many rows. ValueError when tables of different sizes lack a vocabulary, or share no token.
    """
    known, notes = _lend(names, num_rows, vocabularies)
    present = [v for v in known if v is not None]
    if len(set(num_rows)) > 1 and len(present) < len(names):
        without = next(name for name, v in zip(names, known, strict=True) if v is None)
        sizes = ", ".join(f"{name} {size:,}" for name, size in zip(names, num_rows, strict=True))
        raise ValueError(
            f"the word tables differ in size ({sizes} rows) and {without} has no vocabulary file to match tokens by: "
            "put its tokenizer.json or vocab.txt beside its weights"
        )
    if not present and len(names) > 1:
        notes.append("no vocabulary files: word rows are compared by their number")
    if len(present) < len(names) or all(v.tokens == present[0].tokens for v in present):
        return Alignment((None,) * len(names), present[0] if present else None, tuple(notes))
    return _common(names, present, notes)


def _lend(
    names: Sequence[str], num_rows: Sequence[int], vocabularies: Sequence[Vocabulary | None]
) -> tuple[list[Vocabulary | None], list[str]]:
    known, notes = list(vocabularies), []
    lenders = {len(v.tokens): (name, v) for name, v in reversed(list(zip(names, vocabularies, strict=True))) if v}
    for i, (name, size) in enumerate(zip(names, num_rows, strict=True)):
        if known[i] is None and size in lenders:
            lender, known[i] = lenders[size]
            notes.append(f"{name} has no vocabulary file: taken to be that of {lender}, which has as many word rows")
    return known, notes


def _common(names: Sequence[str], vocabularies: Sequence[Vocabulary], notes: list[str]) -> Alignment:
    """The tokens that every vocabulary holds exactly once, and the rows that are one by their place."""
    places, first = [_rows_of(vocabulary) for vocabulary in vocabularies], vocabularies[0]
    by_token = {tuple(p[t] for p in places): t for t in places[0] if all(t in p for p in places)}
    by_place = {row: " → ".join(dict.fromkeys(texts)) for row, texts in _in_place(vocabularies).items()}
    renamed = {row: text for row, text in by_place.items() if text != first.tokens[row]}
    matched = sorted((by_token | {(row,) * len(names): text for row, text in by_place.items()}).items())
    if not matched:
        raise ValueError(f"the vocabularies of {' and '.join(names)} share no token: are these models related?")
    rows = np.array([place for place, _ in matched], np.int64).T
    of_row = {int(row): i for i, row in enumerate(rows[0])}
    kinds = (first.special_rows, first.added_rows)
    special, added = (frozenset(of_row[row] for row in kind if row in of_row) for kind in kinds)
    pad = of_row.get(first.pad_row) if first.pad_row is not None else None
    left_out = ", ".join(f"{len(v.tokens) - len(matched):,} of {n}" for n, v in zip(names, vocabularies, strict=True))
    how = f"by their number, {len(renamed):,} of them renamed" if renamed else "by token"
    notes.append(f"word rows are compared {how}: {len(matched):,} in common; rows left out: {left_out}")
    in_common = Vocabulary(tuple(token for _, token in matched), special, pad, added)
    return Alignment(tuple(map(_simplest, rows)), in_common, tuple(notes), renamed)


def _in_place(vocabularies: Sequence[Vocabulary]) -> dict[int, tuple[str, ...]]:
    """Row to its text in each checkpoint, where it is one row by its place: of tables of one size, most of whose rows
    have one text, the rows of one text, and those of several that stand in no other row."""
    texts = list(zip(*(vocabulary.tokens for vocabulary in vocabularies), strict=False))
    named = [own for own in texts if any(own)]  # a row beyond all vocabularies tells nothing of how alike they are
    if len({len(v.tokens) for v in vocabularies}) > 1 or 2 * sum(len(set(own)) == 1 for own in named) <= len(named):
        return {}
    num_rows = Counter(text for own in texts for text in set(own))
    return {
        row: own
        for row, own in enumerate(texts)
        if len(set(own)) == 1 or (all(own) and all(num_rows[text] == 1 for text in own))
    }


def _rows_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Token -> row; rows without a text, and texts that stand for several rows, cannot be matched."""
    num_rows = Counter(vocabulary.tokens)
    return {token: row for row, token in enumerate(vocabulary.tokens) if token and num_rows[token] == 1}


def _simplest(rows: NDArray[np.int64]) -> RowChoice:
    """A slice costs no copy."""
    return slice(0, len(rows)) if np.array_equal(rows, np.arange(len(rows))) else rows


class SelectedTensors(NamedTensors):
    """Some parameters of a checkpoint, and some rows of its word table: taken when asked for, never kept."""

    def __init__(self, tensors: Mapping[str, np.ndarray], parameters: Sequence[str], rows: RowChoice) -> None:
        self._tensors, self._names, self._rows = tensors, parameters, rows

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        tensor: Any = self._tensors[name]
        if name != "word_embeddings" or self._rows is None:
            return tensor  # type: ignore[no-any-return]
        return tensor[self._rows] if isinstance(self._rows, slice) else WidenedRows(tensor, np.asarray, self._rows)  # type: ignore[return-value]


PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONVERT = (
    "opening a pickle can run any code in it, so this toolkit does not; load it where you trust it and save it again "
    "with model.save_pretrained(folder), which writes model.safetensors"
)
HEAD = "head.safetensors"
"""The head that a run keeps beside its backbone."""
PASS_SAVED = "pass the folder that save_pretrained wrote"
MERGE_SHARDS = "put it together with `accelerate merge-weights FOLDER OUT`, which writes OUT/model.safetensors"
NO_WEIGHTS = ("optimizer", "scheduler", "scaler", "random_states", "rng_state", "training_args")
"""How the names of pickles begin that Trainer and Accelerate write beside the weights."""
HUB_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one checkpoint lies."""

    parts: tuple[str, ...]
    """What it can be called: its last part, and as many before it as are needed to tell two checkpoints apart."""
    fetch: Fetch
    """The files beside its weights, and the weights where ``file`` is None."""
    file: Path | None = None
    """A single safetensors file."""
    step: int | None = None
    """The optimizer step of its weights, where something tells it."""
    is_ours: bool = False
    """Whether ``file`` is a snapshot of a run directory."""
    num_left_out: int = 0
    """Snapshots before it in its folder, or beside it, that are not compared."""
    notes: tuple[str, ...] = ()
    """What must be known of what was found there."""
    is_local: bool = True
    """Whether reading a file more costs no download."""
    missing: Callable[[], str] = lambda: f"no {SINGLE} there"
    """What to say when the place turns out to hold no weights; the hub may be asked for it."""


def find_places(place: str | Path) -> list[Place]:
    """The checkpoints at one place, in order of their steps; ValueError with one line when there is none."""
    text = str(place)
    if isinstance(place, str) and (folder := find_embedded(place)) is not None:
        return [replace(found, parts=(place,)) for found in _in_folder(folder, text)]
    path = Path(text).expanduser()
    if path.is_dir():
        return _in_folder(path, text)
    if path.is_file():
        return [_of_file(path, text)]
    if "*" in text:
        return _of_pattern(path, text)
    match = HUB_ID.fullmatch(text)
    if match is None or path.suffix == ".safetensors":  # which is a file's name: no hub need be asked
        raise ValueError(
            f"no file or folder at {text!r}{meant_by(path)}, and it is no hub id (owner/name, or owner/name@revision)"
        )
    return [on_hub(text, match["id"], match["revision"])]


def notes_on_order(places: Sequence[Place], names: Sequence[str]) -> list[str]:
    """A note for each folder whose checkpoints were not given in the order of their steps, as far as these are known.

    A shell sorts ``checkpoint-12`` before ``checkpoint-4``.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for place, name in zip(places, names, strict=True):
        if place.step is not None:
            folder = str(place.file.resolve().parent) if place.is_ours and place.file else "/".join(place.parts[:-1])
            found.setdefault(folder, []).append((place.step, name))
    orders = [(given, sorted(given, key=lambda item: item[0])) for given in found.values()]
    listed = [[", ".join(name for _, name in order) for order in pair] for pair in orders if pair[0] != pair[1]]
    return [f"not in the order of their steps: {given}; by their steps it is {steps}" for given, steps in listed]


def shown_names(places: Sequence[Place]) -> list[str]:
    """One name for each place, distinct: as few parts of its path as distinguish it, at most three."""
    names = []
    for place in places:
        others = [other.parts for other in places if other.parts != place.parts]
        distinct = (k for k in (1, 2, 3) if all(parts[-k:] != place.parts[-k:] for parts in others))
        names.append("/".join(place.parts[-next(distinct, 3) :]))
    return [f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name for i, name in enumerate(names)]


def _of_pattern(path: Path, text: str) -> list[Place]:
    folders = [Path(place) for place in glob(str(path)) if Path(place).is_dir()]  # noqa: PTH207 # takes absolute ones
    if not folders:
        raise ValueError(f"no folder matches {text!r}")
    in_order = sorted(folders, key=lambda folder: (_step(folder) or -1, folder.name))
    return [place for folder in in_order for place in _in_folder(folder, str(folder))]


def _in_folder(folder: Path, text: str) -> list[Place]:
    parts = folder.resolve().parts[1:]
    inside = folder / SNAPSHOTS  # which a folder of the hub's cache has too, for other things
    if inside.is_dir() and ((folder / MANIFEST).exists() or any(SNAPSHOT.fullmatch(p.name) for p in inside.iterdir())):
        return _in_run(Run(folder))
    steps, files = checkpoints_in(folder), sorted(folder.glob("*.safetensors"))
    has_weights = (folder / SINGLE).exists() or (folder / INDEX).exists()
    is_beside = has_weights or (folder / WEIGHTS).exists()
    if steps:
        found = [replace(place, notes=()) for step in steps for place in _in_folder(step, str(step))]
        what = f"not the weights beside them; pass {SINGLE if has_weights else WEIGHTS} for those"
        said = f"{parts[-1]}: its checkpoint-* folders are compared, {what}"
        return _with_note(found, said, 1) if is_beside else found
    if (inner := _sentence_transformer(folder, has_weights)) is not None:
        both = f"{parts[-1]}: the weights in {inner.name} are read, which modules.json names, not those beside it"
        found = [replace(place, parts=parts, step=_step(folder)) for place in _in_folder(inner, text)]
        return _with_note(found, both, 0) if has_weights else found
    if not has_weights and not is_beside and len(files) != 1:
        raise ValueError(_why_not(folder, text, [path.name for path in files]))
    file = None if has_weights else folder / WEIGHTS if is_beside else files[0]
    place = Place(parts, partial(find_file, folder), file, _step(folder))
    if others := _passed_over(place, [*files, *(() if has_weights else folder.glob(f"*/{WEIGHTS}"))]):
        of = f"{parts[-1]}: {file.name if file else SINGLE if (folder / SINGLE).exists() else INDEX}"
        return [replace(place, notes=(f"{of} is read, as its library does, and {first_few(others)} is not",))]
    return [place]


def _passed_over(place: Place, files: Sequence[Path]) -> list[str]:
    """Those of the weight files in a folder, and of the adapters below it, that are not read."""
    shards = [] if place.fetch(SINGLE) or place.file else whole_shards(place.fetch)
    read = {place.file, place.fetch(SINGLE), place.fetch(HEAD), *shards}
    return sorted(
        "/".join(path.parts[-2:]) if path.name == WEIGHTS else path.name for path in files if path not in read
    )


def _with_note(found: list[Place], note: str, num_left_out: int) -> list[Place]:
    """The places, of which the last says what is left out beside them."""
    return [
        *found[:-1],
        *(replace(last, notes=(note,) if note else (), num_left_out=num_left_out) for last in found[-1:]),
    ]


def _in_run(run: Run) -> list[Place]:
    """The first and the last snapshot of a run, and those at the ends of its epochs."""
    found = {name: run.open_snapshot(name) for name in run.snapshot_names()}
    names = sorted(found, key=lambda name: (found[name].step, found[name].epoch, found[name].is_epoch_end))
    ends = {*names[:1], *names[-1:], *(name for name in names if name.startswith("epoch-"))}
    chosen = [run.path / SNAPSHOTS / name for name in names if name in ends]
    left_out, name = len(names) - len(chosen), run.path.resolve().name
    said = f"{name}: snapshots between two epochs are left out ({left_out}): the files of snapshots/ can be passed"
    return _with_note([_of_file(path, str(path)) for path in chosen], said if left_out else "", left_out)


def _sentence_transformer(folder: Path, has_weights: bool) -> Path | None:
    """The folder of the transformer inside that of a sentence-transformers model; None where it is the folder itself.

    Older models have no modules.json: a folder of the usual name counts where there are no weights beside it.
    """
    modules = folder / "modules.json"
    usual = [] if has_weights else [{"type": "Transformer", "path": "0_Transformer"}]
    listed = read_json(check_content(modules)) if modules.exists() else usual
    parts = [part for part in listed if isinstance(part, dict)] if isinstance(listed, list) else []
    names = [str(part.get("path", "")) for part in parts if str(part.get("type")).endswith("Transformer")]
    inside = [folder / name for name in names if Path(name).parts and _stays_inside(name)]
    return next((path for path in inside if path.is_dir()), None)


def _why_not(folder: Path, text: str, files: Sequence[str]) -> str:
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLED and not p.name.startswith(NO_WEIGHTS))
    distributed = sorted({path.parent for path in [*folder.glob("*.distcp"), *folder.glob("pytorch_model*/*.distcp")]})
    inner = "".join(f" in {place.name}" for place in distributed[:1] if place != folder)
    weights = (SINGLE, INDEX, WEIGHTS)
    below = sorted({str(path.parent.relative_to(folder)) for name in weights for path in folder.glob(f"*/{name}")})
    variants = sorted(path.name for path in folder.glob("model.safetensors.index.*.json"))  # save_pretrained(variant=)
    trainings = sorted({path.parent.name for path in folder.glob("*/checkpoint-*") if path.is_dir()})
    anything, deepspeed = any(folder.iterdir()), any(folder.glob("global_step*"))
    reasons = (
        ((folder / WRITTEN).is_file(), f"is a report and no model: {MAKE_AGAIN}"),
        (variants, f"holds the shards of a variant: give {''.join(variants[:1])} the name {INDEX}"),
        (len(files) > 1, f"holds {len(files)} safetensors files and no {INDEX}: pass one of {', '.join(files)}"),
        (distributed, f"holds a torch.distributed.checkpoint{inner} (.distcp): {MERGE_SHARDS}"),
        (deepspeed, "is a checkpoint of DeepSpeed: load it there and save it with model.save_pretrained(folder)"),
        (pickled, f"holds weights only as a pickle ({''.join(pickled[:1])}): {CONVERT}"),
        (below, f"holds no weights itself, but in {', '.join(below)}: pass one of these folders"),
        (trainings, f"holds output folders of a Trainer, {first_few(trainings)}: pass one of these"),
        (anything, f"holds neither {SINGLE} nor {INDEX} nor checkpoint-* folders: {PASS_SAVED}"),
        (True, f"is empty: {PASS_SAVED}"),
    )
    return next(f"{text} {reason}" for is_so, reason in reasons if is_so)


def _of_file(path: Path, text: str) -> Place:
    another = "is not a safetensors file: pass one, or the folder of a checkpoint or a run"
    refuse_first(
        {
            f"{text} is a pickle: {CONVERT}": path.suffix in PICKLED,
            f"{text} {another}": path.suffix != ".safetensors",
        }
    )
    parts = path.resolve().parts[1:]
    metadata = read_header(path)[0]
    if {"format", "epoch", "step"} <= metadata.keys():
        run, step = run_of_snapshot(path), int(metadata["step"]) if metadata["step"].isdecimal() else None
        return Place((f"{run.name}/{path.stem}",), partial(find_file, run), path, step, True)
    parts = parts[:-1] if path.name in (SINGLE, WEIGHTS) and len(parts) > 1 else (*parts[:-1], path.stem)
    return Place(parts, partial(find_file, path.parent), path, _step(path.parent))


def run_of_snapshot(path: Path) -> Path:
    """The run directory of one of its snapshots, whose file may be a link to somewhere else."""
    return path.parent.resolve().parent


def _stays_inside(name: str) -> bool:
    """Whether a name that a checkpoint's files give stays below their folder: an index may come from anyone."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def find_file(folder: Path, name: str) -> Path | None:
    """A file of a checkpoint in its folder; ValueError where a Git LFS pointer is there alone."""
    path = folder / name
    return check_content(path) if _stays_inside(name) and path.is_file() else None


def _step(folder: Path) -> int | None:
    """The optimizer step that a folder of Trainer is named after, or that its trainer_state.json tells."""
    if match := CHECKPOINT.fullmatch(folder.resolve().name):
        return int(match[1])
    step = read_settings(find_file(folder, "trainer_state.json")).get("global_step")
    return step if isinstance(step, int) else None


def on_hub(text: str, location: str, revision: str | None) -> Place:
    """A hub id; ValueError at once when it is neither in the local cache nor to be had."""
    is_online = is_hub_reachable()

    fetch = cache(partial(_download, text, location, revision, is_online))
    where = f"no file or folder at {text!r}{meant_by(text)}"
    absent = f"{where}, it is not in the local cache of the hub, and {unreachable_hub()}"
    if not is_online and fetch("config.json") is None and fetch(SINGLE) is None:
        raise ValueError(absent)
    return Place(
        (text,),
        fetch,
        is_local=False,
        missing=lambda: f"{text} has no {SINGLE} on the hub{_way_out(location)}" if is_online else absent,
    )


def _way_out(location: str) -> str:
    """Of a repository without safetensors: the pull request that holds them, as the hub's own converter leaves one."""
    from huggingface_hub import HfApi

    hub = HfApi()
    with contextlib.suppress(Exception):  # the refusal stands without it
        pulls = hub.list_repo_refs(location, include_pull_requests=True).pull_requests or []
        for pull in pulls[:5]:  # each takes two requests
            if any(hub.file_exists(location, name, revision=pull.ref) for name in (SINGLE, INDEX)):
                return f", but a pull request has it: look who made that, and pass {location}@{pull.ref}"
    return f"; if it has pytorch_model.bin: {CONVERT}"


def _download(text: str, location: str, revision: str | None, is_online: bool, name: str) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(location, name, revision=revision, local_files_only=not is_online))
    except EntryNotFoundError as error:
        if is_online and isinstance(error, LocalEntryNotFoundError):
            raise ValueError(f"cannot fetch {name} of {text!r}: {reason_of(error)}") from None
        return None
    except Exception as error:  # no such repository or revision, no access, a broken connection: many types
        raise ValueError(
            f"no file or folder at {text!r}{meant_by(text)}, nor {name} on the hub: {reason_of(error)}"
        ) from None


UNREADABLE = "is not as its library writes it"

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""How the names of transformers' classes end whose output layer is one matrix."""

HALF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Largest share of a value by which storing it in a type of two bytes rounds it: half a unit in the last place."""


@dataclass(frozen=True, slots=True, repr=False)
class Imported(Described):
    """Checkpoints as a trajectory, and what must be known beside any number from them."""

    trajectory: Trajectory
    """One snapshot per checkpoint: epoch 0, 1, 2 ... in the given order, named."""
    notes: tuple[str, ...]
    """One sentence each: what was matched, left out, taken for granted, or stored with little precision."""
    dtypes: Mapping[str, tuple[str, ...]]
    """Parameter -> the type it is stored in, per checkpoint; the snapshots give fp32 always."""
    families: tuple[str, ...]
    """The architectures that the parameter names fit; one where a config.json says so, none for our own snapshots."""
    problems: tuple[str, ...] = ()
    """Those of the notes that stand before any number: checkpoints that are not in the order of their steps."""

    def drift(self, epoch: float | None = None) -> "pd.Series":
        """How far each embedding parameter moved from the first checkpoint to another, as of a :class:`toolkit.Run`."""
        return self.trajectory.drift(epoch)

    def facts(self) -> dict[str, str]:
        """The checkpoints, the shape of each parameter, and the notes."""
        names = {"checkpoints": ", ".join(snapshot.name for snapshot in self.trajectory)}
        shapes = self.trajectory.snapshots[0].shapes()
        return names | shapes | {f"note {i}": note for i, note in enumerate(self.notes, start=1)}


@dataclass(frozen=True, slots=True)
class _Opened:
    """One checkpoint, opened."""

    name: str
    tensors: Mapping[str, np.ndarray]
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    vocabulary: Vocabulary | None
    families: tuple[ModelFamily, ...]
    """Empty for a snapshot of ours, which has canonical names."""
    position_offset: int | None
    """None where nothing tells."""
    layer_norm_eps: float | None
    """None where there is no LayerNorm."""
    output: str = ""
    """The name of an output layer that is a table of its own."""
    is_tied: bool = False
    """Whether the word table is the output layer too."""
    num_apart: int = 0
    """Rows in which the output layer differs from the word table although the config ties the two."""
    whole: Mapping[str, FindEntry] = field(default_factory=dict)
    """Every tensor of its files to what finds it; empty for a snapshot of ours."""
    called: tuple[str, ...] = ()
    """What an adapter may call it: the last part of where it lies, and of the name in its config.json."""


def import_checkpoints(places: Sequence[str | Path | Run]) -> Imported:
    """Open the embedding parameters of checkpoints, in the given order, memory-mapped; nothing else is read.

    Parameters
    ----------
    places
        Each is the folder of a checkpoint (model.safetensors, or where there is none the shards of its index; of a
        sentence-transformers model the transformer that its modules.json names), a folder of transformers.Trainer (its
        checkpoint-* folders, in order of the step) or a pattern such as ``out/checkpoint-*``, a single .safetensors
        file, a run directory (the ends of its epochs, and its last snapshot) or one of its snapshot files, a hub id
        with or without ``@revision``, or ``minilm``, the embedded model. A folder that peft's save_pretrained wrote
        holds an adapter, which is read on top of the first checkpoint, without a merge.

    Returns
    -------
    Imported
        What every analysis takes; its epochs are 0, 1, 2 ... in the given order.

    Raises
    ------
    ValueError
        A place holds no weights that can be read, or the checkpoints cannot be compared.
    """
    places = [places] if isinstance(places, str | Path | Run) else places
    paths = [place.path if isinstance(place, Run) else place for place in places]
    found: list[Place] = []
    for path in paths:
        if not isinstance(path, str | Path):
            raise ValueError(f"expected a folder, a file or a hub id; got {type(path).__name__}: {PASS_SAVED}")
        with reading(path, UNREADABLE, ValueError):
            found += find_places(path)
    if not found:
        raise ValueError("nothing to open: pass run directories, or checkpoints (folders, safetensors files, hub ids)")
    opened: list[_Opened] = []
    names, notes = shown_names(found), [note for place in found for note in place.notes]
    for where, name in zip(found, names, strict=True):
        adapter = find_adapter(where)
        with reading(name if adapter is None else f"{name}: {SETTINGS}", UNREADABLE, ValueError):
            one, trained = _open_adapter(where, adapter, name, *opened[:1]) if adapter else (_open(where, name), [])
        opened.append(one)
        notes += trained
    families = common_families({one.name: one.families for one in opened})
    parameters, said = _common_parameters(opened)
    sides = [(one.name, {name: one.shapes[name] for name in parameters}) for one in opened]
    for side in sides[1:]:
        check_sizes(sides[0], side, "word_embeddings")
    words = _align(opened, parameters)
    offset = next((one.position_offset for one in opened if one.position_offset is not None), None)
    snapshots = [
        Snapshot(i, place.step or 0, SelectedTensors(one.tensors, parameters, rows), one.name)
        for i, (place, one, rows) in enumerate(zip(found, opened, words.rows, strict=True))
    ]
    problems = notes_on_order(found, names)
    notes += [
        *said,
        *words.notes,
        *(_position_notes(families, parameters) if offset is None else ()),
        *_renamed_notes(opened, words.renamed),
        *_output_notes(opened),
        *_precision_notes(opened, parameters),
    ]
    return Imported(
        Trajectory(
            snapshots,
            words.vocabulary,
            position_offset=offset or 0,
            layer_norm_eps=opened[0].layer_norm_eps,
            appended=_appended(opened[0], opened[-1], parameters, words.rows[-1]),
            in_part=_in_part(opened, parameters, words.rows[0], sum(place.num_left_out for place in found)),
        ),
        tuple(dict.fromkeys([*problems, *notes])),
        {name: tuple(one.dtypes[name] for one in opened) for name in parameters},
        tuple(family.name for family in families),
        tuple(problems),
    )


def _in_part(
    opened: Sequence[_Opened], parameters: Sequence[str], chosen: RowChoice, num_left_out: int
) -> dict[str, tuple[int, int]]:
    """:attr:`Trajectory.in_part` of checkpoints whose word rows are ``chosen``; snapshots were left out beside them."""
    present = dict.fromkeys(name for one in opened for name in one.shapes)
    asked = {name: max(one.shapes[name][0] for one in opened if name in one.shapes) for name in present}
    compared = {name: asked[name] for name in parameters}
    if chosen is not None:
        compared["word_embeddings"] = chosen.stop if isinstance(chosen, slice) else len(chosen)
    found = {name: (compared.get(name, 0), num) for name, num in asked.items() if compared.get(name) != num}
    return found | ({"snapshots": (len(opened), len(opened) + num_left_out)} if num_left_out else {})


def _appended(first: _Opened, last: _Opened, parameters: Sequence[str], chosen: RowChoice) -> Appended | None:
    """The tokens that the last checkpoint has beside those of the first, where it has all of these in their rows."""
    name, old, new = "word_embeddings", first.vocabulary, last.vocabulary
    if name not in parameters or old is None or new is None:
        return None
    known = {row: token for row, token in enumerate(old.tokens) if token}  # a row without a text is spare
    rows = np.array([row for row, token in enumerate(new.tokens) if token and row not in known], np.int64)
    if not len(rows) or any(new.tokens[row : row + 1] != (token,) for row, token in known.items()):
        return None
    both = np.concatenate([np.arange(last.shapes[name][0])[slice(None) if chosen is None else chosen], rows])
    return Appended(
        tuple(new.tokens[row] for row in rows),
        rows,
        lambda: WidenedRows(last.tensors[name], np.asarray, both),
        lambda: _rows_or_nan(first.tensors[name], rows),
    )


def _renamed_notes(opened: Sequence[_Opened], renamed: Mapping[int, str]) -> Iterator[str]:
    """How far the rows moved whose text is another one than it was, from what their places held."""
    if renamed:
        rows = np.array(list(renamed), np.int64)
        ends = (one.tensors["word_embeddings"][rows] for one in (opened[0], opened[-1]))
        old, new = (np.asarray(values, np.float64) for values in ends)
        with np.errstate(divide="ignore", invalid="ignore"):  # of a row that was 0: it moved infinitely far, or not
            shares = np.nan_to_num(np.linalg.norm(new - old, axis=1) / np.linalg.norm(old, axis=1), posinf=np.inf)
        moves = zip(renamed.values(), shares, strict=True)
        told = [f"{text} (moved by {share:.3g} of its length)" for text, share in moves]
        yield f"renamed: {first_few(told, NAMED_ROWS)}"


def _rows_or_nan(table: np.ndarray, rows: NDArray[np.int64]) -> np.ndarray:
    is_there = rows < len(table)
    return np.where(is_there[:, None], table[np.where(is_there, rows, 0)], np.float32(np.nan))


def _open(place: Place, name: str) -> _Opened:
    if place.is_ours and place.file is not None:
        return _open_ours(place.file, name)
    config = read_settings(place.fetch("config.json"))
    model_type = config.get("model_type")
    family = family_of(model_type) if isinstance(model_type, str) else None
    tensors, location, output, whole = open_weights(
        place.file or place.fetch, family, name, place.missing, with_output=place.is_local
    )
    size = tensors.shape("word_embeddings")[0] if "word_embeddings" in tensors else 0
    pad = config.get("pad_token_id")
    offset = family.first_position(pad if isinstance(pad, int) else None) if family is not None else None
    vocabulary = read_tokenizer_files(place.fetch, size)
    check_finite(tensors, name, vocabulary, offset or 0)
    is_stated = config.get("tie_word_embeddings") is True and bool(output) and size > 0
    num_apart = _count_apart(tensors["word_embeddings"], output[location.output]) if is_stated else 0
    is_language_model = family is not None and _is_language_model(family, config)
    is_tied = (is_language_model and not location.output) or (is_stated and not num_apart)
    return _Opened(
        name,
        tensors,
        {parameter: tensors.dtype(parameter) for parameter in tensors},
        {parameter: tensors.shape(parameter) for parameter in tensors},
        vocabulary,
        location.families,
        offset,
        _eps(config) if "LayerNorm.weight" in tensors else None,
        "" if is_tied else location.output,
        is_tied,
        num_apart,
        whole,
        called(place, config),
    )


def named_otherwise(named: object, others: Collection[str], shown: str) -> list[str]:
    """A doubt where what a checkpoint calls its base is none of the names of the base; none of what is not known."""
    stated = str(named or "").rstrip("/").rpartition("/")[2].partition("@")[0]
    is_known = not stated or not others or stated in others
    return [] if is_known else [f"{shown} says that its base is {stated}: it may not be the same model"]


def called(place: Place, config: Mapping[str, object]) -> tuple[str, ...]:
    """What others may call a checkpoint."""
    beside = place.fetch("config.json")
    folder = "" if beside is None else beside.resolve().parent.name
    names = (place.parts[-1].partition("@")[0], folder, str(config.get("_name_or_path") or ""))
    return tuple(name.rpartition("/")[2] for name in names if name)


def _count_apart(words: np.ndarray, output: np.ndarray) -> int:
    """Rows that two tables do not share."""
    shared = min(len(words), len(output)) if words.shape[1:] == output.shape[1:] else 0
    parts = [slice(start, min(start + CHECKED_ROWS, shared)) for start in range(0, shared, CHECKED_ROWS)]
    differing = sum(int((words[part] != output[part]).any(axis=1).sum()) for part in parts)
    return differing + max(len(words), len(output)) - shared


def find_adapter(place: Place) -> Path | None:
    """The weights of a place that holds an adapter of peft and no model; None of any other."""
    if place.file is not None:
        return place.file if place.file.name == WEIGHTS else None
    return place.fetch(WEIGHTS) if place.fetch(SINGLE) is None and place.fetch(INDEX) is None else None


def _open_adapter(place: Place, path: Path, name: str, base: _Opened | None = None) -> tuple[_Opened, list[str]]:
    """The embedding parameters of a base under an adapter, and notes: what it trains, and a base of another name."""
    settings = read_settings(place.fetch(SETTINGS))
    if not settings:
        raise ValueError(f"{name} holds {WEIGHTS} without its {SETTINGS}: put that beside it")
    named = settings.get("base_model_name_or_path")
    if base is None:
        what = f" ({named})" if isinstance(named, str) and named else ""
        raise ValueError(f"{name} is an adapter, which changes its base{what}: pass the base first, then the adapter")
    if base.whole:
        check_base(path, base.whole, name, base.name)
    families = base.families or tuple(FAMILIES.values())
    tensors, trained, parts_tied = open_adapter(path, settings, base.tensors, base.shapes, families, name)
    shapes = {**base.shapes, **tensors.shapes}
    own_vocabulary = read_tokenizer_files(place.fetch, shapes.get("word_embeddings", (0,))[0])
    note = f"{name} is an adapter ({settings.get('peft_type')}), read on top of {base.name}: {trained}"
    if base.is_tied and parts_tied:
        note += (
            f"; {base.name} ties the output layer to word_embeddings, and LoRA changes one without the other, or each "
            "by itself: a merge (merge_and_unload) would change both alike; untie them before it"
        )
    one = replace(
        base,
        name=name,
        tensors=tensors,
        dtypes={**base.dtypes, **tensors.dtypes},
        shapes=shapes,
        vocabulary=own_vocabulary or (base.vocabulary if shapes == base.shapes else None),
        output="",
        is_tied=False,
        num_apart=0,
    )
    return one, [note, *named_otherwise(named, base.called, f"{name}, read on top of {base.name},")]


def _is_language_model(family: ModelFamily, config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is that of a decoder with its output layer, which is the word table if it holds no other."""
    kinds = config.get("architectures") or ()
    return any(str(kind).endswith(LANGUAGE_MODELS) for kind in kinds) and (family.is_causal or family.has_decoder)


def _eps(config: Mapping[str, object]) -> float:
    """The eps of the embedding LayerNorm: BERT's name for it, ModernBERT's, or BERT's value."""
    eps = config.get("layer_norm_eps", config.get("norm_eps"))
    return float(eps) if isinstance(eps, int | float) and eps >= 0 else 1e-12


def _open_ours(path: Path, name: str) -> _Opened:
    """A snapshot file of a run directory, with what the run knows."""
    run = Run(run_of_snapshot(path))
    trajectory, tensors = run.trajectory, run.open_snapshot(path.name).tensors
    run.check(SNAPSHOTS + path.name)
    vocabulary, offset, eps = trajectory.vocabulary, trajectory.position_offset, trajectory.layer_norm_eps
    shapes = {parameter: tensors[parameter].shape for parameter in tensors}
    check_finite(tensors, name, vocabulary, offset)
    return _Opened(name, tensors, dict.fromkeys(shapes, "float32"), shapes, vocabulary, (), offset, eps)


def common_families(fitting: Mapping[str, Sequence[ModelFamily]]) -> tuple[ModelFamily, ...]:
    """The families that checkpoints fit, given those of each by its name; ValueError when there is none."""
    told = [(name, families) for name, families in fitting.items() if families]
    for name, families in told[1:]:
        if not {f.name for f in families} & {f.name for f in told[0][1]}:
            a, b = (" or ".join(f.name for f in each) for each in (told[0][1], families))
            raise ValueError(f"{told[0][0]} is {a}, {name} is {b}: compare checkpoints of one architecture")
    return tuple(f for _, first in told[:1] for f in first if all(f in families for _, families in told))


def _common_parameters(opened: Sequence[_Opened]) -> tuple[list[str], list[str]]:
    """The parameters that every checkpoint has, and a note on each that only some have, or that all should."""
    without = {name: [one.name for one in opened if name not in one.shapes] for name in EMBEDDING_PARAMETERS}
    parameters = [name for name, lacking in without.items() if not lacking]
    if not parameters:
        raise ValueError(f"{' and '.join(one.name for one in opened)} have no embedding parameter in common")
    notes = [
        f"{name} is missing from {', '.join(lacking)} and left out"
        for name, lacking in without.items()
        if 0 < len(lacking) < len(opened) or (lacking and name == "word_embeddings")  # which every architecture has
    ]
    return parameters, notes


Shapes = Mapping[str, tuple[int, ...]]


def check_sizes(one: tuple[str, Shapes], other: tuple[str, Shapes], words: str) -> None:
    """ValueError where two checkpoints, by name, differ in more than the rows of ``words``, the word table."""
    for name, a in one[1].items():
        b = other[1].get(name, a)
        if (a[1:] != b[1:]) if name == words else (a != b):
            raise ValueError(
                f"{name} has the shape {a} in {one[0]} but {b} in {other[0]}: only checkpoints of one size can be "
                "compared"
            )


def _align(opened: Sequence[_Opened], parameters: Sequence[str]) -> Alignment:
    if "word_embeddings" not in parameters:
        return Alignment((None,) * len(opened), None, ())
    sizes = [one.shapes["word_embeddings"][0] for one in opened]
    return align_words([one.name for one in opened], sizes, [one.vocabulary for one in opened])


def _position_notes(families: Sequence[ModelFamily], parameters: Sequence[str]) -> Iterator[str]:
    """Of checkpoints of which nothing tells where positions begin: that it is open, where these families differ."""
    if "position_embeddings" in parameters and any(family.position_start != "zero" for family in families):
        names = ", ".join(family.name for family in families)
        yield f"no config.json, and the names fit {names}: position rows are counted from 0 (RoBERTa's start later)"


def _output_notes(opened: Sequence[_Opened]) -> Iterator[str]:
    """Of language models: whether the word table is their output layer too, or that is a table of its own."""
    if tied := [one.name for one in opened if one.is_tied]:
        yield (
            f"the output layer of {' and '.join(tied)} is tied to word_embeddings: they are one quantity, and any row "
            "may have moved as an output"
        )
    for one in opened:
        if one.num_apart:
            yield (
                f"{one.output} of {one.name} differs from word_embeddings in {one.num_apart:,} rows, although its "
                "config.json says tie_word_embeddings: true (as after a merge of what was trained on one of the two); "
                "say false there: a loader may tie them again and drop one"
            )
    if own := [one for one in opened if one.output]:
        yield (
            f"{own[0].output} of {' and '.join(one.name for one in own)} is a table of its own and not among the "
            "embedding parameters: what of it moved is not told here"
        )


def rounding_notes(name: str, types: Collection[str], what_follows: str) -> Iterator[str]:
    """A note for each type of two bytes among those in which a checkpoint stores weights."""
    for kind in sorted(HALF.keys() & types):
        yield f"{name} stores weights as {kind}, which rounds a value by up to {HALF[kind]:.2%}: {what_follows}"


def _precision_notes(opened: Sequence[_Opened], parameters: Sequence[str]) -> Iterator[str]:
    for one in opened:
        types = {one.dtypes[name] for name in parameters}
        yield from rounding_notes(one.name, types, "no drift is no verdict on half-precision weights")
        if "float64" in types:
            yield f"{one.name} stores weights as float64: compared after rounding to float32"
