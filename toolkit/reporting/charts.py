"""One look for every chart, and what charts share: axes, legends, intervals, panels."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd

from toolkit.comparison.conditions import SPOKEN
from toolkit.naming import visible

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B8629A", "#767B84", "#A8741A", "#1B8FA8", "#8A6BBF")
"""Okabe & Ito 2008 as far as they have a contrast of 3:1 with both a white and a dark page, and four more that do."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [1, 3], [10, 4], [6, 2, 1, 2])
REFERENCE = "#767B84"
"""The colour of a line that is no run's: a null, a yardstick, zero."""
WIDTH = 690
"""Pixels: 7.2 inches at 96 a inch, the text width of a paper in one column."""

INK, MUTED = "#20242b", "#59616d"
_TEXT = {
    "labelFontSize": 11,
    "titleFontSize": 11,
    "titleFontWeight": "normal",
    "labelColor": INK,
    "titleColor": INK,
}
CONFIG: Mapping[str, Any] = {
    "font": "Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif",
    "background": "white",
    "padding": 4,
    "aria": False,  # a chart has one label, its description: hundreds of labelled marks are no help to anybody
    "mark": {"aria": False},
    "view": {"stroke": None, "continuousWidth": 240, "continuousHeight": 150},
    "axis": {
        **_TEXT,
        "domainColor": MUTED,
        "tickColor": MUTED,
        "gridColor": "#e6e2da",
        "labelLimit": 260,
        "labelFlush": False,  # or the label at an end is pushed towards its neighbour, off its tick
        "titlePadding": 6,
    },
    "legend": {
        "orient": "bottom",
        **_TEXT,
        "labelLimit": 320,
        "columns": 3,
        "symbolSize": 70,
        "symbolStrokeWidth": 1.6,
    },
    "title": {
        "fontSize": 12,
        "fontWeight": "bold",
        "color": INK,
        "anchor": "start",
        "frame": "group",
        "offset": 8,
        "subtitleFontSize": 11,
        "subtitleColor": MUTED,
        "subtitlePadding": 4,
    },
    "header": {"labelFontSize": 12, "labelFontWeight": "bold", "labelColor": INK, "title": None},
    "text": {"fontSize": 11, "color": INK},
    "line": {"strokeWidth": 1.8},
    "point": {"size": 45, "strokeWidth": 1.6, "filled": False, "opacity": 1},
    "tick": {"opacity": 1},
    "rule": {"strokeWidth": 1.4},
    "concat": {"spacing": 22},
    "facet": {"spacing": 22},
    "range": {"category": list(COLOURS), "symbol": list(SHAPES)},
}
"""The theme, as a Vega-Lite config: size, colours and fonts, once for page, notebook and paper."""

if TYPE_CHECKING:
    import altair as altair
