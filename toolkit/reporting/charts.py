"""One look for every chart, and the files and page elements that a chart becomes."""

import json
import math
import re
import textwrap
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from toolkit.comparison.arms import SPOKEN
from toolkit.naming import visible
from toolkit.snapshots import files

_REFERENCE = re.compile(rb"(\d+) 0 R")
_RESOURCES = re.compile(rb"(?:^ +/[A-Za-z]+\d+ \d+ 0 R\n){2,}", re.MULTILINE)


def in_order(pdf: bytes) -> bytes:
    """The same file with its objects numbered in the order in which the page reaches them.

    Files of more than plain objects behind a plain table of their places (as other writers make them) stay as they are.
    """
    start = re.search(rb"startxref\s+(\d+)\s+%%EOF\s*$", pdf)
    if start is None or not pdf[int(start[1]) :].startswith(b"xref"):
        return pdf
    table, _, trailer = pdf[int(start[1]) : start.start()].partition(b"trailer")
    places = {
        number: int(line[:10])
        for number, line in enumerate(re.findall(rb"^\d{10} \d{5} [nf]", table, re.MULTILINE))
        if line.endswith(b"n")
    }
    ends = dict(zip(sorted(places.values()), [*sorted(places.values())[1:], int(start[1])], strict=True))
    bodies = {number: pdf[place : ends[place]].partition(b"obj")[2] for number, place in places.items()}
    parts = {number: _sorted_resources(body) for number, body in bodies.items()}
    order: dict[int, int] = {}
    waiting = [int(number) for number in _REFERENCE.findall(trailer)][::-1]
    while waiting:
        number = waiting.pop()
        if number not in order:
            order[number] = len(order) + 1
            waiting += [int(found) for found in _REFERENCE.findall(parts[number][0])][::-1]

    def renamed(text: bytes) -> bytes:
        return _REFERENCE.sub(lambda found: b"%d 0 R" % order[int(found[1])], text)

    made = pdf[: min(places.values())]
    rows = [b"0000000000 65535 f\r\n"]
    for number, new in order.items():
        rows.append(b"%010d 00000 n\r\n" % len(made))
        made += b"%d 0 obj" % new + renamed(parts[number][0]) + parts[number][1]
    count = b"%d" % len(rows)
    trailer = renamed(re.sub(rb"/Size \d+", b"/Size " + count, trailer))
    return b"%sxref\n0 %s\n%strailer%sstartxref\n%d\n%%%%EOF" % (made, count, b"".join(rows), trailer, len(made))


def _sorted_resources(body: bytes) -> tuple[bytes, bytes]:
    """What an object says of itself, its resources by their names, and its stream, which refers to them by these."""
    head, stream, rest = body.partition(b"stream\n")
    return _RESOURCES.sub(lambda found: b"".join(sorted(found[0].splitlines(keepends=True))), head), stream + rest


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
    "mark": {"aria": False},
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
        "labelFlush": False,  # or the label at an end is pushed towards its neighbour, off its tick
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
        "frame": "group",
        "offset": 8,
        "subtitleFontSize": 11,
        "subtitleColor": "#59616d",
        "subtitlePadding": 4,
    },
    "header": {"labelFontSize": 12, "labelFontWeight": "bold", "labelColor": "#20242b", "title": None},
    "text": {"fontSize": 11, "color": "#20242b"},
    "line": {"strokeWidth": 1.8},
    "point": {"size": 45, "strokeWidth": 1.6, "filled": False, "opacity": 1},
    "tick": {"opacity": 1},
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
    # No list: Altair copies every value of one again whenever a chart is layered, concatenated or themed.
    lines = tuple(dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True))
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
    return visible(str(value))


@dataclass(frozen=True)
class Picker:
    """What lets a reader pick one of several series, by a click in the legend or from a list by keyboard."""

    params: tuple[Any, ...]
    """For ``layer.add_params(*picker.params)``: of the first layer with the colour, or its legend hears no click."""
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
    both = altair.PredicateComposition({"and": [{"param": legend.name}, shown]})
    opacity = altair.when(both).then(altair.value(1.0)).otherwise(altair.value(0.12))
    return Picker((legend, choice), opacity)


def colour(field: str, values: Iterable[str], /, title: str | None = None, **legend: Any) -> Any:
    """Colour by series, in the order of ``values``; equal series have equal colours in every chart of a report."""
    import altair

    names = [str(value) for value in values]
    scale = altair.Scale(domain=names, range=_cycled(COLOURS, names))
    return altair.Color(f"{field}:N", scale=scale, legend=_legend(names, title, legend))


