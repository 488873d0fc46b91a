"""A sentence-transformers folder is a pipeline of modules that makes one vector of a text, not a bare encoder."""

import os
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.memory import is_hub_reachable
from toolkit.models.checkpoints import Source, quiet
from toolkit.naming import read_json, read_object, reading, refuse_first
from toolkit.snapshots.adapters import MERGE_IT, SETTINGS
from toolkit.snapshots.importers import CONVERT

MODULES = "modules.json"
"""Lists the modules of a sentence-transformers folder in their order."""
KIND = "SentenceTransformer"
NO_WEIGHTS = frozenset({"Transformer", "Pooling", "Normalize", "Dropout"})
"""Modules that add no weights to those of the encoder."""
NO_TURN = frozenset({"Normalize", "Dropout"})
"""Modules that leave the direction of a vector as it is, so that no cosine changes."""
OWN_CODE = ("sentence_transformers.", "torch.")
"""How the names of classes begin that a folder may ask for: others are code of its own, or of who knows whom."""
SAFE_SUFFIX = ".safetensors"
CHECKED_FILES = ("config.json", "router_config.json", SETTINGS, f"*{SAFE_SUFFIX}.index.json")
"""Files of a folder and its modules that name classes and files of weights."""
POOLINGS = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
"""Modes of its Pooling that are ours too."""
MODE_FIELDS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Fields that older folders have in place of ``pooling_mode``, in the order in which their vectors are concatenated."""
PLAIN_SETTINGS: dict[str, Any] = {
    "do_lower_case": False,
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
"""Settings of its Transformer under which it is the encoder as we load it."""

Modules = tuple[tuple[str, str], ...]
"""Class and folder of each module."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a sentence-transformers folder makes vectors."""

    said: str
    """Its modules, pooling, length and prompt in words."""
    model: Any
    """The SentenceTransformer; None where the library is not installed and the next three do what it would do."""
    encoder: str
    """The folder of the encoder."""
    pooling: str = ""
    max_length: int | None = None


def list_modules(source: Source) -> Modules:
    """The modules of a checkpoint; none where it is no sentence-transformers folder. ValueError for a damaged list."""
    path = _fetch(source, MODULES) / MODULES
    listed = read_json(path) if path.is_file() else []
    with reading(f"the {MODULES} of {source.name}", "does not list modules, each with its type and a path below it"):
        modules = tuple((str(module["type"]), str(module["path"])) for module in listed)
        refuse_first({path: ".." in Path(path).parts or Path(path).is_absolute() for _, path in modules})
    return modules


def warn_of_modules(source: Source) -> None:
    """Warn of modules with weights of their own, which whoever reads the encoder alone leaves out."""
    if beside := [name for name in map(_name, list_modules(source)) if name not in NO_WEIGHTS]:
        warnings.warn(
            f"{source.name} is a sentence-transformers folder: its encoder alone is read, without {', '.join(beside)}",
            stacklevel=3,
        )


def open_pipeline(source: Source, modules: Modules) -> Pipeline:
    """The pipeline as sentence-transformers reads it, by that library where it is installed.

    ``modules``: what :func:`list_modules` gave. No pickle is opened and no code of the folder's own runs. ValueError
    where either would be needed, for what gives no one vector of a text (a CrossEncoder, a SparseEncoder), and without
    the library for modules and settings that are not rebuilt here.
    """
    folder = _fetch(source, "*.json", "*.txt", "*.model", "*.safetensors")
    settings = _settings(folder, "config_sentence_transformers.json")
    if (kind := settings.get("model_type", KIND)) != KIND:
        raise ValueError(f"{source.name} is a {kind}, which gives no one vector of a text: pass a {KIND}")
    _check_code_and_pickles(source.name, folder, modules)
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return _rebuilt(source.name, folder, modules, settings)
    with reading(source.name, "cannot be read by sentence-transformers"), quiet():
        options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        model = SentenceTransformer(str(folder), model_kwargs={"use_safetensors": True}, **options)
    for path in (path for class_name, path in modules if class_name.endswith(".Transformer")):
        # The library leaves what is missing at random numbers. Poolers are missing often, and nothing reads them.
        encoder: Any = model.transformers_model
        _, info = Source(source.name, str(folder / path)).load_weights(type(encoder), encoder.config, {})
        if missing := sorted(
            tensor_name for tensor_name in info["missing_keys"] if not tensor_name.startswith("pooler.")
        ):
            raise ValueError(f"checkpoint {source.name} lacks tensors that its config asks for: {missing[0]}")
    return Pipeline(_describe(folder, modules, settings, model.max_seq_length), model, str(folder))


def _fetch(source: Source, *patterns: str) -> Path:
    """The folder of a checkpoint; of the hub, with those of its files that fit a pattern."""
    if not source.is_hub:
        return Path(source.location)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    options: dict[str, Any] = {"revision": source.revision, "local_files_only": not is_hub_reachable()}
    passed = LocalEntryNotFoundError  # nothing of it is known: whoever reads its config says so
    with suppress(passed), reading(f"the modules of {source.name!r}", "cannot be had", passed, remedy="try again"):
        return Path(snapshot_download(source.location, allow_patterns=list(patterns), **options))
    return Path(os.devnull)