else:

    class _WhenUsed:
        """Altair, which takes a second to import, from the first chart on."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("altair"), name)

    altair = _WhenUsed()

Chart: TypeAlias = Any
"""An Altair chart of any kind: plain, layered, faceted or concatenated."""
Charts: TypeAlias = dict[str, Chart]
"""Name of a chart, unique in its report, to the chart."""


def data_of(table: pd.DataFrame, columns: Sequence[str] | None = None) -> Any:
    """The records of a table as inline data: numbers to five significant digits, what is undefined as null."""
    selected = table if columns is None else table[list(columns)]
    values_by_column = {str(name): [_json_value(value) for value in selected[name]] for name in selected}
    # No list: Altair copies every value of one again whenever a chart is layered, concatenated or themed.
    records = tuple(
        dict(zip(values_by_column, values, strict=True)) for values in zip(*values_by_column.values(), strict=True)
    )
    return altair.Data(values=records)


def _json_value(value: Any) -> Any:
    """A value as JSON has it: numbers to five significant digits, what is undefined as None, else a text."""
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
    names = [str(value) for value in values]
    slug = "".join(character if character.isalnum() else "_" for character in field)  # a name of a variable in Vega
    legend = altair.selection_point(name=f"legend_{slug}", fields=[field], bind="legend")
    all_series = "all"
    choice = altair.param(
        name=f"chosen_{slug}",
        value=all_series,
        bind=altair.binding_select(options=[all_series, *names], name=f"{label or field.replace('_', ' ')} "),
    )
    is_chosen = f"chosen_{slug} == '{all_series}' || chosen_{slug} == datum[{json.dumps(field)}]"
    is_picked = altair.PredicateComposition({"and": [{"param": legend.name}, is_chosen]})
    opacity = altair.when(is_picked).then(altair.value(1.0)).otherwise(altair.value(0.12))
    return Picker((legend, choice), opacity)


def colour(field: str, values: Iterable[str], /, title: str | None = None, **legend: Any) -> Any:
    """Colour by series, in the order of ``values``; equal series have equal colours in every chart of a report."""
    names = [str(value) for value in values]
    hues = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    # As many as the theme has are the theme's, which configure_range may change.
    scale = altair.Scale(domain=names, range=hues if len(names) > len(COLOURS) else altair.Undefined)
    return altair.Color(f"{field}:N", scale=scale, legend=_legend(names, title, legend))


def shape(field: str, values: Iterable[str], /, title: str | None = None, **legend: Any) -> Any:
    """Shape by series, so that colour alone never tells them apart; the same legend as :func:`colour`."""
    names = [str(value) for value in values]
    scale = altair.Scale(domain=names, range=_shifted(SHAPES, names))
    return altair.Shape(f"{field}:N", scale=scale, legend=_legend(names, title, legend))


def _legend(names: Sequence[str], title: str | None, options: Mapping[str, Any]) -> Any:
    """A legend in as many columns as names of this length have room for."""
    longest = max(map(len, names), default=0)  # letters, of which 32 fit into a third of the width, 50 into half
    columns = 3 if longest <= 32 else 2 if longest <= 50 else 1
    fewer = {} if columns == 3 else {"columns": columns}  # 3 are the theme's, which configure_legend may change
    return altair.Legend(title=title, **({"labelLimit": WIDTH // columns - 40} | fewer | dict(options)))


def dash(field: str, values: Iterable[str]) -> Any:
    """Line pattern by series; beside :func:`colour` it needs no legend of its own."""
    names = [str(value) for value in values]
    scale = altair.Scale(domain=names, range=_shifted(DASHES, names))
    return altair.StrokeDash(f"{field}:N", scale=scale, legend=None)


def thickness(field: str, values: Iterable[str]) -> Any:
    """Line width by series, each thinner than the one that it may cover, which is then seen on both sides of it."""
    names = [str(value) for value in values]
    widths = [altair.value(float(f"{width:.3g}")) for width in np.linspace(3.6, 1.4, len(names))]
    if len(names) < 2:
        return altair.Undefined
    conditions: Any = altair  # not by a scale, which the legend would show
    for name, width in zip(names[:-1], widths[:-1], strict=True):
        conditions = conditions.when(f"datum[{json.dumps(field)}] == {json.dumps(name)}").then(width)
    return conditions.otherwise(widths[-1])


def outline(colour: Any) -> Any:
    """The colour of a filled mark for its outline: what is filled lightly has contrast by that alone."""
    if not isinstance(colour, altair.Color):
        return colour
    return altair.Stroke(colour["shorthand"], scale=colour["scale"], legend=None)


NO_REGIME = "this run"


def regimes_of(table: pd.DataFrame) -> "pd.Series[str]":
    """The series of each record: its ``base``, ``condition`` or ``regime`` (``none``, ``backbone`` ... in words)."""
    for name in ("base", "condition", "regime"):
        if name in table:
            if name != "regime":
                return table[name].astype(str)
            # A label as it is in the tables of a run: what is frozen.
            return table[name].astype(str).map(lambda text: SPOKEN.get(text, f"{text} frozen"))
    return pd.Series(NO_REGIME, index=table.index, dtype=object)


def ordered(names: Iterable[str], order: Iterable[str] | None) -> list[str]:
    """Distinct names, those of ``order`` first: each then has its colour in every chart."""
    return list(dict.fromkeys([*(order or ()), *names]))


def over_seeds(table: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Mean, least and greatest of ``value`` over the records of each ``by``: mean, low, high, num_seeds, spread (text).

    Lines whose value is undefined count nowhere; a mean of equal values is that value.
    """
    defined = table[table[value].notna()]
    means = defined.groupby(list(by), sort=False)[value].agg(["mean", "min", "max", "size"]).reset_index()
    means = means.rename(columns={"min": "low", "max": "high", "size": "num_seeds"})
    means["mean"] = means["mean"].clip(means["low"], means["high"])  # a rounding may put it beside them
    means["spread"] = [
        "one seed" if num_seeds == 1 else f"{low:.4g} to {high:.4g} ({num_seeds} seeds)"
        for low, high, num_seeds in zip(means["low"], means["high"], means["num_seeds"], strict=True)
    ]
    return means


