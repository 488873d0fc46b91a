"""Checkpoints of any origin as one Trajectory of their embedding parameters, with notes on what was compared."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolkit.families import EMBEDDING_PARAMETERS, FAMILIES, ModelFamily, family_of
from toolkit.memory import is_hub_reachable, unreachable_hub
from toolkit.naming import Described, read_json
from toolkit.snapshots.adapters import SETTINGS, WEIGHTS, open_adapter
from toolkit.snapshots.files import read_header
from toolkit.snapshots.snapshot import CHECKED_ROWS, Appended, Snapshot, Trajectory, Vocabulary, name_undefined
from toolkit.snapshots.store import CHECKPOINT, MANIFEST, SNAPSHOT, SNAPSHOTS, Run, checkpoints_in
from toolkit.snapshots.tokenizer_files import Fetch, find_embedded, read_settings, read_tokenizer_files
from toolkit.snapshots.weights import INDEX, SINGLE, FileTensors, open_weights

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


def align_words(names: Sequence[str], num_rows: Sequence[int], vocabularies: Sequence[Vocabulary | None]) -> Alignment:
    """Rows of equal tokens: every row where the vocabularies are one, else the tokens that all have, by their text.

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
    if not present:
        if len(names) > 1:
            notes.append("no vocabulary files: word rows are compared by their number")
        return Alignment((None,) * len(names), None, tuple(notes))
    if len(present) < len(names) or all(v.tokens == present[0].tokens for v in present):
        return Alignment((None,) * len(names), present[0], tuple(notes))
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
    """The tokens that every vocabulary holds exactly once."""
    places = [_rows_of(vocabulary) for vocabulary in vocabularies]
    shared = [token for token in places[0] if all(token in place for place in places[1:])]
    if not shared:
        raise ValueError(f"the vocabularies of {' and '.join(names)} share no token: are these models related?")
    rows = [np.array([place[token] for token in shared], np.int64) for place in places]
    of_row = {int(row): i for i, row in enumerate(rows[0])}
    first = vocabularies[0]
    special = frozenset(of_row[row] for row in first.special_rows if row in of_row)
    pad = of_row.get(first.pad_row) if first.pad_row is not None else None
    added = frozenset(of_row[row] for row in first.added_rows if row in of_row)
    left_out = ", ".join(f"{len(v.tokens) - len(shared):,} of {n}" for n, v in zip(names, vocabularies, strict=True))
    notes.append(f"word rows are compared by token: {len(shared):,} in common; rows left out: {left_out}")
    return Alignment(tuple(map(_simplest, rows)), Vocabulary(tuple(shared), special, pad, added), tuple(notes))


