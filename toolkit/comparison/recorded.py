"""What is known of a run of another training loop, which has no RunConfig: nothing is made up for what is not."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from toolkit.families import EMBEDDING_PARAMETERS, FAMILIES, TABLES, ModelFamily, component_of, regime_name
from toolkit.snapshots.store import Run

TASK_NOT_GIVEN = "task not given"
KEPT = ("model", "task", "condition", "seed", "recorded_by", "since", "notes", "moved")
"""What a recording says of itself, beside the arguments of its training."""

ADAPTED = re.compile(r"([^.]+)\.base_layer\.")
"""In the name of a frozen parameter: the module whose output an adapter of peft changes."""
PARTS, REST = "parts of the layers", "whatever else the model has"
"""Components of which no more is known."""
WHOLE_LAYER = 4
"""A layer has at least so many times width² parameters: its attention alone reads and writes the states."""
POOLED = ("BERT", "ALBERT", "MobileBERT")
"""Families whose classifiers read the pooler, one matrix of width²; those of the others leave it out."""


def facts_of_recording(run: Run) -> dict[str, Any]:
    """What stands in place of a config, as evidence keeps it.

    ``arguments`` are those of its Trainer; of any other loop what its optimizer log tells. ``first_epoch``: where
    drift is counted from; ``width`` and ``rows``: of its first table; ``moved``: what is not what it was, by the bits;
    ``adapters``: the modules that have one.
    """
    told, (first, *_, last) = run.recorded, [*run.trajectory.snapshots[:1], *run.trajectory.snapshots]
    arguments: dict[str, Any] = {k: v for k, v in (told.get("arguments") or {}).items() if k != "seed"}
    if not arguments and (log := run.optimizer_log) is not None:
        rates = [rate for rate in log.learning_rates.tolist() if rate == rate]
        arguments = {"optimizer": log.algorithm, "weight_decay": max(log.weight_decay.values(), default=None)}
        arguments["learning_rate"] = max(rates, default=None)
    proofs = ((run.manifest if run.is_finished else {}).get("frozen") or {}).get("parameters") or {}
    shape = next((first.tensors[name].shape for name in TABLES if name in first.tensors), (None, None))
    return {
        "moved": [name for name in first.tensors if not np.array_equal(first.tensors[name], last.tensors[name])],
        **{name: told[name] for name in KEPT if told.get(name) is not None},
        "adapters": sorted({found[1] for name in proofs if (found := ADAPTED.search(name))}),
        "arguments": arguments,
        "first_epoch": first.epoch,
        "rows": shape[0],
        "width": shape[1],
    }


def frozen_label(manifest: Mapping[str, Any], parameters: Collection[str], width: int | None) -> str:
    """What its hashes prove to have been frozen, in the words of ``--freeze``; ``none`` where they prove nothing.

    ``backbone`` where no layer can have been trained: every embedding parameter is proven frozen, and fewer parameters
    were trainable than any layer, or a pooler that is not proven frozen, has. Of a model without adapters.
    """
    proofs = (manifest.get("frozen") or {}).get("parameters") or {}
    same = [name for name, own in proofs.items() if own.get("before") == own.get("after") is not None]
    model = manifest.get("model") or {}
    family = next((each for each in FAMILIES.values() if each.name == model.get("family")), None)
    named = (manifest.get("regime") or {}).get("frozen_components", ())
    proven = {canonical_name(name) for name in same}.intersection(named)  # one beneath an adapter is not named
    embeddings = [name for name in parameters if name in proven]
    components = list(dict.fromkeys(filter(None, (_component(family, name) for name in same))))
    others = [name for name in components if name not in EMBEDDING_PARAMETERS]
    layers = [name for name in same if (_component(family, name) or "").startswith("layers.")]
    # Where biases alone are trained (BitFit) layers lack these.
    kinds = [sum(name.endswith(end) for name in layers) for end in (".weight", ".bias")]
    is_whole = "LayerNorm.bias" not in parameters or kinds[0] == kinds[1]
    has_pooler = family is not None and family.name in POOLED and "pooler" not in others
    least = (1 if has_pooler else WHOLE_LAYER) * (width or 0) ** 2
    is_still = model.get("num_trainable") is not None and model["num_trainable"] < least
    if embeddings == [*parameters] and layers and is_whole and is_still:
        return "backbone"
    return regime_name([*embeddings, *(others if is_whole else [PARTS])], [*parameters, REST])


def _component(family: ModelFamily | None, name: str) -> str | None:
    """The component of a parameter that is named as in its whole model; None for a head's."""
    while family is not None and name:
        try:
            return component_of(family, name)
        except ValueError:  # of a part of the model around the backbone
            name = name.partition(".")[2]
    return None


def canonical_name(name: str) -> str:
    """The canonical name of an embedding parameter that is named as in its model; any other name as it is."""
    if name in EMBEDDING_PARAMETERS:
        return name
    for family in FAMILIES.values():
        for canonical, native in family.embedding_parameters.items():
            if name == native or name.endswith("." + native):
                return canonical
    return name