def padded(values: Iterable[float], share: float = 0.06, most: float = math.inf) -> Any:
    """The scale of an axis that holds every value, with room at both ends; no tick stands above ``most``.

    The room is ``share`` of the values' range; of equal values 3 % of their size, or of zeros .5.
    """
    defined = [float(value) for value in values if value == value] or [0.0, 1.0]
    least, greatest = min(defined), max(defined)
    room = share * (greatest - least) or 0.03 * abs(least) or 0.5
    low, high = least - room, greatest + room
    if greatest <= most < high:
        high = most + min(room, share * (most - low))
    return altair.Scale(domain=[low, high], nice=False)


def log_ticks(low: float, high: float) -> list[float]:
    """Two to seven round values between the ends of a logarithmic axis.

    Below .8 decades multiples of 1, 2 or 5 times a power of ten, whichever gives seven at most; up to 1.6 decades 1, 2
    and 5 of each; up to 2.6 decades 1 and 3 of each; beyond that powers of ten alone: every one up to 6 decades, every
    second up to 12, and so on.
    """
    decades = math.log10(high / low)
    if decades < 0.8:  # hardly logarithmic: no power of ten may be in it
        step = 10.0 ** math.floor(math.log10((high - low) / 3))
        step *= 5 if high - low > 12 * step else 2 if high - low > 5 * step else 1
        multiples = range(math.ceil(low / step), math.floor(high / step) + 1)
        return [float(f"{i * step:.6g}") for i in multiples]
    digits = (1, 2, 5) if decades < 1.6 else (1, 3) if decades < 2.6 else (1,)
    stride = max(1, math.ceil(decades / 6)) if digits == (1,) else 1
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers if power % stride == 0 for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]


def log_axis(values: Iterable[float], num_floors: int = 0, height: float = 150) -> "LogAxis":
    """A logarithmic axis that holds every value above 0, and ``num_floors`` floors below it for what is exactly 0.

    ``height``: pixels of the axis with its floors.
    """
    positive = [float(value) for value in values if value > 0]
    low, high = (min(positive) / 1.35, max(positive) * 1.35) if positive else (0.1, 10.0)
    floors_height = FLOOR_HEIGHT * (num_floors + 1) if num_floors else 0.0
    decades_per_pixel = math.log10(high / low) / (height - floors_height)

    def value_below(pixels: float) -> float:
        """The value so many pixels below the axis proper."""
        return low / 10 ** (decades_per_pixel * pixels)

    floors = tuple(value_below(FLOOR_HEIGHT * (i + 0.8)) for i in range(num_floors))
    return LogAxis(low, high, value_below(floors_height), floors)


FLOOR_HEIGHT = 10.0
"""Pixels of a floor, on which the exact zeros of one series stand."""


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis whose lower end is kept for what is exactly 0 and has no place on it."""

    low: float
    """Where the axis proper begins."""
    high: float
    bottom: float
    """Where it ends below, with the floors."""
    floors: tuple[float, ...]
    """Where to draw what is exactly 0, a value per series, from the axis down."""

    def scale(self) -> Any:
        return altair.Scale(type="log", domain=[self.bottom, self.high], nice=False)

    def axis(self, **options: Any) -> Any:
        """Altair's axis, with ``exactly 0`` beside the floors; ``options`` are those of ``altair.Axis``."""
        ticks = log_ticks(self.low, self.high)
        look = {"format": "~g", "labelOverlap": "greedy", "labelSeparation": 4}
        if self.floors:
            ticks.insert(0, math.sqrt(self.low * self.bottom))  # amid the floors, for their label
            look["labelExpr"] = f"datum.value < {self.low} ? 'exactly 0' : datum.label"
            # A line amid the floors would say that some zeros lie above it, and others below.
            look["gridOpacity"] = {"condition": {"test": f"datum.value < {self.low}", "value": 0}, "value": 1}
        return altair.Axis(values=ticks, **(look | options))

    def band(self, **options: Any) -> Any:
        """The grey ground under the floors of a vertical axis; ``options`` are those of :meth:`axis`."""
        ground = once().mark_rect(color=REFERENCE, fillOpacity=0.16)
        return ground.encode(
            y=altair.YDatum(self.bottom, scale=self.scale(), axis=self.axis(**options)), y2=altair.YDatum(self.low)
        )


def in_time(table: pd.DataFrame) -> tuple[pd.DataFrame, Any]:
    """The table with its epochs as a column ``time``, and the axis of that."""
    epochs = sorted(table["epoch"].unique())
    # A tick per epoch where their labels do not lie on one another.
    has_room = len(epochs) <= 6 and np.diff(epochs, prepend=0).min() >= 0.1 * epochs[-1]
    ticks = {"values": epochs} if has_room else {"tickCount": 5, "tickMinStep": 1 if epochs[-1] >= 3 else 0}
    scale = altair.Scale(zero=False, nice=False, padding=14)
    axis = altair.Axis(format="~f", grid=False, **ticks)
    return table.assign(time=table["epoch"]), altair.X("time:Q", title="epoch", scale=scale, axis=axis)


