"""Which embedding parameters changed, how far, and of what kind their change is."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.changes import KINDS, NOT_APPLICABLE, measure_changes
from toolkit.analysis.drift import WHOLE, measure_drift
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.reporting.cells import Column, number
from toolkit.reporting.charts import (
    COLOURS,
    Chart,
    bars,
    colour,
    dash,
    data_of,
    log_domain,
    log_ticks,
    pick,
    shape,
    themed,
)
from toolkit.reporting.page import Block, ChartBlock, Section, TableBlock, Tile
from toolkit.reporting.sources import Computed, Makers, Opened, lines_of, source_of
from toolkit.snapshots.store import Source, trajectory_of

HEIGHT = 180
MOST_EPOCHS = 8
"""Columns of the table over time: the first, the last, and some between."""


def makers(opened: Opened) -> Makers:
    source = source_of(opened)
    return {"changes": lambda: measure_changes(source), "drift": lambda: measure_drift(source)}


def plot_change(source: Source) -> Chart:
    """The relative drift of each whole embedding parameter at every snapshot, as an Altair chart.

    ``source`` is a run, its path, a trajectory or imported checkpoints. A bar per parameter where there are two
    snapshots, lines over time where there are more. ValueError where nothing moved.
    """
    chart = change_chart(measure_drift(source, ("norm", "relative")), names_of_snapshots(source))
    if chart is None:
        raise ValueError("nothing moved: there is no change to plot")
    return themed(chart)


def names_of_snapshots(source: Source) -> dict[float, str]:
    """Epoch of a snapshot to the name of its checkpoint; empty where the snapshots have none."""
    found = {float(snapshot.epoch): snapshot.name for snapshot in trajectory_of(source)}
    return found if any(found.values()) else {}


def change_chart(drift: pd.DataFrame, names: Mapping[float, str] | None = None) -> Chart | None:
    """The chart of :func:`plot_change` from the table of :func:`toolkit.measure_drift`; None where nothing moved."""
    lines = whole_lines(drift)
    if not (lines["percent"] > 0).any():
        return None
    if lines["epoch"].nunique() == 1:
        return bars(lines[lines["percent"].notna()], "parameter", "percent", "relative drift (%)", unit=" %")
    return _over_time(lines[lines["percent"].notna()], names or {})


def whole_lines(drift: pd.DataFrame) -> pd.DataFrame:
    """Relative drift of whole parameters after the first snapshot: epoch, parameter, percent; what stayed 0 is 0."""
    own = drift[(drift["stratum"] == WHOLE) & (drift["statistic"] == "value") & (drift["epoch"] > 0)]
    wide = own.pivot(index=["epoch", "parameter"], columns="measure", values="value").reset_index()
    wide["percent"] = np.where(wide["norm"] == 0, 0.0, 100 * wide["relative"])
    wide["place"] = wide["parameter"].map({name: i for i, name in enumerate(EMBEDDING_PARAMETERS)})
    return wide.sort_values(["epoch", "place"])[["epoch", "parameter", "percent"]].reset_index(drop=True)


def _over_time(lines: pd.DataFrame, names: Mapping[float, str]) -> Chart:
    import altair

    series = [name for name in EMBEDDING_PARAMETERS if name in set(lines["parameter"])]
    has_names = bool(names) and lines["epoch"].nunique() <= 6
    shown = lines.assign(when=[names.get(epoch, "") for epoch in lines["epoch"]] if names else lines["epoch"])
    epochs = sorted(lines["epoch"].unique())
    ticks = epochs if len(epochs) <= 10 else altair.Undefined
    x = (
        altair.X("when:N", sort=None, title="checkpoint", axis=altair.Axis(labelAngle=0, labelLimit=150))
        if has_names
        else altair.X(
            "epoch:Q",
            title="epoch",
            scale=altair.Scale(zero=False, nice=False, padding=14),
            axis=altair.Axis(values=ticks, format="~f", grid=False),
        )
    )
    picker = pick("parameter", series)
    ends = log_domain(lines["percent"])
    scale = altair.Scale(type="log", domain=ends, nice=False)
    base = altair.Chart(data_of(shown)).encode(
        x=x,
        color=colour("parameter", series, symbolStrokeWidth=0),
        opacity=picker.opacity,
        tooltip=[
            altair.Tooltip("parameter:N", title="parameter"),
            altair.Tooltip("when:N", title="checkpoint" if names else "epoch"),
            altair.Tooltip("percent:Q", title="relative drift (%)", format=".3g"),
        ],
    )
    y = altair.Y(
        "percent:Q", scale=scale, title="relative drift (%)", axis=altair.Axis(format="~g", values=log_ticks(*ends))
    )
    moved = base.transform_filter("datum.percent > 0")
    marks = {"filled": True, "opacity": 1, "size": 55}
    shapes = shape("parameter", series, symbolStrokeWidth=0)
    layers = [
        moved.mark_line().encode(y=y, strokeDash=dash("parameter", series)),
        moved.mark_point(**marks).encode(y=y, shape=shapes),
    ]
    if (lines["percent"] == 0).any():
        still = base.transform_filter("datum.percent == 0")
        layers.append(still.mark_point(**marks).encode(y=altair.value(HEIGHT), shape=shapes))
    layers[-1] = layers[-1].add_params(*picker.params)
    return altair.layer(*layers).properties(width=560, height=HEIGHT)


def tiles(changes: pd.DataFrame) -> tuple[Tile, ...]:
    """One per embedding parameter that the model has: how far, and of what kind."""
    found = changes[changes["kind"] != NOT_APPLICABLE]
    return tuple(
        Tile(
            title=str(line["parameter"]).replace("_", " "),
            value=_size(line),
            detail=str(line["kind"]),
            colour=COLOURS[EMBEDDING_PARAMETERS.index(line["parameter"])],
        )
        for line in found.to_dict("records")
    )


def _size(line: Mapping[Any, Any]) -> str:
    """The relative drift; what did not change has none to be undefined."""
    if line["num_moved"] == 0:
        return "0 exactly"
    relative = float(line["relative_drift"])
    return "undefined: was 0" if math.isnan(relative) else f"{number(100 * relative)} %"


def farthest(computed: Computed) -> str:
    """The parameter that moved most, beside what its re-initialisation would read, in one sentence."""
    drift = computed.get("drift")
    if drift.empty:
        return ""
    last = lines_of(whole_lines(drift), epoch=computed.epoch)
    if not (last["percent"] > 0).any():
        return "No embedding parameter moved." if not last["percent"].isna().any() else ""
    line = last.loc[last["percent"].idxmax()]
    where = {"parameter": line["parameter"], "stratum": WHOLE, "measure": "relative", "statistic": "reinitialised"}
    null = 100 * float(computed.get("drift", **where)["value"].iloc[0])
    return (
        f"{line['parameter']} changed most: by {number(line['percent'])} % of its length (independent new values: "
        f"{number(null)} %)."
    )


def picture(computed: Computed) -> ChartBlock | None:
    """The picture of the first screen."""
    chart = change_chart(computed.frames["drift"], names_of_snapshots(computed.source))
    if chart is None:
        return None
    last = lines_of(whole_lines(computed.frames["drift"]), epoch=computed.epoch).dropna()
    said = "; ".join(f"{name} {number(value)} %" for _, name, value in last.itertuples(index=False))
    floor = "; marks on the floor are exactly 0" if (last["percent"] == 0).any() else ""
    floor = floor if last.shape[0] and computed.frames["drift"]["epoch"].nunique() > 2 else ""
    caption = f"Relative drift of each whole parameter: the length of its change, in % of its length before{floor}."
    return ChartBlock(name="change", chart=chart, caption=caption, alt=f"Relative drift at the end: {said}.")


def section(computed: Computed) -> Section:
    """What changed, parameter by parameter, and how far at every snapshot."""
    blocks: list[Block] = []
    if len(computed.get("changes")):
        blocks.append(_kinds(computed.frames["changes"]))
    if len(computed.get("drift")):
        blocks.append(_over_epochs(computed))
    return Section(id="changes", title="What changed", blocks=tuple(blocks))


KIND_HOW = "The first that holds: " + "; ".join(f"{name}: {text}" for name, text in KINDS.items()) + "."


def _kinds(changes: pd.DataFrame) -> Block:
    lines = [
        {
            "parameter": line["parameter"],
            "kind": line["kind"],
            "moved": f"{int(line['num_moved']):,} of {int(line['num_rows']):,}",
            "size": float(line["value"]),
            "unit": "" if line["unit"] == "1" else str(line["unit"]),
            "detail": "; ".join(str(line[key]) for key in ("detail", "note") if line[key]),
            "farthest": str(line["farthest"]),
        }
        for line in changes.to_dict("records")
        if line["kind"] != NOT_APPLICABLE
    ]
    columns = {
        "parameter": Column(label="parameter"),
        "kind": Column(label="kind of change", how=KIND_HOW),
        "moved": Column(label="rows moved", how="Of a LayerNorm vector: entries."),
        "size": Column(label="size", how="Of the rows that moved so; relative to their length where no unit is named."),
        "unit": Column(label="unit"),
        "detail": Column(label="detail", how="Σ lr·decay is what weight decay comes to over all steps."),
        "farthest": Column(label="farthest", how="The rows that moved farthest."),
    }
    if not any(line["unit"] for line in lines):
        columns.pop("unit")
    caption = "The kind of each parameter's change: the first that holds, from identical to general."
    return TableBlock(table=pd.DataFrame(lines, columns=list(columns)), caption=caption, columns=columns)


def _over_epochs(computed: Computed) -> Block:
    drift, names = computed.frames["drift"], names_of_snapshots(computed.source)
    lines = whole_lines(drift)
    epochs = list(dict.fromkeys(lines["epoch"]))
    kept = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), MOST_EPOCHS)).round().astype(int))
    wide = lines.pivot(index="parameter", columns="epoch", values="percent").loc[
        list(dict.fromkeys(lines["parameter"]))
    ]
    wide = wide[[epochs[place] for place in kept]]
    null = lines_of(drift, stratum=WHOLE, measure="relative", statistic="reinitialised").groupby("parameter")["value"]
    wide["reinitialised"] = 100 * null.first()
    columns = {"parameter": Column(label="parameter")}
    columns |= {
        f"at_{i}": Column(label=names.get(epoch) or f"epoch {epoch:g}", unit="%")
        for i, epoch in enumerate(wide.columns[:-1])
    }
    columns["reinitialised"] = Column(
        label="re-initialised", unit="%", how="What independent new values of the same spread would read: a yardstick."
    )
    table = wide.reset_index().set_axis(list(columns), axis=1)
    caption = "Relative drift ‖Δ‖ / ‖E⁰‖ of each whole parameter; undefined where it was 0 before and is not now."
    return TableBlock(table=table, caption=caption, columns=columns)
