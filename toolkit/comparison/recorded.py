"""What is known of a run of another training loop, which has no RunConfig: nothing is made up for what is not."""

import re
from typing import Any

import numpy as np

from toolkit.families import EMBEDDING_PARAMETERS, FAMILIES, TABLES
from toolkit.snapshots.store import Run

TASK_NOT_GIVEN = "task not given"
KEPT = ("model", "task", "condition", "seed", "num_train_examples", "recorded_by", "since", "notes", "moved")
"""What a recording says of itself, beside the arguments of its training."""

ADAPTED = re.compile(r"([^.]+)\.base_layer\.")
"""In the name of a frozen parameter: the module whose output an adapter of peft changes."""


def facts_of_recording(run: Run) -> dict[str, Any]:
    """The facts of a recording that evidence keeps in place of a config.

    ``arguments`` are those of its Trainer; of any other loop what its optimizer log tells. ``first_epoch``: where
    drift is counted from; ``width`` and ``rows``: of its first table; ``moved``: what is not what it was, by the bits;
    ``adapters``: the modules that have one.
    """
    recorded, (first, *_, last) = run.recorded, [*run.trajectory.snapshots[:1], *run.trajectory.snapshots]
    arguments: dict[str, Any] = {k: v for k, v in (recorded.get("arguments") or {}).items() if k != "seed"}
    if not arguments and (log := run.optimizer_log) is not None:
        rates = [rate for rate in log.learning_rates.tolist() if rate == rate]
        known: dict[str, list[Any]] = {"weight_decay": [*log.weight_decay.values()], "learning_rate": rates}
        arguments = {"optimizer": log.algorithm} | {name: max(values) for name, values in known.items() if values}
    proofs = ((run.manifest if run.is_finished else {}).get("frozen") or {}).get("parameters") or {}
    shape = next((first.tensors[name].shape for name in TABLES if name in first.tensors), (None, None))
    return {
        "moved": [name for name in first.tensors if not np.array_equal(first.tensors[name], last.tensors[name])],
        **{name: recorded[name] for name in KEPT if recorded.get(name) is not None},
        "adapters": sorted({match[1] for name in proofs if (match := ADAPTED.search(name))}),
        "arguments": arguments,
        "first_epoch": first.epoch,
        "rows": shape[0],
        "width": shape[1],
    }


def canonical_name(name: str) -> str:
    """The canonical name of an embedding parameter that is named as in its model; any other name as it is."""
    if name in EMBEDDING_PARAMETERS:
        return name
    for family in FAMILIES.values():
        for canonical, native in family.embedding_parameters.items():
            if name == native or name.endswith("." + native):
                return canonical
    return name
