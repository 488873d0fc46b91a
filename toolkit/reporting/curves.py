"""Curves over the layers of a model: panels side by side, a line per series and its interval as a band."""

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from toolkit.reporting.charts import REFERENCE, WIDTH, Chart, colour, data_of, outline, pick, shape, thickness

MOST_TICKS = 8
GAP, FIRST_AXIS, AXIS, BARE = 20, 64, 34, 4
"""Pixels between panels, and of a vertical axis: of the first panel of a line, of another, of one without labels."""


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
    import altair

    if all(panel.curves.empty for panel in panels):
        return None
    beside = BARE if is_shared else AXIS
    width = (WIDTH - FIRST_AXIS - (columns - 1) * (beside + GAP)) // columns
    picker = pick("series", series, label) if len(series) > 1 else None
    drawn = []
    for i, panel in enumerate(panels):
        line = panels[i - i % columns : i - i % columns + columns]
        made = _panel(
            panel,
            line if is_shared else [panel],
            series,
            kinds,
            layer_names or {},
            digits,
            picker,
            is_first=i % columns == 0,
            is_shared=is_shared,
            is_last=i + columns >= len(panels),
        )
        drawn.append(made.properties(width=width, height=height, title=_title(panel, width + beside)))
    if len(drawn) == 1:
        return drawn[0]
    with warnings.catch_warnings():  # one choice for all panels is what is meant
        warnings.filterwarnings("ignore", "Automatically deduplicated selection parameter")
        return altair.concat(*drawn, columns=columns, spacing=GAP)


def _panel(
    panel: Panel,
    line: Sequence[Panel],
    series: Sequence[str],
    kinds: Sequence[str],
    layer_names: Mapping[int, str],
    digits: str,
    picker: Any,
    *,
    is_first: bool,
    is_shared: bool,
    is_last: bool,
) -> Chart:
    import altair

    if panel.curves.empty:
        text = textwrap.wrap(panel.note or "not applicable", 24)
        return altair.Chart(altair.Data(values=[{}])).mark_text(text=text)
    has_labels = is_first or not is_shared
    own = panel.curves.assign(
        place=[layer_names.get(int(layer), str(int(layer))) for layer in panel.curves["layer"]],
        low=panel.curves["low"].fillna(panel.curves["mean"]),
        high=panel.curves["high"].fillna(panel.curves["mean"]),
        interval=[
            "none" if low != low else f"{low:{digits}} to {high:{digits}}"
            for low, high in zip(panel.curves["low"], panel.curves["high"], strict=True)
        ],
    )
    axis = _layer_axis(line, layer_names)
    x = altair.X("layer:Q", title="layer" if is_last else None, axis=axis, scale=altair.Scale(nice=False, padding=9))
    low, high = _ends(line)
    y = altair.Y(
        "mean:Q",
        title=panel.y_title.split("\n") if is_first and panel.y_title else None,
        scale=altair.Scale(domain=[low, high], zero=False, nice=True, clamp=True),
        axis=altair.Axis(labels=has_labels, ticks=has_labels, domain=has_labels, tickCount=5),
    )
    tips = [altair.Tooltip("series:N", title="regime"), altair.Tooltip("place:N", title="layer")]
    tips += [altair.Tooltip("kind:N", title="what")] if kinds else []
    tips += [
        altair.Tooltip("mean:Q", title=panel.y_title.replace("\n", " ") or "value", format=digits),
        altair.Tooltip("interval:N", title="95 % interval"),
    ]
    shown = {"opacity": picker.opacity} if picker else {}
    hue = colour("series", series) if len(series) > 1 else colour("series", series).legend(None)
    marks = shape("series", series) if len(series) > 1 else altair.value("circle")
    # Without it a band or a line would join the values of two kinds.
    apart = {"detail": "kind:N"} if "kind" in own else {}
    shown_columns = [
        "series",
        *(["kind"] if "kind" in own else []),
        "layer",
        "place",
        "mean",
        "low",
        "high",
        "interval",
    ]
    base = altair.Chart(data_of(own, shown_columns)).encode(x=x, **shown, **apart)
    ends = altair.Y("low:Q", scale=y["scale"], title=y["title"], axis=y["axis"])
    band = base.mark_area(fillOpacity=0.16, strokeWidth=0.7).encode(y=ends, y2="high:Q", color=hue, stroke=outline(hue))
    layers = [band.add_params(*picker.params) if picker else band]
    strokes = {}
    if kinds:
        patterns = altair.Scale(domain=list(kinds), range=[[1, 0], [2, 3], [6, 3]][: len(kinds)])
        strokes = {"strokeDash": altair.StrokeDash("kind:N", scale=patterns, legend=altair.Legend(title=None))}
    layers.append(base.mark_line().encode(y=y, color=hue, strokeWidth=thickness("series", series), **strokes))
    layers.append(base.mark_point(filled=True, size=26, opacity=1).encode(y=y, color=hue, shape=marks, tooltip=tips))
    if len(panel.dots):
        single = altair.Chart(data_of(panel.dots, ["series", "label", "layer", "mean"])).mark_point(
            filled=True, size=9, shape="circle", opacity=1
        )
        seen = [altair.Tooltip("series:N", title="regime"), altair.Tooltip("label:N", title="run")]
        seen.append(altair.Tooltip("mean:Q", title=panel.y_title.replace("\n", " "), format=digits))
        layers.append(single.encode(x=x, y=y, color=hue, tooltip=seen, **shown))
    if len(panel.reference):
        layers = [*_reference(panel.reference, x, y, digits), *layers]
    return altair.layer(*layers)


