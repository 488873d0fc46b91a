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

BLOCK_VALUES, FIRST_VALUES = 1 << 20, 4096
"""Values that are read at a time, and at first: most that is looked for is contradicted at once."""

NONE = "not applicable: the model has none"
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
    names.sort(key=lambda name: _place(pair.family, name))
    lines = [_line(pair, name) for name in counted(names, f"weights of {pair.after.name}")]
    present = {line["component"] for line in lines}
    expected = [*EMBEDDING_PARAMETERS, *(name for name in pair.family.components if "{K}" not in name), "pooler"]
    lines += [_absent(name) for name in dict.fromkeys(expected) if name not in present]
    table = pd.DataFrame(lines, columns=[*columns_of("measure_weight_drift"), *FACTS]).astype({"layer": "Int64"})
    return table.astype(dict.fromkeys(FACTS, bool))


def drift_of_layers(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of :func:`drift_of_parameters` put together by layer: its second table."""
    component = table["component"].where(~table["component"].isin(EMBEDDING_PARAMETERS), EMBEDDINGS)
    lines = [_layer_line(str(name), own) for name, own in table.groupby(component, sort=False)]
    return pd.DataFrame(lines, columns=columns_of("measure_weight_drift.layer")).astype({"layer": "Int64"})


def _line(pair: BackbonePair, name: str) -> dict[str, Any]:
    sides = [side for side in (pair.before, pair.after) if name in side.parameters]
    shapes = [side.parameters[name] for side in sides]
    layer, component = layer_of(pair.family, name)
    is_shared = pair.family.shares_layers and component.startswith("layers.")
    line: dict[str, Any] = {
        "layer": layer,
        "component": component,
        "part": part_of(pair.family, name),
        "parameter": name,
        "shape": "x".join(map(str, shapes[0])),
        "num_values": math.prod(shapes[0]),
        "stored_before": pair.before.stored(name) if name in pair.before.parameters else None,
        "stored_after": pair.after.stored(name) if name in pair.after.parameters else None,
        "is_identical": False,
        "reason": "",
        "note": SHARED if is_shared else "",
        "is_shared": is_shared,
        "is_cast": False,
    }
    if len(sides) < 2:
        return line | {"reason": f"not compared: there is none {'after' if sides[0] is pair.before else 'before'}"}
    if shapes[0] != shapes[1]:  # of the word table, which may have grown
        rows = f"{shapes[0][0]:,} rows in {pair.before.name}, {shapes[1][0]:,} in {pair.after.name}"
        return line | {"reason": f"not compared: {rows} (python -m toolkit drift pairs them by word)"}
    return _measured(line, *sides)


def _measured(line: dict[str, Any], before: Backbone, after: Backbone) -> dict[str, Any]:
    old, new = (np.asarray(side.values(line["parameter"])).reshape(-1) for side in (before, after))
    is_identical = _is_identical(old, new)
    sums = np.array([(a @ a, b @ b, (b - a) @ (b - a)) for a, b in _blocks(old, new)])
    squared_before, squared_after, squared_change = (math.fsum(column) for column in sums.T)
    norm_before, norm_after, norm_change = map(math.sqrt, (squared_before, squared_after, squared_change))
    line |= {"norm_before": norm_before, "norm_change": norm_change, "is_identical": is_identical}
    if norm_before == 0:
        return line | {"reason": "0 before: it has no share and no angle"}
    line["relative_drift"] = norm_change / norm_before
    if norm_after == 0:
        return line | {"reason": "0 after: it has no angle"}
    chords = [
        ((u - v) @ (u - v), (u + v) @ (u + v))
        for u, v in ((a / norm_before, b / norm_after) for a, b in _blocks(old, new))
    ]
    apart, together = (math.sqrt(math.fsum(column)) for column in zip(*chords, strict=True))
    line["angle_degrees"] = math.degrees(2 * math.atan2(apart, together))
    for kind in () if is_identical else HALF_FORMATS:
        if all(np.array_equal(FORMATS[kind].round(a), b) for a, b in _blocks(old, new)):
            note = _joined(line["note"], f"a cast: every value is the old one rounded to {kind}")
            return line | {"note": note, "is_cast": True}
    return line


def _blocks(old: np.ndarray, new: np.ndarray) -> Iterator[tuple[Array, Array]]:
    """Both tensors in float64, a part at a time."""
    for start, stop in _ranges(old.size):
        yield old[start:stop].astype(np.float64), new[start:stop].astype(np.float64)


def _ranges(size: int) -> Iterator[tuple[int, int]]:
    start, stop = 0, min(FIRST_VALUES, size)
    while start < size:
        yield start, stop
        start, stop = stop, min(stop + BLOCK_VALUES, size)


def _is_identical(old: np.ndarray, new: np.ndarray) -> bool:
    """Whether no bit differs; of two types, whether no value does."""
    if old.dtype != new.dtype:
        return all(np.array_equal(a, b) for a, b in _blocks(old, new))
    bits = f"u{old.dtype.itemsize}"
    return all(np.array_equal(old[i:j].view(bits), new[i:j].view(bits)) for i, j in _ranges(old.size))


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _absent(component: str) -> dict[str, Any]:
    layer = 0 if component in (*EMBEDDING_PARAMETERS, "projection") else pd.NA
    facts = {"layer": layer, "component": component, "part": component, "num_values": 0}
    return facts | {"reason": NONE, "note": ""} | dict.fromkeys(("is_identical", *FACTS), False)


def layer_of(family: ModelFamily, parameter: str) -> tuple[Any, str]:
    """The layer that a parameter stands in (as in the tables of states), and its component."""
    component = component_of(family, parameter)
    if component.startswith("layers."):
        return int(component.removeprefix("layers.")) + 1, component
    return (0 if component in (*EMBEDDING_PARAMETERS, "projection") else pd.NA), component


def _place(family: ModelFamily, name: str) -> tuple[int, int, str]:
    """By layer, what belongs to none last; embedding parameters and parts in their order, a weight before its bias."""
    layer, component = layer_of(family, name)
    order = [*EMBEDDING_PARAMETERS, "projection", *family.layer_parts]
    part = part_of(family, name)
    return (
        10**9 + (component == "pooler") if layer is pd.NA else layer,
        order.index(part) if part in order else len(order),
        name.replace(".weight", "."),
    )


def _layer_line(component: str, own: pd.DataFrame) -> dict[str, Any]:
    there = own[own["num_values"] > 0]
    line = {"layer": own["layer"].iloc[0], "component": component, "num_values": int(there["num_values"].sum())}
    if there.empty:
        return line | {"is_identical": False, "reason": NONE, "note": ""}
    # Of any that could not be compared there is no norm, and a sum without it would be another quantity.
    before, change = (math.sqrt(math.fsum(there[name] ** 2)) for name in ("norm_before", "norm_change"))
    matrices = there[there["shape"].str.contains("x")]
    reasons = there["reason"][there["norm_change"].isna()]
    shared, casts = SHARED if there["is_shared"].any() else "", int(there["is_cast"].sum())
    return line | {
        "norm_before": before,
        "norm_change": change,
        "relative_drift": change / before if before else math.nan,
        "median_angle_degrees": matrices["angle_degrees"].median(),
        "is_identical": bool(there["is_identical"].all()),
        "reason": _joined(*dict.fromkeys(reasons)),
        "note": _joined(shared, f"{casts} of {len(there)} tensors are a cast" if casts else ""),
    }
