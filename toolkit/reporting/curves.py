"""Curves over the layers of a model: panels side by side, a line per series and its interval as a band."""

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from toolkit.reporting.charts import (
    REFERENCE,
    WIDTH,
    Chart,
    along,
    altair,
    colour,
    data_of,
    once,
    outline,
    pick,
    shape,
    thickness,
    tips,
)

MOST_TICKS = 8
PANEL_GAP = 20
"""Pixels between panels."""
FIRST_AXIS_WIDTH, AXIS_WIDTH, BARE_AXIS_WIDTH = 64, 34, 4
"""Pixels of a vertical axis: of the first panel of a line, of another, of one without labels."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    subtitle: str = ""
    curves: pd.DataFrame
    """Columns layer, mean, low, high, series; with several lines of a series also ``kind``."""
    y_title: str = ""
    dots: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Columns layer, mean, series, label: single values beside the lines."""
    reference: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Columns layer, mean, label: grey dotted lines that are no series', one per label, named where they end."""
    low: float | None = None
    high: float | None = None
    """Ends of the vertical axis; None: as the values ask for."""
    note: str = ""
    """What stands there where there are no curves."""


def curve_panels(
    panels: Sequence[Panel],
    *,
    columns: int,
    series: Sequence[str],
    kinds: Sequence[str] = (),
    layer_names: Mapping[int, str] | None = None,
    height: int = 130,
    is_shared: bool = False,
    digits: str = ".3f",
    label: str = "Regime",
) -> Chart | None:
    """A grid of panels with one legend, from which a reader picks a series; None where no panel has a curve.

    Parameters
    ----------
    series
        Names in the order of their colours; ``kinds`` likewise of the dashes, the first of which is solid.
    layer_names
        What stands on the axis instead of a number.
    is_shared
        Whether the panels of a line share their vertical axis, which then stands at the first one alone.
    digits
        Format of the values that are shown while a mark is pointed at.
    """
    if all(panel.curves.empty for panel in panels):
        return None
    axis_width = BARE_AXIS_WIDTH if is_shared else AXIS_WIDTH
    width = (WIDTH - FIRST_AXIS_WIDTH - (columns - 1) * (axis_width + PANEL_GAP)) // columns
    picker = pick("series", series, label) if len(series) > 1 else None
    charts = []
    for i, panel in enumerate(panels):
        is_first = i % columns == 0  # of its line
        is_last = i + columns >= len(panels)  # of its column
        start_of_line = i - i % columns
        panels_of_line = panels[start_of_line : start_of_line + columns] if is_shared else [panel]
        low, high = _vertical_ends(panels_of_line) if not panel.curves.empty else (0.0, 1.0)
        has_labels = is_first or not is_shared
        x = altair.X(
            "layer:Q",
            title="layer" if is_last else None,
            axis=_layer_axis(panels_of_line, layer_names or {}),
            scale=altair.Scale(nice=False, padding=9),
        )
        y = altair.Y(
            "mean:Q",
            title=panel.y_title.split("\n") if is_first and panel.y_title else None,
            scale=altair.Scale(domain=[low, high], zero=False, nice=True, clamp=True),
            axis=altair.Axis(labels=has_labels, ticks=has_labels, domain=has_labels, tickCount=5),
        )
        layers = _layers(panel, x, y, series, kinds, layer_names or {}, digits, picker)
        subtitle = {"subtitle": panel.subtitle} if panel.subtitle else {}
        title_lines = panel.title.split("\n")
        title = altair.Title(title_lines if len(title_lines) > 1 else panel.title, limit=width + axis_width, **subtitle)
        charts.append(altair.layer(*layers, width=width, height=height, title=title))
    if len(charts) == 1:
        return charts[0]
    with warnings.catch_warnings():  # one choice for all panels is what is meant
        warnings.filterwarnings("ignore", "Automatically deduplicated selection parameter")
        return altair.concat(*charts, columns=columns, spacing=PANEL_GAP)