def _title(panel: Panel, limit: int) -> Any:
    import altair

    return altair.Title(panel.title, limit=limit, **({"subtitle": panel.subtitle} if panel.subtitle else {}))


def _reference(table: pd.DataFrame, x: Any, y: Any, digits: str) -> list[Chart]:
    import altair

    line = altair.Chart(data_of(table, ["label", "layer", "mean"])).mark_line(
        color=REFERENCE, strokeDash=[2, 3], strokeWidth=1.4
    )
    tips = [altair.Tooltip("label:N", title="reference"), altair.Tooltip("mean:Q", title="value", format=digits)]
    drawn = [line.encode(x=x, y=y, detail="label:N", tooltip=tips)]
    if (table["label"] != "").any():
        last = table.loc[table.groupby("label")["layer"].idxmax()]
        text = altair.Chart(data_of(last, ["label", "layer", "mean"])).mark_text(
            align="right", baseline="bottom", dy=-2, fontSize=10
        )
        drawn.append(text.encode(x=x, y=y, text="label:N"))
    return drawn


def _ends(line: Sequence[Panel]) -> tuple[float, float]:
    """The vertical axis of panels that share it: all means, and their intervals as far as these leave room for them."""
    parts = [table for panel in line for table in (panel.curves, panel.dots, panel.reference) if len(table)]
    values = pd.concat([part["mean"] for part in parts]).dropna()
    least, most = float(values.min()), float(values.max())
    room = 0.5 * max(most - least, 1e-9)
    bounds = pd.concat([panel.curves[["low", "high"]].astype(float) for panel in line])
    low, high = max(bounds["low"].min(), least - room), min(bounds["high"].max(), most + room)
    low, high = (least if low != low else min(low, least)), (most if high != high else max(high, most))
    fixed = [[end for panel in line if (end := getattr(panel, side)) is not None] for side in ("low", "high")]
    low, high = fixed[0][0] if fixed[0] else low, fixed[1][0] if fixed[1] else high
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _layer_axis(line: Sequence[Panel], names: Mapping[int, str]) -> Any:
    import altair

    layers = sorted({int(layer) for panel in line for layer in panel.curves["layer"]})
    every = -(-max(len([layer for layer in layers if layer > 0]), 1) // MOST_TICKS)
    ticks = [layer for layer in layers if layer <= 0 or layer % every == 0 or len(layers) <= MOST_TICKS]
    shown = "datum.label"
    for layer, name in names.items():
        shown = f"datum.value == {layer} ? '{name}' : {shown}"
    return altair.Axis(values=ticks, labelExpr=shown, grid=False, labelOverlap=True, labelFlush=False)