def look_of(
    names: Sequence[str], shown: Sequence[str], picker: Picker | None, field: str = "regime", **legend: Any
) -> dict[str, Any]:
    """Encodings that tell regimes apart: of ``points`` by colour and shape, of ``bars`` (and lines) by colour alone.

    Both fade what ``picker`` does not choose. ``names``: all series, in the order of their colours; ``shown``: those
    that the legend names. A table without regimes gets one colour and no legend.
    """
    if list(shown) == [NO_REGIME]:
        return {marks: {"color": altair.value(COLOURS[0])} for marks in ("bars", "points")}
    legend = {"values": list(shown)} | legend
    common = {"color": colour(field, names, **legend)} | ({"opacity": picker.opacity} if picker else {})
    return {"bars": common, "points": common | {"shape": shape(field, names, **legend)}}


def picked(
    regimes: Iterable[str], order: Iterable[str] | None, label: str | None = None, **legend: Any
) -> tuple[list[str], Picker | None, dict[str, Any]]:
    """The distinct regimes of a chart in order, their picker where there are several, and their look.

    ``regimes``: of each record that is drawn; ``order``: of all in the report, which gives the colours.
    """
    drawn_regimes = list(regimes)
    names = ordered(drawn_regimes, order)
    present = [name for name in names if name in set(drawn_regimes)]
    picker = pick("regime", present, label) if len(present) > 1 else None
    return present, picker, look_of(names, present, picker, **legend)


def tips(**titles: str | tuple[str, str]) -> list[Any]:
    """A tooltip's fields: column to its title, or to title and number format (``.3g``)."""
    return [
        altair.Tooltip(f"{name}:N", title=title)
        if isinstance(title, str)
        else altair.Tooltip(f"{name}:Q", title=title[0], format=title[1])
        for name, title in titles.items()
    ]


def once() -> Chart:
    """A chart of one empty record: for a rule, a band or a text that stands somewhere once."""
    return altair.Chart(altair.Data(values=[{}]))


def along(axis: Any, column: str) -> Any:
    """Another column on the same axis, such as the end of an interval."""
    other = axis.copy(deep=False)
    other["shorthand"] = f"{column}:Q"
    return other


def intervals(base: Chart, x: Any, **look: Any) -> list[Chart]:
    """The intervals of a table's lines, from ``low`` to ``high`` on the axis ``x``, with ticks at their ends."""
    low, high = along(x, "low"), along(x, "high")
    rule = base.mark_rule(strokeWidth=2).encode(x=low, x2=altair.X2("high:Q"), **look)
    # Taller than a mark: an interval that is narrower than its mark is seen above and below it.
    tick = base.mark_tick(orient="vertical", size=TICK_SIZE, thickness=1.6)
    return [rule, tick.encode(x=low, **look), tick.encode(x=high, **look)]


def around_zero(scale: Any, margin: float) -> list[Chart]:
    """A line at 0 of a horizontal axis, and the margin around it shaded, where there is one."""
    zero = once().mark_rule(color=REFERENCE).encode(x=altair.datum(0, scale=scale))
    if math.isnan(margin):
        return [zero]
    band = once().mark_rect(color=REFERENCE, fillOpacity=0.16)
    return [band.encode(x=altair.datum(-margin, scale=scale), x2=altair.datum(margin)), zero]


def over_seeds_layers(base: Chart, y: Any, look: Mapping[str, Any], **line: Any) -> list[Chart]:
    """A line through means over seeds, a bar from the least to the greatest of several seeds, a mark at each mean."""
    several = base.transform_filter("datum.num_seeds > 1")
    return [
        base.mark_line().encode(y=y, **line, **look["bars"]),
        several.mark_rule().encode(y=along(y, "low"), y2=altair.Y2("high:Q"), **look["bars"]),
        base.mark_point().encode(y=y, **look["points"]),
    ]


def panels(
    charts: Sequence[Chart], columns: int = 3, picker: Picker | None = None, titles: Sequence[str | list[str]] = ()
) -> Chart:
    """Panels in lines of ``columns`` with one legend and one picker; a single chart as it is; themed.

    ``titles``: of several panels; one alone has none.
    """
    if len(charts) > 1 and titles:
        for chart, title in zip(charts, titles, strict=True):
            chart.title = title
    first, *others = charts
    if picker:
        first = _listening(first, picker)
    if not others:
        return themed(first)
    # All at once: each change of a compound chart makes it anew, with several copies of all its parts.
    shared = altair.Resolve(scale=dict.fromkeys(("color", "shape", "strokeDash"), "shared"))
    return themed(altair.concat(first, *others, columns=columns, resolve=shared))


