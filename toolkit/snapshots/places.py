"""What a user calls a checkpoint in, the places of its files out: folders, files, runs of ours and the hub."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from toolkit.hub import is_hub_reachable
from toolkit.json_files import read_json
from toolkit.snapshots.files import read_header
from toolkit.snapshots.store import MANIFEST, SNAPSHOT, SNAPSHOTS, Run
from toolkit.snapshots.tokenizer_files import Fetch, read_settings
from toolkit.snapshots.weights import INDEX, SINGLE

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
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
"""What transformers.Trainer calls the folder of a step."""
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
    missing: str = "no model.safetensors there"
    """What to say when the place turns out to hold no weights."""


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
        raise ValueError(f"no file or folder at {text!r}, and it is no hub id (owner/name, or owner/name@revision)")
    return [_on_hub(text, match["id"], match["revision"])], []


def shown_names(places: Sequence[Place]) -> list[str]:
    """One name for each place, distinct: as few parts of its path as tell it from the others, at most three."""
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
        ours = [inside / name for name in Run(folder).snapshot_names() if name.startswith("epoch-")]
        return [_of_file(path, str(path)) for path in ours], []
    steps = sorted((p for p in folder.glob("checkpoint-*") if p.is_dir() and CHECKPOINT.fullmatch(p.name)), key=_order)
    has_weights = (folder / SINGLE).exists() or (folder / INDEX).exists()
    if steps:
        beside = (
            f"{parts[-1]}: its checkpoint-* folders are compared, not the weights beside them; pass {SINGLE} for those"
        )
        return [p for step in steps for p in _in_folder(step, str(step))[0]], [beside] if has_weights else []
    if not has_weights:
        inner = _sentence_transformer(folder)
        if inner is not None:
            return [Place(parts, _local(inner), step=_step(folder), missing=f"{text}: no {SINGLE} in {inner.name}")], []
        files = sorted(folder.glob("*.safetensors"))
        if len(files) == 1:
            return [Place(parts, _local(folder), files[0], _step(folder))], []
        raise ValueError(_why_not(folder, text, [path.name for path in files]))
    return [Place(parts, _local(folder), step=_step(folder))], []


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
        raise ValueError(f"{text} is no safetensors file: pass a .safetensors file or the folder of a checkpoint")
    parts = path.resolve().parts[1:]
    metadata = read_header(path)[0]
    if {"format", "epoch", "step"} <= metadata.keys():
        run = run_of_snapshot(path)
        return Place((f"{run.name}/{path.stem}",), _local(run), path, is_ours=True)
    parts = parts[:-1] if path.name == SINGLE and len(parts) > 1 else (*parts[:-1], path.stem)
    return Place(parts, _local(path.parent), path, _step(path.parent))


def run_of_snapshot(path: Path) -> Path:
    """The run directory of one of its snapshots, whose file may be a link to somewhere else."""
    return path.parent.resolve().parent


def _stays_inside(name: str) -> bool:
    """Whether a name that a checkpoint's files give stays below their folder: an index may come from anybody."""
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


def _on_hub(text: str, location: str, revision: str | None) -> Place:
    """A hub id; ValueError at once when it is neither in the local cache nor to be had."""
    is_online = is_hub_reachable()

    @cache
    def fetch(name: str) -> Path | None:
        return _download(text, location, revision, name, is_online)

    missing = f"{text} has no {SINGLE} on the hub; if it has pytorch_model.bin: {CONVERT}"
    if not is_online:
        absent = (
            f"no file or folder at {text!r}, it is not in the local cache of the hub, and the hub cannot be reached"
        )
        missing = f"the local cache of the hub holds no {SINGLE} of {text!r}, and the hub cannot be reached"
        if fetch("config.json") is None and fetch(SINGLE) is None:
            raise ValueError(absent)
    return Place((text,), fetch, missing=missing)


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