def _rows_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Token -> row; rows without a text, and texts that stand for several rows, cannot be matched."""
    rows: dict[str, int] = {}
    repeated = set()
    for row, token in enumerate(vocabulary.tokens):
        if token in rows:
            repeated.add(token)
        elif token:
            rows[token] = row
    return {token: row for token, row in rows.items() if token not in repeated}


def _simplest(rows: NDArray[np.int64]) -> RowChoice:
    """A slice costs no copy."""
    return slice(0, len(rows)) if np.array_equal(rows, np.arange(len(rows))) else rows


class SelectedTensors(Mapping[str, np.ndarray]):
    """Some parameters of a checkpoint, and some rows of its word table: taken when asked for, never kept."""

    def __init__(self, tensors: Mapping[str, np.ndarray], parameters: Sequence[str], rows: RowChoice) -> None:
        self._tensors, self._parameters, self._rows = tensors, parameters, rows

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._parameters:
            raise KeyError(name)
        tensor = self._tensors[name]
        return tensor if name != "word_embeddings" or self._rows is None else tensor[self._rows]

    def __repr__(self) -> str:
        return f"SelectedTensors({', '.join(self)})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


Resolve = Callable[[str], "str | Path | None"]
"""A name such as ``minilm`` to the folder of its checkpoint; None for a name that it does not know."""

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONVERT = (
    "opening a pickle can run any code in it, so this toolkit does not; load it where you trust it and save it again "
    "with model.save_pretrained(folder), which writes model.safetensors"
)
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
    step: int = 0
    is_ours: bool = False
    """Whether ``file`` is a snapshot of a run directory."""
    is_local: bool = True
    """Whether reading a file more costs no download."""
    missing: Callable[[], str] = lambda: f"no {SINGLE} there"
    """What to say when the place turns out to hold no weights; the hub may be asked for it."""


def find_places(place: str | Path, resolve: Resolve | None = None) -> tuple[list[Place], list[str]]:
    """The checkpoints at one place, in order of their steps, and notes; ValueError with one line when there is none."""
    text = str(place)
    if isinstance(place, str) and resolve is not None and (folder := resolve(place)) is not None:
        found, notes = _in_folder(Path(folder), text)
        return [Place((place,), p.fetch, p.file, p.step, missing=p.missing) for p in found], notes
    path = Path(text).expanduser()
    if path.is_dir():
        return _in_folder(path, text)
    if path.is_file():
        return [_of_file(path, text)], []
    if "*" in text:
        return _of_pattern(path, text)
    match = HUB_ID.fullmatch(text)
    if match is None:
        raise ValueError(f"no file or folder at {text!r}, and it is not a hub id (owner/name, or owner/name@revision)")
    return [on_hub(text, match["id"], match["revision"])], []


def shown_names(places: Sequence[Place]) -> list[str]:
    """One name for each place, distinct: as few parts of its path as distinguish it, at most three."""
    names = []
    for place in places:
        others = [other.parts for other in places if other.parts != place.parts]
        distinct = (k for k in (1, 2, 3) if all(parts[-k:] != place.parts[-k:] for parts in others))
        names.append("/".join(place.parts[-next(distinct, 3) :]))
    return [f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name for i, name in enumerate(names)]


def _of_pattern(path: Path, text: str) -> tuple[list[Place], list[str]]:
    fixed = next(parent for parent in path.parents if "*" not in str(parent))
    folders = [folder for folder in fixed.glob(path.relative_to(fixed).as_posix()) if folder.is_dir()]
    if not folders:
        raise ValueError(f"no folder matches {text!r}")
    places, notes = [], []
    for folder in sorted(folders, key=_order):
        of_folder, said = _in_folder(folder, str(folder))
        places += of_folder
        notes += said
    return places, notes


def _in_folder(folder: Path, text: str) -> tuple[list[Place], list[str]]:
    parts = folder.resolve().parts[1:]
    inside = folder / SNAPSHOTS  # which a folder of the hub's cache has too, for other things
    if inside.is_dir() and ((folder / MANIFEST).exists() or any(SNAPSHOT.fullmatch(p.name) for p in inside.iterdir())):
        return _in_run(Run(folder))
    steps = checkpoints_in(folder)
    has_weights = (folder / SINGLE).exists() or (folder / INDEX).exists()
    adapter = folder / WEIGHTS
    if steps:
        alone = SINGLE if has_weights else WEIGHTS
        beside = (
            f"{parts[-1]}: its checkpoint-* folders are compared, not the weights beside them; pass {alone} for those"
        )
        is_beside = has_weights or adapter.exists()
        return [p for step in steps for p in _in_folder(step, str(step))[0]], [beside] if is_beside else []
    if not has_weights and adapter.exists():
        return [Place(parts, _local(folder), adapter, _step(folder))], []
    if not has_weights:
        inner = _sentence_transformer(folder)
        if inner is not None:
            said = f"{text}: no {SINGLE} in {inner.name}"
            return [Place(parts, _local(inner), step=_step(folder), missing=lambda: said)], []
        files = sorted(folder.glob("*.safetensors"))
        if len(files) == 1:
            return [Place(parts, _local(folder), files[0], _step(folder))], []
        raise ValueError(_why_not(folder, text, [path.name for path in files]))
    return [Place(parts, _local(folder), step=_step(folder))], []


def _in_run(run: Run) -> tuple[list[Place], list[str]]:
    """The first and the last snapshot of a run, and those at the ends of its epochs."""
    found = {name: run.open_snapshot(name) for name in run.snapshot_names()}
    names = sorted(found, key=lambda name: (found[name].step, found[name].epoch, found[name].is_epoch_end))
    ends = {*names[:1], *names[-1:], *(name for name in names if name.startswith("epoch-"))}
    chosen = [run.path / SNAPSHOTS / name for name in names if name in ends]
    left_out, name = len(names) - len(chosen), run.path.resolve().name
    said = f"{name}: snapshots between two epochs are left out ({left_out}): the files of snapshots/ can be passed"
    return [_of_file(path, str(path)) for path in chosen], [said] if left_out else []


def _sentence_transformer(folder: Path) -> Path | None:
    """The folder of the transformer inside that of a sentence-transformers model."""
    modules = folder / "modules.json"
    listed = read_json(modules) if modules.exists() else []
    names = [str(m.get("path", "")) for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
    inside = [folder / name for name in [*names, "0_Transformer"] if name and _stays_inside(name)]
    return next((p for p in inside if (p / SINGLE).exists() or (p / INDEX).exists()), None)


def _why_not(folder: Path, text: str, files: Sequence[str]) -> str:
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLED and not p.name.startswith(NO_WEIGHTS))
    distributed = sorted({path.parent for path in [*folder.glob("*.distcp"), *folder.glob("pytorch_model*/*.distcp")]})
    if len(files) > 1:
        return f"{text} holds {len(files)} safetensors files and no {INDEX}: pass one of {', '.join(files)}"
    if distributed:
        inner = "" if distributed[0] == folder else f" in {distributed[0].name}"
        return f"{text} holds a torch.distributed.checkpoint{inner} (.distcp): {MERGE_SHARDS}"
    if any(folder.glob("global_step*")):
        return f"{text} is a checkpoint of DeepSpeed: load it there and save it with model.save_pretrained(folder)"
    if pickled:
        return f"{text} holds weights only as a pickle ({pickled[0]}): {CONVERT}"
    what = "is empty" if not any(folder.iterdir()) else f"holds neither {SINGLE} nor {INDEX} nor checkpoint-* folders"
    return f"{text} {what}: pass the folder that save_pretrained wrote"


def _of_file(path: Path, text: str) -> Place:
    if path.suffix in PICKLED:
        raise ValueError(f"{text} is a pickle: {CONVERT}")
    if path.suffix != ".safetensors":
        raise ValueError(f"{text} is not a safetensors file: pass a .safetensors file or the folder of a checkpoint")
    parts = path.resolve().parts[1:]
    metadata = read_header(path)[0]
    if {"format", "epoch", "step"} <= metadata.keys():
        run = run_of_snapshot(path)
        return Place((f"{run.name}/{path.stem}",), _local(run), path, is_ours=True)
    parts = parts[:-1] if path.name in (SINGLE, WEIGHTS) and len(parts) > 1 else (*parts[:-1], path.stem)
    return Place(parts, _local(path.parent), path, _step(path.parent))


def run_of_snapshot(path: Path) -> Path:
    """The run directory of one of its snapshots, whose file may be a link to somewhere else."""
    return path.parent.resolve().parent


def _stays_inside(name: str) -> bool:
    """Whether a name that a checkpoint's files give stays below their folder: an index may come from anyone."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _local(folder: Path) -> Fetch:
    def fetch(name: str) -> Path | None:
        path = folder / name
        return path if _stays_inside(name) and path.is_file() else None

    return fetch