def _listening(chart: Chart, picker: Picker) -> Chart:
    """The chart with what a reader picks by, in its first layer with a legend: Vega-Lite hears clicks there only."""
    if not isinstance(chart, altair.LayerChart):
        return chart.add_params(*picker.params)
    layers = list(chart.layer)
    first_coloured = min(
        (i for i, layer in enumerate(layers) if isinstance(layer.encoding.color, altair.Color)), default=0
    )
    layers[first_coloured] = layers[first_coloured].add_params(*picker.params)
    return altair.layer(*layers, data=chart.data, width=chart.width, height=chart.height, title=chart.title)


def themed(chart: Chart) -> Chart:
    """The chart with the look of a report's wherever it is shown or saved: what its ``configure_*`` set goes on top.

    A config of its own would be in the way: Altair's ``configure_axis`` replaces a whole section of that, and takes
    no chart that has one into a compound one.
    """
    chart_class: Any = type(chart)
    copy_of_chart = chart.copy(deep=False)
    is_themed = chart_class.__name__ == _THEMED_NAME
    object.__setattr__(copy_of_chart, "__class__", chart_class if is_themed else _themed_class(chart_class))
    return copy_of_chart


_THEMED_NAME = "ThemedChart"


@cache
def _themed_class(chart_class: Any) -> type[Any]:
    """One of Altair's classes of chart that is drawn under our theme, whatever theme its reader has switched on."""

    def to_dict(self: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        with _theme():
            return dict(chart_class.to_dict(self, *arguments, **options))

    return type(_THEMED_NAME, (chart_class,), {"to_dict": to_dict})


def _theme() -> Any:
    """Altair's switch to the theme of a report."""
    if THEME not in altair.theme.names():
        altair.theme.register(THEME, enable=False)(lambda: altair.theme.ThemeConfig(config=CONFIG))
    return altair.theme.enable(THEME)


THEME = "embedding-drift"


def _shifted(choices: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The choices in turn, one further on each time round, so that with as many colours no two series look alike."""
    return [choices[(i + i // len(choices)) % len(choices)] for i in range(len(names))]


def spec_of(chart: Chart) -> dict[str, Any]:
    """The Vega-Lite specification with the theme, CONFIG; what the chart sets itself overrides the theme."""
    return dict(themed(chart).to_dict(validate=False))  # its parts were checked as they were made


TICK_SIZE = 10
"""Pixels of the ticks at the ends of an interval."""


UNDEFINED = "undefined: it was 0 before"
"""Size in % of what moved from 0."""


def percent_bars(table: pd.DataFrame, label: str, value: str, title: str) -> Chart:
    """A horizontal bar per record, in the table's order, with its number beside it; exact 0 and undefined are named.

    ``label`` and ``value`` are columns, ``title`` that of the axis with its unit.
    """
    texts = ["exactly 0" if size == 0 else f"{size:.3g} %" if size == size else UNDEFINED for size in table[value]]
    bars = table[[label, value]].fillna({value: 0.0}).assign(said=texts)
    greatest = float(bars[value].max()) or 1.0
    least = min(float(bars[value].min()), 0.0)
    room = 0.16 * (greatest - least)  # of the text beside a bar
    scale = altair.Scale(domain=[least - (room if least < 0 else 0), greatest + room], nice=False)
    base = altair.Chart(data_of(bars)).encode(
        y=altair.Y(f"{label}:N", sort=None, title=None, axis=altair.Axis(domain=False, ticks=False)),
        x=altair.X(f"{value}:Q", scale=scale, title=title, axis=altair.Axis(tickCount=5, format="~f")),
        tooltip=tips(**{label: label, "said": title}),
    )
    numbers = base.mark_text(align="left", dx=5).encode(text=altair.Text("said:N"))
    bar_marks = base.mark_bar(color=COLOURS[0], height=13)
    return altair.layer(bar_marks, numbers, width=440, height=max(26 * len(bars), 40))


def draw(makers: Mapping[str, Callable[[], Chart | None]]) -> Charts:
    """Make each chart; one that is None does not apply and is left out."""
    charts = {name: make() for name, make in makers.items()}
    return {name: chart for name, chart in charts.items() if chart is not None}