def _layers(
    panel: Panel,
    x: Any,
    y: Any,
    series: Sequence[str],
    kinds: Sequence[str],
    layer_names: Mapping[int, str],
    digits: str,
    picker: Any,
) -> list[Chart]:
    """The layers of one panel: bands, lines and marks of its curves, its dots and references; a note without curves."""
    if panel.curves.empty:
        return [once().mark_text(text=textwrap.wrap(panel.note or "not applicable", 24))]
    intervals = list(zip(panel.curves["low"], panel.curves["high"], strict=True))
    curves = panel.curves.assign(
        place=[layer_names.get(int(layer), str(int(layer))) for layer in panel.curves["layer"]],
        low=panel.curves["low"].fillna(panel.curves["mean"]),
        high=panel.curves["high"].fillna(panel.curves["mean"]),
        interval=["none" if low != low else f"{low:{digits}} to {high:{digits}}" for low, high in intervals],
    )
    value = (panel.y_title.replace("\n", " ") or "value", digits)
    kind_tip = {"kind": "what"} if kinds else {}
    tip_fields = tips(series="regime", place="layer", **kind_tip, mean=value, interval="95 % interval")
    hue = colour("series", series) if len(series) > 1 else colour("series", series).legend(None)
    marks = shape("series", series) if len(series) > 1 else altair.value("circle")
    shared_encoding = {"x": x, "color": hue} | ({"opacity": picker.opacity} if picker else {})
    # Without the detail a band or a line would join the values of two kinds.
    by_kind = {"detail": "kind:N"} if "kind" in curves else {}
    names = ["series", *(["kind"] if by_kind else []), "layer", "place", "mean", "low", "high", "interval"]
    base = altair.Chart(data_of(curves, names)).encode(**shared_encoding, **by_kind)
    area = base.mark_area(fillOpacity=0.16, strokeWidth=0.7)
    band = area.encode(y=along(y, "low"), y2=altair.Y2("high:Q"), stroke=outline(hue))
    strokes = {}
    if kinds:
        patterns = altair.Scale(domain=list(kinds), range=[[1, 0], [2, 3], [6, 3]][: len(kinds)])
        strokes = {"strokeDash": altair.StrokeDash("kind:N", scale=patterns, legend=altair.Legend(title=None))}
    layers = [
        band.add_params(*picker.params) if picker else band,
        base.mark_line().encode(y=y, strokeWidth=thickness("series", series), **strokes),
        base.mark_point(filled=True, size=26, opacity=1).encode(y=y, shape=marks, tooltip=tip_fields),
    ]
    if len(panel.dots):
        single = altair.Chart(data_of(panel.dots, ["series", "label", "layer", "mean"]))
        dots = single.mark_point(filled=True, size=9, shape="circle", opacity=1)
        layers.append(dots.encode(y=y, tooltip=tips(series="regime", label="run", mean=value), **shared_encoding))
    return [*(_reference(panel.reference, x, y, digits) if len(panel.reference) else []), *layers]


def _reference(table: pd.DataFrame, x: Any, y: Any, digits: str) -> list[Chart]:
    """A dotted grey line per label of a table, named where it ends."""
    names = ["label", "layer", "mean"]
    lines = altair.Chart(data_of(table, names)).mark_line(color=REFERENCE, strokeDash=[2, 3], strokeWidth=1.4)
    tip_fields = tips(label="reference", mean=("value", digits))
    layers = [lines.encode(x=x, y=y, detail=altair.Detail("label:N"), tooltip=tip_fields)]
    if (table["label"] != "").any():
        last = table.loc[table.groupby("label")["layer"].idxmax()]
        text = altair.Chart(data_of(last, names)).mark_text(align="right", baseline="bottom", dy=-2, fontSize=10)
        layers.append(text.encode(x=x, y=y, text=altair.Text("label:N")))
    return layers


def _vertical_ends(panels: Sequence[Panel]) -> tuple[float, float]:
    """The vertical axis of panels that share it: all means, and their intervals as far as these leave room.

    An interval may reach half the range of the means beyond them: a wider one would flatten all lines.
    """
    tables = [table for panel in panels for table in (panel.curves, panel.dots, panel.reference) if len(table)]
    means = pd.concat([table["mean"] for table in tables]).dropna()
    least, greatest = float(means.min()), float(means.max())
    room = 0.5 * max(greatest - least, 1e-9)
    intervals = pd.concat([panel.curves[["low", "high"]].astype(float) for panel in panels])
    low = max(intervals["low"].min(), least - room)
    high = min(intervals["high"].max(), greatest + room)
    # NaN: no interval is known.
    low = least if math.isnan(low) else min(low, least)
    high = greatest if math.isnan(high) else max(high, greatest)
    # What the first panel that fixes an end says holds for all.
    low = next((panel.low for panel in panels if panel.low is not None), low)
    high = next((panel.high for panel in panels if panel.high is not None), high)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _layer_axis(panels: Sequence[Panel], names: Mapping[int, str]) -> Any:
    """The axis of layers, at most MOST_TICKS of them numbered, some by a name."""
    layers = sorted({int(layer) for panel in panels for layer in panel.curves["layer"]})
    num_numbered = sum(layer > 0 for layer in layers)  # 0 and below are always there
    stride = math.ceil(max(num_numbered, 1) / MOST_TICKS)
    ticks = [layer for layer in layers if layer <= 0 or layer % stride == 0 or len(layers) <= MOST_TICKS]
    label_expression = "datum.label"
    for layer, name in names.items():
        label_expression = f"datum.value == {layer} ? '{name}' : {label_expression}"
    return altair.Axis(values=ticks, labelExpr=label_expression, grid=False, labelOverlap=True, labelFlush=False)