def _step(folder: Path) -> int:
    """The optimizer step that a folder of Trainer is named after, or that its trainer_state.json tells; else 0."""
    if match := CHECKPOINT.fullmatch(folder.resolve().name):
        return int(match[1])
    state = folder / "trainer_state.json"
    step = read_settings(state if state.exists() else None).get("global_step", 0)
    return step if isinstance(step, int) else 0


def _order(folder: Path) -> tuple[int, str]:
    match = CHECKPOINT.fullmatch(folder.name)
    return (int(match[1]) if match else -1, folder.name)


def on_hub(text: str, location: str, revision: str | None) -> Place:
    """A hub id; ValueError at once when it is neither in the local cache nor to be had."""
    is_online = is_hub_reachable()

    @cache
    def fetch(name: str) -> Path | None:
        return _download(text, location, revision, name, is_online)

    absent = f"no file or folder at {text!r}, it is not in the local cache of the hub, and {unreachable_hub()}"
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


def _download(text: str, location: str, revision: str | None, name: str, is_online: bool) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(location, name, revision=revision, local_files_only=not is_online))
    except LocalEntryNotFoundError as error:
        if is_online:
            raise ValueError(f"cannot fetch {name} of {text!r}: {_first_line(error)}") from None
        return None
    except EntryNotFoundError:
        return None
    except Exception as error:  # no such repository or revision, no access, a broken connection: many types
        raise ValueError(f"no file or folder at {text!r}, nor {name} on the hub: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
    card_decay: float = math.nan
    """The weight decay that the model card (README.md) of the last checkpoint states; NaN where it states none."""

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
    """None where nothing tells."""
    layer_norm_eps: float | None
    """None where there is no LayerNorm."""
    output: str = ""
    """The name of an output layer that is a table of its own."""
    output_tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    """That table, where it is at hand."""
    is_tied: bool = False
    """Whether the word table is the output layer too."""
    num_apart: int = 0
    """Rows in which the output layer differs from the word table although the config ties the two."""
    card_decay: float = math.nan
    """The weight decay that its model card states; NaN where it states none."""


CARD = "README.md"
CARD_DECAY = re.compile(
    r"^\W*weight_decay[^\w\n.,+-]+(\d*\.?\d+(?:e[+-]?\d+)?)(?![\w%/]|[.,]\d)", re.MULTILINE | re.IGNORECASE
)
"""As the cards of sentence-transformers list it: a plain number on the same line."""
MOST_CARD_BYTES = 2**20


def _stated_decay(card: Path | None) -> float:
    """The weight decay that a model card states; NaN where there is no card or it states none."""
    if card is None or not card.is_file():
        return math.nan
    with card.open("rb") as file:
        stated = CARD_DECAY.search(file.read(MOST_CARD_BYTES).decode(errors="replace"))
    return float(stated[1]) if stated else math.nan


def import_checkpoints(places: Sequence[str | Path], *, resolve: Resolve | None = find_embedded) -> Imported:
    """Open the embedding parameters of checkpoints, in the given order, memory-mapped; nothing else is read.

    Parameters
    ----------
    places
        Each is the folder of a checkpoint (one safetensors file or shards), a folder of transformers.Trainer (its
        checkpoint-* folders, in order of the step) or a pattern such as ``out/checkpoint-*``, a single .safetensors
        file, a run directory (the ends of its epochs, and its last snapshot) or one of its snapshot files, a hub id
        with or without ``@revision``, or a
        name that ``resolve`` knows. A folder that peft's save_pretrained wrote holds an adapter, which is read on top
        of the first checkpoint, without a merge.
    resolve
        Function from a name to the folder of its checkpoint; the default knows ``minilm``, the embedded model.

    Returns
    -------
    Imported
        What every analysis takes; its epochs are 0, 1, 2 ... in the given order.

    Raises
    ------
    ValueError
        A place holds no weights that can be read, or the checkpoints cannot be compared.
    """
    if isinstance(places, str | Path):
        places = [places]
    found, notes = [], []
    for place in places:
        of_place, said = find_places(place, resolve)
        found += of_place
        notes += said
    if not found:
        raise ValueError("nothing to open: pass run directories, or checkpoints (folders, safetensors files, hub ids)")
    opened: list[_Opened] = []
    for where, name in zip(found, shown_names(found), strict=True):
        if (adapter := find_adapter(where)) is None:
            opened.append(_open(where, name))
        else:
            one, trained = _open_adapter(where, adapter, name, opened[0] if opened else None)
            opened.append(one)
            notes.append(trained)
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
        Trajectory(
            snapshots,
            words.vocabulary,
            position_offset=offset,
            layer_norm_eps=opened[0].layer_norm_eps,
            appended=_appended(opened[0], opened[-1], parameters),
        ),
        tuple(dict.fromkeys([*notes, *words.notes, *said, *_notes_of(opened, parameters)])),
        {name: tuple(one.dtypes[name] for one in opened) for name in parameters},
        tuple(family.name for family in families),
        opened[-1].card_decay,
    )


