"""LoRA (Hu et al. 2021, arXiv 2106.09685) through peft: adapters in a backbone, and what is saved of them."""

import importlib.util
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.config import RunConfig
from toolkit.families import ADAPTER, BENEATH, TABLES, ModelFamily, matches
from toolkit.models.classifier import Loaded
from toolkit.models.regimes import has_adapters, with_adapters
from toolkit.naming import unknown
from toolkit.snapshots.adapters import WEIGHTS
from toolkit.snapshots.files import write_tensors
from toolkit.snapshots.snapshot import to_array

EVERY_LINEAR = "all-linear"


def put_adapters(loaded: Loaded, config: RunConfig) -> None:
    """Put the adapters of ``--lora`` into the backbone, in place, with weights that the seed draws.

    At first they change nothing: peft starts one factor of each at 0. ValueError without peft, and for a target that
    the model lacks or that takes no adapter.
    """
    if config.lora is None:
        return
    if importlib.util.find_spec("peft") is None:
        raise ValueError("--lora needs peft: pip install 'embedding-drift-toolkit[peft]'")
    targets = find_targets(loaded, config.lora)
    from peft import LoraConfig, inject_adapter_in_model

    lora_config = LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=targets)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to False")  # peft then sets it for GPT-2's layers
        torch.manual_seed(config.seed)
        inject_adapter_in_model(lora_config, loaded.model.backbone)


def with_own_names(config: RunConfig, family: ModelFamily) -> RunConfig:
    """``config`` with tables among its targets under their names here, so that two spellings of a table are one run."""
    if config.lora is None:
        return config
    return replace(config, lora=tuple(dict.fromkeys(_table_at(family, word) or word for word in config.lora)))


def _table_at(family: ModelFamily, word: str) -> str | None:
    """The table that a word names by its path in the model, or by the end of that; None where it names none."""
    for name, path in family.embedding_parameters.items():
        if name in TABLES and f".{path.removesuffix('.weight')}".endswith(f".{word}"):
            return name
    return None


def find_targets(loaded: Loaded, words: Iterable[str]) -> list[str]:
    """The modules that ``--lora`` names, by their paths in the backbone, sorted.

    A word is the end of a module's path, as in peft, ``all-linear``, or a table by its name here in any family. A
    linear layer that passes go through takes an adapter, and a table of embeddings that is nothing more than a table.
    """
    from transformers.pytorch_utils import Conv1D

    modules = {name: module for name, module in loaded.model.backbone.named_modules() if name}
    paths = {table: loaded.family.embedding_parameters.get(table, "").removesuffix(".weight") for table in TABLES}
    tables = {table: path for table, path in paths.items() if path in modules}
    linear = {name for name, module in modules.items() if isinstance(module, nn.Linear | Conv1D)}
    linear = {
        name for name in linear if not any(matches(pattern, f"{name}.weight") for pattern in loaded.family.unused)
    }
    fitting = linear | {path for path in tables.values() if type(modules[path]) is nn.Embedding}
    targets: set[str] = set()
    for word in words:
        end = tables.get(word, word)
        module_names = linear if word == EVERY_LINEAR else {n for n in modules if n == end or n.endswith(f".{end}")}
        if not module_names:
            choices = (EVERY_LINEAR, *tables, *sorted({name.rpartition(".")[2] for name in fitting}))
            raise ValueError(f"--lora: {unknown(word, 'module', tuple(dict.fromkeys(choices)))}")
        if misfit := sorted(module_names - fitting):
            raise ValueError(
                f"--lora {word}: {misfit[0]} is a {type(modules[misfit[0]]).__name__}, which takes no adapter here: "
                "name linear layers, or plain tables of embeddings"
            )
        targets |= module_names
    return sorted(targets)


def merged_state(backbone: nn.Module) -> dict[str, torch.Tensor] | None:
    """What ``save_pretrained`` is to write of a backbone with adapters: an ordinary checkpoint; None of any other."""
    if not has_adapters(backbone):
        return None
    state = {n.replace(BENEATH, "."): tensor for n, tensor in backbone.state_dict().items() if ADAPTER not in n}
    layers = ((name, module) for name, module in backbone.named_modules() if hasattr(module, "lora_embedding_A"))
    return state | {f"{name}.weight": with_adapters(layer).detach() for name, layer in layers}


def save_adapter(loaded: Loaded, config: RunConfig, folder: Path) -> None:
    """The two files of an adapter as ``PeftModel.save_pretrained`` writes them, for the checkpoint as their base.

    Nothing without adapters, and where they were trained on other weights: random ones, another position table, or one
    of words with more rows.
    """
    backbone: Any = loaded.model.backbone
    if not has_adapters(backbone) or not config.init == config.positions == "checkpoint" or loaded.added:
        return
    from peft import get_peft_model_state_dict

    folder.mkdir()
    (settings,) = backbone.peft_config.values()
    source = loaded.source
    settings.base_model_name_or_path = source.location if source.is_hub else source.name
    settings.revision, settings.inference_mode = source.revision, True
    settings.target_modules = sorted(settings.target_modules)  # a set has another order in every process
    settings.save_pretrained(folder)
    # Whether tables are saved whole is not left to peft, which would ask the hub whether their sizes have changed.
    tensors = get_peft_model_state_dict(backbone, save_embedding_layers=False)
    arrays = {f"base_model.model.{name}": to_array(tensor) for name, tensor in tensors.items()}
    write_tensors(folder / WEIGHTS, arrays, {"format": "pt"})
