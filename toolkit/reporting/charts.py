"""One look for every chart, and the files and page elements that a chart becomes."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from toolkit.snapshots import files

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B8629A", "#767B84", "#A8741A", "#1B8FA8", "#8A6BBF")
"""Okabe & Ito 2008 as far as they have a contrast of 3:1 with both a white and a dark page, and four more that do."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [1, 3], [10, 4], [6, 2, 1, 2])
REFERENCE = "#767B84"
"""The colour of a line that is no run's: a null, a yardstick, zero."""
WIDTH = 690
"""Pixels: 7.2 inches at 96 a inch, the text width of a paper in one column."""
COLUMN = 336
"""Pixels: 3.5 inches, one column of a paper in two columns."""
KINDS = ("png", "svg", "pdf")
SCALE = 2.0
"""Pixels of a PNG file for one of the chart."""

CONFIG: Mapping[str, Any] = {
    "font": "Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif",
    "background": "white",
    "padding": 4,
    "aria": False,  # a chart has one label, its description: hundreds of labelled marks are no help to anybody
    "view": {"stroke": None, "continuousWidth": 240, "continuousHeight": 150},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelColor": "#20242b",
        "titleColor": "#20242b",
        "domainColor": "#59616d",
        "tickColor": "#59616d",
        "gridColor": "#e6e2da",
        "labelLimit": 260,
        "titlePadding": 6,
    },
    "legend": {
        "orient": "bottom",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelColor": "#20242b",
        "titleColor": "#20242b",
        "labelLimit": 320,
        "columns": 3,
        "symbolSize": 70,
        "symbolStrokeWidth": 1.6,
    },
    "title": {
        "fontSize": 12,
        "fontWeight": "bold",
        "color": "#20242b",
        "anchor": "start",
        "offset": 8,
        "subtitleFontSize": 11,
        "subtitleColor": "#59616d",
        "subtitlePadding": 4,
    },
    "header": {"labelFontSize": 12, "labelFontWeight": "bold", "labelColor": "#20242b", "title": None},
    "text": {"fontSize": 11, "color": "#20242b"},
    "line": {"strokeWidth": 1.8},
    "point": {"size": 45, "strokeWidth": 1.6, "filled": False},
    "rule": {"strokeWidth": 1.4},
    "concat": {"spacing": 22},
    "facet": {"spacing": 22},
    "range": {"category": list(COLOURS), "symbol": list(SHAPES)},
}
"""The theme, as a Vega-Lite config: size, colours and fonts, once for page, notebook and paper."""

Chart: TypeAlias = Any
"""An Altair chart of any kind: plain, layered, faceted or concatenated."""
Charts: TypeAlias = dict[str, Chart]
"""Name of a chart, unique in its report, to the chart."""


def data_of(table: pd.DataFrame, columns: Sequence[str] | None = None) -> Any:
    """The lines of a table as inline data: numbers to five significant digits, what is undefined as null."""
    import altair

    own = table if columns is None else table[list(columns)]
    parts = {str(name): [_plain(value) for value in own[name]] for name in own}
    lines = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    return altair.Data(values=lines)


def _plain(value: Any) -> Any:
    """A value that JSON has."""
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return str(value)


@dataclass(frozen=True)
class Picker:
    """What lets a reader pick one of several series, by a click in the legend or from a list by keyboard."""

    params: tuple[Any, ...]
    """For ``chart.add_params(*picker.params)``, once in a chart."""
    opacity: Any
    """For ``encode(opacity=picker.opacity)`` in every layer that the choice dims."""


def pick(field: str, values: Iterable[str], label: str | None = None) -> Picker:
    """Dim every series but the picked one; ``field`` is the column that names them, ``label`` the name of the list."""
    import altair

    names = [str(value) for value in values]
    slug = "".join(character if character.isalnum() else "_" for character in field)
    legend = altair.selection_point(name=f"legend_{slug}", fields=[field], bind="legend")
    every = "all"
    choice = altair.param(
        name=f"chosen_{slug}",
        value=every,
        bind=altair.binding_select(options=[every, *names], name=f"{label or field.replace('_', ' ')} "),
    )
    shown = f"chosen_{slug} == '{every}' || chosen_{slug} == datum[{json.dumps(field)}]"
    opacity = altair.when(legend & altair.expr(shown)).then(altair.value(1.0)).otherwise(altair.value(0.12))
    return Picker((legend, choice), opacity)