def _appended(first: _Opened, last: _Opened, parameters: Sequence[str]) -> Appended | None:
    """The tokens that the last checkpoint has beside those of the first, where it has all of these in their rows."""
    name, old, new = "word_embeddings", first.vocabulary, last.vocabulary
    if name not in parameters or old is None or new is None:
        return None
    known = {row: token for row, token in enumerate(old.tokens) if token}  # a row without a text is spare
    rows = np.array([row for row, token in enumerate(new.tokens) if token and row not in known], np.int64)
    if not len(rows) or any(new.tokens[row : row + 1] != (token,) for row, token in known.items()):
        return None
    return Appended(
        tuple(new.tokens[row] for row in rows),
        rows,
        lambda: np.asarray(last.tensors[name])[rows],
        lambda: _rows_or_nan(np.asarray(first.tensors[name]), rows),
    )


def _rows_or_nan(table: np.ndarray, rows: NDArray[np.int64]) -> np.ndarray:
    found = np.full((len(rows), table.shape[1]), np.nan, table.dtype)
    found[rows < len(table)] = table[rows[rows < len(table)]]
    return found


def _open(place: Place, name: str) -> _Opened:
    if place.is_ours and place.file is not None:
        return _open_ours(place.file, name)
    config = read_settings(place.fetch("config.json"))
    model_type = config.get("model_type")
    family = family_of(model_type) if isinstance(model_type, str) else None
    opened = open_weights(place.file or place.fetch, family, name, with_output=place.is_local)
    if opened is None:
        raise ValueError(place.missing())
    tensors, location, output = opened
    size = tensors.shape("word_embeddings")[0] if "word_embeddings" in tensors else 0
    offset = None
    if family is not None:
        pad = config.get("pad_token_id")
        offset = family.first_position(pad if isinstance(pad, int) else None)
    vocabulary = read_tokenizer_files(place.fetch, size) if size else None
    _check_finite(tensors, name, vocabulary, offset or 0)
    is_tied, num_apart = family is not None and not location.output and _is_language_model(family, config), 0
    if config.get("tie_word_embeddings") is True and output and size:
        num_apart = _count_apart(tensors["word_embeddings"], output[location.output])
        is_tied, output = not num_apart, output if num_apart else FileTensors({})
    return _Opened(
        name,
        place.step,
        tensors,
        {parameter: tensors.dtype(parameter) for parameter in tensors},
        {parameter: tensors.shape(parameter) for parameter in tensors},
        vocabulary,
        (family,) if family else location.families,
        offset,
        _eps(config) if "LayerNorm.weight" in tensors else None,
        "" if is_tied else location.output,
        output,
        is_tied,
        num_apart,
        _stated_decay(place.fetch(CARD)) if place.is_local else math.nan,
    )


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


