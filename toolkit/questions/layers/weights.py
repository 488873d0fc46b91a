"""Drift of every weight tensor of the backbone between two checkpoints, and of each layer as a whole."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from toolkit.analysis.measures import Array
from toolkit.analysis.precision import FORMATS, HALF_FORMATS
from toolkit.families import EMBEDDING_PARAMETERS, ModelFamily, component_of, part_of
from toolkit.naming import lookup
from toolkit.progress import counted
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.backbones import Backbone, BackbonePair, open_backbones
from toolkit.snapshots.store import Run

EMBEDDINGS = "embeddings"
"""The component that the embedding parameters are together."""

VALUES_AT_ONCE, FIRST_VALUES = 1 << 20, 4096
"""Values that are read at a time, and at first: most that is looked for is contradicted at once."""

NOT_APPLICABLE = "not applicable: the model has none"
FACTS = ("is_shared", "is_cast")
"""What the notes of a parameter say, for those of its layer."""
SHARED = "one layer's weights, which every pass of the encoder goes through"


@with_columns
def measure_weight_drift(
    before: Run | str | Path,
    after: Run | str | Path | None = None,
    *,
    by: Literal["parameter", "layer"] = "parameter",
) -> pd.DataFrame:
    """How far every weight of the backbone moved between two checkpoints: tensors are read, no model is built.

    This is drift of *weights*: what a layer's own parameters did. How much its *states* changed, which also inherit
    what happened in all layers below, is :func:`toolkit.measure_layer_drift`, and needs a run.

    Parameters
    ----------
    before, after
        Folders of checkpoints, .safetensors files, hub ids, ``minilm``, or run directories made with ``--save-model``
        (the model that the run ended with). A run alone is compared with what it started from.
    by
        ``parameter``: one line per tensor; ``layer``: one per layer, with the embeddings, the projection and the pooler
        on lines of their own.

    Returns
    -------
    pandas.DataFrame
        By parameter, or by layer: the sums of squares of a layer's tensors put together, and the median of its
        matrices' angles. Norms are Frobenius norms in float64 of the stored values, relative_drift is ‖Δ‖/‖W⁰‖,
        angle_degrees 2·atan2(‖û - v̂‖, ‖û + v̂‖) of the two tensors as vectors (Kahan's form, which keeps its digits
        near 0).

        NaN is undefined and ``reason`` says why: what was 0 before has neither share nor angle, what only one of the
        two has cannot be compared, nor tables of a different number of words; what no checkpoint of this architecture
        has is "not applicable".

    Raises
    ------
    ValueError
        One line: no weights there, a pickle, another architecture, size or number of layers, a missing layer, NaN, a
        run without its model or from random weights.
    """
    lookup({"parameter": 0, "layer": 0}, by, "by")
    table = drift_of_parameters(open_backbones(before, after))
    return table[columns_of("measure_weight_drift")] if by == "parameter" else drift_of_layers(table)


def drift_of_parameters(pair: BackbonePair) -> pd.DataFrame:
    """One line per parameter of two opened backbones: the first table of :func:`measure_weight_drift`, and FACTS."""
    before, after = pair.before.parameters, pair.after.parameters
    names = list(before) + [name for name in after if name not in before]
    names.sort(key=lambda name: _sort_key(pair.family, name))
    records = [_drift_record(pair, name) for name in counted(names, f"weights of {pair.after.name}")]
    components_present = {record["component"] for record in records}
    expected = [*EMBEDDING_PARAMETERS, *(name for name in pair.family.components if "{K}" not in name), "pooler"]
    records += [_absent_record(name) for name in dict.fromkeys(expected) if name not in components_present]
    table = pd.DataFrame(records, columns=[*columns_of("measure_weight_drift"), *FACTS]).astype({"layer": "Int64"})
    return table.astype(dict.fromkeys(FACTS, bool))


def drift_of_layers(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of :func:`drift_of_parameters` summed up by layer: the second table of :func:`measure_weight_drift`."""
    component = table["component"].where(~table["component"].isin(EMBEDDING_PARAMETERS), EMBEDDINGS)
    records = [_layer_record(str(name), tensors) for name, tensors in table.groupby(component, sort=False)]
    return pd.DataFrame(records, columns=columns_of("measure_weight_drift.layer")).astype({"layer": "Int64"})


def _drift_record(pair: BackbonePair, name: str) -> dict[str, Any]:
    """The record of one weight tensor; where the two backbones cannot be compared in it, with the reason."""
    backbones = [backbone for backbone in (pair.before, pair.after) if name in backbone.parameters]
    shapes = [backbone.parameters[name] for backbone in backbones]
    layer, component = layer_of(pair.family, name)
    is_shared = pair.family.shares_layers and component.startswith("layers.")
    record: dict[str, Any] = {
        "layer": layer,
        "component": component,
        "part": part_of(pair.family, name),
        "parameter": name,
        "shape": "x".join(map(str, shapes[0])),
        "num_values": math.prod(shapes[0]),
        "is_identical": False,
        "reason": "",
        "note": SHARED if is_shared else "",
        "is_shared": is_shared,
        "is_cast": False,
    }
    if len(backbones) < 2:
        side = "after" if backbones[0] is pair.before else "before"
        return record | {"reason": f"not compared: there is none {side}"}
    shape_before, shape_after = shapes
    if shape_before != shape_after:  # of the word table, which may have grown
        rows = f"{shape_before[0]:,} rows in {pair.before.name}, {shape_after[0]:,} in {pair.after.name}"
        return record | {"reason": f"not compared: {rows} (python -m toolkit drift pairs them by word)"}
    return _with_measures(record, *backbones)