def shape(field: str, values: Iterable[str], /, title: str | None = None, **legend: Any) -> Any:
    """Shape by series, so that colour is never all that tells them; the same legend as :func:`colour`."""
    import altair

    names = [str(value) for value in values]
    scale = altair.Scale(domain=names, range=_shifted(SHAPES, names))
    return altair.Shape(f"{field}:N", scale=scale, legend=_legend(names, title, legend))


def _legend(names: Sequence[str], title: str | None, options: Mapping[str, Any]) -> Any:
    """In as many columns as names of this length have room for."""
    import altair

    columns = next((number for number, letters in ((3, 32), (2, 50)) if max(map(len, names), default=0) <= letters), 1)
    return altair.Legend(title=title, **({"columns": columns, "labelLimit": WIDTH // columns - 40} | dict(options)))


def dash(field: str, values: Iterable[str]) -> Any:
    """Line pattern by series; beside :func:`colour` it needs no legend of its own."""
    import altair

    names = [str(value) for value in values]
    scale = altair.Scale(domain=names, range=_shifted(DASHES, names))
    return altair.StrokeDash(f"{field}:N", scale=scale, legend=None)


def thickness(field: str, values: Iterable[str]) -> Any:
    """Line width by series, each thinner than the one that it may cover, which is then seen on both sides of it."""
    import altair

    names = [str(value) for value in values]
    widths = [altair.value(float(f"{width:.3g}")) for width in np.linspace(3.6, 1.4, len(names))]
    if len(names) < 2:
        return altair.Undefined
    chosen: Any = altair  # not by a scale, which the legend would show
    for name, width in zip(names[:-1], widths[:-1], strict=True):
        chosen = chosen.when(f"datum[{json.dumps(field)}] == {json.dumps(name)}").then(width)
    return chosen.otherwise(widths[-1])


def outline(colour: Any) -> Any:
    """The colour of a filled mark for its outline: what is filled lightly has contrast by that alone."""
    import altair

    if not isinstance(colour, altair.Color):
        return colour
    return altair.Stroke(colour["shorthand"], scale=colour["scale"], legend=None)


NO_REGIME = "this run"
MUCH_LONGER = 2
"""Where one regime has more than this many times the epochs of another, time is the share of each one's own epochs."""


def regimes_of(table: pd.DataFrame) -> "pd.Series[str]":
    """What to call the series of each line: by ``base``, ``condition`` or ``regime`` (``none``, ``backbone`` ...)."""
    for name in ("base", "condition", "regime"):
        if name in table:
            if name != "regime":
                return table[name].astype(str)
            # A label as it is in the tables of a run: what is frozen.
            return table[name].astype(str).map(lambda text: SPOKEN.get(text, f"{text} frozen"))
    return pd.Series(NO_REGIME, index=table.index, dtype=object)


def ordered(found: Iterable[str], order: Iterable[str] | None) -> list[str]:
    """Distinct names: those of ``order`` first, so that each has its colour in every chart, then whatever else."""
    return list(dict.fromkeys([*(order or ()), *found]))


def over_seeds(table: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Mean, least and greatest of ``value`` over the lines of each ``by``: mean, low, high, num_seeds, spread (text).

    Lines whose value is undefined count nowhere; a mean of equal values is that value.
    """
    defined = table[table[value].notna()]
    found = defined.groupby(list(by), sort=False)[value].agg(["mean", "min", "max", "size"]).reset_index()
    found = found.rename(columns={"min": "low", "max": "high", "size": "num_seeds"})
    found["mean"] = found["mean"].clip(found["low"], found["high"])  # a rounding may put it beside them
    found["spread"] = [
        "one seed" if n == 1 else f"{low:.4g} to {high:.4g} ({n} seeds)"
        for low, high, n in zip(found["low"], found["high"], found["num_seeds"], strict=True)
    ]
    return found


def padded(values: Iterable[float], share: float = 0.06, most: float = math.inf) -> Any:
    """The scale of an axis that holds every value, with room at both ends; no tick stands above ``most``."""
    import altair

    ends = [float(value) for value in values if value == value] or [0.0, 1.0]
    pad = share * (max(ends) - min(ends)) or 0.03 * abs(ends[0]) or 0.5
    low, high = min(ends) - pad, max(ends) + pad
    if max(ends) <= most < high:
        high = most + min(pad, share * (most - low))
    return altair.Scale(domain=[low, high], nice=False)


def log_ticks(low: float, high: float) -> list[float]:
    """Two to seven round values between the ends of a logarithmic axis."""
    decades = math.log10(high / low)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if decades < 0.8:  # hardly logarithmic: no power of ten may be in it
        step = 10.0 ** math.floor(math.log10((high - low) / 3))
        step *= 5 if high - low > 12 * step else 2 if high - low > 5 * step else 1
        return [float(f"{i * step:.6g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    steps = (1, 2, 5) if decades < 1.6 else (1, 3) if decades < 2.6 else (1,)
    stride = max(1, math.ceil(decades / 6)) if steps == (1,) else 1
    found = [float(f"{step}e{power}") for power in powers for step in steps if power % stride == 0]
    return [value for value in found if low <= value <= high]


def log_axis(
    values: Iterable[float], title: str | Sequence[str] = "", num_floors: int = 0, height: float = 150
) -> "LogAxis":
    """A logarithmic axis that holds every value above 0, and ``num_floors`` places below it for what is exactly 0."""
    positive = [float(value) for value in values if value > 0]
    low, high = (min(positive) / 1.35, max(positive) * 1.35) if positive else (0.1, 10.0)
    room = FLOOR * (num_floors + 1) if num_floors else 0.0
    per_pixel = math.log10(high / low) / (height - room)
    floors = tuple(low / 10 ** (per_pixel * FLOOR * (i + 0.8)) for i in range(num_floors))
    return LogAxis(low, high, low / 10 ** (per_pixel * room), floors, title)


FLOOR = 10.0
"""Pixels of a place for exact zeros."""


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis whose lower end is kept for what is exactly 0 and has no place on it."""

    low: float
    """Where the axis proper begins."""
    high: float
    bottom: float
    floors: tuple[float, ...]
    """Where to draw what is exactly 0, a place per series, from the axis down."""
    title: str | Sequence[str]

    def scale(self) -> Any:
        import altair

        return altair.Scale(type="log", domain=[self.bottom, self.high], nice=False)

    def axis(self, **options: Any) -> Any:
        """With ``exactly 0`` beside the places below it."""
        import altair

        ticks = log_ticks(self.low, self.high)
        floor = [math.sqrt(self.low * self.bottom)] if self.floors else []
        named = f"datum.value < {self.low} ? 'exactly 0' : datum.label"
        look = {"format": "~g", "grid": True, "labelOverlap": "greedy", "labelSeparation": 4}
        look |= {"labelExpr": named} if floor else {}
        return altair.Axis(values=[*floor, *ticks], **(look | options))

    def band(self, **options: Any) -> Any:
        """The ground under the places for zeros of a vertical axis; ``options`` are those of :meth:`axis`."""
        import altair

        ground = altair.Chart(altair.Data(values=[{}])).mark_rect(color=REFERENCE, fillOpacity=0.16)
        return ground.encode(
            y=altair.YDatum(self.bottom, scale=self.scale(), axis=self.axis(**options)), y2=altair.YDatum(self.low)
        )


def in_time(lines: pd.DataFrame, names: Sequence[str]) -> tuple[pd.DataFrame, Any, dict[str, Any]]:
    """The lines with ``time``, its axis, and what the legend says besides; ``run`` and ``epoch`` must be there.

    A few epochs beside dozens would all be one spot at the start of an axis: each regime then has its own time.
    """
    import altair

    last = lines.groupby("run")["epoch"].max()
    longest = lines.groupby("regime")["epoch"].max()
    if longest.max() <= MUCH_LONGER * longest.min():
        epochs = sorted(lines["epoch"].unique())
        values = epochs if len(epochs) <= 6 and np.diff(epochs, prepend=0).min() >= 0.1 * epochs[-1] else None
        marks = {"values": values} if values else {"tickCount": 5, "tickMinStep": 1 if epochs[-1] >= 3 else 0}
        scale = altair.Scale(zero=False, nice=False, padding=14)
        axis = altair.Axis(format="~f", grid=False, **marks)
        return lines.assign(time=lines["epoch"]), altair.X("time:Q", title="epoch", scale=scale, axis=axis), {}
    own = lines["run"].map(last)
    labels = {name: f"{name} ({longest[name]:g} epochs)" for name in names}
    said = " ".join(f"datum.label == {json.dumps(name)} ? {json.dumps(label)} :" for name, label in labels.items())
    scale = altair.Scale(domain=[0, 100], padding=10)
    x = altair.X(
        "time:Q", title="of the regime's epochs (%)", scale=scale, axis=altair.Axis(values=[0, 50, 100], grid=False)
    )
    return lines.assign(time=100 * lines["epoch"] / own), x, {"labelExpr": f"{said} datum.label"}


def look_of(
    names: Sequence[str], shown: Sequence[str], picker: Picker | None, field: str = "regime", **legend: Any
) -> dict[str, Any]:
    """Colour, shape and choice of a regime, for points and for what has no shape."""
    import altair

    legend = {"values": list(shown)} | legend
    if list(shown) == [NO_REGIME]:
        return {"bars": {"color": altair.value(COLOURS[0])}, "points": {"color": altair.value(COLOURS[0])}}
    common = {"color": colour(field, names, **legend)} | ({"opacity": picker.opacity} if picker else {})
    return {
        "bars": common,
        "points": common | {"shape": shape(field, names, **legend)},
    }


def picked(names: Sequence[str], shown: Sequence[str], **legend: Any) -> tuple[Picker | None, dict[str, Any]]:
    """What lets a reader pick one of the regimes that are shown, where there are several; and their look."""
    picker = pick("regime", shown) if len(shown) > 1 else None
    return picker, look_of(names, shown, picker, **legend)


def wrap(text: str, width: int) -> list[str]:
    """Text in lines of at most ``width`` letters, for a title; what is in brackets stays together where it can."""
    if len(text) > width and " (" in text:
        before, after = text.split(" (", 1)
        return [*textwrap.wrap(before, width), *textwrap.wrap(f"({after}", width)]
    return textwrap.wrap(text, width) or [""]


def tips(**titles: str | tuple[str, str]) -> list[Any]:
    """What hovering shows: column to its title, or to title and number format (``.3g``)."""
    import altair

    return [
        altair.Tooltip(f"{name}:N", title=said)
        if isinstance(said, str)
        else altair.Tooltip(f"{name}:Q", title=said[0], format=said[1])
        for name, said in titles.items()
    ]


def panels(charts: Sequence[Chart], columns: int = 3, picker: Picker | None = None) -> Chart:
    """Panels in lines of ``columns`` with one legend, and what lets a reader pick; one alone as it is; themed."""
    import altair

    first, *others = charts
    if picker:
        first = _listening(first, picker)
    if not others:
        return themed(first)
    grid = altair.concat(first, *others, columns=columns)
    return themed(grid.resolve_scale(color="shared", shape="shared", strokeDash="shared"))


def _listening(chart: Chart, picker: Picker) -> Chart:
    """The chart with what a reader picks by: in its first layer with a legend: Vega-Lite hears clicks there only."""
    import altair

    if not isinstance(chart, altair.LayerChart):
        return chart.add_params(*picker.params)
    layers = list(chart.layer)
    heard = min((i for i, layer in enumerate(layers) if isinstance(layer.encoding.color, altair.Color)), default=0)
    layers[heard] = layers[heard].add_params(*picker.params)
    return altair.layer(*layers, data=chart.data, width=chart.width, height=chart.height, title=chart.title)


def themed(chart: Chart) -> Chart:
    """The chart with the look of a report's wherever it is shown or saved; see :func:`unthemed`."""
    return chart.configure(**CONFIG)


def unthemed(chart: Chart) -> Chart:
    """The chart without its look, so that it may stand beside others in one of Altair's compound charts."""
    import altair

    own = chart.copy(deep=False)
    own.config = altair.Undefined
    return own


def _cycled(known: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [known[i % len(known)] for i in range(len(names))]


def _shifted(known: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """In turn, one further on each time round, so that beside as many colours no two series look alike."""
    return [known[(i + i // len(known)) % len(known)] for i in range(len(names))]


def spec_of(chart: Chart) -> dict[str, Any]:
    """The Vega-Lite specification with the theme; what a chart sets itself goes before it."""
    import altair

    with altair.theme.enable("none"):  # a report looks the same whatever theme its reader has switched on
        spec: dict[str, Any] = chart.to_dict(validate=False)  # its parts were checked as they were made
    own = spec.get("config", {})
    merged = {
        key: ({**value, **own[key]} if isinstance(own.get(key), dict) else own.get(key, value))
        if isinstance(value, dict)
        else own.get(key, value)
        for key, value in CONFIG.items()
    }
    return {**spec, "config": {**own, **merged}}


def image_of(chart: Chart, kind: str) -> bytes:
    """The bytes of a chart or of its specification as one of KINDS: offline, without a browser, equal for equal."""
    import vl_convert

    spec = chart if isinstance(chart, dict) else spec_of(chart)
    svg = _svg_of(json.dumps(_without_inputs(spec)))
    if kind == "png":
        return _packed(bytes(vl_convert.svg_to_png(svg, scale=SCALE)))
    if kind == "pdf":
        # A pixel is .75 points, and what is drawn keeps its coordinates.
        smaller = re.sub(
            r'(width|height)="([0-9.]+)"', lambda side: f'{side[1]}="{0.75 * float(side[2]):g}"', svg, count=2
        )
        return in_order(bytes(vl_convert.svg_to_pdf(smaller)))
    return svg.encode()


@lru_cache(maxsize=64)
def _svg_of(spec: str) -> str:
    """Laying a chart out takes most of the time, and every kind starts from it."""
    import vl_convert

    return _shared_shapes(str(vl_convert.vegalite_to_svg(spec)))


_MARK = re.compile(
    r'<path(?: aria-hidden="true")? transform="translate\(([-\d.]+),([-\d.]+)\)" (d="[^"]*"(?: [-\w]+="[^"]*")*)/>'
)


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


def _packed(png: bytes) -> bytes:
    """The same pixels in two fifths of the bytes: vl-convert packs them for speed, and a page of heat maps is large."""
    parts, pixels, place = [], b"", 8
    while place < len(png):
        size = int.from_bytes(png[place : place + 4], "big")
        if png[place + 4 : place + 8] == b"IDAT":
            pixels += png[place + 8 : place + 8 + size]
        else:
            parts.append(png[place : place + 12 + size])
        place += 12 + size
    body = b"IDAT" + zlib.compress(zlib.decompress(pixels), 6)
    packed = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return png[:8] + b"".join([*parts[:-1], packed, parts[-1]])


def _without_inputs(spec: dict[str, Any]) -> dict[str, Any]:
    """Without lists and sliders, which nobody can use on paper."""
    return spec | {
        "params": [
            {key: value for key, value in param.items() if key != "bind" or value == "legend"}
            for param in spec.get("params", [])
        ]
    }


def log_domain(values: pd.Series) -> list[float]:
    """Ends of a logarithmic axis that holds every value above 0, with some room; 0.1 to 10 where there is none."""
    positive = values[values > 0]
    return [float(positive.min()) / 1.6, float(positive.max()) * 1.6] if len(positive) else [0.1, 10.0]


def end_ticks(base: Chart, end: Any) -> Chart:
    """Where an interval ends, as ticks taller than a mark: one narrower than its mark is seen above and below it.

    ``base``: the chart with its places and colours, ``end``: the end as an X. A line without an interval has no tick.
    """
    return base.mark_tick(orient="vertical", size=TICK, thickness=1.6).encode(x=end)


TICK = 10
"""Pixels."""


def bars(table: pd.DataFrame, label: str, value: str, title: str, *, unit: str = "", width: int = 440) -> Chart:
    """A lying bar per line, in the table's order, with its number beside it; an exact 0 says so.

    ``label`` and ``value`` are columns, ``title`` that of the axis with its unit, ``unit`` stands behind the numbers.
    """
    import altair

    shown = table[[label, value]].assign(
        said=["exactly 0" if each == 0 else f"{each:.3g}{unit}" for each in table[value]]
    )
    reach = float(shown[value].max()), min(float(shown[value].min()), 0.0)
    room = 0.16 * (reach[0] - reach[1])
    scale = altair.Scale(domain=[reach[1] - (room if reach[1] < 0 else 0), reach[0] + room], nice=False)
    base = altair.Chart(data_of(shown)).encode(
        y=altair.Y(f"{label}:N", sort=None, title=None, axis=altair.Axis(domain=False, ticks=False)),
        x=altair.X(f"{value}:Q", scale=scale, title=title, axis=altair.Axis(tickCount=5, format="~f")),
        tooltip=[altair.Tooltip(f"{label}:N", title=label), altair.Tooltip("said:N", title=title)],
    )
    texts = base.mark_text(align="left", dx=5).encode(text="said:N")
    drawn = base.mark_bar(color=COLOURS[0], height=13)
    return altair.layer(drawn, texts).properties(width=width, height=max(26 * len(shown), 40))


def draw(makers: Mapping[str, Callable[[], Chart | None]]) -> Charts:
    """Make each chart; one that is None does not apply and is left out."""
    made = {name: make() for name, make in makers.items()}
    return {name: chart for name, chart in made.items() if chart is not None}


def write_charts(folder: Path, charts: Mapping[str, Chart], prefix: str = "", kinds: Collection[str] = KINDS) -> None:
    """Write every chart as ``<prefix><name>.<kind>``."""
    folder.mkdir(parents=True, exist_ok=True)
    specs = {name: chart if isinstance(chart, dict) else spec_of(chart) for name, chart in charts.items()}

    def write(name: str) -> None:
        for kind in kinds:
            files.write_bytes(folder / f"{prefix}{name}.{kind}", image_of(specs[name], kind))

    with ThreadPoolExecutor(2) as pool:  # vl-convert lays one chart out while another one becomes pixels
        list(pool.map(write, specs))