def _name(module: tuple[str, str]) -> str:
    """The name of a module's class."""
    class_path, _ = module
    return class_path.rpartition(".")[2]


def _settings(folder: Path, *patterns: str) -> dict[str, Any]:
    """The first JSON object that is there; empty where none is."""
    return next((read_object(path) for pattern in patterns for path in sorted(folder.glob(pattern))), {})


def _check_code_and_pickles(name: str, folder: Path, modules: Modules) -> None:
    """ValueError where sentence-transformers or transformers would open a pickle or import what it does not hold."""
    classes = [class_name for class_name, _ in modules]
    weights: list[str] = []
    folders = {folder, *(folder / path for _, path in modules)}
    for module_folder in list(folders):  # of a Router, whose modules lie below it
        types = _settings(module_folder, "router_config.json").get("types")
        folders |= {module_folder / str(name) for name in types} if isinstance(types, dict) else set()
    for path in (path for each in folders for pattern in CHECKED_FILES for path in each.glob(pattern)):
        fields = read_object(path)
        if path.name == SETTINGS:
            raise ValueError(f"{name} holds an adapter: {MERGE_IT}")
        mappings = [mapping for mapping in (fields.get("types"), fields.get("auto_map")) if isinstance(mapping, dict)]
        classes += [str(value) for mapping in mappings for value in mapping.values()]
        classes += [fields["activation_function"]] if {"in_features", "activation_function"} <= set(fields) else []
        weights += [fields.get("transformers_weights") or SAFE_SUFFIX, *dict(fields.get("weight_map") or ()).values()]
    if foreign := [class_name for class_name in classes if not str(class_name).startswith(OWN_CODE)]:
        raise ValueError(f"{name} asks for {foreign[0]}, which is no part of sentence-transformers: it is never run")
    pickles = [each / "pytorch_model.bin" for each in folders if not any(each.glob(f"model*{SAFE_SUFFIX}"))]
    weights += [str(path.relative_to(folder)) for path in pickles if path.is_file()]
    if pickled := [weight_name for weight_name in weights if not str(weight_name).endswith(SAFE_SUFFIX)]:
        raise ValueError(f"{name} holds weights only as a pickle ({pickled[0]}): {CONVERT}")


def _modes(folder: Path, path: str) -> tuple[str, ...]:
    """What a Pooling module concatenates."""
    fields = _settings(folder / path, "config.json")
    mode = fields.get("pooling_mode") or [mode for field, mode in MODE_FIELDS.items() if fields.get(field)] or "mean"
    return (mode,) if isinstance(mode, str) else tuple(mode)


def _describe(folder: Path, modules: Modules, settings: dict[str, Any], max_length: int | None) -> str:
    """How a folder makes vectors, in words: its modules, prompts, and whatever else changes a vector."""
    module_texts = [
        f"Pooling ({' + '.join(_modes(folder, path))})"
        if class_name.endswith(".Pooling")
        else _name((class_name, path))
        for class_name, path in modules
    ]
    routes = [
        _settings(folder / path, "router_config.json").get("parameters", {}).get("default_route")
        for class_name, path in modules
        if class_name.endswith(".Router")
    ]
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    other_prompts = [name for name, prompt in prompts.items() if prompt and name != default]
    applies_by_text = {
        f"by the route {''.join(map(str, routes))!r} of encode(), queries too": routes,
        f"of {max_length} tokens at most": max_length and max_length < 10**9,
        f"after the prompt {prompts.get(default)!r}": prompts.get(default),
        f"without the prompts {', '.join(other_prompts)}, which its encode() does not add": other_prompts,
        f"cut to {settings.get('truncate_dim')} numbers": settings.get("truncate_dim"),
        f"by cosine, where the folder asks for {settings.get('similarity_fn_name')}": (
            settings.get("similarity_fn_name") not in (None, "cosine")
        ),
    }
    return ", ".join([*module_texts, *(text for text, applies in applies_by_text.items() if applies)])


def _rebuilt(name: str, folder: Path, modules: Modules, settings: dict[str, Any]) -> Pipeline:
    """The encoder with one of our own poolings, where that is all that the folder asks for."""
    path_by_module = {_name(module): module[1] for module in modules}
    encoder = folder / path_by_module.get("Transformer", "")
    modes = _modes(folder, path_by_module.get("Pooling", ""))
    fields = _settings(encoder, "sentence_*_config.json")
    tokenizer_length = _settings(encoder, "tokenizer_config.json").get("model_max_length")
    length = fields.pop("max_seq_length", None) or tokenizer_length
    description = _describe(folder, modules, settings, length)
    kinds = [_name(module) for module in modules]
    is_plain = kinds[:2] == ["Transformer", "Pooling"] and set(kinds[2:]) <= NO_TURN and modes[1:] == ()
    is_plain &= modes[0] in POOLINGS and all(PLAIN_SETTINGS.get(field) == value for field, value in fields.items())
    if not is_plain or settings.get("default_prompt_name") or settings.get("truncate_dim"):
        raise ValueError(
            f"the vectors of {name} ({description}) are not rebuilt here: pip install sentence-transformers"
        )
    return Pipeline(description, None, str(encoder), POOLINGS[modes[0]], length)