def _open_adapter(place: Place, path: Path, name: str, base: _Opened | None) -> tuple[_Opened, str]:
    """The embedding parameters of a base under an adapter, and a note on what it trains."""
    settings = read_settings(place.fetch(SETTINGS))
    if not settings:
        raise ValueError(f"{name} holds {WEIGHTS} without its {SETTINGS}: put that beside it")
    named = settings.get("base_model_name_or_path")
    if base is None:
        what = f" ({named})" if isinstance(named, str) and named else ""
        raise ValueError(f"{name} is an adapter, which changes its base{what}: pass the base first, then the adapter")
    adapter = open_adapter(path, settings, base.tensors, base.shapes, base.families or tuple(FAMILIES.values()), name)
    shapes = {**base.shapes, **adapter.shapes}
    size = shapes.get("word_embeddings", (0,))[0]
    vocabulary = read_tokenizer_files(place.fetch, size) if size else None
    if vocabulary is None and shapes == base.shapes:
        vocabulary = base.vocabulary
    note = f"{name} is an adapter ({settings.get('peft_type')}), read on top of {base.name}: {adapter.trained}"
    if base.is_tied and adapter.parts_tied:
        note += (
            f"; {base.name} ties the output layer to word_embeddings, and LoRA changes one without the other, or each "
            "by itself: a merge (merge_and_unload) would change both alike; untie them before it"
        )
    one = replace(
        base,
        name=name,
        step=place.step,
        tensors=adapter.tensors,
        dtypes={**base.dtypes, **adapter.dtypes},
        shapes=shapes,
        vocabulary=vocabulary,
        output="",
        output_tensors={},
        is_tied=False,
        num_apart=0,
    )
    return one, note


def _is_language_model(family: ModelFamily, config: Mapping[str, object]) -> bool:
    """Whether a checkpoint is that of a decoder with its output layer, which is the word table if it holds no other."""
    kinds = config.get("architectures")
    is_whole = isinstance(kinds, list) and any(str(kind).endswith(LANGUAGE_MODELS) for kind in kinds)
    return is_whole and (family.is_causal or family.has_decoder)


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
    own = [one for one in opened if one.output]
    if own:
        sizes = [len(tensors[one.output]) for one in own if (tensors := one.output_tensors)]
        rows = f" ({sizes[0]:,} rows)" if len(set(sizes)) == 1 else ""
        yield (
            f"{own[0].output} of {' and '.join(one.name for one in own)} is a table of its own{rows} and not among the "
            f"embedding parameters{_output_change(own) if len(own) > 1 else ''}"
        )


def _output_change(own: Sequence[_Opened]) -> str:
    """How far the rows of the output layer moved from the first checkpoint to the last, as a clause."""
    old, new = (one.output_tensors.get(one.output) for one in (own[0], own[-1]))
    if old is None or new is None or old.shape != new.shape:
        return ""
    largest = 0.0
    for start in range(0, len(old), CHECKED_ROWS):
        before, after = (np.asarray(table[start : start + CHECKED_ROWS], np.float64) for table in (old, new))
        norms, changes = (np.sqrt(np.vecdot(rows, rows)) for rows in (before, after - before))
        shares = np.divide(changes, norms, out=np.where(changes > 0, np.inf, 0.0), where=norms > 0)
        largest = np.maximum(largest, shares.max())  # which NaN is
    what = f"; its largest relative change of a row is {largest:.3g}" if largest else "; it did not change"
    return f"{what} from {own[0].name} to {own[-1].name}"


def _notes_of(opened: Sequence[_Opened], parameters: Sequence[str]) -> Iterator[str]:
    yield from _output_notes(opened)
    yield from _precision_notes(opened, parameters)


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
