"""A checkpoint's config, weights and tokenizer: embedded, from a local folder or from the hub."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.families import FAMILIES, family_of
from toolkit.memory import is_hub_reachable, unreachable_hub
from toolkit.naming import first_few, is_failure, meant_by, read_object, reason_of, unknown
from toolkit.snapshots.adapters import MERGE_IT, SETTINGS
from toolkit.snapshots.backbones import hash_config, hash_tokenizer, hash_weights
from toolkit.snapshots.files import read_header
from toolkit.snapshots.importers import find_places, on_hub
from toolkit.snapshots.tokenizer_files import EMBEDDED, EMBEDDED_FILES, find_embedded
from toolkit.snapshots.weights import INDEX, SINGLE, FileTensors, check_stored


class NoHeadError(ValueError):
    """A checkpoint without the masked-LM head that is asked for."""


SAVED = "pass a folder that save_pretrained wrote"


class LackingError(ValueError):
    """A checkpoint without tensors that its config asks for; ``names``: theirs."""

    def __init__(self, reason: str, names: list[str]) -> None:
        super().__init__(reason)
        self.names = names


@dataclass(frozen=True, slots=True)
class Source:
    """Where a checkpoint's files are."""

    name: str
    """As the user wrote it."""
    location: str
    """A folder, or a hub id."""
    revision: str | None = None
    """Of a hub id: as the user wrote it, and the commit once it is :meth:`pinned`."""
    is_hub: bool = False
    sha256: str | None = None
    """Of the weights: the embedded model's file, or all safetensors files of a folder; None for the hub."""
    config_sha256: str | None = None
    """Of a folder, as :func:`hash_config` has it; the embedded model is fixed, and a commit of the hub covers it."""
    tokenizer_sha256: str | None = None
    """Of a folder, likewise."""

    def pinned(self) -> "Source":
        """The same source at the commit that it stands for now, since a branch of the hub moves on.

        What cannot be found is left as it is: :meth:`read_config` says why.
        """
        if not self.is_hub:
            return self
        from huggingface_hub import hf_hub_download

        with contextlib.suppress(Exception):  # a hub that hangs up raises types of the library that asks it
            path = Path(hf_hub_download(self.location, "config.json", **self._options()))
            return replace(self, revision=path.parent.name)  # the cache has one folder per commit
        return self

    def digest_entry(self) -> dict[str, str]:
        """What a run's digest must cover beside the name: the weights, which may change under one name.

        Of a folder their sha256, of the hub the commit (where it is known: of a pinned source); the embedded model is
        known by its name.
        """
        identity = self.revision if self.is_hub else self.sha256
        return {"model": identity} if identity and self.name != EMBEDDED else {}

    def check_settings(self, known: Mapping[str, Any], run: str) -> None:
        """ValueError where config or tokenizer are not those of a ``run``, ``known`` from its manifest's model part.

        They are not part of a run's name.
        """
        current = {
            "config.json": ("config_sha256", self.config_sha256),
            "tokenizer": ("tokenizer_sha256", self.tokenizer_sha256),
        }
        changed = [name for name, (key, sha256) in current.items() if known.get(key) != sha256]
        if changed:
            raise ValueError(
                f"the {' and the '.join(changed)} of {self.name} changed since {run} was trained: put back what it "
                "was, or run again (--overwrite, or another --output-dir)"
            )

    def _options(self) -> dict[str, Any]:
        if not self.is_hub:
            return {"local_files_only": True}
        return {"revision": self.revision, "local_files_only": not is_hub_reachable()}

    def read_config(self) -> Any:
        """The transformers config; ValueError for an architecture that is code of the checkpoint's own (auto_map)."""
        from transformers import AutoConfig, PreTrainedConfig

        if not self.is_hub and not (Path(self.location) / "config.json").is_file():
            if (Path(self.location) / SETTINGS).is_file():
                raise ValueError(f"{self.name} is an adapter, not a model: {MERGE_IT}")
            # Raises where there are no weights; older sentence-transformers have both in a folder below.
            inside = find_places(self.location)[-1].fetch("config.json")
            raise ValueError(f"{self.name} holds no config.json: {f'pass {inside.parent}' if inside else SAVED}")
        try:
            stored, _ = PreTrainedConfig.get_config_dict(self.location, **self._options())
            known_types = tuple(kind for family in FAMILIES.values() for kind in family.model_types)
            model_type = str(stored.get("model_type", ""))
            if "auto_map" in stored and model_type not in known_types:
                architecture = unknown(model_type, "architecture", known_types)
                raise ValueError(f"its own code (auto_map) is never run: {architecture}")
            return AutoConfig.from_pretrained(self.location, trust_remote_code=False, **self._options())
        except Exception as error:  # transformers checks a config as it builds it, by errors of many kinds
            raise ValueError(self._unreadable_text("config", error)) from None

    def read_tokenizer(self) -> Any:
        """The transformers tokenizer."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.location, trust_remote_code=False, **self._options())
            tokenizer("qzxv")  # one without a row for unknown words fails at the first of them
        except BaseException as error:  # tokenizers raises a bare Exception for a broken file, or panics
            if not is_failure(error):
                raise
            raise ValueError(self._lacking_packages() or self._unreadable_text("tokenizer", error)) from None
        if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            # transformers makes up such a tokenizer where there are no files, and every word would be unknown.
            raise ValueError(
                f"{self.name} has no tokenizer, or an empty one: save it beside the weights "
                "(tokenizer.save_pretrained(FOLDER))"
            )
        if "auto_map" in tokenizer.init_kwargs:
            self._warn_of_code("tokenizer", type(tokenizer).__name__)
        if tokenizer.pad_token_id is None:  # of a tokenizer.json alone, which does not say what pads
            with contextlib.suppress(ValueError):  # there may be no config.json either
                pad = getattr(self.read_config(), "pad_token_id", None)
                if isinstance(pad, int) and 0 <= pad < len(tokenizer):
                    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad)
        return tokenizer

    def _lacking_packages(self) -> str:
        """What to install where a sentencepiece model is all there is; empty where nothing lacks, or is not known to.

        transformers names what its last way of reading such a file needs, which is another package.
        """
        from transformers.utils import is_protobuf_available, is_sentencepiece_available

        folder = Path(self.location)
        is_available = {"sentencepiece": is_sentencepiece_available(), "protobuf": is_protobuf_available()}
        lacking = [name for name, is_there in is_available.items() if not is_there]
        if not lacking or (folder / "tokenizer.json").exists() or not any(folder.glob("*.model")):
            return ""
        return f"the tokenizer of {self.name!r} is a sentencepiece model: pip install {' '.join(lacking)}"

    def read_backbone(self, config: Any, options: dict[str, Any]) -> nn.Module:
        """The AutoModel in fp32, in eval mode; ValueError when any of its tensors is missing from the checkpoint.

        fp32 always: weights stored in half precision would be loaded so, and hardly move in training.
        """
        from transformers import AutoModel

        backbone, info = self.load_weights(AutoModel, config, options)
        missing = sorted(info["missing_keys"])
        if missing:
            embeddings = set(family_of(config.model_type).embedding_parameters.values())
            kind = "embedding tensors" if any(name in embeddings for name in missing) else "tensors"
            raise LackingError(
                f"checkpoint {self.name} lacks {kind} that its config asks for: {first_few(missing, 5)}", missing
            )
        if getattr(config, "auto_map", None):
            self._check_needs_no_code(backbone, info["unexpected_keys"])
        return backbone

    def read_masked_lm(self, config: Any) -> nn.Module:
        """The AutoModelForMaskedLM in fp32, in eval mode; ValueError where the checkpoint has no such head."""
        from transformers import AutoModelForMaskedLM

        self.check_masked_lm(config)
        model, info = self.load_weights(AutoModelForMaskedLM, config, {})
        if missing := sorted(info["missing_keys"]):
            raise NoHeadError(f"{self.name} has no masked-LM head: it lacks {missing[0]}")
        return model

    def check_masked_lm(self, config: Any) -> None:
        """ValueError for an architecture that transformers has no masked-LM head of."""
        from transformers import MODEL_FOR_MASKED_LM_MAPPING

        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
            raise NoHeadError(f"{self.name} has no masked-LM head: {config.model_type} has none")

    def load_weights(self, kind: Any, config: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        """A model of a class of transformers with this checkpoint's weights, in fp32, and transformers' loading info.

        ``options``: what else its ``from_pretrained`` is given. ValueError where they cannot be read, or are a pickle.
        """
        folder, files = self._fetch_weights(config)
        try:
            for path in files:  # transformers would take the numbers of INT8 or FP8 as they are, without their scale
                _, entries = read_header(path)
                weights = {name: (path, entry) for name, entry in entries.items() if name.endswith(".weight")}
                check_stored(FileTensors(weights), self.name)
            with quiet():
                model, info = kind.from_pretrained(
                    folder,
                    config=config,
                    dtype=torch.float32,
                    output_loading_info=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                    local_files_only=True,
                    **options,
                )
        except Exception as error:  # safetensors and torch raise their own types for broken or misshapen files
            raise ValueError(self._unreadable_text("weights", error)) from None
        return model, info

    def _fetch_weights(self, config: Any) -> tuple[Path, list[Path]]:
        """The folder with the weights, of the hub its place in the cache, and those of their files that are there.

        ValueError where they are not safetensors.

        transformers is given a folder always. Of a hub id without safetensors it would open the pickle, or ask a
        service to convert it; ``use_safetensors`` does not keep it from pickles that an index, a field of the config
        or an adapter beside the weights names.
        """
        folder = Path(self.location)
        hub_place = None
        if self.is_hub:
            hub_place = on_hub(self.name, self.location, self.revision)
            path = hub_place.fetch(SINGLE) or hub_place.fetch(INDEX)
            if path is None:
                raise ValueError(hub_place.missing())
            folder = path.parent
        is_sharded = not (folder / SINGLE).is_file()
        if is_sharded and not (folder / INDEX).is_file():
            find_places(self.location)  # which knows why, or finds what is no whole checkpoint
            raise ValueError(f"{self.name} holds neither {SINGLE} nor {INDEX}: {SAVED}")
        shards = read_object(folder / INDEX, {"weight_map": dict})["weight_map"].values() if is_sharded else ()
        weight_names = {str(name) for name in (*shards, getattr(config, "transformers_weights", None) or SINGLE)}
        if pickled := sorted(name for name in weight_names if not name.endswith(".safetensors")):
            raise ValueError(f"the weights of {self.name} are in part no safetensors ({pickled[0]}): {SAVED}")
        if hub_place is not None:
            for name in (*weight_names, SETTINGS):
                hub_place.fetch(name)
        if (folder / SETTINGS).is_file():
            raise ValueError(f"{self.name} holds an adapter beside the weights: {MERGE_IT}")
        return folder, [folder / name for name in sorted(weight_names) if (folder / name).is_file()]

    def _check_needs_no_code(self, backbone: Any, unexpected: Iterable[str]) -> None:
        """Warn that a checkpoint's own code is not run; ValueError where it has tensors that only that code reads."""
        child_names = {name for name, _ in backbone.named_children()}
        prefix = f"{backbone.base_model_prefix}."
        unplaced = sorted(name for name in unexpected if name.removeprefix(prefix).split(".")[0] in child_names)
        kind = backbone.config.model_type
        if unplaced:
            raise ValueError(
                f"{self.name} needs its own code (auto_map), which is never run: a plain {kind} has no place for "
                f"{first_few(unplaced)}"
            )
        self._warn_of_code("model", f"plain {kind}")

    def _warn_of_code(self, part: str, plain: str) -> None:
        warnings.warn(
            f"the {part} of {self.name} brings code of its own (auto_map), which is never run: it is read as {plain}",
            stacklevel=3,
        )

    def _unreadable_text(self, part: str, error: BaseException) -> str:
        """One line on what cannot be read: why, and what to pass instead."""
        reason = reason_of(error)
        if self.is_hub and not is_hub_reachable():
            reason = (
                f"it is not a folder{meant_by(self.location)}, it is not in the local cache, and {unreachable_hub()}"
            )
        if self.is_hub and "/" not in self.name:
            return f"{unknown(self.name, 'model', (EMBEDDED,))}, a local folder or a hub id; {reason}"
        instead = f"; pass {EMBEDDED} (embedded, offline) or a local folder" if self.is_hub else ""
        return f"cannot read the {part} of {self.name!r}: {reason}{instead}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from reporting, at length, that a checkpoint's pooler or other heads were not loaded."""
    from transformers.utils import logging

    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()


def find_checkpoint(name: str) -> Source:
    """Where a model name points: the embedded model, a folder, or else a hub id, which is only split at its ``@``.

    The hub is asked later: for the commit by :meth:`Source.pinned`, for files by whatever reads them. ValueError for
    the embedded model where that is damaged or not installed, and for what can be none of the three.
    """
    if embedded := find_embedded(name):
        return Source(name, str(embedded), sha256=EMBEDDED_FILES[SINGLE])
    if Path(name).expanduser().is_dir():
        folder = Path(name).expanduser()
        return Source(
            name,
            str(folder),
            sha256=hash_weights(folder),
            config_sha256=hash_config(folder),
            tokenizer_sha256=hash_tokenizer(folder),
        )
    location, _, revision = name.partition("@")
    if not location or location.count("/") > 1 or name.startswith((".", "/", "~")) or name.endswith(".safetensors"):
        raise ValueError(
            f"no folder at {name!r}{meant_by(name)}; pass {EMBEDDED}, a hub id such as owner/name, or a local folder"
        )
    return Source(name, location, revision or None, is_hub=True)
