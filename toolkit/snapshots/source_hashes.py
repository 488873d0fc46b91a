"""A checkpoint's folder in, what it is known by out: one sha256 each of its weights, its config and its tokenizer."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.json_files import read_object
from toolkit.snapshots.files import sha256_of_file

NO_FUNCTION = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"})
"""Fields of config.json that do not change what the model computes (weights are always loaded in fp32)."""
PER_CALL = frozenset({"truncation", "padding"})
"""Parts of tokenizer.json that hold what the last call before saving asked for."""
OVERRULING = ("add_prefix_space", "do_lower_case", "strip_accents", "tokenize_chinese_chars")
"""Fields of tokenizer_config.json that transformers 5 puts above what tokenizer.json says."""
SEPARATE = ("vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "*.model")
"""Files that are read where there is no tokenizer.json; ``*.model`` is sentencepiece's."""


def hash_weights(folder: Path) -> str | None:
    """Over the safetensors files of a folder; None when it has none."""
    return _hash_files(folder, ("*.safetensors",))


def hash_config(folder: Path) -> str | None:
    """Over the fields of config.json, but those of NO_FUNCTION, in whatever order; None when there is none."""
    return _hash_object(folder / "config.json", lambda fields: _without(fields, NO_FUNCTION))


def hash_tokenizer(folder: Path) -> str | None:
    """Over the files that tokens and their rows come from; None when there are none.

    tokenizer.json holds all of them and is the one file that transformers saves again, so that beside it the others
    do not count; with it go the fields of OVERRULING.
    """
    whole = _hash_object(folder / "tokenizer.json", lambda parts: _without(parts, PER_CALL))
    files = whole or _hash_files(folder, SEPARATE)
    settings = _hash_object(folder / "tokenizer_config.json", _overruling)
    return files and _hash_text(f"{files}{settings or _hash_text('{}')}")


def _without(content: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


def _overruling(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in OVERRULING if settings.get(name) is not None}


def _hash_object(path: Path, choose: Callable[[dict[str, Any]], dict[str, Any]]) -> str | None:
    """Over what ``choose`` leaves of a JSON object; of a damaged file, which its reader refuses, over its bytes."""
    if not path.is_file():
        return None
    try:
        return _hash_text(json.dumps(choose(read_object(path)), sort_keys=True))
    except ValueError:
        return sha256_of_file(path)


def _hash_files(folder: Path, patterns: tuple[str, ...]) -> str | None:
    digests = [sha256_of_file(path) for pattern in patterns for path in sorted(folder.glob(pattern))]
    return _hash_text("".join(digests)) if digests else None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