def _with_measures(record: dict[str, Any], before: Backbone, after: Backbone) -> dict[str, Any]:
    """The record with norms, relative drift and angle of a tensor that both have, and whether it is a cast."""
    old, new = (np.asarray(backbone.values(record["parameter"])).reshape(-1) for backbone in (before, after))
    is_identical = _is_identical(old, new)
    sums = np.array([(a @ a, b @ b, (b - a) @ (b - a)) for a, b in _blocks(old, new)])
    squared_before, squared_after, squared_change = (math.fsum(column) for column in sums.T)
    norm_before, norm_after, norm_change = map(math.sqrt, (squared_before, squared_after, squared_change))
    record |= {"norm_before": norm_before, "norm_change": norm_change, "is_identical": is_identical}
    if norm_before == 0:
        return record | {"reason": "0 before: it has no share and no angle"}
    record["relative_drift"] = norm_change / norm_before
    if norm_after == 0:
        return record | {"reason": "0 after: it has no angle"}
    # By the chords ‖u - v‖ and ‖u + v‖ of unit vectors (Kahan): near 0 they keep the digits that a cosine loses.
    unit_blocks = ((a / norm_before, b / norm_after) for a, b in _blocks(old, new))
    squared_chords = [((u - v) @ (u - v), (u + v) @ (u + v)) for u, v in unit_blocks]
    chord_between, chord_to_opposite = (math.sqrt(math.fsum(column)) for column in zip(*squared_chords, strict=True))
    record["angle_degrees"] = math.degrees(2 * math.atan2(chord_between, chord_to_opposite))
    for format_name in () if is_identical else HALF_FORMATS:
        if all(np.array_equal(FORMATS[format_name].round(a), b) for a, b in _blocks(old, new)):
            note = _joined(record["note"], f"a cast: every value is the old one rounded to {format_name}")
            return record | {"note": note, "is_cast": True}
    return record


def _blocks(old: np.ndarray, new: np.ndarray) -> Iterator[tuple[Array, Array]]:
    """Both tensors in float64, a part at a time."""
    for start, stop in _ranges(old.size):
        yield old[start:stop].astype(np.float64), new[start:stop].astype(np.float64)


def _ranges(size: int) -> Iterator[tuple[int, int]]:
    """Where each part of ``size`` values starts and stops."""
    start, stop = 0, min(FIRST_VALUES, size)
    while start < size:
        yield start, stop
        start, stop = stop, min(stop + VALUES_AT_ONCE, size)


def _is_identical(old: np.ndarray, new: np.ndarray) -> bool:
    """Whether no bit differs; of two types, whether no value does."""
    if old.dtype != new.dtype:
        return all(np.array_equal(a, b) for a, b in _blocks(old, new))
    bits = f"u{old.dtype.itemsize}"
    ranges = _ranges(old.size)
    return all(np.array_equal(old[start:stop].view(bits), new[start:stop].view(bits)) for start, stop in ranges)


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _absent_record(component: str) -> dict[str, Any]:
    """The record of a component that no weights are of."""
    layer = 0 if component in (*EMBEDDING_PARAMETERS, "projection") else pd.NA
    facts = {"layer": layer, "component": component, "part": component, "num_values": 0}
    return facts | {"reason": NOT_APPLICABLE, "note": ""} | dict.fromkeys(("is_identical", *FACTS), False)


def layer_of(family: ModelFamily, parameter: str) -> tuple[Any, str]:
    """The layer that a parameter stands in (as in the tables of states), and its component."""
    component = component_of(family, parameter)
    if component.startswith("layers."):
        return int(component.removeprefix("layers.")) + 1, component
    return (0 if component in (*EMBEDDING_PARAMETERS, "projection") else pd.NA), component


AFTER_ALL_LAYERS = 10**9


def _sort_key(family: ModelFamily, name: str) -> tuple[int, int, str]:
    """The key that weights are sorted by: layer, part, and a weight before its bias.

    Weights of no layer come after all layers, the pooler's at the very end.
    """
    layer, component = layer_of(family, name)
    order = [*EMBEDDING_PARAMETERS, "projection", *family.layer_parts]
    part = part_of(family, name)
    return (
        AFTER_ALL_LAYERS + (component == "pooler") if layer is pd.NA else layer,
        order.index(part) if part in order else len(order),
        name.replace(".weight", "."),  # "dense." sorts before "dense.bias"
    )


def _layer_record(component: str, tensors: pd.DataFrame) -> dict[str, Any]:
    """The record of one layer: the sums over its tensors, with the reason of any that could not be compared."""
    present = tensors[tensors["num_values"] > 0]
    record = {"layer": tensors["layer"].iloc[0], "component": component, "num_values": int(present["num_values"].sum())}
    if present.empty:
        return record | {"is_identical": False, "reason": NOT_APPLICABLE, "note": ""}
    # Of any that could not be compared there is no norm, and a sum without it would be another quantity.
    norm_before, norm_change = (math.sqrt(math.fsum(present[name] ** 2)) for name in ("norm_before", "norm_change"))
    matrices = present[present["shape"].str.contains("x")]
    reasons = present["reason"][present["norm_change"].isna()]
    shared_note = SHARED if present["is_shared"].any() else ""
    num_casts = int(present["is_cast"].sum())
    return record | {
        "norm_before": norm_before,
        "norm_change": norm_change,
        "relative_drift": norm_change / norm_before if norm_before else math.nan,
        "median_angle_degrees": matrices["angle_degrees"].median(),
        "is_identical": bool(present["is_identical"].all()),
        "reason": _joined(*dict.fromkeys(reasons)),
        "note": _joined(shared_note, f"{num_casts} of {len(present)} tensors are a cast" if num_casts else ""),
    }
