"""Charts of drift: parameters by epoch, word rows by exposure, positions."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.measure import boxes_of
from toolkit.comparison.report_data import ordered_strata
from toolkit.comparison.summaries import check_table
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.reporting.cells import stratum_text
from toolkit.reporting.charts import (
    REFERENCE,
    Chart,
    LogAxis,
    along,
    altair,
    data_of,
    in_time,
    log_axis,
    once,
    ordered,
    outline,
    over_seeds,
    panels,
    picked,
    regimes_of,
    tips,
)

HEIGHT = 130
WIDE = 390
UNDEFINED = "undefined: it was 0 before"


def plot_drift(drift: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """Relative drift ‖Δ‖ / ‖E⁰‖ of each whole embedding parameter after each epoch: a panel each, a line per regime.

    ``drift`` is :func:`toolkit.measure_drift`'s table, of one run or of several: then with the columns ``run`` and
    ``regime`` (or ``condition``). A mark is the mean over the seeds, its bar from the least to the greatest; what is
    exactly 0 stands on the floor. The dotted line is the same number for a re-initialised parameter. ``regimes``: their
    order, which gives the colours. None where nothing moved. ValueError for another table.
    """
    check_table(drift, ("epoch", "parameter", "stratum", "measure", "statistic", "value"), "measure_drift")
    lines = _whole(drift)
    if lines.empty or not (lines["norm"] > 0).any():
        return None
    lines, time, legend = in_time(lines)
    shown, picker, look = picked(lines["regime"], regimes, **legend)
    zero = [name for name in shown if (lines.loc[lines["regime"] == name, "norm"] == 0).any()]
    above = 2.2 * lines["reinitialised"].max()  # room for its name
    axis = log_axis([*lines["relative"], above], len(zero), HEIGHT)
    found = [name for name in EMBEDDING_PARAMETERS if name in set(lines["parameter"])]
    columns = min(len(found), 3)
    size = {"width": (625 - 24 * (columns - 1)) // columns, "height": HEIGHT}
    parts = []
    for i, name in enumerate(found):
        own = lines[lines["parameter"] == name]
        panel = _of_parameter(own, axis, zero, time, look, is_first=not i % columns)
        parts.append(panel.properties(title=name, **size))
    return panels(parts, columns, picker)


def _whole(drift: pd.DataFrame) -> pd.DataFrame:
    """A line per run, parameter and epoch after 0: regime, run, parameter, epoch, norm, relative, reinitialised."""
    own = drift[(drift["stratum"] == "whole parameter") & (drift["epoch"] > 0)]
    own = own.assign(regime=regimes_of(own), run=own.get("run", ""))
    keys = ["regime", "run", "parameter", "epoch"]
    parts = {
        name: own[(own["measure"] == measure) & (own["statistic"] == statistic)].set_index(keys)["value"]
        for name, measure, statistic in (
            ("norm", "norm", "value"),
            ("relative", "relative", "value"),
            ("reinitialised", "relative", "reinitialised"),
        )
    }
    return pd.DataFrame(parts).reindex(parts["relative"].index).reset_index()


def _of_parameter(
    lines: pd.DataFrame, axis: LogAxis, zero: Sequence[str], time: Any, look: dict[str, Any], *, is_first: bool
) -> Chart:
    by = ["regime", "epoch", "time"]
    moved = over_seeds(lines[lines["norm"] > 0], by, "relative")
    moved = moved.assign(place=moved["mean"], is_zero=False)
    still = over_seeds(lines[lines["norm"] == 0].assign(relative=0.0), by, "relative")
    floors = dict(zip(zero, axis.floors, strict=True))
    still = still.assign(place=still["regime"].map(floors), is_zero=True, spread="exactly 0")
    title = ["relative drift", "(of its own norm)"] if is_first else None
    y = altair.Y("place:Q", scale=axis.scale(), axis=axis.axis(labels=is_first), title=title)
    said = tips(regime="regime", epoch=("epoch", "~g"), mean=("relative drift", ".4g"), spread="over seeds")
    base = altair.Chart().encode(x=time, tooltip=said)
    layers = [axis.band(labels=is_first)] if zero else []
    yardstick = lines["reinitialised"].dropna().round(4).drop_duplicates()
    if len(yardstick):
        level = altair.Chart(data_of(pd.DataFrame({"place": yardstick}))).encode(y=y)
        named = level.mark_text(align="right", baseline="bottom", dx=-2, dy=-1, fontSize=10, text="re-initialised")
        layers += [
            level.mark_rule(color=REFERENCE, strokeDash=[2, 2]).encode(tooltip=tips(place=("re-initialised", ".4g"))),
            named.encode(x=altair.value("width")),
        ]
    several = base.transform_filter("!datum.is_zero && datum.num_seeds > 1")
    layers += [
        base.transform_filter("!datum.is_zero").mark_line().encode(y=y, **look["bars"]),
        several.mark_rule().encode(y=along(y, "low"), y2="high:Q", **look["bars"]),
        base.mark_point().encode(y=y, **look["points"]),
    ]
    if (undefined := lines[(lines["norm"] > 0) & lines["relative"].isna()])["regime"].nunique():
        of = ", ".join(dict.fromkeys(undefined["regime"]))
        words = once().mark_text(text=[of, UNDEFINED], fontSize=10)
        layers.append(words.encode(x=altair.value(100), y=altair.value(HEIGHT / 3)))
    known = [part for part in (moved, still) if len(part)]  # none where a parameter that was 0 moved under every regime
    marks = pd.concat(known, ignore_index=True) if known else moved
    return altair.layer(*layers, data=data_of(marks))


def plot_word_drift(rows: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """How far the word rows moved, by how often training showed them: quartiles of ‖Δ‖, 5 to 95 %, rows and zeros.

    ``rows`` is :func:`toolkit.measure_rows`' table of ``word_embeddings``, of one run or of one run per ``regime`` (or
    ``condition``). Box and line are of the rows that moved; how many are exactly 0 stands beside them, and fewer than
    five are drawn one by one. Regimes under which no row moved are left out. ``regimes`` as in
    :func:`toolkit.plot_drift`. None where no row moved. ValueError for another table.
    """
    check_table(rows, ("row", "stratum", "norm"), "measure_rows")
    parts = [
        [table.assign(condition=regime) for table in boxes_of(own)]
        for regime, own in rows.assign(regime=regimes_of(rows)).groupby("regime", sort=False)
    ]
    boxes, dots = (pd.concat(own, ignore_index=True) for own in zip(*parts, strict=True))
    return plot_word_boxes(boxes, dots, regimes=regimes)


def plot_word_boxes(boxes: pd.DataFrame, dots: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """:func:`plot_word_drift` of rows that :func:`boxes_of` has summed up, one run per regime."""
    boxes = boxes.assign(regime=regimes_of(boxes))
    moved = set(boxes.loc[boxes["num_moved"] > 0, "regime"])
    shown = [name for name in ordered(boxes["regime"], regimes) if name in moved]
    if not shown:
        return None
    boxes = boxes[boxes["regime"].isin(shown)]
    dots = dots.assign(regime=regimes_of(dots)) if len(dots) else pd.DataFrame(columns=["regime", "stratum", "norm"])
    strata = list(map(stratum_text, ordered_strata(boxes["stratum"].astype(str))))
    boxes, dots = (part.assign(stratum=part["stratum"].astype(str).map(stratum_text)) for part in (boxes, dots))
    boxes = _with_texts(boxes)
    axis = log_axis([boxes["low"].min(), boxes["high"].max(), *dots["norm"]])
    x = altair.X("low:Q", scale=axis.scale(), axis=axis.axis(), title="how far a row moved (weight units)")
    y = altair.Y("stratum:N", sort=strata, title=None, axis=altair.Axis(domain=False, ticks=False))
    shown, picker, look = picked(boxes["regime"], regimes)
    offset = altair.YOffset("regime:N", sort=shown, scale=altair.Scale(domain=shown))
    said = tips(
        regime="regime",
        stratum="rows",
        num_rows=("number of rows", ","),
        median=("median (weight units)", ".3g"),
        quartiles="middle half",
        range="5 to 95 %",
        zeros="exactly 0",
    )
    base = altair.Chart().encode(y=y, yOffset=offset, tooltip=said)
    thickness = 10 if len(shown) < 4 else 6
    hue = outline(look["bars"]["color"])
    box = base.mark_bar(height=thickness, fillOpacity=0.35, strokeWidth=1)
    layers = [
        base.mark_rule(strokeWidth=1.6).encode(x=x, x2="high:Q", **look["bars"]),
        box.encode(x=along(x, "q1"), x2="q3:Q", stroke=hue, **look["bars"]),
        base.mark_tick(thickness=2.5, size=thickness + 3).encode(x=along(x, "median"), **look["bars"]),
    ]
    for place, name, words in ((WIDE + 55, "rows", "rows"), (WIDE + 120, "zeros", "exactly 0")):
        layers.append(base.mark_text(align="right", fontSize=10).encode(x=altair.value(place), text=f"{name}:N"))
        head = once().mark_text(align="right", baseline="bottom", fontSize=10)
        layers.append(head.encode(x=altair.value(place), y=altair.value(-3), text=altair.value(words)))
    if len(dots):
        each = altair.Chart(data_of(dots)).mark_point(size=22).encode(y=y, yOffset=offset, **look["points"])
        told = tips(norm=("moved (weight units)", ".3g"), stratum="rows")
        layers.append(each.encode(x=along(x, "norm"), tooltip=told))
    step = max((thickness + 4) * len(shown) + 4, 20)
    chart = altair.layer(*layers, data=data_of(boxes)).properties(width=WIDE, height=step * len(strata))
    return panels([chart], picker=picker)


def _with_texts(boxes: pd.DataFrame) -> pd.DataFrame:
    """The boxes with what is read of them."""
    lines = boxes.to_dict("records")
    return boxes[["regime", "stratum", "num_rows", "low", "q1", "median", "q3", "high"]].assign(
        zeros=[_share(line["num_rows"] - line["num_moved"], line["num_rows"]) for line in lines],
        rows=[f"{line['num_rows']:,}" for line in lines],
        quartiles=[_span(line["q1"], line["q3"]) for line in lines],
        range=[_span(line["low"], line["high"]) for line in lines],
    )


def _span(low: float, high: float) -> str | None:
    return f"{low:.3g} to {high:.3g}" if low == low else None


def _share(part: int, whole: int) -> str:
    """A percentage that reads 0 or 100 only when it is exactly that."""
    percent = 100 * part / whole
    if 0 < percent < 0.1 or 99.9 < percent < 100:
        return "<0.1 %" if percent < 50 else ">99.9 %"
    return f"{percent:.0f} %" if percent in (0, 100) else f"{percent:.1f} %"


def plot_position_drift(rows: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """How far each position row moved: ‖Δ‖ by position, a line per regime, and where the longest training text ends.

    ``rows`` is :func:`toolkit.measure_rows`' table of ``position_embeddings``, of one run or of one run per ``regime``
    (or ``condition``); with a column ``position`` where rows are not positions. What is exactly 0 stands on the floor.
    Where most positions lie beyond the longest text, the first panel shows those that do not. ``regimes`` as in
    :func:`toolkit.plot_drift`. None where no row moved. ValueError for another table.
    """
    check_table(rows, ("row", "norm", "num_steps"), "measure_rows")
    if rows.empty or not (rows["norm"] > 0).any():
        return None
    rows = rows.assign(regime=regimes_of(rows), position=rows["position"] if "position" in rows else rows["row"])
    shown, picker, look = picked(rows["regime"], regimes)
    zero = [name for name in shown if (rows.loc[rows["regime"] == name, "norm"] == 0).any()]
    axis = log_axis(rows["norm"], len(zero), HEIGHT + 20)
    used = rows.loc[pd.to_numeric(rows["num_steps"]).fillna(0) > 0, "position"]
    longest, last = (int(used.max()) + 1 if len(used) else None), int(rows["position"].max())
    ends = [longest * 1.25, last] if longest and longest * 2 < last else [last]
    moved = rows.loc[rows["norm"] > 0, ["regime", "position", "norm"]]
    still = _stretches(rows, dict(zip(zero, axis.floors, strict=True)))
    parts = []
    for i, end in enumerate(ends):
        scale = altair.Scale(domain=[0, end], nice=False, padding=4)
        x = altair.X("position:Q", scale=scale, title="position", axis=altair.Axis(grid=False, tickCount=5))
        y = altair.Y(
            "norm:Q",
            scale=axis.scale(),
            title=None if i else ["how far a row moved", "(weight units)"],
            axis=axis.axis(labels=not i),
        )
        said = tips(regime="regime", position=("position", "d"), norm=("moved (weight units)", ".3g"))
        own = altair.Chart().encode(x=x, y=y, tooltip=said)
        layers = [axis.band(labels=not i)] if zero else []
        if longest:
            rule = once().mark_rule(color=REFERENCE, strokeDash=[2, 2])
            layers.append(rule.encode(x=altair.datum(longest - 0.5, scale=scale)))
        stride = 1 if end < 200 else 16  # shapes tell regimes apart, and hovering needs something to hit
        marked = own.transform_filter(f"datum.position % {stride} == 0")
        layers += [
            own.mark_line(strokeWidth=1.4).encode(**look["bars"]),
            marked.mark_point(size=14, filled=True).encode(**look["points"]),
        ]
        if len(still):
            flat = still[still["first"] <= end].assign(last=still["last"].clip(upper=end))
            bar = altair.Chart(data_of(flat)).mark_rule(strokeWidth=4, strokeCap="round")
            words = tips(regime="regime", stretch="positions that are exactly 0")
            ends_of = {"x": along(x, "first"), "x2": "last:Q", "y": along(y, "place")}
            layers.append(bar.encode(tooltip=words, **ends_of, **look["bars"]))
        chart = altair.layer(*layers, data=data_of(moved[moved["position"] <= end]))
        parts.append(chart.properties(width=590 if len(ends) == 1 else 295, height=HEIGHT + 20))
    return panels(parts, 2, picker)


def _stretches(rows: pd.DataFrame, floors: dict[str, float]) -> pd.DataFrame:
    """Neighbouring positions of a regime that are exactly 0 as one line: first, last, and where they are drawn."""
    found = []
    for regime, own in rows[rows["norm"] == 0].groupby("regime", sort=False):
        places = np.sort(own["position"].to_numpy())
        for part in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            first, last = int(part[0]), int(part[-1])
            line = {"regime": regime, "first": first, "last": last, "place": floors[str(regime)]}
            found.append(line | {"stretch": f"{first} to {last}"})
    return pd.DataFrame(found, columns=["regime", "first", "last", "place", "stretch"])