def colour(field: str, values: Iterable[str], title: str | None = None, **legend: Any) -> Any:
    """Colour by series, in the order of ``values``; equal series have equal colours in every chart of a report."""
    import altair

    names = [str(value) for value in values]
    shown = altair.Legend(title=title, **legend)
    return altair.Color(f"{field}:N", scale=altair.Scale(domain=names, range=_cycled(COLOURS, names)), legend=shown)


def shape(field: str, values: Iterable[str], title: str | None = None, **legend: Any) -> Any:
    """Shape by series, so that colour is never all that tells them; the same legend as :func:`colour`."""
    import altair

    names = [str(value) for value in values]
    shown = altair.Legend(title=title, **legend)
    return altair.Shape(f"{field}:N", scale=altair.Scale(domain=names, range=_cycled(SHAPES, names)), legend=shown)


def dash(field: str, values: Iterable[str]) -> Any:
    """Line pattern by series; beside :func:`colour` it needs no legend of its own."""
    import altair

    names = [str(value) for value in values]
    scale = altair.Scale(domain=names, range=_cycled(DASHES, names))
    return altair.StrokeDash(f"{field}:N", scale=scale, legend=None)


def _cycled(known: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [known[i % len(known)] for i in range(len(names))]


def spec_of(chart: Chart) -> dict[str, Any]:
    """The Vega-Lite specification with the theme; what a chart sets itself goes before it."""
    spec: dict[str, Any] = chart.to_dict()
    own = spec.get("config", {})
    own = {} if own == {"view": {"continuousWidth": 300, "continuousHeight": 300}} else own  # Altair's default
    merged = {
        key: ({**value, **own[key]} if isinstance(own.get(key), dict) else own.get(key, value))
        if isinstance(value, dict)
        else own.get(key, value)
        for key, value in CONFIG.items()
    }
    return {**spec, "config": {**own, **merged}}


def image_of(chart: Chart, kind: str) -> bytes:
    """The bytes of a chart as one of KINDS: offline, without a browser, equal for equal charts."""
    import vl_convert

    svg = _svg_of(json.dumps(_without_inputs(spec_of(chart))))
    if kind == "png":
        return bytes(vl_convert.svg_to_png(svg, scale=SCALE))
    if kind == "pdf":
        return bytes(vl_convert.svg_to_pdf(svg, scale=0.75))  # a pixel is .75 points
    return svg.encode()


@lru_cache(maxsize=64)
def _svg_of(spec: str) -> str:
    """Laying a chart out takes most of the time, and every kind starts from it."""
    import vl_convert

    return _shared_shapes(str(vl_convert.vegalite_to_svg(spec)))


_MARK = re.compile(r'<path transform="translate\(([-\d.]+),([-\d.]+)\)" (d="[^"]*"(?: [-\w]+="[^"]*")*)/>')


def _shared_shapes(svg: str) -> str:
    """With a shape that stands at hundreds of places written once: a fifth of the bytes of a scatter."""
    counts = Counter(match[3] for match in _MARK.finditer(svg))
    names = {shape: f"shape{i}" for i, (shape, count) in enumerate(counts.items()) if count > 200}
    if not names:
        return svg

    def placed(match: re.Match[str]) -> str:
        if match[3] not in names:
            return match[0]
        return f'<use href="#{names[match[3]]}" x="{float(match[1]):.1f}" y="{float(match[2]):.1f}"/>'

    shapes = "".join(f'<path id="{name}" {shape}/>' for shape, name in names.items())
    start = svg.index(">") + 1
    return f"{svg[:start]}<defs>{shapes}</defs>{_MARK.sub(placed, svg[start:])}"


def _without_inputs(spec: dict[str, Any]) -> dict[str, Any]:
    """Without lists and sliders, which nobody can use on paper."""
    return spec | {
        "params": [
            {key: value for key, value in param.items() if key != "bind" or value == "legend"}
            for param in spec.get("params", [])
        ]
    }


def draw(makers: Mapping[str, Callable[[], Chart | None]]) -> Charts:
    """Make each chart; one that is None does not apply and is left out."""
    made = {name: make() for name, make in makers.items()}
    return {name: chart for name, chart in made.items() if chart is not None}


def write_charts(folder: Path, charts: Mapping[str, Chart], prefix: str = "", kinds: Collection[str] = KINDS) -> None:
    """Write every chart as ``<prefix><name>.<kind>``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in charts.items():
        for kind in kinds:
            files.write_bytes(folder / f"{prefix}{name}.{kind}", image_of(chart, kind))
